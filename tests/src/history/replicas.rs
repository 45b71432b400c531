//! Servers on one Postgres that are killed and restarted.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use chrono::TimeDelta;
use evenkeel_auth::{Authority, CertificateAuthority, Keys};
use evenkeel_kit::{Clock as _, SystemClock};
use evenkeel_pg::PrivatePostgres;
use evenkeel_simulator::clock::Time;
use evenkeel_test_support::{RestClient, ServerProcess};
use tempfile::TempDir;

use super::database::start_postgres_with_clock;
use super::shifted_clock::ShiftedClock;
use crate::lab::Binaries;

/// Settings of Postgres. As in production, it must collect statistics of its tables: without them it takes a project
/// with hundreds of nodes for a small one, and scans whole tables for each node.
pub(super) const POSTGRES_SETTINGS: [(&str, &str); 1] = [("autovacuum_naptime", "10s")];

/// How long a server may take to notice that it is ready, or not ready, on a busy machine.
const READINESS_TIMEOUT: Duration = Duration::from_mins(1);

/// Interval between two readiness checks of a server.
const READINESS_INTERVAL: Duration = Duration::from_millis(50);

/// The clock of this machine, which is the servers' clock as well.
pub fn machine_time() -> Time {
    SystemClock.now()
}

/// Several servers with one database, one set of keys and one certificate authority.
#[derive(Debug)]
pub struct Replicas {
    servers: Vec<ServerProcess>,
    /// `None` if the test runs the Postgres.
    postgres: Option<PrivatePostgres>,
    database_url: String,
    /// The clock of the servers and of Postgres, if a test shifts it.
    pub(super) clock: Option<ShiftedClock>,
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
        let postgres = PrivatePostgres::throwaway_with(&POSTGRES_SETTINGS).await;
        let postgres = postgres.expect("a Postgres");
        let mut replicas = Self::without_servers(&postgres.url());
        replicas.postgres = Some(postgres);
        replicas.add_servers(settings).await;
        replicas
    }

    /// Starts one server for each of these settings, all with this empty database, which the caller runs.
    ///
    /// # Panics
    /// A server does not start.
    pub async fn start_on(database_url: &str, settings: &[&str]) -> Self {
        let mut replicas = Self::without_servers(database_url);
        replicas.add_servers(settings).await;
        replicas
    }

    /// Starts `count` servers like [`Replicas::start`]. Their clock and that of Postgres show this time after the right
    /// one, until [`Replicas::shift_clock`] changes it.
    ///
    /// # Panics
    /// libfaketime is not installed, or a server does not start.
    pub async fn start_with_clock(count: usize, settings: &str, by: TimeDelta) -> Self {
        let mut replicas = Self::without_servers("");
        let clock = ShiftedClock::new(replicas.folder().join("clock-shift"), by);
        let postgres = start_postgres_with_clock(replicas.folder(), &clock).await;
        replicas.database_url = postgres.url();
        (replicas.postgres, replicas.clock) = (Some(postgres), Some(clock));
        replicas.add_servers(&vec![settings; count]).await;
        replicas
    }

    fn without_servers(database_url: &str) -> Self {
        Self {
            servers: Vec::new(),
            postgres: None,
            clock: None,
            database_url: database_url.to_owned(),
            folder: create_folder(),
        }
    }

    /// Starts one more server for each of these settings.
    async fn add_servers(&mut self, settings: &[&str]) {
        for (number, settings) in settings.iter().enumerate() {
            let mut server = self.new_server(number, settings).await;
            // Sequentially: the first server creates the schema, the keys and the project.
            server.start_and_wait().await;
            self.servers.push(server);
        }
    }

    /// One more server with the same database, which is not started and does not belong to the replicas.
    pub(super) async fn new_server(&self, number: usize, settings: &str) -> ServerProcess {
        let (program, folder) = (server_program().await, self.folder());
        let config = self.config_path(number);
        fs::write(&config, configuration(folder, number, &self.database_url, settings))
            .expect("a configuration can be written");
        let server = ServerProcess::new(&program, folder, &format!("server-{number}"));
        let server = server.option("--config", &config).variable(
            // Some nodes of the tests make single calls with a credential.
            "EVENKEELD_MAINTENANCE_MANAGER__BEARER_CREDENTIALS",
            "true",
        );
        match &self.clock {
            Some(clock) => clock.apply(server),
            None => server,
        }
    }

    /// The configuration file of the server with this number.
    pub fn config_path(&self, number: usize) -> PathBuf {
        self.folder().join(format!("{number}.toml"))
    }

    /// The folder of all files.
    pub(super) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The URL of a database for the superuser.
    pub(super) fn admin_url(&self, database: &str) -> String {
        let postgres = self.postgres.as_ref().expect("the replicas have their own Postgres");
        postgres.admin_url().replacen("/postgres?", &format!("/{database}?"), 1)
    }

    /// Waits until every running server says that it is ready, or that it is not ready.
    ///
    /// # Panics
    /// A server does not say so in time.
    pub async fn wait_for_readiness(&self, is_ready: bool) {
        for server in self.servers.iter().filter(|server| server.is_started()) {
            wait_for_readiness(server, is_ready).await;
        }
    }

    /// REST address of each server.
    pub fn rest_addresses(&self) -> Vec<String> {
        self.servers.iter().map(|server| server.address("rest")).collect()
    }

    /// Southbound address of each server.
    pub fn southbound_addresses(&self) -> Vec<String> {
        self.servers.iter().map(|server| server.address("southbound")).collect()
    }

    /// The URL of the database, as the servers use it.
    pub fn database_url(&self) -> String {
        self.database_url.clone()
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
            lines.extend(read_metric_lines(server, &token, name).await);
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

/// A folder that Postgres can reach, which does not run as root.
fn create_folder() -> TempDir {
    let folder = tempfile::Builder::new()
        .prefix("evenkeel-replicas.")
        .permissions(Permissions::from_mode(0o711))
        .tempdir();
    folder.expect("a temporary folder")
}

/// Waits until a server says that it is ready, or that it is not ready.
pub(super) async fn wait_for_readiness(server: &ServerProcess, is_ready: bool) {
    let admin = RestClient::connect(&server.address("admin"), "default", "none");
    let begun = Instant::now();
    loop {
        let answer = admin.call("GET /readyz", None).await;
        if answer.status.is_success() == is_ready {
            return;
        }
        let expected = if is_ready { "ready" } else { "not ready" };
        let is_late = begun.elapsed() > READINESS_TIMEOUT;
        assert!(!is_late, "it should be {expected}: {}\n{}", answer.text, server.log());
        tokio::time::sleep(READINESS_INTERVAL).await;
    }
}

/// Lines of the counters and gauges of a server with this name, with any labels.
pub(super) async fn read_metric_lines(
    server: &ServerProcess,
    token: &str,
    name: &str,
) -> Vec<String> {
    let admin = RestClient::connect(&server.address("admin"), "default", token);
    let metrics = admin.call("GET /metrics", None).await.text;
    let of = |line: &&str| {
        let rest = line.strip_prefix(name);
        rest.is_some_and(|rest| rest.starts_with([' ', '{']))
    };
    metrics.lines().filter(of).map(str::to_owned).collect()
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
