//! What an earlier Postgres left behind: processes that still work, and files that say that one does.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::Error;
use crate::error::on;

const PID_FILE: &str = "postmaster.pid";

/// How long a Postgres without a keeper gets before it is told again, more firmly.
const STAGES: [(Signal, Duration); 3] = [
    (Signal::INT, Duration::from_secs(20)),
    (Signal::QUIT, Duration::from_secs(10)),
    (Signal::KILL, Duration::from_secs(5)),
];

/// Ends what still works on `data` and removes what would hinder a start. Only for who holds the lock.
///
/// The file that names the running Postgres is removed only when nothing works there any more: its number may be that
/// of an unrelated process by now, and Postgres would believe it.
pub(crate) fn clear(data: &Path, socket: &Path) -> Result<(), Error> {
    end_processes(data)?;
    for file in [
        data.join(PID_FILE),
        socket.join(".s.PGSQL.5432"),
        socket.join(".s.PGSQL.5432.lock"),
    ] {
        match fs::remove_file(&file) {
            Ok(()) => {
                tracing::info!(file = %file.display(), "removed what an earlier Postgres left");
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(on("remove", file)(error)),
        }
    }
    Ok(())
}

fn end_processes(data: &Path) -> Result<(), Error> {
    for (signal, patience) in STAGES {
        let begun = Instant::now();
        let mut told = false;
        while begun.elapsed() < patience {
            let at_work = at_work(data);
            if at_work.is_empty() {
                return Ok(());
            }
            if !told {
                tracing::warn!(
                    ?at_work,
                    ?signal,
                    "a Postgres without a keeper is told to end"
                );
                tell(data, &at_work, signal);
                told = true;
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
    match at_work(data).first() {
        None => Ok(()),
        Some(&pid) => Err(Error::Leftover {
            pid,
            data: data.to_owned(),
        }),
    }
}

/// The first process of a Postgres passes a signal on; without it, or at last, each one is told.
fn tell(data: &Path, at_work: &[i32], signal: Signal) {
    let first = recorded(data).map(|(pid, _)| pid);
    let first = first.filter(|pid| at_work.contains(pid) && signal != Signal::KILL);
    let told = first.map_or_else(|| at_work.to_vec(), |pid| vec![pid]);
    for pid in told {
        let Some(Ok(handle)) = Pid::from_raw(pid).map(|pid| pidfd_open(pid, PidfdFlags::empty()))
        else {
            continue;
        };
        // The handle is of a process; whether it is still the one that was seen is looked up after opening it.
        if works_on(pid, data)
            && let Err(error) = pidfd_send_signal(handle, signal)
        {
            tracing::warn!(pid, %error, "cannot signal a Postgres");
        }
    }
}

/// The process and the state that Postgres wrote into its data directory.
pub(crate) fn recorded(data: &Path) -> Option<(i32, String)> {
    let text = fs::read_to_string(data.join(PID_FILE)).ok()?;
    let mut lines = text.lines();
    let pid = lines.next()?.trim().parse().ok()?;
    let state = lines.nth(6).unwrap_or_default().trim().to_owned();
    Some((pid, state))
}

/// All Postgres processes whose working directory is `data`.
pub(crate) fn at_work(data: &Path) -> Vec<i32> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| works_on(*pid, data))
        .collect()
}

/// A zombie has no working directory and so does not count.
fn works_on(pid: i32, data: &Path) -> bool {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    if name.trim() != "postgres" {
        return false;
    }
    let place = |path: &Path| {
        fs::metadata(path)
            .ok()
            .map(|found| (found.dev(), found.ino()))
    };
    let there = place(Path::new(&format!("/proc/{pid}/cwd")));
    there.is_some() && there == place(data)
}
