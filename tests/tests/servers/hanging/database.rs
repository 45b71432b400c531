//! The Postgres behind the proxy, and a standby of it.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use evenkeel_pg::{Options, PrivatePostgres};
use evenkeel_tests::run_program;
use tempfile::TempDir;

use super::test_server::until;

/// Logins as in a private Postgres, and also for replication.
const HBA_RULES: &str =
    "local all all peer map=evenkeel\nlocal replication all peer map=evenkeel\n";

/// A Postgres in a temporary folder, which is deleted with it.
#[derive(Debug)]
pub struct Database {
    postgres: PrivatePostgres,
    data: PathBuf,
    /// Declared last, so that it is deleted after Postgres has stopped.
    folder: TempDir,
}

impl Database {
    /// Starts an empty database.
    pub async fn start() -> Self {
        let folder = temporary_folder();
        Self::start_in(folder).await
    }

    pub async fn start_standby(&self) -> Self {
        let folder = temporary_folder();
        let home = folder.path().join("postgres");
        fs::create_dir(&home).expect("a folder");
        fs::set_permissions(&home, Permissions::from_mode(0o711)).expect("a traversable folder");
        let data = home.join("data");
        // The program must have the version of the server that wrote the data.
        let programs = self.query("SELECT setting FROM pg_config WHERE name = 'BINDIR'").await;
        let (from, to) = (self.postgres.admin_url(), data.to_string_lossy());
        let copy = Path::new(&programs).join("pg_basebackup");
        let how = ["-R", "-X", "stream", "-c", "fast", "--no-sync", "-d", &from, "-D", &to];
        run_program(&copy, &how).await;
        // Postgres does not run as root, and requires that it owns its data.
        let like = format!("--reference={}", self.data.display());
        run_program(Path::new("chown"), &["-R", &like, &to]).await;
        Self::start_in(folder).await
    }

    /// Waits until this standby has replayed everything that the primary has written.
    pub async fn wait_until_replayed(&self, first: &Self) {
        let written = first.query("SELECT pg_current_wal_flush_lsn()").await;
        let has_all = format!("SELECT pg_last_wal_replay_lsn() >= '{written}'");
        until("the standby has replayed everything", async || {
            (self.query(&has_all).await == "t").then_some(())
        })
        .await;
    }

    /// Disconnects this standby from its primary.
    pub async fn stop_replication(&self) {
        self.query("ALTER SYSTEM SET primary_conninfo = ''").await;
        self.query("SELECT pg_reload_conf()").await;
        until("the standby is disconnected", async || {
            let count = self.query("SELECT count(*) FROM pg_stat_wal_receiver").await;
            (count == "0").then_some(())
        })
        .await;
    }

    /// Promotes this standby to a primary.
    pub async fn promote(&self) {
        assert_eq!(self.query("SELECT pg_promote(true, 30)").await, "t");
    }

    /// Socket on which Postgres listens.
    pub fn socket(&self) -> PathBuf {
        let url = self.postgres.url();
        let (_, host) = url.split_once("host=").expect("a URL with a folder");
        let folder = host.split('&').next().unwrap_or_default();
        Path::new(folder).join(".s.PGSQL.5432")
    }

    /// Result of a statement of the superuser, sent directly and not through the proxy.
    pub async fn query(&self, statement: &str) -> String {
        let of = self.postgres.admin_url();
        let of = of.replacen("/postgres?", "/evenkeel?", 1);
        let psql = Path::new("psql");
        let arguments = ["-v", "ON_ERROR_STOP=1", "-qAtX", "-c", statement, &of];
        run_program(psql, &arguments).await.trim().to_owned()
    }

    /// Stops Postgres immediately, as in a crash.
    pub async fn stop(self) {
        self.postgres.stop().await;
        drop(self.folder);
    }

    async fn start_in(folder: TempDir) -> Self {
        let logins = folder.path().join("logins");
        fs::write(&logins, HBA_RULES).expect("a file can be written");
        fs::set_permissions(&logins, Permissions::from_mode(0o644)).expect("a readable file");
        let home = folder.path().join("postgres");
        let options = Options::new(&home)
            .durable(false)
            // The standby needs everything that was confirmed.
            .setting("synchronous_commit", "on")
            .setting("hba_file", logins.to_string_lossy());
        let postgres = PrivatePostgres::start(options).await;
        Self { postgres: postgres.expect("a Postgres"), data: home.join("data"), folder }
    }
}

/// Creates a folder that the user of Postgres can traverse.
fn temporary_folder() -> TempDir {
    tempfile::Builder::new()
        .prefix("evenkeel-hanging.")
        .permissions(Permissions::from_mode(0o711))
        .tempdir()
        .expect("a temporary folder")
}
