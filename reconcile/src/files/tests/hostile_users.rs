use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::super::PlannedObject;
use super::{FileMachine, NoFaults, document};

/// A directory of the user `app`.
fn machine_with_home() -> FileMachine {
    let machine = FileMachine::new();
    machine.make_folder("/home/app");
    machine.set_owner("/home/app", 1000);
    machine
}

#[test]
fn links_of_the_system_are_followed() {
    let machine = FileMachine::new();
    for folder in ["/usr/lib", "/run/lock", "/var"] {
        machine.make_folder(folder);
    }
    machine.link("/lib", "usr/lib");
    machine.link("/var/run", "/run");
    machine.link("/var/lock", "../run/lock");
    machine.link("/var/up", "../../../run");
    let entries = ["/lib/a", "/var/run/b", "/var/lock/c", "/var/up/d"];
    let document = document(&entries.map(|path| (path, "{}")));
    machine.apply(&document);
    for path in ["/usr/lib/a", "/run/b", "/run/lock/c", "/run/d"] {
        assert!(machine.path(path).is_file(), "{path}");
    }
    assert_eq!(machine.reasons(&document), [""; 0]);
}

#[test]
fn a_link_that_a_user_could_have_made_is_not_followed() {
    let machine = machine_with_home();
    machine.link("/home/app/conf", "/etc");
    let document = document(&[("/home/app/conf/motd", "{}")]);
    let reason = "/home/app/conf is a symbolic link to /etc that a user could have made, so it is \
                  not followed; write the path without the link";
    assert_eq!(machine.reasons(&document), [reason]);
    assert_eq!(machine.plan(&document).refused[0].reason, reason);
}

#[test]
fn a_link_in_a_directory_that_others_may_write_to_is_not_followed() {
    let machine = FileMachine::new();
    machine.make_folder("/tmp");
    machine.set_mode("/tmp", 0o1777);
    machine.link("/tmp/conf", "/etc");
    machine.make_folder("/srv");
    machine.link("/srv/of-user", "/etc");
    machine.set_owner("/srv/of-user", 1000);
    let document = document(&[("/tmp/conf/motd", "{}"), ("/srv/of-user/motd", "{}")]);
    assert_eq!(machine.plan(&document).refused.len(), 2);
}

#[test]
fn a_link_that_is_swapped_in_after_the_plan_is_not_followed() {
    let machine = machine_with_home();
    machine.make_folder("/home/app/conf");
    let document = document(&[("/home/app/conf/passwd", "{content: {inline: x}}")]);
    let plan = machine.plan(&document);
    fs::remove_dir(machine.path("/home/app/conf")).unwrap();
    machine.link("/home/app/conf", "/etc");
    let before = machine.tree();
    let report = machine.execute(&document, &plan, &NoFaults).unwrap();
    assert_eq!(report.failed.len(), 1, "{report:?}");
    assert_eq!(machine.tree(), before);
}

#[test]
fn a_circle_of_links_and_a_dangling_link_are_refused() {
    let machine = FileMachine::new();
    machine.link("/a", "b");
    machine.link("/b", "a");
    machine.link("/c", "none");
    let document = document(&[("/a/x", "{}"), ("/c/x", "{}")]);
    assert_eq!(
        machine.reasons(&document),
        [
            "/a is a link in a circle of links; remove it",
            "/c is a symbolic link to a missing directory; remove it"
        ]
    );
}

#[test]
fn a_parent_that_is_a_file_is_named() {
    let machine = FileMachine::new();
    machine.write("/etc/a", "");
    let document = document(&[("/etc/a/b/c", "{}")]);
    let reason = "/etc/a is a file and not a directory; remove it or correct the path";
    assert_eq!(machine.reasons(&document), [reason]);
}

#[test]
fn a_link_at_the_path_is_replaced_and_not_followed() {
    let machine = machine_with_home();
    machine.link("/home/app/motd", "/etc/passwd");
    let before = machine.read("/etc/passwd");
    let document = document(&[("/home/app/motd", "{content: {inline: new}}")]);
    machine.apply(&document);
    assert_eq!(machine.read("/etc/passwd"), before);
    assert_eq!(machine.read("/home/app/motd"), "new");
}

#[test]
fn the_owner_of_a_file_with_hard_links_does_not_change_in_a_directory_of_a_user() {
    let machine = machine_with_home();
    machine.write("/etc/shadow", "secret");
    fs::hard_link(machine.path("/etc/shadow"), machine.path("/home/app/mine")).unwrap();
    let permissions = document(&[("/home/app/mine", "{type: permissions, owner: app}")]);
    let plan = machine.plan(&permissions);
    assert_eq!(plan.files.files[0].object, PlannedObject::Existing);
    let report = machine.execute(&permissions, &plan, &NoFaults).unwrap();
    assert!(report.failed[0].reason.contains("several hard links"), "{report:?}");

    let content =
        document(&[("/home/app/mine", "{content: {inline: secret}, owner: app, mode: '0644'}")]);
    machine.apply(&content);
    assert!(machine.tree()["/etc/shadow"].starts_with("0644 0:0"));
    assert!(machine.tree()["/home/app/mine"].starts_with("0644 1000:0"));
}

#[test]
fn the_saved_folder_is_refused_if_others_can_open_it() {
    let machine = FileMachine::new();
    fs::create_dir(machine.saved()).unwrap();
    fs::set_permissions(machine.saved(), fs::Permissions::from_mode(0o755)).unwrap();
    let document = document(&[("/etc/a", "{}")]);
    let plan = machine.plan(&document);
    let error = machine.execute(&document, &plan, &NoFaults).unwrap_err();
    assert!(error.reason.starts_with("other users can open it"), "{error}");
    assert!(!machine.path("/etc/a").exists());
}

#[test]
fn saved_contents_are_readable_only_for_root() {
    let machine = FileMachine::new();
    machine.write("/etc/a", "old");
    machine.apply(&document(&[("/etc/a", "{content: {inline: new}}")]));
    let mode = |path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(machine.saved()), 0o700);
    for entry in fs::read_dir(machine.saved()).unwrap() {
        assert_eq!(mode(entry.unwrap().path()), 0o600);
    }
}
