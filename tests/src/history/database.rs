//! Faults of the database of servers: it is read-only for a while, its clock is shifted, or it is restored from a dump.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use chrono::{DateTime, TimeDelta};
use evenkeel_pg::{Options, PrivatePostgres};
use evenkeel_simulator::clock::Time;
use evenkeel_simulator::ground_truth::Span;

use super::replicas::{POSTGRES_SETTINGS, Replicas, machine_time};
use super::shifted_clock::ShiftedClock;
use crate::{newest_postgres, run_program};

/// How long Postgres may take to notice that its clock was shifted, on a busy machine.
const CLOCK_TIMEOUT: Duration = Duration::from_mins(1);

/// Maximum difference between the shifted clock and the time that Postgres reports on a busy machine.
const CLOCK_TOLERANCE: TimeDelta = TimeDelta::minutes(1);

impl Replicas {
    /// Makes the database read-only and waits until every server says that it is not ready. After `length` makes the
    /// database writable, and waits until every server is ready. Returns the time span of `length`.
    ///
    /// # Panics
    /// A server does not notice it in time.
    pub async fn make_read_only(&self, length: Duration) -> Span {
        self.alter_system("SET default_transaction_read_only = on").await;
        self.wait_for_readiness(false).await;
        let from = machine_time();
        tokio::time::sleep(length).await;
        let until = machine_time();
        self.alter_system("RESET default_transaction_read_only").await;
        self.wait_for_readiness(true).await;
        (from, until)
    }

    async fn alter_system(&self, change: &str) {
        self.run_sql(&format!("ALTER SYSTEM {change}")).await;
        self.run_sql("SELECT pg_reload_conf()").await;
    }

    /// Kills the servers, shifts their clock and that of Postgres to this time after the right one, and starts the
    /// servers again.
    ///
    /// # Panics
    /// The replicas have no clock, Postgres does not notice the shift, or a server does not start.
    pub async fn shift_clock(&mut self, by: TimeDelta) {
        for server in self.servers() {
            server.kill();
        }
        self.clock.as_ref().expect("replicas with a clock").shift(by);
        let begun = Instant::now();
        while (self.database_time().await - machine_time() - by).abs() > CLOCK_TOLERANCE {
            assert!(begun.elapsed() < CLOCK_TIMEOUT, "Postgres does not notice its clock");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        for server in self.servers() {
            server.start_and_wait().await;
        }
    }

    /// The time of the database.
    ///
    /// # Panics
    /// The database cannot be reached.
    pub async fn database_time(&self) -> Time {
        let (sql, url) = ("SELECT extract(epoch FROM now())::bigint", self.admin_url("postgres"));
        let arguments = ["-X", "-A", "-t", "-c", sql, "-d", &url];
        let seconds = run_program(Path::new("psql"), &arguments).await;
        let seconds = seconds.trim().parse().expect("a number of seconds");
        DateTime::from_timestamp(seconds, 0).expect("a time")
    }

    /// Writes a dump of the database while the servers run, and returns its path.
    ///
    /// # Panics
    /// `pg_dump` fails.
    pub async fn dump_database(&self) -> PathBuf {
        let path = self.folder().join("evenkeel.dump");
        let (url, file) = (self.admin_url("evenkeel"), path.to_string_lossy());
        let arguments = ["--format", "custom", "--file", &file, "--dbname", &url];
        run_program(Path::new("pg_dump"), &arguments).await;
        path
    }

    /// Kills the servers, replaces the database by the one of a dump, and starts the servers again.
    ///
    /// # Panics
    /// `pg_restore` fails, or a server does not start.
    pub async fn restore_database(&mut self, dump: &Path) {
        for server in self.servers() {
            server.kill();
        }
        self.run_sql("DROP DATABASE evenkeel WITH (FORCE)").await;
        self.run_sql("CREATE DATABASE evenkeel OWNER evenkeel").await;
        let (url, file) = (self.admin_url("evenkeel"), dump.to_string_lossy());
        let arguments = ["--exit-on-error", "--dbname", &url, &file];
        run_program(Path::new("pg_restore"), &arguments).await;
        for server in self.servers() {
            server.start_and_wait().await;
        }
    }

    /// Runs a statement of the superuser outside of a transaction.
    async fn run_sql(&self, sql: &str) {
        let url = self.admin_url("postgres");
        let arguments = ["-X", "-q", "-v", "ON_ERROR_STOP=1", "-c", sql, "-d", &url];
        run_program(Path::new("psql"), &arguments).await;
    }
}

/// Starts a Postgres for tests that uses a clock. Its programs are scripts that start those of the newest version.
pub(super) async fn start_postgres_with_clock(
    folder: &Path,
    clock: &ShiftedClock,
) -> PrivatePostgres {
    let newest = newest_postgres();
    let programs = folder.join("postgres-programs");
    let bin = programs.join(newest.file_name().expect("a version")).join("bin");
    fs::create_dir_all(&bin).expect("a folder for programs");
    let variables = clock.variables().map(|(name, value)| format!("{name}={value}")).join(" ");
    for program in ["initdb", "postgres"] {
        let original = newest.join("bin").join(program);
        let script = format!("#!/bin/sh\nexec env {variables} {} \"$@\"\n", original.display());
        let path = bin.join(program);
        fs::write(&path, script).expect("a script can be written");
        fs::set_permissions(&path, Permissions::from_mode(0o755)).expect("a script can be run");
    }
    let options = Options::for_tests(folder.join("postgres"))
        .create_databases(true)
        .max_connections(200)
        .binaries_in(programs);
    let settings = POSTGRES_SETTINGS.into_iter();
    let options = settings.fold(options, |options, (name, value)| options.setting(name, value));
    PrivatePostgres::start(options).await.expect("a Postgres")
}
