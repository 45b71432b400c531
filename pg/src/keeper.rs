//! Keeps a running Postgres: waits for its end, passes its log on, and ends it.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::process::{ChildStderr, ExitStatus};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::sync::watch;

use crate::Error;
use crate::error::to;
use crate::runner::{LastWord, Runner};

/// How many of its last words are kept for an error.
const LAST_LINES: usize = 12;

/// A handle on a running Postgres.
#[derive(Debug)]
pub(crate) struct Keeper {
    pub(crate) pid: i32,
    handle: OwnedFd,
    end: watch::Receiver<Option<ExitStatus>>,
    said: Said,
}

/// The last lines of Postgres' log.
#[derive(Clone, Debug, Default)]
struct Said(Arc<Mutex<VecDeque<String>>>);

impl Said {
    fn push(&self, line: String) {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() == LAST_LINES {
            lines.pop_front();
        }
        lines.push_back(line);
    }

    fn text(&self) -> String {
        let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lines.iter().cloned().collect::<Vec<_>>().join("; ")
    }
}

type Started = Result<(i32, OwnedFd, Option<ChildStderr>), Error>;

impl Keeper {
    /// Starts Postgres from a thread that stays until it ends: the kernel speaks the last word to Postgres when that
    /// thread is gone, which is when this process is.
    pub(crate) fn start(
        runner: Runner,
        settings: Vec<String>,
        last_word: LastWord,
    ) -> Result<Self, Error> {
        let (say_started, started) = std::sync::mpsc::channel::<Started>();
        let (say_end, end) = watch::channel(None);
        let keep = move || {
            let mut child = match runner.start(&settings, last_word) {
                Ok(child) => child,
                Err(error) => {
                    _ = say_started.send(Err(error));
                    return;
                }
            };
            let pid = child.id().cast_signed();
            let handle = Pid::from_raw(pid)
                .ok_or(rustix::io::Errno::SRCH)
                .and_then(|pid| pidfd_open(pid, PidfdFlags::empty()))
                .map_err(to("get a handle on Postgres"));
            let failed = handle.is_err();
            let log = child.stderr.take();
            _ = say_started.send(handle.map(|handle| (pid, handle, log)));
            if failed {
                _ = child.kill();
            }
            match child.wait() {
                Ok(status) => _ = say_end.send(Some(status)),
                Err(error) => tracing::error!(%error, "cannot wait for Postgres"),
            }
        };
        let thread = thread::Builder::new().name("postgres-keeper".to_owned());
        thread.spawn(keep).map_err(to("start a thread"))?;
        let gone = |_| Error::Ended {
            said: "its keeper is gone".to_owned(),
        };
        let (pid, handle, log) = started.recv().map_err(gone)??;
        let said = Said::default();
        if let Some(log) = log {
            let said = said.clone();
            let thread = thread::Builder::new().name("postgres-log".to_owned());
            thread
                .spawn(move || pass_on(log, &said))
                .map_err(to("start a thread"))?;
        }
        Ok(Self {
            pid,
            handle,
            end,
            said,
        })
    }

    /// What Postgres said last.
    pub(crate) fn said(&self) -> String {
        self.said.text()
    }

    /// Whether Postgres has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.end.borrow().is_some() || self.end.has_changed().is_err()
    }

    /// Sends a signal; one to a Postgres that has ended does nothing.
    pub(crate) fn signal(&self, signal: Signal) {
        if self.has_ended() {
            return;
        }
        if let Err(error) = pidfd_send_signal(&self.handle, signal)
            && error != rustix::io::Errno::SRCH
        {
            tracing::warn!(%error, ?signal, "cannot signal Postgres");
        }
    }

    /// Comes back when Postgres has ended.
    pub(crate) fn ended(&self) -> impl Future<Output = Option<ExitStatus>> + use<> {
        let mut end = self.end.clone();
        async move {
            end.wait_for(Option::is_some)
                .await
                .ok()
                .and_then(|status| *status)
        }
    }

    /// Waits without a runtime. False if Postgres has not ended in time.
    pub(crate) fn wait(&self, patience: Duration) -> bool {
        let begun = Instant::now();
        while !self.has_ended() {
            if begun.elapsed() > patience {
                return false;
            }
            thread::sleep(Duration::from_millis(2));
        }
        true
    }
}

/// Passes Postgres' log on to ours. It ends when the last process of Postgres has.
fn pass_on(log: ChildStderr, said: &Said) {
    for line in BufReader::new(log).split(b'\n') {
        let Ok(line) = line else { return };
        let line = String::from_utf8_lossy(&line).trim_end().to_owned();
        let severity = line.split(':').next().unwrap_or_default();
        match severity {
            "FATAL" | "PANIC" => tracing::warn!(target: "postgres", "{line}"),
            _ => tracing::debug!(target: "postgres", "{line}"),
        }
        said.push(line);
    }
}
