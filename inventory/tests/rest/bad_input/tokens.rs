//! Tokens that prove nothing.

use std::path::Path;
use std::sync::Arc;

use axum::body::Body;
use axum::http::{Request, StatusCode};
use chrono::TimeDelta;
use evenkeel_auth::{Authority, Keys, Role, Settings as AuthSettings};
use evenkeel_inventory::{Inventory, Settings, router};
use evenkeel_kit::Clock;
use serde_json::json;

use super::{Ground, told};
use crate::house::{Who, read};

/// The heads `{"alg":"none"}` and `{"alg":"HS256"}`.
const NONE: &str = "eyJhbGciOiJub25lIn0";
const SHARED: &str = "eyJhbGciOiJIUzI1NiJ9";

const NOT_ACCEPTED: &str = "the token is signed in a way that is not accepted here";

/// Whoever signs with the keys in a folder.
fn authority(folder: &Path, settings: AuthSettings) -> Authority {
    Authority::new(Keys::open(folder).expect("keys"), settings)
}

impl Ground {
    /// A token that somebody made for a writer, so long ago and for so long.
    fn made_by(&self, somebody: &Authority, ago: TimeDelta, lifetime: TimeDelta) -> String {
        let made_at = self.house.clock.now() - ago;
        let roles = [Role::Write(self.house.ours.uuid())];
        let issued = somebody.issue_operator("writer", &roles, lifetime, made_at);
        issued.expect("a token").token.reveal().to_owned()
    }

    /// Lets the API believe this authority.
    fn believe(&mut self, authority: Authority) {
        let house = &mut self.house;
        house.authority = Arc::new(authority);
        house.router = router(Inventory {
            store: house.store.clone(),
            clock: Arc::new(house.clock.clone()),
            authority: Arc::clone(&house.authority),
            ca_digest: None,
            settings: Settings::default(),
        });
    }
}

/// The three parts of a token.
fn parts(token: &str) -> [String; 3] {
    let parts: Vec<_> = token.split('.').map(str::to_owned).collect();
    parts.try_into().expect("three parts")
}

/// Tokens that are made with our own keys or look like it: what is wrong, the token, and what is told.
fn nearly_ours(
    ground: &Ground,
    ours: &Path,
    others: &Path,
) -> Vec<(&'static str, String, &'static str)> {
    let (now, hour) = (TimeDelta::zero(), TimeDelta::hours(1));
    let elsewhere = AuthSettings {
        audience: "elsewhere".to_owned(),
        ..AuthSettings::default()
    };
    let pretender = AuthSettings {
        issuer: "https://elsewhere.example.org".to_owned(),
        ..AuthSettings::default()
    };
    let of = |settings| ground.made_by(&authority(ours, settings), now, hour);
    let stranger = authority(others, AuthSettings::default());
    let strange = ground.made_by(&stranger, now, hour);
    let [head, claims, signature] = parts(&of(AuthSettings::default()));
    let [_, other_claims, other_signature] = parts(&strange);
    let past = TimeDelta::minutes(59);
    let expired = ground.made_by(&ground.house.authority, hour, past);
    let [unsigned, signed, shared] = [
        format!("{NONE}.{claims}."),
        format!("{NONE}.{claims}.{signature}"),
        format!("{SHARED}.{claims}.{signature}"),
    ];
    let by_another = format!("{head}.{claims}.{other_signature}");
    let of_others = format!("{head}.{other_claims}.{signature}");
    vec![
        ("none", unsigned, NOT_ACCEPTED),
        ("none, but signed", signed, NOT_ACCEPTED),
        ("a shared secret", shared, NOT_ACCEPTED),
        (
            "another key",
            strange,
            "the token is signed with an unknown key",
        ),
        (
            "another's signature",
            by_another,
            "the token's signature is wrong",
        ),
        ("other claims", of_others, "the token's signature is wrong"),
        (
            "another audience",
            of(elsewhere),
            "the token is for another audience",
        ),
        (
            "another issuer",
            of(pretender),
            "the token is from another issuer",
        ),
        ("expired", expired, "the token expired at "),
        (
            "too long",
            "a".repeat(9_000),
            "the token is malformed: it is too long",
        ),
        ("no token", "x".to_owned(), "the token is malformed: "),
        ("nothing", String::new(), "a bearer token is needed"),
    ]
}

#[tokio::test]
async fn a_token_that_proves_nothing_opens_nothing() {
    let mut ground = Ground::new().await;
    let [ours, others] = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
    ground.believe(authority(ours.path(), AuthSettings::default()));
    for (case, token, why) in nearly_ours(&ground, ours.path(), others.path()) {
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
            let answer = ground.house.send(request.expect("a request")).await;
            let challenge = answer.headers().get("www-authenticate");
            assert!(challenge.is_some_and(|asked| asked == "Bearer"), "{case}");
            let answer = read(answer).await;
            assert_eq!(told(&answer), "401 Unauthenticated -", "{case}");
            let message = answer.1["message"].as_str().unwrap_or_default();
            assert!(message.starts_with(why), "{case}: {message}");
        }
    }
    // A good token of the same authority sees that nothing was written.
    ground.stays_as_it_was().await;
}

#[tokio::test]
async fn the_legacy_form_names_a_project_by_its_uuid() {
    let ground = Ground::new().await;
    let token = ground.house.token(Who::Writer).expect("a token");
    let theirs = ground.house.theirs.to_string();
    let nobodys = "00000000-0000-4000-8000-000000000000";
    for (project, wanted) in [
        (None, "401 Unauthenticated -"),
        (Some(""), "401 Unauthenticated -"),
        (Some("ours"), "401 Unauthenticated -"),
        (Some(nobodys), "403 PermissionDenied -"),
        (Some(theirs.as_str()), "403 PermissionDenied -"),
    ] {
        let mut request = Request::delete("/edge-infra.orchestrator.apis/v2/hosts/host-00000000")
            .header("authorization", format!("Bearer {token}"));
        if let Some(project) = project {
            request = request.header("ActiveProjectID", project);
        }
        let request = request.body(Body::empty()).expect("a request");
        let answer: (StatusCode, _) = read(ground.house.send(request).await).await;
        assert_eq!(told(&answer), wanted, "{project:?}: {}", answer.1);
    }
}
