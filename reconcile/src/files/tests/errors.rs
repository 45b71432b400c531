use std::fs::File;
use std::path::Path;

use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};
use rustix::io::Errno;

use super::{FailOn, FileMachine, document};

#[test]
fn a_full_disk_leaves_all_files_as_they_were() {
    let machine = FileMachine::new();
    machine.write("/etc/a", "old");
    machine.write("/etc/b", "file");
    let before = machine.tree();
    let document = document(&[
        ("/etc/a", "{content: {inline: new}}"),
        ("/etc/b", "{type: directory}"),
        ("/etc/b/c", "{}"),
        ("/opt/new/z", "{content: {inline: full}}"),
    ]);
    let plan = machine.plan(&document);
    let full = FailOn { call: "write", path: "/opt", errno: Errno::NOSPC };
    let report = machine.execute(&document, &plan, &full).unwrap();
    let full = "cannot write /opt/new/z: the file system is full; free space or inodes and apply \
                again";
    assert_eq!(report.failed[0].to_string(), full);
    let others: Vec<&str> = report.failed[1..].iter().map(|error| error.path.as_str()).collect();
    assert_eq!(others, ["/etc/a", "/etc/b/c", "/etc/b", "/opt", "/opt/new"]);
    assert!(report.failed[1].reason.ends_with(full), "{report:?}");
    assert_eq!((report.changed.as_slice(), machine.tree()), (&[][..], before));
    machine.apply(&document);
    assert_eq!(machine.reasons(&document), [""; 0]);
}

#[test]
fn a_full_disk_for_saved_states_leaves_all_files_as_they_were() {
    let machine = FileMachine::new();
    machine.write("/etc/a", "old");
    let before = machine.tree();
    let document = document(&[("/etc/a", "{content: {inline: new}}"), ("/etc/b", "{}")]);
    let plan = machine.plan(&document);
    let full = FailOn { call: "write", path: "saved", errno: Errno::NOSPC };
    let error = machine.execute(&document, &plan, &full).unwrap_err();
    assert_eq!(error.action, "write");
    assert_eq!(machine.tree(), before);
}

#[test]
fn an_old_content_that_cannot_be_saved_fails_only_its_file() {
    let machine = FileMachine::new();
    machine.write("/etc/a", "old");
    let document =
        document(&[("/etc/a", "{content: {inline: new}}"), ("/etc/b", "{content: {inline: new}}")]);
    let plan = machine.plan(&document);
    let full = FailOn { call: "write", path: "saved/0", errno: Errno::NOSPC };
    let report = machine.execute(&document, &plan, &full).unwrap();
    assert_eq!((report.failed[0].action, report.failed[0].path.as_str()), ("save", "/etc/a"));
    assert_eq!(report.changed, ["/etc/b"]);
    assert_eq!(machine.read("/etc/a"), "old");
    assert!(!machine.saved().join("0").exists());
}

#[test]
fn a_read_only_file_system_fails_only_its_files() {
    let machine = FileMachine::new();
    machine.make_folder("/mnt");
    let document = document(&[("/etc/a", "{}"), ("/mnt/b", "{}")]);
    let plan = machine.plan(&document);
    let read_only = FailOn { call: "create", path: "/mnt", errno: Errno::ROFS };
    let report = machine.execute(&document, &plan, &read_only).unwrap();
    assert_eq!(
        report.failed[0].to_string(),
        "cannot create /mnt/b: the file system is read-only; mount it writable, or remove the entry"
    );
    assert_eq!(report.changed, ["/etc/a"]);
}

#[test]
fn an_error_of_the_last_step_removes_the_temporary_file() {
    let machine = FileMachine::new();
    machine.write("/etc/a", "old");
    let before = machine.tree();
    let document = document(&[("/etc/a", "{content: {inline: new}}")]);
    let plan = machine.plan(&document);
    let refused = FailOn { call: "replace", path: "/etc/a", errno: Errno::ACCESS };
    let report = machine.execute(&document, &plan, &refused).unwrap();
    assert!(report.failed[0].reason.starts_with("permission denied"), "{report:?}");
    assert_eq!(machine.tree(), before);
}

#[test]
fn an_immutable_file_is_named_as_such() {
    let machine = FileMachine::in_folder(Path::new("/tmp"));
    machine.write("/etc/a", "old");
    let file = File::open(machine.path("/etc/a")).unwrap();
    let flags = ioctl_getflags(&file);
    let flags = flags.and_then(|flags| {
        ioctl_setflags(&file, flags | IFlags::IMMUTABLE)?;
        Ok(flags)
    });
    let Ok(flags) = flags else {
        return eprintln!("skipped: only root can do this, and not on every file system");
    };
    let document = document(&[("/etc/a", "{content: {inline: new}}")]);
    let plan = machine.plan(&document);
    let report = machine.execute(&document, &plan, &super::NoFaults);
    ioctl_setflags(&file, flags).unwrap();
    let report = report.unwrap();
    assert_eq!(
        report.failed[0].to_string(),
        "cannot replace /etc/a: it is immutable; run: chattr -i -a /etc/a"
    );
    assert_eq!(machine.read("/etc/a"), "old");
}
