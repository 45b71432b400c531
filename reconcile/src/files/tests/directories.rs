//! Files that become directories, directories that are absent, and links to directories.

use std::fs;

use rustix::io::Errno;

use super::{CallCounter, FailOn, FileMachine, NoFaults, document};

#[test]
fn a_file_that_cannot_become_a_directory_stays() {
    for call in ["create", "open", "set the owner of", "set the mode of", "replace"] {
        for errno in [Errno::NOSPC, Errno::DQUOT] {
            let machine = FileMachine::new();
            machine.write("/etc/b", "file");
            machine.set_owner("/etc/b", 1000);
            let before = machine.tree();
            let document = document(&[("/etc/b", "{type: directory}"), ("/etc/b/c", "{}")]);
            let plan = machine.plan(&document);
            let path = if call == "replace" { "/etc/b" } else { "/etc/.evenkeel-tmp-folder" };
            let failure = FailOn { call, path, errno };
            let report = machine.execute(&document, &plan, &failure).unwrap();
            assert_eq!(report.failed[0].path, "/etc/b", "{call}");
            assert_eq!((report.changed.as_slice(), machine.tree()), (&[][..], before), "{call}");
            machine.apply(&document);
            assert_eq!(machine.reasons(&document), [""; 0]);
        }
    }
}

#[test]
fn a_new_directory_that_cannot_get_its_owner_does_not_stay() {
    let machine = FileMachine::new();
    let before = machine.tree();
    let document = document(&[("/etc/d", "{type: directory, owner: app}"), ("/etc/d/x", "{}")]);
    let plan = machine.plan(&document);
    let quota = FailOn { call: "set the owner of", path: "/etc/d", errno: Errno::DQUOT };
    let report = machine.execute(&document, &plan, &quota).unwrap();
    let paths: Vec<&str> = report.failed.iter().map(|error| error.path.as_str()).collect();
    assert_eq!(paths, ["/etc/d", "/etc/d/x"]);
    assert_eq!(machine.tree(), before);
}

#[test]
fn nothing_can_be_below_a_file_or_a_dangling_link() {
    let machine = FileMachine::new();
    machine.write("/etc/file", "");
    machine.link("/etc/dangling", "none");
    let document = document(&[
        ("/etc/file/a", "{type: absent}"),
        ("/etc/file/b/c", "{type: absent, prune: true}"),
        ("/etc/dangling/a", "{type: absent}"),
    ]);
    assert_eq!(machine.reasons(&document), [""; 0]);
    let plan = machine.plan(&document);
    assert!(plan.is_empty() && plan.refused.is_empty(), "{plan:?}");
}

#[test]
fn a_path_below_a_link_of_a_user_is_not_absent() {
    let machine = FileMachine::new();
    machine.make_folder("/home/app");
    machine.set_owner("/home/app", 1000);
    machine.link("/home/app/etc", "/etc");
    let document = document(&[("/home/app/etc/passwd", "{type: absent}")]);
    assert_eq!(machine.reasons(&document).len(), 1);
}

#[test]
fn a_directory_is_not_removed_if_an_entry_needs_a_file_in_it_by_another_name() {
    let machine = FileMachine::new();
    machine.write("/usr/lib/x/good", "");
    machine.set_mode("/usr/lib/x/good", 0o600);
    machine.write("/usr/lib/x/other", "");
    machine.link("/lib", "usr/lib");
    let document = document(&[
        ("/lib/x", "{type: absent, prune: true}"),
        ("/usr/lib/x/good", "{}"),
        ("/usr/lib/x/new", "{}"),
    ]);
    let plan = machine.plan(&document);
    assert_eq!(plan.refused.len(), 1);
    assert_eq!(plan.refused[0].path, "/lib/x");
    let reason = "another entry needs /usr/lib/x; remove one of them";
    assert_eq!(plan.refused[0].reason, reason);
    machine.execute(&document, &plan, &NoFaults).unwrap();
    for name in ["good", "other", "new"] {
        assert!(machine.path(&format!("/usr/lib/x/{name}")).exists(), "{name}");
    }
}

#[test]
fn attributes_are_reverted_also_if_the_file_has_got_a_second_name() {
    let machine = FileMachine::new();
    machine.write("/etc/a", "same");
    let before = machine.tree();
    machine.apply(&document(&[("/etc/a", "{content: {inline: same}, owner: app, mode: '0600'}")]));
    fs::create_dir(machine.path("/backup")).unwrap();
    fs::hard_link(machine.path("/etc/a"), machine.path("/backup/a")).unwrap();
    let report = machine.revert();
    assert_eq!((report.failed.as_slice(), report.kept.as_slice()), (&[][..], &[][..]));
    fs::remove_dir_all(machine.path("/backup")).unwrap();
    assert_eq!(machine.tree(), before);
}

#[test]
fn the_saved_folder_is_on_the_disk_before_the_first_change() {
    let machine = FileMachine::new();
    machine.write("/etc/a", "old");
    let document = document(&[("/etc/a", "{content: {inline: new}}")]);
    let plan = machine.plan(&document);
    let counter = CallCounter::default();
    machine.execute(&document, &plan, &counter).unwrap();
    let saved = machine.saved();
    let expected = [
        format!("create {}", saved.display()),
        format!("sync {}/", saved.parent().unwrap().display()),
    ];
    assert_eq!(counter.calls.take()[..2], expected);
}
