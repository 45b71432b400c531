//! Lists without a database: an oracle for filters and orders.

use std::cmp::Ordering;
use std::collections::HashMap;

use chrono::{DateTime, SubsecRound};
use evenkeel_domain::Time;
use evenkeel_domain::filter::{
    Comparison, Edge, FieldCondition, FieldKind, Filter, FilterField, LabelCondition, OrderKey,
    Pattern, Resource, VersionNumbers,
};

/// A record by its resource and the bits of its id; records without an id are numbered.
pub type RecordRef = (Resource, u32);

/// Value of a field.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    /// A text or an id.
    Text(String),
    /// An enumeration value, by its name.
    Enumeration(String),
    Number(Option<i64>),
    Bool(Option<bool>),
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

/// An enumeration value.
pub fn enumeration(name: &str) -> Cell {
    Cell::Enumeration(name.to_owned())
}

/// A stored resource.
#[derive(Clone, Debug)]
pub struct Record {
    resource: Resource,
    bits: u32,
    cells: HashMap<&'static str, Cell>,
    edges: HashMap<&'static str, Vec<RecordRef>>,
    labels: Vec<(String, String)>,
}

impl Record {
    /// A record in which only `cells` are set.
    pub fn new(
        resource: Resource,
        bits: u32,
        cells: impl IntoIterator<Item = (&'static str, Cell)>,
    ) -> Self {
        let unset = |field: &'static FilterField| {
            let cell = match field.kind {
                FieldKind::Id(_) | FieldKind::Text | FieldKind::Version => Cell::from(""),
                FieldKind::Enumeration(_) => enumeration("unspecified"),
                FieldKind::Number => Cell::Number(None),
                FieldKind::Bool => Cell::Bool(Some(false)),
                FieldKind::UnixSeconds | FieldKind::Rfc3339Time => Cell::Time(None),
            };
            (field.name, cell)
        };
        let mut all: HashMap<_, _> = resource.fields().iter().map(unset).collect();
        for (name, cell) in cells {
            assert!(all.insert(name, cell).is_some(), "{resource:?} has no {name}");
        }
        Self { resource, bits, cells: all, edges: HashMap::new(), labels: Vec::new() }
    }

    /// Adds labels, also as the text of the field `metadata`.
    pub fn with_labels(mut self, labels: impl IntoIterator<Item = (String, String)>) -> Self {
        self.labels = labels.into_iter().collect();
        let one = |(key, value): &(String, String)| {
            format!("{{\"key\":\"{key}\",\"value\":\"{value}\"}}")
        };
        let rendered: Vec<_> = self.labels.iter().map(one).collect();
        let rendered = match rendered.as_slice() {
            [] => String::new(),
            all => format!("[{}]", all.join(",")),
        };
        self.cells.insert("metadata", rendered.into());
        self
    }

    /// Adds an edge to records.
    pub fn with_edge(mut self, edge: &'static str, to: impl IntoIterator<Item = u32>) -> Self {
        let definition = self.resource.edge(edge).expect("an edge of the domain");
        let to = to.into_iter().map(|bits| (definition.to, bits)).collect();
        self.edges.insert(edge, to);
        self
    }

    pub fn cell(&self, field: &str) -> &Cell {
        &self.cells[field]
    }
}

#[derive(Debug, Default)]
pub struct ListingOracle {
    records: HashMap<RecordRef, Record>,
}

impl ListingOracle {
    pub fn add(&mut self, record: Record) {
        let twice = self.records.insert((record.resource, record.bits), record);
        assert!(twice.is_none(), "{twice:?} was added twice");
    }

    /// Adds the edges to many records: the reverse of the edges to one.
    pub fn add_reverse_edges(
        &mut self,
        many: &'static str,
        one: &'static str,
        (from, to): (Resource, Resource),
    ) {
        let mut sources: HashMap<RecordRef, Vec<RecordRef>> = HashMap::new();
        for record in self.records.values().filter(|record| record.resource == from) {
            for end in record.edges.get(one).into_iter().flatten() {
                sources.entry(*end).or_default().push((record.resource, record.bits));
            }
        }
        for record in self.records.values_mut().filter(|record| record.resource == to) {
            let ends = sources.remove(&(record.resource, record.bits)).unwrap_or_default();
            record.edges.insert(many, ends);
        }
    }

    pub fn records_of(&self, resource: Resource) -> impl Iterator<Item = &Record> {
        self.records.values().filter(move |record| record.resource == resource)
    }

    /// Ids of the matching records, in order.
    pub fn list(
        &self,
        resource: Resource,
        filter: Option<&Filter>,
        order: &[OrderKey],
    ) -> Vec<u32> {
        let fits = |record: &&Record| filter.is_none_or(|filter| self.is_match(record, filter));
        let mut matching: Vec<_> = self.records_of(resource).filter(fits).collect();
        matching.sort_by(|one, other| compare(one, other, order));
        matching.into_iter().map(|record| record.bits).collect()
    }

    fn is_match(&self, record: &Record, filter: &Filter) -> bool {
        match filter {
            Filter::All(parts) => parts.iter().all(|part| self.is_match(record, part)),
            Filter::Any(parts) => parts.iter().any(|part| self.is_match(record, part)),
            Filter::Not(part) => !self.is_match(record, part),
            Filter::Exists(path) => !self.follow_path(record, path).is_empty(),
            Filter::Test(test) => self
                .follow_path(record, &test.path)
                .iter()
                .any(|end| cell_matches(end.cell(test.field.name), test.field, &test.condition)),
            Filter::Label { path, key, condition } => {
                self.follow_path(record, path).iter().any(|end| {
                    let label = end.labels.iter().find(|(name, _)| name == key);
                    label.is_some_and(|(_, value)| match condition {
                        LabelCondition::Present => true,
                        LabelCondition::Is(expected) => value == expected,
                        LabelCondition::IsNot(other) => value != other,
                    })
                })
            }
        }
    }

    /// Records at the end of a path.
    fn follow_path<'a>(&'a self, record: &'a Record, path: &[&'static Edge]) -> Vec<&'a Record> {
        let mut reached = vec![record];
        for edge in path {
            let next =
                reached.iter().flat_map(|record| record.edges.get(edge.name).into_iter().flatten());
            reached = next.filter_map(|end| self.records.get(end)).collect();
        }
        reached
    }
}

/// Whether two values of a field are the same. The case of a UUID does not matter.
fn same_text(field: &FilterField, one: &str, other: &str) -> bool {
    match field.name {
        "uuid" | "attempt" => one.eq_ignore_ascii_case(other),
        _ => one == other,
    }
}

fn cell_matches(cell: &Cell, field: &FilterField, condition: &FieldCondition) -> bool {
    match (cell, condition) {
        (Cell::Text(text), FieldCondition::Unset) => text.is_empty(),
        (Cell::Text(text), FieldCondition::Contains(pattern)) => matches_pattern(text, pattern),
        (Cell::Text(text), FieldCondition::Exactly(expected)) => same_text(field, text, expected),
        (Cell::Text(text), FieldCondition::Not(other)) => {
            !text.is_empty() && !same_text(field, text, other)
        }
        (Cell::Text(text), FieldCondition::Version(comparison, expected)) => {
            let numbers = leading_numbers(text);
            numbers.is_some_and(|numbers| satisfies(numbers.cmp(expected), *comparison))
        }
        (Cell::Enumeration(name), FieldCondition::Unset) => name == "unspecified",
        (Cell::Enumeration(name), FieldCondition::Is(expected)) => name == expected,
        (Cell::Enumeration(name), FieldCondition::IsNot(other)) => name != other,
        (Cell::Number(number), FieldCondition::Unset) => number.is_none(),
        (Cell::Number(number), FieldCondition::Number(comparison, expected)) => {
            satisfies(number.unwrap_or(0).cmp(expected), *comparison)
        }
        (Cell::Bool(value), FieldCondition::Unset) => value.is_none(),
        (Cell::Bool(value), FieldCondition::Bool(expected)) => value.unwrap_or(false) == *expected,
        (Cell::Time(time), FieldCondition::Unset) => time.is_none(),
        (Cell::Time(time), FieldCondition::Time(comparison, expected)) => {
            let digits = if field.kind == FieldKind::UnixSeconds { 0 } else { 3 };
            let truncated = time.map(|time| time.trunc_subsecs(digits));
            truncated.is_some_and(|truncated| satisfies(truncated.cmp(expected), *comparison))
        }
        _ => false,
    }
}

/// The numbers at the beginning of a version.
fn leading_numbers(text: &str) -> Option<VersionNumbers> {
    let ends = (1..=text.len()).rev().filter(|end| text.is_char_boundary(*end));
    ends.map(|end| &text[..end]).find_map(VersionNumbers::parse)
}

fn matches_pattern(text: &str, pattern: &Pattern) -> bool {
    let text = text.to_lowercase();
    let mut rest = text.as_str();
    pattern.pieces().iter().all(|piece| {
        let split = rest.split_once(piece.to_lowercase().as_str());
        rest = split.map_or("", |(_, after)| after);
        split.is_some()
    })
}

fn satisfies(order: Ordering, comparison: Comparison) -> bool {
    match comparison {
        Comparison::Equal => order.is_eq(),
        Comparison::NotEqual => order.is_ne(),
        Comparison::Less => order.is_lt(),
        Comparison::LessOrEqual => order.is_le(),
        Comparison::Greater => order.is_gt(),
        Comparison::GreaterOrEqual => order.is_ge(),
    }
}

fn compare(one: &Record, other: &Record, order: &[OrderKey]) -> Ordering {
    let by_key = |key: &OrderKey| {
        let order = match (one.cell(key.field.name), other.cell(key.field.name)) {
            // Ids compare as numbers.
            _ if matches!(key.field.kind, FieldKind::Id(_)) => one.bits.cmp(&other.bits),
            (Cell::Text(a), Cell::Text(b)) | (Cell::Enumeration(a), Cell::Enumeration(b)) => {
                a.cmp(b)
            }
            (Cell::Number(a), Cell::Number(b)) => a.unwrap_or(0).cmp(&b.unwrap_or(0)),
            (Cell::Bool(a), Cell::Bool(b)) => a.unwrap_or(false).cmp(&b.unwrap_or(false)),
            (Cell::Time(a), Cell::Time(b)) => {
                let of = |time: &Option<Time>| time.unwrap_or(DateTime::UNIX_EPOCH);
                of(a).cmp(&of(b))
            }
            (a, b) => panic!("cannot compare {a:?} with {b:?}"),
        };
        if key.descending { order.reverse() } else { order }
    };
    let by_keys = order.iter().map(by_key).find(|order| order.is_ne());
    by_keys.unwrap_or_else(|| one.bits.cmp(&other.bits))
}
