//! Ids after the database has lost its last changes.

use evenkeel_domain::id::{HostId, InstanceId};
use evenkeel_domain::tenant::TenantId;
use evenkeel_store::testing::{fresh_database, query_text};
use evenkeel_store::{Store, StoreOptions};

use crate::fixtures::{create_node, create_project};

async fn connect(url: &str) -> Store {
    Store::connect(url, StoreOptions::default()).await.expect("a store")
}

async fn create_ids(store: &Store, tenant: TenantId, n: u128) -> (HostId, InstanceId) {
    let (host, instance) = create_node(store, tenant, n).await;
    (host.id, instance.id)
}

/// Undoes the creation of all nodes, as the restore of an older backup does.
async fn lose_nodes(store: &Store) {
    let sql = "SELECT set_config('evenkeel.tenant', '*', true); DELETE FROM instances; DELETE FROM hosts; \
               SELECT setval('host_numbers', 1, false), setval('instance_numbers', 1, false)";
    store.execute_unprepared(sql).await.expect("nodes are lost");
}

async fn numbers(store: &Store) -> String {
    let sql = "SELECT string_agg(sequencename || ' ' || coalesce(last_value, 0), ', ' ORDER BY sequencename) \
               FROM pg_sequences WHERE sequencename LIKE '%numbers'";
    query_text(store, sql).await
}

#[tokio::test]
async fn a_database_that_is_another_one_than_before_assigns_no_id_again() {
    let url = fresh_database().await;
    let store = connect(&url).await;
    let tenant = create_project(&store, "ours").await;
    let lost = create_ids(&store, tenant, 1).await;
    lose_nodes(&store).await;
    // Ids of nodes that the restore removed would be assigned to other nodes.
    assert_eq!(create_ids(&store, tenant, 2).await, lost);
    lose_nodes(&store).await;
    let moved = "UPDATE database_identity SET identity = 'another server'";
    store.execute_unprepared(moved).await.expect("moved");
    let restored = connect(&url).await;
    let (host, instance) = create_ids(&restored, tenant, 2).await;
    assert!(host != lost.0 && instance != lost.1, "{host} {instance}");
    // The ids jump once.
    let numbers_before = numbers(&restored).await;
    connect(&url).await;
    assert_eq!(numbers(&restored).await, numbers_before);
    assert_eq!(query_text(&restored, "SELECT epoch::text FROM database_identity").await, "2");
}

/// The server cannot distinguish a copy of the files from the database, so the operator reports the
/// restore.
#[tokio::test]
async fn the_operator_lets_all_ids_jump_ahead_after_a_restore() {
    let store = connect(&fresh_database().await).await;
    let tenant = create_project(&store, "ours").await;
    let lost = create_ids(&store, tenant, 1).await;
    lose_nodes(&store).await;
    assert_eq!(store.advance_ids().await.expect("advanced"), 2);
    let (host, instance) = create_ids(&store, tenant, 2).await;
    assert!(host != lost.0 && instance != lost.1, "{host} {instance}");
}

/// Otherwise ids of a new kind would be assigned again after a restore.
#[tokio::test]
async fn every_sequence_of_ids_jumps() {
    let store = connect(&fresh_database().await).await;
    let others = "SELECT string_agg(sequencename, ' ' ORDER BY sequencename) FROM pg_sequences \
                  WHERE schemaname = 'public' AND sequencename NOT LIKE '%\\_numbers'";
    // They only order rows; the ID of a delivery is random.
    let orders =
        "change_log_seq_seq log_barrier notification_deliveries_number_seq tallies_seq_seq";
    assert_eq!(query_text(&store, others).await, orders);
    store.advance_ids().await.expect("advanced");
    let behind = "SELECT count(*)::text FROM pg_sequences WHERE schemaname = 'public' \
                  AND sequencename LIKE '%\\_numbers' AND coalesce(last_value, 0) < 1000000";
    assert_eq!(query_text(&store, behind).await, "0");
}
