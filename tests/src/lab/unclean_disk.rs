//! A file system that was not unmounted, and what mounts change in it.

use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::boot::skip_test;
use super::disk::try_output;
use super::machine::{as_root, succeed};

/// Makes a file system in the folder `$1` that was copied while it was mounted and in use. Its journal is not replayed.
const MAKE_DISK: &str =
    "set -eu; cd \"$1\"; umask 022; mkdir mounted; truncate --size=16M used; mke2fs -q -t ext4 used
    mount -o loop used mounted; trap 'umount mounted' EXIT
    echo data > mounted/file; sync; cp used unclean";

/// Mounts a copy of the file `unclean` in the folder `$1` with the options `$2`, and prints its digests before and after.
const MOUNT_COPY: &str = "set -eu; cd \"$1\"; cp unclean copy; sha256sum < copy
    device=$(losetup --find --show copy); trap 'losetup --detach \"$device\"' EXIT
    mount -o \"$2\" \"$device\" mounted; ls mounted > /dev/null; umount mounted
    blockdev --flushbufs \"$device\"; sync; sha256sum < copy";

/// A disk with an ext4 file system that needs recovery.
#[derive(Debug)]
pub struct UncleanDisk {
    folder: TempDir,
}

impl UncleanDisk {
    /// Makes the disk. If loop devices cannot be used here, prints one line and returns `None`, or fails if these tests are
    /// required.
    pub fn create() -> Option<Self> {
        if let Err(why) = try_output(as_root("losetup", &[]).arg("--find")) {
            return skip_test(&format!("disk images cannot be mounted here: {why}"));
        }
        let folder = tempfile::tempdir().expect("a folder");
        succeed(as_root("sh", &[]).args(["-c", MAKE_DISK, "sh"]).arg(folder.path()));
        Some(Self { folder })
    }

    pub fn image(&self) -> PathBuf {
        self.folder.path().join("unclean")
    }

    /// Whether a mount with these options changes the disk.
    pub fn is_changed_by_mount(&self, options: &str) -> bool {
        let mut mounting = as_root("sh", &[]);
        mounting.args(["-c", MOUNT_COPY, "sh"]).arg(self.folder.path()).arg(options);
        let digests = succeed(&mut mounting);
        let digests: Vec<&str> = digests.lines().collect();
        assert_eq!(digests.len(), 2, "{digests:?}");
        digests[0] != digests[1]
    }
}

impl Drop for UncleanDisk {
    fn drop(&mut self) {
        remove_contents(self.folder.path());
    }
}

/// The files belong to root.
fn remove_contents(folder: &Path) {
    let names = ["mounted", "used", "unclean", "copy"].map(|name| folder.join(name));
    let _gone = as_root("rm", &[]).arg("-rf").args(names).status();
}
