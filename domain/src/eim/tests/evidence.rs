//! What samples prove: stories, the whole table, and what holds for any of them.

use std::fmt::Write as _;

use proptest::prelude::*;

use super::*;
use SampleKind::{Downloaded, Downloading, Failed, Started, UpToDate, Updated};

#[test]
fn a_life_as_it_is_sampled() {
    assert_eq!(
        proved_by(&[
            UpToDate,
            Downloading,
            Downloaded,
            Started,
            Started,
            Updated,
            UpToDate
        ]),
        "downloading->downloading downloaded->staged began->applying finished->succeeded"
    );
    // The step in between was missed, and the end is repeated until our answer arrives.
    assert_eq!(
        proved_by(&[Updated, Updated, UpToDate]),
        "finished->succeeded"
    );
    assert_eq!(
        proved_by(&[Downloaded, Updated, UpToDate]),
        "downloaded->staged finished->succeeded"
    );
}

#[test]
fn an_update_that_found_nothing_to_do_ends_as_such() {
    assert_eq!(
        proved_by(&[Started, UpToDate]),
        "began->applying nothing_to_do->succeeded"
    );
    // That it began was missed.
    assert_eq!(
        proved_by(&[Downloaded, UpToDate]),
        "downloaded->staged nothing_to_do->succeeded"
    );
}

#[test]
fn what_was_fetched_and_dropped_outside_a_window_is_cancelled() {
    let mut story = Story::at_rest(false);
    let told = story.hears(&[sample(Downloading), sample(UpToDate)]);
    assert_eq!(told, "downloading->downloading cancelled->cancelled");
}

#[test]
fn the_first_sample_is_a_baseline() {
    for kind in SampleKind::ALL {
        let mut story = Story::of(node(OsKind::Mutable));
        let told = story.hears(&[sample(*kind), sample(*kind), sample(UpToDate)]);
        assert_eq!(told, "", "{kind}");
    }
}

#[test]
fn a_failure_is_told_once_until_the_next_update_begins() {
    let broken = saying(Failed, "no space");
    let mut story = Story::at_rest(true);
    let samples = [
        sample(Started),
        broken.clone(),
        broken.clone(),
        broken,
        saying(Started, "no space"),
        saying(Updated, "no space"),
    ];
    assert_eq!(
        story.hears(&samples),
        "began->applying failed->failed began->applying finished->succeeded"
    );
    assert_eq!(story.failure(0), "no space");
    assert_eq!(story.logs, ["no space", ""]);
}

/// The state file could not be read at that instant (southbound section 3.3).
#[test]
fn a_failure_that_is_gone_in_the_next_sample_was_none() {
    assert_eq!(
        proved_by(&[Started, Failed, Started, Updated]),
        "began->applying finished->succeeded"
    );
    assert_eq!(proved_by(&[Failed, UpToDate]), "");
    assert_eq!(proved_by(&[Failed, Started]), "began->applying");
}

/// The update that was given up for lack of news goes on behind such a fault: it is not another one.
#[test]
fn what_we_ended_is_not_begun_anew_behind_a_failure_that_is_gone() {
    for (before, after) in [
        (Started, Started),
        (Downloading, Downloading),
        (Downloading, Downloaded),
        (Downloaded, Downloaded),
    ] {
        for in_window in [true, false] {
            let mut story = Story::at_rest(in_window);
            story.seen = Some(seen(before));
            let samples = [sample(Failed), sample(after), sample(Failed), sample(after)];
            assert_eq!(story.hears(&samples), "", "{before} {after} {in_window}");
            assert_eq!(story.conditions(), [], "{before} {after} {in_window}");
        }
    }
    // What was at rest begins.
    let mut story = Story::at_rest(true);
    story.hears(&[sample(Started), sample(UpToDate)]);
    let samples = [sample(Failed), sample(Started)];
    assert_eq!(story.hears(&samples), "began->applying");
}

/// Nodes begin by their own clocks, and this one's is ahead of ours.
#[test]
fn a_failure_just_before_the_window_is_one_if_it_stays() {
    let opens_in = |minutes| {
        let mut story = Story::at_rest(false);
        let start = story.now + TimeDelta::minutes(minutes);
        story.delivered.single = Some((start, start + hours(1)));
        story
    };
    let failed = [sample(Failed), sample(Failed), sample(Failed)];
    assert_eq!(opens_in(4).hears(&failed), "failed->failed");
    let mut early = opens_in(10);
    assert_eq!(early.hears(&failed), "", "no clock may be so far ahead");
    assert_eq!(early.conditions(), [ConditionKind::AgentAnomaly]);
}

/// It was given up already, so there is no run that it could end.
#[test]
fn a_failure_without_a_word_after_a_download_that_was_given_up_is_no_update() {
    for fetched in [Downloading, Downloaded] {
        let mut story = Story::at_rest(false);
        story.seen = Some(seen(fetched));
        let samples = [sample(Failed), sample(Failed), sample(Failed)];
        assert_eq!(story.hears(&samples), "");
        assert_eq!(story.conditions(), [ConditionKind::AgentAnomaly]);
    }
}

#[test]
fn a_failure_without_a_word_is_believed_when_it_stays() {
    assert_eq!(
        proved_by(&[Started, Failed, Failed, Failed]),
        "began->applying failed->failed"
    );
    assert_eq!(proved_by(&[Failed, Failed, Failed]), "failed->failed");
    // The next update proves it too.
    assert_eq!(
        proved_by(&[Started, Failed, Downloading]),
        "began->applying failed->failed downloading->downloading"
    );
}

/// A call is repeated when its answer was lost, with what was sampled once.
#[test]
fn one_sample_that_is_sent_again_is_still_one() {
    let mut story = Story::at_rest(true);
    story.hear(&sample(Started));
    for _ in 0..4 {
        story.hear(&sample(Failed));
        story.now = story.now - TICK + TimeDelta::seconds(1);
    }
    assert_eq!(story.hears(&[sample(Started)]), "");
}

#[test]
fn a_failure_without_a_word_and_without_a_window_is_no_update() {
    let mut story = Story::at_rest(false);
    let failed = [sample(Failed), sample(Failed), sample(Failed)];
    assert_eq!(story.hears(&failed), "");
    assert_eq!(story.conditions(), [ConditionKind::AgentAnomaly]);
    assert_eq!(story.shown, "No new updates available");
    assert_eq!(story.hears(&[sample(UpToDate)]), "");
    assert_eq!(story.conditions(), []);

    let spoken = saying(Failed, "cannot download: no route");
    assert_eq!(story.hears(&[spoken.clone(), spoken]), "failed->failed");
}

#[test]
fn what_we_ended_is_not_begun_anew_by_the_same_sample() {
    for (before, after) in [
        (Downloading, Downloading),
        (Downloading, Downloaded),
        (Downloaded, Downloaded),
        (Started, Started),
    ] {
        let mut story = Story::of(node(OsKind::Mutable));
        story.seen = Some(seen(before));
        assert_eq!(story.hears(&[sample(after)]), "", "{before} {after}");
    }
}

#[test]
fn an_update_is_not_taken_for_that_of_another_agent() {
    let mut other = open(RunState::Rebooting { since: NOON });
    for kind in [Downloading, Started, Updated] {
        let told = proved(Some(&other), &seen(UpToDate), &sample(kind));
        assert!(told.starts_with("superseded+"), "{kind}: {told}");
    }
    other.state = RunState::Applying { since: NOON };
    other.attempt = Some(crate::run::AttemptId(uuid::Uuid::from_u128(1)));
    assert_eq!(proved(Some(&other), &seen(Started), &sample(UpToDate)), "-");
    let told = proved(Some(&other), &seen(Started), &sample(Updated));
    assert_eq!(told, "superseded+finished");
}

fn proved(open: Option<&OpenRun>, seen: &Seen, sample: &Sample) -> String {
    let known = node(OsKind::Mutable);
    let delivered = Delivered {
        single: Some((NOON - hours(1), NOON + hours(1))),
        ..Delivered::default()
    };
    let before = Before {
        seen: Some(seen),
        delivered: &delivered,
        open,
        known: &known,
        images: &[],
    };
    let proof = super::evidence(&before, sample, NOON);
    let names: Vec<_> = proof.events.iter().map(|one| one.event.name()).collect();
    match proof.seen.and_then(|seen| seen.doubt) {
        Some(_) => "doubted".to_owned(),
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
    let runs = states.into_iter().map(|state| Some(open(state)));
    [None].into_iter().chain(runs).collect()
}

/// Every pair of consecutive samples, with no run and with one in each state that is open. The detail is the same in
/// both samples, another one in the second, or none in the second. The window that was delivered is open.
#[test]
fn every_pair_of_samples_proves_what_it_proves() {
    let mut table = String::new();
    for before in SampleKind::ALL {
        for after in SampleKind::ALL {
            for (words, detail) in [("same", "old"), ("new", "new"), ("empty", "")] {
                let seen = Seen {
                    kind: *before,
                    ..remembered(&saying(UpToDate, "old"))
                };
                let sample = saying(*after, detail);
                write!(table, "{:<37}", format!("{before} {after}, {words}")).expect("text");
                for open in every_open_state() {
                    let told = proved(open.as_ref(), &seen, &sample);
                    let state = open.map_or("none", |open| open.state.name());
                    write!(table, " {:<38}", format!("{state}: {told}")).expect("text");
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
    let details = proptest::sample::select(vec!["", "one", "two", FAILED]);
    let images = proptest::sample::select(vec!["", "3.0.1", "3.0.2"]);
    (kinds, details, images).prop_map(|(kind, detail, image)| Sample {
        detail: detail.to_owned(),
        ..naming(kind, "edge", image)
    })
}

const FAILED: &str =
    r#"{"UpdateLog":[{"StatusDetail.Status":"FAIL","FailureReason":"signaturecheck"}]}"#;

proptest! {
    /// Each event that is proved moves a run, so no run ends twice; the history checks that as it is told.
    #[test]
    fn a_sample_that_is_repeated_changes_nothing(
        samples in proptest::collection::vec(any_sample(), 1..20),
        in_window: bool,
    ) {
        let mut story = Story::at_rest(in_window);
        for sample in &samples {
            story.hear(sample);
            let (seen, runs) = (story.seen.clone(), story.runs.clone());
            story.now -= TICK;
            let proof = story.hear(sample);
            let is_doubted = |seen: &Option<Seen>| seen.as_ref().is_some_and(|s| s.doubt.is_some());
            if !is_doubted(&seen) {
                prop_assert_eq!(&proof.events, &Vec::new());
                prop_assert_eq!(&story.seen, &seen);
                prop_assert_eq!(&story.runs, &runs);
            }
        }
    }

    /// An end that was not seen before is always told, whatever was seen and is open.
    #[test]
    fn an_end_that_is_new_is_never_swallowed(samples in proptest::collection::vec(any_sample(), 1..20)) {
        let mut story = Story::at_rest(true);
        for sample in &samples {
            let was_updated = story.seen.as_ref().is_some_and(|seen| seen.kind == Updated);
            let proof = story.hear(sample);
            let finished = proof.events.iter().any(|one| one.event == RunEvent::Finished);
            if sample.kind == Updated && !was_updated {
                prop_assert!(finished);
                prop_assert_eq!(story.runs.last().map(|run| run.1.name()), Some("succeeded"));
            }
            prop_assert!(proof.events.len() <= 2);
            prop_assert_eq!(sample.kind == SampleKind::UpToDate && story.open().is_some(), false);
        }
    }
}
