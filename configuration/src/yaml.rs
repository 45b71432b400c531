//! Reads YAML and JSON into a tree, and the fields of objects in it.

mod fields;
mod json;
mod tree;

use crate::limits::open_text;
use crate::validation::{ErrorList, MAX_ENTRIES};

use json::parse_json;

pub(crate) use fields::{Fields, suggest};
pub(crate) use tree::Node;

/// Most objects, lists, keys and scalars of a document: 30 for each of 20,000 entries. An entry
/// with all fields of its component and no long lists has fewer.
const MAX_VALUES: usize = 30 * MAX_ENTRIES;

/// Deepest nesting of objects and lists. The key of a secret is at the eighth level; metadata of
/// Kubernetes is deeper.
const MAX_DEPTH: usize = 32;

/// Parses a document. `max_aliases` is the maximum number of anchors, of aliases and of merge keys.
/// None if there is an error, or if the document is empty.
pub(crate) fn parse_document(
    text: &str,
    max_aliases: usize,
    errors: &mut ErrorList,
) -> Option<Node> {
    match open_text(text).and_then(|text| parse_text(text, max_aliases)) {
        Ok(root) if root.is_null() => {
            errors.add("", "the document is empty; write an object with its fields");
            None
        }
        Ok(root) => Some(root),
        Err(message) => {
            errors.add("", message);
            None
        }
    }
}

/// Parses a text. In JSON, a field that is null is absent, because programs write null for it.
fn parse_text(text: &str, max_aliases: usize) -> Result<Node, String> {
    if !text.trim_start().starts_with('{') {
        return Node::parse(text, max_aliases);
    }
    let root = parse_json(text).map_or_else(|| Node::parse(text, max_aliases), Ok)?;
    Ok(root.without_null_fields())
}
