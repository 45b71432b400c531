//! The block device of a slot: found by the name of its partition, written and read without the
//! page cache.
//!
//! `O_DIRECT` needs memory addresses, lengths and offsets that are multiples of the logical block
//! size of the device (open(2)). The module therefore uses aligned memory and pads the last block
//! of an image with zeros.

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

use super::slots::RawImage;
use crate::model::{Failure, FailureKind, Sha256};
use crate::os;

/// Bytes that are read or written at once, and between two checks of the stop token.
pub(super) const CHUNK_BYTES: usize = 1 << 20;

/// Alignment of the memory. No device needs more than a page.
const ALIGNMENT: usize = 4096;

/// Block size for regular files: the smallest logical block size of a device.
const SECTOR_BYTES: usize = 512;

/// Pause before a busy device is opened again. udev, for example, holds a device only while it
/// probes it.
const OPEN_RETRY_INTERVAL: Duration = Duration::from_millis(250);

/// 40 retries of 250 ms: 10 s.
const MAX_OPEN_RETRIES: u32 = 40;

/// Larger `uevent` files are cut off.
const MAX_UEVENT_BYTES: u64 = 64 << 10;

/// [`CHUNK_BYTES`] bytes of memory that `O_DIRECT` accepts.
#[derive(Debug)]
pub(super) struct AlignedChunk {
    bytes: Vec<u8>,
    start: usize,
}

impl AlignedChunk {
    /// Allocates a chunk of zeros.
    pub(super) fn new() -> Self {
        let bytes = vec![0; CHUNK_BYTES + ALIGNMENT];
        let begin = bytes.as_ptr().align_offset(ALIGNMENT);
        // In theory there may be no aligned offset. The device then refuses the memory and is used
        // through the cache.
        let begin = if begin < ALIGNMENT { begin } else { 0 };
        Self { bytes, start: begin }
    }

    pub(super) fn bytes(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..][..CHUNK_BYTES]
    }
}

/// A device that is open for writing. While it is open nothing can mount it.
#[derive(Debug)]
pub struct SlotDevice {
    file: File,
    path: PathBuf,
    bytes: u64,
    block: usize,
}

impl SlotDevice {
    /// Finds the device of the partition with a name (`PARTNAME` of its `uevent`). `sys` is the
    /// mount point of sysfs; the device files are in the folder `dev` next to it. Searches only
    /// `disk`, the folder of a disk in sysfs, if it is given. `None` if no partition has the name;
    /// fails if several have it.
    pub fn find(label: &str, sys: &Path, disk: Option<&Path>) -> Result<Option<PathBuf>, Failure> {
        let class = sys.join("class/block");
        let unreadable = |error: io::Error| {
            storage_failure(format!(
                "cannot search for the partition {label}: {}: {error}",
                class.display()
            ))
        };
        let entries = match fs::read_dir(&class) {
            Err(error) if is_gone(&error) => return Ok(None),
            entries => entries.map_err(unreadable)?,
        };
        let mut paths = Vec::new();
        for entry in entries {
            let entry = entry.map_err(unreadable)?;
            let text = match read_uevent(&entry.path()) {
                // Unplugged since the folder was listed.
                Err(error) if is_gone(&error) => continue,
                text => text.map_err(unreadable)?,
            };
            if uevent_value(&text, "PARTNAME=") != Some(label) {
                continue;
            }
            if disk.is_some() && disk_folder(&entry.path()).as_deref() != disk {
                continue;
            }
            let name = uevent_value(&text, "DEVNAME=")
                .filter(|name| is_device_name(name))
                .ok_or_else(|| {
                    let path = entry.path();
                    storage_failure(format!("{} has no valid device name", path.display()))
                })?;
            paths.push(sys.with_file_name("dev").join(name));
        }
        paths.sort_unstable();
        match paths.as_slice() {
            [] => Ok(None),
            [one] => Ok(Some(one.clone())),
            several => {
                let several: Vec<_> =
                    several.iter().map(|path| path.display().to_string()).collect();
                Err(storage_failure(format!(
                    "the partitions {} all have the name {label}, so no image can be written: disconnect the disk of another \
                     machine, or give each of them but the slot another name (`sgdisk --change-name`), then restart the \
                     agent",
                    several.join(", ")
                )))
            }
        }
    }

    /// Opens a device for writing. Waits up to 10 s while it is in use; a mounted device cannot be
    /// opened. Also accepts a regular file, which is as large as its length.
    pub fn open(path: &Path) -> Result<Self, Failure> {
        let cannot =
            |error: io::Error| storage_failure(format!("cannot open {}: {error}", path.display()));
        let metadata = fs::metadata(path).map_err(cannot)?;
        let kind = metadata.file_type();
        if !kind.is_block_device() && !kind.is_file() {
            return Err(storage_failure(format!(
                "{} is neither a block device nor a regular file",
                path.display()
            )));
        }
        let mut flags = OFlags::WRONLY;
        if kind.is_block_device() {
            // For block devices O_EXCL without O_CREAT means: fail with EBUSY while the system uses
            // the device. It is a second protection of the running slot.
            flags |= OFlags::EXCL;
        }
        let opened =
            retry_while_busy(|| open_direct(path, flags), || thread::sleep(OPEN_RETRY_INTERVAL));
        let mut file = opened.map_err(|errno| match errno {
            Errno::BUSY => storage_failure(format!(
                "{} is still in use after 10 s: {}",
                path.display(),
                describe_holders(metadata.rdev())
            )),
            errno => cannot(errno.into()),
        })?;
        let opened = file.metadata().map_err(cannot)?;
        if opened.file_type() != kind || opened.rdev() != metadata.rdev() {
            let path = path.display();
            return Err(storage_failure(format!("{path} was replaced while it was opened")));
        }
        let bytes = file.seek(SeekFrom::End(0)).map_err(cannot)?;
        let block = if kind.is_block_device() {
            let block = rustix::fs::ioctl_blksszget(&file).map_err(|errno| cannot(errno.into()))?;
            usize::try_from(block).unwrap_or(ALIGNMENT).max(1)
        } else {
            SECTOR_BYTES
        };
        Ok(Self { file, path: path.to_owned(), bytes, block })
    }

    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Fails if the device is smaller than `bytes`.
    pub(super) fn check_capacity(&self, bytes: u64) -> Result<(), Failure> {
        if bytes <= self.bytes {
            return Ok(());
        }
        Err(storage_failure(format!(
            "the image does not fit: unpacked it is larger than the {} bytes of {}",
            self.bytes,
            self.path.display()
        )))
    }

    /// Writes the first `filled` bytes of a chunk at an offset that is a multiple of
    /// [`CHUNK_BYTES`], and zeros up to the end of the last block. Writes nothing if the bytes do
    /// not fit.
    pub(super) fn write(
        &self,
        at: u64,
        chunk: &mut AlignedChunk,
        filled: usize,
    ) -> Result<(), Failure> {
        self.check_capacity(at.saturating_add(filled as u64))?;
        let remaining = usize::try_from(self.bytes - at).unwrap_or(usize::MAX);
        let padded = filled.next_multiple_of(self.block).min(remaining).min(CHUNK_BYTES);
        let bytes = &mut chunk.bytes()[..padded];
        bytes[filled..].fill(0);
        let mut written = self.file.write_all_at(bytes, at);
        if is_misaligned(&written) && disable_direct_io(&self.file) {
            written = self.file.write_all_at(bytes, at);
        }
        written.map_err(|error| {
            let path = self.path.display();
            storage_failure(format!("cannot write {path} at byte {at}: {error}"))
        })
    }

    /// Returns when all written bytes are on the device itself and not in its cache.
    pub(super) fn flush(&self) -> Result<(), Failure> {
        self.file.sync_all().map_err(|error| {
            storage_failure(format!("cannot flush {}: {error}", self.path.display()))
        })
    }
}

/// Reads the written bytes from the device itself and compares their digest. Fails with
/// [`FailureKind::Verify`] if it differs.
pub fn read_back(path: &Path, raw: &RawImage, stop: &CancellationToken) -> Result<(), Failure> {
    let cannot =
        |error: io::Error| storage_failure(format!("cannot read {}: {error}", path.display()));
    let file = open_direct(path, OFlags::RDONLY).map_err(|errno| cannot(errno.into()))?;
    // Reading from the page cache would prove nothing. This drops its clean pages; O_DIRECT,
    // where it is supported, bypasses the others.
    rustix::fs::fadvise(&file, 0, None, Advice::DontNeed).map_err(|errno| cannot(errno.into()))?;
    let mut chunk = AlignedChunk::new();
    let mut hash = sha2::Sha256::new();
    let mut at = 0;
    while at < raw.bytes {
        if stop.is_cancelled() {
            return Err(stop_failure("the slot was read back"));
        }
        let got = read_at(&file, at, chunk.bytes()).map_err(cannot)?;
        if got == 0 {
            return Err(Failure::new(
                FailureKind::Verify,
                format!("{} ends after {at} bytes, but {} were written", path.display(), raw.bytes),
            ));
        }
        let length = usize::try_from(raw.bytes - at).unwrap_or(usize::MAX);
        let length = length.min(got);
        hash.update(&chunk.bytes()[..length]);
        at += length as u64;
    }
    let digest: [u8; 32] = hash.finalize().into();
    if Sha256::from(digest) == raw.sha256 {
        return Ok(());
    }
    Err(Failure::new(
        FailureKind::Verify,
        format!(
            "{} does not hold what was written to it: the SHA-256 of its first {} bytes is {}, not {}. The disk may be \
             failing",
            path.display(),
            raw.bytes,
            Sha256::from(digest),
            raw.sha256
        ),
    ))
}

/// The agent was stopped.
pub(super) fn stop_failure(meanwhile: &str) -> Failure {
    let reason = format!("the agent was stopped while {meanwhile}");
    Failure::new(FailureKind::Interrupted, reason)
}

pub(super) fn storage_failure(reason: String) -> Failure {
    Failure::new(FailureKind::Storage, reason)
}

/// Opens a file with `O_DIRECT`, or without it on a file system that does not support it.
fn open_direct(path: &Path, flags: OFlags) -> Result<File, Errno> {
    let flags = flags | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::fs::open(path, flags | OFlags::DIRECT, Mode::empty()) {
        Err(Errno::INVAL) => rustix::fs::open(path, flags, Mode::empty()),
        opened => opened,
    };
    file.map(File::from)
}

/// Switches a file to the page cache. Returns whether it used `O_DIRECT` before.
fn disable_direct_io(file: &File) -> bool {
    let Ok(flags) = rustix::fs::fcntl_getfl(file) else {
        return false;
    };
    flags.contains(OFlags::DIRECT)
        && rustix::fs::fcntl_setfl(file, flags.difference(OFlags::DIRECT)).is_ok()
}

/// Whether the device refused the alignment of an offset, a length or the memory.
fn is_misaligned<T>(result: &io::Result<T>) -> bool {
    matches!(result, Err(error) if Errno::from_io_error(error) == Some(Errno::INVAL))
}

/// Fills the buffer from an offset; returns less than its length only at the end of the file.
fn read_at(file: &File, at: u64, into: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < into.len() {
        let got = file.read_at(&mut into[filled..], at + filled as u64);
        // After a short read the rest of the buffer is no longer aligned.
        if is_misaligned(&got) && disable_direct_io(file) {
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

/// Opens a device and retries while it is busy, up to [`MAX_OPEN_RETRIES`] times.
fn retry_while_busy<T>(
    mut open: impl FnMut() -> Result<T, Errno>,
    mut pause: impl FnMut(),
) -> Result<T, Errno> {
    for _ in 0..MAX_OPEN_RETRIES {
        match open() {
            Err(Errno::BUSY) => pause(),
            answer => return answer,
        }
    }
    open()
}

/// Describes what may hold a device.
fn describe_holders(device: u64) -> String {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let numbers = format!("{major}:{minor}");
    let mounts = os::read_lossy(Path::new("/proc/self/mountinfo")).unwrap_or_default();
    let holders = fs::read_dir(format!("/sys/dev/block/{numbers}/holders"));
    let holders = holders.into_iter().flatten().flatten();
    let holders: Vec<_> =
        holders.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    format_holders(&numbers, &mounts, &holders)
}

/// The third field of `mountinfo` has the numbers of the device, the fifth is where it is mounted
/// (`proc_pid_mountinfo(5)`).
fn format_holders(numbers: &str, mounts: &str, holders: &[String]) -> String {
    let mounted = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(2);
        (fields.next() == Some(numbers)).then(|| fields.nth(1))?
    });
    let mut uses: Vec<_> =
        mounted.map(|mount_point| format!("it is mounted on {mount_point}")).collect();
    uses.extend(holders.iter().map(|name| format!("it is a part of {name}")));
    if uses.is_empty() {
        return "it is neither mounted here nor a part of another device, so udev, swap, a mount in another namespace \
                or another program may hold it"
            .to_owned();
    }
    uses.join(", ")
}

/// The folder in sysfs of the disk that a block device is on, or is. `device` is a folder or link in
/// `class/block`. `None` if the device was removed.
pub(super) fn disk_folder(device: &Path) -> Option<PathBuf> {
    let folder = fs::canonicalize(device).ok()?;
    let text = read_uevent(&folder).ok()?;
    let is_partition = ["PARTN=", "PARTNAME="].iter().any(|key| uevent_value(&text, key).is_some());
    // The folder of a partition lies in the folder of its disk.
    if is_partition { folder.parent().map(Path::to_owned) } else { Some(folder) }
}

fn read_uevent(device: &Path) -> io::Result<String> {
    let mut text = Vec::new();
    File::open(device.join("uevent"))?.take(MAX_UEVENT_BYTES).read_to_end(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

fn uevent_value<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(key))
}

/// Device names are relative to `/dev`; some contain a folder.
fn is_device_name(name: &str) -> bool {
    let is_part = |part: &str| !part.is_empty() && part != "." && part != "..";
    name.split('/').all(is_part)
}

fn is_gone(error: &io::Error) -> bool {
    let errnos = [Errno::NOENT, Errno::NODEV, Errno::NXIO];
    Errno::from_io_error(error).is_some_and(|errno| errnos.contains(&errno))
}

#[cfg(test)]
mod tests;
