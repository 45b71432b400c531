//! Which host a token of one of the ancestor's nodes speaks for.

use chrono::TimeDelta;
use evenkeel_domain::id::HostId;
use evenkeel_domain::tenant::TenantId;
use evenkeel_store::testing::fresh_store;
use evenkeel_store::{Store, StoreError, hosts, node_tokens};
use futures_util::future::join_all;

use crate::house::{NOON, project, registration};

const HOUR: TimeDelta = TimeDelta::hours(1);

async fn host(store: &Store, tenant: TenantId, n: u128) -> HostId {
    let tx = store.tenant(tenant).await.expect("a transaction");
    let host = hosts::register(&tx, &registration(n), NOON).await;
    tx.commit().await.expect("committed");
    host.expect("a host").id
}

async fn bind(store: &Store, tenant: TenantId, token: u8, host: HostId) -> HostId {
    let tx = store.tenant(tenant).await.expect("a transaction");
    let bound = node_tokens::bind(&tx, &[token; 32], host, NOON + HOUR, NOON).await;
    tx.commit().await.expect("committed");
    bound.expect("an answer")
}

#[tokio::test]
async fn a_token_belongs_to_the_host_that_used_it_first() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let (one, another) = (host(&store, tenant, 1).await, host(&store, tenant, 2).await);
    assert_eq!(bind(&store, tenant, 7, one).await, one);
    assert_eq!(bind(&store, tenant, 7, one).await, one);
    assert_eq!(bind(&store, tenant, 7, another).await, one);
    assert_eq!(bind(&store, tenant, 8, another).await, another);
    // Tokens of other projects are others.
    let theirs = project(&store, "theirs").await;
    let host = host(&store, theirs, 1).await;
    assert_eq!(bind(&store, theirs, 7, host).await, host);
}

#[tokio::test]
async fn of_several_who_use_a_token_at_once_one_is_the_first() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let mut hosts = Vec::new();
    for n in 1..=6 {
        hosts.push(host(&store, tenant, n).await);
    }
    let bound = join_all(hosts.iter().map(|host| bind(&store, tenant, 7, *host))).await;
    assert!(bound.iter().all(|host| *host == bound[0]), "{bound:?}");
}

#[tokio::test]
async fn a_token_is_forgotten_with_its_host_and_when_it_has_expired() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let (one, another) = (host(&store, tenant, 1).await, host(&store, tenant, 2).await);
    bind(&store, tenant, 7, one).await;
    bind(&store, tenant, 8, another).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    hosts::delete(&tx, one).await.expect("deleted");
    let found = node_tokens::find(&tx, &[7; 32]).await.expect("an answer");
    assert_eq!(found, None);
    tx.commit().await.expect("committed");

    let clean = async |before| {
        let tx = store.fleet().await.expect("a transaction");
        let removed = node_tokens::clean(&tx, before, 10).await.expect("cleaned");
        tx.commit().await.expect("committed");
        removed
    };
    assert_eq!(clean(NOON + HOUR).await, 0);
    assert_eq!(clean(NOON + HOUR * 2).await, 1);
    assert_eq!(clean(NOON + HOUR * 2).await, 0);
}

#[tokio::test]
async fn there_must_be_a_host() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let nobody = HostId::nth(1);
    let refused = node_tokens::bind(&tx, &[7; 32], nobody, NOON + HOUR, NOON).await;
    assert!(
        matches!(refused, Err(StoreError::Conflict(_))),
        "{refused:?}"
    );
}
