//! The files of the repository.

use std::fs;
use std::path::{Path, PathBuf};

/// A text file of the repository.
#[derive(Clone, Debug)]
pub struct SourceFile {
    /// Path below the repository's root, with `/` between the parts.
    pub path: String,
    /// What it says.
    pub text: String,
}

impl SourceFile {
    /// A file made up for a test of a rule.
    pub fn sample(path: &str, text: &str) -> Self {
        Self {
            path: path.to_owned(),
            text: text.to_owned(),
        }
    }

    /// Whether the file holds tests only.
    pub fn is_test(&self) -> bool {
        self.path.contains("/tests/") || self.path.ends_with("/tests.rs")
    }
}

/// The folder that holds the workspace.
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent()
        .expect("this crate lies in a folder of the repository")
        .to_owned()
}

/// Every text file whose path `wanted` accepts, in the order of their paths. What git would not keep is left out.
pub fn files(wanted: impl Fn(&str) -> bool) -> Vec<SourceFile> {
    let root = root();
    let mut found = Vec::new();
    walk(&root, &root, &wanted, &mut found);
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

/// Whether the path has this ending, such as `rs`.
pub fn ends_in(path: &str, ending: &str) -> bool {
    Path::new(path).extension().is_some_and(|end| end == ending)
}

/// Every Rust file that a person wrote.
pub fn rust_files() -> Vec<SourceFile> {
    files(|path| ends_in(path, "rs") && !path.contains("/generated/"))
}

fn walk(root: &Path, folder: &Path, wanted: &impl Fn(&str) -> bool, found: &mut Vec<SourceFile>) {
    let entries = fs::read_dir(folder).expect("a folder that can be read");
    for entry in entries {
        let path = entry.expect("an entry that can be read").path();
        let below = path.strip_prefix(root).expect("a path below the root");
        let name = below.to_string_lossy().replace('\\', "/");
        if path.is_dir() && !path.is_symlink() {
            if !matches!(name.as_str(), ".git" | "target") {
                walk(root, &path, wanted, found);
            }
        } else if wanted(&name)
            && let Ok(text) = fs::read_to_string(&path)
        {
            found.push(SourceFile { path: name, text });
        }
    }
}
