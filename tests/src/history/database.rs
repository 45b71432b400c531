//! Faults of the database of servers: it is read-only for a while, or it is restored from a dump.

use std::path::{Path, PathBuf};
use std::time::Duration;

use evenkeel_simulator::ground_truth::Span;

use super::replicas::{Replicas, machine_time};
use crate::run_program;

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
