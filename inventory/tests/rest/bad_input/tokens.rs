//! Invalid tokens.

use std::path::Path;
use std::sync::Arc;

use axum::body::Body;
use axum::http::{Request, StatusCode};
use chrono::TimeDelta;
use evenkeel_auth::{Authority, Keys, Role, Settings as AuthSettings};
use evenkeel_kit::Clock;
use serde_json::json;

use super::{BadInputFixture, describe_response};
use crate::test_server::{Caller, read_json};

/// The headers `{"alg":"none"}` and `{"alg":"HS256"}`.
const ALG_NONE_HEADER: &str = "eyJhbGciOiJub25lIn0";
const ALG_HS256_HEADER: &str = "eyJhbGciOiJIUzI1NiJ9";

const ALGORITHM_NOT_ACCEPTED: &str = "the token is signed in a way that is not accepted here";

/// An authority that signs with the keys in a folder.
fn open_authority(folder: &Path, settings: AuthSettings) -> Authority {
    Authority::new(Keys::open(folder).expect("keys"), settings)
}

impl BadInputFixture {
    /// A token of a writer that was issued `ago`, with this lifetime.
    fn issue_token(&self, issuer: &Authority, ago: TimeDelta, lifetime: TimeDelta) -> String {
        let made_at = self.server.clock.now() - ago;
        let roles = [Role::Write(self.server.ours.uuid())];
        let result = issuer.issue_operator("writer", &roles, lifetime, made_at);
        result.expect("a token").token.reveal().to_owned()
    }

    /// Makes the API trust this authority.
    fn trust(&mut self, authority: Authority) {
        self.server.use_authority(Arc::new(authority));
    }
}

/// The three parts of a token.
fn token_parts(token: &str) -> [String; 3] {
    let parts: Vec<_> = token.split('.').map(str::to_owned).collect();
    parts.try_into().expect("three parts")
}

/// Tokens that use our own keys or look like it: the case, the token, and the beginning of the
/// expected message.
fn invalid_tokens(
    fixture: &BadInputFixture,
    ours: &Path,
    others: &Path,
) -> Vec<(&'static str, String, &'static str)> {
    let (now, hour) = (TimeDelta::zero(), TimeDelta::hours(1));
    let other_audience =
        AuthSettings { audience: "elsewhere".to_owned(), ..AuthSettings::default() };
    let other_issuer = AuthSettings {
        issuer: "https://elsewhere.example.org".to_owned(),
        ..AuthSettings::default()
    };
    let of = |settings| fixture.issue_token(&open_authority(ours, settings), now, hour);
    let other_authority = open_authority(others, AuthSettings::default());
    let foreign_token = fixture.issue_token(&other_authority, now, hour);
    let [head, claims, signature] = token_parts(&of(AuthSettings::default()));
    let [_, other_claims, other_signature] = token_parts(&foreign_token);
    let past = TimeDelta::minutes(59);
    let expired = fixture.issue_token(&fixture.server.authority, hour, past);
    let [unsigned, signed, shared] = [
        format!("{ALG_NONE_HEADER}.{claims}."),
        format!("{ALG_NONE_HEADER}.{claims}.{signature}"),
        format!("{ALG_HS256_HEADER}.{claims}.{signature}"),
    ];
    let by_another = format!("{head}.{claims}.{other_signature}");
    let of_others = format!("{head}.{other_claims}.{signature}");
    vec![
        ("none", unsigned, ALGORITHM_NOT_ACCEPTED),
        ("none, but signed", signed, ALGORITHM_NOT_ACCEPTED),
        ("a shared secret", shared, ALGORITHM_NOT_ACCEPTED),
        ("another key", foreign_token, "the token is signed with an unknown key"),
        ("another's signature", by_another, "the token's signature is wrong"),
        ("other claims", of_others, "the token's signature is wrong"),
        ("another audience", of(other_audience), "the token is for another audience"),
        ("another issuer", of(other_issuer), "the token is from another issuer"),
        ("expired", expired, "the token expired at "),
        ("too long", "a".repeat(9_000), "the token is malformed: it is too long"),
        ("no token", "x".to_owned(), "the token is malformed: "),
        ("nothing", String::new(), "a bearer token is needed"),
    ]
}

#[tokio::test]
async fn an_invalid_token_is_rejected_everywhere() {
    let mut fixture = BadInputFixture::new().await;
    let [ours, others] = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
    fixture.trust(open_authority(ours.path(), AuthSettings::default()));
    for (case, token, why) in invalid_tokens(&fixture, ours.path(), others.path()) {
        for (method, path) in [
            ("GET", "compute/hosts"),
            ("POST", "compute/hosts/register"),
            ("DELETE", "os-update-runs/osupdaterun-00000000"),
        ] {
            let request = Request::builder()
                .method(method)
                .uri(format!("/v1/projects/ours/{path}"))
                .header("authorization", format!("Bearer {token}"))
                .body(Body::from(json!({"serialNumber": "NEW12345"}).to_string()));
            let answer = fixture.server.send(request.expect("a request")).await;
            let challenge = answer.headers().get("www-authenticate");
            assert!(challenge.is_some_and(|value| value == "Bearer"), "{case}");
            let answer = read_json(answer).await;
            assert_eq!(describe_response(&answer), "401 Unauthenticated -", "{case}");
            let message = answer.1["message"].as_str().unwrap_or_default();
            assert!(message.starts_with(why), "{case}: {message}");
        }
    }
    // A valid token of the same authority shows that nothing was written.
    fixture.assert_unchanged().await;
}

#[tokio::test]
async fn the_legacy_form_names_a_project_by_its_uuid() {
    let fixture = BadInputFixture::new().await;
    let token = fixture.server.token(Caller::Writer).expect("a token");
    let theirs = fixture.server.theirs.to_string();
    let unknown_project = "00000000-0000-4000-8000-000000000000";
    for (project, expected) in [
        (None, "401 Unauthenticated -"),
        (Some(""), "401 Unauthenticated -"),
        (Some("ours"), "401 Unauthenticated -"),
        (Some(unknown_project), "403 PermissionDenied -"),
        (Some(theirs.as_str()), "403 PermissionDenied -"),
    ] {
        let mut request = Request::delete("/edge-infra.orchestrator.apis/v2/hosts/host-00000000")
            .header("authorization", format!("Bearer {token}"));
        if let Some(project) = project {
            request = request.header("ActiveProjectID", project);
        }
        let request = request.body(Body::empty()).expect("a request");
        let answer: (StatusCode, _) = read_json(fixture.server.send(request).await).await;
        assert_eq!(describe_response(&answer), expected, "{project:?}: {}", answer.1);
    }
}
