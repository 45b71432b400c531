//! Decisions, told as stories and tried as properties.

use std::fmt::Write as _;

use chrono::{DateTime, TimeDelta};
use uuid::Uuid;

mod images;
mod properties;
mod quarantine;
mod rules;
mod steady;
mod targets;

use super::*;
use crate::assignment::{Brake, Limits, Scope};
use crate::id::{InstanceId, OsId, PolicyId, SingleScheduleId, SiteId};
use crate::os::Sha256;
use crate::policy::{PolicySpec, UpdatePolicy, Wish};
use crate::run::{AttemptId, RunState};

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
        opener: Opener::Single(SingleScheduleId::nth(1)),
    }
}

fn node() -> NodeFacts {
    NodeFacts {
        trusted: true,
        provisioned: true,
        os_kind: OsKind::Mutable,
        running: image(0, "12"),
        speaks: Protocol::Own {
            modules: vec!["packages".to_owned()],
        },
        last_end: None,
        bad_images: Vec::new(),
    }
}

fn image(n: u32, image_id: &str) -> Image {
    Image {
        os: OsId::nth(n),
        name: format!("Edge {image_id}"),
        profile_name: "edge".to_owned(),
        image_id: image_id.to_owned(),
        url: format!("edge/{image_id}.raw.gz"),
        sha256: digest(n),
        architecture: "x86_64".to_owned(),
        signatures: Vec::new(),
    }
}

/// Of a file; that of none for 0.
fn digest(n: u32) -> Sha256 {
    Sha256::parse("sha256", &format!("{n:064x}")).expect("a digest")
}

fn assigned(policy: UpdatePolicy) -> Assigned {
    Assigned {
        scope: Scope::Instance(InstanceId::nth(1)),
        policy,
        image: None,
        limits: Limits::default(),
        brake: Brake::default(),
    }
}

fn wanted(policies: Vec<UpdatePolicy>, windows: &[Window], now: Time) -> Wanted {
    Wanted {
        policies: policies.into_iter().map(assigned).collect(),
        windows: Windows::from_now_on(windows.iter().copied(), now),
        repeated: Vec::new(),
        fetch_ahead: hours(6),
        images: Vec::new(),
        pauses: Vec::new(),
        order: None,
    }
}

fn pause(scope: PauseScope) -> Pause {
    Pause {
        scope,
        reason: "the mirror is broken".to_owned(),
        by: "ada".to_owned(),
        at: NOON,
    }
}

fn order(kind: OrderKind, at: i64, until: i64) -> Order {
    Order {
        kind,
        at: NOON + hours(at),
        until: NOON + hours(until),
        reason: "CVE-2026-1".to_owned(),
        by: "ada".to_owned(),
    }
}

fn open(state: RunState) -> OpenRun {
    OpenRun {
        id: RunId::nth(7),
        attempt: Some(AttemptId(Uuid::from_u128(7))),
        target: Some(Target::of_packages(&packages())),
        state,
        started_at: NOON - hours(1),
        may_begin_until: None,
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

#[test]
fn a_pause_stops_what_has_not_begun_and_nothing_else() {
    let mut paused = wanted(vec![packages()], &[window(0, 2)], NOON);
    let staged = open(RunState::Staged { since: NOON });
    let begun = open(RunState::Applying { since: NOON });
    for (scope, holds) in [
        (PauseScope::Project, true),
        (PauseScope::Site(SiteId::nth(1)), true),
        (PauseScope::Policy(packages().id), true),
        (PauseScope::Policy(PolicyId::nth(9)), false),
    ] {
        paused.pauses = vec![pause(scope)];
        let act = |open| decide(&node(), &paused, open, NOON).act.name();
        assert_eq!(act(None), if holds { "idle" } else { "apply" }, "{scope}");
        assert_eq!(act(Some(&staged)), if holds { "continue" } else { "apply" });
        assert_eq!(act(Some(&begun)), "continue");
    }
}

#[test]
fn a_node_without_a_slot_gets_ready_and_waits() {
    let mut braked = wanted(vec![packages()], &[window(0, 2)], NOON);
    let mut code = |held, mine, failures| {
        let limits = Limits::parse(Some(2), Some(3)).expect("limits");
        braked.policies[0].limits = limits;
        braked.policies[0].brake = Brake {
            held,
            mine,
            failures,
            behind: None,
        };
        let decision = decide(&node(), &braked, None, NOON);
        (decision.act.name(), decision.because.code())
    };
    assert_eq!(code(1, false, 0), ("apply", "window_open"));
    assert_eq!(code(2, false, 0), ("fetch", "no_free_slot"));
    assert_eq!(code(2, true, 2), ("apply", "window_open"));
    assert_eq!(code(0, false, 3), ("idle", "stopped"));
}

#[test]
fn an_order_opens_a_window_of_its_own() {
    let mut ordered = wanted(vec![packages()], &[], NOON);
    assert_eq!(
        decide(&node(), &ordered, None, NOON).because.code(),
        "no_window"
    );
    ordered.order = Some(order(OrderKind::Now, 0, 1));
    let decision = decide(&node(), &ordered, None, NOON);
    assert_eq!(
        (decision.act.name(), decision.next),
        ("apply", Some(NOON + hours(1)))
    );
    let done = NodeFacts {
        last_end: Some(end(Verdict::Good, NOON)),
        ..node()
    };
    assert_eq!(
        decide(&done, &ordered, None, NOON).because.code(),
        "up_to_date"
    );
}

#[test]
fn an_order_tries_again_what_failed_in_the_window_that_is_open() {
    let mut ordered = wanted(vec![packages()], &[window(-2, 8)], NOON);
    let failed = NodeFacts {
        last_end: Some(end(Verdict::Bad, NOON - hours(1))),
        ..node()
    };
    let code = |wanted: &Wanted| decide(&failed, wanted, None, NOON).because.code();
    assert_eq!(code(&ordered), "failed_in_window");
    ordered.order = Some(order(OrderKind::Now, 0, 1));
    let decision = decide(&failed, &ordered, None, NOON);
    assert_eq!(
        (decision.act.name(), decision.next),
        ("apply", Some(NOON + hours(1)))
    );
}

#[test]
fn a_cancellation_closes_the_open_windows_and_gives_up_what_was_fetched() {
    let staged = open(RunState::Staged { since: NOON });
    let at = |hour| {
        let now = NOON + hours(hour);
        let order = Some(order(OrderKind::Cancel, 0, 0));
        let wanted = Wanted {
            order,
            ..wanted(vec![packages()], &[window(-1, 2), window(24, 26)], now)
        };
        (
            decide(&node(), &wanted, None, now).act.name(),
            decide(&node(), &wanted, Some(&staged), now).act,
        )
    };
    let cause = CancelCause::Requested;
    assert_eq!(
        at(1),
        (
            "idle",
            Act::Cancel {
                run: staged.id,
                cause
            }
        )
    );
    assert_eq!(at(24).0, "apply", "the next window counts again");
}

#[test]
fn leave_ahead_goes_on_while_its_window_is_open_because_the_server_may_be_gone_before_the_node_asks()
 {
    let wanted = wanted(vec![packages()], &[window(-1, 2), window(5, 6)], NOON);
    for run in [None, Some(open(RunState::Staged { since: NOON }))] {
        let decision = decide(&node(), &wanted, run.as_ref(), NOON);
        assert_eq!(decision.act.name(), "apply");
        let spans = decision.grant.expect("a grant").windows;
        let span = |from, to| (NOON + hours(from), NOON + hours(to));
        assert_eq!(spans, [span(-1, 2), span(5, 6)]);
    }
    let mut counted = wanted;
    counted.policies[0].limits = Limits::parse(Some(1), None).expect("limits");
    assert_eq!(decide(&node(), &counted, None, NOON).grant, None);
}

#[test]
fn what_a_person_orders_is_not_granted_ahead() {
    let mut ordered = wanted(vec![packages()], &[], NOON);
    ordered.order = Some(order(OrderKind::Now, 0, 1));
    let decision = decide(&node(), &ordered, None, NOON);
    assert_eq!((decision.act.name(), decision.grant), ("apply", None));
}

#[test]
fn a_grant_ahead_ends_with_the_window_or_with_its_days() {
    let now = NOON - hours(1);
    let mut wanted = wanted(vec![packages()], &[window(0, 2), window(300, 302)], now);
    let grant = decide(&node(), &wanted, None, now).grant.expect("a grant");
    assert_eq!(grant.windows, [(NOON, NOON + hours(2))]);
    assert_eq!(grant.expires, now + TimeDelta::days(7));

    let none =
        |wanted: &Wanted, known: &NodeFacts| decide(known, wanted, None, now).grant.is_none();
    let eim = NodeFacts {
        speaks: Protocol::Eim,
        ..node()
    };
    assert!(none(&wanted, &eim), "it goes by its schedules");
    wanted.pauses = vec![pause(PauseScope::Project)];
    assert!(none(&wanted, &node()), "a pause");
    wanted.pauses.clear();
    wanted.policies[0].limits = Limits::parse(Some(1), None).expect("limits");
    assert!(
        none(&wanted, &node()),
        "what is counted is not granted ahead"
    );
    wanted.policies[0].limits = Limits::default();
    wanted.policies[0].policy.spec.offline_days = 0;
    assert!(none(&wanted, &node()), "the policy says never");
}

#[test]
fn the_wish_of_an_ancestors_agent_is_frozen_while_it_works() {
    let staged = open(RunState::Staged { since: NOON });
    let other = wanted(vec![policy(8, Wish::Latest)], &[window(0, 2)], NOON);
    let eim = NodeFacts {
        speaks: Protocol::Eim,
        ..node()
    };
    let Act::Apply { target, .. } = decide(&eim, &other, Some(&staged), NOON).act else {
        panic!("it goes on");
    };
    assert_eq!(Some(target), staged.target);
    let act = decide(&node(), &other, Some(&staged), NOON).act;
    assert_eq!(act.name(), "cancel", "ours is told to give up");
    let nothing = wanted(vec![], &[window(0, 2)], NOON);
    assert_eq!(
        decide(&eim, &nothing, Some(&staged), NOON).act.name(),
        "cancel"
    );
}

#[test]
fn what_a_replaced_agent_may_still_begin_is_waited_for_and_then_given_up() {
    let wanted = wanted(vec![packages()], &[window(-1, 2), window(20, 22)], NOON);
    let replaced = |until| OpenRun {
        attempt: None,
        may_begin_until: until,
        ..open(RunState::Staged { since: NOON })
    };
    let until = NOON + hours(1);
    let at = |until, now| decide(&node(), &wanted, Some(&replaced(until)), now);
    let waits = at(Some(until), NOON);
    assert_eq!((waits.act.name(), waits.next), ("continue", Some(until)));
    assert_eq!(waits.grant, None, "it is no attempt of ours");
    for over in [at(Some(until), until), at(None, NOON)] {
        let (run, cause) = (RunId::nth(7), CancelCause::Withdrawn);
        assert_eq!(over.act, Act::Cancel { run, cause });
    }
}
