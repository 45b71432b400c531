use std::fs;

use super::{CallCounter, FileMachine, NoFaults, document};

#[test]
fn a_run_is_reverted_with_contents_links_modes_owners_and_absence() {
    let machine = FileMachine::new();
    machine.write("/etc/a", "old");
    machine.set_owner("/etc/a", 1000);
    machine.set_mode("/etc/a", 0o4711);
    machine.link("/etc/link", "a");
    machine.write("/etc/tree/x/y", "deep");
    machine.set_mode("/etc/tree/x", 0o500);
    machine.link("/etc/tree/link", "nowhere");
    let before = machine.tree();
    let document = document(&[
        ("/etc/a", "{content: {inline: new}}"),
        ("/etc/link", "{type: directory, mode: '0750'}"),
        ("/etc/link/child", "{}"),
        ("/etc/tree", "{type: absent, prune: true}"),
        ("/opt/new/file", "{}"),
    ]);
    machine.apply(&document);
    let report = machine.revert();
    assert_eq!((report.failed.as_slice(), report.kept.as_slice()), (&[][..], &[][..]));
    assert_eq!(machine.tree(), before);

    let counter = CallCounter::default();
    let report = machine.changer(&counter).revert().unwrap();
    assert_eq!((counter.calls.take().len(), report.changed.len()), (0, 0));
}

#[test]
fn a_file_that_was_changed_after_the_run_is_kept() {
    let machine = FileMachine::new();
    machine.write("/etc/a", "old");
    machine.write("/etc/b", "old");
    let document = document(&[
        ("/etc/a", "{content: {inline: new}}"),
        ("/etc/b", "{content: {inline: new}}"),
        ("/opt/new/c", "{}"),
    ]);
    machine.apply(&document);
    machine.write("/etc/a", "of an administrator");
    machine.write("/opt/new/d", "of an administrator");
    let report = machine.revert();
    let mut kept: Vec<String> =
        report.kept.iter().map(|kept| format!("{}: {}", kept.path, kept.reason)).collect();
    kept.sort();
    assert_eq!(
        kept,
        [
            "/etc/a: it was changed after the run",
            "/opt/new: the directory is not empty",
            "/opt: the directory is not empty",
        ]
    );
    assert_eq!(machine.read("/etc/a"), "of an administrator");
    assert_eq!(machine.read("/etc/b"), "old");
    assert!(!machine.path("/opt/new/c").exists());
}

#[test]
fn the_first_state_of_a_run_is_restored_after_several_steps() {
    let machine = FileMachine::new();
    machine.write("/etc/a", "first");
    let before = machine.tree();
    machine.apply(&document(&[("/etc/a", "{content: {inline: second}}")]));
    machine.apply(&document(&[("/etc/a", "{content: {inline: third}}")]));
    machine.apply(&document(&[("/etc/a", "{type: absent}")]));
    assert_eq!(machine.revert().kept, []);
    assert_eq!(machine.tree(), before);
}

#[test]
fn nothing_is_restored_without_saved_states() {
    let machine = FileMachine::new();
    machine.write("/etc/a", "old");
    machine.apply(&document(&[("/etc/a", "{content: {inline: new}}")]));
    machine.changer(&NoFaults).discard_saved().unwrap();
    machine.changer(&NoFaults).discard_saved().unwrap();
    assert!(!machine.saved().exists());
    assert_eq!(machine.revert().changed, [""; 0]);
    assert_eq!(machine.read("/etc/a"), "new");
}

#[test]
fn damaged_saved_states_are_an_error() {
    let machine = FileMachine::new();
    machine.write("/etc/a", "old");
    machine.apply(&document(&[("/etc/a", "{content: {inline: new}}")]));
    fs::write(machine.saved().join("0"), "other").unwrap();
    let report = machine.revert();
    assert!(report.failed[0].reason.contains("unexpected digest"), "{report:?}");
    assert_eq!(machine.read("/etc/a"), "new");
    fs::write(machine.saved().join("manifest.json"), "{").unwrap();
    let error = machine.changer(&NoFaults).revert().unwrap_err();
    assert!(error.reason.starts_with("it is damaged"), "{error}");
}
