//! Checks the free disk space for a change.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{StatVfsMountFlags, statvfs};

use crate::model::SpaceNeed;
use crate::paths::AgentPaths;

/// Checks that each file system that the change writes to is writable and has enough space. The
/// error names the first one that does not. If several needs are on the same file system, the first
/// one counts.
pub fn check_disk_space(
    paths: &AgentPaths,
    needs: &[SpaceNeed],
    min_free: u64,
) -> Result<(), String> {
    let mut checked = Vec::new();
    for need in needs {
        let (path, inside) = match need.path.as_str() {
            "" => (paths.state().display().to_string(), paths.state().to_owned()),
            path => (path.to_owned(), paths.inside(path)),
        };
        let Ok(metadata) = fs::metadata(&inside) else {
            continue;
        };
        if checked.contains(&metadata.dev()) {
            continue;
        }
        checked.push(metadata.dev());
        check_file_system(&path, &inside, need.required_bytes(min_free))?;
    }
    Ok(())
}

fn check_file_system(path: &str, inside: &Path, needed: u64) -> Result<(), String> {
    let stats = match statvfs(inside) {
        Ok(stats) => stats,
        Err(error) => {
            tracing::warn!(%error, path, "cannot determine the free space");
            return Ok(());
        }
    };
    if needed > 0 && stats.f_flag.contains(StatVfsMountFlags::RDONLY) {
        return Err(format!("the file system of {path} is read-only"));
    }
    if stats.f_bavail.saturating_mul(stats.f_frsize) < needed {
        return Err(format!(
            "the file system of {path} has less than {} MiB free",
            needed.div_ceil(1 << 20)
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

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
        let needs = [need("/usr", (1 << 60) + 1), need("/", u64::MAX)];
        assert_eq!(
            check_disk_space(&paths, &needs, 0).unwrap_err(),
            "the file system of /usr has less than 1099511627777 MiB free"
        );
        assert_eq!(
            check_disk_space(&paths, &[need("/", 0)], 1 << 60).unwrap_err(),
            "the file system of / has less than 1099511627776 MiB free"
        );
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
