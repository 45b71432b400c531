//! An image update that a machine carries out while all that its disk is told is recorded.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::judge::{Judge, Release};
use super::recording::Recording;
use crate::boot;
use crate::lab::vm::{self, Kind, Slot, Vms};

/// What runs before the update.
pub const OLD: &str = "1.0";

/// What runs after it.
pub const NEW: &str = "1.1";

/// What the other slot had before, so that there is something to be taken for whole.
const STALE: &str = "0.9";

/// How long the update may take on a busy machine.
const UPDATES: Duration = Duration::from_mins(20);

/// An image update that was recorded.
#[derive(Debug)]
pub struct Recorded {
    /// What the disk was told: from the first start of the machine to the end of the update.
    pub recording: Recording,
    /// What was on the disk before, in full.
    pub before: Vec<u8>,
    /// Where the kernel of the new release came to lie, in bytes.
    pub kernel: Range<u64>,
    /// The releases that the disk had or got.
    pub releases: Vec<vm::Release>,
}

impl Recorded {
    /// Lets a machine update itself, with a real server, from a release of this kind to a good one.
    ///
    /// # Panics
    /// The update does not come to a good end.
    #[track_caller]
    pub fn make(vms: &Vms, kind: Kind) -> Self {
        let fleet = vms.fleet();
        let stale = vms.release(STALE, Kind::Good);
        let old = vms.release(OLD, kind);
        let new = vms.release(NEW, Kind::Good);
        let mut machine = vms.machine(&fleet, &old, "recorded");
        // With its tries used up, so that the loader does not take it.
        machine.put(Slot::B, &stale, 0);
        let before = fs::read(machine.disk()).expect("a disk");
        let log = machine.path("log");
        machine.record(&log);
        fleet.join(&mut machine);
        fleet.update(&machine, &new);
        let run = fleet.ended(&mut machine, NEW, UPDATES);
        assert_eq!(run["state"], "succeeded", "{run:#}");
        vm::judge(&fleet, &mut machine, &[&new]);
        let after = fs::read(machine.disk()).expect("a disk");
        let kernel = boot::starts(&after).expect("a release").kernel;
        let ends = kernel.first().zip(kernel.last());
        let (first, last) = ends.expect("a kernel on the disk");
        let recording = Recording::read(&log).expect("a log of writes");
        Self {
            recording: recording.torn_anywhere(),
            before,
            kernel: first.start as u64..last.end as u64,
            releases: vec![stale, old, new],
        }
    }

    /// A judge who knows the releases, and that the stale one must not start.
    pub fn judge(&self) -> Judge {
        let folder = |release: &vm::Release| -> PathBuf {
            let folder = release.file.parent().map(Path::to_owned);
            folder.expect("the folder of a release")
        };
        let read = |release: &vm::Release| {
            let read = Release::of(&folder(release), &release.version);
            match release.version.as_str() {
                STALE => read.over(),
                _ => read,
            }
        };
        Judge::new(self.releases.iter().map(read).collect())
    }
}
