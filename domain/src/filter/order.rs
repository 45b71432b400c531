//! Orders of lists.

use super::check::unknown_field;
use super::error::{BadFilter, check_length, excerpt};
use super::{FilterField, Resource, syntax};

/// A field that a list is ordered by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrderKey {
    /// Field of the listed resource itself, or one of its references.
    pub field: &'static FilterField,
    /// Whether the greatest value comes first.
    pub descending: bool,
}

impl OrderKey {
    /// Maximum length of an order in characters.
    pub const MAX_CHARS: usize = 1_000;
}

/// Parses the order of a list of this resource: fields separated by commas, each followed by `asc`, `desc` or nothing.
/// An empty text gives no order.
///
/// # Errors
/// Gives the position and the reason of the first error, and a suggestion if there is one.
pub fn parse_order(resource: Resource, text: &str) -> Result<Vec<OrderKey>, BadFilter> {
    check_length(text, OrderKey::MAX_CHARS)?;
    let mut order: Vec<OrderKey> = Vec::new();
    for written in syntax::parse_keys(text)? {
        let key = resolve_key(resource, &written)?;
        if order.iter().any(|other| other.field == key.field) {
            let at = written.path.first().map_or(0, |atom| atom.at);
            let name = excerpt(&key.field.wire_name());
            return Err(BadFilter::at(at, format!("{name} is used twice")));
        }
        order.push(key);
    }
    Ok(order)
}

fn resolve_key(resource: Resource, written: &syntax::KeyNode) -> Result<OrderKey, BadFilter> {
    let [name, more @ ..] = written.path.as_slice() else {
        return Err(BadFilter::at(0, "a field is missing"));
    };
    if resource.edge(&name.text).is_some() || !more.is_empty() {
        let why = format!("{} can be ordered only by their own fields", resource.plural());
        return Err(BadFilter::at(name.at, why));
    }
    let Some(field) = resource.order_field(&name.text) else {
        let bad = unknown_field(resource, name, true);
        let hint = bad.hint.clone().filter(|hint| !hint.contains('.'));
        return Err(bad.with_hint(hint));
    };
    Ok(OrderKey { field, descending: written.descending })
}
