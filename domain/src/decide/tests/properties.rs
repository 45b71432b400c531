//! Properties of decisions over random inputs.

use proptest::prelude::*;

use super::quarantine::bad_image;
use super::*;

/// A policy for nodes that are updated by images, and its target.
pub(super) fn image_target() -> (UpdatePolicy, Target) {
    let policy = policy(2, DesiredUpdate::Latest);
    let target = Target::for_image(&policy, image(2, "3.0.10"));
    (policy, target)
}

/// The same input for a node that is updated by images, on which an image failed at the given hour.
fn with_images(
    (mut facts, mut intent, mut open): (NodeFacts, UpdateIntent, Option<OpenRun>),
    failed: Option<i64>,
) -> (NodeFacts, UpdateIntent, Option<OpenRun>) {
    let (policy, target) = image_target();
    facts.os_kind = OsKind::Immutable;
    facts.running = image(1, "3.0.9");
    facts.protocol = AgentProtocol::Own { modules: vec!["image".to_owned()] };
    facts.bad_images = failed.map(|at| bad_image(2, at)).into_iter().collect();
    if let Some(end) = &mut facts.last_run {
        end.target = Some(target.digest());
    }
    for assigned in &mut intent.policies {
        assigned.policy = policy.clone();
    }
    intent.images = vec![image(1, "3.0.9"), image(2, "3.0.10")];
    if let Some(run) = &mut open {
        run.target = Some(target);
    }
    (facts, intent, open)
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
    pub(super) fn any_decision_input()(
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
    ) -> (NodeFacts, UpdateIntent, Option<OpenRun>, Time) {
        let now = NOON + hours(at);
        let last_end = ended.map(|(at, verdict)| end(verdict, NOON + hours(at)));
        let windows: Vec<_> = spans.iter().map(|(from, long)| window(*from, from + long)).collect();
        let policies = if with_policy { vec![packages()] } else { vec![] };
        let facts = NodeFacts { trusted, provisioned, last_run: last_end, ..node() };
        let mut intent = intent(policies, &windows, now);
        // Orders are in the past.
        let ordered = ordered.filter(|(_, from, _)| *from <= at);
        intent.order = ordered.map(|(kind, from, long)| order(kind, from, from + long));
        intent.pauses = paused.then(|| pause(PauseScope::Project)).into_iter().collect();
        for assigned in &mut intent.policies {
            let (max_concurrent, held_by_others, mine) = slots;
            assigned.limits.max_concurrent = max_concurrent;
            assigned.usage = LimitUsage { held_by_others, holds_slot: mine, ..LimitUsage::default() };
        }
        let input = (facts, intent, open.map(super::open));
        let (facts, intent, open) = match by_images {
            Some(failed) => with_images(input, failed),
            None => input,
        };
        (facts, intent, open, now)
    }
}

proptest! {
    /// Nothing starts outside a window, without a policy, or on an untrusted node.
    #[test]
    fn an_update_may_start_only_inside_a_window((facts, intent, open, now) in any_decision_input()) {
        let decision = decide(&facts, &intent, open.as_ref(), now);
        if let Act::Apply { target, deadline } = &decision.act {
            let deadline = *deadline;
            prop_assert_eq!(decision.start_deadline(&target.digest()), Some(deadline));
            prop_assert!(facts.trusted && facts.provisioned && !intent.policies.is_empty());
            prop_assert!(now < deadline);
            let windows = intent.effective_windows(now);
            prop_assert!(windows.as_slice().iter().any(|w| w.is_open(now) && w.end == deadline));
            prop_assert!(intent.pauses.is_empty());
            let first = &intent.policies[0];
            let may = first.limits.max_concurrent.is_none_or(|max| first.usage.held_by_others < max);
            prop_assert!(may || first.usage.holds_slot);
            prop_assert!(open.is_none_or(|run| run.state.is_untouched()));
        }
    }

    /// By time alone the decision stays the same until `next_change`.
    #[test]
    fn the_answer_holds_until_next((facts, intent, open, now) in any_decision_input(), share in 0.0f64..1.0) {
        let decision = decide(&facts, &intent, open.as_ref(), now);
        let until = decision.next_change.unwrap_or(now + hours(200));
        prop_assert!(until > now);
        #[expect(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "hours, not years")]
        let later = now + TimeDelta::milliseconds(((until - now).num_milliseconds() as f64 * share) as i64);
        let again = decide(&facts, &intent, open.as_ref(), later.min(until - TimeDelta::milliseconds(1)));
        prop_assert_eq!(decision.act.name(), again.act.name());
        prop_assert_eq!(decision.reason, again.reason);
    }
}
