//! How long what is decided holds, and what of many makes no sense.

use chrono::TimeDelta;
use evenkeel_domain::Time;
use evenkeel_domain::assignment::Scope;
use evenkeel_domain::run::{Happening, Patience, RunEvent};
use evenkeel_store::decisions::{About, Horizon, Reading, World, worlds};
use evenkeel_store::runs::{Opening, Subject};
use evenkeel_store::testing::fresh_store;
use evenkeel_store::{StoreError, Tx, brake, nodes, runs};

use crate::house::{NOON, assign, attempt, by_hand, latest, node, numbered, project, spoke, world};
use crate::worlds::{Fleet, about, read, seen};

/// How often each node is followed from one instant to the next.
const STEPS: usize = 20;

fn hours(count: i64) -> Time {
    NOON + TimeDelta::hours(count)
}

async fn one(tx: &Tx, of: About<'_>, now: Time) -> World {
    let mut seen = seen(tx, &[of], now).await;
    seen.pop().expect("one was asked for")
}

/// Neither by what was read before nor by what is read anew.
#[tokio::test]
async fn nothing_else_is_decided_before_the_instant_that_is_said() {
    let store = fresh_store().await;
    let fleet = Fleet::furnished(&store).await;
    let tx = fleet.tx(&store).await;
    let read_back = read(&tx, fleet.hosts()).await;
    let (mut steps, mut changes) = (0, 0);
    for of in about(&read_back) {
        let (mut now, mut world) = (NOON, one(&tx, of, NOON).await);
        for _ in 0..STEPS {
            let Some(until) = world.steady_until(now) else {
                break;
            };
            assert!(now < until, "{now} {until}");
            let decided = world.decide(now);
            let last = (until - TimeDelta::microseconds(1)).max(now);
            for at in [now + (until - now) / 2, last] {
                assert_eq!(world.decide(at), decided, "{now} {at}");
                let later = one(&tx, of, at).await;
                assert_eq!(later.decide(at), decided, "{now} {at}");
                assert_eq!(later.outlived(at), world.outlived(now), "{now} {at}");
            }
            now = until;
            world = one(&tx, of, now).await;
            steps += 1;
            changes += usize::from(world.decide(now) != decided);
        }
    }
    // Else it would be no news that nothing changed between.
    assert!(steps > 20 && changes > 5, "{steps} {changes}");
}

#[tokio::test]
async fn the_first_slot_that_ends_is_told_whoever_holds_it() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let policy = latest(&store, tenant).await;
    assign(&store, tenant, Scope::Project, policy.id, (Some(5), None)).await;
    let (host, instance) = node(&store, tenant, 1).await;
    let (_, other) = node(&store, tenant, 2).await;
    let (_, third) = node(&store, tenant, 3).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    for (who, until) in [
        (instance.id, Some(hours(3))),
        (other.id, Some(hours(2))),
        (third.id, None),
    ] {
        let held = brake::hold(&tx, Scope::Project, who, until, NOON).await;
        held.expect("held");
    }
    for (now, end) in [(0, Some(2)), (1, Some(2)), (2, Some(3)), (3, None)] {
        let seen = world(&tx, &host, Reading::Look(hours(now))).await;
        assert_eq!(seen.counted(), Some(Scope::Project));
        assert_eq!(seen.slots_end, end.map(hours), "at {now}");
        assert_eq!(seen.steady_until(hours(now)), end.map(hours), "at {now}");
    }
    tx.commit().await.expect("committed");
    // Where nothing is counted, nobody's slot says anything.
    let own = Scope::Instance(instance.id);
    assign(&store, tenant, own, policy.id, (None, None)).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let seen = world(&tx, &host, Reading::Look(NOON)).await;
    assert_eq!((seen.counted(), seen.slots_end), (None, None));
    assert_eq!(seen.steady_until(NOON), None);
}

#[tokio::test]
async fn an_attempt_is_forgotten_or_outlived_at_an_instant() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let (host, instance) = node(&store, tenant, 1).await;
    let (replaced, sampled) = (node(&store, tenant, 2).await, node(&store, tenant, 3).await);
    for host in [&host, &replaced.0] {
        spoke(&store, tenant, host).await;
    }
    let tx = store.tenant(tenant).await.expect("a transaction");
    let patience = Patience::default();
    let began = numbered(RunEvent::Began, 1);
    let opened = runs::advance(&tx, attempt(&instance, 1), &began, &patience, NOON).await;
    opened.expect("opened");
    for instance in [&replaced.1, &sampled.1] {
        let Subject::New(opening) = attempt(instance, 2) else {
            panic!("an attempt is new");
        };
        let unnamed = Subject::New(Box::new(Opening {
            attempt: None,
            ..*opening
        }));
        let seen = Happening::of(RunEvent::Began);
        let opened = runs::advance(&tx, unnamed, &seen, &patience, NOON).await;
        opened.expect("opened");
    }
    let mut known = nodes::lock(&tx, replaced.0.id).await.expect("locked");
    known.delivered.last_word = Some(NOON + TimeDelta::minutes(7));
    nodes::save(&tx, &known).await.expect("saved");
    for (host, minutes) in [
        (&host, Some(5)),
        (&replaced.0, Some(67)),
        (&sampled.0, None),
    ] {
        let seen = world(&tx, host, Reading::Look(NOON)).await;
        let until = minutes.map(|minutes| NOON + TimeDelta::minutes(minutes));
        assert_eq!(seen.steady_until(NOON), until, "{}", host.id);
        if let Some(until) = until {
            assert_eq!(seen.steady_until(until), None, "{}", host.id);
        }
    }
}

/// What makes no sense of its own, and what makes none of others that it shares.
#[tokio::test]
async fn what_makes_no_sense_of_one_says_nothing_of_the_others() {
    let store = fresh_store().await;
    let fleet = Fleet::furnished(&store).await;
    let tx = fleet.tx(&store).await;
    let read_back = read(&tx, fleet.hosts()).await;
    let of = about(&read_back);
    let before = seen(&tx, &of, NOON).await;
    let bad_run = format!(
        "UPDATE update_runs SET origin = '{{\"target\": 5}}' WHERE instance_id = {}",
        fleet.nodes[1].1.id.bits().cast_signed()
    );
    let bad_policy = "UPDATE update_policies SET created_at = 'infinity' WHERE name = 'image'";
    for (sql, bad) in [(bad_run.as_str(), vec![1]), (bad_policy, vec![0, 1, 6])] {
        by_hand(&store, sql).await;
        let tx = fleet.tx(&store).await;
        let found = worlds(&tx, &of, &Horizon::default(), NOON).await;
        let found = found.expect("the others are read");
        assert_eq!(found.len(), before.len());
        for (n, (found, before)) in found.iter().zip(&before).enumerate() {
            match found {
                Ok(world) => assert_eq!(world, before, "{n}"),
                Err(error) => assert!(bad.contains(&n), "{n}: {error}"),
            }
            assert_eq!(found.is_err(), bad.contains(&n), "{n}");
        }
    }
    // Which table it is, the error says.
    let tx = fleet.tx(&store).await;
    let found = worlds(&tx, &of[..1], &Horizon::default(), NOON).await;
    let found = found.expect("read").pop();
    let is_named = matches!(
        &found,
        Some(Err(StoreError::Corrupt {
            column: "meant",
            ..
        }))
    );
    assert!(is_named, "{found:?}");
}
