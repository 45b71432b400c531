//! Polls that the server keeps open while it has nothing to say, and a server that has too much to do.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use evenkeel_kit::Clock;
use evenkeel_update_agent::grants::{Grant, Window};
use tokio::time::Instant;

use crate::support::link::Presence;
use crate::support::node::{Node, latest};

const OLD: &str = "app 1 installed\nlib 1 installed";
const NEW: &str = "app 2 installed\nlib 2 installed";
const HOLD: Duration = Duration::from_mins(5);
/// The server says so with every answer.
const NEXT_POLL: Duration = Duration::from_mins(1);
/// A server may let go of a poll so much sooner than it is allowed to.
const EARLY: Duration = Duration::from_secs(2);
/// For jitter.
const MORE: Duration = Duration::from_secs(2);

/// A node whose server holds polls.
fn holding() -> Node {
    let node = Node::new();
    node.server().hold = HOLD;
    node
}

async fn until(is_so: impl Fn() -> bool) {
    while !is_so() {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// Lets an agent run until `ends` says so.
async fn run_until(node: &Node, ends: impl Fn(&Node) -> bool) {
    let mut agent = node.agent();
    let watching = async {
        until(|| ends(node)).await;
        node.stop.cancel();
    };
    tokio::join!(agent.run(), watching);
}

fn is_held(node: &Node) -> bool {
    let server = node.server();
    server.holds.last().is_some_and(|hold| !hold.is_zero())
}

/// How long after each poll the next one came.
fn pauses(node: &Node) -> Vec<Duration> {
    let server = node.server();
    let pairs = server.times.windows(2);
    pairs.map(|pair| pair[1].saturating_sub(pair[0])).collect()
}

/// Leave for the newest of everything, for an hour from an instant on.
fn grant(start: DateTime<Utc>) -> Grant {
    let end = start + TimeDelta::hours(1);
    Grant {
        target_digest: "latest".into(),
        windows: vec![Window { start, end }],
        expires: end,
    }
}

/// Lets the node's clock go with the time that passes, until the node is updated.
async fn until_updated(node: &Node, meanwhile: impl Fn()) {
    let (start, begun) = (node.clock.now(), Instant::now());
    until(|| {
        let passed = TimeDelta::from_std(begun.elapsed()).unwrap();
        node.clock.set(start + passed);
        meanwhile();
        node.system.listing() == NEW
    })
    .await;
    node.stop.cancel();
}

#[tokio::test(start_paused = true)]
async fn a_change_reaches_a_node_whose_poll_is_held() {
    let node = holding();
    let mut agent = node.agent();
    let held = || {
        let server = node.server();
        server.holds.iter().filter(|hold| **hold == HOLD).count()
    };
    let operator = async {
        until(|| held() == 1).await;
        node.link.change(|world| {
            world.target = Some(latest());
            world.open = true;
        });
        until(|| held() == 2).await;
        node.stop.cancel();
    };
    tokio::join!(agent.run(), operator);
    assert_eq!(node.system.listing(), NEW);
    let at = node.server().holds.iter().position(|hold| *hold == HOLD);
    let at = at.unwrap();
    assert!(pauses(&node)[at] < NEXT_POLL, "{:?}", pauses(&node));
    let after = node.server().holds[at + 1];
    assert_eq!(after, Duration::ZERO, "there may be more to do");
}

#[tokio::test(start_paused = true)]
async fn a_node_at_rest_asks_as_often_as_it_is_held() {
    let node = holding();
    run_until(&node, |node| node.server().polls == 8).await;
    let holds = node.server().holds.clone();
    assert_eq!(holds[..3], [Duration::ZERO; 3], "who it is is told at once");
    assert_eq!(holds[3..], [HOLD; 5]);
    let pauses = pauses(&node);
    assert!(pauses[2] < MORE, "{pauses:?}");
    let expected = HOLD..HOLD + MORE;
    assert!(pauses[3..].iter().all(|pause| expected.contains(pause)));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_knows_nothing_of_holds_is_asked_as_before() {
    let node = Node::new();
    run_until(&node, |node| node.server().polls == 7).await;
    assert_eq!(node.server().holds, [Duration::ZERO; 7]);
    let expected = NEXT_POLL..NEXT_POLL + MORE;
    let pauses = pauses(&node);
    assert!(pauses[2..].iter().all(|pause| expected.contains(pause)));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_want_to_hold_is_asked_when_it_says() {
    let node = holding();
    node.server().declines = true;
    run_until(&node, |node| node.server().polls == 8).await;
    let pauses = pauses(&node);
    assert!(pauses[2] < MORE, "it was not asked yet: {pauses:?}");
    let expected = NEXT_POLL..NEXT_POLL + MORE;
    assert!(pauses[3..].iter().all(|pause| expected.contains(pause)));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_stops_says_when_to_come_back() {
    let node = holding();
    let mut agent = node.agent();
    let server_stops = async {
        until(|| is_held(&node)).await;
        // As long as news would take to be no quick answer.
        tokio::time::sleep(MORE).await;
        node.link.change(|world| world.declines = true);
        let polls = node.server().polls;
        until(|| node.server().polls > polls).await;
        node.stop.cancel();
    };
    tokio::join!(agent.run(), server_stops);
    let pauses = pauses(&node);
    let back = pauses.last().unwrap();
    assert!((NEXT_POLL..HOLD).contains(back), "{pauses:?}");
}

#[tokio::test(start_paused = true)]
async fn a_node_that_may_begin_and_waits_for_its_owner_is_not_held() {
    let node = Node::in_window();
    node.server().hold = HOLD;
    let run = node.place().inside("/run/evenkeel-agent");
    std::fs::create_dir_all(&run).unwrap();
    std::fs::write(run.join("inhibit"), "a demonstration").unwrap();
    run_until(&node, |node| node.server().polls == 6).await;
    assert_eq!(node.server().holds, [Duration::ZERO; 6]);
    assert_eq!(node.system.listing(), OLD);
}

/// The server does not have to ask: it is told within minutes, however long the poll might be held.
#[tokio::test(start_paused = true)]
async fn what_changes_about_a_node_ends_a_held_poll() {
    let node = Node::new();
    node.server().hold = Duration::from_hours(1);
    let mut agent = node.agent();
    let somebody = async {
        until(|| is_held(&node)).await;
        let polls = node.server().polls;
        tokio::time::sleep(Duration::from_mins(21)).await;
        assert_eq!(node.server().polls, polls, "nothing is new");
        let run = node.place().inside("/run");
        std::fs::create_dir_all(&run).unwrap();
        std::fs::write(run.join("reboot-required"), "").unwrap();
        until(|| node.server().polls > polls).await;
        node.stop.cancel();
    };
    tokio::join!(agent.run(), somebody);
    let last = pauses(&node).last().copied().unwrap();
    let expected = Duration::from_mins(21)..Duration::from_mins(26) + MORE;
    assert!(expected.contains(&last), "{last:?}");
}

/// What a server says that gives leave for a window in three minutes; the instant at which that opens.
fn leave_ahead(node: &Node) -> DateTime<Utc> {
    let window = node.clock.now() + TimeDelta::minutes(3);
    let mut server = node.server();
    server.target = Some(latest());
    server.grant = Some(grant(window));
    server.now = Some(node.clock.now());
    window
}

/// Nobody is at the other end any more, and nobody said so.
#[tokio::test(start_paused = true)]
async fn a_window_of_its_grant_ends_a_held_poll_that_nobody_will_answer() {
    let node = holding();
    let window = leave_ahead(&node);
    let mut agent = node.agent();
    let time_passes = until_updated(&node, || {
        if is_held(&node) && node.server().presence == Presence::Here {
            node.link.change(|world| {
                world.is_deaf = true;
                world.presence = Presence::Away;
            });
        }
    });
    tokio::join!(agent.run(), time_passes);
    assert_eq!(node.system.listing(), NEW);
    let late = node.clock.now() - window;
    assert!(late < TimeDelta::seconds(10), "{late}");
    let longest = node.server().holds.iter().max().copied().unwrap();
    assert!(
        longest <= Duration::from_mins(3) + EARLY,
        "somewhat longer, so that the agent wakes first: {longest:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_server_that_lets_go_of_polls_somewhat_sooner_makes_no_node_late() {
    let node = holding();
    node.server().early = EARLY;
    let window = leave_ahead(&node);
    let mut agent = node.agent();
    // The server says so to those who ask from then on.
    let time_passes = until_updated(&node, || {
        let is_open = window <= node.clock.now();
        node.server().open = is_open;
    });
    tokio::join!(agent.run(), time_passes);
    assert_eq!(node.system.listing(), NEW);
    let late = node.clock.now() - window;
    assert!(late < TimeDelta::seconds(10), "{late}");
}

#[tokio::test(start_paused = true)]
async fn after_losing_the_connection_nodes_come_back_spread_and_once() {
    const SPREAD: Duration = Duration::from_mins(10);
    let mut first = Vec::new();
    for _ in 0..6 {
        let node = holding();
        node.server().spread = SPREAD;
        let lost = || {
            let server = node.server();
            let held = server.holds.iter().position(|hold| *hold == HOLD);
            held.map_or(0, |held| server.holds.len() - held)
        };
        let mut agent = node.agent();
        let server_ends = async {
            until(|| lost() == 1).await;
            node.link.change(|world| world.presence = Presence::Away);
            until(|| lost() == 4).await;
            node.stop.cancel();
        };
        tokio::join!(agent.run(), server_ends);
        let pauses = pauses(&node);
        let [.., back, second, third] = pauses.as_slice() else {
            panic!("{pauses:?}")
        };
        assert!(*back < SPREAD + 3 * MORE, "{pauses:?}");
        assert!(*second < 2 * MORE && *third < 3 * MORE, "{pauses:?}");
        first.push(*back);
    }
    let longest = first.iter().max().copied().unwrap();
    assert!(longest > Duration::from_secs(10), "{first:?}");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_has_too_much_to_do_is_asked_when_it_says() {
    let node = Node::new();
    let again = Duration::from_secs(90);
    node.server().busy = Some(again);
    run_until(&node, |node| node.server().polls == 4).await;
    let expected = again..again + again / 4 + MORE;
    let pauses = pauses(&node);
    assert!(
        pauses.iter().all(|pause| expected.contains(pause)),
        "{pauses:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_server_that_has_too_much_to_do_does_not_cost_a_node_its_window() {
    let node = Node::new();
    {
        let mut server = node.server();
        server.target = Some(latest());
        server.grant = Some(grant(node.clock.now() + TimeDelta::hours(2)));
        server.now = Some(node.clock.now());
    }
    node.run_once().await.unwrap();
    node.clock.advance(TimeDelta::hours(2));
    node.server().busy = Some(Duration::from_mins(10));

    let begun = Instant::now();
    let mut agent = node.agent();
    tokio::join!(agent.run(), until_updated(&node, || {}));

    assert!(begun.elapsed() >= Duration::from_mins(2), "it was patient");
    assert_eq!(node.system.listing(), NEW);
    let pauses = pauses(&node);
    let last = pauses.last().unwrap();
    assert!(*last <= Duration::from_mins(2) + MORE, "{pauses:?}");
}

#[tokio::test]
async fn a_single_run_does_not_wait_for_news() {
    let node = holding();
    let mut agent = node.agent();
    agent.run_once().await.unwrap();
    agent.run_once().await.unwrap();
    let holds = node.server().holds.clone();
    assert!(holds.iter().all(Duration::is_zero), "{holds:?}");
}

#[tokio::test]
async fn a_single_run_says_that_the_server_has_too_much_to_do() {
    let node = Node::in_window();
    node.server().busy = Some(Duration::from_secs(1));
    let error = node.run_once().await.unwrap_err();
    assert_eq!(error.to_string(), "the server has too much to do for now");
    assert_eq!(node.server().polls, 1);
}
