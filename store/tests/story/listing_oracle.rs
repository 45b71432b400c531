//! Lists without a database: what is there, which of it fits a filter, and in which order it stands.

use std::cmp::Ordering;
use std::collections::HashMap;

use chrono::{DateTime, SubsecRound};
use evenkeel_domain::Time;
use evenkeel_domain::filter::{
    Comparison, Condition, Edge, Field, FieldKind, Filter, LabelCondition, OrderKey, Pattern,
    Resource,
};

/// A resource by its kind and the bits of its id; what has no id of its own has a number.
pub type Ref = (Resource, u32);

/// What is in a field.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    /// A text or an id.
    Text(String),
    /// A value of an enumeration, by its name.
    Word(String),
    Number(Option<i64>),
    Truth(bool),
    Time(Option<Time>),
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<u32> for Cell {
    fn from(number: u32) -> Self {
        Self::Number(Some(number.into()))
    }
}

impl From<i32> for Cell {
    fn from(number: i32) -> Self {
        Self::Number(Some(number.into()))
    }
}

impl From<Time> for Cell {
    fn from(time: Time) -> Self {
        Self::Time(Some(time))
    }
}

/// A value of an enumeration.
pub fn word(name: &str) -> Cell {
    Cell::Word(name.to_owned())
}

/// A resource.
#[derive(Clone, Debug)]
pub struct Thing {
    of: Resource,
    bits: u32,
    cells: HashMap<&'static str, Cell>,
    edges: HashMap<&'static str, Vec<Ref>>,
    labels: Vec<(String, String)>,
}

impl Thing {
    /// One in which nothing is set but these.
    pub fn new(
        of: Resource,
        bits: u32,
        cells: impl IntoIterator<Item = (&'static str, Cell)>,
    ) -> Self {
        let unset = |field: &'static Field| {
            let cell = match field.kind {
                FieldKind::Id(_) | FieldKind::Text => Cell::from(""),
                FieldKind::Enumeration(_) => word("unspecified"),
                FieldKind::Number => Cell::Number(None),
                FieldKind::Truth => Cell::Truth(false),
                FieldKind::Seconds | FieldKind::Moment => Cell::Time(None),
            };
            (field.name, cell)
        };
        let mut all: HashMap<_, _> = of.fields().iter().map(unset).collect();
        for (name, cell) in cells {
            assert!(all.insert(name, cell).is_some(), "{of:?} has no {name}");
        }
        Self {
            of,
            bits,
            cells: all,
            edges: HashMap::new(),
            labels: Vec::new(),
        }
    }

    /// The same with labels, which are shown as a text as well.
    pub fn labelled(mut self, labels: impl IntoIterator<Item = (String, String)>) -> Self {
        self.labels = labels.into_iter().collect();
        let one = |(key, value): &(String, String)| {
            format!("{{\"key\":\"{key}\",\"value\":\"{value}\"}}")
        };
        let shown: Vec<_> = self.labels.iter().map(one).collect();
        let shown = match shown.as_slice() {
            [] => String::new(),
            all => format!("[{}]", all.join(",")),
        };
        self.cells.insert("metadata", shown.into());
        self
    }

    /// The same with an edge to these.
    pub fn leading(mut self, edge: &'static str, to: impl IntoIterator<Item = u32>) -> Self {
        let known = self.of.edge(edge).expect("an edge of the domain");
        let to = to.into_iter().map(|bits| (known.to, bits)).collect();
        self.edges.insert(edge, to);
        self
    }

    pub fn cell(&self, field: &str) -> &Cell {
        &self.cells[field]
    }
}

/// Everything there is.
#[derive(Debug, Default)]
pub struct Model {
    things: HashMap<Ref, Thing>,
}

impl Model {
    pub fn add(&mut self, thing: Thing) {
        let twice = self.things.insert((thing.of, thing.bits), thing);
        assert!(twice.is_none(), "{twice:?} is there twice");
    }

    /// Adds the edges that lead to many: the other direction of those that lead to one.
    pub fn close(
        &mut self,
        many: &'static str,
        one: &'static str,
        (from, to): (Resource, Resource),
    ) {
        let mut found: HashMap<Ref, Vec<Ref>> = HashMap::new();
        for thing in self.things.values().filter(|thing| thing.of == from) {
            for end in thing.edges.get(one).into_iter().flatten() {
                found.entry(*end).or_default().push((thing.of, thing.bits));
            }
        }
        for thing in self.things.values_mut().filter(|thing| thing.of == to) {
            let ends = found.remove(&(thing.of, thing.bits)).unwrap_or_default();
            thing.edges.insert(many, ends);
        }
    }

    pub fn all(&self, of: Resource) -> impl Iterator<Item = &Thing> {
        self.things.values().filter(move |thing| thing.of == of)
    }

    /// The ids of a list.
    pub fn list(&self, of: Resource, filter: Option<&Filter>, order: &[OrderKey]) -> Vec<u32> {
        let fits = |thing: &&Thing| filter.is_none_or(|filter| self.holds(thing, filter));
        let mut found: Vec<_> = self.all(of).filter(fits).collect();
        found.sort_by(|one, other| compare(one, other, order));
        found.into_iter().map(|thing| thing.bits).collect()
    }

    fn holds(&self, thing: &Thing, filter: &Filter) -> bool {
        match filter {
            Filter::All(parts) => parts.iter().all(|part| self.holds(thing, part)),
            Filter::Any(parts) => parts.iter().any(|part| self.holds(thing, part)),
            Filter::Not(part) => !self.holds(thing, part),
            Filter::Exists(path) => !self.ends(thing, path).is_empty(),
            Filter::Test(test) => self
                .ends(thing, &test.path)
                .iter()
                .any(|end| is(end.cell(test.field.name), test.field, &test.condition)),
            Filter::Label {
                path,
                key,
                condition,
            } => self.ends(thing, path).iter().any(|end| {
                let found = end.labels.iter().find(|(known, _)| known == key);
                found.is_some_and(|(_, value)| match condition {
                    LabelCondition::Present => true,
                    LabelCondition::Is(wanted) => value == wanted,
                    LabelCondition::IsNot(other) => value != other,
                })
            }),
        }
    }

    /// What is at the end of a path.
    fn ends<'a>(&'a self, thing: &'a Thing, path: &[&'static Edge]) -> Vec<&'a Thing> {
        let mut here = vec![thing];
        for edge in path {
            let next = here
                .iter()
                .flat_map(|thing| thing.edges.get(edge.name).into_iter().flatten());
            here = next.filter_map(|end| self.things.get(end)).collect();
        }
        here
    }
}

fn is(cell: &Cell, field: &Field, condition: &Condition) -> bool {
    match (cell, condition) {
        (Cell::Text(text), Condition::Unset) => text.is_empty(),
        (Cell::Text(text), Condition::Contains(pattern)) => has(text, pattern),
        (Cell::Text(text), Condition::Exactly(wanted)) => text == wanted,
        (Cell::Text(text), Condition::Not(other)) => !text.is_empty() && text != other,
        (Cell::Word(name), Condition::Unset) => name == "unspecified",
        (Cell::Word(name), Condition::Is(wanted)) => name == wanted,
        (Cell::Word(name), Condition::IsNot(other)) => name != other,
        (Cell::Number(number), Condition::Unset) => number.is_none(),
        (Cell::Number(number), Condition::Number(comparison, wanted)) => {
            compares(number.unwrap_or(0).cmp(wanted), *comparison)
        }
        (Cell::Truth(truth), Condition::Truth(wanted)) => truth == wanted,
        (Cell::Time(time), Condition::Unset) => time.is_none(),
        (Cell::Time(time), Condition::Time(comparison, wanted)) => {
            let digits = if field.kind == FieldKind::Seconds {
                0
            } else {
                3
            };
            let shown = time.map(|time| time.trunc_subsecs(digits));
            shown.is_some_and(|shown| compares(shown.cmp(wanted), *comparison))
        }
        _ => false,
    }
}

fn has(text: &str, pattern: &Pattern) -> bool {
    let text = text.to_lowercase();
    let mut rest = text.as_str();
    pattern.pieces().iter().all(|piece| {
        let found = rest.split_once(piece.to_lowercase().as_str());
        rest = found.map_or("", |(_, after)| after);
        found.is_some()
    })
}

fn compares(order: Ordering, comparison: Comparison) -> bool {
    match comparison {
        Comparison::Equal => order.is_eq(),
        Comparison::NotEqual => order.is_ne(),
        Comparison::Less => order.is_lt(),
        Comparison::LessOrEqual => order.is_le(),
        Comparison::Greater => order.is_gt(),
        Comparison::GreaterOrEqual => order.is_ge(),
    }
}

fn compare(one: &Thing, other: &Thing, order: &[OrderKey]) -> Ordering {
    let by_key = |key: &OrderKey| {
        let order = match (one.cell(key.field.name), other.cell(key.field.name)) {
            // As the numbers that they are.
            _ if matches!(key.field.kind, FieldKind::Id(_)) => one.bits.cmp(&other.bits),
            (Cell::Text(a), Cell::Text(b)) | (Cell::Word(a), Cell::Word(b)) => a.cmp(b),
            (Cell::Number(a), Cell::Number(b)) => a.unwrap_or(0).cmp(&b.unwrap_or(0)),
            (Cell::Truth(a), Cell::Truth(b)) => a.cmp(b),
            (Cell::Time(a), Cell::Time(b)) => {
                let of = |time: &Option<Time>| time.unwrap_or(DateTime::UNIX_EPOCH);
                of(a).cmp(&of(b))
            }
            (a, b) => panic!("{a:?} is of another kind than {b:?}"),
        };
        if key.descending {
            order.reverse()
        } else {
            order
        }
    };
    let by_keys = order.iter().map(by_key).find(|order| order.is_ne());
    by_keys.unwrap_or_else(|| one.bits.cmp(&other.bits))
}
