//! Syncs of the catalog, and its settings.

use evenkeel_cli::Ending;
use serde_json::{Value, json};

use crate::TestCli;

const SYNC: &str = "GET os-catalogue/sync";
const REPORT: &str = "GET os-catalogue/report";
const SETTINGS: &str = "os-catalogue/settings";

fn sync(step: &str, finished: u32, done: u32) -> Value {
    json!({
        "registry": "release", "request": "7", "done": done.to_string(), "step": step, "finished": finished, "total": 12,
        "outcome": "succeeded", "startedAt": "2026-03-01T12:00:00Z", "endedAt": "2026-03-01T12:00:09Z",
    })
}

fn report(outcome: &str, request: u32) -> Value {
    let findings = if outcome == "succeeded" {
        json!([])
    } else {
        json!([
            {"repository": "os/microvisor-nonrt", "tag": "0.8.12", "kind": "bad_field", "field": "spec.name",
             "message": "must not be empty", "since": "2026-03-01T12:00:00Z"},
            {"repository": "os/microvisor-rt", "kind": "not_there", "message": "it is not there",
             "osID": "os-00000003", "since": "2026-02-01T12:00:00Z"},
        ])
    };
    json!({
        "registry": "release", "revision": "~0.8.11", "outcome": outcome, "request": request.to_string(),
        "startedAt": "2026-03-01T12:00:00Z", "endedAt": "2026-03-01T12:00:09Z", "created": 2, "refreshed": 1, "unchanged": 6,
        "refused": findings.as_array().map_or(0, Vec::len), "findings": findings,
    })
}

#[tokio::test]
async fn a_sync_waits_for_its_own_report() {
    let mut cli = TestCli::new().await;
    cli.interactive = true;
    cli.fake_server
        .answer("POST os-catalogue/sync", sync("idle", 0, 6))
        .answer(SYNC, sync("fetching", 3, 6))
        .answer(SYNC, sync("idle", 0, 7))
        .answer(REPORT, report("partial", 6))
        .answer(REPORT, report("succeeded", 7));
    let answer = cli.answer("evenkeel os sync --interval 1ms", "").await;
    let (text, ending) = answer.expect("it went well");
    assert_eq!(ending, Ending::Done);
    assert!(text.contains("\rfetching profiles: 3 of 12"), "{text}");
    assert!(text.contains("outcome    succeeded\n"), "{text}");
    assert!(text.contains("new        2\n"), "{text}");
}

#[tokio::test]
async fn a_partial_sync_lists_its_findings() {
    let cli = TestCli::new().await;
    cli.fake_server
        .answer("POST os-catalogue/sync", sync("idle", 0, 6))
        .answer(SYNC, sync("idle", 0, 8))
        .answer(REPORT, report("partial", 8));
    let answer = cli.answer("evenkeel os sync", "").await;
    let (text, ending) = answer.expect("a report");
    assert_eq!(ending, Ending::ChecksFailed);
    insta::assert_snapshot!(text);
    let json = cli.run("evenkeel os sync-report -o json").await;
    let json: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["findings"][0]["kind"], "bad_field");
    assert_eq!(cli.run("evenkeel os sync-report -q").await, "partial\n");
}

#[tokio::test]
async fn a_sync_need_not_be_awaited() {
    let cli = TestCli::new().await;
    cli.fake_server
        .answer("POST os-catalogue/sync", sync("idle", 0, 6))
        .answer(SYNC, sync("listing", 0, 6));
    assert_eq!(cli.run("evenkeel os sync --no-wait").await, "registry  release\nrequest   7\n");
    let message = cli.fail("evenkeel os sync --timeout 5ms --interval 1ms").await;
    assert!(message.contains("`evenkeel os sync-report`"), "{message}");
}

#[tokio::test]
async fn a_sync_waits_until_the_registry_may_be_contacted() {
    let cli = TestCli::new().await;
    let mut alone = sync("idle", 0, 6);
    alone["notBefore"] = json!("2026-03-01T13:00:00Z");
    cli.fake_server
        .answer("POST os-catalogue/sync", alone.clone())
        .answer(SYNC, alone.clone())
        .answer(SYNC, alone)
        .answer(SYNC, sync("idle", 0, 7))
        .answer(REPORT, report("succeeded", 7));
    let text = cli.run("evenkeel os sync --interval 1ms").await;
    let note = "note: release is not contacted before 2026-03-01T13:00:00Z\n";
    assert_eq!(text.matches(note).count(), 1, "{text}");
}

#[tokio::test]
async fn a_sync_without_a_selection_explains_how_to_select() {
    let cli = TestCli::new().await;
    let why = "the project takes no operating systems: it has no registry, or no revision";
    let refusal = json!({"code": "FailedPrecondition", "message": why});
    cli.fake_server
        .answer_with("POST os-catalogue/sync", 400, refusal)
        .answer(REPORT, json!({"registry": "", "outcome": null}));
    insta::assert_snapshot!(cli.fail("evenkeel os sync").await, @r"
    the project takes no operating systems: it has no registry, or no revision
    hint: `evenkeel os settings` shows the selection and the registries; change it with --registry, --revision and --enable
    ");
    assert_eq!(
        cli.run("evenkeel os sync-report").await,
        "no sync yet; `evenkeel os sync` starts one\n"
    );
    let json = cli.run("evenkeel os sync-report -o json").await;
    let json: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["outcome"], Value::Null);
}

#[tokio::test]
async fn the_catalog_settings_are_shown_and_changed() {
    let cli = TestCli::new().await;
    let settings = json!({
        "registry": null, "revision": "~0.8.11", "enabledProfiles": ["microvisor-nonrt", "microvisor-rt"],
        "defaultProfile": null, "defaultOsID": "os-00000004", "registries": ["release", "own"],
        "effective": {"registry": "release", "revision": "~0.8.11", "defaultProfile": "microvisor-nonrt",
                      "enabledProfiles": ["microvisor-nonrt", "microvisor-rt"]},
    });
    for way in ["GET", "PATCH", "PUT"] {
        cli.fake_server.answer(&format!("{way} {SETTINGS}"), settings.clone());
    }
    insta::assert_snapshot!(cli.run("evenkeel os settings").await);
    let line =
        "evenkeel os settings --registry own --enable microvisor-rt --enable ubuntu --no-default";
    cli.run(line).await;
    cli.run("evenkeel os settings --revision ~0.9").await;
    cli.run("evenkeel os settings --reset").await;
    insta::assert_snapshot!(cli.fake_server.requests());
}
