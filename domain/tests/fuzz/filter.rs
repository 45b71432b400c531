//! Filters and orders of lists.

use evenkeel_domain::filter::{BadFilter, Filter, OrderKey, Resource, parse_filter, parse_order};
use rand::seq::IndexedRandom;

use crate::driver::{fuzz, text};

const FILTERS: &[&str] = &[
    "",
    "name=\"X\"",
    "serialNumber='S' AND uuid='U'",
    "hostStatus=''",
    "resource_id='region-0a1b2c3d'",
    "region.parent_region.resource_id='region-0a1b2c3d' OR NOT has(parent_region)",
    "(currentState=HOST_STATE_ONBOARDED AND has(instance) AND instance.currentState=INSTANCE_STATE_RUNNING)",
    "(name=\"t\" OR uuid=\"t\" OR site.name=\"t\" OR instance.os.name=\"t\")",
    "metadata = '{\"key\":\"city\",\"value\":\"ulm\"}'",
    "metadata:city AND metadata.city == \"ulm\" AND metadata.\"example.com/rack\" != '1'",
    "-name = 'a*b\\*c' AND NOT note != null",
    "memoryBytes >= 17179869184 OR siteLat < -100",
    "end_time != 9999999999 AND createdAt < 2026-01-31T08:00:00.5+01:00",
    "hostNics.ipaddresses.address = 10.0.0.1/24 AND hostNics.sriovEnabled = false",
    "((((((((((((((((name = 'deep'))))))))))))))))",
];

const ORDERS: &[&str] = &[
    "",
    "name",
    "name asc, start_time desc",
    "resourceId,name,createdAt desc",
    "site.name",
    "-name",
];

const LETTERS: &str = "()'\"\\=!<>:.,*-_ ANDORNTnameshz0123456789";

#[test]
fn any_filter_is_parsed_or_refused() {
    fuzz("filter", |rng| {
        let resource = *Resource::ALL.choose(rng).expect("there are some");
        let text = text(rng, FILTERS, LETTERS);
        let filter = match parse_filter(resource, &text) {
            Ok(filter) => filter,
            Err(bad) => return check_error(&bad, &text),
        };
        let rendered = filter.to_string();
        match parse_filter(resource, &rendered) {
            Ok(again) => {
                assert_eq!(again, filter, "{rendered}");
                assert_eq!(again.to_string(), rendered);
            }
            // With all its parentheses the written filter may be too deep or too long.
            Err(bad) => {
                let is_deep = bad.message.contains("nested deeper");
                assert!(is_deep || Filter::MAX_CHARS < rendered.chars().count(), "{bad}");
            }
        }
    });
}

#[test]
fn any_order_is_parsed_or_refused() {
    fuzz("order", |rng| {
        let resource = *Resource::ALL.choose(rng).expect("there are some");
        let text = text(rng, ORDERS, LETTERS);
        match parse_order(resource, &text) {
            Ok(keys) => {
                let rendered: Vec<_> = keys.iter().map(OrderKey::to_string).collect();
                assert_eq!(parse_order(resource, &rendered.join(",")), Ok(keys));
            }
            Err(bad) => check_error(&bad, &text),
        }
    });
}

/// An error is within the text and is short.
fn check_error(bad: &BadFilter, text: &str) {
    assert!(bad.position <= text.chars().count(), "{bad}");
    assert!(bad.to_string().len() < 2_000, "{bad}");
    assert!(!bad.message.is_empty());
}
