//! Deletion of projects.

use evenkeel_domain::tenant::TenantId;
use evenkeel_store::{Conflict, Store, StoreError, hosts, os_details, projects};
use futures_util::future::join;

use crate::fixtures::{
    NOON, create_latest_policy, create_project, create_region, create_site, registration,
    store_with_project, store_with_two_projects,
};
use crate::isolation::create_everything;
use crate::os_details::{edge, wait_for_blocked_transaction};

/// Deletes and commits.
async fn delete_project(store: &Store, tenant: TenantId, force: bool) -> Result<(), StoreError> {
    let tx = store.fleet().await?;
    projects::delete(&tx, tenant, force).await?;
    tx.commit().await
}

/// Fails unless every table has rows of `left` and none of `deleted`; only the change log keeps
/// both.
async fn assert_rows_only_of(store: &Store, left: TenantId, deleted: TenantId) {
    let sql = format!(
        "DO $$ DECLARE one text; seen bigint; BEGIN PERFORM set_config('evenkeel.tenant', '*', true); \
         FOR one IN SELECT c.relname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid \
         WHERE c.relkind = 'r' AND c.relnamespace = 'public'::regnamespace AND a.attname = 'tenant_id' LOOP \
         EXECUTE format('SELECT count(*) FROM %I WHERE tenant_id = $1', one) INTO seen USING '{left}'::uuid; \
         IF seen = 0 THEN RAISE '% lost rows of the other project', one; END IF; \
         EXECUTE format('SELECT count(*) FROM %I WHERE tenant_id = $1', one) INTO seen USING '{deleted}'::uuid; \
         IF (seen <> 0) <> (one = 'change_log') THEN RAISE '% has % rows', one, seen; END IF; \
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
    assert_rows_only_of(&store, theirs, ours).await;
    let again = delete_project(&store, ours, true).await;
    assert!(matches!(again, Err(StoreError::NotFound { .. })));
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

/// Fails unless a write into a project that is being deleted waits for the deletion and is
/// rejected.
async fn assert_rejected_by_deletion(
    store: &Store,
    tenant: TenantId,
    write: impl Future<Output = Result<(), StoreError>>,
) {
    let going = store.fleet().await.expect("a transaction");
    projects::delete(&going, tenant, false).await.expect("deleted");
    let deletion = async {
        wait_for_blocked_transaction(store).await;
        going.commit().await
    };
    let (result, committed) = join(write, deletion).await;
    committed.expect("committed");
    let (what, field) = ("project", "projectName");
    match result {
        Err(StoreError::Conflict(conflict)) => {
            assert_eq!(conflict, Conflict::MissingReference { what, field });
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_write_during_the_deletion_of_its_project_is_rejected() {
    let (store, tenant) = store_with_project().await;
    let write = async {
        let tx = store.tenant(tenant).await?;
        hosts::register(&tx, &registration(1), NOON).await?;
        tx.commit().await
    };
    assert_rejected_by_deletion(&store, tenant, write).await;
}

#[tokio::test]
async fn an_import_during_the_deletion_of_its_project_is_rejected() {
    let (store, tenant) = store_with_project().await;
    let import = Box::pin(async {
        let tx = store.tenant(tenant).await?;
        os_details::import(&tx, &edge("3.0.1"), NOON).await?;
        tx.commit().await
    });
    assert_rejected_by_deletion(&store, tenant, import).await;
}
