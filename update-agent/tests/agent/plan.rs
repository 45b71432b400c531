//! `plan`: what an update would change now, as the agent plans it. It changes nothing on the node.

use std::sync::Arc;

use chrono::TimeDelta;
use evenkeel_kit::Clock;
use evenkeel_update_agent::agent::PlanningLock;
use evenkeel_update_agent::config::Config;
use evenkeel_update_agent::model::{ModuleParts, PackageRules, UpdateTarget};
use evenkeel_update_agent::module_registry::ModuleRegistry;
use evenkeel_update_agent::modules::packages::{
    PackagePlan, parse_packages, plan_packages, policy_spec,
};

use crate::support::node::{TestNode, latest_target, latest_target_with};

const OLD: &str = "app 1 installed\nlib 1 installed";

async fn plan(node: &TestNode, packages: &[&str]) -> anyhow::Result<PackagePlan> {
    let packages: Vec<_> = packages.iter().map(|&name| name.to_owned()).collect();
    let config = Config::default();
    let paths = node.paths();
    let clock = Arc::new(node.clock.clone());
    let registry = ModuleRegistry::with_runner(&config, &paths, node.system.clone(), clock);
    plan_packages(&registry, parse_packages(&packages)?).await
}

#[tokio::test]
async fn without_package_names_everything_is_planned_and_nothing_is_done() {
    let node = TestNode::new();
    let planned = plan(&node, &[]).await.unwrap();
    let changes: Vec<_> = planned
        .report
        .changes
        .iter()
        .map(|change| (change.name.as_str(), change.before.as_deref(), change.after.as_deref()))
        .collect();
    assert_eq!(changes, [("app", Some("1"), Some("2")), ("lib", Some("1"), Some("2"))]);
    assert!(planned.plan.download_bytes > 0);
    assert_eq!(node.system.listing(), OLD);
    assert_eq!(node.state_files(), [""; 0]);
}

#[tokio::test]
async fn the_plan_follows_the_policy_that_the_server_sent_last() {
    let node = TestNode::new();
    assert!(policy_spec(&node.paths()).unwrap().is_none(), "no policy was received");
    let rules = PackageRules { allow_removals: true, ..PackageRules::default() };
    node.server().target = Some(latest_target_with(rules.clone()));
    node.server().window_open = true;
    let received = node.clock.now();
    node.run_once().await.unwrap();
    node.clock.advance(TimeDelta::hours(1));
    // The policy stays in effect while the server requests nothing.
    node.server().target = None;
    node.run_once().await.unwrap();
    let (spec, since) = policy_spec(&node.paths()).unwrap().expect("a policy");
    assert_eq!((spec.rules, since), (rules, received));

    node.server().forgetful = true;
    node.server().target = Some(UpdateTarget { digest: "os".into(), spec: ModuleParts::default() });
    node.run_once().await.ok();
    let error = policy_spec(&node.paths()).unwrap_err().to_string();
    assert!(error.contains("updates no packages"), "{error}");
}

#[tokio::test]
async fn a_package_may_be_named_with_its_version() {
    let node = TestNode::new();
    let planned = plan(&node, &["lib=2"]).await.unwrap();
    assert_eq!(planned.report.changes.len(), 1);
    assert_eq!(planned.report.changes[0].name, "lib");
}

#[tokio::test]
async fn during_an_open_update_nothing_is_planned_and_nothing_is_touched() {
    let node = TestNode::new();
    node.server().target = Some(latest_target());
    node.run_once().await.unwrap();
    let before = node.state_files();
    assert_eq!(before, ["archives", "journal.json"]);
    let error = plan(&node, &[]).await.unwrap_err().to_string();
    assert!(error.contains("an update is in progress"), "{error}");
    assert_eq!(node.state_files(), before);
}

#[tokio::test]
async fn a_person_and_the_agent_do_not_plan_at_the_same_time() {
    let node = TestNode::in_window();
    let planning = PlanningLock::acquire(&node.paths()).unwrap().unwrap();
    let error = plan(&node, &[]).await.unwrap_err().to_string();
    assert!(error.contains("is planning an update"), "{error}");
    let mut agent = node.agent();
    agent.run_once().await.unwrap();
    assert_eq!(node.system.listing(), OLD);
    assert!(node.server().reported_events.is_empty());

    drop(planning);
    agent.run_once().await.unwrap();
    assert_eq!(node.system.listing(), "app 2 installed\nlib 2 installed");
}

#[tokio::test]
async fn a_planning_failure_contains_the_output_of_apt() {
    let node = TestNode::new();
    node.packages().refresh_error = "E: no route to the mirror\n".into();
    let error = plan(&node, &[]).await.unwrap_err().to_string();
    assert!(error.contains("no route to the mirror"), "{error}");
    assert_eq!(node.state_files(), [""; 0]);
}
