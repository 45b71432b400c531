//! The server is away: the agent does what it was given leave for ahead, and nothing else.

use chrono::{DateTime, TimeDelta, Utc};
use evenkeel_kit::Clock;
use evenkeel_update_agent::agent::AgentError;
use evenkeel_update_agent::grants::{Grant, Window};
use evenkeel_update_agent::link::LinkError;

use crate::support::journal::{BreakingJournal, Side};
use crate::support::link::Presence;
use crate::support::node::{Node, latest};

const OLD: &str = "app 1 installed\nlib 1 installed";
const NEW: &str = "app 2 installed\nlib 2 installed";
const STORY: &str = "downloading, downloaded, began, verify begun, finished";

fn hours(count: i64) -> TimeDelta {
    TimeDelta::hours(count)
}

/// Leave for what `digest` wants, in the windows that open in two and in ten hours and are open for an hour each; it
/// ends half an hour after the second has opened.
fn grant(digest: &str, now: DateTime<Utc>) -> Grant {
    let window = |start: i64| Window {
        start: now + hours(start),
        end: now + hours(start + 1),
    };
    Grant {
        target_digest: digest.into(),
        windows: vec![window(2), window(10)],
        expires: now + hours(10) + TimeDelta::minutes(30),
    }
}

/// A node that has prepared the newest of everything and holds a grant for `digest`. Then the server went away.
async fn left_alone(digest: &str) -> Node {
    let node = Node::new();
    let now = node.clock.now();
    {
        let mut server = node.server();
        server.target = Some(latest());
        server.grant = Some(grant(digest, now));
        server.now = Some(now);
    }
    node.run_once().await.unwrap();
    assert_eq!(node.server().story(), "downloading, downloaded");
    node.server().presence = Presence::Away;
    node
}

/// A start of the agent beside a server that is away.
async fn in_vain(node: &Node) {
    let error = node.run_once().await.unwrap_err();
    let away = matches!(error, AgentError::Link(LinkError::Unavailable(_)));
    assert!(away, "{error}");
}

#[tokio::test]
async fn inside_a_window_of_its_grant_the_node_updates_and_tells_it_later() {
    let node = left_alone("latest").await;
    node.clock.advance(hours(2));
    let began = node.clock.now();
    in_vain(&node).await;
    assert_eq!(node.system.listing(), NEW);
    assert_eq!(node.server().story(), "downloading, downloaded");

    node.clock.advance(hours(20));
    node.server().presence = Presence::Here;
    node.run_once().await.unwrap();

    assert_eq!(node.server().story(), STORY);
    let times: Vec<_> = {
        let server = node.server();
        let events = server.only_attempt().iter();
        events.map(|event| event.at).collect()
    };
    assert_eq!(times[2..], [began; 3], "the node's own time is told");
    assert_eq!(node.server().begins, 0, "there was nobody to ask");
    assert_eq!(node.system.listing(), NEW);
}

#[tokio::test]
async fn a_change_that_asks_for_it_reboots_the_node_though_nobody_can_be_told() {
    let node = left_alone("latest").await;
    node.packages().asks_for_reboot = true;
    node.clock.advance(hours(2));
    in_vain(&node).await;
    assert_eq!(node.machine().told, 1);
    node.boot();
    in_vain(&node).await;
    assert_eq!(node.system.listing(), NEW);

    node.server().presence = Presence::Here;
    node.run_once().await.unwrap();

    let story = "downloading, downloaded, began, reboot begun, verify begun, finished";
    assert_eq!(node.server().story(), story);
    assert_eq!(node.machine().told, 1);
}

#[tokio::test]
async fn it_begins_in_the_first_instant_of_a_window_and_in_none_after_its_last() {
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
        // A clock that was turned back to before the grant was given.
        (-1, false),
    ] {
        let node = left_alone("latest").await;
        node.clock.advance(TimeDelta::minutes(minutes));
        in_vain(&node).await;
        let expected = if begins { NEW } else { OLD };
        assert_eq!(node.system.listing(), expected, "after {minutes} minutes");
    }
}

#[tokio::test]
async fn a_grant_for_another_target_is_none_for_this_one() {
    let node = left_alone("another").await;
    node.clock.advance(hours(2));
    in_vain(&node).await;
    assert_eq!(node.system.listing(), OLD);
}

#[tokio::test]
async fn a_withdrawal_that_arrived_holds_also_after_a_restart() {
    let node = left_alone("latest").await;
    node.server().presence = Presence::Here;
    node.server().grant = None;
    node.run_once().await.unwrap();
    node.server().presence = Presence::Away;
    node.clock.advance(hours(2));
    in_vain(&node).await;
    assert_eq!(node.system.listing(), OLD);
}

#[tokio::test]
async fn what_is_not_prepared_is_not_begun() {
    let node = left_alone("latest").await;
    node.server().presence = Presence::Here;
    node.server().target = None;
    node.run_once().await.unwrap();
    assert_eq!(node.left_over(), ["grant.json"], "the attempt is cancelled");
    node.server().presence = Presence::Away;
    node.clock.advance(hours(2));
    in_vain(&node).await;
    assert_eq!(node.system.listing(), OLD);
}

#[tokio::test]
async fn the_same_agent_begins_without_a_restart_too() {
    let node = left_alone("latest").await;
    let mut agent = node.agent();
    agent.run_once().await.unwrap_err();
    assert_eq!(node.system.listing(), OLD);
    node.clock.advance(hours(2));
    agent.run_once().await.unwrap_err();
    assert_eq!(node.system.listing(), NEW);
}

/// The server is back, and refuses.
async fn is_refused(node: &Node) {
    {
        let mut server = node.server();
        server.presence = Presence::Here;
        server.open = true;
        server.refuse = true;
    }
    node.run_once().await.unwrap();
    assert_eq!(node.server().begins, 1);
}

#[tokio::test]
async fn a_server_that_can_be_reached_is_asked_and_decides() {
    let node = left_alone("latest").await;
    node.clock.advance(hours(2));
    is_refused(&node).await;
    assert_eq!(node.system.listing(), OLD);
}

#[tokio::test]
async fn a_server_that_refuses_to_talk_is_not_one_that_is_away() {
    let node = left_alone("latest").await;
    node.clock.advance(hours(2));
    node.server().presence = Presence::Denying;
    let error = node.run_once().await.unwrap_err();
    assert!(
        matches!(error, AgentError::Link(LinkError::Denied(_))),
        "{error}"
    );
    assert_eq!(node.system.listing(), OLD);
}

#[tokio::test]
async fn a_server_that_leaves_after_its_answer_has_given_leave_with_it() {
    let node = left_alone("latest").await;
    node.clock.advance(hours(2));
    {
        let mut server = node.server();
        server.open = true;
        server.presence = Presence::Leaving;
    }
    in_vain(&node).await;
    assert_eq!(node.server().begins, 1, "it was asked first");
    assert_eq!(node.system.listing(), NEW);
}

/// What is unpacked already needs no fetching: without an attempt the leave for it could not be used.
#[tokio::test]
async fn what_needs_no_fetching_begins_by_its_grant_as_well() {
    let node = Node::new();
    let now = node.clock.now();
    {
        let mut packages = node.packages();
        for (name, state) in [("app", "unpacked"), ("lib", "installed")] {
            let found = ("2".to_owned(), state.to_owned());
            packages.installed.insert(name.into(), found);
        }
    }
    {
        let mut server = node.server();
        server.target = Some(latest());
        server.grant = Some(grant("latest", now));
        server.now = Some(now);
    }
    node.run_once().await.unwrap();
    assert_eq!(node.server().story(), "downloading, downloaded");
    node.server().presence = Presence::Away;
    node.clock.advance(hours(2));
    in_vain(&node).await;
    assert_eq!(node.system.listing(), NEW);
}

#[tokio::test]
async fn a_refusal_takes_back_what_was_given_ahead() {
    let node = left_alone("latest").await;
    node.clock.advance(hours(2));
    is_refused(&node).await;
    node.server().presence = Presence::Away;
    in_vain(&node).await;
    assert_eq!(node.system.listing(), OLD);
}

#[tokio::test]
async fn a_grant_is_used_once() {
    let node = left_alone("latest").await;
    node.packages().broken.insert("app".into());
    node.clock.advance(hours(2));
    in_vain(&node).await;
    assert_eq!(
        node.system.listing(),
        "app 2 half-configured\nlib 2 installed"
    );
    assert_eq!(node.left_over(), ["archives", "journal.json"]);
    node.system.take_log();
    node.clock.advance(hours(8));
    in_vain(&node).await;
    in_vain(&node).await;
    assert!(!node.system.take_log().contains(&"install".to_owned()));

    node.server().presence = Presence::Here;
    node.run_once().await.unwrap_err();
    assert_eq!(
        node.server().story(),
        "downloading, downloaded, began, failed"
    );
}

/// A kill at any write of the journal, and the next start at once or after the window.
#[tokio::test]
async fn a_death_while_it_is_alone_makes_no_second_beginning_and_none_outside_a_window() {
    for later in [TimeDelta::zero(), hours(3)] {
        let mut at = 0;
        loop {
            let node = left_alone("latest").await;
            node.clock.advance(hours(2));
            node.system.take_log();
            let journal = node.place().journal();
            let breaking = BreakingJournal::new(&journal, &node.system, at, Side::After);
            let error = node.agent_with(Box::new(breaking)).run_once().await;
            let died = matches!(error, Err(AgentError::Journal(_)));
            node.clock.advance(later);
            in_vain(&node).await;
            node.clock.advance(hours(6));
            in_vain(&node).await;
            let log = node.system.take_log();
            let begun = log.iter().filter(|line| *line == "journal began").count();
            assert_eq!(begun, 1, "write {at}: {log:?}");
            let expected = if at == 0 && later > TimeDelta::zero() {
                OLD
            } else {
                NEW
            };
            assert_eq!(node.system.listing(), expected, "write {at}, {later}");
            node.server().presence = Presence::Here;
            node.server().grant = None;
            node.run_once().await.ok();
            let story = node.server().story();
            let reverted = "downloading, downloaded, began, reverted";
            assert_eq!(story, if expected == NEW { STORY } else { reverted });
            assert_eq!(node.left_over(), [""; 0]);
            if !died {
                assert!(at > 3, "an attempt writes its journal more than {at} times");
                break;
            }
            at += 1;
        }
    }
}

#[tokio::test]
async fn a_grant_that_cannot_be_read_is_none() {
    for noise in ["", "{\"format\":1", "noise"] {
        let node = left_alone("latest").await;
        std::fs::write(node.place().grant(), noise).unwrap();
        node.clock.advance(hours(2));
        in_vain(&node).await;
        assert_eq!(node.system.listing(), OLD, "{noise}");
    }
}

/// Nobody answers, and the waits have grown to minutes: the window is not missed.
#[tokio::test(start_paused = true)]
async fn the_daemon_wakes_when_a_window_of_its_grant_opens() {
    let node = left_alone("latest").await;
    let mut agent = node.agent();
    let start = node.clock.now();
    let begun = tokio::time::Instant::now();
    let time_passes = async {
        while node.system.listing() != NEW {
            node.clock
                .set(start + TimeDelta::from_std(begun.elapsed()).unwrap());
            tokio::time::sleep(std::time::Duration::from_secs(2)).await;
        }
        node.stop.cancel();
    };
    tokio::join!(agent.run(), time_passes);
    let late = node.clock.now() - start - hours(2);
    assert!(late < TimeDelta::seconds(5), "{late}");
}
