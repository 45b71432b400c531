//! Long polls, which the server keeps open until there is a change, and an overloaded server.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use evenkeel_kit::Clock;
use evenkeel_update_agent::grants::{GrantWindow, OfflineGrant};
use tokio::time::Instant;

use crate::support::link::Presence;
use crate::support::node::{TestNode, latest_target};

const OLD: &str = "app 1 installed\nlib 1 installed";
const NEW: &str = "app 2 installed\nlib 2 installed";
const MAX_HOLD: Duration = Duration::from_mins(5);
/// The interval to the next poll that the server sends with every answer.
const POLL_INTERVAL: Duration = Duration::from_mins(1);
/// How much earlier than the limit the server may end a long poll.
const EARLY_RELEASE: Duration = Duration::from_secs(2);
/// Upper bound of the jitter.
const MAX_JITTER: Duration = Duration::from_secs(2);

/// A node whose server supports long polls.
fn long_polling_node() -> TestNode {
    let node = TestNode::new();
    node.server().max_hold = MAX_HOLD;
    node
}

async fn wait_until(condition: impl Fn() -> bool) {
    while !condition() {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// Runs the agent until `ends` is true.
async fn run_until(node: &TestNode, ends: impl Fn(&TestNode) -> bool) {
    let mut agent = node.agent();
    let watching = async {
        wait_until(|| ends(node)).await;
        node.stop.cancel();
    };
    tokio::join!(agent.run(), watching);
}

fn is_long_polling(node: &TestNode) -> bool {
    let server = node.server();
    server.max_holds.last().is_some_and(|hold| !hold.is_zero())
}

/// The time between each poll and the next one.
fn poll_gaps(node: &TestNode) -> Vec<Duration> {
    let server = node.server();
    let pairs = server.poll_times.windows(2);
    pairs.map(|pair| pair[1].saturating_sub(pair[0])).collect()
}

/// A grant for the newest version of everything, for one hour from `start`.
fn grant(start: DateTime<Utc>) -> OfflineGrant {
    let end = start + TimeDelta::hours(1);
    OfflineGrant {
        target_digest: "latest".into(),
        windows: vec![GrantWindow { start, end }],
        expires: end,
    }
}

/// Advances the node's clock with the elapsed time until the node is updated.
async fn wait_until_updated(node: &TestNode, on_tick: impl Fn()) {
    let (start, started) = (node.clock.now(), Instant::now());
    wait_until(|| {
        let elapsed = TimeDelta::from_std(started.elapsed()).unwrap();
        node.clock.set(start + elapsed);
        on_tick();
        node.system.listing() == NEW
    })
    .await;
    node.stop.cancel();
}

#[tokio::test(start_paused = true)]
async fn a_change_ends_a_long_poll() {
    let node = long_polling_node();
    let mut agent = node.agent();
    let long_polls = || {
        let server = node.server();
        server.max_holds.iter().filter(|hold| **hold == MAX_HOLD).count()
    };
    let operator = async {
        wait_until(|| long_polls() == 1).await;
        node.link.change(|state| {
            state.target = Some(latest_target());
            state.window_open = true;
        });
        wait_until(|| long_polls() == 2).await;
        node.stop.cancel();
    };
    tokio::join!(agent.run(), operator);
    assert_eq!(node.system.listing(), NEW);
    let at = node.server().max_holds.iter().position(|hold| *hold == MAX_HOLD);
    let at = at.unwrap();
    assert!(poll_gaps(&node)[at] < POLL_INTERVAL, "{:?}", poll_gaps(&node));
    let after = node.server().max_holds[at + 1];
    assert_eq!(after, Duration::ZERO, "the agent polls at once: there may be more to do");
}

#[tokio::test(start_paused = true)]
async fn an_idle_node_polls_as_often_as_its_long_polls_end() {
    let node = long_polling_node();
    run_until(&node, |node| node.server().polls == 8).await;
    let holds = node.server().max_holds.clone();
    assert_eq!(holds[..3], [Duration::ZERO; 3], "the first polls are answered at once");
    assert_eq!(holds[3..], [MAX_HOLD; 5]);
    let pauses = poll_gaps(&node);
    assert!(pauses[2] < MAX_JITTER, "{pauses:?}");
    let expected = MAX_HOLD..MAX_HOLD + MAX_JITTER;
    assert!(pauses[3..].iter().all(|pause| expected.contains(pause)));
}

#[tokio::test(start_paused = true)]
async fn a_server_without_long_polls_is_polled_at_its_interval() {
    let node = TestNode::new();
    run_until(&node, |node| node.server().polls == 7).await;
    assert_eq!(node.server().max_holds, [Duration::ZERO; 7]);
    let expected = POLL_INTERVAL..POLL_INTERVAL + MAX_JITTER;
    let pauses = poll_gaps(&node);
    assert!(pauses[2..].iter().all(|pause| expected.contains(pause)));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_declines_long_polls_is_polled_at_its_interval() {
    let node = long_polling_node();
    node.server().declines_long_polls = true;
    run_until(&node, |node| node.server().polls == 8).await;
    let pauses = poll_gaps(&node);
    assert!(pauses[2] < MAX_JITTER, "no long poll was made yet: {pauses:?}");
    let expected = POLL_INTERVAL..POLL_INTERVAL + MAX_JITTER;
    assert!(pauses[3..].iter().all(|pause| expected.contains(pause)));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_shuts_down_is_polled_again_after_its_interval() {
    let node = long_polling_node();
    let mut agent = node.agent();
    let server_stops = async {
        wait_until(|| is_long_polling(&node)).await;
        // Long enough that the end of the poll does not count as a quick change.
        tokio::time::sleep(MAX_JITTER).await;
        node.link.change(|state| state.declines_long_polls = true);
        let polls = node.server().polls;
        wait_until(|| node.server().polls > polls).await;
        node.stop.cancel();
    };
    tokio::join!(agent.run(), server_stops);
    let pauses = poll_gaps(&node);
    let back = pauses.last().unwrap();
    assert!((POLL_INTERVAL..MAX_HOLD).contains(back), "{pauses:?}");
}

#[tokio::test(start_paused = true)]
async fn a_node_that_may_start_and_waits_for_its_owner_makes_no_long_poll() {
    let node = TestNode::in_window();
    node.server().max_hold = MAX_HOLD;
    let run = node.paths().inside("/run/evenkeel-agent");
    std::fs::create_dir_all(&run).unwrap();
    std::fs::write(run.join("inhibit"), "a demonstration").unwrap();
    run_until(&node, |node| node.server().polls == 6).await;
    assert_eq!(node.server().max_holds, [Duration::ZERO; 6]);
    assert_eq!(node.system.listing(), OLD);
}

/// Another node took the last slot after the poll was answered.
#[tokio::test(start_paused = true)]
async fn a_node_whose_start_is_refused_waits_in_a_long_poll_at_once() {
    let node = TestNode::in_window();
    {
        let mut server = node.server();
        (server.max_hold, server.refuse_start) = (MAX_HOLD, true);
        server.waits_after_refusal = true;
    }
    let mut agent = node.agent();
    let operator = async {
        wait_until(|| is_long_polling(&node)).await;
        // The slot is free again.
        node.link.change(|state| (state.window_open, state.refuse_start) = (true, false));
        wait_until(|| node.system.listing() == NEW).await;
        node.stop.cancel();
    };
    tokio::join!(agent.run(), operator);
    let held = node.server().max_holds.iter().position(|hold| *hold == MAX_HOLD).unwrap();
    let gaps = poll_gaps(&node);
    let to_long_poll: Duration = gaps[..held].iter().sum();
    assert!(to_long_poll < MAX_JITTER, "{gaps:?}");
    assert!(gaps[held] < POLL_INTERVAL, "the change ends the long poll: {gaps:?}");
}

#[tokio::test(start_paused = true)]
async fn repeated_refusals_of_a_start_become_rare() {
    let node = TestNode::in_window();
    {
        let mut server = node.server();
        (server.max_hold, server.refuse_start) = (MAX_HOLD, true);
    }
    run_until(&node, |node| node.server().start_requests >= 14).await;
    let gaps = poll_gaps(&node);
    let last = gaps.last().unwrap();
    assert!((POLL_INTERVAL..POLL_INTERVAL + MAX_JITTER).contains(last), "{gaps:?}");
    assert_eq!(node.system.listing(), OLD);
}

/// The agent reports a change of the node within minutes, even during a longer long poll.
#[tokio::test(start_paused = true)]
async fn a_change_of_the_node_ends_its_long_poll() {
    let node = TestNode::new();
    node.server().max_hold = Duration::from_hours(1);
    let mut agent = node.agent();
    let operator = async {
        wait_until(|| is_long_polling(&node)).await;
        let polls = node.server().polls;
        tokio::time::sleep(Duration::from_mins(21)).await;
        assert_eq!(node.server().polls, polls, "nothing has changed");
        let run = node.paths().inside("/run");
        std::fs::create_dir_all(&run).unwrap();
        std::fs::write(run.join("reboot-required"), "").unwrap();
        wait_until(|| node.server().polls > polls).await;
        node.stop.cancel();
    };
    tokio::join!(agent.run(), operator);
    let last = poll_gaps(&node).last().copied().unwrap();
    let expected = Duration::from_mins(21)..Duration::from_mins(26) + MAX_JITTER;
    assert!(expected.contains(&last), "{last:?}");
}

/// Lets the server give a grant for a window that opens in three minutes; returns the start of the window.
fn grant_window(node: &TestNode) -> DateTime<Utc> {
    let window = node.clock.now() + TimeDelta::minutes(3);
    let mut server = node.server();
    server.target = Some(latest_target());
    server.grant = Some(grant(window));
    server.server_time = Some(node.clock.now());
    window
}

/// The connection is lost without a notice.
#[tokio::test(start_paused = true)]
async fn a_granted_window_ends_a_long_poll_that_gets_no_answer() {
    let node = long_polling_node();
    let window = grant_window(&node);
    let mut agent = node.agent();
    let time_passes = wait_until_updated(&node, || {
        if is_long_polling(&node) && node.server().presence == Presence::Reachable {
            node.link.change(|state| {
                state.is_deaf = true;
                state.presence = Presence::Unreachable;
            });
        }
    });
    tokio::join!(agent.run(), time_passes);
    assert_eq!(node.system.listing(), NEW);
    let late = node.clock.now() - window;
    assert!(late < TimeDelta::seconds(10), "{late}");
    let longest = node.server().max_holds.iter().max().copied().unwrap();
    assert!(
        longest <= Duration::from_mins(3) + EARLY_RELEASE,
        "a little longer, so that the agent wakes before the server answers: {longest:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_server_that_ends_long_polls_early_delays_no_node() {
    let node = long_polling_node();
    node.server().early_release = EARLY_RELEASE;
    let window = grant_window(&node);
    let mut agent = node.agent();
    // The server permits the start only to polls after the start of the window.
    let time_passes = wait_until_updated(&node, || {
        let is_open = window <= node.clock.now();
        node.server().window_open = is_open;
    });
    tokio::join!(agent.run(), time_passes);
    assert_eq!(node.system.listing(), NEW);
    let late = node.clock.now() - window;
    assert!(late < TimeDelta::seconds(10), "{late}");
}

#[tokio::test(start_paused = true)]
async fn after_a_lost_connection_nodes_reconnect_spread_and_once() {
    const RECONNECT_SPREAD: Duration = Duration::from_mins(10);
    let mut first = Vec::new();
    for _ in 0..6 {
        let node = long_polling_node();
        node.server().reconnect_spread = RECONNECT_SPREAD;
        let lost = || {
            let server = node.server();
            let position = server.max_holds.iter().position(|hold| *hold == MAX_HOLD);
            position.map_or(0, |position| server.max_holds.len() - position)
        };
        let mut agent = node.agent();
        let server_ends = async {
            wait_until(|| lost() == 1).await;
            node.link.change(|state| state.presence = Presence::Unreachable);
            wait_until(|| lost() == 4).await;
            node.stop.cancel();
        };
        tokio::join!(agent.run(), server_ends);
        let pauses = poll_gaps(&node);
        let [.., back, second, third] = pauses.as_slice() else { panic!("{pauses:?}") };
        assert!(*back < RECONNECT_SPREAD + 3 * MAX_JITTER, "{pauses:?}");
        assert!(*second < 2 * MAX_JITTER && *third < 3 * MAX_JITTER, "{pauses:?}");
        first.push(*back);
    }
    let longest = first.iter().max().copied().unwrap();
    assert!(longest > Duration::from_secs(10), "{first:?}");
}

#[tokio::test(start_paused = true)]
async fn an_overloaded_server_is_polled_again_at_its_retry_time() {
    let node = TestNode::new();
    let again = Duration::from_secs(90);
    node.server().busy = Some(again);
    run_until(&node, |node| node.server().polls == 4).await;
    let expected = again..again + again / 4 + MAX_JITTER;
    let pauses = poll_gaps(&node);
    assert!(pauses.iter().all(|pause| expected.contains(pause)), "{pauses:?}");
}

#[tokio::test(start_paused = true)]
async fn an_overloaded_server_does_not_cost_a_node_its_window() {
    let node = TestNode::new();
    {
        let mut server = node.server();
        server.target = Some(latest_target());
        server.grant = Some(grant(node.clock.now() + TimeDelta::hours(2)));
        server.server_time = Some(node.clock.now());
    }
    node.run_once().await.unwrap();
    node.clock.advance(TimeDelta::hours(2));
    node.server().busy = Some(Duration::from_mins(10));

    let started = Instant::now();
    let mut agent = node.agent();
    tokio::join!(agent.run(), wait_until_updated(&node, || {}));

    assert!(started.elapsed() >= Duration::from_mins(2), "it waited");
    assert_eq!(node.system.listing(), NEW);
    let pauses = poll_gaps(&node);
    let last = pauses.last().unwrap();
    assert!(*last <= Duration::from_mins(2) + MAX_JITTER, "{pauses:?}");
}

#[tokio::test]
async fn a_single_run_makes_no_long_poll() {
    let node = long_polling_node();
    let mut agent = node.agent();
    agent.run_once().await.unwrap();
    agent.run_once().await.unwrap();
    let holds = node.server().max_holds.clone();
    assert!(holds.iter().all(Duration::is_zero), "{holds:?}");
}

#[tokio::test]
async fn a_single_run_reports_that_the_server_is_overloaded() {
    let node = TestNode::in_window();
    node.server().busy = Some(Duration::from_secs(1));
    let error = node.run_once().await.unwrap_err();
    assert_eq!(error.to_string(), "the server is overloaded");
    assert_eq!(node.server().polls, 1);
}
