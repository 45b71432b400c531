//! Services that still run what was replaced on disk.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

/// More of the map of one process is not read, and more of anything is not told.
const MOST_MAPS: u64 = 4 << 20;
const MOST_PROCESSES: usize = 10_000;
const MOST_SERVICES: usize = 256;
const MOST_FILES: usize = 16;

/// Where programs and libraries lie. What is mapped from elsewhere and gone, such as shared memory, was not replaced.
const CODE: [&[u8]; 5] = [b"/usr/", b"/lib", b"/bin/", b"/sbin/", b"/opt/"];

/// A service that still runs what was replaced on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StaleService {
    /// Of the unit, such as `ssh.service`.
    pub name: String,
    /// What it runs that is not there any more.
    pub files: Vec<String>,
}

/// Looks through the processes of a folder like `/proc`. A process that ends meanwhile, or that may not be looked at, is
/// passed over.
pub fn services(proc: &Path) -> Vec<StaleService> {
    let Ok(folder) = fs::read_dir(proc) else {
        return Vec::new();
    };
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let processes = folder.filter_map(Result::ok).map(|entry| entry.path());
    let processes = processes.filter(|path| is_number(path));
    for process in processes.take(MOST_PROCESSES) {
        let Some(unit) = unit(&process) else { continue };
        let replaced = replaced(&process);
        if !replaced.is_empty() {
            found.entry(unit).or_default().extend(replaced);
        }
    }
    let services = found.into_iter().map(|(name, files)| StaleService {
        name,
        files: files.into_iter().take(MOST_FILES).collect(),
    });
    services.take(MOST_SERVICES).collect()
}

fn is_number(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().as_encoded_bytes();
    !name.is_empty() && name.iter().all(u8::is_ascii_digit)
}

/// The service of this system that a process belongs to. What runs in a machine of its own has its own packages.
fn unit(process: &Path) -> Option<String> {
    let text = fs::read_to_string(process.join("cgroup")).ok()?;
    // `0::/path`, or beside the controllers of old `1:name=systemd:/path`.
    let path = text.lines().find_map(|line| {
        line.strip_prefix("0::")
            .or(line.split_once(":name=systemd:").map(|(_, path)| path))
    })?;
    let mut parts = path.split('/').skip(1);
    let part = parts.find(|part| part.strip_suffix(".slice").is_none())?;
    let machines = path.starts_with("/machine.slice/");
    let service = part.strip_suffix(".service").is_some();
    (service && !machines).then(|| part.to_owned())
}

/// The files that a process runs code of and that are not there any more.
fn replaced(process: &Path) -> BTreeSet<String> {
    let Ok(maps) = File::open(process.join("maps")) else {
        return BTreeSet::new();
    };
    let lines = BufReader::new(maps.take(MOST_MAPS)).split(b'\n');
    let lines = lines.map_while(Result::ok);
    let paths = lines.filter_map(|line| replaced_code(&line).map(<[u8]>::to_vec));
    paths
        .map(|path| String::from_utf8_lossy(&path).into_owned())
        .collect()
}

/// The path of `START-END r-xp OFFSET DEVICE INODE   PATH (deleted)`.
fn replaced_code(line: &[u8]) -> Option<&[u8]> {
    let line = line.strip_suffix(b" (deleted)")?;
    let mut words = line.splitn(6, |byte| *byte == b' ');
    let access = words.nth(1)?;
    let path = words.nth(3)?.trim_ascii_start();
    let is_code = access.contains(&b'x') && CODE.iter().any(|place| path.starts_with(place));
    is_code.then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(proc: &Path, id: &str, cgroup: &str, maps: &[u8]) {
        let folder = proc.join(id);
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("cgroup"), cgroup).unwrap();
        fs::write(folder.join("maps"), maps).unwrap();
    }

    /// A line of a map.
    fn line(access: &str, path: &str) -> String {
        format!(
            "7f12a4c00000-7f12a4c28000 {access} 00028000 fe:01 1234567                    {path}\n"
        )
    }

    #[test]
    fn a_service_is_named_with_the_code_that_was_replaced() {
        let proc = tempfile::tempdir().unwrap();
        let ssl = line("r-xp", "/usr/lib/x86_64-linux-gnu/libssl.so.3 (deleted)");
        let sound = line("r-xp", "/usr/sbin/cron") + &line("rw-p", "[heap]");
        let path = proc.path();
        process(path, "1", "0::/init.scope\n", ssl.as_bytes());
        process(path, "20", "0::/system.slice/ssh.service\n", ssl.as_bytes());
        let exe = line("r-xp", "/usr/sbin/sshd (deleted)") + &ssl;
        process(path, "21", "0::/system.slice/ssh.service\n", exe.as_bytes());
        process(
            path,
            "30",
            "0::/system.slice/cron.service\n",
            sound.as_bytes(),
        );
        let getty = "0::/system.slice/system-getty.slice/getty@tty1.service\n";
        process(path, "40", getty, ssl.as_bytes());
        let user = "0::/user.slice/user-0.slice/user@0.service/app.slice/x.service\n";
        process(path, "50", user, ssl.as_bytes());
        process(
            path,
            "60",
            "12:pids:/x\n1:name=systemd:/system.slice/old.service\n0::/\n",
            b"",
        );
        fs::create_dir(path.join("70")).unwrap();
        fs::write(path.join("version"), "Linux").unwrap();

        let found = services(path);
        let seen: Vec<_> = found
            .iter()
            .map(|service| format!("{} {}", service.name, service.files.join(" ")))
            .collect();
        assert_eq!(
            seen,
            [
                "getty@tty1.service /usr/lib/x86_64-linux-gnu/libssl.so.3",
                "ssh.service /usr/lib/x86_64-linux-gnu/libssl.so.3 /usr/sbin/sshd",
                "user@0.service /usr/lib/x86_64-linux-gnu/libssl.so.3",
            ]
        );
    }

    #[test]
    fn what_is_not_code_of_this_system_is_passed_over() {
        let proc = tempfile::tempdir().unwrap();
        let path = proc.path();
        let maps = line("rw-s", "/dev/shm/x (deleted)")
            + &line("r-xp", "/memfd:jit (deleted)")
            + &line("r--p", "/usr/lib/locale/locale-archive (deleted)")
            + &line("r-xp", "/usr/lib/name with (deleted) in it")
            + "7f12a4c00000-7f12a4c28000 r-xp (deleted)\n (deleted)\n";
        process(path, "1", "0::/system.slice/a.service\n", maps.as_bytes());
        let gone = line("r-xp", "/usr/lib/x.so (deleted)");
        for (id, cgroup) in [
            (
                "2",
                "0::/machine.slice/systemd-nspawn@n.service/payload/system.slice/b.service",
            ),
            ("3", "0::/system.slice/docker-0a1b.scope/c.service"),
            ("4", "0::/../d.service"),
            ("5", "0::/"),
            ("6", ""),
        ] {
            process(path, id, cgroup, gone.as_bytes());
        }
        assert_eq!(services(path), []);
        assert_eq!(services(&path.join("nowhere")), []);
    }

    #[test]
    fn a_path_that_is_no_text_and_one_with_blanks_are_told() {
        let proc = tempfile::tempdir().unwrap();
        let mut maps = line("r-xp", "/opt/a b (c) (deleted)").into_bytes();
        maps.extend(line("r-xp", "/opt/").trim_end().bytes());
        maps.extend(b"\xff (deleted)");
        process(proc.path(), "1", "0::/x.service\n", &maps);
        let found = services(proc.path());
        assert_eq!(found[0].files, ["/opt/a b (c)", "/opt/\u{fffd}"]);
    }
}
