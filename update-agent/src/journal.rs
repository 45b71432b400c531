//! What an attempt is about to do and has done, on disk before it happens.
//!
//! One file, replaced as a whole. Events are numbered once, when they are written here, and are sent from here, so that
//! a report that was made before a power cut is the same report after it.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use crate::durable::{self, FileError};
use crate::model::{Account, Event, PhaseSpan, Plan, Target};
use crate::modules::AnyStep;

/// The form of the file. A file of another form is not read.
///
/// The journal may be read by an older agent than the one that wrote it, as that of an image which was left. What only
/// tells, an event with its plan and its account, may be given another field in this form, one that may be left out: an
/// older agent reads past it, and does not tell it. What says what is to be done, the wish, the steps and the entry
/// itself, is read as a whole or not at all: half of it means something else.
const FORMAT: u32 = 1;

/// An account has no list longer than this.
const MOST_TOLD: usize = 500;

/// The open attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// The attempt's own name.
    pub attempt: Uuid,
    /// What is wanted.
    pub target: Target,
    /// How far it has come.
    pub phase: Phase,
    /// The whole change.
    pub plan: Plan,
    /// The plan as steps.
    pub steps: Vec<Step>,
    /// All that happened, in ascending order of the sequence numbers, without gaps.
    pub events: Vec<Event>,
    /// The server has stored every event up to this sequence number.
    pub acknowledged: u32,
    /// Until when the server let the attempt begin.
    pub before: Option<DateTime<Utc>>,
    /// What went wrong on the way and did not change the end, in words for a person.
    #[serde(default)]
    pub remarks: Vec<String>,
    /// What each module noted right before the change, by the module's name.
    #[serde(default)]
    pub baselines: BTreeMap<String, Value>,
    /// How long the phases took that were passed.
    #[serde(default)]
    pub spans: Vec<PhaseSpan>,
    /// Configuration files that a person had changed and that stayed.
    #[serde(default)]
    pub conffiles: Vec<String>,
    /// Units that were restarted because they ran what was replaced.
    #[serde(default)]
    pub restarted: Vec<String>,
    /// How often the node was told to reboot.
    #[serde(default)]
    pub reboots: u32,
    /// When it was last told to.
    #[serde(default)]
    pub reboot_at: Option<DateTime<Utc>>,
    /// The boot that a reboot is to end; empty if none was begun.
    #[serde(default)]
    pub boot_id: String,
    /// Whether the change asks for a reboot that the node did not make.
    #[serde(default)]
    pub reboot_required: bool,
    /// Whether nothing is changed before the reboot that was begun: without it the attempt goes back.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reboot_is_the_change: bool,
}

/// How far an attempt has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// The plan is made; what it needs is being fetched.
    Downloading,
    /// All is there, nothing is changed.
    Staged,
    /// The node is being changed.
    Applying,
    /// The steps are done; the node reboots.
    Rebooting,
    /// The steps are done; what they made is being looked at.
    Verifying,
    /// The last event has been written.
    Over,
}

impl Phase {
    /// Its name, for the log and for `status`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Downloading => "downloading",
            Self::Staged => "staged",
            Self::Applying => "applying",
            Self::Rebooting => "rebooting",
            Self::Verifying => "verifying",
            Self::Over => "over",
        }
    }
}

/// A step and whether it was taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// What to do.
    pub step: AnyStep,
    /// Whether it is done: then it is never taken again.
    pub done: bool,
}

impl Entry {
    /// An attempt of which nothing is known yet but its name and what is wanted.
    pub fn new(attempt: Uuid, target: Target) -> Self {
        Self {
            attempt,
            target,
            phase: Phase::Downloading,
            plan: Plan::default(),
            steps: Vec::new(),
            events: Vec::new(),
            acknowledged: 0,
            before: None,
            remarks: Vec::new(),
            baselines: BTreeMap::new(),
            spans: Vec::new(),
            conffiles: Vec::new(),
            restarted: Vec::new(),
            reboots: 0,
            reboot_at: None,
            boot_id: String::new(),
            reboot_required: false,
            reboot_is_the_change: false,
        }
    }

    /// The last sequence number that was made; 0 if none.
    pub fn last_sequence(&self) -> u32 {
        self.events.last().map_or(0, |event| event.sequence)
    }

    /// The events that the server has not acknowledged.
    pub fn unsent(&self) -> &[Event] {
        let first = self
            .events
            .partition_point(|event| event.sequence <= self.acknowledged);
        &self.events[first..]
    }

    /// Whether the node has been, or is being, changed by this attempt and the outcome is not written yet.
    pub fn has_begun(&self) -> bool {
        matches!(
            self.phase,
            Phase::Applying | Phase::Rebooting | Phase::Verifying
        )
    }

    /// Whether the change is a reboot that was not asked for yet: any reset makes it.
    pub fn is_about_to_boot(&self) -> bool {
        self.phase == Phase::Rebooting && self.reboot_is_the_change && self.reboots == 0
    }

    /// Adds to what a phase took and fetched so far. A clock that was turned back meanwhile adds nothing.
    pub fn spent(&mut self, phase: &str, time: (DateTime<Utc>, DateTime<Utc>), bytes: u64) {
        let (since, until) = time;
        let passed = until.signed_duration_since(since).num_milliseconds();
        let millis = u64::try_from(passed).unwrap_or(0);
        if let Some(span) = self.spans.iter_mut().find(|span| span.phase == phase) {
            span.millis = span.millis.saturating_add(millis);
            span.bytes = span.bytes.saturating_add(bytes);
            return;
        }
        self.spans.push(PhaseSpan {
            phase: phase.to_owned(),
            millis,
            bytes,
        });
    }

    /// How it went so far; `None` if there is nothing to tell.
    pub fn account(&self) -> Option<Account> {
        let some = |list: &[String]| list.iter().take(MOST_TOLD).cloned().collect();
        let account = Account {
            phases: self.spans.clone(),
            remarks: some(&self.remarks),
            kept_conffiles: some(&self.conffiles),
            restarted_services: some(&self.restarted),
            reboot_required: self.reboot_required,
        };
        (account != Account::default()).then_some(account)
    }
}

/// A place in the life of an attempt at which the journal is written. Tests stop and kill the agent at each of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Point(String);

impl Point {
    /// The points that an attempt may pass, in order. Between `began` and `reboot-begun` each step has its own. `opened` is
    /// passed once more with each part that was fetched of something long. Only an attempt that reboots the node passes
    /// `reboot-begun`, and once more with each try.
    pub const FIXED: [&'static str; 8] = [
        "opened",
        "downloaded",
        "began",
        "reboot-begun",
        "verify-begun",
        "ended",
        "acknowledged",
        "closed",
    ];

    /// One of the [`Point::FIXED`].
    pub fn fixed(name: &'static str) -> Self {
        debug_assert!(Self::FIXED.contains(&name), "{name}");
        Self(name.to_owned())
    }

    /// After a step of a module was marked as done.
    pub fn done(module: &str, step: &str) -> Self {
        Self(format!("done-{module}-{step}"))
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The journal could not be read or written. Nothing goes on without it.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The file.
    #[error(transparent)]
    File(#[from] FileError),
    /// An entry could not be put into words.
    #[error("the journal cannot be written as JSON")]
    Unwritable(#[source] serde_json::Error),
}

/// Keeps the open attempt.
pub trait Journal: Send + Sync {
    /// The open attempt, if there is one.
    fn read(&self) -> Result<Option<Entry>, JournalError>;
    /// Replaces the entry; it is on disk when this returns.
    fn write(&self, point: &Point, entry: &Entry) -> Result<(), JournalError>;
    /// Forgets the entry.
    fn clear(&self) -> Result<(), JournalError>;
}

/// The journal as a file.
#[derive(Debug)]
pub struct FileJournal {
    path: PathBuf,
}

/// What is in the file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Page<E> {
    format: u32,
    attempt: E,
}

impl FileJournal {
    /// A journal at `path`.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Reads without setting anything aside, as `status` does.
    pub fn look(path: &Path) -> Result<Option<Entry>, FileError> {
        let content = durable::read(path)?;
        Ok(content.and_then(|content| understand(&content).ok()))
    }

    /// What was set aside beside a journal and still lies there, each with what a person should do, in words. It ends
    /// when that person removes the file.
    pub fn set_asides(journal: &Path) -> Vec<String> {
        let name = journal.file_name().unwrap_or_default().to_string_lossy();
        let corrupt = format!("{name}.corrupt-");
        let folder = journal.parent().unwrap_or(Path::new("/"));
        let Ok(files) = fs::read_dir(folder) else {
            return Vec::new();
        };
        let files = files.filter_map(|file| Some(file.ok()?.path()));
        let mut asides: Vec<_> = files
            .filter(|path| {
                let name = path.file_name().unwrap_or_default();
                name.to_string_lossy().starts_with(&corrupt)
            })
            .map(|path| {
                format!(
                    "a journal could not be understood and was set aside as {}: what its update did is not known; look \
                     at the node with `dpkg --audit`, then remove the file",
                    path.display()
                )
            })
            .collect();
        asides.sort();
        asides
    }

    /// Renames a file that cannot be understood, so that a person can look at it.
    fn set_aside(&self, why: &str) -> Result<(), FileError> {
        let mut number = 0;
        let aside = loop {
            let aside = self.path.with_extension(format!("json.corrupt-{number}"));
            if !aside.exists() {
                break aside;
            }
            number += 1;
        };
        fs::rename(&self.path, &aside).map_err(FileError::while_doing("set aside", &self.path))?;
        durable::flush_folder(&self.path)?;
        tracing::error!(
            why,
            file = %aside.display(),
            "the journal cannot be understood and was set aside; what the open attempt did, if there was one, is not known"
        );
        Ok(())
    }
}

fn understand(content: &[u8]) -> Result<Entry, String> {
    let page: Page<Entry> = serde_json::from_slice(content).map_err(|error| error.to_string())?;
    if page.format != FORMAT {
        return Err(format!("it has the form {}", page.format));
    }
    let numbers = page.attempt.events.iter().map(|event| event.sequence);
    if !numbers.eq(1..=page.attempt.last_sequence()) {
        return Err("its events are not numbered from 1 without gaps".to_owned());
    }
    Ok(page.attempt)
}

impl Journal for FileJournal {
    fn read(&self) -> Result<Option<Entry>, JournalError> {
        let Some(content) = durable::read(&self.path)? else {
            return Ok(None);
        };
        match understand(&content) {
            Ok(entry) => Ok(Some(entry)),
            Err(why) => {
                self.set_aside(&why)?;
                Ok(None)
            }
        }
    }

    fn write(&self, point: &Point, entry: &Entry) -> Result<(), JournalError> {
        let page = Page {
            format: FORMAT,
            attempt: entry,
        };
        let content = serde_json::to_vec(&page).map_err(JournalError::Unwritable)?;
        durable::replace(&self.path, &content, 0o600)?;
        tracing::debug!(%point, attempt = %entry.attempt, "journal written");
        Ok(())
    }

    fn clear(&self) -> Result<(), JournalError> {
        Ok(durable::remove(&self.path)?)
    }
}

#[cfg(test)]
mod tests;
