//! The word of the machine's owner: a file of the machine that no message of the server can widen.
//!
//! The file is read anew each time that something is to be decided. While it cannot be read, is not understood, or could
//! have been written by somebody else, everything that it could limit is refused.

mod hours;
mod people;
mod sources;

use std::fmt;
use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use chrono::{DateTime, Local, NaiveDateTime, Utc};
use evenkeel_kit::Clock;
use figment::Figment;
use figment::providers::{Format, Toml};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use serde::Deserialize;

use crate::model::{Failure, FailureKind, PackageWish, Plan};
use crate::place::Place;

pub use self::hours::{BadHours, Hours};

/// Where the owner's limits are, as seen from inside the managed root. The file may be missing: then there are none.
pub const FILE: &str = "/etc/evenkeel/limits.toml";

/// A longer file is a mistake.
const MOST_BYTES: u64 = 64 << 10;

/// A longer summary is cut.
const MOST_SUMMARY: usize = 1000;

/// What the owner allows. Without a word of the owner that is everything.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OwnerLimits {
    /// The suites that packages may come from, as sources name them; empty for any.
    pub suites: Vec<String>,
    /// Fingerprints and files of keys that a source of a wish may be signed by; empty for any.
    pub keys: Vec<String>,
    /// Whether a wish may bring sources of its own.
    pub new_sources: bool,
    /// When a change or a reboot may begin, by the node's own time; empty for always.
    pub hours: Vec<Hours>,
    /// Whether a package may be brought to an older version.
    pub downgrades: bool,
    /// Whether a package may be removed.
    pub removals: bool,
    /// When the agent may reboot the system.
    pub reboots: Reboots,
    /// Whether people who are logged in are waited for.
    pub users: Users,
    /// Which images may run.
    pub image: ImageLimits,
}

/// Which images may run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ImageLimits {
    /// Whether an image may run that no key of the machine has signed. Nothing but this file can allow it.
    pub unsigned_images: bool,
}

/// When the agent may reboot the system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reboots {
    /// Whenever an update needs it.
    #[default]
    Always,
    /// Not at all.
    Never,
    /// When an update needs it and nobody is logged in.
    WhenNobodyIsLoggedIn,
}

/// Whether people who are logged in are waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Users {
    /// A change begins beside them.
    #[default]
    Ignore,
    /// A change begins when all have gone.
    Wait,
}

impl Default for OwnerLimits {
    fn default() -> Self {
        Self {
            suites: Vec::new(),
            keys: Vec::new(),
            new_sources: true,
            hours: Vec::new(),
            downgrades: true,
            removals: true,
            reboots: Reboots::default(),
            users: Users::default(),
            image: ImageLimits::default(),
        }
    }
}

impl OwnerLimits {
    /// Reads the text of a limits file. Fails on the first thing that is not understood, and says what it is.
    pub fn parse(text: &str) -> Result<Self, String> {
        let limits: Self = Figment::from(Toml::string(text))
            .extract()
            .map_err(|error| error.to_string())?;
        let is_suite = |suite: &&String| !suite.is_empty() && !suite.contains(char::is_whitespace);
        if let Some(suite) = limits.suites.iter().find(|suite| !is_suite(suite)) {
            return Err(format!("{suite:?} is no suite"));
        }
        if let Some(key) = limits.keys.iter().find(|key| !sources::is_key(key)) {
            return Err(format!(
                "{key:?} is neither the fingerprint of a key nor the path of a file of keys"
            ));
        }
        Ok(limits)
    }

    fn allow_now(&self, at: NaiveDateTime) -> Result<(), String> {
        if self.hours.is_empty() || self.hours.iter().any(|hours| hours.contain(at)) {
            return Ok(());
        }
        Err(format!(
            "it is outside the owner's hours ({})",
            self.told_hours()
        ))
    }

    fn told_hours(&self) -> String {
        let hours: Vec<_> = self.hours.iter().map(Hours::to_string).collect();
        hours.join(", ")
    }
}

/// What is limited, in one line, and what is allowed that else is not; nothing if nothing is.
impl fmt::Display for OwnerLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        if !self.suites.is_empty() {
            parts.push(format!("only the suites {}", self.suites.join(", ")));
        }
        if !self.keys.is_empty() {
            parts.push(format!("only the keys {}", self.keys.join(", ")));
        }
        if !self.hours.is_empty() {
            parts.push(format!("only at {}", self.told_hours()));
        }
        let reboots = match self.reboots {
            Reboots::Always => None,
            Reboots::Never => Some("no reboots"),
            Reboots::WhenNobodyIsLoggedIn => Some("reboots only when nobody is logged in"),
        };
        let words = [
            (!self.new_sources).then_some("no new sources"),
            (!self.downgrades).then_some("no downgrades"),
            (!self.removals).then_some("no removals"),
            reboots,
            (self.users == Users::Wait).then_some("changes only when nobody is logged in"),
            (self.image.unsigned_images).then_some("images without a signature are allowed"),
        ];
        parts.extend(words.into_iter().flatten().map(str::to_owned));
        f.write_str(&parts.join("; "))
    }
}

/// The owner's word cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the owner's limits in {} cannot be relied on: {why}", path.display())]
pub struct OwnerError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub why: String,
}

/// The machine's owner. Everything is asked of the file as it is at that moment.
#[derive(Debug)]
pub struct Owner {
    place: Place,
    clock: Arc<dyn Clock>,
    local: fn(DateTime<Utc>) -> NaiveDateTime,
    /// logind's folder of sessions, on a system of the agent's own.
    sessions: Option<PathBuf>,
}

impl Owner {
    /// The owner of a place.
    pub fn new(place: Place, clock: Arc<dyn Clock>) -> Self {
        let sessions = place
            .is_own_system()
            .then(|| place.inside(people::SESSIONS));
        Self {
            place,
            clock,
            local: |at| at.with_timezone(&Local).naive_local(),
            sessions,
        }
    }

    /// What the owner allows now. Fails if the file is there and cannot be relied on; then nothing is allowed.
    pub fn limits(&self) -> Result<OwnerLimits, OwnerError> {
        let path = self.place.inside(FILE);
        let text = match read(&path) {
            Ok(text) => text,
            Err(why) => return Err(OwnerError { path, why }),
        };
        let Some(text) = text else {
            return Ok(OwnerLimits::default());
        };
        OwnerLimits::parse(&text).map_err(|why| OwnerError { path, why })
    }

    /// Whether a change may begin now: the hours, and who is logged in. Else why not; it passes by itself.
    pub fn may_begin(&self) -> Result<(), String> {
        let limits = self.limits().map_err(|error| error.to_string())?;
        limits.allow_now((self.local)(self.clock.now()))?;
        match limits.users {
            Users::Ignore => Ok(()),
            Users::Wait => self.nobody_is_logged_in(),
        }
    }

    /// Whether the agent may reboot the system now; else why not.
    pub fn may_reboot(&self) -> Result<(), String> {
        let limits = self.limits().map_err(|error| error.to_string())?;
        match limits.reboots {
            Reboots::Always => {}
            Reboots::Never => return Err("the machine's owner allows no reboots".to_owned()),
            Reboots::WhenNobodyIsLoggedIn => self.nobody_is_logged_in()?,
        }
        limits.allow_now((self.local)(self.clock.now()))
    }

    /// Whether the owner allows what a wish brings: its sources, their suites and their keys. That a wish allows removals
    /// or downgrades is no reason to refuse it: what the owner does not allow is left out when the change is planned.
    pub fn allows(&self, wish: &PackageWish) -> Result<(), Failure> {
        let refuse = |why: String| {
            Failure::new(
                FailureKind::Limits,
                format!("the machine's owner does not allow it: {why}"),
            )
        };
        let limits = self
            .limits()
            .map_err(|error| Failure::new(FailureKind::Limits, error.to_string()))?;
        if !limits.new_sources && !wish.sources.is_empty() {
            return Err(refuse("the wish brings a source of its own".to_owned()));
        }
        wish.sources
            .iter()
            .try_for_each(|stanza| sources::check(&limits, stanza))
            .map_err(refuse)
    }

    /// Whether a plan still fits what the owner allows, which may have changed since it was made; else why not.
    pub fn allows_plan(&self, plan: &Plan) -> Result<(), String> {
        let limits = self.limits().map_err(|error| error.to_string())?;
        let removed = plan.changes.iter().find(|change| change.after.is_none());
        match removed {
            Some(change) if !limits.removals => Err(format!(
                "the machine's owner allows no removals, and {} is to be removed",
                change.name
            )),
            _ => Ok(()),
        }
    }

    /// What the owner limits, in one line for people; empty if nothing is limited.
    pub fn summary(&self) -> String {
        let mut words = match self.limits() {
            Ok(limits) => limits.to_string(),
            Err(error) => error.to_string(),
        };
        if words.len() > MOST_SUMMARY {
            words.truncate(words.floor_char_boundary(MOST_SUMMARY));
            words.push_str(" …");
        }
        words
    }

    /// What a person should mend in the limits file.
    pub fn trouble(&self) -> Option<String> {
        let error = self.limits().err()?;
        Some(format!("{error}; nothing is changed until it is mended"))
    }

    fn nobody_is_logged_in(&self) -> Result<(), String> {
        match &self.sessions {
            Some(sessions) if people::are_logged_in(sessions) => {
                Err("somebody is logged in".to_owned())
            }
            _ => Ok(()),
        }
    }
}

/// The text of the file; `None` if it is not there.
fn read(path: &Path) -> Result<Option<String>, String> {
    let Some(text) = read_trusted(path, MOST_BYTES)? else {
        return Ok(None);
    };
    let folder = path.parent().unwrap_or(Path::new("/"));
    only_root_writes_in(folder).map_err(|why| format!("of its folder: {why}"))?;
    let text = String::from_utf8(text).map_err(|error| error.to_string())?;
    Ok(Some(text))
}

/// What is in a file that nobody but root can have written, of at most `most` bytes; `None` if it is not there; else why
/// it is not relied on. The file that was looked at is the one that is read.
pub(crate) fn read_trusted(path: &Path, most: u64) -> Result<Option<Vec<u8>>, String> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        Err(Errno::NOENT) => return Ok(None),
        Err(Errno::LOOP) => return Err("it is a symbolic link".to_owned()),
        Err(error) => return Err(io::Error::from(error).to_string()),
    };
    let said = |error: io::Error| error.to_string();
    let found = file.metadata().map_err(said)?;
    if !found.is_file() {
        return Err("it is no file".to_owned());
    }
    only_root_writes(&found)?;
    if found.len() > most {
        return Err(format!("it is longer than {most} bytes"));
    }
    let mut content = Vec::new();
    file.take(most).read_to_end(&mut content).map_err(said)?;
    Ok(Some(content))
}

/// The same of a folder as [`only_root_writes`].
pub(crate) fn only_root_writes_in(folder: &Path) -> Result<(), String> {
    let found = fs::metadata(folder).map_err(|error| error.to_string())?;
    only_root_writes(&found)
}

/// Whether nobody but root, or the agent's own user where that is another one, can have written a file; else why not.
pub(crate) fn only_root_writes(found: &Metadata) -> Result<(), String> {
    let own = rustix::process::geteuid().as_raw();
    if found.uid() != 0 && found.uid() != own {
        return Err(format!(
            "it belongs to the user {}, not to root",
            found.uid()
        ));
    }
    if found.mode() & 0o022 != 0 {
        return Err("others than root may write it".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests;
