//! A running Postgres process: waits for its end, forwards its log, and signals it.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::process::{ChildStderr, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::sync::watch;

use crate::Error;
use crate::error::system_error;
use crate::runner::{ParentDeathSignal, Runner};

/// How many log lines are kept for errors.
const MAX_LOG_LINES: usize = 12;

/// A handle on a running Postgres.
#[derive(Debug)]
pub(crate) struct PostgresProcess {
    pub(crate) pid: i32,
    handle: OwnedFd,
    end: watch::Receiver<Option<ExitStatus>>,
    log_tail: LogTail,
    /// Whether this process has signalled Postgres to stop.
    is_stopping: Arc<AtomicBool>,
}

/// The last lines of the Postgres log.
#[derive(Clone, Debug, Default)]
struct LogTail(Arc<Mutex<VecDeque<String>>>);

impl LogTail {
    fn push(&self, line: String) {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() == MAX_LOG_LINES {
            lines.pop_front();
        }
        lines.push_back(line);
    }

    fn text(&self) -> String {
        let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lines.iter().cloned().collect::<Vec<_>>().join("; ")
    }
}

type StartResult = Result<(i32, OwnedFd, Option<ChildStderr>), Error>;

impl PostgresProcess {
    /// Starts Postgres from a thread that waits for its end. The kernel signals Postgres when that thread is gone, which
    /// happens when this process ends.
    pub(crate) fn start(
        runner: Runner,
        settings: Vec<String>,
        parent_death_signal: ParentDeathSignal,
    ) -> Result<Self, Error> {
        let (started_sender, started) = std::sync::mpsc::channel::<StartResult>();
        let (end_sender, end) = watch::channel(None);
        let supervise = move || {
            let mut child = match runner.start(&settings, parent_death_signal) {
                Ok(child) => child,
                Err(error) => {
                    _ = started_sender.send(Err(error));
                    return;
                }
            };
            let pid = child.id().cast_signed();
            let handle = Pid::from_raw(pid)
                .ok_or(rustix::io::Errno::SRCH)
                .and_then(|pid| pidfd_open(pid, PidfdFlags::empty()))
                .map_err(system_error("get a handle on Postgres"));
            let failed = handle.is_err();
            let log = child.stderr.take();
            _ = started_sender.send(handle.map(|handle| (pid, handle, log)));
            if failed {
                _ = child.kill();
            }
            match child.wait() {
                Ok(status) => _ = end_sender.send(Some(status)),
                Err(error) => tracing::error!(%error, "cannot wait for Postgres"),
            }
        };
        let thread = thread::Builder::new().name("postgres-wait".to_owned());
        thread.spawn(supervise).map_err(system_error("start a thread"))?;
        let thread_lost = |_| Error::Ended { log: "its supervising thread is gone".to_owned() };
        let (pid, handle, log) = started.recv().map_err(thread_lost)??;
        let log_tail = LogTail::default();
        let is_stopping = Arc::new(AtomicBool::new(false));
        if let Some(log) = log {
            let (log_tail, is_stopping) = (log_tail.clone(), Arc::clone(&is_stopping));
            let thread = thread::Builder::new().name("postgres-log".to_owned());
            thread
                .spawn(move || forward_log(log, &log_tail, &is_stopping))
                .map_err(system_error("start a thread"))?;
        }
        Ok(Self { pid, handle, end, log_tail, is_stopping })
    }

    /// The last lines of its log.
    pub(crate) fn log_tail(&self) -> String {
        self.log_tail.text()
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.end.borrow().is_some() || self.end.has_changed().is_err()
    }

    /// Sends a signal that stops Postgres. Does nothing if Postgres has ended.
    pub(crate) fn signal(&self, signal: Signal) {
        if self.has_ended() {
            return;
        }
        self.is_stopping.store(true, Ordering::Relaxed);
        if let Err(error) = pidfd_send_signal(&self.handle, signal)
            && error != rustix::io::Errno::SRCH
        {
            tracing::warn!(%error, ?signal, "cannot signal Postgres");
        }
    }

    pub(crate) fn wait_for_end(&self) -> impl Future<Output = Option<ExitStatus>> + use<> {
        let mut end = self.end.clone();
        async move { end.wait_for(Option::is_some).await.ok().and_then(|status| *status) }
    }

    /// Blocks until Postgres has ended. Returns false if it has not ended in time.
    pub(crate) fn wait_blocking(&self, timeout: Duration) -> bool {
        let begun = Instant::now();
        while !self.has_ended() {
            if begun.elapsed() > timeout {
                return false;
            }
            thread::sleep(Duration::from_millis(2));
        }
        true
    }
}

/// Forwards the Postgres log to our log. It returns when the last Postgres process has ended.
fn forward_log(log: ChildStderr, log_tail: &LogTail, is_stopping: &AtomicBool) {
    for line in BufReader::new(log).split(b'\n') {
        let Ok(line) = line else { return };
        let line = String::from_utf8_lossy(&line).trim_end().to_owned();
        if is_warning(&line, is_stopping.load(Ordering::Relaxed)) {
            tracing::warn!(target: "postgres", "{line}");
        } else {
            tracing::debug!(target: "postgres", "{line}");
        }
        log_tail.push(line);
    }
}

/// Whether a log line is a warning. A stop ends each session with a fatal error, as intended.
fn is_warning(line: &str, is_stopping: bool) -> bool {
    match line.split(':').next() {
        Some("PANIC") => true,
        Some("FATAL") => !is_stopping,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_session_is_a_warning_unless_postgres_is_being_stopped() {
        let line = "FATAL:  terminating connection due to administrator command";
        assert!(is_warning(line, false));
        assert!(!is_warning(line, true));
        assert!(is_warning("PANIC:  could not write to file", true));
        assert!(!is_warning("LOG:  database system is ready to accept connections", false));
    }
}
