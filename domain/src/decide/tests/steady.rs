//! Until when decisions stay as they are, and for how long leave is given ahead.

use proptest::prelude::*;

use super::properties::any_world;
use super::*;

fn minutes(count: i64) -> TimeDelta {
    TimeDelta::minutes(count)
}

#[test]
fn a_node_without_windows_stays_as_it_is_for_ever() {
    for policies in [vec![], vec![packages()]] {
        let wanted = wanted(policies, &[], NOON);
        for run in [None, Some(open(RunState::Applying { since: NOON }))] {
            for seconds in [0, 1, 3_599] {
                let now = NOON + TimeDelta::seconds(seconds);
                assert_eq!(steady_until(&node(), &wanted, run.as_ref(), now), None);
            }
        }
    }
}

#[test]
fn a_node_that_is_done_stays_as_it_is_until_its_window_closes() {
    let done = NodeFacts {
        last_end: Some(end(Verdict::Good, NOON)),
        ..node()
    };
    let wanted = wanted(vec![packages()], &[window(-1, 8)], NOON);
    for late in [0, 1, 59, 479] {
        let until = steady_until(&done, &wanted, None, NOON + minutes(late));
        assert_eq!(until, Some(NOON + hours(8)), "after {late} minutes");
    }
}

/// It is fetched for, gets leave ahead that is renewed at each full hour, opens and closes.
#[test]
fn a_window_is_met_from_one_instant_to_the_next() {
    let mut wanted = wanted(vec![packages()], &[window(10, 12)], NOON);
    let until = |wanted: &Wanted, late| {
        let until = steady_until(&node(), wanted, None, NOON + minutes(late));
        until.map(|until| (until - NOON).num_hours())
    };
    for (late, next) in [
        (0, Some(4)),
        (239, Some(4)),
        (240, Some(5)),
        (299, Some(5)),
        (300, Some(6)),
        (599, Some(10)),
        (600, Some(11)),
        (719, Some(12)),
        (720, None),
    ] {
        assert_eq!(until(&wanted, late), next, "after {late} minutes");
    }
    wanted.policies[0].policy.spec.offline_days = 0;
    assert_eq!(until(&wanted, 240), Some(10), "no leave ahead");
    assert_eq!(until(&wanted, 600), Some(12), "no leave ahead");
}

#[test]
fn those_that_wait_for_others_and_for_a_replaced_agent_do_so_until_then() {
    let mut behind = wanted(vec![packages()], &[window(-1, 8)], NOON);
    behind.policies[0].limits = Limits::parse(Some(2), None).expect("limits");
    behind.policies[0].brake.behind = Some(NOON + minutes(7));
    let until = steady_until(&node(), &behind, None, NOON);
    assert_eq!(until, Some(NOON + minutes(7)));

    let wanted = wanted(vec![packages()], &[window(-1, 8)], NOON);
    let replaced = OpenRun {
        attempt: None,
        may_begin_until: Some(NOON + minutes(9)),
        ..open(RunState::Staged { since: NOON })
    };
    let until = steady_until(&node(), &wanted, Some(&replaced), NOON);
    assert_eq!(until, Some(NOON + minutes(9)));
}

#[test]
fn leave_ahead_is_the_same_for_an_hour_and_then_lasts_an_hour_longer() {
    let wanted = wanted(vec![packages()], &[window(2, 3)], NOON);
    let grant = |late| {
        let decision = decide(&node(), &wanted, None, NOON + minutes(late));
        decision.grant.expect("a grant")
    };
    let first = grant(0);
    assert_eq!(first.expires, NOON + TimeDelta::days(7));
    for late in 1..60 {
        assert_eq!(grant(late), first, "after {late} minutes");
    }
    assert_eq!(grant(60).expires, first.expires + hours(1));
}

#[test]
fn a_short_window_behind_the_last_full_hour_is_granted_an_hour_later() {
    let short = |from| Window {
        start: NOON + minutes(from),
        end: NOON + minutes(from + 20),
        ..window(0, 1)
    };
    let windows = [short(120), short(24 * 60 + 20)];
    let mut wanted = wanted(vec![packages()], &windows, NOON);
    wanted.policies[0].policy.spec.offline_days = 1;
    let granted = |late| {
        let decision = decide(&node(), &wanted, None, NOON + minutes(late));
        decision.grant.expect("a grant").windows.len()
    };
    assert_eq!([granted(0), granted(59), granted(60)], [1, 1, 2]);
}

prop_compose! {
    /// A world at any instant, with windows that open at any minute, and with all that time has a part in.
    fn any_moment()(
        world in any_world(),
        offset in 0i64..3_600_000,
        shift in 0i64..60,
        is_own in prop::bool::weighted(0.7),
        days in 0u32..3,
        fetch_ahead in 0i64..40,
        behind in prop::option::of(1i64..600),
        replaced in prop::option::of(prop::option::of(-600i64..600)),
    ) -> (NodeFacts, Wanted, Option<OpenRun>, Time) {
        let (mut known, mut wanted, open, at) = world;
        let now = at + TimeDelta::milliseconds(offset);
        if !is_own {
            known.speaks = Protocol::Eim;
        }
        let shifted = wanted.windows.as_slice().iter().map(|window| Window {
            start: window.start + minutes(shift),
            end: window.end + minutes(shift),
            ..*window
        });
        wanted.windows = Windows::from_now_on(shifted, now);
        wanted.fetch_ahead = hours(fetch_ahead);
        for assigned in &mut wanted.policies {
            assigned.policy.spec.offline_days = days;
            assigned.brake.behind = behind.map(|late| now + minutes(late));
        }
        let open = open.map(|run| match replaced {
            Some(until) => OpenRun {
                attempt: None,
                may_begin_until: until.map(|late| now + minutes(late)),
                ..run
            },
            None => run,
        });
        (known, wanted, open, now)
    }
}

/// Looks whether a decision stays as it is for as long as is said, all of it: the leave ahead, the reason and its instants
/// too. It is looked at after so many thousandths of that time, and at its end.
pub(super) fn stays(
    (known, wanted, open, now): &(NodeFacts, Wanted, Option<OpenRun>, Time),
    share: i32,
) -> Result<(), TestCaseError> {
    let (open, now) = (open.as_ref(), *now);
    let decision = decide(known, wanted, open, now);
    let until = steady_until(known, wanted, open, now);
    prop_assert!(until.is_none_or(|until| now < until));
    let is_no_later = |next: Time| until.is_some_and(|until| until <= next);
    prop_assert!(decision.next.is_none_or(is_no_later));
    let end = until.unwrap_or(now + hours(400));
    let within = now + (end - now) / 1_000 * share;
    for later in [within, end - TimeDelta::nanoseconds(1)] {
        prop_assert_eq!(&decide(known, wanted, open, later), &decision);
    }
    Ok(())
}

proptest! {
    #[test]
    fn a_decision_stays_as_it_is_until_then(world in any_moment(), share in 0i32..1_000) {
        stays(&world, share)?;
    }

    #[test]
    fn leave_ahead_ends_with_its_windows_and_its_days((known, wanted, open, now) in any_moment()) {
        if let Some(grant) = decide(&known, &wanted, open.as_ref(), now).grant {
            let days = wanted.policies[0].policy.spec.offline_days;
            let longest = TimeDelta::days(i64::from(days));
            prop_assert!(grant.expires <= now + longest);
            prop_assert!(now + longest - hours(1) < grant.expires);
            prop_assert!(now + hours(23) < grant.expires);
            prop_assert!(!grant.windows.is_empty());
            for (start, end) in grant.windows {
                prop_assert!(start < end && now < end && end <= grant.expires);
                let mut windows = wanted.windows.as_slice().iter();
                prop_assert!(windows.any(|window| window.start == start && end <= window.end));
            }
        }
    }
}
