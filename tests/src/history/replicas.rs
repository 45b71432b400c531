//! Servers on one Postgres that are killed and started again.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use evenkeel_auth::{Authority, CertificateAuthority, Keys};
use evenkeel_kit::{Clock as _, SystemClock};
use evenkeel_pg::PrivatePostgres;
use evenkeel_simulator::clock::Time;
use serde_json::Value;
use tempfile::TempDir;
use tokio::process::{Child, Command};

use crate::lab::Binaries;

/// As in a real installation, Postgres learns what its tables hold: without, it takes a project of hundreds of nodes for
/// one of a few, and reads all of them for each.
const TIDY: [(&str, &str); 1] = [("autovacuum_naptime", "10s")];

/// How long a server may take to start on a machine that is busy.
const START: Duration = Duration::from_mins(2);

/// The clock that the servers have as well.
pub fn machine_time() -> Time {
    SystemClock.now()
}

/// Several servers with one database, one set of keys and one certificate authority.
#[derive(Debug)]
pub struct Replicas {
    servers: Vec<Replica>,
    postgres: Option<PrivatePostgres>,
    folder: TempDir,
}

/// One of them.
#[derive(Debug)]
pub struct Replica {
    number: usize,
    program: PathBuf,
    folder: PathBuf,
    child: Option<Child>,
    rest: String,
    southbound: String,
    admin: String,
}

impl Replicas {
    /// Starts servers with an empty database. `settings` is added to their configuration.
    ///
    /// # Panics
    /// They do not start.
    pub async fn start(count: usize, settings: &str) -> Self {
        Self::start_each(&vec![settings; count]).await
    }

    /// Starts a server for each of these settings, all with one empty database.
    ///
    /// # Panics
    /// They do not start.
    pub async fn start_each(settings: &[&str]) -> Self {
        let folder = tempfile::Builder::new()
            .prefix("evenkeel-replicas.")
            .tempdir();
        let folder = folder.expect("a temporary folder");
        let postgres = PrivatePostgres::throwaway_with(&TIDY).await;
        let postgres = postgres.expect("a Postgres");
        let program = program().await;
        let mut servers = Vec::new();
        for (number, settings) in settings.iter().enumerate() {
            let config = folder.path().join(format!("{number}.toml"));
            fs::write(
                &config,
                configuration(folder.path(), number, &postgres.url(), settings),
            )
            .expect("a configuration can be written");
            let mut replica = Replica {
                number,
                program: program.clone(),
                folder: folder.path().to_owned(),
                child: None,
                rest: "127.0.0.1:0".to_owned(),
                southbound: "127.0.0.1:0".to_owned(),
                admin: String::new(),
            };
            // One after the other: the first one makes the schema, the keys and the project.
            replica.start().await;
            servers.push(replica);
        }
        Self {
            servers,
            postgres: Some(postgres),
            folder,
        }
    }

    /// Where REST is, of each server.
    pub fn rest(&self) -> Vec<String> {
        self.servers
            .iter()
            .map(|server| server.rest.clone())
            .collect()
    }

    /// Where agents come in, of each server.
    pub fn southbound(&self) -> Vec<String> {
        self.servers
            .iter()
            .map(|server| server.southbound.clone())
            .collect()
    }

    /// The token of the first operator.
    ///
    /// # Panics
    /// There is none.
    pub fn token(&self) -> String {
        let path = self.folder.path().join("data-0/operator-token");
        fs::read_to_string(path).expect("a token").trim().to_owned()
    }

    /// The certificate of the servers' authority, in PEM.
    ///
    /// # Panics
    /// There is none.
    pub fn ca(&self) -> String {
        let ca = CertificateAuthority::open(&self.folder.path().join("ca"), machine_time());
        ca.expect("an authority").certificate_pem().to_owned()
    }

    /// Who makes tokens that the servers believe.
    ///
    /// # Panics
    /// There are no keys.
    pub fn authority(&self) -> Authority {
        let keys = Keys::open(&self.folder.path().join("keys")).expect("keys");
        Authority::new(keys, evenkeel_auth::Settings::default())
    }

    /// The servers one by one, so that something can be done to them while others go on.
    pub const fn servers(&mut self) -> &mut Vec<Replica> {
        &mut self.servers
    }

    /// The counters and gauges of this name, with whatever labels, of each server that runs.
    ///
    /// # Panics
    /// A server that runs does not tell.
    pub async fn measured(&self, name: &str) -> Vec<String> {
        let _already_installed = rustls::crypto::ring::default_provider().install_default();
        let client = reqwest::Client::new();
        let mut found = Vec::new();
        for server in self.servers.iter().filter(|server| server.is_running()) {
            let url = format!("http://{}/metrics", server.admin);
            let answer = client.get(url).send().await.expect("an answer");
            let text = answer.text().await.expect("metrics");
            let of = |line: &&str| {
                let rest = line.strip_prefix(name);
                rest.is_some_and(|rest| rest.starts_with([' ', '{']))
            };
            found.extend(text.lines().filter(of).map(str::to_owned));
        }
        found
    }

    /// What the servers logged.
    pub fn logs(&self) -> String {
        let of = |server: &Replica| {
            let text = fs::read_to_string(server.log()).unwrap_or_default();
            format!("-- server {}\n{text}", server.number)
        };
        self.servers.iter().map(of).collect()
    }

    /// Ends the servers and the Postgres.
    pub async fn stop(mut self) {
        for server in &mut self.servers {
            server.kill().await;
        }
        if let Some(postgres) = self.postgres.take() {
            postgres.stop().await;
        }
    }
}

impl Replica {
    /// Whether it was started and not killed since.
    pub const fn is_running(&self) -> bool {
        self.child.is_some()
    }

    /// Kills it (SIGKILL) and waits until it is gone.
    ///
    /// # Panics
    /// It cannot be killed.
    pub async fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().await.expect("a child of ours");
        }
    }

    /// Starts it, on the ports that it had, and waits until it is ready.
    ///
    /// # Panics
    /// It does not start.
    pub async fn start(&mut self) {
        let ready = self.folder.join(format!("ready-{}.json", self.number));
        let _not_there = fs::remove_file(&ready);
        let mut child = self.spawn(&ready);
        let begun = std::time::Instant::now();
        while !ready.exists() {
            if let Some(status) = child.try_wait().expect("a child of ours") {
                let log = fs::read_to_string(self.log()).unwrap_or_default();
                panic!("server {} ended with {status}:\n{log}", self.number);
            }
            assert!(
                begun.elapsed() < START,
                "server {} does not start",
                self.number
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let text = fs::read_to_string(&ready).expect("a file that says where");
        let addresses: Value = serde_json::from_str(&text).expect("JSON");
        let address = |listener: &str| addresses[listener].as_str().expect("an address").to_owned();
        self.rest = address("rest");
        self.southbound = address("southbound");
        self.admin = address("admin");
        self.child = Some(child);
    }

    #[expect(clippy::disallowed_methods, reason = "the servers are other programs")]
    fn spawn(&self, ready: &Path) -> Child {
        let out = File::options().create(true).append(true).open(self.log());
        let out = out.expect("a log can be written");
        Command::new(&self.program)
            .arg("all")
            .arg("--config")
            .arg(self.folder.join(format!("{}.toml", self.number)))
            .arg("--ready-file")
            .arg(ready)
            .env("EVENKEELD_REST__LISTEN", &self.rest)
            .env("EVENKEELD_SOUTHBOUND__LISTEN", &self.southbound)
            .env("EVENKEELD_ADMIN__LISTEN", "127.0.0.1:0")
            .stdin(Stdio::null())
            .stderr(out.try_clone().expect("a second handle"))
            .stdout(out)
            .kill_on_drop(true)
            .spawn()
            .expect("the server starts")
    }

    fn log(&self) -> PathBuf {
        self.folder.join(format!("log-{}", self.number))
    }
}

fn configuration(folder: &Path, number: usize, database: &str, settings: &str) -> String {
    let path = |name: &str| folder.join(name).to_string_lossy().into_owned();
    format!(
        "data_dir = {:?}\n[log]\nlevel = \"warn\"\n[database]\nurl = {database:?}\nmax_connections = 16\n\
         [auth]\nkeys = {:?}\nca = {:?}\n{settings}",
        path(&format!("data-{number}")),
        path("keys"),
        path("ca"),
    )
}

/// The server of this workspace, or another build of it that `EVENKEEL_TEST_SERVER` names.
#[expect(clippy::disallowed_methods, reason = "a switch of these tests")]
async fn program() -> PathBuf {
    if let Some(path) = std::env::var_os("EVENKEEL_TEST_SERVER") {
        return path.into();
    }
    let built = tokio::task::spawn_blocking(|| Binaries::get().server.clone()).await;
    built.expect("the programs are built")
}
