//! Lists: filter, order, limit and pages.

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::TestCli;

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
    let cli = TestCli::new().await;
    cli.fake_server
        .answer("GET compute/hosts", page(0..100, 230, "one"))
        .answer("GET compute/hosts?pageToken=one", page(100..200, 230, "two"))
        .answer("GET compute/hosts?pageToken=two", page(200..230, 230, ""));
    let text = cli.run("evenkeel host list -q").await;
    assert_eq!(names(&text), 230);
    assert!(text.ends_with("host-000000e5\n"), "{text}");
    insta::assert_snapshot!(cli.fake_server.requests(), @r"
    GET compute/hosts
    GET compute/hosts?pageToken=one
    GET compute/hosts?pageToken=two
    ");
}

#[tokio::test]
async fn a_server_without_page_tokens_is_queried_by_offset() {
    let cli = TestCli::new().await;
    let mut first = page(0..100, 130, "");
    first["hasNext"] = json!(true);
    first.as_object_mut().expect("an object").remove("nextPageToken");
    cli.fake_server
        .answer("GET compute/hosts", first)
        .answer("GET compute/hosts?offset=100", page(100..130, 130, ""));
    let text = cli.run("evenkeel host list -q").await;
    assert_eq!(names(&text), 130);
}

#[tokio::test]
async fn an_empty_page_ends_the_list() {
    let cli = TestCli::new().await;
    cli.fake_server.answer("GET compute/hosts", page(0..0, 7, "again"));
    assert_eq!(cli.run("evenkeel host list").await, "no hosts\n");
    assert_eq!(cli.fake_server.requests(), "GET compute/hosts");
}

#[tokio::test]
async fn a_list_is_filtered_and_ordered() {
    let cli = TestCli::new().await;
    cli.fake_server.answer(
        "GET compute/hosts?filter=name = edge AND NOT has(site)?orderBy=name desc?pageSize=2",
        page(7..9, 30, "more"),
    );
    let line = "evenkeel host list --filter \"name = edge AND NOT has(site)\" --order-by \"name desc\" --limit 2";
    insta::assert_snapshot!(cli.run(line).await, @r"
    note: showing 2 of 30 hosts
    ID             NAME    SITE  STATE        STATUS  OS  UPDATE  AVAILABLE  AGE
    host-00000007  edge-7  -     unspecified  -       -   -       -          -
    host-00000008  edge-8  -     unspecified  -       -   -       -          -
    ");
    assert_eq!(cli.fake_server.requests().lines().count(), 1);
    // JSON output contains no note.
    let json = cli.run(&format!("{line} -o json")).await;
    assert!(json.starts_with('['), "{json}");
}

#[tokio::test]
async fn a_limit_may_span_several_pages() {
    let cli = TestCli::new().await;
    cli.fake_server
        .answer("GET compute/hosts", page(0..100, 500, "one"))
        .answer("GET compute/hosts?pageToken=one", page(100..200, 500, "two"));
    let text = cli.run("evenkeel host list -q --limit 150").await;
    assert_eq!(names(&text), 150);
    assert_eq!(cli.fake_server.requests().lines().count(), 2);
}

#[tokio::test]
async fn an_interactive_user_sees_progress() {
    let mut cli = TestCli::new().await;
    cli.interactive = true;
    cli.fake_server
        .answer("GET compute/hosts", page(0..100, 101, "one"))
        .answer("GET compute/hosts?pageToken=one", page(100..101, 101, ""));
    let text = cli.run("evenkeel host list -q").await;
    let cleared = " ".repeat("100 of 101 hosts".len());
    let start = format!("\r100 of 101 hosts\r{cleared}\rhost-00000000\n");
    assert!(text.starts_with(&start), "{text:?}");
}

#[tokio::test]
async fn every_list_command_takes_a_filter() {
    let cli = TestCli::new().await;
    let mut requests = String::new();
    for (noun, path, key) in [
        ("region", "regions?showTotalSites=true", "regions"),
        ("site", "sites", "sites"),
        ("host", "compute/hosts", "hosts"),
        ("instance", "compute/instances?showEffectivePolicy=true", "instances"),
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
        cli.fake_server.answer(&question, none);
        let line = format!("evenkeel {noun} list --filter \"name = x\" --order-by name --limit 5");
        let text = cli.run(&line).await;
        assert!(text.starts_with("no "), "{noun}: {text}");
        writeln!(requests, "{question}").expect("a string takes it all");
    }
    assert_eq!(cli.fake_server.requests(), requests.trim_end());
}

#[tokio::test]
async fn lists_without_a_filter_may_be_limited() {
    let cli = TestCli::new().await;
    for (line, path, key) in [
        ("join-token list", "join-tokens", "joinTokens"),
        ("assignment list", "assignments", "assignments"),
        ("pause list", "pauses", "pauses"),
    ] {
        let mut none = json!({"totalElements": 0, "hasNext": false, "nextPageToken": ""});
        none[key] = json!([]);
        cli.fake_server.answer(&format!("GET {path}?pageSize=3"), none);
        let text = cli.run(&format!("evenkeel {line} --limit 3")).await;
        assert!(text.starts_with("no "), "{line}: {text}");
    }
}

/// Also those that the server returns without a page.
#[tokio::test]
async fn lists_without_pages_are_empty_and_give_way_like_the_others() {
    let cli = TestCli::new().await;
    let no_notifications =
        json!({"notifications": [], "totalElements": 0, "hasNext": false, "nextPageToken": ""});
    cli.fake_server
        .answer("GET users", json!([]))
        .answer("GET operator-tokens", json!([]))
        .answer("GET projects", json!([]))
        .answer("GET notifications", no_notifications)
        .answer("GET changes", json!({"changes": [], "hasNext": false}));
    for (line, expected) in [
        ("user list", "no users\n"),
        ("token list", "no tokens\n"),
        ("project list", "no projects\n"),
        ("notification list", "no notifications\n"),
        ("audit", "no changes\n"),
    ] {
        assert_eq!(cli.run(&format!("evenkeel {line}")).await, expected);
        assert_eq!(cli.run(&format!("evenkeel {line} -o json")).await, "[]\n", "{line}");
    }
    let narrow = TestCli { width: Some(30), ..TestCli::new().await };
    let user = json!({
        "name": "alice", "roles": ["operator@default", "viewer@lab"], "disabled": false,
        "createdAt": "2026-02-27T12:00:00Z", "createdBy": "root", "updatedAt": "2026-02-27T12:00:00Z",
    });
    narrow.fake_server.answer("GET users", json!([user]));
    let listed = narrow.run("evenkeel user list").await;
    assert_eq!(listed, "NAME   STATE\nalice  enabled\n");
}

fn misread(parameter: &str, position: usize, why: &str, hint: Option<&str>) -> Value {
    let suggestion = hint.map_or_else(String::new, |hint| format!("; did you mean `{hint}`?"));
    json!({
        "code": "InvalidArgument", "message": format!("{parameter}: at {position}: {why}{suggestion}"),
        "field": parameter, "parameter": parameter, "position": position, "hint": hint,
    })
}

#[tokio::test]
async fn the_position_of_a_filter_error_is_marked() {
    let cli = TestCli::new().await;
    let why = "there is no field `nam` of hosts";
    cli.fake_server
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
    insta::assert_snapshot!(cli.fail(line).await, @r"
    --filter: there is no field `nam` of hosts
    note = x AND nam = edge
                 ^
    hint: did you mean `name`?
    ");
    insta::assert_snapshot!(cli.fail("evenkeel host list --filter \"name =\"").await, @r#"
    --filter: a value is missing
    name =
          ^
    hint: a filter is a condition such as `name = "edge"`; combine conditions with AND, OR, NOT and parentheses
    "#);
}

#[tokio::test]
async fn the_reason_of_an_expensive_filter_is_not_followed_by_other_advice() {
    let cli = TestCli::new().await;
    let reason = "the filter is too expensive: its conditions cost 105, and at most 100 are allowed; \
                  use fewer conditions: labels, paths, patterns with several stars and negations cost most";
    cli.fake_server.answer_with(
        "GET compute/hosts?filter=metadata:a",
        400,
        misread("filter", 0, reason, None),
    );
    let message = cli.fail("evenkeel host list --filter metadata:a").await;
    assert_eq!(message, format!("--filter: {reason}\nmetadata:a\n^\nhint: none"));
}

#[tokio::test]
async fn the_error_position_refers_to_the_typed_filter() {
    let cli = TestCli::new().await;
    let typed = "(nam = x) AND site.resourceId == \"site-00000001\"";
    cli.fake_server.answer_with(
        &format!("GET compute/hosts?filter={typed}"),
        400,
        misread("filter", 1, "there is no field `nam` of hosts", Some("name")),
    );
    let line = "evenkeel host list --site site-00000001 --filter \"nam = x\"";
    insta::assert_snapshot!(cli.fail(line).await, @r"
    --filter: there is no field `nam` of hosts
    nam = x
    ^
    hint: did you mean `name`?
    ");
}

#[tokio::test]
async fn the_position_of_an_order_error_is_marked() {
    let cli = TestCli::new().await;
    cli.fake_server.answer_with(
        "GET sites?orderBy=name, colour",
        400,
        misread("orderBy", 6, "there is no field `colour` of sites", None),
    );
    insta::assert_snapshot!(cli.fail("evenkeel site list --order-by \"name, colour\"").await, @r"
    --order-by: there is no field `colour` of sites
    name, colour
          ^
    hint: give fields such as `name` or `name desc, resourceId`
    ");
}

#[tokio::test]
async fn hosts_of_a_region_include_its_subregions() {
    let cli = TestCli::new().await;
    let region = |id: &str, above: &str| json!({"resourceId": id, "name": id, "parentId": above});
    cli.fake_server.answer(
        "GET regions",
        json!({
            "regions": [
                region("region-00000001", ""), region("region-00000002", "region-00000001"),
                region("region-00000003", "region-00000002"), region("region-00000004", ""),
            ],
            "totalElements": 4, "hasNext": false,
        }),
    );
    cli.fake_server.answer("GET compute/hosts", page(1..2, 1, ""));
    cli.run("evenkeel host list --region region-00000001 -q").await;
    insta::assert_snapshot!(cli.fake_server.requests(), @r#"
    GET regions
    GET compute/hosts?filter=(site.region.resourceId == "region-00000001" OR site.region.resourceId == "region-00000002" OR site.region.resourceId == "region-00000003")
    "#);
}

fn full_host() -> Value {
    json!({"hosts": [{
        "resourceId": "host-00000001", "name": "edge-01", "site": {"name": "bonn"},
        "currentState": "HOST_STATE_ONBOARDED", "hostStatus": "Running",
        "timestamps": {"createdAt": "2026-02-27T12:00:00Z", "updatedAt": "2026-02-27T12:00:00Z"},
        "instance": {
            "resourceId": "inst-00000001", "updateStatus": "No Current Update",
            "os": {"name": "Debian GNU/Linux 12 (bookworm)"},
            "effectiveUpdatePolicy": {
                "resourceId": "osupdatepolicy-00000001", "name": "tools", "level": "region",
                "assignedTo": "region-00000001", "assignedToName": "emea",
            },
        },
    }], "totalElements": 1, "hasNext": false})
}

#[tokio::test]
async fn a_narrow_terminal_gets_fewer_columns_and_whole_ids() {
    let mut cli = TestCli::new().await;
    cli.fake_server.answer("GET compute/hosts", full_host());
    let mut tables = String::new();
    for width in [None, Some(110), Some(80), Some(20)] {
        cli.width = width;
        writeln!(tables, "{width:?}\n{}", cli.run("evenkeel host list").await).expect("a string");
    }
    insta::assert_snapshot!(tables, @r"
    None
    ID             NAME     SITE  STATE      STATUS   OS                              UPDATE             AVAILABLE  AGE
    host-00000001  edge-01  bonn  onboarded  Running  Debian GNU/Linux 12 (bookworm)  No Current Update  -          2d

    Some(110)
    ID             NAME     SITE  STATE      STATUS   OS                              UPDATE             AVAILABLE
    host-00000001  edge-01  bonn  onboarded  Running  Debian GNU/Linux 12 (bookworm)  No Current Update  -

    Some(80)
    ID             NAME     SITE  STATE      STATUS   UPDATE             AVAILABLE
    host-00000001  edge-01  bonn  onboarded  Running  No Current Update  -

    Some(20)
    ID             NAME
    host-00000001  edge-01
    ");
}

#[tokio::test]
async fn a_wide_list_names_the_policy_and_its_source_on_any_terminal() {
    let mut cli = TestCli::new().await;
    cli.width = Some(40);
    let mut hosts = full_host();
    for (name, value) in [
        ("agentVersion", json!("0.1.0")),
        ("bootTime", json!("2026-02-14T03:12:41Z")),
        ("lastContact", json!("2026-03-01T11:59:52Z")),
        ("ipAddresses", json!(["192.0.2.7/24", "2001:db8::7/64"])),
    ] {
        hosts["hosts"][0][name] = value;
    }
    cli.fake_server.answer("GET compute/hosts?showEffectivePolicy=true", hosts);
    insta::assert_snapshot!(cli.run("evenkeel host list -o wide").await, @r"
    ID             NAME     SITE  STATE      STATUS   OS                              UPDATE             AVAILABLE  AGE  POLICY  POLICY FROM  LISTS    SECURITY  HELD BACK  REBOOT   KERNEL  AGENT  BOOTED                LAST CONTACT          ADDRESSES
    host-00000001  edge-01  bonn  onboarded  Running  Debian GNU/Linux 12 (bookworm)  No Current Update  -          2d   tools   region emea  unknown  unknown   unknown    unknown  -       0.1.0  2026-02-14T03:12:41Z  2026-03-01T11:59:52Z  192.0.2.7/24, 2001:db8::7/64
    ");
    let instance = full_host()["hosts"][0]["instance"].clone();
    let list = json!({"instances": [instance], "totalElements": 1, "hasNext": false});
    cli.fake_server.answer("GET compute/instances?showEffectivePolicy=true", list);
    cli.width = Some(80);
    insta::assert_snapshot!(cli.run("evenkeel instance list").await, @r"
    ID             NAME  HOST  POLICY  POLICY FROM  UPDATE             AVAILABLE
    inst-00000001  -     -     tools   region emea  No Current Update  -
    ");
}

#[tokio::test]
async fn only_colours_need_escape_sequences() {
    let mut cli = TestCli::new().await;
    (cli.width, cli.interactive) = (Some(80), true);
    cli.fake_server
        .answer("GET compute/hosts", page(0..100, 101, "one"))
        .answer("GET compute/hosts?pageToken=one", page(100..101, 101, ""));
    assert!(!cli.run("evenkeel host list").await.contains('\u{1b}'));
    cli.colour = true;
    assert!(cli.run("evenkeel host list").await.contains("\u{1b}[1m"));
}

#[tokio::test]
async fn the_latest_runs_are_listed_first() {
    let cli = TestCli::new().await;
    let none = json!({"osUpdateRuns": [], "totalElements": 0, "hasNext": false});
    let latest_first = "GET os-update-runs?orderBy=startTime desc, resourceId desc";
    cli.fake_server.answer(latest_first, none);
    cli.run("evenkeel run list").await;
    assert_eq!(cli.fake_server.requests(), latest_first);
}
