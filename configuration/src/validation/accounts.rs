//! Rules of users and groups.

use std::collections::BTreeSet;

use super::text::check_path;
use super::{ErrorList, child_path, excerpt, item_path};
use crate::document::{MAX_ACCOUNT_ID, UserGroupState, UserState};

/// Longest name of useradd(8).
const MAX_ACCOUNT_NAME_BYTES: usize = 32;

/// Name of a user or a group.
pub(super) fn check_name(path: &str, name: &str, errors: &mut ErrorList) {
    if !is_name(name) {
        errors.add(
            path,
            format!(
                "{} is not the name of a user or group; accepted are at most \
                 {MAX_ACCOUNT_NAME_BYTES} letters, digits, \"_\", \"-\" and \".\", with a letter \
                 or \"_\" first, and \"$\" as the last character",
                excerpt(name)
            ),
        );
    }
}

/// A name of a user or group. Debian has some with capital letters, such as `Debian-exim`, and
/// directories have some with dots.
fn is_name(name: &str) -> bool {
    let stem = name.strip_suffix('$').unwrap_or(name);
    let is_first = |b: u8| b.is_ascii_alphabetic() || b == b'_';
    name.len() <= MAX_ACCOUNT_NAME_BYTES
        && stem.bytes().next().is_some_and(is_first)
        && stem.bytes().all(|b| is_first(b) || b.is_ascii_digit() || b"-.".contains(&b))
}

/// Owner or group of a file: a name or a number.
pub(super) fn check_owner(path: &str, owner: &str, kind: &str, errors: &mut ErrorList) {
    let is_number = !owner.is_empty() && owner.bytes().all(|b| b.is_ascii_digit());
    if is_number {
        check_id(path, owner.parse().ok(), errors);
    } else if !is_name(owner) {
        errors.add(path, format!("{} is not a {kind}; write its name or number", excerpt(owner)));
    }
}

fn check_id(path: &str, id: Option<u32>, errors: &mut ErrorList) {
    if id.is_none_or(|id| id > MAX_ACCOUNT_ID) {
        errors.add(path, format!("accepted are the numbers 0 to {MAX_ACCOUNT_ID}"));
    }
}

pub(super) fn check_user(path: &str, state: &UserState, errors: &mut ErrorList) {
    let expected = UserState { absent: true, ..UserState::default() };
    if state.absent && *state != expected {
        errors.add(path, "an absent user has no other field; remove the others");
    }
    if let Some(uid) = state.uid {
        check_id(&child_path(path, "uid"), Some(uid), errors);
    }
    if let Some(group) = &state.group {
        check_name(&child_path(path, "group"), group, errors);
    }
    let groups_path = child_path(path, "groups");
    let mut seen = BTreeSet::new();
    for (index, group) in state.groups.iter().enumerate() {
        let path = item_path(&groups_path, index);
        check_name(&path, group, errors);
        if !seen.insert(group) {
            errors.add(&path, "is in the list twice; remove one");
        }
    }
    let has_separator = |c: char| c == ':' || c.is_control();
    if state.comment.as_ref().is_some_and(|comment| comment.contains(has_separator)) {
        let message = "has \":\", a line break or a control character, which passwd(5) cannot hold";
        errors.add(&child_path(path, "comment"), message);
    }
    for (field, value) in [("home", &state.home), ("shell", &state.shell)] {
        let path = child_path(path, field);
        if let Some(value) = value {
            check_path(&path, value, errors);
            if value.contains(':') {
                errors.add(&path, "has \":\", which passwd(5) cannot hold");
            }
        }
    }
}

pub(super) fn check_group(path: &str, state: &UserGroupState, errors: &mut ErrorList) {
    if state.absent && state.gid.is_some() {
        errors.add(path, "an absent group has no other field; remove gid");
    }
    if let Some(gid) = state.gid {
        check_id(&child_path(path, "gid"), Some(gid), errors);
    }
}
