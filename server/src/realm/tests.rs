//! Tests of logins at the token endpoint.

mod login_records;
mod refusals;
mod user_changes;

use axum::body::{Body, to_bytes};
use evenkeel_auth::{Keys, Settings};
use evenkeel_kit::TestClock;
use evenkeel_store::operator_tokens::{self, RevokedSubject};
use evenkeel_store::testing::{fresh_database, fresh_store, with_database_clock};
use evenkeel_store::users::{self, UserLogin};
use evenkeel_store::{ShareSizes, StoreOptions, projects};
use tower::ServiceExt;

use super::*;

const PASSWORD: &str = "open sesame";
const PROXY: &str = "127.0.0.1:4000";

struct RealmFixture {
    realm: Realm,
    router: Router,
    store: Store,
    authority: Arc<Authority>,
    clock: TestClock,
    database_clock: TestClock,
    folder: tempfile::TempDir,
}

/// Request to the token endpoint.
struct FormRequest {
    peer: &'static str,
    headers: Vec<(&'static str, &'static str)>,
    form: String,
}

fn form(fields: &[(&str, &str)]) -> FormRequest {
    let fields = fields.iter().map(|(name, value)| {
        let value = value.replace('%', "%25").replace('&', "%26");
        format!("{name}={}", value.replace('+', "%2B").replace(' ', "+"))
    });
    FormRequest {
        peer: "192.0.2.1:4000",
        headers: vec![("host", "updates.example:8080")],
        form: fields.collect::<Vec<_>>().join("&"),
    }
}

fn login(name: &str, password: &str) -> FormRequest {
    login_with_client("system-client", name, password)
}

fn login_with_client(client: &str, name: &str, password: &str) -> FormRequest {
    form(&[
        ("client_id", client),
        ("grant_type", "password"),
        ("username", name),
        ("password", password),
        ("claims", "openid profile email"),
    ])
}

fn refresh(client: &str, token: &str) -> FormRequest {
    form(&[("client_id", client), ("grant_type", "refresh_token"), ("refresh_token", token)])
}

impl RealmFixture {
    async fn new() -> Self {
        Self::with_url(None).await
    }

    async fn with_url(url: Option<&str>) -> Self {
        Self::with_store(fresh_store().await, url)
    }

    fn with_store(store: Store, url: Option<&str>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let keys = Keys::open(&folder.path().join("keys")).unwrap();
        let authority = Arc::new(Authority::new(keys, Settings::default()));
        let clock = TestClock::new(DateTime::from_timestamp(1_780_000_000, 0).unwrap());
        let database_clock = TestClock::new(clock.now());
        let store = with_database_clock(&store, Arc::new(database_clock.clone()));
        let users = folder.path().join("users.toml");
        std::fs::write(&users, users_toml(PASSWORD)).unwrap();
        let config = LoginConfig {
            users: Some(users),
            access_token_ttl: Duration::from_mins(15),
            refresh_token_ttl: Duration::from_hours(24),
            url: url.map(str::to_owned),
            trusted_proxies: vec!["127.0.0.1".parse().unwrap()],
            reusable_refresh_token_clients: vec!["system-client".to_owned()],
        };
        let time: Arc<dyn Clock> = Arc::new(clock.clone());
        let realm = Realm::open(&config, &store, &authority, &time).unwrap();
        let api = Router::new().route("/v1/orchestrator", get(async || "the API"));
        let router = realm.clone().into_router(api);
        Self { realm, router, store, authority, clock, database_clock, folder }
    }

    /// Moves the clocks of the process and of the database.
    fn advance(&self, by: TimeDelta) {
        self.clock.advance(by);
        self.database_clock.advance(by);
    }

    async fn send(&self, request: Request) -> (StatusCode, HeaderMap, Value) {
        let answer = self.router.clone().oneshot(request).await.unwrap();
        let (parts, body) = answer.into_parts();
        let bytes = to_bytes(body, 1 << 20).await.unwrap();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let json = serde_json::from_slice(&bytes).unwrap_or(Value::String(text));
        (parts.status, parts.headers, json)
    }

    async fn get(&self, path: &str, host: &str) -> (StatusCode, HeaderMap, Value) {
        let request = axum::http::Request::builder().uri(path).header("host", host);
        self.send(request.body(Body::empty()).unwrap()).await
    }

    async fn post_token_request(&self, sent: FormRequest) -> (StatusCode, HeaderMap, Value) {
        let mut request = axum::http::Request::builder()
            .method("POST")
            .uri("/realms/master/protocol/openid-connect/token")
            .header("content-type", "application/x-www-form-urlencoded");
        for (name, value) in sent.headers {
            request = request.header(name, value);
        }
        let peer: std::net::SocketAddr = sent.peer.parse().unwrap();
        let mut request = request.body(Body::from(sent.form)).unwrap();
        request.extensions_mut().insert(Peer(peer));
        self.send(request).await
    }

    async fn expect_error(&self, sent: FormRequest) -> String {
        let (status, _, answer) = self.post_token_request(sent).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{answer}");
        answer["error"].as_str().unwrap().to_owned()
    }

    /// Decodes the refresh token of a response.
    fn decode_refresh_token(&self, answer: &Value) -> RefreshToken {
        let token = answer["refresh_token"].as_str().unwrap();
        let read = self.authority.verify_refresh(token, self.clock.now());
        read.unwrap().0
    }

    /// Logs in with EIM's client, and returns the refresh token.
    async fn log_in(&self) -> String {
        self.log_in_with("system-client").await
    }

    async fn log_in_with(&self, client: &str) -> String {
        let sent = login_with_client(client, "alice", PASSWORD);
        let (status, _, answer) = self.post_token_request(sent).await;
        assert_eq!(status, StatusCode::OK, "{answer}");
        answer["refresh_token"].as_str().unwrap().to_owned()
    }
}

fn users_toml(password: &str) -> String {
    let hash = evenkeel_auth::users::hash_password(&Secret::new(password)).unwrap();
    format!("[[users]]\nname = 'alice'\npassword_hash = '{hash}'\nroles = ['evenkeel-admin']\n")
}

/// Nodes may use all of their connections, and one user may log in too often.
#[tokio::test]
async fn logins_have_their_own_connections() {
    let options = StoreOptions {
        max_connections: 5,
        shares: Some(ShareSizes { nodes: 1, rest_reads: 1, rest_writes: 1, logins: 2 }),
        acquire_timeout: Duration::from_secs(1),
        ..StoreOptions::default()
    };
    let store = Store::connect(&fresh_database().await, options).await.unwrap();
    let fixture = RealmFixture::with_store(store, None);
    let all_of_nodes = fixture.store.fleet().await.unwrap();
    let of_bob = fixture.store.with_share(ConnectionShare::Logins, Some("bob")).fleet().await;
    fixture.log_in().await;
    let others = fixture.store.with_share(ConnectionShare::Logins, None).fleet().await;
    let (status, _, answer) = fixture.post_token_request(login("alice", PASSWORD)).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{answer}");
    assert_eq!(answer["error"], "temporarily_unavailable");
    drop((all_of_nodes, of_bob.unwrap(), others.unwrap()));
}

#[tokio::test]
async fn the_discovery_document_uses_the_requested_host() {
    let path = "/realms/master/.well-known/openid-configuration";
    let fixture = RealmFixture::new().await;
    let (status, headers, configuration) = fixture.get(path, "127.0.0.1:8080").await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(headers["content-type"], "application/json");
    let endpoint = "http://127.0.0.1:8080/realms/master";
    assert_eq!(configuration["issuer"], endpoint);
    let token = format!("{endpoint}/protocol/openid-connect/token");
    assert_eq!(configuration["token_endpoint"], token);

    let with_url = RealmFixture::with_url(Some("https://updates.example")).await;
    let (_, _, configuration) = with_url.get(path, "10.0.0.1").await;
    assert_eq!(configuration["issuer"], "https://updates.example/realms/master");
    for odd in ["", "a b", "evil.example/path", "x\"y"] {
        let (status, _, answer) = fixture.get(path, odd).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{odd:?}: {answer}");
    }
    let (_, _, keys) = fixture.get("/realms/master/protocol/openid-connect/certs", "x").await;
    assert_eq!(keys, fixture.authority.jwks());
    let (_, _, api) = fixture.get("/v1/orchestrator", "x").await;
    assert_eq!(api, "the API");
}

#[tokio::test]
async fn a_password_is_exchanged_for_tokens_that_eim_clients_can_use() {
    let fixture = RealmFixture::new().await;
    let (status, headers, answer) = fixture.post_token_request(login("alice", PASSWORD)).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    assert_eq!(headers["cache-control"], "no-store");
    assert_eq!(answer["expires_in"], 900);
    let access = answer["access_token"].as_str().unwrap();
    let caller = fixture.authority.verify(access, fixture.clock.now()).unwrap();
    assert_eq!(caller.subject, "alice");
    assert_eq!(caller.roles, [Role::Administrator]);

    let refresh_token = fixture.decode_refresh_token(&answer);
    assert_eq!(refresh_token.client, "system-client");
    assert_eq!(refresh_token.endpoint, "http://updates.example:8080/realms/master");
}

/// Adds a user with the role of an administrator to the database.
async fn add_stored_user(fixture: &RealmFixture, name: &str, password: &str) {
    let hash = evenkeel_auth::users::hash_password(&Secret::new(password)).unwrap();
    let login =
        UserLogin { password_hash: Secret::new(hash), roles: vec!["evenkeel-admin".to_owned()] };
    let tx = fixture.store.fleet().await.unwrap();
    let created = users::create(&tx, name, &login, "root", tx.database_time()).await.unwrap();
    assert!(created.is_some(), "{name} is new");
    tx.commit().await.unwrap();
}

#[tokio::test]
async fn a_user_of_the_database_logs_in_until_it_is_disabled() {
    let fixture = RealmFixture::new().await;
    add_stored_user(&fixture, "bob", "open barley!").await;
    let (status, _, answer) = fixture.post_token_request(login("bob", "open barley!")).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    let access = answer["access_token"].as_str().unwrap();
    let caller = fixture.authority.verify(access, fixture.clock.now()).unwrap();
    assert_eq!((caller.subject.as_str(), &*caller.roles), ("bob", &[Role::Administrator][..]));
    let token = answer["refresh_token"].as_str().unwrap();
    let (status, ..) = fixture.post_token_request(refresh("system-client", token)).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(fixture.expect_error(login("bob", PASSWORD)).await, "invalid_grant");
    // No such name can be in the database.
    assert_eq!(fixture.expect_error(login("a\0b", PASSWORD)).await, "invalid_grant");

    let tx = fixture.store.fleet().await.unwrap();
    users::set_disabled(&tx, "bob", true, tx.database_time()).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(fixture.expect_error(login("bob", "open barley!")).await, "invalid_grant");
    assert_eq!(fixture.expect_error(refresh("system-client", token)).await, "invalid_grant");
}

#[tokio::test]
async fn a_name_in_both_sources_cannot_log_in_and_the_client_gets_the_reason() {
    let fixture = RealmFixture::new().await;
    let token = fixture.log_in().await;
    add_stored_user(&fixture, "alice", "open barley!").await;
    let (status, _, answer) = fixture.post_token_request(login("alice", PASSWORD)).await;
    assert_eq!(status, StatusCode::BAD_REQUEST, "{answer}");
    let why = answer["error_description"].as_str().unwrap();
    assert!(why.contains("in the file of users and in the database"), "{why}");
    assert_eq!(fixture.expect_error(refresh("system-client", &token)).await, "invalid_grant");
    // A client without the password learns nothing.
    let (_, _, answer) = fixture.post_token_request(login("alice", "guessed")).await;
    assert_eq!(answer["error_description"], "the name or the password is wrong");
}

#[tokio::test]
async fn a_logout_ends_the_login_of_its_client() {
    let fixture = RealmFixture::new().await;
    let (token, other) = (fixture.log_in().await, fixture.log_in().await);
    let log_out = async |fields: &[(&str, &str)]| {
        let sent = form(fields);
        let request = axum::http::Request::builder()
            .method("POST")
            .uri("/realms/master/protocol/openid-connect/logout")
            .header("content-type", "application/x-www-form-urlencoded");
        let (status, _, _) = fixture.send(request.body(Body::from(sent.form)).unwrap()).await;
        status
    };
    let client = ("client_id", "system-client");
    for bad in [
        &[client][..],
        &[client, ("refresh_token", "x")],
        &[("client_id", "evenkeel"), ("refresh_token", token.as_str())],
        &[("refresh_token", token.as_str())],
    ] {
        assert_eq!(log_out(bad).await, StatusCode::BAD_REQUEST, "{bad:?}");
    }
    for _ in 0..2 {
        let status = log_out(&[client, ("refresh_token", token.as_str())]).await;
        assert_eq!(status, StatusCode::NO_CONTENT);
    }
    assert_eq!(fixture.expect_error(refresh("system-client", &token)).await, "invalid_grant");
    let (status, ..) = fixture.post_token_request(refresh("system-client", &other)).await;
    assert_eq!(status, StatusCode::OK, "another login continues");
}

/// A refresh continues a login with the roles of the projects that exist then.
#[tokio::test]
async fn a_user_has_roles_in_projects_by_name_while_they_exist() {
    let fixture = RealmFixture::new().await;
    let users =
        users_toml(PASSWORD).replace("'evenkeel-admin'", "'operator@default', 'viewer@other'");
    assert!(users.contains("operator@default"), "{users}");
    std::fs::write(fixture.folder.path().join("users.toml"), users).unwrap();
    let roles = |answer: &Value| {
        let access = answer["access_token"].as_str().unwrap();
        fixture.authority.verify(access, fixture.clock.now()).unwrap().roles.clone()
    };
    let (_, _, logged_in) = fixture.post_token_request(login("alice", PASSWORD)).await;
    assert!(roles(&logged_in).is_empty(), "no project exists: {logged_in}");

    let tx = fixture.store.fleet().await.unwrap();
    let (project, _) = projects::ensure_default(&tx, tx.database_time()).await.unwrap();
    tx.commit().await.unwrap();
    let expected = [Role::Write(project.id.uuid())];
    let token = logged_in["refresh_token"].as_str().unwrap();
    let (_, _, refreshed) = fixture.post_token_request(refresh("system-client", token)).await;
    assert_eq!(roles(&refreshed), expected);
    let (_, _, logged_in) = fixture.post_token_request(login("alice", PASSWORD)).await;
    assert_eq!(roles(&logged_in), expected);
}

#[tokio::test]
async fn a_refresh_token_yields_access_tokens_until_it_expires() {
    let fixture = RealmFixture::new().await;
    let token = fixture.log_in().await;
    fixture.advance(TimeDelta::hours(23));
    let (status, _, answer) = fixture.post_token_request(refresh("system-client", &token)).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    let access = answer["access_token"].as_str().unwrap();
    fixture.authority.verify(access, fixture.clock.now()).unwrap();
    let next = answer["refresh_token"].as_str().unwrap();
    assert_eq!(answer["refresh_expires_in"], 3600, "the login does not last longer");

    for sent in [
        refresh("somebody-else", next),
        refresh("system-client", access),
        refresh("system-client", "nonsense"),
        refresh("system-client", ""),
    ] {
        assert_eq!(fixture.expect_error(sent).await, "invalid_grant");
    }
    fixture.advance(TimeDelta::hours(2));
    let error = fixture.expect_error(refresh("system-client", next)).await;
    assert_eq!(error, "invalid_grant");
}

#[tokio::test]
async fn a_login_continues_when_a_refresh_is_repeated_at_a_process_with_a_wrong_clock() {
    let fixture = RealmFixture::new().await;
    let first = fixture.log_in_with("evenkeel").await;
    for ahead in [0, 1] {
        fixture.clock.advance(TimeDelta::hours(ahead));
        let (status, _, answer) = fixture.post_token_request(refresh("evenkeel", &first)).await;
        assert_eq!(status, StatusCode::OK, "{answer}");
    }
}

#[tokio::test]
async fn a_refresh_can_be_repeated_shortly_and_a_later_reuse_ends_the_login() {
    let fixture = RealmFixture::new().await;
    let first = fixture.log_in_with("evenkeel").await;
    let use_token = async |token: &str| {
        let (status, _, answer) = fixture.post_token_request(refresh("evenkeel", token)).await;
        assert_eq!(status, StatusCode::OK, "{answer}");
        answer["refresh_token"].as_str().unwrap().to_owned()
    };
    assert_ne!(use_token(&first).await, first, "each use replaces the token");
    // The answer was lost.
    let second = use_token(&first).await;
    let third = use_token(&second).await;
    // Somebody has kept a copy of the first token.
    for token in [&first, &third, &second] {
        let error = fixture.expect_error(refresh("evenkeel", token)).await;
        assert_eq!(error, "invalid_grant");
    }
    use_token(&fixture.log_in_with("evenkeel").await).await;
}

/// EIM's `orch-cli` stores only the first refresh token, and uses it for each request.
#[tokio::test]
async fn a_refresh_token_of_eims_client_can_be_used_again() {
    let fixture = RealmFixture::new().await;
    let token = fixture.log_in().await;
    for _ in 0..3 {
        fixture.advance(TimeDelta::minutes(10));
        let sent = refresh("system-client", &token);
        let (status, _, answer) = fixture.post_token_request(sent).await;
        assert_eq!(status, StatusCode::OK, "{answer}");
    }
}

#[tokio::test]
async fn a_revoked_user_must_log_in_again() {
    let fixture = RealmFixture::new().await;
    let token = fixture.log_in().await;
    let tx = fixture.store.fleet().await.unwrap();
    let alice = RevokedSubject {
        issuer: String::new(),
        subject: "alice".to_owned(),
        revoked_until: fixture.clock.now(),
    };
    operator_tokens::revoke_subject(&tx, &alice, "admin").await.unwrap();
    tx.commit().await.unwrap();
    let error = fixture.expect_error(refresh("system-client", &token)).await;
    assert_eq!(error, "invalid_grant");
    fixture.log_in().await;
}

/// Revocations count by the time of the database.
#[tokio::test]
async fn a_process_whose_clock_is_ahead_issues_no_token_that_survives_a_revocation() {
    let fixture = RealmFixture::new().await;
    fixture.clock.advance(TimeDelta::seconds(50));
    let (_, _, logged_in) = fixture.post_token_request(login("alice", PASSWORD)).await;
    let token = logged_in["refresh_token"].as_str().unwrap();
    let (_, _, refreshed) = fixture.post_token_request(refresh("system-client", token)).await;
    let roles = [Role::Administrator];
    let of_alice = ("alice", &roles[..]);
    let tx = fixture.store.fleet().await.unwrap();
    let lifetime = Duration::from_mins(15);
    let by_command =
        crate::operator_tokens::issue_recorded(&tx, &fixture.authority, of_alice, lifetime).await;
    let by_command = by_command.unwrap().token;
    let revoked_until = tx.database_time();
    let alice = evenkeel_auth::RevokedSubject {
        issuer: String::new(),
        subject: "alice".into(),
        revoked_until,
    };
    fixture.authority.set_revocations(evenkeel_auth::Revocations::new([], [alice]));

    let is_valid = |token: &str| fixture.authority.verify(token, fixture.clock.now()).is_ok();
    assert!(!is_valid(logged_in["access_token"].as_str().unwrap()), "of the login");
    assert!(!is_valid(refreshed["access_token"].as_str().unwrap()), "of the refresh");
    assert!(!is_valid(by_command.reveal()), "of the command");
    fixture.advance(TimeDelta::seconds(1));
    let (_, _, later) = fixture.post_token_request(login("alice", PASSWORD)).await;
    assert!(is_valid(later["access_token"].as_str().unwrap()), "of a later login: {later}");
}

#[test]
fn the_address_of_a_client_may_have_a_port() {
    for (text, expected) in [
        ("192.0.2.7", Some("192.0.2.7")),
        ("192.0.2.7:51000", Some("192.0.2.7")),
        ("2001:db8::1", Some("2001:db8::1")),
        ("[2001:db8::1]:51000", Some("2001:db8::1")),
        ("[2001:db8::1]", Some("2001:db8::1")),
        ("unknown", None),
        ("", None),
        ("[192.0.2.7", None),
    ] {
        let address = parse_client_address(text).map(|address| address.to_string());
        assert_eq!(address.as_deref(), expected, "{text}");
    }
}

#[tokio::test]
async fn a_new_password_invalidates_old_refresh_tokens() {
    let fixture = RealmFixture::new().await;
    let token = fixture.log_in().await;
    std::fs::write(fixture.folder.path().join("users.toml"), users_toml("new phrase")).unwrap();
    let error = fixture.expect_error(refresh("system-client", &token)).await;
    assert_eq!(error, "invalid_grant");
    let old = fixture.expect_error(login("alice", PASSWORD)).await;
    assert_eq!(old, "invalid_grant");
    let (status, _, _) = fixture.post_token_request(login("alice", "new phrase")).await;
    assert_eq!(status, StatusCode::OK);
}

#[test]
fn a_form_does_not_show_its_secrets() {
    let grant = TokenRequest {
        kind: "password".to_owned(),
        client_id: String::new(),
        username: "alice".to_owned(),
        password: Some(Secret::new(PASSWORD)),
        refresh_token: None,
    };
    assert!(!format!("{grant:?}").contains("sesame"));
}
