//! Disks as a power cut leaves them.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use super::recording::{Cut, Part, Recording};
use crate::lab::Disk;

/// Makes disks, for one cut after the other, in the order of their flushes.
#[derive(Debug)]
pub struct Replay<'a> {
    recording: &'a Recording,
    /// As it is after [`Replay::flushes`].
    disk: Disk,
    flushes: usize,
}

impl<'a> Replay<'a> {
    /// Begins with the disk as it was before the recording. It is changed.
    pub fn new(recording: &'a Recording, before: Disk) -> Self {
        Self {
            recording,
            disk: before,
            flushes: 0,
        }
    }

    /// The disk after a cut, as a new file.
    ///
    /// # Panics
    /// The cut is earlier than the one before.
    pub fn disk_after(&mut self, cut: &Cut, image: PathBuf) -> Disk {
        assert!(self.flushes <= cut.flushes, "cuts come in their order");
        for flushes in self.flushes..cut.flushes {
            write(&self.disk, self.recording.parts(flushes));
        }
        self.flushes = cut.flushes;
        let disk = self.disk.copy(image);
        write(&disk, self.recording.surviving(cut));
        disk
    }
}

fn write<'a>(disk: &Disk, parts: impl Iterator<Item = Part<'a>>) {
    let image = File::options().write(true).open(disk.image());
    let image = image.expect("a disk that can be written to");
    for part in parts {
        image
            .write_all_at(part.data, part.offset)
            .expect("room for what was written");
    }
}
