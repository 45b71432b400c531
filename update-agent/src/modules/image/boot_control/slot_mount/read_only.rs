//! Mount options with which a file system is read and its device stays as it is.
//!
//! A read-only mount still replays the journal of a file system that was not unmounted, which writes to the device. The
//! slot would no longer be what was written to it. The options differ between file systems, and each file system refuses
//! those of the others, so it is recognized by its superblock.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::model::Failure;
use crate::modules::image::device::storage_failure;

/// Options for any file system. The files of the image are only data here.
const READ_ONLY_OPTIONS: &str = "ro,nodev,nosuid,noexec";

/// The largest offset of a superblock, that of btrfs, with its first fields.
const MAX_SUPERBLOCK_END: usize = (64 << 10) + 128;

/// Offset of the superblocks of ext2 to ext4 and of f2fs.
const EXT_SUPERBLOCK: usize = 1024;

/// Bit of `s_feature_compat`: the file system has a journal. Others refuse the option `noload`.
const EXT_HAS_JOURNAL: u32 = 4;

/// Offsets and magic numbers of the file systems whose read-only mount is known not to write with the options below.
const KNOWN_FILE_SYSTEMS: [(usize, &[u8]); 6] = [
    (0, b"XFSB"),
    // SquashFS and EROFS.
    (0, b"hsqs"),
    (EXT_SUPERBLOCK, &[0xe2, 0xe1, 0xf5, 0xe0]),
    // ext2 to ext4, f2fs and btrfs.
    (EXT_SUPERBLOCK + 0x38, &[0x53, 0xef]),
    (EXT_SUPERBLOCK, &[0x10, 0x20, 0xf5, 0xf2]),
    ((64 << 10) + 0x40, b"_BHRfS_M"),
];

/// The options to mount a slot with.
pub fn slot_mount_options(device: &Path) -> Result<String, Failure> {
    let superblocks = read_superblocks(device)?;
    Ok(match journal_option(&superblocks) {
        Some(option) => format!("{READ_ONLY_OPTIONS},{option}"),
        None => READ_ONLY_OPTIONS.to_owned(),
    })
}

/// Whether the mount options are known to prevent writes to the file system on a device.
pub fn is_known_file_system(device: &Path) -> Result<bool, Failure> {
    let superblocks = read_superblocks(device)?;
    let has =
        |at: usize, magic: &[u8]| superblocks.get(at..).is_some_and(|rest| rest.starts_with(magic));
    Ok(KNOWN_FILE_SYSTEMS.iter().any(|(at, magic)| has(*at, magic)))
}

/// The option that prevents the replay of the journal; `None` if the file system has none.
fn journal_option(superblocks: &[u8]) -> Option<&'static str> {
    let bytes = |at: usize, length: usize| superblocks.get(at..)?.get(..length);
    let number = |at: usize| Some(u32::from_le_bytes(bytes(at, 4)?.try_into().ok()?));
    if bytes(0, 4) == Some(b"XFSB".as_slice()) {
        return Some("norecovery");
    }
    if bytes(EXT_SUPERBLOCK + 0x38, 2) == Some([0x53, 0xef].as_slice()) {
        let features = number(EXT_SUPERBLOCK + 0x5c)?;
        return (features & EXT_HAS_JOURNAL != 0).then_some("noload");
    }
    if number(EXT_SUPERBLOCK) == Some(0xf2f5_2010) {
        return Some("norecovery");
    }
    (bytes((64 << 10) + 0x40, 8) == Some(b"_BHRfS_M".as_slice())).then_some("rescue=nologreplay")
}

fn read_superblocks(device: &Path) -> Result<Vec<u8>, Failure> {
    read_start(device).map_err(|error| {
        storage_failure(format!("cannot read the file system on {}: {error}", device.display()))
    })
}

fn read_start(device: &Path) -> io::Result<Vec<u8>> {
    let file = File::open(device)?;
    let mut start = vec![0; MAX_SUPERBLOCK_END];
    let mut filled = 0;
    while filled < start.len() {
        match file.read_at(&mut start[filled..], filled as u64) {
            Ok(0) => break,
            Ok(bytes) => filled += bytes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    start.truncate(filled);
    Ok(start)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The start of a device with these bytes in it.
    fn start_with(parts: &[(usize, &[u8])]) -> Vec<u8> {
        let mut start = vec![0; MAX_SUPERBLOCK_END];
        for (at, bytes) in parts {
            start[*at..][..bytes.len()].copy_from_slice(bytes);
        }
        start
    }

    #[test]
    fn each_file_system_with_a_journal_has_its_option() {
        let ext: (usize, &[u8]) = (1024 + 0x38, &[0x53, 0xef][..]);
        for (parts, option) in [
            (vec![ext, (1024 + 0x5c, &[0x3c, 0, 0, 0][..])], Some("noload")),
            (vec![ext, (1024 + 0x5c, &[0x38, 0, 0, 0][..])], None),
            (vec![(0, &b"XFSB"[..])], Some("norecovery")),
            (vec![(1024, &[0x10, 0x20, 0xf5, 0xf2][..])], Some("norecovery")),
            (vec![(0x1_0040, &b"_BHRfS_M"[..])], Some("rescue=nologreplay")),
            // EROFS and SquashFS cannot be written to.
            (vec![(1024, &[0xe2, 0xe1, 0xf5, 0xe0][..])], None),
            (vec![(0, &b"hsqs"[..])], None),
        ] {
            assert_eq!(journal_option(&start_with(&parts)), option, "{parts:?}");
        }
        for short in [&b""[..], b"XFS", &[0; 1100]] {
            assert_eq!(journal_option(short), None);
        }
    }

    #[test]
    fn a_file_system_is_known_by_its_superblock() {
        let folder = tempfile::tempdir().unwrap();
        let device = folder.path().join("slot");
        for part in KNOWN_FILE_SYSTEMS {
            std::fs::write(&device, start_with(&[part])).unwrap();
            assert!(is_known_file_system(&device).unwrap(), "{part:?}");
        }
        let parts: [(usize, &[u8]); 3] =
            [(0, b"hsq"), (1024 + 0x38, &[0x53]), (0x1_0040, b"_BHRfS_")];
        for (at, unknown) in parts {
            std::fs::write(&device, start_with(&[(at, unknown)])).unwrap();
            assert!(!is_known_file_system(&device).unwrap(), "{unknown:?}");
        }
        std::fs::write(&device, "").unwrap();
        assert!(!is_known_file_system(&device).unwrap());
    }

    #[test]
    fn the_options_for_a_device_are_read_only_in_any_case() {
        let folder = tempfile::tempdir().unwrap();
        let device = folder.path().join("slot");
        std::fs::write(&device, "noise").unwrap();
        assert_eq!(slot_mount_options(&device).unwrap(), READ_ONLY_OPTIONS);
        std::fs::write(&device, start_with(&[(0, &b"XFSB"[..])])).unwrap();
        let expected = "ro,nodev,nosuid,noexec,norecovery";
        assert_eq!(slot_mount_options(&device).unwrap(), expected);
        let failure = slot_mount_options(&folder.path().join("missing")).unwrap_err();
        assert!(failure.reason.contains("missing"), "{failure}");
    }
}
