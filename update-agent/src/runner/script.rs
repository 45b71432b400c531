//! Runs scripts that are not part of the system.
//!
//! Unlike other programs, a script writes to pipes: `echo x > /dev/stdout` would erase a file. No
//! process of a script outlives the agent's wait, so a closed pipe stops none.

use std::io;
use std::os::fd::AsFd;
use std::process::Stdio;

use rustix::io::Errno;
use rustix::process::Pid;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::Child;

use super::{Command, END_TIMEOUT, HostRunner, Output, RunError, process_id, session};

/// Maximum number of bytes that are read at once.
const READ_BYTES: usize = 8 << 10;

/// Follows output whose end was discarded.
const DISCARDED: &str = "\n[later output is discarded]\n";

impl HostRunner {
    /// Runs a script to its end, and kills what is left of it. Standard output that is longer than
    /// `max_bytes` is an error; longer standard error is cut.
    pub(super) async fn run_script(
        &self,
        command: &Command,
        max_bytes: usize,
    ) -> Result<Output, RunError> {
        let program = || command.program.clone();
        let start = |source| RunError::Start { program: program(), source };
        let lost = |source| RunError::Lost { program: program(), source };
        let mut process = self.process(command);
        process.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut script =
            RunningScript::new(process.spawn().map_err(start)?, self.kills_descendants);
        let mut out = OutputPipe::new(script.child.stdout.take(), max_bytes).map_err(start)?;
        let mut err = OutputPipe::new(script.child.stderr.take(), max_bytes).map_err(start)?;
        let end = async {
            tokio::select! {
                status = script.child.wait() => status.map(Some),
                () = out.read_until_too_long() => Ok(None),
                () = err.read_without_end() => Ok(None),
            }
        };
        let ended = tokio::time::timeout(command.deadline, end).await;
        script.kill();
        if !matches!(ended, Ok(Ok(Some(_)))) {
            // A script that waits for a broken disk does not end even if it is killed.
            tokio::time::timeout(END_TIMEOUT, script.child.wait()).await.ok();
        }
        out.read_rest();
        err.read_rest();
        let Ok(ended) = ended else {
            return Err(RunError::Deadline {
                program: program(),
                after: command.deadline,
                action: command.at_deadline,
                output: err.into_text(),
            });
        };
        let Some(status) = ended.map_err(lost)?.filter(|_| !out.is_too_long) else {
            return Err(RunError::OutputTooLong { program: program(), max_bytes });
        };
        Ok(Output { status: status.code(), stdout: out.into_text(), stderr: err.into_text() })
    }
}

/// A script that is killed with its processes when it is dropped, such as after a signal.
struct RunningScript {
    child: Child,
    /// `None` if its processes were killed.
    session: Option<Pid>,
    kills_descendants: bool,
}

impl RunningScript {
    fn new(child: Child, kills_descendants: bool) -> Self {
        Self { session: process_id(&child), child, kills_descendants }
    }

    /// Kills the script and its processes. If the script has ended, its ID belongs to its session as
    /// long as the session has a process. Afterwards the kernel could assign the ID again, but not
    /// within this moment: it assigns all other IDs first.
    fn kill(&mut self) {
        let Some(session) = self.session.take() else { return };
        // A script that was just started has no session yet.
        self.child.start_kill().ok();
        session::kill_session(session);
        if self.kills_descendants {
            session::kill_descendants(rustix::process::getpid());
        }
    }
}

impl Drop for RunningScript {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Reads the beginning of an output, and discards the rest.
struct OutputPipe<P> {
    pipe: P,
    bytes: Vec<u8>,
    max_bytes: usize,
    is_too_long: bool,
}

impl<P: AsyncRead + AsFd + Unpin> OutputPipe<P> {
    fn new(pipe: Option<P>, max_bytes: usize) -> io::Result<Self> {
        let pipe = pipe.ok_or(io::ErrorKind::BrokenPipe)?;
        Ok(Self { pipe, bytes: Vec::new(), max_bytes, is_too_long: false })
    }

    /// Reads the next part. Does not return if the output has ended: the end of the script does not
    /// depend on it.
    async fn read_part(&mut self) {
        let mut part = vec![0; READ_BYTES];
        match self.pipe.read(&mut part).await {
            Ok(length) if length > 0 => self.retain(&part[..length]),
            _ => std::future::pending().await,
        }
    }

    async fn read_until_too_long(&mut self) {
        while !self.is_too_long {
            self.read_part().await;
        }
    }

    async fn read_without_end(&mut self) {
        loop {
            self.read_part().await;
        }
    }

    /// Reads what the pipe contains, without waiting: a process that could not be killed may keep it
    /// open.
    fn read_rest(&mut self) {
        let mut part = vec![0; READ_BYTES];
        while !self.is_too_long {
            match rustix::io::read(&self.pipe, &mut part[..]) {
                Err(Errno::INTR) => {}
                Ok(0) | Err(_) => return,
                Ok(length) => self.retain(&part[..length]),
            }
        }
    }

    fn retain(&mut self, part: &[u8]) {
        let space = self.max_bytes - self.bytes.len();
        self.is_too_long |= part.len() > space;
        self.bytes.extend(&part[..part.len().min(space)]);
    }

    fn into_text(self) -> String {
        let end = if self.is_too_long { DISCARDED } else { "" };
        String::from_utf8_lossy(&self.bytes).into_owned() + end
    }
}

#[cfg(test)]
mod tests;
