//! A signed apt repository of small packages, each of which shows one way an update can go.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use tempfile::TempDir;

use super::Lab;
use super::machine::{command, script, succeed};
use super::sweeper::Sweeper;

/// A repository that nodes see in a folder of theirs, [`Repository::INSIDE`] unless it is another one.
#[derive(Debug)]
pub struct Repository {
    folder: PathBuf,
    inside: String,
    url: String,
    variables: Vec<(String, String)>,
}

impl Repository {
    /// Where a node finds it.
    pub const INSIDE: &str = "/srv/repo";

    /// A repository that has version 1.0 of every package of `make-test-debs`.
    pub fn new(lab: &Lab, name: &str) -> Self {
        let repository = Self::empty(lab, name, Self::INSIDE);
        repository.publish("_1.0_");
        repository
    }

    /// A repository that has nothing yet, for nodes that see it at `inside`.
    pub fn empty(lab: &Lab, name: &str, inside: &str) -> Self {
        Self {
            folder: lab.path(name),
            inside: inside.to_owned(),
            url: format!("file:{inside}"),
            variables: Vec::new(),
        }
    }

    /// The same, made with a variable that `make-apt-repo` knows, such as `DIST`.
    #[must_use]
    pub fn made_with(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The same for nodes that reach it by a URL.
    #[must_use]
    pub fn reached_by(mut self, url: String) -> Self {
        self.url = url;
        self
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
                .envs(self.variables.iter().cloned())
                .arg(&self.folder)
                .arg(&self.url)
                .args(debs),
        );
    }

    /// Where it lies outside.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Where a node finds it.
    pub fn inside(&self) -> &str {
        &self.inside
    }

    /// What a node must be told to use it: a stanza with the key inside.
    pub fn sources(&self) -> String {
        let text = fs::read_to_string(self.folder.join("repo.sources"));
        text.expect("something was published")
    }
}

/// The packages, made once per test program.
fn debs() -> &'static Path {
    static DEBS: OnceLock<(TempDir, Sweeper)> = OnceLock::new();
    let (folder, _) = DEBS.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let sweeper = Sweeper::of(folder.path(), None);
        succeed(command(script("make-test-debs")).arg(folder.path()));
        (folder, sweeper)
    });
    folder.path()
}
