//! Deletion of projects.

use evenkeel_domain::tenant::{ProjectName, TenantId};
use evenkeel_store::change_seals::{self, AuditRequest, ChangeSealer};
use evenkeel_store::nodes::{self, MachineKey};
use evenkeel_store::testing::tenant_rows;
use evenkeel_store::{
    ProjectKey, Store, StoreError, TransactionMode, assignments, hosts, os_details, projects,
};
use futures_util::future::join;
use uuid::Uuid;

use crate::fixtures::{
    NOON, create_latest_policy, create_node, create_project, create_region, create_site,
    registration, remove_deleted_projects, store_with_project, store_with_two_projects,
};
use crate::isolation::create_everything;
use crate::os_details::{edge, wait_for_blocked_transaction};

/// Deletes and commits.
async fn delete_project(store: &Store, tenant: TenantId, force: bool) -> Result<(), StoreError> {
    let tx = store.fleet().await?;
    projects::delete(&tx, tenant, force, NOON).await?;
    tx.commit().await
}

/// Fails unless every table has rows of `left` and none of `deleted`; only the change log and its
/// seals keep both.
async fn assert_rows_only_of(store: &Store, left: TenantId, deleted: TenantId) {
    let sql = format!(
        "DO $$ DECLARE one text; seen bigint; BEGIN PERFORM set_config('evenkeel.tenant', '*', true); \
         FOR one IN SELECT c.relname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid \
         WHERE c.relkind = 'r' AND c.relnamespace = 'public'::regnamespace AND a.attname = 'tenant_id' LOOP \
         EXECUTE format('SELECT count(*) FROM %I WHERE tenant_id = $1', one) INTO seen USING '{left}'::uuid; \
         IF seen = 0 THEN RAISE '% lost rows of the other project', one; END IF; \
         EXECUTE format('SELECT count(*) FROM %I WHERE tenant_id = $1', one) INTO seen USING '{deleted}'::uuid; \
         IF (seen <> 0) <> (one IN ('change_log', 'change_seals')) THEN RAISE '% has % rows', one, seen; END IF; \
         END LOOP; END $$"
    );
    store.execute_unprepared(&sql).await.expect("rows of the remaining project only");
}

#[tokio::test]
async fn a_project_with_hosts_is_deleted_only_by_force_and_completely() {
    let (store, ours, theirs) = store_with_two_projects().await;
    create_everything(&store, ours).await;
    create_everything(&store, theirs).await;
    match delete_project(&store, ours, false).await {
        Err(StoreError::Conflict(conflict)) => assert_eq!(
            conflict.to_string(),
            "project is in use by hosts; delete it with force to delete the hosts as well"
        ),
        other => panic!("{other:?}"),
    }
    delete_project(&store, ours, true).await.expect("deleted");
    let again = delete_project(&store, ours, true).await;
    assert!(matches!(again, Err(StoreError::NotFound { .. })));
    let batches = remove_deleted_projects(&store, 1).await;
    assert!(batches > 20, "{batches}");
    assert_rows_only_of(&store, theirs, ours).await;
    ChangeSealer::new(store.clone()).pass().await.expect("a pass");
    let report = change_seals::verify(&store, &AuditRequest::default()).await.expect("a report");
    assert!(report.is_unaltered() && report.projects.contains_key(&ours), "{report:?}");
}

#[tokio::test]
async fn a_deleted_project_is_invisible_and_its_name_is_free_at_once() {
    let (store, tenant) = store_with_project().await;
    create_everything(&store, tenant).await;
    let (host, _) = create_node(&store, tenant, 77).await;
    let machines = [MachineKey::Host(host.id), MachineKey::Uuid(Uuid::from_u128(77))];
    let tx = store.tenant(tenant).await.expect("a transaction");
    for machine in machines {
        nodes::lock_with_host(&tx, machine).await.expect("a node");
    }
    drop(tx);
    delete_project(&store, tenant, true).await.expect("deleted");
    let tx = store.fleet().await.expect("a transaction");
    assert_eq!(projects::list(&tx).await.expect("a list"), []);
    for found in [projects::find(&tx, tenant).await, projects::find_by_name(&tx, "ours").await] {
        assert!(matches!(found, Err(StoreError::NotFound { .. })), "{found:?}");
    }
    drop(tx);
    let name = ProjectName::parse("name", "ours").expect("a name");
    for key in [ProjectKey::Id(tenant), ProjectKey::Named(name)] {
        let entered = store.enter(&key, &TransactionMode::Read).await.expect("an answer");
        assert!(entered.is_none());
    }
    // Nothing starts in it any more, and its nodes are refused.
    let tx = store.tenant(tenant).await.expect("a transaction");
    assert_eq!(assignments::all(&tx, NOON).await.expect("a list"), []);
    for machine in machines {
        let brief = nodes::load_briefs(&tx, &[machine]).await.expect("an answer").remove(0);
        assert!(brief.expect("an answer").is_none());
        let locked = nodes::lock_with_host(&tx, machine).await;
        assert!(matches!(locked, Err(StoreError::NotFound { .. })), "{locked:?}");
    }
    drop(tx);
    let again = create_project(&store, "ours").await;
    remove_deleted_projects(&store, 100).await;
    let tx = store.fleet().await.expect("a transaction");
    assert_eq!(projects::find_by_name(&tx, "ours").await.expect("the new one").id, again);
}

#[tokio::test]
async fn a_project_without_hosts_is_deleted_with_its_resources() {
    let (store, tenant) = store_with_project().await;
    let outer = create_region(&store, tenant, "outer", None).await;
    let inner = create_region(&store, tenant, "inner", Some(outer.id)).await;
    create_site(&store, tenant, Some(inner.id)).await;
    create_latest_policy(&store, tenant).await;
    delete_project(&store, tenant, false).await.expect("deleted");
    create_project(&store, "ours").await;
}

/// A write that a deletion overtakes is removed with the project.
async fn assert_removed_with_project(
    store: &Store,
    tenant: TenantId,
    write: impl Future<Output = Result<(), StoreError>>,
) {
    let going = store.fleet().await.expect("a transaction");
    projects::delete(&going, tenant, false, NOON).await.expect("deleted");
    let deletion = async {
        wait_for_blocked_transaction(store).await;
        going.commit().await
    };
    let (written, committed) = join(write, deletion).await;
    committed.expect("committed");
    written.expect("written");
    remove_deleted_projects(store, 100).await;
    let rows = tenant_rows(store, tenant).await;
    assert!(rows.iter().all(|row| row.starts_with("change_log ")), "{rows:?}");
}

#[tokio::test]
async fn a_host_registered_during_the_deletion_is_removed_with_its_project() {
    let (store, tenant) = store_with_project().await;
    let write = async {
        let tx = store.tenant(tenant).await?;
        hosts::register(&tx, &registration(1), NOON).await?;
        tx.commit().await
    };
    assert_removed_with_project(&store, tenant, write).await;
}

#[tokio::test]
async fn an_import_during_the_deletion_is_removed_with_its_project() {
    let (store, tenant) = store_with_project().await;
    let import = Box::pin(async {
        let tx = store.tenant(tenant).await?;
        os_details::import(&tx, &edge("3.0.1"), NOON).await?;
        tx.commit().await
    });
    assert_removed_with_project(&store, tenant, import).await;
}
