//! The server is unreachable: the agent does only what its offline grant permits.

use chrono::{DateTime, TimeDelta, Utc};
use evenkeel_kit::Clock;
use evenkeel_update_agent::agent::AgentError;
use evenkeel_update_agent::grants::{GrantWindow, OfflineGrant};
use evenkeel_update_agent::journal::FileJournal;
use evenkeel_update_agent::link::LinkError;
use tokio_util::sync::CancellationToken;

use crate::support::journal::{BreakingJournal, StoppingJournal, WriteSide};
use crate::support::link::Presence;
use crate::support::node::{TestNode, latest_target};

const OLD: &str = "app 1 installed\nlib 1 installed";
const NEW: &str = "app 2 installed\nlib 2 installed";
const STORY: &str = "downloading, downloaded, began, verify begun, finished";

fn hours(count: i64) -> TimeDelta {
    TimeDelta::hours(count)
}

/// A grant for `digest` with two windows of one hour each, which open in two and in ten hours. It expires half an hour
/// after the second window opens.
fn grant(digest: &str, now: DateTime<Utc>) -> OfflineGrant {
    let window =
        |start: i64| GrantWindow { start: now + hours(start), end: now + hours(start + 1) };
    OfflineGrant {
        target_digest: digest.into(),
        windows: vec![window(2), window(10)],
        expires: now + hours(10) + TimeDelta::minutes(30),
    }
}

/// A node that has prepared the newest version of everything and holds a grant for `digest`. The server is unreachable.
async fn prepared_offline_node(digest: &str) -> TestNode {
    let node = TestNode::new();
    let now = node.clock.now();
    {
        let mut server = node.server();
        server.target = Some(latest_target());
        server.grant = Some(grant(digest, now));
        server.server_time = Some(now);
    }
    node.run_once().await.unwrap();
    assert_eq!(node.server().story(), "downloading, downloaded");
    node.server().presence = Presence::Unreachable;
    node
}

/// Runs the agent once while the server is unreachable.
async fn run_offline(node: &TestNode) {
    let error = node.run_once().await.unwrap_err();
    let away = matches!(error, AgentError::Link(LinkError::Unavailable(_)));
    assert!(away, "{error}");
}

#[tokio::test]
async fn inside_a_granted_window_the_node_updates_and_reports_it_later() {
    let node = prepared_offline_node("latest").await;
    node.clock.advance(hours(2));
    let began = node.clock.now();
    run_offline(&node).await;
    assert_eq!(node.system.listing(), NEW);
    assert_eq!(node.server().story(), "downloading, downloaded");

    node.clock.advance(hours(20));
    node.server().presence = Presence::Reachable;
    node.run_once().await.unwrap();

    assert_eq!(node.server().story(), STORY);
    let times: Vec<_> = {
        let server = node.server();
        let events = server.only_attempt().iter();
        events.map(|event| event.at).collect()
    };
    assert_eq!(times[2..], [began; 3], "the events have the node's own time");
    assert_eq!(node.server().start_requests, 0, "the server was unreachable");
    assert_eq!(node.system.listing(), NEW);
}

#[tokio::test]
async fn a_change_that_requires_a_reboot_reboots_an_offline_node() {
    let node = prepared_offline_node("latest").await;
    node.packages().requires_reboot = true;
    node.clock.advance(hours(2));
    run_offline(&node).await;
    assert_eq!(node.machine().reboot_requests, 1);
    node.boot();
    run_offline(&node).await;
    assert_eq!(node.system.listing(), NEW);

    node.server().presence = Presence::Reachable;
    node.run_once().await.unwrap();

    let story = "downloading, downloaded, began, reboot begun, verify begun, finished";
    assert_eq!(node.server().story(), story);
    assert_eq!(node.machine().reboot_requests, 1);
}

#[tokio::test]
async fn an_offline_node_whose_agent_is_stopped_during_the_change_reboots_after_its_next_start() {
    let mut node = prepared_offline_node("latest").await;
    node.packages().requires_reboot = true;
    node.clock.advance(hours(2));
    let inner = FileJournal::new(node.paths().journal());
    let journal = StoppingJournal { inner, stop: node.stop.clone() };
    node.agent_with_journal(Box::new(journal)).run_once().await.unwrap_err();
    assert_eq!(node.system.listing(), NEW, "the change was completed");
    assert_eq!(node.machine().reboot_requests, 0);

    node.stop = CancellationToken::new();
    run_offline(&node).await;
    assert_eq!(node.machine().reboot_requests, 1);
}

#[tokio::test]
async fn an_update_starts_only_while_a_granted_window_is_open() {
    for (minutes, begins) in [
        (0, false),
        (119, false),
        (120, true),
        (179, true),
        (180, false),
        (300, false),
        (600, true),
        (629, true),
        // The window is open until 660.
        (630, false),
        (100_000, false),
        // The clock was turned back to before the grant was given.
        (-1, false),
    ] {
        let node = prepared_offline_node("latest").await;
        node.clock.advance(TimeDelta::minutes(minutes));
        run_offline(&node).await;
        let expected = if begins { NEW } else { OLD };
        assert_eq!(node.system.listing(), expected, "after {minutes} minutes");
    }
}

#[tokio::test]
async fn a_grant_for_another_target_does_not_apply() {
    let node = prepared_offline_node("another").await;
    node.clock.advance(hours(2));
    run_offline(&node).await;
    assert_eq!(node.system.listing(), OLD);
}

#[tokio::test]
async fn a_withdrawn_grant_stays_withdrawn_after_a_restart() {
    let node = prepared_offline_node("latest").await;
    node.server().presence = Presence::Reachable;
    node.server().grant = None;
    node.run_once().await.unwrap();
    node.server().presence = Presence::Unreachable;
    node.clock.advance(hours(2));
    run_offline(&node).await;
    assert_eq!(node.system.listing(), OLD);
}

#[tokio::test]
async fn an_update_that_is_not_prepared_does_not_start() {
    let node = prepared_offline_node("latest").await;
    node.server().presence = Presence::Reachable;
    node.server().target = None;
    node.run_once().await.unwrap();
    assert_eq!(node.state_files(), ["grant.json"], "the attempt is cancelled");
    node.server().presence = Presence::Unreachable;
    node.clock.advance(hours(2));
    run_offline(&node).await;
    assert_eq!(node.system.listing(), OLD);
}

#[tokio::test]
async fn the_same_agent_starts_the_update_without_a_restart() {
    let node = prepared_offline_node("latest").await;
    let mut agent = node.agent();
    agent.run_once().await.unwrap_err();
    assert_eq!(node.system.listing(), OLD);
    node.clock.advance(hours(2));
    agent.run_once().await.unwrap_err();
    assert_eq!(node.system.listing(), NEW);
}

/// Runs the agent once with a reachable server that refuses the start.
async fn run_refused(node: &TestNode) {
    {
        let mut server = node.server();
        server.presence = Presence::Reachable;
        server.window_open = true;
        server.refuse_start = true;
    }
    node.run_once().await.unwrap();
    assert_eq!(node.server().start_requests, 1);
}

#[tokio::test]
async fn a_reachable_server_decides_despite_the_grant() {
    let node = prepared_offline_node("latest").await;
    node.clock.advance(hours(2));
    run_refused(&node).await;
    assert_eq!(node.system.listing(), OLD);
}

#[tokio::test]
async fn a_server_that_denies_the_node_does_not_count_as_away() {
    let node = prepared_offline_node("latest").await;
    node.clock.advance(hours(2));
    node.server().presence = Presence::Denying;
    let error = node.run_once().await.unwrap_err();
    assert!(matches!(error, AgentError::Link(LinkError::Denied(_))), "{error}");
    assert_eq!(node.system.listing(), OLD);
}

#[tokio::test]
async fn the_grant_applies_when_the_server_goes_away_before_the_start_request() {
    let node = prepared_offline_node("latest").await;
    node.clock.advance(hours(2));
    {
        let mut server = node.server();
        server.window_open = true;
        server.presence = Presence::ReachableOnce;
    }
    run_offline(&node).await;
    assert_eq!(node.server().start_requests, 1, "the agent requested the start first");
    assert_eq!(node.system.listing(), NEW);
}

/// Unpacked packages need no download. The agent still opens an attempt, because a grant applies only to an attempt.
#[tokio::test]
async fn an_update_without_downloads_starts_by_its_grant() {
    let node = TestNode::new();
    let now = node.clock.now();
    {
        let mut packages = node.packages();
        for (name, state) in [("app", "unpacked"), ("lib", "installed")] {
            let package = ("2".to_owned(), state.to_owned());
            packages.installed.insert(name.into(), package);
        }
    }
    {
        let mut server = node.server();
        server.target = Some(latest_target());
        server.grant = Some(grant("latest", now));
        server.server_time = Some(now);
    }
    node.run_once().await.unwrap();
    assert_eq!(node.server().story(), "downloading, downloaded");
    node.server().presence = Presence::Unreachable;
    node.clock.advance(hours(2));
    run_offline(&node).await;
    assert_eq!(node.system.listing(), NEW);
}

#[tokio::test]
async fn a_refusal_cancels_the_offline_grant() {
    let node = prepared_offline_node("latest").await;
    node.clock.advance(hours(2));
    run_refused(&node).await;
    node.server().presence = Presence::Unreachable;
    run_offline(&node).await;
    assert_eq!(node.system.listing(), OLD);
}

#[tokio::test]
async fn a_grant_is_used_once() {
    let node = prepared_offline_node("latest").await;
    node.packages().broken.insert("app".into());
    node.clock.advance(hours(2));
    run_offline(&node).await;
    assert_eq!(node.system.listing(), "app 2 half-configured\nlib 2 installed");
    assert_eq!(node.state_files(), ["archives", "journal.json"]);
    node.system.take_log();
    node.clock.advance(hours(8));
    run_offline(&node).await;
    run_offline(&node).await;
    assert!(!node.system.take_log().contains(&"install".to_owned()));

    node.server().presence = Presence::Reachable;
    node.run_once().await.unwrap_err();
    assert_eq!(node.server().story(), "downloading, downloaded, began, failed");
}

/// The agent is killed at any write of the journal, and starts again at once or after the window.
#[tokio::test]
async fn a_kill_while_offline_causes_no_second_start_and_none_outside_a_window() {
    for later in [TimeDelta::zero(), hours(3)] {
        let mut at = 0;
        loop {
            let node = prepared_offline_node("latest").await;
            node.clock.advance(hours(2));
            node.system.take_log();
            let journal = node.paths().journal();
            let journal_that_breaks =
                BreakingJournal::new(&journal, &node.system, at, WriteSide::After);
            let error = node.agent_with_journal(Box::new(journal_that_breaks)).run_once().await;
            let was_killed = matches!(error, Err(AgentError::Journal(_)));
            node.clock.advance(later);
            run_offline(&node).await;
            node.clock.advance(hours(6));
            run_offline(&node).await;
            let log = node.system.take_log();
            let starts = log.iter().filter(|line| *line == "journal began").count();
            assert_eq!(starts, 1, "write {at}: {log:?}");
            let expected = if at == 0 && later > TimeDelta::zero() { OLD } else { NEW };
            assert_eq!(node.system.listing(), expected, "write {at}, {later}");
            node.server().presence = Presence::Reachable;
            node.server().grant = None;
            node.run_once().await.ok();
            let story = node.server().story();
            let reverted = "downloading, downloaded, began, reverted";
            assert_eq!(story, if expected == NEW { STORY } else { reverted });
            assert_eq!(node.state_files(), [""; 0]);
            if !was_killed {
                assert!(at > 3, "an attempt writes its journal more than {at} times");
                break;
            }
            at += 1;
        }
    }
}

#[tokio::test]
async fn an_unreadable_grant_is_ignored() {
    for noise in ["", "{\"format\":1", "noise"] {
        let node = prepared_offline_node("latest").await;
        std::fs::write(node.paths().grant(), noise).unwrap();
        node.clock.advance(hours(2));
        run_offline(&node).await;
        assert_eq!(node.system.listing(), OLD, "{noise}");
    }
}

/// No poll gets an answer, so the agent waits for minutes between polls. It must not miss the window.
#[tokio::test(start_paused = true)]
async fn the_daemon_wakes_when_a_window_of_its_grant_opens() {
    let node = prepared_offline_node("latest").await;
    let mut agent = node.agent();
    let start = node.clock.now();
    let started = tokio::time::Instant::now();
    let time_passes = async {
        while node.system.listing() != NEW {
            node.clock.set(start + TimeDelta::from_std(started.elapsed()).unwrap());
            tokio::time::sleep(std::time::Duration::from_secs(2)).await;
        }
        node.stop.cancel();
    };
    tokio::join!(agent.run(), time_passes);
    let late = node.clock.now() - start - hours(2);
    assert!(late < TimeDelta::seconds(5), "{late}");
}
