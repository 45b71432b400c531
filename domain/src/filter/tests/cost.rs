//! Expensive filters are refused.

use super::*;

fn cost(resource: Resource, text: &str) -> usize {
    parse_filter(resource, text).map_or_else(|bad| panic!("{text}: {bad}"), |filter| filter.cost())
}

#[test]
fn each_condition_has_a_cost() {
    for (text, expected) in [
        ("name == 'a'", 1),
        ("name = 'a'", 2),
        ("name = 'a*b*c'", 4),
        ("NOT name == 'a'", 2),
        ("metadata.city = 'ulm'", 5),
        ("metadata.city != 'ulm'", 10),
        (r#"metadata = '{"key":"city"}'"#, 8),
        ("has(site)", 5),
        ("site.name == 'a'", 5),
        ("site.region.name == 'a'", 9),
        ("hostNics.sriovEnabled = true", 9),
        ("resourceId = 'host-0a1b2c3d'", 2),
        ("site.resourceId = 'site-0a1b2c3d'", 1),
        ("site.region.resourceId = 'region-0a1b2c3d'", 5),
        ("name == 'a' AND (serialNumber == 'b' OR note == 'c')", 3),
    ] {
        assert_eq!(cost(Resource::Host, text), expected, "{text}");
    }
}

#[test]
fn a_list_of_ids_is_one_comparison() {
    let ids: Vec<_> = (0..90).map(|n| format!("site.resourceId='site-{n:08x}'")).collect();
    assert_eq!(cost(Resource::Host, &ids.join(" OR ")), 1);
    let ids: Vec<_> = (0..80).map(|n| format!("host.site.resourceId='site-{n:08x}'")).collect();
    assert_eq!(cost(Resource::Instance, &ids.join(" OR ")), 5);
}

#[test]
fn an_expensive_filter_is_refused_with_the_reason() {
    let labels = |count: usize| {
        let labels = (0..count).map(|n| format!("metadata.k{n:02} = \"*a{n}*b*c*d*e*f*g\""));
        labels.collect::<Vec<_>>().join(" OR ")
    };
    assert!(parse_filter(Resource::Host, &labels(20)).is_ok());
    let stars = "*a".repeat(100);
    let names = ["name = 'a*b*c'"; 26].join(" AND ");
    let paths = ["NOT site.region.parentRegion.name = 'a'"; 7].join(" OR ");
    for text in [labels(21), labels(90), format!("name = '{stars}'"), names, paths] {
        let bad = refused(&text);
        assert_eq!(bad.position, 0, "{text}");
        assert!(
            bad.message.starts_with("the filter is too expensive: its conditions cost "),
            "{bad}"
        );
        assert!(bad.message.contains("at most 100"), "{bad}");
    }
}
