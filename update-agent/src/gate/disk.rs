//! Whether there is room for a change.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{StatVfsMountFlags, statvfs};

use crate::model::Plan;
use crate::place::Place;

/// What the agent writes down while an image is armed and tried takes no more.
const RECORDS: u64 = 4 << 20;

/// A kernel, with the images that are made for it, takes no more in `/boot`. That is often small and on its own.
const KERNEL: u64 = 128 << 20;

/// Whether each file system that a change writes to can be written and has room; else which has not.
pub fn look(place: &Place, plan: &Plan, min_free: u64) -> Result<(), String> {
    if plan.image.is_some() {
        // Its slot is written by now, the root may be one that cannot be, and no package is touched.
        let state = place.state();
        let path = state.display().to_string();
        return has_room(&path, state, RECORDS.min(min_free));
    }
    let mut seen = Vec::new();
    for (path, needed) in needs(plan, min_free) {
        let inside = place.inside(path);
        let Ok(found) = fs::metadata(&inside) else {
            continue;
        };
        if seen.contains(&found.dev()) {
            continue;
        }
        seen.push(found.dev());
        has_room(path, &inside, needed)?;
    }
    Ok(())
}

/// What must be free where, in bytes; of a file system with several names the first has its greatest need. What packages
/// bring goes to `/usr`; that some of it may go elsewhere is what `min_free` is for.
fn needs(plan: &Plan, min_free: u64) -> [(&'static str, u64); 4] {
    let grows = u64::try_from(plan.disk_bytes).unwrap_or(0);
    let kernel = plan
        .changes
        .iter()
        .any(|change| change.name.starts_with("linux-image") && change.after.is_some());
    [
        ("/usr", grows.saturating_add(min_free)),
        ("/var", min_free),
        ("/", min_free),
        ("/boot", if kernel { KERNEL.min(min_free) } else { 0 }),
    ]
}

fn has_room(path: &str, inside: &Path, needed: u64) -> Result<(), String> {
    let found = match statvfs(inside) {
        Ok(found) => found,
        Err(error) => {
            tracing::warn!(%error, path, "cannot tell how much room there is");
            return Ok(());
        }
    };
    if needed > 0 && found.f_flag.contains(StatVfsMountFlags::RDONLY) {
        return Err(format!("the file system of {path} cannot be written to"));
    }
    if found.f_bavail.saturating_mul(found.f_frsize) < needed {
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
    use crate::model::{Change, ImageChange};

    fn root(folders: &[&str]) -> (tempfile::TempDir, Place) {
        let root = tempfile::tempdir().unwrap();
        for folder in folders {
            fs::create_dir(root.path().join(folder)).unwrap();
        }
        let place = Place::new(root.path(), None);
        (root, place)
    }

    #[test]
    fn a_change_that_fits_may_begin() {
        let (_root, place) = root(&["usr", "var", "boot"]);
        look(&place, &Plan::default(), 1).unwrap();
        let frees = Plan {
            disk_bytes: i64::MIN,
            ..Plan::default()
        };
        look(&place, &frees, 1).unwrap();
    }

    #[test]
    fn a_change_that_does_not_fit_is_told_with_what_it_needs() {
        let (_root, place) = root(&["usr"]);
        let plan = Plan {
            // An exbibyte and a byte.
            disk_bytes: (1 << 60) + 1,
            ..Plan::default()
        };
        assert_eq!(
            look(&place, &plan, 0).unwrap_err(),
            "the file system of /usr has less than 1099511627777 MiB free"
        );
        let (_root, place) = root(&[]);
        assert_eq!(
            look(&place, &Plan::default(), 1 << 60).unwrap_err(),
            "the file system of / has less than 1099511627776 MiB free"
        );
    }

    /// The root of a node of images cannot be written to, and what it says of itself would hold every image back.
    #[test]
    fn an_image_needs_room_for_the_agents_own_records_and_for_nothing_else() {
        let plan = Plan {
            disk_bytes: i64::MAX,
            image: Some(ImageChange::default()),
            ..Plan::default()
        };
        let (root, _) = root(&["usr", "data"]);
        let place = |state: PathBuf| Place::new(root.path(), Some(state));
        look(&place(root.path().join("data")), &plan, 1).unwrap();
        look(&place("/proc".into()), &plan, 0).unwrap();
        assert_eq!(
            look(&place("/proc".into()), &plan, u64::MAX).unwrap_err(),
            "the file system of /proc has less than 4 MiB free"
        );
    }

    #[test]
    fn boot_needs_room_for_a_kernel_and_for_nothing_else() {
        let boot = |name: &str, min_free: u64| {
            let plan = Plan {
                changes: vec![Change {
                    name: name.to_owned(),
                    architecture: "amd64".to_owned(),
                    before: None,
                    after: Some("6.1".to_owned()),
                    suite: String::new(),
                    download_bytes: 0,
                }],
                ..Plan::default()
            };
            let [.., (path, needed)] = needs(&plan, min_free);
            assert_eq!(path, "/boot");
            needed
        };
        assert_eq!(boot("linux-image-amd64", 1 << 40), KERNEL);
        assert_eq!(boot("linux-image-amd64", 5), 5);
        assert_eq!(boot("demo", 1 << 40), 0);
    }
}
