//! Filters about things of another project.

use evenkeel_domain::filter::{Edge, Field, FieldKind, Resource};

use super::dice::Dice;
use super::secrets::Secrets;

/// A filter for a list of this resource, and whether it holds for everything outside of that project; else for nothing.
pub fn filter(dice: &mut Dice, resource: Resource, secrets: &Secrets) -> (String, bool) {
    let (mut text, mut holds) = (leaf(dice, resource, secrets), false);
    for _ in 0..dice.below(4) {
        let never = leaf(dice, resource, secrets);
        (text, holds) = match dice.below(4) {
            0 => (format!("({text} AND {never})"), false),
            1 => (format!("({never} OR {text})"), holds),
            2 => (format!("NOT ({text})"), !holds),
            _ => (format!("({never} OR NOT ({text}))"), !holds),
        };
    }
    (text, holds)
}

/// A condition that only things of that project meet: it asks for one of its ids, names or labels, perhaps at the end
/// of a path.
fn leaf(dice: &mut Dice, resource: Resource, secrets: &Secrets) -> String {
    let (mut path, mut end) = (String::new(), resource);
    for _ in 0..dice.below(4) {
        let edges = end.edges().iter();
        let edges: Vec<&Edge> = edges.filter(|edge| edge.to != Resource::Nothing).collect();
        if edges.is_empty() {
            break;
        }
        let edge = dice.pick(&edges);
        path = format!("{path}{}.", edge.name);
        end = edge.to;
    }
    if end.has_labels() && dice.once_in(6) {
        return label(dice, &path, secrets.mark);
    }
    let fields = end.fields().iter();
    let fields: Vec<&Field> = fields
        .filter(|field| matches!(field.kind, FieldKind::Id(_) | FieldKind::Text))
        .collect();
    let field = dice.pick(&fields);
    let comparison = match field.kind {
        FieldKind::Id(prefix) if !secrets.ids_of(prefix).is_empty() => {
            let operator = dice.pick(&["=", "==", ":"]);
            let id = dice.pick(secrets.ids_of(prefix));
            format!("{operator} \"{id}\"")
        }
        _ if dice.once_in(3) => format!("== \"{}\"", dice.pick(&secrets.all)),
        _ => {
            let operator = dice.pick(&["=", ":"]);
            format!("{operator} '{}'", piece(dice, secrets.mark))
        }
    };
    format!("{path}{} {comparison}", field.name)
}

/// A condition on a label that only things of that project have.
fn label(dice: &mut Dice, path: &str, mark: &str) -> String {
    match dice.below(4) {
        0 => format!("{path}metadata:\"{mark}-key\""),
        1 => format!("{path}metadata.\"{mark}-key\" = \"{mark}-0\""),
        2 => format!("{path}metadata.\"{mark}-key\" != \"nothing\""),
        _ => format!("{path}metadata = '*{mark}-key*{mark}*'"),
    }
}

/// A part of the word that is in all names of a project, as a filter may ask for it.
pub fn piece(dice: &mut Dice, mark: &str) -> String {
    match dice.below(6) {
        0 => mark.to_owned(),
        1 => mark.to_uppercase(),
        2 => mark[..4].to_owned(),
        3 => mark[1..5].to_owned(),
        4 => format!("{}*{}", &mark[..3], &mark[4..]),
        _ => format!("*{mark}*"),
    }
}
