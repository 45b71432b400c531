//! The times with which servers recorded events.

use super::{Findings, Rule, STORE_PRECISION};
use crate::history::operator_log::OperatorLog;
use crate::history::run_records::Run;

/// Checks that each event has a time at which a server could record it.
pub(super) fn check_times(findings: &mut Findings<'_>, runs: &[&Run], log: &OperatorLog) {
    let (start, end) = log.period;
    for run in runs {
        for entry in &run.events {
            let event = || format!("{} records {} at {}", run.id, entry.event, entry.at);
            if entry.at + STORE_PRECISION < start || end < entry.at {
                let message = format!("{}, but the history lasted from {start} to {end}", event());
                findings.add(Rule::TimesAreTrue, message);
            }
            let mut read_only = log.read_only.iter();
            if read_only.any(|(from, until)| *from < entry.at && entry.at < *until) {
                let message = format!("{}, when the database was read-only", event());
                findings.add(Rule::NoWriteWhileReadOnly, message);
            }
        }
    }
}
