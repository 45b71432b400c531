//! The .debs of a plan: fetched into a folder of the agent, checked, flushed, and retained until the new state is verified.
//! They make it possible to finish an update after a power cut.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Sha256, Sha512};

use super::apt_cache::AptCache;
use super::staging::{STAGING_NAME, StagingFolder};
use crate::durable::{self, FileError};
use crate::paths::{AgentPaths, JOURNAL_FILE};

/// The folder, as a path inside the managed root.
pub const ARCHIVES_FOLDER: &str = "/var/lib/evenkeel-agent/archives";

/// File in the folder that marks its content as needed by a person.
const RETENTION_MARK: &str = "needed";

/// File in the folder with the path of the state directory of the agent that uses it.
const OWNER_FILE: &str = "state-dir";

/// A hash from a signed index. apt also offers weaker hashes; they are not accepted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Digest {
    /// SHA-256, lower-case hexadecimal.
    Sha256(String),
    /// SHA-512, lower-case hexadecimal.
    Sha512(String),
}

impl Digest {
    /// Parses apt's `NAME:VALUE`.
    pub fn parse(text: &str) -> Option<Self> {
        let (name, value) = text.split_once(':')?;
        let (length, digest): (_, fn(String) -> Self) = match name {
            "SHA256" => (64, Self::Sha256),
            "SHA512" => (128, Self::Sha512),
            _ => return None,
        };
        let sound = value.len() == length && value.bytes().all(|byte| byte.is_ascii_hexdigit());
        sound.then(|| digest(value.to_ascii_lowercase()))
    }

    fn matches(&self, mut content: impl Read) -> io::Result<bool> {
        Ok(match self {
            Self::Sha256(value) => *value == hash_content::<Sha256>(&mut content)?,
            Self::Sha512(value) => *value == hash_content::<Sha512>(&mut content)?,
        })
    }
}

fn hash_content<H: sha2::Digest>(content: &mut impl Read) -> io::Result<String> {
    let mut hasher = H::new();
    let mut buffer = vec![0; 128 << 10];
    loop {
        match content.read(&mut buffer)? {
            0 => return Ok(hex(&hasher.finalize())),
            read => hasher.update(&buffer[..read]),
        }
    }
}

/// Encodes bytes as lower-case hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        fmt::Write::write_fmt(&mut text, format_args!("{byte:02x}"))
            .expect("a String takes every text");
        text
    })
}

/// A .deb of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Deb {
    pub name: String,
    /// Size in bytes.
    pub size: u64,
    /// Expected hash.
    pub digest: Digest,
    /// The package as an argument of apt: `NAME[:ARCH]=VERSION`.
    pub apt_argument: String,
    /// URI of the file; empty if only apt knows it.
    #[serde(default)]
    pub uri: String,
}

impl Deb {
    /// Sum of the sizes in bytes. An index may state any size.
    pub fn total_bytes<'a>(debs: impl IntoIterator<Item = &'a Self>) -> u64 {
        debs.into_iter().fold(0, |sum, deb| deb.size.saturating_add(sum))
    }

    /// The path inside the managed root.
    pub fn path(&self) -> String {
        format!("{ARCHIVES_FOLDER}/{}", self.name)
    }

    /// The path inside the managed root to which apt downloads the file.
    pub fn staging_path(&self) -> String {
        format!("{ARCHIVES_FOLDER}/{STAGING_NAME}/{}", self.name)
    }
}

/// The folder with the .debs.
#[derive(Debug)]
pub struct Archives {
    folder: PathBuf,
    /// State directory of this agent. Another agent may use the folder with another one.
    state: PathBuf,
    staging: StagingFolder,
    cache: AptCache,
}

impl Archives {
    /// The folder below the managed root.
    pub fn new(paths: &AgentPaths) -> Self {
        Self {
            folder: paths.inside(ARCHIVES_FOLDER),
            state: paths.state().to_owned(),
            staging: StagingFolder::new(paths),
            cache: AptCache::new(paths),
        }
    }

    /// The state directory of another agent whose open update needs the files; `None` if there is
    /// none. That agent may be stopped and finish the update later.
    pub fn other_user(&self) -> Option<PathBuf> {
        let owner = fs::read(self.folder.join(OWNER_FILE)).ok()?;
        let state = PathBuf::from(OsString::from_vec(owner));
        (state != self.state && state.join(JOURNAL_FILE).exists()).then_some(state)
    }

    /// Creates the folder, with the subfolder for downloads.
    pub fn create(&self) -> Result<(), FileError> {
        durable::create_folder(&self.folder, 0o755)?;
        self.staging.create()?;
        let owner = self.state.as_os_str().as_bytes();
        durable::replace_file(&self.folder.join(OWNER_FILE), owner, 0o644)
    }

    /// Whether the folder exists.
    pub fn exists(&self) -> bool {
        self.folder.exists()
    }

    /// Marks the files as needed by a person, or removes the mark. Marked files are retained after the attempt, until a
    /// later plan finds that dpkg's database is consistent.
    pub fn set_retained(&self, is_needed: bool) -> Result<(), FileError> {
        let mark = self.folder.join(RETENTION_MARK);
        if is_needed && self.exists() {
            durable::replace_file(&mark, b"", 0o600)
        } else if !is_needed && mark.exists() {
            durable::remove_file(&mark)
        } else {
            Ok(())
        }
    }

    /// Whether the files are retained for a person.
    pub fn is_retained(&self) -> bool {
        self.folder.join(RETENTION_MARK).exists()
    }

    /// Removes the folder with all files.
    pub fn remove_all(&self) -> Result<(), FileError> {
        match fs::remove_dir_all(&self.folder) {
            Ok(()) => durable::flush_folder(&self.folder),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(FileError::while_doing("remove", &self.folder)(error)),
        }
    }

    /// The folder itself.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Moves the downloaded files into the folder. Their content is not checked.
    pub fn move_downloads(&self, debs: &[&Deb]) -> Result<(), FileError> {
        self.staging.move_complete(debs, &self.folder)
    }

    /// Names of the files that apt seems to have in its cache.
    pub fn find_cached(&self, debs: &[Deb]) -> BTreeSet<String> {
        self.cache.find_files(debs)
    }

    /// Copies the files that apt has in its cache into the folder. Their content is not checked.
    pub fn copy_cached(&self, debs: &[&Deb]) -> Result<(), FileError> {
        self.cache.copy_files(debs, &self.folder)
    }

    /// The files that are missing. Wrong files are removed.
    pub fn missing_files<'a>(&self, debs: &'a [Deb]) -> Result<Vec<&'a Deb>, FileError> {
        let mut missing = Vec::new();
        for deb in debs {
            let path = self.folder.join(&deb.name);
            if self.contains(deb)? {
                continue;
            }
            durable::remove_file(&path)?;
            missing.push(deb);
        }
        Ok(missing)
    }

    /// Whether one of the files was downloaded in part.
    pub fn has_partial_files(&self, debs: &[&Deb]) -> bool {
        self.staging.has_any(debs)
    }

    /// Removes the files that apt renamed because their content was wrong.
    pub fn remove_broken(&self, debs: &[&Deb]) -> Result<(), FileError> {
        self.staging.remove_broken(debs)
    }

    /// Flushes the files and the folder.
    pub fn flush(&self, debs: &[Deb]) -> Result<(), FileError> {
        for deb in debs {
            let path = self.folder.join(&deb.name);
            File::open(&path)
                .and_then(|file| file.sync_all())
                .map_err(FileError::while_doing("flush", &path))?;
        }
        durable::flush_folder(&self.folder.join("any"))?;
        durable::flush_folder(&self.folder)
    }

    fn contains(&self, deb: &Deb) -> Result<bool, FileError> {
        let path = self.folder.join(&deb.name);
        let look = || match open_regular_file(&path)? {
            Some(file) if file.metadata()?.len() == deb.size => deb.digest.matches(file),
            _ => Ok(false),
        };
        look().map_err(FileError::while_doing("check", &path))
    }
}

fn open_regular_file(path: &Path) -> io::Result<Option<File>> {
    match fs::symlink_metadata(path) {
        Ok(about) if about.is_file() => File::open(path).map(Some),
        Ok(_) => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// A file of five bytes without a digest, for tests.
#[cfg(test)]
pub(super) fn deb_of_five_bytes(name: &str) -> Deb {
    Deb {
        name: name.into(),
        size: 5,
        digest: Digest::Sha256(String::new()),
        apt_argument: String::new(),
        uri: String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SHA-256 of `hello`.
    const HELLO: &str = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";

    fn deb() -> Deb {
        Deb {
            digest: Digest::parse(&format!("SHA256:{HELLO}")).unwrap(),
            apt_argument: "hello=1".into(),
            ..deb_of_five_bytes("hello_1_all.deb")
        }
    }

    #[test]
    fn a_file_is_accepted_only_if_it_matches_the_index() {
        let root = tempfile::tempdir().unwrap();
        let archives = Archives::new(&AgentPaths::new(root.path(), None));
        archives.create().unwrap();
        let path = archives.folder.join("hello_1_all.deb");
        let debs = [deb()];

        assert_eq!(archives.missing_files(&debs).unwrap().len(), 1);
        fs::write(&path, "hellO").unwrap();
        assert_eq!(archives.missing_files(&debs).unwrap().len(), 1);
        assert!(!path.exists(), "a broken file is removed");
        fs::write(&path, "hello").unwrap();
        assert_eq!(archives.missing_files(&debs).unwrap().len(), 0);
        archives.flush(&debs).unwrap();

        archives.remove_all().unwrap();
        assert!(!path.exists());
        archives.remove_all().unwrap();
    }

    #[test]
    fn a_partial_download_is_retained_and_a_complete_one_is_checked() {
        let root = tempfile::tempdir().unwrap();
        let archives = Archives::new(&AgentPaths::new(root.path(), None));
        archives.create().unwrap();
        let staged = archives.folder.join("staging/hello_1_all.deb");
        let debs = [deb()];
        let import = |content: &str| {
            fs::write(&staged, content).unwrap();
            archives.move_downloads(&[&debs[0]]).unwrap();
            archives.missing_files(&debs).unwrap().is_empty()
        };
        assert!(!import("hel"));
        assert!(archives.has_partial_files(&[&debs[0]]));
        assert!(!import("hellO"));
        assert!(!archives.has_partial_files(&[&debs[0]]), "a wrong file is removed");
        assert!(import("hello"));
    }

    #[test]
    fn files_that_an_open_update_of_another_agent_needs_are_in_use() {
        let root = tempfile::tempdir().unwrap();
        let [one, two] = ["one", "two"].map(|name| root.path().join(name));
        let archives =
            |state: &Path| Archives::new(&AgentPaths::new(root.path(), Some(state.to_owned())));
        assert_eq!(archives(&two).other_user(), None);
        archives(&one).create().unwrap();
        assert_eq!(archives(&two).other_user(), None, "no update is open");
        fs::create_dir(&one).unwrap();
        fs::write(one.join(JOURNAL_FILE), "").unwrap();
        assert_eq!(archives(&two).other_user(), Some(one.clone()));
        assert_eq!(archives(&one).other_user(), None);
    }

    #[test]
    fn needed_files_are_retained_until_they_are_not_needed() {
        let root = tempfile::tempdir().unwrap();
        let archives = Archives::new(&AgentPaths::new(root.path(), None));
        archives.set_retained(true).unwrap();
        assert!(!archives.is_retained(), "there is nothing to retain");
        archives.create().unwrap();
        archives.set_retained(true).unwrap();
        assert!(archives.is_retained());
        archives.set_retained(false).unwrap();
        archives.set_retained(false).unwrap();
        assert!(!archives.is_retained());
    }

    #[test]
    fn a_symlink_is_not_accepted_as_a_file() {
        let root = tempfile::tempdir().unwrap();
        let archives = Archives::new(&AgentPaths::new(root.path(), None));
        archives.create().unwrap();
        fs::write(root.path().join("elsewhere"), "hello").unwrap();
        std::os::unix::fs::symlink(
            root.path().join("elsewhere"),
            archives.folder.join("hello_1_all.deb"),
        )
        .unwrap();
        assert_eq!(archives.missing_files(&[deb()]).unwrap().len(), 1);
    }

    #[test]
    fn weak_hashes_are_rejected() {
        assert_eq!(Digest::parse("MD5Sum:d41d8cd98f00b204e9800998ecf8427e"), None);
        assert_eq!(Digest::parse(&format!("SHA1:{HELLO}")), None);
        assert_eq!(Digest::parse("SHA256:12"), None);
        let upper = Digest::parse(&format!("SHA256:{}", HELLO.to_uppercase())).unwrap();
        assert!(upper.matches(&b"hello"[..]).unwrap());
    }
}
