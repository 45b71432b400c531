//! Users who change their own password.

use serde_json::{Value, json};

use crate::{TestCli, render_failure};

const REALM: &str = "POST /realms/master/protocol/openid-connect/token";

fn alice() -> Value {
    json!({
        "subject": "alice", "issuer": "urn:evenkeel:issuer", "tokenId": "", "tokenName": "",
        "roles": ["operator@default"], "expiresAt": "2026-03-01T12:15:00Z",
    })
}

/// A command line without a token of its own that has logged in.
async fn logged_in() -> TestCli {
    let mut cli = TestCli::new().await;
    cli.token = None;
    let tokens = |refresh: &str| json!({"access_token": "good", "refresh_token": refresh});
    cli.fake_server
        .answer("GET projects", json!([]))
        .answer("GET whoami", alice())
        .answer("PUT whoami/password", json!({}))
        .answer(REALM, tokens("first"))
        .answer(REALM, tokens("second"));
    let login = format!("evenkeel login --username alice --server {}", cli.server);
    cli.bare(&login, "open sesame!").await.expect("logged in");
    cli
}

#[tokio::test]
async fn a_user_changes_the_password_and_stays_logged_in() {
    let cli = logged_in().await;
    let input = "open sesame!\nanother sesame\n";
    let (text, _) = cli.bare("evenkeel passwd", input).await.expect("changed");
    assert_eq!(text, "password of alice changed\n");
    let requests = cli.fake_server.requests();
    let body = r#"{"oldPassword":"open sesame!","password":"another sesame"}"#;
    assert!(requests.contains(&format!("\nPUT whoami/password {body}\n")), "{requests}");
    let login = format!(
        "{REALM} client_id=evenkeel&grant_type=password&username=alice&password=another+sesame"
    );
    assert_eq!(requests.lines().last(), Some(&*login));
    let saved = std::fs::read_to_string(&cli.contexts).expect("the contexts");
    assert!(saved.contains("second") && !saved.contains("first"), "{saved}");
    assert!(!saved.contains("sesame"), "{saved}");
}

#[tokio::test]
async fn on_a_terminal_the_new_password_is_typed_twice() {
    let mut cli = logged_in().await;
    cli.interactive = true;
    let input = "open sesame!\nanother sesame\nanother sesamy\n";
    let failure = cli.bare("evenkeel passwd", input).await.expect_err("they differ");
    assert!(render_failure(&failure).starts_with("the new passwords differ"), "{failure}");
    assert!(!cli.fake_server.requests().contains("PUT"), "{}", cli.fake_server.requests());
    let input = "open sesame!\nanother sesame\nanother sesame\n";
    let (text, _) = cli.bare("evenkeel passwd", input).await.expect("changed");
    let prompts = "old password for alice: \nnew password for alice: \nnew password again: \n";
    assert_eq!(text, format!("{prompts}password of alice changed\n"));
}

#[tokio::test]
async fn a_wrong_old_password_is_named() {
    let cli = TestCli::new().await;
    let wrong = json!({
        "code": "InvalidArgument", "message": "oldPassword: is wrong", "field": "oldPassword",
    });
    cli.fake_server.answer("GET whoami", alice()).answer_with("PUT whoami/password", 400, wrong);
    let folder = cli.home.path();
    std::fs::write(folder.join("old"), "guess\n").expect("written");
    std::fs::write(folder.join("new"), "another sesame\n").expect("written");
    let line = format!(
        "evenkeel passwd --old-password-file {0}/old --password-file {0}/new",
        folder.display()
    );
    let message = cli.fail(&line).await;
    assert_eq!(message, "the old password is wrong; nothing was changed\nhint: none");
}
