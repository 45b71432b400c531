//! A user who replaces files of his directory while root works in it.

use std::cell::Cell;
use std::fs;
use std::path::PathBuf;

use rustix::io::Errno;

use super::{FaultPoint, FileMachine, document};

/// Renames a path of the machine over another one before a call.
struct SwapBefore {
    call: &'static str,
    path: &'static str,
    from: PathBuf,
    to: PathBuf,
    is_done: Cell<bool>,
}

impl FaultPoint for SwapBefore {
    fn before(&self, call: &'static str, path: &str) -> Result<(), Errno> {
        if call == self.call && path.contains(self.path) && !self.is_done.replace(true) {
            if self.to.is_dir() {
                fs::rename(&self.to, self.to.with_extension("moved")).unwrap();
            }
            fs::rename(&self.from, &self.to).unwrap();
        }
        Ok(())
    }
}

/// A machine whose user `app` has a file of root in his directory: only root can read it.
fn machine_with_secret() -> FileMachine {
    let machine = FileMachine::new();
    machine.make_folder("/home/app");
    machine.set_owner("/home/app", 1000);
    machine.write("/home/app/motd", "of app");
    machine.set_owner("/home/app/motd", 1000);
    machine.write("/home/app/secret", "of root");
    machine.set_mode("/home/app/secret", 0o600);
    machine
}

fn swap(
    machine: &FileMachine,
    (call, path): (&'static str, &'static str),
    (from, to): (&str, &str),
) -> SwapBefore {
    let (from, to) = (machine.path(from), machine.path(to));
    SwapBefore { call, path, from, to, is_done: Cell::new(false) }
}

/// Checks that `motd` is the file of root, and that only root can read it.
fn assert_is_secret(machine: &FileMachine) {
    assert_eq!(machine.tree()["/home/app/motd"], "0600 0:0 \"of root\"");
}

#[test]
fn the_content_of_another_file_is_not_saved_with_the_attributes_of_the_observed_one() {
    let machine = machine_with_secret();
    let document = document(&[("/home/app/motd", "{content: {inline: new}, owner: app}")]);
    let plan = machine.plan(&document);
    let swap = swap(&machine, ("create", "saved"), ("/home/app/secret", "/home/app/motd"));
    let report = machine.execute(&document, &plan, &swap).unwrap();
    assert!(swap.is_done.get());
    let error = "cannot save /home/app/motd: it is being replaced; try again";
    assert_eq!(report.failed[0].to_string(), error);
    machine.revert();
    assert_is_secret(&machine);
}

#[test]
fn a_file_that_is_replaced_between_two_steps_is_restored_with_its_own_attributes() {
    let machine = machine_with_secret();
    let root_only = "{type: permissions, owner: root, group: root, mode: '0600'}";
    machine.apply(&document(&[("/home/app/motd", root_only)]));
    fs::rename(machine.path("/home/app/secret"), machine.path("/home/app/motd")).unwrap();
    machine.apply(&document(&[("/home/app/motd", "{content: {inline: new}, mode: '0600'}")]));
    assert_eq!(machine.read("/home/app/motd"), "new");
    machine.revert();
    assert_is_secret(&machine);
}

#[test]
fn a_reversal_gives_no_attributes_to_a_file_that_was_swapped_in() {
    let machine = machine_with_secret();
    let root_only = "{type: permissions, owner: root, group: root, mode: '0600'}";
    machine.apply(&document(&[("/home/app/motd", root_only)]));
    fs::rename(machine.path("/home/app/secret"), machine.path("/home/app/motd")).unwrap();
    let report = machine.revert();
    assert_eq!(report.kept[0].reason, "it was changed after the run");
    assert_is_secret(&machine);
}

#[test]
fn a_file_that_is_swapped_in_after_the_observation_gets_no_owner() {
    let machine = machine_with_secret();
    let document = document(&[("/home/app/motd", "{type: permissions, owner: app, group: '5'}")]);
    let plan = machine.plan(&document);
    let swap = swap(&machine, ("create", "saved"), ("/home/app/secret", "/home/app/motd"));
    let report = machine.execute(&document, &plan, &swap).unwrap();
    assert_eq!(report.failed[0].reason, "it is being replaced; try again");
    assert_is_secret(&machine);
}

#[test]
fn a_directory_that_is_swapped_in_for_a_new_one_gets_no_owner() {
    let machine = machine_with_secret();
    machine.write("/home/app/private/key", "of root");
    let document = document(&[("/home/app/new", "{type: directory, owner: app}")]);
    for mode in [0o755, 0o700] {
        machine.set_mode("/home/app/private", mode);
        let plan = machine.plan(&document);
        let paths = ("/home/app/private", "/home/app/new");
        let swap = swap(&machine, ("open", "/home/app/new"), paths);
        let report = machine.execute(&document, &plan, &swap).unwrap();
        assert!(swap.is_done.get());
        assert_eq!(report.failed.len(), 1, "{report:?}");
        assert_eq!(machine.tree()["/home/app/new"], format!("{mode:04o} 0:0 directory"));
        assert_eq!(machine.read("/home/app/new/key"), "of root");
        fs::rename(machine.path("/home/app/new"), machine.path("/home/app/private")).unwrap();
        fs::remove_dir(machine.path("/home/app/new.moved")).unwrap();
    }
}

#[test]
fn a_file_that_is_swapped_in_for_a_new_link_gets_no_owner() {
    let machine = machine_with_secret();
    let document = document(&[("/home/app/link", "{type: symlink, target: x, owner: app}")]);
    let plan = machine.plan(&document);
    let temporary = "/home/app/.evenkeel-tmp-run-1-0";
    let swap = swap(&machine, ("open", temporary), ("/home/app/secret", temporary));
    let observe = || machine.tree()[temporary].clone();
    let observer = SwapObserver { swap, observe: &observe, observation: Cell::default() };
    let report = machine.execute(&document, &plan, &observer).unwrap();
    assert!(report.failed[0].reason.starts_with("another user has replaced it"), "{report:?}");
    assert_eq!(observer.observation.take(), "0600 0:0 \"of root\"");
}

/// Observes the machine before the temporary file is removed.
struct SwapObserver<'a> {
    swap: SwapBefore,
    observe: &'a dyn Fn() -> String,
    observation: Cell<String>,
}

impl FaultPoint for SwapObserver<'_> {
    fn before(&self, call: &'static str, path: &str) -> Result<(), Errno> {
        self.swap.before(call, path)?;
        if call == "remove" && self.swap.is_done.get() {
            self.observation.set((self.observe)());
        }
        Ok(())
    }
}
