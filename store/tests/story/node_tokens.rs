//! Bindings of external tokens to hosts.

use chrono::TimeDelta;
use evenkeel_domain::id::HostId;
use evenkeel_domain::tenant::TenantId;
use evenkeel_store::node_tokens::NodeToken;
use evenkeel_store::{Store, StoreError, hosts, node_tokens};
use futures_util::future::join_all;

use crate::fixtures::{NOON, create_project, registration, store_with_project};

const HOUR: TimeDelta = TimeDelta::hours(1);

async fn register_host(store: &Store, tenant: TenantId, n: u128) -> HostId {
    let tx = store.tenant(tenant).await.expect("a transaction");
    let host = hosts::register(&tx, &registration(n), NOON).await;
    tx.commit().await.expect("committed");
    host.expect("a host").id
}

async fn bind(store: &Store, tenant: TenantId, token: u8, host: HostId) -> HostId {
    bind_with_subject(store, tenant, (token, None), host).await
}

async fn bind_with_subject(
    store: &Store,
    tenant: TenantId,
    (token, subject): (u8, Option<u8>),
    host: HostId,
) -> HostId {
    let tx = store.tenant(tenant).await.expect("a transaction");
    let token = node_token(token, subject);
    let bound = node_tokens::bind(&tx, &token, host, NOON).await;
    tx.commit().await.expect("committed");
    bound.expect("an answer")
}

fn node_token(token: u8, subject: Option<u8>) -> NodeToken {
    NodeToken {
        digest: [token; 32],
        subject: subject.map(|subject| [subject; 32]),
        expires_at: NOON + HOUR,
    }
}

#[tokio::test]
async fn a_subject_belongs_to_the_host_that_used_it_first() {
    let (store, tenant) = store_with_project().await;
    let (one, another) =
        (register_host(&store, tenant, 1).await, register_host(&store, tenant, 2).await);
    let bind = async |token, subject, host| {
        bind_with_subject(&store, tenant, (token, Some(subject)), host).await
    };
    assert_eq!(bind(1, 7, one).await, one);
    assert_eq!(bind(2, 7, one).await, one);
    assert_eq!(bind(3, 7, another).await, one, "the next token of the same subject");
    assert_eq!(bind(3, 7, another).await, one, "it is bound now");
    assert_eq!(bind(4, 8, another).await, another);
    // A subject of another project has its own binding.
    let theirs = create_project(&store, "theirs").await;
    let host = register_host(&store, theirs, 1).await;
    assert_eq!(bind_with_subject(&store, theirs, (5, Some(7)), host).await, host);

    let tx = store.tenant(tenant).await.expect("a transaction");
    hosts::delete(&tx, one).await.expect("deleted");
    tx.commit().await.expect("committed");
    assert_eq!(bind(6, 7, another).await, another, "its host was deleted");
}

#[tokio::test]
async fn concurrent_tokens_bind_a_subject_to_one_host() {
    let (store, tenant) = store_with_project().await;
    let mut uses = Vec::new();
    for n in 1..=6_u8 {
        uses.push((n, register_host(&store, tenant, n.into()).await));
    }
    let bound =
        uses.iter().map(|(n, host)| bind_with_subject(&store, tenant, (*n, Some(7)), *host));
    let bound = join_all(bound).await;
    assert!(bound.iter().all(|host| *host == bound[0]), "{bound:?}");
}

#[tokio::test]
async fn a_token_belongs_to_the_host_that_used_it_first() {
    let (store, tenant) = store_with_project().await;
    let (one, another) =
        (register_host(&store, tenant, 1).await, register_host(&store, tenant, 2).await);
    assert_eq!(bind(&store, tenant, 7, one).await, one);
    assert_eq!(bind(&store, tenant, 7, one).await, one);
    assert_eq!(bind(&store, tenant, 7, another).await, one);
    assert_eq!(bind(&store, tenant, 8, another).await, another);
    // A token of another project has its own binding.
    let theirs = create_project(&store, "theirs").await;
    let host = register_host(&store, theirs, 1).await;
    assert_eq!(bind(&store, theirs, 7, host).await, host);
}

#[tokio::test]
async fn concurrent_uses_bind_a_token_to_one_host() {
    let (store, tenant) = store_with_project().await;
    let mut hosts = Vec::new();
    for n in 1..=6 {
        hosts.push(register_host(&store, tenant, n).await);
    }
    let bound = join_all(hosts.iter().map(|host| bind(&store, tenant, 7, *host))).await;
    assert!(bound.iter().all(|host| *host == bound[0]), "{bound:?}");
}

#[tokio::test]
async fn a_binding_is_deleted_with_its_host_and_after_its_expiry() {
    let (store, tenant) = store_with_project().await;
    let (one, another) =
        (register_host(&store, tenant, 1).await, register_host(&store, tenant, 2).await);
    bind(&store, tenant, 7, one).await;
    bind(&store, tenant, 8, another).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    hosts::delete(&tx, one).await.expect("deleted");
    let binding = node_tokens::find(&tx, &[7; 32]).await.expect("an answer");
    assert_eq!(binding, None);
    tx.commit().await.expect("committed");

    let clean = async |before| {
        let tx = store.fleet().await.expect("a transaction");
        let removed = node_tokens::delete_expired(&tx, before, 10).await.expect("cleaned");
        tx.commit().await.expect("committed");
        removed
    };
    assert_eq!(clean(NOON + HOUR).await, 0);
    assert_eq!(clean(NOON + HOUR * 2).await, 1);
    assert_eq!(clean(NOON + HOUR * 2).await, 0);
}

#[tokio::test]
async fn a_binding_needs_a_host() {
    let (store, tenant) = store_with_project().await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let missing = HostId::nth(1);
    let refused = node_tokens::bind(&tx, &node_token(7, None), missing, NOON).await;
    assert!(matches!(refused, Err(StoreError::Conflict(_))), "{refused:?}");
    drop(tx);
    let tx = store.tenant(tenant).await.expect("a transaction");
    let refused = node_tokens::bind(&tx, &node_token(7, Some(1)), missing, NOON).await;
    assert!(matches!(refused, Err(StoreError::Conflict(_))), "{refused:?}");
}
