//! A server behind the database proxy, with the views of an operator and a monitoring system.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use evenkeel_auth::{Authority, CertificateAuthority, Keys};
use evenkeel_test_support::{RestClient, ServerProcess};
use evenkeel_tests::history::{OperatorClient, machine_time, server_program};
use reqwest::Method;
use serde_json::{Value, json};
use tempfile::TempDir;
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
    rest: RestClient,
    admin: RestClient,
    process: ServerProcess,
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
        let process = ServerProcess::new(&server_program().await, folder.path(), "server");
        let mut process = process.option("--config", &folder.path().join("server.toml"));
        process.start_and_wait().await;
        let token = fs::read_to_string(folder.path().join("data/operator-token"));
        let token = token.expect("a token").trim().to_owned();
        let keys = Keys::open(&folder.path().join("keys")).expect("keys");
        let ca = CertificateAuthority::open(&folder.path().join("ca"), machine_time());
        let rest = process.address("rest");
        Self {
            client: OperatorClient::new(std::slice::from_ref(&rest), &token),
            proxy,
            southbound: process.address("southbound"),
            ca_certificate: ca.expect("an authority").certificate_pem().to_owned(),
            authority: Authority::new(keys, evenkeel_auth::Settings::default()),
            rest: RestClient::connect(&rest, "default", &token),
            admin: RestClient::connect(&process.address("admin"), "default", &token),
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
        let path = "join-tokens";
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
        let created = self.request_until_done(Method::POST, "os-update-policies", &policy).await;
        let assignment = json!({ "osUpdatePolicyId": created["resourceId"] });
        let path = format!("assignments/{instance}");
        self.request_until_done(Method::PUT, &path, &assignment).await;
        let order = json!({ "kind": "now", "seconds": 3_600, "reason": "ordered by the test" });
        let path = format!("compute/instances/{instance}/order");
        self.request_until_done(Method::PUT, &path, &order).await;
    }

    /// Repeats a request until it is done. Every request here may be carried out twice.
    async fn request_until_done(&self, method: Method, path: &str, body: &Value) -> Value {
        let (answer, _) = self.client.until_done(method, path, Some(body)).await;
        answer.unwrap_or_else(|error| panic!("{path} {body}: {error:?}"))
    }

    /// Action that an operator sees for a node.
    pub async fn decided_action(&self, instance: &str) -> String {
        let path = format!("compute/instances/{instance}/decision");
        let decision = self.client.get(&path).await;
        decision["act"].as_str().expect("an act").to_owned()
    }

    /// Status and duration of an operator's request for a list.
    pub async fn list_hosts(&self) -> (u16, Duration) {
        timed_status(&self.rest, "compute/hosts?pageSize=1").await
    }

    /// Status and duration of a health check.
    pub async fn check_health(&self, path: &str) -> (u16, Duration) {
        timed_status(&self.admin, path).await
    }

    /// Sum of a metric over all series whose labels contain this text.
    pub async fn metric_sum(&self, name: &str, label: &str) -> u64 {
        let text = self.admin.call("GET /metrics", None).await.text;
        let of = text.lines().filter(|line| {
            let labels = line.strip_prefix(name).unwrap_or_default();
            labels.starts_with('{') && labels.contains(label)
        });
        let last = |line: &str| line.rsplit(' ').next()?.parse::<u64>().ok();
        of.filter_map(last).sum()
    }

    /// Whether the server process still runs.
    pub fn is_running(&mut self) -> bool {
        self.process.is_running()
    }

    /// Stops the server and its Postgres.
    pub async fn stop(mut self) {
        self.process.kill();
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
         [maintenance_manager]\nbearer_credentials = true\ncontact_write_interval = \"1h\"\nrun_check_interval = \"1h\"\n\
         silence_check_interval = \"1h\"\n\
         [maintenance_manager.answer_cache]\nmax_staleness = \"{}s\"\naudit_every = 0\n",
        path("data"),
        path("keys"),
        path("ca"),
        REST_TIMEOUT.as_secs(),
        MAX_STALENESS.as_secs(),
    )
}

/// Status and duration of a request.
async fn timed_status(client: &RestClient, path: &str) -> (u16, Duration) {
    let begun = Instant::now();
    let answer = client.call(&format!("GET {path}"), None).await;
    (answer.status.as_u16(), begun.elapsed())
}
