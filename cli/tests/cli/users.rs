//! Users who log in with a password, and the identity of the caller.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;

use serde_json::{Value, json};

use crate::{TestCli, render_failure};

fn alice(disabled: bool) -> Value {
    json!({
        "name": "alice", "roles": ["operator@default", "viewer@lab"], "disabled": disabled,
        "createdAt": "2026-03-01T12:00:00Z", "createdBy": "administrator",
        "updatedAt": "2026-03-01T12:00:00Z",
    })
}

#[tokio::test]
async fn a_user_is_added_with_a_password_that_is_never_shown() {
    let cli = TestCli::new().await;
    cli.fake_server
        .answer("POST users", alice(false))
        .answer("PUT users/alice/password", alice(false));
    let add = "evenkeel user add alice --role operator@default --role viewer@lab";
    let (text, _) = cli.answer(add, "open sesame!\n").await.expect("added");
    let shown = "name   alice\nroles  operator@default, viewer@lab\nstate  enabled\n";
    assert!(text.ends_with(shown) && !text.contains("sesame"), "{text}");
    let body =
        r#"{"name":"alice","password":"open sesame!","roles":["operator@default","viewer@lab"]}"#;
    let requests = cli.fake_server.requests();
    assert_eq!(requests.lines().last(), Some(&*format!("POST users {body}")));

    let file = cli.home.path().join("password");
    std::fs::write(&file, "another sesame\n").expect("written");
    let passwd = format!("evenkeel user passwd alice --password-file {}", file.display());
    assert_eq!(cli.run(&passwd).await, "password of alice set\n");
    let requests = cli.fake_server.requests();
    let body = r#"{"password":"another sesame"}"#;
    assert_eq!(requests.lines().last(), Some(&*format!("PUT users/alice/password {body}")));

    let failure = cli.answer(add, "\n").await.expect_err("no password");
    assert!(render_failure(&failure).starts_with("the password is empty"), "{failure}");
}

#[tokio::test]
async fn users_are_listed_disabled_enabled_and_deleted() {
    let cli = TestCli::new().await;
    cli.fake_server
        .answer("GET users", json!([alice(false), alice(true)]))
        .answer("PUT users/alice/disable", alice(true))
        .answer("PUT users/alice/enable", alice(false))
        .answer("PUT users/alice/roles", alice(false))
        .answer("DELETE users/alice?force=true", json!({}));
    insta::assert_snapshot!(cli.run("evenkeel user list").await, @r"
    NAME   ROLES                         STATE     AGE
    alice  operator@default, viewer@lab  enabled   0s
    alice  operator@default, viewer@lab  disabled  0s
    ");
    let of_project = cli.run("evenkeel user list --project lab").await;
    assert!(of_project.starts_with("note: this lists users of all projects; "), "{of_project}");
    let wide = cli.run("evenkeel user list -o wide").await;
    assert!(wide.contains("CREATED BY") && wide.contains("administrator"), "{wide}");
    assert_eq!(cli.run("evenkeel user disable alice").await, "user alice disabled\n");
    assert_eq!(cli.run("evenkeel user enable alice").await, "user alice enabled\n");
    cli.run("evenkeel user roles alice --role viewer@lab").await;
    let body = r#"{"roles":["viewer@lab"]}"#;
    let requests = cli.fake_server.requests();
    assert_eq!(requests.lines().last(), Some(&*format!("PUT users/alice/roles {body}")));
    cli.run("evenkeel user roles alice --none").await;
    let requests = cli.fake_server.requests();
    assert_eq!(requests.lines().last(), Some(r#"PUT users/alice/roles {"roles":[]}"#));
    assert_eq!(cli.run("evenkeel user delete alice --force").await, "user alice deleted\n");
}

#[tokio::test]
async fn on_a_terminal_a_password_is_typed_twice_and_a_deletion_confirmed() {
    let mut cli = TestCli::new().await;
    cli.interactive = true;
    cli.fake_server.answer("POST users", alice(false)).answer("DELETE users/alice", json!({}));
    let add = "evenkeel user add alice --role operator@default";
    let failure = cli.answer(add, "open sesame!\nopen sesamy!\n").await.expect_err("they differ");
    assert_eq!(failure.to_string(), "the new passwords differ; nothing was done");
    let refused = cli.answer("evenkeel user delete alice", "\n").await;
    assert_eq!(refused.expect_err("the default is no").to_string(), "nothing was done");
    assert_eq!(cli.fake_server.requests(), "");
    let (text, _) = cli.answer(add, "open sesame!\nopen sesame!\n").await.expect("added");
    assert!(text.starts_with("new password for alice: \nnew password again: \n"), "{text}");
    let (text, _) = cli.answer("evenkeel user delete alice", "y\n").await.expect("deleted");
    assert_eq!(text, "delete the user alice? [y/N] user alice deleted\n");
    assert_eq!(cli.run("evenkeel user delete alice --yes").await, "user alice deleted\n");
}

#[tokio::test]
async fn the_last_administrator_is_changed_with_an_option() {
    let mut cli = TestCli::new().await;
    cli.interactive = true;
    let message = "`root` is the last enabled user; add another one first, or repeat the request with force=true";
    let last = json!({"code": "FailedPrecondition", "message": message});
    cli.fake_server
        .answer_with("DELETE users/root", 400, last.clone())
        .answer_with("PUT users/root/roles", 400, last.clone())
        .answer_with("PUT users/root/disable", 400, last);
    for line in ["user disable root", "user roles root --none", "user delete root"] {
        let failure = cli.answer(&format!("evenkeel {line}"), "y\n").await.expect_err("the last");
        let expected = "`root` is the last enabled user; add another one first, or repeat the command with --force";
        assert_eq!(failure.to_string(), expected, "{line}");
    }
}

#[tokio::test]
async fn the_caller_is_shown_with_its_roles() {
    let cli = TestCli::new().await;
    cli.fake_server.answer("GET whoami", json!({
        "subject": "alice", "issuer": "urn:evenkeel:issuer", "tokenId": "", "tokenName": "nightly",
        "roles": ["operator@default", "viewer@lab"], "expiresAt": "2026-03-01T12:15:00Z",
    }));
    insta::assert_snapshot!(cli.run("evenkeel whoami").await, @r"
    subject  alice
    issuer   urn:evenkeel:issuer
    token    nightly
    roles    operator@default, viewer@lab
    expires  2026-03-01T12:15:00Z
    ");
    assert_eq!(cli.run("evenkeel whoami --quiet").await, "alice\n");
}

const REALM: &str = "POST /realms/master/protocol/openid-connect";

/// A command line without a token of its own that has logged in.
async fn logged_in() -> TestCli {
    let mut cli = TestCli::new().await;
    cli.token = None;
    let tokens = json!({"access_token": "good", "refresh_token": "next", "expires_in": 300});
    cli.fake_server.answer("GET projects", json!([])).answer(&format!("{REALM}/token"), tokens);
    let login = format!("evenkeel login --username alice --server {}", cli.server);
    cli.bare(&login, "secret").await.expect("logged in");
    cli
}

#[tokio::test]
async fn a_logout_revokes_the_token_and_ends_the_login() {
    let cli = logged_in().await;
    cli.fake_server
        .answer("POST logout", json!({"revoked": true}))
        .answer(&format!("{REALM}/logout"), json!({}));
    let (text, _) = cli.bare("evenkeel logout", "").await.expect("logged out");
    assert_eq!(text, format!("logged out of {} in context default\n", cli.server));
    let requests = cli.fake_server.requests();
    let end = format!("{REALM}/logout client_id=evenkeel&refresh_token=next");
    assert!(requests.contains(&end) && requests.contains("\nPOST logout {}"), "{requests}");
    let saved = std::fs::read_to_string(&cli.contexts).expect("the contexts");
    assert!(!saved.contains("good") && !saved.contains("next"), "{saved}");
    let failure = cli.bare("evenkeel logout", "").await.expect_err("no token is left");
    assert!(render_failure(&failure).starts_with("no token is saved"), "{failure}");
}

#[tokio::test]
async fn tokens_that_other_users_can_read_give_a_note() {
    let cli = logged_in().await;
    let (text, _) = cli.bare("evenkeel project list", "").await.expect("a list");
    assert_eq!(text, "no projects\n");
    let readable_by_all = Permissions::from_mode(0o644);
    std::fs::set_permissions(&cli.contexts, readable_by_all).expect("changed");
    let (text, _) = cli.bare("evenkeel project list", "").await.expect("a list");
    let note = "note: other users of this machine can read the tokens in ";
    assert!(text.starts_with(note) && text.ends_with("no projects\n"), "{text}");
}

#[tokio::test]
async fn a_logout_with_a_token_in_the_environment_is_refused() {
    let mut cli = logged_in().await;
    cli.token = Some(evenkeel_kit::Secret::new("good"));
    let before = cli.fake_server.requests();
    let failure = cli.bare("evenkeel logout", "").await.expect_err("which token is meant?");
    assert!(render_failure(&failure).starts_with("EVENKEEL_TOKEN is set"), "{failure}");
    assert_eq!(cli.fake_server.requests(), before, "nothing was revoked");
    let saved = std::fs::read_to_string(&cli.contexts).expect("the contexts");
    assert!(saved.contains("next"), "the login stays: {saved}");
}

#[tokio::test]
async fn a_token_is_removed_also_if_the_server_refuses() {
    let cli = logged_in().await;
    cli.fake_server
        .answer_with("POST logout", 503, json!({"code": "Unavailable", "message": "busy"}))
        .answer_with(&format!("{REALM}/logout"), 400, json!({"error": "invalid_grant"}));
    let (text, _) = cli.bare("evenkeel logout --retry-for 0s", "").await.expect("logged out");
    assert!(text.contains("note: the login was not ended at the server: invalid_grant"), "{text}");
    assert!(text.contains("note: the token was not revoked at the server: "), "{text}");
    let saved = std::fs::read_to_string(&cli.contexts).expect("the contexts");
    assert!(!saved.contains("good") && !saved.contains("next"), "{saved}");
}
