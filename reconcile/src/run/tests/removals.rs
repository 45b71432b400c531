use evenkeel_configuration::document::ExtraKind;

use super::*;

#[test]
fn what_earlier_runs_have_created_is_removed_with_its_entry() {
    let mut node = SimulatedNode::new();
    node.add_running_unit("web.service");
    let document = entries(&[
        &file("/etc/a/b", "b"),
        "component: File, name: /etc/a, desired: {type: directory}",
        &unit("own.service", &format!("content: {SERVICE}")),
        &unit("web.service", "dropIns: {a.conf: \"[Service]\\n\"}"),
        "component: Package, name: web",
        "component: User, name: web",
        "component: UserGroup, name: staff",
        "component: Sysctl, name: vm.swappiness, desired: {value: '10'}",
        "component: PackageSource, name: main, desired: {source: \"Types: deb\\nURIs: https://a\\n\
         Suites: b\\nComponents: c\"}",
    ]);
    let before = node.files.tree();
    node.run_well(&document);
    let calls = node.run_well(&entries(&[]));
    assert_eq!(
        calls,
        [
            "packages update +[] -[\"web\"]",
            "systemctl disable own.service",
            "systemctl stop own.service",
            "systemctl daemon-reload",
            "systemctl restart web.service",
            "usermod --lock --expiredate 1 web",
            "userdel web",
            "groupdel staff",
        ]
    );
    let after = node.files.tree();
    let changed: Vec<&String> = after.keys().filter(|path| !before.contains_key(*path)).collect();
    // Directories of files stay, and the running value of a kernel setting.
    assert!(changed.iter().all(|path| after[*path].ends_with("directory")), "{changed:?}");
    assert!(before.keys().all(|path| after.contains_key(path)));
    assert_eq!(node.state.owned, OwnedEntries::default());
    node.check_unchanged(&entries(&[]));
}

#[test]
fn what_was_there_before_stays_without_its_entry() {
    let mut node = SimulatedNode::new();
    node.add_running_unit("web.service");
    node.files.write("/etc/a", "old");
    node.files.write("/etc/systemd/system/web.service.d/a.conf", "[Service]\n");
    set_package(&node.files.path("/"), "web", Some("1"));
    let document = entries(&[
        &file("/etc/a", "new"),
        &unit("web.service", "dropIns: {a.conf: \"[Unit]\\n\"}"),
        "component: Package, name: web, desired: {version: '2'}",
        "component: User, name: app, desired: {shell: /bin/false}",
    ]);
    node.run_well(&document);
    assert_eq!(node.run_well(&entries(&[])), [""; 0]);
    assert_eq!(node.files.read("/etc/a"), "new");
}

#[test]
fn extras_are_removed_only_if_the_document_lists_their_kind() {
    let mut node = SimulatedNode::new();
    node.add_running_unit("extra.service");
    set_package(&node.files.path("/"), "extra", Some("1"));
    node.files.write("/etc/passwd", "root:x:0:0::/root:/bin/sh\nann:x:1000:1000::/:/bin/sh\n");
    let mut document = entries(&[
        "component: Package, name: web",
        &unit("own.service", &format!("content: {SERVICE}")),
        "component: User, name: root",
    ]);
    node.run_well(&document);
    assert!(node.files.read("/etc/passwd").contains("ann"));
    document.remove_extras = vec![ExtraKind::Packages, ExtraKind::Services, ExtraKind::Users];
    assert_eq!(
        node.run_well(&document),
        [
            "packages +[] -[\"extra\"]",
            "systemctl disable extra.service",
            "systemctl stop extra.service",
            "usermod --lock --expiredate 1 ann",
            "userdel ann",
        ]
    );
    node.check_unchanged(&document);
}

#[test]
fn a_directory_stays_as_long_as_something_is_in_it() {
    let mut node = SimulatedNode::new();
    let folder = "component: File, name: /etc/a, desired: {type: directory}";
    node.run_well(&entries(&[folder, &file("/etc/a/b", "b")]));
    let inner = entries(&[&file("/etc/a/b", "b")]);
    node.check_unchanged(&inner);
    node.files.write("/etc/a/foreign", "");
    node.run_well(&entries(&[]));
    assert!(node.files.path("/etc/a/foreign").exists());
    node.check_unchanged(&entries(&[]));
}

#[test]
fn a_file_with_another_entry_by_another_path_stays() {
    let mut node = SimulatedNode::new();
    node.files.make_folder("/usr/lib");
    node.files.link("/lib", "usr/lib");
    node.run_well(&entries(&[&file("/lib/a", "a")]));
    let document = entries(&[&file("/usr/lib/a", "a")]);
    node.run_well(&document);
    assert_eq!(node.files.read("/usr/lib/a"), "a");
    node.check_unchanged(&document);
}

#[test]
fn what_the_server_could_not_bind_stays() {
    let mut node = SimulatedNode::new();
    node.run_well(&entries(&[&file("/etc/a", "a"), &file("/etc/b", "b")]));
    node.scope.failed_entries.insert(EntryKey::file("/etc/a"));
    let report = node.run(&entries(&[]));
    assert_eq!(report.outcome, RunOutcome::Failed);
    assert!(node.files.path("/etc/a").exists() && !node.files.path("/etc/b").exists());
}

#[test]
fn a_unit_of_a_package_that_loses_our_unit_file_runs_with_its_own() {
    let mut node = SimulatedNode::new();
    node.add_running_unit("web.service");
    node.run_well(&entries(&[&unit("web.service", &format!("content: {SERVICE}"))]));
    let calls = node.run_well(&entries(&[]));
    assert_eq!(calls, ["systemctl daemon-reload", "systemctl restart web.service"]);
    assert!(!node.files.path("/etc/systemd/system/web.service").exists());
    node.check_unchanged(&entries(&[]));
}

#[test]
fn systemd_is_reloaded_after_a_file_in_its_folder_is_removed() {
    let mut node = SimulatedNode::new();
    let document = entries(&[&file("/etc/systemd/system/x.service.d/a.conf", "[Service]")]);
    assert_eq!(node.run_well(&document), ["systemctl daemon-reload"]);
    assert_eq!(node.run_well(&entries(&[])), ["systemctl daemon-reload"]);
    assert!(!node.files.path("/etc/systemd/system/x.service.d/a.conf").exists());
}

#[test]
fn package_lists_are_updated_before_the_next_change_of_packages() {
    let mut node = SimulatedNode::new();
    let source = "component: PackageSource, name: main, desired: {source: \"Types: deb\\nURIs: \
                  https://a\\nSuites: b\"}";
    assert_eq!(node.run_well(&entries(&[source])), [""; 0]);
    let package = "component: Package, name: web";
    let calls = node.run_well(&entries(&[source, package]));
    assert_eq!(calls, ["packages update +[\"web\"] -[]"]);
    let absent = "component: Package, name: web, desired: {version: absent}";
    assert_eq!(node.run_well(&entries(&[source, absent])), ["packages +[] -[\"web\"]"]);
}
