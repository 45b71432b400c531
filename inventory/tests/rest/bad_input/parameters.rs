//! Ids in paths and the parameters of lists. They are checked in the same way everywhere, as
//! documented.

use serde_json::{Value, json};

use super::{BadInputFixture, CaseResults, PROJECT_PREFIX, describe_response, fill_id};
use crate::statuses::operations;
use crate::test_server::{Caller, ID_PLACEHOLDERS, TestServer, has_id_placeholder, nightly};

/// Prefix of the ids that follow a part of a path.
const ID_PREFIXES: [(&str, &str); 16] = [
    ("/compute/hosts/", "host"),
    ("/compute/instances/", "inst"),
    ("/compute/os/", "os"),
    ("/os-update-policies/", "osupdatepolicy"),
    ("/os-update-runs/", "osupdaterun"),
    ("/schedules/single/", "singlesche"),
    ("/schedules/repeated/", "repeatedsche"),
    ("/regions/", "region"),
    ("/sites/", "site"),
    ("/assignments/", "site"),
    ("/pauses/", "site"),
    ("/join-tokens/", "jointoken"),
    ("/providers/", "provider"),
    ("/customConfigs/", "customconfig"),
    ("/localAccounts/", "localaccount"),
    ("/notification-targets/", "notificationtarget"),
];

/// A valid body for a path with an id.
fn valid_body(server: &TestServer, path: &str) -> Value {
    if path.contains("/schedules/single/") {
        json!({"scheduleStatus": "SCHEDULE_STATUS_OS_UPDATE", "startSeconds": server.seconds(60)})
    } else if path.contains("/schedules/repeated/") {
        nightly("")
    } else if path.ends_with("/assignments/{target}") {
        json!({"osUpdatePolicyId": "osupdatepolicy-00000000"})
    } else if path.ends_with("/replay") {
        json!({"since": "2026-03-01T12:00:00Z"})
    } else if path.ends_with("/order") {
        json!({"kind": "now"})
    } else if path.ends_with("/compute/hosts/{resourceId}") {
        json!({"name": "edge"})
    } else {
        json!({})
    }
}

/// Ids that do not exist, with the expected response.
fn unknown_ids(prefix: &str, name: &str) -> [(String, String); 9] {
    let missing = "404 NotFound -".to_owned();
    let bad = format!("400 InvalidArgument {name}");
    [
        (format!("{prefix}-00000000"), missing.clone()),
        (format!("{prefix}-999999"), missing.clone()),
        (format!("{prefix}-XXXXXXXX"), missing.clone()),
        (format!("{prefix}-%00"), missing),
        (format!("{}-123", prefix.to_uppercase()), bad.clone()),
        (format!("x{prefix}-00000000"), bad.clone()),
        (prefix.to_owned(), bad.clone()),
        ("invalid-resource-id".to_owned(), bad.clone()),
        ("%00".to_owned(), bad),
    ]
}

#[tokio::test]
async fn an_id_of_another_kind_is_a_bad_request_and_an_unknown_id_is_not_found_everywhere() {
    let fixture = BadInputFixture::new().await;
    let mut results = CaseResults::default();
    for (method, path, _) in operations() {
        if !has_id_placeholder(&path) {
            continue;
        }
        let prefix = ID_PREFIXES.iter().find(|(part, _)| path.contains(part));
        let (_, prefix) = prefix.unwrap_or_else(|| panic!("add the prefix of the ids in {path}"));
        let name = ID_PLACEHOLDERS.iter().find(|placeholder| path.contains(**placeholder));
        let name = name.map_or("", |placeholder| placeholder.trim_matches(['{', '}']));
        let takes_a_body = method == "PUT" || method == "PATCH";
        let body = takes_a_body.then(|| valid_body(&fixture.server, &path));
        for (id, expected) in unknown_ids(prefix, name) {
            let what = format!("{method} {}", fill_id(&path, &id));
            let answer =
                fixture.server.client_of(Caller::Writer).request(&what, body.clone()).await;
            results.check(&what, &describe_response(&answer), &expected, &answer.1);
            let message = answer.1["message"].as_str().unwrap_or_default();
            let is_named = !expected.starts_with("404") || message.ends_with(" not found");
            assert!(is_named, "{what}: {message}");
        }
        // These bytes are not text.
        let what = format!("{method} {}", fill_id(&path, "%FF"));
        let answer = fixture.server.client_of(Caller::Writer).request(&what, body).await;
        results.check(&what, &describe_response(&answer), "400 InvalidArgument -", &answer.1);
    }
    results.assert_all_passed(400);
    fixture.assert_unchanged().await;
}

/// Queries that every list rejects, with the parameter that the error names.
const INVALID_LIST_QUERIES: [(&str, &str); 14] = [
    ("pageSize=0", "pageSize"),
    ("pageSize=101", "pageSize"),
    ("pageSize=-1", "pageSize"),
    ("pageSize=1e1", "pageSize"),
    ("pageSize=4294967296", "pageSize"),
    ("pageSize=", "pageSize"),
    ("pageSize=%00", "pageSize"),
    ("pageSize=5&pageSize=5", "pageSize"),
    ("offset=", "offset"),
    ("offset=-1", "offset"),
    ("offset=4294967296", "offset"),
    ("filter=", "filter"),
    ("orderBy=", "orderBy"),
    ("pageToken=", "pageToken"),
];

/// Queries that every list with items rejects.
const INVALID_FULL_LIST_QUERIES: [(&str, &str); 5] = [
    ("pageToken=abc", "pageToken"),
    ("pageSize=1&pageToken=abc", "pageToken"),
    ("pageSize=1&offset=1&pageToken=abc", "pageToken"),
    ("filter=colour%20%3D%201", "filter"),
    ("orderBy=colour", "orderBy"),
];

#[tokio::test]
async fn a_list_parameter_that_is_empty_or_out_of_bounds_is_rejected_everywhere() {
    let fixture = BadInputFixture::new().await;
    let mut results = CaseResults::default();
    for (method, path, operation) in operations() {
        let parameters = operation["parameters"].as_array();
        let is_paged =
            parameters.is_some_and(|all| all.iter().any(|declared| declared["name"] == "pageSize"));
        let Some(list) = path.strip_prefix(PROJECT_PREFIX).filter(|_| is_paged) else {
            continue;
        };
        let is_absent = operation["tags"][0] == "absent";
        let full: &[(&str, &str)] = if is_absent { &[] } else { &INVALID_FULL_LIST_QUERIES };
        for (query, parameter) in INVALID_LIST_QUERIES.iter().chain(full) {
            let what = format!("{method} {list}?{query}");
            let answer = fixture.server.request(&what, None).await;
            let expected = format!("400 InvalidArgument {parameter}");
            results.check(&what, &describe_response(&answer), &expected, &answer.1);
        }
    }
    results.assert_all_passed(300);
}
