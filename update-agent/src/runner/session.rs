//! The processes of a program that must be ended.

use std::collections::HashSet;
use std::fs;
use std::path::Path;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::os;

/// Programs that end in an orderly way when the programs that they wait for have ended.
const ORDERLY_PROGRAMS: [&str; 1] = ["dpkg"];

/// How often processes are listed to find those that were started while the others were killed.
const MAX_KILL_PASSES: usize = 100;

/// A process in `/proc`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Process {
    id: i32,
    name: String,
    parent: i32,
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
    kill_all(|| list_session(leader), kill);
}

/// Kills all descendants of a process, but not the process itself. They are complete only if it is
/// the parent of orphans.
pub fn kill_descendants(top: Pid) {
    kill_all(|| descendants_of(top.as_raw_pid(), list_processes()), kill);
}

/// Kills processes until `list` returns no new ones. A process to which the signal was sent can start
/// no other process, but another process may have done so while they were listed. The last list is
/// checked twice: a process is missing from a list of descendants if its parent ends meanwhile.
fn kill_all(mut list: impl FnMut() -> Vec<Process>, mut kill: impl FnMut(i32)) {
    let mut killed = HashSet::new();
    let mut lists_without_new = 0;
    for _ in 0..MAX_KILL_PASSES {
        lists_without_new += 1;
        for process in list() {
            kill(process.id);
            if killed.insert(process.id) {
                lists_without_new = 0;
            }
        }
        if lists_without_new == 2 {
            return;
        }
    }
    tracing::warn!("processes are started faster than they are killed");
}

fn kill(id: i32) {
    if let Some(pid) = Pid::from_raw(id) {
        // The process may just have ended.
        kill_process(pid, Signal::KILL).ok();
    }
}

fn list_session(leader: Pid) -> Vec<Process> {
    let mut processes = list_processes();
    processes.retain(|process| process.session == leader.as_raw_pid());
    processes
}

fn descendants_of(top: i32, processes: Vec<Process>) -> Vec<Process> {
    let mut parents = HashSet::from([top]);
    let mut others = processes;
    let mut descendants = Vec::new();
    loop {
        let (children, rest): (Vec<_>, _) =
            others.into_iter().partition(|process| parents.contains(&process.parent));
        if children.is_empty() {
            return descendants;
        }
        parents = children.iter().map(|process| process.id).collect();
        descendants.extend(children);
        others = rest;
    }
}

fn list_processes() -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let processes = entries.flatten().filter_map(|entry| {
        let id: i32 = entry.file_name().to_str()?.parse().ok()?;
        // The kernel cuts a name after 15 bytes, also inside of a character.
        parse_stat(id, &os::read_lossy(&entry.path().join("stat")).ok()?)
    });
    processes.collect()
}

/// Parses `PID (NAME) STATE PARENT GROUP SESSION …`; the name may contain blanks and parentheses.
fn parse_stat(id: i32, text: &str) -> Option<Process> {
    let (_, rest) = text.split_once('(')?;
    let (name, rest) = rest.rsplit_once(')')?;
    let mut fields = rest.split_whitespace().skip(1);
    let parent = fields.next()?.parse().ok()?;
    let session = fields.nth(1)?.parse().ok()?;
    Some(Process { id, name: name.to_owned(), parent, session })
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
    fn the_parent_and_the_session_of_a_process_are_read() {
        let process =
            |name: &str| Process { id: 12, name: name.to_owned(), parent: 1, session: 34 };
        assert_eq!(parse_stat(12, "12 (dpkg) S 1 33 34 0 -1\n"), Some(process("dpkg")));
        assert_eq!(parse_stat(12, "12 (a) (b) S 1 33 34 0 -1\n"), Some(process("a) (b")));
        assert_eq!(parse_stat(12, "12 (a) S 1 33"), None);
        assert_eq!(parse_stat(12, ""), None);
    }

    fn process(id: i32, parent: i32) -> Process {
        Process { id, name: String::new(), parent, session: 1 }
    }

    #[test]
    fn descendants_are_found_in_any_order() {
        // The process 7 has left the tree, and 8 is its child.
        let tree = [(5, 4), (4, 3), (3, 1), (6, 3), (7, 1), (8, 7), (1, 0)];
        let tree = tree.map(|(id, parent)| process(id, parent)).to_vec();
        let mut ids: Vec<_> =
            descendants_of(3, tree.clone()).iter().map(|process| process.id).collect();
        ids.sort_unstable();
        assert_eq!(ids, [4, 5, 6]);
        assert_eq!(descendants_of(5, tree), []);
    }

    #[test]
    fn processes_that_are_started_during_the_kills_are_killed() {
        // The second list lacks a process whose parent ended meanwhile.
        let mut lists = [vec![2], vec![2], vec![2, 3], vec![4], vec![], vec![]].into_iter();
        let mut killed = Vec::new();
        let list = || lists.next().unwrap().into_iter().map(|id| process(id, 1)).collect();
        kill_all(list, |id| killed.push(id));
        assert_eq!(killed, [2, 2, 2, 3, 4]);
        assert_eq!(lists.next(), None);
    }

    #[test]
    fn a_process_that_starts_others_without_end_does_not_keep_the_agent() {
        let mut next_id = 1;
        let list = || {
            next_id += 1;
            vec![process(next_id, 1)]
        };
        kill_all(list, |_| {});
        assert_eq!(next_id, 101);
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
            let Process { name, parent, session, .. } = &process;
            let line = format!("12 ({name}) S {parent} 33 {session} 0 -1\n");
            assert_eq!(parse_stat(12, &line), Some(process));
        });
    }
}
