//! Inhibit files, with which a person or a program of the machine blocks changes.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use crate::hooks::to_one_line;
use crate::paths::AgentPaths;

/// The files, as seen from inside the managed root. The second one is gone after a reboot.
const INHIBIT_FILES: [&str; 2] = ["/etc/evenkeel/inhibit", "/run/evenkeel-agent/inhibit"];

/// Maximum number of bytes that are read of a file.
const MAX_FILE_BYTES: u64 = 4 << 10;

/// Fails with the content of the file if one of the files exists. An unreadable file counts as
/// existing.
pub fn check_inhibit_files(paths: &AgentPaths) -> Result<(), String> {
    INHIBIT_FILES.iter().try_for_each(|file| match fs::symlink_metadata(paths.inside(file)) {
        Err(error) if is_absent(&error) => Ok(()),
        Ok(metadata) if metadata.is_file() => {
            Err(describe_file(file, &read_reason(&paths.inside(file))))
        }
        _ => Err(describe_file(file, "")),
    })
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// Content of the file; empty if it cannot be read.
fn read_reason(path: &Path) -> String {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(MAX_FILE_BYTES).read_to_end(&mut bytes));
    match read {
        Ok(_) => to_one_line(&String::from_utf8_lossy(&bytes)),
        Err(_) => String::new(),
    }
}

fn describe_file(file: &str, reason: &str) -> String {
    if reason.is_empty() {
        return format!("{file} exists");
    }
    format!("{file}: {reason}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inhibit_file_blocks_changes_until_it_is_removed() {
        let root = tempfile::tempdir().unwrap();
        let paths = AgentPaths::new(root.path(), None);
        check_inhibit_files(&paths).unwrap();
        let run = root.path().join("run/evenkeel-agent");
        fs::create_dir_all(&run).unwrap();
        let file = run.join("inhibit");

        fs::write(&file, "").unwrap();
        let why = check_inhibit_files(&paths).unwrap_err();
        assert_eq!(why, "/run/evenkeel-agent/inhibit exists");
        fs::write(&file, "the line runs\nuntil Friday\n").unwrap();
        let why = check_inhibit_files(&paths).unwrap_err();
        assert_eq!(why, "/run/evenkeel-agent/inhibit: the line runs until Friday");
        fs::remove_file(&file).unwrap();
        check_inhibit_files(&paths).unwrap();
    }

    /// A logged-in user who is warned of a reboot has a minute to create the file.
    #[test]
    fn the_unit_creates_the_folder_of_the_inhibit_file_and_retains_it() {
        let unit = include_str!("../../../deploy/systemd/evenkeel-agent.service");
        let folder = Path::new(INHIBIT_FILES[1]).parent().unwrap();
        let name = folder.strip_prefix("/run").unwrap().display();
        let lines: Vec<_> = unit.lines().collect();
        assert!(lines.contains(&format!("RuntimeDirectory={name}").as_str()));
        assert!(lines.contains(&"RuntimeDirectoryPreserve=yes"));
    }

    #[test]
    fn an_unreadable_inhibit_file_blocks_changes() {
        let root = tempfile::tempdir().unwrap();
        let paths = AgentPaths::new(root.path(), None);
        let etc = root.path().join("etc/evenkeel");
        fs::create_dir_all(&etc).unwrap();
        std::os::unix::fs::symlink("nowhere", etc.join("inhibit")).unwrap();
        assert_eq!(check_inhibit_files(&paths).unwrap_err(), "/etc/evenkeel/inhibit exists");
        fs::remove_file(etc.join("inhibit")).unwrap();
        fs::create_dir(etc.join("inhibit")).unwrap();
        assert!(check_inhibit_files(&paths).is_err());
    }
}
