//! What a project has heard of versions of packages, and for how long.

use std::slice::from_ref;

use chrono::TimeDelta;
use evenkeel_domain::Time;
use evenkeel_domain::package::FoundVersion;
use evenkeel_domain::tenant::TenantId;
use evenkeel_store::testing::fresh_store;
use evenkeel_store::{Store, versions};
use futures_util::future::join_all;

use crate::house::{NOON, project};

const DAY: TimeDelta = TimeDelta::days(1);

fn version(name: &str, version: &str) -> FoundVersion {
    FoundVersion {
        name: name.into(),
        architecture: "amd64".into(),
        version: version.into(),
    }
}

async fn told(store: &Store, tenant: TenantId, all: &[FoundVersion], at: Time) -> u64 {
    let tx = store.tenant(tenant).await.expect("a transaction");
    let noted = versions::see(&tx, all, at).await.expect("noted");
    tx.commit().await.expect("committed");
    noted
}

async fn settled(store: &Store, tenant: TenantId, name: &str, by: Time) -> Vec<String> {
    let tx = store.tenant(tenant).await.expect("a transaction");
    let found = versions::settled(&tx, vec![name.to_owned()], by).await;
    let found = found.expect("an answer");
    found.into_iter().map(|one| one.version).collect()
}

async fn clean(store: &Store, now: Time, limit: u32) -> u64 {
    let tx = store.fleet().await.expect("a transaction");
    let removed = versions::clean(&tx, now, limit).await.expect("cleaned");
    tx.commit().await.expect("committed");
    removed
}

#[tokio::test]
async fn a_version_is_as_old_as_the_first_word_of_it() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let (old, new) = (version("curl", "1"), version("curl", "2"));
    assert_eq!(told(&store, tenant, from_ref(&old), NOON).await, 1);
    let both = [old, new.clone(), new, version("jq", "1")];
    assert_eq!(told(&store, tenant, &both, NOON + DAY * 3).await, 3);
    let of = async |name: &'static str, by| settled(&store, tenant, name, by).await;
    assert_eq!(of("curl", NOON - DAY).await, Vec::<String>::new());
    assert_eq!(of("curl", NOON).await, ["1"]);
    assert_eq!(of("curl", NOON + DAY * 2).await, ["1"]);
    assert_eq!(of("curl", NOON + DAY * 3).await, ["1", "2"]);
    assert_eq!(of("bash", NOON + DAY * 3).await, Vec::<String>::new());
    let tx = store.tenant(tenant).await.expect("a transaction");
    let none = versions::settled(&tx, Vec::new(), NOON + DAY * 3).await;
    assert!(none.expect("an answer").is_empty());
}

#[tokio::test]
async fn versions_are_of_an_age_until_time_alone_changes_that() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let week = DAY * 7;
    let of = async |name: &str, now| {
        let tx = store.tenant(tenant).await.expect("a transaction");
        let until = versions::steady_until(&tx, &[name.to_owned()], week, now).await;
        until.expect("an answer")
    };
    assert_eq!(of("curl", NOON).await, None);
    told(&store, tenant, &[version("curl", "1")], NOON).await;
    told(&store, tenant, &[version("curl", "2")], NOON + DAY * 3).await;
    assert_eq!(of("curl", NOON + DAY * 4).await, Some(NOON + week));
    assert_eq!(of("curl", NOON + week).await, Some(NOON + DAY * 10));
    assert_eq!(of("bash", NOON + week).await, None);
    // Then they would be noted anew, and in the end forgotten.
    let (unheard, forgotten) = (NOON + versions::REMEMBERED / 2, NOON + versions::REMEMBERED);
    assert_eq!(of("curl", NOON + DAY * 10).await, Some(unheard));
    assert_eq!(of("curl", unheard).await, Some(unheard + DAY * 3));
    assert_eq!(of("curl", unheard + DAY * 3).await, Some(forgotten));
}

#[tokio::test]
async fn a_version_that_is_told_again_is_noted_once_a_day() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let all = [version("curl", "1"), version("jq", "1")];
    assert_eq!(told(&store, tenant, &all, NOON).await, 2);
    let soon = NOON + TimeDelta::hours(23);
    assert_eq!(told(&store, tenant, &all, soon).await, 0);
    assert_eq!(told(&store, tenant, &all, NOON + DAY).await, 2);
    assert_eq!(
        told(&store, tenant, &all, NOON).await,
        0,
        "a clock that went back takes nothing back"
    );
    assert_eq!(settled(&store, tenant, "jq", NOON).await, ["1"]);
}

#[tokio::test]
async fn a_version_is_unheard_until_it_is_noted_and_again_before_it_is_forgotten() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let is_unheard = async |all: &[FoundVersion], at| {
        let tx = store.tenant(tenant).await.expect("a transaction");
        versions::is_unheard(&tx, all, at).await.expect("an answer")
    };
    let all = [version("curl", "1"), version("jq", "1")];
    told(&store, tenant, &all[..1], NOON).await;
    assert!(!is_unheard(&all[..1], NOON).await);
    assert!(is_unheard(&all[..], NOON).await);
    told(&store, tenant, &all, NOON).await;
    assert!(!is_unheard(&all[..], NOON + DAY * 199).await);
    let later = NOON + DAY * 201;
    assert!(is_unheard(&all[..], later).await);
    assert_eq!(told(&store, tenant, &all, later).await, 2);
    assert!(!is_unheard(&all[..], later).await);
    let nothing = [version("", "1")];
    assert!(
        !is_unheard(&nothing[..], NOON).await,
        "it would never be noted"
    );
}

#[tokio::test]
async fn what_is_no_version_of_a_package_is_left_out_and_the_rest_is_kept() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let mut all = vec![
        version("", "1"),
        version("curl", ""),
        version(&"x".repeat(129), "1"),
        version("curl", &"1".repeat(257)),
        FoundVersion {
            architecture: String::new(),
            ..version("curl", "1")
        },
    ];
    assert_eq!(told(&store, tenant, &all, NOON).await, 0);
    all.push(version("curl", "1"));
    assert_eq!(told(&store, tenant, &all, NOON).await, 1);
    let many: Vec<_> = (0..=versions::MAX_TOLD)
        .map(|n| version("many", &n.to_string()))
        .collect();
    let kept = u64::try_from(versions::MAX_TOLD).expect("a number");
    assert_eq!(told(&store, tenant, &many, NOON).await, kept);
}

#[tokio::test]
async fn nodes_that_tell_the_same_at_the_same_time_do_not_stop_each_other() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let mut all: Vec<_> = (0..200).map(|n| version(&format!("p{n}"), "1")).collect();
    let mut at_once = async |at: Time| -> u64 {
        let noted = join_all((0..4).map(|n| {
            all.reverse();
            let all = all.clone();
            let (store, at) = (&store, at + TimeDelta::milliseconds(n));
            async move { told(store, tenant, &all, at).await }
        }));
        noted.await.iter().sum()
    };
    assert_eq!(at_once(NOON).await, 200);
    assert_eq!(at_once(NOON + DAY * 2).await, 200, "once, not once a node");
}

#[tokio::test]
async fn a_version_is_there_for_its_own_project_only() {
    let store = fresh_store().await;
    let (ours, theirs) = (
        project(&store, "ours").await,
        project(&store, "theirs").await,
    );
    told(&store, ours, &[version("curl", "1")], NOON).await;
    let later = NOON + DAY * 30;
    told(&store, theirs, &[version("curl", "1")], later).await;
    assert_eq!(settled(&store, ours, "curl", NOON).await, ["1"]);
    assert_eq!(
        settled(&store, theirs, "curl", NOON).await,
        Vec::<String>::new(),
        "the other project has not heard of it so early"
    );
}

#[tokio::test]
async fn a_version_that_no_node_tells_of_any_more_is_forgotten_in_batches() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let old: Vec<_> = (0..10).map(|n| version("old", &n.to_string())).collect();
    let kept = version("kept", "1");
    told(&store, tenant, &old, NOON).await;
    told(&store, tenant, from_ref(&kept), NOON).await;
    told(&store, tenant, &[kept], NOON + DAY * 2).await;
    assert_eq!(clean(&store, NOON + versions::REMEMBERED, 100).await, 0);
    let now = NOON + versions::REMEMBERED + DAY;
    let passes = (0..4).map(|_| clean(&store, now, 2));
    let removed = join_all(passes).await;
    assert!(removed.iter().all(|count| *count <= 2), "{removed:?}");
    let rest = clean(&store, now, 100).await;
    assert_eq!(removed.iter().sum::<u64>() + rest, 10);
    assert_eq!(settled(&store, tenant, "kept", now).await, ["1"]);
}
