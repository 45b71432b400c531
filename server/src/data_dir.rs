//! Data directory: keys, certificates and the private Postgres.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

/// Creates the directory if it does not exist, and returns its canonical path. A directory of
/// another user is rejected.
///
/// The directory can be traversed by other users, because the private Postgres runs as another user
/// if the server runs as root. Secrets are in files and directories with restricted permissions.
pub(crate) fn open(path: &Path) -> anyhow::Result<PathBuf> {
    let created = DirBuilder::new().recursive(true).mode(0o711).create(path);
    created.with_context(|| {
        let path = path.display();
        format!("cannot create the data directory {path}; choose another with --data-dir")
    })?;
    let metadata = fs::metadata(path);
    let owner =
        metadata.with_context(|| format!("cannot read the metadata of {}", path.display()))?.uid();
    check_owner(path, owner, rustix::process::geteuid().as_raw())?;
    canonical_path(path).with_context(|| format!("cannot resolve {}", path.display()))
}

/// Returns the canonical path of the directory if it exists, else the path as it is. Creates nothing.
pub(crate) fn find(path: &Path) -> anyhow::Result<PathBuf> {
    if path.exists() { open(path) } else { Ok(path.to_owned()) }
}

fn canonical_path(path: &Path) -> io::Result<PathBuf> {
    fs::canonicalize(path)
}

fn check_owner(path: &Path, owner: u32, us: u32) -> anyhow::Result<()> {
    if owner != us {
        let path = path.display();
        bail!(
            "the data directory {path} belongs to the user id {owner}, but evenkeeld runs as {us}: run it as its owner, \
             or fix it with `chown -R {us} {path}`, or choose another with --data-dir"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_created_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b");
        assert_eq!(open(&path).unwrap(), open(&path).unwrap());
    }

    #[test]
    fn a_directory_of_another_user_is_rejected_with_instructions() {
        let error = check_owner(Path::new("/var/lib/evenkeel"), 0, 1000).unwrap_err().to_string();
        assert!(error.contains("belongs to the user id 0, but evenkeeld runs as 1000"), "{error}");
        assert!(error.contains("chown -R 1000 /var/lib/evenkeel"), "{error}");
    }
}
