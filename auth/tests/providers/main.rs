//! Identity providers: whoever they vouch for is let in, with the keys that they have now.

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
use evenkeel_auth::{AuthError, Authority, Keys, OutsideIssuer, Rhythm, Role, Settings};
use evenkeel_kit::Lifecycle;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use key::{Key, RSA};

const NOON: DateTime<Utc> = DateTime::from_timestamp(1_780_000_000, 0).unwrap();
const HOUR: TimeDelta = TimeDelta::hours(1);
const PROJECT: Uuid = Uuid::from_u128(0x0190_0000_0000_7000_8000_0000_0000_0001);

/// A test does not wait as long as a server does.
const QUICK: Rhythm = Rhythm {
    every: Duration::from_hours(1),
    at_most_every: Duration::from_millis(20),
    after_failure: Duration::from_millis(10),
};

/// What a provider says when it is asked, and how often it was asked for its description and its keys.
#[derive(Default)]
struct Said {
    description: String,
    keys: String,
    described: u32,
    asked: u32,
}

type Shared = Arc<Mutex<Said>>;

async fn describe(State(said): State<Shared>) -> Response {
    let mut said = said.lock().unwrap();
    said.described += 1;
    answer(said.description.clone())
}

async fn certs(State(said): State<Shared>) -> Response {
    let mut said = said.lock().unwrap();
    said.asked += 1;
    answer(said.keys.clone())
}

fn answer(text: String) -> Response {
    if text.is_empty() {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    }
    ([(CONTENT_TYPE, "application/json")], text).into_response()
}

/// A provider on this machine.
struct Provider {
    issuer: String,
    said: Shared,
    life: Lifecycle,
}

impl Provider {
    /// One whose address is known, and who does not listen yet.
    async fn away() -> (Self, TcpListener) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let provider = Self {
            issuer: format!("http://{}/realms/master", listener.local_addr().unwrap()),
            said: Arc::default(),
            life: Lifecycle::new(),
        };
        let description = json!({
            "issuer": provider.issuer,
            "jwks_uri": format!("{}/certs", provider.issuer),
        });
        provider.said.lock().unwrap().description = description.to_string();
        (provider, listener)
    }

    async fn with(keys: &[&Key]) -> Self {
        let (provider, listener) = Self::away().await;
        provider.publish(keys);
        provider.serve(listener);
        provider
    }

    fn serve(&self, listener: TcpListener) {
        let description = "/realms/master/.well-known/openid-configuration";
        let router = Router::new()
            .route(description, get(describe))
            .route("/realms/master/certs", get(certs))
            .with_state(Arc::clone(&self.said));
        self.life.spawn_brief("provider", async move {
            axum::serve(listener, router).await.unwrap();
        });
    }

    fn publish(&self, keys: &[&Key]) {
        let keys: Vec<Value> = keys.iter().map(|key| key.jwk.clone()).collect();
        self.said.lock().unwrap().keys = json!({ "keys": keys }).to_string();
    }

    fn describe(&self, description: &Value) {
        self.said.lock().unwrap().description = description.to_string();
    }

    fn asked(&self) -> u32 {
        self.said.lock().unwrap().asked
    }

    /// Waits until it was asked so often for its description, or for its keys.
    async fn until(&self, often: u32, of: fn(&Said) -> u32) {
        let begun = Instant::now();
        while of(&self.said.lock().unwrap()) < often {
            assert!(begun.elapsed() < Duration::from_secs(20), "nobody asks");
            sleep(Duration::from_millis(1)).await;
        }
    }

    /// The claims of a token of the provider.
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

/// A server that accepts what a provider vouches for.
struct House {
    authority: Arc<Authority>,
    life: Lifecycle,
    _folder: tempfile::TempDir,
}

impl House {
    fn trusting(provider: &Provider, rhythm: Rhythm) -> Self {
        let issuer = OutsideIssuer::discover(&provider.issuer, Some("evenkeel")).unwrap();
        Self::accepting(issuer.asked(rhythm))
    }

    fn accepting(issuer: OutsideIssuer) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let keys = Keys::open(folder.path()).unwrap();
        let authority = Arc::new(Authority::new(keys, Settings::default()).accept(issuer));
        let life = Lifecycle::new();
        authority.keep_fresh(&life).unwrap();
        Self {
            authority,
            life,
            _folder: folder,
        }
    }

    fn verify(&self, token: &str) -> Result<(), AuthError> {
        self.authority.verify(token, NOON).map(|_| ())
    }

    /// Waits until a token is answered like this.
    async fn until(&self, token: &str, expected: Result<(), AuthError>) {
        let begun = Instant::now();
        loop {
            let answer = self.verify(token);
            if answer == expected {
                return;
            }
            assert!(
                begun.elapsed() < Duration::from_secs(20),
                "{answer:?}, not {expected:?}"
            );
            sleep(Duration::from_millis(5)).await;
        }
    }
}

impl Drop for House {
    fn drop(&mut self) {
        self.life.stop();
    }
}

#[tokio::test]
async fn a_provider_may_sign_by_any_algorithm_of_a_key_pair() {
    use Algorithm as A;
    for algorithm in [
        A::RS256,
        A::RS384,
        A::RS512,
        A::PS256,
        A::PS384,
        A::PS512,
        A::ES256,
        A::ES384,
        A::EdDSA,
    ] {
        let key = Key::of("one", algorithm);
        let provider = Provider::with(&[&key]).await;
        let house = House::trusting(&provider, QUICK);
        let token = key.sign(&provider.claims());
        house.until(&token, Ok(())).await;
        let caller = house.authority.verify(&token, NOON).unwrap();
        assert!(!caller.ours && caller.may_write(PROJECT), "{algorithm:?}");
        assert_eq!(caller.roles, [Role::Write(PROJECT)]);
    }
}

#[tokio::test]
async fn a_key_that_names_its_algorithm_signs_by_no_other() {
    let named = Key::of("one", Algorithm::RS256);
    let provider = Provider::with(&[&named]).await;
    let house = House::trusting(&provider, QUICK);
    house.until(&named.sign(&provider.claims()), Ok(())).await;
    let other = Key::of("one", Algorithm::PS256);
    let refused = house.verify(&other.sign(&provider.claims()));
    assert_eq!(refused, Err(AuthError::Algorithm));
}

#[tokio::test]
async fn shared_secrets_and_no_signature_at_all_are_refused() {
    let key = Key::of("one", Algorithm::RS256);
    let provider = Provider::with(&[&key]).await;
    let house = House::trusting(&provider, QUICK);
    house.until(&key.sign(&provider.claims()), Ok(())).await;
    let modulus = key.jwk["n"].as_str().unwrap();
    for algorithm in [Algorithm::HS256, Algorithm::HS384, Algorithm::HS512] {
        for secret in [modulus.as_bytes(), RSA.as_bytes(), b""] {
            let forged = Key {
                algorithm,
                secret: EncodingKey::from_secret(secret),
                jwk: key.jwk.clone(),
            };
            let refused = house.verify(&forged.sign(&provider.claims()));
            assert_eq!(refused, Err(AuthError::Algorithm), "{algorithm:?}");
        }
    }
    let signed = key.sign(&provider.claims());
    let claims = signed.split('.').nth(1).unwrap();
    let none = format!("eyJhbGciOiJub25lIn0.{claims}.");
    assert_eq!(house.verify(&none), Err(AuthError::Algorithm));
}

#[tokio::test]
async fn each_false_claim_of_a_providers_token_has_its_error() {
    let key = Key::of("one", Algorithm::ES256);
    let provider = Provider::with(&[&key]).await;
    let house = House::trusting(&provider, QUICK);
    house.until(&key.sign(&provider.claims()), Ok(())).await;
    let before = NOON - HOUR;
    for (claim, value, error) in [
        ("aud", json!("account"), AuthError::WrongAudience),
        ("aud", Value::Null, AuthError::WrongAudience),
        ("iss", json!("http://127.0.0.1:1/"), AuthError::WrongIssuer),
        (
            "exp",
            json!(before.timestamp()),
            AuthError::Expired { at: before },
        ),
        ("typ", json!("Refresh"), AuthError::WrongKind),
        ("typ", json!("ID"), AuthError::WrongKind),
        ("typ", json!("Offline"), AuthError::WrongKind),
    ] {
        let token = key.sign(&provider.with_claim(claim, value.clone()));
        assert_eq!(house.verify(&token), Err(error), "{claim} {value}");
    }
    // As ourselves, with a key of theirs.
    let ours = Settings::default();
    let mut claims = provider.with_claim("iss", json!(ours.issuer));
    claims["aud"] = json!(ours.audience);
    assert_eq!(house.verify(&key.sign(&claims)), Err(AuthError::UnknownKey));
}

#[tokio::test]
async fn roles_are_taken_from_the_claim_that_is_named() {
    let key = Key::of("one", Algorithm::EdDSA);
    let provider = Provider::with(&[&key]).await;
    let issuer = OutsideIssuer::discover(&provider.issuer, None).unwrap();
    let house = House::accepting(issuer.with_roles_in("groups"));
    let groups = json!([format!("{PROJECT}_im-r"), "staff"]);
    let token = key.sign(&provider.with_claim("groups", groups));
    house.until(&token, Ok(())).await;
    let caller = house.authority.verify(&token, NOON).unwrap();
    assert_eq!(caller.roles, [Role::Read(PROJECT)]);
}

#[tokio::test]
async fn a_new_key_counts_as_soon_as_a_token_names_it_and_an_old_one_no_longer() {
    let (old, new) = (
        Key::of("old", Algorithm::EdDSA),
        Key::of("new", Algorithm::EdDSA),
    );
    let provider = Provider::with(&[&old]).await;
    let house = House::trusting(&provider, QUICK);
    let token = old.sign(&provider.claims());
    house.until(&token, Ok(())).await;
    let asked = provider.asked();

    provider.publish(&[&new]);
    house.verify(&token).unwrap();
    assert_eq!(provider.asked(), asked, "a known key is no reason to ask");

    let fresh = new.sign(&provider.claims());
    assert_eq!(house.verify(&fresh), Err(AuthError::UnknownKey));
    house.until(&fresh, Ok(())).await;
    let refused = house.verify(&token);
    assert_eq!(refused, Err(AuthError::UnknownKey), "also if it was seen");
}

#[tokio::test]
async fn a_key_without_a_name_is_replaced_as_well() {
    let nameless = |key: &Key, claims: &Value| {
        jsonwebtoken::encode(&Header::new(key.algorithm), claims, &key.secret).unwrap()
    };
    let (old, new) = (
        Key::of("same", Algorithm::EdDSA),
        Key::of("same", Algorithm::EdDSA),
    );
    let provider = Provider::with(&[&old]).await;
    let house = House::trusting(&provider, QUICK);
    let token = nameless(&old, &provider.claims());
    house.until(&token, Ok(())).await;
    provider.publish(&[&new]);
    let fresh = nameless(&new, &provider.claims());
    assert_eq!(house.verify(&fresh), Err(AuthError::BadSignature));
    house.until(&fresh, Ok(())).await;
}

#[tokio::test]
async fn tokens_that_name_unknown_keys_do_not_make_us_a_nuisance() {
    let (known, unknown) = (
        Key::of("known", Algorithm::EdDSA),
        Key::of("unknown", Algorithm::EdDSA),
    );
    let provider = Provider::with(&[&known]).await;
    let house = House::trusting(
        &provider,
        Rhythm {
            at_most_every: Duration::from_hours(1),
            ..QUICK
        },
    );
    house.until(&known.sign(&provider.claims()), Ok(())).await;
    for _ in 0..50 {
        let refused = house.verify(&unknown.sign(&provider.claims()));
        assert_eq!(refused, Err(AuthError::UnknownKey));
        sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(provider.asked(), 1);
}

#[tokio::test]
async fn a_provider_that_is_away_at_the_start_is_waited_for_by_nobody_and_asked_again() {
    let key = Key::of("one", Algorithm::RS256);
    let (provider, listener) = Provider::away().await;
    let house = House::trusting(&provider, QUICK);
    let token = key.sign(&provider.claims());
    assert_eq!(house.verify(&token), Err(AuthError::KeysAway));
    let ours = house
        .authority
        .issue_operator("alice", &[], HOUR, NOON)
        .unwrap();
    house.verify(ours.token.reveal()).unwrap();

    // It answers, but with nothing that is of use.
    provider.serve(listener);
    // Who asks for the third time has judged the first two answers.
    provider.until(3, |said| said.asked).await;
    assert_eq!(house.verify(&token), Err(AuthError::KeysAway));
    provider.publish(&[&key]);
    house.until(&token, Ok(())).await;
}

#[tokio::test]
async fn what_a_provider_must_not_say_is_not_believed() {
    let key = Key::of("one", Algorithm::EdDSA);
    let provider = Provider::with(&[&key]).await;
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
        let before = provider.said.lock().unwrap().described;
        let house = House::trusting(&provider, QUICK);
        let token = key.sign(&provider.claims());
        provider.until(before + 2, |said| said.described).await;
        assert_eq!(house.verify(&token), Err(AuthError::KeysAway), "{why}");
        provider.describe(&good);
        house.until(&token, Ok(())).await;
    }
}

#[tokio::test]
async fn a_provider_that_goes_away_later_leaves_its_keys() {
    let (known, unknown) = (
        Key::of("known", Algorithm::EdDSA),
        Key::of("unknown", Algorithm::EdDSA),
    );
    let provider = Provider::with(&[&known]).await;
    let house = House::trusting(&provider, QUICK);
    house.until(&known.sign(&provider.claims()), Ok(())).await;
    provider.said.lock().unwrap().keys.clear();
    house.verify(&unknown.sign(&provider.claims())).unwrap_err();
    provider.until(2, |said| said.asked).await;
    let mut other = provider.claims();
    other["sub"] = json!("bob");
    house.verify(&known.sign(&other)).unwrap();
}

#[test]
fn where_everybody_is_let_in_nothing_is_looked_at() {
    let folder = tempfile::tempdir().unwrap();
    let keys = Keys::open(folder.path()).unwrap();
    let open = Authority::new(keys, Settings::default()).open_to_everybody();
    for header in [None, Some("Bearer dev"), Some("nonsense")] {
        let caller = open.verify_header(header, NOON).unwrap();
        assert_eq!(caller.subject, "nobody in particular");
        assert!(caller.may_administrate() && caller.node_of().is_none());
    }
    assert!(open.verify("nonsense", NOON).is_err());
}
