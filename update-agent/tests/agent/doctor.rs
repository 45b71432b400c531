//! `doctor`: what it finds on a node, and what it says to do about it.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use evenkeel_kit::{Secret, TestClock};
use evenkeel_update_agent::commands::doctor::{Finding, Outcome, examine};
use evenkeel_update_agent::commands::workshop::Workshop;
use evenkeel_update_agent::config::Config;
use evenkeel_update_agent::identity::Marks;
use evenkeel_update_agent::node::{self, Node as Enrolled};
use uuid::Uuid;

use crate::support::node::Node;
use crate::support::server::TestServer;

/// The time of the server.
fn time() -> DateTime<Utc> {
    DateTime::from_timestamp(1_800_000_000, 0).unwrap()
}

/// A node that has enrolled with the server, and whose agent has run.
async fn enrolled(server: &TestServer) -> Node {
    let node = Node::new();
    node.clock.set(time());
    node.run_once().await.unwrap();
    enrol(&node, server, None);
    node
}

fn enrol(node: &Node, server: &TestServer, machine: Option<Marks>) {
    let place = node.place();
    node::save_ca(&place, Some(&server.ca_pem)).unwrap();
    node::save_credential(&place, &Secret::new("first-credential")).unwrap();
    let enrolled = Enrolled {
        server: server.url(),
        uuid: Uuid::from_u128(1),
        host_id: "host-0a1b2c3d".into(),
        instance_id: "inst-0a1b2c3d".into(),
        project: "default".into(),
        credential_expires: None,
        machine,
    };
    enrolled.save(&place).unwrap();
}

async fn examine_at(node: &Node, clock: TestClock) -> Vec<Finding> {
    let mut config = Config::default();
    // The machine that runs the tests may be nearly full.
    config.gate.min_free = 0;
    let place = node.place();
    let workshop = Workshop::with(&config, &place, node.system.clone(), Arc::new(clock));
    examine(&workshop).await
}

async fn findings(node: &Node) -> Vec<Finding> {
    examine_at(node, node.clock.clone()).await
}

/// What is not as it should be.
fn wrong(findings: &[Finding]) -> Vec<(&str, Outcome)> {
    let wrong = findings.iter().filter(|one| one.outcome != Outcome::Good);
    wrong.map(|one| (one.check, one.outcome)).collect()
}

#[track_caller]
fn finding<'a>(findings: &'a [Finding], check: &str) -> &'a Finding {
    let found = findings.iter().find(|one| one.check == check);
    found.unwrap_or_else(|| panic!("no {check}: {findings:?}"))
}

#[tokio::test]
async fn a_node_that_is_well_is_told_so() {
    let server = TestServer::on_loopback().await;
    let node = enrolled(&server).await;
    let found = findings(&node).await;
    assert!(wrong(&found).is_empty(), "{found:?}");
    for check in ["server", "clock", "dpkg", "dpkg's lock", "lists", "limits"] {
        finding(&found, check);
    }
    assert_eq!(node.left_over(), ["ca.pem", "credential", "node.json"]);
}

#[tokio::test]
async fn a_machine_that_never_enrolled_is_told_how() {
    let node = Node::new();
    let found = findings(&node).await;
    let enrolment = finding(&found, "enrolment");
    assert_eq!(enrolment.outcome, Outcome::Bad);
    assert!(enrolment.advice.contains("enroll"), "{enrolment:?}");
    assert!(found.iter().all(|one| one.check != "server"));
}

#[tokio::test]
async fn a_copy_of_the_disk_in_another_machine_is_bad() {
    let server = TestServer::on_loopback().await;
    let node = Node::new();
    std::fs::create_dir_all(node.place().inside("/etc")).unwrap();
    let id = node.place().inside("/etc/machine-id");
    std::fs::write(&id, "0123456789abcdef0123456789abcdef\n").unwrap();
    enrol(&node, &server, Some(Marks::of(&node.place())));
    assert_eq!(
        finding(&findings(&node).await, "identity").outcome,
        Outcome::Good
    );
    std::fs::write(&id, "1123456789abcdef0123456789abcdef\n").unwrap();
    let found = findings(&node).await;
    let identity = finding(&found, "identity");
    assert_eq!(identity.outcome, Outcome::Bad);
    assert!(identity.found.contains("host-0a1b2c3d"), "{identity:?}");
}

#[tokio::test]
async fn a_server_that_does_not_accept_the_node_is_told_from_one_that_is_away() {
    let server = TestServer::on_loopback().await;
    let node = enrolled(&server).await;
    server.brain.lock().unwrap().credential = "another".into();
    let found = findings(&node).await;
    let advice = &finding(&found, "server").advice;
    assert!(advice.contains("enrol again"), "{advice}");

    let other = TestServer::on_loopback().await;
    node::save_ca(&node.place(), Some(&other.ca_pem)).unwrap();
    let found = findings(&node).await;
    let advice = &finding(&found, "server").advice;
    assert!(advice.contains("certificate is refused"), "{advice}");
    assert_eq!(finding(&found, "clock").outcome, Outcome::Doubtful);
}

#[tokio::test]
async fn a_clock_that_is_wrong_is_bad() {
    let server = TestServer::on_loopback().await;
    let node = enrolled(&server).await;
    let clock = TestClock::new(time() + chrono::TimeDelta::hours(2));
    let found = examine_at(&node, clock).await;
    let clock = finding(&found, "clock");
    assert_eq!(clock.outcome, Outcome::Bad);
    assert!(clock.found.contains("more than an hour ahead"), "{clock:?}");
}

#[tokio::test]
async fn what_dpkg_and_apt_complain_of_is_told_with_their_words() {
    let server = TestServer::on_loopback().await;
    let node = enrolled(&server).await;
    let half = ("1".to_owned(), "half-configured".to_owned());
    node.packages().installed.insert("app".into(), half);
    node.packages().refresh_error = "E: the key is not known\n".into();
    node.clock.advance(chrono::TimeDelta::hours(5));
    node.run_once().await.unwrap();
    node.clock.advance(chrono::TimeDelta::hours(-5));

    let found = findings(&node).await;
    assert!(finding(&found, "dpkg").found.contains("app"), "{found:?}");
    assert_eq!(finding(&found, "lists").outcome, Outcome::Bad);
    assert_eq!(
        wrong(&found),
        [("dpkg", Outcome::Bad), ("lists", Outcome::Bad)]
    );
}

#[tokio::test]
async fn a_full_disk_is_bad_and_says_what_is_wanted() {
    let node = Node::new();
    let mut config = Config::default();
    config.gate.min_free = u64::MAX;
    let place = node.place();
    let clock = Arc::new(node.clock.clone());
    let workshop = Workshop::with(&config, &place, node.system.clone(), clock);
    let found = examine(&workshop).await;
    let disk = finding(&found, "disk");
    assert_eq!(disk.outcome, Outcome::Bad);
    assert!(disk.advice.contains("gate.min_free"), "{disk:?}");
}
