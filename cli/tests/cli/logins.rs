//! Logins with a password, and the renewal of expired tokens.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;

use serde_json::{Value, json};

use crate::{TestCli, render_failure};

const REALM: &str = "POST /realms/master/protocol/openid-connect/token";

fn tokens(access: &str, refresh: &str) -> Value {
    json!({"access_token": access, "refresh_token": refresh, "expires_in": 300})
}

async fn cli_without_token() -> TestCli {
    let mut cli = TestCli::new().await;
    cli.token = None;
    cli.fake_server
        .answer("GET projects", json!([]))
        .answer("GET compute/hosts", json!({"hosts": [], "totalElements": 0, "hasNext": false}));
    cli
}

#[tokio::test]
async fn a_user_logs_in_with_a_password() {
    let cli = cli_without_token().await;
    cli.fake_server.answer(REALM, tokens("good", "next"));
    let login = format!("evenkeel login --username alice --server {}", cli.server);
    let (text, _) = cli.bare(&login, "s3 cr&t\n").await.expect("logged in");
    assert_eq!(text, format!("logged in to {} as context default\n", cli.server));
    let (text, _) = cli.bare("evenkeel host list", "").await.expect("a list");
    assert_eq!(text, "no hosts\n");
    insta::assert_snapshot!(cli.fake_server.requests(), @r"
    POST /realms/master/protocol/openid-connect/token client_id=evenkeel&grant_type=password&username=alice&password=s3+cr%26t
    GET projects
    GET compute/hosts
    ");
    let (context, _) = cli.bare("evenkeel context show", "").await.expect("the context");
    let user = format!("user     alice at {}/realms/master\n", cli.server);
    assert!(context.contains(&user), "{context}");
    let (json, _) = cli.bare("evenkeel context show -o json", "").await.expect("the context");
    assert!(!json.contains("next"), "no token is ever shown: {json}");
}

#[tokio::test]
async fn an_expired_token_is_renewed_and_saved() {
    let cli = cli_without_token().await;
    cli.fake_server.answer(REALM, tokens("good", "first")).answer(REALM, tokens("good", "second"));
    let login = format!("evenkeel login --username alice --server {}", cli.server);
    cli.bare(&login, "secret").await.expect("logged in");
    let file = cli.home.path().join("contexts.yaml");
    let text = std::fs::read_to_string(&file).expect("the contexts");
    std::fs::write(&file, text.replace("token: good", "token: over")).expect("written");

    let (text, _) = cli.bare("evenkeel host list", "").await.expect("a list");
    assert_eq!(text, "no hosts\n");
    let requests = cli.fake_server.requests();
    let renewal =
        format!("{REALM} client_id=evenkeel&grant_type=refresh_token&refresh_token=first");
    assert!(requests.lines().any(|line| line == renewal), "{requests}");
    let saved = std::fs::read_to_string(&file).expect("the contexts");
    assert!(saved.contains("second") && !saved.contains("over"), "{saved}");
    assert!(!saved.contains("first"), "{saved}");
}

#[tokio::test]
async fn a_token_that_cannot_be_saved_is_used_for_its_command() {
    let mut cli = cli_without_token().await;
    cli.fake_server.answer(REALM, tokens("good", "first")).answer(REALM, tokens("good", "second"));
    let login = format!("evenkeel login --username alice --server {}", cli.server);
    cli.bare(&login, "secret").await.expect("logged in");
    let text = std::fs::read_to_string(&cli.contexts).expect("the contexts");
    // This is the longest possible file name, so no temporary file can be created next to it, not even
    // by root.
    cli.contexts = cli.home.path().join("c".repeat(255));
    let expired = text.replace("token: good", "token: over");
    std::fs::write(&cli.contexts, &expired).expect("written");
    std::fs::set_permissions(&cli.contexts, Permissions::from_mode(0o600)).expect("the mode");

    let (text, _) = cli.bare("evenkeel host list", "").await.expect("a list");
    assert!(text.starts_with("note: cannot save the new token: cannot use "), "{text}");
    assert!(text.ends_with("\nno hosts\n"), "{text}");
    let saved = std::fs::read_to_string(&cli.contexts).expect("the contexts");
    assert_eq!(saved, expired);
}

#[tokio::test]
async fn a_realm_elsewhere_is_reached_without_the_ca_of_the_server() {
    let cli = cli_without_token().await;
    cli.fake_server.answer(REALM, tokens("good", "next"));
    let line = format!(
        "evenkeel login --username alice --server https://127.0.0.1:1 --ca /does/not/exist.pem \
         --realm {}/realms/master",
        cli.server
    );
    let failure = cli.bare(&line, "secret").await;
    let failure = failure.expect_err("no authority for the server");
    assert!(matches!(failure, evenkeel_cli::Failure::File { .. }), "{failure}");
    let requests = cli.fake_server.requests();
    assert!(requests.starts_with(REALM), "the realm was asked: {requests}");
    assert!(requests.contains("client_id=system-client"), "{requests}");
}

#[tokio::test]
async fn an_expired_login_suggests_a_new_login() {
    let cli = cli_without_token().await;
    let session_expired =
        json!({"error": "invalid_grant", "error_description": "the session is over"});
    cli.fake_server.answer(REALM, tokens("good", "first")).answer_with(REALM, 400, session_expired);
    let login = format!("evenkeel login --username alice --server {}", cli.server);
    cli.bare(&login, "secret").await.expect("logged in");
    let file = cli.home.path().join("contexts.yaml");
    let text = std::fs::read_to_string(&file).expect("the contexts");
    std::fs::write(&file, text.replace("token: good", "token: over")).expect("written");
    let failure = cli.bare("evenkeel host list", "").await;
    let message = render_failure(&failure.expect_err("the login is over"));
    assert!(
        message.starts_with("the token has expired\nhint: log in with `evenkeel login`"),
        "{message}"
    );
}

#[tokio::test]
async fn failed_logins_are_explained() {
    let cli = cli_without_token().await;
    let login = format!("evenkeel login --username alice --server {}", cli.server);
    let failure = cli.bare(&login, "secret").await.expect_err("no users");
    let text = render_failure(&failure);
    assert!(text.contains(" does not support logins with a password\n"), "{text}");

    let wrong =
        json!({"error": "invalid_grant", "error_description": "the name or the password is wrong"});
    cli.fake_server
        .answer_with(REALM, 401, wrong)
        .answer_with(REALM, 429, json!({"error": "slow_down"}))
        .answer_with(REALM, 500, json!({}));
    let mut text = String::new();
    for _ in 0..2 {
        let failure = cli.bare(&login, "secret").await.expect_err("refused");
        text.push_str(&render_failure(&failure));
        text.push('\n');
    }
    insta::assert_snapshot!(text, @r"
    the name or the password is wrong
    hint: check the user name and the password; after repeated failures the server delays further attempts
    slow_down
    hint: try again in a moment
    ");
    let failure = cli.bare(&login, "secret").await.expect_err("broken");
    assert!(render_failure(&failure).contains("this is an error of the server"), "{failure}");
    let failure = cli.bare(&login, "\n").await.expect_err("no password");
    assert_eq!(failure.to_string(), "the password is empty");
    let (names, _) = cli.bare("evenkeel context list -q", "").await.expect("a list");
    assert_eq!(names, "", "failed logins are not saved");
}

#[tokio::test]
async fn a_password_is_typed_hidden_or_read_from_a_file() {
    let mut cli = cli_without_token().await;
    cli.fake_server.answer(REALM, tokens("good", "next"));
    cli.interactive = true;
    let login = format!("evenkeel login --username alice --server {}", cli.server);
    let (text, _) = cli.bare(&login, "secret\n").await.expect("logged in");
    assert!(text.starts_with("password for alice: \n"), "{text}");
    let failure = cli.bare(&login, "sec\u{3}\n").await;
    let failure = failure.expect_err("Ctrl-C");
    assert_eq!(failure.to_string(), "nothing was done");

    let file = cli.home.path().join("password");
    std::fs::write(&file, "from a file\r\nmore\n").expect("written");
    let line = format!("{login} --password-file {} --client ours", file.display());
    cli.bare(&line, "").await.expect("logged in");
    let requests = cli.fake_server.requests();
    let sent = "client_id=ours&grant_type=password&username=alice&password=from+a+file";
    assert!(requests.contains(sent), "{requests}");
}

#[tokio::test]
async fn a_token_from_the_environment_is_not_renewed() {
    let mut cli = cli_without_token().await;
    cli.fake_server.answer(REALM, tokens("good", "next"));
    let login = format!("evenkeel login --username alice --server {}", cli.server);
    cli.bare(&login, "secret").await.expect("logged in");
    cli.token = Some(evenkeel_kit::Secret::new("over"));
    let failure = cli.bare("evenkeel host list", "").await;
    assert_eq!(failure.expect_err("over").to_string(), "the token has expired");
}
