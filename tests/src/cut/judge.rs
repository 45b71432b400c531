//! Decides whether a machine with two slots boots one consistent release, kernel and root, after a power cut.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::fs;
use std::ops::Range;
use std::path::Path;

use evenkeel_simulator::rng::Rng;
use sha2::{Digest as _, Sha256};

use super::memory::{MemoryDisk, MemoryReplay};
use super::recording::{Cut, Recording};
use crate::boot::{self, NextBoot};

pub(super) type Digest = [u8; 32];

/// Digests of a release that a disk may have in its slots.
#[derive(Clone, Debug)]
pub struct ReleaseDigests {
    version: String,
    /// Digest of the kernel for each slot.
    kernels: [(char, Digest); 2],
    root: Digest,
    /// Size of the root in bytes.
    size: usize,
    /// Whether the release is still on the disk but must not boot any more.
    is_retired: bool,
}

impl ReleaseDigests {
    /// Reads the files that `make-release` wrote into a folder.
    ///
    /// # Panics
    /// A file is missing.
    pub fn read(folder: &Path, version: &str) -> Self {
        let read = |name: &str| fs::read(folder.join(name)).expect("a file of the release");
        let kernel = |slot| (slot, sha256(&read(&format!("slot-{slot}.efi"))));
        let root = read("root.raw");
        Self {
            version: version.to_owned(),
            kernels: ['a', 'b'].map(kernel),
            root: sha256(&root),
            size: root.len(),
            is_retired: false,
        }
    }

    /// Marks the release as one that is still on the disk but must not boot any more.
    #[must_use]
    pub fn into_retired(self) -> Self {
        Self { is_retired: true, ..self }
    }
}

/// Result of a machine's next boot.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BootVerdict {
    /// The machine runs a release.
    Runs {
        /// Version of the release.
        version: String,
        /// Slot that it runs from.
        slot: char,
        /// Whether the loader counts this boot.
        is_on_trial: bool,
    },
    /// The machine starts something inconsistent or a retired release, on trial: it falls back once the
    /// loader's tries are used up. It is not dead, but this must not happen.
    Spoiled(String),
    /// The machine starts something inconsistent again and again, or nothing.
    Dead(String),
}

impl BootVerdict {
    /// Whether the machine runs a release.
    pub fn is_good(&self) -> bool {
        matches!(self, Self::Runs { .. })
    }
}

impl fmt::Display for BootVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Runs { version, slot, is_on_trial } => {
                let trial = if *is_on_trial { " on trial" } else { "" };
                write!(f, "{version} in slot {slot}{trial}")
            }
            Self::Spoiled(why) => write!(f, "spoiled: {why}"),
            Self::Dead(why) => write!(f, "dead: {why}"),
        }
    }
}

/// Judges one disk after another.
pub trait DiskJudge {
    /// Result of the next boot of a machine with this disk.
    fn judge(&mut self, disk: &MemoryDisk) -> BootVerdict;
}

/// Digests of parts of a disk. Those of unchanged parts are not computed again.
#[derive(Debug, Default)]
pub(super) struct DigestCache(HashMap<(Vec<Range<usize>>, u64), Digest>);

impl DigestCache {
    pub(super) fn digest(&mut self, disk: &MemoryDisk, ranges: Vec<Range<usize>>) -> Digest {
        let versions = ranges.iter().map(|range| disk.version(range));
        let version = versions.max().unwrap_or_default();
        let cached = self.0.entry((ranges, version));
        let digest = cached.or_insert_with_key(|(ranges, _)| {
            let mut sum = Sha256::new();
            for range in ranges {
                sum.update(&disk.bytes()[range.clone()]);
            }
            sum.finalize().into()
        });
        *digest
    }
}

/// Judges disks of a machine with systemd-boot.
#[derive(Debug)]
pub struct BootJudge {
    releases: Vec<ReleaseDigests>,
    digests: DigestCache,
}

impl BootJudge {
    /// Creates a judge for disks that may have these releases.
    pub fn new(releases: Vec<ReleaseDigests>) -> Self {
        Self { releases, digests: DigestCache::default() }
    }

    /// Version of the release that is started, if kernel and root belong to one release.
    fn find_release(&mut self, disk: &MemoryDisk, start: &NextBoot) -> Result<String, String> {
        let kernel = (start.slot, self.digests.digest(disk, start.kernel.clone()));
        let mut releases = self.releases.iter();
        let release = releases.find(|release| release.kernels.contains(&kernel));
        let release = release.ok_or("its kernel belongs to no release")?.clone();
        if release.is_retired {
            return Err(format!("its kernel belongs to {}, which is retired", release.version));
        }
        let root = start.root.start..start.root.start + release.size.min(start.root.len());
        if self.digests.digest(disk, vec![root]) != release.root {
            return Err(format!(
                "its kernel belongs to {}, but its root does not",
                release.version
            ));
        }
        Ok(release.version)
    }
}

impl DiskJudge for BootJudge {
    fn judge(&mut self, disk: &MemoryDisk) -> BootVerdict {
        let start = match boot::next_boot(disk.bytes()) {
            Ok(start) => start,
            Err(why) => return BootVerdict::Dead(why),
        };
        let is_on_trial = start.entry.is_counted();
        match self.find_release(disk, &start) {
            Ok(version) => BootVerdict::Runs { version, slot: start.slot, is_on_trial },
            Err(why) => {
                let why = format!("{}: {why}", start.entry.file);
                if is_on_trial { BootVerdict::Spoiled(why) } else { BootVerdict::Dead(why) }
            }
        }
    }
}

/// Verdicts on all cuts of a recording.
#[derive(Debug, Default)]
pub struct CutStatistics {
    /// For each kind of cut (`true`: with loss) and verdict: the number of cuts, and one of these cuts as an example.
    pub verdicts: BTreeMap<(bool, BootVerdict), (u64, Cut)>,
}

impl CutStatistics {
    /// Number of cuts, either those that lose unflushed writes or those that do not.
    pub fn count_cuts(&self, with_loss: bool) -> u64 {
        let ends = self.verdicts.iter().filter(|((lossy, _), _)| *lossy == with_loss);
        ends.map(|(_, (count, _))| count).sum()
    }

    /// Number of cuts after which the machine boots no release: dead or spoiled.
    pub fn count_bad(&self) -> u64 {
        let bad = self.verdicts.iter().filter(|((_, verdict), _)| !verdict.is_good());
        bad.map(|(_, (count, _))| count).sum()
    }

    /// Number of cuts after which the machine is dead.
    pub fn count_dead(&self) -> u64 {
        let dead = self
            .verdicts
            .iter()
            .filter(|((_, verdict), _)| matches!(verdict, BootVerdict::Dead(_)));
        dead.map(|(_, (count, _))| count).sum()
    }

    fn record(&mut self, is_lossy: bool, verdict: BootVerdict, cut: impl FnOnce() -> Cut) {
        let end = self.verdicts.entry((is_lossy, verdict));
        end.or_insert_with(|| (0, cut())).0 += 1;
    }
}

impl fmt::Display for CutStatistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for ((is_lossy, verdict), (count, cut)) in &self.verdicts {
            let kind = if *is_lossy { "with loss" } else { "in order" };
            let (flushes, parts) = (cut.flushes, cut.survivors.len());
            writeln!(
                f,
                "{kind}: {count:6} {verdict} (for example {flushes} flushes and {parts} parts)"
            )?;
        }
        Ok(())
    }
}

/// Cuts a recording after every part of every write, and `samples` times between two flushes with about
/// half of the unflushed parts lost. `before` is the disk before the first write.
pub fn cut_everywhere(
    recording: &Recording,
    before: Vec<u8>,
    judge: &mut impl DiskJudge,
    (samples, seed): (u64, u64),
) -> CutStatistics {
    let mut replay = MemoryReplay::new(recording, before);
    let mut statistics = CutStatistics::default();
    for flushes in 0..=recording.flushes() {
        cut_with_loss_after(&mut replay, flushes, judge, (samples, seed), &mut statistics);
        let mut number = 0;
        replay.advance_to(flushes + 1, |disk| {
            statistics.record(false, judge.judge(disk), || Cut {
                flushes,
                survivors: (0..=number).collect(),
            });
            number += 1;
        });
    }
    statistics
}

/// Cuts a recording `samples` times between one flush and the next, with about half of the unflushed parts lost.
pub fn cut_after(
    recording: &Recording,
    before: Vec<u8>,
    judge: &mut impl DiskJudge,
    flushes: usize,
    chosen: (u64, u64),
) -> CutStatistics {
    let mut replay = MemoryReplay::new(recording, before);
    let mut statistics = CutStatistics::default();
    cut_with_loss_after(&mut replay, flushes, judge, chosen, &mut statistics);
    statistics
}

fn cut_with_loss_after(
    replay: &mut MemoryReplay<'_>,
    flushes: usize,
    judge: &mut impl DiskJudge,
    (samples, seed): (u64, u64),
    statistics: &mut CutStatistics,
) {
    // A separate stream for each flush: its numbers do not depend on the draws before.
    let mut rng = Rng::new(seed, flushes as u64);
    for _ in 0..samples {
        let Some(cut) = replay.recording().lossy_cut_after(flushes, &mut rng) else {
            return;
        };
        let verdict = replay.inspect_after(&cut, |disk| judge.judge(disk));
        statistics.record(true, verdict, || cut);
    }
}

pub(super) fn sha256(bytes: &[u8]) -> Digest {
    Sha256::digest(bytes).into()
}

#[cfg(test)]
mod tests;
