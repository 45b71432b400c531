//! A node that does not let a prepared change begin: the word of its owner goes before the server's leave.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use chrono::TimeDelta;
use evenkeel_kit::Clock;
use evenkeel_update_agent::grants::{Grant, Window};
use evenkeel_update_agent::model::{FailureKind, News, PackageMode, PackageWish, Target, Wish};
use evenkeel_update_agent::status;

use crate::support::link::Presence;
use crate::support::node::{Node, latest};

const OLD: &str = "app 1 installed\nlib 1 installed";
const NEW: &str = "app 2 installed\nlib 2 installed";
const REASON: &str = "/etc/evenkeel/inhibit says: a demonstration";

fn folder(node: &Node) -> PathBuf {
    let folder = node.place().inside("/etc/evenkeel");
    fs::create_dir_all(&folder).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
    folder
}

/// Somebody at the node says "not now".
fn inhibit(node: &Node) -> PathBuf {
    let file = folder(node).join("inhibit");
    fs::write(&file, "a demonstration\n").unwrap();
    file
}

fn limit(node: &Node, limits: &str) {
    let file = folder(node).join("limits.toml");
    fs::write(&file, limits).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
}

fn last_waiting(node: &Node) -> String {
    node.server().waiting.last().unwrap().clone()
}

#[tokio::test]
async fn a_node_that_says_not_now_does_not_begin_and_tells_why() {
    let node = Node::in_window();
    let file = inhibit(&node);
    let mut agent = node.agent();
    agent.run_once().await.unwrap();
    assert_eq!(node.system.listing(), OLD);
    assert_eq!(node.server().begins, 0, "the server is not even asked");
    assert_eq!(node.server().story(), "downloading, downloaded");
    let shown = status::read(&node.place().status()).unwrap();
    assert_eq!(shown.waiting, REASON);
    agent.run_once().await.unwrap();
    assert_eq!(last_waiting(&node), REASON);

    fs::remove_file(file).unwrap();
    agent.run_once().await.unwrap();
    assert_eq!(node.system.listing(), NEW);
    agent.run_once().await.unwrap();
    assert_eq!(last_waiting(&node), "");
    let shown = status::read(&node.place().status()).unwrap();
    assert_eq!(shown.waiting, "");
}

#[tokio::test]
async fn outside_its_window_a_node_waits_for_nothing_of_its_own() {
    let node = Node::in_window();
    inhibit(&node);
    let mut agent = node.agent();
    agent.run_once().await.unwrap();
    node.server().open = false;
    agent.run_once().await.unwrap();
    agent.run_once().await.unwrap();
    assert_eq!(last_waiting(&node), "");
}

#[tokio::test]
async fn a_node_that_is_alone_asks_itself_as_well_and_keeps_its_leave() {
    let node = Node::new();
    let now = node.clock.now();
    {
        let mut server = node.server();
        server.target = Some(latest());
        server.now = Some(now);
        server.grant = Some(Grant {
            target_digest: "latest".into(),
            windows: vec![Window {
                start: now,
                end: now + TimeDelta::hours(2),
            }],
            expires: now + TimeDelta::hours(2),
        });
    }
    let file = inhibit(&node);
    node.run_once().await.unwrap();
    node.server().presence = Presence::Away;
    node.run_once().await.unwrap_err();
    assert_eq!(node.system.listing(), OLD);
    fs::remove_file(file).unwrap();
    node.clock.advance(TimeDelta::hours(1));
    node.run_once().await.unwrap_err();
    assert_eq!(node.system.listing(), NEW);
}

#[tokio::test]
async fn what_the_owner_does_not_allow_is_refused_before_it_is_planned() {
    let node = Node::new();
    limit(&node, "new_sources = false\n");
    node.server().target = Some(Target {
        digest: "latest".into(),
        wish: Wish::Packages(PackageWish {
            sources: vec!["Types: deb\nURIs: http://x\nSuites: stable\nComponents: main".into()],
            ..PackageWish::new(PackageMode::Latest)
        }),
    });
    node.run_once().await.unwrap_err();
    let server = node.server();
    let [event] = server.only_attempt() else {
        panic!("one event")
    };
    let News::Failed { failure, .. } = &event.news else {
        panic!("a failure")
    };
    assert_eq!(failure.kind, FailureKind::Limits);
    let facts = server.facts.clone().unwrap();
    assert_eq!(facts.limits, "no new sources");
}

#[tokio::test]
async fn limits_that_cannot_be_relied_on_are_told_and_stop_everything() {
    let node = Node::in_window();
    limit(&node, "hour = []\n");
    node.run_once().await.unwrap_err();
    assert_eq!(node.system.listing(), OLD);
    let troubles = node.server().facts.clone().unwrap().troubles;
    assert!(
        troubles.iter().any(|trouble| trouble.contains("hour")),
        "{troubles:?}"
    );
}

#[tokio::test]
async fn a_journal_that_was_set_aside_is_told_until_a_person_removes_it() {
    let node = Node::new();
    fs::write(node.place().journal(), "noise").unwrap();
    let mut agent = node.agent();
    agent.run_once().await.unwrap();
    let troubles = |node: &Node| node.server().facts.clone().unwrap().troubles;
    let told = troubles(&node);
    assert!(told[0].contains("journal.json.corrupt-0"), "{told:?}");
    fs::remove_file(node.place().state().join("journal.json.corrupt-0")).unwrap();
    agent.run_once().await.unwrap();
    assert_eq!(troubles(&node), [""; 0]);
}

#[tokio::test]
async fn a_clock_that_jumped_is_told_in_words_that_do_not_change_with_every_poll() {
    let node = Node::new();
    node.server().now = Some(node.clock.now());
    let mut agent = node.agent();
    agent.run_once().await.unwrap();
    assert_eq!(node.server().facts.clone().unwrap().troubles, [""; 0]);
    node.clock.advance(TimeDelta::hours(-30));
    agent.run_once().await.unwrap();
    agent.run_once().await.unwrap();
    let told = node.server().facts.clone().unwrap().troubles;
    assert!(
        told[0].contains("more than a day behind the server's"),
        "{told:?}"
    );
    node.clock.advance(TimeDelta::minutes(7));
    agent.run_once().await.unwrap();
    assert_eq!(node.server().facts.clone().unwrap().troubles, told);
}
