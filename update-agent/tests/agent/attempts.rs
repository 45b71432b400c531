//! What the agent does for each decision of the server, and how each attempt ends.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use chrono::TimeDelta;
use evenkeel_update_agent::agent::AgentError;
use evenkeel_update_agent::history::read_history;
use evenkeel_update_agent::model::{
    EventKind, Failure, FailureKind, HeldBackCause, ModuleParts, PackageRules, UpdateTarget,
};
use evenkeel_update_agent::node::load_credential;
use evenkeel_update_agent::status;

use crate::support::node::{TestNode, latest_target_with, package_report, package_target};

fn last_event_kind(node: &TestNode) -> EventKind {
    node.server().only_attempt().last().unwrap().kind.clone()
}

fn failure(node: &TestNode) -> Failure {
    last_event_kind(node).failure().expect("a failure").clone()
}

#[tokio::test]
async fn inside_the_window_the_node_is_updated_and_reports_it() {
    let node = TestNode::in_window();
    node.run_once().await.unwrap();
    assert_eq!(node.system.listing(), "app 2 installed\nlib 2 installed");
    assert_eq!(node.server().story(), "downloading, downloaded, began, verify begun, finished");
    assert!(node.packages().automatic.contains("lib"));
    let log = node.system.take_log();
    assert_eq!(log, ["refresh", "download app=2 lib=2", "install", "mark"]);
    assert_eq!(node.state_files(), [""; 0]);
}

#[tokio::test]
async fn outside_the_window_everything_is_downloaded_and_nothing_is_changed() {
    let node = TestNode::new();
    node.server().target = Some(package_target("app", Some("2")));
    node.run_once().await.unwrap();
    assert_eq!(node.server().story(), "downloading, downloaded");
    assert_eq!(node.system.listing(), "app 1 installed\nlib 1 installed");

    node.system.take_log();
    node.server().window_open = true;
    node.run_once().await.unwrap();

    assert_eq!(node.system.listing(), "app 2 installed\nlib 1 installed");
    let log = node.system.take_log();
    assert_eq!(log, ["install"], "nothing is fetched twice");
}

#[tokio::test]
async fn a_download_that_was_damaged_meanwhile_is_repeated_before_the_change() {
    let node = TestNode::new();
    node.server().target = Some(package_target("app", None));
    node.run_once().await.unwrap();
    let file = "/var/lib/evenkeel-agent/archives/app_2_all.deb";
    std::fs::write(node.paths().inside(file), "noise").unwrap();
    node.system.take_log();
    node.server().window_open = true;
    node.run_once().await.unwrap();
    assert_eq!(node.system.take_log(), ["download app=2", "install"]);
    assert_eq!(node.system.listing(), "app 2 installed\nlib 1 installed");
}

#[tokio::test]
async fn a_withdrawn_update_is_cancelled_and_cleaned_up() {
    let node = TestNode::new();
    node.server().target = Some(package_target("app", None));
    node.run_once().await.unwrap();
    node.server().target = None;
    node.run_once().await.unwrap();
    assert_eq!(node.server().story(), "downloading, downloaded, cancelled");
    assert_eq!(node.state_files(), [""; 0]);
}

#[tokio::test]
async fn a_replaced_update_is_cancelled_in_favour_of_the_new_one() {
    let node = TestNode::new();
    node.server().target = Some(package_target("app", None));
    node.run_once().await.unwrap();
    node.server().target = Some(package_target("lib", None));
    node.server().window_open = true;
    // This server offers a finished target again unless the report of the attempt has arrived.
    node.server().forgetful = true;
    node.run_once().await.unwrap();
    assert_eq!(node.system.listing(), "app 1 installed\nlib 2 installed");
    let ends: Vec<_> = node
        .server()
        .reported_events
        .values()
        .map(|events| events.last().unwrap().kind.name())
        .collect();
    assert!(ends.contains(&"cancelled") && ends.contains(&"finished"), "{ends:?}");
}

#[tokio::test]
async fn an_update_without_downloads_is_not_reported_and_not_retried_soon() {
    let node = TestNode::new();
    node.server().target = Some(package_target("app", Some("1")));
    let mut agent = node.agent();
    agent.run_once().await.unwrap();
    assert!(node.server().reported_events.is_empty());
    node.system.take_log();
    agent.run_once().await.unwrap();
    assert!(node.system.take_log().is_empty());
    node.clock.advance(TimeDelta::hours(2));
    agent.run_once().await.unwrap();
    assert_eq!(node.system.take_log(), ["refresh"]);
}

#[tokio::test]
async fn the_download_limit_of_the_policy_also_applies_to_the_lists() {
    let node = TestNode::in_window();
    let rules = PackageRules { download_bytes_per_second: 2_048, ..PackageRules::default() };
    node.server().target = Some(latest_target_with(rules));
    let mut agent = node.agent();
    agent.run_once().await.unwrap();
    let limit = "Acquire::http::Dl-Limit=2";
    // The policy comes with the first answer, and the plan uses the lists that were fetched before.
    assert_eq!(node.packages().list_rates, [""]);
    node.server().target = None;
    node.clock.advance(TimeDelta::hours(4));
    agent.run_once().await.unwrap();
    assert_eq!(node.packages().list_rates, ["", limit]);
}

#[tokio::test]
async fn a_node_that_is_up_to_date_has_nothing_to_do() {
    let node = TestNode::in_window();
    node.server().target = Some(package_target("app", Some("1")));
    node.run_once().await.unwrap();
    assert_eq!(node.server().story(), "nothing to do");
    assert_eq!(node.server().start_requests, 0);
}

#[tokio::test]
async fn in_minimal_steps_a_failed_group_stops_the_following_ones() {
    let rules = PackageRules { minimal_steps: true, ..PackageRules::default() };
    let node = TestNode::in_window();
    node.server().target = Some(latest_target_with(rules.clone()));
    node.run_once().await.unwrap();
    let log = node.system.take_log();
    assert_eq!(log, ["refresh", "download app=2 lib=2", "install", "install", "mark"]);
    assert_eq!(node.system.listing(), "app 2 installed\nlib 2 installed");

    let node = TestNode::in_window();
    node.packages().broken.insert("app".into());
    node.server().target = Some(latest_target_with(rules));
    node.run_once().await.unwrap_err();
    assert_eq!(node.system.listing(), "app 2 half-configured\nlib 1 installed");
    let results = package_report(node.server().only_attempt().last().unwrap()).results;
    let states = results.iter().map(|result| (result.version.as_str(), result.state.as_str()));
    assert_eq!(states.collect::<Vec<_>>(), [("2", "half-configured"), ("1", "installed")]);
}

/// apt may have downloaded packages ahead of the update, such as `apt-daily` does.
#[tokio::test]
async fn a_package_in_the_cache_of_apt_is_not_downloaded_again() {
    let node = TestNode::in_window();
    let cache = node.paths().inside("/var/cache/apt/archives");
    fs::create_dir_all(&cache).unwrap();
    fs::write(cache.join("app_2_all.deb"), "the package app in version 2").unwrap();
    fs::write(cache.join("lib_2_all.deb"), "another text, the same size!").unwrap();
    node.run_once().await.unwrap();
    let log = node.system.take_log();
    assert_eq!(log, ["refresh", "download lib=2", "install", "mark"]);
    assert_eq!(node.system.listing(), "app 2 installed\nlib 2 installed");
    assert!(cache.join("app_2_all.deb").exists(), "the cache is unchanged");
}

/// Writes a limits file, as the owner of the machine does.
fn write_limits(node: &TestNode, limits: &str) {
    let folder = node.paths().inside("/etc/evenkeel");
    fs::create_dir_all(&folder).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
    let file = folder.join("limits.toml");
    fs::write(&file, limits).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
}

#[tokio::test]
async fn output_that_the_owner_filters_does_not_reach_the_server() {
    for limits in [
        "[reports]\nfailure_log_filter = [\"*ON PURPOSE\"]\n",
        "[reports]\nfailure_logs = \"none\"\n",
    ] {
        let node = TestNode::in_window();
        node.packages().broken.insert("app".into());
        write_limits(&node, limits);
        node.run_once().await.unwrap_err();
        let events = format!("{:?}", node.server().only_attempt());
        assert!(!events.contains("fails on purpose"), "{events}");
        assert!(events.contains("machine's owner"), "{events}");
        // On the node itself the output is complete.
        let history = read_history(&node.paths().history()).unwrap();
        assert!(history[0].log.contains("fails on purpose"), "{history:?}");
    }
}

#[tokio::test]
async fn an_attempt_that_changes_nothing_reports_what_is_held_back() {
    let node = TestNode::in_window();
    node.packages().held.insert("app".into());
    node.packages().blocked.insert("lib".into());
    node.run_once().await.unwrap();
    assert_eq!(node.server().story(), "nothing to do");
    let report = package_report(node.server().only_attempt().last().unwrap());
    let held_back = report.held_back.iter().map(|package| (package.name.as_str(), package.cause));
    assert_eq!(
        held_back.collect::<Vec<_>>(),
        [("app", HeldBackCause::Hold), ("lib", HeldBackCause::Dependencies)]
    );
}

/// A script of one package may hang while hundreds of others are unpacked.
#[tokio::test]
async fn what_apt_left_unpacked_at_its_timeout_is_configured() {
    let node = TestNode::in_window();
    node.packages().killed_at_timeout = true;
    node.run_once().await.unwrap();
    assert_eq!(node.system.listing(), "app 2 installed\nlib 2 installed");
    assert!(node.server().story().ends_with("finished"));
    let log = node.system.take_log();
    let position = |what: &str| log.iter().position(|line| line == what);
    assert!(position("install").unwrap() < position("dpkg --configure").unwrap(), "{log:?}");
    let report = node.server().only_attempt().last().unwrap().report.clone().unwrap();
    assert!(report.remarks[0].contains("was killed"), "{:?}", report.remarks);
}

#[tokio::test]
async fn a_failing_package_script_ends_the_attempt_with_the_output_of_dpkg() {
    let node = TestNode::in_window();
    node.packages().broken.insert("app".into());
    let error = node.run_once().await.unwrap_err();
    assert!(matches!(error, AgentError::Attempt(_)), "{error}");
    let EventKind::Failed { failure } = last_event_kind(&node) else { panic!("a failure") };
    let results = package_report(node.server().only_attempt().last().unwrap()).results;
    assert_eq!(failure.kind, FailureKind::Apply);
    assert!(failure.log.contains("app: postinst fails on purpose"), "{}", failure.log);
    assert!(failure.reason.contains("app is 2 and half-configured"), "{}", failure.reason);
    let states: Vec<_> = results
        .iter()
        .map(|result| format!("{} {} {}", result.name, result.version, result.state))
        .collect();
    assert_eq!(states, ["app 2 half-configured", "lib 2 installed"]);

    node.system.take_log();
    node.run_once().await.unwrap();
    let log = node.system.take_log();
    assert_eq!(log, ["refresh"], "it is not tried again");
    assert!(node.server().facts.as_ref().unwrap().audit.contains("app"));
}

#[tokio::test]
async fn a_half_configured_package_is_finished_once_its_cause_is_fixed() {
    let node = TestNode::in_window();
    node.packages().broken.insert("app".into());
    node.run_once().await.unwrap_err();
    node.packages().broken.clear();
    node.server().reported_events.clear();
    node.run_once().await.unwrap();
    assert_eq!(node.system.listing(), "app 2 installed\nlib 2 installed");
    assert!(node.server().story().ends_with("finished"));
}

#[tokio::test]
async fn a_failed_update_is_not_retried_in_a_loop_even_if_the_server_offers_it() {
    let node = TestNode::in_window();
    node.packages().broken.insert("app".into());
    node.server().forgetful = true;
    let mut agent = node.agent();
    agent.run_once().await.unwrap_err();
    assert_eq!(node.server().reported_events.len(), 1);
}

#[tokio::test]
async fn a_plan_that_would_remove_a_package_is_refused() {
    let node = TestNode::in_window();
    node.packages().removals.push("lib".into());
    node.run_once().await.unwrap_err();
    let failure = failure(&node);
    assert_eq!(failure.kind, FailureKind::Plan);
    assert_eq!(failure.reason, "it would remove lib");
    assert_eq!(node.system.listing(), "app 1 installed\nlib 1 installed");
}

#[tokio::test]
async fn an_invalid_package_name_never_reaches_a_command_line() {
    let node = TestNode::in_window();
    for name in ["-oAPT::Update::Pre-Invoke::=id", "app;id", "app-"] {
        node.server().reported_events.clear();
        node.server().target = Some(package_target(name, None));
        node.run_once().await.unwrap_err();
        let failure = failure(&node);
        assert_eq!(failure.kind, FailureKind::Plan);
        assert!(failure.reason.ends_with("is not a package name"), "{failure}");
    }
}

#[tokio::test]
async fn an_unknown_kind_of_update_is_unsupported() {
    let node = TestNode::in_window();
    node.server().target =
        Some(UpdateTarget { digest: "image".into(), spec: ModuleParts::default() });
    node.run_once().await.unwrap_err();
    assert_eq!(failure(&node).kind, FailureKind::Unsupported);
}

#[tokio::test]
async fn an_unknown_kind_of_update_is_reported_before_its_window_opens() {
    let node = TestNode::new();
    node.server().target =
        Some(UpdateTarget { digest: "image".into(), spec: ModuleParts::default() });
    let mut agent = node.agent();
    agent.run_once().await.unwrap_err();
    assert_eq!(node.server().story(), "failed");
    assert_eq!(failure(&node).kind, FailureKind::Unsupported);
    node.server().forgetful = true;
    agent.run_once().await.unwrap_err();
    assert_eq!(node.server().reported_events.len(), 1, "one attempt");
}

#[tokio::test]
async fn a_failing_mark_is_reported_and_does_not_fail_the_attempt() {
    let node = TestNode::in_window();
    node.packages().mark_error = "E: extended_states cannot be written".into();
    node.run_once().await.unwrap();
    assert!(node.server().story().ends_with("verify begun, finished"));
    let end = status::read_status(&node.paths().status()).unwrap().last_end;
    let end = end.unwrap();
    assert_eq!(end.outcome, "finished");
    assert_eq!(
        end.remarks,
        ["mark: apt-mark auto ended with status 100: E: extended_states cannot be written:\n\
             E: extended_states cannot be written"]
    );
}

#[tokio::test(start_paused = true)]
async fn sources_that_cannot_be_refreshed_are_tried_again_and_then_reported() {
    let node = TestNode::in_window();
    for (text, kind) in [
        ("E: The repository does not have a Release file.", FailureKind::Refresh),
        ("E: GPG error: NO_PUBKEY 1", FailureKind::Signature),
    ] {
        node.server().reported_events.clear();
        node.packages().refresh_error = text.into();
        node.run_once().await.unwrap_err();
        let failure = failure(&node);
        assert_eq!(failure.kind, kind);
        assert!(failure.reason.contains(text), "{failure}");
    }
}

#[tokio::test]
async fn a_node_that_another_program_changed_since_the_plan_is_not_touched() {
    let node = TestNode::new();
    node.server().target = Some(package_target("app", Some("2")));
    node.run_once().await.unwrap();
    let other = ("3".to_owned(), "installed".to_owned());
    node.packages().installed.insert("app".into(), other);
    node.server().window_open = true;
    node.run_once().await.unwrap_err();
    let failure = failure(&node);
    assert_eq!(failure.kind, FailureKind::Plan);
    assert!(failure.reason.ends_with("since the plan was made: app"), "{failure}");
    assert_eq!(node.server().start_requests, 0);
}

#[tokio::test]
async fn without_a_start_permit_nothing_is_changed_and_everything_stays_ready() {
    let node = TestNode::in_window();
    node.server().refuse_start = true;
    node.run_once().await.unwrap();
    assert_eq!(node.server().story(), "downloading, downloaded");
    assert_eq!(node.system.listing(), "app 1 installed\nlib 1 installed");
    node.server().refuse_start = false;
    node.system.take_log();
    node.run_once().await.unwrap();
    assert_eq!(node.system.take_log(), ["install", "mark"]);
}

#[tokio::test]
async fn a_server_that_lost_events_receives_them_again() {
    let node = TestNode::in_window();
    node.server().forgotten_reports = 2;
    node.run_once().await.unwrap();
    assert_eq!(node.server().story(), "downloading, downloaded, began, verify begun, finished");
}

#[tokio::test]
async fn a_server_that_never_acknowledges_ends_the_run_with_an_error() {
    let node = TestNode::in_window();
    node.server().forgotten_reports = u32::MAX;
    let error = node.run_once().await.unwrap_err();
    assert!(matches!(error, AgentError::NoProgress), "{error}");
}

#[tokio::test]
async fn a_new_credential_is_stored_and_used() {
    let node = TestNode::new();
    node.server().renewal = Some("second".into());
    node.run_once().await.unwrap();
    assert_eq!(node.server().renewed, ["second"]);
    assert_eq!(load_credential(&node.paths()).unwrap().unwrap().reveal(), "second");
}

#[tokio::test]
async fn a_new_credential_that_cannot_be_stored_is_used_all_the_same() {
    let node = TestNode::new();
    // A file cannot replace a folder.
    std::fs::create_dir_all(node.paths().credential()).unwrap();
    node.server().renewal = Some("second".into());
    node.run_once().await.unwrap();
    assert_eq!(node.server().renewed, ["second"]);
}

#[tokio::test]
async fn an_unreachable_server_fails_a_single_run() {
    let node = TestNode::new();
    node.server().unanswered_polls = 1;
    let error = node.run_once().await.unwrap_err();
    assert!(error.to_string().starts_with("the server cannot be reached"), "{error}");
}

#[tokio::test]
async fn facts_are_sent_only_when_they_changed() {
    let node = TestNode::new();
    let mut agent = node.agent();
    agent.run_once().await.unwrap();
    assert_eq!(node.server().polls, 3, "the server asks for the facts, then for the package list");
    let available: Vec<_> = {
        let server = node.server();
        let facts = server.facts.as_ref().unwrap();
        facts.available.iter().map(|package| package.name.clone()).collect()
    };
    assert_eq!(available, ["app", "lib"]);
    agent.run_once().await.unwrap();
    assert_eq!(node.server().polls, 4);
    std::fs::create_dir_all(node.paths().inside("/run")).unwrap();
    std::fs::write(node.paths().inside("/run/reboot-required"), "").unwrap();
    agent.run_once().await.unwrap();
    assert_eq!(node.server().polls, 5, "the agent noticed that the facts had changed");
    assert!(node.server().facts.as_ref().unwrap().reboot_required);
}

#[tokio::test(start_paused = true)]
async fn the_daemon_waits_for_the_interval_of_the_server_and_longer_after_failures() {
    let node = TestNode::new();
    node.server().unanswered_polls = 3;
    let mut agent = node.agent();
    let started = tokio::time::Instant::now();
    let watch = async {
        while node.server().polls < 7 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        node.stop.cancel();
    };
    tokio::join!(agent.run(), watch);
    // Three failures (1 s, 2 s, 4 s, each with jitter), three polls because the server wants data, then a minute.
    let elapsed = started.elapsed();
    let expected = Duration::from_mins(1)..Duration::from_secs(80);
    assert!(expected.contains(&elapsed), "{elapsed:?}");
}

#[tokio::test]
async fn an_agent_that_was_stopped_starts_nothing() {
    let node = TestNode::in_window();
    node.stop.cancel();
    let error = node.run_once().await.unwrap_err();
    assert!(matches!(error, AgentError::Stopped), "{error}");
    assert_eq!(node.server().polls, 0);
    assert_eq!(node.system.listing(), "app 1 installed\nlib 1 installed");
}
