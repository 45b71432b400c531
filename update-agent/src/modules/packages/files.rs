//! The .debs of a plan: fetched into a folder of the agent, checked, flushed, and kept until the new state is verified.
//! They are the way forward after a power cut.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Sha256, Sha512};

use crate::durable::{self, FileError};
use crate::place::Place;

/// The folder as seen from inside the managed root.
pub const ARCHIVES: &str = "/var/lib/evenkeel-agent/archives";

/// The mark in the folder that says that a person needs the files.
const NEEDED: &str = "needed";

/// A hash that a signed index vouches for. apt offers weaker ones too; those prove nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Digest {
    /// SHA-256, lower-case hexadecimal.
    Sha256(String),
    /// SHA-512, lower-case hexadecimal.
    Sha512(String),
}

impl Digest {
    /// Reads apt's `NAME:VALUE`.
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

    fn fits(&self, mut content: impl Read) -> io::Result<bool> {
        Ok(match self {
            Self::Sha256(value) => *value == hash::<Sha256>(&mut content)?,
            Self::Sha512(value) => *value == hash::<Sha512>(&mut content)?,
        })
    }
}

fn hash<H: sha2::Digest>(content: &mut impl Read) -> io::Result<String> {
    let mut hasher = H::new();
    let mut buffer = vec![0; 128 << 10];
    loop {
        match content.read(&mut buffer)? {
            0 => return Ok(hex(&hasher.finalize())),
            read => hasher.update(&buffer[..read]),
        }
    }
}

/// Lower-case hexadecimal.
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
    /// The name of the file.
    pub name: String,
    /// Its size.
    pub size: u64,
    /// What it must hash to.
    pub digest: Digest,
    /// What to ask apt for: `NAME[:ARCH]=VERSION`.
    pub order: String,
    /// Where it lies; empty if only apt knows.
    #[serde(default)]
    pub uri: String,
}

impl Deb {
    /// The path as seen from inside the managed root.
    pub fn path(&self) -> String {
        format!("{ARCHIVES}/{}", self.name)
    }
}

/// The folder with the .debs.
#[derive(Debug)]
pub struct Archives {
    folder: PathBuf,
}

impl Archives {
    /// The folder of this place.
    pub fn of(place: &Place) -> Self {
        Self {
            folder: place.inside(ARCHIVES),
        }
    }

    /// Makes the folder, with the one that apt keeps unfinished files in.
    pub fn prepare(&self) -> Result<(), FileError> {
        durable::make_folder(&self.folder, 0o755)?;
        durable::make_folder(&self.folder.join("partial"), 0o755)
    }

    /// Whether anything was fetched into it.
    pub fn is_used(&self) -> bool {
        self.folder.exists()
    }

    /// Keeps the files although the attempt is over: a person needs them. Until the next plan that finds dpkg sound.
    pub fn keep(&self, wanted: bool) -> Result<(), FileError> {
        let mark = self.folder.join(NEEDED);
        if wanted && self.is_used() {
            durable::replace(&mark, b"", 0o600)
        } else if !wanted && mark.exists() {
            durable::remove(&mark)
        } else {
            Ok(())
        }
    }

    /// Whether the files are kept for a person.
    pub fn is_kept(&self) -> bool {
        self.folder.join(NEEDED).exists()
    }

    /// Removes everything.
    pub fn clean(&self) -> Result<(), FileError> {
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

    /// Those of the files that are not there as they should be. What is there and broken is removed; what is shorter than
    /// it should be stays, to be gone on with.
    pub fn missing<'a>(&self, debs: &'a [Deb]) -> Result<Vec<&'a Deb>, FileError> {
        let mut missing = Vec::new();
        for deb in debs {
            let path = self.folder.join(&deb.name);
            if self.has(deb)? {
                continue;
            }
            if !is_shorter(&path, deb.size) {
                durable::remove(&path)?;
            }
            missing.push(deb);
        }
        Ok(missing)
    }

    /// Whether one of the files was begun.
    pub fn has_begun(&self, debs: &[&Deb]) -> bool {
        debs.iter().any(|deb| self.folder.join(&deb.name).exists())
    }

    /// Removes what apt sets aside of files that were not what they should be.
    pub fn drop_broken(&self, debs: &[&Deb]) -> Result<(), FileError> {
        for deb in debs {
            durable::remove(&self.folder.join(format!("{}.FAILED", deb.name)))?;
        }
        Ok(())
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

    fn has(&self, deb: &Deb) -> Result<bool, FileError> {
        let path = self.folder.join(&deb.name);
        let look = || match open_plain(&path)? {
            Some(file) if file.metadata()?.len() == deb.size => deb.digest.fits(file),
            _ => Ok(false),
        };
        look().map_err(FileError::while_doing("check", &path))
    }
}

/// Whether it is the beginning of a file, by its size.
fn is_shorter(path: &Path, size: u64) -> bool {
    fs::symlink_metadata(path).is_ok_and(|about| about.is_file() && about.len() < size)
}

fn open_plain(path: &Path) -> io::Result<Option<File>> {
    match fs::symlink_metadata(path) {
        Ok(about) if about.is_file() => File::open(path).map(Some),
        Ok(_) => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SHA-256 of `hello`.
    const HELLO: &str = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";

    fn deb() -> Deb {
        Deb {
            name: "hello_1_all.deb".into(),
            size: 5,
            digest: Digest::parse(&format!("SHA256:{HELLO}")).unwrap(),
            order: "hello=1".into(),
            uri: String::new(),
        }
    }

    #[test]
    fn a_file_is_there_only_if_it_is_what_the_index_says() {
        let root = tempfile::tempdir().unwrap();
        let archives = Archives::of(&Place::new(root.path(), None));
        archives.prepare().unwrap();
        let path = archives.folder.join("hello_1_all.deb");
        let debs = [deb()];

        assert_eq!(archives.missing(&debs).unwrap().len(), 1);
        fs::write(&path, "hellO").unwrap();
        assert_eq!(archives.missing(&debs).unwrap().len(), 1);
        assert!(!path.exists(), "a broken file is not kept");
        fs::write(&path, "hello").unwrap();
        assert_eq!(archives.missing(&debs).unwrap().len(), 0);
        archives.flush(&debs).unwrap();

        archives.clean().unwrap();
        assert!(!path.exists());
        archives.clean().unwrap();
    }

    #[test]
    fn the_beginning_of_a_file_stays_and_what_was_not_the_file_goes() {
        let root = tempfile::tempdir().unwrap();
        let archives = Archives::of(&Place::new(root.path(), None));
        archives.prepare().unwrap();
        let path = archives.folder.join("hello_1_all.deb");
        let failed = archives.folder.join("hello_1_all.deb.FAILED");
        fs::write(&path, "hel").unwrap();
        fs::write(&failed, "hullo").unwrap();
        let debs = [deb()];

        assert_eq!(archives.missing(&debs).unwrap().len(), 1);
        archives.drop_broken(&[&debs[0]]).unwrap();
        assert!(archives.has_begun(&[&debs[0]]));
        assert!(path.exists() && !failed.exists());
        fs::write(&path, "hello and more").unwrap();
        assert_eq!(archives.missing(&debs).unwrap().len(), 1);
        assert!(!path.exists());
    }

    #[test]
    fn files_that_a_person_needs_are_kept_until_they_are_not_needed_any_more() {
        let root = tempfile::tempdir().unwrap();
        let archives = Archives::of(&Place::new(root.path(), None));
        archives.keep(true).unwrap();
        assert!(!archives.is_kept(), "there is nothing to keep");
        archives.prepare().unwrap();
        archives.keep(true).unwrap();
        assert!(archives.is_kept());
        archives.keep(false).unwrap();
        archives.keep(false).unwrap();
        assert!(!archives.is_kept());
    }

    #[test]
    fn a_link_is_not_taken_for_a_file() {
        let root = tempfile::tempdir().unwrap();
        let archives = Archives::of(&Place::new(root.path(), None));
        archives.prepare().unwrap();
        fs::write(root.path().join("elsewhere"), "hello").unwrap();
        std::os::unix::fs::symlink(
            root.path().join("elsewhere"),
            archives.folder.join("hello_1_all.deb"),
        )
        .unwrap();
        assert_eq!(archives.missing(&[deb()]).unwrap().len(), 1);
    }

    #[test]
    fn weak_hashes_are_not_taken() {
        assert_eq!(
            Digest::parse("MD5Sum:d41d8cd98f00b204e9800998ecf8427e"),
            None
        );
        assert_eq!(Digest::parse(&format!("SHA1:{HELLO}")), None);
        assert_eq!(Digest::parse("SHA256:12"), None);
        let upper = Digest::parse(&format!("SHA256:{}", HELLO.to_uppercase())).unwrap();
        assert!(upper.fits(&b"hello"[..]).unwrap());
    }
}
