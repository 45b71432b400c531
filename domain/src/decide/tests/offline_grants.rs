//! Which decisions have an offline grant, and when it ends.

use super::*;

#[test]
fn an_offline_grant_stays_valid_while_its_window_is_open() {
    let intent = intent(vec![packages()], &[window(-1, 2), window(5, 6)], NOON);
    for run in [None, Some(open(RunState::Staged { since: NOON }))] {
        let decision = decide(&node(), &intent, run.as_ref(), NOON);
        assert_eq!(decision.act.name(), "apply");
        let spans = decision.offline_grant.expect("a grant").windows;
        let span = |from, to| (NOON + hours(from), NOON + hours(to));
        assert_eq!(spans, [span(-1, 2), span(5, 6)]);
    }
    let mut counted = intent;
    counted.policies[0].limits = UpdateLimits::parse(Some(1), None).expect("limits");
    assert_eq!(decide(&node(), &counted, None, NOON).offline_grant, None);
}

#[test]
fn an_ordered_update_gets_no_offline_grant() {
    let mut ordered = intent(vec![packages()], &[], NOON);
    ordered.order = Some(order(OrderKind::Now, 0, 1));
    let decision = decide(&node(), &ordered, None, NOON);
    assert_eq!((decision.act.name(), decision.offline_grant), ("apply", None));
}

#[test]
fn an_offline_grant_ends_with_its_window_or_after_its_days() {
    let now = NOON - hours(1);
    let mut intent = intent(vec![packages()], &[window(0, 2), window(300, 302)], now);
    let grant = decide(&node(), &intent, None, now).offline_grant.expect("a grant");
    assert_eq!(grant.windows, [(NOON, NOON + hours(2))]);
    assert_eq!(grant.expires_at, now + TimeDelta::days(7));

    let none = |intent: &UpdateIntent, facts: &NodeFacts| {
        decide(facts, intent, None, now).offline_grant.is_none()
    };
    let eim = NodeFacts { protocol: AgentProtocol::Eim, ..node() };
    assert!(none(&intent, &eim), "an EIM agent follows its schedules");
    intent.pauses = vec![pause(PauseScope::Project)];
    assert!(none(&intent, &node()), "paused");
    intent.pauses.clear();
    intent.policies[0].limits = UpdateLimits::parse(Some(1), None).expect("limits");
    assert!(none(&intent, &node()), "an assignment with limits gets no offline grant");
    intent.policies[0].limits = UpdateLimits::default();
    intent.policies[0].policy.spec.offline_days = 0;
    assert!(none(&intent, &node()), "the policy allows no offline days");
}
