//! Entries that move to another component, or whose names change their spelling.

use super::*;

const PATH: &str = "/etc/systemd/system/own.service";
const DROP_IN: &str = "/etc/systemd/system/web.service.d/a.conf";

fn as_unit() -> String {
    unit("own.service", &format!("content: {SERVICE}"))
}

fn as_file(path: &str, text: &str) -> String {
    format!("component: File, name: {path}, desired: {{mode: '0644', content: {{inline: {text}}}}}")
}

#[test]
fn a_unit_file_that_moves_to_a_file_entry_stays_and_runs() {
    let mut node = SimulatedNode::new();
    node.run_well(&entries(&[&as_unit()]));
    let document = entries(&[&as_file(PATH, SERVICE)]);
    assert_eq!(node.run_well(&document), [""; 0]);
    assert!(node.model().systemd.active.contains_key("own.service"));
    assert_eq!(node.state.owned.entries, BTreeSet::from([EntryKey::file(PATH)]));
    node.check_unchanged(&document);
    // Back again: the node still knows that it has created the unit.
    assert_eq!(node.run_well(&entries(&[&as_unit()])), [""; 0]);
    assert_eq!(
        node.run_well(&entries(&[]))[..2],
        ["systemctl disable own.service", "systemctl stop own.service"]
    );
    assert!(!node.files.path(PATH).exists());
}

#[test]
fn a_unit_file_that_moves_and_changes_is_written() {
    let mut node = SimulatedNode::new();
    node.run_well(&entries(&[&as_unit()]));
    let mut document = entries(&[&as_file(PATH, "\"[Service]\\nExecStart=/bin/b\\n\"")]);
    document.on_failure = FailureMode::Revert;
    assert_eq!(node.run_well(&document), ["systemctl daemon-reload"]);
    assert!(node.files.read(PATH).contains("/bin/b"));
    node.check_unchanged(&document);
}

#[test]
fn a_drop_in_that_moves_stays() {
    let mut node = SimulatedNode::new();
    node.add_running_unit("web.service");
    let unit_entry = unit("web.service", "dropIns: {a.conf: x}");
    node.run_well(&entries(&[&unit_entry]));
    let document = entries(&[&unit("web.service", ""), &as_file(DROP_IN, "x")]);
    assert_eq!(node.run_well(&document), [""; 0]);
    assert_eq!(node.files.read(DROP_IN), "x");
    assert_eq!(node.run_well(&entries(&[&unit_entry])), [""; 0]);
    node.run_well(&entries(&[&unit("web.service", "")]));
    assert!(!node.files.path(DROP_IN).exists());
}

#[test]
fn a_source_that_moves_to_a_file_entry_stays() {
    let mut node = SimulatedNode::new();
    let source = "component: PackageSource, name: main, desired: {source: \"Types: deb\\nURIs: \
                  https://a\\nSuites: b\"}";
    node.run_well(&entries(&[source]));
    let path = "/etc/apt/sources.list.d/evenkeel-source-main.sources";
    let document = entries(&[&format!(
        "component: File, name: {path}, desired: {{type: permissions, mode: '0644'}}"
    )]);
    node.run_well(&document);
    assert!(node.files.path(path).exists());
    assert_eq!(node.state.owned.entries.first(), Some(&EntryKey::file(path)));
}

#[test]
fn a_package_whose_name_gets_an_architecture_stays() {
    let mut node = SimulatedNode::new();
    let (plain, with_architecture) =
        ("component: Package, name: web", "component: Package, name: 'web:all'");
    node.run_well(&entries(&[plain]));
    for entry in [with_architecture, plain] {
        assert_eq!(node.run_well(&entries(&[entry])), [""; 0]);
    }
    node.run_well(&entries(&[with_architecture]));
    node.scope.failed_entries.insert(EntryKey::new(Component::Package, "web"));
    node.run(&entries(&[]));
    assert_eq!(node.take_calls(), [""; 0]);
    node.scope.failed_entries.clear();
    assert_eq!(node.run_well(&entries(&[])), ["packages +[] -[\"web:all\"]"]);
}

#[test]
fn a_package_is_not_installed_and_removed_at_once() {
    let mut node = SimulatedNode::new();
    let document = entries(&[
        "component: Package, name: web",
        "component: Package, name: 'web:all', desired: {version: absent}",
    ]);
    let report = node.run(&document);
    assert_eq!(report.outcome, RunOutcome::Failed);
    assert!(node.take_calls().iter().all(|call| call.ends_with("-[]")));
}
