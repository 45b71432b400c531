//! The programs and scripts that machines are made and looked into with.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::Command;

use evenkeel_tests::house::tree;
use evenkeel_tests::lab::told;

/// Some of the programs are where only root looks for them, but work for everybody.
const FIND_AND_RUN: &str = r#"PATH=$PATH:/usr/sbin:/sbin; exec "$@""#;

/// A command of this machine. The process that it starts becomes the program.
#[expect(
    clippy::disallowed_methods,
    reason = "machines are made of other programs"
)]
pub fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", FIND_AND_RUN, "sh"]).arg(program);
    command
}

/// Where one of the scripts for machines is.
pub fn script(name: &str) -> PathBuf {
    tree::root().join("tests/lab/image").join(name)
}

/// What a command printed.
///
/// # Errors
/// The last of what it said, if it failed.
pub fn try_run(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(said.lines().last().unwrap_or("it said nothing").to_owned())
}

/// Runs a command.
///
/// # Panics
/// It fails; the message has all that it said.
#[track_caller]
pub fn succeed(command: &mut Command) {
    let output = command.output().expect("the command starts");
    assert!(output.status.success(), "{command:?}: {}", told(&output));
}
