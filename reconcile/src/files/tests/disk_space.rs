//! Users who fill disks, quotas and directories concern only their own files.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::io::Errno;

use super::super::{FileChanger, FileSpec};
use super::{
    ChangeReport, EmptyContentSource, FailOn, FaultPoint, FileContext, FileMachine, ManagedPaths,
    NoFaults, RUN, RootFolder, document, plan,
};

/// Makes a file with the size of a gibibyte that uses no space.
fn make_sparse(machine: &FileMachine, path: &str, uid: u32) {
    machine.write(path, "");
    File::options().write(true).open(machine.path(path)).unwrap().set_len(1 << 30).unwrap();
    machine.set_owner(path, uid);
}

#[test]
fn a_quota_of_a_user_fails_only_his_file() {
    let machine = FileMachine::new();
    machine.make_folder("/home/app");
    let document = document(&[
        ("/etc/a", "{content: {inline: new}}"),
        ("/home/app/b", "{content: {inline: new}, owner: app}"),
    ]);
    let plan = machine.plan(&document);
    let quota = FailOn { call: "set the owner of", path: "/home/app", errno: Errno::DQUOT };
    let report = machine.execute(&document, &plan, &quota).unwrap();
    let error = "cannot set the owner of /home/app/b: the disk quota is used up; raise it or free \
                 space and apply again";
    assert_eq!(report.failed[0].to_string(), error);
    assert_eq!((report.failed.len(), report.changed), (1, vec!["/etc/a".to_owned()]));
}

/// Writes a file to each of two folders.
fn write_both(folders: [&Path; 2], state: &Path, faults: &dyn FaultPoint) -> ChangeReport {
    let paths = folders.map(|folder| folder.join("new").to_str().unwrap().to_owned());
    let specs = paths.map(|path| FileSpec::root_file(path, 0o644, "new"));
    let root = RootFolder::open(Path::new("/")).unwrap();
    let managed = ManagedPaths::default();
    let context = FileContext::new(&root, &EmptyContentSource, &managed).unwrap();
    let plan = plan(&context, &specs, RUN).unwrap();
    let changer = FileChanger {
        root: &root,
        saved_folder: state.join("saved"),
        source: &EmptyContentSource,
        faults,
    };
    changer.apply(&plan.files, &specs).unwrap()
}

#[test]
fn a_full_file_system_does_not_concern_the_files_of_another() {
    let disk = tempfile::tempdir_in("/tmp").unwrap();
    let memory = tempfile::Builder::new().prefix("memory-").tempdir_in("/dev/shm").unwrap();
    let devices = [&disk, &memory].map(|folder| fs::metadata(folder.path()).unwrap().dev());
    assert_ne!(devices[0], devices[1], "the test needs two file systems");
    let full = FailOn { call: "write", path: "/dev/shm/memory-", errno: Errno::NOSPC };
    let report = write_both([disk.path(), memory.path()], disk.path(), &full);
    assert_eq!(report.failed.len(), 1, "{report:?}");
    assert!(report.failed[0].is_disk_full);
    assert_eq!(fs::read_to_string(disk.path().join("new")).unwrap(), "new");
    assert_eq!(fs::read_dir(memory.path()).unwrap().count(), 0);
}

#[test]
fn a_file_system_that_cannot_be_synced_does_not_concern_another() {
    let disk = tempfile::tempdir_in("/tmp").unwrap();
    let memory = tempfile::Builder::new().prefix("memory-").tempdir_in("/dev/shm").unwrap();
    let damaged = FailOn { call: "sync", path: "/dev/shm/memory-", errno: Errno::IO };
    let report = write_both([disk.path(), memory.path()], disk.path(), &damaged);
    assert_eq!(report.failed.len(), 2, "the sync and its file: {report:?}");
    assert_eq!(fs::read_dir(memory.path()).unwrap().count(), 0);
    assert!(disk.path().join("new").exists());
}

#[test]
fn a_large_file_of_a_user_is_neither_read_nor_saved() {
    let machine = FileMachine::new();
    make_sparse(&machine, "/home/app/motd", 1000);
    let document = document(&[
        ("/home/app/motd", "{content: {inline: new}, owner: app, mode: '0644'}"),
        ("/etc/a", "{}"),
    ]);
    let report = machine.check(&document).remove(0);
    assert_eq!(report.current["content"], serde_json::json!({"size": 1 << 30}));
    let plan = machine.plan(&document);
    let report = machine.execute(&document, &plan, &NoFaults).unwrap();
    let error = "cannot save /home/app/motd: a user may have written it, and it has more than 64 \
                 MiB; remove it yourself";
    assert_eq!(report.failed[0].to_string(), error);
    assert_eq!(report.changed, ["/etc/a"]);
}

#[test]
fn a_temporary_name_that_cannot_be_removed_is_a_remark() {
    let machine = FileMachine::new();
    machine.make_folder("/home/app/.evenkeel-tmp-x/y");
    machine.make_folder("/home/app/.evenkeel-tmp-folder");
    let report = machine.apply(&document(&[("/home/app/motd", "{}")]));
    assert_eq!(report.changed, ["/home/app/motd"]);
    assert_eq!(report.kept.len(), 1);
    assert_eq!(report.kept[0].path, "/home/app/.evenkeel-tmp-x");
    assert!(!machine.path("/home/app/.evenkeel-tmp-folder").exists());
}

#[test]
fn temporary_files_are_removed_next_to_a_name_that_is_not_utf_8() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    let machine = FileMachine::new();
    machine.write("/etc/.evenkeel-tmp-old-1", "secret");
    fs::write(machine.path("/etc").join(OsStr::from_bytes(b"\xff")), "").unwrap();
    assert_eq!(machine.apply(&document(&[("/etc/a", "{}")])).kept, []);
    assert!(!machine.path("/etc/.evenkeel-tmp-old-1").exists());
}
