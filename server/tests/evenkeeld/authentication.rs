//! Authentication: users with a password, tokens of an identity provider, or none.

use std::fs;

use chrono::TimeDelta;
use evenkeel_auth::{Authority, Keys, Role, Settings};
use evenkeel_kit::{Clock, SystemClock};

use crate::test_server::TestServer;

const TOKEN: &str = "/realms/master/protocol/openid-connect/token";

/// Writes a file of users with `alice`, whose password is `open sesame!`; returns its path.
pub fn users(harness: &TestServer) -> String {
    let hash = harness.start_with_input(&["hash-password"], "open sesame!\n");
    let hash = hash.expect_success();
    assert!(hash.starts_with("$argon2id$v=19$"), "{hash}");
    let entry = format!(
        "[[users]]\nname = 'alice'\npassword_hash = '{}'\nroles = ['evenkeel-admin']\n",
        hash.trim()
    );
    harness.write_file("users.toml", &entry)
}

fn login(password: &str) -> String {
    format!("client_id=system-client&grant_type=password&username=alice&password={password}")
}

#[test]
fn a_user_logs_in_with_a_password_and_refreshes_without_it() {
    let harness = TestServer::new();
    let users = users(&harness);
    let harness = harness
        .with_env("EVENKEELD_AUTH__LOGIN__USERS", &users)
        .with_env("EVENKEELD_AUTH__LOGIN__ACCESS_TOKEN_TTL", "5m");
    let server = harness.start_and_wait(&["all"]);

    let (status, answer) = server.post_form(TOKEN, &login("open+sesame!"));
    assert_eq!(status, 200, "{answer}");
    assert_eq!(answer["expires_in"], 300);
    let access = answer["access_token"].as_str().unwrap();
    assert_eq!(server.get("rest", "/v1/projects", Some(access)).0, 200);
    let refresh = answer["refresh_token"].as_str().unwrap();
    assert_eq!(server.get("rest", "/v1/projects", Some(refresh)).0, 401);

    let form = format!("client_id=system-client&grant_type=refresh_token&refresh_token={refresh}");
    let (status, answer) = server.post_form(TOKEN, &form);
    assert_eq!(status, 200, "{answer}");
    let access = answer["access_token"].as_str().unwrap();
    assert_eq!(server.get("rest", "/v1/projects", Some(access)).0, 200);

    let (status, answer) = server.post_form(TOKEN, &login("guess"));
    assert_eq!(status, 400, "{answer}");
    let must_wait = (0..30).any(|_| server.post_form(TOKEN, &login("guess")).0 == 429);
    assert!(must_wait, "the number of guesses is unlimited");
    let (status, metrics) = server.get("admin", "/metrics", None);
    assert!(status == 200 && metrics.contains(TOKEN), "{metrics}");

    let log = server.stop();
    assert!(log.contains("a login failed") && log.contains("alice"), "{log}");
    assert!(!log.contains("sesame") && !log.contains("guess"), "{log}");
}

#[test]
fn login_is_off_by_default() {
    let server = TestServer::new().start_and_wait(&["all"]);
    assert_eq!(server.post_form(TOKEN, &login("open+sesame!")).0, 404);
    server.stop();
}

#[test]
fn an_unusable_file_of_users_is_named() {
    let harness = TestServer::new();
    let text = "[[users]]\nname = 'alice'\npassword = 'open sesame'\n";
    let file = harness.write_file("users.toml", text);
    let with = harness.with_env("EVENKEELD_AUTH__LOGIN__USERS", &file);
    let stderr = with.start(&["all"]).expect_failure();
    assert!(stderr.contains("password") && stderr.contains("users.toml"), "{stderr}");
    assert!(!stderr.contains("sesame"), "{stderr}");
    let stderr = harness.start_with_input(&["hash-password"], "\n").expect_failure();
    assert!(stderr.contains("the password is empty"), "{stderr}");
    for (weak, why) in [("guess", "at least 12 bytes"), ("aaaaaaaaaaaa", "different characters")] {
        let stderr = harness.start_with_input(&["hash-password"], &format!("{weak}\n"));
        let stderr = stderr.expect_failure();
        assert!(stderr.contains(why) && !stderr.contains(weak), "{stderr}");
    }
}

#[test]
fn auth_can_be_disabled_only_explicitly_and_only_for_loopback() {
    let harness = TestServer::new().with_env("EVENKEELD_AUTH__DISABLED", "true");
    let stderr =
        harness.with_env("EVENKEELD_REST__LISTEN", "0.0.0.0:0").start(&["all"]).expect_failure();
    assert!(stderr.contains("auth.disabled"), "{stderr}");
    assert!(!harness.data_dir().exists(), "nothing was created");

    let server = harness.start_and_wait(&["all"]);
    for token in [None, Some("dev")] {
        assert_eq!(server.get("rest", "/v1/projects", token).0, 200);
        let hosts = "/v1/projects/default/compute/hosts";
        assert_eq!(server.get("rest", hosts, token).0, 200);
    }
    let from_elsewhere = "GET /v1/projects HTTP/1.0\r\nhost: evil.example\r\n\r\n";
    let (status, body) = server.send("rest", from_elsewhere);
    let problem: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!(status, 403);
    assert_eq!(problem["code"], "PermissionDenied");
    assert_eq!(problem["type"], "urn:evenkeel:problem:permission-denied");
    assert_eq!(problem["message"], problem["detail"]);
    let by_a_page =
        "GET /v1/projects HTTP/1.0\r\nhost: localhost\r\norigin: https://evil.example\r\n\r\n";
    assert_eq!(server.send("rest", by_a_page).0, 403);
    let log = server.stop();
    assert!(log.contains("auth.disabled is set"), "{log}");
}

#[test]
fn tokens_of_an_identity_provider_are_verified_with_a_key_file() {
    let harness = TestServer::new();
    let settings = Settings {
        issuer: "https://login.example/realms/master".to_owned(),
        audience: "evenkeel".to_owned(),
        ..Settings::default()
    };
    let keys = Keys::open(&harness.path("their-keys")).unwrap();
    let login = Authority::new(keys, settings);
    let jwks = harness.write_file("jwks.json", &login.jwks().to_string());
    let config = |audience: &str| {
        harness.write_file(
            "evenkeeld.toml",
            &format!(
                "[[auth.issuers]]\nissuer = 'https://login.example/realms/master'\n\
                 audience = '{audience}'\njwks = '{jwks}'\nallowed_roles = ['admin']\n"
            ),
        )
    };
    let hour = TimeDelta::hours(1);
    let issued =
        login.issue_operator("alice", &[Role::Administrator], hour, SystemClock.now()).unwrap();
    for (audience, status) in [("evenkeel", 200), ("somebody-else", 401)] {
        let server = harness.start_and_wait(&["all", "--config", &config(audience)]);
        let token = Some(issued.token.reveal());
        assert_eq!(server.get("rest", "/v1/projects", token).0, status);
        server.stop();
    }
}

#[test]
fn an_issuer_without_usable_keys_is_rejected_with_instructions() {
    let harness = TestServer::new();
    for (more, why) in [
        ("issuer = 'https://login.example'", "set discovery = true"),
        ("issuer = 'http://login.example'\ndiscovery = true", "it must begin with https://"),
        ("issuer = 'https://login.example'\njwks = '/no/such/file'", "/no/such/file"),
    ] {
        let file = harness.write_file("evenkeeld.toml", &format!("[[auth.issuers]]\n{more}\n"));
        let stderr = harness.start(&["all", "--config", &file]).expect_failure();
        assert!(stderr.contains(why), "{stderr}");
    }
}

#[test]
fn an_unreachable_provider_does_not_prevent_startup() {
    let harness = TestServer::new();
    let file = harness.write_file(
        "evenkeeld.toml",
        "[[auth.issuers]]\nissuer = 'http://127.0.0.1:1/realms/master'\ndiscovery = true\n",
    );
    let server = harness.start_and_wait(&["all", "--config", &file]);
    let token = fs::read_to_string(harness.data_dir().join("operator-token")).unwrap();
    assert_eq!(server.get("rest", "/v1/projects", Some(token.trim())).0, 200);
    let log = server.stop();
    assert!(log.contains("the issuer's keys cannot be fetched"), "{log}");
    assert!(log.contains("auth.issuers.audience is not set"), "{log}");
}
