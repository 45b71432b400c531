//! The processes that are measured. They end with this one.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, bail};
use tokio::process::{Child, Command};

/// A process that is measured. Killed when it is dropped.
#[derive(Debug)]
pub struct Measured {
    child: Child,
    pid: u32,
}

impl Measured {
    /// Starts this very program with other arguments.
    #[expect(
        clippy::disallowed_methods,
        reason = "the only place where the benchmarks start a process"
    )]
    pub fn start(arguments: &[&str], log: &Path) -> anyhow::Result<Self> {
        let log = std::fs::File::create(log)?;
        let child = Command::new(std::env::current_exe()?)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::from(log.try_clone()?))
            .stderr(Stdio::from(log))
            .kill_on_drop(true)
            .spawn()
            .context("start a process to measure")?;
        let pid = child.id().context("it ended at once")?;
        Ok(Self { child, pid })
    }

    /// Its process id.
    pub const fn pid(&self) -> u32 {
        self.pid
    }

    /// Waits until it has written the file that says where it listens.
    pub async fn ready(&mut self, file: &Path, log: &Path) -> anyhow::Result<String> {
        for _ in 0..600 {
            if let Ok(text) = tokio::fs::read_to_string(file).await {
                return Ok(text);
            }
            if let Some(status) = self.child.try_wait()? {
                let said = std::fs::read_to_string(log).unwrap_or_default();
                bail!("the process to measure ended with {status}:\n{said}");
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        bail!("the process to measure was not ready within a minute")
    }
}
