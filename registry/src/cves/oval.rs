//! Streaming reader for OVAL documents.
//!
//! A definition lists vulnerabilities and refers to tests, these to objects, and these to package
//! names or to variables that hold them. The definitions come first, so the parts are combined at
//! the end. If no reference can be followed, the package is taken from the comment of the
//! criterion. Negated criteria and tests for the absence of a package describe unaffected systems,
//! so they contribute no package.

mod bounded;
mod element;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::BufRead;
use std::mem;

use quick_xml::Reader;
use quick_xml::escape::unescape;
use quick_xml::events::{BytesStart, Event};

use self::bounded::BoundedReader;
use self::element::{Element, ElementText, attribute, package_from_comment};
use super::list_builder::{CveListBuilder, PackageName, Priority, is_label, is_package_name};
use super::{CveList, InstalledPackages, find_cve_id, invalid, too_large};
use crate::finding::Finding;

/// Approximate limit of the memory for collected data, in bytes.
const MAX_MEMORY_BYTES: usize = 64 * 1024 * 1024;

/// Longest ID of a test, an object or a variable, in bytes.
const MAX_ID_BYTES: usize = 256;

/// Approximate memory overhead of a string, in bytes.
const OVERHEAD_BYTES: usize = 64;

/// Maximum number of vulnerabilities of a definition.
const MAX_CVES_PER_DEFINITION: usize = 4_000;

/// Maximum nesting depth of elements.
const MAX_DEPTH: usize = 64;

/// Stands for the content of a missing variable. It is not a valid name but counts against the
/// limit.
static UNNAMED: [String; 1] = [String::new()];

/// Reads a document of at most `limit` bytes.
pub(super) fn read(
    input: impl BufRead,
    installed: Option<&InstalledPackages>,
    limit: u64,
) -> Result<CveList, Finding> {
    let mut reader = Reader::from_reader(BoundedReader::new(input, limit));
    let (mut oval, mut buffer) = (OvalParser::default(), Vec::new());
    loop {
        buffer.clear();
        reader.get_mut().begin_event();
        let event = match reader.read_event_into(&mut buffer) {
            Ok(event) => event,
            Err(_) if reader.get_ref().is_exceeded() => return Err(too_large(limit)),
            Err(error) => return Err(invalid(error)),
        };
        match event {
            Event::Start(element) => oval.start_element(&element)?,
            Event::Empty(element) => {
                oval.start_element(&element)?;
                oval.end_element();
            }
            Event::End(_) => oval.end_element(),
            Event::Text(text) => oval.add_text(&text),
            Event::CData(text) => oval.add_text(&text),
            // Only predefined entities and character references: documents declare no others.
            Event::GeneralRef(name) => {
                let name: &str = &name;
                oval.add_text(&unescape(&format!("&{name};")).map_err(invalid)?);
            }
            Event::DocType(_) => return Err(invalid("it has a document type, as web pages do")),
            Event::Eof => break,
            _ => {}
        }
    }
    oval.finish(installed)
}

/// State of the parser.
#[derive(Default)]
struct OvalParser {
    /// The open elements, outermost first.
    open_elements: Vec<Element>,
    has_root: bool,
    text: Option<ElementText>,
    definition: Option<Definition>,
    /// Priority attribute of the open `cve` element.
    priority: String,
    definitions: Vec<Definition>,
    /// ID of the open test, object or variable.
    id: Option<String>,
    /// Object of each test.
    tests: HashMap<String, String>,
    /// Tests that pass if their object is absent.
    absence_tests: HashSet<String>,
    /// Package names and variables of each object.
    objects: HashMap<String, Vec<ObjectName>>,
    /// Package names of each variable.
    variables: HashMap<String, Vec<String>>,
    size: usize,
    /// Whether something was left out.
    is_truncated: bool,
    /// Whether something was left out that might have named a package.
    is_incomplete: bool,
}

#[derive(Default)]
struct Definition {
    /// Vulnerabilities, each with its own priority if it has one.
    cves: BTreeMap<String, String>,
    /// Priority of the whole definition.
    priority: String,
    packages: Vec<NamedPackage>,
    tests: Vec<String>,
    /// Whether it has a criterion that is not negated.
    has_asserted: bool,
    /// Whether it has a negated criterion.
    has_negated: bool,
}

/// A package that a comment or another text of a definition names.
struct NamedPackage {
    name: String,
    /// Index of the test of the criterion that has the comment.
    test: Option<usize>,
}

impl Definition {
    /// Whether it has a vulnerability and not only negated criteria.
    fn is_relevant(&self) -> bool {
        !self.cves.is_empty() && (self.has_asserted || !self.has_negated)
    }
}

enum ObjectName {
    Package(String),
    Variable(String),
}

impl OvalParser {
    fn start_element(&mut self, element: &BytesStart<'_>) -> Result<(), Finding> {
        let name = element.local_name();
        let name: &str = name.as_ref();
        if !self.has_root && name != "oval_definitions" {
            return Err(invalid("it is XML, but not OVAL definitions"));
        }
        self.has_root = true;
        if self.open_elements.len() >= MAX_DEPTH {
            return Err(invalid("its elements are nested too deep"));
        }
        let part = self.classify(name, element)?;
        self.open_elements.push(part);
        if part.has_text() {
            self.text = Some(ElementText::default());
        }
        Ok(())
    }

    /// Kind of an element. Stores the attributes that matter.
    fn classify(&mut self, name: &str, element: &BytesStart<'_>) -> Result<Element, Finding> {
        if self.definition.is_some() {
            return self.classify_in_definition(name, element);
        }
        if let Some(id) = self.id.clone() {
            return self.classify_in_entity(name, &id, element);
        }
        let part = match name {
            "definition" => {
                let class = attribute(element, "class")?;
                if matches!(class.as_deref(), Some("vulnerability" | "patch")) {
                    self.definition = Some(Definition::default());
                }
                return Ok(Element::Definition);
            }
            _ if name.ends_with("_test") => Element::Test,
            _ if name.ends_with("_object") => Element::Object,
            _ if name.ends_with("_variable") => Element::Variable,
            _ => return Ok(Element::Other),
        };
        let id = attribute(element, "id")?;
        if id.as_ref().is_some_and(|id| id.len() > MAX_ID_BYTES) {
            self.mark_incomplete();
        }
        self.id = id.filter(|id| id.len() <= MAX_ID_BYTES);
        if part == Element::Test
            && attribute(element, "check_existence")?.as_deref() == Some("none_exist")
            && let Some(id) = self.id.clone()
            && self.reserve_text(&id)
        {
            self.absence_tests.insert(id);
        }
        self.size += self.id.as_ref().map_or(0, String::len) + OVERHEAD_BYTES;
        Ok(part)
    }

    fn classify_in_definition(
        &mut self,
        name: &str,
        element: &BytesStart<'_>,
    ) -> Result<Element, Finding> {
        match name {
            "reference" => {
                let source = attribute(element, "source")?.unwrap_or_default();
                let id = attribute(element, "ref_id")?.unwrap_or_default();
                if source.eq_ignore_ascii_case("cve") {
                    self.add_cve(&id, "");
                }
            }
            "cve" => {
                let priority = attribute(element, "priority")?;
                let mut labels = priority.into_iter().chain(attribute(element, "impact")?);
                // An invalid label must not hide the priority of the whole definition.
                let label = labels.find(|label| is_label(label));
                self.priority = label.unwrap_or_default();
                return Ok(Element::Cve);
            }
            "criteria" => return Ok(Element::Criteria(self.is_negated(element)?)),
            "criterion" => self.read_criterion(element)?,
            "severity" => return Ok(Element::Severity),
            "product" => return Ok(Element::Product),
            "title" => return Ok(Element::Title),
            _ => {}
        }
        Ok(Element::Other)
    }

    /// Whether a criteria element is negated. Negation inside a negated element cancels out.
    fn is_negated(&self, element: &BytesStart<'_>) -> Result<bool, Finding> {
        let negate = attribute(element, "negate")?;
        let by_itself = matches!(negate.as_deref().map(str::trim), Some("true" | "1"));
        let around = self.open_elements.iter().rev().find_map(|part| match part {
            Element::Criteria(is_denied) => Some(*is_denied),
            _ => None,
        });
        Ok(by_itself != around.unwrap_or_default())
    }

    fn read_criterion(&mut self, element: &BytesStart<'_>) -> Result<(), Finding> {
        let is_denied = self.is_negated(element)?;
        if let Some(definition) = &mut self.definition {
            definition.has_negated |= is_denied;
            definition.has_asserted |= !is_denied;
        }
        if is_denied {
            return Ok(());
        }
        let mut own = None;
        if let Some(test) = attribute(element, "test_ref")?
            && self.reserve_text(&test)
            && let Some(definition) = &mut self.definition
        {
            own = Some(definition.tests.len());
            definition.tests.push(test);
        }
        let comment = attribute(element, "comment")?.unwrap_or_default();
        self.add_package(package_from_comment(&comment), own);
        Ok(())
    }

    /// Kind of an element inside a test, an object or a variable.
    fn classify_in_entity(
        &mut self,
        name: &str,
        id: &str,
        element: &BytesStart<'_>,
    ) -> Result<Element, Finding> {
        match (self.open_elements.last(), name) {
            (Some(Element::Test), "object") => {
                if let Some(object) = attribute(element, "object_ref")?
                    && self.reserve_text(&object)
                {
                    self.tests.insert(id.to_owned(), object);
                }
            }
            (Some(Element::Object), "name") => {
                if let Some(variable) = attribute(element, "var_ref")?
                    && self.reserve_text(&variable)
                {
                    let entry = ObjectName::Variable(variable);
                    self.objects.entry(id.to_owned()).or_default().push(entry);
                }
                return Ok(Element::Name);
            }
            (Some(Element::Variable), "value") => return Ok(Element::Value),
            _ => {}
        }
        Ok(Element::Other)
    }

    fn add_text(&mut self, more: &str) {
        if let Some(text) = &mut self.text {
            text.append(more);
        }
    }

    fn end_element(&mut self) {
        let Some(part) = self.open_elements.pop() else {
            return;
        };
        let text = if part.has_text() {
            self.text.take().unwrap_or_default()
        } else {
            ElementText::default()
        };
        self.is_truncated |= text.is_truncated && matches!(part, Element::Cve | Element::Title);
        let text = text.content.trim();
        match part {
            Element::Definition => self.store_definition(),
            Element::Cve => {
                let priority = mem::take(&mut self.priority);
                self.add_cve(text, &priority);
            }
            Element::Title => self.add_cve(text, ""),
            Element::Severity => self.set_severity(text),
            Element::Product => self.add_package(Some(text), None),
            Element::Test | Element::Object | Element::Variable => self.id = None,
            Element::Name => self.add_object_name(text),
            Element::Value => self.add_variable_value(text),
            Element::Criteria(_) | Element::Other => {}
        }
    }

    fn add_cve(&mut self, text: &str, priority: &str) {
        if let Some(id) = find_cve_id(text)
            && self.reserve_bytes(id.len() + priority.len() + 2 * OVERHEAD_BYTES)
            && let Some(definition) = &mut self.definition
        {
            if let Some(existing) = definition.cves.get_mut(id) {
                if existing.is_empty() {
                    priority.clone_into(existing);
                }
            } else if definition.cves.len() < MAX_CVES_PER_DEFINITION {
                definition.cves.insert(id.to_owned(), priority.to_owned());
            } else {
                self.is_truncated = true;
            }
        }
    }

    /// Sets the priority of the whole definition. The first valid one wins.
    fn set_severity(&mut self, text: &str) {
        if let Some(definition) = &mut self.definition
            && definition.priority.is_empty()
            && is_label(text)
        {
            text.clone_into(&mut definition.priority);
        }
    }

    fn add_package(&mut self, name: Option<&str>, test: Option<usize>) {
        if let Some(name) = name.filter(|name| is_package_name(name))
            && self.reserve_text(name)
            && let Some(definition) = &mut self.definition
        {
            let name = name.to_owned();
            definition.packages.push(NamedPackage { name, test });
        }
    }

    fn add_object_name(&mut self, text: &str) {
        if let Some(id) = self.id.clone()
            && is_package_name(text)
            && self.reserve_text(text)
        {
            let entry = ObjectName::Package(text.to_owned());
            self.objects.entry(id).or_default().push(entry);
        }
    }

    fn add_variable_value(&mut self, text: &str) {
        if let Some(id) = self.id.clone()
            && is_package_name(text)
            && self.reserve_text(text)
        {
            self.variables.entry(id).or_default().push(text.to_owned());
        }
    }

    /// Records that something was skipped that might have named a package.
    fn mark_incomplete(&mut self) {
        self.is_truncated = true;
        self.is_incomplete = true;
    }

    /// Reserves memory for collected data. Returns false if the limit is exceeded.
    fn reserve_bytes(&mut self, bytes: usize) -> bool {
        self.size += bytes;
        let has_room = self.size <= MAX_MEMORY_BYTES;
        if !has_room {
            self.mark_incomplete();
        }
        has_room
    }

    /// Stores the definition that ended, if it is relevant.
    fn store_definition(&mut self) {
        let ended = self.definition.take();
        if let Some(definition) = ended.filter(Definition::is_relevant)
            && self.reserve_bytes(size_of::<Definition>() + OVERHEAD_BYTES)
        {
            self.definitions.push(definition);
        }
    }

    fn reserve_text(&mut self, text: &str) -> bool {
        self.reserve_bytes(text.len() + OVERHEAD_BYTES)
    }

    /// Combines the collected data into a list.
    fn finish(self, installed: Option<&InstalledPackages>) -> Result<CveList, Finding> {
        if !self.has_root {
            return Err(invalid("it has no OVAL definitions"));
        }
        if !self.open_elements.is_empty() {
            return Err(invalid("it is truncated"));
        }
        let mut sorted = CveListBuilder::new(installed);
        if self.is_truncated {
            sorted.mark_truncated();
        }
        for definition in &self.definitions {
            let mut concern = sorted.select(self.test_packages(definition), !self.is_incomplete);
            if !concern.names_packages {
                let names = self.text_packages(definition).map(PackageName::Installed);
                concern = sorted.select(names, !self.is_incomplete);
            }
            let mut tests = definition.tests.iter();
            let is_denied = definition.has_negated || tests.any(|test| self.is_absence_test(test));
            // All its packages are those of unaffected systems, so it does not affect every image.
            if is_denied && !concern.names_packages {
                continue;
            }
            for (cve, own) in &definition.cves {
                let is_own = !own.is_empty();
                let label = if is_own { own } else { &definition.priority };
                sorted.add(cve, Priority { label, is_own }, &concern);
            }
            if sorted.is_full() {
                sorted.mark_truncated();
                break;
            }
        }
        Ok(sorted.build())
    }

    /// Whether a test passes if its package is absent. Its definition does not affect such systems.
    fn is_absence_test(&self, test: &str) -> bool {
        self.absence_tests.contains(test)
    }

    /// Packages that the texts of a definition name.
    fn text_packages<'a>(&'a self, definition: &'a Definition) -> impl Iterator<Item = &'a str> {
        let denied = move |package: &NamedPackage| {
            let test = package.test.and_then(|test| definition.tests.get(test));
            test.is_some_and(|test| self.is_absence_test(test))
        };
        let packages = definition.packages.iter();
        packages.filter(move |package| !denied(package)).map(|package| package.name.as_str())
    }

    /// Packages of the tests of a definition. A package can occur several times.
    fn test_packages<'a>(
        &'a self,
        definition: &'a Definition,
    ) -> impl Iterator<Item = PackageName<'a>> {
        let objects = definition
            .tests
            .iter()
            .filter(move |test| !self.is_absence_test(test))
            .filter_map(move |test| self.tests.get(test));
        let names = objects.filter_map(move |object| self.objects.get(object)).flatten();
        let packages = names.flat_map(move |object_name| match object_name {
            ObjectName::Package(name) => std::slice::from_ref(name),
            ObjectName::Variable(id) => self.variables.get(id).map_or(&UNNAMED[..], Vec::as_slice),
        });
        packages.map(|name| PackageName::Installed(name))
    }
}
