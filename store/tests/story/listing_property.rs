//! Lists of the database against lists without one, with filters and orders as chance has them.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use chrono::{SubsecRound, TimeDelta};
use evenkeel_domain::filter::{
    Comparison, Condition, Edge, Field, FieldKind, Filter, LabelCondition, OrderKey, Pattern,
    Resource, Test,
};
use evenkeel_store::Tx;
use evenkeel_store::listing::{self, Listing};
use evenkeel_store::testing::fresh_store;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select, subsequence};
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use crate::house::NOON;
use crate::listing_oracle::{Cell, Model};
use crate::listing_world::{LISTED, world};

/// What can stand at the end of a path.
#[derive(Clone, Debug)]
enum Leaf {
    There,
    Field(&'static Field, Condition),
    Label(&'static str, LabelCondition),
}

/// What filters are made of.
struct Parts {
    /// The paths from a resource, also the empty one, and where they lead.
    paths: Vec<(Vec<&'static Edge>, Resource)>,
    /// What can be asked of each resource.
    leaves: HashMap<Resource, Vec<Leaf>>,
}

impl Parts {
    fn of(resource: Resource, model: &Model) -> Self {
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
        let leaves = ends.into_iter().map(|end| (end, leaves(end, model)));
        Self {
            leaves: leaves.collect(),
            paths,
        }
    }

    fn leaf(&self, (path, end): &(Vec<&'static Edge>, Resource), index: Index) -> Filter {
        let path = path.clone();
        match index.get(&self.leaves[end]).clone() {
            Leaf::There if path.is_empty() => Filter::All(Vec::new()),
            Leaf::There => Filter::Exists(path),
            Leaf::Field(field, condition) => Filter::Test(Test {
                path,
                field,
                condition,
            }),
            Leaf::Label(key, condition) => Filter::Label {
                path,
                key: key.to_owned(),
                condition,
            },
        }
    }
}

fn leaves(end: Resource, model: &Model) -> Vec<Leaf> {
    let mut leaves = vec![Leaf::There];
    for field in end.fields() {
        // A sample is enough: what is there is alike.
        let cells: Vec<_> = model.all(end).map(|thing| thing.cell(field.name)).collect();
        let conditions = match field.kind {
            FieldKind::Id(_) | FieldKind::Text => texts(&cells),
            FieldKind::Enumeration(values) => values
                .names
                .iter()
                .flat_map(|name| [Condition::Is(name), Condition::IsNot(name)])
                .collect(),
            FieldKind::Number => numbers(&cells),
            FieldKind::Truth => vec![Condition::Truth(true), Condition::Truth(false)],
            FieldKind::Seconds => times(&cells, 0),
            FieldKind::Moment => times(&cells, 3),
        };
        leaves.extend(conditions.into_iter().map(|c| Leaf::Field(field, c)));
        if field.kind != FieldKind::Truth {
            leaves.push(Leaf::Field(field, Condition::Unset));
        }
    }
    if end.has_labels() {
        for key in ["city", "example.com/rack", "none"] {
            leaves.push(Leaf::Label(key, LabelCondition::Present));
            for value in ["ulm", "1", "", "%"] {
                leaves.push(Leaf::Label(key, LabelCondition::Is(value.to_owned())));
                leaves.push(Leaf::Label(key, LabelCondition::IsNot(value.to_owned())));
            }
        }
    }
    leaves
}

fn texts(cells: &[&Cell]) -> Vec<Condition> {
    let texts = cells.iter().filter_map(|cell| match cell {
        Cell::Text(text) => Some(text.as_str()),
        _ => None,
    });
    let mut known: BTreeSet<&str> = texts.take(6).collect();
    known.extend(["e", "a_", "%", "\\", "no such text", "\0"]);
    let contains = |pieces: Vec<String>| Pattern::new(pieces).map(Condition::Contains);
    let mut conditions = vec![
        Condition::Exactly(String::new()),
        Condition::Not(String::new()),
    ];
    for text in known {
        conditions.push(Condition::Exactly(text.to_owned()));
        conditions.push(Condition::Not(text.to_owned()));
        let letters: Vec<_> = text.chars().map(String::from).collect();
        let part = letters.iter().skip(1).take(4).cloned().collect::<String>();
        let ends = [letters.first(), letters.last()];
        let ends: Vec<_> = ends.into_iter().flatten().cloned().collect();
        let patterns = [
            vec![text.to_owned()],
            vec![text.to_uppercase()],
            vec![part],
            ends,
        ];
        conditions.extend(patterns.into_iter().filter_map(contains));
    }
    conditions
}

fn numbers(cells: &[&Cell]) -> Vec<Condition> {
    let known = cells.iter().filter_map(|cell| match cell {
        Cell::Number(number) => *number,
        _ => None,
    });
    let known = known.take(6).chain([0, -1, i64::MAX, i64::MIN]);
    let all = known.flat_map(|n| {
        Comparison::ALL
            .iter()
            .map(move |c| Condition::Number(*c, n))
    });
    all.collect()
}

fn times(cells: &[&Cell], digits: u16) -> Vec<Condition> {
    let known = cells.iter().filter_map(|cell| match cell {
        Cell::Time(time) => *time,
        _ => None,
    });
    let known = known.take(6).flat_map(|time| {
        let shown = time.trunc_subsecs(digits);
        [time, shown, shown + TimeDelta::seconds(1)]
    });
    let known = known.chain([NOON, chrono::DateTime::<chrono::Utc>::MAX_UTC]);
    let all = known.flat_map(|t| Comparison::ALL.iter().map(move |c| Condition::Time(*c, t)));
    all.collect()
}

fn filters(parts: &Arc<Parts>) -> BoxedStrategy<Filter> {
    let paths = parts.paths.clone();
    let parts = Arc::clone(parts);
    let leaf = (select(paths), any::<Index>())
        .prop_map(move |(path, index)| parts.leaf(&path, index))
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

fn orders(resource: Resource) -> BoxedStrategy<Vec<OrderKey>> {
    let fields: Vec<&'static Field> = resource.fields().iter().collect();
    let most = fields.len().min(3);
    (
        subsequence(fields, 0..=most).prop_shuffle(),
        any::<[bool; 3]>(),
    )
        .prop_map(|(fields, descending)| {
            let keys = fields.into_iter().zip(descending);
            keys.map(|(field, descending)| OrderKey { field, descending })
                .collect()
        })
        .boxed()
}

async fn whole(tx: &Tx, listing: &Listing) -> (Vec<u32>, u64) {
    let chosen = listing::page(tx, listing, &listing::From::Offset(0), 10_000).await;
    let chosen = chosen.unwrap_or_else(|error| panic!("{}: {error:?}", told(listing)));
    assert_eq!(chosen.next, None, "all fits into one page");
    (chosen.ids, chosen.total)
}

fn told(listing: &Listing) -> String {
    let filter = listing.filter.as_ref().map(ToString::to_string);
    let order = listing
        .order
        .iter()
        .map(|key| (key.field.name, key.descending));
    format!(
        "{:?} {} {:?}",
        listing.resource,
        filter.unwrap_or_default(),
        order.collect::<Vec<_>>()
    )
}

#[tokio::test]
async fn the_database_finds_what_a_walk_over_everything_finds() {
    let store = fresh_store().await;
    let (tenant, model) = world(&store).await;
    let tx = store.snapshot(tenant).await.expect("a snapshot");
    let mut runner = TestRunner::default();
    for resource in LISTED {
        let parts = Arc::new(Parts::of(*resource, &model));
        let filters = filters(&parts);
        for _ in 0..150 {
            let filter = filters.new_tree(&mut runner).expect("a filter").current();
            let wanted = model.list(*resource, Some(&filter), &[]);
            let listing = Listing {
                resource: *resource,
                filter: Some(filter),
                within: None,
                order: Vec::new(),
            };
            let (found, total) = whole(&tx, &listing).await;
            assert_eq!(found, wanted, "{}", told(&listing));
            assert_eq!(total, wanted.len() as u64, "{}", told(&listing));
        }
    }
}

/// Every leaf by itself, so that chance leaves none out.
#[tokio::test]
async fn every_condition_on_every_field_means_the_same_with_and_without_a_database() {
    let store = fresh_store().await;
    let (tenant, model) = world(&store).await;
    let tx = store.snapshot(tenant).await.expect("a snapshot");
    for resource in LISTED {
        let parts = Parts::of(*resource, &model);
        for leaf in &parts.leaves[resource] {
            let filter = match leaf.clone() {
                Leaf::There => continue,
                Leaf::Field(field, condition) => Filter::Test(Test {
                    path: Vec::new(),
                    field,
                    condition,
                }),
                Leaf::Label(key, condition) => Filter::Label {
                    path: Vec::new(),
                    key: key.to_owned(),
                    condition,
                },
            };
            let wanted = model.list(*resource, Some(&filter), &[]).len() as u64;
            let listing = Listing {
                resource: *resource,
                filter: Some(filter),
                within: None,
                order: Vec::new(),
            };
            let found = listing::count(&tx, &listing).await;
            let found = found.unwrap_or_else(|error| panic!("{}: {error:?}", told(&listing)));
            assert_eq!(found, wanted, "{}", told(&listing));
        }
    }
}

#[tokio::test]
async fn a_list_is_the_same_by_pages_by_keys_and_by_a_cursor() {
    const SIZE: usize = 4;
    let store = fresh_store().await;
    let (tenant, model) = world(&store).await;
    let tx = store.snapshot(tenant).await.expect("a snapshot");
    let mut runner = TestRunner::default();
    for resource in LISTED {
        let parts = Arc::new(Parts::of(*resource, &model));
        let lists = (filters(&parts), any::<bool>(), orders(*resource));
        for _ in 0..20 {
            let tree = lists.new_tree(&mut runner).expect("a list");
            let (filter, is_filtered, order) = tree.current();
            let listing = Listing {
                resource: *resource,
                filter: is_filtered.then_some(filter),
                within: None,
                order,
            };
            let wanted = model.list(*resource, listing.filter.as_ref(), &listing.order);
            assert_eq!(whole(&tx, &listing).await.0, wanted, "{}", told(&listing));
            let by_offset = by_offset(&tx, &listing, SIZE).await;
            assert_eq!(by_offset, wanted, "{}", told(&listing));
            let by_key = by_key(&tx, &listing, SIZE).await;
            assert_eq!(by_key, wanted, "{}", told(&listing));
            let by_cursor = by_cursor(&tx, &listing, SIZE).await;
            assert_eq!(by_cursor, wanted, "{}", told(&listing));
        }
    }
}

async fn by_offset(tx: &Tx, listing: &Listing, size: usize) -> Vec<u32> {
    let mut ids = Vec::new();
    loop {
        let from = listing::From::Offset(ids.len() as u64);
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

async fn by_key(tx: &Tx, listing: &Listing, size: usize) -> Vec<u32> {
    let (mut ids, mut from) = (Vec::new(), listing::From::Offset(0));
    loop {
        let chosen = listing::page(tx, listing, &from, size as u64).await;
        let chosen = chosen.unwrap_or_else(|error| panic!("{}: {error:?}", told(listing)));
        ids.extend(chosen.ids);
        let Some(key) = chosen.next else {
            return ids;
        };
        // As a client carries it.
        let key = listing::Key::parse(&key.token()).expect("a token");
        from = listing::From::After(key);
    }
}

async fn by_cursor(tx: &Tx, listing: &Listing, size: usize) -> Vec<u32> {
    let mut cursor = listing::open(tx, listing, 0).await.expect("a cursor");
    let mut ids = Vec::new();
    loop {
        let most = u32::try_from(size).expect("a small number");
        let found = cursor.next(tx, most).await.expect("a part");
        if found.is_empty() {
            cursor.close(tx).await.expect("closed");
            return ids;
        }
        ids.extend(found);
    }
}
