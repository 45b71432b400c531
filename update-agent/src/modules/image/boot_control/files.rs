//! Copies, digests and flushes on the ESP.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::iter;
use std::path::Path;

use evenkeel_kit::chain;
use rustix::fs::{Advice, Mode, OFlags, StatVfsMountFlags};
use sha2::Digest as _;

use crate::durable::{self, FileError};
use crate::model::{Failure, FailureKind, Sha256};
use crate::modules::image::device::storage_failure;
use crate::modules::image::slots::RawImage;

/// Size of the copy buffer.
const COPY_BUFFER_BYTES: usize = 256 << 10;

/// Maximum size of an entry file, in bytes.
pub const MAX_ENTRY_BYTES: u64 = 64 << 10;

/// Content of a withdrawn entry that cannot be removed. It is a comment, whatever follows on the
/// line.
const WITHDRAWN_TEXT: &str = "# Withdrawn but not removed: after a power cut, two names may share these clusters. Run fsck.vfat. ";

/// Free space to preserve on the file system: folders grow, and the loader writes as well.
const RESERVED_BYTES: u64 = 1 << 20;

/// Converts an error of a file operation to a failure.
pub fn file_failure(error: FileError) -> Failure {
    storage_failure(chain(&error).to_string())
}

/// Opens a file below a folder for reading. A symbolic link in the path is an error: files of a new
/// image must not refer to the running system.
pub fn open_below(folder: &Path, path: &str) -> Result<File, Failure> {
    let cannot = |error: rustix::io::Errno| {
        Failure::new(
            FailureKind::Apply,
            format!("the image has no file {path} that can be read: {error}"),
        )
    };
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let mut opened =
        rustix::fs::open(folder, flags | OFlags::DIRECTORY, Mode::empty()).map_err(cannot)?;
    let mut parts = path.split('/').peekable();
    while let Some(part) = parts.next() {
        let kind = match parts.peek() {
            Some(_) => OFlags::DIRECTORY,
            None => OFlags::empty(),
        };
        opened = rustix::fs::openat(&opened, part, flags | kind, Mode::empty()).map_err(cannot)?;
    }
    let file = File::from(opened);
    let metadata = file.metadata().map_err(|error| {
        storage_failure(format!("cannot read the metadata of {path} of the image: {error}"))
    })?;
    if !metadata.is_file() {
        return Err(Failure::new(
            FailureKind::Apply,
            format!("{path} of the image is not a regular file"),
        ));
    }
    Ok(file)
}

/// Fails if the file system of `folder` has less than `bytes` free, plus the reserve.
pub fn check_free_space(folder: &Path, bytes: u64) -> Result<(), Failure> {
    let stats = rustix::fs::statvfs(folder).map_err(|error| {
        storage_failure(format!("cannot read the free space of {}: {error}", folder.display()))
    })?;
    check_free_bytes(
        folder,
        stats.f_bavail.saturating_mul(stats.f_frsize),
        bytes.saturating_add(RESERVED_BYTES),
    )
}

fn check_free_bytes(folder: &Path, free: u64, needed: u64) -> Result<(), Failure> {
    if needed <= free {
        return Ok(());
    }
    Err(storage_failure(format!(
        "the file system of {} has {} MiB free, and a kernel needs {} MiB: remove files that are not needed",
        folder.display(),
        free >> 20,
        needed.div_ceil(1 << 20)
    )))
}

/// Copies a file to a new one, and returns when the copy is on disk and was read back. A failed
/// copy is removed.
pub fn copy_file(from: &mut File, to: &Path) -> Result<(), Failure> {
    durable::remove_file(to).map_err(file_failure)?;
    let copied = copy_and_compare(from, to);
    if copied.is_err() {
        // The first error is the one to report.
        fs::remove_file(to).ok();
    }
    copied
}

fn copy_and_compare(from: &mut File, to: &Path) -> Result<(), Failure> {
    let cannot =
        |error: io::Error| storage_failure(format!("cannot write {}: {error}", to.display()));
    let mut target =
        OpenOptions::new().read(true).write(true).create_new(true).open(to).map_err(cannot)?;
    let expected = copy_and_hash(from, Some(&mut target)).map_err(cannot)?;
    target.sync_all().map_err(cannot)?;
    // Drop the page cache, so that the data is read from the disk.
    rustix::fs::fadvise(&target, 0, None, Advice::DontNeed)
        .map_err(|errno| cannot(errno.into()))?;
    target.rewind().map_err(cannot)?;
    let actual = copy_and_hash(&mut target, None).map_err(cannot)?;
    if actual.sha256 == expected.sha256 {
        return Ok(());
    }
    Err(Failure::new(
        FailureKind::Verify,
        format!("{} does not hold what was written to it: the disk may be failing", to.display()),
    ))
}

/// SHA-256 of a file, read from the disk and not from the page cache.
pub fn file_sha256(path: &Path) -> Result<Sha256, Failure> {
    file_digest(path).map(|raw| raw.sha256)
}

/// SHA-256 and length of a file or device, read from the disk and not from the page cache.
pub fn file_digest(path: &Path) -> Result<RawImage, Failure> {
    let cannot =
        |error: io::Error| storage_failure(format!("cannot read {}: {error}", path.display()));
    let mut file = File::open(path).map_err(cannot)?;
    rustix::fs::fadvise(&file, 0, None, Advice::DontNeed).map_err(|errno| cannot(errno.into()))?;
    copy_and_hash(&mut file, None).map_err(cannot)
}

/// Whether a file has the same content as `of`, read from the disk and not from the page cache;
/// false if it cannot be read. Reads `of` from its current position to the end, and rewinds it.
pub fn is_copy(of: &mut File, path: &Path) -> Result<bool, Failure> {
    if !path.is_file() {
        return Ok(false);
    }
    let cannot = |error: io::Error| {
        storage_failure(format!("cannot read the file to compare with {}: {error}", path.display()))
    };
    let expected = copy_and_hash(of, None).map_err(cannot)?;
    of.rewind().map_err(cannot)?;
    Ok(file_digest(path).is_ok_and(|actual| actual == expected))
}

/// Reads to the end, writes everything to `to`, and returns its digest and length.
fn copy_and_hash(from: &mut File, mut to: Option<&mut File>) -> io::Result<RawImage> {
    let mut hash = sha2::Sha256::new();
    let mut bytes = 0;
    let mut buffer = vec![0; COPY_BUFFER_BYTES];
    loop {
        let got = match from.read(&mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            got => got?,
        };
        if got == 0 {
            let digest: [u8; 32] = hash.finalize().into();
            let sha256 = Sha256::from(digest);
            return Ok(RawImage { sha256, bytes });
        }
        hash.update(&buffer[..got]);
        bytes += got as u64;
        if let Some(to) = to.as_mut() {
            to.write_all(&buffer[..got])?;
        }
    }
}

/// Overwrites an entry in place so that it starts nothing, and returns when that is on disk. Frees
/// and allocates no cluster, because another name may share them.
pub fn overwrite_entry(path: &Path) -> Result<(), Failure> {
    let cannot =
        |error: io::Error| storage_failure(format!("cannot write {}: {error}", path.display()));
    let mut file = OpenOptions::new().write(true).open(path).map_err(cannot)?;
    let bytes = file.metadata().map_err(cannot)?.len().min(MAX_ENTRY_BYTES);
    let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
    // The same bytes for all names of these clusters, so that the order of the writes does not
    // matter.
    let text = WITHDRAWN_TEXT.bytes().chain(iter::repeat(b'#'));
    let text: Vec<u8> = text.take(bytes).collect();
    file.write_all(&text).map_err(cannot)?;
    file.sync_all().map_err(cannot)
}

/// Returns when all writes to the file system of `folder` are on disk. The kernel makes a damaged
/// VFAT read-only; then earlier writes may be lost.
pub fn flush(folder: &Path) -> Result<(), Failure> {
    let cannot =
        |error: io::Error| storage_failure(format!("cannot flush {}: {error}", folder.display()));
    let opened = File::open(folder).map_err(cannot)?;
    rustix::fs::syncfs(&opened).map_err(|errno| cannot(errno.into()))?;
    let stats = rustix::fs::fstatvfs(&opened).map_err(|errno| cannot(errno.into()))?;
    if stats.f_flag.contains(StatVfsMountFlags::RDONLY) {
        return Err(storage_failure(format!(
            "the file system of {} became read-only because it is damaged: unmount it, check it with fsck.vfat and mount it again",
            folder.display()
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_replaces_the_rest_of_an_interrupted_one() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        let content = vec![7; COPY_BUFFER_BYTES + 5];
        fs::write(&from, &content).unwrap();
        fs::write(&to, "half").unwrap();
        copy_file(&mut File::open(&from).unwrap(), &to).unwrap();
        assert_eq!(fs::read(&to).unwrap(), content);
        assert_eq!(file_sha256(&to).unwrap(), Sha256::hash(&content));
        flush(folder.path()).unwrap();
    }

    #[test]
    fn a_failed_copy_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        // A folder can be opened but not read.
        let mut from = File::open(folder.path()).unwrap();
        let to = folder.path().join("to");
        let failure = copy_file(&mut from, &to).unwrap_err();
        assert_eq!(failure.kind, FailureKind::Storage);
        assert!(!to.exists());
    }

    #[test]
    fn missing_space_is_reported_with_the_required_size() {
        let folder = tempfile::tempdir().unwrap();
        check_free_space(folder.path(), 0).unwrap();
        let failure = check_free_bytes(Path::new("/efi"), 10 << 20, (10 << 20) + 1).unwrap_err();
        assert_eq!(
            failure.reason,
            "the file system of /efi has 10 MiB free, and a kernel needs 11 MiB: remove files that are not needed"
        );
        check_free_space(folder.path(), u64::MAX).unwrap_err();
    }

    #[test]
    fn a_link_cannot_lead_out_of_an_image() {
        let folder = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        fs::create_dir(outside.path().join("boot")).unwrap();
        fs::write(outside.path().join("boot/slot-a.efi"), "of the host").unwrap();
        fs::create_dir_all(folder.path().join("usr/lib")).unwrap();
        std::os::unix::fs::symlink(outside.path(), folder.path().join("usr/lib/evenkeel")).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", folder.path().join("usr/link")).unwrap();
        for path in ["usr/lib/evenkeel/boot/slot-a.efi", "usr/link", "usr/lib", "usr/none"] {
            let failure = open_below(folder.path(), path).unwrap_err();
            assert_eq!(failure.kind, FailureKind::Apply, "{path}");
            assert!(failure.reason.contains(path), "{failure}");
        }
        fs::write(folder.path().join("usr/lib/file"), "of the image").unwrap();
        open_below(folder.path(), "usr/lib/file").unwrap();
    }
}
