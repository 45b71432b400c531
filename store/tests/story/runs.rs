//! Runs, decisions and contacts.

use chrono::TimeDelta;
use evenkeel_domain::Time;
use evenkeel_domain::assignment::Scope;
use evenkeel_domain::id::InstanceId;
use evenkeel_domain::package::PackageChange;
use evenkeel_domain::policy::{DesiredUpdate, PolicySpec};
use evenkeel_domain::run::{AttemptId, ImageChange, Origin, RunEvent, RunTimeouts, UpdateRun};
use evenkeel_domain::schedule::ScheduleTarget;
use evenkeel_store::contacts::Contact;
use evenkeel_store::decisions::ReadMode;
use evenkeel_store::runs::{self, EventBatch, RunOpening, Subject};
use evenkeel_store::{contacts, policies, schedules};
use futures_util::future::join_all;
use uuid::Uuid;

use crate::fixtures::{
    NOON, assign, contact, create_latest_policy, create_node, new_attempt, numbered_record,
    read_decision_input, save_as_own_agent, store_with_project, window,
};
use crate::limit_usage::failed_event;

#[tokio::test]
async fn a_run_advances_and_its_history_is_stored() {
    let (store, tenant) = store_with_project().await;
    let (_, instance) = create_node(&store, tenant, 1).await;
    let timeouts = RunTimeouts::default();
    let tx = store.tenant(tenant).await.expect("a transaction");

    let mut first = numbered_record(RunEvent::Downloading, 1);
    first.evidence.plan = Some(vec![PackageChange {
        name: "demo-hello".into(),
        architecture: "all".into(),
        before: Some("1.0".into()),
        desired: Some("1.1".into()),
        ..PackageChange::default()
    }]);
    let run = runs::advance(&tx, new_attempt(&instance, 1), &first, &timeouts, NOON)
        .await
        .expect("opened");
    for (event, number) in
        [(RunEvent::Downloaded, 2), (RunEvent::Began, 3), (RunEvent::Finished, 4)]
    {
        let later = NOON + TimeDelta::minutes(i64::from(number));
        let subject = || Subject::Run(run.id);
        let event = numbered_record(event, number);
        runs::advance(&tx, subject(), &event, &timeouts, later).await.expect("moved");
        // The agent repeats the event because the answer was lost.
        runs::advance(&tx, subject(), &event, &timeouts, later).await.expect("already recorded");
    }
    tx.commit().await.expect("committed");

    let tx = store.tenant(tenant).await.expect("a transaction");
    let run = runs::find(&tx, run.id).await.expect("found");
    assert_eq!(run.state.name(), "succeeded");
    assert_eq!(run.ended_at(), Some(NOON + TimeDelta::minutes(4)));
    assert_eq!(run.packages[0].desired.as_deref(), Some("1.1"));
    let events: Vec<_> = runs::events(&tx, run.id).await.expect("a history");
    let events: Vec<_> =
        events.iter().map(|e| format!("{} {}->{}", e.position, e.event, e.state)).collect();
    assert_eq!(
        events,
        [
            "1 downloading->downloading",
            "2 downloaded->staged",
            "3 began->applying",
            "4 finished->succeeded"
        ]
    );
}

#[tokio::test]
async fn a_run_records_the_image_before_and_after_it() {
    let (store, tenant) = store_with_project().await;
    let planned = ImageChange {
        profile_name: "edge".into(),
        before: "1.0".into(),
        desired: "1.1".into(),
        booted: None,
    };
    let booted = |version: &str| ImageChange { booted: Some(version.into()), ..planned.clone() };
    // An older agent sends no image plan, or not what it booted; an agent that does not know sends
    // an empty text.
    for (n, plan, end, expected) in [
        (1, Some(&planned), Some("1.1"), Some(booted("1.1"))),
        (2, Some(&planned), Some(""), Some(booted(""))),
        (3, Some(&planned), None, Some(planned.clone())),
        (4, None, Some("1.1"), None),
        (5, None, None, None),
    ] {
        let (_, instance) = create_node(&store, tenant, n).await;
        let tx = store.tenant(tenant).await.expect("a transaction");
        let mut first = numbered_record(RunEvent::Downloading, 1);
        first.evidence.image = plan.cloned();
        let mut last = numbered_record(RunEvent::Finished, 3);
        last.evidence.booted = end.map(str::to_owned);
        let (subject, timeouts) = (new_attempt(&instance, n), RunTimeouts::default());
        let run = runs::advance(&tx, subject, &first, &timeouts, NOON).await;
        let run = run.expect("opened");
        assert_eq!(run.image.as_ref(), plan, "{n}");
        for event in [numbered_record(RunEvent::Began, 2), last] {
            let moved = runs::advance(&tx, Subject::Run(run.id), &event, &timeouts, NOON).await;
            moved.expect("moved");
        }
        tx.commit().await.expect("committed");
        let tx = store.tenant(tenant).await.expect("a transaction");
        let (details, _) = runs::find_details(&tx, run.id).await.expect("found");
        assert_eq!(details.run.image, expected, "{n}");
    }
}

#[tokio::test]
async fn a_new_plan_replaces_the_previous_one() {
    let (store, tenant) = store_with_project().await;
    let (_, instance) = create_node(&store, tenant, 1).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let (mut subject, timeouts) = (new_attempt(&instance, 1), RunTimeouts::default());
    for (number, desired) in [(1, "1.1"), (2, "1.2")] {
        let change = ImageChange { desired: desired.into(), ..ImageChange::default() };
        let mut event = numbered_record(RunEvent::Downloading, number);
        event.evidence.image = Some(change.clone());
        let run = runs::advance(&tx, subject, &event, &timeouts, NOON).await;
        let run = run.expect("moved");
        assert_eq!(run.image, Some(change));
        subject = Subject::Run(run.id);
    }
}

/// The thousandth entry says that the history is full, unless it is the end itself.
#[tokio::test]
async fn a_batch_of_events_equals_single_events() {
    let (store, tenant) = store_with_project().await;
    let timeouts = RunTimeouts::default();
    let reported = [
        numbered_record(RunEvent::Downloading, 1),
        numbered_record(RunEvent::Downloaded, 2),
        // A repeated event, then one out of order: it does not fit the state and is stored in the
        // history only.
        numbered_record(RunEvent::Downloaded, 2),
        numbered_record(RunEvent::Finished, 3),
        numbered_record(RunEvent::Began, 4),
        numbered_record(RunEvent::VerifyBegun, 5),
        numbered_record(RunEvent::Finished, 6),
        numbered_record(RunEvent::Began, 7),
    ];
    for split in 1..=reported.len() {
        let nth = u128::try_from(split).expect("a small number") * 2;
        let (_, one) = create_node(&store, tenant, nth).await;
        let (_, other) = create_node(&store, tenant, nth + 1).await;
        let tx = store.tenant(tenant).await.expect("a transaction");
        let mut subject = new_attempt(&one, nth);
        let mut single_states = Vec::new();
        for event in &reported {
            let run = runs::advance(&tx, subject, event, &timeouts, NOON).await;
            let run = run.expect("moved");
            subject = Subject::Run(run.id);
            single_states.push((run.state.clone(), run.sequence, run.generation));
        }
        let Subject::Run(one) = subject else {
            panic!("expected an opened run");
        };
        let mut batch_states = Vec::new();
        let mut subject = new_attempt(&other, nth + 1);
        for part in reported.chunks(split) {
            let (first, rest) = part.split_first().expect("a non-empty part");
            let (timeouts, now) = (&timeouts, NOON);
            let part = EventBatch { first, rest, timeouts, now };
            let mut each = |run: &UpdateRun| {
                batch_states.push((run.state.clone(), run.sequence, run.generation));
            };
            let run = runs::advance_all(&tx, subject, &part, &mut each).await;
            subject = Subject::Run(run.expect("moved").id);
        }
        let Subject::Run(other) = subject else {
            panic!("expected an opened run");
        };
        assert_eq!(batch_states, single_states, "in parts of {split}");
        let (one_by_one, all) = (runs::events(&tx, one).await, runs::events(&tx, other).await);
        assert_eq!(all.expect("read"), one_by_one.expect("read"));
        let stored = runs::find(&tx, other).await.expect("found");
        assert_eq!((stored.state.name(), stored.sequence), ("succeeded", 7));
        tx.commit().await.expect("committed");
    }
}

#[tokio::test]
async fn the_end_of_a_run_has_its_detail_at_any_length_of_the_history() {
    let (store, tenant) = store_with_project().await;
    let timeouts = RunTimeouts::default();
    for end in [3, 1_000] {
        let (_, instance) = create_node(&store, tenant, u128::from(end)).await;
        let tx = store.tenant(tenant).await.expect("a transaction");
        let first = numbered_record(RunEvent::Downloading, 1);
        let subject = new_attempt(&instance, u128::from(end));
        let opened = runs::advance(&tx, subject, &first, &timeouts, NOON).await;
        let run = opened.expect("opened").id;
        for number in 2..end {
            let same = numbered_record(RunEvent::Downloading, number);
            let advanced = runs::advance(&tx, Subject::Run(run), &same, &timeouts, NOON).await;
            advanced.expect("accepted");
        }
        let failed = numbered_record(failed_event(), end);
        let ended = runs::advance(&tx, Subject::Run(run), &failed, &timeouts, NOON).await;
        assert_eq!(ended.expect("ended").state.name(), "failed");
        let events = runs::events(&tx, run).await.expect("a history");
        let last = events.last().expect("an end");
        assert_eq!((last.position, last.event.as_str()), (end, "failed"));
        assert!(last.detail.contains("a script failed"), "{}", last.detail);
    }
}

#[tokio::test]
async fn a_run_outlives_its_policy() {
    let (store, tenant) = store_with_project().await;
    let (_, instance) = create_node(&store, tenant, 1).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let spec = PolicySpec::parse("all", "", DesiredUpdate::Latest).expect("a policy");
    let policy = policies::create(&tx, &spec, NOON).await.expect("created");
    let opening = Subject::New(Box::new(RunOpening {
        instance: instance.id,
        name: "edge update".into(),
        description: String::new(),
        attempt: Some(AttemptId(Uuid::from_u128(1))),
        origin: Origin { target: None, policy: Some(policy.clone()), order: None },
        follows: None,
        assignment: None,
    }));
    let timeouts = RunTimeouts::default();
    let begun = numbered_record(RunEvent::Began, 1);
    let run = runs::advance(&tx, opening, &begun, &timeouts, NOON).await.expect("opened");
    policies::delete(&tx, policy.id).await.expect("unused");
    let ended = numbered_record(RunEvent::Finished, 2);
    runs::advance(&tx, Subject::Run(run.id), &ended, &timeouts, NOON).await.expect("ended");
    let run = runs::find(&tx, run.id).await.expect("found");
    assert_eq!(run.state.name(), "succeeded");
    assert_eq!(run.origin.policy, Some(policy));
}

#[tokio::test]
async fn an_instance_has_one_open_run() {
    let (store, tenant) = store_with_project().await;
    let (_, instance) = create_node(&store, tenant, 1).await;
    let opened = join_all((0..8).map(|n| {
        let (store, instance) = (store.clone(), instance.clone());
        async move {
            let tx = store.tenant(tenant).await?;
            let event = numbered_record(RunEvent::Downloading, 1);
            runs::advance(&tx, new_attempt(&instance, n), &event, &RunTimeouts::default(), NOON)
                .await?;
            tx.commit().await
        }
    }))
    .await;
    assert_eq!(opened.iter().filter(|result| result.is_ok()).count(), 1, "{opened:?}");
}

#[tokio::test]
async fn a_decision_reads_the_policies_and_windows_of_its_chain() {
    let (store, tenant) = store_with_project().await;
    let (host, instance) = create_node(&store, tenant, 1).await;
    let policy = create_latest_policy(&store, tenant).await;
    assign(&store, tenant, Scope::Project, policy.id, (None, None)).await;
    save_as_own_agent(&store, tenant, &host).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let window = window(ScheduleTarget::Host(host.id), 1, 2);
    schedules::create(&tx, &window, NOON).await.expect("scheduled");

    let at = |now| {
        let (tx, host) = (&tx, &host);
        async move { read_decision_input(tx, host, ReadMode::Preview(now)).await.decide(now) }
    };
    let before = at(NOON).await;
    assert_eq!(before.act.name(), "fetch");
    assert_eq!(before.reason.to_string(), "the next window opens at 2027-01-15T09:00:00Z");
    assert_eq!(at(NOON + TimeDelta::minutes(90)).await.act.name(), "apply");
    assert_eq!(instance.summary.update_status.text, "No Current Update");
}

/// A process whose clock is a year ahead records a contact, and others record contacts after it.
#[tokio::test]
async fn a_contact_is_never_in_the_future() {
    let (store, tenant) = store_with_project().await;
    let (_, instance) = create_node(&store, tenant, 1).await;
    let (_, other) = create_node(&store, tenant, 2).await;
    let at = |minutes| NOON + TimeDelta::minutes(minutes);
    let last = async |id: InstanceId| {
        let tx = store.tenant(tenant).await.expect("a transaction");
        contacts::last_contact(&tx, id).await.expect("an answer")
    };
    let record = async |id: InstanceId, heard: Time, due: Option<Time>, now: Time| {
        let tx = store.fleet().await.expect("a transaction");
        let heard = Contact { tenant, instance: id, at: heard, due };
        contacts::record_contacts(&tx, vec![heard], now).await.expect("recorded");
        tx.commit().await.expect("committed");
    };
    let ahead = NOON + TimeDelta::days(365);
    record(instance.id, ahead, Some(ahead + TimeDelta::minutes(7)), at(5)).await;
    assert_eq!(last(instance.id).await, Some(at(5)));
    record(instance.id, at(6), None, at(6)).await;
    assert_eq!(last(instance.id).await, Some(at(6)));

    // The database was ahead itself: the next contact replaces such a time, or housekeeping does.
    for id in [instance.id, other.id] {
        record(id, ahead, Some(ahead), ahead).await;
        assert_eq!(last(id).await, Some(ahead));
    }
    record(instance.id, at(7), None, at(7)).await;
    assert_eq!(last(instance.id).await, Some(at(7)));
    let correct = async |now: Time| {
        let tx = store.fleet().await.expect("a transaction");
        let corrected = contacts::correct_future_contacts(&tx, now, 10).await.expect("corrected");
        tx.commit().await.expect("committed");
        corrected
    };
    assert_eq!([correct(at(8)).await, correct(at(8)).await], [1, 0]);
    assert_eq!([last(instance.id).await, last(other.id).await], [Some(at(7)), Some(at(8))]);
}

#[tokio::test]
async fn contacts_are_written_in_batches_and_only_forward() {
    let (store, tenant) = store_with_project().await;
    let (_, instance) = create_node(&store, tenant, 1).await;
    let unknown = evenkeel_domain::id::InstanceId::nth(4_000_000);
    for minutes in [5, 3] {
        let tx = store.fleet().await.expect("a transaction");
        let at = NOON + TimeDelta::minutes(minutes);
        let batch = [instance.id, unknown].map(|id| contact(tenant, id, at));
        let now = NOON + TimeDelta::minutes(5);
        let recorded = contacts::record_contacts(&tx, batch.to_vec(), now).await;
        recorded.expect("recorded");
        tx.commit().await.expect("committed");
    }
    let tx = store.tenant(tenant).await.expect("a transaction");
    let last = contacts::last_contact(&tx, instance.id).await.expect("a time");
    assert_eq!(last, Some(NOON + TimeDelta::minutes(5)));
}
