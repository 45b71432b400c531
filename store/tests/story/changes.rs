//! The changes of a project as people and programs read them.

use std::collections::BTreeSet;

use chrono::TimeDelta;
use evenkeel_domain::custom_config::CustomConfigSpec;
use evenkeel_domain::host::Host;
use evenkeel_domain::join_token::JoinTokenSpec;
use evenkeel_domain::tenant::{ProjectName, TenantId};
use evenkeel_domain::text::Name;
use evenkeel_store::changes::{
    self, ChangeCursor, ChangeFilter, ChangeId, ChangeObject, EventKind, RecordedChange,
};
use evenkeel_store::log::{self, LogReader};
use evenkeel_store::testing::{audited_tables, without_protection};
use evenkeel_store::{Actor, Store, StoreError, Tx, custom_configs, hosts, join_tokens, projects};

use crate::fixtures::{
    NOON, create_project, execute_sql, registration, remove_deleted_projects, store_with_project,
    store_with_two_projects,
};
use crate::log::{FAR_FUTURE, prune};

/// Every id of a transaction is below.
const NO_END: u64 = i64::MAX.cast_unsigned();

fn actor(name: &str) -> Actor {
    Actor { name: name.into(), request_id: "r-1".into(), client_address: "192.0.2.7".into() }
}

/// Registers the `n`th host as a user.
async fn register_as(store: &Store, tenant: TenantId, user: &str, n: u128) -> Host {
    let tx = store.tenant_as(tenant, &actor(user)).await.expect("a transaction");
    let host = hosts::register(&tx, &registration(n), NOON).await.expect("a host");
    tx.commit().await.expect("committed");
    host
}

async fn list(tx: &Tx, filter: &ChangeFilter) -> Vec<RecordedChange> {
    changes::list(tx, filter, None, 100).await.expect("changes")
}

fn ids(found: &[RecordedChange]) -> Vec<ChangeId> {
    found.iter().map(|change| change.id).collect()
}

fn of_host(host: &Host) -> ChangeObject {
    ChangeObject { kinds: &["host"], level: Some("host"), id: host.id.bits() }
}

#[tokio::test]
async fn a_change_names_who_made_it_and_from_where() {
    let (store, tenant) = store_with_project().await;
    let host = register_as(&store, tenant, "alice", 1).await;
    let tx = store.snapshot(tenant).await.expect("a snapshot");
    let found = list(&tx, &ChangeFilter::default()).await;
    let change = found.iter().find(|change| change.kind == "host").expect("a change");
    assert_eq!((change.object, change.operation.as_str()), (host.id.bits(), "insert"));
    assert_eq!(change.actor.as_deref(), Some("alice"));
    assert_eq!(change.request_id.as_deref(), Some("r-1"));
    assert_eq!(change.client_address.as_deref(), Some("192.0.2.7"));
    assert_eq!(change.after.as_ref().expect("the row")["name"], "edge");
    assert_eq!((&change.before, change.is_cut), (&None, false));
    assert_eq!(changes::find(&tx, change.id).await.expect("found"), *change);
    let other = ChangeId { seq: change.id.seq + 1_000, ..change.id };
    let missing = changes::find(&tx, other).await;
    assert!(matches!(missing, Err(StoreError::NotFound { .. })), "{missing:?}");
}

#[tokio::test]
async fn a_long_row_is_read_only_with_its_own_change() {
    let (store, tenant) = store_with_project().await;
    let tx = store.tenant_as(tenant, &actor("alice")).await.expect("a transaction");
    let details = serde_json::json!({"text": "x".repeat(20_000)});
    changes::record_event(&tx, EventKind::Refusal, details.clone()).await.expect("recorded");
    tx.commit().await.expect("committed");
    let tx = store.snapshot(tenant).await.expect("a snapshot");
    let listed = list(&tx, &ChangeFilter::default()).await.pop().expect("a change");
    assert_eq!((listed.after, listed.is_cut), (None, true));
    let found = changes::find(&tx, listed.id).await.expect("found");
    assert_eq!((found.after, found.is_cut), (Some(details), false));
}

#[tokio::test]
async fn an_event_is_a_change_of_the_user_of_the_transaction() {
    let (store, tenant) = store_with_project().await;
    let tx = store.tenant_as(tenant, &actor("alice")).await.expect("a transaction");
    let details = serde_json::json!({"request": "PUT pauses"});
    changes::record_event(&tx, EventKind::Refusal, details.clone()).await.expect("recorded");
    tx.commit().await.expect("committed");
    let tx = store.snapshot(tenant).await.expect("a snapshot");
    let found = list(&tx, &ChangeFilter::default()).await;
    let [event] = &found[..] else {
        panic!("one change: {found:?}");
    };
    assert_eq!((event.kind.as_str(), event.object), ("refusal", 0));
    assert_eq!((event.actor.as_deref(), &event.after), (Some("alice"), &Some(details)));
    assert_eq!(event.client_address.as_deref(), Some("192.0.2.7"));
}

#[tokio::test]
async fn a_deleted_project_and_events_of_users_are_listed_outside_of_projects() {
    let (store, theirs) = store_with_project().await;
    let root = actor("root");
    let tx = store.fleet_as(&root).await.expect("a transaction");
    let name = ProjectName::parse("name", "shop").expect("a name");
    let shop = projects::create(&tx, &name, "", NOON).await.expect("a project");
    tx.commit().await.expect("committed");
    register_as(&store, shop.id, "alice", 1).await;
    let tx = store.fleet_as(&root).await.expect("a transaction");
    projects::describe(&tx, shop.id, "a shop", NOON).await.expect("described");
    projects::delete(&tx, shop.id, true, NOON).await.expect("deleted");
    let details = serde_json::json!({"name": "root"});
    let recorded = changes::record_fleet_event(&tx, EventKind::Login, details.clone()).await;
    recorded.expect("recorded");
    tx.commit().await.expect("committed");
    remove_deleted_projects(&store, 100).await;

    let tx = store.snapshot(TenantId::NO_PROJECT).await.expect("a snapshot");
    let found = list(&tx, &ChangeFilter::default()).await;
    let [login, deletion, creation] = &found[..] else {
        panic!("three changes of users: {found:?}");
    };
    assert_eq!((login.kind.as_str(), &login.after), ("login", &Some(details)));
    assert_eq!(login.client_address.as_deref(), Some("192.0.2.7"));
    for (change, operation) in [(deletion, "delete"), (creation, "insert")] {
        let found = (change.kind.as_str(), change.operation.as_str(), change.actor.as_deref());
        assert_eq!(found, ("project", operation, Some("root")));
    }
    let (before, after) = (deletion.before.as_ref(), creation.after.as_ref());
    let (before, after) = (before.expect("a row"), after.expect("a row"));
    assert_eq!([&before["name"], &before["description"]], ["shop", "a shop"]);
    assert_eq!(after["tenant_id"], shop.id.to_string());
    assert_eq!((&deletion.after, &creation.before), (&None, &None));
    let all = ChangeFilter { with_server: true, ..ChangeFilter::default() };
    let of_server = list(&tx, &all).await.pop().expect("the first project");
    assert_eq!(
        (of_server.kind.as_str(), of_server.actor, of_server.after),
        ("project", None, None)
    );
    let tx = store.snapshot(theirs).await.expect("a snapshot");
    assert_eq!(list(&tx, &ChangeFilter::default()).await, [], "other projects do not show it");
}

#[tokio::test]
async fn changes_are_listed_newest_first_page_by_page() {
    let (store, tenant) = store_with_project().await;
    for n in 1..=5 {
        register_as(&store, tenant, "alice", n).await;
    }
    let tx = store.snapshot(tenant).await.expect("a snapshot");
    let filter = ChangeFilter { kind: Some("host".into()), ..ChangeFilter::default() };
    let all = list(&tx, &filter).await;
    assert_eq!(all.len(), 5);
    assert!(all.windows(2).all(|pair| pair[0].id > pair[1].id), "{:?}", ids(&all));
    let cursor = changes::current_cursor(&tx).await.expect("a cursor");
    let (mut pages, mut before): (_, Option<ChangeCursor>) = (Vec::new(), None);
    loop {
        let page = changes::list(&tx, &filter, before.as_ref(), 2).await.expect("a page");
        let Some(last) = page.last() else { break };
        before = Some(cursor.after(last.id));
        pages.extend(page);
    }
    assert_eq!(ids(&pages), ids(&all));
}

#[tokio::test]
async fn a_filter_selects_actor_kind_object_and_time() {
    let (store, tenant) = store_with_project().await;
    let first = register_as(&store, tenant, "alice", 1).await;
    let second = register_as(&store, tenant, "bob", 2).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    hosts::register(&tx, &registration(3), NOON).await.expect("a host");
    tx.commit().await.expect("committed");
    let tx = store.snapshot(tenant).await.expect("a snapshot");
    let hosts_of = async |filter: ChangeFilter| -> Vec<u32> {
        let found = list(&tx, &filter).await;
        found.iter().filter(|change| change.kind == "host").map(|change| change.object).collect()
    };
    let (one, two) = (first.id.bits(), second.id.bits());
    let none = ChangeFilter::default;
    assert_eq!(hosts_of(none()).await, [two, one], "the server's own change is left out");
    assert_eq!(hosts_of(ChangeFilter { with_server: true, ..none() }).await.len(), 3);
    let by = |name: &str| ChangeFilter { actor: Some(name.into()), ..none() };
    assert_eq!(hosts_of(by("bob")).await, [two]);
    assert_eq!(hosts_of(ChangeFilter { with_server: true, ..by("bob") }).await, [two]);
    assert_eq!(hosts_of(by("b")).await, Vec::<u32>::new());
    assert_eq!(
        hosts_of(ChangeFilter { kind: Some("site".into()), ..none() }).await,
        Vec::<u32>::new()
    );
    let of = |objects: Vec<ChangeObject>| ChangeFilter { objects, ..none() };
    assert_eq!(hosts_of(of(vec![of_host(&first)])).await, [one]);
    assert_eq!(hosts_of(of(vec![of_host(&first), of_host(&second)])).await, [two, one]);
    let site = ChangeObject { kinds: &["site"], level: Some("site"), id: one };
    assert_eq!(hosts_of(of(vec![site])).await, Vec::<u32>::new());
    let found = list(&tx, &of(vec![of_host(&first)])).await;
    let at = found.first().expect("a change").at;
    let after = at + TimeDelta::microseconds(1);
    assert_eq!(hosts_of(ChangeFilter { since: Some(after), ..none() }).await, [two]);
    assert_eq!(hosts_of(ChangeFilter { until: Some(at), ..none() }).await, Vec::<u32>::new());
    let both = ChangeFilter { since: Some(at), until: Some(after), ..none() };
    assert_eq!(hosts_of(both).await, [one]);
}

#[tokio::test]
async fn a_cursor_of_a_list_continues_with_what_the_list_lacks() {
    let (store, tenant) = store_with_project().await;
    register_as(&store, tenant, "alice", 1).await;
    // This transaction has an older id than the next one and ends later.
    let late = store.tenant_as(tenant, &actor("late")).await.expect("a transaction");
    // On a busy machine, the database would end it otherwise.
    late.set("idle_in_transaction_session_timeout", "0").await.expect("set");
    hosts::register(&late, &registration(2), NOON).await.expect("a host");
    register_as(&store, tenant, "alice", 3).await;
    let tx = store.snapshot(tenant).await.expect("a snapshot");
    let filter = ChangeFilter { with_server: true, ..ChangeFilter::default() };
    let listed: BTreeSet<ChangeId> = ids(&list(&tx, &filter).await).into_iter().collect();
    let cursor = changes::current_cursor(&tx).await.expect("a cursor");
    drop(tx);
    late.commit().await.expect("committed");
    let tx = store.snapshot(tenant).await.expect("a snapshot");
    assert!(!changes::has_expired(&tx, &cursor).await.expect("checked"));
    let more = changes::read_after(&tx, &filter, &cursor, NO_END, 100).await.expect("changes");
    let more = ids(&more);
    assert!(more.windows(2).all(|pair| pair[0] < pair[1]), "oldest first: {more:?}");
    let read: BTreeSet<ChangeId> = listed.into_iter().chain(more).collect();
    let all: BTreeSet<ChangeId> = ids(&list(&tx, &filter).await).into_iter().collect();
    assert_eq!(read, all);
}

/// A stream that read beyond a writer that has not ended would miss its changes.
#[tokio::test]
async fn a_change_that_is_committed_late_is_behind_the_end_that_was_read() {
    let (store, tenant) = store_with_project().await;
    let (mut reader, _) = LogReader::open(&store).await.expect("a reader");
    let late = store.tenant_as(tenant, &actor("late")).await.expect("a transaction");
    // On a busy machine, the database would end it otherwise.
    late.set("idle_in_transaction_session_timeout", "0").await.expect("set");
    let host = hosts::register(&late, &registration(1), NOON).await.expect("a host");
    let early = register_as(&store, tenant, "alice", 2).await;
    log::send_heartbeat(&store).await.expect("sent");
    let end = reader.next(100).await.expect("a pass").durable_end;
    let tx = store.snapshot(tenant).await.expect("a snapshot");
    let filter = ChangeFilter { kind: Some("host".into()), ..ChangeFilter::default() };
    let begin: ChangeCursor = changes::current_cursor(&tx).await.expect("a cursor");
    let read = async |tx: &Tx, end: u64| -> Vec<u32> {
        let read = changes::read_after(tx, &filter, &begin, end, 100).await.expect("changes");
        read.iter().map(|change| change.object).collect()
    };
    assert_eq!(read(&tx, end).await, Vec::<u32>::new(), "the late writer is older than both");
    drop(tx);
    late.commit().await.expect("committed");
    let end = loop {
        log::send_heartbeat(&store).await.expect("sent");
        let tail = reader.next(100).await.expect("a pass");
        if let Some(change) = tail.changes.iter().find(|change| change.id == early.id.bits()) {
            assert!(change.is_by_user);
            break tail.durable_end;
        }
    };
    let tx = store.snapshot(tenant).await.expect("a snapshot");
    assert_eq!(read(&tx, end).await, [host.id.bits(), early.id.bits()]);
}

#[tokio::test]
async fn a_cursor_expires_when_changes_behind_it_are_gone() {
    let (store, ours, theirs) = store_with_two_projects().await;
    register_as(&store, ours, "alice", 1).await;
    let current = async |tenant| {
        let tx = store.snapshot(tenant).await.expect("a snapshot");
        changes::current_cursor(&tx).await.expect("a cursor")
    };
    let has_expired = async |tenant, cursor: ChangeCursor| {
        let tx = store.snapshot(tenant).await.expect("a snapshot");
        changes::has_expired(&tx, &cursor).await.expect("checked")
    };
    let old = current(ours).await;
    assert!(!has_expired(ours, old).await);
    assert!(has_expired(theirs, old).await, "it is of another project");
    let future = old.advanced_to(old.xid() + 1_000_000_000);
    assert!(has_expired(ours, future).await, "the database has not reached it");
    let unknown = old.after(ChangeId { xid: old.xid(), seq: NO_END });
    assert!(has_expired(ours, unknown).await, "there is no such change");
    register_as(&store, ours, "alice", 2).await;
    assert!(prune(&store, FAR_FUTURE, 1_000).await > 0);
    assert!(has_expired(ours, old).await, "changes after it were pruned");
    let new = current(ours).await;
    assert!(!has_expired(ours, new).await, "nothing after it was pruned");
    execute_sql(&store, "UPDATE database_identity SET epoch = epoch + 1").await;
    assert!(has_expired(ours, new).await, "the database may have lost changes");
    let new = current(ours).await;
    assert!(!has_expired(ours, new).await);
    register_as(&store, ours, "alice", 3).await;
    execute_sql(&store, &without_protection("DELETE FROM change_log")).await;
    assert!(has_expired(ours, new).await, "changes were removed");
}

/// Columns of tables in the log whose names sound like secrets and are none.
const HARMLESS_COLUMNS: [&str; 11] = [
    "available_digest",
    "decryption_certificate",
    "existing_cves_digest",
    "facts_digest",
    "fixed_cves_digest",
    "packages_digest",
    "public_key",
    "reported_packages_digest",
    "ssh_key",
    "target_digest",
    "tls_ca_cert",
];

#[tokio::test]
async fn no_secret_is_in_a_change() {
    let (store, tenant) = store_with_project().await;
    let tx = store.tenant_as(tenant, &actor("alice")).await.expect("a transaction");
    let spec = CustomConfigSpec::parse("motd", "", "#cloud-config\npassword: hush").expect("valid");
    custom_configs::create(&tx, &spec, NOON).await.expect("created");
    let token = JoinTokenSpec {
        name: Name::default(),
        expires_at: NOON + TimeDelta::days(1),
        one_time: true,
        may_create_hosts: true,
        may_replace_eim_agents: false,
    };
    join_tokens::create(&tx, &token, [7; 32], NOON).await.expect("a token");
    tx.commit().await.expect("committed");
    let tx = store.snapshot(tenant).await.expect("a snapshot");
    let found = list(&tx, &ChangeFilter::default()).await;
    let kinds: BTreeSet<&str> = found.iter().map(|change| change.kind.as_str()).collect();
    assert!(kinds.contains("custom_config") && kinds.contains("join_token"), "{kinds:?}");
    let text = format!("{found:?}");
    assert!(!text.contains("hush") && !text.contains(&"07".repeat(32)), "{text}");
    assert!(text.contains("(hidden)"), "{text}");
}

/// A new column with a secret must be hidden as well.
#[tokio::test]
async fn every_column_that_sounds_like_a_secret_is_hidden_or_harmless() {
    let store = evenkeel_store::testing::fresh_store().await;
    let tenant = create_project(&store, "shop").await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let tables: Vec<String> = audited_tables(&tx).await.into_iter().collect();
    let hidden = ["api_credentials", "digest", "password_hash", "config", "secret"];
    let names = format!(
        "SELECT string_agg(DISTINCT column_name, ' ') FROM information_schema.columns \
         WHERE table_name IN ('{}') AND column_name ~ 'secret|token|password|digest|credential|key|cert|config$'",
        tables.join("', '")
    );
    let names = evenkeel_store::testing::query_text(&store, &names).await;
    let unknown: Vec<&str> = names
        .split(' ')
        .filter(|name| !hidden.contains(name) && !HARMLESS_COLUMNS.contains(name))
        .collect();
    assert!(
        unknown.is_empty(),
        "hide these in `changes/secrets.rs`, or list them as harmless: {unknown:?}"
    );
    assert!(hidden.iter().all(|name| names.split(' ').any(|known| known == *name)), "{names}");
}
