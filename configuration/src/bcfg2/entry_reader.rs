//! Reads the attributes of one element, and collects errors.

use super::xml::XmlElement;
use crate::document::MAX_ACCOUNT_ID;
use crate::validation::{ErrorList, excerpt, short};
use crate::yaml::suggest;

/// An element of which each attribute and child must be read. [`EntryReader::finish`] refuses the
/// rest.
#[derive(Debug)]
pub(super) struct EntryReader<'e> {
    element: XmlElement,
    path: String,
    errors: &'e mut ErrorList,
    has_errors: bool,
}

impl<'e> EntryReader<'e> {
    /// A reader for a child of the element at `parent`; `position` counts from 1.
    pub fn new(
        element: XmlElement,
        parent: &str,
        position: usize,
        errors: &'e mut ErrorList,
    ) -> Self {
        let path = child_path(&element, parent, position);
        Self { element, path, errors, has_errors: false }
    }

    pub fn element_name(&self) -> &str {
        &self.element.name
    }

    pub fn add_error(&mut self, message: impl Into<String>) {
        self.errors.add(&self.path, message);
        self.has_errors = true;
    }

    /// Refuses the element: Bcfg2 has it, and it is not offered.
    pub fn refuse(&mut self, message: &str) {
        self.errors.add_not_offered(&self.path, format!("not offered: {message}"));
        self.has_errors = true;
    }

    /// Refuses an attribute or its value.
    pub fn refuse_at(&mut self, field: &str, message: &str) {
        let path = format!("{}/{field}", self.path);
        self.errors.add_not_offered(&path, format!("not offered: {message}"));
        self.has_errors = true;
    }

    /// Adds an error of an attribute or a child.
    pub fn add_error_at(&mut self, field: &str, message: impl Into<String>) {
        self.errors.add(&format!("{}/{field}", self.path), message);
        self.has_errors = true;
    }

    /// The value of an attribute.
    pub fn take(&mut self, name: &str) -> Option<String> {
        let attributes = &mut self.element.attributes;
        let position = attributes.iter().position(|(key, _)| key == name)?;
        Some(attributes.remove(position).1)
    }

    /// The value of an attribute that must be there. Like Bcfg2, this takes an empty one as absent.
    pub fn require(&mut self, name: &str) -> Option<String> {
        let value = self.take(name).filter(|value| !value.is_empty());
        if value.is_none() {
            self.add_error_at(&format!("@{name}"), "the attribute is missing");
        }
        value
    }

    /// One of the accepted values. None, without an error, if the attribute is absent.
    pub fn take_choice<T: Copy>(&mut self, name: &str, choices: &[(&str, T)]) -> Option<T> {
        let value = self.take(name)?;
        self.choose(name, &value, choices)
    }

    /// One of the accepted values of an attribute that must be there.
    pub fn require_choice<T: Copy>(&mut self, name: &str, choices: &[(&str, T)]) -> Option<T> {
        let value = self.require(name)?;
        self.choose(name, &value, choices)
    }

    /// A boolean, false if it is absent.
    pub fn take_flag(&mut self, name: &str) -> bool {
        let value = self.take(name).map(|value| value.to_ascii_lowercase());
        value.and_then(|value| self.choose(name, &value, FLAGS)).unwrap_or(false)
    }

    /// The number of a user or a group.
    pub fn take_number(&mut self, name: &str) -> Option<u32> {
        let value = self.take(name)?;
        let is_decimal = value.bytes().all(|byte| byte.is_ascii_digit());
        let number = value.parse().ok().filter(|id| is_decimal && *id <= MAX_ACCOUNT_ID);
        if number.is_none() {
            let message = format!("{} is not a number from 0 to {MAX_ACCOUNT_ID}", excerpt(&value));
            self.add_error_at(&format!("@{name}"), message);
        }
        number
    }

    fn choose<T: Copy>(&mut self, name: &str, value: &str, choices: &[(&str, T)]) -> Option<T> {
        let choice = choices.iter().find(|(text, _)| value == *text);
        if choice.is_none() {
            let accepted: Vec<_> = choices.iter().map(|(text, _)| *text).collect();
            let message = format!("{} is not accepted", excerpt(value));
            self.add_error_at(&format!("@{name}"), suggest(&message, value, &accepted));
        }
        choice.map(|(_, choice)| *choice)
    }

    /// Takes the text as it is. A comment would hide a part of it from Bcfg2's client.
    pub fn take_text(&mut self) -> String {
        if self.element.has_comment {
            self.add_error("a comment divides the text; remove the comment");
        }
        std::mem::take(&mut self.element.text)
    }

    pub fn take_children(&mut self) -> Vec<XmlElement> {
        std::mem::take(&mut self.element.children)
    }

    /// Path of the element.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// A reader for a child.
    pub fn child(&mut self, element: XmlElement, position: usize) -> EntryReader<'_> {
        EntryReader::new(element, &self.path, position, self.errors)
    }

    /// Records that a child has errors.
    pub fn mark_invalid(&mut self) {
        self.has_errors = true;
    }

    /// Refuses each attribute, child and text that was not read. Returns whether the element is
    /// valid.
    pub fn finish(mut self) -> bool {
        for (name, _) in std::mem::take(&mut self.element.attributes) {
            self.refuse_at(&format!("@{}", short(&name)), "remove the attribute");
        }
        for (index, child) in self.take_children().into_iter().enumerate() {
            let path = child_path(&child, &self.path, index + 1);
            let message = format!("not offered: {}", refusal(&child.name));
            self.errors.add_not_offered(&path, message);
            self.has_errors = true;
        }
        if !self.element.text.trim().is_empty() {
            self.add_error("text is not accepted in this element");
        }
        !self.has_errors
    }
}

/// Values of a boolean. Bcfg2's client takes `1` as false.
const FLAGS: &[(&str, bool)] = &[("true", true), ("false", false)];

/// Path of a child, such as `Bundle[web]/Path[/etc/motd]`. An element without a name is counted.
fn child_path(element: &XmlElement, parent: &str, position: usize) -> String {
    let mut names = element.attributes.iter().filter(|(key, _)| key == "name");
    let name = names.next().map_or_else(|| position.to_string(), |(_, name)| short(name));
    let tag = short(&element.name);
    if parent.is_empty() { format!("{tag}[{name}]") } else { format!("{parent}/{tag}[{name}]") }
}

/// Why an element is refused.
pub(super) fn refusal(name: &str) -> &'static str {
    match name {
        "ACL" => "remove the access control list",
        "RequiredBundle" => {
            "bundles do not depend on other bundles; move the entries into one bundle"
        }
        "Instance" => "only packages of type deb are accepted",
        "PostInstall" => "use Action",
        "Group" | "Client" => {
            "conditions belong to the server of Bcfg2; store its literal document with \
             bcfg2 -c FILE"
        }
        _ if name.starts_with("SE") => "remove the entry of SELinux",
        _ if name.starts_with("Bound") => {
            "abstract entries belong to the server of Bcfg2; store its literal document with \
             bcfg2 -c FILE"
        }
        _ if name.contains(':') => {
            "templates belong to the server of Bcfg2; store its literal document with bcfg2 -c FILE"
        }
        _ => "accepted in a bundle are Path, Package, Service, Action, POSIXUser and POSIXGroup",
    }
}
