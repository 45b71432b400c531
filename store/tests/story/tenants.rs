//! Projects, walls between them, and what is in them.

use std::sync::atomic::Ordering;

use evenkeel_domain::assignment::{Limits, Scope};
use evenkeel_domain::filter::Resource;
use evenkeel_domain::os::OsSpec;
use evenkeel_domain::policy::{PolicySpec, Wish};
use evenkeel_domain::tenant::{ProjectName, TenantId};
use evenkeel_store::testing::{counting, fresh_database, fresh_store};
use evenkeel_store::{
    Actor, Conflict, Entry, ProjectKey, Store, StoreError, StoreOptions, Tx, assignments, changes,
    hosts, instances, nodes, os_profiles, policies,
};
use uuid::Uuid;

use crate::house::{NOON, bookworm, count, node, project, registration};

#[tokio::test]
async fn what_belongs_to_one_project_is_not_seen_from_another() {
    let store = fresh_store().await;
    let (ours, theirs) = (
        project(&store, "ours").await,
        project(&store, "theirs").await,
    );
    let (host, instance) = node(&store, ours, 1).await;

    let tx = store.tenant(theirs).await.expect("a transaction");
    assert!(matches!(
        hosts::find(&tx, host.id).await,
        Err(StoreError::NotFound { .. })
    ));
    assert!(matches!(
        instances::find(&tx, instance.id).await,
        Err(StoreError::NotFound { .. })
    ));
    assert!(matches!(
        nodes::lock(&tx, host.id).await,
        Err(StoreError::NotFound { .. })
    ));
    assert_eq!(count(&tx, Resource::Host, "").await, 0);
    assert!(matches!(
        hosts::delete(&tx, host.id).await,
        Err(StoreError::NotFound { .. })
    ));
    // The same machine may be known in both.
    hosts::register(&tx, &registration(1), NOON)
        .await
        .expect("the same UUID elsewhere");
}

/// The application's own scope is the first wall. Without it the second one still holds, and without a scope there is
/// nothing at all.
#[tokio::test]
async fn row_level_security_holds_alone() {
    let store = fresh_store().await;
    let (ours, theirs) = (
        project(&store, "ours").await,
        project(&store, "theirs").await,
    );
    let (_, instance) = node(&store, ours, 1).await;

    let counts = |scope: Option<TenantId>| {
        let setting = scope.map_or(String::new(), |tenant| {
            format!("PERFORM set_config('evenkeel.tenant', '{tenant}', true);")
        });
        let expected = i32::from(scope == Some(ours));
        format!(
            "DO $$ BEGIN {setting} IF (SELECT count(*) FROM hosts) <> {expected} \
             OR (SELECT count(*) FROM instances) <> {expected} \
             OR (SELECT count(*) FROM node_states) <> {expected} \
             THEN RAISE 'the wall has a hole'; END IF; END $$"
        )
    };
    for scope in [Some(ours), Some(theirs), None] {
        store
            .unprepared(&counts(scope))
            .await
            .expect("the wall holds");
    }
    let across = format!(
        "DO $$ BEGIN PERFORM set_config('evenkeel.tenant', '{theirs}', true); \
         INSERT INTO last_contacts SELECT '{ours}', {}, now(); END $$",
        instance.id.bits().cast_signed()
    );
    let refused = store
        .unprepared(&across)
        .await
        .expect_err("a row was written across");
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
    store.unprepared(sql).await.expect("all tables");
}

#[tokio::test]
async fn the_steps_down_undo_the_steps_up() {
    let store = fresh_store().await;
    let steps: Vec<_> = evenkeel_migrations::all_sql().collect();
    for down in steps.chunks(2).rev().map(|pair| pair[1]) {
        store.unprepared(down).await.expect("down");
    }
    for up in steps.chunks(2).map(|pair| pair[0]) {
        store.unprepared(up).await.expect("and up again");
    }
}

#[tokio::test]
async fn a_machine_is_known_once_in_its_project() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    node(&store, tenant, 1).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let twice = hosts::register(&tx, &registration(1), NOON).await;
    let Err(StoreError::Conflict(conflict)) = twice else {
        panic!("{twice:?}");
    };
    assert_eq!(
        conflict.to_string(),
        "host_resource with this uuid exists already"
    );
}

/// A statement takes at most 65,535 parameters; a project may have more of everything.
#[tokio::test]
async fn any_number_of_ids_is_looked_up_at_once() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let (host, _) = node(&store, tenant, 1).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let mut ids: Vec<_> = (1_000_000..1_070_000)
        .map(evenkeel_domain::id::HostId::nth)
        .collect();
    ids.push(host.id);
    let whole = hosts::find_many_whole(&tx, &ids).await.expect("an answer");
    assert_eq!(whole.len(), 1);
    assert!(whole[0].instance.is_some());
    assert_eq!(
        hosts::find_many(&tx, &ids).await.expect("an answer").len(),
        1
    );
}

#[tokio::test]
async fn a_policy_in_use_stays() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let (_, instance) = node(&store, tenant, 1).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let spec = PolicySpec::parse("all", "", Wish::Latest).expect("a policy");
    let policy = policies::create(&tx, &spec, NOON).await.expect("created");
    let unlimited = Limits::default();
    assignments::set(
        &tx,
        Scope::Instance(instance.id),
        policy.id,
        unlimited,
        NOON,
    )
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
    assignments::clear(&tx, Scope::Instance(instance.id))
        .await
        .expect("taken back");
    policies::delete(&tx, policy.id)
        .await
        .expect("nobody uses it");
}

/// A policy may go while its run is open: the run keeps its copy and goes on.
/// The catalogue may have an entry of that name already, of another line of releases.
#[tokio::test]
async fn a_release_whose_name_is_taken_gets_a_profile_all_the_same() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let other = OsSpec {
        profile_name: "debian-lts".into(),
        ..bookworm()
    };
    os_profiles::create(&tx, &other, NOON)
        .await
        .expect("the catalogue's");
    let made = os_profiles::ensure(&tx, &bookworm(), NOON)
        .await
        .expect("the node's");
    assert_eq!(
        made.spec.name,
        "Debian GNU/Linux 12 (bookworm) (debian-12 12)"
    );
    let again = os_profiles::ensure(&tx, &bookworm(), NOON)
        .await
        .expect("the same");
    assert_eq!(made.id, again.id);
}

fn called(name: &str) -> ProjectKey {
    ProjectKey::Named(ProjectName::parse("name", name).expect("a name"))
}

#[tokio::test]
async fn a_project_is_entered_in_one_statement_by_its_name_or_its_id() {
    let store = fresh_store().await;
    let ours = project(&store, "ours").await;
    let theirs = project(&store, "theirs").await;
    node(&store, ours, 1).await;
    let (counted, sent) = counting(&store);
    for how in [Entry::Read, Entry::Snapshot] {
        for (key, wanted, hosts) in [
            (called("ours"), Some(ours), 1),
            (ProjectKey::Id(ours), Some(ours), 1),
            (called("theirs"), Some(theirs), 0),
            (called("nobodys"), None, 0),
            (ProjectKey::Id(TenantId::new(Uuid::nil())), None, 0),
        ] {
            let before = sent.statements.load(Ordering::Relaxed);
            let entered = counted.enter(&key, &how).await.expect("an answer");
            assert_eq!(sent.statements.load(Ordering::Relaxed) - before, 1);
            assert_eq!(entered.as_ref().map(Tx::tenant), wanted, "{key:?}");
            if let Some(tx) = entered {
                assert_eq!(count(&tx, Resource::Host, "").await, hosts);
            }
        }
    }
}

#[tokio::test]
async fn who_enters_to_read_writes_nothing_and_who_enters_to_write_is_noted() {
    let store = fresh_store().await;
    let ours = project(&store, "ours").await;
    let enter = async |how: Entry| {
        let entered = store.enter(&called("ours"), &how).await;
        entered.expect("an answer").expect("a project")
    };
    let tx = enter(Entry::Snapshot).await;
    let refused = hosts::register(&tx, &registration(1), NOON).await;
    assert!(refused.is_err());
    drop(tx);

    let actor = Actor {
        name: "alice".into(),
        request_id: "r-1".into(),
    };
    let tx = enter(Entry::Write(actor)).await;
    let host = hosts::register(&tx, &registration(1), NOON).await;
    let host = host.expect("a host");
    tx.commit().await.expect("committed");
    let tx = store.tenant(ours).await.expect("a transaction");
    let log = changes::of(&tx, "host", host.id.bits()).await;
    let noted = log.expect("a log").pop().expect("a change");
    assert_eq!(
        (noted.actor.as_deref(), noted.request_id.as_deref()),
        (Some("alice"), Some("r-1"))
    );
}

/// There is one connection, so each transaction gets it from the one before.
#[tokio::test]
async fn nothing_is_left_on_its_connection_of_a_transaction_that_was_dropped() {
    let options = StoreOptions {
        max_connections: 1,
        ..StoreOptions::default()
    };
    let store = Store::connect(&fresh_database().await, options).await;
    let store = store.expect("connected");
    let ours = project(&store, "ours").await;
    let tx = store.tenant(ours).await.expect("a transaction");
    let host = hosts::register(&tx, &registration(1), NOON).await;
    host.expect("a host");
    drop(tx);
    let nobodys = store.enter(&called("nobodys"), &Entry::Read).await;
    assert!(nobodys.expect("an answer").is_none());
    let snapshot = store.snapshot(ours).await.expect("a transaction");
    assert_eq!(count(&snapshot, Resource::Host, "").await, 0);
    drop(snapshot);
    let bare = "DO $$ BEGIN IF coalesce(current_setting('evenkeel.tenant', true), '') <> '' \
                OR current_setting('transaction_read_only') <> 'off' \
                THEN RAISE 'something is left'; END IF; END $$";
    store.unprepared(bare).await.expect("nothing is left");
}

#[tokio::test]
async fn the_change_log_says_who_did_what() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let actor = Actor {
        name: "alice".into(),
        request_id: "r-1".into(),
    };
    let tx = store
        .tenant_as(tenant, &actor)
        .await
        .expect("a transaction");
    let host = hosts::register(&tx, &registration(1), NOON)
        .await
        .expect("a host");
    hosts::delete(&tx, host.id).await.expect("deleted");
    tx.commit().await.expect("committed");

    let tx = store.tenant(tenant).await.expect("a transaction");
    let changes = changes::of(&tx, "host", host.id.bits())
        .await
        .expect("a log");
    let told: Vec<_> = changes
        .iter()
        .map(|c| (c.operation.as_str(), c.actor.as_deref()))
        .collect();
    assert_eq!(told, [("insert", Some("alice")), ("delete", Some("alice"))]);
    let before = changes[1].before.as_ref().expect("the row before");
    assert_eq!(before["name"], "edge");
}

#[tokio::test]
async fn a_transaction_in_which_something_failed_is_never_called_committed() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let (host, _) = node(&store, tenant, 1).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    // It has an instance.
    let deleted = hosts::delete(&tx, host.id).await;
    assert!(
        matches!(deleted, Err(StoreError::Conflict(_))),
        "{deleted:?}"
    );
    assert!(tx.commit().await.is_err());
}
