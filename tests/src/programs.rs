//! Other programs of this machine.

use std::path::Path;
use std::time::Duration;

use tokio::process::Command;

use crate::lab::describe_output;

/// Maximum run time of a program on a busy machine.
const PROGRAM_TIMEOUT: Duration = Duration::from_mins(2);

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
