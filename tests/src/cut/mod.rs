//! Power cuts at the level of blocks.
//!
//! A virtual machine carries out a whole update while every write to its disk, and every flush, is recorded
//! ([`crate::lab::Emulator`]). [`Recording`] reads that, [`Cut`] says what of it is on the disk when the power goes, and
//! [`Replay`] makes the disk as it is then. A disk may keep what it was told in its cache until it is told to flush it,
//! and lose any part of that; what was flushed it keeps.

mod recording;
mod replay;

pub use recording::{Cut, Recording, Write};
pub use replay::Replay;
