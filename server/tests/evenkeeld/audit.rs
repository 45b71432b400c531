//! `evenkeeld audit verify`, and a second role that owns the tables.

use crate::test_server::{TestServer, eventually, sql};

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
