//! Projects and the isolation between them.

use std::sync::atomic::Ordering;

use evenkeel_domain::assignment::{Scope, UpdateLimits};
use evenkeel_domain::filter::Resource;
use evenkeel_domain::os::OsSpec;
use evenkeel_domain::policy::{DesiredUpdate, ImageRules, PolicySpec};
use evenkeel_domain::tenant::{ProjectName, TenantId};
use evenkeel_store::testing::{counting_store, fresh_database, fresh_store};
use evenkeel_store::{
    Actor, Conflict, ProjectKey, Store, StoreError, StoreOptions, TransactionMode, Tx, assignments,
    changes, hosts, instances, nodes, os_profiles, policies,
};
use uuid::Uuid;

use crate::fixtures::{
    NOON, bookworm, count, create_node, create_project, registration, store_with_project,
    store_with_two_projects,
};

#[tokio::test]
async fn resources_of_one_project_are_invisible_to_another() {
    let (store, ours, theirs) = store_with_two_projects().await;
    let (host, instance) = create_node(&store, ours, 1).await;

    let tx = store.tenant(theirs).await.expect("a transaction");
    assert!(matches!(hosts::find(&tx, host.id).await, Err(StoreError::NotFound { .. })));
    assert!(matches!(instances::find(&tx, instance.id).await, Err(StoreError::NotFound { .. })));
    assert!(matches!(nodes::lock(&tx, host.id).await, Err(StoreError::NotFound { .. })));
    assert_eq!(count(&tx, Resource::Host, "").await, 0);
    assert!(matches!(hosts::delete(&tx, host.id).await, Err(StoreError::NotFound { .. })));
    // The same machine may be registered in both projects.
    hosts::register(&tx, &registration(1), NOON).await.expect("the same UUID elsewhere");
}

/// Queries filter by project; row-level security is the second barrier. It must hold without the
/// first one, and without a scope nothing is visible.
#[tokio::test]
async fn row_level_security_is_sufficient_alone() {
    let (store, ours, theirs) = store_with_two_projects().await;
    let (_, instance) = create_node(&store, ours, 1).await;

    let counts = |scope: Option<TenantId>| {
        let setting = scope.map_or(String::new(), |tenant| {
            format!("PERFORM set_config('evenkeel.tenant', '{tenant}', true);")
        });
        let expected = i32::from(scope == Some(ours));
        format!(
            "DO $$ BEGIN {setting} IF (SELECT count(*) FROM hosts) <> {expected} \
             OR (SELECT count(*) FROM instances) <> {expected} \
             OR (SELECT count(*) FROM node_states) <> {expected} \
             THEN RAISE 'row-level security failed'; END IF; END $$"
        )
    };
    for scope in [Some(ours), Some(theirs), None] {
        store.execute_unprepared(&counts(scope)).await.expect("isolated");
    }
    let across = format!(
        "DO $$ BEGIN PERFORM set_config('evenkeel.tenant', '{theirs}', true); \
         INSERT INTO last_contacts SELECT '{ours}', {}, now(); END $$",
        instance.id.bits().cast_signed()
    );
    let refused =
        store.execute_unprepared(&across).await.expect_err("a write into another project");
    let Some(cause) = std::error::Error::source(&refused) else {
        panic!("{refused}");
    };
    assert!(cause.to_string().contains("row-level security"), "{cause}");
}

#[tokio::test]
async fn every_table_has_forced_row_level_security() {
    let store = fresh_store().await;
    let sql = "DO $$ DECLARE bare text; BEGIN \
               SELECT string_agg(relname, ', ') INTO bare FROM pg_class \
               WHERE relkind IN ('r', 'p') AND relnamespace = 'public'::regnamespace \
               AND relname <> 'seaql_migrations' AND NOT (relrowsecurity AND relforcerowsecurity); \
               IF bare IS NOT NULL THEN RAISE 'without row-level security: %', bare; END IF; END $$";
    store.execute_unprepared(sql).await.expect("all tables");
}

#[tokio::test]
async fn a_machine_is_registered_once_in_a_project() {
    let (store, tenant) = store_with_project().await;
    create_node(&store, tenant, 1).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let twice = hosts::register(&tx, &registration(1), NOON).await;
    let Err(StoreError::Conflict(conflict)) = twice else {
        panic!("{twice:?}");
    };
    assert_eq!(conflict.to_string(), "host_resource with this uuid exists already");
}

/// A statement takes at most 65,535 parameters; a project may have more of everything.
#[tokio::test]
async fn any_number_of_ids_is_looked_up_at_once() {
    let (store, tenant) = store_with_project().await;
    let (host, _) = create_node(&store, tenant, 1).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let mut ids: Vec<_> = (1_000_000..1_070_000).map(evenkeel_domain::id::HostId::nth).collect();
    ids.push(host.id);
    let details = hosts::find_many_details(&tx, &ids).await.expect("an answer");
    assert_eq!(details.len(), 1);
    assert!(details[0].instance.is_some());
    assert_eq!(hosts::find_many(&tx, &ids).await.expect("an answer").len(), 1);
}

#[tokio::test]
async fn a_policy_in_use_cannot_be_deleted() {
    let (store, tenant) = store_with_project().await;
    let (_, instance) = create_node(&store, tenant, 1).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let spec = PolicySpec::parse("all", "", DesiredUpdate::Latest).expect("a policy");
    let policy = policies::create(&tx, &spec, NOON).await.expect("created");
    let unlimited = UpdateLimits::default();
    assignments::set(&tx, Scope::Instance(instance.id), policy.id, unlimited, NOON)
        .await
        .expect("assigned");
    tx.commit().await.expect("committed");

    let tx = store.tenant(tenant).await.expect("a transaction");
    let refused = policies::delete(&tx, policy.id).await;
    let Err(StoreError::Conflict(Conflict::InUse { .. })) = refused else {
        panic!("{refused:?}");
    };
    drop(tx);

    let tx = store.tenant(tenant).await.expect("a transaction");
    assignments::clear(&tx, Scope::Instance(instance.id)).await.expect("cleared");
    policies::delete(&tx, policy.id).await.expect("unused");
}

/// The catalogue may already have an entry of that name in another image series.
#[tokio::test]
async fn a_release_whose_name_is_in_use_gets_a_profile() {
    let (store, tenant) = store_with_project().await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let other = OsSpec { profile_name: "debian-lts".into(), ..bookworm() };
    os_profiles::create(&tx, &other, NOON).await.expect("a profile");
    let created = os_profiles::find_or_create(&tx, &bookworm(), NOON).await.expect("a profile");
    assert_eq!(created.spec.name, "Debian GNU/Linux 12 (bookworm) (debian-12 12)");
    let again = os_profiles::find_or_create(&tx, &bookworm(), NOON).await.expect("the same");
    assert_eq!(created.id, again.id);
}

fn key_by_name(name: &str) -> ProjectKey {
    ProjectKey::Named(ProjectName::parse("name", name).expect("a name"))
}

#[tokio::test]
async fn a_project_is_entered_in_one_statement_by_its_name_or_its_id() {
    let (store, ours) = store_with_project().await;
    let theirs = create_project(&store, "theirs").await;
    create_node(&store, ours, 1).await;
    let (counted, sent) = counting_store(&store);
    for how in [TransactionMode::Read, TransactionMode::Snapshot] {
        for (key, expected, hosts) in [
            (key_by_name("ours"), Some(ours), 1),
            (ProjectKey::Id(ours), Some(ours), 1),
            (key_by_name("theirs"), Some(theirs), 0),
            (key_by_name("nobodys"), None, 0),
            (ProjectKey::Id(TenantId::new(Uuid::nil())), None, 0),
        ] {
            let before = sent.statements.load(Ordering::Relaxed);
            let entered = counted.enter(&key, &how).await.expect("an answer");
            assert_eq!(sent.statements.load(Ordering::Relaxed) - before, 1);
            assert_eq!(entered.as_ref().map(Tx::tenant), expected, "{key:?}");
            if let Some(tx) = entered {
                assert_eq!(count(&tx, Resource::Host, "").await, hosts);
            }
        }
    }
}

#[tokio::test]
async fn a_reader_cannot_write_and_a_writer_is_logged() {
    let (store, ours) = store_with_project().await;
    let enter = async |how: TransactionMode| {
        let entered = store.enter(&key_by_name("ours"), &how).await;
        entered.expect("an answer").expect("a project")
    };
    let tx = enter(TransactionMode::Snapshot).await;
    let refused = hosts::register(&tx, &registration(1), NOON).await;
    assert!(refused.is_err());
    drop(tx);

    let actor = Actor {
        name: "alice".into(),
        request_id: "r-1".into(),
        client_address: "192.0.2.7".into(),
    };
    let tx = enter(TransactionMode::Write(actor)).await;
    let host = hosts::register(&tx, &registration(1), NOON).await;
    let host = host.expect("a host");
    tx.commit().await.expect("committed");
    let tx = store.tenant(ours).await.expect("a transaction");
    let log = changes::list_for_resource(&tx, "host", host.id.bits()).await;
    let change = log.expect("a log").pop().expect("a change");
    assert_eq!(
        (change.actor.as_deref(), change.request_id.as_deref()),
        (Some("alice"), Some("r-1"))
    );
}

/// The pool has one connection, so each transaction reuses that of the previous one.
#[tokio::test]
async fn a_dropped_transaction_does_not_affect_its_connection() {
    let options = StoreOptions { max_connections: 1, ..StoreOptions::default() };
    let store = Store::connect(&fresh_database().await, options).await;
    let store = store.expect("connected");
    let ours = create_project(&store, "ours").await;
    let tx = store.tenant(ours).await.expect("a transaction");
    let host = hosts::register(&tx, &registration(1), NOON).await;
    host.expect("a host");
    drop(tx);
    let missing_project = store.enter(&key_by_name("nobodys"), &TransactionMode::Read).await;
    assert!(missing_project.expect("an answer").is_none());
    let snapshot = store.snapshot(ours).await.expect("a transaction");
    assert_eq!(count(&snapshot, Resource::Host, "").await, 0);
    drop(snapshot);
    let bare = "DO $$ BEGIN IF coalesce(current_setting('evenkeel.tenant', true), '') <> '' \
                OR current_setting('transaction_read_only') <> 'off' \
                THEN RAISE 'a setting is left'; END IF; END $$";
    store.execute_unprepared(bare).await.expect("a clean connection");
}

#[tokio::test]
async fn the_change_log_names_the_actor() {
    let (store, tenant) = store_with_project().await;
    let actor = Actor {
        name: "alice".into(),
        request_id: "r-1".into(),
        client_address: "192.0.2.7".into(),
    };
    let tx = store.tenant_as(tenant, &actor).await.expect("a transaction");
    let host = hosts::register(&tx, &registration(1), NOON).await.expect("a host");
    hosts::delete(&tx, host.id).await.expect("deleted");
    tx.commit().await.expect("committed");

    let tx = store.tenant(tenant).await.expect("a transaction");
    let changes = changes::list_for_resource(&tx, "host", host.id.bits()).await.expect("a log");
    let operations: Vec<_> =
        changes.iter().map(|c| (c.operation.as_str(), c.actor.as_deref())).collect();
    assert_eq!(operations, [("insert", Some("alice")), ("delete", Some("alice"))]);
    let before = changes[1].before.as_ref().expect("the row before");
    assert_eq!(before["name"], "edge");
}

#[tokio::test]
async fn a_failed_transaction_cannot_be_committed() {
    let (store, tenant) = store_with_project().await;
    let (host, _) = create_node(&store, tenant, 1).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    // The host has an instance.
    let deleted = hosts::delete(&tx, host.id).await;
    assert!(matches!(deleted, Err(StoreError::Conflict(_))), "{deleted:?}");
    assert!(tx.commit().await.is_err());
}

#[tokio::test]
async fn a_policy_for_packages_has_no_rules_for_images() {
    let (store, tenant) = store_with_project().await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let desired = DesiredUpdate::parse_target(None, "curl", &[], "").expect("a desired update");
    let spec = PolicySpec {
        image_rules: ImageRules { attempts: 3, ..ImageRules::default() },
        ..PolicySpec::parse("curl", "", desired).expect("a policy")
    };
    let refused = policies::create(&tx, &spec, NOON).await;
    let why = format!("{:?}", refused.expect_err("a violated check"));
    assert!(why.contains("packages_exclude_image_rules"), "{why}");
}
