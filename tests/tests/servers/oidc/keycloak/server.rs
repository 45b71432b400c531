//! Keycloak as a process, and its administration.

use std::path::Path;
use std::process::{Output, Stdio};
use std::thread;
use std::time::Duration;

use evenkeel_test_support::{Answer, RestClient, install_tls};
use evenkeel_tests::architecture::tree;
use evenkeel_tests::history::print_progress;
use evenkeel_tests::lab::describe_output;
use reqwest::header::{CONTENT_TYPE, LOCATION};
use reqwest::{Client, Method, Url};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use super::super::browser::USER_PASSWORD;

/// Paths in the repository.
const INSTALL_SCRIPT: &str = "tests/lab/make-keycloak";
const START_SCRIPT: &str = "tests/lab/start-keycloak";

/// How long Keycloak may take to start on a busy machine. Usually it takes 20 seconds.
const START_TIMEOUT: Duration = Duration::from_mins(5);

/// Name and password of the administrator.
const ADMIN: &str = "admin";

/// Realm of the administrator, and the client for its tokens. Keycloak creates both.
const ADMIN_REALM: &str = "master";
const ADMIN_CLIENT: &str = "admin-cli";

/// A running Keycloak. It is killed when this value is dropped.
pub struct KeycloakServer {
    url: Url,
    http: Client,
    _process: Child,
}

impl KeycloakServer {
    /// Installs Keycloak if it is missing, and starts it without realms of users. Without
    /// `EVENKEEL_KEYCLOAK=all`, prints one line and returns `None`.
    pub async fn start_if_all() -> Option<Self> {
        if !runs_all() {
            let name = thread::current().name().unwrap_or_default().to_owned();
            print_progress(&format!("skipped {name}: set EVENKEEL_KEYCLOAK=all to run it"));
            return None;
        }
        let installed = install().await;
        assert!(installed.status.success(), "Keycloak: {}", describe_output(&installed));
        let folder = String::from_utf8_lossy(&installed.stdout);
        Some(Self::start(Path::new(folder.trim())).await)
    }

    #[expect(clippy::disallowed_methods, reason = "Keycloak is another program")]
    async fn start(folder: &Path) -> Self {
        install_tls();
        let process = Command::new(tree::root().join(START_SCRIPT))
            .arg(folder)
            .env("KC_BOOTSTRAP_ADMIN_USERNAME", ADMIN)
            .env("KC_BOOTSTRAP_ADMIN_PASSWORD", ADMIN)
            // It ends with its standard input, also if this process is killed.
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .kill_on_drop(true)
            .spawn();
        let mut process = process.expect("Keycloak starts");
        let mut lines = BufReader::new(process.stdout.take().expect("a pipe")).lines();
        let line =
            timeout(START_TIMEOUT, lines.next_line()).await.expect("Keycloak starts in time");
        let address = line.expect("text").expect("Keycloak prints its address");
        let http = Client::builder().no_proxy().build().expect("a client");
        Self { url: Url::parse(&address).expect("an address"), http, _process: process }
    }

    /// Issuer of the tokens of a realm.
    pub fn issuer(&self, realm: &str) -> String {
        self.url.join(&format!("realms/{realm}")).expect("an address").to_string()
    }

    /// Creates a realm with its groups and clients, as the administration console does with a file.
    pub async fn create_realm(&self, realm: &Value) {
        self.administrate(Method::POST, "", Some(realm)).await;
    }

    pub async fn create_client(&self, realm: &str, client: &Value) {
        self.administrate(Method::POST, &format!("/{realm}/clients"), Some(client)).await;
    }

    /// Creates a user with [`USER_PASSWORD`] in these groups. Returns its ID, which is the claim
    /// `sub` of its tokens.
    pub async fn create_user(&self, realm: &str, name: &str, groups: &[&str]) -> String {
        let paths: Vec<String> = groups.iter().map(|group| format!("/{group}")).collect();
        let user = json!({
            "username": name,
            "enabled": true,
            // Keycloak asks users at their first login for what is missing.
            "firstName": name,
            "lastName": "Example",
            "email": format!("{name}@example.org"),
            "groups": paths,
            "credentials": [{"type": "password", "value": USER_PASSWORD}],
        });
        let answer = self.administrate(Method::POST, &format!("/{realm}/users"), Some(&user)).await;
        let location = answer.headers[LOCATION].to_str().expect("a text");
        location.rsplit('/').next().expect("an ID").to_owned()
    }

    pub async fn add_to_group(&self, realm: &str, user: &str, group: &str) {
        self.change_membership(Method::PUT, realm, (user, group)).await;
    }

    pub async fn remove_from_group(&self, realm: &str, user: &str, group: &str) {
        self.change_membership(Method::DELETE, realm, (user, group)).await;
    }

    async fn change_membership(&self, method: Method, realm: &str, (user, group): (&str, &str)) {
        let answer = self.administrate(Method::GET, &format!("/{realm}/groups"), None).await;
        let (_, groups) = answer.json();
        let mut groups = groups.as_array().into_iter().flatten();
        let id = groups.find(|other| other["name"] == group).and_then(|group| group["id"].as_str());
        let id = id.expect("the realm has the group");
        self.administrate(method, &format!("/{realm}/users/{user}/groups/{id}"), None).await;
    }

    /// The tokens of a user for a client that accepts passwords.
    pub async fn request_tokens(
        &self,
        realm: &str,
        client: &str,
        (user, password): (&str, &str),
    ) -> Value {
        let path = format!("realms/{realm}/protocol/openid-connect/token");
        let url = self.url.join(&path).expect("an address");
        // Form bodies are encoded like query strings.
        let mut encoded = url.clone();
        encoded.query_pairs_mut().extend_pairs([
            ("grant_type", "password"),
            ("client_id", client),
            ("username", user),
            ("password", password),
            ("scope", "openid"),
        ]);
        let body = encoded.query().unwrap_or_default().to_owned();
        let request = self.http.post(url).body(body);
        let request = request.header(CONTENT_TYPE, "application/x-www-form-urlencoded");
        let response = request.send().await.expect("Keycloak responds");
        let status = response.status();
        let tokens: Value = response.json().await.expect("JSON");
        assert!(status.is_success(), "{status}: {tokens}");
        tokens
    }

    /// Sends a request to the administration interface. `path` is relative to its list of realms.
    async fn administrate(&self, method: Method, path: &str, body: Option<&Value>) -> Answer {
        // A token is valid for one minute only.
        let tokens = self.request_tokens(ADMIN_REALM, ADMIN_CLIENT, (ADMIN, ADMIN)).await;
        let token = tokens["access_token"].as_str().expect("a token");
        let client = RestClient::connect(self.url.authority(), "", token);
        let path = format!("/admin/realms{path}");
        let answer = client.send(method, &path, body).await.expect("Keycloak responds");
        assert!(answer.status.is_success(), "{path}: {}: {}", answer.status, answer.text);
        answer
    }
}

#[expect(clippy::disallowed_methods, reason = "a script installs the program")]
async fn install() -> Output {
    Command::new(tree::root().join(INSTALL_SCRIPT))
        .arg("-")
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .expect("the script starts")
}

#[expect(clippy::disallowed_methods, reason = "the one switch of this test")]
fn runs_all() -> bool {
    match std::env::var("EVENKEEL_KEYCLOAK").as_deref() {
        Ok("all") => true,
        Ok("") | Err(_) => false,
        Ok(other) => panic!("EVENKEEL_KEYCLOAK={other}: expected `all` or nothing"),
    }
}
