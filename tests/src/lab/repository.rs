//! A signed apt repository of small packages. Each package shows one way in which an update can go.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use tempfile::TempDir;

use super::Lab;
use super::machine::{command, script, succeed};
use super::sweeper::Sweeper;

/// A repository that nodes see in one of their folders, by default [`Repository::INSIDE`].
#[derive(Debug)]
pub struct Repository {
    folder: PathBuf,
    inside: String,
    url: String,
    variables: Vec<(String, String)>,
}

impl Repository {
    /// Default folder of the repository on a node.
    pub const INSIDE: &str = "/srv/repo";

    /// Creates a repository with version 1.0 of every package of `make-test-debs`.
    pub fn new(lab: &Lab, name: &str) -> Self {
        let repository = Self::empty(lab, name, Self::INSIDE);
        repository.publish("_1.0_");
        repository
    }

    /// Creates an empty repository that nodes see at `inside`.
    pub fn empty(lab: &Lab, name: &str, inside: &str) -> Self {
        Self {
            folder: lab.path(name),
            inside: inside.to_owned(),
            url: format!("file:{inside}"),
            variables: Vec::new(),
        }
    }

    /// Sets a variable of `make-apt-repo`, such as `DIST`.
    #[must_use]
    pub fn with_variable(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Sets the URL by which nodes reach the repository.
    #[must_use]
    pub fn with_url(mut self, url: String) -> Self {
        self.url = url;
        self
    }

    /// Adds the packages whose file name contains this part, such as `demo-hello_1.1` or `_1.1_`, and signs the
    /// repository again.
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

    /// Folder of the repository on this machine.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Folder of the repository on a node.
    pub fn inside(&self) -> &str {
        &self.inside
    }

    /// The apt source of the repository, in deb822 format with its key.
    pub fn apt_source(&self) -> String {
        let text = fs::read_to_string(self.folder.join("repo.sources"));
        text.expect("a published repository")
    }
}

/// Folder of the packages. They are built once per test program.
fn debs() -> &'static Path {
    static DEBS: OnceLock<(TempDir, Sweeper)> = OnceLock::new();
    let (folder, _) = DEBS.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let sweeper = Sweeper::start(folder.path(), None);
        succeed(command(script("make-test-debs")).arg(folder.path()));
        (folder, sweeper)
    });
    folder.path()
}
