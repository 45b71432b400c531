//! Runs actions.

use std::time::Duration;

use evenkeel_configuration::document::ActionSpec;

use super::programs::run_for_status;
use crate::machine::Machine;

/// Whether the owner of the node allows an action: it is arbitrary code of root.
pub trait ActionPolicy: Send + Sync {
    /// Checks the action with this name.
    ///
    /// # Errors
    /// It is not allowed: why, as a sentence without a full stop.
    fn check(&self, name: &str, action: &ActionSpec) -> Result<(), String>;
}

/// Allows no actions.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoActions;

impl ActionPolicy for NoActions {
    fn check(&self, _name: &str, _action: &ActionSpec) -> Result<(), String> {
        Err("the owner of the node allows no actions".to_owned())
    }
}

impl<F> ActionPolicy for F
where
    F: Fn(&str, &ActionSpec) -> Result<(), String> + Send + Sync,
{
    fn check(&self, name: &str, action: &ActionSpec) -> Result<(), String> {
        self(name, action)
    }
}

/// Runs the command of an action with `/bin/sh`. The runner bounds its output.
///
/// # Errors
/// A sentence: the action is not allowed, could not run, or has failed.
pub(crate) fn run_action(
    machine: &Machine,
    policy: &dyn ActionPolicy,
    (name, action): (&str, &ActionSpec),
) -> Result<(), String> {
    policy.check(name, action)?;
    let timeout = Duration::from_secs(u64::from(action.timeout));
    let (status, _) = run_for_status(machine, "/bin/sh", &["-c", &action.command], timeout)?;
    // What a shell or a command prints may contain secrets.
    if status == 0 { Ok(()) } else { Err(format!("the command failed with status {status}")) }
}
