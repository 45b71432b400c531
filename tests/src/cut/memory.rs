//! A disk in memory that can be put into the state after a cut, and back, thousands of times.

use std::ops::Range;

use super::recording::{Cut, Recording, WritePart};

/// Granularity of change tracking in bytes.
const PAGE_SIZE: usize = 4096;

#[derive(Debug)]
pub struct MemoryDisk {
    bytes: Vec<u8>,
    /// For each page: number of the last write that changed it. Numbers are never reused.
    versions: Vec<u64>,
    last_write: u64,
}

/// Content before some writes, in the order of the writes.
#[derive(Debug)]
pub(super) struct UndoLog(Vec<OldContent>);

#[derive(Debug)]
struct OldContent {
    offset: usize,
    bytes: Vec<u8>,
    versions: Vec<u64>,
}

impl MemoryDisk {
    /// Creates a disk with this content.
    pub fn new(bytes: Vec<u8>) -> Self {
        Self { versions: vec![0; bytes.len().div_ceil(PAGE_SIZE)], bytes, last_write: 0 }
    }

    /// Content of the disk.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Version of a range. Equal versions mean equal content.
    pub fn version(&self, range: &Range<usize>) -> u64 {
        let pages = self.versions.get(pages(range));
        let versions = pages.into_iter().flatten();
        versions.copied().max().unwrap_or_default()
    }

    /// Applies writes.
    ///
    /// # Panics
    /// A write is beyond the end of the disk.
    pub(super) fn write<'a>(&mut self, parts: impl Iterator<Item = WritePart<'a>>) -> UndoLog {
        let writes = parts.map(|part| {
            let offset = usize::try_from(part.offset).expect("an offset on the disk");
            let range = offset..offset + part.data.len();
            self.last_write += 1;
            let old = OldContent {
                offset,
                bytes: self.bytes[range.clone()].to_vec(),
                versions: self.versions[pages(&range)].to_vec(),
            };
            self.bytes[range.clone()].copy_from_slice(part.data);
            self.versions[pages(&range)].fill(self.last_write);
            old
        });
        UndoLog(writes.collect())
    }

    /// Undoes writes. They must be the latest writes of the disk.
    pub(super) fn undo(&mut self, before: UndoLog) {
        for old in before.0.into_iter().rev() {
            let range = old.offset..old.offset + old.bytes.len();
            self.bytes[range.clone()].copy_from_slice(&old.bytes);
            self.versions[pages(&range)].copy_from_slice(&old.versions);
        }
    }
}

/// Plays a recording on a disk in memory.
#[derive(Debug)]
pub struct MemoryReplay<'a> {
    recording: &'a Recording,
    disk: MemoryDisk,
    /// All writes before this flush are on the disk.
    flushes: usize,
}

impl<'a> MemoryReplay<'a> {
    /// Starts with the content of the disk before the recording.
    pub fn new(recording: &'a Recording, before: Vec<u8>) -> Self {
        Self { recording, disk: MemoryDisk::new(before), flushes: 0 }
    }

    pub fn recording(&self) -> &'a Recording {
        self.recording
    }

    /// Calls `look` with the disk as it is after a cut.
    ///
    /// # Panics
    /// The cut is earlier than the previous one.
    pub fn inspect_after<T>(&mut self, cut: &Cut, look: impl FnOnce(&MemoryDisk) -> T) -> T {
        self.advance_to(cut.flushes, |_| ());
        let before = self.disk.write(self.recording.surviving(cut));
        let result = look(&self.disk);
        self.disk.undo(before);
        result
    }

    /// Applies all writes before the flush with this number and calls `look` after each part.
    ///
    /// # Panics
    /// The disk is already past this flush.
    pub fn advance_to(&mut self, flushes: usize, mut look: impl FnMut(&MemoryDisk)) {
        assert!(self.flushes <= flushes, "cuts must be in ascending order");
        for flushes in self.flushes..flushes {
            for part in self.recording.parts(flushes) {
                self.disk.write(std::iter::once(part));
                look(&self.disk);
            }
        }
        self.flushes = flushes;
    }
}

fn pages(range: &Range<usize>) -> Range<usize> {
    range.start / PAGE_SIZE..range.end.div_ceil(PAGE_SIZE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(offset: u64, data: &[u8]) -> WritePart<'_> {
        WritePart { offset, data, is_forced: false }
    }

    #[test]
    fn undone_writes_restore_content_and_versions() {
        let mut disk = MemoryDisk::new(vec![0; 3 * PAGE_SIZE]);
        let (first, second) = (0..PAGE_SIZE, PAGE_SIZE..2 * PAGE_SIZE);
        disk.write([part(100, &[1; 10])].into_iter());
        let versions = [&first, &second].map(|range| disk.version(range));
        assert!(versions[0] > versions[1]);

        let overlapping = [part(105, &[2; 10]), part(4090, &[3; 10]), part(105, &[4; 1])];
        let before = disk.write(overlapping.into_iter());
        assert_eq!(disk.bytes()[104..107], [1, 4, 2]);
        assert_eq!(disk.bytes()[4090..4100], [3; 10]);
        let changed = [&first, &second].map(|range| disk.version(range));
        disk.undo(before);
        assert_eq!(disk.bytes()[100..116], [[1; 8], [1, 1, 0, 0, 0, 0, 0, 0]].concat());
        assert_eq!([&first, &second].map(|range| disk.version(range)), versions);

        disk.write([part(105, &[5; 10])].into_iter());
        assert!(disk.version(&first) > changed[0], "versions are not reused");
    }
}
