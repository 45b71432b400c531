//! How long decisions stay valid, and the effect of corrupt rows on a batch.

use chrono::TimeDelta;
use evenkeel_domain::Time;
use evenkeel_domain::assignment::Scope;
use evenkeel_domain::decide::Act;
use evenkeel_domain::host::{HostState, InvalidationNote};
use evenkeel_domain::run::{RunEvent, RunEventRecord, RunTimeouts};
use evenkeel_domain::status::{Indication, Status};
use evenkeel_store::decisions::{
    DecisionInput, DecisionSubject, PlanningLimits, ReadMode, load_decision_inputs,
};
use evenkeel_store::runs::{RunOpening, Subject};
use evenkeel_store::testing::{drop_check_constraints, fresh_store};
use evenkeel_store::{Conflict, StoreError, Tx, hosts, limit_usage, nodes, runs};

use crate::decision_inputs::{Fleet, load_inputs, read_nodes, subjects};
use crate::fixtures::{
    NOON, assign, create_latest_policy, create_node, execute_sql, new_attempt, numbered_record,
    read_decision_input, save_as_own_agent, store_with_project,
};

/// Number of instants that each node is followed through.
const MAX_STEPS: usize = 20;

fn hours_after_noon(count: i64) -> Time {
    NOON + TimeDelta::hours(count)
}

async fn load_input(tx: &Tx, subject: DecisionSubject<'_>, now: Time) -> DecisionInput {
    let mut inputs = load_inputs(tx, &[subject], now).await;
    inputs.pop().expect("one result")
}

/// Neither with the input that was read before nor with one that is read again.
#[tokio::test]
async fn a_decision_is_constant_until_its_steady_instant() {
    let store = fresh_store().await;
    let fleet = Fleet::create_seeded(&store).await;
    let tx = fleet.tx(&store).await;
    let read_back = read_nodes(&tx, fleet.hosts()).await;
    let (mut steps, mut changes) = (0, 0);
    for subject in subjects(&read_back) {
        let (mut now, mut input) = (NOON, load_input(&tx, subject, NOON).await);
        for _ in 0..MAX_STEPS {
            let Some(until) = input.steady_until(now) else {
                break;
            };
            assert!(now < until, "{now} {until}");
            let decided = input.decide(now);
            let last = (until - TimeDelta::microseconds(1)).max(now);
            for at in [now + (until - now) / 2, last] {
                assert_eq!(input.decide(at), decided, "{now} {at}");
                let later = load_input(&tx, subject, at).await;
                assert_eq!(later.decide(at), decided, "{now} {at}");
                assert_eq!(later.superseded_run(at), input.superseded_run(now), "{now} {at}");
            }
            now = until;
            input = load_input(&tx, subject, now).await;
            steps += 1;
            changes += usize::from(input.decide(now) != decided);
        }
    }
    // Otherwise the loop above proves nothing.
    assert!(steps > 20 && changes > 5, "{steps} {changes}");
}

#[tokio::test]
async fn the_first_slot_to_end_is_known_for_any_holder() {
    let (store, tenant) = store_with_project().await;
    let policy = create_latest_policy(&store, tenant).await;
    assign(&store, tenant, Scope::Project, policy.id, (Some(5), None)).await;
    let (host, instance) = create_node(&store, tenant, 1).await;
    let (_, other) = create_node(&store, tenant, 2).await;
    let (_, third) = create_node(&store, tenant, 3).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    for (who, until) in [
        (instance.id, Some(hours_after_noon(3))),
        (other.id, Some(hours_after_noon(2))),
        (third.id, None),
    ] {
        let taken = limit_usage::take_slot(&tx, Scope::Project, who, until, NOON).await;
        taken.expect("slot taken");
    }
    for (now, end) in [(0, Some(2)), (1, Some(2)), (2, Some(3)), (3, None)] {
        let input = read_decision_input(&tx, &host, ReadMode::Preview(hours_after_noon(now))).await;
        assert_eq!(input.limited_scope(), Some(Scope::Project));
        assert_eq!(input.first_slot_free_at, end.map(hours_after_noon), "at {now}");
        assert_eq!(
            input.steady_until(hours_after_noon(now)),
            end.map(hours_after_noon),
            "at {now}"
        );
    }
    tx.commit().await.expect("committed");
    // Without limits, slots do not matter.
    let own = Scope::Instance(instance.id);
    assign(&store, tenant, own, policy.id, (None, None)).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let input = read_decision_input(&tx, &host, ReadMode::Preview(NOON)).await;
    assert_eq!((input.limited_scope(), input.first_slot_free_at), (None, None));
    assert_eq!(input.steady_until(NOON), None);
}

#[tokio::test]
async fn a_run_expires_or_is_superseded_at_a_known_instant() {
    let (store, tenant) = store_with_project().await;
    let (host, instance) = create_node(&store, tenant, 1).await;
    let (replaced, sampled) =
        (create_node(&store, tenant, 2).await, create_node(&store, tenant, 3).await);
    for host in [&host, &replaced.0] {
        save_as_own_agent(&store, tenant, host).await;
    }
    let tx = store.tenant(tenant).await.expect("a transaction");
    let timeouts = RunTimeouts::default();
    let began = numbered_record(RunEvent::Began, 1);
    let opened = runs::advance(&tx, new_attempt(&instance, 1), &began, &timeouts, NOON).await;
    opened.expect("opened");
    for instance in [&replaced.1, &sampled.1] {
        let Subject::New(opening) = new_attempt(instance, 2) else {
            panic!("expected a new attempt");
        };
        let unnamed = Subject::New(Box::new(RunOpening { attempt: None, ..*opening }));
        let record = RunEventRecord::from_event(RunEvent::Began);
        let opened = runs::advance(&tx, unnamed, &record, &timeouts, NOON).await;
        opened.expect("opened");
    }
    let mut locked = nodes::lock(&tx, replaced.0.id).await.expect("locked");
    locked.delivered.last_heard_at = Some(NOON + TimeDelta::minutes(7));
    nodes::save(&tx, &locked).await.expect("saved");
    for (host, minutes) in [(&host, Some(5)), (&replaced.0, Some(67)), (&sampled.0, None)] {
        let input = read_decision_input(&tx, host, ReadMode::Preview(NOON)).await;
        let until = minutes.map(|minutes| NOON + TimeDelta::minutes(minutes));
        assert_eq!(input.steady_until(NOON), until, "{}", host.id);
        if let Some(until) = until {
            assert_eq!(input.steady_until(until), None, "{}", host.id);
        }
    }
}

/// A corrupt row that several nodes share.
#[tokio::test]
async fn a_corrupt_row_affects_only_its_own_nodes() {
    let store = fresh_store().await;
    let fleet = Fleet::create_seeded(&store).await;
    let tx = fleet.tx(&store).await;
    let read_back = read_nodes(&tx, fleet.hosts()).await;
    let subjects = subjects(&read_back);
    let before = load_inputs(&tx, &subjects, NOON).await;
    let bad_policy = "UPDATE update_policies SET created_at = 'infinity' WHERE name = 'image'";
    execute_sql(&store, bad_policy).await;
    let tx = fleet.tx(&store).await;
    let results = load_decision_inputs(&tx, &subjects, &PlanningLimits::default(), NOON).await;
    let results = results.expect("results");
    assert_eq!(results.len(), before.len());
    for (n, (result, before)) in results.iter().zip(&before).enumerate() {
        match result {
            Ok(input) => assert_eq!(input, before, "{n}"),
            Err(error) => assert!([0, 6].contains(&n), "{n}: {error}"),
        }
        assert_eq!(result.is_err(), [0, 6].contains(&n), "{n}");
    }
    // The error names the column.
    let tx = fleet.tx(&store).await;
    let last_result =
        load_decision_inputs(&tx, &subjects[..1], &PlanningLimits::default(), NOON).await;
    let last_result = last_result.expect("read").pop();
    let is_named = matches!(&last_result, Some(Err(StoreError::Corrupt { column: "meant", .. })));
    assert!(is_named, "{last_result:?}");
}

/// Each row: the nodes that wait, the kind of the object, and the value that a newer release wrote.
const UNREADABLE: &[(&[usize], &str, &str)] = &[
    (&[0, 6], "policy", "UPDATE update_policies SET mode = 'pinned' WHERE name = 'image'"),
    (&[0, 1, 4, 6], "policy", "UPDATE update_policies SET rules = '5' WHERE name = 'far'"),
    (
        &[5],
        "schedule",
        "UPDATE single_schedules SET status = 'frozen' WHERE target_host_id = :sixth_host",
    ),
    (
        &[4],
        "schedule",
        "UPDATE repeated_schedules SET cron_hours = 'noon' WHERE target_host_id = :fifth_host",
    ),
    (
        &[6],
        "operating system profile",
        "UPDATE os_profiles SET kind = 'atomic' WHERE name = 'Edge 1'",
    ),
    // The image that a policy names, which is also the newest of a series.
    (
        &[0, 6],
        "operating system profile",
        "UPDATE os_profiles SET sha256 = '5' WHERE name = 'Edge 2'",
    ),
    // As above, but only the series of the image applies to the seventh node, and not a policy.
    (
        &[0, 6],
        "operating system profile",
        "UPDATE assignments SET policy_id = (SELECT id FROM update_policies WHERE name = 'far') \
         WHERE target_kind = 'instance' AND target_id = :seventh_instance; \
         UPDATE os_profiles SET kind = 'atomic' WHERE name = 'Edge 2'",
    ),
    // An open run of a newer release, by its state or by its target.
    (&[1], "run", "UPDATE update_runs SET state = 'held' WHERE instance_id = :second_instance"),
    (
        &[1],
        "run",
        "UPDATE update_runs SET origin = '{\"target\": 5}' WHERE instance_id = :second_instance",
    ),
    (&[2], "instance", "UPDATE instances SET desired_state = 'parked' WHERE id = :third_instance"),
    (&[5], "order of", "UPDATE update_orders SET kind = 'postpone' WHERE kind = 'cancel'"),
    // Its scope is unknown, so it may apply to every node.
    (
        &[0, 1, 2, 3, 4, 5, 6, 7],
        "pause of a",
        "UPDATE pauses SET scope_kind = 'rack' WHERE scope_kind = 'site'",
    ),
    (
        &[0, 1, 2, 3, 4, 5, 6, 7],
        "assignment of",
        "UPDATE assignments SET target_kind = 'rack' WHERE target_kind = 'project'",
    ),
];

/// A server of this release runs next to a newer one while servers are upgraded.
#[tokio::test]
async fn a_value_of_a_newer_release_lets_only_the_nodes_of_its_scope_wait() {
    for (waiting, kind, sql) in UNREADABLE {
        let store = fresh_store().await;
        let fleet = Fleet::create_seeded(&store).await;
        let tx = fleet.tx(&store).await;
        let read_back = read_nodes(&tx, fleet.hosts()).await;
        let subjects = subjects(&read_back);
        let before = load_inputs(&tx, &subjects, NOON).await;
        tx.commit().await.expect("committed");
        drop_check_constraints(&store).await;
        let host = |n: usize| fleet.nodes[n].0.id.bits().cast_signed().to_string();
        let instance = |n: usize| fleet.nodes[n].1.id.bits().cast_signed().to_string();
        let sql = sql.replace(":fifth_host", &host(4)).replace(":sixth_host", &host(5));
        let sql = sql.replace(":second_instance", &instance(1));
        let sql = sql.replace(":third_instance", &instance(2));
        let sql = sql.replace(":seventh_instance", &instance(6));
        execute_sql(&store, &sql).await;
        let tx = fleet.tx(&store).await;
        let inputs = load_inputs(&tx, &subjects, NOON).await;
        for (n, (input, before)) in inputs.iter().zip(&before).enumerate() {
            let alone = load_input(&tx, subjects[n], NOON).await;
            assert_eq!(*input, alone, "{n}: {sql}");
            let object = input.desired.unreadable.as_ref();
            if waiting.contains(&n) {
                assert_eq!(object.map(|object| object.kind), Some(*kind), "{n}: {sql}");
                let act = input.decide(NOON).act;
                assert!(!matches!(act, Act::Fetch(_) | Act::Apply { .. }), "{n}: {sql}: {act:?}");
            } else {
                assert_eq!(input, before, "{n}: {sql}");
            }
        }
    }
}

/// No report of the node and no user of this release replaces the state; a lost machine is refused.
#[tokio::test]
async fn a_host_in_a_state_of_a_newer_release_waits_and_keeps_its_state() {
    let (store, tenant) = store_with_project().await;
    let (host, _) = create_node(&store, tenant, 1).await;
    drop_check_constraints(&store).await;
    execute_sql(&store, "UPDATE hosts SET current_state = 'parked', status = 'Parked'").await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let read = hosts::find(&tx, host.id).await.expect("the host");
    assert!(read.has_unknown_state && read.is_trusted());
    assert_eq!(read.current, HostState::Unspecified);
    let input = read_decision_input(&tx, &read, ReadMode::Preview(NOON)).await;
    assert_eq!(input.desired.unreadable.map(|object| object.kind), Some("host"));
    let running = Status::new("Running", Indication::Idle, NOON);
    hosts::set_status(&tx, host.id, &running).await.expect("set");
    let read = hosts::find(&tx, host.id).await.expect("the host");
    assert!(read.has_unknown_state && read.status.text == "Running");
    let onboarded = hosts::set_desired_state(&tx, host.id, HostState::Onboarded, NOON).await;
    let refused = matches!(onboarded, Err(StoreError::Conflict(Conflict::Transition { .. })));
    assert!(refused, "{onboarded:?}");
    let note = InvalidationNote::parse("lost").expect("a note");
    let lost = hosts::invalidate(&tx, host.id, &note, NOON).await.expect("invalidated");
    assert!(!lost.has_unknown_state && !lost.is_trusted());
}
