//! Images that failed on a node before, and the orders that try one once more.

use proptest::prelude::*;

use super::super::quarantine::{Trial, trial};
use super::properties::{any_world, image_target};
use super::steady::stays;
use super::*;
use crate::condition::ConditionKind;

/// An image that failed, known since so many hours after noon.
pub(super) fn bad(n: u32, since: i64) -> KnownBad {
    KnownBad {
        sha256: digest(n),
        since: NOON + hours(since),
    }
}

/// A node that runs 3.0.9 and on which 3.0.10 failed, as is known since noon.
fn failed() -> NodeFacts {
    NodeFacts {
        os_kind: OsKind::Immutable,
        running: image(1, "3.0.9"),
        speaks: Protocol::Own {
            modules: vec!["image".to_owned()],
        },
        bad_images: vec![bad(9, -90), bad(2, 0)],
        ..node()
    }
}

fn wish() -> Target {
    image_target().1
}

/// The end of an attempt at an image, so many hours after noon.
fn ended(image: u32, verdict: Verdict, at: i64) -> LastEnd {
    let target = Target::of_image(&policy(8, Wish::Latest), super::image(image, "3"));
    LastEnd {
        target: Some(target.digest()),
        ..end(verdict, NOON + hours(at))
    }
}

fn latest(windows: &[Window], now: Time) -> Wanted {
    Wanted {
        images: vec![image(1, "3.0.9"), image(2, "3.0.10")],
        ..wanted(vec![image_target().0], windows, now)
    }
}

fn held(image_id: &str) -> Reason {
    Reason::Quarantined {
        image_id: image_id.to_owned(),
    }
}

/// All that could be tried at two o'clock, without an order and with one that was given an hour before.
fn tried(known: &NodeFacts, target: &Target) -> [&'static str; 2] {
    let order = order(OrderKind::Now, 1, 3);
    [None, Some(&order)].map(|order| named(&trial(known, order, target, NOON + hours(2))))
}

fn named(trial: &Trial) -> &'static str {
    match trial {
        Trial::First => "first",
        Trial::Again => "again",
        Trial::Held(_) => "held",
    }
}

#[test]
fn only_the_very_image_that_failed_on_a_node_that_says_so_is_quarantined() {
    let first = ["first", "first"];
    assert_eq!(tried(&failed(), &wish()), ["held", "again"]);
    assert_eq!(failed().quarantined(&wish()), Some(held("3.0.10")));
    for speaks in [Protocol::Eim, Protocol::Unknown] {
        let known = NodeFacts { speaks, ..failed() };
        assert_eq!(tried(&known, &wish()), first, "{:?}", known.speaks);
        assert_eq!(known.quarantined(&wish()), None);
    }
    let kernel = Wish::target(None, "", &[], "quiet").expect("a command line");
    let other_file = Target::of_image(&image_target().0, image(3, "3.0.10"));
    for target in [
        Target::of_packages(&packages()),
        Target::of_kernel(&policy(5, kernel)).expect("a kernel"),
        other_file,
    ] {
        assert_eq!(tried(&failed(), &target), first, "{target:?}");
        assert_eq!(failed().quarantined(&target), None);
    }
    // Entries of the catalogue without a digest are no one file.
    let none = Target::of_image(&image_target().0, image(0, "3.0.10"));
    let known = NodeFacts {
        bad_images: vec![bad(0, 0)],
        ..failed()
    };
    assert_eq!(tried(&known, &none), first);
}

#[test]
fn a_try_needs_an_order_in_force_that_knew_of_the_failure() {
    use OrderKind::{Cancel, Now};
    let at = |order: Option<Order>, now: Time| trial(&failed(), order.as_ref(), &wish(), now);
    for (kind, given, until, now, tried) in [
        // It is known since noon, and it is three o'clock.
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
        let order = order(kind, given, until);
        let shown = format!("{kind} from {given} to {until}");
        assert_eq!(named(&at(Some(order), NOON + hours(now))), tried, "{shown}");
    }
    assert_eq!(at(None, NOON), Trial::Held(held("3.0.10")));
    let instant = TimeDelta::nanoseconds(1);
    let mut just = order(Now, 0, 5);
    just.at += instant;
    assert_eq!(at(Some(just), NOON + instant), Trial::Again);
}

#[test]
fn an_order_is_one_try() {
    let order = order(OrderKind::Now, 1, 5);
    let after = |last_end| {
        let known = NodeFacts {
            last_end,
            ..failed()
        };
        named(&trial(&known, Some(&order), &wish(), NOON + hours(3)))
    };
    assert_eq!(after(None), "again");
    let nobody_knows = LastEnd {
        target: None,
        ..end(Verdict::Bad, NOON + hours(2))
    };
    assert_eq!(after(Some(nobody_knows)), "again");
    let by_packages = end(Verdict::Bad, NOON + hours(2));
    assert_eq!(after(Some(by_packages)), "again");
    for &verdict in Verdict::ALL {
        assert_eq!(after(Some(ended(3, verdict, 2))), "again", "another image");
        assert_eq!(after(Some(ended(2, verdict, 0))), "again", "before it");
        assert_eq!(after(Some(ended(2, verdict, 1))), "held", "{verdict}");
        assert_eq!(after(Some(ended(2, verdict, 2))), "held", "{verdict}");
    }
}

/// Fails, is held, is ordered, is tried again, fails and is held.
#[test]
fn an_image_that_failed_waits_for_a_person() {
    let windows = [window(0, 8), window(24, 32)];
    let mut known = NodeFacts {
        bad_images: Vec::new(),
        ..failed()
    };
    let mut told = String::new();
    let mut ordered = None;
    let mut tell = |hour, known: &NodeFacts, order: &Option<Order>, open: Option<&OpenRun>| {
        let now = NOON + hours(hour);
        let wanted = Wanted {
            order: order.clone(),
            ..latest(&windows, now)
        };
        let decision = decide(known, &wanted, open, now);
        let act = match (&decision.act, decision.again) {
            (act, true) => format!("{} again", act.name()),
            (act, false) => act.name().to_owned(),
        };
        let because = decision.because.code();
        writeln!(told, "{hour:>3} h  {act:<11} {because}").expect("a string takes it all");
        let next = decision.next.map(|next| (next - NOON).num_hours());
        (next, decision.grant.is_some())
    };
    assert_eq!(tell(0, &known, &ordered, None), (Some(8), true));

    known.last_end = Some(ended(2, Verdict::Bad, 1));
    known.bad_images = vec![bad(2, 1)];
    for hour in [1, 2, 10, 24] {
        assert_eq!(tell(hour, &known, &ordered, None), (None, false));
    }

    ordered = Some(order(OrderKind::Now, 25, 28));
    assert_eq!(tell(25, &known, &ordered, None), (Some(28), false));
    let staged = OpenRun {
        target: Some(wish()),
        ..open(RunState::Staged { since: NOON })
    };
    let tried = tell(26, &known, &ordered, Some(&staged));
    assert_eq!(tried, (Some(28), false));

    known.last_end = Some(ended(2, Verdict::Bad, 26));
    known.bad_images = vec![bad(2, 26)];
    for hour in [27, 29] {
        assert_eq!(tell(hour, &known, &ordered, None), (None, false));
    }
    insta::assert_snapshot!(told, @r"
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
fn what_lapsed_before_it_began_is_given_up_and_what_began_goes_on() {
    let now = NOON + hours(5);
    let lapsed = Wanted {
        order: Some(order(OrderKind::Now, 1, 3)),
        ..latest(&[window(0, 8)], now)
    };
    let of = |state| OpenRun {
        target: Some(wish()),
        ..open(state)
    };
    let (since, cause) = (NOON, CancelCause::Withdrawn);
    for state in [
        RunState::Downloading { since },
        RunState::Staged { since },
        RunState::Applying { since },
        RunState::Verifying { since },
    ] {
        let run = of(state);
        let decision = decide(&failed(), &lapsed, Some(&run), now);
        if run.state.is_untouched() {
            let run = run.id;
            assert_eq!(decision.act, Act::Cancel { run, cause });
            assert_eq!(decision.because, held("3.0.10"));
        } else {
            assert_eq!(decision.act, Act::Continue(run.id));
        }
    }
}

/// Neither an older good image instead of it, nor the newest for ever.
#[test]
fn what_failed_gives_way_to_a_newer_image_and_never_to_an_older_one() {
    let mut wanted = latest(&[window(0, 8)], NOON);
    let running = NodeFacts {
        running: image(4, "3.0.7"),
        ..failed()
    };
    let told = |wanted: &Wanted| decide(&running, wanted, None, NOON);
    assert_eq!(told(&wanted).because, held("3.0.10"));
    wanted.images.push(image(3, "3.0.11"));
    let decision = told(&wanted);
    assert_eq!((decision.act.name(), decision.again), ("apply", false));
}

#[test]
fn an_ordered_try_waits_for_what_every_try_waits_for() {
    let now = NOON + hours(2);
    let mut ordered = Wanted {
        order: Some(order(OrderKind::Now, 1, 3)),
        ..latest(&[window(0, 8)], now)
    };
    let staged = OpenRun {
        target: Some(wish()),
        ..open(RunState::Staged { since: NOON })
    };
    let told = |wanted: &Wanted, open| {
        let decision = decide(&failed(), wanted, open, now);
        let next = decision.next.map(|next| (next - NOON).num_hours());
        (decision.act.name(), decision.again, next)
    };
    ordered.policies[0].limits = Limits::parse(Some(1), None).expect("limits");
    ordered.policies[0].brake.held = 1;
    assert_eq!(told(&ordered, None), ("fetch", true, Some(3)));
    ordered.pauses = vec![pause(PauseScope::Project)];
    assert_eq!(told(&ordered, None), ("idle", false, Some(3)));
    let waits = told(&ordered, Some(&staged));
    assert_eq!(waits, ("continue", false, Some(3)), "then it is given up");
}

#[test]
fn people_are_told_that_an_image_failed() {
    let (kind, text) = held("3.0.10").condition().expect("a condition");
    assert_eq!(kind, ConditionKind::Quarantined);
    assert_eq!(kind.name(), held("3.0.10").code());
    assert!(kind.is_of_wish(), "it goes when something else is wanted");
    assert_eq!(
        text,
        "the image 3.0.10 failed on this node before and is not tried again by itself; \
         `evenkeel update now` orders it"
    );
    let kept = serde_json::to_value(bad(2, 0)).expect("JSON");
    let read: KnownBad = serde_json::from_value(kept).expect("what is known");
    assert_eq!(read, bad(2, 0));
}

prop_compose! {
    /// A node on which its image failed, and an order, all within the same few hours.
    fn any_failed()(
        world in any_world(),
        since in -6i64..6,
        ordered in prop::option::weighted(0.8, (prop::sample::select(OrderKind::ALL), -6i64..2, 1i64..9)),
        ended in prop::option::of((2u32..4, prop::sample::select(Verdict::ALL), -6i64..1)),
        windows in prop::collection::vec((-6i64..12, 1i64..9), 0..3),
    ) -> (NodeFacts, Wanted, Option<OpenRun>, Time) {
        let (known, before, open, _) = world;
        let windows: Vec<_> = windows.iter().map(|(from, long)| window(*from, from + long)).collect();
        let known = NodeFacts {
            trusted: known.trusted,
            last_end: ended.map(|(image, verdict, at)| super::quarantine::ended(image, verdict, at)),
            bad_images: vec![bad(2, since)],
            ..failed()
        };
        let mut wanted = latest(&windows, NOON);
        for assigned in &mut wanted.policies {
            if let Some(as_before) = before.policies.first() {
                assigned.limits = as_before.limits;
                assigned.brake = as_before.brake;
            }
        }
        wanted.pauses = before.pauses;
        wanted.order = ordered.map(|(kind, from, long)| order(kind, from, from + long));
        let open = open.map(|run| OpenRun { target: Some(wish()), ..run });
        (known, wanted, open, NOON)
    }
}

proptest! {
    #[test]
    fn what_failed_is_only_tried_by_an_order_that_knew_it(
        (known, wanted, open, now) in prop_oneof![any_world(), any_failed()],
    ) {
        let decision = decide(&known, &wanted, open.as_ref(), now);
        let (Act::Fetch(target) | Act::Apply { target, .. }) = &decision.act else {
            prop_assert!(!decision.again, "{}", decision.act.name());
            return Ok(());
        };
        let is_bad = known.bad_images.iter().find(|bad| match &target.wish {
            TargetKind::Image(image) => image.sha256 == bad.sha256,
            _ => false,
        });
        prop_assert_eq!(decision.again, is_bad.is_some());
        if let Some(bad) = is_bad {
            let order = wanted.order.as_ref().expect("nobody tries it by itself");
            prop_assert_eq!(order.kind, OrderKind::Now);
            prop_assert!(bad.since < order.at && order.at <= now && now < order.until);
            prop_assert_eq!(decision.grant, None);
            prop_assert!(decision.next.is_some_and(|next| next <= order.until));
        }
    }

    /// However it ended, and whatever else applies.
    #[test]
    fn no_order_is_two_tries(
        (known, wanted, open, now) in any_failed(),
        verdict in prop::sample::select(Verdict::ALL),
        share in 0i32..=1_000,
    ) {
        let order = wanted.order.as_ref().filter(|order| order.at <= now);
        let at = order.map_or(now, |order| order.at + (now - order.at) / 1_000 * share);
        let last_end = Some(LastEnd { at, ..ended(2, verdict, 0) });
        let known = NodeFacts { last_end, ..known };
        let decision = decide(&known, &wanted, open.as_ref(), now);
        prop_assert!(!decision.again);
        let begins = matches!(decision.act, Act::Fetch(_) | Act::Apply { .. });
        prop_assert!(!begins, "{}", decision.act.name());
    }

    #[test]
    fn what_failed_is_decided_alike_until_then(world in any_failed(), share in 0i32..1_000) {
        stays(&world, share)?;
    }
}
