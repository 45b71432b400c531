//! Services that still run code that was replaced on disk.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use crate::os;

/// Limits of what is read of one process, and of what is reported.
const MAX_MAP_BYTES: u64 = 4 << 20;
const MAX_PROCESSES: usize = 10_000;
const MAX_SERVICES: usize = 256;
const MAX_FILES: usize = 16;

/// Folders of programs and libraries. Deleted mappings elsewhere, such as shared memory, are not
/// replaced code.
const CODE_PREFIXES: [&[u8]; 5] = [b"/usr/", b"/lib", b"/bin/", b"/sbin/", b"/opt/"];

/// The agent's own unit.
pub(crate) const AGENT_UNIT: &str = "evenkeel-agent.service";

/// The unit of process 1, the service manager.
pub(crate) const MANAGER_UNIT: &str = "init.scope";

/// A service that still runs code that was replaced on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StaleService {
    /// Name of the unit, such as `ssh.service`; `init.scope` for the service manager itself.
    pub name: String,
    /// Files that the service runs and that no longer exist.
    pub files: Vec<String>,
}

/// Finds the services among the processes in a folder like `/proc`. Processes that end meanwhile or
/// cannot be read are ignored, and so are the programs that the agent with the ID `agent` has
/// started: they end soon.
pub fn find_services(proc: &Path, agent: u32) -> Vec<StaleService> {
    let Ok(folder) = fs::read_dir(proc) else {
        return Vec::new();
    };
    let mut files_by_service: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let processes = folder.filter_map(Result::ok).map(|entry| entry.path());
    let processes = processes.filter(|path| is_number(path));
    for process in processes.take(MAX_PROCESSES) {
        let Some(unit) = service_of_process(&process) else {
            continue;
        };
        if unit == AGENT_UNIT && !is_process(&process, agent) {
            continue;
        }
        let replaced = replaced_files(&process);
        if !replaced.is_empty() {
            let files = files_by_service.entry(unit).or_default();
            files.extend(replaced);
            // Users can map any number of files in processes of their own.
            while files.len() > MAX_FILES {
                files.pop_last();
            }
        }
    }
    let services = files_by_service
        .into_iter()
        .map(|(name, files)| StaleService { name, files: files.into_iter().collect() });
    services.take(MAX_SERVICES).collect()
}

fn is_number(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().as_encoded_bytes();
    !name.is_empty() && name.iter().all(u8::is_ascii_digit)
}

fn is_process(path: &Path, id: u32) -> bool {
    path.file_name().is_some_and(|name| name.to_str() == Some(id.to_string().as_str()))
}

/// The service of this system that a process belongs to; [`MANAGER_UNIT`] for process 1. Services in
/// containers and machines have packages of their own.
fn service_of_process(process: &Path) -> Option<String> {
    let text = os::read_lossy(&process.join("cgroup")).ok()?;
    // `0::/path`, or with cgroup v1 `1:name=systemd:/path`.
    let path = text.lines().find_map(|line| {
        line.strip_prefix("0::").or(line.split_once(":name=systemd:").map(|(_, path)| path))
    })?;
    if path.trim_start_matches('/') == MANAGER_UNIT && is_process(process, 1) {
        return Some(MANAGER_UNIT.to_owned());
    }
    let mut parts = path.split('/').skip(1);
    let part = parts.find(|part| part.strip_suffix(".slice").is_none())?;
    let machines = path.starts_with("/machine.slice/");
    let service = part.strip_suffix(".service").is_some();
    (service && !machines).then(|| part.to_owned())
}

/// Deleted files whose code a process runs.
fn replaced_files(process: &Path) -> BTreeSet<String> {
    let Ok(maps) = File::open(process.join("maps")) else {
        return BTreeSet::new();
    };
    let lines = BufReader::new(maps.take(MAX_MAP_BYTES)).split(b'\n');
    let lines = lines.map_while(Result::ok);
    let paths = lines.filter_map(|line| parse_replaced_code(&line).map(<[u8]>::to_vec));
    paths.map(|path| String::from_utf8_lossy(&path).into_owned()).collect()
}

/// The path of `START-END r-xp OFFSET DEVICE_FILE INODE   PATH (deleted)`.
fn parse_replaced_code(line: &[u8]) -> Option<&[u8]> {
    let line = line.strip_suffix(b" (deleted)")?;
    let mut fields = line.splitn(6, |byte| *byte == b' ');
    let access = fields.nth(1)?;
    let path = fields.nth(3)?.trim_ascii_start();
    let is_code =
        access.contains(&b'x') && CODE_PREFIXES.iter().any(|prefix| path.starts_with(prefix));
    is_code.then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write_process(proc: &Path, id: &str, cgroup: &str, maps: &[u8]) {
        let folder = proc.join(id);
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("cgroup"), cgroup).unwrap();
        fs::write(folder.join("maps"), maps).unwrap();
    }

    fn map_line(access: &str, path: &str) -> String {
        format!(
            "7f12a4c00000-7f12a4c28000 {access} 00028000 fe:01 1234567                    {path}\n"
        )
    }

    #[test]
    fn a_service_is_named_with_the_code_that_was_replaced() {
        let proc = tempfile::tempdir().unwrap();
        let ssl = map_line("r-xp", "/usr/lib/x86_64-linux-gnu/libssl.so.3 (deleted)");
        let sound = map_line("r-xp", "/usr/sbin/cron") + &map_line("rw-p", "[heap]");
        let path = proc.path();
        write_process(path, "1", "0::/init.scope\n", ssl.as_bytes());
        write_process(path, "20", "0::/system.slice/ssh.service\n", ssl.as_bytes());
        let exe = map_line("r-xp", "/usr/sbin/sshd (deleted)") + &ssl;
        write_process(path, "21", "0::/system.slice/ssh.service\n", exe.as_bytes());
        write_process(path, "30", "0::/system.slice/cron.service\n", sound.as_bytes());
        write_process(path, "35", "0::/init.scope\n", ssl.as_bytes());
        let getty = "0::/system.slice/system-getty.slice/getty@tty1.service\n";
        write_process(path, "40", getty, ssl.as_bytes());
        let user = "0::/user.slice/user-0.slice/user@0.service/app.slice/x.service\n";
        write_process(path, "50", user, ssl.as_bytes());
        write_process(
            path,
            "60",
            "12:pids:/x\n1:name=systemd:/system.slice/old.service\n0::/\n",
            b"",
        );
        fs::create_dir(path.join("70")).unwrap();
        fs::write(path.join("version"), "Linux").unwrap();

        let found = find_services(path, 0);
        let lines: Vec<_> = found
            .iter()
            .map(|service| format!("{} {}", service.name, service.files.join(" ")))
            .collect();
        assert_eq!(
            lines,
            [
                "getty@tty1.service /usr/lib/x86_64-linux-gnu/libssl.so.3",
                "init.scope /usr/lib/x86_64-linux-gnu/libssl.so.3",
                "ssh.service /usr/lib/x86_64-linux-gnu/libssl.so.3 /usr/sbin/sshd",
                "user@0.service /usr/lib/x86_64-linux-gnu/libssl.so.3",
            ]
        );
    }

    /// `systemd-inhibit` starts before the update and ends after it.
    #[test]
    fn programs_that_the_agent_has_started_are_not_stale() {
        let proc = tempfile::tempdir().unwrap();
        let path = proc.path();
        let old = map_line("r-xp", "/usr/lib/x86_64-linux-gnu/libcrypto.so.3 (deleted)");
        let agent = "0::/system.slice/evenkeel-agent.service\n";
        write_process(path, "70", agent, b"");
        write_process(path, "71", agent, old.as_bytes());
        assert_eq!(find_services(path, 70), []);
        let own = map_line("r-xp", "/usr/lib/x86_64-linux-gnu/libc.so.6 (deleted)");
        fs::write(path.join("70/maps"), own).unwrap();
        let found = find_services(path, 70);
        assert_eq!(found[0].name, AGENT_UNIT);
        assert_eq!(found[0].files, ["/usr/lib/x86_64-linux-gnu/libc.so.6"]);
    }

    #[test]
    fn only_code_of_this_system_is_considered() {
        let proc = tempfile::tempdir().unwrap();
        let path = proc.path();
        let maps = map_line("rw-s", "/dev/shm/x (deleted)")
            + &map_line("r-xp", "/memfd:jit (deleted)")
            + &map_line("r--p", "/usr/lib/locale/locale-archive (deleted)")
            + &map_line("r-xp", "/usr/lib/name with (deleted) in it")
            + "7f12a4c00000-7f12a4c28000 r-xp (deleted)\n (deleted)\n";
        write_process(path, "1", "0::/system.slice/a.service\n", maps.as_bytes());
        let deleted = map_line("r-xp", "/usr/lib/x.so (deleted)");
        for (id, cgroup) in [
            ("2", "0::/machine.slice/systemd-nspawn@n.service/payload/system.slice/b.service"),
            ("3", "0::/system.slice/docker-0a1b.scope/c.service"),
            ("4", "0::/../d.service"),
            ("5", "0::/"),
            ("6", ""),
        ] {
            write_process(path, id, cgroup, deleted.as_bytes());
        }
        assert_eq!(find_services(path, 0), []);
        assert_eq!(find_services(&path.join("nowhere"), 0), []);
    }

    #[test]
    fn of_many_files_the_first_ones_are_reported() {
        let proc = tempfile::tempdir().unwrap();
        for process in [1, 2] {
            let lines =
                (0..20).map(|n| map_line("r-xp", &format!("/opt/{n:02}-{process} (deleted)")));
            let maps = lines.collect::<Vec<_>>().concat();
            let id = process.to_string();
            write_process(proc.path(), &id, "0::/user.slice/user@1000.service\n", maps.as_bytes());
        }
        let services = find_services(proc.path(), 0);
        assert_eq!(services[0].files.len(), MAX_FILES);
        assert_eq!((&*services[0].files[0], &*services[0].files[15]), ("/opt/00-1", "/opt/07-2"));
    }

    #[test]
    fn paths_with_blanks_and_invalid_utf8_are_reported() {
        let proc = tempfile::tempdir().unwrap();
        let mut maps = map_line("r-xp", "/opt/a b (c) (deleted)").into_bytes();
        maps.extend(map_line("r-xp", "/opt/").trim_end().bytes());
        maps.extend(b"\xff (deleted)");
        write_process(proc.path(), "1", "0::/x.service\n", &maps);
        let services = find_services(proc.path(), 0);
        assert_eq!(services[0].files, ["/opt/a b (c)", "/opt/\u{fffd}"]);
        // Users choose the names of their own control groups.
        let maps = map_line("r-xp", "/usr/lib/x.so (deleted)");
        write_process(proc.path(), "2", "", maps.as_bytes());
        let cgroup = b"0::/user.slice/user@1000.service/\xff\n";
        fs::write(proc.path().join("2/cgroup"), cgroup).unwrap();
        assert_eq!(find_services(proc.path(), 0)[0].name, "user@1000.service");
    }
}

#[cfg(test)]
mod fuzz {
    use super::*;
    use crate::fuzz_driver::{fuzz, text};

    #[test]
    fn maps_are_parsed_as_the_kernel_prints_them() {
        let samples = [
            "7f12a4c00000-7f12a4c28000 r-xp 00028000 fe:01 1234567      /usr/lib/x.so (deleted)",
            "7f12a4c00000-7f12a4c28000 rwxp 0 00:00 0 (deleted)",
        ];
        fuzz("/proc/PID/maps", |rng| {
            let line = text(rng, &samples, " -/()\trwxp0123456789\u{e9}");
            let Some(path) = parse_replaced_code(line.as_bytes()) else {
                return;
            };
            assert!(CODE_PREFIXES.iter().any(|prefix| path.starts_with(prefix)));
            let start: &[u8] = b"7f12a4c00000-7f12a4c28000 r-xp 00028000 fe:01 1234567      ";
            let line = [start, path, b" (deleted)"].concat();
            assert_eq!(parse_replaced_code(&line), Some(path));
        });
    }
}
