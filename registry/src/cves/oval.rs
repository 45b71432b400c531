//! Documents in the form of OVAL, read as a stream.
//!
//! A definition says which vulnerabilities it is about and refers to tests; a test refers to an object, and an object to
//! the names of packages or to a variable that has them. These come after the definitions, so all is put together at the
//! end. Where nothing can be followed, the words of the definition name the package.

mod bounded;

use std::collections::{HashMap, HashSet};
use std::io::BufRead;

use quick_xml::Reader;
use quick_xml::escape::unescape;
use quick_xml::events::{BytesStart, Event};

use self::bounded::Bounded;
use super::sorted::{Sorted, is_name};
use super::{Cves, bad, cve_in, too_large};
use crate::finding::Finding;

/// How much is gathered, in bytes about.
const MOST: usize = 64 * 1024 * 1024;

/// The longest name of a test, an object or a variable, in bytes.
const MAX_ID: usize = 256;

/// What a text costs besides its bytes, in bytes about.
const EACH: usize = 64;

/// How many vulnerabilities a definition has at most.
const MOST_CVES: usize = 4_000;

/// How many packages a definition has at most.
const MOST_PACKAGES: usize = 20_000;

/// How deep elements may lie in each other.
const DEEPEST: usize = 64;

/// The longest text of an element that is of use, in bytes.
const LONGEST: usize = 4 * 1024;

/// Reads a document that has at most `limit` bytes.
pub(super) fn read(
    input: impl BufRead,
    of: Option<&HashSet<String>>,
    limit: u64,
) -> Result<Cves, Finding> {
    let mut reader = Reader::from_reader(Bounded::new(input, limit));
    let (mut oval, mut buffer) = (Oval::default(), Vec::new());
    loop {
        buffer.clear();
        reader.get_mut().begin_event();
        let event = match reader.read_event_into(&mut buffer) {
            Ok(event) => event,
            Err(_) if reader.get_ref().is_over() => return Err(too_large(limit)),
            Err(error) => return Err(bad(error)),
        };
        match event {
            Event::Start(element) => oval.start(&element)?,
            Event::Empty(element) => {
                oval.start(&element)?;
                oval.end();
            }
            Event::End(_) => oval.end(),
            Event::Text(text) => oval.text(&text),
            Event::CData(text) => oval.text(&text),
            // Only the five that XML has by itself and numbers of characters: no document declares others.
            Event::GeneralRef(name) => {
                let name: &str = &name;
                oval.text(&unescape(&format!("&{name};")).map_err(bad)?);
            }
            Event::DocType(_) => return Err(bad("it declares a document type, as web pages do")),
            Event::Eof => break,
            _ => {}
        }
    }
    oval.finish(of)
}

/// What was read so far.
#[derive(Default)]
struct Oval {
    /// The names of the elements that are open, as far as they matter.
    open: Vec<Part>,
    seen: bool,
    text: Option<String>,
    definition: Option<Definition>,
    definitions: Vec<Definition>,
    /// The test, object or variable that is open.
    id: Option<String>,
    /// Objects by their tests.
    tests: HashMap<String, String>,
    /// Names of packages and variables by their objects.
    objects: HashMap<String, Vec<Named>>,
    /// Names of packages by their variables.
    variables: HashMap<String, Vec<String>>,
    size: usize,
    is_cut: bool,
}

#[derive(Default)]
struct Definition {
    cves: Vec<String>,
    priority: String,
    packages: Vec<String>,
    tests: Vec<String>,
}

enum Named {
    Package(String),
    Variable(String),
}

/// What an element is here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Definition,
    Cve,
    Severity,
    Product,
    Title,
    Test,
    Object,
    Name,
    Variable,
    Value,
    Other,
}

impl Part {
    fn has_text(self) -> bool {
        use Part::{Cve, Name, Product, Severity, Title, Value};

        matches!(self, Cve | Severity | Product | Title | Name | Value)
    }
}

impl Oval {
    fn start(&mut self, element: &BytesStart<'_>) -> Result<(), Finding> {
        let name = element.local_name();
        let name: &str = name.as_ref();
        if !self.seen && name != "oval_definitions" {
            return Err(bad("it is XML, but no OVAL definitions"));
        }
        self.seen = true;
        if self.open.len() >= DEEPEST {
            return Err(bad("its elements lie too deep in each other"));
        }
        let part = self.part(name, element)?;
        self.open.push(part);
        if part.has_text() {
            self.text = Some(String::new());
        }
        Ok(())
    }

    /// What an element is, with its attributes noted.
    fn part(&mut self, name: &str, element: &BytesStart<'_>) -> Result<Part, Finding> {
        if self.definition.is_some() {
            return self.part_of_definition(name, element);
        }
        if let Some(id) = self.id.clone() {
            return self.part_of_rest(name, &id, element);
        }
        let part = match name {
            "definition" => {
                let class = attribute(element, "class")?;
                if matches!(class.as_deref(), Some("vulnerability" | "patch")) {
                    self.definition = Some(Definition::default());
                }
                return Ok(Part::Definition);
            }
            _ if name.ends_with("_test") => Part::Test,
            _ if name.ends_with("_object") => Part::Object,
            _ if name.ends_with("_variable") => Part::Variable,
            _ => return Ok(Part::Other),
        };
        // What has a longer one is nobody's.
        self.id = attribute(element, "id")?.filter(|id| id.len() <= MAX_ID);
        self.size += self.id.as_ref().map_or(0, String::len) + EACH;
        Ok(part)
    }

    fn part_of_definition(
        &mut self,
        name: &str,
        element: &BytesStart<'_>,
    ) -> Result<Part, Finding> {
        match name {
            "reference" => {
                let source = attribute(element, "source")?.unwrap_or_default();
                let id = attribute(element, "ref_id")?.unwrap_or_default();
                if source.eq_ignore_ascii_case("cve") {
                    self.cve(&id);
                }
            }
            "cve" => {
                for key in ["priority", "impact"] {
                    let said = attribute(element, key)?.unwrap_or_default();
                    self.priority(&said);
                }
                return Ok(Part::Cve);
            }
            "criterion" => {
                if let Some(test) = attribute(element, "test_ref")?
                    && self.has_room(&test)
                    && let Some(definition) = &mut self.definition
                {
                    definition.tests.push(test);
                }
                let comment = attribute(element, "comment")?.unwrap_or_default();
                self.package(package_in(&comment));
            }
            "severity" => return Ok(Part::Severity),
            "product" => return Ok(Part::Product),
            "title" => return Ok(Part::Title),
            _ => {}
        }
        Ok(Part::Other)
    }

    /// A part of a test, an object or a variable.
    fn part_of_rest(
        &mut self,
        name: &str,
        id: &str,
        element: &BytesStart<'_>,
    ) -> Result<Part, Finding> {
        match (self.open.last(), name) {
            (Some(Part::Test), "object") => {
                if let Some(object) = attribute(element, "object_ref")?
                    && self.has_room(&object)
                {
                    self.tests.insert(id.to_owned(), object);
                }
            }
            (Some(Part::Object), "name") => {
                if let Some(variable) = attribute(element, "var_ref")?
                    && self.has_room(&variable)
                {
                    let named = Named::Variable(variable);
                    self.objects.entry(id.to_owned()).or_default().push(named);
                }
                return Ok(Part::Name);
            }
            (Some(Part::Variable), "value") => return Ok(Part::Value),
            _ => {}
        }
        Ok(Part::Other)
    }

    fn text(&mut self, more: &str) {
        if let Some(text) = &mut self.text
            && text.len() + more.len() <= LONGEST
        {
            text.push_str(more);
        }
    }

    fn end(&mut self) {
        let Some(part) = self.open.pop() else {
            return;
        };
        let text = if part.has_text() {
            self.text.take().unwrap_or_default()
        } else {
            String::new()
        };
        let text = text.trim();
        match part {
            Part::Definition => self.keep_definition(),
            Part::Cve | Part::Title => self.cve(text),
            Part::Severity => self.priority(text),
            Part::Product => self.package(Some(text)),
            Part::Test | Part::Object | Part::Variable => self.id = None,
            Part::Name => self.named(text),
            Part::Value => self.value(text),
            Part::Other => {}
        }
    }

    fn cve(&mut self, text: &str) {
        if let Some(id) = cve_in(text)
            && self.has_room(id)
            && let Some(definition) = &mut self.definition
        {
            self.is_cut |= definition.cves.len() >= MOST_CVES;
            if !self.is_cut && !definition.cves.iter().any(|known| known == id) {
                definition.cves.push(id.to_owned());
            }
        }
    }

    /// The first word about how bad it is counts.
    fn priority(&mut self, text: &str) {
        if let Some(definition) = &mut self.definition
            && definition.priority.is_empty()
            && text.len() <= EACH
        {
            text.clone_into(&mut definition.priority);
        }
    }

    fn package(&mut self, name: Option<&str>) {
        if let Some(name) = name.filter(|name| is_name(name))
            && self.has_room(name)
            && let Some(definition) = &mut self.definition
        {
            definition.packages.push(name.to_owned());
        }
    }

    fn named(&mut self, text: &str) {
        if let Some(id) = self.id.clone()
            && is_name(text)
            && self.has_room(text)
        {
            let named = Named::Package(text.to_owned());
            self.objects.entry(id).or_default().push(named);
        }
    }

    fn value(&mut self, text: &str) {
        if let Some(id) = self.id.clone()
            && is_name(text)
            && self.has_room(text)
        {
            self.variables.entry(id).or_default().push(text.to_owned());
        }
    }

    /// Whether a text may be kept.
    fn has_room_of(&mut self, bytes: usize) -> bool {
        self.size += bytes;
        self.is_cut |= self.size > MOST;
        !self.is_cut
    }

    /// Keeps the definition that has ended. One that names no vulnerability says nothing.
    fn keep_definition(&mut self) {
        let ended = self.definition.take();
        let ended = ended.filter(|definition| !definition.cves.is_empty());
        if let Some(definition) = ended
            && self.has_room_of(size_of::<Definition>() + EACH)
        {
            self.definitions.push(definition);
        }
    }

    fn has_room(&mut self, text: &str) -> bool {
        self.has_room_of(text.len() + EACH)
    }

    /// Puts together what was read.
    fn finish(self, of: Option<&HashSet<String>>) -> Result<Cves, Finding> {
        if !self.seen {
            return Err(bad("it has no OVAL definitions"));
        }
        if !self.open.is_empty() {
            return Err(bad("it ends in the middle"));
        }
        let mut sorted = Sorted::new(of);
        if self.is_cut {
            sorted.cut_short();
        }
        for definition in &self.definitions {
            if definition.cves.is_empty() {
                continue;
            }
            let tested = self.tested(definition);
            for cve in &definition.cves {
                if tested.is_empty() {
                    let said = definition.packages.iter().map(String::as_str);
                    sorted.add(cve, &definition.priority, said);
                } else {
                    sorted.add(cve, &definition.priority, tested.iter().copied());
                }
            }
            if sorted.is_full() {
                sorted.cut_short();
                break;
            }
        }
        Ok(sorted.shown())
    }

    /// The packages that the tests of a definition look at, perhaps several times.
    fn tested(&self, definition: &Definition) -> Vec<&str> {
        let objects = definition
            .tests
            .iter()
            .filter_map(|test| self.tests.get(test));
        let names = objects
            .filter_map(|object| self.objects.get(object))
            .flatten();
        let packages = names.flat_map(|named| match named {
            Named::Package(name) => std::slice::from_ref(name),
            Named::Variable(id) => self.variables.get(id).map_or(&[][..], Vec::as_slice),
        });
        packages.map(String::as_str).take(MOST_PACKAGES).collect()
    }
}

/// The package that the comment of a criterion names.
fn package_in(comment: &str) -> Option<&str> {
    let marks = [
        " package in ",
        " DPKG is earlier than ",
        " is earlier than ",
    ];
    let (before, _) = marks.iter().find_map(|mark| comment.split_once(mark))?;
    let word = before.split_whitespace().next_back()?;
    Some(word.trim_matches(['\'', '"', '(', ')']))
}

/// An attribute of an element, without a prefix.
fn attribute(element: &BytesStart<'_>, name: &str) -> Result<Option<String>, Finding> {
    for attribute in element.attributes() {
        let attribute = attribute.map_err(bad)?;
        let key: &str = attribute.key.as_ref();
        if key == name {
            let value: &str = &attribute.value;
            return Ok(Some(unescape(value).map_err(bad)?.into_owned()));
        }
    }
    Ok(None)
}
