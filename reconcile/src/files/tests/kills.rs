use std::fs;

use evenkeel_configuration::Document;

use super::{FileMachine, KillBefore, NoFaults, document};

/// A machine with a change of each kind.
fn machine() -> FileMachine {
    let machine = FileMachine::new();
    for (path, content) in [
        ("/etc/content", "old"),
        ("/etc/mode", "same"),
        ("/etc/becomes-folder", "file"),
        ("/etc/stale", "stale"),
        ("/etc/tree/x/y", "deep"),
        ("/etc/pruned/kept", "kept"),
        ("/etc/pruned/extra/file", "extra"),
        ("/etc/hard", "same"),
        ("/etc/permissions", "any"),
    ] {
        machine.write(path, content);
    }
    machine.set_mode("/etc/permissions", 0o4755);
    fs::hard_link(machine.path("/etc/hard"), machine.path("/etc/other-name")).unwrap();
    machine.make_folder("/etc/becomes-file");
    machine.make_folder("/etc/folder");
    for link in ["/etc/link", "/etc/link-becomes-file", "/etc/tree/link"] {
        machine.link(link, "content");
    }
    machine
}

fn desired() -> Document {
    let large = format!("{{content: {{inline: '{}'}}}}", "x".repeat(100_000));
    document(&[
        ("/etc/content", "{content: {inline: new}, owner: app}"),
        ("/etc/mode", "{content: {inline: same}, owner: app, mode: '4711'}"),
        ("/etc/becomes-folder", "{type: directory, mode: '0711', group: app}"),
        ("/etc/becomes-folder/child", &large),
        ("/etc/becomes-file", "{}"),
        ("/etc/folder", "{type: directory, mode: '1777'}"),
        ("/etc/stale", "{type: absent}"),
        ("/etc/tree", "{type: absent, prune: true}"),
        ("/etc/pruned", "{type: directory, prune: true}"),
        ("/etc/pruned/kept", "{mode: '0644', content: {inline: kept}}"),
        ("/etc/hard", "{mode: '0640', content: {inline: same}}"),
        ("/etc/permissions", "{type: permissions, mode: '6750', group: '7'}"),
        ("/etc/link", "{type: symlink, target: mode}"),
        ("/etc/link-becomes-file", "{content: {inline: file}}"),
        ("/opt/new/file", "{}"),
    ])
}

#[test]
fn a_run_that_was_killed_before_any_call_can_be_repeated_or_reverted() {
    let document = desired();
    let finished = machine();
    let old = finished.tree();
    finished.apply(&document);
    assert_eq!(finished.reasons(&document), [""; 0]);
    let new = finished.tree();

    for number in 1.. {
        let machine = machine();
        let plan = machine.plan(&document);
        let kill = KillBefore::call(number);
        let _ = machine.execute(&document, &plan, &kill);
        if !kill.has_killed() {
            assert_eq!(machine.tree(), new);
            assert!(number > 60, "the run has only {number} calls");
            return;
        }
        if number % 2 == 0 {
            let report = machine.execute(&document, &plan, &NoFaults).unwrap();
            assert_eq!(report.failed, [], "after a kill before call {number}");
            assert_eq!(machine.tree(), new, "repeated after a kill before call {number}");
        }
        let report = machine.revert();
        assert_eq!(report.failed, [], "after a kill before call {number}");
        assert_eq!(report.kept, [], "after a kill before call {number}");
        assert_eq!(machine.tree(), old, "reverted after a kill before call {number}");
    }
}

#[test]
fn a_reversal_that_was_killed_before_any_call_can_be_repeated() {
    let document = desired();
    for number in 1.. {
        let machine = machine();
        let old = machine.tree();
        machine.apply(&document);
        let kill = KillBefore::call(number);
        let _ = machine.changer(&kill).revert();
        let report = machine.revert();
        assert_eq!(report.failed, [], "after a kill before call {number}");
        assert_eq!(machine.tree(), old, "after a kill before call {number}");
        if !kill.has_killed() {
            assert!(number > 40, "the reversal has only {number} calls");
            return;
        }
    }
}

#[test]
fn a_run_that_was_killed_twice_can_be_repeated() {
    let document = desired();
    let finished = machine();
    finished.apply(&document);
    let new = finished.tree();
    for first in (1..90).step_by(7) {
        for second in (1..90).step_by(11) {
            let machine = machine();
            let old = machine.tree();
            let plan = machine.plan(&document);
            for number in [first, second] {
                let _ = machine.execute(&document, &plan, &KillBefore::call(number));
            }
            machine.execute(&document, &plan, &NoFaults).unwrap();
            assert_eq!(machine.tree(), new, "after kills before calls {first} and {second}");
            machine.revert();
            assert_eq!(machine.tree(), old, "after kills before calls {first} and {second}");
        }
    }
}
