//! A signed apt repository of small packages, each of which shows one way an update can go.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use tempfile::TempDir;

use super::Lab;
use super::machine::{command, script, succeed};

/// A repository that nodes see at [`Repository::INSIDE`].
#[derive(Debug)]
pub struct Repository {
    folder: PathBuf,
}

impl Repository {
    /// Where a node finds it.
    pub const INSIDE: &str = "/srv/repo";

    /// A repository that has version 1.0 of every package of `make-test-debs`.
    pub fn new(lab: &Lab, name: &str) -> Self {
        let repository = Self {
            folder: lab.path(name),
        };
        repository.publish("_1.0_");
        repository
    }

    /// Adds the packages whose file name has this part, such as `demo-hello_1.1` or `_1.1_`, and signs anew.
    pub fn publish(&self, part: &str) {
        let debs: Vec<PathBuf> = fs::read_dir(debs())
            .expect("a folder of packages")
            .map(|entry| entry.expect("an entry").path())
            .filter(|path| path.to_string_lossy().contains(part))
            .collect();
        assert!(!debs.is_empty(), "no package is named *{part}*");
        succeed(
            command(script("make-apt-repo"))
                .arg(&self.folder)
                .arg(format!("file:{}", Self::INSIDE))
                .args(debs),
        );
    }

    /// Where it lies outside.
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

/// The packages, made once per test program.
fn debs() -> &'static Path {
    static DEBS: OnceLock<TempDir> = OnceLock::new();
    let folder = DEBS.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a temporary folder");
        succeed(command(script("make-test-debs")).arg(folder.path()));
        folder
    });
    folder.path()
}
