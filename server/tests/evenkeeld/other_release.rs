//! The dump of a database of another release is restored.

use evenkeel_pg::PrivatePostgres;
use evenkeel_store::testing::Migrator;

use crate::test_server::{TestServer, run_postgres_program, sql};

/// Replaces the database by a dump of it.
fn restore_dump(harness: &TestServer, postgres: &PrivatePostgres) {
    let admin = postgres.admin_url();
    let url = admin.replacen("/postgres?", "/evenkeel?", 1);
    let file = harness.path("evenkeel.dump").to_string_lossy().into_owned();
    run_postgres_program("pg_dump", &["--format", "custom", "--file", &file, "--dbname", &url]);
    sql(&admin, "DROP DATABASE evenkeel WITH (FORCE)");
    sql(&admin, "CREATE DATABASE evenkeel OWNER evenkeel");
    run_postgres_program("pg_restore", &["--exit-on-error", "--dbname", &url, &file]);
}

#[tokio::test]
async fn a_dump_of_an_older_release_is_migrated_and_keeps_its_data() {
    let harness = TestServer::new();
    let postgres = harness.start_postgres().await;
    let harness = harness.with_env("EVENKEELD_DATABASE__URL", &postgres.url());
    harness.start_and_wait(&["all"]).stop();
    let token = harness.operator_token();
    let migrator = Migrator::default();
    let step = migrator.steps().last().unwrap();
    let record = format!("DELETE FROM seaql_migrations WHERE version = '{}'", step.name);
    sql(&postgres.url(), &format!("{}\n{record}", step.down));
    restore_dump(&harness, &postgres);

    let stderr = harness.start(&["inventory"]).expect_failure();
    assert!(stderr.contains("older than this program: run `evenkeeld migrate` first"), "{stderr}");
    let stderr = harness.start(&["check", "--online"]).expect_failure();
    assert!(stderr.contains("database schema: older than this program"), "{stderr}");
    let missing = harness.start(&["migrate", "--dry-run"]).expect_success();
    assert_eq!(missing.lines().next(), Some(step.name), "{missing}");
    let server = harness.start_and_wait(&["all"]);
    let (status, projects) = server.get("rest", "/v1/projects", Some(&token));
    assert!(status == 200 && projects.contains("default"), "{status} {projects}");
    server.stop();
    let missing = harness.start(&["migrate", "--dry-run"]).expect_success();
    assert_eq!(missing.trim(), "the database schema is up to date");
    postgres.stop().await;
}

#[tokio::test]
async fn a_dump_of_a_newer_release_is_used_unless_the_program_is_too_old_for_it() {
    let harness = TestServer::new();
    let postgres = harness.start_postgres().await;
    let harness = harness.with_env("EVENKEELD_DATABASE__URL", &postgres.url());
    harness.start(&["migrate"]).expect_success();
    let step = "INSERT INTO seaql_migrations (version, applied_at) VALUES ('m9999_the_future', 0)";
    sql(&postgres.url(), step);
    restore_dump(&harness, &postgres);
    harness.start(&["migrate"]).expect_success();
    let log = harness.start_and_wait(&["all"]).stop();
    let sentence = "the database schema is newer than this program, which can still use it";
    assert!(log.contains(sentence), "{log}");

    sql(&postgres.url(), "UPDATE schema_compatibility SET min_release = '999.1.0'");
    restore_dump(&harness, &postgres);
    let refusal = concat!(
        "the database schema is newer than this program: it has the step m9999_the_future, which release ",
        env!("CARGO_PKG_VERSION"),
        " does not know; install evenkeeld 999.1.0 or newer"
    );
    for command in ["all", "inventory", "migrate"] {
        let stderr = harness.start(&[command]).expect_failure();
        assert!(stderr.contains(refusal), "{stderr}");
    }
    postgres.stop().await;
}
