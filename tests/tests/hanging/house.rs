//! A server behind a door, and what an operator and whoever looks after it see of it.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use evenkeel_auth::{Authority, CertificateAuthority, Keys};
use evenkeel_tests::history::{Desk, machine_time};
use evenkeel_tests::lab::Binaries;
use reqwest::{Client, Method};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::{Child, Command};
use uuid::Uuid;

use super::database::Database;
use super::door::Door;

/// How long something is waited for that must come.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// How long ago the change log may have been read for anything to be told from memory. It is read once a second at
/// least: the rest is what a test has to ask in.
pub const MAX_STALENESS: Duration = Duration::from_secs(8);

/// How long a call of an agent may take at most while the database does not answer. A batch of polls is given up after
/// ten seconds, and who waits to write is sent away after as many; this is twice that.
pub const ANSWER: Duration = Duration::from_secs(20);

/// How long a request to the REST API may take.
pub const REST_ANSWER: Duration = Duration::from_secs(5);

/// How much longer than it may something takes on a machine that is busy.
pub const SLACK: Duration = Duration::from_secs(3);

/// Between two questions of the same kind.
const PAUSE: Duration = Duration::from_millis(100);

/// How long a server may take to start on a machine that is busy.
const START: Duration = Duration::from_mins(2);

/// A server, its Postgres, and the door between them.
#[derive(Debug)]
pub struct House {
    /// The door between the server and its Postgres.
    pub door: Door,
    /// An operator.
    pub desk: Desk,
    /// Where agents come in.
    pub southbound: String,
    /// The certificate of the server's authority, in PEM.
    pub ca: String,
    /// Who makes tokens that the server believes.
    pub authority: Authority,
    rest: String,
    admin: String,
    token: String,
    client: Client,
    server: Child,
    /// The Postgres behind the door at first.
    pub database: Database,
    _folder: TempDir,
}

impl House {
    /// Starts a server with an empty database.
    pub async fn open() -> Self {
        Self::with_connections(16).await
    }

    /// Starts a server that has so many connections to its database.
    pub async fn with_connections(most: u32) -> Self {
        let database = Database::start().await;
        let door = Door::to(&database.socket()).await;
        let folder = tempfile::tempdir().expect("a temporary folder");
        let settings = settings(folder.path(), door.address(), most);
        fs::write(folder.path().join("server.toml"), settings).expect("a configuration");
        let (server, places) = start(folder.path()).await;
        let place = |name: &str| places[name].as_str().expect("an address").to_owned();
        let token = fs::read_to_string(folder.path().join("data/operator-token"));
        let token = token.expect("a token").trim().to_owned();
        let keys = Keys::open(&folder.path().join("keys")).expect("keys");
        let ca = CertificateAuthority::open(&folder.path().join("ca"), machine_time());
        let rest = place("rest");
        Self {
            desk: Desk::new(std::slice::from_ref(&rest), &token),
            door,
            southbound: place("southbound"),
            ca: ca.expect("an authority").certificate_pem().to_owned(),
            authority: Authority::new(keys, evenkeel_auth::Settings::default()),
            rest,
            admin: place("admin"),
            token,
            client: client(),
            server,
            database,
            _folder: folder,
        }
    }

    /// The project that everything is in.
    pub async fn project(&self) -> Uuid {
        let project = self.desk.get("").await;
        let id = project["status"]["projectStatus"]["uID"].as_str();
        id.and_then(|id| id.parse().ok()).expect("a project")
    }

    /// A token with which any number of nodes may join.
    pub async fn join_token(&self) -> String {
        let path = "/join-tokens";
        let made = self.desk.ask(0, Method::POST, path, Some(&json!({}))).await;
        let made = made.expect("a join token");
        made["token"].as_str().expect("a token").to_owned()
    }

    /// An update is wished for an instance, and ordered now.
    pub async fn wish(&self, instance: &str) {
        let policy = json!({
            "name": format!("for {instance}"), "updatePolicy": "UPDATE_POLICY_TARGET",
            "updatePackages": "demo-hello",
        });
        let made = self
            .insist(Method::POST, "/os-update-policies", &policy)
            .await;
        let wish = json!({ "osUpdatePolicyId": made["resourceId"] });
        let path = format!("/assignments/{instance}");
        self.insist(Method::PUT, &path, &wish).await;
        let order = json!({ "kind": "now", "seconds": 3_600, "reason": "it is told to" });
        let path = format!("/compute/instances/{instance}/order");
        self.insist(Method::PUT, &path, &order).await;
    }

    /// Asks until it is done. That something is there twice then does no harm.
    async fn insist(&self, method: Method, path: &str, body: &Value) -> Value {
        let (answer, _) = self.desk.until_done(method, path, Some(body)).await;
        answer.unwrap_or_else(|trouble| panic!("{path} {body}: {trouble:?}"))
    }

    /// What an operator is told that a node should do now.
    pub async fn decision(&self, instance: &str) -> String {
        let path = format!("/compute/instances/{instance}/decision");
        let decision = self.desk.get(&path).await;
        decision["act"].as_str().expect("an act").to_owned()
    }

    /// With which status an operator's request for a list is answered, and after what time.
    pub async fn list(&self) -> (u16, Duration) {
        let url = format!(
            "http://{}/v1/projects/default/compute/hosts?pageSize=1",
            self.rest
        );
        let begun = Instant::now();
        let request = self.client.get(url).bearer_auth(&self.token);
        let answer = request.send().await.expect("an answer");
        (answer.status().as_u16(), begun.elapsed())
    }

    /// With which status a question for its health is answered, and after what time.
    pub async fn health(&self, path: &str) -> (u16, Duration) {
        let begun = Instant::now();
        let answer = self.client.get(format!("http://{}{path}", self.admin));
        let answer = answer.send().await.expect("an answer");
        (answer.status().as_u16(), begun.elapsed())
    }

    /// The sum of what is counted under a name, with these words among its labels.
    pub async fn counted(&self, name: &str, label: &str) -> u64 {
        let answer = self.client.get(format!("http://{}/metrics", self.admin));
        let answer = answer.send().await.expect("an answer");
        let text = answer.text().await.expect("metrics");
        let of = text.lines().filter(|line| {
            let labels = line.strip_prefix(name).unwrap_or_default();
            labels.starts_with('{') && labels.contains(label)
        });
        let last = |line: &str| line.rsplit(' ').next()?.parse::<u64>().ok();
        of.filter_map(last).sum()
    }

    /// Whether the server that was started at first is there.
    pub fn is_running(&mut self) -> bool {
        let ended = self.server.try_wait().expect("a child of ours");
        ended.is_none()
    }

    /// Ends the server and its Postgres.
    pub async fn close(mut self) {
        self.server.kill().await.expect("a child of ours");
        self.database.stop().await;
    }
}

/// Asks until there is an answer.
pub async fn until<T>(what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(
            begun.elapsed() < PATIENCE,
            "not within {PATIENCE:?}: {what}"
        );
        tokio::time::sleep(PAUSE).await;
    }
}

/// What goes on by itself at times of its own is put off, so that what a test says is all that is written.
fn settings(folder: &Path, database: SocketAddr, connections: u32) -> String {
    let path = |name: &str| folder.join(name).to_string_lossy().into_owned();
    format!(
        "data_dir = {:?}\n[log]\nlevel = \"warn\"\n\
         [database]\nurl = \"postgres://evenkeel@{database}/evenkeel?sslmode=disable\"\n\
         max_connections = {connections}\n\
         [auth]\nkeys = {:?}\nca = {:?}\n[rest]\nanswer_within = \"{}s\"\n\
         [maintenance_manager]\ncontacts_every = \"1h\"\ntrack_every = \"1h\"\nsilent_every = \"1h\"\n\
         [maintenance_manager.view]\nmax_staleness = \"{}s\"\naudit_every = 0\n",
        path("data"),
        path("keys"),
        path("ca"),
        REST_ANSWER.as_secs(),
        MAX_STALENESS.as_secs(),
    )
}

/// Starts a server and waits until it is ready. Says where it listens.
async fn start(folder: &Path) -> (Child, Value) {
    let ready = folder.join("ready.json");
    let mut server = spawn(&program().await, folder, &ready);
    let begun = Instant::now();
    while !ready.exists() {
        let log = || fs::read_to_string(folder.join("log")).unwrap_or_default();
        if let Some(status) = server.try_wait().expect("a child of ours") {
            panic!("the server ended with {status}:\n{}", log());
        }
        assert!(begun.elapsed() < START, "it does not start:\n{}", log());
        tokio::time::sleep(PAUSE).await;
    }
    let text = fs::read_to_string(&ready).expect("a file that says where");
    (server, serde_json::from_str(&text).expect("JSON"))
}

#[expect(clippy::disallowed_methods, reason = "the server is another program")]
fn spawn(program: &Path, folder: &Path, ready: &Path) -> Child {
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

/// The server of this workspace, or another build of it.
#[expect(clippy::disallowed_methods, reason = "a switch of these tests")]
async fn program() -> PathBuf {
    if let Some(path) = std::env::var_os("EVENKEEL_TEST_SERVER") {
        return path.into();
    }
    let built = tokio::task::spawn_blocking(|| Binaries::get().server.clone()).await;
    built.expect("the programs are built")
}

fn client() -> Client {
    let _already_installed = rustls::crypto::ring::default_provider().install_default();
    // Each question is asked anew.
    let client = Client::builder().pool_max_idle_per_host(0);
    client.timeout(PATIENCE).build().expect("a client")
}
