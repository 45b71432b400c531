//! Random filters parse to themselves after they are written, and no text causes a panic.

use chrono::DateTime;
use proptest::prelude::*;
use proptest::sample::{Index, select};

use super::*;

/// A path that begins at a resource, and the resource at its end.
fn a_path(from: Resource, most: usize) -> impl Strategy<Value = (EdgePath, Resource)> {
    prop::collection::vec(any::<Index>(), 0..=most).prop_map(move |picks| {
        let (mut path, mut end) = (EdgePath::new(), from);
        for pick in picks {
            if end.edges().is_empty() {
                break;
            }
            let edge = pick.get(end.edges());
            path.push(edge);
            end = edge.to;
        }
        (path, end)
    })
}

fn a_text() -> impl Strategy<Value = String> {
    prop_oneof!["[a-z*'\"\\\\%_. -]{1,6}", "\\PC{1,4}", Just("null".to_owned())]
}

fn a_pattern() -> impl Strategy<Value = Pattern> {
    let pieces = prop::collection::vec(a_text(), 1..3);
    pieces.prop_map(|pieces| Pattern::new(pieces).expect("there are letters"))
}

fn a_condition(kind: FieldKind) -> BoxedStrategy<FieldCondition> {
    let comparison = || select(Comparison::ALL);
    let of_kind = match kind {
        FieldKind::Id(_) | FieldKind::Text => prop_oneof![
            a_pattern().prop_map(FieldCondition::Contains),
            a_text().prop_map(FieldCondition::Exactly),
            a_text().prop_map(FieldCondition::Not),
            Just(FieldCondition::Not(String::new())),
        ]
        .boxed(),
        FieldKind::Version => prop_oneof![
            a_pattern().prop_map(FieldCondition::Contains),
            a_text().prop_map(FieldCondition::Exactly),
            (select(ORDERED), a_version())
                .prop_map(|(comparison, version)| FieldCondition::Version(comparison, version)),
        ]
        .boxed(),
        FieldKind::Enumeration(values) => prop_oneof![
            select(values.names).prop_map(FieldCondition::Is),
            select(values.names).prop_map(FieldCondition::IsNot),
        ]
        .boxed(),
        FieldKind::Number => (comparison(), any::<i64>())
            .prop_map(|(comparison, number)| FieldCondition::Number(comparison, number))
            .boxed(),
        FieldKind::Bool => any::<bool>().prop_map(FieldCondition::Bool).boxed(),
        FieldKind::UnixSeconds | FieldKind::Rfc3339Time => (comparison(), a_time())
            .prop_map(|(comparison, time)| FieldCondition::Time(comparison, time))
            .boxed(),
    };
    prop_oneof![9 => of_kind, 1 => Just(FieldCondition::Unset)].boxed()
}

/// The comparisons by size.
const ORDERED: &[Comparison] =
    &[Comparison::Less, Comparison::LessOrEqual, Comparison::Greater, Comparison::GreaterOrEqual];

fn a_version() -> impl Strategy<Value = VersionNumbers> {
    prop::collection::vec(0..1_000_000_000_u32, 1..=VersionNumbers::MAX_NUMBERS).prop_map(
        |numbers| {
            let numbers: Vec<_> = numbers.iter().map(ToString::to_string).collect();
            VersionNumbers::parse(&numbers.join(".")).expect("a version")
        },
    )
}

fn a_time() -> impl Strategy<Value = Time> {
    let seconds = prop_oneof![Just(0), 0..253_402_300_800i64];
    let nanos = prop_oneof![Just(0), 0..1_000_000_000u32];
    (seconds, nanos).prop_map(|(seconds, nanos)| {
        DateTime::from_timestamp(seconds, nanos).expect("a time before the year 10000")
    })
}

fn a_label_condition() -> impl Strategy<Value = LabelCondition> {
    prop_oneof![
        Just(LabelCondition::Present),
        a_text().prop_map(LabelCondition::Is),
        a_text().prop_map(LabelCondition::IsNot),
        Just(LabelCondition::Is(String::new())),
    ]
}

fn a_test(path: EdgePath, end: Resource) -> impl Strategy<Value = Filter> {
    let fields: Vec<&'static FilterField> = end.fields().iter().collect();
    select(fields).prop_flat_map(move |field| {
        let path = path.clone();
        a_condition(field.kind).prop_map(move |condition| {
            Filter::Test(FieldTest { path: path.clone(), field, condition })
        })
    })
}

fn a_leaf(resource: Resource) -> impl Strategy<Value = Filter> {
    a_path(resource, 3).prop_flat_map(|(path, end)| {
        let test = a_test(path.clone(), end).boxed();
        let other =
            if path.is_empty() { test.clone() } else { Just(Filter::Exists(path.clone())).boxed() };
        let label = ("[a-z]{1,5}(/[a-z]{1,3})?", a_label_condition())
            .prop_map(move |(key, condition)| Filter::Label { path: path.clone(), key, condition })
            .boxed();
        let label = if end.has_labels() { label } else { test.clone() };
        prop_oneof![6 => test, 1 => other, 1 => label]
    })
}

fn a_filter() -> impl Strategy<Value = (Resource, Filter)> {
    select(Resource::ALL).prop_flat_map(|resource| {
        let filter = a_leaf(resource).prop_recursive(3, 10, 3, |part| {
            prop_oneof![
                prop::collection::vec(part.clone(), 2..4).prop_map(Filter::All),
                prop::collection::vec(part.clone(), 2..4).prop_map(Filter::Any),
                part.prop_map(|part| Filter::Not(Box::new(part))),
            ]
        });
        (Just(resource), filter)
    })
}

proptest! {
    #[test]
    fn a_rendered_filter_parses_to_the_same_filter((resource, filter) in a_filter()) {
        let text = filter.to_string();
        prop_assume!(text.chars().count() <= Filter::MAX_CHARS);
        let parsed = parse_filter(resource, &text);
        if filter.cost() <= Filter::MAX_COST {
            prop_assert_eq!(parsed, Ok(filter), "{}", text);
        } else {
            let bad = parsed.expect_err("an expensive filter");
            prop_assert!(bad.message.contains("too expensive"), "{}: {}", text, bad);
        }
    }

    /// A filter never becomes cheaper by another condition or a negation.
    #[test]
    fn more_conditions_cost_more((_, filter) in a_filter(), (_, other) in a_filter()) {
        let alone = filter.cost();
        prop_assert!(alone < Filter::Not(Box::new(filter.clone())).cost());
        prop_assert_eq!(Filter::All(vec![filter.clone(), other.clone()]).cost(), alone + other.cost());
        prop_assert!(alone <= Filter::Any(vec![filter, other]).cost());
    }

    #[test]
    fn no_text_causes_a_panic(resource in select(Resource::ALL), text in "\\PC{0,80}") {
        let _ = parse_filter(resource, &text);
        let _ = parse_order(resource, &text);
    }

    #[test]
    fn no_combination_of_fragments_causes_a_panic(
        fragments in prop::collection::vec(select(FRAGMENTS), 0..30),
        resource in select(Resource::ALL),
    ) {
        let text = fragments.concat();
        match parse_filter(resource, &text) {
            Ok(filter) => prop_assert!(!filter.to_string().is_empty()),
            Err(bad) => prop_assert!(bad.position <= text.chars().count()),
        }
        if let Err(bad) = parse_order(resource, &text) {
            prop_assert!(bad.position <= text.chars().count());
        }
    }
}

const FRAGMENTS: &[&str] = &[
    " ",
    " ",
    " ",
    "name",
    "site",
    "metadata",
    "resourceId",
    ".",
    ",",
    ":",
    "=",
    "==",
    "!=",
    "<",
    ">=",
    "(",
    ")",
    "AND",
    "OR",
    "NOT",
    "-",
    "has(",
    "'a'",
    "\"ö\"",
    "'",
    "\\",
    "*",
    "null",
    "true",
    "17",
    "desc",
    "HOST_STATE_ONBOARDED",
    "\u{0}",
    "é",
];
