//! What single elements are, and what they say.

use quick_xml::escape::unescape;
use quick_xml::events::BytesStart;

use crate::cves::bad;
use crate::finding::Finding;

/// How much of the text of an element is kept, in bytes.
const LONGEST: usize = 4 * 1024;

/// What an element is here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Definition,
    /// Criteria, and whether what stands in them is denied.
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

impl Part {
    /// Whether its text is kept.
    pub fn has_text(self) -> bool {
        use Part::{Cve, Name, Product, Severity, Title, Value};

        matches!(self, Cve | Severity | Product | Title | Name | Value)
    }
}

/// The beginning of the text of an element.
#[derive(Debug, Default)]
pub(super) struct Text {
    pub kept: String,
    /// Whether there was more of it.
    pub is_cut: bool,
}

impl Text {
    /// Adds what follows. Where the text is cut there may be half an id, which would be another one, so that goes.
    pub fn add(&mut self, more: &str) {
        if self.is_cut {
            return;
        }
        let room = LONGEST.saturating_sub(self.kept.len());
        if more.len() <= room {
            self.kept.push_str(more);
            return;
        }
        let fits = (0..=room).rev().find_map(|end| more.get(..end));
        self.kept.push_str(fits.unwrap_or_default());
        let is_of_id = |c: char| c.is_ascii_alphanumeric() || c == '-';
        let end = self.kept.trim_end_matches(is_of_id).len();
        self.kept.truncate(end);
        self.is_cut = true;
    }
}

/// The package that the comment of a criterion names.
pub(super) fn package_in(comment: &str) -> Option<&str> {
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
pub(super) fn attribute(element: &BytesStart<'_>, name: &str) -> Result<Option<String>, Finding> {
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
