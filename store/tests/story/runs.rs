//! Runs, decisions and contacts.

use chrono::TimeDelta;
use evenkeel_domain::assignment::Scope;
use evenkeel_domain::package::PackageChange;
use evenkeel_domain::policy::{PolicySpec, Wish};
use evenkeel_domain::run::{AttemptId, ImageChange, Origin, Patience, RunEvent, UpdateRun};
use evenkeel_domain::schedule::ScheduleTarget;
use evenkeel_store::decisions::Reading;
use evenkeel_store::runs::{self, Opening, Subject, Together};
use evenkeel_store::testing::fresh_store;
use evenkeel_store::{contacts, policies, schedules};
use futures_util::future::join_all;
use uuid::Uuid;

use crate::brake::broken;
use crate::house::{
    NOON, assign, attempt, contact, latest, node, numbered, project, spoke, window, world,
};

#[tokio::test]
async fn a_run_is_moved_and_its_history_kept() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let (_, instance) = node(&store, tenant, 1).await;
    let patience = Patience::default();
    let tx = store.tenant(tenant).await.expect("a transaction");

    let mut first = numbered(RunEvent::Downloading, 1);
    first.evidence.plan = Some(vec![PackageChange {
        name: "demo-hello".into(),
        architecture: "all".into(),
        before: Some("1.0".into()),
        wanted: Some("1.1".into()),
        found: None,
    }]);
    let run = runs::advance(&tx, attempt(&instance, 1), &first, &patience, NOON)
        .await
        .expect("opened");
    for (event, number) in [
        (RunEvent::Downloaded, 2),
        (RunEvent::Began, 3),
        (RunEvent::Finished, 4),
    ] {
        let later = NOON + TimeDelta::minutes(i64::from(number));
        let subject = || Subject::Run(run.id);
        let event = numbered(event, number);
        runs::advance(&tx, subject(), &event, &patience, later)
            .await
            .expect("moved");
        // The answer was lost, and the agent says it again.
        runs::advance(&tx, subject(), &event, &patience, later)
            .await
            .expect("known already");
    }
    tx.commit().await.expect("committed");

    let tx = store.tenant(tenant).await.expect("a transaction");
    let run = runs::find(&tx, run.id).await.expect("it is there");
    assert_eq!(run.state.name(), "succeeded");
    assert_eq!(run.ended_at(), Some(NOON + TimeDelta::minutes(4)));
    assert_eq!(run.packages[0].wanted.as_deref(), Some("1.1"));
    let told: Vec<_> = runs::events(&tx, run.id).await.expect("a history");
    let told: Vec<_> = told
        .iter()
        .map(|e| format!("{} {}->{}", e.position, e.event, e.state))
        .collect();
    assert_eq!(
        told,
        [
            "1 downloading->downloading",
            "2 downloaded->staged",
            "3 began->applying",
            "4 finished->succeeded"
        ]
    );
}

#[tokio::test]
async fn a_run_says_which_image_ran_before_it_and_which_one_after() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let planned = ImageChange {
        profile_name: "edge".into(),
        before: "1.0".into(),
        wanted: "1.1".into(),
        booted: None,
    };
    let booted = |version: &str| ImageChange {
        booted: Some(version.into()),
        ..planned.clone()
    };
    // An agent of before tells no plan of images, or not what it has booted; one that knows nothing says so.
    for (n, plan, end, wanted) in [
        (1, Some(&planned), Some("1.1"), Some(booted("1.1"))),
        (2, Some(&planned), Some(""), Some(booted(""))),
        (3, Some(&planned), None, Some(planned.clone())),
        (4, None, Some("1.1"), None),
        (5, None, None, None),
    ] {
        let (_, instance) = node(&store, tenant, n).await;
        let tx = store.tenant(tenant).await.expect("a transaction");
        let mut first = numbered(RunEvent::Downloading, 1);
        first.evidence.image = plan.cloned();
        let mut last = numbered(RunEvent::Finished, 3);
        last.evidence.booted = end.map(str::to_owned);
        let (subject, patience) = (attempt(&instance, n), Patience::default());
        let run = runs::advance(&tx, subject, &first, &patience, NOON).await;
        let run = run.expect("opened");
        assert_eq!(run.image.as_ref(), plan, "{n}");
        for event in [numbered(RunEvent::Began, 2), last] {
            let moved = runs::advance(&tx, Subject::Run(run.id), &event, &patience, NOON).await;
            moved.expect("moved");
        }
        tx.commit().await.expect("committed");
        let tx = store.tenant(tenant).await.expect("a transaction");
        let (whole, _) = runs::find_whole(&tx, run.id).await.expect("it is there");
        assert_eq!(whole.run.image, wanted, "{n}");
    }
}

#[tokio::test]
async fn a_plan_that_is_told_anew_replaces_the_one_before() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let (_, instance) = node(&store, tenant, 1).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let (mut subject, patience) = (attempt(&instance, 1), Patience::default());
    for (number, wanted) in [(1, "1.1"), (2, "1.2")] {
        let change = ImageChange {
            wanted: wanted.into(),
            ..ImageChange::default()
        };
        let mut event = numbered(RunEvent::Downloading, number);
        event.evidence.image = Some(change.clone());
        let run = runs::advance(&tx, subject, &event, &patience, NOON).await;
        let run = run.expect("moved");
        assert_eq!(run.image, Some(change));
        subject = Subject::Run(run.id);
    }
}

/// The thousandth entry says that no more is kept, unless it is the end itself.
#[tokio::test]
async fn events_that_come_together_are_what_they_are_one_by_one() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let patience = Patience::default();
    let told = [
        numbered(RunEvent::Downloading, 1),
        numbered(RunEvent::Downloaded, 2),
        // Said again, and out of turn: it does not fit, and is kept.
        numbered(RunEvent::Downloaded, 2),
        numbered(RunEvent::Finished, 3),
        numbered(RunEvent::Began, 4),
        numbered(RunEvent::VerifyBegun, 5),
        numbered(RunEvent::Finished, 6),
        numbered(RunEvent::Began, 7),
    ];
    for split in 1..=told.len() {
        let nth = u128::try_from(split).expect("a small number") * 2;
        let (_, one) = node(&store, tenant, nth).await;
        let (_, other) = node(&store, tenant, nth + 1).await;
        let tx = store.tenant(tenant).await.expect("a transaction");
        let mut subject = attempt(&one, nth);
        let mut seen = Vec::new();
        for event in &told {
            let run = runs::advance(&tx, subject, event, &patience, NOON).await;
            let run = run.expect("moved");
            subject = Subject::Run(run.id);
            seen.push((run.state.clone(), run.sequence, run.generation));
        }
        let Subject::Run(one) = subject else {
            panic!("it was opened");
        };
        let mut together = Vec::new();
        let mut subject = attempt(&other, nth + 1);
        for part in told.chunks(split) {
            let (first, rest) = part.split_first().expect("it is not empty");
            let (patience, now) = (&patience, NOON);
            let part = Together {
                first,
                rest,
                patience,
                now,
            };
            let mut each = |run: &UpdateRun| {
                together.push((run.state.clone(), run.sequence, run.generation));
            };
            let run = runs::advance_by(&tx, subject, &part, &mut each).await;
            subject = Subject::Run(run.expect("moved").id);
        }
        let Subject::Run(other) = subject else {
            panic!("it was opened");
        };
        assert_eq!(together, seen, "in parts of {split}");
        let (one_by_one, all) = (runs::events(&tx, one).await, runs::events(&tx, other).await);
        assert_eq!(all.expect("read"), one_by_one.expect("read"));
        let kept = runs::find(&tx, other).await.expect("it is there");
        assert_eq!((kept.state.name(), kept.sequence), ("succeeded", 7));
        tx.commit().await.expect("committed");
    }
}

#[tokio::test]
async fn the_end_of_a_run_keeps_its_words_wherever_it_stands_in_the_history() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let patience = Patience::default();
    for end in [3, 1_000] {
        let (_, instance) = node(&store, tenant, u128::from(end)).await;
        let tx = store.tenant(tenant).await.expect("a transaction");
        let first = numbered(RunEvent::Downloading, 1);
        let subject = attempt(&instance, u128::from(end));
        let opened = runs::advance(&tx, subject, &first, &patience, NOON).await;
        let run = opened.expect("opened").id;
        for number in 2..end {
            let same = numbered(RunEvent::Downloading, number);
            let told = runs::advance(&tx, Subject::Run(run), &same, &patience, NOON).await;
            told.expect("it counts");
        }
        let failed = numbered(broken(), end);
        let ended = runs::advance(&tx, Subject::Run(run), &failed, &patience, NOON).await;
        assert_eq!(ended.expect("ended").state.name(), "failed");
        let told = runs::events(&tx, run).await.expect("a history");
        let last = told.last().expect("an end");
        assert_eq!((last.position, last.event.as_str()), (end, "failed"));
        assert!(last.detail.contains("a script failed"), "{}", last.detail);
    }
}

#[tokio::test]
async fn a_run_outlives_its_policy() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let (_, instance) = node(&store, tenant, 1).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let spec = PolicySpec::parse("all", "", Wish::Latest).expect("a policy");
    let policy = policies::create(&tx, &spec, NOON).await.expect("created");
    let opening = Subject::New(Box::new(Opening {
        instance: instance.id,
        name: "edge update".into(),
        description: String::new(),
        attempt: Some(AttemptId(Uuid::from_u128(1))),
        origin: Origin {
            target: None,
            policy: Some(policy.clone()),
            order: None,
        },
        follows: None,
    }));
    let patience = Patience::default();
    let begun = numbered(RunEvent::Began, 1);
    let run = runs::advance(&tx, opening, &begun, &patience, NOON)
        .await
        .expect("opened");
    policies::delete(&tx, policy.id)
        .await
        .expect("nobody uses it");
    let ended = numbered(RunEvent::Finished, 2);
    runs::advance(&tx, Subject::Run(run.id), &ended, &patience, NOON)
        .await
        .expect("ended");
    let run = runs::find(&tx, run.id).await.expect("it is there");
    assert_eq!(run.state.name(), "succeeded");
    assert_eq!(run.origin.policy, Some(policy));
}

#[tokio::test]
async fn an_instance_has_one_open_run() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let (_, instance) = node(&store, tenant, 1).await;
    let opened = join_all((0..8).map(|n| {
        let (store, instance) = (store.clone(), instance.clone());
        async move {
            let tx = store.tenant(tenant).await?;
            let event = numbered(RunEvent::Downloading, 1);
            runs::advance(
                &tx,
                attempt(&instance, n),
                &event,
                &Patience::default(),
                NOON,
            )
            .await?;
            tx.commit().await
        }
    }))
    .await;
    assert_eq!(
        opened.iter().filter(|result| result.is_ok()).count(),
        1,
        "{opened:?}"
    );
}

#[tokio::test]
async fn a_decision_reads_the_whole_chain() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let (host, instance) = node(&store, tenant, 1).await;
    let policy = latest(&store, tenant).await;
    assign(&store, tenant, Scope::Project, policy.id, (None, None)).await;
    spoke(&store, tenant, &host).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let window = window(ScheduleTarget::Host(host.id), 1, 2);
    schedules::create(&tx, &window, NOON)
        .await
        .expect("scheduled");

    let at = |now| {
        let (tx, host) = (&tx, &host);
        async move { world(tx, host, Reading::Look(now)).await.decide(now) }
    };
    let before = at(NOON).await;
    assert_eq!(before.act.name(), "fetch");
    assert_eq!(
        before.because.to_string(),
        "the next window opens at 2027-01-15T09:00:00Z"
    );
    assert_eq!(at(NOON + TimeDelta::minutes(90)).await.act.name(), "apply");
    assert_eq!(instance.summary.update_status.text, "No Current Update");
}

#[tokio::test]
async fn contacts_are_written_in_batches_and_only_forward() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let (_, instance) = node(&store, tenant, 1).await;
    let gone = evenkeel_domain::id::InstanceId::nth(4_000_000);
    for minutes in [5, 3] {
        let tx = store.fleet().await.expect("a transaction");
        let at = NOON + TimeDelta::minutes(minutes);
        let batch = [instance.id, gone].map(|id| contact(tenant, id, at));
        let noted = contacts::heard(&tx, batch.to_vec()).await;
        noted.expect("noted");
        tx.commit().await.expect("committed");
    }
    let tx = store.tenant(tenant).await.expect("a transaction");
    let last = contacts::last(&tx, instance.id).await.expect("a time");
    assert_eq!(last, Some(NOON + TimeDelta::minutes(5)));
}
