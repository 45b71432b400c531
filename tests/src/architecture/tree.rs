//! The files of the repository.

use std::fs;
use std::path::{Path, PathBuf};

/// A text file of the repository.
#[derive(Clone, Debug)]
pub struct SourceFile {
    /// Path below the root of the repository, with `/` as separator.
    pub path: String,
    /// Content.
    pub text: String,
}

impl SourceFile {
    /// Creates a file for the test of a rule.
    pub fn sample(path: &str, text: &str) -> Self {
        Self { path: path.to_owned(), text: text.to_owned() }
    }

    /// Whether the file contains tests only.
    pub fn is_test(&self) -> bool {
        self.path.contains("/tests/") || self.path.ends_with("/tests.rs")
    }
}

/// Root folder of the workspace.
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().expect("this crate lies in a folder of the repository").to_owned()
}

/// Every text file whose path `accept` accepts, ordered by path. Skips `.git`, `target` and `dist`.
pub fn files(accept: impl Fn(&str) -> bool) -> Vec<SourceFile> {
    let root = root();
    let mut matching = Vec::new();
    walk(&root, &root, &accept, &mut matching);
    matching.sort_by(|a, b| a.path.cmp(&b.path));
    matching
}

/// Whether the path has this extension, such as `rs`.
pub fn ends_in(path: &str, ending: &str) -> bool {
    Path::new(path).extension().is_some_and(|end| end == ending)
}

/// Every Rust file that is not generated.
pub fn rust_files() -> Vec<SourceFile> {
    files(|path| ends_in(path, "rs") && !path.contains("/generated/"))
}

fn walk(
    root: &Path,
    folder: &Path,
    accept: &impl Fn(&str) -> bool,
    matching: &mut Vec<SourceFile>,
) {
    let entries = fs::read_dir(folder).expect("a folder that can be read");
    for entry in entries {
        let path = entry.expect("an entry that can be read").path();
        let below = path.strip_prefix(root).expect("a path below the root");
        let name = below.to_string_lossy().replace('\\', "/");
        if path.is_dir() && !path.is_symlink() {
            if !matches!(name.as_str(), ".git" | "target" | "dist") {
                walk(root, &path, accept, matching);
            }
        } else if accept(&name)
            && let Ok(text) = fs::read_to_string(&path)
        {
            matching.push(SourceFile { path: name, text });
        }
    }
}
