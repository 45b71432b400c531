use super::*;

#[test]
fn a_failed_restart_is_repeated_alone_in_the_next_run() {
    let mut node = SimulatedNode::new();
    node.add_running_unit("web.service");
    let web = unit("web.service", "filePaths: [/etc/a]");
    let document = entries(&[&file("/etc/a", "a"), &web]);
    node.model().systemd.broken.insert("web.service".to_owned());
    let report = node.run(&document);
    assert_eq!(report.outcome, RunOutcome::Failed);
    let reason = "systemctl restart failed with status 1: Job for web.service failed.";
    assert_eq!(report.failures[0].reason, reason);
    let unit = report.report.entries.iter().find(|entry| entry.name == "web.service").unwrap();
    assert!(unit.reason.contains(reason), "{}", unit.reason);
    assert_eq!(node.take_calls(), ["systemctl restart web.service"]);

    // Also if somebody has started the unit meanwhile, it has not read the new file.
    node.model().systemd.broken.clear();
    let root = node.files.path("/");
    node.model().systemd.run(&root, &["start", "web.service"]);
    assert_eq!(node.run_well(&document), ["systemctl restart web.service"]);
    node.check_unchanged(&document);
}

#[test]
fn entries_that_fail_do_not_stop_the_others() {
    let mut node = SimulatedNode::new();
    node.model().broken_packages.push("none".to_owned());
    let document = entries(&[
        "component: Package, name: none",
        "component: Package, name: web",
        &unit("missing.service", ""),
        "component: File, name: /etc/a, desired: {owner: missing}",
        &file("/etc/b", "b"),
        "component: Sysctl, name: vm.missing, desired: {value: '1'}",
        "component: Sysctl, name: vm.swappiness, desired: {value: '1'}",
    ]);
    let report = node.run(&document);
    assert_eq!(report.outcome, RunOutcome::Failed);
    let good: Vec<&str> = report
        .report
        .entries
        .iter()
        .filter(|entry| entry.verdict == Verdict::Good)
        .map(|entry| entry.name.as_str())
        .collect();
    assert_eq!(good, ["web", "/etc/b", "vm.swappiness"], "{report:#?}");
    assert!(report.failures.iter().any(|failure| failure.reason == "no such package"));
    assert!(!report.remaining.is_empty());
}

#[test]
fn an_action_that_the_owner_does_not_allow_takes_its_bundle_out() {
    let mut node = SimulatedNode::new();
    let forbidden = "component: Action, name: forbidden, desired: {command: x, timing: pre}";
    let report = node.run(&entries(&[forbidden, &file("/etc/a", "a")]));
    assert_eq!(report.failures[0].reason, "the action is forbidden");
    assert_eq!(node.take_calls(), [""; 0]);
    assert!(!node.files.path("/etc/a").exists());
}

#[test]
fn a_run_of_another_document_is_not_continued() {
    let mut node = SimulatedNode::new();
    let fuse = Fuse::after(8);
    let error = node.run_with(&entries(&[&file("/etc/a", "a")]), &fuse).unwrap_err();
    assert!(matches!(error, RunError::Journal(_)), "{error}");
    let error = node.run_with(&entries(&[&file("/etc/a", "b")]), &Fuse::endless()).unwrap_err();
    assert!(matches!(error, RunError::OtherDocument { .. }), "{error}");
}

#[test]
fn a_file_that_cannot_be_written_restarts_its_unit_when_it_is() {
    let mut node = SimulatedNode::new();
    node.add_running_unit("web.service");
    node.add_running_unit("other.service");
    node.files.make_folder("/etc/full");
    let document = entries(&[
        &file("/etc/full/a", "a"),
        &file("/etc/b", "b"),
        &unit("web.service", "filePaths: [/etc/full/a]"),
        &unit("other.service", "filePaths: [/etc/b]"),
    ]);
    let report = node.run_with(&document, &Fuse::with_full_path("/etc/full/")).unwrap();
    assert_eq!(report.outcome, RunOutcome::Failed);
    assert_eq!(report.failures[0].entry, Some(EntryKey::file("/etc/full/a")), "{report:#?}");
    assert_eq!(node.files.read("/etc/b"), "b");
    assert_eq!(node.take_calls(), ["systemctl restart other.service"]);
    assert_eq!(node.run_well(&document), ["systemctl restart web.service"]);
    node.check_unchanged(&document);
}

#[test]
fn an_entry_that_the_server_could_not_bind_reverts_nothing() {
    let mut node = SimulatedNode::new();
    let mut document = entries(&[&file("/etc/a", "a")]);
    document.on_failure = FailureMode::Revert;
    node.scope.failed_entries.insert(EntryKey::file("/etc/b"));
    assert_eq!(node.run(&document).outcome, RunOutcome::Failed);
    assert_eq!(node.files.read("/etc/a"), "a");
}

#[test]
fn a_unit_without_an_entry_restarts_at_most_once() {
    let mut node = SimulatedNode::new();
    node.add_running_unit("web.service");
    node.run_well(&entries(&[&unit("web.service", "dropIns: {a.conf: x}")]));
    node.model().systemd.broken.insert("web.service".to_owned());
    let report = node.run(&entries(&[]));
    assert_eq!(report.outcome, RunOutcome::Failed);
    assert_eq!(report.failures.len(), 1, "{report:#?}");
    node.take_calls();
    node.check_unchanged(&entries(&[]));
}
