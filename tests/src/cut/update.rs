//! An image update of a machine whose disk writes are recorded.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::judge::{BootJudge, ReleaseDigests};
use super::recording::Recording;
use crate::boot;
use crate::lab::vm::{self, ReleaseKind, Slot, Vms};

/// Version that runs before the update.
pub const OLD_VERSION: &str = "1.0";

/// Version that runs after the update.
pub const NEW_VERSION: &str = "1.1";

/// Version in the other slot before the update, so that a stale release could be mistaken for the new one.
const STALE_VERSION: &str = "0.9";

/// Time limit of the update on a busy machine.
pub(super) const UPDATE_TIMEOUT: Duration = Duration::from_mins(20);

/// A recorded image update.
#[derive(Debug)]
pub struct UpdateRecording {
    /// Disk writes from the first start of the machine to the end of the update.
    pub recording: Recording,
    /// Complete content of the disk before the update.
    pub disk_before: Vec<u8>,
    /// Byte range of the new release's kernel on the disk.
    pub kernel_range: Range<u64>,
    /// Releases that were on the disk before or after the update.
    pub releases: Vec<vm::Release>,
}

impl UpdateRecording {
    /// Updates a machine from a release of this kind to a good release, with a real server, and records the disk.
    ///
    /// # Panics
    /// The update does not succeed.
    #[track_caller]
    pub fn record(vms: &Vms, kind: ReleaseKind) -> Self {
        let fleet = vms.fleet();
        let stale = vms.release(STALE_VERSION, ReleaseKind::Good);
        let old = vms.release(OLD_VERSION, kind);
        let new = vms.release(NEW_VERSION, ReleaseKind::Good);
        let mut machine = vms.machine(&fleet, &old, "recorded");
        // Without tries left, so that the loader does not select it.
        machine.put_release(Slot::B, &stale, 0);
        let before = fs::read(machine.disk()).expect("a disk");
        let log = machine.path("log");
        machine.record(&log);
        fleet.join(&mut machine);
        fleet.update(&machine, &new);
        let run = fleet.wait_for_run_end(&mut machine, NEW_VERSION, UPDATE_TIMEOUT);
        assert_eq!(run["state"], "succeeded", "{run:#}");
        vm::judge(&fleet, &mut machine, &[&new]);
        let after = fs::read(machine.disk()).expect("a disk");
        let kernel = boot::next_boot(&after).expect("a release").kernel;
        let ends = kernel.first().zip(kernel.last());
        let (first, last) = ends.expect("a kernel on the disk");
        let recording = Recording::read(&log).expect("a log of writes");
        Self {
            recording: recording.with_tearing_anywhere(),
            disk_before: before,
            kernel_range: first.start as u64..last.end as u64,
            releases: vec![stale, old, new],
        }
    }

    /// A judge that knows the releases, and that the stale release must not boot.
    pub fn judge(&self) -> BootJudge {
        let folder = |release: &vm::Release| -> PathBuf {
            let folder = release.file.parent().map(Path::to_owned);
            folder.expect("the folder of a release")
        };
        let read = |release: &vm::Release| {
            let read = ReleaseDigests::read(&folder(release), &release.version);
            match release.version.as_str() {
                STALE_VERSION => read.into_retired(),
                _ => read,
            }
        };
        BootJudge::new(self.releases.iter().map(read).collect())
    }
}
