//! The processes of a program that must be ended.

use std::fs;
use std::path::Path;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::os;

/// Programs that end in an orderly way when the programs that they wait for have ended.
const ORDERLY_PROGRAMS: [&str; 1] = ["dpkg"];

/// A process in `/proc`.
#[derive(Debug, PartialEq, Eq)]
struct Process {
    id: i32,
    name: String,
    session: i32,
}

/// Kills the processes of a session except its leader and dpkg: the scripts of packages and the
/// programs of hooks. Processes that have left the session, such as services, are not found.
pub fn kill_scripts(leader: Pid) {
    for process in list_session(leader) {
        let is_orderly = ORDERLY_PROGRAMS.contains(&process.name.as_str());
        if !is_orderly && process.id != leader.as_raw_pid() {
            kill(process.id);
        }
    }
}

/// Kills all processes of a session and of its leader's process group.
pub fn kill_session(leader: Pid) {
    // The group may just have ended.
    kill_process_group(leader, Signal::KILL).ok();
    for process in list_session(leader) {
        kill(process.id);
    }
}

fn kill(id: i32) {
    if let Some(pid) = Pid::from_raw(id) {
        // The process may just have ended.
        kill_process(pid, Signal::KILL).ok();
    }
}

fn list_session(leader: Pid) -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let processes = entries.flatten().filter_map(|entry| {
        let id: i32 = entry.file_name().to_str()?.parse().ok()?;
        // The kernel cuts a name after 15 bytes, also inside of a character.
        parse_stat(id, &os::read_lossy(&entry.path().join("stat")).ok()?)
    });
    processes.filter(|process| process.session == leader.as_raw_pid()).collect()
}

/// Parses `PID (NAME) STATE PARENT GROUP SESSION …`; the name may contain blanks and parentheses.
fn parse_stat(id: i32, text: &str) -> Option<Process> {
    let (_, rest) = text.split_once('(')?;
    let (name, rest) = rest.rsplit_once(')')?;
    let session = rest.split_whitespace().nth(3)?.parse().ok()?;
    Some(Process { id, name: name.to_owned(), session })
}

/// When a process started, in clock ticks since the boot; `None` if it has ended.
pub fn read_process_start(id: i32) -> Option<u64> {
    parse_start(&os::read_lossy(&Path::new("/proc").join(id.to_string()).join("stat")).ok()?)
}

/// Parses the start of a running process, which is the 22nd field.
fn parse_start(text: &str) -> Option<u64> {
    let (_, rest) = text.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    // These processes have ended, and their parents have not asked for their status.
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_of_a_process_that_has_not_ended_is_read() {
        let stat = |state: &str| {
            format!("12 (a) b) {state} 1 33 34 0 -1 4194560 1 0 0 0 5 6 0 0 20 0 1 0 98765 1 2 3\n")
        };
        assert_eq!(parse_start(&stat("S")), Some(98_765));
        assert_eq!(parse_start(&stat("Z")), None);
        assert_eq!(parse_start("12 (a) S 1 33"), None);
    }

    #[test]
    fn the_session_of_a_process_is_read() {
        let process = |name: &str| Process { id: 12, name: name.to_owned(), session: 34 };
        assert_eq!(parse_stat(12, "12 (dpkg) S 1 33 34 0 -1\n"), Some(process("dpkg")));
        assert_eq!(parse_stat(12, "12 (a) (b) S 1 33 34 0 -1\n"), Some(process("a) (b")));
        assert_eq!(parse_stat(12, "12 (a) S 1 33"), None);
        assert_eq!(parse_stat(12, ""), None);
    }
}

#[cfg(test)]
mod fuzz {
    use super::*;
    use crate::fuzz_driver::{fuzz, text};

    #[test]
    fn processes_are_parsed_as_the_kernel_prints_them() {
        let samples = ["12 (dpkg) S 1 33 34 0 -1\n", "12 (a) (b) S 1 33 -34 0\n", "7 (x\n) S"];
        fuzz("/proc/PID/stat", |rng| {
            let stat = text(rng, &samples, " ()\n-0123456789S\u{fffd}");
            let Some(process) = parse_stat(12, &stat) else {
                return;
            };
            let line = format!("12 ({}) S 1 33 {} 0 -1\n", process.name, process.session);
            assert_eq!(parse_stat(12, &line), Some(process));
        });
    }
}
