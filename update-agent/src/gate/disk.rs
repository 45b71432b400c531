//! Checks the free disk space for a change.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{StatVfsMountFlags, statvfs};

use crate::model::SpaceNeed;
use crate::paths::AgentPaths;

/// Files that must be possible in addition on a file system that a change writes to. The number of files
/// of an update is not known in advance.
const MIN_FREE_INODES: u64 = 1_000;

/// Space that all parts of a change need on one file system.
struct FileSystemNeed {
    device: u64,
    /// The first path on it in the managed root, for a person.
    path: String,
    /// The same path on this machine.
    inside: PathBuf,
    /// Bytes that the change adds.
    bytes: u64,
    /// Bytes that must stay free.
    reserved_bytes: u64,
}

/// Checks that each file system that the change writes to is writable and has enough space. The
/// error names the first one that does not.
pub fn check_disk_space(
    paths: &AgentPaths,
    needs: &[SpaceNeed],
    min_free: u64,
) -> Result<(), String> {
    for need in sum_per_file_system(paths, needs, min_free) {
        let required = need.bytes.saturating_add(need.reserved_bytes);
        check_file_system(&need.path, &need.inside, required)?;
    }
    Ok(())
}

/// Checks after a change that each file system that it has written to has the space that must stay
/// free. A file system that is read-only again is not checked.
pub fn check_reserved_space(
    paths: &AgentPaths,
    needs: &[SpaceNeed],
    min_free: u64,
) -> Result<(), String> {
    let needs: Vec<_> = needs.iter().map(|need| SpaceNeed { bytes: 0, ..need.clone() }).collect();
    for need in sum_per_file_system(paths, &needs, min_free) {
        if !is_read_only(&need.inside) {
            check_file_system(&need.path, &need.inside, need.reserved_bytes)?;
        }
    }
    Ok(())
}

fn is_read_only(path: &Path) -> bool {
    statvfs(path).is_ok_and(|stats| stats.f_flag.contains(StatVfsMountFlags::RDONLY))
}

/// Adds the needs on the same file system: each module plans as if it changed the node alone. A need
/// on a missing path is left out.
fn sum_per_file_system(
    paths: &AgentPaths,
    needs: &[SpaceNeed],
    min_free: u64,
) -> Vec<FileSystemNeed> {
    let mut sums: Vec<FileSystemNeed> = Vec::new();
    for need in needs {
        let (path, inside) = match need.path.as_str() {
            "" => (paths.state().display().to_string(), paths.state().to_owned()),
            path => (path.to_owned(), paths.inside(path)),
        };
        let Ok(metadata) = fs::metadata(&inside) else {
            continue;
        };
        let (device, reserved_bytes) = (metadata.dev(), need.reserved_bytes(min_free));
        match sums.iter_mut().find(|sum| sum.device == device) {
            Some(sum) => {
                sum.bytes = sum.bytes.saturating_add(need.bytes);
                sum.reserved_bytes = sum.reserved_bytes.max(reserved_bytes);
            }
            None => sums.push(FileSystemNeed {
                device,
                path,
                inside,
                bytes: need.bytes,
                reserved_bytes,
            }),
        }
    }
    sums
}

fn check_file_system(path: &str, inside: &Path, needed: u64) -> Result<(), String> {
    let stats = match statvfs(inside) {
        Ok(stats) => stats,
        Err(error) => {
            tracing::warn!(%error, path, "cannot determine the free space");
            return Ok(());
        }
    };
    if stats.f_flag.contains(StatVfsMountFlags::RDONLY) {
        // Nothing is written to it.
        if needed == 0 {
            return Ok(());
        }
        return Err(format!("the file system of {path} is read-only"));
    }
    check_inodes(path, stats.f_files, stats.f_favail)?;
    if stats.f_bavail.saturating_mul(stats.f_frsize) < needed {
        return Err(format!(
            "the file system of {path} has less than {} MiB free",
            needed.div_ceil(1 << 20)
        ));
    }
    Ok(())
}

/// Checks the inodes of a file system. `total` is 0 if its number of files has no limit. A small file
/// system is full if less than a tenth is free. The error has no value that changes with each file.
fn check_inodes(path: &str, total: u64, free: u64) -> Result<(), String> {
    let needed = MIN_FREE_INODES.min(total / 10);
    if free >= needed {
        return Ok(());
    }
    Err(format!("the file system of {path} has space for fewer than {needed} more files (inodes)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root(folders: &[&str]) -> (tempfile::TempDir, AgentPaths) {
        let root = tempfile::tempdir().unwrap();
        for folder in folders {
            fs::create_dir(root.path().join(folder)).unwrap();
        }
        let paths = AgentPaths::new(root.path(), None);
        (root, paths)
    }

    fn need(path: &str, bytes: u64) -> SpaceNeed {
        SpaceNeed { path: path.into(), bytes, max_free: None }
    }

    #[test]
    fn a_change_that_fits_may_begin() {
        let (_root, paths) = root(&["usr", "var", "boot"]);
        let needs = ["/usr", "/var", "/boot", "/missing"].map(|path| need(path, 0));
        check_disk_space(&paths, &needs, 1).unwrap();
        check_disk_space(&paths, &[], u64::MAX).unwrap();
    }

    #[test]
    fn a_change_that_does_not_fit_names_the_required_space() {
        let (_root, paths) = root(&["usr"]);
        // One exbibyte and one byte.
        assert_eq!(
            check_disk_space(&paths, &[need("/usr", (1 << 60) + 1)], 0).unwrap_err(),
            "the file system of /usr has less than 1099511627777 MiB free"
        );
        assert_eq!(
            check_disk_space(&paths, &[need("/", 0)], 1 << 60).unwrap_err(),
            "the file system of / has less than 1099511627776 MiB free"
        );
    }

    #[test]
    fn after_a_change_only_the_reserve_must_be_free() {
        let (_root, paths) = root(&["usr"]);
        let needs = [need("/usr", 1 << 60)];
        check_reserved_space(&paths, &needs, 1).unwrap();
        assert_eq!(
            check_reserved_space(&paths, &needs, 1 << 60).unwrap_err(),
            "the file system of /usr has less than 1099511627776 MiB free"
        );
    }

    #[test]
    fn a_file_system_without_inodes_is_full() {
        check_inodes("/usr", 0, 0).unwrap();
        check_inodes("/usr", 1_000_000, 1_000).unwrap();
        check_inodes("/boot", 500, 50).unwrap();
        assert!(check_inodes("/boot", 500, 49).is_err());
        assert_eq!(
            check_inodes("/usr", 1_000_000, 999).unwrap_err(),
            "the file system of /usr has space for fewer than 1000 more files (inodes)"
        );
    }

    /// As with an image, packages and a third module in one change.
    #[test]
    fn the_needs_of_several_modules_on_one_file_system_are_added() {
        let (root, _) = root(&["usr", "data"]);
        let paths = AgentPaths::new(root.path(), Some(root.path().join("data")));
        let state = |bytes| SpaceNeed { bytes, max_free: Some(4 << 20), ..SpaceNeed::default() };
        let mut needs = [state(1 << 20), need("/usr", 1 << 60), need("/", 1 << 60)];
        let required_mebibytes = |needs: &[SpaceNeed], min_free| {
            let error = check_disk_space(&paths, needs, min_free).unwrap_err();
            let (_, rest) = error.split_once(" less than ").unwrap();
            rest.strip_suffix(" MiB free").unwrap().parse::<u64>().unwrap()
        };
        for _ in 0..needs.len() {
            needs.rotate_left(1);
            assert_eq!(required_mebibytes(&needs, 0), (1 << 41) + 1, "{needs:?}");
            // The largest reserve counts, and counts once.
            assert_eq!(required_mebibytes(&needs, 3 << 60), (5 << 40) + 1, "{needs:?}");
        }
        needs[0].bytes = u64::MAX;
        assert_eq!(required_mebibytes(&needs, u64::MAX), 1 << 44);
    }

    /// The root of an image node is read-only, which must not block updates of the image.
    #[test]
    fn the_state_directory_may_be_outside_of_the_root() {
        let needs = [SpaceNeed { max_free: Some(4 << 20), ..SpaceNeed::default() }];
        let (root, _) = root(&["usr", "data"]);
        let paths_with_state = |state: PathBuf| AgentPaths::new(root.path(), Some(state));
        check_disk_space(&paths_with_state(root.path().join("data")), &needs, 1).unwrap();
        check_disk_space(&paths_with_state("/proc".into()), &needs, 0).unwrap();
        assert_eq!(
            check_disk_space(&paths_with_state("/proc".into()), &needs, u64::MAX).unwrap_err(),
            "the file system of /proc has less than 4 MiB free"
        );
    }
}
