//! Decisions, as examples and as properties.

use std::fmt::Write as _;

use chrono::{DateTime, TimeDelta};
use uuid::Uuid;

mod images;
mod offline_grants;
mod properties;
mod quarantine;
mod rules;
mod steady;
mod targets;

use super::*;
use crate::assignment::{LimitUsage, Scope, UpdateLimits};
use crate::id::{InstanceId, OsId, PolicyId, SingleScheduleId, SiteId};
use crate::os::Sha256;
use crate::policy::{DesiredUpdate, PolicySpec, UpdatePolicy};
use crate::run::{AttemptId, RunState};

const NOON: Time = DateTime::from_timestamp_nanos(1_800_000_000_000_000_000);

fn hours(count: i64) -> TimeDelta {
    TimeDelta::hours(count)
}

fn policy(n: u32, desired: DesiredUpdate) -> UpdatePolicy {
    UpdatePolicy {
        id: PolicyId::nth(n),
        spec: PolicySpec::parse("policy", "", desired).expect("a policy"),
        created_at: NOON,
    }
}

fn packages() -> UpdatePolicy {
    policy(1, DesiredUpdate::parse_target(None, "demo-hello=1.1", &[], "").expect("packages"))
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
        protocol: AgentProtocol::Own { modules: vec!["packages".to_owned()] },
        last_run: None,
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

/// Digest of an image file; [`Sha256::NONE`] for 0.
fn digest(n: u32) -> Sha256 {
    Sha256::parse("sha256", &format!("{n:064x}")).expect("a digest")
}

fn assigned(policy: UpdatePolicy) -> AssignedPolicy {
    AssignedPolicy {
        scope: Scope::Instance(InstanceId::nth(1)),
        policy,
        image: None,
        limits: UpdateLimits::default(),
        usage: LimitUsage::default(),
    }
}

fn intent(policies: Vec<UpdatePolicy>, windows: &[Window], now: Time) -> UpdateIntent {
    UpdateIntent {
        policies: policies.into_iter().map(assigned).collect(),
        windows: Windows::from_now_on(windows.iter().copied(), now),
        repeated_schedules: Vec::new(),
        fetch_ahead: hours(6),
        images: Vec::new(),
        pauses: Vec::new(),
        order: None,
        unreadable: None,
    }
}

fn pause(scope: PauseScope) -> Pause {
    Pause { scope, reason: "the mirror is broken".to_owned(), by: "ada".to_owned(), at: NOON }
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
        target: Some(Target::for_packages(&packages())),
        state,
        started_at: NOON - hours(1),
        may_begin_until: None,
    }
}

fn end(verdict: Verdict, at: Time) -> LastRun {
    LastRun { run: RunId::nth(7), target: Some(packages().id.to_string()), at, verdict }
}

/// One day of a node, hour by hour, as the explanation prints it.
#[test]
fn a_day_of_a_node() {
    let mut log = String::new();
    for hour in [-8, -7, -5, -1, 0, 1, 2, 3] {
        let now = NOON + hours(hour);
        let intent = intent(vec![packages()], &[window(0, 2)], now);
        let decision = decide(&node(), &intent, None, now);
        let (act, because) = (decision.act.name(), decision.reason);
        writeln!(log, "{hour:>3} h  {act:<6} {because}").expect("a string takes it all");
    }
    insta::assert_snapshot!(log, @r"
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
fn the_reason_names_the_order_that_opened_the_window() {
    let reason = |order, windows: &[Window]| {
        let intent = UpdateIntent { order, ..intent(vec![packages()], windows, NOON) };
        decide(&node(), &intent, None, NOON).reason.to_string()
    };
    let ordered = Some(order(OrderKind::Now, 0, 1));
    let text = "an order opened a window until 2027-01-15T09:00:00Z";
    assert_eq!(reason(ordered.clone(), &[]), text);
    let longer = "a window is open until 2027-01-15T10:00:00Z";
    assert_eq!(reason(ordered, &[window(0, 2)]), longer, "the window of the schedule ends later");
    assert_eq!(reason(None, &[window(0, 2)]), longer);
}

#[test]
fn without_a_policy_nothing_is_done() {
    let intent = intent(vec![], &[window(0, 2)], NOON);
    let decision = decide(&node(), &intent, None, NOON);
    assert_eq!((decision.act, decision.reason), (Act::Idle, Reason::NoPolicy));
}

#[test]
fn the_nearest_policy_that_fits_wins() {
    let image = policy(
        2,
        DesiredUpdate::parse_target(Some(crate::id::OsId::nth(1)), "", &[], "").expect("an image"),
    );
    let far = policy(3, DesiredUpdate::Latest);
    let both = intent(vec![image.clone(), far.clone()], &[window(0, 2)], NOON);
    let Act::Apply { target, .. } = decide(&node(), &both, None, NOON).act else {
        panic!("the farther policy fits");
    };
    assert_eq!(target.policy, far.id);

    let only = intent(vec![image], &[window(0, 2)], NOON);
    let decision = decide(&node(), &only, None, NOON);
    assert_eq!(decision.reason.code(), "policy_does_not_fit");
}

#[test]
fn a_window_is_used_once() {
    let now = NOON + hours(1);
    let intent = intent(vec![packages()], &[window(0, 2), window(24, 26)], now);
    let after = |verdict| {
        let facts = NodeFacts { last_run: Some(end(verdict, NOON)), ..node() };
        decide(&facts, &intent, None, now)
    };
    assert_eq!(after(Verdict::Good).reason.code(), "up_to_date");
    assert_eq!(after(Verdict::Bad).reason.code(), "failed_in_window");
    assert_eq!(after(Verdict::Bad).next_change, Some(NOON + hours(2)));
    assert_eq!(after(Verdict::Inconclusive).act.name(), "apply");
}

#[test]
fn a_failed_download_ahead_of_the_window_is_tried_again_in_the_window() {
    let failed_at = NOON - hours(2);
    let facts = NodeFacts { last_run: Some(end(Verdict::Bad, failed_at)), ..node() };
    let at = |now| {
        let intent = intent(vec![packages()], &[window(0, 2)], now);
        decide(&facts, &intent, None, now)
    };
    assert_eq!(at(NOON - hours(1)).act, Act::Idle);
    assert_eq!(at(NOON).act.name(), "apply");
}

#[test]
fn a_staged_run_waits_for_the_next_window_and_is_cancelled_without_one() {
    let staged = open(RunState::Staged { since: NOON });
    let now = NOON + hours(3);
    let waiting = intent(vec![packages()], &[window(0, 2), window(24, 26)], now);
    assert_eq!(decide(&node(), &waiting, Some(&staged), now).act, Act::Continue(staged.id));

    let missed = intent(vec![packages()], &[window(0, 2)], now);
    let cause = CancelCause::WindowMissed;
    assert_eq!(
        decide(&node(), &missed, Some(&staged), now).act,
        Act::Cancel { run: staged.id, cause }
    );
}

#[test]
fn a_withdrawn_update_cancels_a_staged_run_but_not_an_applying_run() {
    let nothing = intent(vec![], &[window(0, 2)], NOON);
    let staged = open(RunState::Staged { since: NOON });
    let cause = CancelCause::Withdrawn;
    assert_eq!(
        decide(&node(), &nothing, Some(&staged), NOON).act,
        Act::Cancel { run: staged.id, cause }
    );
    let begun = open(RunState::Applying { since: NOON });
    assert_eq!(decide(&node(), &nothing, Some(&begun), NOON).act, Act::Continue(begun.id));
}

#[test]
fn an_untrusted_node_gets_no_update() {
    let intent = intent(vec![packages()], &[window(0, 2)], NOON);
    let facts = NodeFacts { trusted: false, ..node() };
    let begun = open(RunState::Applying { since: NOON });
    for open in [None, Some(&begun)] {
        let decision = decide(&facts, &intent, open, NOON);
        assert_eq!((decision.act, decision.reason), (Act::Idle, Reason::NotTrusted));
    }
}

#[test]
fn an_agent_gets_only_what_it_can_do() {
    let intent = intent(vec![packages()], &[window(0, 2)], NOON);
    let protocol = AgentProtocol::Own { modules: vec![] };
    let facts = NodeFacts { protocol, ..node() };
    let decision = decide(&facts, &intent, None, NOON);
    assert_eq!(decision.reason, Reason::AgentLacks { module: "packages" });
}

/// Such an agent would fail the update in every window.
#[test]
fn a_kernel_command_line_is_not_sent_to_an_agent_that_cannot_set_it() {
    let parse = |packages| DesiredUpdate::parse_target(None, packages, &[], "quiet");
    let modules = vec!["packages".to_owned(), "image".to_owned()];
    let own = NodeFacts { protocol: AgentProtocol::Own { modules }, ..node() };
    for (os_kind, packages) in
        [(OsKind::Mutable, ""), (OsKind::Mutable, "demo-hello=1.1"), (OsKind::Immutable, "")]
    {
        let policy = policy(1, parse(packages).expect("a command line"));
        let intent = intent(vec![policy], &[window(0, 2)], NOON);
        let facts = NodeFacts { os_kind, ..own.clone() };
        let decision = decide(&facts, &intent, None, NOON);
        assert_eq!(decision.act, Act::Idle, "{packages}");
        assert_eq!(
            decision.reason.to_string(),
            "the node's agent has no module `kernel`: only agents of EIM set a kernel command line"
        );
        let (kind, _) = decision.reason.condition().expect("a condition");
        assert_eq!(kind.name(), "agent_lacks");
        let eim = NodeFacts { protocol: AgentProtocol::Eim, ..facts };
        assert_eq!(decide(&eim, &intent, None, NOON).act.name(), "apply", "{packages}");
    }
}

#[test]
fn a_pause_stops_only_runs_that_have_not_begun() {
    let mut paused = intent(vec![packages()], &[window(0, 2)], NOON);
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

/// Each run of a table: what is decided without a run, for a run that has changed nothing, and for one that began.
#[test]
fn an_object_that_cannot_be_read_stops_runs_that_have_not_begun_and_cancels_none() {
    let object = UnreadableObject { kind: "policy", id: PolicyId::nth(4).to_string() };
    let staged = open(RunState::Staged { since: NOON });
    let begun = open(RunState::Applying { since: NOON });
    let windows = [window(0, 2)];
    let eim = NodeFacts { protocol: AgentProtocol::Eim, ..node() };
    for (policies, windows) in [
        (vec![packages()], &windows[..]),
        // What cannot be read may be the policy or the schedule itself: nothing is withdrawn or missed.
        (vec![], &windows[..]),
        (vec![packages()], &windows[..0]),
    ] {
        let intent =
            UpdateIntent { unreadable: Some(object.clone()), ..intent(policies, windows, NOON) };
        for facts in [node(), eim.clone()] {
            let decided = |run| decide(&facts, &intent, run, NOON);
            let expected = Reason::Unreadable { object: object.clone() };
            assert_eq!((decided(None).act, decided(None).reason), (Act::Idle, expected.clone()));
            let waiting = decided(Some(&staged));
            assert_eq!((waiting.act, waiting.reason), (Act::Continue(staged.id), expected));
            assert_eq!((waiting.offline_grant, waiting.next_change), (None, None));
            assert_eq!(decided(Some(&begun)).reason.code(), "run_open");
        }
    }
    assert_eq!(
        Reason::Unreadable { object }.to_string(),
        format!(
            "a newer release wrote the policy {}, and this server cannot read it; upgrade the server",
            PolicyId::nth(4)
        )
    );
}

#[test]
fn a_user_can_cancel_a_run_that_waits_for_an_object_that_cannot_be_read() {
    let object = UnreadableObject { kind: "pause", id: "project".to_owned() };
    let intent = UpdateIntent {
        unreadable: Some(object),
        order: Some(order(OrderKind::Cancel, 0, 0)),
        ..intent(vec![packages()], &[window(-1, 2)], NOON)
    };
    let staged = open(RunState::Staged { since: NOON });
    let cancel = Act::Cancel { run: staged.id, cause: CancelCause::Requested };
    assert_eq!(decide(&node(), &intent, Some(&staged), NOON).act, cancel);
}

#[test]
fn a_node_without_a_slot_prepares_and_waits() {
    let mut limited = intent(vec![packages()], &[window(0, 2)], NOON);
    let mut code = |held_by_others, mine, failures| {
        let limits = UpdateLimits::parse(Some(2), Some(3)).expect("limits");
        limited.policies[0].limits = limits;
        limited.policies[0].usage =
            LimitUsage { held_by_others, holds_slot: mine, failures, yields_until: None };
        let decision = decide(&node(), &limited, None, NOON);
        (decision.act.name(), decision.reason.code())
    };
    assert_eq!(code(1, false, 0), ("apply", "window_open"));
    assert_eq!(code(2, false, 0), ("fetch", "no_free_slot"));
    assert_eq!(code(2, true, 2), ("apply", "window_open"));
    assert_eq!(code(0, false, 3), ("idle", "stopped"));
}

#[test]
fn an_order_opens_a_window_of_its_own() {
    let mut ordered = intent(vec![packages()], &[], NOON);
    assert_eq!(decide(&node(), &ordered, None, NOON).reason.code(), "no_window");
    ordered.order = Some(order(OrderKind::Now, 0, 1));
    let decision = decide(&node(), &ordered, None, NOON);
    assert_eq!((decision.act.name(), decision.next_change), ("apply", Some(NOON + hours(1))));
    let done = NodeFacts { last_run: Some(end(Verdict::Good, NOON)), ..node() };
    assert_eq!(decide(&done, &ordered, None, NOON).reason.code(), "up_to_date");
}

#[test]
fn an_order_tries_again_what_failed_in_the_window_that_is_open() {
    let mut ordered = intent(vec![packages()], &[window(-2, 8)], NOON);
    let failed = NodeFacts { last_run: Some(end(Verdict::Bad, NOON - hours(1))), ..node() };
    let code = |intent: &UpdateIntent| decide(&failed, intent, None, NOON).reason.code();
    assert_eq!(code(&ordered), "failed_in_window");
    ordered.order = Some(order(OrderKind::Now, 0, 1));
    let decision = decide(&failed, &ordered, None, NOON);
    assert_eq!((decision.act.name(), decision.next_change), ("apply", Some(NOON + hours(1))));
}

#[test]
fn a_cancel_order_closes_open_windows_and_cancels_a_staged_run() {
    let staged = open(RunState::Staged { since: NOON });
    let at = |hour| {
        let now = NOON + hours(hour);
        let order = Some(order(OrderKind::Cancel, 0, 0));
        let intent = UpdateIntent {
            order,
            ..intent(vec![packages()], &[window(-1, 2), window(24, 26)], now)
        };
        (
            decide(&node(), &intent, None, now).act.name(),
            decide(&node(), &intent, Some(&staged), now).act,
        )
    };
    let cause = CancelCause::Requested;
    assert_eq!(at(1), ("idle", Act::Cancel { run: staged.id, cause }));
    assert_eq!(at(24).0, "apply", "the next window is open again");
}

#[test]
fn the_target_of_an_eim_agent_is_frozen_while_its_run_is_open() {
    let staged = open(RunState::Staged { since: NOON });
    let other = intent(vec![policy(8, DesiredUpdate::Latest)], &[window(0, 2)], NOON);
    let eim = NodeFacts { protocol: AgentProtocol::Eim, ..node() };
    let Act::Apply { target, .. } = decide(&eim, &other, Some(&staged), NOON).act else {
        panic!("the run continues");
    };
    assert_eq!(Some(target), staged.target);
    let act = decide(&node(), &other, Some(&staged), NOON).act;
    assert_eq!(act.name(), "cancel", "an Evenkeel agent cancels");
    let nothing = intent(vec![], &[window(0, 2)], NOON);
    assert_eq!(decide(&eim, &nothing, Some(&staged), NOON).act.name(), "cancel");
}

#[test]
fn a_run_of_a_replaced_agent_is_awaited_and_then_cancelled() {
    let intent = intent(vec![packages()], &[window(-1, 2), window(20, 22)], NOON);
    let replaced = |until| OpenRun {
        attempt: None,
        may_begin_until: until,
        ..open(RunState::Staged { since: NOON })
    };
    let until = NOON + hours(1);
    let at = |until, now| decide(&node(), &intent, Some(&replaced(until)), now);
    let waits = at(Some(until), NOON);
    assert_eq!((waits.act.name(), waits.next_change), ("continue", Some(until)));
    assert_eq!(waits.offline_grant, None, "it is a run of another agent");
    for decision in [at(Some(until), until), at(None, NOON)] {
        let (run, cause) = (RunId::nth(7), CancelCause::Withdrawn);
        assert_eq!(decision.act, Act::Cancel { run, cause });
    }
}
