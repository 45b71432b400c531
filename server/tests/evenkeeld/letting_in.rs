//! Whom the server lets in: people with a password, people of an identity provider, or everybody.

use std::fs;

use chrono::TimeDelta;
use evenkeel_auth::{Authority, Keys, Role, Settings};
use evenkeel_kit::{Clock, SystemClock};

use crate::house::House;

const TOKEN: &str = "/realms/master/protocol/openid-connect/token";

/// A file of users with `alice`, whose password is `open sesame`.
fn users(house: &House) -> String {
    let hash = house.start_with(&["hash-password"], "open sesame\n");
    let hash = hash.succeeds();
    assert!(hash.starts_with("$argon2id$v=19$"), "{hash}");
    let entry = format!(
        "[[users]]\nname = 'alice'\npassword_hash = '{}'\nroles = ['evenkeel-admin']\n",
        hash.trim()
    );
    house.file("users.toml", &entry)
}

fn login(password: &str) -> String {
    format!("client_id=system-client&grant_type=password&username=alice&password={password}")
}

#[test]
fn somebody_with_a_password_logs_in_and_goes_on_without_it() {
    let house = House::new();
    let users = users(&house);
    let house = house
        .with("EVENKEELD_AUTH__LOGIN__USERS", &users)
        .with("EVENKEELD_AUTH__LOGIN__ACCESS_FOR", "5m");
    let mut server = house.start(&["all"]);
    server.wait_until_ready();

    let (status, answer) = server.post_form(TOKEN, &login("open+sesame"));
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
    assert!(must_wait, "it may guess for ever");
    let (status, metrics) = server.get("admin", "/metrics", None);
    assert!(status == 200 && metrics.contains(TOKEN), "{metrics}");

    let log = server.stop();
    assert!(
        log.contains("a login failed") && log.contains("alice"),
        "{log}"
    );
    assert!(!log.contains("sesame") && !log.contains("guess"), "{log}");
}

#[test]
fn nobody_logs_in_unless_it_was_set_up() {
    let mut server = House::new().start(&["all"]);
    server.wait_until_ready();
    assert_eq!(server.post_form(TOKEN, &login("open+sesame")).0, 404);
    server.stop();
}

#[test]
fn a_file_of_users_that_is_not_usable_is_named() {
    let house = House::new();
    for (text, why) in [
        ("[[users]]\nname = 'alice'\n", "password_hash"),
        (
            "[[users]]\nname = 'alice'\npassword_hash = 'open sesame'\nroles = ['evenkeel-admin']\n",
            "user \"alice\"",
        ),
    ] {
        let file = house.file("users.toml", text);
        let with = house.with("EVENKEELD_AUTH__LOGIN__USERS", &file);
        let said = with.start(&["all"]).fails();
        assert!(said.contains(why) && said.contains("users.toml"), "{said}");
        assert!(!said.contains("sesame"), "{said}");
    }
    let said = house.start_with(&["hash-password"], "\n").fails();
    assert!(said.contains("the password is empty"), "{said}");
}

#[test]
fn everybody_is_let_in_only_by_an_explicit_word_and_only_from_this_machine() {
    let house = House::new().with("EVENKEELD_AUTH__DISABLED", "true");
    let said = house
        .with("EVENKEELD_REST__LISTEN", "0.0.0.0:0")
        .start(&["all"])
        .fails();
    assert!(said.contains("auth.disabled"), "{said}");
    assert!(!house.data_dir().exists(), "nothing was begun");

    let mut server = house.start(&["all"]);
    server.wait_until_ready();
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
fn tokens_of_an_identity_provider_count_by_the_keys_in_a_file() {
    let house = House::new();
    let settings = Settings {
        issuer: "https://login.example/realms/master".to_owned(),
        audience: "evenkeel".to_owned(),
        ..Settings::default()
    };
    let keys = Keys::open(&house.path("their-keys")).unwrap();
    let login = Authority::new(keys, settings);
    let jwks = house.file("jwks.json", &login.jwks().to_string());
    let config = |audience: &str| {
        house.file(
            "evenkeeld.toml",
            &format!(
                "[[auth.issuers]]\nissuer = 'https://login.example/realms/master'\n\
                 audience = '{audience}'\njwks = '{jwks}'\n"
            ),
        )
    };
    let hour = TimeDelta::hours(1);
    let issued = login
        .issue_operator("alice", &[Role::Administrator], hour, SystemClock.now())
        .unwrap();
    for (audience, status) in [("evenkeel", 200), ("somebody-else", 401)] {
        let mut server = house.start(&["all", "--config", &config(audience)]);
        server.wait_until_ready();
        let token = Some(issued.token.reveal());
        assert_eq!(server.get("rest", "/v1/projects", token).0, status);
        server.stop();
    }
}

#[test]
fn an_issuer_whose_keys_cannot_be_had_is_refused_with_what_to_do() {
    let house = House::new();
    for (more, why) in [
        ("issuer = 'https://login.example'", "set discovery = true"),
        (
            "issuer = 'http://login.example'\ndiscovery = true",
            "it must begin with https://",
        ),
        (
            "issuer = 'https://login.example'\njwks = '/no/such/file'",
            "/no/such/file",
        ),
    ] {
        let file = house.file("evenkeeld.toml", &format!("[[auth.issuers]]\n{more}\n"));
        let said = house.start(&["all", "--config", &file]).fails();
        assert!(said.contains(why), "{said}");
    }
}

#[test]
fn a_provider_that_is_away_does_not_keep_the_server_from_starting() {
    let house = House::new();
    let file = house.file(
        "evenkeeld.toml",
        "[[auth.issuers]]\nissuer = 'http://127.0.0.1:1/realms/master'\ndiscovery = true\n",
    );
    let mut server = house.start(&["all", "--config", &file]);
    server.wait_until_ready();
    let token = fs::read_to_string(house.data_dir().join("operator-token")).unwrap();
    assert_eq!(
        server.get("rest", "/v1/projects", Some(token.trim())).0,
        200
    );
    let log = server.stop();
    assert!(log.contains("the issuer's keys cannot be fetched"), "{log}");
}
