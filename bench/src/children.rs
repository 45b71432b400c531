//! The processes that the benchmarks start and measure. They end with the benchmark.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

/// A process that is measured. It is killed when this value is dropped.
#[derive(Debug)]
pub struct MeasuredProcess {
    child: Child,
    pid: u32,
}

impl MeasuredProcess {
    /// Starts this program itself with other arguments.
    pub fn start(arguments: &[&str], log: &Path) -> anyhow::Result<Self> {
        Self::start_program(&std::env::current_exe()?, arguments, &[], log)
    }

    /// Starts a program with these arguments and environment variables.
    pub fn start_program(
        program: &Path,
        arguments: &[&str],
        variables: &[(&str, &str)],
        log: &Path,
    ) -> anyhow::Result<Self> {
        let log = std::fs::File::create(log)?;
        let child = build_command(program, arguments, variables)
            .stdin(Stdio::null())
            .stdout(Stdio::from(log.try_clone()?))
            .stderr(Stdio::from(log))
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        let pid = child.id().context("the process ended at once")?;
        Ok(Self { child, pid })
    }

    /// Starts this program itself with other arguments. Returns its standard input and output.
    /// Its standard error is inherited.
    pub fn start_with_pipes(arguments: &[&str]) -> anyhow::Result<(Self, ChildStdin, ChildStdout)> {
        let mut child = build_command(&std::env::current_exe()?, arguments, &[])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .kill_on_drop(true)
            .spawn()
            .context("cannot start a process of this program")?;
        let pid = child.id().context("the process ended at once")?;
        let stdin = child.stdin.take().context("the process has no standard input")?;
        let stdout = child.stdout.take().context("the process has no standard output")?;
        Ok((Self { child, pid }, stdin, stdout))
    }

    /// Sends SIGTERM to the process, and waits until it has ended.
    pub async fn stop(&mut self, timeout: Duration) -> anyhow::Result<()> {
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw);
        kill_process(pid.context("the process has no valid id")?, Signal::TERM)?;
        let ended = tokio::time::timeout(timeout, self.child.wait()).await;
        ended.context("the measured process does not stop")??;
        Ok(())
    }

    /// The process id.
    pub const fn pid(&self) -> u32 {
        self.pid
    }

    /// Waits until the process has written its ready file, and returns the content.
    pub async fn wait_until_ready(&mut self, file: &Path, log: &Path) -> anyhow::Result<String> {
        for _ in 0..6_000 {
            if let Ok(text) = tokio::fs::read_to_string(file).await {
                return Ok(text);
            }
            if let Some(status) = self.child.try_wait()? {
                let log_text = std::fs::read_to_string(log).unwrap_or_default();
                bail!("the measured process ended with {status}:\n{log_text}");
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        bail!("the measured process was not ready within 60 seconds")
    }
}

/// Runs a program to its end and returns its trimmed standard output. Its standard error is
/// inherited.
pub async fn command_output(
    program: &Path,
    arguments: &[&str],
    variables: &[(&str, &str)],
) -> anyhow::Result<String> {
    let output = build_command(program, arguments, variables)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .kill_on_drop(true)
        .output()
        .await
        .with_context(|| format!("cannot start {}", program.display()))?;
    let stdout = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    ensure!(
        output.status.success(),
        "{} {arguments:?} ended with {}:\n{stdout}",
        program.display(),
        output.status
    );
    Ok(stdout)
}

#[expect(
    clippy::disallowed_methods,
    reason = "the only function in which the benchmarks start a process"
)]
fn build_command(program: &Path, arguments: &[&str], variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).envs(variables.iter().copied());
    command
}
