//! The audit: lists, one change, and the stream.

use clap::Parser;
use evenkeel_cli::args::Cli;
use evenkeel_cli::{Environment, Failure, System};
use evenkeel_kit::TestClock;
use serde_json::{Value, json};

use crate::{TestCli, noon, render_failure, split};

fn change(nth: u32, operation: &str, reason: &str) -> Value {
    json!({
        "changeId": format!("1a-{nth}"), "time": format!("2026-03-01T11:00:0{nth}.5Z"),
        "actor": "alice", "kind": "host", "objectId": "host-00000001", "objectName": "edge-01",
        "operation": operation, "before": {"name": "edge-01", "note": "", "site_id": 7},
        "after": {"name": "edge-01", "note": reason, "site_id": 7}, "rowsOmitted": false,
        "requestId": "r-1", "clientAddress": "192.0.2.7",
    })
}

fn page(changes: &[Value], next: &str) -> Value {
    json!({
        "changes": changes, "hasNext": !next.is_empty(), "nextPageToken": next, "cursor": "c-0",
    })
}

#[tokio::test]
async fn changes_are_listed_page_by_page() {
    let cli = TestCli::new().await;
    let server_change = json!({
        "changeId": "1b-7", "time": "2026-03-01T10:00:00Z", "kind": "run",
        "objectId": "osupdaterun-00000001", "operation": "create",
    });
    cli.fake_server
        .answer("GET changes", page(&[change(2, "update", "x"), change(1, "create", "")], "t-1"))
        .answer("GET changes?pageSize=98?pageToken=t-1", page(&[server_change], ""));
    insta::assert_snapshot!(cli.run("evenkeel audit").await, @r"
    ID    TIME                  ACTOR   WHAT         OBJECT                   AGE
    1a-2  2026-03-01T11:00:02Z  alice   update host  edge-01 (host-00000001)  59m
    1a-1  2026-03-01T11:00:01Z  alice   create host  edge-01 (host-00000001)  59m
    1b-7  2026-03-01T10:00:00Z  server  create run   osupdaterun-00000001     2h
    ");
    cli.fake_server.answer("GET changes?pageSize=1", page(&[change(2, "update", "x")], "t-1"));
    assert_eq!(cli.run("evenkeel audit --limit 1 -q").await, "1a-2\n");
}

#[tokio::test]
async fn a_narrow_list_shows_who_changed_what_and_when() {
    let mut cli = TestCli::new().await;
    cli.fake_server.answer("GET changes", page(&[change(2, "update", "x")], ""));
    for (width, titles) in [
        (90, "ID TIME ACTOR WHAT OBJECT AGE"),
        (75, "TIME ACTOR WHAT OBJECT AGE"),
        (60, "ACTOR WHAT OBJECT AGE"),
    ] {
        cli.width = Some(width);
        let list = cli.run("evenkeel audit").await;
        let header: Vec<_> = list.lines().next().expect("titles").split_whitespace().collect();
        assert_eq!(header.join(" "), titles, "{width}: {list}");
    }
}

#[tokio::test]
async fn options_become_filters_of_the_server() {
    let cli = TestCli::new().await;
    let host = json!({
        "resourceId": "host-00000001", "name": "edge-01", "instance": {"resourceId": "inst-00000001"},
    });
    let query = "?object=project,inst-00000001,host-00000001?kind=host?actor=alice\
                 ?since=2026-03-01T10:00:00+00:00?until=2026-03-01T11:30:00+00:00?includeServer=true";
    cli.fake_server
        .answer("GET compute/hosts/host-00000001", host)
        .answer(&format!("GET changes{query}"), page(&[], ""));
    let line = "evenkeel audit --host host-00000001 --object project --kind host --by alice --since 2h \
                --until 2026-03-01T11:30:00Z --include-server";
    assert_eq!(cli.run(line).await, "no changes\n");
    let failure = cli.fail("evenkeel audit --watch --until 1h").await;
    assert_eq!(failure, "--watch shows changes to come; leave out --until\nhint: none");
}

#[tokio::test]
async fn one_change_shows_the_fields_that_differ() {
    let cli = TestCli::new().await;
    cli.fake_server.answer("GET changes/1a-2", change(2, "update", "moved"));
    insta::assert_snapshot!(cli.run("evenkeel audit show 1a-2").await, @r"
    change   1a-2
    time     2026-03-01T11:00:02Z
    actor    alice
    what     update host
    object   edge-01 (host-00000001)
    request  r-1
    address  192.0.2.7

    Fields
    FIELD  BEFORE  AFTER
    note   -       moved
    ");
    let failure = cli.fail("evenkeel audit show 1a-9").await;
    assert!(failure.starts_with("there is no change `1a-9`\n"), "{failure}");
    let failure = cli.fail("evenkeel audit --kind host show 1a-2").await;
    assert!(failure.starts_with("`audit show` accepts no filter"), "{failure}");
}

#[tokio::test]
async fn failed_logins_have_their_address_and_reason_with_wide_output() {
    let cli = TestCli::new().await;
    let failure = json!({
        "changeId": "1c-3", "time": "2026-03-01T11:00:00Z", "actor": "bob", "kind": "login_failure",
        "objectId": "bob", "objectName": "bob", "operation": "record", "clientAddress": "192.0.2.7",
        "after": {"name": "bob", "reason": "wrong-password"},
    });
    cli.fake_server.answer("GET changes", page(&[failure], ""));
    let printed = cli.run("evenkeel audit --fleet -o wide --project lab").await;
    for part in ["ADDRESS", "REASON", "192.0.2.7", "wrong-password"] {
        assert!(printed.contains(part), "{printed}");
    }
}

#[tokio::test]
async fn changes_of_a_deleted_project_are_read_by_its_uuid() {
    let cli = TestCli::new().await;
    let change = json!({
        "changeId": "1c-4", "time": "2026-03-01T11:00:00Z", "actor": "root", "kind": "pause",
        "objectId": "project", "operation": "create",
    });
    let uuid = "11111111-2222-3333-4444-555555555555";
    cli.fake_server
        .answer(&format!("GET changes?projectUuid={uuid}"), page(std::slice::from_ref(&change), ""))
        .answer(&format!("GET changes/1c-4?projectUuid={uuid}"), change);
    let list = cli.run(&format!("evenkeel audit --project-uuid {uuid} --project lab")).await;
    assert!(list.contains("create pause"), "{list}");
    assert!(list.starts_with("note: --project-uuid selects the project; --project"), "{list}");
    let line = format!("evenkeel audit show 1c-4 --project-uuid {uuid} --project lab");
    assert!(cli.run(&line).await.contains("actor   root\n"));
    let bad = json!({
        "code": "InvalidArgument", "message": "projectUuid: must be a UUID", "field": "projectUuid",
    });
    cli.fake_server.answer_with("GET changes?projectUuid=lab", 400, bad);
    let failure = cli.fail("evenkeel audit --project-uuid lab").await;
    assert!(failure.starts_with("--project-uuid: must be a UUID\n"), "{failure}");
    let failure = cli.fail(&format!("evenkeel audit --watch --project-uuid {uuid}")).await;
    assert!(failure.starts_with("--project-uuid lists changes"), "{failure}");
}

/// In the fake server, paths in other projects than `default` begin with `projects`.
#[tokio::test]
async fn changes_outside_of_projects_are_listed_shown_and_watched() {
    let cli = TestCli::new().await;
    let user = json!({
        "changeId": "1c-1", "time": "2026-03-01T11:00:00Z", "actor": "root", "kind": "user",
        "objectId": "bob", "objectName": "bob", "operation": "create", "after": {"name": "bob"},
    });
    let project = json!({
        "changeId": "1c-2", "time": "2026-03-01T11:00:01Z", "actor": "root", "kind": "project",
        "objectId": "project", "objectName": "shop", "operation": "delete",
    });
    let stream = format!(": changes\n\n{}", event("c-1", &user));
    cli.fake_server
        .answer("GET changes", page(&[project.clone(), user.clone()], ""))
        .answer("GET changes/1c-1", user)
        .answer("GET changes?watch=true?cursor=c-0", Value::String(stream))
        .answer_with("GET changes?watch=true?cursor=c-1", 410, json!({"message": "too old"}));
    insta::assert_snapshot!(cli.run("evenkeel audit --fleet --project lab").await, @r"
    ID    TIME                  ACTOR  WHAT            OBJECT          AGE
    1c-2  2026-03-01T11:00:01Z  root   delete project  shop (project)  59m
    1c-1  2026-03-01T11:00:00Z  root   create user     bob             60m
    ");
    let shown = cli.run("evenkeel audit show 1c-1 --fleet --project lab").await;
    assert!(shown.contains("object  bob\n"), "{shown}");
    cli.fake_server.answer("GET changes?pageSize=10", page(&[project], ""));
    let line = "evenkeel audit --fleet --watch --project lab";
    let (output, _) = run_until_failure(&cli, line).await;
    assert_eq!(output.lines().count(), 2, "{output}");
    let failure = cli.fail("evenkeel audit --fleet --host edge-01").await;
    assert!(failure.starts_with("--fleet shows what belongs to no project"), "{failure}");
}

/// Runs a line that ends with an error. Returns the output before it as well.
async fn run_until_failure(cli: &TestCli, line: &str) -> (String, Failure) {
    let line = format!("{line} --server {} --retry-for 0s", cli.server);
    let (mut out, mut notes) = (Vec::new(), Vec::new());
    let mut system = System {
        out: &mut out,
        notes: &mut notes,
        input: &mut std::io::empty(),
        hide_input: |_| (),
        open_browser: &|_| false,
        clock: &TestClock::new(noon()),
        environment: Environment {
            contexts: cli.contexts.clone(),
            token: cli.token.clone(),
            width: None,
            colour: false,
            interactive: false,
            has_display: false,
        },
    };
    let parsed = Cli::try_parse_from(split(&line)).expect("a valid line");
    let failure = parsed.run(&mut system).await.expect_err("the stream is refused at last");
    (String::from_utf8(out).expect("a text"), failure)
}

fn event(id: &str, change: &Value) -> String {
    format!("event: change\nid: {id}\ndata: {change}\n\n")
}

#[tokio::test]
async fn a_watch_connects_again_where_it_was_and_repeats_nothing() {
    let cli = TestCli::new().await;
    let [first, second, third] = [1, 2, 3].map(|nth| change(nth, "update", ""));
    // The stream begins with a change of the list.
    let one = format!(": changes\n\n{}{}", event("c-1", &first), event("c-2", &second));
    let two = format!("event: bookmark\nid: c-9\ndata: {{}}\n\n{}", event("c-10", &third));
    cli.fake_server
        .answer("GET changes?pageSize=10", page(&[first], ""))
        .answer("GET changes?watch=true?cursor=c-0", Value::String(one))
        .answer_with("GET changes?watch=true?cursor=c-2", 503, json!({"message": "busy"}))
        .answer("GET changes?watch=true?cursor=c-2", Value::String(two))
        .answer_with("GET changes?watch=true?cursor=c-10", 410, json!({"message": "too old"}));
    let (output, failure) = run_until_failure(&cli, "evenkeel audit --watch").await;
    insta::assert_snapshot!(output, @r"
    2026-03-01T11:00:01Z  alice  update host  edge-01 (host-00000001)  r-1
    2026-03-01T11:00:02Z  alice  update host  edge-01 (host-00000001)  r-1
    2026-03-01T11:00:03Z  alice  update host  edge-01 (host-00000001)  r-1
    ");
    let expected = "too old\nhint: changes may be missing; run the command again";
    assert_eq!(render_failure(&failure), expected);
    let (output, _) = run_until_failure(&cli, "evenkeel audit --watch -o yaml").await;
    assert!(output.starts_with("---\nchangeId:"), "{output}");
}
