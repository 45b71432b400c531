//! Runs programs that change the machine.

use std::time::Duration;

use crate::machine::{Machine, Program};
use crate::text::clean_text;

/// Runs a program.
///
/// # Errors
/// A sentence without a full stop: it could not run, or has failed.
pub(super) fn run_program(
    machine: &Machine,
    name: &str,
    arguments: &[&str],
    timeout: Duration,
) -> Result<(), String> {
    let (status, error) = run_for_status(machine, name, arguments, timeout)?;
    if status == 0 { Ok(()) } else { Err(error) }
}

/// Runs a program. Returns its exit status, and a sentence in case it has failed.
///
/// # Errors
/// A sentence: it could not run.
pub(super) fn run_for_status(
    machine: &Machine,
    name: &str,
    arguments: &[&str],
    timeout: Duration,
) -> Result<(i32, String), String> {
    let program = Program {
        name: name.to_owned(),
        arguments: arguments.iter().map(|text| (*text).to_owned()).collect(),
        timeout,
    };
    let output = machine.programs.run(&program).map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stderr);
    let text = clean_text(text.trim().lines().last().unwrap_or_default());
    let label = arguments.iter().find(|text| !text.starts_with('-')).unwrap_or(&"");
    let label = if name == "systemctl" { format!("{name} {label}") } else { name.to_owned() };
    let status = output.status;
    let separator = if text.is_empty() { "" } else { ": " };
    Ok((status, format!("{label} failed with status {status}{separator}{text}")))
}
