//! The meaning of filters.

use super::*;

#[test]
fn or_binds_tighter_than_and() {
    assert_eq!(
        hosts("name = 'a' OR name = 'b' AND note = 'c' OR note = 'd'"),
        r#"(name = "a" OR name = "b") AND (note = "c" OR note = "d")"#
    );
    assert_eq!(
        hosts("name = 'a' OR (name = 'b' AND note = 'c')"),
        r#"name = "a" OR (name = "b" AND note = "c")"#
    );
}

#[test]
fn not_negates_only_the_next_condition() {
    assert_eq!(
        hosts("NOT name = 'a' AND -has(site) OR NOT (note = 'b' AND note = 'c')"),
        r#"NOT name = "a" AND (NOT has(site) OR NOT (note = "b" AND note = "c"))"#
    );
}

#[test]
fn redundant_parentheses_are_removed() {
    assert_eq!(hosts("((name = 'a'))"), r#"name = "a""#);
}

#[test]
fn names_are_accepted_in_snake_case_and_camel_case() {
    assert_eq!(
        hosts("host_status = 'a' OR hostStatus = 'a'"),
        r#"hostStatus = "a" OR hostStatus = "a""#
    );
    assert_eq!(refused("host_Status = 'a'").position, 0);
}

#[test]
fn one_equals_sign_searches_a_text_and_two_compare_it() {
    let condition = |text: &str| match parse_filter(Resource::Host, text) {
        Ok(Filter::Test(test)) => test.condition,
        other => panic!("{text}: {other:?}"),
    };
    let pattern = Pattern::parse("a*b").expect("a pattern");
    assert_eq!(condition("name = 'a*b'"), FieldCondition::Contains(pattern));
    assert_eq!(condition("name == 'a*b'"), FieldCondition::Exactly("a*b".into()));
    assert_eq!(condition("name != 'a*b'"), FieldCondition::Not("a*b".into()));
    assert_eq!(condition("name != ''"), FieldCondition::Not(String::new()));
    assert_eq!(condition("name = '*'"), FieldCondition::Not(String::new()));
    for nothing in ["name = ''", "name = null", "name == \"\"", "hostStatusTimestamp = 0"] {
        assert_eq!(condition(nothing), FieldCondition::Unset, "{nothing}");
    }
    assert_eq!(condition("currentState != null"), FieldCondition::IsNot("unspecified"));
}

#[test]
fn a_quoted_null_is_a_text() {
    assert_eq!(hosts("name = 'null'"), r#"name = "null""#);
    assert_eq!(hosts("name = null"), "name = null");
}

#[test]
fn a_set_number_requires_its_path_to_exist() {
    assert_eq!(hosts("memoryBytes != null"), "NOT memoryBytes = null");
    assert_eq!(hosts("site.siteLat != null"), "has(site) AND NOT site.siteLat = null");
    assert_eq!(refused("hostNics.mtu != null").position, 16);
}

#[test]
fn irregular_wire_values_are_accepted() {
    assert_eq!(
        hosts("currentKvmState = KVM_CONSENT_RECEIVED OR currentKvmState = KVM_STATE_STOP"),
        "currentKvmState = KVM_CONSENT_RECEIVED OR currentKvmState = KVM_STATE_STOP"
    );
}

#[test]
fn a_backslash_escapes_a_special_character() {
    assert_eq!(hosts(r#"name == "a\"b'c\\d""#), r#"name == "a\"b'c\\d""#);
    assert_eq!(hosts(r"name = 'a\*b'"), r#"name = "a\*b""#);
    assert_eq!(hosts(r"name = 'a\b'"), r#"name = "a\\b""#);
}

#[test]
fn a_label_is_queried_by_its_name() {
    let expected = Filter::Label {
        path: vec![Resource::Host.edge("site").expect("an edge")],
        key: "example.com/rack".to_owned(),
        condition: LabelCondition::Is("1".to_owned()),
    };
    for text in [
        "site.metadata.example.com/rack = '1'",
        r#"site.metadata."example.com/rack" == "1""#,
        "site.metadata.example.com/rack:1",
    ] {
        assert_eq!(parse_filter(Resource::Host, text), Ok(expected.clone()), "{text}");
    }
}

#[test]
fn a_path_has_at_most_five_edges() {
    let parents = |count: usize| format!("{}name = 'a'", "parentRegion.".repeat(count));
    assert!(parse_filter(Resource::Region, &parents(Filter::MAX_EDGES)).is_ok());
    let bad =
        parse_filter(Resource::Region, &parents(Filter::MAX_EDGES + 1)).expect_err("too long");
    assert_eq!(bad.position, 13 * Filter::MAX_EDGES);
}

#[test]
fn nesting_is_limited() {
    let nested = |open: &str, count: usize, close: &str| {
        let (open, close) = (open.repeat(count), close.repeat(count));
        parse_filter(Resource::Host, &format!("{open}name = 'a'{close}"))
    };
    for (open, close) in [("(", ")"), ("NOT ", ""), ("-", ""), ("-(", ")")] {
        let most = Filter::MAX_DEPTH / open.trim().replace("NOT", "-").len();
        assert!(nested(open, most, close).is_ok(), "{open}");
        let bad = nested(open, most + 1, close).expect_err(open);
        assert!(bad.message.contains("nested deeper"), "{bad}");
        let bad = nested(open, 900, close).expect_err(open);
        assert!(bad.message.contains("nested deeper"), "{bad}");
    }
}

#[test]
fn ids_match_any_of_a_list() {
    let path = [Resource::Host.edge("site").expect("an edge")];
    let filter = Filter::id_in(Resource::Host, &path, ["site-00000001", "site-00000002"]);
    let text = r#"site.resourceId == "site-00000001" OR site.resourceId == "site-00000002""#;
    assert_eq!(filter.to_string(), text);
    assert_eq!(parse_filter(Resource::Host, text), Ok(filter));
    let none: [&str; 0] = [];
    assert_eq!(Filter::id_in(Resource::Host, &[], none).to_string(), "NEVER");
}
