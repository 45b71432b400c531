//! Tokens of operators, and the revoked ones.

use chrono::TimeDelta;
use evenkeel_domain::Time;
use evenkeel_store::operator_tokens::{self, OperatorToken, RevokedSubject, RevokedTokens};
use evenkeel_store::testing::fresh_store;
use evenkeel_store::{Store, StoreError};
use uuid::Uuid;

use crate::fixtures::NOON;

const HOUR: TimeDelta = TimeDelta::hours(1);

fn token(n: u128, subject: &str) -> OperatorToken {
    OperatorToken {
        id: Uuid::from_u128(n),
        subject: subject.to_owned(),
        roles: vec!["evenkeel-admin".to_owned(), "another".to_owned()],
        issued_at: NOON + TimeDelta::seconds(i64::try_from(n).expect("small")),
        expires_at: NOON + HOUR,
        revoked_at: None,
        revoked_by: None,
    }
}

fn subject(issuer: &str, subject: &str, revoked_until: Time) -> RevokedSubject {
    RevokedSubject { issuer: issuer.to_owned(), subject: subject.to_owned(), revoked_until }
}

async fn store_with_tokens() -> Store {
    let store = fresh_store().await;
    let tx = store.fleet().await.expect("a transaction");
    for token in [token(1, "alice"), token(2, "bob"), token(3, "alice")] {
        operator_tokens::record(&tx, &token).await.expect("recorded");
    }
    tx.commit().await.expect("committed");
    store
}

async fn load_revoked(store: &Store) -> RevokedTokens {
    let tx = store.fleet().await.expect("a transaction");
    let mut revoked = operator_tokens::load_revoked(&tx).await.expect("loaded");
    revoked.ids.sort_unstable();
    revoked
}

#[tokio::test]
async fn the_latest_token_is_listed_first() {
    let store = store_with_tokens().await;
    let tx = store.fleet().await.expect("a transaction");
    let listed = operator_tokens::list(&tx).await.expect("listed");
    assert_eq!(listed, [token(3, "alice"), token(2, "bob"), token(1, "alice")]);
}

#[tokio::test]
async fn a_token_is_revoked_once() {
    let store = store_with_tokens().await;
    assert_eq!(load_revoked(&store).await, RevokedTokens::default());
    let id = Uuid::from_u128(2);
    for (by, now) in [("carol", NOON), ("dave", NOON + HOUR)] {
        let tx = store.fleet().await.expect("a transaction");
        let revoked = operator_tokens::revoke(&tx, id, by, now).await.expect("revoked");
        tx.commit().await.expect("committed");
        assert_eq!(revoked.revoked_at, Some(NOON));
        assert_eq!(revoked.revoked_by.as_deref(), Some("carol"));
    }
    assert_eq!(load_revoked(&store).await.ids, [id]);
    let tx = store.fleet().await.expect("a transaction");
    let missing = operator_tokens::revoke(&tx, Uuid::from_u128(9), "carol", NOON).await;
    assert!(matches!(missing, Err(StoreError::NotFound { .. })), "{missing:?}");
}

#[tokio::test]
async fn the_tokens_of_a_subject_are_revoked_up_to_the_latest_time() {
    let store = store_with_tokens().await;
    let elsewhere = "https://login.example";
    for revoked in [
        subject("", "alice", NOON + HOUR),
        subject("", "alice", NOON),
        subject(elsewhere, "bob", NOON),
    ] {
        let tx = store.fleet().await.expect("a transaction");
        operator_tokens::revoke_subject(&tx, &revoked, "carol").await.expect("revoked");
        tx.commit().await.expect("committed");
    }
    let mut revoked = load_revoked(&store).await;
    assert_eq!(revoked.ids, [Uuid::from_u128(1), Uuid::from_u128(3)], "bob's is another issuer's");
    revoked.subjects.sort_by(|one, other| one.issuer.cmp(&other.issuer));
    let expected = [subject("", "alice", NOON + HOUR), subject(elsewhere, "bob", NOON)];
    assert_eq!(revoked.subjects, expected);
}

#[tokio::test]
async fn expired_tokens_are_deleted() {
    let store = store_with_tokens().await;
    let clean = async |before| {
        let tx = store.fleet().await.expect("a transaction");
        let removed = operator_tokens::delete_expired(&tx, before, 2).await.expect("cleaned");
        tx.commit().await.expect("committed");
        removed
    };
    assert_eq!(clean(NOON + HOUR).await, 0);
    assert_eq!(clean(NOON + HOUR * 2).await, 2, "the limit");
    assert_eq!(clean(NOON + HOUR * 2).await, 1);
}
