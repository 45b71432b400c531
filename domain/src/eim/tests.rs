//! Samples and what they prove; answers and what they keep still.

use chrono::{DateTime, TimeDelta};

use super::*;
use crate::Time;
use crate::decide::{Act, Decision, Reason, TargetKind, Wanted};
use crate::id::{RunId, SingleScheduleId};
use crate::run::{OpenRun, Patience, RunState};
use crate::window::{Window, Windows};

const NOON: Time = DateTime::from_timestamp_nanos(1_800_000_000_000_000_000);

fn sample(kind: SampleKind) -> Sample {
    Sample {
        kind,
        detail: String::new(),
    }
}

/// Plays samples to a server that starts from nothing and shows what they prove.
fn proved(samples: &[Sample]) -> String {
    let mut seen = None;
    let mut state: Option<RunState> = None;
    let mut told = Vec::new();
    for sample in samples {
        let open = state
            .clone()
            .filter(|state| !state.is_final())
            .map(|state| OpenRun {
                id: RunId::nth(1),
                attempt: None,
                target: None,
                state,
            });
        let events = evidence(
            seen.as_ref(),
            &Delivered::default(),
            sample,
            open.as_ref(),
            NOON,
        );
        for happening in events {
            let from = open.as_ref().map(|run| &run.state);
            let next = RunState::on(from, &happening.event, NOON, &Patience::default());
            let next = next.expect("evidence fits the state");
            if from != Some(&next) {
                told.push(format!("{}->{}", happening.event.name(), next.name()));
            }
            state = Some(next);
        }
        seen = Some(sample.seen());
    }
    told.join(" ")
}

fn proved_by(kinds: &[SampleKind]) -> String {
    proved(&kinds.iter().map(|kind| sample(*kind)).collect::<Vec<_>>())
}

#[test]
fn a_life_as_it_is_sampled() {
    use SampleKind::{Downloaded, Downloading, Failed, Started, UpToDate, Updated};
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
        proved_by(&[UpToDate, Updated, Updated, UpToDate]),
        "finished->succeeded"
    );
    assert_eq!(
        proved_by(&[UpToDate, Started, UpToDate]),
        "began->applying nothing_to_do->succeeded"
    );
    assert_eq!(
        proved_by(&[UpToDate, Started, Failed, Failed, Failed, Started, Updated]),
        "began->applying failed->failed began->applying finished->succeeded"
    );
}

#[test]
fn the_first_sample_is_a_baseline() {
    for kind in SampleKind::ALL {
        assert_eq!(proved_by(&[*kind]), "", "{kind}");
        assert_eq!(proved_by(&[*kind, SampleKind::UpToDate]), "", "{kind}");
    }
}

#[test]
fn a_failure_without_a_word_and_without_a_window_is_no_update() {
    use SampleKind::{Failed, UpToDate};
    assert_eq!(proved_by(&[UpToDate, Failed, UpToDate]), "");
    let spoken = Sample {
        kind: Failed,
        detail: "cannot download: no route".to_owned(),
    };
    assert_eq!(
        proved(&[sample(UpToDate), spoken.clone(), spoken]),
        "failed->failed"
    );
}

#[test]
fn both_dialects_of_the_detail_are_read() {
    let server = r#"{"update_log":[{"package_name":"curl","status":"installed","version":"8.5"},
        {"package_name":"jq","status":"failed","failure_reason":"download","failure_log":"404"}]}"#;
    let detail = Detail::read(server);
    assert_eq!(detail.packages.len(), 2);
    assert_eq!(detail.into_failure().reason, "download: 404");

    let agent =
        r#"{"UpdateLog":[{"StatusDetail.Status":"FAIL","FailureReason":"insufficientstorage"}]}"#;
    assert_eq!(Detail::read(agent).into_failure().kind.name(), "storage");

    let text = Detail::read("cannot download: timeout");
    assert_eq!(
        text.clone().into_failure().reason,
        "cannot download: timeout"
    );
    assert!(text.packages.is_empty());
    assert_eq!(Detail::read(&"x".repeat(10 << 20)).text.len(), 100_000);
}

fn world(spans: &[(i64, i64)], now: Time) -> (Decision, TargetKind, Wanted) {
    let windows = spans.iter().map(|(from, to)| Window {
        start: NOON + TimeDelta::hours(*from),
        end: NOON + TimeDelta::hours(*to),
        schedule: SingleScheduleId::nth(1),
    });
    let target = TargetKind::Packages {
        exactly: None,
        sources: vec![],
        kernel_command: String::new(),
    };
    let decision = Decision {
        act: Act::Idle,
        because: Reason::NoWindow,
        next: None,
    };
    let wanted = Wanted {
        policies: vec![],
        windows: Windows::from_now_on(windows, now),
        fetch_ahead: TimeDelta::hours(6),
    };
    (decision, target, wanted)
}

#[test]
fn a_replaced_window_is_delivered_after_one_answer_without_any() {
    let (decision, target, wanted) = world(&[(1, 2)], NOON);
    let first = answer(
        &decision,
        Some(&target),
        &wanted,
        &Delivered::default(),
        NOON,
    );
    assert!(first.single.is_some());

    let (decision, target, moved) = world(&[(3, 4)], NOON);
    let second = answer(&decision, Some(&target), &moved, &first.delivered, NOON);
    assert_eq!(second.single, None);
    let third = answer(&decision, Some(&target), &moved, &second.delivered, NOON);
    assert_eq!(
        third.single.map(|span| span.0),
        Some(NOON + TimeDelta::hours(3))
    );
}

#[test]
fn an_open_window_is_kept_still_until_it_ends() {
    let now = NOON + TimeDelta::minutes(30);
    let (decision, target, wanted) = world(&[(0, 3), (0, 1)], now);
    let long = Delivered {
        single: Some((NOON, NOON + TimeDelta::hours(3))),
    };
    let kept = answer(&decision, Some(&target), &wanted, &long, now);
    assert_eq!(kept.single, long.single);
    let fresh = answer(
        &decision,
        Some(&target),
        &wanted,
        &Delivered::default(),
        now,
    );
    assert_eq!(
        fresh.single.map(|span| span.1),
        Some(NOON + TimeDelta::hours(1))
    );
}

#[test]
fn without_a_policy_an_agent_gets_no_window() {
    let (decision, _, wanted) = world(&[(0, 3)], NOON);
    let answer = answer(&decision, None, &wanted, &Delivered::default(), NOON);
    assert_eq!(answer, Answer::default());
}
