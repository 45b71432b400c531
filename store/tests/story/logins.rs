//! Logins that refresh tokens continue.

use chrono::TimeDelta;
use evenkeel_domain::Time;
use evenkeel_store::logins::LoginRefresh;
use evenkeel_store::operator_tokens::RevokedSubject;
use evenkeel_store::testing::fresh_store;
use evenkeel_store::{Store, logins, operator_tokens};
use futures_util::future::join_all;
use uuid::Uuid;

use crate::fixtures::NOON;

const LOGIN: Uuid = Uuid::from_u128(7);
const WEEK: TimeDelta = TimeDelta::days(7);

async fn store_with_login() -> Store {
    let store = fresh_store().await;
    let tx = store.fleet().await.expect("a transaction");
    logins::begin(&tx, LOGIN, "alice", NOON + WEEK, NOON).await.expect("begun");
    tx.commit().await.expect("committed");
    store
}

async fn refresh(store: &Store, generation: u32, now: Time) -> LoginRefresh {
    let tx = store.fleet().await.expect("a transaction");
    let refreshed = logins::refresh(&tx, LOGIN, generation, now).await.expect("an answer");
    tx.commit().await.expect("committed");
    refreshed
}

fn seconds(seconds: i64) -> Time {
    NOON + TimeDelta::seconds(seconds)
}

#[tokio::test]
async fn each_refresh_replaces_the_token() {
    let store = store_with_login().await;
    assert_eq!(refresh(&store, 0, NOON).await, LoginRefresh::Continued(1));
    assert_eq!(refresh(&store, 1, seconds(60)).await, LoginRefresh::Continued(2));
    assert_eq!(refresh(&store, 2, seconds(120)).await, LoginRefresh::Continued(3));
}

#[tokio::test]
async fn a_refresh_whose_answer_was_lost_can_be_repeated_for_30_seconds() {
    let store = store_with_login().await;
    assert_eq!(refresh(&store, 0, NOON).await, LoginRefresh::Continued(1));
    assert_eq!(refresh(&store, 0, seconds(30)).await, LoginRefresh::Continued(1));
    assert_eq!(refresh(&store, 1, seconds(30)).await, LoginRefresh::Continued(2));
}

#[tokio::test]
async fn the_reuse_of_a_replaced_token_ends_the_login() {
    for (late, last) in [(31, 1), (1, 2)] {
        let store = store_with_login().await;
        for generation in 0..last {
            refresh(&store, generation, NOON).await;
        }
        assert_eq!(refresh(&store, 0, seconds(late)).await, LoginRefresh::Reused, "{late} s");
        // The current token is lost as well: it is not known who has it.
        assert_eq!(refresh(&store, last, seconds(late)).await, LoginRefresh::Ended);
        assert_eq!(refresh(&store, 0, seconds(late)).await, LoginRefresh::Ended);
    }
}

#[tokio::test]
async fn simultaneous_refreshes_continue_a_login_once() {
    let store = store_with_login().await;
    let all = join_all((0..6).map(|_| refresh(&store, 0, NOON))).await;
    assert!(all.iter().all(|one| *one == LoginRefresh::Continued(1)), "{all:?}");
}

#[tokio::test]
async fn an_unknown_or_expired_login_has_ended() {
    let store = store_with_login().await;
    assert_eq!(refresh(&store, 0, NOON + WEEK).await, LoginRefresh::Ended);
    // A token that is newer than the database: a backup was restored.
    assert_eq!(refresh(&store, 5, NOON).await, LoginRefresh::Ended);
    assert_eq!(refresh(&store, u32::MAX, NOON).await, LoginRefresh::Ended);
    assert_eq!(refresh(&store, 0, NOON).await, LoginRefresh::Continued(1), "it was not ended");

    let is_open = async |id, now| {
        let tx = store.fleet().await.expect("a transaction");
        logins::is_open(&tx, id, now).await.expect("an answer")
    };
    assert!(is_open(LOGIN, NOON).await);
    assert!(!is_open(LOGIN, NOON + WEEK).await);
    assert!(!is_open(Uuid::from_u128(8), NOON).await);

    let clean = async |before| {
        let tx = store.fleet().await.expect("a transaction");
        let removed = logins::delete_expired(&tx, before, 10).await.expect("cleaned");
        tx.commit().await.expect("committed");
        removed
    };
    assert_eq!(clean(NOON + WEEK).await, 0);
    assert_eq!(clean(NOON + WEEK * 2).await, 1);
    assert_eq!(refresh(&store, 1, NOON).await, LoginRefresh::Ended);
}

#[tokio::test]
async fn a_revoked_subject_loses_its_logins() {
    let store = store_with_login().await;
    for (issuer, subject, expected) in [
        ("https://login.example", "alice", LoginRefresh::Continued(1)),
        ("", "bob", LoginRefresh::Continued(2)),
        ("", "alice", LoginRefresh::Ended),
    ] {
        let tx = store.fleet().await.expect("a transaction");
        let revoked = RevokedSubject {
            issuer: issuer.to_owned(),
            subject: subject.to_owned(),
            revoked_until: NOON,
        };
        operator_tokens::revoke_subject(&tx, &revoked, "admin").await.expect("revoked");
        tx.commit().await.expect("committed");
        let generation = match expected {
            LoginRefresh::Continued(next) => next - 1,
            _ => 2,
        };
        assert_eq!(refresh(&store, generation, NOON).await, expected, "{issuer} {subject}");
        let tx = store.fleet().await.expect("a transaction");
        let is_open = logins::is_open(&tx, LOGIN, NOON).await.expect("an answer");
        assert_eq!(is_open, expected != LoginRefresh::Ended, "{issuer} {subject}");
    }
}

#[tokio::test]
async fn the_records_of_a_subject_include_its_logins() {
    let store = store_with_login().await;
    let tx = store.fleet().await.expect("a transaction");
    for (subject, expected) in [("alice", true), ("bob", false)] {
        let recorded = operator_tokens::has_records(&tx, subject).await.expect("an answer");
        assert_eq!(recorded, expected, "{subject}");
    }
}
