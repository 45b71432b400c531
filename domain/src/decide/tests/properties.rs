//! Properties of decisions over random worlds.

use proptest::prelude::*;

use super::quarantine::bad;
use super::*;

/// The policy of the nodes that are updated by images, and the image that it means for them.
pub(super) fn image_target() -> (UpdatePolicy, Target) {
    let policy = policy(2, Wish::Latest);
    let target = Target::of_image(&policy, image(2, "3.0.10"));
    (policy, target)
}

/// The same world for a node that is updated by images; it knows since when an image failed on it.
fn with_images(
    (mut known, mut wanted, mut open): (NodeFacts, Wanted, Option<OpenRun>),
    failed: Option<i64>,
) -> (NodeFacts, Wanted, Option<OpenRun>) {
    let (policy, target) = image_target();
    known.os_kind = OsKind::Immutable;
    known.running = image(1, "3.0.9");
    known.speaks = Protocol::Own {
        modules: vec!["image".to_owned()],
    };
    known.bad_images = failed.map(|at| bad(2, at)).into_iter().collect();
    if let Some(end) = &mut known.last_end {
        end.target = Some(target.digest());
    }
    for assigned in &mut wanted.policies {
        assigned.policy = policy.clone();
    }
    wanted.images = vec![image(1, "3.0.9"), image(2, "3.0.10")];
    if let Some(run) = &mut open {
        run.target = Some(target);
    }
    (known, wanted, open)
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
    pub(super) fn any_world()(
        trusted in prop::bool::weighted(0.9),
        provisioned in prop::bool::weighted(0.9),
        with_policy in prop::bool::weighted(0.8),
        spans in prop::collection::vec((-48i64..48, 1i64..12), 0..4),
        ended in prop::option::of((-48i64..48, prop::sample::select(Verdict::ALL))),
        open in prop::option::of(any_state()),
        ordered in prop::option::of((prop::sample::select(OrderKind::ALL), -48i64..48, 1i64..12)),
        paused in prop::bool::weighted(0.1),
        slots in (prop::option::of(1u32..3), 0u32..3, any::<bool>()),
        by_images in prop::option::of(prop::option::of(-48i64..48)),
        at in -48i64..48,
    ) -> (NodeFacts, Wanted, Option<OpenRun>, Time) {
        let now = NOON + hours(at);
        let last_end = ended.map(|(at, verdict)| end(verdict, NOON + hours(at)));
        let windows: Vec<_> = spans.iter().map(|(from, long)| window(*from, from + long)).collect();
        let policies = if with_policy { vec![packages()] } else { vec![] };
        let known = NodeFacts { trusted, provisioned, last_end, ..node() };
        let mut wanted = wanted(policies, &windows, now);
        // An order was given before now.
        let ordered = ordered.filter(|(_, from, _)| *from <= at);
        wanted.order = ordered.map(|(kind, from, long)| order(kind, from, from + long));
        wanted.pauses = paused.then(|| pause(PauseScope::Project)).into_iter().collect();
        for assigned in &mut wanted.policies {
            let (max_concurrent, held, mine) = slots;
            assigned.limits.max_concurrent = max_concurrent;
            assigned.brake = Brake { held, mine, ..Brake::default() };
        }
        let world = (known, wanted, open.map(super::open));
        let (known, wanted, open) = match by_images {
            Some(failed) => with_images(world, failed),
            None => world,
        };
        (known, wanted, open, now)
    }
}

proptest! {
    /// Nothing begins outside a window, without a policy, or on a node that is not believed.
    #[test]
    fn leave_is_given_only_inside_a_window((known, wanted, open, now) in any_world()) {
        let decision = decide(&known, &wanted, open.as_ref(), now);
        if let Act::Apply { target, before } = &decision.act {
            let before = *before;
            prop_assert_eq!(decision.leave(&target.digest()), Some(before));
            prop_assert!(known.trusted && known.provisioned && !wanted.policies.is_empty());
            prop_assert!(now < before);
            let windows = wanted.windows_now(now);
            prop_assert!(windows.as_slice().iter().any(|w| w.is_open(now) && w.end == before));
            prop_assert!(wanted.pauses.is_empty());
            let first = &wanted.policies[0];
            let may = first.limits.max_concurrent.is_none_or(|max| first.brake.held < max);
            prop_assert!(may || first.brake.mine);
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
