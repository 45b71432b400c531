//! An update with RAUC of a machine whose disk writes are recorded, and what GRUB starts after a
//! power cut.

use std::fs;
use std::ops::Range;

use super::judge::{BootVerdict, Digest, DigestCache, DiskJudge, sha256};
use super::memory::MemoryDisk;
use super::recording::Recording;
use super::update::{NEW_VERSION, OLD_VERSION, UPDATE_TIMEOUT};
use crate::boot::grub;
use crate::lab::vm::{RaucVms, ReleaseKind};

/// The image of a release, which contains its kernel.
#[derive(Clone, Debug)]
struct ImageDigest {
    version: String,
    digest: Digest,
    /// Size in bytes.
    size: usize,
}

/// Judges disks of a machine with GRUB. It is dead unless a slot with a complete image starts.
#[derive(Debug)]
pub struct GrubJudge {
    images: Vec<ImageDigest>,
    digests: DigestCache,
}

impl DiskJudge for GrubJudge {
    /// GRUB counts the boots of a good image as well, so no verdict is a trial.
    fn judge(&mut self, disk: &MemoryDisk) -> BootVerdict {
        let next = match grub::next_slot(disk.bytes()) {
            Ok(next) => next,
            Err(why) => return BootVerdict::Dead(why),
        };
        let (slot, start) = (next.slot, next.range.start);
        for image in &self.images {
            let content = start..next.range.end.min(start + image.size);
            if self.digests.digest(disk, vec![content]) == image.digest {
                let version = image.version.clone();
                return BootVerdict::Runs { version, slot, is_on_trial: false };
            }
        }
        BootVerdict::Dead(format!("the slot {slot} holds no complete image"))
    }
}

/// A recorded update to a bundle.
#[derive(Debug)]
pub struct BundleRecording {
    /// Disk writes from the first start of the machine to the end of the update.
    pub recording: Recording,
    /// Complete content of the disk before the update.
    pub disk_before: Vec<u8>,
    /// Byte range of the slot that runs after the update.
    pub new_slot: Range<u64>,
    images: Vec<ImageDigest>,
}

impl BundleRecording {
    /// Updates a machine to a good bundle, with a real server, and records the disk.
    ///
    /// # Panics
    /// The update does not succeed.
    #[track_caller]
    pub fn record(rauc: &RaucVms) -> Self {
        let fleet = rauc.vms().fleet();
        let old = rauc.release(OLD_VERSION, ReleaseKind::Good);
        let new = rauc.release(NEW_VERSION, ReleaseKind::Good);
        let mut machine = rauc.machine(&fleet, &old, "recorded");
        let disk_before = fs::read(machine.disk()).expect("a disk");
        let log = machine.path("log");
        machine.record(&log);
        fleet.join(&mut machine);
        fleet.update(&machine, &new);
        let run = fleet.wait_for_run_end(&mut machine, NEW_VERSION, UPDATE_TIMEOUT);
        assert_eq!(run["state"], "succeeded", "{run:#}");
        rauc.judge(&fleet, &mut machine, &[&new]);
        let after = fs::read(machine.disk()).expect("a disk");
        let slot = grub::next_slot(&after).expect("a slot").range;
        let recording = Recording::read(&log).expect("a log of writes");
        let images = [OLD_VERSION, NEW_VERSION].map(|version| {
            let image = fs::read(rauc.image(version)).expect("an image");
            let version = version.to_owned();
            ImageDigest { version, digest: sha256(&image), size: image.len() }
        });
        Self {
            recording: recording.with_tearing_anywhere(),
            disk_before,
            new_slot: slot.start as u64..slot.end as u64,
            images: images.to_vec(),
        }
    }

    /// A judge that knows both images.
    pub fn judge(&self) -> GrubJudge {
        GrubJudge { images: self.images.clone(), digests: DigestCache::default() }
    }
}
