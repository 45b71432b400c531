//! Releases of the lab's image: good ones, and releases that fail in every known way.

use std::fs;
use std::path::{Path, PathBuf};

use evenkeel_registry::SigningKey;

pub const PROFILE: &str = "edge";

pub const ARCHITECTURE: &str = "x86_64";

/// Kind of a release: what is wrong with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReleaseKind {
    /// Nothing.
    Good,
    /// Nothing, but it waits only [`ReleaseKind::HASTY_TIMEOUT_SECONDS`] for its health.
    Hasty,
    /// Its init ends at once, so the kernel panics.
    Panic,
    /// Its kernel hangs before user space, after it has printed [`ReleaseKind::HANG_MESSAGE`].
    HangEarly,
    NoInit,
    /// Its root is a partition that does not exist.
    NoRoot,
    /// Its kernels are random bytes.
    NoiseKernel,
    /// Its health check fails.
    Unhealthy,
    /// Its health check never ends.
    HungHealth,
    /// Its agent is not started; only the guard runs.
    AgentKilled,
    /// Its agent and its guard are killed on trial; only a watchdog is left ([`Vm::give_watchdog`](super::Vm::give_watchdog)).
    Forsaken,
    /// Nothing, but its agent arms a release in the wrong order. For tests that must detect this.
    WrongOrder,
}

impl ReleaseKind {
    /// What the kernel of [`ReleaseKind::HangEarly`] prints before it hangs.
    pub const HANG_MESSAGE: &str = "Waiting for root device";

    /// How long [`ReleaseKind::Hasty`] waits for its health, in seconds after boot.
    pub const HASTY_TIMEOUT_SECONDS: u32 = 120;

    /// Name of the kind in `make-release`.
    pub(super) fn script_name(self) -> &'static str {
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

    /// How long it waits for its health, in seconds after boot. Long for releases that become healthy, because a busy
    /// machine is slow; short for releases that never do.
    pub(super) fn healthy_within(self) -> u32 {
        match self {
            Self::Good | Self::Forsaken | Self::WrongOrder => 600,
            Self::Hasty => Self::HASTY_TIMEOUT_SECONDS,
            // The guard waits one minute longer.
            Self::AgentKilled => 10,
            _ => 30,
        }
    }

    /// Kernel of the release, as `make-kernel` calls it.
    pub(super) fn kernel(self) -> &'static str {
        match self {
            // The cloud kernel has no watchdog driver.
            Self::Forsaken => "generic",
            _ => "cloud",
        }
    }

    /// How long its initramfs waits for the root, in seconds after boot.
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
    pub version: String,
    /// What is wrong with it.
    pub kind: ReleaseKind,
    /// Path of the image.
    pub file: PathBuf,
    /// Size of the image in bytes.
    pub bytes: u64,
    /// SHA-256 of the image.
    pub sha256: String,
    /// Signature by the key that all releases trust.
    pub signature: String,
    /// Folder with everything that `make-release` has built.
    pub(super) folder: PathBuf,
}

impl Release {
    /// Reads the release in a folder and signs it.
    ///
    /// # Panics
    /// The folder holds no release.
    #[track_caller]
    pub(super) fn read(folder: &Path, kind: ReleaseKind, key: &SigningKey) -> Self {
        let about = fs::read_to_string(folder.join("about"));
        let about = about.expect("the description of the release");
        let value = |name: &str| {
            let mut lines = about.lines();
            let text = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            text.expect("a field of the description").to_owned()
        };
        let (version, sha256) = (value("version"), value("sha256"));
        Self {
            kind,
            file: folder.join("root.raw"),
            bytes: value("bytes").parse().expect("a number"),
            signature: key.sign_text(&statement(&version, &sha256)),
            folder: folder.to_owned(),
            version,
            sha256,
        }
    }

    /// The kernel of the release for a slot.
    ///
    /// # Panics
    /// The kernel is missing.
    #[track_caller]
    pub(super) fn kernel(&self, letter: &str) -> Vec<u8> {
        let file = self.folder.join(format!("slot-{letter}.efi"));
        fs::read(file).expect("a kernel")
    }
}

/// The signed statement of an image of [`PROFILE`].
pub fn statement(version: &str, sha256: &str) -> String {
    format!("evenkeel-image-1\n{PROFILE}\n{version}\n{ARCHITECTURE}\n{sha256}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_is_read_from_its_description_and_signed() {
        let folder = tempfile::tempdir().expect("a folder");
        let about = "profile edge\nversion 1.1\nkind good\nbytes 7\nsha256 ab\n";
        fs::write(folder.path().join("about"), about).expect("a file");
        let key = SigningKey::generate();
        let release = Release::read(folder.path(), ReleaseKind::Good, &key);
        assert_eq!((release.version.as_str(), release.bytes), ("1.1", 7));
        assert_eq!(release.sha256, "ab");
        let text = "evenkeel-image-1\nedge\n1.1\nx86_64\nab\n";
        assert_eq!(release.signature, key.sign_text(text));
    }
}
