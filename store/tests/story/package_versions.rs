//! Package versions that a project has recorded, and for how long.

use std::slice::from_ref;

use chrono::TimeDelta;
use evenkeel_domain::Time;
use evenkeel_domain::id::InstanceId;
use evenkeel_domain::package::ObservedVersion;
use evenkeel_domain::tenant::TenantId;
use evenkeel_store::{Store, package_versions};
use futures_util::future::join_all;

use crate::fixtures::{NOON, store_with_project, store_with_two_projects};

const DAY: TimeDelta = TimeDelta::days(1);

/// The node that reports, unless a test names another one.
const NODE: InstanceId = InstanceId::nth(1);

fn package_version(name: &str, version: &str) -> ObservedVersion {
    ObservedVersion { name: name.into(), architecture: "amd64".into(), version: version.into() }
}

async fn record_versions(
    store: &Store,
    tenant: TenantId,
    all: &[ObservedVersion],
    at: Time,
) -> u64 {
    record_versions_of(store, (tenant, NODE), all, at).await
}

async fn record_versions_of(
    store: &Store,
    (tenant, node): (TenantId, InstanceId),
    all: &[ObservedVersion],
    at: Time,
) -> u64 {
    let tx = store.tenant(tenant).await.expect("a transaction");
    let recorded = package_versions::record_seen(&tx, node, all, at).await.expect("recorded");
    tx.commit().await.expect("committed");
    recorded
}

async fn first_seen_by(store: &Store, tenant: TenantId, name: &str, by: Time) -> Vec<String> {
    known_since(store, (tenant, NODE), name, by).await
}

/// The versions of a package that a node knows since a time.
async fn known_since(
    store: &Store,
    (tenant, node): (TenantId, InstanceId),
    name: &str,
    since: Time,
) -> Vec<String> {
    let tx = store.tenant(tenant).await.expect("a transaction");
    let listed = package_versions::list_known_since(&tx, node, vec![name.to_owned()], since).await;
    let listed = listed.expect("an answer");
    listed.into_iter().map(|one| one.version).collect()
}

async fn delete_expired(store: &Store, now: Time, limit: u32) -> u64 {
    let tx = store.fleet().await.expect("a transaction");
    let removed = package_versions::delete_expired(&tx, now, limit).await.expect("cleaned");
    tx.commit().await.expect("committed");
    removed
}

#[tokio::test]
async fn the_age_of_a_version_counts_from_its_first_report() {
    let (store, tenant) = store_with_project().await;
    let (old, new) = (package_version("curl", "1"), package_version("curl", "2"));
    assert_eq!(record_versions(&store, tenant, from_ref(&old), NOON).await, 1);
    let both = [old, new.clone(), new, package_version("jq", "1")];
    assert_eq!(record_versions(&store, tenant, &both, NOON + DAY * 3).await, 3);
    let of = async |name: &'static str, by| first_seen_by(&store, tenant, name, by).await;
    assert_eq!(of("curl", NOON - DAY).await, Vec::<String>::new());
    assert_eq!(of("curl", NOON).await, ["1"]);
    assert_eq!(of("curl", NOON + DAY * 2).await, ["1"]);
    assert_eq!(of("curl", NOON + DAY * 3).await, ["1", "2"]);
    assert_eq!(of("bash", NOON + DAY * 3).await, Vec::<String>::new());
    let tx = store.tenant(tenant).await.expect("a transaction");
    let none = package_versions::list_known_since(&tx, NODE, Vec::new(), NOON + DAY * 3).await;
    assert!(none.expect("an answer").is_empty());
}

#[tokio::test]
async fn a_version_counts_for_other_nodes_since_a_second_node_reported_it() {
    let (store, tenant) = store_with_project().await;
    let curl = package_version("curl", "9");
    let [first, second, third] = [1, 2, 3].map(|n| (tenant, InstanceId::nth(n)));
    assert_eq!(record_versions_of(&store, first, from_ref(&curl), NOON).await, 1);
    let known = async |node, at| known_since(&store, node, "curl", at).await.len();
    assert_eq!(known(first, NOON).await, 1);
    assert_eq!(known(second, NOON + DAY * 100).await, 0);
    // Soon after the first report, although a version is recorded once a day otherwise.
    let hour = NOON + TimeDelta::hours(1);
    assert_eq!(record_versions_of(&store, second, from_ref(&curl), hour).await, 1);
    assert_eq!(record_versions_of(&store, third, from_ref(&curl), hour).await, 0);
    for node in [second, third] {
        assert_eq!([known(node, NOON).await, known(node, hour).await], [0, 1]);
    }
    assert_eq!(known(first, NOON).await, 1);
    let until = async |(tenant, node): (TenantId, InstanceId)| {
        let tx = store.tenant(tenant).await.expect("a transaction");
        let names = ["curl".to_owned()];
        let until = package_versions::steady_until(&tx, node, &names, DAY, hour).await;
        until.expect("an answer").expect("a time")
    };
    assert_eq!([until(first).await, until(third).await], [NOON + DAY, hour + DAY]);
}

/// Before the reporters of versions were stored, one report was enough.
#[tokio::test]
async fn versions_without_a_reporter_count_since_their_first_report() {
    let (store, tenant) = store_with_project().await;
    record_versions(&store, tenant, &[package_version("curl", "1")], NOON).await;
    let older = "BEGIN; SET LOCAL evenkeel.tenant = '*'; \
                 UPDATE package_versions SET reported_by = NULL; COMMIT";
    store.execute_unprepared(older).await.expect("changed");
    let other = (tenant, InstanceId::nth(2));
    assert_eq!(known_since(&store, other, "curl", NOON).await, ["1"]);
    let soon = NOON + TimeDelta::hours(1);
    let again = [package_version("curl", "1")];
    assert_eq!(record_versions_of(&store, other, &again, soon).await, 0);
    assert_eq!(record_versions_of(&store, other, &again, NOON + DAY).await, 1);
    assert_eq!(known_since(&store, other, "curl", NOON).await, ["1"]);
}

/// Two nodes report versions of a package that do not exist, more than an answer can contain.
#[tokio::test]
async fn versions_that_do_not_exist_displace_no_versions_of_other_nodes() {
    let (store, tenant) = store_with_project().await;
    let [one, other, honest] = [1, 2, 3].map(|n| (tenant, InstanceId::nth(n)));
    let real = [package_version("curl", "8.1"), package_version("curl", "8.2")];
    for node in [honest, one] {
        record_versions_of(&store, node, &real, NOON).await;
    }
    let limit = package_versions::MAX_VERSIONS_PER_NODE;
    for day in 1..=3 {
        let made_up = |n| package_version("curl", &format!("{day}-{n:05}"));
        let made_up: Vec<_> = (0..limit + 20).map(made_up).collect();
        for node in [one, other] {
            record_versions_of(&store, node, &made_up, NOON + DAY * day).await;
        }
    }
    let known = known_since(&store, honest, "curl", NOON + DAY * 9).await;
    assert!(known.contains(&"8.1".to_owned()) && known.contains(&"8.2".to_owned()));
    assert!(known.iter().all(|version| version.starts_with("8.") || version.starts_with("3-")));
    // Those of one node, and a few that it no longer had when the other one repeated them.
    let most = usize::try_from(2 * limit).expect("a number");
    assert!(known.len() <= 2 + most, "{}", known.len());
}

#[tokio::test]
async fn the_ages_of_versions_are_constant_until_a_known_instant() {
    let (store, tenant) = store_with_project().await;
    let week = DAY * 7;
    let of = async |name: &str, now| {
        let tx = store.tenant(tenant).await.expect("a transaction");
        let until = package_versions::steady_until(&tx, NODE, &[name.to_owned()], week, now).await;
        until.expect("an answer")
    };
    assert_eq!(of("curl", NOON).await, None);
    record_versions(&store, tenant, &[package_version("curl", "1")], NOON).await;
    record_versions(&store, tenant, &[package_version("curl", "2")], NOON + DAY * 3).await;
    assert_eq!(of("curl", NOON + DAY * 4).await, Some(NOON + week));
    assert_eq!(of("curl", NOON + week).await, Some(NOON + DAY * 10));
    assert_eq!(of("bash", NOON + week).await, None);
    // Later they would be recorded again, and in the end they expire.
    let (record_due_at, expires_at) =
        (NOON + package_versions::VERSION_TTL / 2, NOON + package_versions::VERSION_TTL);
    assert_eq!(of("curl", NOON + DAY * 10).await, Some(record_due_at));
    assert_eq!(of("curl", record_due_at).await, Some(record_due_at + DAY * 3));
    assert_eq!(of("curl", record_due_at + DAY * 3).await, Some(expires_at));
}

#[tokio::test]
async fn a_repeated_report_of_a_version_is_recorded_once_a_day() {
    let (store, tenant) = store_with_project().await;
    let all = [package_version("curl", "1"), package_version("jq", "1")];
    assert_eq!(record_versions(&store, tenant, &all, NOON).await, 2);
    let soon = NOON + TimeDelta::hours(23);
    assert_eq!(record_versions(&store, tenant, &all, soon).await, 0);
    assert_eq!(record_versions(&store, tenant, &all, NOON + DAY).await, 2);
    assert_eq!(
        record_versions(&store, tenant, &all, NOON).await,
        0,
        "an earlier time changes nothing"
    );
    assert_eq!(first_seen_by(&store, tenant, "jq", NOON).await, ["1"]);
}

#[tokio::test]
async fn a_version_is_recorded_again_before_it_expires() {
    let (store, tenant) = store_with_project().await;
    let has_unrecorded = async |all: &[ObservedVersion], at| {
        let tx = store.tenant(tenant).await.expect("a transaction");
        package_versions::has_unrecorded(&tx, all, at).await.expect("an answer")
    };
    let all = [package_version("curl", "1"), package_version("jq", "1")];
    record_versions(&store, tenant, &all[..1], NOON).await;
    assert!(!has_unrecorded(&all[..1], NOON).await);
    assert!(has_unrecorded(&all[..], NOON).await);
    record_versions(&store, tenant, &all, NOON).await;
    assert!(!has_unrecorded(&all[..], NOON + DAY * 199).await);
    let later = NOON + DAY * 201;
    assert!(has_unrecorded(&all[..], later).await);
    assert_eq!(record_versions(&store, tenant, &all, later).await, 2);
    assert!(!has_unrecorded(&all[..], later).await);
    let nothing = [package_version("", "1")];
    assert!(!has_unrecorded(&nothing[..], NOON).await, "an invalid version is never recorded");
}

#[tokio::test]
async fn invalid_versions_are_skipped_and_the_rest_is_recorded() {
    let (store, tenant) = store_with_project().await;
    let mut all = vec![
        package_version("", "1"),
        package_version("curl", ""),
        package_version(&"x".repeat(129), "1"),
        package_version("curl", &"1".repeat(257)),
        ObservedVersion { architecture: String::new(), ..package_version("curl", "1") },
    ];
    assert_eq!(record_versions(&store, tenant, &all, NOON).await, 0);
    all.push(package_version("curl", "1"));
    assert_eq!(record_versions(&store, tenant, &all, NOON).await, 1);
    let many: Vec<_> = (0..=package_versions::MAX_VERSIONS_PER_REPORT)
        .map(|n| package_version("many", &n.to_string()))
        .collect();
    let recorded = u64::try_from(package_versions::MAX_VERSIONS_PER_REPORT).expect("a number");
    assert_eq!(record_versions(&store, tenant, &many, NOON).await, recorded);
}

#[tokio::test]
async fn concurrent_reports_of_the_same_versions_do_not_block_each_other() {
    let (store, tenant) = store_with_project().await;
    let mut all: Vec<_> = (0..200).map(|n| package_version(&format!("p{n}"), "1")).collect();
    let mut at_once = async |at: Time| -> u64 {
        let recorded = join_all((0..4).map(|n| {
            all.reverse();
            let all = all.clone();
            let (store, at) = (&store, at + TimeDelta::milliseconds(n));
            async move { record_versions(store, tenant, &all, at).await }
        }));
        recorded.await.iter().sum()
    };
    assert_eq!(at_once(NOON).await, 200);
    assert_eq!(at_once(NOON + DAY * 2).await, 200, "once, not once per node");
}

#[tokio::test]
async fn a_version_is_visible_only_in_its_project() {
    let (store, ours, theirs) = store_with_two_projects().await;
    record_versions(&store, ours, &[package_version("curl", "1")], NOON).await;
    let later = NOON + DAY * 30;
    record_versions(&store, theirs, &[package_version("curl", "1")], later).await;
    assert_eq!(first_seen_by(&store, ours, "curl", NOON).await, ["1"]);
    assert_eq!(
        first_seen_by(&store, theirs, "curl", NOON).await,
        Vec::<String>::new(),
        "the other project saw it later"
    );
}

#[tokio::test]
async fn versions_that_are_no_longer_reported_are_deleted_in_batches() {
    let (store, tenant) = store_with_project().await;
    let old: Vec<_> = (0..10).map(|n| package_version("old", &n.to_string())).collect();
    let reported = package_version("recent", "1");
    record_versions(&store, tenant, &old, NOON).await;
    record_versions(&store, tenant, from_ref(&reported), NOON).await;
    record_versions(&store, tenant, &[reported], NOON + DAY * 2).await;
    assert_eq!(delete_expired(&store, NOON + package_versions::VERSION_TTL, 100).await, 0);
    let now = NOON + package_versions::VERSION_TTL + DAY;
    let passes = (0..4).map(|_| delete_expired(&store, now, 2));
    let removed = join_all(passes).await;
    assert!(removed.iter().all(|count| *count <= 2), "{removed:?}");
    let rest = delete_expired(&store, now, 100).await;
    assert_eq!(removed.iter().sum::<u64>() + rest, 10);
    assert_eq!(first_seen_by(&store, tenant, "recent", now).await, ["1"]);
}
