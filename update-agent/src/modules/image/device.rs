//! The device of a slot: found by the name of its partition, written and read past the page cache.
//!
//! `O_DIRECT` wants memory, lengths and places that are multiples of the device's logical block (open(2)). What a slot
//! is written from is therefore aligned memory, and the last block of an image is filled up with zeros.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rustix::fs::{Advice, Mode, OFlags};
use rustix::io::Errno;
use sha2::Digest as _;
use tokio_util::sync::CancellationToken;

use super::slots::Raw;
use crate::model::{Failure, FailureKind, Sha256};

/// So many bytes are read or written at once, and between two looks at the stop token.
pub(super) const CHUNK: usize = 1 << 20;

/// Memory begins at a multiple of this. No device asks for more than a page.
const ALIGN: usize = 4096;

/// What a file is written in multiples of, as the smallest logical block of a device.
const SECTOR: usize = 512;

/// While somebody else holds a device, it is asked for again after this pause. udev holds one only to look at it.
const PAUSE: Duration = Duration::from_millis(250);

/// So often: 10 s.
const TRIES: u32 = 40;

/// A longer `uevent` is none.
const MOST_UEVENT: u64 = 64 << 10;

/// [`CHUNK`] bytes of memory that `O_DIRECT` takes.
#[derive(Debug)]
pub(super) struct Chunk {
    bytes: Vec<u8>,
    begin: usize,
}

impl Chunk {
    /// Zeros.
    pub(super) fn new() -> Self {
        let bytes = vec![0; CHUNK + ALIGN];
        let begin = bytes.as_ptr().align_offset(ALIGN);
        // It may find no place, if only in theory. The device then refuses the memory and is used through the cache.
        let begin = if begin < ALIGN { begin } else { 0 };
        Self { bytes, begin }
    }

    /// The memory.
    pub(super) fn bytes(&mut self) -> &mut [u8] {
        &mut self.bytes[self.begin..][..CHUNK]
    }
}

/// A device that is open for writing, and that nobody has mounted or can mount meanwhile.
#[derive(Debug)]
pub struct Device {
    file: File,
    path: PathBuf,
    bytes: u64,
    block: usize,
}

impl Device {
    /// The device of the partition with a name (`PARTNAME` of its `uevent`). `sys` is where sysfs is mounted; the
    /// devices are in the folder `dev` beside it. Exactly one partition must have that name.
    pub fn find(label: &str, sys: &Path) -> Result<PathBuf, Failure> {
        let class = sys.join("class/block");
        let unreadable = |error: io::Error| {
            storage(format!(
                "cannot look for the partition {label}: {}: {error}",
                class.display()
            ))
        };
        let mut found = Vec::new();
        for entry in fs::read_dir(&class).map_err(unreadable)? {
            let entry = entry.map_err(unreadable)?;
            let text = match uevent(&entry.path()) {
                // Unplugged since the folder was read.
                Err(error) if is_gone(&error) => continue,
                text => text.map_err(unreadable)?,
            };
            if value(&text, "PARTNAME=") != Some(label) {
                continue;
            }
            let name = value(&text, "DEVNAME=")
                .filter(|name| is_device(name))
                .ok_or_else(|| {
                    let path = entry.path();
                    storage(format!("{} has no name of a device", path.display()))
                })?;
            found.push(sys.with_file_name("dev").join(name));
        }
        found.sort_unstable();
        match found.as_slice() {
            [one] => Ok(one.clone()),
            [] => Err(storage(format!(
                "no partition has the name {label}: a system that is to be updated by images needs the partitions \
                 root-a and root-b"
            ))),
            several => {
                let several: Vec<_> = several
                    .iter()
                    .map(|path| path.display().to_string())
                    .collect();
                Err(storage(format!(
                    "the partitions {} all have the name {label}: give the others another name, or remove their disk",
                    several.join(", ")
                )))
            }
        }
    }

    /// Opens a device for writing. Waits up to 10 s for who holds it; one that is mounted cannot be opened. A regular
    /// file is taken as well and is as large as it is.
    pub fn open(path: &Path) -> Result<Self, Failure> {
        let cannot = |error: io::Error| storage(format!("cannot open {}: {error}", path.display()));
        let found = fs::metadata(path).map_err(cannot)?;
        let kind = found.file_type();
        if !kind.is_block_device() && !kind.is_file() {
            return Err(storage(format!(
                "{} is neither a device with blocks nor a file",
                path.display()
            )));
        }
        let mut flags = OFlags::WRONLY;
        if kind.is_block_device() {
            // Without O_CREAT it has a meaning only for these: EBUSY while the system uses the device. A second wall
            // round the slot that runs.
            flags |= OFlags::EXCL;
        }
        let opened = patiently(|| open(path, flags), || thread::sleep(PAUSE));
        let mut file = opened.map_err(|errno| match errno {
            Errno::BUSY => storage(format!(
                "{} is in use and stayed so for 10 s: {}",
                path.display(),
                who_holds(found.rdev())
            )),
            errno => cannot(errno.into()),
        })?;
        let opened = file.metadata().map_err(cannot)?;
        if opened.file_type() != kind || opened.rdev() != found.rdev() {
            let path = path.display();
            return Err(storage(format!("{path} became another file")));
        }
        let bytes = file.seek(SeekFrom::End(0)).map_err(cannot)?;
        let block = if kind.is_block_device() {
            let block = rustix::fs::ioctl_blksszget(&file).map_err(|errno| cannot(errno.into()))?;
            usize::try_from(block).unwrap_or(ALIGN).max(1)
        } else {
            SECTOR
        };
        Ok(Self {
            file,
            path: path.to_owned(),
            bytes,
            block,
        })
    }

    /// How many bytes it holds.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Fails if it does not hold so many bytes.
    pub(super) fn must_hold(&self, bytes: u64) -> Result<(), Failure> {
        if bytes <= self.bytes {
            return Ok(());
        }
        Err(storage(format!(
            "the image does not fit: unpacked it is larger than the {} bytes of {}",
            self.bytes,
            self.path.display()
        )))
    }

    /// Writes the first `filled` bytes of a chunk at a place, a multiple of [`CHUNK`], and zeros up to the end of the
    /// last block. Writes nothing if they do not fit.
    pub(super) fn write(&self, at: u64, chunk: &mut Chunk, filled: usize) -> Result<(), Failure> {
        self.must_hold(at.saturating_add(filled as u64))?;
        let room = usize::try_from(self.bytes - at).unwrap_or(usize::MAX);
        let padded = filled.next_multiple_of(self.block).min(room).min(CHUNK);
        let bytes = &mut chunk.bytes()[..padded];
        bytes[filled..].fill(0);
        let mut written = self.file.write_all_at(bytes, at);
        if is_invalid(&written) && leave_direct(&self.file) {
            written = self.file.write_all_at(bytes, at);
        }
        written.map_err(|error| {
            let path = self.path.display();
            storage(format!("cannot write {path} at byte {at}: {error}"))
        })
    }

    /// Returns when what was written is on the device and not in a cache of it.
    pub(super) fn flush(&self) -> Result<(), Failure> {
        self.file
            .sync_all()
            .map_err(|error| storage(format!("cannot flush {}: {error}", self.path.display())))
    }
}

/// Reads again what was written to a device, from the device itself, and compares. Fails with [`FailureKind::Verify`]
/// if something else is there.
pub fn read_back(path: &Path, raw: &Raw, stop: &CancellationToken) -> Result<(), Failure> {
    let cannot = |error: io::Error| storage(format!("cannot read {}: {error}", path.display()));
    let file = open(path, OFlags::RDONLY).map_err(|errno| cannot(errno.into()))?;
    // A cache proves only itself. This forgets its clean pages; O_DIRECT, where there is, reads past the others too.
    rustix::fs::fadvise(&file, 0, None, Advice::DontNeed).map_err(|errno| cannot(errno.into()))?;
    let mut chunk = Chunk::new();
    let mut hash = sha2::Sha256::new();
    let mut at = 0;
    while at < raw.bytes {
        if stop.is_cancelled() {
            return Err(stopped("what was written was read again"));
        }
        let got = read_at(&file, at, chunk.bytes()).map_err(cannot)?;
        if got == 0 {
            return Err(Failure::new(
                FailureKind::Verify,
                format!(
                    "{} ends after {at} bytes, and {} were written",
                    path.display(),
                    raw.bytes
                ),
            ));
        }
        let wanted = usize::try_from(raw.bytes - at).unwrap_or(usize::MAX);
        let wanted = wanted.min(got);
        hash.update(&chunk.bytes()[..wanted]);
        at += wanted as u64;
    }
    let found: [u8; 32] = hash.finalize().into();
    if Sha256::from(found) == raw.sha256 {
        return Ok(());
    }
    Err(Failure::new(
        FailureKind::Verify,
        format!(
            "{} does not hold what was written to it: the SHA-256 of its first {} bytes is {}, not {}. The disk may be \
             failing",
            path.display(),
            raw.bytes,
            Sha256::from(found),
            raw.sha256
        ),
    ))
}

/// The agent is to end.
pub(super) fn stopped(meanwhile: &str) -> Failure {
    let reason = format!("the agent was told to stop while {meanwhile}");
    Failure::new(FailureKind::Interrupted, reason)
}

pub(super) fn storage(reason: String) -> Failure {
    Failure::new(FailureKind::Storage, reason)
}

/// Opens past the page cache, or through it on a file system that does not know how.
fn open(path: &Path, flags: OFlags) -> Result<File, Errno> {
    let flags = flags | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::fs::open(path, flags | OFlags::DIRECT, Mode::empty()) {
        Err(Errno::INVAL) => rustix::fs::open(path, flags, Mode::empty()),
        opened => opened,
    };
    file.map(File::from)
}

/// Lets a file be used through the page cache from now on. Whether it was not before.
fn leave_direct(file: &File) -> bool {
    let Ok(flags) = rustix::fs::fcntl_getfl(file) else {
        return false;
    };
    flags.contains(OFlags::DIRECT)
        && rustix::fs::fcntl_setfl(file, flags.difference(OFlags::DIRECT)).is_ok()
}

/// Whether a place, a length or memory is not aligned as the device wants it.
fn is_invalid<T>(result: &io::Result<T>) -> bool {
    matches!(result, Err(error) if Errno::from_io_error(error) == Some(Errno::INVAL))
}

/// Fills the buffer from a place; returns less than its length only at the end.
fn read_at(file: &File, at: u64, into: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < into.len() {
        let got = file.read_at(&mut into[filled..], at + filled as u64);
        // The rest behind a short read is no longer aligned.
        if is_invalid(&got) && leave_direct(file) {
            continue;
        }
        match got {
            Ok(0) => break,
            Ok(bytes) => filled += bytes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// Opens, and as long as it is busy and there is patience left, pauses and opens again.
fn patiently<T>(
    mut open: impl FnMut() -> Result<T, Errno>,
    mut pause: impl FnMut(),
) -> Result<T, Errno> {
    for _ in 0..TRIES {
        match open() {
            Err(Errno::BUSY) => pause(),
            answer => return answer,
        }
    }
    open()
}

/// Who may hold a device, in words.
fn who_holds(device: u64) -> String {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let numbers = format!("{major}:{minor}");
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let holders = fs::read_dir(format!("/sys/dev/block/{numbers}/holders"));
    let holders = holders.into_iter().flatten().flatten();
    let holders: Vec<_> = holders
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    in_words(&numbers, &mounts, &holders)
}

/// The third field of `mountinfo` has the numbers of the device, the fifth is where it is mounted
/// (`proc_pid_mountinfo(5)`).
fn in_words(numbers: &str, mounts: &str, holders: &[String]) -> String {
    let mounted = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(2);
        (fields.next() == Some(numbers)).then(|| fields.nth(1))?
    });
    let mut words: Vec<_> = mounted
        .map(|place| format!("it is mounted on {place}"))
        .collect();
    words.extend(holders.iter().map(|name| format!("it is a part of {name}")));
    if words.is_empty() {
        return "it is neither mounted here nor a part of another device, so udev, swap, a mount in another namespace \
                or another program may hold it"
            .to_owned();
    }
    words.join(", ")
}

fn uevent(device: &Path) -> io::Result<String> {
    let mut text = Vec::new();
    File::open(device.join("uevent"))?
        .take(MOST_UEVENT)
        .read_to_end(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

fn value<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(key))
}

/// The kernel names devices from `/dev` on, some of them in a folder.
fn is_device(name: &str) -> bool {
    let is_part = |part: &str| !part.is_empty() && part != "." && part != "..";
    name.split('/').all(is_part)
}

fn is_gone(error: &io::Error) -> bool {
    let gone = [Errno::NOENT, Errno::NODEV, Errno::NXIO];
    Errno::from_io_error(error).is_some_and(|errno| gone.contains(&errno))
}

#[cfg(test)]
mod tests;
