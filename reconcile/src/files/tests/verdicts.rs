use serde_json::{Value, json};

use super::super::ContentDigest;
use super::{FileMachine, Verdict, document, mixed_document};

fn current(machine: &FileMachine, entry: (&str, &str)) -> Value {
    Value::Object(machine.check(&document(&[entry])).remove(0).current)
}

#[test]
fn a_file_as_desired_is_good() {
    let machine = FileMachine::new();
    machine.write("/etc/motd", "hello");
    let document = document(&[("/etc/motd", "{mode: '0644', content: {inline: hello}}")]);
    let report = machine.check(&document).remove(0);
    assert_eq!((report.verdict, report.reason.as_str()), (Verdict::Good, ""));
    assert!(report.current.is_empty());
}

#[test]
fn a_bad_file_lists_only_what_differs() {
    let machine = FileMachine::new();
    machine.write("/etc/motd", "hello");
    machine.set_owner("/etc/motd", 1000);
    let entry = ("/etc/motd", "{mode: '0644', content: {inline: bye}, group: www-data}");
    let digest = ContentDigest::from_bytes(b"hello").to_string();
    assert_eq!(
        current(&machine, entry),
        json!({"content": {"sha256": digest}, "owner": "app", "group": "app"})
    );
    assert_eq!(
        machine.reasons(&document(&[entry])),
        ["the content differs; the owner is app and not root; the group is app and not www-data"]
    );
    let entry = ("/etc/motd", "{owner: app, group: '1000', content: {inline: hello}}");
    assert_eq!(current(&machine, entry), json!({"mode": "0644"}));
}

#[test]
fn another_type_is_the_only_difference_that_is_reported() {
    let machine = FileMachine::new();
    machine.make_folder("/etc/motd");
    machine.link("/etc/link", "motd");
    let check = |path, desired| current(&machine, (path, desired));
    assert_eq!(check("/etc/motd", "{content: {inline: x}}"), json!({"type": "directory"}));
    assert_eq!(check("/etc/none", "{}"), json!({"type": "absent"}));
    assert_eq!(check("/etc/link", "{type: directory}"), json!({"type": "symlink"}));
    assert_eq!(check("/etc/link", "{type: absent}"), json!({"type": "symlink"}));
    assert_eq!(check("/etc/link", "{type: symlink, target: x}"), json!({"target": "motd"}));
    assert_eq!(check("/etc/motd/a/b", "{type: absent}"), json!({}));
}

#[test]
fn a_user_that_the_document_creates_is_a_reason_of_its_own() {
    let machine = FileMachine::new();
    machine.write("/etc/a", "");
    let document = mixed_document(&[
        ("File", "/etc/a", "{mode: '0644', owner: new, group: other}"),
        ("User", "new", "{}"),
    ]);
    assert_eq!(
        machine.reasons(&document),
        ["the user new does not exist; an entry of the document creates it; the group other does \
          not exist; add an entry for it, or write a number"]
    );
}

#[test]
fn the_type_permissions_ignores_the_content_and_attributes_that_it_does_not_name() {
    let machine = FileMachine::new();
    machine.write("/etc/shadow", "secret");
    machine.set_owner("/etc/shadow", 1000);
    let entry = ("/etc/shadow", "{type: permissions, mode: '0640'}");
    assert_eq!(current(&machine, entry), json!({"mode": "0644"}));
    machine.set_mode("/etc/shadow", 0o640);
    assert_eq!(machine.reasons(&document(&[entry])), [""; 0]);
    let missing = document(&[("/etc/none", "{type: permissions, mode: '0640'}")]);
    assert_eq!(
        machine.reasons(&missing),
        ["nothing is at the path, so it has no permissions; name a file or directory"]
    );
}

#[test]
fn a_pruned_directory_lists_names_without_an_entry() {
    let machine = FileMachine::new();
    for name in ["kept", "extra", "below/kept", "empty/x"] {
        machine.write(&format!("/etc/d/{name}"), "");
    }
    let document = document(&[
        ("/etc/d", "{type: directory, prune: true}"),
        ("/etc/d/kept", "{mode: '0644'}"),
        ("/etc/d/below/kept", "{mode: '0644'}"),
    ]);
    let report = machine.check(&document).remove(0);
    assert_eq!(report.reason, "the directory has names without an entry: empty, extra");
    assert_eq!(Value::Object(report.current), json!({"prune": ["empty", "extra"]}));
}

#[test]
fn a_pruned_directory_keeps_unit_files_of_the_document_and_what_enables_units() {
    let machine = FileMachine::new();
    machine.write("/etc/systemd/system/a.service", "[Service]\n");
    machine.write("/etc/systemd/system/b.service.d/x.conf", "");
    machine.write("/etc/systemd/system/evenkeel-agent.service.d/local.conf", "");
    machine.make_folder("/etc/systemd/system/multi-user.target.wants");
    machine.link("/etc/systemd/system/default.target", "/lib/systemd/system/multi-user.target");
    let unit = r#"{content: "[Service]\n"}"#;
    let drop_in = r#"{dropIns: {x.conf: "[Service]\n"}}"#;
    let document = mixed_document(&[
        ("File", "/etc/systemd/system", "{type: directory, prune: true}"),
        ("Unit", "a.service", unit),
        ("Unit", "b.service", drop_in),
    ]);
    assert_eq!(machine.reasons(&document), [""; 0]);
}

#[test]
fn a_fifo_is_not_opened() {
    let machine = FileMachine::new();
    let path = machine.path("/etc/fifo");
    rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RUSR).unwrap();
    let document = document(&[("/etc/fifo", "{content: {inline: x}}")]);
    assert_eq!(
        machine.reasons(&document),
        ["a FIFO is at the path, which could not be restored; remove it"]
    );
    assert_eq!(machine.plan(&document).refused.len(), 1);
}

#[test]
fn a_check_changes_nothing() {
    let machine = FileMachine::new();
    machine.write("/etc/a", "old");
    let before = machine.tree();
    let document = document(&[("/etc/a", "{content: {inline: new}}"), ("/opt/b/c", "{}")]);
    assert_eq!(machine.reasons(&document).len(), 2);
    assert_eq!(machine.tree(), before);
}

#[test]
fn a_file_in_a_missing_directory_does_not_exist() {
    let machine = FileMachine::new();
    let document = document(&[("/opt/a/b", "{}")]);
    assert_eq!(machine.reasons(&document), ["the file does not exist"]);
}
