//! Checks the free disk space for a change.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{StatVfsMountFlags, statvfs};

use crate::model::UpdatePlan;
use crate::paths::AgentPaths;

/// Maximum size of the agent's own files while an image is armed and tried, in bytes.
const RECORDS_BYTES: u64 = 4 << 20;

/// Maximum size of a kernel with its initramfs in `/boot`, which is often a small file system of
/// its own, in bytes.
const KERNEL_BYTES: u64 = 128 << 20;

/// Checks that each file system that the change writes to is writable and has enough space. The
/// error names the first one that does not.
pub fn check_disk_space(
    paths: &AgentPaths,
    plan: &UpdatePlan,
    min_free: u64,
) -> Result<(), String> {
    if plan.image.is_some() {
        // The slot is already written, the root may be read-only, and no package is changed.
        let state = paths.state();
        let path = state.display().to_string();
        return check_file_system(&path, state, RECORDS_BYTES.min(min_free));
    }
    let mut checked = Vec::new();
    for (path, needed) in required_space(plan, min_free) {
        let inside = paths.inside(path);
        let Ok(metadata) = fs::metadata(&inside) else {
            continue;
        };
        if checked.contains(&metadata.dev()) {
            continue;
        }
        checked.push(metadata.dev());
        check_file_system(path, &inside, needed)?;
    }
    Ok(())
}

/// Required space in bytes by path. If several paths are on the same file system, the first one has
/// the largest requirement. Packages are assumed to grow `/usr`; `min_free` covers the other file
/// systems.
fn required_space(plan: &UpdatePlan, min_free: u64) -> [(&'static str, u64); 4] {
    let grows = u64::try_from(plan.disk_bytes).unwrap_or(0);
    let kernel = plan
        .changes
        .iter()
        .any(|change| change.name.starts_with("linux-image") && change.after.is_some());
    [
        ("/usr", grows.saturating_add(min_free)),
        ("/var", min_free),
        ("/", min_free),
        ("/boot", if kernel { KERNEL_BYTES.min(min_free) } else { 0 }),
    ]
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
    use crate::model::{ImageChange, PackageChange};

    fn root(folders: &[&str]) -> (tempfile::TempDir, AgentPaths) {
        let root = tempfile::tempdir().unwrap();
        for folder in folders {
            fs::create_dir(root.path().join(folder)).unwrap();
        }
        let paths = AgentPaths::new(root.path(), None);
        (root, paths)
    }

    #[test]
    fn a_change_that_fits_may_begin() {
        let (_root, paths) = root(&["usr", "var", "boot"]);
        check_disk_space(&paths, &UpdatePlan::default(), 1).unwrap();
        let frees = UpdatePlan { disk_bytes: i64::MIN, ..UpdatePlan::default() };
        check_disk_space(&paths, &frees, 1).unwrap();
    }

    #[test]
    fn a_change_that_does_not_fit_names_the_required_space() {
        let (_root, paths) = root(&["usr"]);
        let plan = UpdatePlan {
            // One exbibyte and one byte.
            disk_bytes: (1 << 60) + 1,
            ..UpdatePlan::default()
        };
        assert_eq!(
            check_disk_space(&paths, &plan, 0).unwrap_err(),
            "the file system of /usr has less than 1099511627777 MiB free"
        );
        let (_root, paths) = root(&[]);
        assert_eq!(
            check_disk_space(&paths, &UpdatePlan::default(), 1 << 60).unwrap_err(),
            "the file system of / has less than 1099511627776 MiB free"
        );
    }

    /// The root of an image node is read-only, which must not block updates of the image.
    #[test]
    fn an_image_needs_space_for_the_agents_records_only() {
        let plan = UpdatePlan {
            disk_bytes: i64::MAX,
            image: Some(ImageChange::default()),
            ..UpdatePlan::default()
        };
        let (root, _) = root(&["usr", "data"]);
        let paths_with_state = |state: PathBuf| AgentPaths::new(root.path(), Some(state));
        check_disk_space(&paths_with_state(root.path().join("data")), &plan, 1).unwrap();
        check_disk_space(&paths_with_state("/proc".into()), &plan, 0).unwrap();
        assert_eq!(
            check_disk_space(&paths_with_state("/proc".into()), &plan, u64::MAX).unwrap_err(),
            "the file system of /proc has less than 4 MiB free"
        );
    }

    #[test]
    fn boot_needs_space_for_a_kernel_only() {
        let boot = |name: &str, min_free: u64| {
            let plan = UpdatePlan {
                changes: vec![PackageChange {
                    name: name.to_owned(),
                    architecture: "amd64".to_owned(),
                    before: None,
                    after: Some("6.1".to_owned()),
                    suite: String::new(),
                    download_bytes: 0,
                }],
                ..UpdatePlan::default()
            };
            let [.., (path, needed)] = required_space(&plan, min_free);
            assert_eq!(path, "/boot");
            needed
        };
        assert_eq!(boot("linux-image-amd64", 1 << 40), KERNEL_BYTES);
        assert_eq!(boot("linux-image-amd64", 5), 5);
        assert_eq!(boot("demo", 1 << 40), 0);
    }
}
