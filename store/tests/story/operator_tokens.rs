//! Tokens of operators, and the revoked ones.

use chrono::TimeDelta;
use evenkeel_domain::Time;
use evenkeel_domain::tenant::TenantId;
use evenkeel_store::operator_tokens::{self, OperatorToken, RevokedSubject, RevokedTokens};
use evenkeel_store::testing::{fresh_store, tenant_rows};
use evenkeel_store::{Actor, Store, StoreError};
use uuid::Uuid;

use crate::fixtures::{NOON, create_project};

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
        name: None,
        project: None,
        last_used_at: None,
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
    let mut revoked = operator_tokens::load_revoked(store).await.expect("loaded");
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
async fn a_name_is_used_while_its_token_is_valid() {
    let store = fresh_store().await;
    let (ours, theirs) =
        (create_project(&store, "ours").await, create_project(&store, "theirs").await);
    let named = OperatorToken {
        name: Some("nightly".to_owned()),
        project: Some(ours),
        ..token(1, "alice")
    };
    let tx = store.fleet().await.expect("a transaction");
    operator_tokens::record(&tx, &named).await.expect("recorded");
    for (project, name, now, expected) in [
        (ours, "nightly", NOON, true),
        (ours, "nightly", NOON + HOUR, false),
        (ours, "other", NOON, false),
        (theirs, "nightly", NOON, false),
    ] {
        let used = operator_tokens::is_name_used(&tx, project, name, now).await;
        assert_eq!(used.expect("an answer"), expected, "{name} at {now}");
    }
    assert_eq!(operator_tokens::find(&tx, named.id).await.expect("the token"), named);
    operator_tokens::revoke(&tx, named.id, "carol", NOON).await.expect("revoked");
    let used = operator_tokens::is_name_used(&tx, ours, "nightly", NOON).await;
    assert!(!used.expect("an answer"));
    let missing = TenantId::new(Uuid::from_u128(9));
    let missing = operator_tokens::is_name_used(&tx, missing, "nightly", NOON).await;
    assert!(matches!(missing, Err(StoreError::NotFound { .. })), "{missing:?}");
}

#[tokio::test]
async fn a_use_is_recorded_once_a_minute() {
    let store = store_with_tokens().await;
    let tx = store.fleet().await.expect("a transaction");
    let (id, unknown) = (Uuid::from_u128(2), Uuid::from_u128(9));
    let second = TimeDelta::seconds(1);
    for (at, expected) in [
        (NOON, Some(NOON)),
        (NOON + second * 59, Some(NOON)),
        (NOON + second * 60, Some(NOON + second * 60)),
        (NOON, Some(NOON + second * 60)),
    ] {
        let uses = vec![(unknown, at), (id, at)];
        operator_tokens::record_uses(&tx, uses).await.expect("recorded");
        let token = operator_tokens::find(&tx, id).await.expect("the token");
        assert_eq!(token.last_used_at, expected, "after a use at {at}");
    }
}

/// A use, and the removal of an expired token, are no changes by a user.
#[tokio::test]
async fn the_creation_and_the_revocation_of_a_token_are_in_the_change_log() {
    let store = fresh_store().await;
    let ours = create_project(&store, "ours").await;
    let actor = Actor {
        name: "carol".to_owned(),
        request_id: "request-1".to_owned(),
        client_address: "192.0.2.7".to_owned(),
    };
    let named = OperatorToken {
        name: Some("nightly".to_owned()),
        project: Some(ours),
        ..token(1, "alice")
    };
    let tx = store.fleet_as(&actor).await.expect("a transaction");
    operator_tokens::record(&tx, &named).await.expect("recorded");
    operator_tokens::record_uses(&tx, vec![(named.id, NOON)]).await.expect("recorded");
    // The repeated revocation changes nothing.
    for now in [NOON, NOON + HOUR] {
        operator_tokens::revoke(&tx, named.id, "carol", now).await.expect("revoked");
    }
    let deleted = operator_tokens::delete_expired(&tx, NOON + HOUR * 2, 10).await;
    assert_eq!(deleted.expect("deleted"), 1);
    tx.commit().await.expect("committed");
    let rows = tenant_rows(&store, ours).await;
    let of_tokens = rows.iter().filter(|row| row.contains("\"kind\": \"operator_token\""));
    let of_tokens: Vec<_> = of_tokens.collect();
    assert_eq!(of_tokens.len(), 2, "{of_tokens:?}");
    for row in of_tokens {
        assert!(row.contains("\"actor\": \"carol\"") && row.contains("nightly"), "{row}");
        assert!(row.contains("192.0.2.7"), "{row}");
    }
}

#[tokio::test]
async fn a_token_is_revoked_by_its_id_or_by_its_subject_up_to_a_second() {
    let store = store_with_tokens().await;
    let elsewhere = "https://login.example";
    let tx = store.fleet().await.expect("a transaction");
    operator_tokens::revoke(&tx, Uuid::from_u128(2), "carol", NOON).await.expect("revoked");
    let half = TimeDelta::milliseconds(500);
    operator_tokens::revoke_subject(&tx, &subject(elsewhere, "dave", NOON + half), "carol")
        .await
        .expect("revoked");
    let second = TimeDelta::seconds(1);
    for (id, issuer, name, issued_at, expected) in [
        (Some(2), "", "bob", Some(NOON), true),
        (Some(1), "", "alice", Some(NOON), false),
        (Some(9), "", "alice", Some(NOON), false),
        (None, elsewhere, "dave", Some(NOON - second), true),
        (None, elsewhere, "dave", Some(NOON + half * 2 - TimeDelta::milliseconds(1)), true),
        (None, elsewhere, "dave", Some(NOON + second), false),
        (None, elsewhere, "dave", None, true),
        (None, "", "dave", Some(NOON), false),
    ] {
        let id = id.map(Uuid::from_u128);
        let revoked = operator_tokens::is_revoked(&tx, id, (issuer, name), issued_at).await;
        assert_eq!(revoked.expect("an answer"), expected, "{id:?} {issuer} {name} {issued_at:?}");
    }
}

/// The user of another issuer is the subject of the tokens that it created, with its issuer.
#[tokio::test]
async fn tokens_for_automation_are_revoked_with_their_user() {
    let store = fresh_store().await;
    let elsewhere = "https://login.example";
    let tx = store.fleet().await.expect("a transaction");
    let created = token(1, "alice (https://login.example)");
    for token in [&created, &token(2, "alice"), &token(3, "alice (https://other.example)")] {
        operator_tokens::record(&tx, token).await.expect("recorded");
    }
    let alice = subject(elsewhere, "alice", NOON);
    operator_tokens::revoke_subject(&tx, &alice, "carol").await.expect("revoked");
    tx.commit().await.expect("committed");
    assert_eq!(load_revoked(&store).await.ids, [created.id]);
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
