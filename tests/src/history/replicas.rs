//! Servers on one Postgres that are killed and restarted.

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

/// Settings of Postgres. As in production, it must collect statistics of its tables: without them it takes a project
/// with hundreds of nodes for a small one, and scans whole tables for each node.
const POSTGRES_SETTINGS: [(&str, &str); 1] = [("autovacuum_naptime", "10s")];

/// How long a server may take to start on a busy machine.
const START_TIMEOUT: Duration = Duration::from_mins(2);

/// The clock of this machine, which is the servers' clock as well.
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

/// One server.
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
    /// Starts `count` servers with an empty database. `settings` is appended to their configuration.
    ///
    /// # Panics
    /// A server does not start.
    pub async fn start(count: usize, settings: &str) -> Self {
        Self::start_each(&vec![settings; count]).await
    }

    /// Starts one server for each of these settings, all with the same empty database.
    ///
    /// # Panics
    /// A server does not start.
    pub async fn start_each(settings: &[&str]) -> Self {
        let folder = tempfile::Builder::new().prefix("evenkeel-replicas.").tempdir();
        let folder = folder.expect("a temporary folder");
        let postgres = PrivatePostgres::throwaway_with(&POSTGRES_SETTINGS).await;
        let postgres = postgres.expect("a Postgres");
        let program = program().await;
        let mut servers = Vec::new();
        for (number, settings) in settings.iter().enumerate() {
            let config = folder.path().join(format!("{number}.toml"));
            fs::write(&config, configuration(folder.path(), number, &postgres.url(), settings))
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
            // Sequentially: the first server creates the schema, the keys and the project.
            replica.start().await;
            servers.push(replica);
        }
        Self { servers, postgres: Some(postgres), folder }
    }

    /// REST address of each server.
    pub fn rest_addresses(&self) -> Vec<String> {
        self.servers.iter().map(|server| server.rest.clone()).collect()
    }

    /// Southbound address of each server.
    pub fn southbound_addresses(&self) -> Vec<String> {
        self.servers.iter().map(|server| server.southbound.clone()).collect()
    }

    /// The token of the first operator.
    ///
    /// # Panics
    /// The token file is missing.
    pub fn operator_token(&self) -> String {
        let path = self.folder.path().join("data-0/operator-token");
        fs::read_to_string(path).expect("a token").trim().to_owned()
    }

    /// The CA certificate of the servers, in PEM.
    ///
    /// # Panics
    /// The CA cannot be read.
    pub fn ca_certificate(&self) -> String {
        let ca = CertificateAuthority::open(&self.folder.path().join("ca"), machine_time());
        ca.expect("an authority").certificate_pem().to_owned()
    }

    /// Issues tokens that the servers accept.
    ///
    /// # Panics
    /// The keys cannot be read.
    pub fn authority(&self) -> Authority {
        let keys = Keys::open(&self.folder.path().join("keys")).expect("keys");
        Authority::new(keys, evenkeel_auth::Settings::default())
    }

    /// The servers one by one, so that a test can stop some while others run.
    pub const fn servers(&mut self) -> &mut Vec<Replica> {
        &mut self.servers
    }

    /// Lines of the counters and gauges with this name, with any labels, of each running server.
    ///
    /// # Panics
    /// A running server does not answer.
    pub async fn metric_lines(&self, name: &str) -> Vec<String> {
        let _already_installed = rustls::crypto::ring::default_provider().install_default();
        let client = reqwest::Client::new();
        let mut lines = Vec::new();
        for server in self.servers.iter().filter(|server| server.is_running()) {
            let url = format!("http://{}/metrics", server.admin);
            let answer = client.get(url).send().await.expect("an answer");
            let text = answer.text().await.expect("metrics");
            let of = |line: &&str| {
                let rest = line.strip_prefix(name);
                rest.is_some_and(|rest| rest.starts_with([' ', '{']))
            };
            lines.extend(text.lines().filter(of).map(str::to_owned));
        }
        lines
    }

    /// Logs of all servers.
    pub fn logs(&self) -> String {
        let of = |server: &Replica| {
            let text = fs::read_to_string(server.log()).unwrap_or_default();
            format!("-- server {}\n{text}", server.number)
        };
        self.servers.iter().map(of).collect()
    }

    /// Stops the servers and Postgres.
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
    /// Whether it was started and not killed since then.
    pub const fn is_running(&self) -> bool {
        self.child.is_some()
    }

    /// Kills the server (SIGKILL) and waits for its end.
    ///
    /// # Panics
    /// It cannot be killed.
    pub async fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().await.expect("a child of ours");
        }
    }

    /// Starts the server on the same ports as before and waits until it is ready.
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
            assert!(begun.elapsed() < START_TIMEOUT, "server {} does not start", self.number);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let text = fs::read_to_string(&ready).expect("a file with the addresses");
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

/// The server of this workspace, or the build at the path in `EVENKEEL_TEST_SERVER`.
#[expect(clippy::disallowed_methods, reason = "a switch of these tests")]
async fn program() -> PathBuf {
    if let Some(path) = std::env::var_os("EVENKEEL_TEST_SERVER") {
        return path.into();
    }
    let built = tokio::task::spawn_blocking(|| Binaries::get().server.clone()).await;
    built.expect("the programs are built")
}
