//! Reads files of the kernel. What they contain comes from devices and from users of the machine, so
//! everything is limited.

use std::fs::{self, OpenOptions};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::str::FromStr;

use rustix::fs::OFlags;

/// Maximum number of bytes that are read of a file. The rest is ignored.
const MAX_FILE_BYTES: u64 = 256 << 10;

/// Maximum number of entries that are read of a folder. The rest is ignored.
const MAX_FOLDER_ENTRIES: usize = 4_096;

/// Maximum length of a reported text, in bytes; the server's limit.
const MAX_TEXT_BYTES: usize = 128;

/// A pipe in the place of a file must not stop the agent.
const OPEN_FLAGS: i32 = OFlags::NONBLOCK.bits().cast_signed();

/// The content of a regular file; empty if it cannot be read.
pub fn read_bytes(path: &Path) -> Vec<u8> {
    let Ok(file) = OpenOptions::new().read(true).custom_flags(OPEN_FLAGS).open(path) else {
        return Vec::new();
    };
    if !file.metadata().is_ok_and(|about| about.is_file()) {
        return Vec::new();
    }
    let mut bytes = Vec::new();
    match file.take(MAX_FILE_BYTES).read_to_end(&mut bytes) {
        Ok(_) => bytes,
        Err(_) => Vec::new(),
    }
}

/// The content of a file of several lines, with invalid UTF-8 replaced.
pub fn read_lines(path: &Path) -> String {
    String::from_utf8_lossy(&read_bytes(path)).into_owned()
}

/// The first line of a file as it can be reported; empty if it cannot be read.
pub fn read_text(path: &Path) -> String {
    clean_text(&read_bytes(path))
}

/// The number in a file.
pub fn read_number<T: FromStr>(path: &Path) -> Option<T> {
    read_text(path).parse().ok()
}

/// The first line, or the text before the first zero byte, without control characters and cut to the
/// maximum length.
pub fn clean_text(bytes: &[u8]) -> String {
    let line = bytes.split(|byte| matches!(byte, 0 | b'\n')).next().unwrap_or_default();
    let text = String::from_utf8_lossy(line);
    let text: String = text.chars().filter(|character| !character.is_control()).collect();
    let text = text.trim();
    text[..text.floor_char_boundary(MAX_TEXT_BYTES)].trim_end().to_owned()
}

/// The names in a folder, sorted; none if it cannot be read.
pub fn list_names(folder: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Vec::new();
    };
    let names = entries.take(MAX_FOLDER_ENTRIES);
    let names = names.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut names: Vec<String> = names.collect();
    names.sort_unstable();
    names
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_text_is_one_short_line_without_control_characters() {
        assert_eq!(clean_text(b"  PM893 \x1b[31m\x07 \nmore"), "PM893 [31m");
        assert_eq!(clean_text(b"Raspberry Pi 4\0\0"), "Raspberry Pi 4");
        assert_eq!(clean_text(b"\xff\xfe"), "\u{fffd}\u{fffd}");
        assert_eq!(clean_text(b""), "");
        let long = clean_text("ä".repeat(1_000).as_bytes());
        assert_eq!(long.len(), MAX_TEXT_BYTES);
    }

    #[test]
    fn a_file_that_does_not_end_is_read_to_the_limit_and_a_device_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let long = folder.path().join("long");
        fs::File::create(&long).unwrap().set_len(1 << 32).unwrap();
        assert_eq!(read_bytes(&long).len() as u64, MAX_FILE_BYTES);
        let endless = folder.path().join("endless");
        symlink("/dev/zero", &endless).unwrap();
        assert!(read_bytes(&endless).is_empty());
    }

    #[test]
    fn loops_folders_and_missing_files_are_empty() {
        let folder = tempfile::tempdir().unwrap();
        let looped = folder.path().join("loop");
        symlink("loop", &looped).unwrap();
        for path in [looped.as_path(), folder.path(), &folder.path().join("missing")] {
            assert_eq!(read_text(path), "");
            assert_eq!(read_number::<u64>(path), None);
        }
        assert!(list_names(&looped).is_empty());
        assert_eq!(list_names(folder.path()), ["loop"]);
    }

    #[test]
    fn the_entries_of_a_folder_are_limited() {
        let folder = tempfile::tempdir().unwrap();
        for number in 0..MAX_FOLDER_ENTRIES + 10 {
            fs::write(folder.path().join(number.to_string()), "").unwrap();
        }
        assert_eq!(list_names(folder.path()).len(), MAX_FOLDER_ENTRIES);
    }
}
