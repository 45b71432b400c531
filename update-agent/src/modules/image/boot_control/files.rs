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
use crate::modules::image::device::storage;
use crate::modules::image::slots::Raw;

/// So many bytes are copied at once.
const BUFFER: usize = 256 << 10;

/// No entry is longer.
pub const MOST_ENTRY: u64 = 64 << 10;

/// What an entry says in the end that starts nothing and cannot be removed. A comment, whatever follows on its line.
const BLOTTED: &str = "# Withdrawn, and not removed: after a power cut two names may share these clusters. Run fsck.vfat. ";

/// The file system is left so much beside what is written: folders grow, and the loader writes as well.
const SPARE: u64 = 1 << 20;

/// A file could not be read or written.
pub fn broken(error: FileError) -> Failure {
    storage(chain(&error).to_string())
}

/// Opens a file below a folder for reading. A symbolic link on the way is an error: what a new system holds must not
/// lead into the one that runs.
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
    let found = file
        .metadata()
        .map_err(|error| storage(format!("cannot look at {path} of the image: {error}")))?;
    if !found.is_file() {
        return Err(Failure::new(
            FailureKind::Apply,
            format!("{path} of the image is no file"),
        ));
    }
    Ok(file)
}

/// Fails if the file system of `folder` has no room for so many bytes.
pub fn must_fit(folder: &Path, bytes: u64) -> Result<(), Failure> {
    let found = rustix::fs::statvfs(folder)
        .map_err(|error| storage(format!("cannot look at {}: {error}", folder.display())))?;
    fits(
        folder,
        found.f_bavail.saturating_mul(found.f_frsize),
        bytes.saturating_add(SPARE),
    )
}

fn fits(folder: &Path, free: u64, needed: u64) -> Result<(), Failure> {
    if needed <= free {
        return Ok(());
    }
    Err(storage(format!(
        "the file system of {} has {} MiB free, and a kernel needs {} MiB: remove what is not needed there",
        folder.display(),
        free >> 20,
        needed.div_ceil(1 << 20)
    )))
}

/// Copies a file as a new one and returns when it is on the disk and was read back from there. Of a copy that failed
/// nothing is left.
pub fn copy(from: &mut File, to: &Path) -> Result<(), Failure> {
    durable::remove(to).map_err(broken)?;
    let copied = copy_and_compare(from, to);
    if copied.is_err() {
        // The first error is the one to be told.
        fs::remove_file(to).ok();
    }
    copied
}

fn copy_and_compare(from: &mut File, to: &Path) -> Result<(), Failure> {
    let cannot = |error: io::Error| storage(format!("cannot write {}: {error}", to.display()));
    let mut target = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(to)
        .map_err(cannot)?;
    let wanted = pour(from, Some(&mut target)).map_err(cannot)?;
    target.sync_all().map_err(cannot)?;
    // The cache proves only itself.
    rustix::fs::fadvise(&target, 0, None, Advice::DontNeed)
        .map_err(|errno| cannot(errno.into()))?;
    target.rewind().map_err(cannot)?;
    let found = pour(&mut target, None).map_err(cannot)?;
    if found.sha256 == wanted.sha256 {
        return Ok(());
    }
    Err(Failure::new(
        FailureKind::Verify,
        format!(
            "{} does not hold what was written to it: the disk may be failing",
            to.display()
        ),
    ))
}

/// The SHA-256 of a file, past what the cache remembers of it.
pub fn digest(path: &Path) -> Result<Sha256, Failure> {
    raw(path).map(|raw| raw.sha256)
}

/// The SHA-256 and the length of all that a file or a device holds, past what the cache remembers of it.
pub fn raw(path: &Path) -> Result<Raw, Failure> {
    let cannot = |error: io::Error| storage(format!("cannot read {}: {error}", path.display()));
    let mut file = File::open(path).map_err(cannot)?;
    rustix::fs::fadvise(&file, 0, None, Advice::DontNeed).map_err(|errno| cannot(errno.into()))?;
    pour(&mut file, None).map_err(cannot)
}

/// Whether a file holds what another one does, past what the cache remembers of it; not if it cannot be read. The other
/// one is read from its beginning, and is there again.
pub fn is_copy(of: &mut File, path: &Path) -> Result<bool, Failure> {
    if !path.is_file() {
        return Ok(false);
    }
    let cannot = |error: io::Error| {
        storage(format!(
            "cannot read what {} is compared with: {error}",
            path.display()
        ))
    };
    let wanted = pour(of, None).map_err(cannot)?;
    of.rewind().map_err(cannot)?;
    Ok(raw(path).is_ok_and(|found| found == wanted))
}

/// Reads to the end, writes what it reads, and says what that was.
fn pour(from: &mut File, mut to: Option<&mut File>) -> io::Result<Raw> {
    let mut hash = sha2::Sha256::new();
    let mut bytes = 0;
    let mut buffer = vec![0; BUFFER];
    loop {
        let got = match from.read(&mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            got => got?,
        };
        if got == 0 {
            let digest: [u8; 32] = hash.finalize().into();
            let sha256 = Sha256::from(digest);
            return Ok(Raw { sha256, bytes });
        }
        hash.update(&buffer[..got]);
        bytes += got as u64;
        if let Some(to) = to.as_mut() {
            to.write_all(&buffer[..got])?;
        }
    }
}

/// Overwrites an entry in its place, so that it starts nothing, and returns when that is on the disk. No cluster is
/// freed or taken: another name may have the same ones.
pub fn blot(path: &Path) -> Result<(), Failure> {
    let cannot = |error: io::Error| storage(format!("cannot write {}: {error}", path.display()));
    let mut file = OpenOptions::new().write(true).open(path).map_err(cannot)?;
    let bytes = file.metadata().map_err(cannot)?.len().min(MOST_ENTRY);
    let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
    // The same bytes for all names of the same clusters, so that it does not matter which comes last.
    let text = BLOTTED.bytes().chain(iter::repeat(b'#'));
    let text: Vec<u8> = text.take(bytes).collect();
    file.write_all(&text).map_err(cannot)?;
    file.sync_all().map_err(cannot)
}

/// Returns when all that was written to the file system of `folder` is on the disk. VFAT makes a file system that it
/// finds damaged read-only: then what was written may not be there.
pub fn flush(folder: &Path) -> Result<(), Failure> {
    let cannot = |error: io::Error| storage(format!("cannot flush {}: {error}", folder.display()));
    let opened = File::open(folder).map_err(cannot)?;
    rustix::fs::syncfs(&opened).map_err(|errno| cannot(errno.into()))?;
    let found = rustix::fs::fstatvfs(&opened).map_err(|errno| cannot(errno.into()))?;
    if found.f_flag.contains(StatVfsMountFlags::RDONLY) {
        return Err(storage(format!(
            "the file system of {} became read-only: it is damaged; unmount it, check it with fsck.vfat and mount it again",
            folder.display()
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_replaces_what_an_interrupted_one_left() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        let content = vec![7; BUFFER + 5];
        fs::write(&from, &content).unwrap();
        fs::write(&to, "half").unwrap();
        copy(&mut File::open(&from).unwrap(), &to).unwrap();
        assert_eq!(fs::read(&to).unwrap(), content);
        assert_eq!(digest(&to).unwrap(), Sha256::of(&content));
        flush(folder.path()).unwrap();
    }

    #[test]
    fn of_a_copy_that_failed_nothing_is_left() {
        let folder = tempfile::tempdir().unwrap();
        // A folder can be opened and not be read.
        let mut from = File::open(folder.path()).unwrap();
        let to = folder.path().join("to");
        let failure = copy(&mut from, &to).unwrap_err();
        assert_eq!(failure.kind, FailureKind::Storage);
        assert!(!to.exists());
    }

    #[test]
    fn what_has_no_room_is_told_with_what_it_needs() {
        let folder = tempfile::tempdir().unwrap();
        must_fit(folder.path(), 0).unwrap();
        let failure = fits(Path::new("/efi"), 10 << 20, (10 << 20) + 1).unwrap_err();
        assert_eq!(
            failure.reason,
            "the file system of /efi has 10 MiB free, and a kernel needs 11 MiB: remove what is not needed there"
        );
        must_fit(folder.path(), u64::MAX).unwrap_err();
    }

    #[test]
    fn nothing_of_an_image_leads_out_of_it() {
        let folder = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        fs::create_dir(outside.path().join("boot")).unwrap();
        fs::write(outside.path().join("boot/slot-a.efi"), "of the host").unwrap();
        fs::create_dir_all(folder.path().join("usr/lib")).unwrap();
        std::os::unix::fs::symlink(outside.path(), folder.path().join("usr/lib/evenkeel")).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", folder.path().join("usr/link")).unwrap();
        for path in [
            "usr/lib/evenkeel/boot/slot-a.efi",
            "usr/link",
            "usr/lib",
            "usr/none",
        ] {
            let failure = open_below(folder.path(), path).unwrap_err();
            assert_eq!(failure.kind, FailureKind::Apply, "{path}");
            assert!(failure.reason.contains(path), "{failure}");
        }
        fs::write(folder.path().join("usr/lib/file"), "of the image").unwrap();
        open_below(folder.path(), "usr/lib/file").unwrap();
    }
}
