//! Records after a restore of the database: each event that was acknowledged before the dump is recorded, and each run
//! belongs to its machine.

use std::collections::BTreeMap;

use uuid::Uuid;

use super::{Rule, Violation};
use crate::history::run_records::Run;

/// The attempts of a machine.
#[derive(Clone, Debug)]
pub struct MachineHistory {
    pub uuid: Uuid,
    pub attempts: Vec<ReportedAttempt>,
}

/// An attempt of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReportedAttempt {
    pub id: Uuid,
    /// Number of events that must be recorded: those that were acknowledged and not lost with the end of the database.
    pub acknowledged: usize,
}

/// The records of servers.
#[derive(Clone, Debug, Default)]
pub struct MachineRecords {
    /// UUID of the machine of each instance.
    pub machines: BTreeMap<String, Uuid>,
    pub runs: Vec<Run>,
}

/// Checks the records of all machines.
pub fn check_restored(histories: &[MachineHistory], records: &MachineRecords) -> Vec<Violation> {
    let mut violations = Vec::new();
    for run in &records.runs {
        violations.extend(check_machine(histories, records, run));
    }
    for attempt in histories.iter().flat_map(|history| &history.attempts) {
        violations.extend(check_attempt(*attempt, &records.runs));
    }
    violations
}

/// Checks that the machine of the instance did the attempt of a run.
fn check_machine(
    histories: &[MachineHistory],
    records: &MachineRecords,
    run: &Run,
) -> Option<Violation> {
    let did = |history: &&MachineHistory| {
        history.attempts.iter().any(|attempt| Some(attempt.id) == run.attempt)
    };
    let machine = records.machines.get(&run.instance);
    let (rule, message) = match histories.iter().find(did) {
        None => (Rule::NothingIsInvented, format!("no machine did the attempt of {}", run.id)),
        Some(history) if Some(&history.uuid) == machine => return None,
        Some(history) => {
            let message = format!(
                "{} is recorded for the machine {machine:?}, but {} did its attempt",
                run.id, history.uuid
            );
            (Rule::NoMachineIsMistaken, message)
        }
    };
    Some(Violation { rule, instance: run.instance.clone(), message })
}

/// Checks that the acknowledged events of an attempt are recorded, once.
fn check_attempt(attempt: ReportedAttempt, runs: &[Run]) -> Option<Violation> {
    let of: Vec<_> = runs.iter().filter(|run| run.attempt == Some(attempt.id)).collect();
    let recorded = of.iter().flat_map(|run| &run.events).filter_map(|entry| entry.sequence);
    let numbers: Vec<usize> = recorded.filter_map(|number| usize::try_from(number).ok()).collect();
    let is_in_order = numbers.iter().copied().eq(1..=numbers.len());
    let rule = if of.len() > 1 || !is_in_order {
        Rule::NoRunTwice
    } else if numbers.len() < attempt.acknowledged {
        Rule::NoReportIsLost
    } else {
        return None;
    };
    let instance = of.first().map(|run| run.instance.clone()).unwrap_or_default();
    let message = format!(
        "attempt {} has {} runs with the events {numbers:?}; {} events were acknowledged",
        attempt.id,
        of.len(),
        attempt.acknowledged
    );
    Some(Violation { rule, instance, message })
}
