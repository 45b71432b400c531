//! `plan`: what an update would change now, as the agent itself would think, and nothing of it stays.

use std::sync::Arc;

use evenkeel_update_agent::agent::Planning;
use evenkeel_update_agent::commands::plan::{think, wish};
use evenkeel_update_agent::commands::workshop::Workshop;
use evenkeel_update_agent::config::Config;
use evenkeel_update_agent::model::Plan;

use crate::support::node::{Node, latest};

const OLD: &str = "app 1 installed\nlib 1 installed";

async fn plan(node: &Node, packages: &[&str]) -> anyhow::Result<Plan> {
    let packages: Vec<_> = packages.iter().map(|&name| name.to_owned()).collect();
    let config = Config::default();
    let place = node.place();
    let clock = Arc::new(node.clock.clone());
    let workshop = Workshop::with(&config, &place, node.system.clone(), clock);
    think(&workshop, wish(&packages)?).await
}

#[tokio::test]
async fn without_a_wish_everything_is_planned_and_nothing_is_done() {
    let node = Node::new();
    let planned = plan(&node, &[]).await.unwrap();
    let changes: Vec<_> = planned
        .changes
        .iter()
        .map(|change| {
            (
                change.name.as_str(),
                change.before.as_deref(),
                change.after.as_deref(),
            )
        })
        .collect();
    assert_eq!(
        changes,
        [("app", Some("1"), Some("2")), ("lib", Some("1"), Some("2"))]
    );
    assert!(planned.download_bytes > 0);
    assert_eq!(node.system.listing(), OLD);
    assert_eq!(node.left_over(), [""; 0]);
}

#[tokio::test]
async fn a_package_may_be_named_with_its_version() {
    let node = Node::new();
    let planned = plan(&node, &["lib=2"]).await.unwrap();
    assert_eq!(planned.changes.len(), 1);
    assert_eq!(planned.changes[0].name, "lib");
}

#[tokio::test]
async fn beside_an_open_update_nothing_is_planned_and_nothing_of_it_is_touched() {
    let node = Node::new();
    node.server().target = Some(latest());
    node.run_once().await.unwrap();
    let before = node.left_over();
    assert_eq!(before, ["archives", "journal.json"]);
    let error = plan(&node, &[]).await.unwrap_err().to_string();
    assert!(error.contains("an update is open"), "{error}");
    assert_eq!(node.left_over(), before);
}

#[tokio::test]
async fn a_person_and_the_agent_do_not_plan_at_the_same_time() {
    let node = Node::in_window();
    let planning = Planning::begin(&node.place()).unwrap().unwrap();
    let error = plan(&node, &[]).await.unwrap_err().to_string();
    assert!(error.contains("plans an update just now"), "{error}");
    let mut agent = node.agent();
    agent.run_once().await.unwrap();
    assert_eq!(node.system.listing(), OLD);
    assert!(node.server().told.is_empty());

    drop(planning);
    agent.run_once().await.unwrap();
    assert_eq!(node.system.listing(), "app 2 installed\nlib 2 installed");
}

#[tokio::test]
async fn why_nothing_can_be_planned_is_said_in_apts_own_words() {
    let node = Node::new();
    node.packages().refresh_error = "E: no route to the mirror\n".into();
    let error = plan(&node, &[]).await.unwrap_err().to_string();
    assert!(error.contains("no route to the mirror"), "{error}");
    assert_eq!(node.left_over(), [""; 0]);
}
