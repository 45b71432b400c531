//! Tokens: valid ones identify their bearer, all others are rejected.

#![expect(clippy::unwrap_used, reason = "a test fails when it cannot go on")]

mod outside_issuers;

use std::fs;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chrono::{DateTime, TimeDelta, Utc};
use evenkeel_auth::{
    AuthError, Authority, IssuedToken, KeyFingerprint, KeyPurpose, Keys, Revocations,
    RevokedSubject, Role, Settings,
};
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use proptest::prelude::*;
use serde_json::{Value, json};
use uuid::Uuid;

const NOON: DateTime<Utc> = DateTime::from_timestamp(1_780_000_000, 0).unwrap();
const HOUR: TimeDelta = TimeDelta::hours(1);
const PROJECT: Uuid = Uuid::from_u128(0x0190_0000_0000_7000_8000_0000_0000_0001);

struct TokenFixture {
    folder: tempfile::TempDir,
    authority: Authority,
}

impl TokenFixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let keys = Keys::open(folder.path()).unwrap();
        let authority = Authority::new(keys, Settings::default());
        Self { folder, authority }
    }

    fn signing_pem(&self, purpose: KeyPurpose) -> String {
        let folder = purpose.folder(self.folder.path());
        fs::read_to_string(folder.join("signing.pem")).unwrap()
    }

    /// Signs any claims with the key for operators.
    fn sign(&self, claims: &Value) -> String {
        self.sign_for(KeyPurpose::Operators, claims)
    }

    fn sign_for(&self, purpose: KeyPurpose, claims: &Value) -> String {
        let key = EncodingKey::from_ed_pem(self.signing_pem(purpose).as_bytes()).unwrap();
        jsonwebtoken::encode(&Header::new(Algorithm::EdDSA), claims, &key).unwrap()
    }

    fn verify(&self, token: &str) -> Result<(), AuthError> {
        self.authority.verify(token, NOON).map(|_| ())
    }
}

fn valid_claims() -> Value {
    json!({
        "iss": "urn:evenkeel:issuer",
        "aud": "evenkeel",
        "sub": "somebody",
        "exp": (NOON + HOUR).timestamp(),
        "realm_access": { "roles": [format!("{PROJECT}_im-rw"), "default-roles-master"] },
    })
}

fn with_claim(claim: &str, value: Value) -> Value {
    let mut claims = valid_claims();
    claims[claim] = value;
    claims
}

fn encode(part: &Value) -> String {
    URL_SAFE_NO_PAD.encode(part.to_string())
}

#[test]
fn an_own_token_identifies_its_bearer() {
    let fixture = TokenFixture::new();
    let roles = [Role::Write(PROJECT)];
    let issued = fixture.authority.issue_operator("alice", &roles, HOUR, NOON).unwrap();
    assert_eq!(issued.expires_at, NOON + HOUR);

    let caller = fixture.authority.verify(issued.token.reveal(), NOON).unwrap();

    assert_eq!(caller.subject, "alice");
    assert_eq!(caller.roles, roles);
    assert!(caller.issued_by_us && caller.may_write(PROJECT));
    assert_eq!(caller.expires_at, NOON + HOUR);
}

#[test]
fn a_node_has_a_credential_of_its_host() {
    let fixture = TokenFixture::new();
    let issued =
        fixture.authority.issue_node(PROJECT, "host-0a1b2c3d", TimeDelta::days(90), NOON).unwrap();
    let caller = fixture.authority.verify(issued.token.reveal(), NOON).unwrap();
    assert_eq!(caller.subject, "host-0a1b2c3d");
    assert_eq!(caller.node_project(), Some(PROJECT));
    assert_eq!(caller.node_key, None);
    assert!(!caller.may_read(PROJECT));
}

#[test]
fn a_credential_contains_the_key_that_its_node_was_enrolled_with() {
    let fixture = TokenFixture::new();
    let key = KeyFingerprint::from_public_key(b"key");
    let node = (PROJECT, "host-0a1b2c3d");
    let issued = fixture.authority.issue_credential(node, &key, HOUR, NOON).unwrap();
    let caller = fixture.authority.verify(issued.token.reveal(), NOON).unwrap();
    assert_eq!(caller.node_project(), Some(PROJECT));
    assert_eq!(caller.node_key, Some(key));
    // A value that is no fingerprint is ignored.
    for value in [json!("key"), json!(7), json!(["key"])] {
        let mut claims = with_claim("node_key", value);
        claims["realm_access"] = json!({"roles": [format!("{PROJECT}_en-agent-rw")]});
        let token = fixture.sign_for(KeyPurpose::Nodes, &claims);
        assert_eq!(fixture.authority.verify(&token, NOON).unwrap().node_key, None);
    }
}

#[test]
fn an_expired_credential_is_verified_only_for_its_renewal() {
    let fixture = TokenFixture::new();
    let authority = &fixture.authority;
    let key = KeyFingerprint::from_public_key(b"key");
    let issued = authority.issue_credential((PROJECT, "host-0a1b2c3d"), &key, HOUR, NOON).unwrap();
    let header = format!("Bearer {}", issued.token.reveal());
    let late = NOON + TimeDelta::days(365);
    let expired = Err(AuthError::Expired { at: NOON + HOUR });
    assert_eq!(authority.verify_header(Some(header.as_str()), late).map(drop), expired);
    let caller = authority.verify_expired_header(Some(header.as_str())).unwrap();
    assert_eq!((caller.node_project(), caller.node_key), (Some(PROJECT), Some(key)));
    // It was not cached.
    assert_eq!(authority.verify_header(Some(header.as_str()), late).map(drop), expired);

    let refused = |value: Option<&str>| authority.verify_expired_header(value).unwrap_err();
    assert_eq!(refused(None), AuthError::Missing);
    assert_eq!(refused(Some("Bearer ")), AuthError::Missing);
    assert_eq!(refused(Some("Basic YTpi")), AuthError::Malformed("the scheme must be Bearer"));
    let long = format!("Bearer {}", "A".repeat(10 * 1024));
    assert_eq!(refused(Some(long.as_str())), AuthError::Malformed("it is too long"));
    let foreign = TokenFixture::new();
    let other = foreign.authority.issue_node(PROJECT, "host-0a1b2c3d", HOUR, NOON).unwrap();
    let forged = format!("Bearer {}", other.token.reveal());
    assert_eq!(refused(Some(forged.as_str())), AuthError::UnknownKey);
    authority.set_revocations(Revocations::new([issued.id], []));
    assert_eq!(refused(Some(header.as_str())), AuthError::Revoked);
}

#[test]
fn a_key_of_one_purpose_gives_no_role_of_the_other() {
    let fixture = TokenFixture::new();
    let mut claims = valid_claims();
    let (node, write) = (format!("{PROJECT}_en-agent-rw"), format!("{PROJECT}_im-rw"));
    claims["realm_access"] = json!({"roles": [node, write, "evenkeel-admin"]});
    for (purpose, roles) in [
        (KeyPurpose::Operators, vec![Role::Write(PROJECT), Role::Administrator]),
        (KeyPurpose::Nodes, vec![Role::Node(PROJECT)]),
    ] {
        let token = fixture.sign_for(purpose, &claims);
        let caller = fixture.authority.verify(&token, NOON).unwrap();
        assert_eq!(caller.roles, roles, "{purpose:?}");
        assert_eq!(caller.node_subject, None);
    }
    // A token of an operator that an earlier release signed with the common key.
    let token = fixture.sign_for(KeyPurpose::Nodes, &valid_claims());
    assert_eq!(fixture.verify(&token), Err(AuthError::WrongPurpose));
}

#[test]
fn a_token_for_automation_has_a_name_and_its_uses_are_noted() {
    let fixture = TokenFixture::new();
    let authority = &fixture.authority;
    let roles = [Role::Read(PROJECT)];
    let named = authority.issue_named(("alice", "nightly"), &roles, HOUR, NOON).unwrap();
    let plain = authority.issue_operator("alice", &roles, HOUR, NOON).unwrap();
    let verify = |token: &IssuedToken, now| authority.verify(token.token.reveal(), now);
    let caller = verify(&named, NOON).unwrap();
    assert_eq!((caller.subject.as_str(), caller.token_name.as_deref()), ("alice", Some("nightly")));
    assert_eq!(caller.actor_name(), "alice (token nightly)");
    assert_eq!(verify(&plain, NOON).unwrap().token_name, None);
    let later = NOON + TimeDelta::minutes(1);
    verify(&named, later).unwrap();
    assert_eq!(authority.take_token_uses(), [(named.id, later)]);

    // Refused tokens count as unused.
    let alice =
        RevokedSubject { issuer: String::new(), subject: "alice".to_owned(), revoked_until: NOON };
    authority.set_revocations(Revocations::new([], [alice]));
    assert_eq!(verify(&named, later), Err(AuthError::Revoked));
    assert!(authority.take_token_uses().is_empty());
}

/// Another issuer cannot choose the name of a caller in the change log.
#[test]
fn the_name_of_a_token_counts_only_with_the_key_for_operators() {
    let fixture = TokenFixture::new();
    let mut claims = valid_claims();
    claims["token_name"] = json!("nightly");
    claims["realm_access"] = json!({"roles": [format!("{PROJECT}_en-agent-rw")]});
    let node = fixture.sign_for(KeyPurpose::Nodes, &claims);
    assert_eq!(fixture.authority.verify(&node, NOON).unwrap().token_name, None);
}

#[test]
fn a_revoked_token_is_refused_also_when_it_was_verified_before() {
    let fixture = TokenFixture::new();
    let authority = &fixture.authority;
    let issue = |subject: &str| {
        authority.issue_operator(subject, &[Role::Administrator], HOUR, NOON).unwrap()
    };
    let (one, another, bobs) = (issue("alice"), issue("alice"), issue("bob"));
    let verify = |token: &IssuedToken| fixture.verify(token.token.reveal());
    for token in [&one, &another, &bobs] {
        assert_eq!(verify(token), Ok(()));
    }
    authority.set_revocations(Revocations::new([one.id], []));
    assert_eq!(verify(&one), Err(AuthError::Revoked));
    assert_eq!(verify(&another), Ok(()));

    let alice =
        RevokedSubject { issuer: String::new(), subject: "alice".to_owned(), revoked_until: NOON };
    authority.set_revocations(Revocations::new([], [alice]));
    assert_eq!(verify(&another), Err(AuthError::Revoked));
    assert_eq!(verify(&bobs), Ok(()));
    let later = NOON + TimeDelta::seconds(1);
    let fresh = authority.issue_operator("alice", &[], HOUR, later).unwrap();
    assert_eq!(verify(&fresh), Ok(()));
}

#[test]
fn a_token_may_have_several_audiences_and_unknown_claims() {
    let fixture = TokenFixture::new();
    let mut claims = with_claim("aud", json!(["account", "evenkeel"]));
    claims["azp"] = json!({"anything": [1, 2, 3]});
    fixture.verify(&fixture.sign(&claims)).unwrap();
}

#[test]
fn each_false_claim_has_its_error() {
    use AuthError as A;
    let fixture = TokenFixture::new();
    let none = A::Malformed("it contains an invalid time");
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
        let token = fixture.sign(&with_claim(claim, value.clone()));
        assert_eq!(fixture.verify(&token), Err(error), "{claim} {value}");
    }
}

#[test]
fn time_decides_with_a_little_leeway() {
    let fixture = TokenFixture::new();
    let from = NOON + HOUR;
    let at = NOON + HOUR * 2;
    let mut claims = with_claim("exp", json!(at.timestamp()));
    claims["nbf"] = json!(from.timestamp());
    let token = fixture.sign(&claims);
    let second = TimeDelta::seconds(1);
    let leeway = TimeDelta::seconds(30);
    for (now, expected) in [
        (from - leeway - second, Err(AuthError::NotYetValid { from })),
        (from - leeway, Ok(())),
        (from, Ok(())),
        (at + leeway - second, Ok(())),
        (at + leeway, Err(AuthError::Expired { at })),
        // The token is cached now; its validity is checked nevertheless.
        (from - leeway - second, Err(AuthError::NotYetValid { from })),
        (from, Ok(())),
        (at + HOUR, Err(AuthError::Expired { at })),
    ] {
        let result = fixture.authority.verify(&token, now).map(|_| ());
        assert_eq!(result, expected, "at {now}");
    }
}

#[test]
fn a_token_without_a_signature_is_refused() {
    let fixture = TokenFixture::new();
    for algorithm in ["none", "None", "NONE", "nOnE", ""] {
        let header = encode(&json!({"alg": algorithm, "typ": "JWT"}));
        for signature in ["", "AAAA"] {
            let token = format!("{header}.{}.{signature}", encode(&valid_claims()));
            assert_eq!(fixture.verify(&token), Err(AuthError::Algorithm), "{algorithm}");
        }
    }
}

#[test]
fn a_public_key_is_no_shared_secret() {
    let fixture = TokenFixture::new();
    let jwks = fixture.authority.jwks();
    let x = jwks["keys"][0]["x"].as_str().unwrap();
    let raw = URL_SAFE_NO_PAD.decode(x).unwrap();
    for secret in
        [raw.as_slice(), x.as_bytes(), b"", fixture.signing_pem(KeyPurpose::Operators).as_bytes()]
    {
        for algorithm in [Algorithm::HS256, Algorithm::HS384, Algorithm::HS512] {
            let mut header = Header::new(algorithm);
            for kid in [None, jwks["keys"][0]["kid"].as_str().map(str::to_owned)] {
                header.kid = kid;
                let key = EncodingKey::from_secret(secret);
                let token = jsonwebtoken::encode(&header, &valid_claims(), &key).unwrap();
                assert_eq!(fixture.verify(&token), Err(AuthError::Algorithm), "{algorithm:?}");
            }
        }
    }
}

#[test]
fn a_token_of_another_authority_is_rejected() {
    let (fixture, other) = (TokenFixture::new(), TokenFixture::new());
    assert_eq!(fixture.verify(&other.sign(&valid_claims())), Err(AuthError::BadSignature));
    let issued = other.authority.issue_operator("mallory", &[], HOUR, NOON).unwrap();
    assert_eq!(fixture.verify(issued.token.reveal()), Err(AuthError::UnknownKey));
}

#[test]
fn an_algorithm_of_another_kind_of_key_is_refused() {
    let fixture = TokenFixture::new();
    for algorithm in ["RS256", "PS512", "ES256", "ES384"] {
        let header = encode(&json!({"alg": algorithm}));
        let token =
            format!("{header}.{}.{}", encode(&valid_claims()), URL_SAFE_NO_PAD.encode([7; 64]));
        assert_eq!(fixture.verify(&token), Err(AuthError::Algorithm), "{algorithm}");
    }
}

#[test]
fn a_token_that_needs_an_extension_is_refused() {
    let fixture = TokenFixture::new();
    let mut header = Header::new(Algorithm::EdDSA);
    header.crit = Some(vec!["b64".to_owned()]);
    let key =
        EncodingKey::from_ed_pem(fixture.signing_pem(KeyPurpose::Operators).as_bytes()).unwrap();
    let token = jsonwebtoken::encode(&header, &valid_claims(), &key).unwrap();
    assert!(matches!(fixture.verify(&token), Err(AuthError::Malformed(_))));
}

#[test]
fn a_changed_payload_is_refused_also_when_the_token_was_seen_before() {
    let fixture = TokenFixture::new();
    let token = fixture.sign(&valid_claims());
    fixture.verify(&token).unwrap();
    let parts: Vec<&str> = token.split('.').collect();
    let roles = json!({"roles": ["evenkeel-admin"]});
    let forged =
        format!("{}.{}.{}", parts[0], encode(&with_claim("realm_access", roles)), parts[2]);
    assert_eq!(fixture.verify(&forged), Err(AuthError::BadSignature));
    fixture.verify(&token).unwrap();
}

#[test]
fn no_changed_byte_goes_unnoticed() {
    let fixture = TokenFixture::new();
    let token = fixture.sign(&valid_claims());
    for index in 0..token.len() {
        let mut bytes = token.clone().into_bytes();
        bytes[index] = if bytes[index] == b'A' { b'B' } else { b'A' };
        let changed = String::from_utf8(bytes).unwrap();
        assert!(fixture.verify(&changed).is_err(), "byte {index}");
    }
}

#[test]
fn garbage_is_malformed() {
    let fixture = TokenFixture::new();
    for garbage in ["x", "a.b", "a.b.c", "....", "a.b.c.d", " ", "\u{fe0f}.é.ü"] {
        assert!(fixture.verify(garbage).is_err(), "{garbage}");
    }
    let long = "A".repeat(10 * 1024);
    assert_eq!(fixture.verify(&long), Err(AuthError::Malformed("it is too long")));
    let nested =
        format!("{}.{}.AAAA", URL_SAFE_NO_PAD.encode("[".repeat(3000)), encode(&valid_claims()));
    assert!(matches!(fixture.verify(&nested), Err(AuthError::Malformed(_))));
    assert_eq!(fixture.verify(""), Err(AuthError::Missing));
}

#[test]
fn the_header_must_be_that_of_a_bearer() {
    let fixture = TokenFixture::new();
    let token = fixture.sign(&valid_claims());
    let verify_header =
        |value: Option<&str>| fixture.authority.verify_header(value, NOON).map(|_| ());
    for missing in [None, Some(""), Some("Bearer"), Some("bearer  "), Some("  ")] {
        assert_eq!(verify_header(missing), Err(AuthError::Missing), "{missing:?}");
    }
    for good in [format!("Bearer {token}"), format!("bearer  {token} ")] {
        assert_eq!(verify_header(Some(&good)), Ok(()));
    }
    for other in [format!("Basic {token}"), token] {
        assert!(matches!(verify_header(Some(&other)), Err(AuthError::Malformed(_))), "{other}");
    }
}

#[test]
fn a_token_of_the_previous_key_is_accepted_until_it_expires() {
    let fixture = TokenFixture::new();
    let token = fixture.sign(&valid_claims());
    let folder = fixture.folder.path();
    let operators = KeyPurpose::Operators.folder(folder);
    fs::rename(operators.join("signing.pem"), operators.join("2026.pem")).unwrap();

    let keys = Keys::open(folder).unwrap();
    let later = Authority::new(keys, Settings::default());

    later.verify(&token, NOON).unwrap();
    let fresh = later.issue_operator("alice", &[], HOUR, NOON).unwrap();
    later.verify(fresh.token.reveal(), NOON).unwrap();
    assert_eq!(fixture.verify(fresh.token.reveal()), Err(AuthError::UnknownKey));
}

/// Only their UUIDs are in our own tokens, so that a new project of an old name has new roles.
#[test]
fn our_own_tokens_name_no_projects() {
    let fixture = TokenFixture::new();
    let names = [("shops".to_owned(), PROJECT)];
    fixture.authority.set_project_names(names.into_iter().collect());
    let token = fixture.sign(&with_claim("realm_access", json!({"roles": ["viewer@shops"]})));
    assert!(fixture.authority.verify(&token, NOON).unwrap().roles.is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_text_is_rejected_without_a_panic(text in "[A-Za-z0-9_.-]{0,300}|\\PC{0,100}") {
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::new(Keys::open(folder.path()).unwrap(), Settings::default());
        prop_assert!(authority.verify(&text, NOON).is_err());
        let header = format!("Bearer {text}");
        prop_assert!(authority.verify_header(Some(&header), NOON).is_err());
    }

    #[test]
    fn arbitrary_claims_are_rejected_without_a_panic(claims in "\\PC{0,200}") {
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::new(Keys::open(folder.path()).unwrap(), Settings::default());
        let header = encode(&json!({"alg": "EdDSA"}));
        let token = format!("{header}.{}.AAAA", URL_SAFE_NO_PAD.encode(claims));
        prop_assert!(authority.verify(&token, NOON).is_err());
    }
}
