//! A server behind the database proxy, with the views of an operator and a monitoring system.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use evenkeel_auth::{Authority, CertificateAuthority, Keys};
use evenkeel_tests::history::{OperatorClient, machine_time};
use evenkeel_tests::lab::Binaries;
use reqwest::{Client, Method};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::{Child, Command};
use uuid::Uuid;

use super::database::Database;
use super::database_proxy::DatabaseProxy;

/// Maximum wait for an event that must happen.
pub const WAIT_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum age of a cached answer. The server reads the change log at least once a second; the rest
/// is the time that a test has for its polls.
pub const MAX_STALENESS: Duration = Duration::from_secs(8);

/// Maximum duration of a call of an agent while the database does not answer. The server gives up a
/// batch of polls, and a call that waits to write, after ten seconds. This is twice that.
pub const CALL_TIME_LIMIT: Duration = Duration::from_secs(20);

/// Maximum duration of a REST request.
pub const REST_TIMEOUT: Duration = Duration::from_secs(5);

/// Delay that is tolerated on a busy machine.
pub const TIME_TOLERANCE: Duration = Duration::from_secs(3);

/// Delay between two attempts.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// Maximum start time of a server on a busy machine.
const START_TIMEOUT: Duration = Duration::from_mins(2);

/// A server, its Postgres, and the proxy between them.
#[derive(Debug)]
pub struct TestServer {
    /// The proxy between the server and its Postgres.
    pub proxy: DatabaseProxy,
    /// REST client of an operator.
    pub client: OperatorClient,
    /// Address for agents.
    pub southbound: String,
    /// The certificate of the server's authority, in PEM.
    pub ca_certificate: String,
    /// Issuer of tokens that the server accepts.
    pub authority: Authority,
    rest_address: String,
    admin_address: String,
    token: String,
    http: Client,
    process: Child,
    /// The Postgres to which the proxy forwards.
    pub database: Database,
    _folder: TempDir,
}

impl TestServer {
    /// Starts a server with an empty database.
    pub async fn start() -> Self {
        Self::with_connections(16).await
    }

    /// Starts a server with this number of database connections.
    pub async fn with_connections(max_connections: u32) -> Self {
        let database = Database::start().await;
        let proxy = DatabaseProxy::start(&database.socket()).await;
        let folder = tempfile::tempdir().expect("a temporary folder");
        let settings = settings_text(folder.path(), proxy.address(), max_connections);
        fs::write(folder.path().join("server.toml"), settings).expect("a configuration");
        let (process, addresses) = start_process(folder.path()).await;
        let address = |name: &str| addresses[name].as_str().expect("an address").to_owned();
        let token = fs::read_to_string(folder.path().join("data/operator-token"));
        let token = token.expect("a token").trim().to_owned();
        let keys = Keys::open(&folder.path().join("keys")).expect("keys");
        let ca = CertificateAuthority::open(&folder.path().join("ca"), machine_time());
        let rest = address("rest");
        Self {
            client: OperatorClient::new(std::slice::from_ref(&rest), &token),
            proxy,
            southbound: address("southbound"),
            ca_certificate: ca.expect("an authority").certificate_pem().to_owned(),
            authority: Authority::new(keys, evenkeel_auth::Settings::default()),
            rest_address: rest,
            admin_address: address("admin"),
            token,
            http: http_client(),
            process,
            database,
            _folder: folder,
        }
    }

    /// ID of the project that contains everything.
    pub async fn project_id(&self) -> Uuid {
        let project = self.client.get("").await;
        let id = project["status"]["projectStatus"]["uID"].as_str();
        id.and_then(|id| id.parse().ok()).expect("a project")
    }

    /// Creates a join token that any number of nodes may use.
    pub async fn create_join_token(&self) -> String {
        let path = "/join-tokens";
        let created = self.client.send(0, Method::POST, path, Some(&json!({}))).await;
        let created = created.expect("a join token");
        created["token"].as_str().expect("a token").to_owned()
    }

    /// Assigns an update to an instance and orders it now.
    pub async fn order_update(&self, instance: &str) {
        let policy = json!({
            "name": format!("for {instance}"), "updatePolicy": "UPDATE_POLICY_TARGET",
            "updatePackages": "demo-hello",
        });
        let created = self.request_until_done(Method::POST, "/os-update-policies", &policy).await;
        let assignment = json!({ "osUpdatePolicyId": created["resourceId"] });
        let path = format!("/assignments/{instance}");
        self.request_until_done(Method::PUT, &path, &assignment).await;
        let order = json!({ "kind": "now", "seconds": 3_600, "reason": "ordered by the test" });
        let path = format!("/compute/instances/{instance}/order");
        self.request_until_done(Method::PUT, &path, &order).await;
    }

    /// Repeats a request until it is done. Every request here may be carried out twice.
    async fn request_until_done(&self, method: Method, path: &str, body: &Value) -> Value {
        let (answer, _) = self.client.until_done(method, path, Some(body)).await;
        answer.unwrap_or_else(|error| panic!("{path} {body}: {error:?}"))
    }

    /// Action that an operator sees for a node.
    pub async fn decided_action(&self, instance: &str) -> String {
        let path = format!("/compute/instances/{instance}/decision");
        let decision = self.client.get(&path).await;
        decision["act"].as_str().expect("an act").to_owned()
    }

    /// Status and duration of an operator's request for a list.
    pub async fn list_hosts(&self) -> (u16, Duration) {
        let url =
            format!("http://{}/v1/projects/default/compute/hosts?pageSize=1", self.rest_address);
        let begun = Instant::now();
        let request = self.http.get(url).bearer_auth(&self.token);
        let answer = request.send().await.expect("an answer");
        (answer.status().as_u16(), begun.elapsed())
    }

    /// Status and duration of a health check.
    pub async fn check_health(&self, path: &str) -> (u16, Duration) {
        let begun = Instant::now();
        let answer = self.http.get(format!("http://{}{path}", self.admin_address));
        let answer = answer.send().await.expect("an answer");
        (answer.status().as_u16(), begun.elapsed())
    }

    /// Sum of a metric over all series whose labels contain this text.
    pub async fn metric_sum(&self, name: &str, label: &str) -> u64 {
        let answer = self.http.get(format!("http://{}/metrics", self.admin_address));
        let answer = answer.send().await.expect("an answer");
        let text = answer.text().await.expect("metrics");
        let of = text.lines().filter(|line| {
            let labels = line.strip_prefix(name).unwrap_or_default();
            labels.starts_with('{') && labels.contains(label)
        });
        let last = |line: &str| line.rsplit(' ').next()?.parse::<u64>().ok();
        of.filter_map(last).sum()
    }

    /// Whether the server process still runs.
    pub fn is_running(&mut self) -> bool {
        let ended = self.process.try_wait().expect("a child of ours");
        ended.is_none()
    }

    /// Stops the server and its Postgres.
    pub async fn stop(mut self) {
        self.process.kill().await.expect("a child of ours");
        self.database.stop().await;
    }
}

/// Repeats a check until it returns a value.
pub async fn until<T>(what: &str, mut check: impl AsyncFnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(answer) = check().await {
            return answer;
        }
        assert!(begun.elapsed() < WAIT_TIMEOUT, "not within {WAIT_TIMEOUT:?}: {what}");
        tokio::time::sleep(RETRY_INTERVAL).await;
    }
}

/// Settings that put off all periodic work, so that only the test causes writes.
fn settings_text(folder: &Path, database: SocketAddr, connections: u32) -> String {
    let path = |name: &str| folder.join(name).to_string_lossy().into_owned();
    format!(
        "data_dir = {:?}\n[log]\nlevel = \"warn\"\n\
         [database]\nurl = \"postgres://evenkeel@{database}/evenkeel?sslmode=disable\"\n\
         max_connections = {connections}\n\
         [auth]\nkeys = {:?}\nca = {:?}\n[rest]\nrequest_timeout = \"{}s\"\n\
         [maintenance_manager]\ncontact_write_interval = \"1h\"\nrun_check_interval = \"1h\"\n\
         silence_check_interval = \"1h\"\n\
         [maintenance_manager.answer_cache]\nmax_staleness = \"{}s\"\naudit_every = 0\n",
        path("data"),
        path("keys"),
        path("ca"),
        REST_TIMEOUT.as_secs(),
        MAX_STALENESS.as_secs(),
    )
}

/// Starts a server and waits until it is ready. Returns the addresses on which it listens.
async fn start_process(folder: &Path) -> (Child, Value) {
    let ready = folder.join("ready.json");
    let mut process = spawn_server(&server_program().await, folder, &ready);
    let begun = Instant::now();
    while !ready.exists() {
        let log = || fs::read_to_string(folder.join("log")).unwrap_or_default();
        if let Some(status) = process.try_wait().expect("a child of ours") {
            panic!("the server ended with {status}:\n{}", log());
        }
        assert!(begun.elapsed() < START_TIMEOUT, "the server does not start:\n{}", log());
        tokio::time::sleep(RETRY_INTERVAL).await;
    }
    let text = fs::read_to_string(&ready).expect("a file with the addresses");
    (process, serde_json::from_str(&text).expect("JSON"))
}

#[expect(clippy::disallowed_methods, reason = "the server is another program")]
fn spawn_server(program: &Path, folder: &Path, ready: &Path) -> Child {
    let out = File::create(folder.join("log")).expect("a log can be written");
    Command::new(program)
        .arg("all")
        .arg("--config")
        .arg(folder.join("server.toml"))
        .arg("--ready-file")
        .arg(ready)
        .env("EVENKEELD_REST__LISTEN", "127.0.0.1:0")
        .env("EVENKEELD_SOUTHBOUND__LISTEN", "127.0.0.1:0")
        .env("EVENKEELD_ADMIN__LISTEN", "127.0.0.1:0")
        .stdin(Stdio::null())
        .stderr(out.try_clone().expect("a second handle"))
        .stdout(out)
        .kill_on_drop(true)
        .spawn()
        .expect("the server starts")
}

/// Path of the server of this workspace, or of the build in `EVENKEEL_TEST_SERVER`.
#[expect(clippy::disallowed_methods, reason = "a switch of these tests")]
async fn server_program() -> PathBuf {
    if let Some(path) = std::env::var_os("EVENKEEL_TEST_SERVER") {
        return path.into();
    }
    let built = tokio::task::spawn_blocking(|| Binaries::get().server.clone()).await;
    built.expect("the programs are built")
}

fn http_client() -> Client {
    let _already_installed = rustls::crypto::ring::default_provider().install_default();
    // Each request uses a new connection.
    let client = Client::builder().pool_max_idle_per_host(0);
    client.timeout(WAIT_TIMEOUT).build().expect("a client")
}
