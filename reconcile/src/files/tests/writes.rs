use std::fs;
use std::os::unix::fs::MetadataExt;

use super::super::{FileSet, FileSpec, PlannedObject, TEMPORARY_PREFIX};
use super::{CallCounter, FileMachine, NoFaults, document};

#[test]
fn files_links_and_directories_are_written_with_mode_and_owner() {
    let machine = FileMachine::new();
    machine.write("/etc/old", "old");
    machine.link("/etc/link", "old");
    machine.write("/etc/stale", "");
    let document = document(&[
        ("/etc/old", "{content: {inline: new}, owner: app, group: www-data, mode: '4755'}"),
        ("/etc/link", "{type: symlink, target: other, owner: app}"),
        ("/etc/d", "{type: directory, mode: '0700', owner: '7'}"),
        ("/etc/d/base64", "{content: {base64: aGVsbG8=}}"),
        ("/etc/stale", "{type: absent}"),
        ("/opt/a/b/empty", "{}"),
    ]);
    machine.apply(&document);
    let tree = machine.tree();
    let state = |path: &str| tree.get(path).map(String::as_str);
    assert_eq!(state("/etc/old"), Some("4755 1000:33 \"new\""));
    assert_eq!(state("/etc/link"), Some("0000 1000:0 link to other"));
    assert_eq!(state("/etc/d"), Some("0700 7:0 directory"));
    assert_eq!(state("/etc/d/base64"), Some("0600 0:0 \"hello\""));
    assert_eq!(state("/etc/stale"), None);
    assert_eq!(state("/opt/a"), Some("0755 0:0 directory"));
    assert_eq!(state("/opt/a/b"), Some("0755 0:0 directory"));
    assert_eq!(state("/opt/a/b/empty"), Some("0600 0:0 \"\""));
    assert_eq!(machine.reasons(&document), [""; 0]);
    assert!(!tree.keys().any(|path| path.contains(TEMPORARY_PREFIX)));
}

#[test]
fn a_second_run_makes_no_change() {
    let machine = FileMachine::new();
    machine.write("/etc/a", "old");
    let document = document(&[("/etc/a", "{content: {inline: new}}"), ("/opt/x/y", "{}")]);
    let plan = machine.plan(&document);
    machine.apply(&document);
    assert!(machine.plan(&document).is_empty());
    let counter = CallCounter::default();
    let report = machine.execute(&document, &plan, &counter).unwrap();
    assert_eq!(counter.calls.take(), [""; 0]);
    assert_eq!(report.changed, [""; 0]);
}

#[test]
fn all_files_are_synced_together_before_the_first_gets_its_name() {
    let machine = FileMachine::new();
    let names: Vec<String> = (0..20).map(|number| format!("/etc/app/{number}")).collect();
    let entries: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "{}")).collect();
    let document = document(&entries);
    let plan = machine.plan(&document);
    let counter = CallCounter::default();
    machine.execute(&document, &plan, &counter).unwrap();
    let calls = counter.calls.take();
    let positions = |verb: &str| -> Vec<usize> {
        let calls = calls.iter().enumerate();
        calls
            .filter(|(_, call)| call.starts_with(verb) && call.contains("/etc"))
            .map(|(index, _)| index)
            .collect()
    };
    let (syncs, renames) = (positions("sync "), positions("replace "));
    let last_write = *positions("set the mode of ").last().unwrap();
    assert_eq!((syncs.len(), renames.len()), (2, 20));
    assert!(last_write < syncs[0] && syncs[0] < renames[0] && renames[19] < syncs[1]);
}

#[test]
fn a_change_of_attributes_keeps_the_file() {
    let machine = FileMachine::new();
    machine.write("/etc/a", "same");
    let inode = fs::metadata(machine.path("/etc/a")).unwrap().ino();
    let document = document(&[("/etc/a", "{content: {inline: same}, owner: app, mode: '4700'}")]);
    machine.apply(&document);
    let metadata = fs::metadata(machine.path("/etc/a")).unwrap();
    assert_eq!((metadata.ino(), metadata.mode() & 0o7777, metadata.uid()), (inode, 0o4700, 1000));
    assert_eq!(fs::read_dir(machine.saved()).unwrap().count(), 1, "no content is saved");
}

#[test]
fn the_journal_names_digests_and_temporary_files_and_no_content() {
    let machine = FileMachine::new();
    let document = document(&[("/etc/a", "{content: {inline: the content}, owner: app}")]);
    let set = machine.plan(&document).files;
    let json = serde_json::to_string(&set).unwrap();
    assert!(!json.contains("the content"), "{json}");
    assert_eq!(serde_json::from_str::<FileSet>(&json).unwrap(), set);
    assert!(matches!(set.files[0].object, PlannedObject::File { .. }));
    let temporary: Vec<String> = set.temporary_paths().collect();
    assert_eq!(temporary, ["/etc/.evenkeel-tmp-run-1-0"]);
}

#[test]
fn the_owner_may_be_created_between_plan_and_writing() {
    let machine = FileMachine::new();
    let document = document(&[("/etc/a", "{owner: new}")]);
    let plan = machine.plan(&document);
    let report = machine.execute(&document, &plan, &NoFaults).unwrap();
    assert_eq!(
        report.failed[0].to_string(),
        "cannot write /etc/a: the user new does not exist; create it or write a number"
    );
    machine.write("/etc/passwd", "new:x:77:77::/:/bin/sh\n");
    assert_eq!(machine.execute(&document, &plan, &NoFaults).unwrap().failed, []);
    assert!(machine.tree()["/etc/a"].starts_with("0600 77:0"));
}

#[test]
fn a_directory_is_replaced_only_if_it_is_empty() {
    let machine = FileMachine::new();
    machine.make_folder("/etc/empty");
    machine.write("/etc/full/x", "");
    let document = document(&[
        ("/etc/empty", "{content: {inline: x}}"),
        ("/etc/full", "{type: symlink, target: x}"),
    ]);
    let plan = machine.plan(&document);
    assert_eq!(plan.refused.len(), 1);
    assert_eq!(plan.refused[0].reason, "a directory that is not empty is at the path; empty it");
    machine.execute(&document, &plan, &NoFaults).unwrap();
    assert_eq!(machine.read("/etc/empty"), "x");
    assert!(machine.path("/etc/full/x").exists());
}

#[test]
fn a_file_becomes_a_directory_with_children() {
    let machine = FileMachine::new();
    machine.write("/etc/a", "file");
    machine.write("/etc/other/b", "not the child");
    machine.link("/etc/l", "other");
    let document = document(&[
        ("/etc/a/x/b", "{}"),
        ("/etc/a", "{type: directory}"),
        ("/etc/l", "{type: directory}"),
        ("/etc/l/b", "{content: {inline: child}}"),
    ]);
    machine.apply(&document);
    assert_eq!(machine.reasons(&document), [""; 0]);
    assert_eq!(machine.read("/etc/other/b"), "not the child");
    assert_eq!(machine.read("/etc/l/b"), "child");
}

#[test]
fn a_directory_is_removed_with_its_contents_only_with_prune() {
    let machine = FileMachine::new();
    for name in ["a", "b"] {
        machine.write(&format!("/etc/{name}/x/y"), "");
        machine.link(&format!("/etc/{name}/outside"), "/etc/passwd");
    }
    let document =
        document(&[("/etc/a", "{type: absent, prune: true}"), ("/etc/b", "{type: absent}")]);
    let plan = machine.plan(&document);
    assert_eq!(
        plan.refused[0].reason,
        "a directory that is not empty is at the path; set prune: true, or empty it"
    );
    machine.execute(&document, &plan, &NoFaults).unwrap();
    assert!(!machine.path("/etc/a").exists() && machine.path("/etc/b/x/y").exists());
    assert!(machine.path("/etc/passwd").exists());
}

#[test]
fn two_names_of_one_path_are_refused() {
    let machine = FileMachine::new();
    machine.make_folder("/usr/bin");
    machine.link("/bin", "usr/bin");
    let document = document(&[("/bin/x", "{}"), ("/usr/bin/x", "{}")]);
    let plan = machine.plan(&document);
    assert_eq!(plan.refused[0].reason, "/bin/x is the same path; remove one of the two");
    assert_eq!(plan.files.files[0].path, "/usr/bin/x");
}

#[test]
fn other_components_write_files_through_specs() {
    let machine = FileMachine::new();
    let spec = FileSpec::root_file("/etc/sysctl.d/90.conf", 0o644, "vm.swappiness = 1\n");
    let managed = super::ManagedPaths::default();
    let source = super::EmptyContentSource;
    let context = super::FileContext::new(&machine.root, &source, &managed).unwrap();
    let specs = [spec, FileSpec::absent("/etc/group")];
    let plan = super::plan(&context, &specs, "run-2").unwrap();
    machine.changer(&NoFaults).apply(&plan.files, &specs).unwrap();
    machine.changer(&NoFaults).remove(&plan.removals).unwrap();
    assert_eq!(machine.read("/etc/sysctl.d/90.conf"), "vm.swappiness = 1\n");
    assert!(!machine.path("/etc/group").exists());
    assert!(super::plan(&context, &specs, "../x").is_err());
}
