//! Disks in the state after a power cut.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use super::recording::{Cut, Recording, WritePart};
use crate::lab::Disk;

/// Creates disks for one cut after another, in the order of their flushes.
#[derive(Debug)]
pub struct Replay<'a> {
    recording: &'a Recording,
    /// The disk after [`Replay::flushes`] flushes.
    disk: Disk,
    flushes: usize,
}

impl<'a> Replay<'a> {
    /// Starts with the disk before the recording. The disk is modified.
    pub fn new(recording: &'a Recording, before: Disk) -> Self {
        Self { recording, disk: before, flushes: 0 }
    }

    /// Creates the disk after a cut as a new file.
    ///
    /// # Panics
    /// The cut is earlier than the previous one.
    pub fn disk_after(&mut self, cut: &Cut, image: PathBuf) -> Disk {
        assert!(self.flushes <= cut.flushes, "cuts must be in ascending order");
        for flushes in self.flushes..cut.flushes {
            write(&self.disk, self.recording.parts(flushes));
        }
        self.flushes = cut.flushes;
        let disk = self.disk.copy(image);
        write(&disk, self.recording.surviving(cut));
        disk
    }
}

fn write<'a>(disk: &Disk, parts: impl Iterator<Item = WritePart<'a>>) {
    let image = File::options().write(true).open(disk.image());
    let image = image.expect("a disk that can be written to");
    for part in parts {
        image.write_all_at(part.data, part.offset).expect("room for what was written");
    }
}
