//! Contexts, logins with a token, completion.

use serde_json::json;

use crate::TestCli;

#[tokio::test]
async fn a_login_is_saved_for_its_server() {
    let mut cli = TestCli::new().await;
    cli.token = None;
    cli.fake_server
        .answer("GET projects", json!([]))
        .answer("GET compute/hosts", json!({"hosts": [], "totalElements": 0, "hasNext": false}));
    let line = format!("evenkeel login --server {} --project default", cli.server);
    let (text, _) = cli.bare(&line, "good\n").await.expect("logged in");
    assert_eq!(text, format!("logged in to {} as context default\n", cli.server));

    let (text, _) = cli.bare("evenkeel host list", "").await.expect("with the token");
    assert_eq!(text, "no hosts\n");
    let (text, _) = cli.bare("evenkeel context show -o json", "").await.expect("the context");
    assert!(!text.contains("good"), "the token is never shown: {text}");
}

#[tokio::test]
async fn a_variable_that_hides_the_saved_token_gives_a_note() {
    let cli = TestCli::new().await;
    cli.fake_server.answer("GET projects", json!([]));
    let line = format!("evenkeel login --token good --server {}", cli.server);
    let (text, _) = cli.bare(&line, "").await.expect("logged in");
    let note = "note: commands use the token of the variable EVENKEEL_TOKEN, not the saved one";
    assert!(text.starts_with(note), "{text}");
    let (text, _) = cli.bare("evenkeel context show", "").await.expect("the context");
    assert!(text.starts_with(note), "{text}");
    let (text, _) = cli.bare("evenkeel context show -o json", "").await.expect("the context");
    assert!(text.starts_with('{'), "{text}");
}

#[tokio::test]
async fn a_token_is_sent_to_no_other_server() {
    let mut cli = TestCli::new().await;
    cli.token = None;
    cli.fake_server.answer("GET projects", json!([]));
    let login = format!("evenkeel login --token good --server {}", cli.server);
    cli.bare(&login, "").await.expect("logged in");

    let other = crate::fake_server::FakeServer::default();
    let address = other.start().await;
    let line = format!("evenkeel host list --server {address}");
    let failure = cli.bare(&line, "").await.expect_err("no token for that server");
    assert!(matches!(failure, evenkeel_cli::Failure::Refused { status: 401, .. }));
}

#[tokio::test]
async fn a_token_that_the_server_rejects_is_not_saved() {
    let mut cli = TestCli::new().await;
    cli.token = None;
    let line = format!("evenkeel login --token bad --server {}", cli.server);
    let failure = cli.bare(&line, "").await.expect_err("refused");
    assert_eq!(failure.to_string(), "the token has expired");
    let (text, _) = cli.bare("evenkeel context list", "").await.expect("a list");
    assert_eq!(text, "no contexts; `evenkeel context add NAME --server URL` creates one\n");
}

#[tokio::test]
async fn a_token_for_an_unreachable_server_is_saved_unverified() {
    let mut cli = TestCli::new().await;
    cli.token = None;
    let line = "evenkeel login --token good --server http://127.0.0.1:1 --retry-for 0s";
    let (text, _) = cli.bare(line, "").await.expect("kept");
    insta::assert_snapshot!(text, @r"
    note: http://127.0.0.1:1 is unreachable, so the token was not verified: error sending request: client error (Connect): tcp connect error: Connection refused (os error 111)
    saved the unverified token for http://127.0.0.1:1 as context default
    ");
    let failure = cli.bare("evenkeel login", "two words").await.expect_err("no token");
    assert_eq!(failure.to_string(), "this is not a token: a token has no spaces");
    let failure = cli.bare("evenkeel login", "\n").await.expect_err("no token");
    assert_eq!(failure.to_string(), "the token is empty");
}

#[tokio::test]
async fn contexts_are_added_used_and_removed() {
    let mut cli = TestCli::new().await;
    cli.token = None;
    let mut story = String::new();
    for line in [
        "evenkeel context add lab --server http://127.0.0.1:8080",
        "evenkeel context add field --server https://updates.example.org --project west",
        "evenkeel context use field",
        "evenkeel context list",
        "evenkeel context show",
        "evenkeel context remove lab",
        "evenkeel context list -q",
    ] {
        let (text, _) = cli.bare(line, "").await.expect("it works");
        story.push_str(&text);
    }
    insta::assert_snapshot!(story);
    let failure = cli.bare("evenkeel host list --context lab", "").await.expect_err("removed");
    assert_eq!(
        crate::render_failure(&failure),
        "there is no context `lab`\nhint: known contexts: field"
    );
}

#[tokio::test]
async fn shells_complete_the_nouns() {
    let cli = TestCli::new().await;
    for shell in ["bash", "zsh", "fish"] {
        let (text, _) =
            cli.bare(&format!("evenkeel completion {shell}"), "").await.expect("a script");
        assert!(text.contains("join-token"), "{shell}");
    }
    let (text, _) = cli.bare("evenkeel version", "").await.expect("a version");
    assert!(text.starts_with("evenkeel 0."), "{text}");
}

#[tokio::test]
async fn a_login_reuses_the_context_of_its_server() {
    let mut cli = TestCli::new().await;
    cli.token = None;
    let server = "http://127.0.0.1:1";
    let login = format!("evenkeel login --token good --server {server} --retry-for 0s");
    let mut story = String::new();
    for line in [
        "evenkeel context add default --server http://127.0.0.1:2 --project east",
        &format!("evenkeel context add lab --server {server} --project west"),
        &login,
        &format!("{login} --context new"),
        "evenkeel context list",
    ] {
        let (text, _) = cli.bare(line, "").await.expect("it works");
        story.push_str(&text);
    }
    insta::assert_snapshot!(story, @r"
    context default added
    context lab added
    note: http://127.0.0.1:1 is unreachable, so the token was not verified: error sending request: client error (Connect): tcp connect error: Connection refused (os error 111)
    saved the unverified token for http://127.0.0.1:1 as context lab
    note: http://127.0.0.1:1 is unreachable, so the token was not verified: error sending request: client error (Connect): tcp connect error: Connection refused (os error 111)
    saved the unverified token for http://127.0.0.1:1 as context new
    CURRENT  NAME     SERVER              PROJECT  TOKEN
    *        default  http://127.0.0.1:2  east     no
             lab      http://127.0.0.1:1  west     yes
             new      http://127.0.0.1:1  west     yes
    ");
}

#[tokio::test]
async fn a_login_picks_an_unused_context_name() {
    let cli = TestCli::new().await;
    let server = "http://127.0.0.1:1";
    for line in [
        "evenkeel context add default --server http://127.0.0.1:2 --project east",
        &format!("evenkeel context add {server} --server http://127.0.0.1:3 --project west"),
        &format!("evenkeel login --token good --server {server} --retry-for 0s"),
    ] {
        cli.bare(line, "").await.expect("it works");
    }
    let (names, _) = cli.bare("evenkeel context list -q", "").await.expect("a list");
    assert_eq!(names, format!("default\n{server}\n{server}#2\n"));
}

#[tokio::test]
async fn a_context_stores_the_absolute_path_of_its_ca() {
    let cli = TestCli::new().await;
    cli.bare("evenkeel context add lab --server https://127.0.0.1:1 --ca ca.pem", "")
        .await
        .expect("added");
    let (text, _) = cli.bare("evenkeel context show -o json", "").await.expect("the context");
    let context: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let absolute = std::path::absolute("ca.pem").expect("a path");
    assert_eq!(context["ca"].as_str(), absolute.to_str());
    let (text, _) = cli.bare("evenkeel context show -q", "").await.expect("the context");
    assert_eq!(text, "lab\n");
}

#[tokio::test]
async fn the_version_is_printed_in_every_format() {
    let cli = TestCli::new().await;
    let version = env!("CARGO_PKG_VERSION");
    for (options, expected) in [
        ("", format!("evenkeel {version}\n")),
        (" -q", format!("{version}\n")),
        (" -o json", format!("{{\n  \"version\": \"{version}\"\n}}\n")),
        (" -o yaml", format!("version: \"{version}\"\n")),
    ] {
        let (text, _) = cli.bare(&format!("evenkeel version{options}"), "").await.expect("printed");
        assert_eq!(text, expected, "{options}");
    }
}
