//! Shares of the connections, and the cancellation of statements of dropped transactions.

use std::collections::BTreeSet;
use std::time::Duration;

use evenkeel_domain::id::HostId;
use evenkeel_store::testing::{drop_after_polls, fresh_database, query_text};
use evenkeel_store::{
    ConnectionShare, ShareLimit, ShareSizes, Store, StoreError, StoreOptions, Tx, nodes,
};

use crate::fixtures::{create_node, create_project};

const LONG: Duration = Duration::from_hours(1);

/// A node that a transaction has locked, and a store whose only connection waits for locks without
/// a limit.
struct LockedNode {
    holder: Store,
    lock: Tx,
    store: Store,
    host: HostId,
}

impl LockedNode {
    async fn new() -> Self {
        let url = fresh_database().await;
        let holder = Store::connect(&url, StoreOptions::default()).await.expect("connected");
        let tenant = create_project(&holder, "ours").await;
        let (host, _) = create_node(&holder, tenant, 1).await;
        let lock = holder.tenant(tenant).await.expect("a transaction");
        // On a busy machine, the database would end it otherwise.
        lock.set("idle_in_transaction_session_timeout", "0").await.expect("set");
        nodes::lock(&lock, host.id).await.expect("a lock");
        let options = StoreOptions {
            max_connections: 1,
            acquire_timeout: Duration::from_mins(1),
            statement_timeout: LONG,
            lock_timeout: LONG,
            ..StoreOptions::default()
        };
        let store = Store::connect(&url, options).await.expect("connected");
        Self { holder, lock, store, host: host.id }
    }

    /// The process of the only connection.
    async fn pid(&self) -> String {
        query_text(&self.store, "SELECT pg_backend_pid()::text").await
    }

    async fn is_waiting(&self, pid: &str) -> bool {
        let sql = "SELECT coalesce(string_agg(pid::text, ' '), '') FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
        query_text(&self.holder, sql).await.split(' ').any(|waiting| waiting == pid)
    }

    /// Drops a transaction that waits for the lock. Without the cancellation, the only connection
    /// would wait until its timeout.
    async fn drop_waiting_transaction(&self) {
        let pid = self.pid().await;
        let request = async {
            let tx = self.store.tenant(self.lock.tenant()).await.expect("a transaction");
            nodes::lock(&tx, self.host).await.map(drop)
        };
        tokio::select! {
            ended = request => panic!("another transaction has the lock: {ended:?}"),
            () = async { while !self.is_waiting(&pid).await {} } => {}
        }
        assert_eq!(self.pid().await, pid, "the connection went back to the pool");
        assert!(!self.is_waiting(&pid).await);
    }
}

#[tokio::test]
async fn the_statement_of_a_dropped_transaction_is_cancelled() {
    let locked = LockedNode::new().await;
    locked.drop_waiting_transaction().await;
    let LockedNode { lock, store, host, .. } = locked;
    let tenant = lock.tenant();
    drop(lock);
    let tx = store.tenant(tenant).await.expect("a transaction");
    nodes::lock(&tx, host).await.expect("the connection works");
}

/// The statement may fail or have no effect yet.
#[tokio::test]
async fn a_transaction_with_a_dropped_statement_is_not_committed() {
    let locked = LockedNode::new().await;
    let tx = locked.store.tenant(locked.lock.tenant()).await.expect("a transaction");
    assert!(drop_after_polls(nodes::lock(&tx, locked.host), 1).await.is_none(), "it waits");

    tx.commit().await.expect_err("a statement has no answer");

    // Waits for the only connection.
    locked.pid().await;
}

/// The database or a firewall closes a connection that is idle for long.
#[tokio::test]
async fn statements_are_cancelled_also_after_the_connection_for_it_was_closed() {
    let locked = LockedNode::new().await;
    locked.drop_waiting_transaction().await;
    let sql = "SELECT count(pg_terminate_backend(pid, 60000))::text FROM pg_stat_activity \
               WHERE query LIKE 'SELECT pg_cancel_backend%' AND datname = current_database()";
    assert_eq!(query_text(&locked.holder, sql).await, "1");
    locked.drop_waiting_transaction().await;
}

#[tokio::test]
async fn work_of_a_share_gets_a_connection_while_another_share_is_in_use() {
    let url = fresh_database().await;
    let options = StoreOptions {
        max_connections: 8,
        shares: Some(ShareSizes { nodes: 3, rest_reads: 2, rest_writes: 2, logins: 1 }),
        acquire_timeout: Duration::from_secs(1),
        ..StoreOptions::default()
    };
    let store = Store::connect(&url, options).await.expect("connected");
    let ours = create_project(&store, "ours").await;
    let theirs = create_project(&store, "theirs").await;
    let with_share = |share, caller| store.with_share(share, Some(caller));
    let reads = |caller| with_share(ConnectionShare::RestReads, caller);

    let first = reads("one").tenant(ours).await.expect("a connection");
    for (caller, tenant, expected) in
        [("two", ours, ShareLimit::PerProject), ("one", theirs, ShareLimit::PerCaller)]
    {
        let refused = reads(caller).tenant(tenant).await;
        assert!(
            matches!(refused, Err(StoreError::ShareInUse { limit, .. }) if limit == expected),
            "{refused:?}"
        );
    }
    let second = reads("two").tenant(theirs).await.expect("a connection");
    let refused = reads("three").fleet().await;
    assert!(
        matches!(refused, Err(StoreError::ShareInUse { limit: ShareLimit::Total, .. })),
        "{refused:?}"
    );
    store.tenant(ours).await.expect("a connection of the nodes");
    let writes = with_share(ConnectionShare::RestWrites, "one");
    writes.tenant(ours).await.expect("a connection of the writes");

    drop(first);
    let mut long_list = reads("one").tenant(ours).await.expect("a connection");
    long_list.release_share();
    let third =
        reads("three").tenant(ours).await.expect("the connection that the long list leaves");
    drop((second, third, long_list));
}

#[tokio::test]
async fn the_rest_api_uses_other_connections_than_nodes() {
    let options = StoreOptions {
        max_connections: 5,
        shares: Some(ShareSizes { nodes: 1, rest_reads: 1, rest_writes: 1, logins: 1 }),
        ..StoreOptions::default()
    };
    let store = Store::connect(&fresh_database().await, options).await.expect("connected");
    assert_eq!(store.pool_usage().open, 2, "both pools are connected");
    let mut pids = [BTreeSet::new(), BTreeSet::new()];
    for _ in 0..5 {
        for (group, share) in [
            (0, ConnectionShare::Nodes),
            (1, ConnectionShare::RestReads),
            (1, ConnectionShare::RestWrites),
            (1, ConnectionShare::Logins),
        ] {
            let store = store.with_share(share, Some("one"));
            pids[group].insert(query_text(&store, "SELECT pg_backend_pid()::text").await);
        }
    }
    let [nodes, rest] = pids;
    assert!(nodes.is_disjoint(&rest), "{nodes:?} {rest:?}");
    let usage = store.pool_usage();
    assert_eq!(usage.max, 5);
    assert_eq!(usize::try_from(usage.open), Ok(nodes.len() + rest.len()));
    store.close().await;
    assert_eq!(store.pool_usage().open, 0);
}

/// Nodes that were removed call for as long as they exist.
#[tokio::test]
async fn the_check_of_a_lost_host_takes_a_connection_of_the_nodes() {
    let options = StoreOptions {
        max_connections: 5,
        shares: Some(ShareSizes { nodes: 1, rest_reads: 1, rest_writes: 1, logins: 1 }),
        acquire_timeout: Duration::from_secs(1),
        ..StoreOptions::default()
    };
    let store = Store::connect(&fresh_database().await, options).await.expect("connected");
    let tenant = create_project(&store, "ours").await;
    let (host, _) = create_node(&store, tenant, 1).await;
    let connection = store.fleet().await.expect("the only one of the nodes");
    let refused = store.protect_ids_after(host.id).await;
    assert!(matches!(refused, Err(StoreError::Unreachable(_))), "{refused:?}");
    drop(connection);
    store.protect_ids_after(host.id).await.expect("a connection");
}
