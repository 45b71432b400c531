//! Plans and runs.

use evenkeel_cli::Ending;
use serde_json::{Value, json};

use crate::Desk;

fn host() -> Value {
    json!({"resourceId": "host-00000001", "name": "edge-01", "instance": {"resourceId": "inst-00000001"}})
}

fn run(state: &str, events: usize) -> Value {
    let all = [
        json!({"event": "downloading", "state": "downloading", "time": "2026-03-01T12:00:01Z", "sequence": 1}),
        json!({"event": "began", "state": "applying", "time": "2026-03-01T12:00:05Z", "sequence": 2}),
        json!({"event": "finished", "state": "succeeded", "time": "2026-03-01T12:00:09Z", "sequence": 3,
               "nodeTime": "2026-03-01T12:00:08Z", "detail": "1 package\nmore"}),
    ];
    let ended = state == "succeeded" || state == "failed";
    json!({
        "resourceId": "osupdaterun-00000001", "name": "edge-01 update", "state": state, "hostName": "edge-01",
        "instance": {"resourceId": "inst-00000001"}, "policy": {"resourceId": "osupdatepolicy-00000001", "name": "security"},
        "status": "Updating", "statusIndicator": "STATUS_INDICATION_IN_PROGRESS",
        "startTime": 1_772_366_401, "endTime": if ended { 1_772_366_409 } else { 0 },
        "packages": [{
            "name": "curl", "architecture": "amd64", "action": "upgrade", "version": "8.5", "before": "8.4",
            "after": if ended { "8.5" } else { "" }, "status": if ended { "done" } else { "planned" },
        }],
        "events": all[..events],
    })
}

fn runs(runs: &[Value]) -> Value {
    json!({"osUpdateRuns": runs, "totalElements": runs.len(), "hasNext": false})
}

fn decision() -> Value {
    json!({
        "instanceId": "inst-00000001", "hostId": "host-00000001", "time": "2026-03-01T12:00:00Z", "act": "idle",
        "reason": {"code": "window_closed", "text": "the window opens at 2026-03-01T22:00:00Z",
                   "data": {"opens": "2026-03-01T22:00:00Z"}},
        "next": "2026-03-01T22:00:00Z",
        "policy": {"resourceId": "osupdatepolicy-00000001", "name": "security", "level": "instance",
                   "target": {"kind": "packages", "mode": "exactly", "packages": ["curl", "jq=1.7", "vim"]}},
        "windows": [{"start": "2026-03-01T22:00:00Z", "end": "2026-03-02T00:00:00Z",
                     "scheduleId": "singlesche-00000001", "open": false}],
        "availableUpdates": [
            {"name": "curl", "architecture": "amd64", "installed": "8.4", "available": "8.5"},
            {"name": "bash", "architecture": "amd64", "installed": "5.1", "available": "5.2"},
        ],
    })
}

const FILTER: &str = "GET os-update-runs?filter=instance.resourceId=\"inst-00000001\"";

#[tokio::test]
async fn a_plan_says_what_why_and_until_when() {
    let desk = Desk::new().await;
    desk.double
        .answer("GET compute/hosts/host-00000001", host())
        .answer("GET compute/instances/inst-00000001/decision", decision());
    insta::assert_snapshot!(desk.run("evenkeel update plan host-00000001").await);
    assert_eq!(
        desk.run("evenkeel update plan host-00000001 -q").await,
        "idle\n"
    );
}

#[tokio::test]
async fn a_host_on_which_nothing_runs_has_no_plan() {
    let desk = Desk::new().await;
    desk.double.answer(
        "GET compute/hosts/host-00000001",
        json!({"resourceId": "host-00000001"}),
    );
    insta::assert_snapshot!(desk.fail("evenkeel update plan host-00000001").await, @r"
    nothing runs on host `host-00000001` yet
    hint: enrol it (`evenkeel-agent enroll`), or make its instance with `evenkeel instance create`
    ");
}

#[tokio::test]
async fn a_run_is_shown_with_everything_that_happened() {
    let desk = Desk::new().await;
    desk.double
        .answer(
            "GET os-update-runs/osupdaterun-00000001",
            run("succeeded", 3),
        )
        .answer("GET compute/hosts/host-00000001", host())
        .answer(FILTER, runs(&[run("succeeded", 0)]));
    insta::assert_snapshot!(desk.run("evenkeel run get osupdaterun-00000001").await);
    insta::assert_snapshot!(desk.run("evenkeel run list --host host-00000001").await);
    let json = desk
        .run("evenkeel run get osupdaterun-00000001 --output json")
        .await;
    let json: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["packages"][0]["before"], "8.4");
    assert_eq!(json["packages"][0]["after"], "8.5");
    assert_eq!(json["events"].as_array().map(Vec::len), Some(3));
}

#[tokio::test]
async fn a_watched_run_tells_each_event_once() {
    let desk = Desk::new().await;
    desk.double
        .answer(
            "GET os-update-runs/osupdaterun-00000001",
            run("downloading", 1),
        )
        .answer(
            "GET os-update-runs/osupdaterun-00000001",
            run("applying", 2),
        )
        .answer(
            "GET os-update-runs/osupdaterun-00000001",
            run("applying", 2),
        )
        .answer(
            "GET os-update-runs/osupdaterun-00000001",
            run("succeeded", 3),
        );
    insta::assert_snapshot!(
        desk.run("evenkeel run watch osupdaterun-00000001 --interval 1ms")
            .await
    );
}

#[tokio::test]
async fn a_watched_host_waits_for_its_next_run() {
    let desk = Desk::new().await;
    let mut old = run("failed", 0);
    old["resourceId"] = json!("osupdaterun-00000000");
    desk.double
        .answer("GET compute/hosts/host-00000001", host())
        .answer("GET compute/instances/inst-00000001/decision", decision())
        .answer(FILTER, runs(std::slice::from_ref(&old)))
        .answer(FILTER, runs(std::slice::from_ref(&old)))
        .answer(FILTER, runs(std::slice::from_ref(&old)))
        .answer(FILTER, runs(&[old, run("succeeded", 0)]))
        .answer(
            "GET os-update-runs/osupdaterun-00000001",
            run("succeeded", 3),
        );
    insta::assert_snapshot!(
        desk.run("evenkeel run watch --host host-00000001 --interval 1ms")
            .await
    );
}

#[tokio::test]
async fn a_run_that_fails_is_told_by_the_exit_code() {
    let desk = Desk::new().await;
    let mut failed = run("failed", 2);
    failed["reason"] = json!("dpkg ended with status 1");
    desk.double
        .answer("GET os-update-runs/osupdaterun-00000001", failed);
    let line = format!(
        "evenkeel run watch osupdaterun-00000001 --server {}",
        desk.server
    );
    let (text, ending) = desk.bare(&line, "").await.expect("it can be watched");
    assert_eq!(ending, Ending::RunNotSucceeded);
    let last = text.lines().last().expect("a line");
    assert_eq!(
        last,
        "run osupdaterun-00000001 failed: dpkg ended with status 1"
    );
}

#[tokio::test]
async fn a_watch_ends_in_time() {
    let desk = Desk::new().await;
    desk.double.answer(
        "GET os-update-runs/osupdaterun-00000001",
        run("applying", 2),
    );
    let line = "evenkeel run watch osupdaterun-00000001 --interval 1ms --timeout 20ms";
    insta::assert_snapshot!(desk.fail(line).await, @r"
    the run has not ended in the time that was given
    hint: it goes on without being watched; give a longer --timeout to see its end
    ");
}

#[tokio::test]
async fn a_node_that_is_up_to_date_would_change_nothing() {
    let desk = Desk::new().await;
    let mut done = decision();
    done["reason"] = json!({"code": "up_to_date", "text": "it is as the policy wishes"});
    done["policy"]["target"]["packages"] = json!(["jq=1.7", "vim"]);
    desk.double
        .answer("GET compute/hosts/host-00000001", host())
        .answer("GET compute/instances/inst-00000001/decision", done);
    let text = desk.run("evenkeel update plan host-00000001").await;
    assert!(text.contains("nothing that the node knows of"), "{text}");
    assert!(!text.contains("1.7"), "{text}");
}
