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
