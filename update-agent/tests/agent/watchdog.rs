//! What the service manager hears of the agent.

use std::time::Duration;

use crate::support::link::Presence;
use crate::support::node::Node;

/// Lets the agent run until `ends` says so, and returns what the manager heard.
async fn run_until(node: &Node, ends: impl Fn(&Node) -> bool) -> Vec<String> {
    let mut agent = node.agent();
    let watching = async {
        while !ends(node) {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        node.stop.cancel();
    };
    tokio::join!(agent.run(), watching);
    node.manager.take()
}

#[tokio::test(start_paused = true)]
async fn the_agent_is_up_before_its_first_poll_and_shows_what_was_decided() {
    let node = Node::new();
    let heard = run_until(&node, |node| node.server().polls > 5).await;
    assert_eq!(heard.iter().filter(|words| *words == "ready").count(), 1);
    // What comes first may take longer than the manager waits for a start.
    assert_eq!(heard.first().unwrap(), "ready");
    assert_eq!(heard.last().unwrap(), "idle: the test wants it so");
}

#[tokio::test(start_paused = true)]
async fn an_agent_whose_server_is_away_is_up_too_and_says_what_is_wrong() {
    let node = Node::new();
    node.server().presence = Presence::Away;
    let heard = run_until(&node, |node| node.server().polls > 3).await;
    assert_eq!(heard.iter().filter(|words| *words == "ready").count(), 1);
    let last = heard.last().unwrap();
    assert!(
        last.starts_with("in trouble: the server cannot be reached"),
        "{last}"
    );
}

#[tokio::test(start_paused = true)]
async fn while_it_changes_the_node_the_agent_says_so() {
    let node = Node::in_window();
    let heard = run_until(&node, |node| {
        node.system.listing() == "app 2 installed\nlib 2 installed"
    })
    .await;
    assert!(
        heard.contains(&"changing this node".to_owned()),
        "{heard:?}"
    );
    assert!(heard.contains(&"ready".to_owned()), "{heard:?}");
}

#[tokio::test(start_paused = true)]
async fn why_the_node_waits_is_shown() {
    let node = Node::in_window();
    let run = node.place().inside("/run/evenkeel-agent");
    std::fs::create_dir_all(&run).unwrap();
    std::fs::write(run.join("inhibit"), "a demonstration").unwrap();
    let heard = run_until(&node, |node| node.server().polls > 4).await;
    let last = heard.last().unwrap();
    assert!(last.contains("the node waits: "), "{last}");
    assert!(last.ends_with("says: a demonstration"), "{last}");
}
