//! What a disk was told, in the form of Linux' dm-log-writes, which qemu writes as well.

use std::fs;
use std::ops::Range;
use std::path::Path;

use evenkeel_simulator::chance::Chance;

/// What such a log begins with.
const MAGIC: u64 = 0x006a_7366_7773_6872;
/// Everything before this entry was flushed.
const FLUSH: u64 = 1;
/// The write went past the disk's cache.
const FORCED: u64 = 2;
/// The disk may forget what is there. It need not, so nothing changes.
const DISCARD: u64 = 4;

/// What is written as a whole, where a large write is cut off in its middle, and where a small one is.
const PARTS: (usize, usize) = (64 << 10, 512);
/// A write up to this size is a small one.
const SMALL: usize = 16 << 10;
/// Before it lies the superblock of ext4, of 1,024 bytes with a checksum over them. The kernel writes it where it lies,
/// outside of the journal, and a half of it is a file system that nobody mounts, whatever was going on: so it is on the
/// disk or it is not.
const SUPERBLOCK_ENDS: u64 = 4096;

/// Something that was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// Where it begins, in bytes.
    pub offset: u64,
    /// What was written.
    pub data: Vec<u8>,
    /// Whether it is on the disk although nothing was flushed since.
    pub is_forced: bool,
}

/// A part of a write that is there or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part<'a> {
    pub offset: u64,
    pub data: &'a [u8],
    pub is_forced: bool,
}

/// Everything that a disk was told, in order.
#[derive(Clone, Debug)]
pub struct Recording {
    /// What was written between one flush and the next.
    pub(super) stretches: Vec<Vec<Write>>,
    /// Before this byte of the disk a small write is not torn.
    pub(super) spared: u64,
}

/// What is on the disk when the power goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// How many flushes are past: what was written before the last of them is there.
    pub flushes: usize,
    /// Which parts of what was written after it are there too, by their numbers, in ascending order.
    pub survivors: Vec<usize>,
}

impl Recording {
    /// Reads a log.
    pub fn read(path: &Path) -> Result<Self, String> {
        let log = fs::read(path).map_err(|error| error.to_string())?;
        Self::parse(&log)
    }

    /// Understands a log.
    pub fn parse(log: &[u8]) -> Result<Self, String> {
        if number(log, 0)? != MAGIC {
            return Err("this is no log of writes".to_owned());
        }
        let (count, sector) = (number(log, 16)?, number(log, 24)? & u64::from(u32::MAX));
        let mut stretches = vec![Vec::new()];
        let mut at = sector;
        for _ in 0..count {
            let (place, length, flags) = (
                number(log, at)?,
                number(log, at + 8)?,
                number(log, at + 16)?,
            );
            at += sector;
            if flags & FLUSH != 0 {
                stretches.push(Vec::new());
            }
            if flags & DISCARD != 0 || length == 0 {
                continue;
            }
            let end = at + length * sector;
            let write = Write {
                offset: place * sector,
                data: slice(log, at, end)?.to_owned(),
                is_forced: flags & FORCED != 0,
            };
            at = end;
            stretches.last_mut().expect("one at least").push(write);
        }
        Ok(Self {
            stretches,
            spared: SUPERBLOCK_ENDS,
        })
    }

    /// The same for a disk that begins with a partition table and not with a file system: any write may be torn.
    #[must_use]
    pub fn torn_anywhere(mut self) -> Self {
        self.spared = 0;
        self
    }

    /// The same as if no flush had come for what was written to a part of the disk, and everything else had been there
    /// before it: behind the only flush that is left.
    #[must_use]
    pub fn never_flushed(self, place: &Range<u64>) -> Self {
        let all = self.stretches.into_iter().flatten();
        let (inside, outside) = all.partition(|write| write.touches(place));
        Self {
            stretches: vec![outside, inside],
            spared: self.spared,
        }
    }

    /// Behind which flushes something was written to a part of the disk before the next one.
    pub fn touching(&self, place: &Range<u64>) -> Vec<usize> {
        let numbered = self.stretches.iter().enumerate();
        let touching =
            numbered.filter(|(_, stretch)| stretch.iter().any(|write| write.touches(place)));
        touching.map(|(flushes, _)| flushes).collect()
    }

    /// How often the disk was told to flush.
    pub fn flushes(&self) -> usize {
        self.stretches.len() - 1
    }

    /// How often it was told to write.
    pub fn writes(&self) -> usize {
        self.stretches.iter().map(Vec::len).sum()
    }

    /// A cut after each flush before which something was written: none of what follows is there.
    pub fn cuts_at_flushes(&self) -> Vec<Cut> {
        let numbered = self.stretches.iter().zip(1..=self.flushes());
        let written = numbered.filter(|(stretch, _)| !stretch.is_empty());
        let cuts = written.map(|(_, flushes)| Cut {
            flushes,
            survivors: Vec::new(),
        });
        cuts.collect()
    }

    /// A cut anywhere between two flushes, at which about half of what is not flushed is lost.
    ///
    /// # Panics
    /// Nothing was written.
    pub fn lossy_cut(&self, chance: &mut Chance) -> Cut {
        let numbers = |flushes| (0..self.parts(flushes).count()).map(move |part| (flushes, part));
        let all: Vec<_> = (0..self.stretches.len()).flat_map(numbers).collect();
        let &(flushes, last) = chance.pick(&all);
        self.lossy_cut_at(flushes, last, chance)
    }

    /// A cut somewhere between this flush and the next, at which about half of what was written since is lost. None if
    /// nothing was.
    pub fn lossy_cut_after(&self, flushes: usize, chance: &mut Chance) -> Option<Cut> {
        let last = u64::try_from(self.parts(flushes).count())
            .ok()?
            .checked_sub(1)?;
        let last = usize::try_from(chance.between(0, last)).ok()?;
        Some(self.lossy_cut_at(flushes, last, chance))
    }

    fn lossy_cut_at(&self, flushes: usize, last: usize, chance: &mut Chance) -> Cut {
        let written = self.parts(flushes).take(last + 1).enumerate();
        let survives = written.filter(|(_, part)| part.is_forced || chance.hits(500));
        Cut {
            flushes,
            survivors: survives.map(|(number, _)| number).collect(),
        }
    }

    /// What of that is on the disk after a cut.
    pub(super) fn surviving<'a>(&'a self, cut: &'a Cut) -> impl Iterator<Item = Part<'a>> {
        let numbered = self.parts(cut.flushes).enumerate();
        let there = numbered.filter(|(number, _)| cut.survivors.binary_search(number).is_ok());
        there.map(|(_, part)| part)
    }

    /// What was written between this flush and the next, as a disk may tear it.
    pub(super) fn parts(&self, flushes: usize) -> impl Iterator<Item = Part<'_>> {
        let spared = self.spared;
        let written = self.stretches[flushes].iter();
        written.flat_map(move |write| write.parts(spared))
    }
}

impl Write {
    fn touches(&self, place: &Range<u64>) -> bool {
        let end = self.offset + self.data.len() as u64;
        self.offset < place.end && place.start < end
    }

    fn parts(&self, spared: u64) -> impl Iterator<Item = Part<'_>> {
        let is_small = self.data.len() <= SMALL && self.offset >= spared;
        let size = if is_small { PARTS.1 } else { PARTS.0 };
        let offsets = (self.offset..).step_by(size);
        let is_forced = self.is_forced;
        let torn = offsets.zip(self.data.chunks(size));
        torn.map(move |(offset, data)| Part {
            offset,
            data,
            is_forced,
        })
    }
}

fn number(log: &[u8], at: u64) -> Result<u64, String> {
    let bytes = slice(log, at, at + 8)?;
    Ok(u64::from_le_bytes(bytes.try_into().expect("eight bytes")))
}

fn slice(log: &[u8], from: u64, to: u64) -> Result<&[u8], String> {
    let range = usize::try_from(from).ok().zip(usize::try_from(to).ok());
    let found = range.and_then(|(from, to)| log.get(from..to));
    found.ok_or_else(|| "the log ends too early".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECTOR: usize = 512;

    fn padded(mut bytes: Vec<u8>) -> Vec<u8> {
        bytes.resize(bytes.len().next_multiple_of(SECTOR), 0);
        bytes
    }

    fn words(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    /// A log of (sector, sectors, flags); each write is filled with the number of its entry.
    fn log(entries: &[(u64, u64, u64)]) -> Vec<u8> {
        let count = u64::try_from(entries.len()).expect("a small number");
        let mut log = padded(words(&[MAGIC, 1, count, 512]));
        for (&(sector, length, flags), fill) in entries.iter().zip(1..) {
            log.extend(padded(words(&[sector, length, flags, 0])));
            if flags & DISCARD == 0 {
                let length = usize::try_from(length).expect("a small number");
                log.extend(vec![fill; length * SECTOR]);
            }
        }
        log
    }

    #[test]
    fn a_flush_comes_before_what_its_entry_writes() {
        let entries = [
            (8, 1, 0),
            (0, 0, FLUSH),
            (9, 1, FLUSH | FORCED),
            (5, 4, DISCARD),
        ];
        let recording = Recording::parse(&log(&entries)).expect("a log");
        assert_eq!((recording.flushes(), recording.writes()), (2, 2));
        assert_eq!(recording.stretches[1], []);
        assert_eq!(
            recording.stretches[2],
            [Write {
                offset: 9 * 512,
                data: vec![3; 512],
                is_forced: true
            }]
        );
        let cuts = recording.cuts_at_flushes();
        assert_eq!(cuts.iter().map(|cut| cut.flushes).collect::<Vec<_>>(), [1]);
        assert_eq!(recording.touching(&(0..9 * 512)), [0]);
        assert_eq!(recording.touching(&(9 * 512 + 511..1 << 40)), [2]);
    }

    #[test]
    fn a_log_that_is_none_or_ends_too_early_is_refused() {
        let whole = log(&[(8, 1, 0)]);
        assert!(Recording::parse(&whole[..whole.len() - 1]).is_err());
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
        let table = recording.torn_anywhere();
        assert_eq!(table.parts(0).count(), 8 + 2);
    }

    #[test]
    fn a_disk_that_was_never_flushed_may_lose_anything() {
        let recording = Recording::parse(&log(&[(8, 1, 0), (0, 0, FLUSH), (9, 1, 0)]));
        let recording = recording.expect("a log");
        let after = |recording: &Recording, seed| {
            recording.lossy_cut_after(recording.flushes(), &mut Chance::new(seed, 0))
        };
        let late = |recording: &Recording| -> Vec<_> {
            let cuts = (0..50).filter_map(|seed| after(recording, seed));
            cuts.map(|cut| cut.survivors).collect()
        };
        let flushed = late(&recording);
        assert!(flushed.contains(&Vec::new()) && flushed.contains(&vec![0]));
        let never = recording.never_flushed(&(0..1 << 20));
        assert!(
            late(&never).contains(&vec![1]),
            "the second without the first"
        );

        let empty = Recording::parse(&log(&[(0, 0, FLUSH)])).expect("a log");
        assert_eq!(after(&empty, 1), None);
    }

    #[test]
    fn what_was_forced_is_never_lost_and_of_the_rest_some_is() {
        let recording = Recording::parse(&log(&[(8, 32, 0), (40, 1, FORCED)])).expect("a log");
        let mut chance = Chance::new(1, 0);
        let cuts: Vec<_> = (0..200).map(|_| recording.lossy_cut(&mut chance)).collect();
        let is_late = |cut: &&Cut| cut.survivors.last() == Some(&32);
        assert!(cuts.iter().any(|cut| is_late(&cut)));
        assert!(cuts.iter().any(|cut| cut.survivors.len() < 5));
        let late = cuts.iter().filter(is_late);
        assert!(
            late.clone()
                .all(|cut| (2..32).contains(&cut.survivors.len()))
        );
        let again = recording.lossy_cut(&mut Chance::new(1, 0));
        assert_eq!(again, cuts[0], "the same seed, the same cut");
    }
}
