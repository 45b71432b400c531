//! The data directory: keys, certificates, the private Postgres.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

/// Makes the directory if it is not there, and answers where it really is. One of somebody else is refused.
///
/// Others may pass through: the private Postgres runs as another user when we are root. What is secret is in files and
/// folders that are closed.
pub(crate) fn open(path: &Path) -> anyhow::Result<PathBuf> {
    let made = DirBuilder::new().recursive(true).mode(0o711).create(path);
    made.with_context(|| {
        let path = path.display();
        format!("cannot make the data directory {path}; choose another with --data-dir")
    })?;
    let found = fs::metadata(path);
    let owner = found
        .with_context(|| format!("cannot look at {}", path.display()))?
        .uid();
    must_be_ours(path, owner, rustix::process::geteuid().as_raw())?;
    absolute(path).with_context(|| format!("cannot find {}", path.display()))
}

fn absolute(path: &Path) -> io::Result<PathBuf> {
    fs::canonicalize(path)
}

fn must_be_ours(path: &Path, owner: u32, us: u32) -> anyhow::Result<()> {
    if owner != us {
        let path = path.display();
        bail!(
            "the data directory {path} belongs to the user id {owner}, but evenkeeld runs as {us}: run it as its owner, \
             or mend it with `chown -R {us} {path}`, or choose another with --data-dir"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_made_and_found_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b");
        assert_eq!(open(&path).unwrap(), open(&path).unwrap());
    }

    #[test]
    fn a_directory_of_somebody_else_is_refused_with_what_to_do() {
        let error = must_be_ours(Path::new("/var/lib/evenkeel"), 0, 1000)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("belongs to the user id 0, but evenkeeld runs as 1000"),
            "{error}"
        );
        assert!(error.contains("chown -R 1000 /var/lib/evenkeel"), "{error}");
    }
}
