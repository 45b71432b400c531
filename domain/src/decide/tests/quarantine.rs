//! Quarantined images, and orders that allow one retry.

use proptest::prelude::*;

use super::super::quarantine::{QuarantineCheck, check_quarantine};
use super::properties::{any_decision_input, image_target};
use super::steady::check_steady;
use super::*;
use crate::condition::ConditionKind;

/// A failed image; the failure is known since this many hours after noon.
pub(super) fn bad_image(n: u32, since: i64) -> QuarantinedImage {
    QuarantinedImage { sha256: digest(n), since: NOON + hours(since) }
}

/// A node that runs 3.0.9. The failure of 3.0.10 is known since noon.
fn failed_node() -> NodeFacts {
    NodeFacts {
        os_kind: OsKind::Immutable,
        running: image(1, "3.0.9"),
        protocol: AgentProtocol::Own { modules: vec!["image".to_owned()] },
        bad_images: vec![bad_image(9, -90), bad_image(2, 0)],
        ..node()
    }
}

fn failed_target() -> Target {
    image_target().1
}

/// The end of a run for an image, this many hours after noon.
fn ended_run(image: u32, verdict: Verdict, at: i64) -> LastRun {
    let target = Target::for_image(&policy(8, DesiredUpdate::Latest), super::image(image, "3"));
    LastRun { target: Some(target.digest()), ..end(verdict, NOON + hours(at)) }
}

fn latest(windows: &[Window], now: Time) -> UpdateIntent {
    UpdateIntent {
        images: vec![image(1, "3.0.9"), image(2, "3.0.10")],
        ..intent(vec![image_target().0], windows, now)
    }
}

fn quarantined(image_id: &str) -> Reason {
    Reason::Quarantined { image_id: image_id.to_owned() }
}

/// The check at two o'clock, without an order and with an order that was given an hour before.
fn checks(facts: &NodeFacts, target: &Target) -> [&'static str; 2] {
    let order = order(OrderKind::Now, 1, 3);
    [None, Some(&order)]
        .map(|order| check_name(&check_quarantine(facts, order, target, NOON + hours(2))))
}

fn check_name(trial: &QuarantineCheck) -> &'static str {
    match trial {
        QuarantineCheck::Clear => "first",
        QuarantineCheck::RetryOrdered => "again",
        QuarantineCheck::Blocked(_) => "held",
    }
}

#[test]
fn only_an_image_that_the_node_reports_as_failed_is_quarantined() {
    let first = ["first", "first"];
    assert_eq!(checks(&failed_node(), &failed_target()), ["held", "again"]);
    assert_eq!(failed_node().quarantine_reason(&failed_target()), Some(quarantined("3.0.10")));
    for protocol in [AgentProtocol::Eim, AgentProtocol::Unknown] {
        let facts = NodeFacts { protocol, ..failed_node() };
        assert_eq!(checks(&facts, &failed_target()), first, "{:?}", facts.protocol);
        assert_eq!(facts.quarantine_reason(&failed_target()), None);
    }
    let kernel = DesiredUpdate::parse_target(None, "", &[], "quiet").expect("a command line");
    let other_file = Target::for_image(&image_target().0, image(3, "3.0.10"));
    for target in [
        Target::for_packages(&packages()),
        Target::for_kernel(&policy(5, kernel)).expect("a kernel"),
        other_file,
    ] {
        assert_eq!(checks(&failed_node(), &target), first, "{target:?}");
        assert_eq!(failed_node().quarantine_reason(&target), None);
    }
    // Catalogue entries without a digest do not identify a file.
    let none = Target::for_image(&image_target().0, image(0, "3.0.10"));
    let facts = NodeFacts { bad_images: vec![bad_image(0, 0)], ..failed_node() };
    assert_eq!(checks(&facts, &none), first);
}

#[test]
fn a_retry_needs_a_valid_order_given_after_the_failure() {
    use OrderKind::{Cancel, Now};
    let at = |order: Option<Order>, now: Time| {
        check_quarantine(&failed_node(), order.as_ref(), &failed_target(), now)
    };
    for (kind, from, until, now, tried) in [
        // The failure is known since noon, and it is three o'clock.
        (Now, 1, 5, 3, "again"),
        (Now, 3, 5, 3, "again"),
        (Now, 1, 4, 3, "again"),
        (Now, 4, 5, 3, "held"),
        (Now, 1, 3, 3, "held"),
        (Now, 1, 2, 3, "held"),
        (Now, 0, 5, 3, "held"),
        (Now, -1, 5, 3, "held"),
        (Cancel, 1, 5, 3, "held"),
    ] {
        let order = order(kind, from, until);
        let label = format!("{kind} from {from} to {until}");
        assert_eq!(check_name(&at(Some(order), NOON + hours(now))), tried, "{label}");
    }
    assert_eq!(at(None, NOON), QuarantineCheck::Blocked(quarantined("3.0.10")));
    let instant = TimeDelta::nanoseconds(1);
    let mut just = order(Now, 0, 5);
    just.at += instant;
    assert_eq!(at(Some(just), NOON + instant), QuarantineCheck::RetryOrdered);
}

#[test]
fn one_order_allows_one_attempt() {
    let order = order(OrderKind::Now, 1, 5);
    let after = |last_end| {
        let facts = NodeFacts { last_run: last_end, ..failed_node() };
        check_name(&check_quarantine(&facts, Some(&order), &failed_target(), NOON + hours(3)))
    };
    assert_eq!(after(None), "again");
    let unknown_target = LastRun { target: None, ..end(Verdict::Bad, NOON + hours(2)) };
    assert_eq!(after(Some(unknown_target)), "again");
    let by_packages = end(Verdict::Bad, NOON + hours(2));
    assert_eq!(after(Some(by_packages)), "again");
    for &verdict in Verdict::ALL {
        assert_eq!(after(Some(ended_run(3, verdict, 2))), "again", "another image");
        assert_eq!(after(Some(ended_run(2, verdict, 0))), "again", "before the order");
        assert_eq!(after(Some(ended_run(2, verdict, 1))), "held", "{verdict}");
        assert_eq!(after(Some(ended_run(2, verdict, 2))), "held", "{verdict}");
    }
}

/// Fails, is quarantined, is ordered, is retried, fails and is quarantined again.
#[test]
fn an_image_that_failed_waits_for_a_person() {
    let windows = [window(0, 8), window(24, 32)];
    let mut facts = NodeFacts { bad_images: Vec::new(), ..failed_node() };
    let mut log = String::new();
    let mut ordered = None;
    let mut step = |hour, facts: &NodeFacts, order: &Option<Order>, open: Option<&OpenRun>| {
        let now = NOON + hours(hour);
        let intent = UpdateIntent { order: order.clone(), ..latest(&windows, now) };
        let decision = decide(facts, &intent, open, now);
        let act = match (&decision.act, decision.is_retry) {
            (act, true) => format!("{} again", act.name()),
            (act, false) => act.name().to_owned(),
        };
        let because = decision.reason.code();
        writeln!(log, "{hour:>3} h  {act:<11} {because}").expect("a string takes it all");
        let next = decision.next_change.map(|next| (next - NOON).num_hours());
        (next, decision.offline_grant.is_some())
    };
    assert_eq!(step(0, &facts, &ordered, None), (Some(8), true));

    facts.last_run = Some(ended_run(2, Verdict::Bad, 1));
    facts.bad_images = vec![bad_image(2, 1)];
    for hour in [1, 2, 10, 24] {
        assert_eq!(step(hour, &facts, &ordered, None), (None, false));
    }

    ordered = Some(order(OrderKind::Now, 25, 28));
    assert_eq!(step(25, &facts, &ordered, None), (Some(28), false));
    let staged =
        OpenRun { target: Some(failed_target()), ..open(RunState::Staged { since: NOON }) };
    let tried = step(26, &facts, &ordered, Some(&staged));
    assert_eq!(tried, (Some(28), false));

    facts.last_run = Some(ended_run(2, Verdict::Bad, 26));
    facts.bad_images = vec![bad_image(2, 26)];
    for hour in [27, 29] {
        assert_eq!(step(hour, &facts, &ordered, None), (None, false));
    }
    insta::assert_snapshot!(log, @r"
      0 h  apply       window_open
      1 h  idle        quarantined
      2 h  idle        quarantined
     10 h  idle        quarantined
     24 h  idle        quarantined
     25 h  apply again window_open
     26 h  apply again window_open
     27 h  idle        quarantined
     29 h  idle        quarantined
    ");
}

#[test]
fn a_lapsed_order_cancels_a_run_that_has_not_begun_and_no_other() {
    let now = NOON + hours(5);
    let lapsed =
        UpdateIntent { order: Some(order(OrderKind::Now, 1, 3)), ..latest(&[window(0, 8)], now) };
    let of = |state| OpenRun { target: Some(failed_target()), ..open(state) };
    let (since, cause) = (NOON, CancelCause::Withdrawn);
    for state in [
        RunState::Downloading { since },
        RunState::Staged { since },
        RunState::Applying { since },
        RunState::Verifying { since },
    ] {
        let run = of(state);
        let decision = decide(&failed_node(), &lapsed, Some(&run), now);
        if run.state.is_untouched() {
            let run = run.id;
            assert_eq!(decision.act, Act::Cancel { run, cause });
            assert_eq!(decision.reason, quarantined("3.0.10"));
        } else {
            assert_eq!(decision.act, Act::Continue(run.id));
        }
    }
}

/// The server chooses neither an older image instead of the failed one, nor the failed one once a newer exists.
#[test]
fn a_failed_image_is_replaced_by_a_newer_one_and_never_by_an_older_one() {
    let mut intent = latest(&[window(0, 8)], NOON);
    let running = NodeFacts { running: image(4, "3.0.7"), ..failed_node() };
    let decision_for = |intent: &UpdateIntent| decide(&running, intent, None, NOON);
    assert_eq!(decision_for(&intent).reason, quarantined("3.0.10"));
    intent.images.push(image(3, "3.0.11"));
    let decision = decision_for(&intent);
    assert_eq!((decision.act.name(), decision.is_retry), ("apply", false));
}

#[test]
fn an_ordered_retry_waits_like_any_other_update() {
    let now = NOON + hours(2);
    let mut ordered =
        UpdateIntent { order: Some(order(OrderKind::Now, 1, 3)), ..latest(&[window(0, 8)], now) };
    let staged =
        OpenRun { target: Some(failed_target()), ..open(RunState::Staged { since: NOON }) };
    let outcome = |intent: &UpdateIntent, open| {
        let decision = decide(&failed_node(), intent, open, now);
        let next = decision.next_change.map(|next| (next - NOON).num_hours());
        (decision.act.name(), decision.is_retry, next)
    };
    ordered.policies[0].limits = UpdateLimits::parse(Some(1), None).expect("limits");
    ordered.policies[0].usage.held_by_others = 1;
    assert_eq!(outcome(&ordered, None), ("fetch", true, Some(3)));
    ordered.pauses = vec![pause(PauseScope::Project)];
    assert_eq!(outcome(&ordered, None), ("idle", false, Some(3)));
    let waits = outcome(&ordered, Some(&staged));
    assert_eq!(waits, ("continue", false, Some(3)), "cancelled after the order");
}

#[test]
fn a_failed_image_raises_a_condition() {
    let (kind, text) = quarantined("3.0.10").condition().expect("a condition");
    assert_eq!(kind, ConditionKind::Quarantined);
    assert_eq!(kind.name(), quarantined("3.0.10").code());
    assert!(kind.depends_on_policy(), "it is removed when the desired update changes");
    assert_eq!(
        text,
        "the image 3.0.10 failed on this node before and is not retried automatically; \
         `evenkeel update now` orders a retry"
    );
    let stored = serde_json::to_value(bad_image(2, 0)).expect("JSON");
    let read: QuarantinedImage = serde_json::from_value(stored).expect("a failed image");
    assert_eq!(read, bad_image(2, 0));
}

prop_compose! {
    /// A node on which its image failed, and an order, all within a few hours.
    fn any_failed_input()(
        input in any_decision_input(),
        since in -6i64..6,
        ordered in prop::option::weighted(0.8, (prop::sample::select(OrderKind::ALL), -6i64..2, 1i64..9)),
        ended in prop::option::of((2u32..4, prop::sample::select(Verdict::ALL), -6i64..1)),
        windows in prop::collection::vec((-6i64..12, 1i64..9), 0..3),
    ) -> (NodeFacts, UpdateIntent, Option<OpenRun>, Time) {
        let (facts, before, open, _) = input;
        let windows: Vec<_> = windows.iter().map(|(from, long)| window(*from, from + long)).collect();
        let facts = NodeFacts {
            trusted: facts.trusted,
            last_run: ended.map(|(image, verdict, at)| super::quarantine::ended_run(image, verdict, at)),
            bad_images: vec![bad_image(2, since)],
            ..failed_node()
        };
        let mut intent = latest(&windows, NOON);
        for assigned in &mut intent.policies {
            if let Some(as_before) = before.policies.first() {
                assigned.limits = as_before.limits;
                assigned.usage = as_before.usage;
            }
        }
        intent.pauses = before.pauses;
        intent.order = ordered.map(|(kind, from, long)| order(kind, from, from + long));
        let open = open.map(|run| OpenRun { target: Some(failed_target()), ..run });
        (facts, intent, open, NOON)
    }
}

proptest! {
    #[test]
    fn a_failed_image_is_retried_only_by_an_order_given_after_the_failure(
        (facts, intent, open, now) in prop_oneof![any_decision_input(), any_failed_input()],
    ) {
        let decision = decide(&facts, &intent, open.as_ref(), now);
        let (Act::Fetch(target) | Act::Apply { target, .. }) = &decision.act else {
            prop_assert!(!decision.is_retry, "{}", decision.act.name());
            return Ok(());
        };
        let is_bad = facts.bad_images.iter().find(|bad| match &target.kind {
            TargetKind::Image(image) => image.sha256 == bad.sha256,
            _ => false,
        });
        prop_assert_eq!(decision.is_retry, is_bad.is_some());
        if let Some(bad) = is_bad {
            let order = intent.order.as_ref().expect("a retry needs an order");
            prop_assert_eq!(order.kind, OrderKind::Now);
            prop_assert!(bad.since < order.at && order.at <= now && now < order.until);
            prop_assert_eq!(decision.offline_grant, None);
            prop_assert!(decision.next_change.is_some_and(|next| next <= order.until));
        }
    }

    /// Whatever the result of the attempt, and whatever else applies.
    #[test]
    fn no_order_allows_two_attempts(
        (facts, intent, open, now) in any_failed_input(),
        verdict in prop::sample::select(Verdict::ALL),
        share in 0i32..=1_000,
    ) {
        let order = intent.order.as_ref().filter(|order| order.at <= now);
        let at = order.map_or(now, |order| order.at + (now - order.at) / 1_000 * share);
        let last_end = Some(LastRun { at, ..ended_run(2, verdict, 0) });
        let facts = NodeFacts { last_run: last_end, ..facts };
        let decision = decide(&facts, &intent, open.as_ref(), now);
        prop_assert!(!decision.is_retry);
        let begins = matches!(decision.act, Act::Fetch(_) | Act::Apply { .. });
        prop_assert!(!begins, "{}", decision.act.name());
    }

    #[test]
    fn a_decision_about_a_failed_image_is_steady_until_then(input in any_failed_input(), share in 0i32..1_000) {
        check_steady(&input, share)?;
    }
}
