//! Users who log in with a password.

use chrono::TimeDelta;
use evenkeel_kit::Secret;
use evenkeel_store::operator_tokens::{self, OperatorToken};
use evenkeel_store::testing::fresh_store;
use evenkeel_store::users::{self, StoredUser, UserLogin};
use evenkeel_store::{FleetTx, StoreError};
use uuid::Uuid;

use crate::fixtures::NOON;

const HOUR: TimeDelta = TimeDelta::hours(1);

fn login(hash: &str, roles: &[&str]) -> UserLogin {
    UserLogin {
        password_hash: Secret::new(hash),
        roles: roles.iter().map(|role| (*role).to_owned()).collect(),
    }
}

async fn create(tx: &FleetTx, name: &str, roles: &[&str]) -> StoredUser {
    let created = users::create(tx, name, &login("hash", roles), "root", NOON).await;
    created.expect("an answer").expect("a new name")
}

#[tokio::test]
async fn a_user_is_created_once_and_listed_by_name() {
    let store = fresh_store().await;
    let tx = store.fleet().await.expect("a transaction");
    let bob = create(&tx, "bob", &["evenkeel-admin"]).await;
    let alice = create(&tx, "alice", &["evenkeel-admin"]).await;
    assert_eq!((alice.created_by.as_str(), alice.disabled_at), ("root", None));
    let again = users::create(&tx, "bob", &login("other", &["x"]), "mallory", NOON + HOUR).await;
    assert_eq!(again.expect("an answer"), None);
    assert_eq!(users::list(&tx).await.expect("listed"), [alice, bob.clone()]);
    assert_eq!(users::lock(&tx, "bob").await.expect("the user"), bob);
    let debug_text = format!("{:?}", users::find_login(&tx, "bob").await.expect("an answer"));
    assert!(debug_text.contains("[secret]"), "{debug_text}");
}

#[tokio::test]
async fn a_disabled_user_has_no_login_until_it_is_enabled() {
    let store = fresh_store().await;
    let tx = store.fleet().await.expect("a transaction");
    create(&tx, "alice", &["evenkeel-admin"]).await;
    let hash = async || {
        let login = users::find_login(&tx, "alice").await.expect("an answer");
        login.map(|login| login.password_hash.reveal().to_owned())
    };
    assert_eq!(hash().await.as_deref(), Some("hash"));
    let is_disabled = async |name: &str| users::is_disabled(&tx, name).await.expect("an answer");
    assert_eq!((is_disabled("alice").await, is_disabled("bob").await), (Some(false), None));
    // The first time counts.
    for now in [NOON + HOUR, NOON + HOUR * 2] {
        let user = users::set_disabled(&tx, "alice", true, now).await.expect("disabled");
        assert_eq!((user.disabled_at, user.updated_at), (Some(NOON + HOUR), NOON + HOUR));
    }
    assert_eq!(hash().await, None);
    assert_eq!(is_disabled("alice").await, Some(true));
    let now = NOON + HOUR * 3;
    let user = users::set_disabled(&tx, "alice", false, now).await.expect("enabled");
    assert_eq!((user.disabled_at, user.updated_at), (None, now));
    users::set_password(&tx, "alice", &Secret::new("new"), now).await.expect("set");
    assert_eq!(hash().await.as_deref(), Some("new"));
    let roles = vec!["other".to_owned()];
    let user = users::set_roles(&tx, "alice", roles.clone(), now).await.expect("set");
    assert_eq!(user.roles, roles);
    users::delete(&tx, "alice").await.expect("deleted");
    assert_eq!(hash().await, None);
}

#[tokio::test]
async fn another_user_with_a_role_counts_while_it_is_enabled() {
    let store = fresh_store().await;
    let tx = store.fleet().await.expect("a transaction");
    create(&tx, "alice", &["evenkeel-admin"]).await;
    create(&tx, "bob", &["other", "evenkeel-admin"]).await;
    create(&tx, "carol", &["other"]).await;
    let has_other = async |name: &str| {
        users::has_other_with_role(&tx, name, "evenkeel-admin").await.expect("an answer")
    };
    assert!(has_other("alice").await && has_other("carol").await);
    users::set_disabled(&tx, "bob", true, NOON).await.expect("disabled");
    assert!(!has_other("alice").await);
    assert!(has_other("bob").await);
}

/// A recorded token has the roles that its administrator gave it.
#[tokio::test]
async fn a_token_of_a_login_has_at_most_the_roles_of_its_user() {
    let store = fresh_store().await;
    let tx = store.fleet().await.expect("a transaction");
    create(&tx, "alice", &["one", "two"]).await;
    let token = OperatorToken {
        id: Uuid::from_u128(1),
        subject: "alice".to_owned(),
        roles: vec!["evenkeel-admin".to_owned()],
        issued_at: NOON,
        expires_at: NOON + HOUR,
        revoked_at: None,
        revoked_by: None,
        name: None,
        project: None,
        last_used_at: None,
    };
    operator_tokens::record(&tx, &token).await.expect("recorded");
    for (name, id, expected) in [
        ("alice", 2, Some(vec!["one".to_owned(), "two".to_owned()])),
        ("alice", 1, None),
        ("bob", 2, None),
    ] {
        let roles = users::lock_login_roles(&tx, name, Uuid::from_u128(id)).await;
        assert_eq!(roles.expect("an answer"), expected, "{name} {id}");
    }
}

#[tokio::test]
async fn a_missing_user_is_not_found() {
    let store = fresh_store().await;
    let tx = store.fleet().await.expect("a transaction");
    let hash = Secret::new("hash");
    let results = [
        users::lock(&tx, "nobody").await.map(drop),
        users::set_password(&tx, "nobody", &hash, NOON).await.map(drop),
        users::set_roles(&tx, "nobody", Vec::new(), NOON).await.map(drop),
        users::set_disabled(&tx, "nobody", true, NOON).await.map(drop),
        users::delete(&tx, "nobody").await,
    ];
    for result in results {
        assert!(matches!(result, Err(StoreError::NotFound { .. })), "{result:?}");
    }
}
