//! `evenkeel-agent configuration` on a node that has never joined a fleet.

use std::process::Output;

use evenkeel_tests::lab::Node;
use serde_json::Value;

use super::scenario::{AGENT_PATH, Stage, scenarios, write_file};

scenarios![a_document_is_checked_and_applied_without_a_server];

const DOCUMENT_PATH: &str = "/srv/document.yaml";

/// All components that need no systemd.
const DOCUMENT: &str = "
bundles:
  - name: demo
    entries:
      - {component: Package, name: demo-hello, desired: {version: '1.1'}}
      - {component: Package, name: demo-conf, desired: {version: absent}}
      - {component: UserGroup, name: operators}
      - {component: User, name: demo, desired: {group: operators, shell: /bin/sh}}
      - component: File
        name: /etc/demo/own.conf
        desired: {mode: '0640', owner: demo, group: operators, content: {inline: 'a = 1'}}
      - {component: Action, name: record, desired: {command: echo ran >> /var/lib/demo-action}}
";

fn run_configuration(node: &Node, command: &str) -> Output {
    node.run(&[AGENT_PATH, "configuration", command, DOCUMENT_PATH, "-o", "json"])
}

#[track_caller]
fn entries(output: &Output) -> Vec<Value> {
    let report: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {output:?}"));
    report["entries"].as_array().expect("a list").clone()
}

fn a_document_is_checked_and_applied_without_a_server(stage: &Stage) {
    let node = stage.node("node");
    write_file(&node, DOCUMENT_PATH, DOCUMENT);
    write_file(&node, "/etc/evenkeel/limits.toml", "[configuration]\nactions = [\"all\"]\n");

    // As in a new image: the command refreshes the lists.
    node.sh("rm -rf /var/lib/apt/lists");

    let checked = run_configuration(&node, "check");
    assert_eq!(checked.status.code(), Some(1), "{checked:?}");
    let verdicts = entries(&checked);
    let are_bad = verdicts.iter().take(5).all(|entry| entry["verdict"] == "bad");
    assert!(are_bad, "{verdicts:#?}");
    assert_eq!(node.package("demo-hello"), "1.0 installed");

    let applied = run_configuration(&node, "apply");
    assert_eq!(applied.status.code(), Some(0), "{applied:?}");
    let changed = entries(&applied);
    let are_changed = |entry: &Value| entry["verdict"] == "good" && entry["modified"] == true;
    assert!(changed.iter().take(5).all(are_changed), "{changed:#?}");
    assert_eq!(node.package("demo-hello"), "1.1 installed");
    assert!(!node.package("demo-conf").ends_with(" installed"));
    assert_eq!(node.sh("stat -c '%U %G %a' /etc/demo/own.conf"), "demo operators 640\n");
    assert_eq!(node.sh("cat /var/lib/demo-action"), "ran\n");
    assert_eq!(node.audit(), "");

    let again = run_configuration(&node, "apply");
    assert_eq!(again.status.code(), Some(0), "{again:?}");
    assert!(entries(&again).iter().all(|entry| entry["modified"] == false), "{again:?}");
    assert_eq!(node.sh("cat /var/lib/demo-action"), "ran\n");
    let checked = run_configuration(&node, "check");
    assert_eq!(checked.status.code(), Some(0), "{checked:?}");
}
