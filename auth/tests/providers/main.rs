//! Identity providers: their tokens are accepted, with the keys that they publish at the time.

#![expect(clippy::unwrap_used, reason = "a test fails when it cannot go on")]

mod key;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use chrono::{DateTime, TimeDelta, Utc};
use evenkeel_auth::{
    AuthError, Authority, ExternalIssuer, KeyRefreshIntervals, Keys, Role, Settings,
};
use evenkeel_kit::Lifecycle;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use key::{ProviderKey, RSA};

const NOON: DateTime<Utc> = DateTime::from_timestamp(1_780_000_000, 0).unwrap();
const HOUR: TimeDelta = TimeDelta::hours(1);
const PROJECT: Uuid = Uuid::from_u128(0x0190_0000_0000_7000_8000_0000_0000_0001);

/// Intervals that are short enough for a test.
const FAST_REFRESH: KeyRefreshIntervals = KeyRefreshIntervals {
    interval: Duration::from_hours(1),
    min_interval: Duration::from_millis(20),
    retry_interval: Duration::from_millis(10),
};

/// Responses of the provider, and the number of requests for its discovery document and its keys.
#[derive(Default)]
struct ProviderState {
    description: String,
    keys: String,
    description_requests: u32,
    key_requests: u32,
}

type SharedState = Arc<Mutex<ProviderState>>;

async fn describe(State(state): State<SharedState>) -> Response {
    let mut state = state.lock().unwrap();
    state.description_requests += 1;
    json_response(state.description.clone())
}

async fn certs(State(state): State<SharedState>) -> Response {
    let mut state = state.lock().unwrap();
    state.key_requests += 1;
    json_response(state.keys.clone())
}

fn json_response(text: String) -> Response {
    if text.is_empty() {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    }
    ([(CONTENT_TYPE, "application/json")], text).into_response()
}

/// A provider on this machine.
struct Provider {
    issuer: String,
    state: SharedState,
    life: Lifecycle,
}

impl Provider {
    /// A provider that has an address, but does not listen yet.
    async fn not_listening() -> (Self, TcpListener) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let provider = Self {
            issuer: format!("http://{}/realms/master", listener.local_addr().unwrap()),
            state: Arc::default(),
            life: Lifecycle::new(),
        };
        let description = json!({
            "issuer": provider.issuer,
            "jwks_uri": format!("{}/certs", provider.issuer),
        });
        provider.state.lock().unwrap().description = description.to_string();
        (provider, listener)
    }

    async fn with_keys(keys: &[&ProviderKey]) -> Self {
        let (provider, listener) = Self::not_listening().await;
        provider.publish(keys);
        provider.serve(listener);
        provider
    }

    fn serve(&self, listener: TcpListener) {
        let description = "/realms/master/.well-known/openid-configuration";
        let router = Router::new()
            .route(description, get(describe))
            .route("/realms/master/certs", get(certs))
            .with_state(Arc::clone(&self.state));
        self.life.spawn_brief("provider", async move {
            axum::serve(listener, router).await.unwrap();
        });
    }

    fn publish(&self, keys: &[&ProviderKey]) {
        let keys: Vec<Value> = keys.iter().map(|key| key.jwk.clone()).collect();
        self.state.lock().unwrap().keys = json!({ "keys": keys }).to_string();
    }

    fn describe(&self, description: &Value) {
        self.state.lock().unwrap().description = description.to_string();
    }

    fn key_requests(&self) -> u32 {
        self.state.lock().unwrap().key_requests
    }

    /// Waits until the number of requests that `count` reads has reached `often`.
    async fn wait_until_requested(&self, often: u32, count: fn(&ProviderState) -> u32) {
        let begun = Instant::now();
        while count(&self.state.lock().unwrap()) < often {
            assert!(begun.elapsed() < Duration::from_secs(20), "no further request");
            sleep(Duration::from_millis(1)).await;
        }
    }

    /// Claims of a token of the provider.
    fn claims(&self) -> Value {
        json!({
            "iss": self.issuer,
            "aud": ["account", "evenkeel"],
            "sub": "alice",
            "typ": "Bearer",
            "exp": (NOON + HOUR).timestamp(),
            "realm_access": {"roles": [format!("{PROJECT}_im-rw"), "default-roles-master"]},
        })
    }

    fn with_claim(&self, claim: &str, value: Value) -> Value {
        let mut claims = self.claims();
        claims[claim] = value;
        claims
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        self.life.stop();
    }
}

/// A server that accepts the tokens of a provider.
struct TestServer {
    authority: Arc<Authority>,
    life: Lifecycle,
    _folder: tempfile::TempDir,
}

impl TestServer {
    fn trusting(provider: &Provider, intervals: KeyRefreshIntervals) -> Self {
        let issuer = ExternalIssuer::discover(&provider.issuer, Some("evenkeel")).unwrap();
        Self::accepting(issuer.with_key_refresh(intervals))
    }

    fn accepting(issuer: ExternalIssuer) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let keys = Keys::open(folder.path()).unwrap();
        let authority = Arc::new(Authority::new(keys, Settings::default()).accept(issuer));
        let life = Lifecycle::new();
        authority.spawn_key_refresh(&life).unwrap();
        Self { authority, life, _folder: folder }
    }

    fn verify(&self, token: &str) -> Result<(), AuthError> {
        self.authority.verify(token, NOON).map(|_| ())
    }

    /// Waits until the verification of a token has this result.
    async fn wait_for_result(&self, token: &str, expected: Result<(), AuthError>) {
        let begun = Instant::now();
        loop {
            let answer = self.verify(token);
            if answer == expected {
                return;
            }
            assert!(begun.elapsed() < Duration::from_secs(20), "{answer:?}, not {expected:?}");
            sleep(Duration::from_millis(5)).await;
        }
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.life.stop();
    }
}

#[tokio::test]
async fn a_provider_may_sign_by_any_algorithm_of_a_key_pair() {
    use Algorithm as A;
    for algorithm in
        [A::RS256, A::RS384, A::RS512, A::PS256, A::PS384, A::PS512, A::ES256, A::ES384, A::EdDSA]
    {
        let key = ProviderKey::generate("one", algorithm);
        let provider = Provider::with_keys(&[&key]).await;
        let server = TestServer::trusting(&provider, FAST_REFRESH);
        let token = key.sign(&provider.claims());
        server.wait_for_result(&token, Ok(())).await;
        let caller = server.authority.verify(&token, NOON).unwrap();
        assert!(!caller.issued_by_us && caller.may_write(PROJECT), "{algorithm:?}");
        assert_eq!(caller.roles, [Role::Write(PROJECT)]);
    }
}

#[tokio::test]
async fn a_key_that_names_its_algorithm_signs_by_no_other() {
    let rs256_key = ProviderKey::generate("one", Algorithm::RS256);
    let provider = Provider::with_keys(&[&rs256_key]).await;
    let server = TestServer::trusting(&provider, FAST_REFRESH);
    server.wait_for_result(&rs256_key.sign(&provider.claims()), Ok(())).await;
    let other = ProviderKey::generate("one", Algorithm::PS256);
    let refused = server.verify(&other.sign(&provider.claims()));
    assert_eq!(refused, Err(AuthError::Algorithm));
}

#[tokio::test]
async fn shared_secrets_and_no_signature_at_all_are_refused() {
    let key = ProviderKey::generate("one", Algorithm::RS256);
    let provider = Provider::with_keys(&[&key]).await;
    let server = TestServer::trusting(&provider, FAST_REFRESH);
    server.wait_for_result(&key.sign(&provider.claims()), Ok(())).await;
    let modulus = key.jwk["n"].as_str().unwrap();
    for algorithm in [Algorithm::HS256, Algorithm::HS384, Algorithm::HS512] {
        for secret in [modulus.as_bytes(), RSA.as_bytes(), b""] {
            let forged = ProviderKey {
                algorithm,
                secret: EncodingKey::from_secret(secret),
                jwk: key.jwk.clone(),
            };
            let refused = server.verify(&forged.sign(&provider.claims()));
            assert_eq!(refused, Err(AuthError::Algorithm), "{algorithm:?}");
        }
    }
    let signed = key.sign(&provider.claims());
    let claims = signed.split('.').nth(1).unwrap();
    let none = format!("eyJhbGciOiJub25lIn0.{claims}.");
    assert_eq!(server.verify(&none), Err(AuthError::Algorithm));
}

#[tokio::test]
async fn each_false_claim_of_a_providers_token_has_its_error() {
    let key = ProviderKey::generate("one", Algorithm::ES256);
    let provider = Provider::with_keys(&[&key]).await;
    let server = TestServer::trusting(&provider, FAST_REFRESH);
    server.wait_for_result(&key.sign(&provider.claims()), Ok(())).await;
    let before = NOON - HOUR;
    for (claim, value, error) in [
        ("aud", json!("account"), AuthError::WrongAudience),
        ("aud", Value::Null, AuthError::WrongAudience),
        ("iss", json!("http://127.0.0.1:1/"), AuthError::WrongIssuer),
        ("exp", json!(before.timestamp()), AuthError::Expired { at: before }),
        ("typ", json!("Refresh"), AuthError::WrongKind),
        ("typ", json!("ID"), AuthError::WrongKind),
        ("typ", json!("Offline"), AuthError::WrongKind),
    ] {
        let token = key.sign(&provider.with_claim(claim, value.clone()));
        assert_eq!(server.verify(&token), Err(error), "{claim} {value}");
    }
    // Claims our own issuer, but is signed with the provider's key.
    let ours = Settings::default();
    let mut claims = provider.with_claim("iss", json!(ours.issuer));
    claims["aud"] = json!(ours.audience);
    assert_eq!(server.verify(&key.sign(&claims)), Err(AuthError::UnknownKey));
}

#[tokio::test]
async fn roles_are_taken_from_the_claim_that_is_named() {
    let key = ProviderKey::generate("one", Algorithm::EdDSA);
    let provider = Provider::with_keys(&[&key]).await;
    let issuer = ExternalIssuer::discover(&provider.issuer, None).unwrap();
    let server = TestServer::accepting(issuer.with_roles_claim("groups"));
    let groups = json!([format!("{PROJECT}_im-r"), "staff"]);
    let token = key.sign(&provider.with_claim("groups", groups));
    server.wait_for_result(&token, Ok(())).await;
    let caller = server.authority.verify(&token, NOON).unwrap();
    assert_eq!(caller.roles, [Role::Read(PROJECT)]);
}

#[tokio::test]
async fn a_new_key_is_accepted_once_a_token_names_it_and_the_old_one_is_rejected() {
    let (old, new) = (
        ProviderKey::generate("old", Algorithm::EdDSA),
        ProviderKey::generate("new", Algorithm::EdDSA),
    );
    let provider = Provider::with_keys(&[&old]).await;
    let server = TestServer::trusting(&provider, FAST_REFRESH);
    let token = old.sign(&provider.claims());
    server.wait_for_result(&token, Ok(())).await;
    let requests_before = provider.key_requests();

    provider.publish(&[&new]);
    server.verify(&token).unwrap();
    assert_eq!(provider.key_requests(), requests_before, "a known key causes no request");

    let fresh = new.sign(&provider.claims());
    assert_eq!(server.verify(&fresh), Err(AuthError::UnknownKey));
    server.wait_for_result(&fresh, Ok(())).await;
    let refused = server.verify(&token);
    assert_eq!(refused, Err(AuthError::UnknownKey), "also if it is cached");
}

#[tokio::test]
async fn a_key_without_a_name_is_replaced_as_well() {
    let nameless = |key: &ProviderKey, claims: &Value| {
        jsonwebtoken::encode(&Header::new(key.algorithm), claims, &key.secret).unwrap()
    };
    let (old, new) = (
        ProviderKey::generate("same", Algorithm::EdDSA),
        ProviderKey::generate("same", Algorithm::EdDSA),
    );
    let provider = Provider::with_keys(&[&old]).await;
    let server = TestServer::trusting(&provider, FAST_REFRESH);
    let token = nameless(&old, &provider.claims());
    server.wait_for_result(&token, Ok(())).await;
    provider.publish(&[&new]);
    let fresh = nameless(&new, &provider.claims());
    assert_eq!(server.verify(&fresh), Err(AuthError::BadSignature));
    server.wait_for_result(&fresh, Ok(())).await;
}

#[tokio::test]
async fn unknown_keys_do_not_cause_more_requests_than_allowed() {
    let (published, unknown) = (
        ProviderKey::generate("known", Algorithm::EdDSA),
        ProviderKey::generate("unknown", Algorithm::EdDSA),
    );
    let provider = Provider::with_keys(&[&published]).await;
    let server = TestServer::trusting(
        &provider,
        KeyRefreshIntervals { min_interval: Duration::from_hours(1), ..FAST_REFRESH },
    );
    server.wait_for_result(&published.sign(&provider.claims()), Ok(())).await;
    for _ in 0..50 {
        let refused = server.verify(&unknown.sign(&provider.claims()));
        assert_eq!(refused, Err(AuthError::UnknownKey));
        sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(provider.key_requests(), 1);
}

#[tokio::test]
async fn a_provider_that_is_down_at_the_start_blocks_nothing_and_is_retried() {
    let key = ProviderKey::generate("one", Algorithm::RS256);
    let (provider, listener) = Provider::not_listening().await;
    let server = TestServer::trusting(&provider, FAST_REFRESH);
    let token = key.sign(&provider.claims());
    assert_eq!(server.verify(&token), Err(AuthError::KeysUnavailable));
    let ours = server.authority.issue_operator("alice", &[], HOUR, NOON).unwrap();
    server.verify(ours.token.reveal()).unwrap();

    // The provider responds, but publishes no usable keys.
    provider.serve(listener);
    // By the third request the first two responses have been processed.
    provider.wait_until_requested(3, |state| state.key_requests).await;
    assert_eq!(server.verify(&token), Err(AuthError::KeysUnavailable));
    provider.publish(&[&key]);
    server.wait_for_result(&token, Ok(())).await;
}

#[tokio::test]
async fn invalid_provider_answers_are_rejected() {
    let key = ProviderKey::generate("one", Algorithm::EdDSA);
    let provider = Provider::with_keys(&[&key]).await;
    let certs = format!("{}/certs", provider.issuer);
    let good = json!({"issuer": provider.issuer, "jwks_uri": certs});
    let padding = "x".repeat(600 * 1024);
    let with = |name: &str, value: &str| {
        let mut description = good.clone();
        description[name] = json!(value);
        description
    };
    for (description, why) in [
        (with("issuer", "https://elsewhere"), "another issuer"),
        (with("jwks_uri", "http://192.0.2.1/"), "not over TLS"),
        (with("jwks_uri", "file:///etc/passwd"), "no web address"),
        (with("more", &padding), "too large"),
        (json!({"issuer": provider.issuer}), "no keys"),
    ] {
        provider.describe(&description);
        let before = provider.state.lock().unwrap().description_requests;
        let server = TestServer::trusting(&provider, FAST_REFRESH);
        let token = key.sign(&provider.claims());
        provider.wait_until_requested(before + 2, |state| state.description_requests).await;
        assert_eq!(server.verify(&token), Err(AuthError::KeysUnavailable), "{why}");
        provider.describe(&good);
        server.wait_for_result(&token, Ok(())).await;
    }
}

#[tokio::test]
async fn keys_stay_valid_when_the_provider_goes_down() {
    let (published, unknown) = (
        ProviderKey::generate("known", Algorithm::EdDSA),
        ProviderKey::generate("unknown", Algorithm::EdDSA),
    );
    let provider = Provider::with_keys(&[&published]).await;
    let server = TestServer::trusting(&provider, FAST_REFRESH);
    server.wait_for_result(&published.sign(&provider.claims()), Ok(())).await;
    provider.state.lock().unwrap().keys.clear();
    server.verify(&unknown.sign(&provider.claims())).unwrap_err();
    provider.wait_until_requested(2, |state| state.key_requests).await;
    let mut other = provider.claims();
    other["sub"] = json!("bob");
    server.verify(&published.sign(&other)).unwrap();
}

#[test]
fn anonymous_access_ignores_the_header() {
    let folder = tempfile::tempdir().unwrap();
    let keys = Keys::open(folder.path()).unwrap();
    let open = Authority::new(keys, Settings::default()).allow_anonymous();
    for header in [None, Some("Bearer dev"), Some("nonsense")] {
        let caller = open.verify_header(header, NOON).unwrap();
        assert_eq!(caller.subject, "anonymous");
        assert!(caller.may_administrate() && caller.node_project().is_none());
    }
    assert!(open.verify("nonsense", NOON).is_err());
}
