//! `evenkeeld audit verify`, a second role that owns the tables, and a transaction that delays the
//! seals.

use evenkeel_pg::{Options, PrivatePostgres};

use crate::nodes::metric;
use crate::test_server::{TestServer, eventually, run_postgres_program, sql};

#[tokio::test]
async fn audit_verify_finds_an_altered_change() {
    let harness = TestServer::new();
    let postgres = harness.start_postgres().await;
    let harness = harness.with_env("EVENKEELD_DATABASE__URL", &postgres.url());
    let server = harness.start_and_wait(&["all"]);
    let verify =
        |arguments: &[&str]| harness.start(&[&["audit", "verify"][..], arguments].concat());
    // The first start creates a project.
    eventually("its changes are sealed", || {
        let printed = verify(&[]).expect_success();
        printed.contains("newest seal: ") && !printed.contains("not sealed yet")
    });
    let printed = verify(&[]).expect_success();
    assert!(printed.starts_with("outside of projects: "), "{printed}");
    let printed = verify(&["--project", "default"]).expect_success();
    assert!(printed.starts_with("project default "), "{printed}");
    let digest = printed.trim_end().rsplit(' ').next().unwrap();
    verify(&["--expect", digest]).expect_success();
    let printed = verify(&["--expect", &"0".repeat(64)]).expect_finding();
    assert!(printed.contains("FAULT: no seal has the expected digest 0000"), "{printed}");
    let stderr = verify(&["--expect", "abc"]).expect_failure();
    assert!(stderr.contains("64 hexadecimal digits"), "{stderr}");
    let stderr = verify(&["--project", "unheard-of"]).expect_failure();
    assert!(stderr.contains("cannot find the project \"unheard-of\""), "{stderr}");
    server.stop();

    let admin = postgres.admin_url().replacen("/postgres?", "/evenkeel?", 1);
    sql(
        &admin,
        "ALTER TABLE change_log DISABLE TRIGGER refuse_change; UPDATE change_log SET request_id = 'forged'; \
         ALTER TABLE change_log ENABLE TRIGGER refuse_change",
    );
    let printed = verify(&[]).expect_finding();
    assert!(printed.contains("  FAULT: changes of "), "{printed}");
    assert!(printed.ends_with("the change log was altered\n"), "{printed}");
    postgres.stop().await;
}

#[tokio::test]
async fn the_role_that_migrates_must_be_another_one() {
    let harness = TestServer::new();
    let postgres = harness.start_postgres().await;
    let harness = harness.with_env("EVENKEELD_DATABASE__MIGRATION_URL", &postgres.url());
    let stderr = harness.start(&["migrate"]).expect_failure();
    assert!(stderr.contains("database.migration_url needs database.url"), "{stderr}");
    let stderr = harness.start(&["check"]).expect_failure();
    assert!(stderr.contains("database.migration_url needs database.url"), "{stderr}");
    let harness = harness.with_env("EVENKEELD_DATABASE__URL", &postgres.url());
    let stderr = harness.start(&["migrate"]).expect_failure();
    assert!(stderr.contains("is the role evenkeel of the migration"), "{stderr}");
    postgres.stop().await;
}

/// No process is connected for it, so only its identifier says what must be ended.
#[tokio::test]
async fn a_prepared_transaction_that_delays_the_seals_is_named_by_the_log_and_by_check() {
    let harness = TestServer::new();
    let options = Options::new(harness.path("postgres"));
    let postgres = PrivatePostgres::start(options.setting("max_prepared_transactions", "1"));
    let postgres = postgres.await.unwrap();
    let url = postgres.url();
    let harness = harness.with_env("EVENKEELD_DATABASE__URL", &url);
    let server = harness.start_and_wait(&["all"]);
    harness.start(&["check", "--online"]).expect_success();
    let change = "BEGIN; SET LOCAL evenkeel.tenant = '*'; UPDATE projects SET description = 'two'";
    let prepare = "PREPARE TRANSACTION 'two-phase'";
    let settings = ["-X", "-q", "-v", "ON_ERROR_STOP=1", &url];
    run_postgres_program("psql", &[&settings[..], &["-c", change, "-c", prepare]].concat());

    let later = "BEGIN; SET LOCAL evenkeel.tenant = '*'; INSERT INTO change_log \
                 (tenant_id, kind, id, operation) \
                 SELECT tenant_id, 'host', 1, 'update' FROM projects; COMMIT";
    sql(&url, later);
    eventually("it is open for longer than readers wait", || {
        metric(&server, "evenkeel_log_oldest_transaction_seconds") >= 7.0
    });
    eventually("the age of the later change grows", || {
        metric(&server, "evenkeel_unsealed_changes_age_seconds") >= 6.0
    });
    let stderr = harness.start(&["check", "--online"]).expect_failure();
    let expected = "change log: the prepared transaction \"two-phase\" of the role \"evenkeel\"";
    assert!(stderr.contains(expected), "{stderr}");
    assert!(stderr.contains("or ROLLBACK PREPARED 'two-phase'"), "{stderr}");
    let printed = harness.start(&["audit", "verify"]).expect_success();
    assert!(printed.contains("not sealed yet"), "{printed}");

    sql(&url, "COMMIT PREPARED 'two-phase'");
    eventually("everything is sealed", || {
        let printed = harness.start(&["audit", "verify"]).expect_success();
        !printed.contains("not sealed yet")
    });
    harness.start(&["check", "--online"]).expect_success();
    let log = server.stop();
    let is_named = |line: &str| line.contains("two-phase") && line.contains("stays open");
    assert!(log.lines().any(is_named), "{log}");
    postgres.stop().await;
}
