//! Paths of the agent in an image. The agent opens them by name, so a link of the image must not
//! lead to the files of the system that the agent runs on.

use std::fs;
use std::path::Path;

use anyhow::{Context, bail, ensure};

/// Folders of an image that the agent reads or writes.
const USED_FOLDERS: [&str; 12] = [
    "etc/apt/keyrings",
    "etc/apt/sources.list.d",
    "etc/apt/trusted.gpg.d",
    "etc/evenkeel/keys.d",
    "usr/share/keyrings",
    "var/cache/apt/archives",
    "var/lib/apt/lists",
    "var/lib/dpkg/info",
    "var/lib/dpkg/updates",
    "var/lib/evenkeel-agent/apt-hooks",
    "var/lib/evenkeel-agent/configuration",
    "var/log/apt",
];

/// Checks that the folders that the agent uses are in the image. `root` has no links.
///
/// # Errors
/// A folder is outside of the image, or cannot be found.
pub fn check_image_paths(root: &Path) -> anyhow::Result<()> {
    for folder in USED_FOLDERS {
        let path = root.join(folder);
        // The deepest part that exists, also if it is a link to nothing.
        let existing = path.ancestors().find(|part| fs::symlink_metadata(part).is_ok());
        let Some(existing) = existing else { bail!("cannot find {}", root.display()) };
        let real = fs::canonicalize(existing).with_context(|| {
            format!("cannot follow the link {} of the image", existing.display())
        })?;
        ensure!(
            real.starts_with(root),
            "{} leads to {}, which is not in the image; nothing was changed",
            existing.display(),
            real.display()
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_link_must_stay_in_the_image() {
        let folder = tempfile::tempdir().unwrap();
        let folder = fs::canonicalize(folder.path()).unwrap();
        let (root, outside) = (folder.join("root"), folder.join("outside"));
        for path in [&root.join("etc"), &root.join("var/lib"), &root.join("data"), &outside] {
            fs::create_dir_all(path).unwrap();
        }
        check_image_paths(&root).unwrap();
        symlink("../../data", root.join("var/lib/evenkeel-agent")).unwrap();
        check_image_paths(&root).unwrap();
        for (path, target, reason) in [
            ("etc/evenkeel", outside.as_path(), "which is not in the image"),
            ("var/lib/dpkg", outside.as_path(), "which is not in the image"),
            ("var/lib/apt", Path::new("/no/such/folder"), "cannot follow the link"),
            ("data/configuration", outside.as_path(), "which is not in the image"),
        ] {
            symlink(target, root.join(path)).unwrap();
            let error = check_image_paths(&root).unwrap_err().to_string();
            assert!(error.contains(reason), "{path}: {error}");
            fs::remove_file(root.join(path)).unwrap();
        }
    }
}
