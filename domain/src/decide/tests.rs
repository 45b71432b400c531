//! Decisions, told as stories and tried as properties.

use std::fmt::Write as _;

use chrono::{DateTime, TimeDelta};
use proptest::prelude::*;

use super::*;
use crate::id::SingleScheduleId;
use crate::policy::PolicySpec;
use crate::run::RunState;
use crate::window::Window;

const NOON: Time = DateTime::from_timestamp_nanos(1_800_000_000_000_000_000);

fn hours(count: i64) -> TimeDelta {
    TimeDelta::hours(count)
}

fn policy(n: u32, wish: Wish) -> UpdatePolicy {
    UpdatePolicy {
        id: PolicyId::nth(n),
        spec: PolicySpec::parse("policy", "", wish).expect("a policy"),
        created_at: NOON,
    }
}

fn packages() -> UpdatePolicy {
    policy(
        1,
        Wish::target(None, "demo-hello=1.1", &[], "").expect("packages"),
    )
}

fn window(from: i64, to: i64) -> Window {
    Window {
        start: NOON + hours(from),
        end: NOON + hours(to),
        schedule: SingleScheduleId::nth(1),
    }
}

fn node() -> NodeFacts {
    NodeFacts {
        trusted: true,
        provisioned: true,
        os_kind: OsKind::Mutable,
        speaks: Protocol::Own {
            modules: vec!["packages".to_owned()],
        },
        last_end: None,
    }
}

fn wanted(policies: Vec<UpdatePolicy>, windows: &[Window], now: Time) -> Wanted {
    Wanted {
        policies: policies.into_iter().map(|p| (Level::Instance, p)).collect(),
        windows: Windows::from_now_on(windows.iter().copied(), now),
        fetch_ahead: hours(6),
    }
}

fn open(state: RunState) -> OpenRun {
    OpenRun {
        id: RunId::nth(7),
        attempt: None,
        target: Some(Target::of_packages(&packages())),
        state,
    }
}

fn end(verdict: Verdict, at: Time) -> LastEnd {
    LastEnd {
        run: RunId::nth(7),
        target: Some(packages().id.to_string()),
        at,
        verdict,
    }
}

/// One day of a node, hour by hour, as the explanation tells it.
#[test]
fn a_day_of_a_node() {
    let mut told = String::new();
    for hour in [-8, -7, -5, -1, 0, 1, 2, 3] {
        let now = NOON + hours(hour);
        let wanted = wanted(vec![packages()], &[window(0, 2)], now);
        let decision = decide(&node(), &wanted, None, now);
        let (act, because) = (decision.act.name(), decision.because);
        writeln!(told, "{hour:>3} h  {act:<6} {because}").expect("a string takes it all");
    }
    insta::assert_snapshot!(told, @r"
     -8 h  idle   the next window opens at 2027-01-15T08:00:00Z
     -7 h  idle   the next window opens at 2027-01-15T08:00:00Z
     -5 h  fetch  the next window opens at 2027-01-15T08:00:00Z
     -1 h  fetch  the next window opens at 2027-01-15T08:00:00Z
      0 h  apply  a window is open until 2027-01-15T10:00:00Z
      1 h  apply  a window is open until 2027-01-15T10:00:00Z
      2 h  idle   no schedule opens a window for updates
      3 h  idle   no schedule opens a window for updates
    ");
}

#[test]
fn without_a_policy_nothing_is_done() {
    let wanted = wanted(vec![], &[window(0, 2)], NOON);
    let decision = decide(&node(), &wanted, None, NOON);
    assert_eq!(
        (decision.act, decision.because),
        (Act::Idle, Reason::NoPolicy)
    );
}

#[test]
fn the_nearest_policy_that_fits_wins() {
    let image = policy(
        2,
        Wish::target(Some(crate::id::OsId::nth(1)), "", &[], "").expect("an image"),
    );
    let far = policy(3, Wish::Latest);
    let both = wanted(vec![image.clone(), far.clone()], &[window(0, 2)], NOON);
    let Act::Apply { target, .. } = decide(&node(), &both, None, NOON).act else {
        panic!("the farther one fits");
    };
    assert_eq!(target.policy, far.id);

    let only = wanted(vec![image], &[window(0, 2)], NOON);
    let decision = decide(&node(), &only, None, NOON);
    assert_eq!(decision.because.code(), "policy_does_not_fit");
}

#[test]
fn a_window_is_used_once() {
    let now = NOON + hours(1);
    let wanted = wanted(vec![packages()], &[window(0, 2), window(24, 26)], now);
    let after = |verdict| {
        let known = NodeFacts {
            last_end: Some(end(verdict, NOON)),
            ..node()
        };
        decide(&known, &wanted, None, now)
    };
    assert_eq!(after(Verdict::Good).because.code(), "up_to_date");
    assert_eq!(after(Verdict::Bad).because.code(), "failed_in_window");
    assert_eq!(after(Verdict::Bad).next, Some(NOON + hours(2)));
    assert_eq!(after(Verdict::Open).act.name(), "apply");
}

#[test]
fn a_failed_download_ahead_of_the_window_is_tried_again_in_the_window() {
    let failed_at = NOON - hours(2);
    let known = NodeFacts {
        last_end: Some(end(Verdict::Bad, failed_at)),
        ..node()
    };
    let at = |now| {
        let wanted = wanted(vec![packages()], &[window(0, 2)], now);
        decide(&known, &wanted, None, now)
    };
    assert_eq!(at(NOON - hours(1)).act, Act::Idle);
    assert_eq!(at(NOON).act.name(), "apply");
}

#[test]
fn what_was_fetched_waits_for_the_next_window_and_is_dropped_without_one() {
    let staged = open(RunState::Staged { since: NOON });
    let now = NOON + hours(3);
    let waiting = wanted(vec![packages()], &[window(0, 2), window(24, 26)], now);
    assert_eq!(
        decide(&node(), &waiting, Some(&staged), now).act,
        Act::Continue(staged.id)
    );

    let missed = wanted(vec![packages()], &[window(0, 2)], now);
    let cause = CancelCause::WindowMissed;
    assert_eq!(
        decide(&node(), &missed, Some(&staged), now).act,
        Act::Cancel {
            run: staged.id,
            cause
        }
    );
}

#[test]
fn a_withdrawn_wish_cancels_what_was_fetched_but_not_what_was_begun() {
    let nothing = wanted(vec![], &[window(0, 2)], NOON);
    let staged = open(RunState::Staged { since: NOON });
    let cause = CancelCause::Withdrawn;
    assert_eq!(
        decide(&node(), &nothing, Some(&staged), NOON).act,
        Act::Cancel {
            run: staged.id,
            cause
        }
    );
    let begun = open(RunState::Applying { since: NOON });
    assert_eq!(
        decide(&node(), &nothing, Some(&begun), NOON).act,
        Act::Continue(begun.id)
    );
}

#[test]
fn who_is_not_trusted_gets_nothing() {
    let wanted = wanted(vec![packages()], &[window(0, 2)], NOON);
    let known = NodeFacts {
        trusted: false,
        ..node()
    };
    let begun = open(RunState::Applying { since: NOON });
    for open in [None, Some(&begun)] {
        let decision = decide(&known, &wanted, open, NOON);
        assert_eq!(
            (decision.act, decision.because),
            (Act::Idle, Reason::NotTrusted)
        );
    }
}

#[test]
fn an_agent_gets_only_what_it_can_do() {
    let wanted = wanted(vec![packages()], &[window(0, 2)], NOON);
    let speaks = Protocol::Own { modules: vec![] };
    let known = NodeFacts { speaks, ..node() };
    let decision = decide(&known, &wanted, None, NOON);
    assert_eq!(decision.because, Reason::AgentLacks { module: "packages" });
}

fn any_state() -> impl Strategy<Value = RunState> {
    prop_oneof![
        Just(RunState::Downloading { since: NOON }),
        Just(RunState::Staged { since: NOON }),
        Just(RunState::Applying { since: NOON }),
        Just(RunState::Rebooting { since: NOON }),
        Just(RunState::Verifying { since: NOON }),
    ]
}

prop_compose! {
    fn any_world()(
        trusted in prop::bool::weighted(0.9),
        provisioned in prop::bool::weighted(0.9),
        with_policy in prop::bool::weighted(0.8),
        spans in prop::collection::vec((-48i64..48, 1i64..12), 0..4),
        ended in prop::option::of((-48i64..48, prop::sample::select(Verdict::ALL))),
        open in prop::option::of(any_state()),
        at in -48i64..48,
    ) -> (NodeFacts, Wanted, Option<OpenRun>, Time) {
        let now = NOON + hours(at);
        let last_end = ended.map(|(at, verdict)| end(verdict, NOON + hours(at)));
        let windows: Vec<_> = spans.iter().map(|(from, long)| window(*from, from + long)).collect();
        let policies = if with_policy { vec![packages()] } else { vec![] };
        let known = NodeFacts { trusted, provisioned, last_end, ..node() };
        (known, wanted(policies, &windows, now), open.map(super::tests::open), now)
    }
}

proptest! {
    /// Nothing begins outside a window, without a policy, or on a node that is not believed.
    #[test]
    fn leave_is_given_only_inside_a_window((known, wanted, open, now) in any_world()) {
        let decision = decide(&known, &wanted, open.as_ref(), now);
        if let Some(before) = decision.leave(&packages().id.to_string()) {
            prop_assert!(known.trusted && known.provisioned && !wanted.policies.is_empty());
            prop_assert!(now < before);
            prop_assert!(wanted.windows.as_slice().iter().any(|w| w.is_open(now) && w.end == before));
            prop_assert!(open.is_none_or(|run| run.state.is_untouched()));
        }
    }

    /// By time alone the answer stays as it is until `next`.
    #[test]
    fn the_answer_holds_until_next((known, wanted, open, now) in any_world(), share in 0.0f64..1.0) {
        let decision = decide(&known, &wanted, open.as_ref(), now);
        let until = decision.next.unwrap_or(now + hours(200));
        prop_assert!(until > now);
        #[expect(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "hours, not years")]
        let later = now + TimeDelta::milliseconds(((until - now).num_milliseconds() as f64 * share) as i64);
        let again = decide(&known, &wanted, open.as_ref(), later.min(until - TimeDelta::milliseconds(1)));
        prop_assert_eq!(decision.act.name(), again.act.name());
        prop_assert_eq!(decision.because, again.because);
    }
}
