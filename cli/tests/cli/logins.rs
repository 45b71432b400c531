//! Logins by name, and tokens that are over.

use serde_json::{Value, json};

use crate::{Desk, told};

const REALM: &str = "POST /realms/master/protocol/openid-connect/token";

fn tokens(access: &str, refresh: &str) -> Value {
    json!({"access_token": access, "refresh_token": refresh, "expires_in": 300})
}

async fn desk() -> Desk {
    let mut desk = Desk::new().await;
    desk.token = None;
    desk.double.answer("GET projects", json!([])).answer(
        "GET compute/hosts",
        json!({"hosts": [], "totalElements": 0, "hasNext": false}),
    );
    desk
}

#[tokio::test]
async fn somebody_logs_in_with_a_name_and_a_password() {
    let desk = desk().await;
    desk.double.answer(REALM, tokens("good", "next"));
    let login = format!("evenkeel login --username alice --server {}", desk.server);
    let (text, _) = desk.bare(&login, "s3 cr&t\n").await.expect("logged in");
    assert_eq!(
        text,
        format!("logged in to {} as context default\n", desk.server)
    );
    let (text, _) = desk.bare("evenkeel host list", "").await.expect("a list");
    assert_eq!(text, "no hosts\n");
    insta::assert_snapshot!(desk.double.asked(), @r"
    POST /realms/master/protocol/openid-connect/token client_id=system-client&grant_type=password&username=alice&password=s3+cr%26t
    GET projects
    GET compute/hosts
    ");
    let (shown, _) = desk
        .bare("evenkeel context show", "")
        .await
        .expect("the context");
    let user = format!("user     alice at {}/realms/master\n", desk.server);
    assert!(shown.contains(&user), "{shown}");
    let (json, _) = desk
        .bare("evenkeel context show -o json", "")
        .await
        .expect("the context");
    assert!(!json.contains("next"), "no token is ever shown: {json}");
}

#[tokio::test]
async fn a_token_that_is_over_is_renewed_and_kept() {
    let desk = desk().await;
    desk.double
        .answer(REALM, tokens("good", "first"))
        .answer(REALM, tokens("good", "second"));
    let login = format!("evenkeel login --username alice --server {}", desk.server);
    desk.bare(&login, "secret").await.expect("logged in");
    let file = desk.home.path().join("contexts.yaml");
    let text = std::fs::read_to_string(&file).expect("the contexts");
    std::fs::write(&file, text.replace("token: good", "token: over")).expect("written");

    let (text, _) = desk.bare("evenkeel host list", "").await.expect("a list");
    assert_eq!(text, "no hosts\n");
    let asked = desk.double.asked();
    let renewal =
        format!("{REALM} client_id=system-client&grant_type=refresh_token&refresh_token=first");
    assert!(asked.lines().any(|line| line == renewal), "{asked}");
    let kept = std::fs::read_to_string(&file).expect("the contexts");
    assert!(kept.contains("second") && !kept.contains("over"), "{kept}");
    assert!(!kept.contains("first"), "{kept}");
}

#[tokio::test]
async fn a_token_that_cannot_be_kept_is_good_for_its_command() {
    let mut desk = desk().await;
    desk.double
        .answer(REALM, tokens("good", "first"))
        .answer(REALM, tokens("good", "second"));
    let login = format!("evenkeel login --username alice --server {}", desk.server);
    desk.bare(&login, "secret").await.expect("logged in");
    let text = std::fs::read_to_string(&desk.contexts).expect("the contexts");
    // No name beside it can be longer, so nothing can be written beside it, not even by root.
    desk.contexts = desk.home.path().join("c".repeat(255));
    let over = text.replace("token: good", "token: over");
    std::fs::write(&desk.contexts, &over).expect("written");

    let (text, _) = desk.bare("evenkeel host list", "").await.expect("a list");
    assert!(
        text.starts_with("note: the new token is not kept: cannot use "),
        "{text}"
    );
    assert!(text.ends_with("\nno hosts\n"), "{text}");
    let kept = std::fs::read_to_string(&desk.contexts).expect("the contexts");
    assert_eq!(kept, over);
}

#[tokio::test]
async fn a_realm_elsewhere_is_asked_without_the_authority_of_the_server() {
    let desk = desk().await;
    desk.double.answer(REALM, tokens("good", "next"));
    let line = format!(
        "evenkeel login --username alice --server https://127.0.0.1:1 --ca /does/not/exist.pem \
         --realm {}/realms/master",
        desk.server
    );
    let failure = desk.bare(&line, "secret").await;
    let failure = failure.expect_err("no authority for the server");
    assert!(
        matches!(failure, evenkeel_cli::Failure::File { .. }),
        "{failure}"
    );
    let asked = desk.double.asked();
    assert!(asked.starts_with(REALM), "the realm was asked: {asked}");
}

#[tokio::test]
async fn a_login_that_is_over_asks_for_another_one() {
    let desk = desk().await;
    let gone = json!({"error": "invalid_grant", "error_description": "the session is over"});
    desk.double
        .answer(REALM, tokens("good", "first"))
        .answer_with(REALM, 400, gone);
    let login = format!("evenkeel login --username alice --server {}", desk.server);
    desk.bare(&login, "secret").await.expect("logged in");
    let file = desk.home.path().join("contexts.yaml");
    let text = std::fs::read_to_string(&file).expect("the contexts");
    std::fs::write(&file, text.replace("token: good", "token: over")).expect("written");
    let failure = desk.bare("evenkeel host list", "").await;
    let told = told(&failure.expect_err("the login is over"));
    assert!(
        told.starts_with(
            "the token has expired\nhint: log in again: `evenkeel login --username NAME`"
        ),
        "{told}"
    );
}

#[tokio::test]
async fn what_keeps_somebody_from_logging_in_is_said() {
    let desk = desk().await;
    let login = format!("evenkeel login --username alice --server {}", desk.server);
    let failure = desk.bare(&login, "secret").await.expect_err("no users");
    let text = told(&failure);
    assert!(text.starts_with("nobody can log in by name at "), "{text}");

    let wrong =
        json!({"error": "invalid_grant", "error_description": "the name or the password is wrong"});
    desk.double
        .answer_with(REALM, 401, wrong)
        .answer_with(REALM, 429, json!({"error": "slow_down"}))
        .answer_with(REALM, 500, json!({}));
    let mut text = String::new();
    for _ in 0..2 {
        let failure = desk.bare(&login, "secret").await.expect_err("refused");
        text.push_str(&told(&failure));
        text.push('\n');
    }
    insta::assert_snapshot!(text, @r"
    the name or the password is wrong
    hint: look at the name and the password; after several attempts that failed the server waits longer each time
    slow_down
    hint: try again in a moment
    ");
    let failure = desk.bare(&login, "secret").await.expect_err("broken");
    assert!(
        told(&failure).contains("this is a fault of the server"),
        "{failure}"
    );
    let failure = desk.bare(&login, "\n").await.expect_err("no password");
    assert_eq!(failure.to_string(), "there is no password");
    let (names, _) = desk
        .bare("evenkeel context list -q", "")
        .await
        .expect("a list");
    assert_eq!(names, "", "nothing is kept of what failed");
}

#[tokio::test]
async fn a_password_is_typed_unseen_or_comes_from_a_file() {
    let mut desk = desk().await;
    desk.double.answer(REALM, tokens("good", "next"));
    desk.interactive = true;
    let login = format!("evenkeel login --username alice --server {}", desk.server);
    let (text, _) = desk.bare(&login, "secret\n").await.expect("logged in");
    assert!(text.starts_with("password of alice: \n"), "{text}");
    let failure = desk.bare(&login, "sec\u{3}\n").await;
    let failure = failure.expect_err("Ctrl-C");
    assert_eq!(failure.to_string(), "nothing was done");

    let file = desk.home.path().join("password");
    std::fs::write(&file, "from a file\r\nmore\n").expect("written");
    let line = format!("{login} --password-file {} --client ours", file.display());
    desk.bare(&line, "").await.expect("logged in");
    let asked = desk.double.asked();
    let sent = "client_id=ours&grant_type=password&username=alice&password=from+a+file";
    assert!(asked.contains(sent), "{asked}");
}

#[tokio::test]
async fn a_given_token_is_not_renewed() {
    let mut desk = desk().await;
    desk.double.answer(REALM, tokens("good", "next"));
    let login = format!("evenkeel login --username alice --server {}", desk.server);
    desk.bare(&login, "secret").await.expect("logged in");
    desk.token = Some(evenkeel_kit::Secret::new("over"));
    let failure = desk.bare("evenkeel host list", "").await;
    assert_eq!(
        failure.expect_err("over").to_string(),
        "the token has expired"
    );
}
