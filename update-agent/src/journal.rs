//! The journal: intent and progress of the open attempt, on disk before each action.
//!
//! One file, replaced as a whole. Events are numbered once, when they are written here, and are sent from here. So a
//! report is the same before and after a power cut.

mod partial;
mod phases;

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::durable::{self, FileError};
use crate::model::{
    AttemptEvent, Interruption, ModuleParts, PhaseSpan, RunReport, UpdatePlan, UpdateTarget,
};
use crate::modules::AnyStep;

use self::partial::parse_partial_entry;

pub use self::phases::PLAN_PHASE;

/// Version of the file format. A file with another version is not read.
///
/// An older agent may read the journal of a newer one, for example after a node has returned to its
/// previous image. Purely informational parts (the totals of the plan, an event with its report)
/// may get further optional fields within this version: an older agent ignores them and does not
/// report them. Parts that instruct the agent (the entry itself, and the modules' specs and steps)
/// are read completely or not at all: half of an instruction means something else. An attempt with an
/// entry that cannot be read completely ends (see [`JournalEntry::unreadable`]); if not even its
/// events can be read, the file is quarantined. The modules read their own parts: an attempt fails when a module
/// cannot read a spec or a step that it needs.
const FORMAT_VERSION: u32 = 2;

/// Most remarks in a run report.
const MAX_REMARKS: usize = 500;
/// Maximum number of interruptions that an attempt records.
const MAX_INTERRUPTIONS: usize = 100;

/// The open attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JournalEntry {
    /// ID of the attempt.
    pub attempt: Uuid,
    /// What the attempt is to achieve.
    pub target: UpdateTarget,
    /// Progress of the attempt.
    pub phase: Phase,
    /// Totals of the whole change.
    pub plan: UpdatePlan,
    /// What each module reports about the change.
    #[serde(default)]
    pub reports: ModuleParts,
    /// The steps of the plan.
    pub steps: Vec<JournalStep>,
    /// All events, in ascending order of the sequence numbers, without gaps.
    pub events: Vec<AttemptEvent>,
    /// Highest sequence number up to which the server has stored all events.
    pub acknowledged: u32,
    /// Until when the server permits the start.
    pub start_deadline: Option<DateTime<Utc>>,
    /// Problems that did not change the outcome, for a person.
    #[serde(default)]
    pub remarks: Vec<String>,
    /// What each module recorded right before the change.
    #[serde(default)]
    pub baselines: ModuleParts,
    /// Names of the health checks that failed right before the change; `None` if they were not run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unhealthy_before: Option<Vec<String>>,
    /// Duration of the planning. The durations of other phases follow from the events.
    #[serde(default)]
    pub spans: Vec<PhaseSpan>,
    /// How often the agent requested a reboot.
    #[serde(default)]
    pub reboot_requests: u32,
    #[serde(default)]
    pub last_reboot_request: Option<DateTime<Utc>>,
    /// When the steps were done and the node began to wait for its reboot; `None` if it needs none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reboot_since: Option<DateTime<Utc>>,
    /// What delays the reboot on this machine; the last one, if it no longer does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reboot_delay: Option<RebootDelay>,
    /// Time of the reboot that logged-in users were warned of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub announced_reboot: Option<DateTime<Utc>>,
    /// How often logged-in users were warned since something last delayed the reboot; `None` if never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reboot_warnings: Option<u32>,
    /// Why the change needs a reboot; empty if it does not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reboot_reasons: Vec<String>,
    /// Release of the kernel that ran right before the change; empty if it is unknown.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub kernel_before: String,
    /// Release of the kernel that ran at the end of the attempt, if it has changed the node.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub kernel_after: String,
    /// The boot that a pending reboot ends; empty if none is pending.
    #[serde(default)]
    pub boot_id: String,
    /// Whether the change needs a reboot that the node did not make.
    #[serde(default)]
    pub reboot_required: bool,
    /// Whether the pending reboot applies the change: without the reboot the attempt is reverted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reboot_is_the_change: bool,
    /// Why the file could not be read completely: a newer agent has written it. The attempt is not
    /// continued. It is stored, because the file is also written before the end of the attempt, for
    /// example when the server acknowledges an event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unreadable: Option<String>,
}

/// Progress of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// The plan is made; its files are being fetched.
    Downloading,
    /// All files are there, nothing is changed.
    Staged,
    /// The steps are being taken.
    Applying,
    /// The steps are done; the node reboots.
    Rebooting,
    /// The steps are done; their result is being verified.
    Verifying,
    /// The last event is written.
    Ended,
}

impl Phase {
    /// Name for the log and for `status`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Downloading => "downloading",
            Self::Staged => "staged",
            Self::Applying => "applying",
            Self::Rebooting => "rebooting",
            Self::Verifying => "verifying",
            Self::Ended => "ended",
        }
    }
}

/// A step and whether it is done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JournalStep {
    pub step: AnyStep,
    /// Whether the step is done. A done step is never taken again.
    pub done: bool,
}

/// A delay of a reboot by the machine: by a person, a program or a hook.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RebootDelay {
    /// Since when the reboot is delayed.
    pub since: DateTime<Utc>,
    /// The last reason, for a person.
    pub reason: String,
}

impl JournalEntry {
    /// A new attempt with its ID and target.
    pub fn new(attempt: Uuid, target: UpdateTarget) -> Self {
        Self {
            attempt,
            target,
            phase: Phase::Downloading,
            plan: UpdatePlan::default(),
            reports: ModuleParts::default(),
            steps: Vec::new(),
            events: Vec::new(),
            acknowledged: 0,
            start_deadline: None,
            remarks: Vec::new(),
            baselines: ModuleParts::default(),
            unhealthy_before: None,
            spans: Vec::new(),
            reboot_requests: 0,
            last_reboot_request: None,
            reboot_since: None,
            reboot_delay: None,
            announced_reboot: None,
            reboot_warnings: None,
            reboot_reasons: Vec::new(),
            kernel_before: String::new(),
            kernel_after: String::new(),
            boot_id: String::new(),
            reboot_required: false,
            reboot_is_the_change: false,
            unreadable: None,
        }
    }

    /// The last sequence number; 0 if there is no event.
    pub fn last_sequence(&self) -> u32 {
        self.events.last().map_or(0, |event| event.sequence)
    }

    /// The events that the server has not acknowledged.
    pub fn unsent(&self) -> &[AttemptEvent] {
        let first = self.events.partition_point(|event| event.sequence <= self.acknowledged);
        &self.events[first..]
    }

    /// Whether this attempt has begun to change the node and has no outcome yet.
    pub fn has_begun(&self) -> bool {
        matches!(self.phase, Phase::Applying | Phase::Rebooting | Phase::Verifying)
    }

    /// Whether a reboot that applies the change is pending and was not requested yet: any reset applies it.
    pub fn awaits_first_reboot(&self) -> bool {
        self.phase == Phase::Rebooting && self.reboot_is_the_change && self.reboot_requests == 0
    }

    /// The interruptions of the attempt, in order.
    pub fn interruptions(&self) -> impl Iterator<Item = &Interruption> {
        self.events.iter().flat_map(|event| &event.interruptions)
    }

    /// Adds an interruption after the last event. Interruptions beyond the maximum are not
    /// recorded. Returns whether it was added.
    pub fn add_interruption(&mut self, interruption: Interruption) -> bool {
        let is_full = self.interruptions().count() >= MAX_INTERRUPTIONS;
        match self.events.last_mut() {
            Some(event) if !is_full => {
                event.interruptions.push(interruption);
                true
            }
            _ => false,
        }
    }

    /// The boot in which the last event or the last interruption was recorded.
    pub fn last_boot(&self) -> Option<&str> {
        let event = self.events.last()?;
        let interruption = event.interruptions.last();
        Some(interruption.map_or(event.boot_id.as_str(), |last| last.boot_id.as_str()))
    }

    /// The report of the run so far; `None` if it is empty.
    pub fn run_report(&self) -> Option<RunReport> {
        // The version before recorded other phases here too.
        let planning = self.spans.iter().filter(|span| span.phase == PLAN_PHASE).cloned();
        let report = RunReport {
            phases: planning
                .chain(phases::measure_phases(
                    &self.events,
                    self.plan.download_bytes,
                    self.reboot_since,
                ))
                .collect(),
            interruptions: self.interruptions().cloned().collect(),
            remarks: self.remarks.iter().take(MAX_REMARKS).cloned().collect(),
            reboot_required: self.reboot_required,
            reboot_reasons: self.reboot_reasons.clone(),
            kernel_before: self.kernel_before.clone(),
            kernel_after: self.kernel_after.clone(),
            modules: self.reports.clone(),
        };
        (report != RunReport::default()).then_some(report)
    }
}

/// A point in an attempt at which the journal is written. Tests stop and kill the agent at each of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalPoint(String);

impl JournalPoint {
    /// The points of an attempt, in order. Between `began` and `reboot-begun` each step has its own point. Only an attempt
    /// that reboots the node passes `reboot-begun`, and passes it again with each request.
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

    /// A point of [`JournalPoint::FIXED`].
    pub fn fixed(name: &'static str) -> Self {
        debug_assert!(Self::FIXED.contains(&name), "{name}");
        Self(name.to_owned())
    }

    /// The point after a step of a module is marked as done.
    pub fn step_done(module: &str, step: &str) -> Self {
        Self(format!("done-{module}-{step}"))
    }

    /// The point after an interruption is recorded. Only an attempt that was interrupted passes it.
    pub fn interrupted() -> Self {
        Self("interrupted".to_owned())
    }

    pub fn name(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for JournalPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The journal could not be read or written. The agent does not continue without it.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The file could not be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// The entry could not be serialized.
    #[error("the journal cannot be written as JSON")]
    Unwritable(#[source] serde_json::Error),
}

/// Storage of the open attempt.
pub trait Journal: Send + Sync {
    /// Reads the open attempt, if there is one.
    fn read(&self) -> Result<Option<JournalEntry>, JournalError>;
    /// Replaces the entry. It is on disk when this returns.
    fn write(&self, point: &JournalPoint, entry: &JournalEntry) -> Result<(), JournalError>;
    /// Removes the entry.
    fn clear(&self) -> Result<(), JournalError>;
}

#[derive(Debug)]
pub struct FileJournal {
    path: PathBuf,
}

/// Content of the file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct JournalDocument<E> {
    format: u32,
    attempt: E,
}

impl FileJournal {
    /// A journal at `path`.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Reads the entry without quarantining an invalid file, for `status`.
    pub fn peek(path: &Path) -> Result<Option<JournalEntry>, FileError> {
        let content = durable::read_file(path)?;
        Ok(content.and_then(|content| parse_entry(&content).ok()))
    }

    /// Describes the quarantined files next to a journal, each with the action that a person should take. A file is
    /// reported until it is removed.
    pub fn quarantined_files(journal: &Path) -> Vec<String> {
        let name = journal.file_name().unwrap_or_default().to_string_lossy();
        let corrupt = format!("{name}.corrupt-");
        let folder = journal.parent().unwrap_or(Path::new("/"));
        let Ok(files) = fs::read_dir(folder) else {
            return Vec::new();
        };
        let files = files.filter_map(|file| Some(file.ok()?.path()));
        let mut quarantined: Vec<_> = files
            .filter(|path| {
                let name = path.file_name().unwrap_or_default();
                name.to_string_lossy().starts_with(&corrupt)
            })
            .map(|path| {
                format!(
                    "a journal could not be read and was moved to {}: the result of its update is not known; check the \
                     node with `evenkeel-agent doctor`, then remove the file",
                    path.display()
                )
            })
            .collect();
        quarantined.sort();
        quarantined
    }

    /// Renames a file that cannot be read, so that a person can examine it.
    fn quarantine(&self, why: &str) -> Result<(), FileError> {
        let mut number = 0;
        let quarantined = loop {
            let quarantined = self.path.with_extension(format!("json.corrupt-{number}"));
            if !quarantined.exists() {
                break quarantined;
            }
            number += 1;
        };
        fs::rename(&self.path, &quarantined)
            .map_err(FileError::while_doing("rename", &self.path))?;
        durable::flush_folder(&self.path)?;
        tracing::error!(
            why,
            file = %quarantined.display(),
            "the journal cannot be read and was moved away; the result of the open attempt, if there was one, is not known"
        );
        Ok(())
    }
}

fn parse_entry(content: &[u8]) -> Result<JournalEntry, String> {
    let document: JournalDocument<JournalEntry> =
        serde_json::from_slice(content).map_err(|error| error.to_string())?;
    if document.format != FORMAT_VERSION {
        return Err(format!("unsupported format version {}", document.format));
    }
    if !is_numbered(&document.attempt.events) {
        return Err("the events are not numbered from 1 without gaps".to_owned());
    }
    Ok(document.attempt)
}

/// Whether events are numbered from 1 without gaps.
fn is_numbered(events: &[AttemptEvent]) -> bool {
    (1..).zip(events).all(|(number, event)| event.sequence == number)
}

impl Journal for FileJournal {
    fn read(&self) -> Result<Option<JournalEntry>, JournalError> {
        let Some(content) = durable::read_file(&self.path)? else {
            return Ok(None);
        };
        match parse_entry(&content) {
            Ok(entry) => Ok(Some(entry)),
            Err(why) => {
                let partial = parse_partial_entry(&content, &why);
                if partial.is_none() {
                    self.quarantine(&why)?;
                }
                // The file of a partial entry stays until the entry is written.
                Ok(partial)
            }
        }
    }

    fn write(&self, point: &JournalPoint, entry: &JournalEntry) -> Result<(), JournalError> {
        let document = JournalDocument { format: FORMAT_VERSION, attempt: entry };
        let content = serde_json::to_vec(&document).map_err(JournalError::Unwritable)?;
        durable::replace_file(&self.path, &content, 0o600)?;
        tracing::debug!(%point, attempt = %entry.attempt, "journal written");
        Ok(())
    }

    fn clear(&self) -> Result<(), JournalError> {
        Ok(durable::remove_file(&self.path)?)
    }
}

#[cfg(test)]
mod tests;
