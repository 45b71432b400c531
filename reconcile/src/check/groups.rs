//! Checks groups of users by `/etc/group`.

use evenkeel_configuration::document::UserGroupState;

use crate::files::AccountDatabase;
use crate::finding::{Deviation, Difference};

/// Compares a group with its desired state.
pub(super) fn check_group(
    name: &str,
    state: &UserGroupState,
    accounts: &AccountDatabase,
) -> Deviation {
    let groups = match &accounts.groups {
        Ok(groups) => groups,
        Err(reason) => return Deviation::from_failure(reason),
    };
    let mut deviation = Deviation::default();
    match groups.find(name) {
        Some(_) if state.absent => {
            deviation.add_field(Difference::Existence, "absent", false, "the group exists");
        }
        Some(group) => {
            if state.gid.is_some_and(|gid| gid != group.gid) {
                let reason = format!("the group has the number {}", group.gid);
                deviation.add_field(Difference::Attributes, "gid", group.gid, reason);
            }
        }
        None if state.absent => {}
        None => {
            deviation.add_field(Difference::Existence, "absent", true, "the group does not exist");
        }
    }
    deviation
}
