//! `explain`, and runs.

use evenkeel_cli::Ending;
use serde_json::{Value, json};

use crate::TestCli;

fn host() -> Value {
    json!({"resourceId": "host-00000001", "name": "edge-01", "instance": {"resourceId": "inst-00000001"}})
}

fn instance() -> Value {
    json!({
        "resourceId": "inst-00000001", "host": {"resourceId": "host-00000001", "name": "edge-01"},
        "effectiveUpdatePolicy": {"resourceId": "osupdatepolicy-00000001", "name": "edge 3", "level": "region",
                                  "assignedTo": "region-00000001"},
        "conditions": [{"type": "not_newer", "message": "image 3.0.2 is older than what runs", "since": "2026-03-01T10:00:00Z"}],
    })
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
        "mayStart": false,
        "reason": {"code": "window_closed", "text": "the window opens at 2026-03-01T22:00:00Z",
                   "data": {"opens": "2026-03-01T22:00:00Z"}},
        "nextChange": "2026-03-01T22:00:00Z",
        "policy": {"resourceId": "osupdatepolicy-00000001", "name": "security", "level": "instance", "assignedTo": "inst-00000001",
                   "target": {"kind": "packages", "mode": "exactly", "packages": ["curl", "jq=1.7", "vim"]}},
        "windows": [{"start": "2026-03-01T22:00:00Z", "end": "2026-03-02T00:00:00Z",
                     "scheduleId": "singlesche-00000001", "openedBy": "single_schedule", "open": false}],
        "availableUpdates": [
            {"name": "curl", "architecture": "amd64", "installed": "8.4", "available": "8.5"},
            {"name": "bash", "architecture": "amd64", "installed": "5.1", "available": "5.2"},
        ],
    })
}

const FILTER: &str = "GET os-update-runs?filter=instance.resourceId == \"inst-00000001\"\
                      ?orderBy=startTime desc, resourceId desc";

/// A command line with a server that has one host, its instance and this decision.
async fn cli_with_decision(decision: Value) -> TestCli {
    cli_with_instance(instance(), decision).await
}

/// A command line with a server that has one host, this instance and this decision.
async fn cli_with_instance(instance: Value, decision: Value) -> TestCli {
    let cli = TestCli::new().await;
    cli.fake_server
        .answer("GET compute/hosts/host-00000001", host())
        .answer("GET compute/instances/inst-00000001", instance)
        .answer("GET compute/instances/inst-00000001/decision", decision);
    cli
}

#[tokio::test]
async fn an_explanation_names_the_action_and_its_reason() {
    let cli = cli_with_decision(decision()).await;
    insta::assert_snapshot!(cli.run("evenkeel explain host-00000001").await);
    assert_eq!(cli.run("evenkeel explain inst-00000001 -q").await, "idle\n");
    let json = cli.run("evenkeel explain inst-00000001 -o json").await;
    let json: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["reason"]["code"], "window_closed");
}

#[tokio::test]
async fn an_explanation_names_everything_that_matters() {
    let mut full = decision();
    full["reason"] = json!({"code": "paused", "text": "the site is paused: \"storm\""});
    full["policy"] = json!({
        "resourceId": "osupdatepolicy-00000001", "name": "edge 3", "level": "region", "assignedTo": "region-00000001",
        "target": {"kind": "image", "osId": "os-00000003", "imageId": "3.0.2", "profileName": "edge"},
    });
    full["skippedPolicies"] = json!([{
        "resourceId": "osupdatepolicy-00000002", "name": "tools", "level": "site", "assignedTo": "site-00000001",
        "reason": "it is for package-managed systems",
    }]);
    full["slots"] = json!({
        "assignedTo": "region-00000001", "maxConcurrent": 10, "stopAfterFailures": 2, "heldByOthers": 3, "holdsSlot": true, "failures": 2,
    });
    full["pauses"] = json!([{"scope": "site-00000001", "reason": "storm", "by": "alice", "since": "2026-03-01T11:00:00Z"}]);
    full["order"] = json!({
        "instanceId": "inst-00000001", "kind": "now", "since": "2026-03-01T11:30:00Z", "until": "2026-03-01T12:30:00Z",
        "reason": "ticket 7", "by": "bob",
    });
    full["silentSince"] = json!("2026-03-01T09:00:00Z");
    full["grant"] = json!({
        "windows": [{"start": "2026-03-01T22:00:00Z", "end": "2026-03-02T00:00:00Z"}], "expiresAt": "2026-03-08T12:00:00Z",
    });
    full["run"] = json!({"resourceId": "osupdaterun-00000001", "state": "staged"});
    full["windows"] = json!([{
        "start": "2026-03-01T11:30:00Z", "end": "2026-03-01T12:30:00Z", "scheduleId": "", "openedBy": "order", "open": true,
    }]);
    let cli = cli_with_decision(full).await;
    insta::assert_snapshot!(cli.run("evenkeel explain inst-00000001").await);
}

#[tokio::test]
async fn an_explanation_shows_what_is_known_before_and_after_the_node_plans() {
    let mut decision = decision();
    decision["availableUpdates"] = json!([]);
    decision["policy"]["target"]["packages"] = json!(["demo-service"]);
    let cli = cli_with_decision(decision.clone()).await;
    let text = cli.run("evenkeel explain inst-00000001").await;
    let unknown = "demo-service  -             unknown    not known before the node plans it\n";
    assert!(text.contains(unknown) && !text.contains("none reported"), "{text}");

    let mut missed = decision.clone();
    missed["lastPlan"] = json!([
        {"name": "demo-service", "architecture": "amd64", "action": "install", "version": "1.0", "status": "planned"},
    ]);
    let text = cli_with_decision(missed).await.run("evenkeel explain inst-00000001").await;
    let planned = "demo-service  amd64         install  -          1.0\n";
    assert!(text.contains(planned) && !text.contains("May concern"), "{text}");

    decision["run"] = json!({"resourceId": "osupdaterun-00000001", "state": "staged", "packages": [
        {"name": "demo-service", "architecture": "amd64", "action": "install", "version": "1.0", "status": "planned"},
        {"name": "demo-lib", "architecture": "amd64", "action": "upgrade", "version": "2", "before": "1", "status": "planned"},
    ]});
    let cli = cli_with_decision(decision).await;
    let text = cli.run("evenkeel explain inst-00000001").await;
    let planned = "Would change:\n\
                   PACKAGE       ARCHITECTURE  ACTION   INSTALLED  TARGET\n\
                   demo-service  amd64         install  -          1.0\n\
                   demo-lib      amd64         upgrade  1          2\n";
    assert!(text.contains(planned) && !text.contains("May concern"), "{text}");
}

#[tokio::test]
async fn a_limit_of_one_node_is_counted_in_the_singular() {
    let mut one = decision();
    one["slots"] =
        json!({"assignedTo": "project", "maxConcurrent": 1, "heldByOthers": 1, "holdsSlot": false});
    let text = cli_with_decision(one).await.run("evenkeel explain inst-00000001").await;
    assert!(text.contains("1 of 1 node\n"), "{text}");
}

#[tokio::test]
async fn an_unknown_name_may_be_meant_as_a_host() {
    let cli = TestCli::new().await;
    insta::assert_snapshot!(cli.fail("evenkeel explain nosuch").await, @r"
    there is no instance or host `nosuch`
    hint: `evenkeel host list` lists all hosts, `evenkeel instance list` all instances
    ");
}

#[tokio::test]
async fn an_explanation_shows_until_when_an_update_may_start() {
    let mut open = decision();
    open["act"] = json!("apply");
    open["mayStart"] = json!(true);
    open["startDeadline"] = json!("2026-03-01T13:00:00Z");
    let cli = cli_with_decision(open).await;
    let text = cli.run("evenkeel explain inst-00000001").await;
    assert!(text.contains("action       update\n"), "{text}");
    assert!(text.contains("may start    yes, until 2026-03-01T13:00:00Z\n"), "{text}");
}

#[tokio::test]
async fn a_policy_for_the_latest_versions_lists_all_available_updates() {
    let mut latest = decision();
    latest["policy"]["target"] = json!({"mode": "latest"});
    let cli = cli_with_decision(latest).await;
    let text = cli.run("evenkeel explain inst-00000001").await;
    assert!(text.contains("desired      latest\n"), "{text}");
    assert!(text.contains("bash     amd64         5.1        5.2\n"), "{text}");
}

#[tokio::test]
async fn updates_that_the_policy_excludes_or_that_are_too_young_are_not_listed() {
    let mut careful = decision();
    careful["policy"]["target"] = json!({
        "mode": "latest", "packageRules": {"exclude": ["ba*"], "minAgeDays": 1},
    });
    careful["availableUpdates"][1]["excluded"] = json!(true);
    let young = json!({"name": "sudo", "architecture": "amd64", "installed": "1", "available": "2", "tooYoung": true});
    careful["availableUpdates"].as_array_mut().expect("a list").push(young);
    let cli = cli_with_decision(careful).await;
    let text = cli.run("evenkeel explain inst-00000001").await;
    let rules = "rules        without ba*; only versions known for at least 1 day\n";
    assert!(text.contains(rules), "{text}");
    assert!(text.contains("curl     amd64         8.4        8.5\n"), "{text}");
    assert!(!text.contains("bash") && !text.contains("sudo"), "{text}");

    let mut young = decision();
    young["policy"]["target"] = json!({"mode": "latest", "packageRules": {"minAgeDays": 3}});
    for n in 0..2 {
        young["availableUpdates"][n]["tooYoung"] = json!(true);
    }
    let text = cli_with_decision(young).await.run("evenkeel explain inst-00000001").await;
    assert!(!text.contains("May concern:"), "{text}");
    assert!(text.contains("may concern  none of the updates that the node reports\n"), "{text}");
}

#[tokio::test]
async fn a_host_without_a_policy_has_no_changes() {
    let mut idle = decision();
    idle["policy"] = Value::Null;
    let text = cli_with_decision(idle).await.run("evenkeel explain inst-00000001").await;
    assert!(text.contains("may concern  nothing: no policy applies\n"), "{text}");
    assert!(!text.contains("TARGET\n"), "{text}");
}

#[tokio::test]
async fn exact_versions_are_compared_with_what_is_installed() {
    let mut exact = decision();
    exact["policy"]["target"]["packages"] = json!([
        "curl=8.4",
        "openssl=3.0.16",
        "libssl3:amd64=3.0.17",
        "bash:any",
        "jq:native",
        "vim=9"
    ]);
    let mut full = instance();
    full["runtimePackages"] = json!(
        r#"[{"name":"openssl","version":"3.0.16","architecture":"amd64"},
            {"name":"libssl3","version":"3.0.15","architecture":"amd64"},
            {"name":"jq","version":"1.7","architecture":"amd64"}]"#
    );
    let cli = cli_with_instance(full, exact).await;
    let text = cli.run("evenkeel explain inst-00000001").await;
    let rows = "May concern:\n\
                PACKAGE  ARCHITECTURE  INSTALLED  TARGET\n\
                libssl3  amd64         3.0.15     3.0.17\n\
                bash     amd64         5.1        5.2\n\
                vim      -             -          9\n";
    assert!(text.contains(rows), "{text}");
}

#[tokio::test]
async fn unknown_updates_are_explained_as_unknown() {
    let mut latest = decision();
    latest["policy"]["target"] = json!({"mode": "latest"});
    latest["availableUpdates"] = json!([]);
    let cli = cli_with_decision(latest.clone()).await;
    let unreported = "the node has not reported the state of its package lists yet\n";
    let text = cli.run("evenkeel explain inst-00000001").await;
    assert!(text.contains(&format!("may concern  unknown: {unreported}")), "{text}");
    let error = cli.fail("evenkeel host updates host-00000001").await;
    assert!(error.contains(&format!("updates are unknown: {unreported}")), "{error}");

    let mut stale = instance();
    stale["packageListsError"] = json!("no route to host");
    let cli = cli_with_instance(stale, latest).await;
    let text = cli.run("evenkeel explain inst-00000001").await;
    assert!(text.contains("may concern  unknown: no route to host\n"), "{text}");
}

#[tokio::test]
async fn control_characters_of_a_node_are_removed() {
    let mut decision = decision();
    decision["ownerLimits"] = json!("hours 22:00-04:00\u{1b}[2J\r");
    let cli = cli_with_decision(decision).await;
    let text = cli.run("evenkeel explain inst-00000001").await;
    assert!(text.contains("hours 22:00-04:00[2J\n"), "{text}");
}

#[tokio::test]
async fn a_host_without_an_instance_cannot_be_explained() {
    let cli = TestCli::new().await;
    cli.fake_server
        .answer(
            "GET compute/hosts/host-00000001",
            json!({"resourceId": "host-00000001"}),
        )
        .answer(
            "GET compute/hosts",
            json!({"hosts": [{"resourceId": "host-00000001", "name": "edge-01"}], "totalElements": 1, "hasNext": false}),
        )
        .answer(
            "GET compute/instances",
            json!({"instances": [], "totalElements": 0, "hasNext": false}),
        );
    insta::assert_snapshot!(cli.fail("evenkeel explain host-00000001").await, @r"
    host `host-00000001` has no instance yet
    hint: enrol it (`evenkeel-agent enroll`), or create its instance with `evenkeel instance create`
    ");
    let message = cli.fail("evenkeel explain edge-01").await;
    assert!(message.starts_with("host `edge-01` has no instance yet\n"), "{message}");
    let message = cli.fail("evenkeel explain edge-02").await;
    assert!(message.starts_with("there is no instance or host `edge-02`\n"), "{message}");
}

#[tokio::test]
async fn an_instance_shows_its_conditions_and_its_policy() {
    let cli = cli_with_decision(decision()).await;
    insta::assert_snapshot!(cli.run("evenkeel instance get inst-00000001").await);
}

#[tokio::test]
async fn a_run_with_remarks_has_their_number_in_the_list() {
    let mut succeeded = run("succeeded", 3);
    succeeded["report"] = json!({"remarks": ["some package sources could not be used"]});
    let cli = TestCli::new().await;
    let latest_first = "GET os-update-runs?orderBy=startTime desc, resourceId desc";
    cli.fake_server.answer(latest_first, runs(&[succeeded]));
    let text = cli.run("evenkeel run list").await;
    assert!(text.contains("  succeeded, 1 remark  "), "{text}");
}

#[tokio::test]
async fn a_failed_run_shows_its_report_and_failure_log() {
    let mut failed = run("failed", 2);
    failed["report"] = json!({
        "phases": [
            {"phase": "download", "millis": 12_340, "bytes": 12_000_000},
            {"phase": "apply", "millis": 125_000, "bytes": 0},
        ],
        "remarks": ["cron.service was left as it was"],
        "preservedConffiles": ["/etc/curlrc"],
        "restartedServices": ["ssh.service"],
        "rebootRequired": true,
        "rebootReasons": ["linux-image-amd64 requires it"],
        "kernelBefore": "6.1.0-40-amd64",
        "kernelAfter": "6.1.0-41-amd64",
        "heldBack": [{
            "name": "jq", "architecture": "amd64", "version": "1.6", "availableVersion": "1.7",
            "cause": "too_young",
        }],
        "heldBackCounts": [
            {"cause": "hold", "packages": 2}, {"cause": "too_young", "packages": 97},
        ],
        "interruptions": [{
            "cause": "machine_restarted", "phase": "apply", "resumedAt": "2026-03-01T12:00:00Z",
            "bootId": "boot-2",
        }],
    });
    let log_lines: Vec<String> = (0..40).map(|n| format!("line {n}\n")).collect();
    failed["log"] = json!(format!("{}\ndpkg: error\u{1b}[0m\n", log_lines.concat()));
    let cli = TestCli::new().await;
    cli.fake_server.answer("GET os-update-runs/osupdaterun-00000001", failed);
    let text = cli.run("evenkeel run get osupdaterun-00000001").await;
    for expected in [
        "still required\n",
        "6.1.0-40-amd64 -> 6.1.0-41-amd64\n",
        "Reasons for the reboot:\nREASON\nlinux-image-amd64 requires it\n",
        "99 (hold 2, too young 97)\n",
        "  apply  machine restarted\n",
        "jq       amd64         1.6        1.7        too young\n",
        "PHASE     DURATION  DOWNLOADED\ndownload  12.3s     12.0 MB\napply     2m 5s     -\n",
        "Remarks:\nREMARK\ncron.service was left as it was\n",
        "Configuration files with local changes, not replaced:\nFILE\n/etc/curlrc\n",
        "Restarted services:\nUNIT\nssh.service\n",
        "Failure log:\nLINE\nline 11\n",
        "line 39\ndpkg: error[0m\n",
    ] {
        assert!(text.contains(expected), "{expected:?} in {text}");
    }
    let line = "evenkeel run watch osupdaterun-00000001";
    let (watched, ending) = cli.answer(line, "").await.expect("it can be watched");
    assert_eq!(ending, Ending::RunNotSucceeded);
    for expected in [
        "  durations: download 12.3s (12.0 MB), apply 2m 5s\n",
        "  not replaced: /etc/curlrc\n",
        "  interrupted: apply (machine restarted), resumed ",
        "  held back: 99 (hold 2, too young 97)\n",
        "  remark: cron.service was left as it was\n",
        "  reboot required: linux-image-amd64 requires it\n",
        "  kernel: 6.1.0-40-amd64 -> 6.1.0-41-amd64\n",
        "  a reboot is still required\n",
    ] {
        assert!(watched.contains(expected), "{expected:?} in {watched}");
    }
}

#[tokio::test]
async fn a_run_is_shown_with_its_events() {
    let cli = TestCli::new().await;
    cli.fake_server
        .answer("GET os-update-runs/osupdaterun-00000001", run("succeeded", 3))
        .answer("GET compute/hosts/host-00000001", host())
        .answer(FILTER, runs(&[run("succeeded", 0)]));
    insta::assert_snapshot!(cli.run("evenkeel run get osupdaterun-00000001").await);
    insta::assert_snapshot!(cli.run("evenkeel run list --host host-00000001").await);
    let json = cli.run("evenkeel run get osupdaterun-00000001 --output json").await;
    let json: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["packages"][0]["before"], "8.4");
    assert_eq!(json["packages"][0]["after"], "8.5");
    assert_eq!(json["events"].as_array().map(Vec::len), Some(3));
}

#[tokio::test]
async fn a_run_shows_which_of_its_packages_are_security_updates() {
    let cli = TestCli::new().await;
    let mut run = run("succeeded", 3);
    run["packages"] = json!([
        {"name": "curl", "architecture": "amd64", "action": "upgrade", "before": "8.4", "after": "8.5",
         "version": "8.5", "status": "done", "suites": ["bookworm", "bookworm-security"], "security": true},
        {"name": "tzdata", "architecture": "all", "action": "upgrade", "before": "2025a", "after": "2025b",
         "version": "2025b", "status": "done", "suites": ["bookworm"], "security": false},
        {"name": "vim", "architecture": "amd64", "action": "upgrade", "before": "1", "after": "2",
         "version": "2", "status": "done"},
        {"name": "old", "architecture": "all", "action": "remove", "before": "1", "status": "done"},
    ]);
    cli.fake_server.answer("GET os-update-runs/osupdaterun-00000001", run);
    let text = cli.run("evenkeel run get osupdaterun-00000001").await;
    let expected = "\
PACKAGE  ARCHITECTURE  ACTION   BEFORE  AFTER  TARGET  SUITE              SECURITY  STATUS
curl     amd64         upgrade  8.4     8.5    8.5     bookworm-security  yes       done
tzdata   all           upgrade  2025a   2025b  2025b   bookworm           -         done
vim      amd64         upgrade  1       2      2       -                  unknown   done
old      all           remove   1       -      -       -                  -         done
";
    assert!(text.contains(expected), "{text}");
}

#[tokio::test]
async fn a_watched_run_prints_each_event_once() {
    let cli = TestCli::new().await;
    cli.fake_server
        .answer("GET os-update-runs/osupdaterun-00000001", run("downloading", 1))
        .answer("GET os-update-runs/osupdaterun-00000001", run("applying", 2))
        .answer("GET os-update-runs/osupdaterun-00000001", run("applying", 2))
        .answer("GET os-update-runs/osupdaterun-00000001", run("succeeded", 3));
    insta::assert_snapshot!(
        cli.run("evenkeel run watch osupdaterun-00000001 --interval 1ms").await
    );
}

#[tokio::test]
async fn a_watched_host_waits_for_its_next_run() {
    let cli = TestCli::new().await;
    let mut old = run("failed", 0);
    old["resourceId"] = json!("osupdaterun-00000000");
    cli.fake_server
        .answer("GET compute/hosts/host-00000001", host())
        .answer("GET compute/instances/inst-00000001/decision", decision())
        .answer(FILTER, runs(std::slice::from_ref(&old)))
        .answer(FILTER, runs(std::slice::from_ref(&old)))
        .answer(FILTER, runs(std::slice::from_ref(&old)))
        .answer(FILTER, runs(&[old, run("succeeded", 0)]))
        .answer("GET os-update-runs/osupdaterun-00000001", run("succeeded", 3));
    insta::assert_snapshot!(
        cli.run("evenkeel run watch --host host-00000001 --interval 1ms").await
    );
}

#[tokio::test]
async fn a_failed_run_sets_the_exit_code() {
    let cli = TestCli::new().await;
    let mut failed = run("failed", 2);
    failed["reason"] = json!("dpkg ended with status 1");
    cli.fake_server.answer("GET os-update-runs/osupdaterun-00000001", failed);
    let line = format!("evenkeel run watch osupdaterun-00000001 --server {}", cli.server);
    let (text, ending) = cli.bare(&line, "").await.expect("it can be watched");
    assert_eq!(ending, Ending::RunNotSucceeded);
    let last = text.lines().last().expect("a line");
    assert_eq!(last, "run osupdaterun-00000001 failed: dpkg ended with status 1");
}

#[tokio::test]
async fn a_watch_times_out() {
    let cli = TestCli::new().await;
    cli.fake_server.answer("GET os-update-runs/osupdaterun-00000001", run("applying", 2));
    let line = "evenkeel run watch osupdaterun-00000001 --interval 1ms --timeout 20ms";
    insta::assert_snapshot!(cli.fail(line).await, @r"
    the run has not ended within --timeout
    hint: it continues; use a longer --timeout to watch its end
    ");
}

#[tokio::test]
async fn a_node_that_is_up_to_date_has_no_pending_changes() {
    let mut done = decision();
    done["reason"] = json!({"code": "up_to_date", "text": "the node matches the policy"});
    done["policy"]["target"]["packages"] = json!(["jq=1.7", "vim"]);
    let cli = cli_with_decision(done).await;
    let text = cli.run("evenkeel explain host-00000001").await;
    assert!(text.contains("none of the updates that the node reports"), "{text}");
    assert!(!text.contains("TARGET\n"), "{text}");
}
