//! Random filters that refer to resources of another project.

use evenkeel_domain::filter::{Edge, FieldKind, FilterField, Resource};

use super::rng::Rng;
use super::secrets::Secrets;

/// A filter for a list of this resource. If the flag is true, it matches everything outside of the
/// project of the secrets, otherwise nothing outside.
pub fn random_filter(rng: &mut Rng, resource: Resource, secrets: &Secrets) -> (String, bool) {
    let (mut text, mut holds) = (random_condition(rng, resource, secrets), false);
    for _ in 0..rng.below(4) {
        let never = random_condition(rng, resource, secrets);
        (text, holds) = match rng.below(4) {
            0 => (format!("({text} AND {never})"), false),
            1 => (format!("({never} OR {text})"), holds),
            2 => (format!("NOT ({text})"), !holds),
            _ => (format!("({never} OR NOT ({text}))"), !holds),
        };
    }
    (text, holds)
}

/// A condition that only resources of that project meet: it compares with one of its ids, names or
/// labels, possibly at the end of a path.
fn random_condition(rng: &mut Rng, resource: Resource, secrets: &Secrets) -> String {
    let (mut path, mut end) = (String::new(), resource);
    for _ in 0..rng.below(4) {
        let edges = end.edges().iter();
        let edges: Vec<&Edge> = edges.filter(|edge| edge.to != Resource::WorkloadMember).collect();
        if edges.is_empty() {
            break;
        }
        let edge = rng.pick(&edges);
        path = format!("{path}{}.", edge.name);
        end = edge.to;
    }
    if end.has_labels() && rng.once_in(6) {
        return random_label_condition(rng, &path, secrets.mark);
    }
    let fields = end.fields().iter();
    let fields: Vec<&FilterField> =
        fields.filter(|field| is_compared_as_text(field.kind)).collect();
    let field = rng.pick(&fields);
    let comparison = match field.kind {
        FieldKind::Id(prefix) if !secrets.ids_with_prefix(prefix).is_empty() => {
            let operator = rng.pick(&["=", "==", ":"]);
            let id = rng.pick(secrets.ids_with_prefix(prefix));
            format!("{operator} \"{id}\"")
        }
        _ if rng.once_in(3) => format!("== \"{}\"", rng.pick(&secrets.all)),
        _ => {
            let operator = rng.pick(&["=", ":"]);
            format!("{operator} '{}'", random_pattern(rng, secrets.mark))
        }
    };
    format!("{path}{} {comparison}", field.name)
}

const fn is_compared_as_text(kind: FieldKind) -> bool {
    matches!(kind, FieldKind::Id(_) | FieldKind::Text | FieldKind::Version)
}

/// A condition on a label that only resources of that project have.
fn random_label_condition(rng: &mut Rng, path: &str, mark: &str) -> String {
    match rng.below(4) {
        0 => format!("{path}metadata:\"{mark}-key\""),
        1 => format!("{path}metadata.\"{mark}-key\" = \"{mark}-0\""),
        2 => format!("{path}metadata.\"{mark}-key\" != \"nothing\""),
        _ => format!("{path}metadata = '*{mark}-key*{mark}*'"),
    }
}

/// A pattern with a part of the mark that is in all names of a project.
pub fn random_pattern(rng: &mut Rng, mark: &str) -> String {
    match rng.below(6) {
        0 => mark.to_owned(),
        1 => mark.to_uppercase(),
        2 => mark[..4].to_owned(),
        3 => mark[1..5].to_owned(),
        4 => format!("{}*{}", &mark[..3], &mark[4..]),
        _ => format!("*{mark}*"),
    }
}
