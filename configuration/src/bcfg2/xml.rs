//! Reads XML into a tree of bounded size.
//!
//! Document types, processing instructions and entities of documents are refused: they can name
//! files of the machine, and make a small document huge.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use quick_xml::escape::resolve_xml_entity;
use quick_xml::events::{BytesDecl, BytesRef, BytesStart, Event};
use quick_xml::{Reader, XmlVersion};

use crate::limits::open_text;
use crate::validation::{FieldError, short};

/// Maximum nesting depth of elements. A document of Bcfg2 has four levels.
const MAX_DEPTH: usize = 16;

/// Maximum number of elements.
pub(super) const MAX_ELEMENTS: usize = 100_000;

/// Maximum number of attributes of an element.
const MAX_ATTRIBUTES_PER_ELEMENT: usize = 64;

/// Longest value of an attribute, in bytes.
const MAX_ATTRIBUTE_BYTES: usize = 64 * 1024;

/// An element with its contents.
#[derive(Debug, Default)]
pub(super) struct XmlElement {
    pub name: String,
    pub location: ElementLocation,
    /// Names and values, in the order of the document. Names are unique.
    pub attributes: Vec<(String, String)>,
    /// The text directly in the element, as it is.
    pub text: String,
    pub children: Vec<XmlElement>,
    /// Whether a comment is directly in the element.
    pub has_comment: bool,
}

/// Where an element begins.
#[derive(Clone, Debug, Default)]
pub(super) struct ElementLocation {
    /// From 1.
    pub line: usize,
    /// The included file. None: the document itself.
    pub file: Option<Arc<str>>,
}

impl fmt::Display for ElementLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}", self.line)?;
        match &self.file {
            Some(file) => write!(f, " of {}", short(file)),
            None => Ok(()),
        }
    }
}

impl XmlElement {
    /// The value of an attribute.
    pub fn attribute(&self, name: &str) -> Option<&str> {
        let mut attributes = self.attributes.iter();
        attributes.find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Number of elements, with this one.
    pub fn count_elements(&self) -> usize {
        1 + self.children.iter().map(Self::count_elements).sum::<usize>()
    }

    /// Sets the file of the element and of all elements in it.
    pub fn set_file(&mut self, file: &Arc<str>) {
        self.location.file = Some(Arc::clone(file));
        self.children.iter_mut().for_each(|child| child.set_file(file));
    }
}

/// Reads a document. The message of an error has the line.
pub(super) fn parse(document: &str) -> Result<XmlElement, FieldError> {
    let document = open_text(document).map_err(|message| FieldError::new("", message))?;
    if let Some(at) = document.find(|c| !is_xml_char(c)) {
        return Err(error_at(document, at, "a control character, which XML does not allow"));
    }
    let document = normalize_line_ends(document);
    let mut reader = Reader::from_str(&document);
    reader.config_mut().expand_empty_elements = true;
    reader.config_mut().check_comments = true;
    let mut tree = TreeBuilder { line: 1, ..TreeBuilder::default() };
    let mut counted = 0;
    loop {
        let at = reader.buffer_position();
        let position = usize::try_from(at).unwrap_or(document.len());
        tree.line += count_lines(&document, counted, position);
        counted = position;
        let event = match reader.read_event() {
            Ok(event) => event,
            Err(error) => {
                let at = reader.error_position();
                return Err(error_at(&document, at, &format!("it is not XML: {error}")));
            }
        };
        if matches!(event, Event::Eof) {
            return tree.finish().map_err(|error| error_at(&document, at, &error));
        }
        tree.add_event(&event).map_err(|error| error_at(&document, at, &error))?;
    }
}

/// Whether XML 1.0 allows the character.
pub(super) fn is_xml_char(c: char) -> bool {
    match c {
        '\t' | '\n' | '\r' => true,
        '\u{fffe}' | '\u{ffff}' => false,
        _ => c >= ' ',
    }
}

/// Number of line breaks between two positions in bytes.
fn count_lines(document: &str, from: usize, to: usize) -> usize {
    let bytes = document.as_bytes().get(from..to).unwrap_or_default();
    bytes.split(|byte| *byte == b'\n').count() - 1
}

/// An error with the line of a position in bytes.
fn error_at(document: &str, position: impl TryInto<usize>, message: &str) -> FieldError {
    let position = position.try_into().unwrap_or(usize::MAX).min(document.len());
    let line = 1 + count_lines(document, 0, position);
    FieldError::new("", format!("line {line}: {}", short(message)))
}

/// Line ends as XML defines them: a carriage return in a document is a line feed.
fn normalize_line_ends(document: &str) -> Cow<'_, str> {
    if document.contains('\r') {
        document.replace("\r\n", "\n").replace('\r', "\n").into()
    } else {
        document.into()
    }
}

/// State of the parser.
#[derive(Debug, Default)]
struct TreeBuilder {
    /// The open elements, outermost first.
    open_elements: Vec<XmlElement>,
    root: Option<XmlElement>,
    element_count: usize,
    /// Line of the event.
    line: usize,
    /// Whether an event was read.
    is_started: bool,
}

impl TreeBuilder {
    fn add_event(&mut self, event: &Event<'_>) -> Result<(), String> {
        let is_first = !self.is_started;
        self.is_started = true;
        match event {
            Event::Start(element) => self.start_element(element),
            Event::End(_) => {
                self.end_element();
                Ok(())
            }
            Event::Text(text) if text.contains("]]>") => {
                Err("]]> in a text; write ]]&gt;".to_owned())
            }
            Event::Text(text) => self.add_text(text),
            Event::CData(text) => self.add_text(text),
            Event::GeneralRef(name) => self.add_text(&resolve_reference(name)?),
            Event::Comment(_) => {
                if let Some(element) = self.open_elements.last_mut() {
                    element.has_comment = true;
                }
                Ok(())
            }
            Event::Decl(declaration) if is_first => check_declaration(declaration),
            Event::Decl(_) => Err("an XML declaration is not at the start".to_owned()),
            Event::DocType(_) => Err("a document type (<!DOCTYPE>) is refused".to_owned()),
            Event::PI(_) => Err("a processing instruction (<?…?>) is refused".to_owned()),
            Event::Empty(_) | Event::Eof => Ok(()),
        }
    }

    fn start_element(&mut self, start: &BytesStart<'_>) -> Result<(), String> {
        if self.root.is_some() {
            return Err("an element follows the end of the document".to_owned());
        }
        if self.open_elements.len() >= MAX_DEPTH {
            return Err(format!("elements are nested deeper than {MAX_DEPTH} levels"));
        }
        self.element_count += 1;
        if self.element_count > MAX_ELEMENTS {
            return Err(format!("the document has more than {MAX_ELEMENTS} elements"));
        }
        let name = start.name();
        let name: &str = name.as_ref();
        let attributes = read_attributes(start).map_err(|error| format!("<{name}>: {error}"))?;
        let element = XmlElement {
            name: name.to_owned(),
            location: ElementLocation { line: self.line, file: None },
            attributes,
            ..XmlElement::default()
        };
        self.open_elements.push(element);
        Ok(())
    }

    fn end_element(&mut self) {
        let Some(element) = self.open_elements.pop() else {
            return;
        };
        match self.open_elements.last_mut() {
            Some(parent) => parent.children.push(element),
            None => self.root = Some(element),
        }
    }

    fn add_text(&mut self, text: &str) -> Result<(), String> {
        match self.open_elements.last_mut() {
            Some(element) => element.text.push_str(text),
            None if text.trim().is_empty() => {}
            None => return Err("text is outside of the elements".to_owned()),
        }
        Ok(())
    }

    fn finish(self) -> Result<XmlElement, String> {
        if let Some(element) = self.open_elements.last() {
            return Err(format!("the document ends inside of <{}>", element.name));
        }
        self.root.ok_or_else(|| "the document has no element".to_owned())
    }
}

/// Attributes of an element. Declarations of prefixes and base addresses are left out: nothing with
/// a prefix is accepted, and Bcfg2's server copies them from its templates.
fn read_attributes(start: &BytesStart<'_>) -> Result<Vec<(String, String)>, String> {
    let mut attributes = Vec::new();
    for attribute in start.attributes() {
        let attribute = attribute.map_err(|error| error.to_string())?;
        let name: &str = attribute.key.as_ref();
        if attribute.value.contains('<') {
            return Err(format!("attribute {name}: < in a value; write &lt;"));
        }
        let value = attribute
            .normalized_value(XmlVersion::Explicit1_0)
            .map_err(|error| format!("attribute {name}: {error}"))?;
        if let Some(c) = value.chars().find(|c| !is_xml_char(*c)) {
            return Err(format!("attribute {name}: XML does not allow the character {c:?}"));
        }
        if value.len() > MAX_ATTRIBUTE_BYTES {
            return Err(format!("attribute {name} is longer than {MAX_ATTRIBUTE_BYTES} bytes"));
        }
        if attributes.len() >= MAX_ATTRIBUTES_PER_ELEMENT {
            return Err(format!("more than {MAX_ATTRIBUTES_PER_ELEMENT} attributes"));
        }
        attributes.push((name.to_owned(), value.into_owned()));
    }
    attributes.retain(|(name, _)| !name.starts_with("xmlns:") && name != "xml:base");
    Ok(attributes)
}

/// The text of a character reference or of one of the five entities that XML has.
fn resolve_reference(reference: &BytesRef<'_>) -> Result<String, String> {
    let name: &str = reference;
    let character = reference.resolve_char_ref().map_err(|error| error.to_string())?;
    if let Some(c) = character {
        if is_xml_char(c) {
            return Ok(c.to_string());
        }
        return Err(format!("&{name}; is a character that XML does not allow"));
    }
    match resolve_xml_entity(name) {
        Some(text) => Ok(text.to_owned()),
        None => Err(format!("the entity &{name}; is refused; accepted: amp, apos, gt, lt, quot")),
    }
}

fn check_declaration(declaration: &BytesDecl<'_>) -> Result<(), String> {
    let version = declaration.version().map_err(|error| error.to_string())?;
    let version: &str = &version;
    if version != "1.0" {
        return Err(format!("XML {version} is refused; accepted: 1.0"));
    }
    let Some(encoding) = declaration.encoding() else {
        return Ok(());
    };
    let encoding = encoding.map_err(|error| error.to_string())?;
    let encoding: &str = &encoding;
    let accepted = ["utf-8", "us-ascii", "ascii"];
    if accepted.iter().any(|name| encoding.eq_ignore_ascii_case(name)) {
        return Ok(());
    }
    Err(format!("the encoding {encoding} is refused; convert the document to UTF-8"))
}
