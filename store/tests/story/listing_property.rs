//! Compares lists of the database with the oracle, with random filters and orders.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use chrono::{SubsecRound, TimeDelta};
use evenkeel_domain::filter::{
    Comparison, Edge, FieldCondition, FieldKind, FieldTest, Filter, FilterField, LabelCondition,
    OrderKey, Pattern, Resource, VersionNumbers,
};
use evenkeel_store::Tx;
use evenkeel_store::listing::{self, Listing};
use evenkeel_store::testing::fresh_store;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select, subsequence};
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use crate::fixtures::NOON;
use crate::listing_fixture::{LISTED_RESOURCES, create_listing_project};
use crate::listing_oracle::{Cell, ListingOracle};

/// A test at the end of a path.
#[derive(Clone, Debug)]
enum Leaf {
    Exists,
    Field(&'static FilterField, FieldCondition),
    Label(&'static str, LabelCondition),
}

/// Parts that filters are built from.
struct FilterParts {
    /// Paths from a resource, including the empty one, and the resource that each leads to.
    paths: Vec<(Vec<&'static Edge>, Resource)>,
    leaf_tests: HashMap<Resource, Vec<Leaf>>,
}

impl FilterParts {
    fn new(resource: Resource, oracle: &ListingOracle) -> Self {
        let mut paths = vec![(Vec::new(), resource)];
        let mut next = 0;
        while next < paths.len() {
            let (path, end) = paths[next].clone();
            next += 1;
            if path.len() < 3 {
                let longer = end.edges().iter().map(|edge| {
                    let mut longer = path.clone();
                    longer.push(edge);
                    (longer, edge.to)
                });
                paths.extend(longer);
            }
        }
        let ends: HashSet<_> = paths.iter().map(|(_, end)| *end).collect();
        let leaf_tests = ends.into_iter().map(|end| (end, leaf_tests_for(end, oracle)));
        Self { leaf_tests: leaf_tests.collect(), paths }
    }

    fn build_filter(&self, (path, end): &(Vec<&'static Edge>, Resource), index: Index) -> Filter {
        let path = path.clone();
        match index.get(&self.leaf_tests[end]).clone() {
            Leaf::Exists if path.is_empty() => Filter::All(Vec::new()),
            Leaf::Exists => Filter::Exists(path),
            Leaf::Field(field, condition) => Filter::Test(FieldTest { path, field, condition }),
            Leaf::Label(key, condition) => Filter::Label { path, key: key.to_owned(), condition },
        }
    }
}

fn leaf_tests_for(end: Resource, oracle: &ListingOracle) -> Vec<Leaf> {
    let mut leaf_tests = vec![Leaf::Exists];
    for field in end.fields() {
        // A sample of the values is enough, because they resemble each other.
        let cells: Vec<_> = oracle.records_of(end).map(|record| record.cell(field.name)).collect();
        let conditions = match field.kind {
            FieldKind::Id(_) | FieldKind::Text => text_conditions(&cells),
            FieldKind::Version => version_conditions(&cells),
            FieldKind::Enumeration(values) => values
                .names
                .iter()
                .flat_map(|name| [FieldCondition::Is(name), FieldCondition::IsNot(name)])
                .collect(),
            FieldKind::Number => number_conditions(&cells),
            FieldKind::Bool => vec![FieldCondition::Bool(true), FieldCondition::Bool(false)],
            FieldKind::UnixSeconds => time_conditions(&cells, 0),
            FieldKind::Rfc3339Time => time_conditions(&cells, 3),
        };
        leaf_tests.extend(conditions.into_iter().map(|c| Leaf::Field(field, c)));
        if field.kind != FieldKind::Bool {
            leaf_tests.push(Leaf::Field(field, FieldCondition::Unset));
        }
    }
    if end.has_labels() {
        for key in ["city", "example.com/rack", "none"] {
            leaf_tests.push(Leaf::Label(key, LabelCondition::Present));
            for value in ["ulm", "1", "", "%"] {
                leaf_tests.push(Leaf::Label(key, LabelCondition::Is(value.to_owned())));
                leaf_tests.push(Leaf::Label(key, LabelCondition::IsNot(value.to_owned())));
            }
        }
    }
    leaf_tests
}

fn text_conditions(cells: &[&Cell]) -> Vec<FieldCondition> {
    let texts = cells.iter().filter_map(|cell| match cell {
        Cell::Text(text) => Some(text.as_str()),
        _ => None,
    });
    let mut samples: BTreeSet<&str> = texts.take(6).collect();
    samples.extend(["e", "a_", "%", "\\", "no such text", "\0"]);
    let contains = |pieces: Vec<String>| Pattern::new(pieces).map(FieldCondition::Contains);
    let mut conditions =
        vec![FieldCondition::Exactly(String::new()), FieldCondition::Not(String::new())];
    for text in samples {
        conditions.push(FieldCondition::Exactly(text.to_owned()));
        conditions.push(FieldCondition::Not(text.to_owned()));
        let letters: Vec<_> = text.chars().map(String::from).collect();
        let part = letters.iter().skip(1).take(4).cloned().collect::<String>();
        let ends = [letters.first(), letters.last()];
        let ends: Vec<_> = ends.into_iter().flatten().cloned().collect();
        let patterns = [vec![text.to_owned()], vec![text.to_uppercase()], vec![part], ends];
        conditions.extend(patterns.into_iter().filter_map(contains));
    }
    conditions
}

fn version_conditions(cells: &[&Cell]) -> Vec<FieldCondition> {
    let versions = ["0", "0.3", "0.3.0", "0.10", "0.10.0.1", "1"].map(VersionNumbers::parse);
    let versions = versions.into_iter().flatten();
    let compared = versions.flat_map(|version| {
        let condition = move |c: &Comparison| FieldCondition::Version(*c, version.clone());
        Comparison::ALL.iter().map(condition)
    });
    text_conditions(cells).into_iter().chain(compared).collect()
}

fn number_conditions(cells: &[&Cell]) -> Vec<FieldCondition> {
    let samples = cells.iter().filter_map(|cell| match cell {
        Cell::Number(number) => *number,
        _ => None,
    });
    let samples = samples.take(6).chain([0, -1, i64::MAX, i64::MIN]);
    let all =
        samples.flat_map(|n| Comparison::ALL.iter().map(move |c| FieldCondition::Number(*c, n)));
    all.collect()
}

fn time_conditions(cells: &[&Cell], digits: u16) -> Vec<FieldCondition> {
    let samples = cells.iter().filter_map(|cell| match cell {
        Cell::Time(time) => *time,
        _ => None,
    });
    let samples = samples.take(6).flat_map(|time| {
        let truncated = time.trunc_subsecs(digits);
        [time, truncated, truncated + TimeDelta::seconds(1)]
    });
    let samples = samples.chain([NOON, chrono::DateTime::<chrono::Utc>::MAX_UTC]);
    let all =
        samples.flat_map(|t| Comparison::ALL.iter().map(move |c| FieldCondition::Time(*c, t)));
    all.collect()
}

fn any_filter(parts: &Arc<FilterParts>) -> BoxedStrategy<Filter> {
    let paths = parts.paths.clone();
    let parts = Arc::clone(parts);
    let leaf = (select(paths), any::<Index>())
        .prop_map(move |(path, index)| parts.build_filter(&path, index))
        .boxed();
    leaf.prop_recursive(3, 10, 3, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Filter::All),
            vec(inner.clone(), 0..4).prop_map(Filter::Any),
            inner.prop_map(|part| Filter::Not(Box::new(part))),
        ]
    })
    .boxed()
}

fn any_order(resource: Resource) -> BoxedStrategy<Vec<OrderKey>> {
    let fields: Vec<&'static FilterField> = resource.fields().iter().collect();
    let max_keys = fields.len().min(3);
    (subsequence(fields, 0..=max_keys).prop_shuffle(), any::<[bool; 3]>())
        .prop_map(|(fields, descending)| {
            let keys = fields.into_iter().zip(descending);
            keys.map(|(field, descending)| OrderKey { field, descending }).collect()
        })
        .boxed()
}

async fn load_all(tx: &Tx, listing: &Listing) -> (Vec<u32>, u64) {
    let chosen = listing::page(tx, listing, &listing::PageStart::Offset(0), 10_000).await;
    let chosen = chosen.unwrap_or_else(|error| panic!("{}: {error:?}", describe(listing)));
    assert_eq!(chosen.next, None, "all fits into one page");
    (chosen.ids, chosen.total)
}

fn describe(listing: &Listing) -> String {
    let filter = listing.filter.as_ref().map(ToString::to_string);
    let order = listing.order.iter().map(|key| (key.field.name, key.descending));
    format!("{:?} {} {:?}", listing.resource, filter.unwrap_or_default(), order.collect::<Vec<_>>())
}

#[tokio::test]
async fn the_database_finds_what_the_oracle_finds() {
    let store = fresh_store().await;
    let (tenant, oracle) = create_listing_project(&store).await;
    let tx = store.snapshot(tenant).await.expect("a snapshot");
    let mut runner = TestRunner::default();
    for resource in LISTED_RESOURCES {
        let parts = Arc::new(FilterParts::new(*resource, &oracle));
        let filters = any_filter(&parts);
        for _ in 0..150 {
            let filter = filters.new_tree(&mut runner).expect("a filter").current();
            let expected = oracle.list(*resource, Some(&filter), &[]);
            let listing = Listing {
                resource: *resource,
                filter: Some(filter),
                within: None,
                order: Vec::new(),
            };
            let (ids, total) = load_all(&tx, &listing).await;
            assert_eq!(ids, expected, "{}", describe(&listing));
            assert_eq!(total, expected.len() as u64, "{}", describe(&listing));
        }
    }
}

/// Tests every leaf on its own, because random filters may miss some.
#[tokio::test]
async fn every_condition_on_every_field_agrees_with_the_oracle() {
    let store = fresh_store().await;
    let (tenant, oracle) = create_listing_project(&store).await;
    let tx = store.snapshot(tenant).await.expect("a snapshot");
    for resource in LISTED_RESOURCES {
        let parts = FilterParts::new(*resource, &oracle);
        for leaf in &parts.leaf_tests[resource] {
            let filter = match leaf.clone() {
                Leaf::Exists => continue,
                Leaf::Field(field, condition) => {
                    Filter::Test(FieldTest { path: Vec::new(), field, condition })
                }
                Leaf::Label(key, condition) => {
                    Filter::Label { path: Vec::new(), key: key.to_owned(), condition }
                }
            };
            let expected = oracle.list(*resource, Some(&filter), &[]).len() as u64;
            let listing = Listing {
                resource: *resource,
                filter: Some(filter),
                within: None,
                order: Vec::new(),
            };
            let total = listing::count(&tx, &listing).await;
            let total = total.unwrap_or_else(|error| panic!("{}: {error:?}", describe(&listing)));
            assert_eq!(total, expected, "{}", describe(&listing));
        }
    }
}

#[tokio::test]
async fn a_list_is_the_same_by_offset_by_key_and_by_cursor() {
    const PAGE_SIZE: usize = 4;
    let store = fresh_store().await;
    let (tenant, oracle) = create_listing_project(&store).await;
    let tx = store.snapshot(tenant).await.expect("a snapshot");
    let mut runner = TestRunner::default();
    for resource in LISTED_RESOURCES {
        let parts = Arc::new(FilterParts::new(*resource, &oracle));
        let lists = (any_filter(&parts), any::<bool>(), any_order(*resource));
        for _ in 0..20 {
            let tree = lists.new_tree(&mut runner).expect("a list");
            let (filter, is_filtered, order) = tree.current();
            let listing = Listing {
                resource: *resource,
                filter: is_filtered.then_some(filter),
                within: None,
                order,
            };
            let expected = oracle.list(*resource, listing.filter.as_ref(), &listing.order);
            assert_eq!(load_all(&tx, &listing).await.0, expected, "{}", describe(&listing));
            let by_offset = list_by_offset(&tx, &listing, PAGE_SIZE).await;
            assert_eq!(by_offset, expected, "{}", describe(&listing));
            let by_key = list_by_key(&tx, &listing, PAGE_SIZE).await;
            assert_eq!(by_key, expected, "{}", describe(&listing));
            let by_cursor = list_by_cursor(&tx, &listing, PAGE_SIZE).await;
            assert_eq!(by_cursor, expected, "{}", describe(&listing));
        }
    }
}

async fn list_by_offset(tx: &Tx, listing: &Listing, size: usize) -> Vec<u32> {
    let mut ids = Vec::new();
    loop {
        let from = listing::PageStart::Offset(ids.len() as u64);
        let chosen = listing::page(tx, listing, &from, size as u64).await;
        let chosen = chosen.expect("a page");
        let is_last = chosen.next.is_none();
        ids.extend(chosen.ids);
        assert_eq!(is_last, ids.len() as u64 == chosen.total);
        if is_last {
            return ids;
        }
    }
}

async fn list_by_key(tx: &Tx, listing: &Listing, size: usize) -> Vec<u32> {
    let (mut ids, mut from) = (Vec::new(), listing::PageStart::Offset(0));
    loop {
        let chosen = listing::page(tx, listing, &from, size as u64).await;
        let chosen = chosen.unwrap_or_else(|error| panic!("{}: {error:?}", describe(listing)));
        ids.extend(chosen.ids);
        let Some(key) = chosen.next else {
            return ids;
        };
        // Through a token, as a client passes it.
        let key = listing::PageKey::parse(&key.token()).expect("a token");
        from = listing::PageStart::After(key);
    }
}

async fn list_by_cursor(tx: &Tx, listing: &Listing, size: usize) -> Vec<u32> {
    let mut cursor = listing::open(tx, listing, 0).await.expect("a cursor");
    let mut ids = Vec::new();
    loop {
        let limit = u32::try_from(size).expect("a small number");
        let part = cursor.next(tx, limit).await.expect("a part");
        if part.is_empty() {
            cursor.close(tx).await.expect("closed");
            return ids;
        }
        ids.extend(part);
    }
}
