//! What a machine prints on its serial console.

use std::fs;
use std::path::PathBuf;

use super::esp::Slot;

/// What stands before the words of a release that came up.
const MARK: &str = "evenkeel-lab: booted ";

/// So many lines are shown when something is waited for in vain.
const TAIL: usize = 40;

/// A release that came up: its user space runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Booted {
    /// Which one.
    pub version: String,
    /// From which slot.
    pub slot: Slot,
}

impl Booted {
    /// Understands the line that a release prints. The firmware and the kernel may leave something before it.
    pub fn read(line: &str) -> Option<Self> {
        let (_, words) = line.split_once(MARK)?;
        let (version, slot) = words.trim_end().split_once(" slot ")?;
        let slot = Slot::read(slot)?;
        let is_one_word = !version.is_empty() && !version.contains(char::is_whitespace);
        is_one_word.then(|| Self {
            version: version.to_owned(),
            slot,
        })
    }
}

/// The console of a machine from the moment on in which it was switched on, over all of its resets.
#[derive(Debug)]
pub(super) struct Console {
    file: PathBuf,
    /// So many bytes were looked at.
    seen: usize,
}

impl Console {
    /// The console that is kept in a file, which need not be there yet.
    pub(super) fn of(file: PathBuf) -> Self {
        Self { file, seen: 0 }
    }

    /// The first answer to a whole line, among those that were not looked at before. What follows it is looked at next
    /// time.
    pub(super) fn find<T>(&mut self, wanted: impl Fn(&str) -> Option<T>) -> Option<T> {
        let printed = self.printed();
        while let Some((line, length)) = first_line(printed.get(self.seen..)?) {
            self.seen += length;
            if let Some(found) = wanted(&line) {
                return Some(found);
            }
        }
        None
    }

    /// The answer to the last whole line that has one, looked at before or not.
    pub(super) fn last<T>(&self, wanted: impl Fn(&str) -> Option<T>) -> Option<T> {
        let printed = self.printed();
        let whole = printed.iter().rposition(|byte| *byte == b'\n')?;
        let text = String::from_utf8_lossy(&printed[..whole]);
        text.lines().rev().find_map(wanted)
    }

    /// All that was printed.
    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.printed()).into_owned()
    }

    /// How many bytes were printed.
    pub(super) fn length(&self) -> u64 {
        fs::metadata(&self.file).map_or(0, |file| file.len())
    }

    /// The last lines, without what only a terminal understands.
    pub(super) fn tail(&self) -> String {
        let printed = self.text();
        let lines: Vec<&str> = printed.lines().collect();
        let last = lines[lines.len().saturating_sub(TAIL)..].join("\n");
        last.replace(|c: char| c.is_control() && c != '\n', " ")
    }

    fn printed(&self) -> Vec<u8> {
        fs::read(&self.file).unwrap_or_default()
    }
}

/// The first line, without what ends it, and how many bytes it takes; none before its end was printed.
fn first_line(printed: &[u8]) -> Option<(String, usize)> {
    let end = printed.iter().position(|byte| *byte == b'\n')?;
    let line = String::from_utf8_lossy(&printed[..end]);
    Some((line.trim_end_matches('\r').to_owned(), end + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_says_that_it_came_up_whatever_was_printed_before_it_on_the_line() {
        let new = Booted {
            version: "1.1".to_owned(),
            slot: Slot::B,
        };
        for line in [
            "evenkeel-lab: booted 1.1 slot b",
            "\u{1b}[2J\u{1b}[01;01Hevenkeel-lab: booted 1.1 slot b ",
        ] {
            assert_eq!(Booted::read(line), Some(new.clone()), "{line:?}");
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
            assert_eq!(Booted::read(line), None, "{line:?}");
        }
    }

    #[test]
    fn each_line_is_looked_at_once_and_only_when_it_is_whole() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("serial");
        let mut console = Console::of(file.clone());
        let any = |line: &str| Some(line.to_owned());
        assert_eq!(console.find(any), None, "nothing was printed yet");
        assert_eq!(console.length(), 0);

        fs::write(&file, b"BdsDxe\xff: starting\r\nev").expect("a file");
        assert_eq!(
            console.find(any).as_deref(),
            Some("BdsDxe\u{fffd}: starting")
        );
        assert_eq!(console.find(any), None, "half a line is none");
        fs::write(
            &file,
            b"BdsDxe\xff: starting\r\nevenkeel-lab: booted 1 slot a\r\nmore\n",
        )
        .expect("a file");
        let first = console.find(Booted::read).expect("a release that came up");
        assert_eq!((first.version.as_str(), first.slot), ("1", Slot::A));
        assert_eq!(console.find(Booted::read), None);
        assert_eq!(console.find(any), None, "all of it was looked at");
        assert_eq!(console.last(Booted::read), Some(first));
        assert!(console.tail().ends_with("slot a\nmore"));
    }
}
