//! Reads the fields of an object, and collects all errors.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::value::StrDeserializer;
use serde::de::{self, Deserialize};

use super::tree::Node;
use crate::document::FileMode;
use crate::validation::{ErrorList, child_path, excerpt, item_path, short};

/// Least similarity of a name that a message suggests.
const MIN_SIMILARITY: f64 = 0.8;

/// The fields of an object that are not yet read.
#[derive(Debug)]
pub(crate) struct Fields<'a> {
    /// What the object is, for messages: `File`, `a bundle`.
    owner: &'a str,
    path: String,
    unread: Vec<(String, Node)>,
    /// All fields of the object, in the order in which they are read.
    names: Vec<&'static str>,
    /// Whether the value is no object, which is an error already.
    is_invalid: bool,
    errors: &'a mut ErrorList,
}

impl<'a> Fields<'a> {
    /// The fields of an object. A value that is no object is an error; null is an empty object.
    pub(crate) fn open(
        owner: &'a str,
        path: String,
        node: Option<Node>,
        errors: &'a mut ErrorList,
    ) -> Self {
        let (unread, is_invalid) = match node {
            Some(Node::Map(fields)) => (fields, false),
            None => (Vec::new(), false),
            Some(node) if node.is_null() => (Vec::new(), false),
            Some(node) => {
                errors.add(&path, format!("expected an object, not {}", node.kind()));
                (Vec::new(), true)
            }
        };
        Self { owner, path, unread, names: Vec::new(), is_invalid, errors }
    }

    /// Takes a field as it is. Null counts as a value.
    pub(crate) fn take(&mut self, name: &'static str) -> Option<Node> {
        self.names.push(name);
        self.remove(name)
    }

    /// Takes a field. Null is an absent field.
    pub(crate) fn take_value(&mut self, name: &'static str) -> Option<Node> {
        self.take(name).filter(|node| !node.is_null())
    }

    /// Adds an error of a field.
    pub(crate) fn error(&mut self, name: &str, message: impl Into<String>) {
        self.errors.add(&child_path(&self.path, name), message);
    }

    /// Adds a field that is not offered.
    pub(crate) fn not_offered(&mut self, name: &str, message: impl Into<String>) {
        self.errors.add_not_offered(&child_path(&self.path, name), message);
    }

    /// A text that is not read yet.
    pub(crate) fn peek_text(&self, name: &str) -> Option<&str> {
        match self.unread.iter().find(|(key, _)| key == name) {
            Some((_, Node::Plain(text) | Node::Text(text))) => Some(text),
            _ => None,
        }
    }

    /// Whether a field has a value. The value itself is not read, and no message offers the field.
    pub(crate) fn is_present(&mut self, name: &str) -> bool {
        self.remove(name).is_some_and(|node| !node.is_null())
    }

    fn remove(&mut self, name: &str) -> Option<Node> {
        let index = self.unread.iter().position(|(key, _)| key == name)?;
        Some(self.unread.remove(index).1)
    }

    /// A text. A number or a boolean counts as the text that the user wrote.
    pub(crate) fn text(&mut self, name: &'static str) -> Option<String> {
        let node = self.take_value(name)?;
        self.expect_text(name, node)
    }

    /// A text of which even null is the text that the user wrote.
    pub(crate) fn literal_text(&mut self, name: &'static str) -> Option<String> {
        let node = self.take(name)?;
        self.expect_text(name, node)
    }

    /// A text that must be present.
    pub(crate) fn required_text(&mut self, name: &'static str) -> String {
        let Some(node) = self.take_value(name) else {
            self.missing(name);
            return String::new();
        };
        self.expect_text(name, node).unwrap_or_default()
    }

    /// Adds the error of a field that is absent.
    pub(crate) fn missing(&mut self, name: &'static str) {
        if !self.is_invalid {
            let message = format!("{} must have the field {name:?}", self.owner);
            self.error(name, message);
        }
    }

    fn expect_text(&mut self, name: &str, node: Node) -> Option<String> {
        match node {
            Node::Plain(text) | Node::Text(text) => Some(text),
            node => {
                self.error(name, format!("expected text, not {}", node.kind()));
                None
            }
        }
    }

    /// A boolean, as YAML 1.1 and 1.2 write them.
    pub(crate) fn boolean(&mut self, name: &'static str) -> Option<bool> {
        let node = self.take_value(name)?;
        let value = match &node {
            Node::Plain(text) => parse_boolean(text),
            _ => None,
        };
        if value.is_none() {
            self.error(name, format!("expected true or false without quotes{}", written(&node)));
        }
        value
    }

    /// A whole number from 0 to a limit.
    pub(crate) fn number(&mut self, name: &'static str, max: u64) -> Option<u64> {
        let node = self.take_value(name)?;
        let value = match &node {
            Node::Plain(text) => parse_decimal(text).filter(|value| *value <= max),
            _ => None,
        };
        if value.is_none() {
            let accepted = format!("expected a whole number from 0 to {max} without quotes");
            self.error(name, format!("{accepted}{}", written(&node)));
        }
        value
    }

    /// Like [`Self::number`], for 32 bits.
    pub(crate) fn small_number(&mut self, name: &'static str, max: u32) -> Option<u32> {
        let value = self.number(name, u64::from(max))?;
        u32::try_from(value).ok()
    }

    /// A mode of a file.
    pub(crate) fn mode(&mut self, name: &'static str) -> Option<FileMode> {
        let node = self.take_value(name)?;
        let mode = match &node {
            Node::Text(text) => FileMode::parse(text),
            Node::Plain(text) => FileMode::parse_plain(text),
            node => Err(format!("expected four octal digits, not {}", node.kind())),
        };
        mode.map_err(|message| self.error(name, message)).ok()
    }

    /// One of the values of an enumeration.
    pub(crate) fn choice<T: for<'de> Deserialize<'de>>(&mut self, name: &'static str) -> Option<T> {
        let node = self.take_value(name)?;
        self.parse_choice(&child_path(&self.path, name), node)
    }

    /// A list of values of an enumeration.
    pub(crate) fn choices<T: for<'de> Deserialize<'de>>(&mut self, name: &'static str) -> Vec<T> {
        let items = self.list(name);
        items.into_iter().filter_map(|(path, node)| self.parse_choice(&path, node)).collect()
    }

    fn parse_choice<T: for<'de> Deserialize<'de>>(&mut self, path: &str, node: Node) -> Option<T> {
        let (Node::Plain(text) | Node::Text(text)) = &node else {
            self.errors.add(path, format!("expected text, not {}", node.kind()));
            return None;
        };
        match T::deserialize(StrDeserializer::<VariantError>::new(text)) {
            Ok(value) => Some(value),
            Err(VariantError(accepted)) => {
                let message = format!("{} is not accepted", excerpt(text));
                self.errors.add(path, suggest(&message, text, accepted));
                None
            }
        }
    }

    /// A list of texts.
    pub(crate) fn texts(&mut self, name: &'static str) -> Vec<String> {
        let mut texts = Vec::new();
        for (path, node) in self.list(name) {
            match node {
                Node::Plain(text) | Node::Text(text) => texts.push(text),
                node => self.errors.add(&path, format!("expected text, not {}", node.kind())),
            }
        }
        texts
    }

    /// The items of a list with their paths.
    pub(crate) fn list(&mut self, name: &'static str) -> Vec<(String, Node)> {
        let path = child_path(&self.path, name);
        match self.take_value(name) {
            None => Vec::new(),
            Some(Node::List(items)) => {
                let items = items.into_iter().enumerate();
                items.map(|(index, item)| (item_path(&path, index), item)).collect()
            }
            Some(node) => {
                self.errors.add(&path, format!("expected a list, not {}", node.kind()));
                Vec::new()
            }
        }
    }

    /// An object whose values are texts. Even null is the text that the user wrote.
    pub(crate) fn text_map(&mut self, name: &'static str) -> BTreeMap<String, String> {
        let path = child_path(&self.path, name);
        let fields = match self.take_value(name) {
            None => return BTreeMap::new(),
            Some(Node::Map(fields)) => fields,
            Some(node) => {
                self.errors.add(&path, format!("expected an object, not {}", node.kind()));
                return BTreeMap::new();
            }
        };
        let mut texts = BTreeMap::new();
        for (key, node) in fields {
            match node {
                Node::Plain(text) | Node::Text(text) => {
                    texts.insert(key, text);
                }
                node => {
                    let path = child_path(&path, &key);
                    self.errors.add(&path, format!("expected text, not {}", node.kind()));
                }
            }
        }
        texts
    }

    /// Takes an object inside of this one.
    pub(crate) fn object(&mut self, owner: &'a str, name: &'static str) -> Option<Fields<'_>> {
        let node = self.take_value(name)?;
        Some(Fields::open(owner, child_path(&self.path, name), Some(node), self.errors))
    }

    /// The fields of a value inside of this object.
    pub(crate) fn nested(
        &mut self,
        owner: &'a str,
        path: String,
        node: Option<Node>,
    ) -> Fields<'_> {
        Fields::open(owner, path, node, self.errors)
    }

    /// Where further errors go.
    pub(crate) fn errors(&mut self) -> &mut ErrorList {
        self.errors
    }

    /// Where the object is.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// Refuses the fields that were not read.
    pub(crate) fn finish(self) {
        for (key, _) in &self.unread {
            if self.errors.is_full() {
                self.errors.add("", "");
                continue;
            }
            let message = format!("{} has no field {}", self.owner, excerpt(key));
            let path = child_path(&self.path, key);
            self.errors.add(&path, suggest(&message, key, &self.names));
        }
    }
}

/// The message with the accepted names, and with the one that is most similar to the name.
pub(crate) fn suggest(message: &str, name: &str, accepted: &[&str]) -> String {
    let name = short(name).to_lowercase();
    let similarity = |candidate: &str| strsim::jaro_winkler(&name, &candidate.to_lowercase());
    let nearest = accepted
        .iter()
        .map(|candidate| (similarity(candidate), candidate))
        .filter(|(similarity, _)| *similarity >= MIN_SIMILARITY)
        .max_by(|(a, _), (b, _)| a.total_cmp(b));
    let hint = nearest.map(|(_, nearest)| format!(" Did you mean {nearest}?")).unwrap_or_default();
    format!("{message}. Accepted: {}.{hint}", accepted.join(", "))
}

/// What the user wrote, for messages.
fn written(node: &Node) -> String {
    match node {
        Node::Plain(text) => format!(", not {}", short(text)),
        Node::Text(text) => format!(", not {}", excerpt(text)),
        node => format!(", not {}", node.kind()),
    }
}

fn parse_boolean(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "yes" | "y" | "on" => Some(true),
        "false" | "no" | "n" | "off" => Some(false),
        _ => None,
    }
}

/// A decimal number. A number with a leading zero is octal in YAML 1.1 and decimal in YAML 1.2, so
/// it is not accepted.
fn parse_decimal(text: &str) -> Option<u64> {
    let is_decimal = text.bytes().all(|b| b.is_ascii_digit());
    let is_clear = text == "0" || !text.starts_with('0');
    (is_decimal && is_clear).then(|| text.parse().ok()).flatten()
}

/// The values that an enumeration accepts.
#[derive(Debug)]
struct VariantError(&'static [&'static str]);

impl fmt::Display for VariantError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "accepted: {}", self.0.join(", "))
    }
}

impl std::error::Error for VariantError {}

impl de::Error for VariantError {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Self(&[])
    }

    fn unknown_variant(_: &str, expected: &'static [&'static str]) -> Self {
        Self(expected)
    }
}
