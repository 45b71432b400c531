//! The change log after a restore, on another server, and after a restart.

use super::*;

#[tokio::test]
async fn a_database_that_went_back_in_time_is_detected() {
    let (store, tenant) = store_with_project().await;
    let mut reader = open_reader(&store).await;
    for n in 1..=3 {
        register_host(&store, tenant, n).await;
    }
    catch_up(&mut reader).await;
    let back = "ALTER TABLE change_log ALTER COLUMN seq RESTART";
    execute_sql(&store, back).await;
    assert_eq!(expect_break(&mut reader).await, LogBreak::Backwards);
}

/// A backup restored on another server contains transaction ids that this server has not reached.
#[tokio::test]
async fn a_log_from_another_server_can_be_followed_from_its_end() {
    let (store, tenant) = store_with_project().await;
    let mut reader = open_reader(&store).await;
    let ahead = "UPDATE log_state SET floor_xid = '9000000000000', floor_seq = 1";
    execute_sql(&store, ahead).await;
    assert_eq!(expect_break(&mut reader).await, LogBreak::Pruned);
    let mut reader = open_reader(&store).await;
    let host = register_host(&store, tenant, 1).await;
    assert_eq!(created_hosts(&catch_up(&mut reader).await), [host]);

    // Old changes from the backup are pruned, and no reader is disturbed.
    let restored = "INSERT INTO change_log (tenant_id, xid, kind, id, operation) \
                    SELECT tenant_id, '9000000000000'::xid8, kind, id, operation FROM change_log";
    execute_sql(&store, restored).await;
    assert_eq!(catch_up(&mut reader).await, []);
    assert_eq!(prune(&store, Time::UNIX_EPOCH, 100).await, 0);
    while prune(&store, FAR_FUTURE, 2).await > 0 {}
    let none = "DO $$ BEGIN IF EXISTS (SELECT FROM change_log) THEN RAISE 'changes are left'; END IF; END $$";
    execute_sql(&store, none).await;
    let host = register_host(&store, tenant, 2).await;
    assert_eq!(created_hosts(&catch_up(&mut reader).await), [host]);
}

#[tokio::test]
async fn a_restarted_server_is_detected() {
    let folder = tempfile::tempdir().expect("a folder");
    // The user of Postgres needs access to the folder.
    let open_to_all = fs::Permissions::from_mode(0o711);
    fs::set_permissions(folder.path(), open_to_all).expect("changed");
    let options = Options::for_tests(folder.path().join("postgres")).durable(true);
    let postgres = PrivatePostgres::start(options.clone()).await;
    let postgres = postgres.expect("a Postgres");
    let store = Store::connect(&postgres.url(), StoreOptions::default()).await;
    let store = store.expect("connected");
    store.migrate().await.expect("migrated");
    let mut reader = open_reader(&store).await;
    create_project(&store, "ours").await;
    assert!(!catch_up(&mut reader).await.is_empty());

    postgres.stop().await;
    for _ in 0..2 {
        let away = reader.next(100).await;
        assert!(matches!(away, Err(LogError::Store(StoreError::Unreachable(_)))), "{away:?}");
    }
    let postgres = PrivatePostgres::start(options).await;
    let postgres = postgres.expect("the same Postgres");
    assert_eq!(expect_break(&mut reader).await, LogBreak::OtherServer);
    postgres.stop().await;
}
