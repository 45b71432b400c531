//! Several replicas beside one registry: one fetch, and one set of rows, whatever becomes of them.

use chrono::TimeDelta;
use evenkeel_domain::os::catalogue::{CycleOutcome, CycleStep};
use evenkeel_registry::testing::{Fault, Way};
use evenkeel_store::os_catalogue::{self, Claim, Progress};
use evenkeel_store::testing::rows_of;
use uuid::Uuid;

use crate::house::{House, NAME, PREFIX, project, told, wants};

const ROUNDS: usize = 20;

const PROFILES: [&str; 3] = ["edge", "edge-rt", "ubuntu"];

/// How often the registry was asked for the manifests of a tag.
fn fetched(house: &House, tag: &str) -> Vec<usize> {
    let count = |profile: &&str| {
        let asked = format!("GET /v2/{PREFIX}{profile}/manifests/{tag}");
        house.small.count(&asked)
    };
    PROFILES.iter().map(count).collect()
}

#[tokio::test]
async fn two_that_sync_at_once_make_one_fetch_and_one_set_of_rows() {
    let house = House::new("~0.3", &PROFILES).await;
    let other = house.replica().await;
    let second = project(&house.store, "second").await;
    wants(&house.store, second, "~0.3", &PROFILES).await;
    for round in 0..ROUNDS {
        let tag = format!("0.3.{round}");
        for profile in PROFILES {
            house.publish(profile, &tag, &format!("3.0.{round}"));
        }
        house.small.forget_requests();
        let wanted = house.request().await;
        while house.state().await.done < wanted {
            let (one, two) = tokio::join!(house.manager.pass(), other.pass());
            one.expect("a pass");
            two.expect("a pass");
        }
        assert_eq!(fetched(&house, &tag), [1, 1, 1], "round {round}");
        let lists = house.small.requests().into_iter();
        let lists = lists.filter(|line| line.contains("/tags/list"));
        assert_eq!(lists.count(), PROFILES.len(), "round {round}");
        let report = house.report().await.expect("a report");
        assert_eq!(report.outcome, CycleOutcome::Good, "{}", told(&report));
        for tenant in [house.tenant, second] {
            let rows = rows_of(&house.store, tenant).await;
            let of = |table: &str| {
                let front = format!("{table} ");
                rows.iter().filter(|row| row.starts_with(&front)).count()
            };
            let expected = PROFILES.len() * (round + 1);
            assert_eq!(
                (of("os_profiles"), of("os_inside")),
                (expected, expected),
                "round {round}"
            );
            assert_eq!(of("os_sync_reports"), 1, "round {round}");
        }
    }
}

/// A replica that claims the cycle, shows that it has begun, and is not heard of again.
async fn silent_claim(house: &House, lease: TimeDelta) -> Claim {
    let tx = house.store.fleet().await.expect("a transaction");
    let claim = os_catalogue::claim(&tx, NAME, Uuid::now_v7(), lease).await;
    let claim = claim.expect("a claim").expect("a cycle is wanted");
    let progress = Progress {
        step: CycleStep::Fetching,
        finished: 1,
        total: 3,
    };
    let beats = os_catalogue::beat(&tx, &claim, &progress, lease).await;
    assert!(beats.expect("a beat"));
    tx.commit().await.expect("committed");
    claim
}

#[tokio::test]
async fn what_one_began_that_was_killed_another_carries_on() {
    let house = House::new("~0.3", &PROFILES).await;
    for profile in PROFILES {
        house.publish(profile, "0.3.1", "3.0.1");
    }
    let wanted = house.request().await;
    let claim = silent_claim(&house, TimeDelta::zero()).await;
    assert_eq!(house.state().await.claimed, Some(wanted));
    while house.state().await.done < wanted {
        house.manager.pass().await.expect("a pass");
    }
    let report = house.report().await.expect("a report");
    assert_eq!(report.outcome, CycleOutcome::Good, "{}", told(&report));
    assert_eq!(house.names().await.len(), PROFILES.len());
    // Should it live after all, nothing of it counts any more.
    let tx = house.store.fleet().await.expect("a transaction");
    let tags = ["0.3.1".to_owned()];
    let repository = format!("{PREFIX}edge");
    let seen = os_catalogue::see(&tx, &claim, &repository, &tags).await;
    assert!(!seen.expect("an answer"));
    let now = chrono::DateTime::UNIX_EPOCH;
    let gone = os_catalogue::mark_gone(&tx, &claim, &[repository], now).await;
    assert_eq!(gone.expect("an answer"), 0);
}

#[tokio::test]
async fn who_waits_for_the_first_cycle_wishes_for_no_other() {
    let house = House::new("~0.3", &PROFILES).await;
    let wanted = house.request().await;
    silent_claim(&house, TimeDelta::minutes(1)).await;
    house.manager.pass().await.expect("a pass");
    assert_eq!(house.state().await.wanted, wanted);
    assert!(house.report().await.is_none());
}

#[tokio::test]
async fn one_that_is_stopped_in_the_middle_leaves_nothing_half_done() {
    let house = House::new("~0.3", &PROFILES).await;
    for profile in PROFILES {
        house.publish(profile, "0.3.1", "3.0.1");
    }
    let blobs = format!("{PREFIX}ubuntu/blobs/");
    house.small.fail(Fault::always(&blobs, Way::Silent));
    let wanted = house.request().await;
    let is_asked = || {
        house
            .small
            .requests()
            .iter()
            .any(|line| line.contains(&blobs))
    };
    let killed = async {
        while !is_asked() {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        passed = house.manager.pass() => panic!("it went on: {passed:?}"),
        () = killed => {}
    }
    assert!(house.systems().await.is_empty());
    assert!(house.report().await.is_none());
    let state = house.state().await;
    assert_eq!((state.claimed, state.done), (Some(wanted), 0));
    // As long as it might live, nobody else asks the registry.
    house.small.forget_requests();
    house.replica().await.pass().await.expect("a pass");
    assert!(house.small.requests().is_empty());
}
