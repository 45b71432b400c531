//! Changes users and groups with the programs of the system.
//!
//! Each function compares the account with its entry again, so that it can be repeated: a run that
//! was killed may have made the change.
//!
//! `useradd` decides whether it creates a home directory, by `/etc/login.defs`; an entry of the type
//! `directory` creates one for sure. `userdel` keeps the files of the user.

use std::time::Duration;

use evenkeel_configuration::document::{UserGroupState, UserState};

use super::programs::run_program;
use crate::files::{AccountDatabase, GroupTable, RootFolder, UserTable};
use crate::machine::Machine;

const TIMEOUT: Duration = Duration::from_mins(5);

/// Debian's group for users without a group.
const SPARE_GROUP: &str = "nogroup";

struct Accounts {
    users: UserTable,
    groups: GroupTable,
}

impl Accounts {
    fn read(root: &RootFolder) -> Result<Self, String> {
        let AccountDatabase { users, groups } = AccountDatabase::read(root);
        Ok(Self { users: users?, groups: groups? })
    }
}

/// Creates a group, or corrects its number.
///
/// # Errors
/// A sentence: the program has failed.
pub(crate) fn change_group(
    machine: &Machine,
    root: &RootFolder,
    (name, state): (&str, &UserGroupState),
) -> Result<(), String> {
    let accounts = Accounts::read(root)?;
    let gid = state.gid.map(|gid| gid.to_string());
    let mut arguments = Vec::new();
    if let Some(gid) = &gid {
        arguments.extend(["--gid", gid]);
    }
    arguments.extend(["--", name]);
    match accounts.groups.find(name) {
        None => run_program(machine, "groupadd", &arguments, TIMEOUT),
        Some(group) if state.gid.is_some_and(|gid| gid != group.gid) => {
            run_program(machine, "groupmod", &arguments, TIMEOUT)
        }
        Some(_) => Ok(()),
    }
}

/// Creates a user, or corrects the fields of its entry.
///
/// # Errors
/// A sentence: the program has failed.
pub(crate) fn change_user(
    machine: &Machine,
    root: &RootFolder,
    (name, state): (&str, &UserState),
) -> Result<(), String> {
    let accounts = Accounts::read(root)?;
    let Some(user) = accounts.users.find(name) else {
        // Without a group, useradd creates one with the name of the user, and fails if it exists.
        let has_group = accounts.groups.find(name).is_some();
        let group = state.group.as_deref().or(has_group.then_some(name));
        let options = list_options(state, group);
        return run_with_options(machine, "useradd", &options, name);
    };
    let group = state.group.as_ref().and_then(|group| accounts.groups.find(group));
    let has_group = group.is_some_and(|group| group.gid == user.gid);
    let mut options = list_options(state, state.group.as_deref());
    options.retain(|(option, value)| match *option {
        "--uid" => *value != user.uid.to_string(),
        "--gid" => !has_group,
        "--comment" => *value != user.comment,
        "--home-dir" => *value != user.home,
        "--shell" => value != user.login_shell(),
        _ => true,
    });
    if options.is_empty() {
        return Ok(());
    }
    // usermod(8) has another name for this option of useradd(8).
    for (option, _) in options.iter_mut().filter(|(option, _)| *option == "--home-dir") {
        *option = "--home";
    }
    run_with_options(machine, "usermod", &options, name)
}

/// The options of useradd(8) for the fields of an entry.
fn list_options(state: &UserState, group: Option<&str>) -> Vec<(&'static str, String)> {
    let groups = Some(state.groups.join(",")).filter(|groups| !groups.is_empty());
    let options = [
        ("--uid", state.uid.map(|uid| uid.to_string())),
        ("--gid", group.map(str::to_owned)),
        ("--groups", groups),
        ("--comment", state.comment.clone()),
        ("--home-dir", state.home.clone()),
        ("--shell", state.shell.clone()),
    ];
    options.into_iter().filter_map(|(option, value)| Some((option, value?))).collect()
}

fn run_with_options(
    machine: &Machine,
    program: &str,
    options: &[(&'static str, String)],
    name: &str,
) -> Result<(), String> {
    let mut arguments: Vec<&str> = Vec::new();
    for (option, value) in options {
        arguments.extend([*option, value]);
    }
    arguments.extend(["--", name]);
    run_program(machine, program, &arguments, TIMEOUT)
}

/// Removes a user, if it exists.
///
/// The login is locked and expires first, because `userdel` fails while the user has a process. Then
/// all processes of the user are killed. `keeps_group`: the group of the same name stays.
///
/// # Errors
/// A sentence: a program has failed, and whether the login is locked.
pub(crate) fn remove_user(
    machine: &Machine,
    root: &RootFolder,
    (name, keeps_group): (&str, bool),
) -> Result<(), String> {
    let accounts = Accounts::read(root)?;
    let Some(user) = accounts.users.find(name) else { return Ok(()) };
    if user.uid == 0 {
        return Err("a user with the number 0 is not removed".to_owned());
    }
    let lock = ["--lock", "--expiredate", "1", "--", name];
    run_program(machine, "usermod", &lock, TIMEOUT)?;
    let locked = |error: String| format!("{error}; the login of the user is locked");
    let is_own_group = accounts.groups.find(name).is_some_and(|group| group.gid == user.gid);
    if keeps_group && is_own_group {
        // userdel removes a group that has the name of the user and is its primary group.
        let group = ["--gid", SPARE_GROUP, "--", name];
        run_program(machine, "usermod", &group, TIMEOUT).map_err(locked)?;
    }
    let remove = || run_program(machine, "userdel", &["--", name], TIMEOUT);
    if remove().is_ok() {
        return Ok(());
    }
    // They fail if the user has no session or no process.
    let _ = run_program(machine, "loginctl", &["terminate-user", "--", name], TIMEOUT);
    if accounts.users.count_uid(user.uid) == 1 {
        let uid = user.uid.to_string();
        let _ = run_program(machine, "pkill", &["-KILL", "-U", &uid], TIMEOUT);
    }
    remove().map_err(locked)
}

/// Removes a group, if it exists.
///
/// # Errors
/// A sentence: the program has failed.
pub(crate) fn remove_group(machine: &Machine, root: &RootFolder, name: &str) -> Result<(), String> {
    if Accounts::read(root)?.groups.find(name).is_none() {
        return Ok(());
    }
    run_program(machine, "groupdel", &["--", name], TIMEOUT)
}
