//! Power cuts at the level of blocks.
//!
//! A virtual machine carries out a whole update while every write to its disk, and every flush, is recorded
//! ([`crate::lab::Emulator`]). [`Recording`] reads that, [`Cut`] says what of it is on the disk when the power goes, and
//! [`Replay`] makes the disk as it is then. A disk may keep what it was told in its cache until it is told to flush it,
//! and lose any part of that; what was flushed it keeps.
//!
//! Of a machine with two slots it can be told without starting anything what its loader would start: [`Memory`] is its
//! disk, [`Judge`] says what becomes of it, and [`cut_everywhere`] tries every cut of an update that is [`Recorded`].

mod judge;
mod memory;
mod recording;
mod replay;
mod update;

pub use judge::{Judge, Outcome, Release, Verdict, cut_after, cut_everywhere};
pub use memory::{Memory, Played};
pub use recording::{Cut, Recording, Write};
pub use replay::Replay;
pub use update::{NEW, OLD, Recorded};
