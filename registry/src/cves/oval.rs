//! Documents in the form of OVAL, read as a stream.
//!
//! A definition says which vulnerabilities it is about and refers to tests; a test refers to an object, and an object to
//! the names of packages or to a variable that has them. These come after the definitions, so all is put together at the
//! end. Where nothing can be followed, the words of the definition name the package. What a definition denies it says of
//! those whom it does not concern, so it names nothing. A test that holds where there is no such package denies as well.

mod bounded;
mod said;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::BufRead;
use std::mem;

use quick_xml::Reader;
use quick_xml::escape::unescape;
use quick_xml::events::{BytesStart, Event};

use self::bounded::Bounded;
use self::said::{Part, Text, attribute, package_in};
use super::sorted::{Name, Priority, Sorted, is_name, is_word};
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

/// How deep elements may lie in each other.
const DEEPEST: usize = 64;

/// What a variable has that is not there: no name, but something to count.
static NOTHING: [String; 1] = [String::new()];

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
    text: Option<Text>,
    definition: Option<Definition>,
    /// What the element of a vulnerability that is open says about how bad it is.
    priority: String,
    definitions: Vec<Definition>,
    /// The test, object or variable that is open.
    id: Option<String>,
    /// Objects by their tests.
    tests: HashMap<String, String>,
    /// Tests that hold where their object is not there.
    of_absence: HashSet<String>,
    /// Names of packages and variables by their objects.
    objects: HashMap<String, Vec<Named>>,
    /// Names of packages by their variables.
    variables: HashMap<String, Vec<String>>,
    size: usize,
    /// Whether something is left out.
    is_cut: bool,
    /// Whether it may be what would have named a package.
    is_unread: bool,
}

#[derive(Default)]
struct Definition {
    /// Vulnerabilities, and how bad each of them is if that is said of it alone.
    cves: BTreeMap<String, String>,
    /// How bad they are together.
    priority: String,
    packages: Vec<Word>,
    tests: Vec<String>,
    /// Whether it has a criterion that must hold.
    is_asserted: bool,
    /// Whether it has one that must not.
    is_denied: bool,
}

/// A package that the words of a definition name.
struct Word {
    name: String,
    /// Which test of the definition these words are about, if they are about one.
    test: Option<usize>,
}

impl Definition {
    /// Whether it concerns anybody: it names a vulnerability, and not only what must not be so.
    fn says_something(&self) -> bool {
        !self.cves.is_empty() && (self.is_asserted || !self.is_denied)
    }
}

enum Named {
    Package(String),
    Variable(String),
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
            self.text = Some(Text::default());
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
        let id = attribute(element, "id")?;
        if id.as_ref().is_some_and(|id| id.len() > MAX_ID) {
            self.leave_unread();
        }
        self.id = id.filter(|id| id.len() <= MAX_ID);
        if part == Part::Test
            && attribute(element, "check_existence")?.as_deref() == Some("none_exist")
            && let Some(id) = self.id.clone()
            && self.has_room(&id)
        {
            self.of_absence.insert(id);
        }
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
                    self.cve(&id, "");
                }
            }
            "cve" => {
                let priority = attribute(element, "priority")?;
                let mut words = priority.into_iter().chain(attribute(element, "impact")?);
                // What is no word must not hide what is said of the whole advisory.
                let word = words.find(|word| is_word(word));
                self.priority = word.unwrap_or_default();
                return Ok(Part::Cve);
            }
            "criteria" => return Ok(Part::Criteria(self.is_denied(element)?)),
            "criterion" => self.criterion(element)?,
            "severity" => return Ok(Part::Severity),
            "product" => return Ok(Part::Product),
            "title" => return Ok(Part::Title),
            _ => {}
        }
        Ok(Part::Other)
    }

    /// Whether an element of a definition's criteria is denied: by itself or by what it stands in, but not by both.
    fn is_denied(&self, element: &BytesStart<'_>) -> Result<bool, Finding> {
        let negate = attribute(element, "negate")?;
        let by_itself = matches!(negate.as_deref().map(str::trim), Some("true" | "1"));
        let around = self.open.iter().rev().find_map(|part| match part {
            Part::Criteria(is_denied) => Some(*is_denied),
            _ => None,
        });
        Ok(by_itself != around.unwrap_or_default())
    }

    fn criterion(&mut self, element: &BytesStart<'_>) -> Result<(), Finding> {
        let is_denied = self.is_denied(element)?;
        if let Some(definition) = &mut self.definition {
            definition.is_denied |= is_denied;
            definition.is_asserted |= !is_denied;
        }
        if is_denied {
            return Ok(());
        }
        let mut own = None;
        if let Some(test) = attribute(element, "test_ref")?
            && self.has_room(&test)
            && let Some(definition) = &mut self.definition
        {
            own = Some(definition.tests.len());
            definition.tests.push(test);
        }
        let comment = attribute(element, "comment")?.unwrap_or_default();
        self.package(package_in(&comment), own);
        Ok(())
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
        if let Some(text) = &mut self.text {
            text.add(more);
        }
    }

    fn end(&mut self) {
        let Some(part) = self.open.pop() else {
            return;
        };
        let text = if part.has_text() {
            self.text.take().unwrap_or_default()
        } else {
            Text::default()
        };
        self.is_cut |= text.is_cut && matches!(part, Part::Cve | Part::Title);
        let text = text.kept.trim();
        match part {
            Part::Definition => self.keep_definition(),
            Part::Cve => {
                let priority = mem::take(&mut self.priority);
                self.cve(text, &priority);
            }
            Part::Title => self.cve(text, ""),
            Part::Severity => self.severity(text),
            Part::Product => self.package(Some(text), None),
            Part::Test | Part::Object | Part::Variable => self.id = None,
            Part::Name => self.named(text),
            Part::Value => self.value(text),
            Part::Criteria(_) | Part::Other => {}
        }
    }

    fn cve(&mut self, text: &str, priority: &str) {
        if let Some(id) = cve_in(text)
            && self.has_room_of(id.len() + priority.len() + 2 * EACH)
            && let Some(definition) = &mut self.definition
        {
            if let Some(known) = definition.cves.get_mut(id) {
                if known.is_empty() {
                    priority.clone_into(known);
                }
            } else if definition.cves.len() < MOST_CVES {
                definition.cves.insert(id.to_owned(), priority.to_owned());
            } else {
                self.is_cut = true;
            }
        }
    }

    /// How bad all vulnerabilities of a definition are. The first word counts.
    fn severity(&mut self, text: &str) {
        if let Some(definition) = &mut self.definition
            && definition.priority.is_empty()
            && is_word(text)
        {
            text.clone_into(&mut definition.priority);
        }
    }

    fn package(&mut self, name: Option<&str>, test: Option<usize>) {
        if let Some(name) = name.filter(|name| is_name(name))
            && self.has_room(name)
            && let Some(definition) = &mut self.definition
        {
            let name = name.to_owned();
            definition.packages.push(Word { name, test });
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

    /// Notes that something is not kept that may be what names a package.
    fn leave_unread(&mut self) {
        self.is_cut = true;
        self.is_unread = true;
    }

    /// Whether so much may be kept.
    fn has_room_of(&mut self, bytes: usize) -> bool {
        self.size += bytes;
        let has_room = self.size <= MOST;
        if !has_room {
            self.leave_unread();
        }
        has_room
    }

    /// Keeps the definition that has ended, if it says something.
    fn keep_definition(&mut self) {
        let ended = self.definition.take();
        if let Some(definition) = ended.filter(Definition::says_something)
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
            let mut concern = sorted.concern(self.tested(definition), !self.is_unread);
            if !concern.is_named {
                let said = self.said(definition).map(Name::Installed);
                concern = sorted.concern(said, !self.is_unread);
            }
            let mut tests = definition.tests.iter();
            let is_denied = definition.is_denied || tests.any(|test| self.is_of_absence(test));
            // It names some whom it does not concern and nobody else, so it does not concern everybody.
            if is_denied && !concern.is_named {
                continue;
            }
            for (cve, own) in &definition.cves {
                let is_own = !own.is_empty();
                let word = if is_own { own } else { &definition.priority };
                sorted.add(cve, Priority { word, is_own }, &concern);
            }
            if sorted.is_full() {
                sorted.cut_short();
                break;
            }
        }
        Ok(sorted.shown())
    }

    /// Whether a test holds where there is no such package: then it names those whom its definition does not concern.
    fn is_of_absence(&self, test: &str) -> bool {
        self.of_absence.contains(test)
    }

    /// The packages that the words of a definition name.
    fn said<'a>(&'a self, definition: &'a Definition) -> impl Iterator<Item = &'a str> {
        let denied = move |word: &Word| {
            let test = word.test.and_then(|test| definition.tests.get(test));
            test.is_some_and(|test| self.is_of_absence(test))
        };
        let words = definition.packages.iter();
        words
            .filter(move |word| !denied(word))
            .map(|word| word.name.as_str())
    }

    /// The packages that the tests of a definition look at, perhaps several times.
    fn tested<'a>(&'a self, definition: &'a Definition) -> impl Iterator<Item = Name<'a>> {
        let objects = definition
            .tests
            .iter()
            .filter(move |test| !self.is_of_absence(test))
            .filter_map(move |test| self.tests.get(test));
        let names = objects
            .filter_map(move |object| self.objects.get(object))
            .flatten();
        let packages = names.flat_map(move |named| match named {
            Named::Package(name) => std::slice::from_ref(name),
            Named::Variable(id) => self.variables.get(id).map_or(&NOTHING[..], Vec::as_slice),
        });
        packages.map(|name| Name::Installed(name))
    }
}
