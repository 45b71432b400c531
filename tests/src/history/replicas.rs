//! Servers on one Postgres that are killed and restarted.

use std::fs;
use std::path::{Path, PathBuf};

use evenkeel_auth::{Authority, CertificateAuthority, Keys};
use evenkeel_kit::{Clock as _, SystemClock};
use evenkeel_pg::PrivatePostgres;
use evenkeel_simulator::clock::Time;
use evenkeel_test_support::{RestClient, ServerProcess};
use tempfile::TempDir;

use crate::lab::Binaries;

/// Settings of Postgres. As in production, it must collect statistics of its tables: without them it takes a project
/// with hundreds of nodes for a small one, and scans whole tables for each node.
const POSTGRES_SETTINGS: [(&str, &str); 1] = [("autovacuum_naptime", "10s")];

/// The clock of this machine, which is the servers' clock as well.
pub fn machine_time() -> Time {
    SystemClock.now()
}

/// Several servers with one database, one set of keys and one certificate authority.
#[derive(Debug)]
pub struct Replicas {
    servers: Vec<ServerProcess>,
    postgres: Option<PrivatePostgres>,
    folder: TempDir,
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
        let program = server_program().await;
        let mut servers = Vec::new();
        for (number, settings) in settings.iter().enumerate() {
            let config = folder.path().join(format!("{number}.toml"));
            fs::write(&config, configuration(folder.path(), number, &postgres.url(), settings))
                .expect("a configuration can be written");
            let server = ServerProcess::new(&program, folder.path(), &format!("server-{number}"));
            let mut server = server.option("--config", &config);
            // Sequentially: the first server creates the schema, the keys and the project.
            server.start_and_wait().await;
            servers.push(server);
        }
        Self { servers, postgres: Some(postgres), folder }
    }

    /// REST address of each server.
    pub fn rest_addresses(&self) -> Vec<String> {
        self.servers.iter().map(|server| server.address("rest")).collect()
    }

    /// Southbound address of each server.
    pub fn southbound_addresses(&self) -> Vec<String> {
        self.servers.iter().map(|server| server.address("southbound")).collect()
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
    pub const fn servers(&mut self) -> &mut Vec<ServerProcess> {
        &mut self.servers
    }

    /// Lines of the counters and gauges with this name, with any labels, of each running server.
    ///
    /// # Panics
    /// A running server does not answer.
    pub async fn metric_lines(&self, name: &str) -> Vec<String> {
        let token = self.operator_token();
        let mut lines = Vec::new();
        for server in self.servers.iter().filter(|server| server.is_started()) {
            let admin = RestClient::connect(&server.address("admin"), "default", &token);
            let metrics = admin.call("GET /metrics", None).await.text;
            let of = |line: &&str| {
                let rest = line.strip_prefix(name);
                rest.is_some_and(|rest| rest.starts_with([' ', '{']))
            };
            lines.extend(metrics.lines().filter(of).map(str::to_owned));
        }
        lines
    }

    /// Logs of all servers.
    pub fn logs(&self) -> String {
        let of = |(number, server): (usize, &ServerProcess)| {
            format!("-- server {number}\n{}", server.log())
        };
        self.servers.iter().enumerate().map(of).collect()
    }

    /// Stops the servers and Postgres.
    pub async fn stop(mut self) {
        self.servers.iter_mut().for_each(ServerProcess::kill);
        if let Some(postgres) = self.postgres.take() {
            postgres.stop().await;
        }
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
pub async fn server_program() -> PathBuf {
    if let Some(path) = std::env::var_os("EVENKEEL_TEST_SERVER") {
        return path.into();
    }
    let built = tokio::task::spawn_blocking(|| Binaries::get().server.clone()).await;
    built.expect("the programs are built")
}
