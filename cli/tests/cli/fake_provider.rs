//! A fake identity provider, and a browser that logs in there.

use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard};

use axum::Router;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use evenkeel_cli::{Ending, Failure};
use reqwest::Url;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::unbounded_channel;

use crate::{TestCli, noon};

/// Parameters of a form or an address.
type FormParams = Vec<(String, String)>;

/// A provider that knows the user `alice` and one client.
#[derive(Clone, Debug)]
pub struct FakeProvider {
    pub issuer: String,
    inner: Arc<Mutex<FakeProviderState>>,
}

#[derive(Debug, Default)]
struct FakeProviderState {
    /// Fields of the discovery document that differ.
    metadata: Value,
    /// Claims of the ID token that differ.
    id_claims: Value,
    /// Responses of the token endpoint before the tokens.
    token_errors: Vec<&'static str>,
    /// Seconds until a device code expires.
    device_ttl: u64,
    /// Whether device codes are issued only to a request with a code challenge.
    requires_pkce: bool,
    /// Code challenge of the last request for device codes.
    device_challenge: String,
    /// Parameters that the browser sends back; `None` removes one.
    callback: Vec<(&'static str, Option<&'static str>)>,
    /// Parameters of the last address that was opened.
    opened: FormParams,
    issued: usize,
    requests: Vec<String>,
}

impl FakeProvider {
    #[expect(clippy::disallowed_methods, reason = "the provider ends with the test")]
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let issuer = format!("http://{}", listener.local_addr().expect("its address"));
        let state = FakeProviderState { device_ttl: 60, ..FakeProviderState::default() };
        let provider = Self { issuer, inner: Arc::new(Mutex::new(state)) };
        let router = Router::new().fallback(respond).with_state(provider.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        provider
    }

    fn state(&self) -> MutexGuard<'_, FakeProviderState> {
        self.inner.lock().expect("no test panics here")
    }

    /// How a server lists the provider.
    pub fn listed(&self) -> Value {
        json!({
            "name": "staff", "issuer": self.issuer, "clientId": "cli", "scopes": ["groups"],
            "audience": "evenkeel",
        })
    }

    /// Changes fields of the discovery document; null removes one.
    pub fn change_metadata(&self, changes: Value) {
        self.state().metadata = changes;
    }

    /// Changes claims of the ID token; null removes one.
    pub fn change_id_claims(&self, changes: Value) {
        self.state().id_claims = changes;
    }

    /// Makes the token endpoint respond with these errors first.
    pub fn fail_tokens(&self, errors: &[&'static str]) {
        self.state().token_errors = errors.to_vec();
    }

    /// Makes device codes expire after this number of seconds.
    pub fn set_device_ttl(&self, seconds: u64) {
        self.state().device_ttl = seconds;
    }

    /// Requires PKCE for device codes, as Keycloak does if it requires it of the client.
    pub fn require_pkce(&self) {
        self.state().requires_pkce = true;
    }

    /// Changes parameters that the browser sends back.
    pub fn change_callback(&self, changes: &[(&'static str, Option<&'static str>)]) {
        self.state().callback = changes.to_vec();
    }

    /// A parameter of the last address that was opened.
    pub fn opened(&self, name: &str) -> String {
        find(&self.state().opened, name)
    }

    /// The received requests with their forms. Random texts are left out.
    pub fn requests(&self) -> String {
        self.state().requests.join("\n")
    }

    /// Runs a line; its browser logs in as `alice`.
    pub async fn log_in(&self, cli: &TestCli, line: &str) -> Result<(String, Ending), Failure> {
        let (sender, mut addresses) = unbounded_channel();
        let open = |address: &str| sender.send(address.to_owned()).is_ok();
        let browser = async {
            while let Some(address) = addresses.recv().await {
                self.visit(&address).await;
            }
        };
        tokio::select! {
            result = cli.run_with_browser(line, "", &open) => result,
            () = browser => panic!("the line has its sender"),
        }
    }

    /// Opens an address of the provider, and follows the redirection to the command line.
    async fn visit(&self, address: &str) {
        let url = Url::parse(address).expect("an address");
        assert!(address.starts_with(&format!("{}/auth?", self.issuer)), "{address}");
        let query = read_params(url.query().unwrap_or_default());
        let mut answer = vec![
            ("code", Some("the-code".to_owned())),
            ("state", Some(find(&query, "state"))),
            ("iss", Some(self.issuer.clone())),
        ];
        let mut redirect = Url::parse(&find(&query, "redirect_uri")).expect("a redirect URI");
        {
            let mut state = self.state();
            state.opened = query;
            for (name, value) in &state.callback {
                answer.retain(|(other, _)| other != name);
                answer.push((*name, value.map(str::to_owned)));
            }
        }
        let sent = answer.iter().filter_map(|(name, value)| Some((name, value.as_ref()?)));
        redirect.query_pairs_mut().extend_pairs(sent);
        let host = redirect.socket_addrs(|| None).expect("an address")[0];
        let mut stream = TcpStream::connect(host).await.expect("the command line listens");
        let target = format!("{}?{}", redirect.path(), redirect.query().unwrap_or_default());
        let request = format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n");
        stream.write_all(request.as_bytes()).await.expect("sent");
        let mut page = String::new();
        stream.read_to_string(&mut page).await.expect("a page");
    }

    fn respond(&self, path: &str, form: &[(String, String)]) -> (u16, Value) {
        let mut state = self.state();
        if path != "/.well-known/openid-configuration" {
            let mut request = path.to_owned();
            for (name, value) in form.iter().filter(|(name, _)| !is_random(name)) {
                write!(request, " {name}={value}").expect("a text");
            }
            state.requests.push(request);
        }
        match path {
            "/.well-known/openid-configuration" => (200, self.metadata(&state)),
            "/device" if state.requires_pkce && find(form, "code_challenge_method") != "S256" => {
                let description = "Missing parameter: code_challenge_method";
                (400, json!({"error": "invalid_request", "error_description": description}))
            }
            "/device" => {
                state.device_challenge = find(form, "code_challenge");
                (200, self.device_codes(&state))
            }
            "/token" if !state.token_errors.is_empty() => {
                (400, json!({"error": state.token_errors.remove(0)}))
            }
            "/token" => self.tokens(&mut state, form),
            "/revoke" => (200, json!({})),
            _ => (404, json!({})),
        }
    }

    fn metadata(&self, state: &FakeProviderState) -> Value {
        let issuer = &self.issuer;
        let document = json!({
            "issuer": issuer,
            "authorization_endpoint": format!("{issuer}/auth"),
            "token_endpoint": format!("{issuer}/token"),
            "device_authorization_endpoint": format!("{issuer}/device"),
            "revocation_endpoint": format!("{issuer}/revoke"),
            "authorization_response_iss_parameter_supported": true,
            "code_challenge_methods_supported": ["S256"],
        });
        merge(document, &state.metadata)
    }

    fn device_codes(&self, state: &FakeProviderState) -> Value {
        json!({
            "device_code": "secret-code",
            "user_code": "ABCD-EFGH",
            "verification_uri": format!("{}/enter", self.issuer),
            "verification_uri_complete": format!("{}/enter?code=ABCD-EFGH", self.issuer),
            "expires_in": state.device_ttl,
            "interval": 0,
        })
    }

    fn tokens(&self, state: &mut FakeProviderState, form: &[(String, String)]) -> (u16, Value) {
        let is_granted = match find(form, "grant_type").as_str() {
            "authorization_code" => {
                let digest = Sha256::digest(find(form, "code_verifier").as_bytes());
                find(form, "code") == "the-code"
                    && find(&state.opened, "code_challenge_method") == "S256"
                    && find(&state.opened, "code_challenge") == URL_SAFE_NO_PAD.encode(digest)
                    && find(&state.opened, "redirect_uri") == find(form, "redirect_uri")
            }
            "urn:ietf:params:oauth:grant-type:device_code" => {
                let challenge = match find(form, "code_verifier").as_str() {
                    "" => String::new(),
                    verifier => URL_SAFE_NO_PAD.encode(Sha256::digest(verifier.as_bytes())),
                };
                find(form, "device_code") == "secret-code" && challenge == state.device_challenge
            }
            "refresh_token" => find(form, "refresh_token") == format!("refresh-{}", state.issued),
            _ => false,
        };
        if !is_granted {
            return (400, json!({"error": "invalid_grant", "error_description": "no such grant"}));
        }
        state.issued += 1;
        let expires_at = (noon() + chrono::TimeDelta::minutes(5)).timestamp();
        let access = json!({"iss": self.issuer, "aud": "evenkeel", "exp": expires_at});
        let id = json!({
            "iss": self.issuer, "aud": "cli", "exp": expires_at, "sub": "4711",
            "preferred_username": "alice", "nonce": find(&state.opened, "nonce"),
        });
        let tokens = json!({
            "access_token": jwt(&access),
            "id_token": jwt(&merge(id, &state.id_claims)),
            "refresh_token": format!("refresh-{}", state.issued),
            "token_type": "Bearer",
        });
        (200, tokens)
    }
}

async fn respond(State(provider): State<FakeProvider>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, 100_000).await.expect("a body");
    let form = read_params(&String::from_utf8_lossy(&body));
    let (status, body) = provider.respond(parts.uri.path(), &form);
    let status = StatusCode::from_u16(status).expect("a status");
    (status, axum::Json(body)).into_response()
}

/// A token that the fake server accepts.
pub fn jwt(claims: &Value) -> String {
    format!("e30.{}.good", URL_SAFE_NO_PAD.encode(claims.to_string()))
}

fn merge(mut object: Value, changes: &Value) -> Value {
    for (name, value) in changes.as_object().into_iter().flatten() {
        let members = object.as_object_mut().expect("an object");
        members.remove(name);
        if !value.is_null() {
            members.insert(name.clone(), value.clone());
        }
    }
    object
}

/// Parses an encoded form, which has the syntax of a query.
fn read_params(text: &str) -> FormParams {
    let url = Url::parse(&format!("http://form/?{text}")).expect("a form");
    url.query_pairs().map(|(name, value)| (name.into_owned(), value.into_owned())).collect()
}

fn find(params: &[(String, String)], name: &str) -> String {
    let found = params.iter().find(|(other, _)| other == name);
    found.map(|(_, value)| value.clone()).unwrap_or_default()
}

fn is_random(name: &str) -> bool {
    matches!(name, "code_challenge" | "code_verifier" | "redirect_uri")
}
