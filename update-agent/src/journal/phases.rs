//! Durations of the phases of an attempt. Pure.

use chrono::{DateTime, Utc};

use crate::model::{AttemptEvent, EventKind, PhaseSpan};

/// The phase before the first event.
pub const PLAN_PHASE: &str = "plan";

/// The phase after the steps, until the node runs again.
const REBOOT_PHASE: &str = "reboot";

/// Durations of the phases from the first event on: from the event that begins a phase to the next
/// event. So the time during which the agent or the machine was down counts as well. `reboot_since`:
/// when the steps were done and the node began to wait for its reboot. The event of the reboot follows
/// only when the node goes down.
pub(super) fn measure_phases(
    events: &[AttemptEvent],
    download_bytes: u64,
    reboot_since: Option<DateTime<Utc>>,
) -> Vec<PhaseSpan> {
    let mut spans: Vec<PhaseSpan> = Vec::new();
    for (event, next) in events.iter().zip(events.iter().skip(1)) {
        let Some(phase) = begun_phase(&event.kind) else { continue };
        let bytes = if next.kind == EventKind::Downloaded { download_bytes } else { 0 };
        let reboot_since = reboot_since
            .filter(|since| event.kind == EventKind::Began && (event.at..=next.at).contains(since));
        add_span(&mut spans, phase, (event.at, reboot_since.unwrap_or(next.at)), bytes);
        if let Some(since) = reboot_since {
            add_span(&mut spans, REBOOT_PHASE, (since, next.at), 0);
        }
    }
    spans
}

fn add_span(
    spans: &mut Vec<PhaseSpan>,
    phase: &str,
    (from, to): (DateTime<Utc>, DateTime<Utc>),
    bytes: u64,
) {
    // Negative if the clock was turned back meanwhile.
    let millis = u64::try_from(to.signed_duration_since(from).num_milliseconds()).unwrap_or(0);
    match spans.iter_mut().find(|span| span.phase == phase) {
        Some(span) => span.millis = span.millis.saturating_add(millis),
        None => spans.push(PhaseSpan { phase: phase.to_owned(), millis, bytes }),
    }
}

/// The phase that an event begins.
fn begun_phase(kind: &EventKind) -> Option<&'static str> {
    match kind {
        EventKind::Downloading => Some("download"),
        EventKind::Began => Some("apply"),
        EventKind::RebootBegun => Some(REBOOT_PHASE),
        EventKind::VerifyBegun => Some("verify"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn phases(events: &[(EventKind, i64)]) -> String {
        phases_with_reboot(events, None)
    }

    fn phases_with_reboot(events: &[(EventKind, i64)], reboot_since: Option<i64>) -> String {
        let reboot_since = reboot_since.map(|at| DateTime::from_timestamp(at, 0).unwrap());
        let events: Vec<_> = (1..)
            .zip(events)
            .map(|(sequence, (kind, seconds))| AttemptEvent {
                sequence,
                at: DateTime::from_timestamp(*seconds, 0).unwrap(),
                boot_id: String::new(),
                kind: kind.clone(),
                report: None,
                interruptions: Vec::new(),
            })
            .collect();
        let spans = measure_phases(&events, 7, reboot_since).into_iter();
        let spans = spans.map(|span| format!("{} {} {}", span.phase, span.millis, span.bytes));
        spans.collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn a_phase_lasts_from_its_event_to_the_next_one() {
        use EventKind::{Began, Downloaded, Downloading, Finished, RebootBegun, VerifyBegun};
        let all = [
            (Downloading, 0),
            (Downloaded, 10),
            (Began, 100),
            (RebootBegun, 120),
            (VerifyBegun, 150),
            (Finished, 151),
        ];
        assert_eq!(phases(&all), "download 10000 7, apply 20000 0, reboot 30000 0, verify 1000 0");
        let cancelled = EventKind::Cancelled { cause: String::new() };
        assert_eq!(phases(&[(Downloading, 0), (cancelled, 9)]), "download 9000 0");
        assert_eq!(phases(&[(EventKind::NothingToDo, 0)]), "");
        assert_eq!(phases(&[(Began, 5)]), "", "it has not ended");
        assert_eq!(
            phases(&[(Began, 100), (Finished, 5)]),
            "apply 0 0",
            "the clock was turned back"
        );
        let twice = [(RebootBegun, 0), (VerifyBegun, 1), (RebootBegun, 2), (VerifyBegun, 4)];
        assert_eq!(phases(&twice), "reboot 3000 0, verify 1000 0");
    }

    #[test]
    fn the_wait_for_a_reboot_is_no_part_of_the_change() {
        use EventKind::{Began, Finished, RebootBegun, VerifyBegun};
        let all = [(Began, 100), (RebootBegun, 420), (VerifyBegun, 450), (Finished, 451)];
        let waited = phases_with_reboot(&all, Some(120));
        assert_eq!(waited, "apply 20000 0, reboot 330000 0, verify 1000 0");
        let skipped = [(Began, 100), (VerifyBegun, 420), (Finished, 421)];
        let waited = phases_with_reboot(&skipped, Some(120));
        assert_eq!(waited, "apply 20000 0, reboot 300000 0, verify 1000 0");
        // The clock was set meanwhile.
        for since in [99, 421] {
            assert_eq!(phases_with_reboot(&skipped, Some(since)), phases(&skipped));
        }
    }
}
