//! Serial console of a machine.

use std::fs;
use std::path::PathBuf;

use super::esp::Slot;

/// Text before the version and slot of a release that has booted.
const BOOT_MARK: &str = "evenkeel-lab: booted ";

/// Number of console lines in the message of a time-out.
const TAIL_LINES: usize = 40;

/// A release whose user space runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BootedRelease {
    pub version: String,
    pub slot: Slot,
}

impl BootedRelease {
    /// Parses the line that a release prints. Output of the firmware or the kernel may precede it.
    pub fn parse(line: &str) -> Option<Self> {
        let (_, rest) = line.split_once(BOOT_MARK)?;
        let (version, slot) = rest.trim_end().split_once(" slot ")?;
        let slot = Slot::from_letter(slot)?;
        let is_valid_version = !version.is_empty() && !version.contains(char::is_whitespace);
        is_valid_version.then(|| Self { version: version.to_owned(), slot })
    }
}

/// Console of a machine since it was switched on, across all resets.
#[derive(Debug)]
pub(super) struct Console {
    file: PathBuf,
    /// Number of bytes that were searched.
    position: usize,
}

impl Console {
    /// The console whose output is in a file. The file need not exist yet.
    pub(super) fn new(file: PathBuf) -> Self {
        Self { file, position: 0 }
    }

    /// Searches the complete lines that were not searched before, and returns the first result. The next search starts
    /// after that line.
    pub(super) fn find<T>(&mut self, parse: impl Fn(&str) -> Option<T>) -> Option<T> {
        let printed = self.printed();
        while let Some((line, length)) = first_line(printed.get(self.position..)?) {
            self.position += length;
            if let Some(result) = parse(&line) {
                return Some(result);
            }
        }
        None
    }

    /// Searches all complete lines, and returns the last result.
    pub(super) fn last<T>(&self, parse: impl Fn(&str) -> Option<T>) -> Option<T> {
        let printed = self.printed();
        let end = printed.iter().rposition(|byte| *byte == b'\n')?;
        let text = String::from_utf8_lossy(&printed[..end]);
        text.lines().rev().find_map(parse)
    }

    /// All output.
    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.printed()).into_owned()
    }

    /// Number of bytes of output.
    pub(super) fn length(&self) -> u64 {
        fs::metadata(&self.file).map_or(0, |file| file.len())
    }

    /// The last lines, without control characters.
    pub(super) fn tail(&self) -> String {
        let printed = self.text();
        let lines: Vec<&str> = printed.lines().collect();
        let last = lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n");
        last.replace(|c: char| c.is_control() && c != '\n', " ")
    }

    fn printed(&self) -> Vec<u8> {
        fs::read(&self.file).unwrap_or_default()
    }
}

/// The first line without its end, and its length in bytes. `None` if the line is not complete.
fn first_line(printed: &[u8]) -> Option<(String, usize)> {
    let end = printed.iter().position(|byte| *byte == b'\n')?;
    let line = String::from_utf8_lossy(&printed[..end]);
    Some((line.trim_end_matches('\r').to_owned(), end + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_boot_line_is_found_behind_other_output() {
        let new = BootedRelease { version: "1.1".to_owned(), slot: Slot::B };
        for line in [
            "evenkeel-lab: booted 1.1 slot b",
            "\u{1b}[2J\u{1b}[01;01Hevenkeel-lab: booted 1.1 slot b ",
        ] {
            assert_eq!(BootedRelease::parse(line), Some(new.clone()), "{line:?}");
        }
        for line in [
            "",
            "evenkeel-lab: booting 1.1 slot b",
            "evenkeel-lab: booted slot b",
            "evenkeel-lab: booted 1.1",
            "evenkeel-lab: booted 1.1 slot c",
            "evenkeel-lab: booted 1.1 slot ba",
            "evenkeel-lab: booted 1.1 [ 2.1] virtio slot b",
        ] {
            assert_eq!(BootedRelease::parse(line), None, "{line:?}");
        }
    }

    #[test]
    fn each_complete_line_is_read_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("serial");
        let mut console = Console::new(file.clone());
        let any = |line: &str| Some(line.to_owned());
        assert_eq!(console.find(any), None, "there is no output yet");
        assert_eq!(console.length(), 0);

        fs::write(&file, b"BdsDxe\xff: starting\r\nev").expect("a file");
        assert_eq!(console.find(any).as_deref(), Some("BdsDxe\u{fffd}: starting"));
        assert_eq!(console.find(any), None, "the line is not complete");
        fs::write(&file, b"BdsDxe\xff: starting\r\nevenkeel-lab: booted 1 slot a\r\nmore\n")
            .expect("a file");
        let first = console.find(BootedRelease::parse).expect("a release that has booted");
        assert_eq!((first.version.as_str(), first.slot), ("1", Slot::A));
        assert_eq!(console.find(BootedRelease::parse), None);
        assert_eq!(console.find(any), None, "all lines were searched");
        assert_eq!(console.last(BootedRelease::parse), Some(first));
        assert!(console.tail().ends_with("slot a\nmore"));
    }
}
