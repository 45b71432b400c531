//! A database that stops answering while a process starts.

use std::collections::VecDeque;

use futures_util::future::join_all;

use super::*;

const ALL_ANSWERS: usize = usize::MAX;

/// The first answers of a connection: to the login, to the statement that sets the settings of the
/// session, to the one that reads them back, and to the check whether the database was restored.
#[tokio::test]
async fn the_first_connection_fails_if_the_database_stops_answering() {
    let cases = [
        (0, "cannot log in to the database"),
        (1, "cannot apply the settings of a session"),
        (2, "cannot apply the settings of a session"),
        (3, "cannot check whether the database was restored"),
    ];
    join_all(cases.map(|(answers, expected)| assert_connection_fails(answers, expected))).await;
}

async fn assert_connection_fails(answers: usize, expected: &str) {
    let direct = fresh_database().await;
    let (proxy, limits) = Proxy::limiting_answers(&direct).await;
    let options = StoreOptions {
        acquire_timeout: Duration::from_millis(200),
        first_connection_timeout: Duration::from_secs(2),
        ..StoreOptions::default()
    };
    let connect = async || {
        // More than the connection of the pool, and the one that finds out why the pool has none.
        *limits.lock().expect("a lock") = VecDeque::from([answers; 8]);
        let connected = Store::connect(&proxy.url(&direct), options.clone()).await;
        connected.expect_err("no answer")
    };
    assert_silence(expected, connect).await;
}

/// A migration opens two connections. The first three answers of each are those to the login and to
/// the two statements about the settings. The fourth one of the observer is that to the lock of the
/// migration. The fourth one of the other connection is that to the check whether the database was
/// restored; the tenth is one to the search for missing steps.
#[tokio::test]
async fn a_migration_fails_if_the_database_stops_answering() {
    let cases = [
        ([3, ALL_ANSWERS], "cannot take the lock of the migration"),
        ([ALL_ANSWERS, 4], "cannot limit the waits for locks"),
        ([4, 10], "cannot check what the migration waits for"),
        ([ALL_ANSWERS, 10], "cannot complete the search for missing steps"),
    ];
    join_all(cases.map(|(answers, expected)| assert_migration_fails(answers, expected))).await;
}

async fn assert_migration_fails(answers: [usize; 2], expected: &str) {
    let direct = fresh_database().await;
    let (proxy, limits) = Proxy::limiting_answers(&direct).await;
    let store = impatient_store(&proxy.url(&direct)).await;
    let migrate = async || {
        *limits.lock().expect("a lock") = VecDeque::from(answers);
        let migrated = store.migrate_within(Duration::from_secs(20)).await;
        migrated.expect_err("no answer")
    };
    assert_silence(expected, migrate).await;
    limits.lock().expect("a lock").clear();
    until("the lock of the migration is free", async || store.migrate().await.ok()).await;
}

/// On a busy machine, the time may be over before the last answer, so the attempt is repeated.
async fn assert_silence(expected: &str, mut attempt: impl AsyncFnMut() -> StoreError) {
    let mut others = Vec::new();
    for _ in 0..10 {
        let failed = tokio::time::timeout(Duration::from_mins(1), attempt()).await;
        let error = failed.expect(expected);
        let text = evenkeel_kit::chain(&error).to_string();
        if text.contains(expected) {
            assert!(matches!(error, StoreError::Unreachable(_)), "{error:?}");
            assert!(text.contains("the database has not answered for"), "{text}");
            return;
        }
        others.push(text);
    }
    panic!("none of these is {expected:?}: {others:#?}");
}
