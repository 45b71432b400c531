//! Shares of the connections, and the end of statements that nobody waits for.

use std::time::Duration;

use evenkeel_store::testing::{fresh_database, query_text};
use evenkeel_store::{
    ConnectionShare, ShareLimit, ShareSizes, Store, StoreError, StoreOptions, nodes,
};

use crate::fixtures::{create_node, create_project};

const LONG: Duration = Duration::from_hours(1);

/// Without the cancellation, the only connection would wait for the lock until its timeout.
#[tokio::test]
async fn the_statement_of_a_dropped_transaction_is_cancelled() {
    let url = fresh_database().await;
    let holder = Store::connect(&url, StoreOptions::default()).await.expect("connected");
    let tenant = create_project(&holder, "ours").await;
    let (host, _) = create_node(&holder, tenant, 1).await;
    let lock = holder.tenant(tenant).await.expect("a transaction");
    nodes::lock(&lock, host.id).await.expect("a lock");
    let options = StoreOptions {
        max_connections: 1,
        acquire_timeout: Duration::from_mins(1),
        statement_timeout: LONG,
        lock_timeout: LONG,
        ..StoreOptions::default()
    };
    let store = Store::connect(&url, options).await.expect("connected");
    let pid = query_text(&store, "SELECT pg_backend_pid()::text").await;
    let is_waiting = async || {
        let sql = "SELECT coalesce(string_agg(pid::text, ' '), '') FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
        let waiting = query_text(&holder, sql).await;
        waiting.split(' ').any(|waiting| waiting == pid)
    };

    let request = async {
        let tx = store.tenant(tenant).await.expect("a transaction");
        nodes::lock(&tx, host.id).await.map(drop)
    };
    tokio::select! {
        ended = request => panic!("another transaction has the lock: {ended:?}"),
        () = async { while !is_waiting().await {} } => {}
    }
    let again = query_text(&store, "SELECT pg_backend_pid()::text").await;
    assert_eq!(again, pid, "the connection went back to the pool");
    assert!(!is_waiting().await);
    drop(lock);
    let tx = store.tenant(tenant).await.expect("a transaction");
    nodes::lock(&tx, host.id).await.expect("the connection works");
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
    let third = reads("three").tenant(ours).await.expect("the place of the long list");
    drop((second, third, long_list));
}
