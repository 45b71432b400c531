//! A disk in memory: made as it is after a cut and back again in no time, thousands of times.

use std::ops::Range;

use super::recording::{Cut, Part, Recording};

/// What is looked at as one when it is asked whether something changed, in bytes.
const PAGE: usize = 4096;

/// A disk in memory.
#[derive(Debug)]
pub struct Memory {
    bytes: Vec<u8>,
    /// Of each page: which write it was that changed it last. Never given twice.
    versions: Vec<u64>,
    last: u64,
}

/// What was there before some writes, in their order.
#[derive(Debug)]
pub(super) struct Before(Vec<Old>);

#[derive(Debug)]
struct Old {
    offset: usize,
    bytes: Vec<u8>,
    versions: Vec<u64>,
}

impl Memory {
    /// A disk with this content.
    pub fn new(bytes: Vec<u8>) -> Self {
        Self {
            versions: vec![0; bytes.len().div_ceil(PAGE)],
            bytes,
            last: 0,
        }
    }

    /// All that is on it.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// What tells whether a part of it was changed: the same number twice is the same content.
    pub fn version(&self, place: &Range<usize>) -> u64 {
        let pages = self.versions.get(pages(place));
        let versions = pages.into_iter().flatten();
        versions.copied().max().unwrap_or_default()
    }

    /// Carries out writes.
    ///
    /// # Panics
    /// One of them lies beyond the disk's end.
    pub(super) fn write<'a>(&mut self, parts: impl Iterator<Item = Part<'a>>) -> Before {
        let writes = parts.map(|part| {
            let offset = usize::try_from(part.offset).expect("a place on the disk");
            let place = offset..offset + part.data.len();
            self.last += 1;
            let old = Old {
                offset,
                bytes: self.bytes[place.clone()].to_vec(),
                versions: self.versions[pages(&place)].to_vec(),
            };
            self.bytes[place.clone()].copy_from_slice(part.data);
            self.versions[pages(&place)].fill(self.last);
            old
        });
        Before(writes.collect())
    }

    /// Takes writes back, all that came since.
    pub(super) fn take_back(&mut self, before: Before) {
        for old in before.0.into_iter().rev() {
            let place = old.offset..old.offset + old.bytes.len();
            self.bytes[place.clone()].copy_from_slice(&old.bytes);
            self.versions[pages(&place)].copy_from_slice(&old.versions);
        }
    }
}

/// A recording that is played on a disk in memory.
#[derive(Debug)]
pub struct Played<'a> {
    recording: &'a Recording,
    disk: Memory,
    /// All before so many flushes is on the disk.
    flushes: usize,
}

impl<'a> Played<'a> {
    /// Begins with what was on the disk before the recording.
    pub fn new(recording: &'a Recording, before: Vec<u8>) -> Self {
        Self {
            recording,
            disk: Memory::new(before),
            flushes: 0,
        }
    }

    /// What is played.
    pub fn recording(&self) -> &'a Recording {
        self.recording
    }

    /// Looks at the disk as it is after a cut.
    ///
    /// # Panics
    /// The cut is earlier than the one before.
    pub fn after<T>(&mut self, cut: &Cut, look: impl FnOnce(&Memory) -> T) -> T {
        self.step_to(cut.flushes, |_| ());
        let before = self.disk.write(self.recording.surviving(cut));
        let seen = look(&self.disk);
        self.disk.take_back(before);
        seen
    }

    /// Plays all before so many flushes, and looks at the disk after each part of a write.
    ///
    /// # Panics
    /// More than that was played already.
    pub fn step_to(&mut self, flushes: usize, mut look: impl FnMut(&Memory)) {
        assert!(self.flushes <= flushes, "cuts come in their order");
        for flushes in self.flushes..flushes {
            for part in self.recording.parts(flushes) {
                self.disk.write(std::iter::once(part));
                look(&self.disk);
            }
        }
        self.flushes = flushes;
    }
}

fn pages(place: &Range<usize>) -> Range<usize> {
    place.start / PAGE..place.end.div_ceil(PAGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(offset: u64, data: &[u8]) -> Part<'_> {
        Part {
            offset,
            data,
            is_forced: false,
        }
    }

    #[test]
    fn what_was_taken_back_is_as_it_was_and_known_to_be() {
        let mut disk = Memory::new(vec![0; 3 * PAGE]);
        let (first, second) = (0..PAGE, PAGE..2 * PAGE);
        disk.write([part(100, &[1; 10])].into_iter());
        let versions = [&first, &second].map(|place| disk.version(place));
        assert!(versions[0] > versions[1]);

        let over = [
            part(105, &[2; 10]),
            part(4090, &[3; 10]),
            part(105, &[4; 1]),
        ];
        let before = disk.write(over.into_iter());
        assert_eq!(disk.bytes()[104..107], [1, 4, 2]);
        assert_eq!(disk.bytes()[4090..4100], [3; 10]);
        let changed = [&first, &second].map(|place| disk.version(place));
        disk.take_back(before);
        assert_eq!(
            disk.bytes()[100..116],
            [[1; 8], [1, 1, 0, 0, 0, 0, 0, 0]].concat()
        );
        assert_eq!([&first, &second].map(|place| disk.version(place)), versions);

        disk.write([part(105, &[5; 10])].into_iter());
        assert!(disk.version(&first) > changed[0], "no number twice");
    }
}
