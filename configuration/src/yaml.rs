//! Reads YAML and JSON into a tree, and the fields of objects in it.

mod fields;
mod tree;

use crate::limits::open_text;
use crate::validation::{ErrorList, MAX_ENTRIES};

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
    match open_text(text).and_then(|text| Node::parse(text, max_aliases)) {
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
