//! The notifications of the agent to the service manager.

use std::time::Duration;

use crate::support::link::Presence;
use crate::support::node::TestNode;

/// Runs the agent until `ends` is true, and returns the messages to the service manager.
async fn run_until(node: &TestNode, ends: impl Fn(&TestNode) -> bool) -> Vec<String> {
    let mut agent = node.agent();
    let watching = async {
        while !ends(node) {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        node.stop.cancel();
    };
    tokio::join!(agent.run(), watching);
    node.manager.take_messages()
}

#[tokio::test(start_paused = true)]
async fn the_agent_is_ready_before_its_first_poll_and_shows_the_decision() {
    let node = TestNode::new();
    let messages = run_until(&node, |node| node.server().polls > 5).await;
    assert_eq!(messages.iter().filter(|message| *message == "ready").count(), 1);
    // The first poll may take longer than the start timeout of the service manager.
    assert_eq!(messages.first().unwrap(), "ready");
    assert_eq!(messages.last().unwrap(), "idle: as set by the test");
}

#[tokio::test(start_paused = true)]
async fn an_agent_without_its_server_is_ready_and_shows_the_error() {
    let node = TestNode::new();
    node.server().presence = Presence::Unreachable;
    let messages = run_until(&node, |node| node.server().polls > 3).await;
    assert_eq!(messages.iter().filter(|message| *message == "ready").count(), 1);
    let last = messages.last().unwrap();
    assert!(last.starts_with("error: the server cannot be reached"), "{last}");
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_changes_the_node_shows_it() {
    let node = TestNode::in_window();
    let messages =
        run_until(&node, |node| node.system.listing() == "app 2 installed\nlib 2 installed").await;
    assert!(messages.contains(&"changing this node".to_owned()), "{messages:?}");
    assert!(messages.contains(&"ready".to_owned()), "{messages:?}");
}

#[tokio::test(start_paused = true)]
async fn the_waiting_reason_is_shown() {
    let node = TestNode::in_window();
    let run = node.paths().inside("/run/evenkeel-agent");
    std::fs::create_dir_all(&run).unwrap();
    std::fs::write(run.join("inhibit"), "a demonstration").unwrap();
    let messages = run_until(&node, |node| node.server().polls > 4).await;
    let last = messages.last().unwrap();
    assert!(last.contains("the node delays the update: "), "{last}");
    assert!(last.ends_with("inhibit: a demonstration"), "{last}");
}
