//! Power cuts at the level of blocks.
//!
//! A virtual machine runs a whole update while every write and every flush of its disk is recorded
//! ([`crate::lab::Emulator`]). [`Recording`] reads that log, [`Cut`] selects what is on the disk when the power
//! fails, and [`Replay`] creates the disk in that state. A disk may keep writes in its cache until a flush, and may
//! lose any part of them; flushed writes stay.
//!
//! For a machine with two slots the next boot can be computed without starting anything: [`MemoryDisk`] is its disk,
//! [`BootJudge`] computes the result of the boot, and [`cut_everywhere`] tries every cut of a [`UpdateRecording`].
//! [`GrubJudge`] and [`BundleRecording`] are the same for a machine with GRUB and RAUC.

mod bundle;
mod judge;
mod memory;
mod recording;
mod replay;
mod update;

pub use bundle::{BundleRecording, GrubJudge};
pub use judge::{
    BootJudge, BootVerdict, CutStatistics, DiskJudge, ReleaseDigests, cut_after, cut_everywhere,
};
pub use memory::{MemoryDisk, MemoryReplay};
pub use recording::{Cut, Recording, Write};
pub use replay::Replay;
pub use update::{NEW_VERSION, OLD_VERSION, UpdateRecording};
