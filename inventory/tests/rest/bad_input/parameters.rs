//! Ids in paths, and the parameters of lists: the same everywhere, as the document has them.

use serde_json::{Value, json};

use super::{Ground, PROJECT, Wrong, told, with_id};
use crate::house::{House, NAMED, Who, names_a_thing, nightly};
use crate::statuses::operations;

/// What stands before the dash of the ids behind a part of a path.
const PREFIXES: [(&str, &str); 15] = [
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
];

/// A body that is good for a path with an id.
fn good_body(house: &House, path: &str) -> Value {
    if path.contains("/schedules/single/") {
        json!({"scheduleStatus": "SCHEDULE_STATUS_OS_UPDATE", "startSeconds": house.seconds(60)})
    } else if path.contains("/schedules/repeated/") {
        nightly("")
    } else if path.ends_with("/assignments/{target}") {
        json!({"osUpdatePolicyId": "osupdatepolicy-00000000"})
    } else if path.ends_with("/order") {
        json!({"kind": "now"})
    } else if path.ends_with("/compute/hosts/{resourceId}") {
        json!({"name": "edge"})
    } else {
        json!({})
    }
}

/// Ids that nothing has, with what is told of them.
fn ids(prefix: &str, name: &str) -> [(String, String); 9] {
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
async fn an_id_of_another_kind_is_bad_everywhere_and_one_that_nothing_has_is_not_found() {
    let ground = Ground::new().await;
    let mut wrong = Wrong::default();
    for (method, path, _) in operations() {
        if !names_a_thing(&path) {
            continue;
        }
        let prefix = PREFIXES.iter().find(|(part, _)| path.contains(part));
        let (_, prefix) = prefix.unwrap_or_else(|| panic!("of what are the ids in {path}?"));
        let name = NAMED.iter().find(|named| path.contains(**named));
        let name = name.map_or("", |named| named.trim_matches(['{', '}']));
        let takes_a_body = method == "PUT" || method == "PATCH";
        let body = takes_a_body.then(|| good_body(&ground.house, &path));
        for (id, wanted) in ids(prefix, name) {
            let what = format!("{method} {}", with_id(&path, &id));
            let answer = ground.house.ask(Who::Writer, &what, body.clone()).await;
            wrong.look(&what, &told(&answer), &wanted, &answer.1);
            let message = answer.1["message"].as_str().unwrap_or_default();
            let is_named = !wanted.starts_with("404") || message.ends_with(" not found");
            assert!(is_named, "{what}: {message}");
        }
        // It is no text at all.
        let what = format!("{method} {}", with_id(&path, "%FF"));
        let answer = ground.house.ask(Who::Writer, &what, body).await;
        wrong.look(&what, &told(&answer), "400 InvalidArgument -", &answer.1);
    }
    wrong.end(400);
    ground.stays_as_it_was().await;
}

/// What no list can be asked for, and the parameter that is named.
const OF_LISTS: [(&str, &str); 14] = [
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

/// What no list can be asked for that has something to tell.
const OF_FULL_LISTS: [(&str, &str); 5] = [
    ("pageToken=abc", "pageToken"),
    ("pageSize=1&pageToken=abc", "pageToken"),
    ("pageSize=1&offset=1&pageToken=abc", "pageToken"),
    ("filter=colour%20%3D%201", "filter"),
    ("orderBy=colour", "orderBy"),
];

#[tokio::test]
async fn a_parameter_of_a_list_is_empty_or_beyond_its_bounds_nowhere() {
    let ground = Ground::new().await;
    let mut wrong = Wrong::default();
    for (method, path, operation) in operations() {
        let parameters = operation["parameters"].as_array();
        let is_paged =
            parameters.is_some_and(|all| all.iter().any(|given| given["name"] == "pageSize"));
        let Some(list) = path.strip_prefix(PROJECT).filter(|_| is_paged) else {
            continue;
        };
        let is_absent = operation["tags"][0] == "absent";
        let full: &[(&str, &str)] = if is_absent { &[] } else { &OF_FULL_LISTS };
        for (query, named) in OF_LISTS.iter().chain(full) {
            let what = format!("{method} {list}?{query}");
            let answer = ground.house.ours(&what, None).await;
            let wanted = format!("400 InvalidArgument {named}");
            wrong.look(&what, &told(&answer), &wanted, &answer.1);
        }
    }
    wrong.end(300);
}
