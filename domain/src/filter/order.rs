//! Orders of lists.

use super::bad::{BadFilter, check_length, excerpt};
use super::check::unknown;
use super::{Field, Resource, syntax};

/// A field that a list is ordered by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrderKey {
    /// Of the listed resource itself.
    pub field: &'static Field,
    /// Whether the greatest comes first.
    pub descending: bool,
}

impl OrderKey {
    /// The greatest length of an order in characters.
    pub const MAX: usize = 1_000;
}

/// Reads the order of a list of this resource: fields with commas between them, each with `asc`, `desc` or nothing
/// behind it. An empty text orders by nothing.
///
/// # Errors
/// Says where the first thing stands that cannot be, and what would be right.
pub fn parse_order(resource: Resource, text: &str) -> Result<Vec<OrderKey>, BadFilter> {
    check_length(text, OrderKey::MAX)?;
    let mut order: Vec<OrderKey> = Vec::new();
    for written in syntax::keys(text)? {
        let key = key(resource, &written)?;
        if order.iter().any(|other| other.field == key.field) {
            let at = written.path.first().map_or(0, |word| word.at);
            let name = excerpt(&key.field.wire_name());
            return Err(BadFilter::at(at, format!("{name} orders already")));
        }
        order.push(key);
    }
    Ok(order)
}

fn key(resource: Resource, written: &syntax::Key) -> Result<OrderKey, BadFilter> {
    let [name, more @ ..] = written.path.as_slice() else {
        return Err(BadFilter::at(0, "a field is missing"));
    };
    if resource.edge(&name.text).is_some() || !more.is_empty() {
        let why = format!(
            "{} are ordered only by fields of their own",
            resource.plural()
        );
        return Err(BadFilter::at(name.at, why));
    }
    let Some(field) = resource.field(&name.text) else {
        let bad = unknown(resource, name, true);
        let hint = bad.hint.clone().filter(|hint| !hint.contains('.'));
        return Err(bad.hinting(hint));
    };
    Ok(OrderKey {
        field,
        descending: written.descending,
    })
}
