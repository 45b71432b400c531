//! Long polls of our own agent, and an overloaded server.

use chrono::TimeDelta;
use evenkeel_kit::TestClock;
use evenkeel_proto::agent::decision::Act;
use evenkeel_proto::agent::{Fetch, OfflineGrant, Window};
use evenkeel_simulator::ground_truth::StartPermit;
use evenkeel_simulator::own::{self, OwnNode};

use super::{FakeServer, NOON, own_node, own_node_with, run_turns, target, without_faults};

/// Prepares a node with an offline grant for a window that opens in five minutes and lasts five
/// minutes.
async fn prepare_node(server: &FakeServer, clock: &TestClock, node: &mut OwnNode) {
    server.state().act = Some(Act::Fetch(Fetch { target: Some(target()) }));
    let at = |seconds| Some(prost_types::Timestamp { seconds, nanos: 0 });
    server.state().grant = Some(OfflineGrant {
        target_digest: target().digest,
        windows: vec![Window { start: at(300), end: at(600) }],
        expires_at: at(1_000),
    });
    run_turns(node, clock, 5).await;
}

#[tokio::test]
async fn our_own_agent_sends_long_polls_only_while_it_has_nothing_to_do() {
    let (server, clock) = (FakeServer::default(), TestClock::new(NOON));
    let habits = own::OwnHabits { uses_long_polls: true, ..without_faults() };
    let mut node = own_node_with(&server, &clock, TimeDelta::zero(), habits).await;
    server.state().tag = 7;
    run_turns(&mut node, &clock, 4).await;
    let all = [(0, false), (7, false), (7, true), (7, true)];
    assert_eq!(server.state().polls, all, "the second poll reports the facts");
    node.finish();
    run_turns(&mut node, &clock, 1).await;
    assert_eq!(server.state().polls.last(), Some(&(7, false)));

    let mut other = own_node(&server, &clock, TimeDelta::zero()).await;
    server.state().polls.clear();
    run_turns(&mut other, &clock, 3).await;
    let has_long_poll = server.state().polls.iter().any(|(_, may)| *may);
    assert!(!has_long_poll, "its habits allow none");
}

#[tokio::test]
async fn our_own_agent_respects_the_retry_hint_of_an_overloaded_server_but_uses_its_window() {
    let (server, clock) = (FakeServer::default(), TestClock::new(NOON));
    let mut node = own_node(&server, &clock, TimeDelta::seconds(290)).await;
    prepare_node(&server, &clock, &mut node).await;
    server.state().pushback = Some(600_000);
    let before = server.calls_with_prefix("poll").len();
    run_turns(&mut node, &clock, 60).await;
    assert_eq!(server.calls_with_prefix("poll").len(), before + 1, "it was not called");
    run_turns(&mut node, &clock, 2).await;
    let attempts = node.into_ground_truth().attempts;
    let permit = attempts.first().and_then(|attempt| attempt.permit.clone());
    assert!(matches!(permit, Some(StartPermit::Offline { .. })), "{attempts:#?}");
}
