//! Evaluation of samples: single cases, the whole table, and properties of any sequence.

use std::fmt::Write as _;

use proptest::prelude::*;

use super::*;
use SampleKind::{Downloaded, Downloading, Failed, Started, UpToDate, Updated};

#[test]
fn a_complete_update_gives_all_events() {
    assert_eq!(
        transitions_of(&[UpToDate, Downloading, Downloaded, Started, Started, Updated, UpToDate]),
        "downloading->downloading downloaded->staged began->applying finished->succeeded"
    );
    // The step in between was missed, and the agent repeats the end until an answer arrives.
    assert_eq!(transitions_of(&[Updated, Updated, UpToDate]), "finished->succeeded");
    assert_eq!(
        transitions_of(&[Downloaded, Updated, UpToDate]),
        "downloaded->staged finished->succeeded"
    );
}

#[test]
fn an_update_that_found_nothing_to_do_ends_as_such() {
    assert_eq!(transitions_of(&[Started, UpToDate]), "began->applying nothing_to_do->succeeded");
    // The start was missed.
    assert_eq!(
        transitions_of(&[Downloaded, UpToDate]),
        "downloaded->staged nothing_to_do->succeeded"
    );
}

#[test]
fn an_update_dropped_outside_a_window_is_cancelled() {
    let mut story = Story::at_rest(false);
    let transitions = story.receive_all(&[sample(Downloading), sample(UpToDate)]);
    assert_eq!(transitions, "downloading->downloading cancelled->cancelled");
}

#[test]
fn the_first_sample_is_a_baseline() {
    for kind in SampleKind::ALL {
        let mut story = Story::new(node(OsKind::Mutable));
        let transitions = story.receive_all(&[sample(*kind), sample(*kind), sample(UpToDate)]);
        assert_eq!(transitions, "", "{kind}");
    }
}

/// Its fixed text, if the operating system of the instance is of another kind than that of the node.
#[test]
fn an_agent_that_skips_updates_reports_it_in_its_detail() {
    let skipping = "skipping IMMUTABLE update request on Ubuntu node";
    assert!(stored_sample(&sample_with_detail(UpToDate, skipping)).skips_updates);
    for other in ["", "skipping the line", "cannot download: 404"] {
        assert!(!stored_sample(&sample_with_detail(UpToDate, other)).skips_updates, "{other}");
    }
}

#[test]
fn a_failure_is_recorded_once_until_the_next_update_begins() {
    let broken = sample_with_detail(Failed, "no space");
    let mut story = Story::at_rest(true);
    let samples = [
        sample(Started),
        broken.clone(),
        broken.clone(),
        broken,
        sample_with_detail(Started, "no space"),
        sample_with_detail(Updated, "no space"),
    ];
    assert_eq!(
        story.receive_all(&samples),
        "began->applying failed->failed began->applying finished->succeeded"
    );
    assert_eq!(story.failure(0), "no space");
    assert_eq!(story.logs, ["no space", ""]);
}

/// The state file could not be read at that instant.
#[test]
fn a_failure_that_the_next_sample_lacks_is_ignored() {
    assert_eq!(
        transitions_of(&[Started, Failed, Started, Updated]),
        "began->applying finished->succeeded"
    );
    assert_eq!(transitions_of(&[Failed, UpToDate]), "");
    assert_eq!(transitions_of(&[Failed, Started]), "began->applying");
}

/// The server ended the run because the agent was silent. The update continues after such a sampling error.
#[test]
fn an_ended_update_does_not_restart_after_a_transient_failure() {
    for (before, after) in [
        (Started, Started),
        (Downloading, Downloading),
        (Downloading, Downloaded),
        (Downloaded, Downloaded),
    ] {
        for in_window in [true, false] {
            let mut story = Story::at_rest(in_window);
            story.last_sample = Some(last_sample(before));
            let samples = [sample(Failed), sample(after), sample(Failed), sample(after)];
            assert_eq!(story.receive_all(&samples), "", "{before} {after} {in_window}");
            assert_eq!(story.conditions(), [], "{before} {after} {in_window}");
        }
    }
    // An update begins on a node that was at rest.
    let mut story = Story::at_rest(true);
    story.receive_all(&[sample(Started), sample(UpToDate)]);
    let samples = [sample(Failed), sample(Started)];
    assert_eq!(story.receive_all(&samples), "began->applying");
}

/// Nodes begin by their own clocks, and this one is ahead of the server's.
#[test]
fn a_persistent_failure_just_before_the_window_is_recorded() {
    let opens_in = |minutes| {
        let mut story = Story::at_rest(false);
        let start = story.now + TimeDelta::minutes(minutes);
        story.delivered.single = Some((start, start + hours(1)));
        story
    };
    let failed = [sample(Failed), sample(Failed), sample(Failed)];
    assert_eq!(opens_in(4).receive_all(&failed), "failed->failed");
    let mut early = opens_in(10);
    assert_eq!(early.receive_all(&failed), "", "no clock is so far ahead");
    assert_eq!(early.conditions(), [ConditionKind::AgentAnomaly]);
}

/// The run has ended already, so there is none that the failure could end.
#[test]
fn a_failure_without_detail_after_an_ended_download_is_an_anomaly() {
    for fetched in [Downloading, Downloaded] {
        let mut story = Story::at_rest(false);
        story.last_sample = Some(last_sample(fetched));
        let samples = [sample(Failed), sample(Failed), sample(Failed)];
        assert_eq!(story.receive_all(&samples), "");
        assert_eq!(story.conditions(), [ConditionKind::AgentAnomaly]);
    }
}

#[test]
fn a_failure_without_detail_is_confirmed_when_it_persists() {
    assert_eq!(
        transitions_of(&[Started, Failed, Failed, Failed]),
        "began->applying failed->failed"
    );
    assert_eq!(transitions_of(&[Failed, Failed, Failed]), "failed->failed");
    // The next update confirms the failure too.
    assert_eq!(
        transitions_of(&[Started, Failed, Downloading]),
        "began->applying failed->failed downloading->downloading"
    );
}

/// An agent repeats a call whose answer was lost, with the same sample.
#[test]
fn a_resent_sample_counts_once() {
    let mut story = Story::at_rest(true);
    story.receive(&sample(Started));
    for _ in 0..4 {
        story.receive(&sample(Failed));
        story.now = story.now - TICK + TimeDelta::seconds(1);
    }
    assert_eq!(story.receive_all(&[sample(Started)]), "");
}

#[test]
fn a_failure_without_detail_outside_a_window_is_an_anomaly() {
    let mut story = Story::at_rest(false);
    let failed = [sample(Failed), sample(Failed), sample(Failed)];
    assert_eq!(story.receive_all(&failed), "");
    assert_eq!(story.conditions(), [ConditionKind::AgentAnomaly]);
    assert_eq!(story.status, "No new updates available");
    assert_eq!(story.receive_all(&[sample(UpToDate)]), "");
    assert_eq!(story.conditions(), []);

    let spoken = sample_with_detail(Failed, "cannot download: no route");
    assert_eq!(story.receive_all(&[spoken.clone(), spoken]), "failed->failed");
}

#[test]
fn an_ended_update_does_not_restart_with_the_same_sample() {
    for (before, after) in [
        (Downloading, Downloading),
        (Downloading, Downloaded),
        (Downloaded, Downloaded),
        (Started, Started),
    ] {
        let mut story = Story::new(node(OsKind::Mutable));
        story.last_sample = Some(last_sample(before));
        assert_eq!(story.receive_all(&[sample(after)]), "", "{before} {after}");
    }
}

#[test]
fn an_update_is_not_attributed_to_the_run_of_another_agent() {
    let mut other = open_run(RunState::Rebooting { since: NOON });
    for kind in [Downloading, Started, Updated] {
        let events = proved_events(Some(&other), &last_sample(UpToDate), &sample(kind));
        assert!(events.starts_with("superseded+"), "{kind}: {events}");
    }
    other.state = RunState::Applying { since: NOON };
    other.attempt = Some(crate::run::AttemptId(uuid::Uuid::from_u128(1)));
    assert_eq!(proved_events(Some(&other), &last_sample(Started), &sample(UpToDate)), "-");
    let events = proved_events(Some(&other), &last_sample(Started), &sample(Updated));
    assert_eq!(events, "superseded+finished");
}

fn proved_events(open: Option<&OpenRun>, last: &LastSample, sample: &Sample) -> String {
    let facts = node(OsKind::Mutable);
    let delivered = DeliveryState {
        single: Some((NOON - hours(1), NOON + hours(1))),
        ..DeliveryState::default()
    };
    let before = PriorState {
        last_sample: Some(last),
        delivered: &delivered,
        open_run: open,
        facts: &facts,
        images: &[],
    };
    let proof = super::evaluate_sample(&before, sample, NOON);
    let names: Vec<_> = proof.events.iter().map(|one| one.event.name()).collect();
    match proof.last_sample.and_then(|last| last.unconfirmed_failure) {
        Some(_) => "unconfirmed".to_owned(),
        None if names.is_empty() => "-".to_owned(),
        None => names.join("+"),
    }
}

fn every_open_state() -> Vec<Option<OpenRun>> {
    let since = NOON;
    let states = [
        RunState::Downloading { since },
        RunState::Staged { since },
        RunState::Applying { since },
        RunState::Rebooting { since },
        RunState::Verifying { since },
        RunState::Reverting { since },
    ];
    let runs = states.into_iter().map(|state| Some(open_run(state)));
    [None].into_iter().chain(runs).collect()
}

/// Every pair of consecutive samples, without a run and with one in each open state. The second sample has the same
/// detail, another one, or none. The delivered window is open.
#[test]
fn every_pair_of_samples_gives_the_expected_events() {
    let mut table = String::new();
    for before in SampleKind::ALL {
        for after in SampleKind::ALL {
            for (detail_kind, detail) in [("same", "old"), ("new", "new"), ("empty", "")] {
                let last = LastSample {
                    kind: *before,
                    ..stored_sample(&sample_with_detail(UpToDate, "old"))
                };
                let sample = sample_with_detail(*after, detail);
                write!(table, "{:<37}", format!("{before} {after}, {detail_kind}")).expect("text");
                for open in every_open_state() {
                    let events = proved_events(open.as_ref(), &last, &sample);
                    let state = open.map_or("none", |open| open.state.name());
                    write!(table, " {:<38}", format!("{state}: {events}")).expect("text");
                }
                table.truncate(table.trim_end().len());
                table.push('\n');
            }
        }
    }
    insta::assert_snapshot!(table);
}

pub(super) fn any_sample() -> impl Strategy<Value = Sample> {
    let kinds = proptest::sample::select(SampleKind::ALL);
    let details = proptest::sample::select(vec!["", "one", "two", FAILED_DETAIL]);
    let images = proptest::sample::select(vec!["", "3.0.1", "3.0.2"]);
    (kinds, details, images).prop_map(|(kind, detail, image)| Sample {
        detail: detail.into(),
        ..sample_of_image(kind, "edge", image)
    })
}

const FAILED_DETAIL: &str =
    r#"{"UpdateLog":[{"StatusDetail.Status":"FAIL","FailureReason":"signaturecheck"}]}"#;

proptest! {
    /// Each proved event changes a run, so no run ends twice; `Story` asserts that.
    #[test]
    fn a_repeated_sample_changes_nothing(
        samples in proptest::collection::vec(any_sample(), 1..20),
        in_window: bool,
    ) {
        let mut story = Story::at_rest(in_window);
        for sample in &samples {
            story.receive(sample);
            let (last, runs) = (story.last_sample.clone(), story.runs.clone());
            story.now -= TICK;
            let proof = story.receive(sample);
            let is_doubted = |last: &Option<LastSample>| last.as_ref().is_some_and(|s| s.unconfirmed_failure.is_some());
            if !is_doubted(&last) {
                prop_assert_eq!(&proof.events, &Vec::new());
                prop_assert_eq!(&story.last_sample, &last);
                prop_assert_eq!(&story.runs, &runs);
            }
        }
    }

    /// An end that was not seen before is always recorded, whatever was sampled before and whether a run is open.
    #[test]
    fn a_new_end_is_always_recorded(samples in proptest::collection::vec(any_sample(), 1..20)) {
        let mut story = Story::at_rest(true);
        for sample in &samples {
            let was_updated = story.last_sample.as_ref().is_some_and(|last| last.kind == Updated);
            let proof = story.receive(sample);
            let finished = proof.events.iter().any(|one| one.event == RunEvent::Finished);
            if sample.kind == Updated && !was_updated {
                prop_assert!(finished);
                prop_assert_eq!(story.runs.last().map(|run| run.1.name()), Some("succeeded"));
            }
            prop_assert!(proof.events.len() <= 2);
            prop_assert_eq!(sample.kind == SampleKind::UpToDate && story.open_run().is_some(), false);
        }
    }
}
