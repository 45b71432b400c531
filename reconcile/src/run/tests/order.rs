use super::*;

#[test]
fn a_whole_document_is_applied_in_order() {
    let mut node = SimulatedNode::new();
    let unit_text = "[Service]\n[Install]\nWantedBy=multi-user.target\n".to_owned();
    let files = vec![("/usr/lib/systemd/system/web.service".to_owned(), unit_text)];
    node.model().package_files.insert("web".to_owned(), files);
    let document = entries(&[
        "component: Action, name: before, desired: {command: 'true before', timing: pre}",
        "component: Action, name: after, desired: {command: 'true after'}",
        "component: Sysctl, name: vm.swappiness, desired: {value: '10'}",
        &unit("web.service", "dropIns: {10-a.conf: \"[Service]\\n\"}, filePaths: [/etc/web.conf]"),
        &unit("own.service", &format!("content: {SERVICE}")),
        "component: File, name: /etc/web.conf, desired: {owner: web, group: staff}",
        "component: User, name: web, desired: {groups: [staff]}",
        "component: UserGroup, name: staff, desired: {gid: 300}",
        "component: Package, name: web",
        "component: PackageSource, name: main, desired: {source: \"Types: deb\\nURIs: https://a\\n\
         Suites: b\\nComponents: c\"}",
    ]);
    let calls = node.run_well(&document);
    assert_eq!(
        calls,
        [
            "/bin/sh -c true before",
            "packages update +[\"web\"] -[]",
            "groupadd --gid 300 staff",
            "useradd --groups staff web",
            "systemctl daemon-reload",
            "systemctl enable web.service",
            "systemctl enable own.service",
            "systemctl restart own.service",
            "systemctl restart web.service",
            "/bin/sh -c true after",
        ]
    );
    assert_eq!(node.files.read("/proc/sys/vm/swappiness"), "10\n");
    assert!(node.files.read("/etc/sysctl.d/zz-evenkeel.conf").ends_with("vm.swappiness = 10\n"));
    node.check_unchanged(&document);
}

#[test]
fn an_audit_changes_nothing() {
    let mut node = SimulatedNode::new();
    let mut document = entries(&[&file("/etc/a", "a"), "component: Package, name: web"]);
    document.apply_mode = ApplyMode::Audit;
    let tree = node.files.tree();
    let report = node.run(&document);
    assert_eq!(report.outcome, RunOutcome::Audited);
    assert_eq!(report.remaining.steps.len(), 2, "{report:#?}");
    assert_eq!(node.files.tree(), tree);
    assert_eq!(node.take_calls(), [""; 0]);
    assert_eq!(node.journal, MemoryJournal::default());
}

#[test]
fn a_file_of_a_package_that_is_overwritten_is_corrected_before_units_restart() {
    let mut node = SimulatedNode::new();
    node.add_running_unit("web.service");
    let files = vec![("/etc/web.conf".to_owned(), "default".to_owned())];
    node.model().package_files.insert("web".to_owned(), files);
    node.files.write("/etc/web.conf", "mine");
    let document = entries(&[
        "component: Package, name: web",
        &file("/etc/web.conf", "mine"),
        &unit("web.service", "filePaths: [/etc/web.conf]"),
    ]);
    let calls = node.run_well(&document);
    assert_eq!(calls, ["packages +[\"web\"] -[]", "systemctl restart web.service"]);
    assert_eq!(node.files.read("/etc/web.conf"), "mine");
    node.check_unchanged(&document);
}

#[test]
fn entries_are_planned_again_as_long_as_one_is_corrected() {
    // The number of the new group belongs to another one, which is removed in the same round.
    let mut node = SimulatedNode::new();
    let document = entries(&[
        "component: UserGroup, name: www-data, desired: {absent: true}",
        "component: UserGroup, name: web, desired: {gid: 33}",
    ]);
    let calls = node.run_well(&document);
    assert_eq!(calls, ["groupadd --gid 33 web", "groupdel www-data", "groupadd --gid 33 web"]);
    node.check_unchanged(&document);
}

#[test]
fn a_machine_without_systemd_gets_links_and_no_restarts() {
    let mut node = SimulatedNode::new();
    std::fs::remove_dir_all(node.files.path("/run/systemd")).unwrap();
    let document = entries(&[&unit("own.service", &format!("content: {SERVICE}"))]);
    assert_eq!(node.run_well(&document), ["systemctl enable own.service"]);
    assert_eq!(node.state.pending_restarts, PendingRestarts::default());
    node.check_unchanged(&document);
    assert_eq!(node.run_well(&entries(&[])), ["systemctl disable own.service"]);
}

#[test]
fn entries_are_planned_again_after_an_object_without_an_entry_is_removed() {
    let mut node = SimulatedNode::new();
    node.run_well(&entries(&["component: UserGroup, name: old, desired: {gid: 300}"]));
    let document = entries(&["component: UserGroup, name: new, desired: {gid: 300}"]);
    let create = "groupadd --gid 300 new";
    assert_eq!(node.run_well(&document), [create, "groupdel old", create]);
    node.check_unchanged(&document);
}
