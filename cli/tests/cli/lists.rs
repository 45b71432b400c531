//! Lists: what fits, in which order, how many, page by page.

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::Desk;

fn page(ids: std::ops::Range<u32>, total: u32, next: &str) -> Value {
    let hosts: Vec<_> = ids
        .map(|id| json!({"resourceId": format!("host-{id:08x}"), "name": format!("edge-{id}")}))
        .collect();
    json!({"hosts": hosts, "totalElements": total, "hasNext": !next.is_empty(), "nextPageToken": next})
}

fn names(text: &str) -> usize {
    text.lines().count()
}

#[tokio::test]
async fn a_long_list_is_read_page_by_page() {
    let desk = Desk::new().await;
    desk.double
        .answer("GET compute/hosts", page(0..100, 230, "one"))
        .answer(
            "GET compute/hosts?pageToken=one",
            page(100..200, 230, "two"),
        )
        .answer("GET compute/hosts?pageToken=two", page(200..230, 230, ""));
    let text = desk.run("evenkeel host list -q").await;
    assert_eq!(names(&text), 230);
    assert!(text.ends_with("host-000000e5\n"), "{text}");
    insta::assert_snapshot!(desk.double.asked(), @r"
    GET compute/hosts
    GET compute/hosts?pageToken=one
    GET compute/hosts?pageToken=two
    ");
}

#[tokio::test]
async fn a_server_without_tokens_is_asked_for_the_next_page_by_its_place() {
    let desk = Desk::new().await;
    let mut first = page(0..100, 130, "");
    first["hasNext"] = json!(true);
    first
        .as_object_mut()
        .expect("an object")
        .remove("nextPageToken");
    desk.double
        .answer("GET compute/hosts", first)
        .answer("GET compute/hosts?offset=100", page(100..130, 130, ""));
    let text = desk.run("evenkeel host list -q").await;
    assert_eq!(names(&text), 130);
}

#[tokio::test]
async fn a_server_that_always_has_more_and_gives_nothing_is_believed_once() {
    let desk = Desk::new().await;
    desk.double
        .answer("GET compute/hosts", page(0..0, 7, "again"));
    assert_eq!(desk.run("evenkeel host list").await, "no hosts\n");
    assert_eq!(desk.double.asked(), "GET compute/hosts");
}

#[tokio::test]
async fn only_what_fits_is_listed_in_the_order_that_is_asked_for() {
    let desk = Desk::new().await;
    desk.double.answer(
        "GET compute/hosts?filter=name = edge AND NOT has(site)?orderBy=name desc?pageSize=2",
        page(7..9, 30, "more"),
    );
    let line = "evenkeel host list --filter \"name = edge AND NOT has(site)\" --order-by \"name desc\" --limit 2";
    insta::assert_snapshot!(desk.run(line).await, @r"
    note: these are 2 of 30 hosts
    ID             NAME    SITE  STATE        STATUS  OS  UPDATE  AVAILABLE
    host-00000007  edge-7  -     unspecified  -       -   -       -
    host-00000008  edge-8  -     unspecified  -       -   -       -
    ");
    assert_eq!(desk.double.asked().lines().count(), 1);
    // Programs get the answer and no remark.
    let json = desk.run(&format!("{line} -o json")).await;
    assert!(json.starts_with('['), "{json}");
}

#[tokio::test]
async fn a_limit_may_go_over_several_pages() {
    let desk = Desk::new().await;
    desk.double
        .answer("GET compute/hosts", page(0..100, 500, "one"))
        .answer(
            "GET compute/hosts?pageToken=one",
            page(100..200, 500, "two"),
        );
    let text = desk.run("evenkeel host list -q --limit 150").await;
    assert_eq!(names(&text), 150);
    assert_eq!(desk.double.asked().lines().count(), 2);
}

#[tokio::test]
async fn somebody_who_waits_is_told_how_far_it_is() {
    let mut desk = Desk::new().await;
    desk.interactive = true;
    desk.double
        .answer("GET compute/hosts", page(0..100, 101, "one"))
        .answer("GET compute/hosts?pageToken=one", page(100..101, 101, ""));
    let text = desk.run("evenkeel host list -q").await;
    assert!(
        text.starts_with("\r\u{1b}[K100 of 101 hosts\r\u{1b}[Khost-00000000\n"),
        "{text:?}"
    );
}

#[tokio::test]
async fn every_noun_lists_what_fits() {
    let desk = Desk::new().await;
    let mut asked = String::new();
    for (noun, path, key) in [
        ("region", "regions?showTotalSites=true", "regions"),
        ("site", "sites", "sites"),
        ("host", "compute/hosts", "hosts"),
        ("instance", "compute/instances", "instances"),
        ("os", "compute/os", "OperatingSystemResources"),
        ("policy", "os-update-policies", "osUpdatePolicies"),
        ("run", "os-update-runs", "osUpdateRuns"),
        ("schedule", "compute/schedules", "singleSchedules"),
        ("provider", "providers", "providers"),
        ("custom-config", "customConfigs", "customConfigs"),
        ("account", "localAccounts", "localAccounts"),
    ] {
        let question = format!("GET {path}?filter=name = x?orderBy=name?pageSize=5");
        let mut none = json!({"totalElements": 0, "hasNext": false, "repeatedSchedules": []});
        none[key] = json!([]);
        desk.double.answer(&question, none);
        let line = format!("evenkeel {noun} list --filter \"name = x\" --order-by name --limit 5");
        let text = desk.run(&line).await;
        assert!(text.starts_with("no "), "{noun}: {text}");
        writeln!(asked, "{question}").expect("a string takes it all");
    }
    assert_eq!(desk.double.asked(), asked.trim_end());
}

#[tokio::test]
async fn lists_that_take_no_filter_may_be_limited() {
    let desk = Desk::new().await;
    for (line, path, key) in [
        ("join-token list", "join-tokens", "joinTokens"),
        ("assignment list", "assignments", "assignments"),
        ("pause list", "pauses", "pauses"),
    ] {
        let mut none = json!({"totalElements": 0, "hasNext": false, "nextPageToken": ""});
        none[key] = json!([]);
        desk.double.answer(&format!("GET {path}?pageSize=3"), none);
        let text = desk.run(&format!("evenkeel {line} --limit 3")).await;
        assert!(text.starts_with("no "), "{line}: {text}");
    }
}

fn misread(parameter: &str, position: usize, why: &str, hint: Option<&str>) -> Value {
    let asked = hint.map_or_else(String::new, |hint| format!("; did you mean `{hint}`?"));
    json!({
        "code": "InvalidArgument", "message": format!("{parameter}: at {position}: {why}{asked}"),
        "field": parameter, "parameter": parameter, "position": position, "hint": hint,
    })
}

#[tokio::test]
async fn a_filter_that_is_not_understood_is_shown_with_the_place() {
    let desk = Desk::new().await;
    let why = "there is no field `nam` of hosts";
    desk.double
        .answer_with(
            "GET compute/hosts?filter=note = x AND nam = edge",
            400,
            misread("filter", 13, why, Some("name")),
        )
        .answer_with(
            "GET compute/hosts?filter=name =",
            400,
            misread("filter", 6, "a value is missing", None),
        );
    let line = "evenkeel host list --filter \"note = x AND nam = edge\"";
    insta::assert_snapshot!(desk.fail(line).await, @r"
    --filter: there is no field `nam` of hosts
    note = x AND nam = edge
                 ^
    hint: did you mean `name`?
    ");
    insta::assert_snapshot!(desk.fail("evenkeel host list --filter \"name =\"").await, @r#"
    --filter: a value is missing
    name =
          ^
    hint: a condition looks like `name = "edge"`; join conditions with AND, OR, NOT and parentheses
    "#);
}

#[tokio::test]
async fn the_place_is_counted_in_what_the_person_typed() {
    let desk = Desk::new().await;
    let typed = "(nam = x) AND site.resourceId == \"site-00000001\"";
    desk.double.answer_with(
        &format!("GET compute/hosts?filter={typed}"),
        400,
        misread(
            "filter",
            1,
            "there is no field `nam` of hosts",
            Some("name"),
        ),
    );
    let line = "evenkeel host list --site site-00000001 --filter \"nam = x\"";
    insta::assert_snapshot!(desk.fail(line).await, @r"
    --filter: there is no field `nam` of hosts
    nam = x
    ^
    hint: did you mean `name`?
    ");
}

#[tokio::test]
async fn an_order_that_is_not_understood_is_shown_with_the_place() {
    let desk = Desk::new().await;
    desk.double.answer_with(
        "GET sites?orderBy=name, colour",
        400,
        misread("orderBy", 6, "there is no field `colour` of sites", None),
    );
    insta::assert_snapshot!(desk.fail("evenkeel site list --order-by \"name, colour\"").await, @r"
    --order-by: there is no field `colour` of sites
    name, colour
          ^
    hint: give fields such as `name` or `name desc, resourceId`
    ");
}

#[tokio::test]
async fn hosts_of_a_region_are_those_of_all_regions_in_it() {
    let desk = Desk::new().await;
    let region = |id: &str, above: &str| json!({"resourceId": id, "name": id, "parentId": above});
    desk.double.answer(
        "GET regions",
        json!({
            "regions": [
                region("region-00000001", ""), region("region-00000002", "region-00000001"),
                region("region-00000003", "region-00000002"), region("region-00000004", ""),
            ],
            "totalElements": 4, "hasNext": false,
        }),
    );
    desk.double.answer("GET compute/hosts", page(1..2, 1, ""));
    desk.run("evenkeel host list --region region-00000001 -q")
        .await;
    insta::assert_snapshot!(desk.double.asked(), @r#"
    GET regions
    GET compute/hosts?filter=(site.region.resourceId == "region-00000001" OR site.region.resourceId == "region-00000002" OR site.region.resourceId == "region-00000003")
    "#);
}
