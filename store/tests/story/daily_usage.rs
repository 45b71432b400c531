//! The use of daily limits, which all processes share.

use std::time::Duration;

use chrono::DateTime;
use evenkeel_domain::Time;
use evenkeel_domain::id::HostId;
use evenkeel_domain::tenant::TenantId;
use evenkeel_store::Store;
use evenkeel_store::daily_usage::{self, ProjectCharge};
use uuid::Uuid;

use crate::fixtures::{store_with_project, store_with_two_projects};

const HOUR: Duration = Duration::from_hours(1);
const DAY: Duration = Duration::from_hours(24);

/// A time before all others, and one after them.
const PAST: Time = DateTime::from_timestamp_nanos(0);
const FUTURE: Time = DateTime::from_timestamp_nanos(5_000_000_000_000_000_000);

async fn charge(store: &Store, tenant: TenantId, host: u32, hours: u32) -> Option<Duration> {
    let tx = store.tenant(tenant).await.expect("a transaction");
    let cost = HOUR * hours;
    let wait = daily_usage::charge_node(&tx, HostId::nth(host), "runs", cost).await;
    tx.commit().await.expect("committed");
    wait.expect("an answer")
}

/// Whether two durations are the same but for the time that the test takes.
fn is_about(duration: Duration, expected: Duration) -> bool {
    expected.saturating_sub(Duration::from_mins(10)) <= duration && duration <= expected
}

#[tokio::test]
async fn a_node_is_charged_up_to_a_day_and_then_gets_the_time_to_wait() {
    let (store, ours, theirs) = store_with_two_projects().await;
    assert_eq!(charge(&store, ours, 1, 10).await, None);
    assert_eq!(charge(&store, ours, 1, 14).await, None);
    let wait = charge(&store, ours, 1, 3).await.expect("refused");
    assert!(is_about(wait, HOUR * 3), "{wait:?}");
    let wait = charge(&store, ours, 1, 24).await.expect("refused");
    assert!(is_about(wait, DAY), "{wait:?}");
    // A refused charge costs nothing.
    let wait = charge(&store, ours, 1, 3).await.expect("refused");
    assert!(is_about(wait, HOUR * 3), "{wait:?}");
    assert_eq!(charge(&store, ours, 2, 24).await, None, "another node");
    assert_eq!(charge(&store, theirs, 1, 24).await, None, "another project");
}

#[tokio::test]
async fn a_charge_is_part_of_its_transaction() {
    let (store, ours) = store_with_project().await;
    let tx = store.tenant(ours).await.expect("a transaction");
    for _ in 0..2 {
        let wait = daily_usage::charge_node(&tx, HostId::nth(1), "runs", HOUR * 12).await;
        assert_eq!(wait.expect("an answer"), None);
    }
    let wait = daily_usage::charge_node(&tx, HostId::nth(1), "runs", HOUR).await;
    assert!(wait.expect("an answer").is_some());
    drop(tx);
    assert_eq!(charge(&store, ours, 1, 24).await, None);
}

#[tokio::test]
async fn a_full_bucket_is_like_no_bucket_and_is_deleted() {
    let (store, ours) = store_with_project().await;
    charge(&store, ours, 1, 24).await;
    let tx = store.fleet().await.expect("a transaction");
    let used = ProjectCharge { tenant: ours, amount: "runs", cost: HOUR };
    daily_usage::charge_projects(&tx, &[used]).await.expect("charged");
    assert_eq!(daily_usage::delete_expired(&tx, PAST, 10).await.expect("cleaned"), 0);
    tx.commit().await.expect("committed");
    let days_ago = "BEGIN; SET LOCAL evenkeel.tenant = '*'; \
                    UPDATE node_daily_usage SET full_at = full_at - interval '30 hours'; COMMIT";
    store.execute_unprepared(days_ago).await.expect("changed");
    assert_eq!(charge(&store, ours, 1, 20).await, None);
    let wait = charge(&store, ours, 1, 5).await.expect("refused");
    assert!(is_about(wait, HOUR), "a bucket holds the amount of one day: {wait:?}");
    let tx = store.fleet().await.expect("a transaction");
    assert_eq!(daily_usage::delete_expired(&tx, FUTURE, 10).await.expect("cleaned"), 2);
    let left = daily_usage::charge_projects(&tx, &[]).await.expect("read");
    assert_eq!(left, []);
}

#[tokio::test]
async fn the_use_of_a_project_adds_up_over_all_processes() {
    let (store, ours, theirs) = store_with_two_projects().await;
    let gone = TenantId::new(Uuid::from_u128(7));
    let used = |tenant, amount, hours: u32| ProjectCharge { tenant, amount, cost: HOUR * hours };
    let exchange = async |charges: &[ProjectCharge<'_>]| {
        let tx = store.fleet().await.expect("a transaction");
        let usages = daily_usage::charge_projects(&tx, charges).await.expect("charged");
        tx.commit().await.expect("committed");
        usages
    };
    assert_eq!(exchange(&[]).await, []);
    exchange(&[used(ours, "runs", 2), used(gone, "runs", 2)]).await;
    exchange(&[used(theirs, "runs", 30), used(ours, "versions", 1), used(ours, "runs", 3)]).await;
    exchange(&[used(theirs, "runs", 1)]).await;
    let usages = exchange(&[]).await;
    assert_eq!(usages.len(), 3, "not of a project that does not exist: {usages:?}");
    for (tenant, amount, hours) in [(ours, "runs", 5), (ours, "versions", 1), (theirs, "runs", 24)]
    {
        let usage = usages.iter().find(|one| one.tenant == tenant && one.amount == amount);
        let usage = usage.expect("it was charged");
        assert!(is_about(usage.used, HOUR * hours), "{usage:?}");
    }
}
