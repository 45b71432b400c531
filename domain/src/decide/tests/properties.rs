//! Properties of decisions over random worlds.

use proptest::prelude::*;

use super::*;

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
        (known, wanted, open.map(super::open), now)
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
