//! Reads the parts of a journal that every version of the agent writes.
//!
//! An attempt of a newer agent is not continued: half of an instruction means something else. But it must end with an event,
//! and the node must be consistent.

use serde::Deserialize;
use serde_json::Value;
use uuid::Uuid;

use super::{FORMAT_VERSION, JournalEntry, JournalStep, Phase, is_numbered};
use crate::model::{AttemptEvent, EventKind, ModuleParts, UpdateTarget};
use crate::modules::AnyStep;

#[derive(Deserialize)]
struct PartialDocument {
    format: u32,
    attempt: PartialEntry,
}

#[derive(Deserialize)]
struct PartialEntry {
    attempt: Uuid,
    target: PartialTarget,
    events: Vec<AttemptEvent>,
    #[serde(default)]
    acknowledged: u32,
    #[serde(default)]
    steps: Vec<PartialStep>,
    #[serde(default)]
    reports: ModuleParts,
    #[serde(default)]
    baselines: ModuleParts,
}

#[derive(Deserialize)]
struct PartialTarget {
    digest: String,
    #[serde(default)]
    spec: ModuleParts,
}

#[derive(Deserialize)]
struct PartialStep {
    step: PartialModuleStep,
    #[serde(default)]
    done: bool,
}

#[derive(Deserialize)]
struct PartialModuleStep {
    module: String,
    name: String,
    #[serde(default)]
    payload: Value,
}

/// Reads an entry of this or a newer format, without the parts that are unknown. `why` says why it cannot be read
/// completely. `None` if its events cannot be read.
pub(super) fn parse_partial_entry(content: &[u8], why: &str) -> Option<JournalEntry> {
    let PartialDocument { format, attempt } = serde_json::from_slice(content).ok()?;
    if format < FORMAT_VERSION || !is_numbered(&attempt.events) {
        return None;
    }
    let PartialTarget { digest, spec } = attempt.target;
    let steps = attempt.steps.into_iter().map(|partial| {
        let PartialModuleStep { module, name, payload } = partial.step;
        JournalStep { step: AnyStep { module, name, payload }, done: partial.done }
    });
    Some(JournalEntry {
        phase: phase_of_events(&attempt.events),
        steps: steps.collect(),
        events: attempt.events,
        acknowledged: attempt.acknowledged,
        reports: attempt.reports,
        baselines: attempt.baselines,
        unreadable: Some(format!(
            "another version of the agent began this update, and this one cannot read its journal: {why}"
        )),
        ..JournalEntry::new(attempt.attempt, UpdateTarget { digest, spec })
    })
}

/// The phase that the events show. A newer agent may have more phases.
fn phase_of_events(events: &[AttemptEvent]) -> Phase {
    if events.last().is_some_and(|event| event.kind.is_terminal()) {
        Phase::Ended
    } else if events.iter().any(|event| event.kind == EventKind::Began) {
        Phase::Applying
    } else {
        Phase::Downloading
    }
}
