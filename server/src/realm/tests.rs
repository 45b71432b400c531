//! Logins, good and bad, at the endpoint itself.

use axum::body::{Body, to_bytes};
use evenkeel_auth::{Keys, Role, Settings};
use evenkeel_kit::TestClock;
use tower::ServiceExt;

use super::*;

const PASSWORD: &str = "open sesame";
const PROXY: &str = "127.0.0.1:4000";

struct House {
    router: Router,
    authority: Arc<Authority>,
    clock: TestClock,
    folder: tempfile::TempDir,
}

/// What somebody sends.
struct Sent {
    peer: &'static str,
    headers: Vec<(&'static str, &'static str)>,
    form: String,
}

fn form(fields: &[(&str, &str)]) -> Sent {
    let fields = fields.iter().map(|(name, value)| {
        let value = value.replace('%', "%25").replace('&', "%26");
        format!("{name}={}", value.replace('+', "%2B").replace(' ', "+"))
    });
    Sent {
        peer: "192.0.2.1:4000",
        headers: vec![("host", "updates.example:8080")],
        form: fields.collect::<Vec<_>>().join("&"),
    }
}

fn login(name: &str, password: &str) -> Sent {
    form(&[
        ("client_id", "system-client"),
        ("grant_type", "password"),
        ("username", name),
        ("password", password),
        ("claims", "openid profile email"),
    ])
}

fn refresh(client: &str, token: &str) -> Sent {
    form(&[
        ("client_id", client),
        ("grant_type", "refresh_token"),
        ("refresh_token", token),
    ])
}

impl House {
    fn new() -> Self {
        Self::with(None)
    }

    fn with(url: Option<&str>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let keys = Keys::open(&folder.path().join("keys")).unwrap();
        let authority = Arc::new(Authority::new(keys, Settings::default()));
        let clock = TestClock::new(DateTime::from_timestamp(1_780_000_000, 0).unwrap());
        let users = folder.path().join("users.toml");
        std::fs::write(&users, file(PASSWORD)).unwrap();
        let config = Login {
            users,
            access_for: Duration::from_mins(15),
            refresh_for: Duration::from_hours(24),
            url: url.map(str::to_owned),
            proxies: vec!["127.0.0.1".parse().unwrap()],
        };
        let time: Arc<dyn Clock> = Arc::new(clock.clone());
        let realm = Realm::open(&config, &authority, &time).unwrap();
        let api = Router::new().route("/v1/orchestrator", get(async || "the API"));
        Self {
            router: realm.beside(api),
            authority,
            clock,
            folder,
        }
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
        let request = axum::http::Request::builder()
            .uri(path)
            .header("host", host);
        self.send(request.body(Body::empty()).unwrap()).await
    }

    async fn ask(&self, sent: Sent) -> (StatusCode, HeaderMap, Value) {
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

    async fn refused(&self, sent: Sent) -> String {
        let (status, _, answer) = self.ask(sent).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{answer}");
        answer["error"].as_str().unwrap().to_owned()
    }

    /// What the refresh token in an answer says.
    fn said(&self, answer: &Value) -> Refresh {
        let token = answer["refresh_token"].as_str().unwrap();
        let read = self.authority.verify_refresh(token, self.clock.now());
        read.unwrap().0
    }

    /// The refresh token of somebody who has just logged in.
    async fn logged_in(&self) -> String {
        let (status, _, answer) = self.ask(login("alice", PASSWORD)).await;
        assert_eq!(status, StatusCode::OK, "{answer}");
        answer["refresh_token"].as_str().unwrap().to_owned()
    }
}

fn file(password: &str) -> String {
    let hash = evenkeel_auth::users::hash(&Secret::new(password)).unwrap();
    format!("[[users]]\nname = 'alice'\npassword_hash = '{hash}'\nroles = ['evenkeel-admin']\n")
}

#[tokio::test]
async fn the_endpoint_describes_itself_by_the_name_that_it_was_found_by() {
    let path = "/realms/master/.well-known/openid-configuration";
    let house = House::new();
    let (status, headers, found) = house.get(path, "127.0.0.1:8080").await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(headers["content-type"], "application/json");
    let endpoint = "http://127.0.0.1:8080/realms/master";
    assert_eq!(found["issuer"], endpoint);
    let token = format!("{endpoint}/protocol/openid-connect/token");
    assert_eq!(found["token_endpoint"], token);

    let named = House::with(Some("https://updates.example"));
    let (_, _, found) = named.get(path, "10.0.0.1").await;
    assert_eq!(found["issuer"], "https://updates.example/realms/master");
    for odd in ["", "a b", "evil.example/path", "x\"y"] {
        let (status, _, answer) = house.get(path, odd).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{odd:?}: {answer}");
    }
    let (_, _, keys) = house
        .get("/realms/master/protocol/openid-connect/certs", "x")
        .await;
    assert_eq!(keys, house.authority.jwks());
    let (_, _, api) = house.get("/v1/orchestrator", "x").await;
    assert_eq!(api, "the API");
}

#[tokio::test]
async fn a_password_is_answered_with_tokens_that_the_ancestors_clients_can_use() {
    let house = House::new();
    let (status, headers, answer) = house.ask(login("alice", PASSWORD)).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    assert_eq!(headers["cache-control"], "no-store");
    assert_eq!(answer["expires_in"], 900);
    let access = answer["access_token"].as_str().unwrap();
    let caller = house.authority.verify(access, house.clock.now()).unwrap();
    assert_eq!(caller.subject, "alice");
    assert_eq!(caller.roles, [Role::Administrator]);

    let said = house.said(&answer);
    assert_eq!(said.client, "system-client");
    assert_eq!(said.endpoint, "http://updates.example:8080/realms/master");
}

#[tokio::test]
async fn a_refresh_token_is_answered_with_another_access_token_until_it_expires() {
    let house = House::new();
    let token = house.logged_in().await;
    house.clock.advance(TimeDelta::hours(23));
    let (status, _, answer) = house.ask(refresh("system-client", &token)).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    let access = answer["access_token"].as_str().unwrap();
    house.authority.verify(access, house.clock.now()).unwrap();
    assert_eq!(answer["refresh_token"], token);
    assert_eq!(answer["refresh_expires_in"], 3600);

    for sent in [
        refresh("somebody-else", &token),
        refresh("system-client", access),
        refresh("system-client", "nonsense"),
        refresh("system-client", ""),
    ] {
        assert_eq!(house.refused(sent).await, "invalid_grant");
    }
    house.clock.advance(TimeDelta::hours(2));
    let over = house.refused(refresh("system-client", &token)).await;
    assert_eq!(over, "invalid_grant");
}

#[tokio::test]
async fn another_password_ends_what_was_begun_with_the_old_one() {
    let house = House::new();
    let token = house.logged_in().await;
    std::fs::write(house.folder.path().join("users.toml"), file("more words")).unwrap();
    let over = house.refused(refresh("system-client", &token)).await;
    assert_eq!(over, "invalid_grant");
    let old = house.refused(login("alice", PASSWORD)).await;
    assert_eq!(old, "invalid_grant");
    let (status, _, _) = house.ask(login("alice", "more words")).await;
    assert_eq!(status, StatusCode::OK);
}

#[tokio::test]
async fn what_cannot_be_granted_has_its_error() {
    let house = House::new();
    let long = "x".repeat(20_000);
    for (sent, error) in [
        (login("alice", "wrong"), "invalid_grant"),
        (login("bob", PASSWORD), "invalid_grant"),
        (login("", PASSWORD), "invalid_request"),
        (login("alice", ""), "invalid_request"),
        (form(&[("grant_type", "password")]), "invalid_request"),
        (form(&[("grant_type", "refresh_token")]), "invalid_request"),
        (
            form(&[("grant_type", "client_credentials")]),
            "unsupported_grant_type",
        ),
        (form(&[]), "invalid_request"),
        (login("alice", &long), "invalid_request"),
        (refresh(&long[..200], "x"), "invalid_request"),
    ] {
        let what = sent.form.chars().take(80).collect::<String>();
        assert_eq!(house.refused(sent).await, error, "{what}");
    }
    let nameless = Sent {
        headers: Vec::new(),
        ..login("alice", PASSWORD)
    };
    assert_eq!(house.refused(nameless).await, "invalid_request");
}

#[tokio::test]
async fn whoever_fails_too_often_must_wait() {
    let house = House::new();
    for _ in 0..5 {
        let error = house.refused(login("alice", "wrong")).await;
        assert_eq!(error, "invalid_grant");
    }
    // Also with the right password, from wherever.
    let elsewhere = Sent {
        peer: "192.0.2.2:4000",
        ..login("alice", PASSWORD)
    };
    let (status, headers, answer) = house.ask(elsewhere).await;
    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS, "{answer}");
    assert_eq!(headers["retry-after"], "1");
    house.clock.advance(TimeDelta::seconds(1));
    house.logged_in().await;
    let error = house.refused(login("alice", "wrong")).await;
    assert_eq!(error, "invalid_grant", "it begins anew");
}

#[tokio::test]
async fn a_proxy_is_believed_about_its_clients_and_nobody_else_is() {
    let by_proxy = |client: &'static str| Sent {
        peer: PROXY,
        headers: vec![
            ("host", "updates.example"),
            ("x-forwarded-proto", "https"),
            ("x-forwarded-for", client),
        ],
        ..login("alice", PASSWORD)
    };
    let house = House::new();
    let (_, _, answer) = house.ask(by_proxy("192.0.2.7")).await;
    let endpoint = house.said(&answer).endpoint;
    assert_eq!(endpoint, "https://updates.example/realms/master");
    let stranger = Sent {
        peer: "192.0.2.1:4000",
        ..by_proxy("192.0.2.7")
    };
    let (_, _, answer) = house.ask(stranger).await;
    let endpoint = house.said(&answer).endpoint;
    assert_eq!(endpoint, "http://updates.example/realms/master");

    // One client of the proxy does not make the others wait; what it says itself stands before what the proxy adds.
    for n in 0..20 {
        let sent = Sent {
            form: login(&format!("user {n}"), "wrong").form,
            ..by_proxy("203.0.113.9, 192.0.2.8")
        };
        assert_eq!(house.refused(sent).await, "invalid_grant");
    }
    let (status, ..) = house.ask(by_proxy("203.0.113.10, 192.0.2.8")).await;
    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
    let (status, ..) = house.ask(by_proxy("192.0.2.9")).await;
    assert_eq!(status, StatusCode::OK);
}

#[test]
fn a_form_does_not_show_its_secrets() {
    let grant = Grant {
        kind: "password".to_owned(),
        client_id: String::new(),
        username: "alice".to_owned(),
        password: Some(Secret::new(PASSWORD)),
        refresh_token: None,
    };
    assert!(!format!("{grant:?}").contains("sesame"));
}
