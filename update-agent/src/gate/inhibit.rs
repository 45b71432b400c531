//! Files with which a person or a program of the machine says "not now".

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use crate::hooks::in_one_line;
use crate::place::Place;

/// The files, as seen from inside the managed root. The second is gone after a reboot.
const FILES: [&str; 2] = ["/etc/evenkeel/inhibit", "/run/evenkeel-agent/inhibit"];

/// More of a file is not read.
const MOST_BYTES: u64 = 4 << 10;

/// Whether none of the files is there; else what it says. In doubt it is there.
pub fn look(place: &Place) -> Result<(), String> {
    FILES
        .iter()
        .try_for_each(|file| match fs::symlink_metadata(place.inside(file)) {
            Err(error) if is_absent(&error) => Ok(()),
            Ok(found) if found.is_file() => Err(told(file, &reason(&place.inside(file)))),
            _ => Err(told(file, "")),
        })
}

fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

/// What the file says; nothing if that cannot be read.
fn reason(path: &Path) -> String {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(MOST_BYTES).read_to_end(&mut bytes));
    match read {
        Ok(_) => in_one_line(&String::from_utf8_lossy(&bytes)),
        Err(_) => String::new(),
    }
}

fn told(file: &str, reason: &str) -> String {
    if reason.is_empty() {
        return format!("{file} is there");
    }
    format!("{file} says: {reason}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_holds_changes_back_until_it_is_gone_and_its_text_is_the_reason() {
        let root = tempfile::tempdir().unwrap();
        let place = Place::new(root.path(), None);
        look(&place).unwrap();
        let run = root.path().join("run/evenkeel-agent");
        fs::create_dir_all(&run).unwrap();
        let file = run.join("inhibit");

        fs::write(&file, "").unwrap();
        let why = look(&place).unwrap_err();
        assert_eq!(why, "/run/evenkeel-agent/inhibit is there");
        fs::write(&file, "the line runs\nuntil Friday\n").unwrap();
        let why = look(&place).unwrap_err();
        assert_eq!(
            why,
            "/run/evenkeel-agent/inhibit says: the line runs until Friday"
        );
        fs::remove_file(&file).unwrap();
        look(&place).unwrap();
    }

    #[test]
    fn in_doubt_the_file_is_there() {
        let root = tempfile::tempdir().unwrap();
        let place = Place::new(root.path(), None);
        let etc = root.path().join("etc/evenkeel");
        fs::create_dir_all(&etc).unwrap();
        std::os::unix::fs::symlink("nowhere", etc.join("inhibit")).unwrap();
        assert_eq!(look(&place).unwrap_err(), "/etc/evenkeel/inhibit is there");
        fs::remove_file(etc.join("inhibit")).unwrap();
        fs::create_dir(etc.join("inhibit")).unwrap();
        assert!(look(&place).is_err());
    }
}
