//! The agent is killed at any point, and the next one resumes.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use chrono::TimeDelta;
use evenkeel_kit::Clock;
use evenkeel_update_agent::agent::AgentError;
use evenkeel_update_agent::journal::FileJournal;
use evenkeel_update_agent::model::{EventKind, FailureKind, InterruptionCause, PackageRules};
use evenkeel_update_agent::runner::{Command, HostRunner, Runner};
use serde_json::Value;

use crate::support::journal::{BreakingJournal, WriteSide};
use crate::support::lock::HOLD_DPKG_LOCK;
use crate::support::node::{TestNode, latest_target, latest_target_with, package_report};

const STORY: &str = "downloading, downloaded, began, verify begun, finished";
const STORY_WITH_REBOOT: &str =
    "downloading, downloaded, began, reboot begun, verify begun, finished";

/// Asserts that a step that the log marks as done is not repeated.
fn assert_nothing_is_done_twice(log: &[String]) {
    for (done, work) in [
        ("journal done-packages-install", &["install", "dpkg --install"][..]),
        ("journal done-packages-mark", &["mark"][..]),
    ] {
        let marked = log.iter().position(|line| line == done).expect(done);
        let again = log[marked..].iter().find(|line| work.contains(&line.as_str()));
        assert_eq!(again, None, "{log:?}");
    }
}

#[tokio::test]
async fn a_kill_at_any_write_of_the_journal_does_not_change_the_result() {
    for side in [WriteSide::Before, WriteSide::After] {
        let mut at = 0;
        loop {
            let node = TestNode::in_window();
            let path = node.paths().journal();
            let journal_that_breaks =
                |at| Box::new(BreakingJournal::new(&path, &node.system, at, side));
            let first = node.agent_with_journal(journal_that_breaks(at)).run_once().await;
            let was_killed = first.is_err();
            if was_killed {
                let kill = first.unwrap_err();
                assert!(matches!(kill, AgentError::Journal(_)), "{kill}");
                node.agent_with_journal(journal_that_breaks(usize::MAX)).run_once().await.unwrap();
            }

            let context = format!("{side:?} write {at}");
            let listing = node.system.listing();
            assert_eq!(listing, "app 2 installed\nlib 2 installed", "{context}");
            assert!(node.packages().automatic.contains("lib"), "{context}");
            assert_eq!(node.server().story(), STORY, "{context}");
            assert_eq!(node.state_files(), [""; 0], "{context}");
            assert_nothing_is_done_twice(&node.system.take_log());
            if !was_killed {
                assert!(at > 9, "an attempt writes its journal more than {at} times");
                break;
            }
            at += 1;
        }
    }
}

#[tokio::test]
async fn two_kills_at_writes_of_the_journal_do_not_change_the_result() {
    for first in 0..10 {
        for second in (0..10).step_by(3) {
            let node = TestNode::in_window();
            let path = node.paths().journal();
            for at in [first, second, usize::MAX] {
                let journal = BreakingJournal::new(&path, &node.system, at, WriteSide::Before);
                node.agent_with_journal(Box::new(journal)).run_once().await.ok();
            }
            assert_eq!(node.server().story(), STORY, "{first} {second}");
            assert_nothing_is_done_twice(&node.system.take_log());
        }
    }
}

/// Runs agents, one of which is killed at a write of the journal, until the attempt has ended. The machine boots when the
/// agent requests it, and also at the kill if that is a power cut. Returns whether an agent was killed.
async fn run_with_kill(node: &TestNode, at: usize, side: WriteSide, power_cut: bool) -> bool {
    let path = node.paths().journal();
    let writes_left = Arc::new(AtomicUsize::new(at));
    let mut was_killed = false;
    for _ in 0..8 {
        let reboot_requests = node.machine().reboot_requests;
        let journal = BreakingJournal::with_counter(&path, &node.system, &writes_left, side);
        let end = node.agent_with_journal(Box::new(journal)).run_once().await;
        let broke = matches!(end, Err(AgentError::Journal(_)));
        // An agent ends when it has to wait for logged-in users.
        let waits = node.machine().has_users && matches!(end, Err(AgentError::Attempt(_)));
        assert!(broke || waits || end.is_ok(), "{end:?}");
        was_killed |= broke;
        if node.machine().reboot_requests > reboot_requests || (broke && power_cut) {
            node.boot();
        }
        node.clock.advance(TimeDelta::minutes(5));
    }
    was_killed
}

#[tokio::test]
async fn a_kill_at_any_write_of_the_journal_does_not_change_the_result_of_a_reboot() {
    for side in [WriteSide::Before, WriteSide::After] {
        for (power_cut, has_users) in [(false, false), (true, false), (false, true), (true, true)] {
            let mut at = 0;
            loop {
                let node = TestNode::in_window();
                node.packages().requires_reboot = true;
                node.machine().has_users = has_users;
                let was_killed = run_with_kill(&node, at, side, power_cut).await;

                let context =
                    format!("{side:?} write {at}, power cut: {power_cut}, users: {has_users}");
                let listing = node.system.listing();
                assert_eq!(listing, "app 2 installed\nlib 2 installed", "{context}");
                let story = node.server().story();
                // A power cut may have acted as the reboot, before the agent has requested it.
                let expected = if power_cut && story == STORY { STORY } else { STORY_WITH_REBOOT };
                assert_eq!(story, expected, "{context}");
                assert_eq!(node.state_files(), [""; 0], "{context}");
                assert_nothing_is_done_twice(&node.system.take_log());
                let reboot_requests = node.machine().reboot_requests;
                assert!(
                    reboot_requests == 1 || (power_cut && reboot_requests == 0),
                    "{context}: {reboot_requests}"
                );
                if !was_killed {
                    assert!(at > 12, "an attempt writes its journal more than {at} times");
                    break;
                }
                at += 1;
            }
        }
    }
}

/// Starts an agent that is killed when apt has unpacked one package.
async fn kill_during_apt(node: &TestNode) {
    node.packages().hang = true;
    let mut agent = node.agent();
    tokio::select! {
        end = agent.run_once() => panic!("it ended: {end:?}"),
        () = node.system.hanging.notified() => {}
    }
    assert_eq!(node.system.listing(), "app 2 unpacked\nlib 1 installed");
}

#[tokio::test]
async fn a_kill_during_apt_is_repaired_from_the_stored_files() {
    let node = TestNode::in_window();
    kill_during_apt(&node).await;
    node.system.take_log();
    // The window has closed meanwhile. A change that has started is finished.
    node.server().window_open = false;

    node.run_once().await.unwrap();

    assert_eq!(node.system.listing(), "app 2 installed\nlib 2 installed");
    assert_eq!(node.server().story(), STORY);
    let log = node.system.take_log();
    assert_eq!(log[..3], ["dpkg --install", "dpkg --configure", "mark"], "{log:?}");
    assert!(node.packages().automatic.contains("lib"));
}

#[tokio::test]
async fn each_interruption_is_reported_and_a_phase_includes_the_time_without_an_agent() {
    let node = TestNode::in_window();
    let began = node.clock.now();
    kill_during_apt(&node).await;
    node.clock.advance(TimeDelta::minutes(3));
    // The second agent records the interruption, and is killed when it has taken the step.
    let journal = BreakingJournal::new(&node.paths().journal(), &node.system, 1, WriteSide::Before);
    node.agent_with_journal(Box::new(journal)).run_once().await.unwrap_err();
    node.clock.advance(TimeDelta::minutes(2));
    node.boot();
    node.run_once().await.unwrap();

    assert_eq!(node.server().story(), STORY);
    let server = node.server();
    let report = server.only_attempt().last().unwrap().report.clone().unwrap();
    let interruptions: Vec<_> = report
        .interruptions
        .iter()
        .map(|one| (one.cause, one.phase.as_str(), one.resumed_at, one.boot_id.as_str()))
        .collect();
    let after = |minutes| began + TimeDelta::minutes(minutes);
    assert_eq!(
        interruptions,
        [
            (InterruptionCause::AgentStopped, "apply", after(3), "boot-1"),
            (InterruptionCause::MachineRestarted, "apply", after(5), "boot-2"),
        ]
    );
    let apply = report.phases.iter().find(|span| span.phase == "apply").unwrap();
    assert_eq!(apply.millis, 300_000);
}

#[tokio::test]
async fn an_update_without_interruptions_and_a_planned_reboot_report_none() {
    let node = TestNode::in_window();
    node.packages().requires_reboot = true;
    node.run_once().await.unwrap();
    node.boot();
    node.run_once().await.unwrap();
    assert_eq!(node.server().story(), STORY_WITH_REBOOT);
    let server = node.server();
    let report = server.only_attempt().last().unwrap().report.clone().unwrap();
    assert!(report.interruptions.is_empty(), "{:?}", report.interruptions);
}

#[tokio::test]
async fn an_update_in_minimal_steps_is_completed_after_a_kill_between_its_groups() {
    let node = TestNode::in_window();
    let rules = PackageRules { minimal_steps: true, ..PackageRules::default() };
    node.server().target = Some(latest_target_with(rules));
    kill_during_apt(&node).await;
    node.run_once().await.unwrap();
    assert_eq!(node.system.listing(), "app 2 installed\nlib 2 installed");
    assert_eq!(node.server().story(), STORY);
}

#[tokio::test]
async fn a_kill_during_a_failing_update_still_reports_the_failure() {
    let node = TestNode::in_window();
    node.packages().broken.insert("app".into());
    kill_during_apt(&node).await;
    node.run_once().await.unwrap_err();
    let server = node.server();
    let last = server.only_attempt().last().unwrap();
    let EventKind::Failed { failure } = &last.kind else { panic!("a failure") };
    let results = package_report(last).results;
    assert!(failure.log.contains("app: postinst fails on purpose"), "{failure:?}");
    assert_eq!(results[0].state, "half-configured");
    assert_eq!(results[1].version, "2");
}

#[tokio::test]
async fn a_kill_without_the_stored_files_is_reported_as_an_interruption() {
    let node = TestNode::in_window();
    kill_during_apt(&node).await;
    let archives = node.paths().inside("/var/lib/evenkeel-agent/archives");
    std::fs::remove_dir_all(archives).unwrap();
    node.run_once().await.unwrap_err();
    let server = node.server();
    let end = &server.only_attempt().last().unwrap().kind;
    insta::assert_debug_snapshot!(end.failure().map(|failure| failure.kind), @r"
    Some(
        Interrupted,
    )
    ");
}

#[tokio::test]
async fn a_report_is_repeated_unchanged_after_a_lost_answer() {
    let node = TestNode::in_window();
    for lost in 1..6 {
        node.server().lost_answers = lost;
        while node.run_once().await.is_err() {}
        assert_eq!(node.server().story(), STORY);
        let server = node.server();
        assert!(server.received_events > server.only_attempt().len(), "some events arrived twice");
    }
}

#[tokio::test]
async fn a_corrupt_journal_does_not_block_the_agent() {
    let node = TestNode::in_window();
    std::fs::write(node.paths().journal(), "{\"format\":1,").unwrap();
    node.run_once().await.unwrap();
    assert_eq!(node.server().story(), STORY);
    assert_eq!(node.state_files(), ["journal.json.corrupt-0"]);
    let warnings = node.server().facts.as_ref().unwrap().warnings.clone();
    assert!(warnings[0].contains("journal.json.corrupt-0"), "{warnings:?}");
    assert_eq!(FileJournal::peek(&node.paths().journal()).unwrap(), None);
}

/// The agent was updated in the middle of an update, and its older version was installed again.
#[tokio::test]
async fn an_attempt_of_a_newer_agent_ends_with_an_event_and_configured_packages() {
    for (newer_part, is_step_readable) in
        [("/attempt", true), ("/attempt/steps/0/step/payload", false)]
    {
        let node = TestNode::in_window();
        kill_during_apt(&node).await;
        node.system.take_log();
        let path = node.paths().journal();
        let mut journal: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        let object = journal.pointer_mut(newer_part).and_then(Value::as_object_mut);
        object.expect("an object").insert("of_a_newer_version".into(), 1.into());
        fs::write(&path, journal.to_string()).unwrap();

        node.run_once().await.unwrap_err();

        assert_eq!(node.system.listing(), "app 2 installed\nlib 1 installed", "{newer_part}");
        assert_eq!(node.server().story(), "downloading, downloaded, began, failed", "{newer_part}");
        let server = node.server();
        let end = server.only_attempt().last().unwrap();
        let failure = end.kind.failure().expect("a failure");
        assert!(failure.reason.contains("of_a_newer_version"), "{failure}");
        if is_step_readable {
            let results = package_report(end).results;
            assert_eq!(results[0].version, "2", "{results:?}");
        }
        assert!(!path.exists(), "{newer_part}");
    }
}

#[tokio::test]
async fn an_attempt_of_a_newer_agent_that_changed_nothing_fails_without_a_change() {
    let node = TestNode::in_window();
    node.server().window_open = false;
    node.run_once().await.unwrap();
    let path = node.paths().journal();
    let mut journal: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let object = journal.pointer_mut("/attempt").and_then(Value::as_object_mut);
    object.expect("an object").insert("of_a_newer_version".into(), 1.into());
    fs::write(&path, journal.to_string()).unwrap();
    node.system.take_log();
    node.server().window_open = true;

    node.run_once().await.unwrap_err();

    assert_eq!(node.server().story(), "downloading, downloaded, failed");
    assert_eq!(node.system.listing(), "app 1 installed\nlib 1 installed");
}

#[tokio::test]
async fn an_update_that_exceeds_its_timeout_is_awaited_and_does_not_fail() {
    let node = TestNode::in_window();
    node.packages().exceeds_timeout = true;
    let root = node.paths().root().to_owned();
    let dpkg = async {
        node.system.hanging.notified().await;
        let folder = root.display().to_string();
        let hold = Command::new("perl", Duration::from_mins(1)).with_arguments([
            "-e",
            HOLD_DPKG_LOCK,
            &folder,
        ]);
        HostRunner::new(Path::new("/")).run(&hold).await.unwrap()
    };
    let agent = async {
        let mut agent = node.agent();
        let error = agent.run_once().await.unwrap_err();
        assert!(matches!(error, AgentError::Attempt(_)), "{error}");
        assert_eq!(node.server().story(), "downloading, downloaded, began");
        // Whatever the server decides meanwhile, a started change is neither cancelled nor started again.
        node.server().target = None;
        agent.run_once().await.unwrap_err();
        assert_eq!(node.server().story(), "downloading, downloaded, began");
        assert_eq!(node.system.listing(), "app 2 unpacked\nlib 1 installed");
        let waiting_reason = || node.server().waiting_reasons.last().unwrap().clone();
        assert!(waiting_reason().starts_with("another program is changing"));
        std::fs::write(root.join("go"), "").unwrap();
        agent.run_once().await.unwrap();
        assert_eq!(waiting_reason(), "");
    };
    let both = Box::pin(async { tokio::join!(dpkg, agent) });
    let both = tokio::time::timeout(Duration::from_mins(1), both).await;
    let (ended, ()) = both.expect("dpkg and the waiting agent");
    assert!(ended.succeeded(), "{ended:?}");
    assert_eq!(node.server().story(), STORY);
    assert_eq!(node.system.listing(), "app 2 installed\nlib 2 installed");
    assert_eq!(node.server().start_requests, 1);
}

/// The start was permitted, the power failed, and the node returns after the window: a change that has not started must
/// not start.
#[tokio::test]
async fn a_node_that_returns_after_its_window_does_not_start_a_change() {
    let mut late = 0;
    for at in 0..12 {
        let node = TestNode::in_window();
        node.server().start_deadline = Some(node.clock.now() + TimeDelta::hours(1));
        let path = node.paths().journal();
        let journal = BreakingJournal::new(&path, &node.system, at, WriteSide::After);
        if node.agent_with_journal(Box::new(journal)).run_once().await.is_ok() {
            break;
        }
        let log = node.system.take_log();
        let saw = |what: &str| log.iter().any(|line| line == what);
        if !saw("journal began") || saw("install") {
            continue;
        }
        late += 1;
        node.clock.advance(TimeDelta::hours(2));
        node.agent().run_once().await.unwrap_err();
        assert_eq!(node.server().story(), "downloading, downloaded, began, reverted");
        assert_eq!(node.system.listing(), "app 1 installed\nlib 1 installed");
        assert_eq!(node.state_files(), [""; 0]);
    }
    assert!(late > 0, "no kill hit the moment after the start");
}

/// The agent was killed after the start, and the next one ends apt at its timeout.
#[tokio::test]
async fn what_a_resumed_update_left_unpacked_at_its_timeout_is_configured() {
    let mut begun = 0;
    for at in 0..12 {
        let node = TestNode::in_window();
        let path = node.paths().journal();
        let journal = BreakingJournal::new(&path, &node.system, at, WriteSide::After);
        node.agent_with_journal(Box::new(journal)).run_once().await.ok();
        let log = node.system.take_log();
        let saw = |what: &str| log.iter().any(|line| line == what);
        if !saw("journal began") || saw("install") {
            continue;
        }
        begun += 1;
        node.packages().killed_at_timeout = true;
        node.run_once().await.unwrap();
        assert_eq!(node.system.listing(), "app 2 installed\nlib 2 installed");
        assert_eq!(node.server().story(), STORY);
    }
    assert!(begun > 0, "no kill hit the moment after the start");
}

/// Another agent may have written the journal. Half of an instruction means something else.
#[tokio::test]
async fn a_prepared_update_that_this_agent_reads_only_in_part_does_not_start() {
    let node = TestNode::new();
    node.server().target = Some(latest_target());
    node.run_once().await.unwrap();
    assert_eq!(node.server().story(), "downloading, downloaded");
    let path = node.paths().journal();
    let mut journal: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    journal["attempt"]["target"]["spec"]["packages"]["rules"]["more"] = 1.into();
    fs::write(&path, journal.to_string()).unwrap();

    node.server().window_open = true;
    node.run_once().await.unwrap_err();
    assert_eq!(node.server().story(), "downloading, downloaded, failed");
    let last = node.server().only_attempt().last().unwrap().kind.clone();
    let EventKind::Failed { failure } = last else { panic!("a failure") };
    assert_eq!(failure.kind, FailureKind::Unsupported);
    assert_eq!(node.system.listing(), "app 1 installed\nlib 1 installed");
    assert_eq!(node.server().start_requests, 0);
}
