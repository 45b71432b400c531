//! Tokens, good and bad: whoever is let in has proved who they are.

#![expect(clippy::unwrap_used, reason = "a test fails when it cannot go on")]

use std::fs;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chrono::{DateTime, TimeDelta, Utc};
use evenkeel_auth::{AuthError, Authority, Keys, OutsideIssuer, Role, Settings};
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use proptest::prelude::*;
use serde_json::{Value, json};
use uuid::Uuid;

const NOON: DateTime<Utc> = DateTime::from_timestamp(1_780_000_000, 0).unwrap();
const HOUR: TimeDelta = TimeDelta::hours(1);
const PROJECT: Uuid = Uuid::from_u128(0x0190_0000_0000_7000_8000_0000_0000_0001);

struct House {
    folder: tempfile::TempDir,
    authority: Authority,
}

impl House {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let keys = Keys::open(folder.path()).unwrap();
        let authority = Authority::new(keys, Settings::default());
        Self { folder, authority }
    }

    fn signing_pem(&self) -> String {
        fs::read_to_string(self.folder.path().join("signing.pem")).unwrap()
    }

    /// Signs any claims with the key of the house.
    fn sign(&self, claims: &Value) -> String {
        let key = EncodingKey::from_ed_pem(self.signing_pem().as_bytes()).unwrap();
        jsonwebtoken::encode(&Header::new(Algorithm::EdDSA), claims, &key).unwrap()
    }

    fn verify(&self, token: &str) -> Result<(), AuthError> {
        self.authority.verify(token, NOON).map(|_| ())
    }
}

fn good() -> Value {
    json!({
        "iss": "urn:evenkeel:issuer",
        "aud": "evenkeel",
        "sub": "somebody",
        "exp": (NOON + HOUR).timestamp(),
        "realm_access": { "roles": [format!("{PROJECT}_im-rw"), "default-roles-master"] },
    })
}

fn with(claim: &str, value: Value) -> Value {
    let mut claims = good();
    claims[claim] = value;
    claims
}

fn encode(part: &Value) -> String {
    URL_SAFE_NO_PAD.encode(part.to_string())
}

#[test]
fn a_token_of_ours_tells_who_its_bearer_is() {
    let house = House::new();
    let roles = [Role::Write(PROJECT)];
    let issued = house
        .authority
        .issue_operator("alice", &roles, HOUR, NOON)
        .unwrap();
    assert_eq!(issued.expires_at, NOON + HOUR);

    let caller = house.authority.verify(issued.token.reveal(), NOON).unwrap();

    assert_eq!(caller.subject, "alice");
    assert_eq!(caller.roles, roles);
    assert!(caller.ours && caller.may_write(PROJECT));
    assert_eq!(caller.expires_at, NOON + HOUR);
}

#[test]
fn a_node_has_a_credential_of_its_host() {
    let house = House::new();
    let issued = house
        .authority
        .issue_node(PROJECT, "host-0a1b2c3d", TimeDelta::days(90), NOON)
        .unwrap();
    let caller = house.authority.verify(issued.token.reveal(), NOON).unwrap();
    assert_eq!(caller.subject, "host-0a1b2c3d");
    assert_eq!(caller.node_of(), Some(PROJECT));
    assert!(!caller.may_read(PROJECT));
}

#[test]
fn a_token_may_have_several_audiences_and_claims_that_nobody_knows() {
    let house = House::new();
    let mut claims = with("aud", json!(["account", "evenkeel"]));
    claims["azp"] = json!({"anything": [1, 2, 3]});
    house.verify(&house.sign(&claims)).unwrap();
}

#[test]
fn each_false_claim_has_its_error() {
    use AuthError as A;
    let house = House::new();
    let none = A::Malformed("its time is none");
    let json_error = A::Malformed("a part is not the JSON of a token");
    for (claim, value, error) in [
        ("iss", json!("https://elsewhere"), A::WrongIssuer),
        ("iss", Value::Null, A::WrongIssuer),
        ("iss", json!(["urn:evenkeel:issuer"]), json_error.clone()),
        ("aud", json!("account"), A::WrongAudience),
        ("aud", json!(["account"]), A::WrongAudience),
        ("aud", json!([]), A::WrongAudience),
        ("aud", Value::Null, A::WrongAudience),
        ("exp", Value::Null, json_error.clone()),
        ("exp", json!("tomorrow"), json_error.clone()),
        ("exp", json!(-5), none.clone()),
        ("exp", json!(1e300), none.clone()),
        ("nbf", json!(-1e300), none),
        ("realm_access", json!({"roles": "everything"}), json_error),
    ] {
        let token = house.sign(&with(claim, value.clone()));
        assert_eq!(house.verify(&token), Err(error), "{claim} {value}");
    }
}

#[test]
fn time_decides_with_a_little_leeway() {
    let house = House::new();
    let from = NOON + HOUR;
    let at = NOON + HOUR * 2;
    let mut claims = with("exp", json!(at.timestamp()));
    claims["nbf"] = json!(from.timestamp());
    let token = house.sign(&claims);
    let second = TimeDelta::seconds(1);
    let leeway = TimeDelta::seconds(30);
    for (now, expected) in [
        (from - leeway - second, Err(AuthError::NotYetValid { from })),
        (from - leeway, Ok(())),
        (from, Ok(())),
        (at + leeway - second, Ok(())),
        (at + leeway, Err(AuthError::Expired { at })),
        // It was remembered; the time counts all the same.
        (from - leeway - second, Err(AuthError::NotYetValid { from })),
        (from, Ok(())),
        (at + HOUR, Err(AuthError::Expired { at })),
    ] {
        let seen = house.authority.verify(&token, now).map(|_| ());
        assert_eq!(seen, expected, "at {now}");
    }
}

#[test]
fn a_token_without_a_signature_is_refused() {
    let house = House::new();
    for algorithm in ["none", "None", "NONE", "nOnE", ""] {
        let header = encode(&json!({"alg": algorithm, "typ": "JWT"}));
        for signature in ["", "AAAA"] {
            let token = format!("{header}.{}.{signature}", encode(&good()));
            assert_eq!(
                house.verify(&token),
                Err(AuthError::Algorithm),
                "{algorithm}"
            );
        }
    }
}

#[test]
fn a_public_key_is_no_shared_secret() {
    let house = House::new();
    let jwks = house.authority.jwks();
    let x = jwks["keys"][0]["x"].as_str().unwrap();
    let raw = URL_SAFE_NO_PAD.decode(x).unwrap();
    for secret in [
        raw.as_slice(),
        x.as_bytes(),
        b"",
        house.signing_pem().as_bytes(),
    ] {
        for algorithm in [Algorithm::HS256, Algorithm::HS384, Algorithm::HS512] {
            let mut header = Header::new(algorithm);
            for kid in [None, jwks["keys"][0]["kid"].as_str().map(str::to_owned)] {
                header.kid = kid;
                let key = EncodingKey::from_secret(secret);
                let token = jsonwebtoken::encode(&header, &good(), &key).unwrap();
                assert_eq!(
                    house.verify(&token),
                    Err(AuthError::Algorithm),
                    "{algorithm:?}"
                );
            }
        }
    }
}

#[test]
fn a_token_of_another_house_is_refused() {
    let (house, other) = (House::new(), House::new());
    assert_eq!(
        house.verify(&other.sign(&good())),
        Err(AuthError::BadSignature)
    );
    let issued = other
        .authority
        .issue_operator("mallory", &[], HOUR, NOON)
        .unwrap();
    assert_eq!(
        house.verify(issued.token.reveal()),
        Err(AuthError::UnknownKey)
    );
}

#[test]
fn an_algorithm_of_another_kind_of_key_is_refused() {
    let house = House::new();
    for algorithm in ["RS256", "PS512", "ES256", "ES384"] {
        let header = encode(&json!({"alg": algorithm}));
        let token = format!(
            "{header}.{}.{}",
            encode(&good()),
            URL_SAFE_NO_PAD.encode([7; 64])
        );
        assert_eq!(
            house.verify(&token),
            Err(AuthError::Algorithm),
            "{algorithm}"
        );
    }
}

#[test]
fn a_token_that_needs_an_extension_is_refused() {
    let house = House::new();
    let mut header = Header::new(Algorithm::EdDSA);
    header.crit = Some(vec!["b64".to_owned()]);
    let key = EncodingKey::from_ed_pem(house.signing_pem().as_bytes()).unwrap();
    let token = jsonwebtoken::encode(&header, &good(), &key).unwrap();
    assert!(matches!(house.verify(&token), Err(AuthError::Malformed(_))));
}

#[test]
fn a_changed_payload_is_refused_also_when_the_token_was_seen_before() {
    let house = House::new();
    let token = house.sign(&good());
    house.verify(&token).unwrap();
    let parts: Vec<&str> = token.split('.').collect();
    let roles = json!({"roles": ["evenkeel-admin"]});
    let forged = format!(
        "{}.{}.{}",
        parts[0],
        encode(&with("realm_access", roles)),
        parts[2]
    );
    assert_eq!(house.verify(&forged), Err(AuthError::BadSignature));
    house.verify(&token).unwrap();
}

#[test]
fn no_changed_byte_goes_unnoticed() {
    let house = House::new();
    let token = house.sign(&good());
    for place in 0..token.len() {
        let mut bytes = token.clone().into_bytes();
        bytes[place] = if bytes[place] == b'A' { b'B' } else { b'A' };
        let changed = String::from_utf8(bytes).unwrap();
        assert!(house.verify(&changed).is_err(), "byte {place}");
    }
}

#[test]
fn garbage_is_malformed() {
    let house = House::new();
    for garbage in ["x", "a.b", "a.b.c", "....", "a.b.c.d", " ", "\u{fe0f}.é.ü"] {
        assert!(house.verify(garbage).is_err(), "{garbage}");
    }
    let long = "A".repeat(10 * 1024);
    assert_eq!(
        house.verify(&long),
        Err(AuthError::Malformed("it is too long"))
    );
    let nested = format!(
        "{}.{}.AAAA",
        URL_SAFE_NO_PAD.encode("[".repeat(3000)),
        encode(&good())
    );
    assert!(matches!(
        house.verify(&nested),
        Err(AuthError::Malformed(_))
    ));
    assert_eq!(house.verify(""), Err(AuthError::Missing));
}

#[test]
fn the_header_must_be_that_of_a_bearer() {
    let house = House::new();
    let token = house.sign(&good());
    let ask = |value: Option<&str>| house.authority.verify_header(value, NOON).map(|_| ());
    for missing in [None, Some(""), Some("Bearer"), Some("bearer  "), Some("  ")] {
        assert_eq!(ask(missing), Err(AuthError::Missing), "{missing:?}");
    }
    for good in [format!("Bearer {token}"), format!("bearer  {token} ")] {
        assert_eq!(ask(Some(&good)), Ok(()));
    }
    for other in [format!("Basic {token}"), token] {
        assert!(
            matches!(ask(Some(&other)), Err(AuthError::Malformed(_))),
            "{other}"
        );
    }
}

#[test]
fn a_token_of_the_key_before_counts_until_it_expires() {
    let house = House::new();
    let token = house.sign(&good());
    let folder = house.folder.path();
    fs::rename(folder.join("signing.pem"), folder.join("2026.pem")).unwrap();

    let keys = Keys::open(folder).unwrap();
    let later = Authority::new(keys, Settings::default());

    later.verify(&token, NOON).unwrap();
    let fresh = later.issue_operator("alice", &[], HOUR, NOON).unwrap();
    later.verify(fresh.token.reveal(), NOON).unwrap();
    assert_eq!(
        house.verify(fresh.token.reveal()),
        Err(AuthError::UnknownKey)
    );
}

#[test]
fn an_outside_issuer_counts_with_its_own_keys_only() {
    let (house, outside) = (House::new(), House::new());
    let folder = outside.folder.path();
    let jwks = folder.join("jwks.json");
    fs::write(&jwks, outside.authority.jwks().to_string()).unwrap();
    let issuer = OutsideIssuer::open("https://login.example/realms/master", None, &jwks).unwrap();
    let House {
        authority,
        folder: kept,
    } = house;
    let house = House {
        authority: authority.accept(issuer),
        folder: kept,
    };
    let mut theirs = with("iss", json!("https://login.example/realms/master"));
    theirs["aud"] = json!("account");

    let caller = house
        .authority
        .verify(&outside.sign(&theirs), NOON)
        .unwrap();
    assert!(!caller.ours && caller.may_write(PROJECT));

    let posing = outside.sign(&good());
    assert_eq!(
        house.verify(&posing),
        Err(AuthError::BadSignature),
        "as us, with their key"
    );
    let posing = house.sign(&theirs);
    assert_eq!(
        house.verify(&posing),
        Err(AuthError::BadSignature),
        "as them, with our key"
    );
}

#[test]
fn an_outside_issuer_may_sign_with_rsa_or_an_elliptic_curve() {
    let folder = tempfile::tempdir().unwrap();
    let issuer = "https://login.example";
    let pair = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
    let point = pair.public_key_raw();
    let [x, y] = [&point[1..33], &point[33..65]].map(|half| URL_SAFE_NO_PAD.encode(half));
    let jwks = json!({"keys": [
        {"kty": "EC", "crv": "P-256", "x": x, "y": y, "kid": "ec", "use": "sig"},
        {"kty": "oct", "k": "c2VjcmV0", "kid": "shared"},
    ]});
    let path = folder.path().join("jwks.json");
    fs::write(&path, jwks.to_string()).unwrap();
    let keys = Keys::open(&folder.path().join("keys")).unwrap();
    let authority = Authority::new(keys, Settings::default())
        .accept(OutsideIssuer::open(issuer, Some("evenkeel"), &path).unwrap());
    let claims = with("iss", json!(issuer));
    let mut header = Header::new(Algorithm::ES256);
    header.kid = Some("ec".to_owned());
    let key = EncodingKey::from_ec_pem(pair.serialize_pem().as_bytes()).unwrap();
    let token = jsonwebtoken::encode(&header, &claims, &key).unwrap();
    authority.verify(&token, NOON).unwrap();

    let mut shared = Header::new(Algorithm::HS256);
    shared.kid = Some("shared".to_owned());
    let token =
        jsonwebtoken::encode(&shared, &claims, &EncodingKey::from_secret(b"secret")).unwrap();
    assert_eq!(
        authority.verify(&token, NOON).unwrap_err(),
        AuthError::UnknownKey
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn whatever_is_sent_there_is_an_answer(text in "[A-Za-z0-9_.-]{0,300}|\\PC{0,100}") {
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::new(Keys::open(folder.path()).unwrap(), Settings::default());
        prop_assert!(authority.verify(&text, NOON).is_err());
        let header = format!("Bearer {text}");
        prop_assert!(authority.verify_header(Some(&header), NOON).is_err());
    }

    #[test]
    fn claims_of_any_shape_under_a_good_header_are_answered(claims in "\\PC{0,200}") {
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::new(Keys::open(folder.path()).unwrap(), Settings::default());
        let header = encode(&json!({"alg": "EdDSA"}));
        let token = format!("{header}.{}.AAAA", URL_SAFE_NO_PAD.encode(claims));
        prop_assert!(authority.verify(&token, NOON).is_err());
    }
}
