//! What a machine with two slots would start after a cut, and whether that is one release from its kernel to its root.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::fs;
use std::ops::Range;
use std::path::Path;

use evenkeel_simulator::chance::Chance;
use sha2::{Digest as _, Sha256};

use super::memory::{Memory, Played};
use super::recording::{Cut, Recording};
use crate::boot::{self, Start};

type Digest = [u8; 32];

/// A release that a disk may have in its slots.
#[derive(Clone, Debug)]
pub struct Release {
    version: String,
    /// Of the kernel for each slot.
    kernels: [(char, Digest); 2],
    root: Digest,
    /// How long its root is, in bytes.
    size: usize,
    /// Whether a machine may no longer run it.
    is_over: bool,
}

impl Release {
    /// A release as `make-release` leaves it in a folder.
    ///
    /// # Panics
    /// There is none.
    pub fn of(folder: &Path, version: &str) -> Self {
        let read = |name: &str| fs::read(folder.join(name)).expect("a file of the release");
        let kernel = |slot| (slot, digest(&read(&format!("slot-{slot}.efi"))));
        let root = read("root.raw");
        Self {
            version: version.to_owned(),
            kernels: ['a', 'b'].map(kernel),
            root: digest(&root),
            size: root.len(),
            is_over: false,
        }
    }

    /// The same as one that is still on the disk, and that nothing may start any more.
    #[must_use]
    pub fn over(self) -> Self {
        Self {
            is_over: true,
            ..self
        }
    }
}

/// What becomes of a machine at its next boot.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// It runs a release.
    Runs {
        /// Which one.
        version: String,
        /// From which slot.
        slot: char,
        /// Whether the loader counts that.
        is_on_trial: bool,
    },
    /// It starts what is no release, or one that was given up, and leaves it once the loader has counted enough: not dead,
    /// but nobody wants it.
    Spoiled(String),
    /// It starts that again and again, or nothing at all.
    Dead(String),
}

impl Verdict {
    /// Whether the machine runs a release.
    pub fn is_good(&self) -> bool {
        matches!(self, Self::Runs { .. })
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Runs {
                version,
                slot,
                is_on_trial,
            } => {
                let trial = if *is_on_trial { " on trial" } else { "" };
                write!(f, "{version} in slot {slot}{trial}")
            }
            Self::Spoiled(why) => write!(f, "spoiled: {why}"),
            Self::Dead(why) => write!(f, "dead: {why}"),
        }
    }
}

/// Judges one disk after the other, and remembers what it has read of those parts that are still the same.
#[derive(Debug)]
pub struct Judge {
    releases: Vec<Release>,
    digests: HashMap<(Vec<Range<usize>>, u64), Digest>,
}

impl Judge {
    /// For disks that may have these releases.
    pub fn new(releases: Vec<Release>) -> Self {
        Self {
            releases,
            digests: HashMap::new(),
        }
    }

    /// What becomes of a machine with this disk.
    pub fn judge(&mut self, disk: &Memory) -> Verdict {
        let start = match boot::starts(disk.bytes()) {
            Ok(start) => start,
            Err(why) => return Verdict::Dead(why),
        };
        let is_on_trial = start.entry.is_counted();
        match self.release(disk, &start) {
            Ok(version) => Verdict::Runs {
                version,
                slot: start.slot,
                is_on_trial,
            },
            Err(why) => {
                let why = format!("{}: {why}", start.entry.file);
                if is_on_trial {
                    Verdict::Spoiled(why)
                } else {
                    Verdict::Dead(why)
                }
            }
        }
    }

    /// The release that is started, if it is one.
    fn release(&mut self, disk: &Memory, start: &Start) -> Result<String, String> {
        let kernel = (start.slot, self.digest(disk, start.kernel.clone()));
        let mut releases = self.releases.iter();
        let release = releases.find(|release| release.kernels.contains(&kernel));
        let release = release.ok_or("its kernel is that of no release")?.clone();
        if release.is_over {
            return Err(format!(
                "its kernel is that of {}, which was given up",
                release.version
            ));
        }
        let root = start.root.start..start.root.start + release.size.min(start.root.len());
        if self.digest(disk, vec![root]) != release.root {
            return Err(format!(
                "its kernel is that of {}, and its root is not",
                release.version
            ));
        }
        Ok(release.version)
    }

    fn digest(&mut self, disk: &Memory, places: Vec<Range<usize>>) -> Digest {
        let versions = places.iter().map(|place| disk.version(place));
        let version = versions.max().unwrap_or_default();
        let known = self.digests.entry((places, version));
        let digest = known.or_insert_with_key(|(places, _)| {
            let mut sum = Sha256::new();
            for place in places {
                sum.update(&disk.bytes()[place.clone()]);
            }
            sum.finalize().into()
        });
        *digest
    }
}

/// What came of all cuts of a recording.
#[derive(Debug, Default)]
pub struct Outcome {
    /// How often what became of the machine, and a cut that shows it: by `in order` and `with loss`, and in words.
    pub ends: BTreeMap<(bool, Verdict), (u64, Cut)>,
}

impl Outcome {
    /// What became of the machine after so many cuts: with those that lose what was not flushed, or without.
    pub fn tried(&self, with_loss: bool) -> u64 {
        let ends = self
            .ends
            .iter()
            .filter(|((lossy, _), _)| *lossy == with_loss);
        ends.map(|(_, (count, _))| count).sum()
    }

    /// After how many cuts the machine ran no release, dead or spoiled.
    pub fn bad(&self) -> u64 {
        let bad = self
            .ends
            .iter()
            .filter(|((_, verdict), _)| !verdict.is_good());
        bad.map(|(_, (count, _))| count).sum()
    }

    /// After how many cuts it was dead.
    pub fn dead(&self) -> u64 {
        let dead = self
            .ends
            .iter()
            .filter(|((_, verdict), _)| matches!(verdict, Verdict::Dead(_)));
        dead.map(|(_, (count, _))| count).sum()
    }

    fn take(&mut self, is_lossy: bool, verdict: Verdict, cut: impl FnOnce() -> Cut) {
        let end = self.ends.entry((is_lossy, verdict));
        end.or_insert_with(|| (0, cut())).0 += 1;
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for ((is_lossy, verdict), (count, cut)) in &self.ends {
            let kind = if *is_lossy { "with loss" } else { "in order" };
            let (flushes, parts) = (cut.flushes, cut.survivors.len());
            writeln!(
                f,
                "{kind}: {count:6} {verdict} (such as {flushes} flushes and {parts} parts)"
            )?;
        }
        Ok(())
    }
}

/// Cuts a recording behind each part of each write, and so often between each flush and the next with about half of
/// what was not flushed lost. `before` is the disk before the first write.
pub fn cut_everywhere(
    recording: &Recording,
    before: Vec<u8>,
    judge: &mut Judge,
    (samples, seed): (u64, u64),
) -> Outcome {
    let mut played = Played::new(recording, before);
    let mut outcome = Outcome::default();
    for flushes in 0..=recording.flushes() {
        lose_after(&mut played, flushes, judge, (samples, seed), &mut outcome);
        let mut number = 0;
        played.step_to(flushes + 1, |disk| {
            outcome.take(false, judge.judge(disk), || Cut {
                flushes,
                survivors: (0..=number).collect(),
            });
            number += 1;
        });
    }
    outcome
}

/// Cuts a recording so often between one of the flushes and the next, with about half of what was not flushed lost.
pub fn cut_after(
    recording: &Recording,
    before: Vec<u8>,
    judge: &mut Judge,
    flushes: usize,
    chosen: (u64, u64),
) -> Outcome {
    let mut played = Played::new(recording, before);
    let mut outcome = Outcome::default();
    lose_after(&mut played, flushes, judge, chosen, &mut outcome);
    outcome
}

fn lose_after(
    played: &mut Played<'_>,
    flushes: usize,
    judge: &mut Judge,
    (samples, seed): (u64, u64),
    outcome: &mut Outcome,
) {
    // Of a stream of its own: the same whatever was drawn for the flushes before.
    let mut chance = Chance::new(seed, flushes as u64);
    for _ in 0..samples {
        let Some(cut) = played.recording().lossy_cut_after(flushes, &mut chance) else {
            return;
        };
        let verdict = played.after(&cut, |disk| judge.judge(disk));
        outcome.take(true, verdict, || cut);
    }
}

fn digest(bytes: &[u8]) -> Digest {
    Sha256::digest(bytes).into()
}

#[cfg(test)]
mod tests;
