//! Changes units of systemd with `systemctl`.

use std::time::Duration;

use super::programs::{run_for_status, run_program};
use crate::machine::{Machine, Program};
use crate::names::{AGENT_UNIT, is_template};

/// systemd's own limit for a start or a stop is 90 seconds, and units may raise it.
const COMMAND_TIMEOUT: Duration = Duration::from_mins(15);

const QUERY_TIMEOUT: Duration = Duration::from_mins(1);

/// Exit status of systemctl for a unit that does not exist.
const NOT_FOUND_STATUS: i32 = 5;

/// A call of systemctl for one unit, or for none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UnitOperation {
    Reload,
    Enable,
    Disable,
    Start,
    Restart,
    /// Restarts a unit that runs.
    TryRestart,
    Stop,
}

impl UnitOperation {
    fn verb(self) -> &'static str {
        match self {
            Self::Reload => "daemon-reload",
            Self::Enable => "enable",
            Self::Disable => "disable",
            Self::Start => "start",
            Self::Restart => "restart",
            Self::TryRestart => "try-restart",
            Self::Stop => "stop",
        }
    }

    fn is_job(self) -> bool {
        !matches!(self, Self::Reload | Self::Enable | Self::Disable)
    }
}

/// Runs systemctl. It does not wait for the restart of the agent's own unit, which ends this
/// process.
///
/// # Errors
/// A sentence: systemctl could not run, or has failed.
pub(crate) fn run_systemctl(
    machine: &Machine,
    operation: UnitOperation,
    unit: Option<&str>,
) -> Result<(), String> {
    // systemctl expands a pattern to the instances that are loaded.
    let instances = unit.filter(|unit| is_template(unit)).map(|unit| unit.replacen('@', "@*", 1));
    let unit = if operation.is_job() { instances.as_deref().or(unit) } else { unit };
    let mut arguments = Vec::with_capacity(4);
    if operation.is_job() && unit == Some(AGENT_UNIT) {
        arguments.push("--no-block");
    }
    arguments.push(operation.verb());
    if let Some(unit) = unit {
        arguments.extend(["--", unit]);
    }
    if operation != UnitOperation::TryRestart {
        return run_program(machine, "systemctl", &arguments, COMMAND_TIMEOUT);
    }
    match run_for_status(machine, "systemctl", &arguments, COMMAND_TIMEOUT)? {
        (0 | NOT_FOUND_STATUS, _) => Ok(()),
        (_, error) => Err(error),
    }
}

/// Whether a unit is enabled, and whether it runs; `None` if that is not known.
pub(crate) fn query_unit(machine: &Machine, unit: &str) -> (Option<bool>, Option<bool>) {
    let query = |verb: &str, words: &[&str]| {
        let program = Program {
            name: "systemctl".to_owned(),
            arguments: [verb, "--", unit].map(str::to_owned).to_vec(),
            timeout: QUERY_TIMEOUT,
        };
        let output = machine.programs.run(&program).ok()?;
        let state = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        if !state.is_empty() {
            return Some(words.contains(&state.as_str()));
        }
        // Older versions print no state of a unit without a file.
        let error = String::from_utf8_lossy(&output.stderr);
        let is_missing = error.contains("No such file") || error.contains("does not exist");
        is_missing.then_some(false)
    };
    let is_enabled = query("is-enabled", &["enabled", "enabled-runtime"]);
    (is_enabled, query("is-active", &["active", "reloading", "activating", "refreshing"]))
}
