//! What time removes, and what it must not.

use chrono::TimeDelta;
use evenkeel_domain::Time;
use evenkeel_domain::host::Host;
use evenkeel_domain::id::OsId;
use evenkeel_domain::instance::Instance;
use evenkeel_domain::os::{OsKind, OsSpec};
use evenkeel_domain::run::{Patience, RunEvent, UpdateRun};
use evenkeel_domain::status::{Indication, Status};
use evenkeel_domain::tenant::TenantId;
use evenkeel_store::contacts::Contact;
use evenkeel_store::contents::{self, Digest};
use evenkeel_store::os_inside::{Inside, Kept, Made};
use evenkeel_store::settings::ProjectSettings;
use evenkeel_store::testing::fresh_store;
use evenkeel_store::{
    Store, contacts, hosts, instances, nodes, os_inside, os_profiles, runs, settings,
};
use futures_util::future::join_all;

use crate::house::{NOON, attempt, bookworm, contact, node, numbered, project, spoke};

const DAY: TimeDelta = TimeDelta::days(1);

async fn ended_run(
    store: &Store,
    tenant: TenantId,
    instance: &Instance,
    n: u128,
    at: Time,
) -> UpdateRun {
    let tx = store.tenant(tenant).await.expect("a transaction");
    let done = numbered(RunEvent::NothingToDo, 1);
    let patience = Patience::default();
    let run = runs::advance(&tx, attempt(instance, n), &done, &patience, at)
        .await
        .expect("opened and ended");
    tx.commit().await.expect("committed");
    run
}

async fn kept(store: &Store, tenant: TenantId, run: &UpdateRun) -> bool {
    let tx = store.tenant(tenant).await.expect("a transaction");
    runs::find(&tx, run.id).await.is_ok()
}

async fn expire(store: &Store, now: Time) -> u64 {
    let tx = store.fleet().await.expect("a transaction");
    let removed = runs::expire(&tx, 30, now, 1_000).await.expect("expired");
    tx.commit().await.expect("committed");
    removed
}

#[tokio::test]
async fn runs_are_kept_as_long_as_their_project_says() {
    let store = fresh_store().await;
    let days = [None, Some(1), Some(0), Some(36_500)];
    let mut all = Vec::new();
    for (n, retention_days) in days.into_iter().enumerate() {
        let tenant = project(&store, &format!("p{n}")).await;
        let (_, instance) = node(&store, tenant, 1).await;
        let tx = store.tenant(tenant).await.expect("a transaction");
        let own = ProjectSettings {
            retention_days,
            ..ProjectSettings::default()
        };
        settings::set(&tx, &own).await.expect("set");
        tx.commit().await.expect("committed");
        let run = ended_run(&store, tenant, &instance, 1, NOON).await;
        // One that is not over is never too old.
        let tx = store.tenant(tenant).await.expect("a transaction");
        let begun = numbered(RunEvent::Began, 1);
        let open = runs::advance(
            &tx,
            attempt(&instance, 2),
            &begun,
            &Patience::default(),
            NOON,
        )
        .await
        .expect("opened");
        tx.commit().await.expect("committed");
        all.push((tenant, run, open));
    }
    let left = async || {
        let mut left = Vec::new();
        for (tenant, run, open) in &all {
            assert!(kept(&store, *tenant, open).await);
            left.push(kept(&store, *tenant, run).await);
        }
        left
    };
    assert_eq!(expire(&store, NOON + DAY).await, 0);
    assert_eq!(left().await, [true, true, true, true]);
    assert_eq!(expire(&store, NOON + DAY + TimeDelta::seconds(1)).await, 1);
    assert_eq!(left().await, [true, false, true, true]);
    assert_eq!(expire(&store, NOON + DAY * 31).await, 1);
    assert_eq!(left().await, [false, false, true, true]);
    assert_eq!(expire(&store, NOON + DAY * 3_000).await, 0);
}

#[tokio::test]
async fn runs_expire_in_batches_on_several_replicas_at_once() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let (_, instance) = node(&store, tenant, 1).await;
    for n in 0..10 {
        ended_run(&store, tenant, &instance, n, NOON).await;
    }
    let now = NOON + DAY * 40;
    let passes = (0..4).map(|_| async {
        let tx = store.fleet().await?;
        let removed = runs::expire(&tx, 30, now, 3).await?;
        tx.commit().await?;
        Ok::<_, evenkeel_store::StoreError>(removed)
    });
    let removed: Result<Vec<_>, _> = join_all(passes).await.into_iter().collect();
    let removed = removed.expect("no pass stands in another's way");
    assert!(removed.iter().all(|count| *count <= 3), "{removed:?}");
    let rest = expire(&store, now).await;
    assert_eq!(removed.iter().sum::<u64>() + rest, 10);
}

async fn lists(store: &Store, tenant: TenantId, host: &Host, digest: Option<Digest>, at: Time) {
    let tx = store.tenant(tenant).await.expect("a transaction");
    let mut node = nodes::lock(&tx, host.id).await.expect("locked");
    if let Some(digest) = &digest {
        contents::put(&tx, digest, "bash 5.2\n", at)
            .await
            .expect("kept");
    }
    node.packages_digest = digest;
    nodes::save(&tx, &node).await.expect("saved");
    tx.commit().await.expect("committed");
}

/// As if nobody had asked for anything since an instant.
async fn clean(store: &Store, unused_since: Time) -> u64 {
    let tx = store.fleet().await.expect("a transaction");
    let removed = contents::clean(&tx, unused_since + contents::UNUSED, 100).await;
    tx.commit().await.expect("committed");
    removed.expect("cleaned")
}

#[tokio::test]
async fn a_content_stays_while_an_instance_or_a_kept_run_refers_to_it() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let (host, instance) = node(&store, tenant, 1).await;
    let (other, _) = node(&store, tenant, 2).await;
    let (old, new) = ([1; 32], [2; 32]);
    lists(&store, tenant, &host, Some(old), NOON).await;
    lists(&store, tenant, &other, Some(old), NOON).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let body = contents::get(&tx, &old).await.expect("an answer");
    assert_eq!(body.as_deref(), Some("bash 5.2\n"));
    assert!(contents::touch(&tx, &old, NOON).await.expect("an answer"));
    assert!(!contents::touch(&tx, &new, NOON).await.expect("an answer"));
    let many = contents::get_many(&tx, &[old, new])
        .await
        .expect("contents");
    assert_eq!(many.len(), 1);
    drop(tx);

    // A run that began with the old list, and a node that has another one by now.
    let at = NOON + DAY;
    ended_run(&store, tenant, &instance, 1, at).await;
    lists(&store, tenant, &host, Some(new), at).await;
    let later = NOON + DAY * 2;
    assert_eq!(clean(&store, later).await, 0, "the other node has it");
    lists(&store, tenant, &other, None, at).await;
    assert_eq!(clean(&store, later).await, 0, "a run refers to it");
    assert_eq!(expire(&store, at + DAY * 31).await, 1);
    assert_eq!(clean(&store, NOON).await, 0, "somebody asked for it since");
    assert_eq!(clean(&store, later).await, 1);
    let tx = store.tenant(tenant).await.expect("a transaction");
    assert_eq!(contents::get(&tx, &old).await.expect("an answer"), None);
    assert!(contents::get(&tx, &new).await.expect("an answer").is_some());
}

/// An image with these lists inside: of its packages, its open vulnerabilities and its mended ones.
fn release(lists: [Option<Digest>; 3]) -> Made {
    let spec = OsSpec {
        kind: OsKind::Immutable,
        name: "edge".to_owned(),
        profile_name: "edge".to_owned(),
        image_id: "1".to_owned(),
        ..bookworm()
    };
    let [packages, existing_cves, fixed_cves] = lists;
    let inside = Inside {
        registry: "release".to_owned(),
        repository: "edge".to_owned(),
        revision: "0.3.1".to_owned(),
        artifact: [9; 32],
        platform_bundle: String::new(),
        signature: None,
        files: Vec::new(),
        packages,
        existing_cves,
        fixed_cves,
        refreshed_at: NOON,
    };
    Made { spec, inside }
}

async fn published(store: &Store, tenant: TenantId, lists: [Option<Digest>; 3]) -> OsId {
    let tx = store.tenant(tenant).await.expect("a transaction");
    for digest in lists.iter().flatten() {
        contents::put(&tx, digest, "[]", NOON).await.expect("kept");
    }
    let kept = os_inside::keep(&tx, &release(lists), NOON).await;
    tx.commit().await.expect("committed");
    match kept.expect("kept") {
        Kept::Made { os, .. } | Kept::Refreshed(os) => os,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_content_stays_while_an_operating_system_refers_to_it() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let (one, two, three, four) = ([1; 32], [2; 32], [3; 32], [4; 32]);
    let os = published(&store, tenant, [Some(one), Some(two), Some(three)]).await;
    let later = NOON + DAY * 30;
    assert_eq!(clean(&store, later).await, 0, "all of them are shown");
    // One list is a newer one, one is gone, and one is shown in the place of another.
    published(&store, tenant, [Some(four), None, Some(two)]).await;
    assert_eq!(clean(&store, later).await, 2);
    let tx = store.tenant(tenant).await.expect("a transaction");
    let left = contents::get_many(&tx, &[one, two, three, four]).await;
    let mut left: Vec<_> = left.expect("contents").into_keys().collect();
    left.sort_unstable();
    assert_eq!(left, [two, four]);
    os_profiles::delete(&tx, os).await.expect("deleted");
    tx.commit().await.expect("committed");
    assert_eq!(clean(&store, later).await, 2);
}

#[tokio::test]
async fn a_content_is_there_for_its_own_project_only() {
    let store = fresh_store().await;
    let (ours, theirs) = (
        project(&store, "ours").await,
        project(&store, "theirs").await,
    );
    let (host, _) = node(&store, ours, 1).await;
    lists(&store, ours, &host, Some([1; 32]), NOON).await;
    let tx = store.tenant(theirs).await.expect("a transaction");
    let foreign = contents::get(&tx, &[1; 32]).await.expect("an answer");
    assert_eq!(foreign, None);
    assert!(
        !contents::touch(&tx, &[1; 32], NOON)
            .await
            .expect("an answer")
    );
}

#[tokio::test]
async fn silent_nodes_are_found_once() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let mut heard = Vec::new();
    for n in 1..=6 {
        let (host, instance) = node(&store, tenant, n).await;
        spoke(&store, tenant, &host).await;
        // The last one was heard a moment ago.
        let at = NOON + TimeDelta::minutes(if n == 6 { 59 } else { 1 });
        heard.push(contact(tenant, instance.id, at));
    }
    let speaks = heard[5].instance;
    let tx = store.fleet().await.expect("a transaction");
    contacts::heard(&tx, heard.clone()).await.expect("noted");
    tx.commit().await.expect("committed");

    let now = NOON + TimeDelta::hours(1);
    let since = now - TimeDelta::minutes(30);
    let passes = (0..3).map(|_| async {
        let tx = store.fleet().await?;
        let silent = nodes::silence(&tx, since, now, 3).await?;
        tx.commit().await?;
        Ok::<_, evenkeel_store::StoreError>(silent)
    });
    let mut found = Vec::new();
    for pass in join_all(passes).await {
        found.extend(pass.expect("no pass stands in another's way"));
    }
    let tx = store.fleet().await.expect("a transaction");
    found.extend(nodes::silence(&tx, since, now, 100).await.expect("found"));
    tx.commit().await.expect("committed");
    let mut ids: Vec<_> = found.iter().map(|silent| silent.instance).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(
        (ids.len(), found.len()),
        (5, 5),
        "each once, and not the last"
    );
    assert!(!ids.contains(&speaks));
    let tx = store.tenant(tenant).await.expect("a transaction");
    let one = &found[0];
    assert_eq!(one.heard_at, NOON + TimeDelta::minutes(1));
    let host = hosts::find(&tx, one.host).await.expect("a host");
    assert_eq!(
        (host.status.text.as_str(), host.status.at),
        (nodes::NO_CONNECTION, now)
    );
    let shown = instances::find(&tx, one.instance).await.expect("there");
    assert_eq!(shown.summary.status.text, nodes::NO_CONNECTION);
}

/// Who was silent at so many minutes past noon, after half an hour without a word.
async fn silent_at(store: &Store, minutes: i64) -> usize {
    let now = NOON + TimeDelta::minutes(minutes);
    let since = now - TimeDelta::minutes(30);
    let tx = store.fleet().await.expect("a transaction");
    let silent = nodes::silence(&tx, since, now, 100).await;
    tx.commit().await.expect("committed");
    silent.expect("looked").len()
}

#[tokio::test]
async fn a_node_that_was_told_to_wait_is_not_silent_before_it_is_due() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let (host, instance) = node(&store, tenant, 1).await;
    spoke(&store, tenant, &host).await;
    let heard = async |minutes: i64, due: Option<i64>| {
        let at = |minutes| NOON + TimeDelta::minutes(minutes);
        let word = Contact {
            due: due.map(at),
            ..contact(tenant, instance.id, at(minutes))
        };
        let tx = store.fleet().await.expect("a transaction");
        let written = contacts::heard(&tx, vec![word]).await.expect("noted");
        tx.commit().await.expect("committed");
        written
    };
    assert_eq!(heard(0, Some(50)).await, 1);
    assert_eq!(heard(10, Some(100)).await, 1);
    // Neither an older word takes that back, nor one at the same instant that was not told so.
    assert_eq!(heard(5, Some(200)).await, 0);
    assert_eq!(heard(10, None).await, 0);
    assert_eq!(heard(10, Some(90)).await, 0);
    assert_eq!(heard(10, Some(120)).await, 1);
    assert_eq!(silent_at(&store, 100).await, 0);
    assert_eq!(silent_at(&store, 119).await, 0);
    assert_eq!(silent_at(&store, 120).await, 1);
    // Its next word counts for itself, and what it was told before is over.
    spoke_again(&store, tenant, &host).await;
    assert_eq!(heard(125, Some(300)).await, 1);
    assert_eq!(heard(130, None).await, 1);
    assert_eq!(silent_at(&store, 160).await, 0);
    assert_eq!(silent_at(&store, 161).await, 1);
}

/// The node and its host show that it is there.
async fn spoke_again(store: &Store, tenant: TenantId, host: &Host) {
    let running = Status::new("Running", Indication::Idle, NOON);
    let tx = store.tenant(tenant).await.expect("a transaction");
    let mut node = nodes::lock(&tx, host.id).await.expect("locked");
    node.status = running.clone();
    nodes::save(&tx, &node).await.expect("saved");
    let shown = hosts::set_status(&tx, host.id, &running).await;
    shown.expect("shown");
    tx.commit().await.expect("committed");
}
