//! The state machine of runs, printed and tested.

use std::fmt::Write as _;
use std::path::Path;

use chrono::{DateTime, TimeDelta};
use proptest::prelude::*;

use super::*;

const NOON: Time = DateTime::from_timestamp_nanos(1_800_000_000_000_000_000);

fn timeouts() -> RunTimeouts {
    RunTimeouts::default()
}

fn much_later() -> Time {
    NOON + TimeDelta::days(365)
}

fn failure(reason: &str) -> Failure {
    Failure { kind: FailureKind::Apply, reason: reason.to_owned() }
}

fn every_state() -> Vec<RunState> {
    let (since, at) = (NOON, NOON);
    let failure = failure("broken");
    let mut states = vec![
        RunState::Downloading { since },
        RunState::Staged { since },
        RunState::Applying { since },
        RunState::Rebooting { since },
        RunState::Verifying { since },
        RunState::Reverting { since },
        RunState::Succeeded { at, changed: true },
        RunState::Succeeded { at, changed: false },
        RunState::Failed { at, failure: failure.clone() },
        RunState::Reverted { at, failure },
    ];
    states.extend(CancelCause::ALL.iter().map(|&cause| RunState::Cancelled { at, cause }));
    states.extend(AbandonCause::ALL.iter().map(|&cause| RunState::Abandoned { at, cause }));
    states
}

fn every_event() -> Vec<RunEvent> {
    use RunEvent as E;
    let mut events = vec![
        E::Downloading,
        E::Downloaded,
        E::Began,
        E::RebootBegun,
        E::VerifyBegun,
        E::Reverting,
        E::Finished,
        E::Failed(failure("broken")),
        E::Reverted(failure("broken")),
        E::NothingToDo,
    ];
    events.extend(CancelCause::ALL.iter().map(|&cause| E::Cancelled(cause)));
    events.extend([E::TimedOut, E::Superseded, E::Removed]);
    events
}

fn format_state(state: &RunState) -> String {
    match state {
        RunState::Succeeded { changed, .. } => format!("succeeded(changed={changed})"),
        RunState::Cancelled { cause, .. } => format!("cancelled({cause})"),
        RunState::Abandoned { cause, .. } => format!("abandoned({cause})"),
        other => other.name().to_owned(),
    }
}

/// The table of transitions is kept in `docs/run-states.md`, so that every change of the rules shows in a diff.
#[test]
#[expect(clippy::disallowed_methods, reason = "the one switch of this test")]
fn the_table_in_the_documents_is_the_table_in_the_code() {
    let mut table = String::from(
        "# States of a run\n\nA test writes this page from `domain::run`. Every pair that is not listed is rejected. `=` changes\n\
         nothing. `timed_out` is accepted only after the timeout of the state.\n\n```text\n",
    );
    let from_nothing = std::iter::once(None);
    for from in from_nothing.chain(every_state().into_iter().map(Some)) {
        for event in every_event() {
            let Ok(next) = RunState::apply_event(from.as_ref(), &event, much_later(), &timeouts())
            else {
                continue;
            };
            let name = from.as_ref().map_or("(none)".to_owned(), format_state);
            let detail = match &event {
                RunEvent::Cancelled(cause) => format!("{}({cause})", event.name()),
                _ => event.name().to_owned(),
            };
            let to =
                if from.as_ref() == Some(&next) { "=".to_owned() } else { format_state(&next) };
            writeln!(table, "{name:<26} --{detail:-<24}> {to}").expect("a string takes it all");
        }
    }
    table.push_str("```\n");

    let committed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/run-states.md");
    if std::env::var_os("UPDATE_GENERATED").is_some() {
        std::fs::write(&committed, &table).expect("write the document");
    }
    let stored = std::fs::read_to_string(&committed).unwrap_or_default();
    assert!(stored == table, "docs/run-states.md is stale: run `make generate` and review it");
}

/// A timeout that was judged a moment ago no longer applies if the node has reported since.
#[test]
fn a_timeout_applies_only_when_it_is_due() {
    for state in every_state().into_iter().filter(|state| !state.is_final()) {
        let end = timeouts().expires_at(&state).expect("open states time out");
        let just_before = end - TimeDelta::milliseconds(1);
        let on = |now| RunState::apply_event(Some(&state), &RunEvent::TimedOut, now, &timeouts());
        assert!(on(just_before).is_err(), "{state:?}");
        assert_eq!(on(end).expect("it is due").name(), "abandoned");
    }
}

#[test]
fn a_run_that_began_cannot_be_cancelled() {
    for state in every_state().into_iter().filter(|state| !state.is_final()) {
        let cancelled = RunState::apply_event(
            Some(&state),
            &RunEvent::Cancelled(CancelCause::Withdrawn),
            NOON,
            &timeouts(),
        );
        assert_eq!(cancelled.is_ok(), state.is_untouched(), "{state:?}");
    }
}

fn any_event() -> impl Strategy<Value = RunEvent> {
    prop::sample::select(every_event())
}

proptest! {
    /// Whatever nodes, timers and users send, in any order and with any repetitions.
    #[test]
    fn an_ended_run_stays_ended(events in prop::collection::vec((any_event(), 0..400i64), 0..40)) {
        let mut now = NOON;
        let mut state: Option<RunState> = None;
        for (event, hours) in events {
            now += TimeDelta::hours(hours);
            let Ok(next) = RunState::apply_event(state.as_ref(), &event, now, &timeouts()) else { continue };
            if let Some(before) = &state {
                let replaceable = matches!(before, RunState::Abandoned { cause: AbandonCause::TimedOut, .. });
                prop_assert!(!before.is_final() || replaceable || next == *before, "{before:?} moved");
                prop_assert!(!before.is_final() || next.is_final(), "{before:?} was opened again");
            }
            let again = RunState::apply_event(Some(&next), &event, now, &timeouts());
            prop_assert!(again.as_ref() == Ok(&next) || again.is_err(), "{event:?} repeated moved {next:?}");
            state = Some(next);
        }
    }

    /// An open run never returns to an earlier state, except from verifying to rebooting.
    #[test]
    fn an_open_run_goes_forward(events in prop::collection::vec(any_event(), 0..40)) {
        let mut state: Option<RunState> = None;
        for event in events {
            let Ok(next) = RunState::apply_event(state.as_ref(), &event, NOON, &timeouts()) else { continue };
            if let (Some(from), Some(to)) = (state.as_ref().and_then(RunState::progress), next.progress()) {
                prop_assert!(to >= from || (from, to) == (5, 4), "from {from} to {to}");
            }
            state = Some(next);
        }
    }
}
