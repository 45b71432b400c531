//! Writes and flushes of a disk, in the format of Linux' dm-log-writes, which qemu can write as well.

use std::fs;
use std::ops::Range;
use std::path::Path;

use evenkeel_simulator::rng::Rng;

/// First bytes of a log.
const LOG_MAGIC: u64 = 0x006a_7366_7773_6872;
/// Everything before this entry is flushed.
const FLUSH_FLAG: u64 = 1;
/// The write bypasses the cache of the disk.
const FORCED_FLAG: u64 = 2;
/// The disk may drop this range. It need not, so the entry changes nothing.
const DISCARD_FLAG: u64 = 4;

/// Sizes of the parts that are written completely or not at all: of a large write, and of a small write.
const PART_SIZES: (usize, usize) = (64 << 10, 512);
/// Maximum size of a small write in bytes.
const MAX_SMALL_WRITE: usize = 16 << 10;
/// End of the area with the ext4 superblock, which has 1,024 bytes and a checksum over them. The kernel writes it in
/// place, without the journal, and a torn superblock makes the file system unmountable in any case. So it is
/// written completely or not at all.
const SUPERBLOCK_END: u64 = 4096;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// Offset on the disk in bytes.
    pub offset: u64,
    pub data: Vec<u8>,
    /// Whether it is on the disk without a flush.
    pub is_forced: bool,
}

/// A part of a write that is either on the disk or lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WritePart<'a> {
    pub offset: u64,
    pub data: &'a [u8],
    pub is_forced: bool,
}

/// Everything that a disk received, in order.
#[derive(Clone, Debug)]
pub struct Recording {
    /// Writes between one flush and the next.
    pub(super) stretches: Vec<Vec<Write>>,
    /// Small writes before this byte of the disk are not torn.
    pub(super) spared: u64,
}

/// What is on the disk when the power fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Number of flushes that completed. All writes before the last of them are on the disk.
    pub flushes: usize,
    /// Numbers of the parts after that flush that are on the disk too, in ascending order.
    pub survivors: Vec<usize>,
}

impl Recording {
    /// Reads a log file.
    pub fn read(path: &Path) -> Result<Self, String> {
        let log = fs::read(path).map_err(|error| error.to_string())?;
        Self::parse(&log)
    }

    pub fn parse(log: &[u8]) -> Result<Self, String> {
        if read_number(log, 0)? != LOG_MAGIC {
            return Err("not a log of writes: wrong magic number".to_owned());
        }
        let (count, sector) = (read_number(log, 16)?, read_number(log, 24)? & u64::from(u32::MAX));
        let mut stretches = vec![Vec::new()];
        let mut at = sector;
        for _ in 0..count {
            let (start, length, flags) =
                (read_number(log, at)?, read_number(log, at + 8)?, read_number(log, at + 16)?);
            at += sector;
            if flags & FLUSH_FLAG != 0 {
                stretches.push(Vec::new());
            }
            if flags & DISCARD_FLAG != 0 || length == 0 {
                continue;
            }
            let end = at + length * sector;
            let write = Write {
                offset: start * sector,
                data: slice(log, at, end)?.to_owned(),
                is_forced: flags & FORCED_FLAG != 0,
            };
            at = end;
            stretches.last_mut().expect("one at least").push(write);
        }
        Ok(Self { stretches, spared: SUPERBLOCK_END })
    }

    /// Allows any write to be torn, for a disk that begins with a partition table instead of a file system.
    #[must_use]
    pub fn with_tearing_anywhere(mut self) -> Self {
        self.spared = 0;
        self
    }

    /// Pretends that writes to a part of the disk were never flushed: one flush remains, with all other writes
    /// before it and these writes after it.
    #[must_use]
    pub fn never_flushed(self, range: &Range<u64>) -> Self {
        let all = self.stretches.into_iter().flatten();
        let (inside, outside) = all.partition(|write| write.touches(range));
        Self { stretches: vec![outside, inside], spared: self.spared }
    }

    /// Numbers of the flushes that are followed by a write to this part of the disk.
    pub fn flushes_before_writes_to(&self, range: &Range<u64>) -> Vec<usize> {
        let numbered = self.stretches.iter().enumerate();
        let touching =
            numbered.filter(|(_, stretch)| stretch.iter().any(|write| write.touches(range)));
        touching.map(|(flushes, _)| flushes).collect()
    }

    /// Number of flushes.
    pub fn flushes(&self) -> usize {
        self.stretches.len() - 1
    }

    /// Number of writes.
    pub fn writes(&self) -> usize {
        self.stretches.iter().map(Vec::len).sum()
    }

    /// One cut after each flush that follows a write. Nothing after the flush is on the disk.
    pub fn cuts_at_flushes(&self) -> Vec<Cut> {
        let numbered = self.stretches.iter().zip(1..=self.flushes());
        let written = numbered.filter(|(stretch, _)| !stretch.is_empty());
        let cuts = written.map(|(_, flushes)| Cut { flushes, survivors: Vec::new() });
        cuts.collect()
    }

    /// A cut at a random position between two flushes. About half of the unflushed parts are lost.
    ///
    /// # Panics
    /// The recording has no writes.
    pub fn lossy_cut(&self, rng: &mut Rng) -> Cut {
        let numbers = |flushes| (0..self.parts(flushes).count()).map(move |part| (flushes, part));
        let all: Vec<_> = (0..self.stretches.len()).flat_map(numbers).collect();
        let &(flushes, last) = rng.pick(&all);
        self.lossy_cut_at(flushes, last, rng)
    }

    /// A cut at a random position between this flush and the next. About half of the parts since the flush are lost.
    /// `None` if there are no writes.
    pub fn lossy_cut_after(&self, flushes: usize, rng: &mut Rng) -> Option<Cut> {
        let last = u64::try_from(self.parts(flushes).count()).ok()?.checked_sub(1)?;
        let last = usize::try_from(rng.between(0, last)).ok()?;
        Some(self.lossy_cut_at(flushes, last, rng))
    }

    fn lossy_cut_at(&self, flushes: usize, last: usize, rng: &mut Rng) -> Cut {
        let written = self.parts(flushes).take(last + 1).enumerate();
        let survives = written.filter(|(_, part)| part.is_forced || rng.happens(500));
        Cut { flushes, survivors: survives.map(|(number, _)| number).collect() }
    }

    /// Parts after the last flush that are on the disk after a cut.
    pub(super) fn surviving<'a>(&'a self, cut: &'a Cut) -> impl Iterator<Item = WritePart<'a>> {
        let numbered = self.parts(cut.flushes).enumerate();
        let there = numbered.filter(|(number, _)| cut.survivors.binary_search(number).is_ok());
        there.map(|(_, part)| part)
    }

    /// Writes between this flush and the next, in parts.
    pub(super) fn parts(&self, flushes: usize) -> impl Iterator<Item = WritePart<'_>> {
        let spared = self.spared;
        let written = self.stretches[flushes].iter();
        written.flat_map(move |write| write.parts(spared))
    }
}

impl Write {
    fn touches(&self, range: &Range<u64>) -> bool {
        let end = self.offset + self.data.len() as u64;
        self.offset < range.end && range.start < end
    }

    fn parts(&self, spared: u64) -> impl Iterator<Item = WritePart<'_>> {
        let is_small = self.data.len() <= MAX_SMALL_WRITE && self.offset >= spared;
        let size = if is_small { PART_SIZES.1 } else { PART_SIZES.0 };
        let offsets = (self.offset..).step_by(size);
        let is_forced = self.is_forced;
        let torn = offsets.zip(self.data.chunks(size));
        torn.map(move |(offset, data)| WritePart { offset, data, is_forced })
    }
}

fn read_number(log: &[u8], at: u64) -> Result<u64, String> {
    let bytes = slice(log, at, at + 8)?;
    Ok(u64::from_le_bytes(bytes.try_into().expect("eight bytes")))
}

fn slice(log: &[u8], from: u64, to: u64) -> Result<&[u8], String> {
    let range = usize::try_from(from).ok().zip(usize::try_from(to).ok());
    let bytes = range.and_then(|(from, to)| log.get(from..to));
    bytes.ok_or_else(|| "the log ends too early".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECTOR_SIZE: usize = 512;

    fn padded(mut bytes: Vec<u8>) -> Vec<u8> {
        bytes.resize(bytes.len().next_multiple_of(SECTOR_SIZE), 0);
        bytes
    }

    fn le_bytes(numbers: &[u64]) -> Vec<u8> {
        numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
    }

    /// A log of (sector, sectors, flags). Each write is filled with the number of its entry.
    fn log(entries: &[(u64, u64, u64)]) -> Vec<u8> {
        let count = u64::try_from(entries.len()).expect("a small number");
        let mut log = padded(le_bytes(&[LOG_MAGIC, 1, count, 512]));
        for (&(sector, length, flags), fill) in entries.iter().zip(1..) {
            log.extend(padded(le_bytes(&[sector, length, flags, 0])));
            if flags & DISCARD_FLAG == 0 {
                let length = usize::try_from(length).expect("a small number");
                log.extend(vec![fill; length * SECTOR_SIZE]);
            }
        }
        log
    }

    #[test]
    fn a_flush_comes_before_what_its_entry_writes() {
        let entries =
            [(8, 1, 0), (0, 0, FLUSH_FLAG), (9, 1, FLUSH_FLAG | FORCED_FLAG), (5, 4, DISCARD_FLAG)];
        let recording = Recording::parse(&log(&entries)).expect("a log");
        assert_eq!((recording.flushes(), recording.writes()), (2, 2));
        assert_eq!(recording.stretches[1], []);
        assert_eq!(
            recording.stretches[2],
            [Write { offset: 9 * 512, data: vec![3; 512], is_forced: true }]
        );
        let cuts = recording.cuts_at_flushes();
        assert_eq!(cuts.iter().map(|cut| cut.flushes).collect::<Vec<_>>(), [1]);
        assert_eq!(recording.flushes_before_writes_to(&(0..9 * 512)), [0]);
        assert_eq!(recording.flushes_before_writes_to(&(9 * 512 + 511..1 << 40)), [2]);
    }

    #[test]
    fn invalid_or_truncated_logs_are_rejected() {
        let complete = log(&[(8, 1, 0)]);
        assert!(Recording::parse(&complete[..complete.len() - 1]).is_err());
        assert!(Recording::parse(&[0; 1024]).is_err());
        assert!(Recording::parse(b"").is_err());
    }

    #[test]
    fn a_small_write_is_torn_at_each_sector_and_a_large_one_in_larger_parts() {
        let recording = Recording::parse(&log(&[(8, 2, 0), (64, 160, 0)])).expect("a log");
        let parts: Vec<_> = recording.parts(0).collect();
        let sizes: Vec<_> = parts.iter().map(|part| part.data.len()).collect();
        assert_eq!(sizes, [512, 512, 65_536, 16_384]);
        assert_eq!(parts[1].offset, 9 * 512);
        assert_eq!(parts[3].offset, 64 * 512 + 65_536);
    }

    #[test]
    fn the_superblock_is_not_torn() {
        let recording = Recording::parse(&log(&[(0, 8, 0), (2, 2, 0)])).expect("a log");
        let parts: Vec<_> = recording.parts(0).collect();
        let sizes: Vec<_> = parts.iter().map(|part| part.data.len()).collect();
        assert_eq!(sizes, [4096, 1024]);
        let table = recording.with_tearing_anywhere();
        assert_eq!(table.parts(0).count(), 8 + 2);
    }

    #[test]
    fn a_disk_that_was_never_flushed_may_lose_anything() {
        let recording = Recording::parse(&log(&[(8, 1, 0), (0, 0, FLUSH_FLAG), (9, 1, 0)]));
        let recording = recording.expect("a log");
        let after = |recording: &Recording, seed| {
            recording.lossy_cut_after(recording.flushes(), &mut Rng::new(seed, 0))
        };
        let late = |recording: &Recording| -> Vec<_> {
            let cuts = (0..50).filter_map(|seed| after(recording, seed));
            cuts.map(|cut| cut.survivors).collect()
        };
        let flushed = late(&recording);
        assert!(flushed.contains(&Vec::new()) && flushed.contains(&vec![0]));
        let never = recording.never_flushed(&(0..1 << 20));
        assert!(late(&never).contains(&vec![1]), "the second write survives without the first");

        let empty = Recording::parse(&log(&[(0, 0, FLUSH_FLAG)])).expect("a log");
        assert_eq!(after(&empty, 1), None);
    }

    #[test]
    fn forced_writes_are_never_lost_and_other_writes_sometimes() {
        let recording = Recording::parse(&log(&[(8, 32, 0), (40, 1, FORCED_FLAG)])).expect("a log");
        let mut rng = Rng::new(1, 0);
        let cuts: Vec<_> = (0..200).map(|_| recording.lossy_cut(&mut rng)).collect();
        let is_late = |cut: &&Cut| cut.survivors.last() == Some(&32);
        assert!(cuts.iter().any(|cut| is_late(&cut)));
        assert!(cuts.iter().any(|cut| cut.survivors.len() < 5));
        let late = cuts.iter().filter(is_late);
        assert!(late.clone().all(|cut| (2..32).contains(&cut.survivors.len())));
        let again = recording.lossy_cut(&mut Rng::new(1, 0));
        assert_eq!(again, cuts[0], "the same seed gives the same cut");
    }
}
