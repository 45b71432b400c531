//! Rules of actions.

use std::ops::RangeInclusive;

use super::text::check_script;
use super::{ErrorList, child_path};
use crate::document::ActionSpec;

/// Seconds: up to a day.
const TIMEOUTS: RangeInclusive<u32> = 1..=86_400;

pub(super) fn check(path: &str, action: &ActionSpec, errors: &mut ErrorList) {
    let command_path = child_path(path, "command");
    if action.command.trim().is_empty() {
        errors.add(&command_path, "is empty; write a command line");
    } else {
        check_script(&command_path, &action.command, errors);
    }
    if !TIMEOUTS.contains(&action.timeout) {
        let (first, last) = (TIMEOUTS.start(), TIMEOUTS.end());
        let message =
            format!("{} seconds are not accepted; write {first} to {last}", action.timeout);
        errors.add(&child_path(path, "timeout"), message);
    }
}
