use super::*;

fn revert_document(entries_of_bundle: &[&str]) -> Document {
    let mut document = entries(entries_of_bundle);
    document.on_failure = FailureMode::Revert;
    document
}

#[test]
fn a_run_that_fails_restores_files_and_units() {
    let mut node = SimulatedNode::new();
    node.add_running_unit("web.service");
    node.add_running_unit("stopped.service");
    node.files.write("/etc/a", "old");
    let root = node.files.path("/");
    let running = node.model().systemd.active.clone();
    let tree = node.files.tree();
    let document = revert_document(&[
        &file("/etc/a", "new"),
        &file("/etc/b", "new"),
        &unit("web.service", "filePaths: [/etc/a], dropIns: {a.conf: \"[Service]\\n\"}"),
        &unit("stopped.service", "enable: false"),
        &unit("own.service", &format!("content: {SERVICE}")),
        "component: Action, name: post, desired: {command: 'false'}",
    ]);
    let report = node.run(&document);
    assert_eq!(report.outcome, RunOutcome::Reverted);
    assert!(
        node.files
            .tree()
            .iter()
            .all(|(path, text)| { tree.get(path) == Some(text) || text.ends_with("directory") })
    );
    assert!(
        tree.keys().all(|path| root.join(path.trim_start_matches('/')).symlink_metadata().is_ok())
    );
    let active = node.model().systemd.active.clone();
    assert_eq!(active.keys().collect::<Vec<_>>(), running.keys().collect::<Vec<_>>());
    assert!(active["web.service"].last().unwrap().ends_with("old"));
    assert_eq!(node.state, NodeState::default());
}

#[test]
fn a_run_that_keeps_its_changes_restores_nothing() {
    let mut node = SimulatedNode::new();
    let document = entries(&[
        &file("/etc/a", "new"),
        "component: Action, name: post, desired: {command: 'false'}",
    ]);
    assert_eq!(node.run(&document).outcome, RunOutcome::Failed);
    assert_eq!(node.files.read("/etc/a"), "new");
}
