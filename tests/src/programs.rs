//! Other programs of this machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::process::Command;

use crate::lab::describe_output;

/// Maximum run time of a program on a busy machine.
const PROGRAM_TIMEOUT: Duration = Duration::from_mins(2);

/// The folder of the newest Postgres of this machine, which servers use by default.
///
/// # Panics
/// No Postgres is installed.
pub fn newest_postgres() -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql").expect("an installed Postgres");
    let versions = versions.flatten().filter_map(|entry| {
        let version: u32 = entry.file_name().to_str()?.parse().ok()?;
        Some((version, entry.path()))
    });
    versions.max().expect("an installed Postgres").1
}

/// Output of a program, which must succeed.
///
/// # Panics
/// The program does not start, fails, or does not end in time.
#[expect(clippy::disallowed_methods, reason = "Postgres comes with its own programs")]
pub async fn run_program(program: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new(program);
    let output = command.args(arguments).kill_on_drop(true).output();
    let output = tokio::time::timeout(PROGRAM_TIMEOUT, output).await;
    let output = output.expect("the program ends");
    let output = output.expect("the program starts");
    assert!(
        output.status.success(),
        "{} {arguments:?}: {}",
        program.display(),
        describe_output(&output)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}
