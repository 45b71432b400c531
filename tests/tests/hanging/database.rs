//! The Postgres behind the door, and one beside it that follows.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use evenkeel_pg::{Options, PrivatePostgres};
use evenkeel_tests::lab::told;
use tempfile::TempDir;
use tokio::process::Command;

use super::house::until;

/// Who may log in: as in a private Postgres, and to follow it as well.
const LOGINS: &str = "local all all peer map=evenkeel\nlocal replication all peer map=evenkeel\n";

/// How long a program of Postgres may take on a machine that is busy.
const LONGEST: Duration = Duration::from_mins(2);

/// A Postgres with a folder of its own, which is gone with it.
#[derive(Debug)]
pub struct Database {
    postgres: PrivatePostgres,
    data: PathBuf,
    /// Declared last: removed when Postgres is gone.
    folder: TempDir,
}

impl Database {
    /// Starts an empty one.
    pub async fn start() -> Self {
        let folder = folder();
        Self::start_in(folder).await
    }

    /// Starts one that follows this one.
    pub async fn follower(&self) -> Self {
        let folder = folder();
        let home = folder.path().join("postgres");
        fs::create_dir(&home).expect("a folder");
        fs::set_permissions(&home, Permissions::from_mode(0o711)).expect("a folder to get through");
        let data = home.join("data");
        // It must be the program of the version that made the data.
        let programs = self
            .ask("SELECT setting FROM pg_config WHERE name = 'BINDIR'")
            .await;
        let (from, to) = (self.postgres.admin_url(), data.to_string_lossy());
        let copy = Path::new(&programs).join("pg_basebackup");
        let how = [
            "-R",
            "-X",
            "stream",
            "-c",
            "fast",
            "--no-sync",
            "-d",
            &from,
            "-D",
            &to,
        ];
        run(&copy, &how).await;
        // Postgres never runs as root, and takes only what is its own.
        let like = format!("--reference={}", self.data.display());
        run(Path::new("chown"), &["-R", &like, &to]).await;
        Self::start_in(folder).await
    }

    /// Waits until it has all that the one has which it follows.
    pub async fn until_like(&self, first: &Self) {
        let written = first.ask("SELECT pg_current_wal_flush_lsn()").await;
        let has_all = format!("SELECT pg_last_wal_replay_lsn() >= '{written}'");
        until("it has all", async || {
            (self.ask(&has_all).await == "t").then_some(())
        })
        .await;
    }

    /// From now on it hears no more of the one that it follows.
    pub async fn cut_off(&self) {
        self.ask("ALTER SYSTEM SET primary_conninfo = ''").await;
        self.ask("SELECT pg_reload_conf()").await;
        until("it hears no more", async || {
            let count = self.ask("SELECT count(*) FROM pg_stat_wal_receiver").await;
            (count == "0").then_some(())
        })
        .await;
    }

    /// It follows nobody any more and takes what is written.
    pub async fn promote(&self) {
        assert_eq!(self.ask("SELECT pg_promote(true, 30)").await, "t");
    }

    /// Where it listens.
    pub fn socket(&self) -> PathBuf {
        let url = self.postgres.url();
        let (_, host) = url.split_once("host=").expect("a URL with a folder");
        let folder = host.split('&').next().unwrap_or_default();
        Path::new(folder).join(".s.PGSQL.5432")
    }

    /// What it answers to a statement of its superuser, past every door.
    pub async fn ask(&self, statement: &str) -> String {
        let of = self.postgres.admin_url();
        let of = of.replacen("/postgres?", "/evenkeel?", 1);
        let psql = Path::new("psql");
        let said = ["-v", "ON_ERROR_STOP=1", "-qAtX", "-c", statement, &of];
        run(psql, &said).await.trim().to_owned()
    }

    /// Ends it at once, as in a crash.
    pub async fn stop(self) {
        self.postgres.stop().await;
        drop(self.folder);
    }

    async fn start_in(folder: TempDir) -> Self {
        let logins = folder.path().join("logins");
        fs::write(&logins, LOGINS).expect("a file can be written");
        fs::set_permissions(&logins, Permissions::from_mode(0o644)).expect("a file to be read");
        let home = folder.path().join("postgres");
        let options = Options::new(&home)
            .durable(false)
            // What was answered must be there for one that follows.
            .setting("synchronous_commit", "on")
            .setting("hba_file", logins.to_string_lossy());
        let postgres = PrivatePostgres::start(options).await;
        Self {
            postgres: postgres.expect("a Postgres"),
            data: home.join("data"),
            folder,
        }
    }
}

/// A folder that the user of Postgres gets through.
fn folder() -> TempDir {
    tempfile::Builder::new()
        .prefix("evenkeel-hanging.")
        .permissions(Permissions::from_mode(0o711))
        .tempdir()
        .expect("a temporary folder")
}

/// What a program of this machine says. It must succeed.
#[expect(
    clippy::disallowed_methods,
    reason = "Postgres comes with its own programs"
)]
async fn run(program: &Path, words: &[&str]) -> String {
    let mut command = Command::new(program);
    let output = command.args(words).kill_on_drop(true).output();
    let output = tokio::time::timeout(LONGEST, output).await;
    let output = output.expect("the program ends");
    let output = output.expect("the program starts");
    assert!(
        output.status.success(),
        "{} {words:?}: {}",
        program.display(),
        told(&output)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}
