//! Kinds of elements, their texts and attributes.

use quick_xml::escape::unescape;
use quick_xml::events::BytesStart;

use crate::cves::invalid;
use crate::finding::Finding;

/// Longest text of an element that is stored, in bytes.
const MAX_TEXT_BYTES: usize = 4 * 1024;

/// Kind of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Element {
    Definition,
    /// Criteria, and whether they are negated.
    Criteria(bool),
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

impl Element {
    /// Whether the text of the element is used.
    pub fn has_text(self) -> bool {
        use Element::{Cve, Name, Product, Severity, Title, Value};

        matches!(self, Cve | Severity | Product | Title | Name | Value)
    }
}

/// The start of the text of an element.
#[derive(Debug, Default)]
pub(super) struct ElementText {
    pub content: String,
    /// Whether the text is longer.
    pub is_truncated: bool,
}

impl ElementText {
    /// Appends a part of the text. A truncated text may end inside an ID, which would look like a
    /// shorter ID, so an ID at the end is removed.
    pub fn append(&mut self, more: &str) {
        if self.is_truncated {
            return;
        }
        let room = MAX_TEXT_BYTES.saturating_sub(self.content.len());
        if more.len() <= room {
            self.content.push_str(more);
            return;
        }
        let fits = (0..=room).rev().find_map(|end| more.get(..end));
        self.content.push_str(fits.unwrap_or_default());
        let is_of_id = |c: char| c.is_ascii_alphanumeric() || c == '-';
        let end = self.content.trim_end_matches(is_of_id).len();
        self.content.truncate(end);
        self.is_truncated = true;
    }
}

/// The package that the comment of a criterion names.
pub(super) fn package_from_comment(comment: &str) -> Option<&str> {
    let marks = [" package in ", " DPKG is earlier than ", " is earlier than "];
    let (before, _) = marks.iter().find_map(|mark| comment.split_once(mark))?;
    let name = before.split_whitespace().next_back()?;
    Some(name.trim_matches(['\'', '"', '(', ')']))
}

/// Value of an attribute with this local name.
pub(super) fn attribute(element: &BytesStart<'_>, name: &str) -> Result<Option<String>, Finding> {
    for attribute in element.attributes() {
        let attribute = attribute.map_err(invalid)?;
        let key: &str = attribute.key.as_ref();
        if key == name {
            let value: &str = &attribute.value;
            return Ok(Some(unescape(value).map_err(invalid)?.into_owned()));
        }
    }
    Ok(None)
}
