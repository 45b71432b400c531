//! What a registry has comes into the catalogue.

use evenkeel_cli::Ending;
use serde_json::{Value, json};

use crate::Desk;

const SYNC: &str = "GET os-catalogue/sync";
const REPORT: &str = "GET os-catalogue/report";
const SETTINGS: &str = "os-catalogue/settings";

fn sync(step: &str, finished: u32, done: u32) -> Value {
    json!({
        "registry": "release", "request": "7", "done": done.to_string(), "step": step, "finished": finished, "total": 12,
        "outcome": "good", "startedAt": "2026-03-01T12:00:00Z", "endedAt": "2026-03-01T12:00:09Z",
    })
}

fn report(outcome: &str, request: u32) -> Value {
    let findings = if outcome == "good" {
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
        "startedAt": "2026-03-01T12:00:00Z", "endedAt": "2026-03-01T12:00:09Z", "made": 2, "refreshed": 1, "same": 6,
        "refused": findings.as_array().map_or(0, Vec::len), "findings": findings,
    })
}

#[tokio::test]
async fn a_sync_is_waited_for_until_its_own_report_is_there() {
    let mut desk = Desk::new().await;
    desk.interactive = true;
    desk.double
        .answer("POST os-catalogue/sync", sync("idle", 0, 6))
        .answer(SYNC, sync("fetching", 3, 6))
        .answer(SYNC, sync("idle", 0, 7))
        .answer(REPORT, report("partly", 6))
        .answer(REPORT, report("good", 7));
    let answer = desk.answer("evenkeel os sync --interval 1ms", "").await;
    let (text, ending) = answer.expect("it went well");
    assert_eq!(ending, Ending::Done);
    assert!(
        text.contains("\u{1b}[Kfetching profiles: 3 of 12"),
        "{text}"
    );
    assert!(text.contains("outcome             good\n"), "{text}");
    assert!(text.contains("new                 2\n"), "{text}");
}

#[tokio::test]
async fn a_sync_that_was_not_good_says_why_and_ends_so() {
    let desk = Desk::new().await;
    desk.double
        .answer("POST os-catalogue/sync", sync("idle", 0, 6))
        .answer(SYNC, sync("idle", 0, 8))
        .answer(REPORT, report("partly", 8));
    let answer = desk.answer("evenkeel os sync", "").await;
    let (text, ending) = answer.expect("it can be told");
    assert_eq!(ending, Ending::SyncNotGood);
    insta::assert_snapshot!(text);
    let json = desk.run("evenkeel os sync-report -o json").await;
    let json: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["findings"][0]["kind"], "bad_field");
    assert_eq!(desk.run("evenkeel os sync-report -q").await, "partly\n");
}

#[tokio::test]
async fn nobody_has_to_wait_for_a_sync() {
    let desk = Desk::new().await;
    desk.double
        .answer("POST os-catalogue/sync", sync("idle", 0, 6))
        .answer(SYNC, sync("listing", 0, 6));
    assert_eq!(
        desk.run("evenkeel os sync --no-wait").await,
        "registry  release\nrequest   7\n"
    );
    let told = desk
        .fail("evenkeel os sync --timeout 5ms --interval 1ms")
        .await;
    assert!(told.contains("`evenkeel os sync-report`"), "{told}");
}

#[tokio::test]
async fn a_registry_that_wants_to_be_left_alone_is_waited_for() {
    let desk = Desk::new().await;
    let mut alone = sync("idle", 0, 6);
    alone["notBefore"] = json!("2026-03-01T13:00:00Z");
    desk.double
        .answer("POST os-catalogue/sync", alone.clone())
        .answer(SYNC, alone.clone())
        .answer(SYNC, alone)
        .answer(SYNC, sync("idle", 0, 7))
        .answer(REPORT, report("good", 7));
    let text = desk.run("evenkeel os sync --interval 1ms").await;
    let note = "note: release is not asked again before 2026-03-01T13:00:00Z\n";
    assert_eq!(text.matches(note).count(), 1, "{text}");
}

#[tokio::test]
async fn who_wants_nothing_is_told_how_to_want_something() {
    let desk = Desk::new().await;
    let why = "the project takes no operating systems: it has no registry, or no revision";
    let refusal = json!({"code": "FailedPrecondition", "message": why});
    desk.double
        .answer_with("POST os-catalogue/sync", 400, refusal)
        .answer(REPORT, json!({"registry": "", "outcome": null}));
    insta::assert_snapshot!(desk.fail("evenkeel os sync").await, @r"
    the project takes no operating systems: it has no registry, or no revision
    hint: `evenkeel os settings` shows what is wanted and which registries there are; --registry, --revision and --enable change it
    ");
    assert_eq!(
        desk.run("evenkeel os sync-report").await,
        "there was no sync yet; `evenkeel os sync` asks for one\n"
    );
    let json = desk.run("evenkeel os sync-report -o json").await;
    let json: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["outcome"], Value::Null);
}

#[tokio::test]
async fn what_a_project_takes_is_shown_and_changed() {
    let desk = Desk::new().await;
    let settings = json!({
        "registry": null, "revision": "~0.8.11", "enabledProfiles": ["microvisor-nonrt", "microvisor-rt"],
        "defaultProfile": null, "defaultOsID": "os-00000004", "registries": ["release", "own"],
        "effective": {"registry": "release", "revision": "~0.8.11", "defaultProfile": "microvisor-nonrt",
                      "enabledProfiles": ["microvisor-nonrt", "microvisor-rt"]},
    });
    for way in ["GET", "PATCH", "PUT"] {
        desk.double
            .answer(&format!("{way} {SETTINGS}"), settings.clone());
    }
    insta::assert_snapshot!(desk.run("evenkeel os settings").await);
    let line =
        "evenkeel os settings --registry own --enable microvisor-rt --enable ubuntu --no-default";
    desk.run(line).await;
    desk.run("evenkeel os settings --revision ~0.9").await;
    desk.run("evenkeel os settings --reset").await;
    insta::assert_snapshot!(desk.double.asked());
}
