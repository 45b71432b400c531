//! The end of projects.

use evenkeel_domain::tenant::TenantId;
use evenkeel_store::testing::fresh_store;
use evenkeel_store::{Conflict, Store, StoreError, hosts, os_inside, projects};
use futures_util::future::join;

use crate::house::{NOON, latest, project, region, registration, site};
use crate::os_inside::{edge, somebody_waits};
use crate::walls::everything;

/// Deletes a project for good.
async fn delete(store: &Store, tenant: TenantId, force: bool) -> Result<(), StoreError> {
    let tx = store.fleet().await?;
    projects::delete(&tx, tenant, force).await?;
    tx.commit().await
}

/// Fails unless every table has rows of one project and none of the other; only the change log remembers both.
async fn only_one_is_left(store: &Store, left: TenantId, gone: TenantId) {
    let sql = format!(
        "DO $$ DECLARE one text; seen bigint; BEGIN PERFORM set_config('evenkeel.tenant', '*', true); \
         FOR one IN SELECT c.relname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid \
         WHERE c.relkind = 'r' AND c.relnamespace = 'public'::regnamespace AND a.attname = 'tenant_id' LOOP \
         EXECUTE format('SELECT count(*) FROM %I WHERE tenant_id = $1', one) INTO seen USING '{left}'::uuid; \
         IF seen = 0 THEN RAISE '% lost what was left', one; END IF; \
         EXECUTE format('SELECT count(*) FROM %I WHERE tenant_id = $1', one) INTO seen USING '{gone}'::uuid; \
         IF (seen <> 0) <> (one = 'change_log') THEN RAISE '% has % rows', one, seen; END IF; \
         END LOOP; END $$"
    );
    store.unprepared(&sql).await.expect("one is left");
}

#[tokio::test]
async fn a_project_that_holds_hosts_goes_only_by_force_and_then_with_everything() {
    let store = fresh_store().await;
    let (ours, theirs) = (
        project(&store, "ours").await,
        project(&store, "theirs").await,
    );
    everything(&store, ours).await;
    everything(&store, theirs).await;
    match delete(&store, ours, false).await {
        Err(StoreError::Conflict(conflict)) => assert_eq!(
            conflict.to_string(),
            "project is in use by hosts, and goes with them only by force"
        ),
        other => panic!("{other:?}"),
    }
    delete(&store, ours, true).await.expect("it goes");
    only_one_is_left(&store, theirs, ours).await;
    let again = delete(&store, ours, true).await;
    assert!(matches!(again, Err(StoreError::NotFound { .. })));
}

#[tokio::test]
async fn a_project_without_hosts_goes_with_what_it_holds() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let outer = region(&store, tenant, "outer", None).await;
    let inner = region(&store, tenant, "inner", Some(outer.id)).await;
    site(&store, tenant, Some(inner.id)).await;
    latest(&store, tenant).await;
    delete(&store, tenant, false).await.expect("it goes");
    project(&store, "ours").await;
}

/// Fails unless what is made in a project that is about to go waits for that, and is refused then.
async fn is_refused_as_it_goes(
    store: &Store,
    tenant: TenantId,
    made: impl Future<Output = Result<(), StoreError>>,
) {
    let going = store.fleet().await.expect("a transaction");
    projects::delete(&going, tenant, false)
        .await
        .expect("it goes");
    let gone = async {
        somebody_waits(store).await;
        going.commit().await
    };
    let (made, gone) = join(made, gone).await;
    gone.expect("committed");
    let (what, field) = ("project", "projectName");
    match made {
        Err(StoreError::Conflict(conflict)) => {
            assert_eq!(conflict, Conflict::Dangling { what, field });
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn what_is_made_while_its_project_goes_is_refused() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let made = async {
        let tx = store.tenant(tenant).await?;
        hosts::register(&tx, &registration(1), NOON).await?;
        tx.commit().await
    };
    is_refused_as_it_goes(&store, tenant, made).await;
}

#[tokio::test]
async fn what_a_registry_has_does_not_come_into_a_project_that_goes() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let kept = Box::pin(async {
        let tx = store.tenant(tenant).await?;
        os_inside::keep(&tx, &edge("3.0.1"), NOON).await?;
        tx.commit().await
    });
    is_refused_as_it_goes(&store, tenant, kept).await;
}
