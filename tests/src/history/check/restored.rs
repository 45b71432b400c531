//! Records after a restore of the database: each event that was acknowledged before the dump is recorded, each run
//! belongs to its machine, and no ID to two machines. In the end each machine has the desired version, installed once.

use std::collections::BTreeMap;

use uuid::Uuid;

use super::{Rule, Violation};
use crate::history::run_records::Run;

/// What happened to a machine.
#[derive(Clone, Debug, Default)]
pub struct MachineHistory {
    pub uuid: Uuid,
    /// IDs of its hosts and instances, in the order in which servers gave them; the last one is that of its instance.
    pub ids: Vec<String>,
    pub attempts: Vec<ReportedAttempt>,
    /// Versions that it has installed, in order.
    pub installed: Vec<String>,
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
    let mut violations = check_identities(histories);
    for run in &records.runs {
        violations.extend(check_machine(histories, records, run));
    }
    for attempt in histories.iter().flat_map(|history| &history.attempts) {
        violations.extend(check_attempt(*attempt, &records.runs));
    }
    violations
}

/// Checks that each machine has installed a version, and none twice, and that the records show it.
pub fn check_convergence(
    histories: &[MachineHistory],
    records: &MachineRecords,
    version: &str,
) -> Vec<Violation> {
    let mut violations = Vec::new();
    for history in histories {
        let instance = history.ids.last().cloned().unwrap_or_default();
        let installed = &history.installed;
        let is_twice = (1..installed.len()).any(|at| installed[..at].contains(&installed[at]));
        let runs = records.runs.iter().filter(|run| run.instance == instance);
        let states: Vec<_> = runs.clone().map(|run| run.state.as_str()).collect();
        let is_known = records.machines.get(&instance) == Some(&history.uuid);
        let is_done = states.contains(&"succeeded") && runs.clone().all(Run::has_ended);
        let rule = if is_twice {
            Rule::NothingTwice
        } else if installed.last().is_none_or(|last| last != version) || !is_known || !is_done {
            Rule::FleetConverges
        } else {
            continue;
        };
        let message = format!(
            "{} has installed {installed:?}, should have {version}, and its runs are {states:?}",
            history.uuid
        );
        violations.push(Violation { rule, instance, message });
    }
    violations
}

/// Checks that no ID was given to two machines.
fn check_identities(histories: &[MachineHistory]) -> Vec<Violation> {
    let mut owners = BTreeMap::new();
    let mut violations = Vec::new();
    for history in histories {
        for id in &history.ids {
            let owner = *owners.entry(id).or_insert(history.uuid);
            if owner != history.uuid {
                let message = format!("it was given to {owner} and to {}", history.uuid);
                let instance = id.clone();
                violations.push(Violation { rule: Rule::NoIdentityTwice, instance, message });
            }
        }
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
