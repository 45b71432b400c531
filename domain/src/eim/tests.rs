//! Samples and what they prove; answers and what they keep still.

use std::fmt::Write as _;

use chrono::{DateTime, TimeDelta};

use super::*;
use crate::Time;
use crate::decide::{Act, Decision, Reason, Target, TargetKind, Wanted};
use crate::id::{PolicyId, RunId, SingleScheduleId};
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
fn story(samples: &[Sample]) -> String {
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
    story(&kinds.iter().map(|kind| sample(*kind)).collect::<Vec<_>>())
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
        story(&[sample(UpToDate), spoken.clone(), spoken]),
        "failed->failed"
    );
}

/// Every pair of consecutive samples, without an open run and with one that is fetched or begun. `same` is the very
/// same sample once more; the window that was delivered is open.
#[test]
fn every_pair_of_samples_proves_what_it_proves() {
    let since = NOON;
    let open = |state| OpenRun {
        id: RunId::nth(1),
        attempt: None,
        target: None,
        state,
    };
    let worlds = [
        ("none", None),
        ("staged", Some(open(RunState::Staged { since }))),
        ("applying", Some(open(RunState::Applying { since }))),
    ];
    let delivered = Delivered {
        single: Some((NOON - TimeDelta::hours(1), NOON + TimeDelta::hours(1))),
        ..Delivered::default()
    };
    let mut table = String::new();
    for before in SampleKind::ALL {
        for after in SampleKind::ALL {
            let proofs = worlds.iter().map(|(name, open)| {
                let seen = sample(*before).seen();
                let happened = evidence(
                    Some(&seen),
                    &delivered,
                    &sample(*after),
                    open.as_ref(),
                    NOON,
                );
                let events: Vec<_> = happened.iter().map(|one| one.event.name()).collect();
                format!(
                    "{name}: {:<14}",
                    if events.is_empty() {
                        "-".to_owned()
                    } else {
                        events.join("+")
                    }
                )
            });
            let line = proofs.collect::<Vec<_>>().join(" ");
            let pair = format!("{before} {after}");
            writeln!(table, "{pair:<25} {}", line.trim_end()).expect("a string takes it all");
        }
    }
    insta::assert_snapshot!(table);
}

#[test]
fn what_we_ended_is_not_begun_anew_by_the_same_sample() {
    use SampleKind::{Downloaded, Started};
    for kind in [Downloaded, Started] {
        let seen = sample(kind).seen();
        let proved = evidence(
            Some(&seen),
            &Delivered::default(),
            &sample(kind),
            None,
            NOON,
        );
        assert!(proved.is_empty(), "{kind}");
    }
}

/// The detail of the update before still stands there (M13).
#[test]
fn a_sticky_detail_belongs_to_no_later_update() {
    use SampleKind::{Failed, Started, UpToDate, Updated};
    let old = r#"{"update_log":[{"package_name":"curl","status":"installed","version":"8.5"}]}"#;
    let with = |kind| Sample {
        kind,
        detail: old.to_owned(),
    };
    let seen = with(Started).seen();
    let open = OpenRun {
        id: RunId::nth(1),
        attempt: None,
        target: None,
        state: RunState::Applying { since: NOON },
    };
    let proved = evidence(
        Some(&seen),
        &Delivered::default(),
        &with(Updated),
        Some(&open),
        NOON,
    );
    assert_eq!(proved[0].evidence, crate::run::Evidence::default());
    assert_eq!(story(&[with(UpToDate), with(Failed), with(UpToDate)]), "");
}

#[test]
fn a_hostile_detail_is_kept_within_bounds() {
    let zero =
        r#"{"update_log":[{"package_name":"a\u0000b","status":"failed","failure_log":"x\u0000"}]}"#;
    let detail = Detail::read(zero);
    assert!(!detail.packages[0].name.contains('\0'));
    assert!(!detail.failure().reason.contains('\0'));
    let many = format!(
        r#"{{"update_log":[{}]}}"#,
        vec![r#"{"package_name":"a"}"#; 20_000].join(",")
    );
    assert_eq!(Detail::read(&many).packages.len(), 10_000);
    let long = format!(
        r#"{{"update_log":[{{"package_name":"{}"}}]}}"#,
        "a".repeat(100_000)
    );
    assert_eq!(Detail::read(&long).packages[0].name.len(), 256);
}

#[test]
fn both_dialects_of_the_detail_are_read() {
    let server = r#"{"update_log":[{"package_name":"curl","status":"installed","version":"8.5"},
        {"package_name":"jq","status":"failed","failure_reason":"download","failure_log":"404"}]}"#;
    let detail = Detail::read(server);
    assert_eq!(detail.packages.len(), 2);
    assert_eq!(detail.failure().reason, "download: 404");

    let agent =
        r#"{"UpdateLog":[{"StatusDetail.Status":"FAIL","FailureReason":"insufficientstorage"}]}"#;
    assert_eq!(Detail::read(agent).failure().kind.name(), "storage");

    let text = Detail::read("cannot download: timeout");
    assert_eq!(text.failure().reason, "cannot download: timeout");
    assert!(text.packages.is_empty());
    assert_eq!(Detail::read(&"x".repeat(10 << 20)).text.len(), 100_000);
}

fn world(spans: &[(i64, i64)], now: Time) -> (Decision, Target, Wanted) {
    let windows = spans.iter().map(|(from, to)| Window {
        start: NOON + TimeDelta::hours(*from),
        end: NOON + TimeDelta::hours(*to),
        schedule: SingleScheduleId::nth(1),
    });
    let target = Target {
        policy: PolicyId::nth(1),
        wish: TargetKind::Packages {
            exactly: None,
            sources: vec![],
            kernel_command: String::new(),
        },
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
fn a_replaced_window_is_delivered_after_answers_without_any() {
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
    let next = |before: &Answer, seconds| {
        let now = NOON + TimeDelta::seconds(seconds);
        answer(&decision, Some(&target), &moved, &before.delivered, now)
    };
    let second = next(&first, 20);
    assert_eq!(second.single, None);
    // The answer was lost, and the agent asks again at once.
    let again = next(&second, 21);
    assert_eq!(again.single, None);
    let third = next(&again, 40);
    let opens = third.single.map(|span| span.0);
    assert_eq!(opens, Some(NOON + TimeDelta::hours(3)));
}

#[test]
fn an_open_window_is_kept_still_until_it_ends() {
    let now = NOON + TimeDelta::minutes(30);
    let (decision, target, wanted) = world(&[(0, 3), (0, 1)], now);
    let long = Delivered {
        single: Some((NOON, NOON + TimeDelta::hours(3))),
        ..Delivered::default()
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
