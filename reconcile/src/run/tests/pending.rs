//! What a run could not do is reported, and the next run does it.

use super::*;

const POST: &str = "component: Action, name: post, desired: {command: 'true post'}";

#[test]
fn a_restart_waits_until_systemd_has_read_the_unit_files() {
    let mut node = SimulatedNode::new();
    node.add_running_unit("web.service");
    let document = entries(&[&unit("web.service", "dropIns: {a.conf: x}")]);
    node.model().failing_calls.push("systemctl daemon-reload".to_owned());
    assert_eq!(node.run(&document).outcome, RunOutcome::Failed);
    assert_eq!(node.take_calls(), ["systemctl daemon-reload"]);
    assert_eq!(
        node.run_well(&document),
        ["systemctl daemon-reload", "systemctl restart web.service"]
    );
    node.check_unchanged(&document);
}

#[test]
fn the_file_of_a_unit_that_is_written_counts_also_if_its_drop_in_fails() {
    let mut node = SimulatedNode::new();
    node.files.make_folder("/etc/systemd/system/own.service.d/a.conf");
    let text = format!("content: {SERVICE}, dropIns: {{a.conf: x}}");
    let document = entries(&[&unit("own.service", &text)]);
    let report = node.run_with(&document, &Fuse::with_full_path("own.service.d")).unwrap();
    assert_eq!(report.outcome, RunOutcome::Failed);
    assert_eq!(node.state.owned.entries, BTreeSet::from([EntryKey::unit("own.service")]));
    let calls = node.take_calls();
    assert!(calls.contains(&"systemctl restart own.service".to_owned()), "{calls:?}");
    node.run_well(&entries(&[]));
    assert!(!node.files.path("/etc/systemd/system/own.service").exists());
}

#[test]
fn actions_run_only_after_a_change() {
    let mut node = SimulatedNode::new();
    let bad = "component: File, name: /etc/a, desired: {owner: missing}";
    let document = bundles(&[("a", &[bad, POST]), ("b", &[&unit("missing.service", "")])]);
    for _ in 0..2 {
        assert_eq!(node.run(&document).outcome, RunOutcome::Failed);
        assert!(!node.take_calls().contains(&"/bin/sh -c true post".to_owned()));
    }
}

#[test]
fn an_action_that_has_failed_runs_in_the_next_run() {
    let mut node = SimulatedNode::new();
    let document = entries(&[&file("/etc/a", "a"), POST]);
    node.model().failing_calls.push("/bin/sh".to_owned());
    let report = node.run(&document);
    assert_eq!(report.outcome, RunOutcome::Failed);
    assert!(!report.remaining.is_empty());
    node.take_calls();
    assert_eq!(node.run_well(&document), ["/bin/sh -c true post"]);
    node.check_unchanged(&document);
}

#[test]
fn an_action_that_a_given_up_run_owes_runs_in_the_next_run() {
    let mut node = SimulatedNode::new();
    node.add_running_unit("web.service");
    let document =
        entries(&[&file("/etc/a", "a"), &unit("web.service", "filePaths: [/etc/a]"), POST]);
    node.model().killing_call = Some("systemctl restart".to_owned());
    node.run_with(&document, &Fuse::endless()).unwrap_err();
    node.model().killing_call = None;
    node.give_up(&document);
    node.take_calls();
    let calls = node.run_well(&document);
    assert_eq!(calls, ["systemctl restart web.service", "/bin/sh -c true post"]);
}

#[test]
fn a_run_that_is_given_up_owns_only_packages_that_exist() {
    let mut node = SimulatedNode::new();
    node.model().broken_packages.push("none".to_owned());
    let document = entries(&["component: Package, name: none", "component: Package, name: web"]);
    node.model().killing_call = Some("packages".to_owned());
    node.run_with(&document, &Fuse::endless()).unwrap_err();
    node.give_up(&document);
    let package = EntryKey::new(Component::Package, "web");
    assert_eq!(node.state.owned.entries, BTreeSet::from([package]));
}

#[test]
fn a_unit_that_cannot_be_stopped_keeps_its_file() {
    for call in ["systemctl stop", "systemctl disable"] {
        let mut node = SimulatedNode::new();
        node.run_well(&entries(&[&unit("own.service", &format!("content: {SERVICE}"))]));
        node.model().failing_calls.push(call.to_owned());
        let report = node.run(&entries(&[]));
        assert_eq!(report.outcome, RunOutcome::Failed, "{call}");
        assert!(node.files.path("/etc/systemd/system/own.service").exists());
        node.take_calls();
        node.run_well(&entries(&[]));
        assert!(!node.files.path("/etc/systemd/system/own.service").exists());
        assert!(!node.model().systemd.active.contains_key("own.service"));
        node.check_unchanged(&entries(&[]));
    }
}

#[test]
fn a_user_with_processes_is_locked_and_removed() {
    let mut node = SimulatedNode::new();
    node.run_well(&entries(&["component: User, name: ann"]));
    node.model().busy_users.insert("ann".to_owned());
    assert_eq!(
        node.run_well(&entries(&[])),
        [
            "usermod --lock --expiredate 1 ann",
            "userdel ann",
            "loginctl terminate-user ann",
            "pkill -KILL -U 2000",
            "userdel ann",
        ]
    );
}

#[test]
fn the_group_of_a_removed_user_stays_if_the_document_has_it() {
    let mut node = SimulatedNode::new();
    let group = "component: UserGroup, name: ann";
    node.run_well(&entries(&["component: User, name: ann", group]));
    let calls = node.run_well(&entries(&[group]));
    assert_eq!(calls[1], "usermod --gid nogroup ann");
    assert!(node.files.read("/etc/group").contains("ann:"));
    node.check_unchanged(&entries(&[group]));
}

#[test]
fn a_run_that_is_reverted_removes_no_user() {
    let mut node = SimulatedNode::new();
    node.run_well(&entries(&["component: User, name: web", &file("/etc/b", "b")]));
    let mut document =
        entries(&[&file("/etc/a", "a"), "component: Action, name: p, desired: {command: 'false'}"]);
    document.on_failure = FailureMode::Revert;
    let report = node.run(&document);
    assert_eq!(report.outcome, RunOutcome::Reverted);
    assert!(node.files.read("/etc/passwd").contains("web:"));
    assert!(node.files.path("/etc/b").exists());
}

#[test]
fn accounts_that_cannot_be_read_fail_only_the_files() {
    let mut node = SimulatedNode::new();
    let document = entries(&[&file("/etc/a", "a"), "component: Package, name: web"]);
    let report = node.run(&document);
    assert_eq!(report.outcome, RunOutcome::Succeeded);
    node.files.write("/etc/a", "b");
    std::fs::remove_file(node.files.path("/etc/passwd")).unwrap();
    std::fs::create_dir(node.files.path("/etc/passwd")).unwrap();
    let removed = entries(&["component: Package, name: other"]);
    let report = node.run(&removed);
    assert_eq!(report.outcome, RunOutcome::Failed, "{report:#?}");
    let calls = node.take_calls();
    assert!(calls.contains(&"packages +[\"other\"] -[\"web\"]".to_owned()), "{calls:?}");
}
