//! Releases of the lab's image: good ones, and those that fail in all the ways that there are.

use std::fs;
use std::path::{Path, PathBuf};

use evenkeel_registry::SigningKey;

/// The profile that all of them belong to.
pub const PROFILE: &str = "edge";

/// What they are made for.
pub const ARCHITECTURE: &str = "x86_64";

/// What is wrong with a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Nothing.
    Good,
    /// Nothing, but it waits for its health no longer than [`Kind::HASTE`].
    Hasty,
    /// Its init ends at once, so the kernel panics.
    Panic,
    /// Its kernel waits for ever before user space, and says [`Kind::WAITS`].
    HangEarly,
    /// It has no init.
    NoInit,
    /// Its root is a partition that is not there.
    NoRoot,
    /// There is noise where its kernels should be.
    NoiseKernel,
    /// Its health check says no.
    Unhealthy,
    /// Its health check does not come to an end.
    HungHealth,
    /// Nobody starts its agent, and only the guard is there.
    AgentKilled,
    /// Its agent and its guard are killed on trial, and only a watchdog is left ([`Vm::give_watchdog`](super::Vm::give_watchdog)).
    Forsaken,
    /// Nothing, but its agent arms in a wrong order, for who shows that this is noticed.
    WrongOrder,
}

impl Kind {
    /// What [`Kind::HangEarly`] says before it waits.
    pub const WAITS: &str = "Waiting for root device";

    /// How long [`Kind::Hasty`] waits for its health, in seconds from boot.
    pub const HASTE: u32 = 120;

    /// What `make-release` calls it.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Good | Self::Hasty | Self::WrongOrder => "good",
            Self::Panic => "panic",
            Self::HangEarly => "hang",
            Self::NoInit => "no-init",
            Self::NoRoot => "no-root",
            Self::NoiseKernel => "noise",
            Self::Unhealthy => "unhealthy",
            Self::HungHealth => "hung",
            Self::AgentKilled => "silent",
            Self::Forsaken => "forsaken",
        }
    }

    /// How long it waits for its health, in seconds from boot. A busy machine is slow, which must not look like one that
    /// is sick; and nobody waits for what never comes.
    pub(super) fn healthy_within(self) -> u32 {
        match self {
            Self::Good | Self::Forsaken | Self::WrongOrder => 600,
            Self::Hasty => Self::HASTE,
            // The guard waits a minute longer.
            Self::AgentKilled => 10,
            _ => 30,
        }
    }

    /// Which kernel it starts with, as `make-kernel` calls it.
    pub(super) fn kernel(self) -> &'static str {
        match self {
            // The other one knows no watchdog.
            Self::Forsaken => "generic",
            _ => "cloud",
        }
    }

    /// How long its initramfs waits for the root, in seconds from boot.
    pub(super) fn deadline(self) -> u32 {
        match self {
            Self::NoRoot => 20,
            _ => 86_400,
        }
    }
}

/// A release of the profile [`PROFILE`].
#[derive(Clone, Debug)]
pub struct Release {
    /// Its version.
    pub version: String,
    /// What is wrong with it.
    pub kind: Kind,
    /// The image.
    pub file: PathBuf,
    /// How long the image is, in bytes.
    pub bytes: u64,
    /// The image's digest.
    pub sha256: String,
    /// Who vouches for it, by the key that all of them trust.
    pub signature: String,
    /// All that `make-release` has made.
    pub(super) folder: PathBuf,
}

impl Release {
    /// What was made in a folder, signed by a key.
    ///
    /// # Panics
    /// It is no release.
    #[track_caller]
    pub(super) fn read(folder: &Path, kind: Kind, key: &SigningKey) -> Self {
        let about = fs::read_to_string(folder.join("about"));
        let about = about.expect("what make-release says of it");
        let word = |name: &str| {
            let mut lines = about.lines();
            let found = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            found.expect("a word of make-release").to_owned()
        };
        let (version, sha256) = (word("version"), word("sha256"));
        Self {
            kind,
            file: folder.join("root.raw"),
            bytes: word("bytes").parse().expect("a number"),
            signature: key.sign_text(&statement(&version, &sha256)),
            folder: folder.to_owned(),
            version,
            sha256,
        }
    }

    /// The kernel that a slot gets from it.
    ///
    /// # Panics
    /// It has none.
    #[track_caller]
    pub(super) fn kernel(&self, letter: &str) -> Vec<u8> {
        let file = self.folder.join(format!("slot-{letter}.efi"));
        fs::read(file).expect("a kernel")
    }
}

/// What is signed of an image of [`PROFILE`].
pub fn statement(version: &str, sha256: &str) -> String {
    format!("evenkeel-image-1\n{PROFILE}\n{version}\n{ARCHITECTURE}\n{sha256}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_is_read_and_signed_as_it_says_of_itself() {
        let folder = tempfile::tempdir().expect("a folder");
        let about = "profile edge\nversion 1.1\nkind good\nbytes 7\nsha256 ab\n";
        fs::write(folder.path().join("about"), about).expect("a file");
        let key = SigningKey::make();
        let release = Release::read(folder.path(), Kind::Good, &key);
        assert_eq!((release.version.as_str(), release.bytes), ("1.1", 7));
        assert_eq!(release.sha256, "ab");
        let text = "evenkeel-image-1\nedge\n1.1\nx86_64\nab\n";
        assert_eq!(release.signature, key.sign_text(text));
    }
}
