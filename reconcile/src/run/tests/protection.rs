//! No document stops, disables or removes the agent.

use evenkeel_configuration::document::ExtraKind;

use super::*;
use crate::names::{AGENT_PACKAGE, AGENT_UNIT};

const AGENT_PATH: &str = "/etc/systemd/system/evenkeel-agent.service";

#[test]
fn entries_against_the_agent_are_bad_and_change_nothing() {
    let cases = [
        unit(AGENT_UNIT, "enable: false"),
        unit(AGENT_UNIT, "command: stop"),
        format!("component: Package, name: {AGENT_PACKAGE}, desired: {{version: absent}}"),
        format!("component: Package, name: '{AGENT_PACKAGE}:all', desired: {{version: absent}}"),
        format!("component: File, name: {AGENT_PATH}, desired: {{type: absent}}"),
        format!(
            "component: File, name: {AGENT_PATH}, desired: {{type: symlink, target: /dev/null}}"
        ),
    ];
    for case in cases {
        let mut node = SimulatedNode::new();
        node.add_running_unit(AGENT_UNIT);
        node.files.write(AGENT_PATH, "[Service]\n");
        set_package(&node.files.path("/"), AGENT_PACKAGE, Some("1"));
        let tree = node.files.tree();
        let report = node.run(&entries(&[&case]));
        assert_eq!(report.outcome, RunOutcome::Failed, "{case}");
        let reason = &report.report.entries[0].reason;
        assert!(reason.contains("of the agent cannot be"), "{case}: {reason}");
        assert_eq!(node.take_calls(), [""; 0], "{case}");
        assert_eq!(node.files.tree(), tree);
    }
}

#[test]
fn the_agent_stays_without_its_entries() {
    let mut node = SimulatedNode::new();
    let document = entries(&[
        &unit(AGENT_UNIT, &format!("content: {SERVICE}")),
        "component: Package, name: evenkeel-agent",
    ]);
    node.run_well(&document);
    let mut empty = entries(&[]);
    empty.remove_extras = vec![ExtraKind::Packages, ExtraKind::Services];
    assert_eq!(node.run_well(&empty), [""; 0]);
    assert!(node.files.path(AGENT_PATH).exists());
}

#[test]
fn a_reversal_neither_stops_nor_disables_the_agent() {
    let mut node = SimulatedNode::new();
    let mut document = entries(&[
        &unit(AGENT_UNIT, &format!("content: {SERVICE}")),
        "component: Action, name: post, desired: {command: 'false'}",
    ]);
    document.on_failure = FailureMode::Revert;
    node.run(&document);
    let calls = node.take_calls();
    assert!(
        !calls.iter().any(|call| call.contains("stop") || call.contains("disable")),
        "{calls:?}"
    );
}
