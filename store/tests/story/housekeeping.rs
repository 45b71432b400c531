//! Deletion by age: what is deleted and what must stay.

use chrono::TimeDelta;
use evenkeel_domain::Time;
use evenkeel_domain::host::Host;
use evenkeel_domain::id::OsId;
use evenkeel_domain::instance::Instance;
use evenkeel_domain::os::{OsKind, OsSpec};
use evenkeel_domain::run::{RunEvent, RunTimeouts, UpdateRun};
use evenkeel_domain::status::{Indication, Status};
use evenkeel_domain::tenant::TenantId;
use evenkeel_store::contacts::Contact;
use evenkeel_store::contents::{self, ContentDigest};
use evenkeel_store::os_details::{ImportOutcome, ImportedOs, OsDetails};
use evenkeel_store::settings::ProjectSettings;
use evenkeel_store::testing::fresh_store;
use evenkeel_store::{
    Store, contacts, hosts, instances, nodes, os_details, os_profiles, runs, settings,
};
use futures_util::future::join_all;

use crate::fixtures::{
    NOON, bookworm, contact, create_node, create_project, new_attempt, numbered_record,
    save_as_own_agent, store_with_project, store_with_two_projects,
};

const DAY: TimeDelta = TimeDelta::days(1);

async fn create_ended_run(
    store: &Store,
    tenant: TenantId,
    instance: &Instance,
    n: u128,
    at: Time,
) -> UpdateRun {
    let tx = store.tenant(tenant).await.expect("a transaction");
    let done = numbered_record(RunEvent::NothingToDo, 1);
    let timeouts = RunTimeouts::default();
    let run = runs::advance(&tx, new_attempt(instance, n), &done, &timeouts, at)
        .await
        .expect("opened and ended");
    tx.commit().await.expect("committed");
    run
}

async fn run_exists(store: &Store, tenant: TenantId, run: &UpdateRun) -> bool {
    let tx = store.tenant(tenant).await.expect("a transaction");
    runs::find(&tx, run.id).await.is_ok()
}

async fn expire_runs(store: &Store, now: Time) -> u64 {
    let tx = store.fleet().await.expect("a transaction");
    let removed = runs::delete_expired(&tx, 30, now, 1_000).await.expect("expired");
    tx.commit().await.expect("committed");
    removed
}

#[tokio::test]
async fn runs_are_retained_as_long_as_their_project_sets() {
    let store = fresh_store().await;
    let days = [None, Some(1), Some(0), Some(36_500)];
    let mut all = Vec::new();
    for (n, retention_days) in days.into_iter().enumerate() {
        let tenant = create_project(&store, &format!("p{n}")).await;
        let (_, instance) = create_node(&store, tenant, 1).await;
        let tx = store.tenant(tenant).await.expect("a transaction");
        let own = ProjectSettings { retention_days, ..ProjectSettings::default() };
        settings::set(&tx, &own).await.expect("set");
        tx.commit().await.expect("committed");
        let run = create_ended_run(&store, tenant, &instance, 1, NOON).await;
        // An open run never expires.
        let tx = store.tenant(tenant).await.expect("a transaction");
        let begun = numbered_record(RunEvent::Began, 1);
        let open =
            runs::advance(&tx, new_attempt(&instance, 2), &begun, &RunTimeouts::default(), NOON)
                .await
                .expect("opened");
        tx.commit().await.expect("committed");
        all.push((tenant, run, open));
    }
    let left = async || {
        let mut left = Vec::new();
        for (tenant, run, open) in &all {
            assert!(run_exists(&store, *tenant, open).await);
            left.push(run_exists(&store, *tenant, run).await);
        }
        left
    };
    assert_eq!(expire_runs(&store, NOON + DAY).await, 0);
    assert_eq!(left().await, [true, true, true, true]);
    assert_eq!(expire_runs(&store, NOON + DAY + TimeDelta::seconds(1)).await, 1);
    assert_eq!(left().await, [true, false, true, true]);
    assert_eq!(expire_runs(&store, NOON + DAY * 31).await, 1);
    assert_eq!(left().await, [false, false, true, true]);
    assert_eq!(expire_runs(&store, NOON + DAY * 3_000).await, 0);
}

#[tokio::test]
async fn runs_expire_in_batches_on_several_replicas_at_once() {
    let (store, tenant) = store_with_project().await;
    let (_, instance) = create_node(&store, tenant, 1).await;
    for n in 0..10 {
        create_ended_run(&store, tenant, &instance, n, NOON).await;
    }
    let now = NOON + DAY * 40;
    let passes = (0..4).map(|_| async {
        let tx = store.fleet().await?;
        let removed = runs::delete_expired(&tx, 30, now, 3).await?;
        tx.commit().await?;
        Ok::<_, evenkeel_store::StoreError>(removed)
    });
    let removed: Result<Vec<_>, _> = join_all(passes).await.into_iter().collect();
    let removed = removed.expect("passes do not block each other");
    assert!(removed.iter().all(|count| *count <= 3), "{removed:?}");
    let rest = expire_runs(&store, now).await;
    assert_eq!(removed.iter().sum::<u64>() + rest, 10);
}

async fn report_packages(
    store: &Store,
    tenant: TenantId,
    host: &Host,
    digest: Option<ContentDigest>,
    at: Time,
) {
    let tx = store.tenant(tenant).await.expect("a transaction");
    let mut node = nodes::lock(&tx, host.id).await.expect("locked");
    if let Some(digest) = &digest {
        contents::insert_if_missing(&tx, digest, "bash 5.2\n", at).await.expect("stored");
    }
    node.packages_digest = digest;
    nodes::save(&tx, &node).await.expect("saved");
    tx.commit().await.expect("committed");
}

/// Deletes contents as if they had last been used at `unused_since`.
async fn delete_unused_contents(store: &Store, unused_since: Time) -> u64 {
    let tx = store.fleet().await.expect("a transaction");
    let removed =
        contents::delete_unused(&tx, unused_since + contents::UNUSED_CONTENT_TTL, 100).await;
    tx.commit().await.expect("committed");
    removed.expect("cleaned")
}

#[tokio::test]
async fn a_content_stays_while_an_instance_or_a_run_refers_to_it() {
    let (store, tenant) = store_with_project().await;
    let (host, instance) = create_node(&store, tenant, 1).await;
    let (other, _) = create_node(&store, tenant, 2).await;
    let (old, new) = ([1; 32], [2; 32]);
    report_packages(&store, tenant, &host, Some(old), NOON).await;
    report_packages(&store, tenant, &other, Some(old), NOON).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let body = contents::get(&tx, &old).await.expect("an answer");
    assert_eq!(body.as_deref(), Some("bash 5.2\n"));
    assert!(contents::touch(&tx, &old, NOON).await.expect("an answer"));
    assert!(!contents::touch(&tx, &new, NOON).await.expect("an answer"));
    let many = contents::get_many(&tx, &[old, new]).await.expect("contents");
    assert_eq!(many.len(), 1);
    drop(tx);

    // A run that began with the old list, while its node already has another one.
    let at = NOON + DAY;
    create_ended_run(&store, tenant, &instance, 1, at).await;
    report_packages(&store, tenant, &host, Some(new), at).await;
    let later = NOON + DAY * 2;
    assert_eq!(delete_unused_contents(&store, later).await, 0, "the other node has it");
    report_packages(&store, tenant, &other, None, at).await;
    assert_eq!(delete_unused_contents(&store, later).await, 0, "a run refers to it");
    assert_eq!(expire_runs(&store, at + DAY * 31).await, 1);
    assert_eq!(delete_unused_contents(&store, NOON).await, 0, "it was used since");
    assert_eq!(delete_unused_contents(&store, later).await, 1);
    let tx = store.tenant(tenant).await.expect("a transaction");
    assert_eq!(contents::get(&tx, &old).await.expect("an answer"), None);
    assert!(contents::get(&tx, &new).await.expect("an answer").is_some());
}

/// An image with lists of its packages, open vulnerabilities and fixed vulnerabilities.
fn imported_os(lists: [Option<ContentDigest>; 3]) -> ImportedOs {
    let spec = OsSpec {
        kind: OsKind::Immutable,
        name: "edge".to_owned(),
        profile_name: "edge".to_owned(),
        image_id: "1".to_owned(),
        ..bookworm()
    };
    let [packages, existing_cves, fixed_cves] = lists;
    let inside = OsDetails {
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
    ImportedOs { spec, details: inside }
}

async fn import_os(store: &Store, tenant: TenantId, lists: [Option<ContentDigest>; 3]) -> OsId {
    let tx = store.tenant(tenant).await.expect("a transaction");
    for digest in lists.iter().flatten() {
        contents::insert_if_missing(&tx, digest, "[]", NOON).await.expect("stored");
    }
    let outcome = os_details::import(&tx, &imported_os(lists), NOON).await;
    tx.commit().await.expect("committed");
    match outcome.expect("stored") {
        ImportOutcome::Created { os, .. } | ImportOutcome::Updated(os) => os,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_content_stays_while_an_operating_system_refers_to_it() {
    let (store, tenant) = store_with_project().await;
    let (one, two, three, four) = ([1; 32], [2; 32], [3; 32], [4; 32]);
    let os = import_os(&store, tenant, [Some(one), Some(two), Some(three)]).await;
    let later = NOON + DAY * 30;
    assert_eq!(delete_unused_contents(&store, later).await, 0, "all of them are referenced");
    // One list is replaced, one is removed, and one takes the role of another.
    import_os(&store, tenant, [Some(four), None, Some(two)]).await;
    assert_eq!(delete_unused_contents(&store, later).await, 2);
    let tx = store.tenant(tenant).await.expect("a transaction");
    let left = contents::get_many(&tx, &[one, two, three, four]).await;
    let mut left: Vec<_> = left.expect("contents").into_keys().collect();
    left.sort_unstable();
    assert_eq!(left, [two, four]);
    os_profiles::delete(&tx, os).await.expect("deleted");
    tx.commit().await.expect("committed");
    assert_eq!(delete_unused_contents(&store, later).await, 2);
}

#[tokio::test]
async fn a_content_is_visible_only_in_its_project() {
    let (store, ours, theirs) = store_with_two_projects().await;
    let (host, _) = create_node(&store, ours, 1).await;
    report_packages(&store, ours, &host, Some([1; 32]), NOON).await;
    let tx = store.tenant(theirs).await.expect("a transaction");
    let foreign = contents::get(&tx, &[1; 32]).await.expect("an answer");
    assert_eq!(foreign, None);
    assert!(!contents::touch(&tx, &[1; 32], NOON).await.expect("an answer"));
}

#[tokio::test]
async fn silent_nodes_are_found_once() {
    let (store, tenant) = store_with_project().await;
    let mut heard = Vec::new();
    for n in 1..=6 {
        let (host, instance) = create_node(&store, tenant, n).await;
        save_as_own_agent(&store, tenant, &host).await;
        // The last node was in contact a moment ago.
        let at = NOON + TimeDelta::minutes(if n == 6 { 59 } else { 1 });
        heard.push(contact(tenant, instance.id, at));
    }
    let speaks = heard[5].instance;
    let tx = store.fleet().await.expect("a transaction");
    let now = NOON + TimeDelta::hours(1);
    contacts::record_contacts(&tx, heard.clone(), now).await.expect("recorded");
    tx.commit().await.expect("committed");

    let now = NOON + TimeDelta::hours(1);
    let since = now - TimeDelta::minutes(30);
    let passes = (0..3).map(|_| async {
        let tx = store.fleet().await?;
        let silent = nodes::mark_silent_nodes(&tx, since, now, 3).await?;
        tx.commit().await?;
        Ok::<_, evenkeel_store::StoreError>(silent)
    });
    let mut silent_nodes = Vec::new();
    for pass in join_all(passes).await {
        silent_nodes.extend(pass.expect("passes do not block each other"));
    }
    let tx = store.fleet().await.expect("a transaction");
    silent_nodes.extend(nodes::mark_silent_nodes(&tx, since, now, 100).await.expect("found"));
    tx.commit().await.expect("committed");
    let mut ids: Vec<_> = silent_nodes.iter().map(|silent| silent.instance).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!((ids.len(), silent_nodes.len()), (5, 5), "each once, without the last one");
    assert!(!ids.contains(&speaks));
    let tx = store.tenant(tenant).await.expect("a transaction");
    let one = &silent_nodes[0];
    assert_eq!(one.heard_at, NOON + TimeDelta::minutes(1));
    let host = hosts::find(&tx, one.host).await.expect("a host");
    assert_eq!((host.status.text.as_str(), host.status.at), (nodes::NO_CONNECTION_STATUS, now));
    let stored = instances::find(&tx, one.instance).await.expect("found");
    assert_eq!(stored.summary.status.text, nodes::NO_CONNECTION_STATUS);
}

/// Number of nodes that are silent `minutes` after noon, with a limit of half an hour.
async fn count_silent_at(store: &Store, minutes: i64) -> usize {
    let now = NOON + TimeDelta::minutes(minutes);
    let since = now - TimeDelta::minutes(30);
    let tx = store.fleet().await.expect("a transaction");
    let silent = nodes::mark_silent_nodes(&tx, since, now, 100).await;
    tx.commit().await.expect("committed");
    silent.expect("silent nodes").len()
}

#[tokio::test]
async fn a_node_with_a_due_time_is_not_silent_before_it() {
    let (store, tenant) = store_with_project().await;
    let (host, instance) = create_node(&store, tenant, 1).await;
    save_as_own_agent(&store, tenant, &host).await;
    let heard = async |minutes: i64, due: Option<i64>| {
        let at = |minutes| NOON + TimeDelta::minutes(minutes);
        let due_contact = Contact { due: due.map(at), ..contact(tenant, instance.id, at(minutes)) };
        let tx = store.fleet().await.expect("a transaction");
        let written =
            contacts::record_contacts(&tx, vec![due_contact], NOON + TimeDelta::days(1)).await;
        let written = written.expect("recorded");
        tx.commit().await.expect("committed");
        written
    };
    assert_eq!(heard(0, Some(50)).await, 1);
    assert_eq!(heard(10, Some(100)).await, 1);
    // Neither an older contact nor a weaker one at the same instant replaces the due time.
    assert_eq!(heard(5, Some(200)).await, 0);
    assert_eq!(heard(10, None).await, 0);
    assert_eq!(heard(10, Some(90)).await, 0);
    assert_eq!(heard(10, Some(120)).await, 1);
    assert_eq!(count_silent_at(&store, 100).await, 0);
    assert_eq!(count_silent_at(&store, 119).await, 0);
    assert_eq!(count_silent_at(&store, 120).await, 1);
    // A newer contact replaces the earlier due time.
    set_running(&store, tenant, &host).await;
    assert_eq!(heard(125, Some(300)).await, 1);
    assert_eq!(heard(130, None).await, 1);
    assert_eq!(count_silent_at(&store, 160).await, 0);
    assert_eq!(count_silent_at(&store, 161).await, 1);
}

/// Sets the status of the node and its host to running.
async fn set_running(store: &Store, tenant: TenantId, host: &Host) {
    let running = Status::new("Running", Indication::Idle, NOON);
    let tx = store.tenant(tenant).await.expect("a transaction");
    let mut node = nodes::lock(&tx, host.id).await.expect("locked");
    node.status = running.clone();
    nodes::save(&tx, &node).await.expect("saved");
    let updated = hosts::set_status(&tx, host.id, &running).await;
    updated.expect("status set");
    tx.commit().await.expect("committed");
}
