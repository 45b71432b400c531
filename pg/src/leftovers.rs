//! What a crashed Postgres left behind: running processes, and files that claim that one is running.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::Error;
use crate::error::path_error;

const PID_FILE: &str = "postmaster.pid";

/// The signals for an orphaned Postgres, and how long each may take.
const SHUTDOWN_STAGES: [(Signal, Duration); 3] = [
    (Signal::INT, Duration::from_secs(20)),
    (Signal::QUIT, Duration::from_secs(10)),
    (Signal::KILL, Duration::from_secs(5)),
];

/// Ends the Postgres processes on `data`, and removes files that prevent a start. The caller must hold the lock.
///
/// The pid file is removed only when no Postgres process is left. By then its process id may belong to an unrelated
/// process, and Postgres would take that for a running server.
pub(crate) fn remove_leftovers(data: &Path, socket: &Path) -> Result<(), Error> {
    end_processes(data)?;
    for file in
        [data.join(PID_FILE), socket.join(".s.PGSQL.5432"), socket.join(".s.PGSQL.5432.lock")]
    {
        match fs::remove_file(&file) {
            Ok(()) => {
                tracing::info!(file = %file.display(), "removed a file of a crashed Postgres");
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(path_error("remove", file)(error)),
        }
    }
    Ok(())
}

fn end_processes(data: &Path) -> Result<(), Error> {
    for (signal, timeout) in SHUTDOWN_STAGES {
        let begun = Instant::now();
        let mut is_signalled = false;
        while begun.elapsed() < timeout {
            let running = running_processes(data);
            if running.is_empty() {
                return Ok(());
            }
            if !is_signalled {
                tracing::warn!(?running, ?signal, "an orphaned Postgres is signalled to end");
                signal_processes(data, &running, signal);
                is_signalled = true;
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
    match running_processes(data).first() {
        None => Ok(()),
        Some(&pid) => Err(Error::OrphanedPostgres { pid, data: data.to_owned() }),
    }
}

/// Signals the main process of Postgres, which signals the others. Without it, or for `KILL`, signals each process.
fn signal_processes(data: &Path, running: &[i32], signal: Signal) {
    let first = read_pid_file(data).map(|(pid, _)| pid);
    let first = first.filter(|pid| running.contains(pid) && signal != Signal::KILL);
    let targets = first.map_or_else(|| running.to_vec(), |pid| vec![pid]);
    for pid in targets {
        let Some(Ok(handle)) = Pid::from_raw(pid).map(|pid| pidfd_open(pid, PidfdFlags::empty()))
        else {
            continue;
        };
        // Opening the handle pins the process. Check afterwards that it is still a Postgres on `data`.
        if is_postgres_in(pid, data)
            && let Err(error) = pidfd_send_signal(handle, signal)
        {
            tracing::warn!(pid, %error, "cannot signal a Postgres");
        }
    }
}

/// The process id and the state in the pid file of Postgres.
pub(crate) fn read_pid_file(data: &Path) -> Option<(i32, String)> {
    let text = fs::read_to_string(data.join(PID_FILE)).ok()?;
    let mut lines = text.lines();
    let pid = lines.next()?.trim().parse().ok()?;
    let state = lines.nth(6).unwrap_or_default().trim().to_owned();
    Some((pid, state))
}

/// All Postgres processes whose working directory is `data`.
pub(crate) fn running_processes(data: &Path) -> Vec<i32> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| is_postgres_in(*pid, data))
        .collect()
}

/// Whether a process is a Postgres on `data`. A zombie has no working directory, so it does not count.
fn is_postgres_in(pid: i32, data: &Path) -> bool {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    if name.trim() != "postgres" {
        return false;
    }
    let identity =
        |path: &Path| fs::metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino()));
    let there = identity(Path::new(&format!("/proc/{pid}/cwd")));
    there.is_some() && there == identity(data)
}
