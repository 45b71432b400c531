//! Polls of our own agent that the server may keep open, and a server that has too much to do.

use chrono::TimeDelta;
use evenkeel_kit::TestClock;
use evenkeel_proto::agent::decision::Act;
use evenkeel_proto::agent::{Fetch, Grant, Window};
use evenkeel_simulator::own::{self, OwnNode};
use evenkeel_simulator::truth::Leave;

use super::{NOON, Puppet, own_node, own_node_with, quiet, target, turns};

/// A node that is prepared for a window that opens in five minutes and is open for as long, with leave from before.
async fn prepared(puppet: &Puppet, clock: &TestClock, node: &mut OwnNode) {
    puppet.state().act = Some(Act::Fetch(Fetch {
        target: Some(target()),
    }));
    let at = |seconds| Some(prost_types::Timestamp { seconds, nanos: 0 });
    puppet.state().grant = Some(Grant {
        target_digest: target().digest,
        windows: vec![Window {
            start: at(300),
            end: at(600),
        }],
        expires: at(1_000),
    });
    turns(node, clock, 5).await;
}

#[tokio::test]
async fn our_own_agent_lets_its_poll_be_held_only_while_it_has_nothing_to_do() {
    let (puppet, clock) = (Puppet::default(), TestClock::new(NOON));
    let habits = own::Habits {
        holds: true,
        ..quiet()
    };
    let mut node = own_node_with(&puppet, &clock, TimeDelta::zero(), habits).await;
    puppet.state().tag = 7;
    turns(&mut node, &clock, 4).await;
    let all = [(0, false), (7, false), (7, true), (7, true)];
    assert_eq!(puppet.state().holds, all, "the second tells the facts");
    node.finish();
    turns(&mut node, &clock, 1).await;
    assert_eq!(puppet.state().holds.last(), Some(&(7, false)));

    let mut other = own_node(&puppet, &clock, TimeDelta::zero()).await;
    puppet.state().holds.clear();
    turns(&mut other, &clock, 3).await;
    let asked = puppet.state().holds.iter().any(|(_, may)| *may);
    assert!(!asked, "its habits say no");
}

#[tokio::test]
async fn our_own_agent_gives_a_server_time_that_has_too_much_to_do_but_not_its_window() {
    let (puppet, clock) = (Puppet::default(), TestClock::new(NOON));
    let mut node = own_node(&puppet, &clock, TimeDelta::seconds(290)).await;
    prepared(&puppet, &clock, &mut node).await;
    puppet.state().pushback = Some(600_000);
    let before = puppet.heard("poll").len();
    turns(&mut node, &clock, 60).await;
    assert_eq!(puppet.heard("poll").len(), before + 1, "it was not asked");
    turns(&mut node, &clock, 2).await;
    let attempts = node.into_truth().attempts;
    let leave = attempts.first().and_then(|attempt| attempt.leave.clone());
    assert!(matches!(leave, Some(Leave::Ahead { .. })), "{attempts:#?}");
}
