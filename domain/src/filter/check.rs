//! Checks a syntax tree against the schema and makes a filter of it.

use std::ops::RangeInclusive;

use chrono::DateTime;

use super::error::{BadFilter, excerpt, nearest_match};
use super::syntax::{self, Atom, SyntaxNode};
use super::token::Operator;
use super::{
    Comparison, Edge, EdgePath, Enumeration, FieldCondition, FieldKind, FieldTest, Filter,
    FilterField, LabelCondition, Pattern, Resource, VersionNumbers,
};
use crate::Time;

/// The field with the labels.
pub(super) const METADATA: &str = "metadata";

/// Valid times in Unix seconds: from 1970 to the end of the year 9999.
const UNIX_SECONDS_RANGE: RangeInclusive<i64> = 0..=253_402_300_799;

/// Checks a filter for a list of this resource.
pub(super) fn check_filter(resource: Resource, node: SyntaxNode) -> Result<Filter, BadFilter> {
    let each = |nodes: Vec<SyntaxNode>| -> Result<Vec<Filter>, BadFilter> {
        nodes.into_iter().map(|node| check_filter(resource, node)).collect()
    };
    Ok(match node {
        SyntaxNode::All(nodes) => Filter::All(each(nodes)?),
        SyntaxNode::Any(nodes) => Filter::Any(each(nodes)?),
        SyntaxNode::Not(node) => Filter::Not(Box::new(check_filter(resource, *node)?)),
        SyntaxNode::Has(atoms) => Filter::Exists(check_has(resource, &atoms)?),
        SyntaxNode::Comparison(comparison) => check_comparison(resource, &comparison)?,
    })
}

/// The error for an unknown field, or for an unknown edge if the path continues behind it.
pub(super) fn unknown_field(resource: Resource, atom: &Atom, is_last: bool) -> BadFilter {
    let name = excerpt(&atom.text);
    let why = format!("there is no field {name} of {}", resource.plural());
    let fields = resource.fields().iter().map(FilterField::wire_name);
    let edges = resource.edges().iter().map(Edge::wire_name);
    let labels = resource.has_labels().then(|| METADATA.to_owned());
    let instead = resource.suggestion_for(&atom.text).map(str::to_owned);
    BadFilter::at(atom.at, why).with_hint(if is_last {
        instead.or_else(|| nearest_match(&atom.text, fields))
    } else {
        nearest_match(&atom.text, edges.chain(labels))
    })
}

/// Follows the edges at the beginning of a path and returns the rest of the path.
fn follow_edges(
    resource: Resource,
    atoms: &[Atom],
) -> Result<(EdgePath, Resource, &[Atom]), BadFilter> {
    let (mut path, mut end, mut rest) = (EdgePath::new(), resource, atoms);
    while let [atom, more @ ..] = rest
        && !atom.quoted
        && let Some(edge) = end.edge(&atom.text)
    {
        if path.len() == Filter::MAX_EDGES {
            let why = format!("a path has at most {} edges", Filter::MAX_EDGES);
            return Err(BadFilter::at(atom.at, why));
        }
        path.push(edge);
        (end, rest) = (edge.to, more);
    }
    Ok((path, end, rest))
}

/// The path within `has()`.
fn check_has(resource: Resource, atoms: &[Atom]) -> Result<EdgePath, BadFilter> {
    let (path, end, rest) = follow_edges(resource, atoms)?;
    let Some(atom) = rest.first() else {
        return Ok(path);
    };
    let (name, what) = (excerpt(&atom.text), end.plural());
    let why = format!("has() tests whether a related resource exists, and {what} have no {name}");
    let edges = end.edges().iter().map(Edge::wire_name);
    Err(BadFilter::at(atom.at, why).with_hint(nearest_match(&atom.text, edges)))
}

fn check_comparison(
    resource: Resource,
    comparison: &syntax::ComparisonNode,
) -> Result<Filter, BadFilter> {
    let (path, end, rest) = follow_edges(resource, &comparison.path)?;
    let [name, more @ ..] = rest else {
        return check_resource(path, comparison);
    };
    let field = end.field(&name.text).filter(|_| !name.quoted);
    let field = field.ok_or_else(|| unknown_field(end, name, more.is_empty()))?;
    if field.name == METADATA
        && end.has_labels()
        && let Some((key, condition)) = label_condition(more, comparison)?
    {
        let label = Filter::Label { path, key, condition };
        return Ok(label);
    }
    if let Some(atom) = more.first() {
        let (name, kind) = (excerpt(&field.wire_name()), field.kind.noun());
        let why = format!("{name} of {} is {kind} and has no fields", end.plural());
        return Err(BadFilter::at(atom.at, why));
    }
    match field_condition(field, comparison)? {
        Some(condition) => Ok(Filter::Test(FieldTest { path, field, condition })),
        None => is_set_filter(path, field, comparison),
    }
}

/// A path that ends at a resource instead of a field: `site:*` tests whether the resource exists.
fn check_resource(
    path: EdgePath,
    comparison: &syntax::ComparisonNode,
) -> Result<Filter, BadFilter> {
    if matches_any_value(comparison) {
        return Ok(Filter::Exists(path));
    }
    let last = comparison.path.last();
    let (at, name) = last.map_or((comparison.at, ""), |atom| (atom.at, atom.text.as_str()));
    let why = format!("{} is a resource; compare one of its fields", excerpt(name));
    let first = path.last().and_then(|edge| edge.to.fields().first());
    let hint = first.map(|field| format!("{name}.{}", field.wire_name()));
    Err(BadFilter::at(at, why).with_hint(hint))
}

/// The condition for a label; `None` if all labels are compared as one text.
fn label_condition(
    key: &[Atom],
    comparison: &syntax::ComparisonNode,
) -> Result<Option<(String, LabelCondition)>, BadFilter> {
    let value = comparison.value.plain();
    let (key, condition) = match (key, comparison.operator) {
        ([], Operator::Has) if !matches_any_value(comparison) => (value, LabelCondition::Present),
        ([], _) => return Ok(None),
        (atoms, operator) => {
            let parts: Vec<_> = atoms.iter().map(Atom::plain).collect();
            let key = parts.join(".");
            if comparison.value.is_unquoted("null") {
                let why = "a label cannot be null; use NOT and : to test that it does not exist";
                return Err(BadFilter::at(comparison.value.at, why));
            }
            let condition = match operator {
                Operator::Has if matches_any_value(comparison) => LabelCondition::Present,
                Operator::Like | Operator::Exactly | Operator::Has => LabelCondition::Is(value),
                Operator::Not => LabelCondition::IsNot(value),
                _ => return Err(unordered_error("a label", "a text", comparison)),
            };
            (key, condition)
        }
    };
    if key.is_empty() {
        return Err(BadFilter::at(comparison.at, "the name of the label is missing"));
    }
    Ok(Some((key, condition)))
}

/// The condition for a field; `None` if the field must only be set and its kind has no condition for that.
fn field_condition(
    field: &FilterField,
    comparison: &syntax::ComparisonNode,
) -> Result<Option<FieldCondition>, BadFilter> {
    let is_nothing = comparison.value.is_unquoted("null") || comparison.value.text.is_empty();
    match comparison.operator {
        Operator::Like | Operator::Exactly | Operator::Has if is_nothing => {
            return Ok(Some(FieldCondition::Unset));
        }
        Operator::Not if is_nothing => return Ok(set_condition(field)),
        operator if is_nothing => {
            let why = format!("`{operator}` needs a value and cannot compare with null");
            return Err(BadFilter::at(comparison.value.at, why));
        }
        _ if matches_any_value(comparison) => return Ok(set_condition(field)),
        _ => {}
    }
    match field.kind {
        FieldKind::Id(_) | FieldKind::Text => text_condition(field, comparison),
        FieldKind::Version => version_condition(field, comparison),
        FieldKind::Enumeration(values) => {
            enumeration_condition(field, values, comparison).map(Some)
        }
        FieldKind::Number => number_condition(field, comparison).map(Some),
        FieldKind::Bool => bool_condition(field, comparison).map(Some),
        FieldKind::UnixSeconds | FieldKind::Rfc3339Time => time_condition(field, comparison),
    }
}

fn text_condition(
    field: &FilterField,
    comparison: &syntax::ComparisonNode,
) -> Result<Option<FieldCondition>, BadFilter> {
    match comparison.operator {
        Operator::Like | Operator::Has => {
            let pattern = Pattern::parse(&comparison.value.text).map(FieldCondition::Contains);
            Ok(pattern.or_else(|| set_condition(field)))
        }
        Operator::Exactly => Ok(Some(FieldCondition::Exactly(comparison.value.plain()))),
        Operator::Not => Ok(Some(FieldCondition::Not(comparison.value.plain()))),
        _ => Err(unordered_field_error(field, comparison)),
    }
}

/// A version is compared by size with the numbers of another one, and otherwise like a text.
fn version_condition(
    field: &FilterField,
    comparison: &syntax::ComparisonNode,
) -> Result<Option<FieldCondition>, BadFilter> {
    let relation = comparison.operator.comparison();
    if matches!(relation, Comparison::Equal | Comparison::NotEqual) {
        return text_condition(field, comparison);
    }
    let text = comparison.value.plain();
    let version = VersionNumbers::parse(&text).ok_or_else(|| {
        let (text, name) = (excerpt(&text), excerpt(&field.wire_name()));
        let why = format!("{text} is not a version such as \"0.10.2\", as needed for {name}");
        BadFilter::at(comparison.value.at, why)
    })?;
    Ok(Some(FieldCondition::Version(relation, version)))
}

fn enumeration_condition(
    field: &FilterField,
    values: &Enumeration,
    comparison: &syntax::ComparisonNode,
) -> Result<FieldCondition, BadFilter> {
    let text = comparison.value.plain();
    let Some(name) = values.name_from_wire(&text) else {
        let all: Vec<_> = values.names.iter().map(|name| values.wire_value(name)).collect();
        let (text, name) = (excerpt(&text), excerpt(&field.wire_name()));
        let why = format!("{text} is not a value of {name}; its values are {}", all.join(", "));
        let hint = suggest_value(values, &comparison.value.plain());
        return Err(BadFilter::at(comparison.value.at, why).with_hint(hint));
    };
    match comparison.operator {
        Operator::Like | Operator::Has | Operator::Exactly => Ok(FieldCondition::Is(name)),
        Operator::Not => Ok(FieldCondition::IsNot(name)),
        _ => Err(unordered_field_error(field, comparison)),
    }
}

/// The value that was probably meant, with or without the common prefix.
fn suggest_value(values: &Enumeration, text: &str) -> Option<String> {
    let names = values.names.iter().map(|name| (*name).to_owned());
    if let Some(rest) = text.strip_prefix(values.prefix) {
        return nearest_match(rest, names).map(|name| values.wire_value(&name));
    }
    let wires = values.names.iter().map(|name| values.wire_value(name));
    let name = nearest_match(text, names).map(|name| values.wire_value(&name));
    name.or_else(|| nearest_match(text, wires))
}

fn number_condition(
    field: &FilterField,
    comparison: &syntax::ComparisonNode,
) -> Result<FieldCondition, BadFilter> {
    let text = comparison.value.plain();
    let number = text.parse().map_err(|_| {
        let (text, name) = (excerpt(&text), excerpt(&field.wire_name()));
        let why = format!("{text} is not a 64-bit integer, as needed for {name}");
        BadFilter::at(comparison.value.at, why)
    })?;
    Ok(FieldCondition::Number(comparison.operator.comparison(), number))
}

fn bool_condition(
    field: &FilterField,
    comparison: &syntax::ComparisonNode,
) -> Result<FieldCondition, BadFilter> {
    let text = comparison.value.plain();
    let value = match text.as_str() {
        "true" => true,
        "false" => false,
        _ => {
            let (text, name) = (excerpt(&text), excerpt(&field.wire_name()));
            let why = format!("{text} is not true or false, as needed for {name}");
            let hint = nearest_match(&comparison.value.text, ["true", "false"].map(str::to_owned));
            return Err(BadFilter::at(comparison.value.at, why).with_hint(hint));
        }
    };
    match comparison.operator {
        Operator::Like | Operator::Has | Operator::Exactly => Ok(FieldCondition::Bool(value)),
        Operator::Not => Ok(FieldCondition::Bool(!value)),
        _ => Err(unordered_field_error(field, comparison)),
    }
}

fn time_condition(
    field: &FilterField,
    comparison: &syntax::ComparisonNode,
) -> Result<Option<FieldCondition>, BadFilter> {
    let text = comparison.value.plain();
    let seconds = match field.kind {
        FieldKind::UnixSeconds => text.parse::<i64>().ok(),
        _ => None,
    };
    if seconds == Some(0) {
        // On the wire 0 means that there is no time.
        match comparison.operator {
            Operator::Like | Operator::Has | Operator::Exactly => {
                return Ok(Some(FieldCondition::Unset));
            }
            Operator::Not => return Ok(set_condition(field)),
            _ => {}
        }
    }
    let time: Option<Time> = match seconds {
        Some(seconds) => DateTime::from_timestamp(seconds, 0),
        None => DateTime::parse_from_rfc3339(&text).ok().map(|time| time.to_utc()),
    };
    let time = time.filter(|time| UNIX_SECONDS_RANGE.contains(&time.timestamp()));
    let time = time.ok_or_else(|| {
        let (text, name) = (excerpt(&text), excerpt(&field.wire_name()));
        let form = match field.kind {
            FieldKind::UnixSeconds => "in Unix seconds or as",
            _ => "written as",
        };
        let why = format!("{text} is not a time; {name} is {form} \"2026-01-31T08:00:00Z\"");
        BadFilter::at(comparison.value.at, why)
    })?;
    Ok(Some(FieldCondition::Time(comparison.operator.comparison(), time)))
}

/// The condition that a field is set, if its kind has one.
fn set_condition(field: &FilterField) -> Option<FieldCondition> {
    match field.kind {
        FieldKind::Id(_) | FieldKind::Text | FieldKind::Version => {
            Some(FieldCondition::Not(String::new()))
        }
        FieldKind::Enumeration(values) => values.unspecified_name().map(FieldCondition::IsNot),
        _ => None,
    }
}

/// A filter that the field is set. It does not match if there is no resource at the end of the path.
fn is_set_filter(
    path: EdgePath,
    field: &'static FilterField,
    comparison: &syntax::ComparisonNode,
) -> Result<Filter, BadFilter> {
    if let Some(edge) = path.iter().find(|edge| edge.many) {
        let name = excerpt(&edge.wire_name());
        let why = format!(
            "{name} can be many resources; a test whether one has a value is not supported"
        );
        return Err(BadFilter::at(comparison.value.at, why));
    }
    let unset = Filter::Not(Box::new(Filter::Test(FieldTest {
        path: path.clone(),
        field,
        condition: FieldCondition::Unset,
    })));
    if path.is_empty() {
        return Ok(unset);
    }
    Ok(Filter::All(vec![Filter::Exists(path), unset]))
}

/// Whether the comparison is `:*`, which matches any value.
fn matches_any_value(comparison: &syntax::ComparisonNode) -> bool {
    comparison.operator == Operator::Has && comparison.value.is_unquoted("*")
}

fn unordered_field_error(field: &FilterField, comparison: &syntax::ComparisonNode) -> BadFilter {
    unordered_error(&excerpt(&field.wire_name()), field.kind.noun(), comparison)
}

fn unordered_error(what: &str, kind: &str, comparison: &syntax::ComparisonNode) -> BadFilter {
    let why = format!(
        "`{}` compares only numbers, versions and times, but {what} is {kind}",
        comparison.operator
    );
    BadFilter::at(comparison.at, why)
}
