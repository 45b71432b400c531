//! Reads and writes documents in YAML and JSON.

#[cfg(test)]
mod tests;

use crate::document::{Bundle, Component, Document, Entry};
use crate::states::read_desired;
use crate::validation::{ErrorList, MAX_ENTRIES, ReadError, child_path, excerpt, validate};
use crate::yaml::{Fields, Node, parse_document, suggest};

/// Aliases make a small document huge, so native documents have none.
const MAX_ALIASES: usize = 0;

/// Reads a document in YAML or JSON, and checks the rules of documents.
///
/// Scalars without quotes that YAML reads as booleans or numbers are accepted as text: `y` and
/// `1.10` are texts where a text is expected. In YAML, even `null` is a text as a content. In JSON,
/// a field that is null is absent.
///
/// # Errors
/// All wrong fields of the document with their paths: those of a wrong type, or else those that
/// break a rule. An entry with an unknown component is not offered, and then the whole document
/// is [`ReadError::NotOffered`].
pub fn read(text: &str) -> Result<Document, ReadError> {
    let document = parse(text)?;
    let errors = validate(&document);
    if errors.is_empty() { Ok(document) } else { Err(ReadError::Invalid(errors)) }
}

/// Reads a document like [`read`], without the rules of [`validate`].
///
/// # Errors
/// All fields that are unknown, missing or of a wrong type, with their paths.
pub fn parse(text: &str) -> Result<Document, ReadError> {
    let mut errors = ErrorList::default();
    let document = read_document(text, &mut errors);
    errors.into_result(document)
}

fn read_document(text: &str, errors: &mut ErrorList) -> Document {
    let Some(root) = parse_document(text, MAX_ALIASES, errors) else {
        return Document::default();
    };
    let mut fields = Fields::open("a document", String::new(), Some(root), errors);
    let mut document = Document {
        apply_mode: fields.choice("applyMode").unwrap_or_default(),
        remove_extras: fields.choices("removeExtras"),
        on_failure: fields.choice("onFailure").unwrap_or_default(),
        purpose: fields.choice("purpose").unwrap_or_default(),
        bundles: Vec::new(),
    };
    let mut entries_left = MAX_ENTRIES;
    for (path, node) in fields.list("bundles") {
        let bundle = fields.nested("a bundle", path, Some(node));
        document.bundles.push(read_bundle(bundle, &mut entries_left));
    }
    fields.finish();
    document
}

fn read_bundle(mut fields: Fields<'_>, entries_left: &mut usize) -> Bundle {
    let name = fields.required_text("name");
    let nodes = fields.list("entries");
    if nodes.len() > *entries_left {
        fields.error("entries", format!("a document has at most {MAX_ENTRIES} entries; split it"));
    }
    let count = nodes.len().min(*entries_left);
    *entries_left -= count;
    let mut entries = Vec::with_capacity(count);
    for (path, node) in nodes.into_iter().take(count) {
        entries.extend(read_entry(fields.nested("an entry", path, Some(node))));
    }
    fields.finish();
    Bundle { name, entries }
}

/// Reads an entry. There is none if its component is missing or unknown. Nobody knows which fields
/// an unknown component has, so the others are not read then.
fn read_entry(mut fields: Fields<'_>) -> Option<Entry> {
    let component: Component = match read_component(&mut fields) {
        ReadComponent::Known(component) => component,
        ReadComponent::Unknown => return None,
        ReadComponent::Missing => {
            fields.required_text("name");
            fields.take("desired");
            fields.finish();
            return None;
        }
    };
    let name = fields.required_text("name");
    let node = fields.take("desired");
    let path = child_path(fields.path(), "desired");
    let desired = read_desired(component, path, node, fields.errors());
    fields.finish();
    Some(Entry { name, desired })
}

/// The component of an entry. Everything but a known one is an error already.
enum ReadComponent {
    Known(Component),
    Unknown,
    Missing,
}

fn read_component(fields: &mut Fields<'_>) -> ReadComponent {
    let node = fields.take("component").filter(|node| !node.is_null());
    match node {
        None => fields.missing("component"),
        Some(Node::Plain(name) | Node::Text(name)) => {
            if let Some(component) = Component::from_name(&name) {
                return ReadComponent::Known(component);
            }
            let accepted = Component::ALL.map(Component::name);
            // The path has only the numbers of the bundle and of the entry.
            let entry =
                fields.peek_text("name").map(|entry| format!(" (entry {})", excerpt(entry)));
            let entry = entry.unwrap_or_default();
            let message = format!("{} is not a component{entry}", excerpt(&name));
            fields.not_offered("component", suggest(&message, &name, &accepted));
            return ReadComponent::Unknown;
        }
        Some(node) => fields.error("component", format!("expected text, not {}", node.kind())),
    }
    ReadComponent::Missing
}

/// Writes a document in YAML, in a form that readers of YAML 1.1 and 1.2 read alike.
pub fn write(document: &Document) -> String {
    let options = serde_saphyr::ser_options! {
        // Readers disagree on folded text.
        folded_wrap_chars: usize::MAX,
    };
    let mut yaml = String::new();
    serde_saphyr::to_fmt_writer_with_options(&mut yaml, document, options)
        .expect("a document has only text keys, and a String takes any text");
    yaml
}
