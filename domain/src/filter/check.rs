//! What was written becomes a filter, if its names and values fit the schema.

use std::ops::RangeInclusive;

use chrono::DateTime;

use super::bad::{BadFilter, excerpt, nearest};
use super::syntax::{self, Node, Word};
use super::token::Operator;
use super::{
    Condition, Edge, Enumeration, Field, FieldKind, Filter, LabelCondition, Path, Pattern,
    Resource, Test,
};
use crate::Time;

/// The field that holds labels.
const METADATA: &str = "metadata";

/// The seconds that a time may have: from 1970 to the end of the year 9999.
const SECONDS: RangeInclusive<i64> = 0..=253_402_300_799;

/// Checks a filter for a list of this resource.
pub(super) fn filter(resource: Resource, node: Node) -> Result<Filter, BadFilter> {
    let each = |nodes: Vec<Node>| -> Result<Vec<Filter>, BadFilter> {
        nodes
            .into_iter()
            .map(|node| filter(resource, node))
            .collect()
    };
    Ok(match node {
        Node::All(nodes) => Filter::All(each(nodes)?),
        Node::Any(nodes) => Filter::Any(each(nodes)?),
        Node::Not(node) => Filter::Not(Box::new(filter(resource, *node)?)),
        Node::Has(words) => Filter::Exists(existing(resource, &words)?),
        Node::Comparison(asked) => comparison(resource, &asked)?,
    })
}

/// There is no such field; or edge, if there is more behind it.
pub(super) fn unknown(resource: Resource, word: &Word, is_last: bool) -> BadFilter {
    let name = excerpt(&word.text);
    let why = format!("there is no field {name} of {}", resource.plural());
    let fields = resource.fields().iter().map(Field::wire_name);
    let edges = resource.edges().iter().map(Edge::wire_name);
    let labels = resource.has_labels().then(|| METADATA.to_owned());
    let instead = resource.instead_of(&word.text).map(str::to_owned);
    BadFilter::at(word.at, why).hinting(if is_last {
        instead.or_else(|| nearest(&word.text, fields))
    } else {
        nearest(&word.text, edges.chain(labels))
    })
}

/// Follows the edges that a path begins with; the rest of the path is left.
fn follow(resource: Resource, words: &[Word]) -> Result<(Path, Resource, &[Word]), BadFilter> {
    let (mut path, mut end, mut rest) = (Path::new(), resource, words);
    while let [word, more @ ..] = rest
        && !word.quoted
        && let Some(edge) = end.edge(&word.text)
    {
        if path.len() == Filter::MAX_EDGES {
            let why = format!("a path leads over at most {} resources", Filter::MAX_EDGES);
            return Err(BadFilter::at(word.at, why));
        }
        path.push(edge);
        (end, rest) = (edge.to, more);
    }
    Ok((path, end, rest))
}

/// The path within `has()`.
fn existing(resource: Resource, words: &[Word]) -> Result<Path, BadFilter> {
    let (path, end, rest) = follow(resource, words)?;
    let Some(word) = rest.first() else {
        return Ok(path);
    };
    let (name, what) = (excerpt(&word.text), end.plural());
    let why = format!("has() asks whether another resource is there, and {what} have no {name}");
    let edges = end.edges().iter().map(Edge::wire_name);
    Err(BadFilter::at(word.at, why).hinting(nearest(&word.text, edges)))
}

fn comparison(resource: Resource, asked: &syntax::Comparison) -> Result<Filter, BadFilter> {
    let (path, end, rest) = follow(resource, &asked.path)?;
    let [name, more @ ..] = rest else {
        return whole(path, asked);
    };
    let field = end.field(&name.text).filter(|_| !name.quoted);
    let field = field.ok_or_else(|| unknown(end, name, more.is_empty()))?;
    if field.name == METADATA
        && end.has_labels()
        && let Some((key, condition)) = label(more, asked)?
    {
        let label = Filter::Label {
            path,
            key,
            condition,
        };
        return Ok(label);
    }
    if let Some(word) = more.first() {
        let (name, kind) = (excerpt(&field.wire_name()), field.kind.noun());
        let why = format!("{name} of {} is {kind} and has no fields", end.plural());
        return Err(BadFilter::at(word.at, why));
    }
    match condition(field, asked)? {
        Some(condition) => Ok(Filter::Test(Test {
            path,
            field,
            condition,
        })),
        None => is_set(path, field, asked),
    }
}

/// A path that ends at a resource and not at a field of it: `site:*` asks whether it is there.
fn whole(path: Path, asked: &syntax::Comparison) -> Result<Filter, BadFilter> {
    if is_anything(asked) {
        return Ok(Filter::Exists(path));
    }
    let last = asked.path.last();
    let (at, name) = last.map_or((asked.at, ""), |word| (word.at, word.text.as_str()));
    let why = format!("{} is a resource; compare one of its fields", excerpt(name));
    let first = path.last().and_then(|edge| edge.to.fields().first());
    let hint = first.map(|field| format!("{name}.{}", field.wire_name()));
    Err(BadFilter::at(at, why).hinting(hint))
}

/// What is wanted of a label; none if all labels are compared as one text.
fn label(
    key: &[Word],
    asked: &syntax::Comparison,
) -> Result<Option<(String, LabelCondition)>, BadFilter> {
    let value = asked.value.plain();
    let (key, condition) = match (key, asked.operator) {
        ([], Operator::Has) if !is_anything(asked) => (value, LabelCondition::Present),
        ([], _) => return Ok(None),
        (words, operator) => {
            let words: Vec<_> = words.iter().map(Word::plain).collect();
            let key = words.join(".");
            if asked.value.is("null") {
                let why = "a label has no empty value; ask with NOT and : whether it is there";
                return Err(BadFilter::at(asked.value.at, why));
            }
            let condition = match operator {
                Operator::Has if is_anything(asked) => LabelCondition::Present,
                Operator::Like | Operator::Exactly | Operator::Has => LabelCondition::Is(value),
                Operator::Not => LabelCondition::IsNot(value),
                _ => return Err(unordered("a label", "a text", asked)),
            };
            (key, condition)
        }
    };
    if key.is_empty() {
        return Err(BadFilter::at(asked.at, "the name of the label is missing"));
    }
    Ok(Some((key, condition)))
}

/// What is wanted of a field; none if it is only to be set and no condition says so.
fn condition(field: &Field, asked: &syntax::Comparison) -> Result<Option<Condition>, BadFilter> {
    let is_nothing = asked.value.is("null") || asked.value.text.is_empty();
    match asked.operator {
        Operator::Like | Operator::Exactly | Operator::Has if is_nothing => {
            return Ok(Some(Condition::Unset));
        }
        Operator::Not if is_nothing => return Ok(set(field)),
        operator if is_nothing => {
            let why = format!("`{operator}` compares with something, not with nothing");
            return Err(BadFilter::at(asked.value.at, why));
        }
        _ if is_anything(asked) => return Ok(set(field)),
        _ => {}
    }
    match field.kind {
        FieldKind::Id(_) | FieldKind::Text => text(field, asked),
        FieldKind::Enumeration(values) => enumeration(field, values, asked).map(Some),
        FieldKind::Number => number(field, asked).map(Some),
        FieldKind::Truth => truth(field, asked).map(Some),
        FieldKind::Seconds | FieldKind::Moment => time(field, asked),
    }
}

fn text(field: &Field, asked: &syntax::Comparison) -> Result<Option<Condition>, BadFilter> {
    match asked.operator {
        Operator::Like | Operator::Has => {
            let pattern = Pattern::parse(&asked.value.text).map(Condition::Contains);
            Ok(pattern.or_else(|| set(field)))
        }
        Operator::Exactly => Ok(Some(Condition::Exactly(asked.value.plain()))),
        Operator::Not => Ok(Some(Condition::Not(asked.value.plain()))),
        _ => Err(unordered_field(field, asked)),
    }
}

fn enumeration(
    field: &Field,
    values: &Enumeration,
    asked: &syntax::Comparison,
) -> Result<Condition, BadFilter> {
    let text = asked.value.plain();
    let Some(name) = values.name_of(&text) else {
        let all: Vec<_> = values.names.iter().map(|name| values.wire(name)).collect();
        let (text, name) = (excerpt(&text), excerpt(&field.wire_name()));
        let why = format!("{text} is no value of {name}, which has {}", all.join(", "));
        let hint = value_meant(values, &asked.value.plain());
        return Err(BadFilter::at(asked.value.at, why).hinting(hint));
    };
    match asked.operator {
        Operator::Like | Operator::Has | Operator::Exactly => Ok(Condition::Is(name)),
        Operator::Not => Ok(Condition::IsNot(name)),
        _ => Err(unordered_field(field, asked)),
    }
}

/// The value that was meant, with or without what all of them begin with.
fn value_meant(values: &Enumeration, text: &str) -> Option<String> {
    let names = values.names.iter().map(|name| (*name).to_owned());
    if let Some(rest) = text.strip_prefix(values.prefix) {
        return nearest(rest, names).map(|name| values.wire(&name));
    }
    let wires = values.names.iter().map(|name| values.wire(name));
    let name = nearest(text, names).map(|name| values.wire(&name));
    name.or_else(|| nearest(text, wires))
}

fn number(field: &Field, asked: &syntax::Comparison) -> Result<Condition, BadFilter> {
    let text = asked.value.plain();
    let number = text.parse().map_err(|_| {
        let (text, name) = (excerpt(&text), excerpt(&field.wire_name()));
        let why = format!("{text} is no whole number of 64 bits, and {name} is compared with one");
        BadFilter::at(asked.value.at, why)
    })?;
    Ok(Condition::Number(asked.operator.comparison(), number))
}

fn truth(field: &Field, asked: &syntax::Comparison) -> Result<Condition, BadFilter> {
    let text = asked.value.plain();
    let truth = match text.as_str() {
        "true" => true,
        "false" => false,
        _ => {
            let (text, name) = (excerpt(&text), excerpt(&field.wire_name()));
            let why = format!("{text} is neither true nor false, as {name} is");
            let hint = nearest(&asked.value.text, ["true", "false"].map(str::to_owned));
            return Err(BadFilter::at(asked.value.at, why).hinting(hint));
        }
    };
    match asked.operator {
        Operator::Like | Operator::Has | Operator::Exactly => Ok(Condition::Truth(truth)),
        Operator::Not => Ok(Condition::Truth(!truth)),
        _ => Err(unordered_field(field, asked)),
    }
}

fn time(field: &Field, asked: &syntax::Comparison) -> Result<Option<Condition>, BadFilter> {
    let text = asked.value.plain();
    let seconds = match field.kind {
        FieldKind::Seconds => text.parse::<i64>().ok(),
        _ => None,
    };
    if seconds == Some(0) {
        // On the wire this means that there is no time.
        match asked.operator {
            Operator::Like | Operator::Has | Operator::Exactly => {
                return Ok(Some(Condition::Unset));
            }
            Operator::Not => return Ok(set(field)),
            _ => {}
        }
    }
    let time: Option<Time> = match seconds {
        Some(seconds) => DateTime::from_timestamp(seconds, 0),
        None => DateTime::parse_from_rfc3339(&text)
            .ok()
            .map(|time| time.to_utc()),
    };
    let time = time.filter(|time| SECONDS.contains(&time.timestamp()));
    let time = time.ok_or_else(|| {
        let (text, name) = (excerpt(&text), excerpt(&field.wire_name()));
        let form = match field.kind {
            FieldKind::Seconds => "in Unix seconds or as",
            _ => "written as",
        };
        let why = format!("{text} is no time; {name} is {form} \"2026-01-31T08:00:00Z\"");
        BadFilter::at(asked.value.at, why)
    })?;
    Ok(Some(Condition::Time(asked.operator.comparison(), time)))
}

/// A field is set, if its kind has a condition for that.
fn set(field: &Field) -> Option<Condition> {
    match field.kind {
        FieldKind::Id(_) | FieldKind::Text => Some(Condition::Not(String::new())),
        FieldKind::Enumeration(values) => values.name_of_nothing().map(Condition::IsNot),
        _ => None,
    }
}

/// The field is not unset. Where nothing leads to it, nothing is set.
fn is_set(
    path: Path,
    field: &'static Field,
    asked: &syntax::Comparison,
) -> Result<Filter, BadFilter> {
    if let Some(edge) = path.iter().find(|edge| edge.many) {
        let name = excerpt(&edge.wire_name());
        let why = format!("of {name} there can be many; whether one has something is not asked so");
        return Err(BadFilter::at(asked.value.at, why));
    }
    let unset = Filter::Not(Box::new(Filter::Test(Test {
        path: path.clone(),
        field,
        condition: Condition::Unset,
    })));
    if path.is_empty() {
        return Ok(unset);
    }
    Ok(Filter::All(vec![Filter::Exists(path), unset]))
}

/// Whether anything will do: `:*`.
fn is_anything(asked: &syntax::Comparison) -> bool {
    asked.operator == Operator::Has && asked.value.is("*")
}

fn unordered_field(field: &Field, asked: &syntax::Comparison) -> BadFilter {
    unordered(&excerpt(&field.wire_name()), field.kind.noun(), asked)
}

fn unordered(what: &str, kind: &str, asked: &syntax::Comparison) -> BadFilter {
    let why = format!(
        "`{}` compares numbers and times, and {what} is {kind}",
        asked.operator
    );
    BadFilter::at(asked.at, why)
}
