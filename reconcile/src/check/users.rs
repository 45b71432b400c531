//! Checks users by `/etc/passwd` and `/etc/group`.
//!
//! Only the fields of the entry are compared.
//!
//! - `group`: the primary group. Without it, a new user gets a group with its name, and an existing
//!   user keeps its group.
//! - `groups`: the user must be a member of exactly these groups and its primary group, as in
//!   Bcfg2: another group, such as sudo, is a difference. Without `groups`, memberships do not
//!   matter.
//! - `comment`: commas at the end do not matter, because adduser writes an empty room and telephone
//!   number.
//! - `shell`: an empty shell is `/bin/sh`.

use evenkeel_configuration::document::UserState;

use crate::files::{AccountDatabase, GroupTable, UserRecord};
use crate::finding::{Deviation, Difference};

/// Compares a user with its desired state.
pub(super) fn check_user(name: &str, state: &UserState, accounts: &AccountDatabase) -> Deviation {
    let users = match &accounts.users {
        Ok(users) => users,
        Err(reason) => return Deviation::from_failure(reason),
    };
    let mut deviation = Deviation::default();
    match users.find(name) {
        Some(_) if state.absent => {
            deviation.add_field(Difference::Existence, "absent", false, "the user exists");
        }
        Some(user) => {
            compare_user(user, state, &mut deviation);
            match &accounts.groups {
                Ok(groups) => compare_groups(user, state, groups, &mut deviation),
                Err(reason) => deviation.add_failure(reason),
            }
        }
        None if state.absent => {}
        None => {
            deviation.add_field(Difference::Existence, "absent", true, "the user does not exist");
        }
    }
    deviation
}

fn compare_user(user: &UserRecord, state: &UserState, deviation: &mut Deviation) {
    if state.uid.is_some_and(|uid| uid != user.uid) {
        deviation.add_field(
            Difference::Attributes,
            "uid",
            user.uid,
            format!("the user has the number {}", user.uid),
        );
    }
    let strip = |comment: &str| comment.trim_end_matches(',').to_owned();
    if state.comment.as_ref().is_some_and(|comment| strip(comment) != strip(&user.comment)) {
        deviation.add_field(
            Difference::Attributes,
            "comment",
            user.comment.as_str(),
            "the comment differs",
        );
    }
    if state.home.as_ref().is_some_and(|home| *home != user.home) {
        let reason = format!("the home directory is {}", describe(&user.home));
        deviation.add_field(Difference::Attributes, "home", user.home.as_str(), reason);
    }
    let shell = user.login_shell();
    if state.shell.as_ref().is_some_and(|desired| desired != shell) {
        deviation.add_field(
            Difference::Attributes,
            "shell",
            shell,
            format!("the shell is {shell}"),
        );
    }
}

fn describe(path: &str) -> &str {
    if path.is_empty() { "not set" } else { path }
}

fn compare_groups(
    user: &UserRecord,
    state: &UserState,
    groups: &GroupTable,
    deviation: &mut Deviation,
) {
    let is_primary = |name: &str| groups.find(name).is_some_and(|group| group.gid == user.gid);
    if let Some(desired) = state.group.as_deref().filter(|group| !is_primary(group)) {
        let current = groups.name_of_gid(user.gid);
        let reason = format!("the primary group is {current} instead of {desired}");
        deviation.add_field(Difference::Attributes, "group", current, reason);
    }
    if state.groups.is_empty() {
        return;
    }
    let current = groups.names_with_member(&user.name);
    let desired = state.groups.iter().map(String::as_str);
    let missing: Vec<&str> =
        desired.filter(|name| !current.contains(name) && !is_primary(name)).collect();
    let is_desired = |name: &str| state.groups.iter().any(|desired| desired == name);
    let surplus = current.iter().copied();
    let surplus: Vec<&str> =
        surplus.filter(|name| !is_desired(name) && !is_primary(name)).collect();
    let parts = [("is not a member of", missing), ("is a member of", surplus)];
    for (predicate, names) in parts.into_iter().filter(|(_, names)| !names.is_empty()) {
        let word = if names.len() == 1 { "group" } else { "groups" };
        let reason = format!("the user {predicate} the {word} {}", names.join(", "));
        deviation.add_field(Difference::Attributes, "groups", current.clone(), reason);
    }
}

#[cfg(test)]
mod tests;
