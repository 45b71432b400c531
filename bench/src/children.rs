//! The processes that are measured. They end with this one.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

/// A process that is measured. Killed when it is dropped.
#[derive(Debug)]
pub struct Measured {
    child: Child,
    pid: u32,
}

impl Measured {
    /// Starts this very program with other arguments.
    pub fn start(arguments: &[&str], log: &Path) -> anyhow::Result<Self> {
        Self::start_program(&std::env::current_exe()?, arguments, &[], log)
    }

    /// Starts a program with these arguments and variables.
    pub fn start_program(
        program: &Path,
        arguments: &[&str],
        variables: &[(&str, &str)],
        log: &Path,
    ) -> anyhow::Result<Self> {
        let log = std::fs::File::create(log)?;
        let child = command(program, arguments, variables)
            .stdin(Stdio::null())
            .stdout(Stdio::from(log.try_clone()?))
            .stderr(Stdio::from(log))
            .kill_on_drop(true)
            .spawn()
            .context("start a process to measure")?;
        let pid = child.id().context("it ended at once")?;
        Ok(Self { child, pid })
    }

    /// Starts this very program with other arguments, and gives what it hears and what it says. What it says besides goes
    /// where ours goes.
    pub fn talking(arguments: &[&str]) -> anyhow::Result<(Self, ChildStdin, ChildStdout)> {
        let mut child = command(&std::env::current_exe()?, arguments, &[])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .kill_on_drop(true)
            .spawn()
            .context("start a process to talk to")?;
        let pid = child.id().context("it ended at once")?;
        let hears = child.stdin.take().context("it cannot hear")?;
        let says = child.stdout.take().context("it cannot speak")?;
        Ok((Self { child, pid }, hears, says))
    }

    /// Asks it to stop, and waits until it has.
    pub async fn stop(&mut self, within: Duration) -> anyhow::Result<()> {
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw);
        kill_process(pid.context("no process id")?, Signal::TERM)?;
        let ended = tokio::time::timeout(within, self.child.wait()).await;
        ended.context("the process to measure does not stop")??;
        Ok(())
    }

    /// Its process id.
    pub const fn pid(&self) -> u32 {
        self.pid
    }

    /// Waits until it has written the file that says where it listens.
    pub async fn ready(&mut self, file: &Path, log: &Path) -> anyhow::Result<String> {
        for _ in 0..6_000 {
            if let Ok(text) = tokio::fs::read_to_string(file).await {
                return Ok(text);
            }
            if let Some(status) = self.child.try_wait()? {
                let said = std::fs::read_to_string(log).unwrap_or_default();
                bail!("the process to measure ended with {status}:\n{said}");
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        bail!("the process to measure was not ready within a minute")
    }
}

/// Runs a program to its end and returns what it printed. What it says besides goes where ours goes.
pub async fn output(
    program: &Path,
    arguments: &[&str],
    variables: &[(&str, &str)],
) -> anyhow::Result<String> {
    let output = command(program, arguments, variables)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .kill_on_drop(true)
        .output()
        .await
        .with_context(|| format!("start {}", program.display()))?;
    let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    ensure!(
        output.status.success(),
        "{} {arguments:?} ended with {}:\n{said}",
        program.display(),
        output.status
    );
    Ok(said)
}

#[expect(
    clippy::disallowed_methods,
    reason = "the only place where the benchmarks start a process"
)]
fn command(program: &Path, arguments: &[&str], variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).envs(variables.iter().copied());
    command
}
