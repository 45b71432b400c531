//! Rules of actions.

use super::text::check_script;
use super::{ErrorList, child_path};
use crate::document::ActionSpec;

pub(super) fn check(path: &str, action: &ActionSpec, errors: &mut ErrorList) {
    let command_path = child_path(path, "command");
    if action.command.trim().is_empty() {
        errors.add(&command_path, "is empty; write a command line");
    } else {
        check_script(&command_path, &action.command, errors);
    }
    let max = ActionSpec::MAX_TIMEOUT;
    if !(1..=max).contains(&action.timeout) {
        let message = format!("{} seconds are not accepted; write 1 to {max}", action.timeout);
        errors.add(&child_path(path, "timeout"), message);
    }
}
