//! How long decisions stay the same, and how long offline grants last.

use proptest::prelude::*;

use super::properties::any_decision_input;
use super::*;

fn minutes(count: i64) -> TimeDelta {
    TimeDelta::minutes(count)
}

#[test]
fn a_node_without_windows_stays_as_it_is_for_ever() {
    for policies in [vec![], vec![packages()]] {
        let intent = intent(policies, &[], NOON);
        for run in [None, Some(open(RunState::Applying { since: NOON }))] {
            for seconds in [0, 1, 3_599] {
                let now = NOON + TimeDelta::seconds(seconds);
                assert_eq!(steady_until(&node(), &intent, run.as_ref(), now), None);
            }
        }
    }
}

#[test]
fn a_node_that_is_done_stays_as_it_is_until_its_window_closes() {
    let done = NodeFacts { last_run: Some(end(Verdict::Good, NOON)), ..node() };
    let intent = intent(vec![packages()], &[window(-1, 8)], NOON);
    for late in [0, 1, 59, 479] {
        let until = steady_until(&done, &intent, None, NOON + minutes(late));
        assert_eq!(until, Some(NOON + hours(8)), "after {late} minutes");
    }
}

/// The node downloads, gets an offline grant that is renewed at each full hour, and its window opens and closes.
#[test]
fn a_window_is_met_from_one_instant_to_the_next() {
    let mut intent = intent(vec![packages()], &[window(10, 12)], NOON);
    let until = |intent: &UpdateIntent, late| {
        let until = steady_until(&node(), intent, None, NOON + minutes(late));
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
        assert_eq!(until(&intent, late), next, "after {late} minutes");
    }
    intent.policies[0].policy.spec.offline_days = 0;
    assert_eq!(until(&intent, 240), Some(10), "no offline grant");
    assert_eq!(until(&intent, 600), Some(12), "no offline grant");
}

#[test]
fn waiting_for_others_and_for_a_replaced_agent_ends_at_a_known_instant() {
    let mut behind = intent(vec![packages()], &[window(-1, 8)], NOON);
    behind.policies[0].limits = UpdateLimits::parse(Some(2), None).expect("limits");
    behind.policies[0].usage.yields_until = Some(NOON + minutes(7));
    let until = steady_until(&node(), &behind, None, NOON);
    assert_eq!(until, Some(NOON + minutes(7)));

    let intent = intent(vec![packages()], &[window(-1, 8)], NOON);
    let replaced = OpenRun {
        attempt: None,
        may_begin_until: Some(NOON + minutes(9)),
        ..open(RunState::Staged { since: NOON })
    };
    let until = steady_until(&node(), &intent, Some(&replaced), NOON);
    assert_eq!(until, Some(NOON + minutes(9)));
}

#[test]
fn an_offline_grant_is_constant_for_an_hour_and_then_lasts_an_hour_longer() {
    let intent = intent(vec![packages()], &[window(2, 3)], NOON);
    let grant = |late| {
        let decision = decide(&node(), &intent, None, NOON + minutes(late));
        decision.offline_grant.expect("a grant")
    };
    let first = grant(0);
    assert_eq!(first.expires_at, NOON + TimeDelta::days(7));
    for late in 1..60 {
        assert_eq!(grant(late), first, "after {late} minutes");
    }
    assert_eq!(grant(60).expires_at, first.expires_at + hours(1));
}

#[test]
fn a_short_window_behind_the_last_full_hour_is_granted_an_hour_later() {
    let short = |from| Window {
        start: NOON + minutes(from),
        end: NOON + minutes(from + 20),
        ..window(0, 1)
    };
    let windows = [short(120), short(24 * 60 + 20)];
    let mut intent = intent(vec![packages()], &windows, NOON);
    intent.policies[0].policy.spec.offline_days = 1;
    let granted = |late| {
        let decision = decide(&node(), &intent, None, NOON + minutes(late));
        decision.offline_grant.expect("a grant").windows.len()
    };
    assert_eq!([granted(0), granted(59), granted(60)], [1, 1, 2]);
}

prop_compose! {
    /// An input at any instant, with windows that open at any minute, and with everything that depends on time.
    fn any_moment()(
        input in any_decision_input(),
        offset in 0i64..3_600_000,
        shift in 0i64..60,
        is_own in prop::bool::weighted(0.7),
        days in 0u32..3,
        fetch_ahead in 0i64..40,
        behind in prop::option::of(1i64..600),
        replaced in prop::option::of(prop::option::of(-600i64..600)),
    ) -> (NodeFacts, UpdateIntent, Option<OpenRun>, Time) {
        let (mut facts, mut intent, open, at) = input;
        let now = at + TimeDelta::milliseconds(offset);
        if !is_own {
            facts.protocol = AgentProtocol::Eim;
        }
        let shifted = intent.windows.as_slice().iter().map(|window| Window {
            start: window.start + minutes(shift),
            end: window.end + minutes(shift),
            ..*window
        });
        intent.windows = Windows::from_now_on(shifted, now);
        intent.fetch_ahead = hours(fetch_ahead);
        for assigned in &mut intent.policies {
            assigned.policy.spec.offline_days = days;
            assigned.usage.yields_until = behind.map(|late| now + minutes(late));
        }
        let open = open.map(|run| match replaced {
            Some(until) => OpenRun {
                attempt: None,
                may_begin_until: until.map(|late| now + minutes(late)),
                ..run
            },
            None => run,
        });
        (facts, intent, open, now)
    }
}

/// Checks that a complete decision stays the same for the promised time: action, reason, instants and offline grant.
/// Checks it after `share` thousandths of that time, and at its end.
pub(super) fn check_steady(
    (facts, intent, open, now): &(NodeFacts, UpdateIntent, Option<OpenRun>, Time),
    share: i32,
) -> Result<(), TestCaseError> {
    let (open, now) = (open.as_ref(), *now);
    let decision = decide(facts, intent, open, now);
    let until = steady_until(facts, intent, open, now);
    prop_assert!(until.is_none_or(|until| now < until));
    let is_no_later = |next: Time| until.is_some_and(|until| until <= next);
    prop_assert!(decision.next_change.is_none_or(is_no_later));
    let end = until.unwrap_or(now + hours(400));
    let within = now + (end - now) / 1_000 * share;
    for later in [within, end - TimeDelta::nanoseconds(1)] {
        prop_assert_eq!(&decide(facts, intent, open, later), &decision);
    }
    Ok(())
}

proptest! {
    #[test]
    fn a_decision_is_steady_until_then(input in any_moment(), share in 0i32..1_000) {
        check_steady(&input, share)?;
    }

    #[test]
    fn an_offline_grant_ends_with_its_windows_and_its_days((facts, intent, open, now) in any_moment()) {
        if let Some(grant) = decide(&facts, &intent, open.as_ref(), now).offline_grant {
            let days = intent.policies[0].policy.spec.offline_days;
            let longest = TimeDelta::days(i64::from(days));
            prop_assert!(grant.expires_at <= now + longest);
            prop_assert!(now + longest - hours(1) < grant.expires_at);
            prop_assert!(now + hours(23) < grant.expires_at);
            prop_assert!(!grant.windows.is_empty());
            for (start, end) in grant.windows {
                prop_assert!(start < end && now < end && end <= grant.expires_at);
                let mut windows = intent.windows.as_slice().iter();
                prop_assert!(windows.any(|window| window.start == start && end <= window.end));
            }
        }
    }
}
