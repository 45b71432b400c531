//! Logins at an identity provider: in the browser, and with a code on another device.

use std::os::unix::fs::PermissionsExt as _;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use evenkeel_cli::Failure;
use evenkeel_cli::contexts::Contexts;
use evenkeel_kit::Secret;
use serde_json::{Value, json};

use crate::fake_provider::{FakeProvider, jwt};
use crate::{TestCli, noon, render_failure};

/// A command line on a desktop, whose server lists the provider.
async fn desktop() -> (TestCli, FakeProvider) {
    let mut cli = TestCli::new().await;
    cli.token = None;
    cli.interactive = true;
    cli.has_display = true;
    let provider = FakeProvider::start().await;
    cli.fake_server
        .answer("GET login", json!({"password": false, "identityProviders": [provider.listed()]}))
        .answer("GET projects", json!([]))
        .answer("GET compute/hosts", json!({"hosts": [], "totalElements": 0, "hasNext": false}));
    (cli, provider)
}

fn login_line(cli: &TestCli, options: &str) -> String {
    format!("evenkeel login --server {} {options}", cli.server).trim_end().to_owned()
}

/// Logs in with these options, which must fail. Returns the error and its hint.
async fn fail(cli: &TestCli, provider: &FakeProvider, options: &str) -> String {
    let failed = provider.log_in(cli, &login_line(cli, options)).await;
    let failure: Failure = failed.expect_err("no login");
    assert!(!cli.contexts.exists(), "a failed login is not saved");
    render_failure(&failure).replace(&provider.issuer, "ISSUER").replace(&cli.server, "SERVER")
}

#[tokio::test]
async fn a_user_logs_in_with_the_browser() {
    let (cli, provider) = desktop().await;
    let (text, _) = provider.log_in(&cli, &login_line(&cli, "")).await.expect("logged in");
    let done = format!("logged in to {} as context default\n", cli.server);
    assert!(text.starts_with("continue in the browser; ") && text.ends_with(&done), "{text}");
    for (name, value) in
        [("response_type", "code"), ("scope", "openid groups"), ("client_id", "cli")]
    {
        assert_eq!(provider.opened(name), value, "{name}");
    }
    let request = "/token grant_type=authorization_code client_id=cli code=the-code";
    assert_eq!(provider.requests(), request);

    let mode = std::fs::metadata(&cli.contexts).expect("the contexts").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let (text, _) = cli.bare("evenkeel host list", "").await.expect("a list");
    assert_eq!(text, "no hosts\n");
    let (context, _) = cli.bare("evenkeel context show", "").await.expect("the context");
    assert!(context.contains(&format!("alice at {}\n", provider.issuer)), "{context}");
    let (json, _) = cli.bare("evenkeel context show -o json", "").await.expect("the context");
    assert!(!json.contains("refresh-1"), "no token is ever shown: {json}");
}

#[tokio::test]
async fn an_id_token_is_sent_if_only_that_is_for_the_server() {
    let (cli, provider) = desktop().await;
    provider.change_id_claims(json!({"aud": ["cli", "other"], "azp": "cli", "groups": "it"}));
    let mut listed = provider.listed();
    listed["audience"] = "other".into();
    let other = TestCli { fake_server: crate::FakeServer::default(), ..cli };
    let server = other.fake_server.start().await;
    let other = TestCli { server, ..other };
    other
        .fake_server
        .answer("GET login", json!({"password": true, "identityProviders": [listed]}))
        .answer("GET projects", json!([]));
    provider.log_in(&other, &login_line(&other, "--web")).await.expect("logged in");
    let token = saved_token(&other);
    let claims = token.split('.').nth(1).and_then(|claims| URL_SAFE_NO_PAD.decode(claims).ok());
    let claims: Value = serde_json::from_slice(&claims.expect("claims")).expect("JSON");
    assert_eq!(claims["azp"], "cli", "the ID token: {claims}");
}

#[tokio::test]
async fn failed_logins_with_the_browser_are_explained() {
    let (cli, provider) = desktop().await;
    let mut text = String::new();
    for change in [
        [("code", None), ("error", Some("access_denied"))],
        [("iss", Some("https://other.example")), ("x", None)],
        [("iss", None), ("x", None)],
        [("code", Some("another-code")), ("x", None)],
    ] {
        provider.change_callback(&change);
        text.push_str(&fail(&cli, &provider, "").await);
        text.push('\n');
    }
    provider.change_callback(&[]);
    for claims in [json!({"nonce": "other"}), json!({"iss": "https://other.example"})] {
        provider.change_id_claims(claims);
        text.push_str(&fail(&cli, &provider, "").await);
        text.push('\n');
    }
    insta::assert_snapshot!(text, @r#"
    ISSUER refused the login: access_denied
    hint: the login was denied at the provider: repeat it, and allow the access
    the response of ISSUER is not usable: another provider sent it: "https://other.example"
    hint: check the address of the identity provider
    the response of ISSUER is not usable: it does not name its issuer (iss)
    hint: check the address of the identity provider
    ISSUER refused the login: no such grant (invalid_grant)
    hint: the login is no longer valid: log in again
    the response of ISSUER is not usable: its ID token belongs to another login (its nonce differs)
    hint: check the address of the identity provider
    the response of ISSUER is not usable: its ID token names another issuer: "https://other.example"
    hint: check the address of the identity provider
    "#);
}

#[tokio::test]
async fn a_login_that_is_not_finished_ends() {
    let (cli, provider) = desktop().await;
    // The browser does not open, so the user does not log in.
    let line = login_line(&cli, "--no-browser --timeout 1ms");
    let failure = provider.log_in(&cli, &line).await.expect_err("the user does not log in");
    let text = render_failure(&failure).replace(&provider.issuer, "ISSUER");
    assert!(text.starts_with("the login at ISSUER was not finished within 1ms\n"), "{text}");
    provider.fail_tokens(&["authorization_pending"; 20]);
    provider.set_device_ttl(0);
    let text = fail(&cli, &provider, "--device").await;
    assert!(text.starts_with("the login at ISSUER was not finished within 0s\n"), "{text}");
}

#[tokio::test]
async fn a_user_logs_in_on_another_device() {
    let (mut cli, provider) = desktop().await;
    cli.has_display = false;
    provider.fail_tokens(&["authorization_pending"]);
    let (text, _) = provider.log_in(&cli, &login_line(&cli, "")).await.expect("logged in");
    let text = text.replace(&provider.issuer, "ISSUER").replace(&cli.server, "SERVER");
    insta::assert_snapshot!(text, @r"
    open ISSUER/enter in a browser and enter the code ABCD-EFGH
    or open this address, and compare the code:
      ISSUER/enter?code=ABCD-EFGH
    logged in to SERVER as context default
    ");
    let poll = "/token grant_type=urn:ietf:params:oauth:grant-type:device_code client_id=cli \
                device_code=secret-code";
    let expected = format!("/device client_id=cli scope=openid groups\n{poll}\n{poll}");
    assert_eq!(provider.requests(), expected);
}

#[tokio::test]
async fn a_login_on_another_device_uses_pkce_if_the_provider_requires_it() {
    let (cli, provider) = desktop().await;
    provider.require_pkce();
    provider.log_in(&cli, &login_line(&cli, "--device")).await.expect("logged in");
    let request = "/device client_id=cli scope=openid groups";
    let poll = "/token grant_type=urn:ietf:params:oauth:grant-type:device_code client_id=cli \
                device_code=secret-code";
    let expected = format!("{request}\n{request} code_challenge_method=S256\n{poll}");
    assert_eq!(provider.requests(), expected);
}

#[tokio::test]
async fn failed_logins_on_another_device_are_explained() {
    let (cli, provider) = desktop().await;
    let mut text = String::new();
    for error in ["access_denied", "expired_token", "invalid_client"] {
        provider.fail_tokens(&["authorization_pending", error]);
        text.push_str(&fail(&cli, &provider, "--device").await);
        text.push('\n');
    }
    provider.change_metadata(json!({"device_authorization_endpoint": null}));
    text.push_str(&fail(&cli, &provider, "--device").await);
    text.push('\n');
    provider.change_metadata(json!({"code_challenge_methods_supported": ["plain"]}));
    text.push_str(&fail(&cli, &provider, "--web").await);
    insta::assert_snapshot!(text, @r"
    ISSUER refused the login: access_denied
    hint: the login was denied at the provider: repeat it, and allow the access
    the code for the login at ISSUER has expired
    hint: repeat the login, and enter the new code
    ISSUER refused the login: invalid_client
    hint: the provider does not know the client ID for this kind of login: check --client-id, or ask its administrator
    ISSUER does not support logins on another device
    hint: use --web on a machine with a browser
    ISSUER does not support logins in a browser with PKCE (S256)
    hint: use --device, if the provider supports it
    ");
}

#[tokio::test]
async fn several_logins_are_listed() {
    let mut cli = TestCli::new().await;
    cli.token = None;
    cli.interactive = true;
    let provider = FakeProvider::start().await;
    let methods = |password: bool, providers: Value| json!({"password": password, "identityProviders": providers});
    let mut second = provider.listed();
    second["name"] = "second one".into();
    cli.fake_server
        .answer("GET login", methods(true, json!([provider.listed()])))
        .answer("GET login", methods(false, json!([provider.listed(), second])))
        .answer("GET login", methods(false, json!([provider.listed()])))
        .answer("GET login", methods(false, json!([])));
    let mut text = String::new();
    for options in ["", "--web", "--issuer other", "--device"] {
        text.push_str(&fail(&cli, &provider, options).await);
        text.push('\n');
    }
    insta::assert_snapshot!(text, @r#"
    the server accepts several logins: choose one
    hint: logins: --issuer staff (ISSUER), --username NAME (with a password)
    the server accepts several logins: choose one
    hint: logins: --issuer staff (ISSUER), --issuer "second one" (ISSUER)
    the server does not list the identity provider other
    hint: logins: --issuer staff (ISSUER); for another provider, give --client-id as well
    the server lists no identity provider
    hint: give its URL and the client ID: --issuer URL --client-id ID
    "#);
}

#[tokio::test]
async fn the_only_login_of_a_server_is_used() {
    let mut cli = TestCli::new().await;
    cli.token = None;
    cli.interactive = true;
    let tokens = json!({"access_token": "good", "refresh_token": "next"});
    cli.fake_server
        .answer("GET login", json!({"password": true, "identityProviders": []}))
        .answer_with("GET login", 404, json!({}))
        .answer("POST /realms/master/protocol/openid-connect/token", tokens)
        .answer("GET projects", json!([]));
    let line = login_line(&cli, "");
    let (text, _) = cli.bare(&line, "alice\nsecret\n").await.expect("logged in");
    assert!(text.starts_with("user name: password for alice: \nlogged in to "), "{text}");
    // A terminal has no end of the input, so the token ends with its line.
    let (text, _) = cli.bare(&line, "good\nnext line\n").await.expect("logged in");
    assert!(text.starts_with("the server lists no logins; paste a token: \nlogged in"), "{text}");
    let failure = cli.bare(&line, "go\u{3}\n").await.expect_err("nothing was entered");
    assert_eq!(failure.to_string(), "nothing was done");
    // A pipe contains a token.
    cli.interactive = false;
    let (text, _) = cli.bare(&line, "good\n").await.expect("logged in");
    assert!(text.starts_with("logged in to "), "{text}");
}

#[tokio::test]
async fn a_provider_that_the_server_does_not_list_needs_a_client() {
    let mut cli = TestCli::new().await;
    cli.token = None;
    cli.has_display = true;
    let provider = FakeProvider::start().await;
    cli.fake_server.answer("GET projects", json!([]));
    let options = format!("--issuer {} --client-id cli --scope profile", provider.issuer);
    provider.log_in(&cli, &login_line(&cli, &options)).await.expect("logged in");
    assert_eq!(provider.opened("scope"), "openid profile");
}

/// The token in the file of the contexts.
fn saved_token(cli: &TestCli) -> String {
    let contexts = Contexts::load(&cli.contexts).expect("the contexts");
    let token = contexts.contexts[0].token.as_ref().expect("a token");
    token.reveal().to_owned()
}

/// Replaces the token in the file of the contexts.
fn replace_token(cli: &TestCli, token: &str) {
    let mut contexts = Contexts::load(&cli.contexts).expect("the contexts");
    contexts.contexts[0].token = Some(Secret::new(token));
    contexts.save(&cli.contexts).expect("saved");
}

#[tokio::test]
async fn a_token_is_renewed_before_and_after_its_end() {
    let (cli, provider) = desktop().await;
    provider.log_in(&cli, &login_line(&cli, "")).await.expect("logged in");
    let expiry = |seconds: i64| json!({"exp": noon().timestamp() + seconds});
    let mut renewals = 0;
    for (token, is_renewed) in [
        ("refused".to_owned(), true),
        (jwt(&expiry(20)), true),
        (jwt(&expiry(120)), false),
        (jwt(&json!({"exp": "never"})), false),
    ] {
        replace_token(&cli, &token);
        let (text, _) = cli.bare("evenkeel host list", "").await.expect("a list");
        assert_eq!(text, "no hosts\n");
        renewals += usize::from(is_renewed);
        let requests = provider.requests();
        assert_eq!(requests.matches("grant_type=refresh_token").count(), renewals, "{token}");
        let saved = std::fs::read_to_string(&cli.contexts).expect("the contexts");
        assert!(saved.contains(&format!("refresh-{}", renewals + 1)), "{saved}");
        assert_eq!(saved_token(&cli) == token, !is_renewed, "{token}");
    }
}

#[tokio::test]
async fn commands_at_the_same_time_renew_a_token_once() {
    let (cli, provider) = desktop().await;
    provider.log_in(&cli, &login_line(&cli, "")).await.expect("logged in");
    replace_token(&cli, "refused");
    // The provider accepts each refresh token once.
    let list = || cli.bare("evenkeel host list", "");
    let (one, other, third) = tokio::join!(list(), list(), list());
    for result in [one, other, third] {
        assert_eq!(result.expect("a list").0, "no hosts\n");
    }
    let requests = provider.requests();
    assert_eq!(requests.matches("grant_type=refresh_token").count(), 1, "{requests}");
}

#[tokio::test]
async fn a_login_that_the_provider_ended_is_not_renewed() {
    let (cli, provider) = desktop().await;
    provider.log_in(&cli, &login_line(&cli, "")).await.expect("logged in");
    replace_token(&cli, "refused");
    provider.fail_tokens(&["invalid_grant"]);
    let failure = cli.bare("evenkeel host list", "").await.expect_err("the login is over");
    assert_eq!(failure.to_string(), "the token has expired");
}

#[tokio::test]
async fn a_logout_revokes_the_login_at_the_provider() {
    let (cli, provider) = desktop().await;
    cli.fake_server.answer("POST logout", json!({"revoked": false}));
    for (metadata, note) in [
        (json!({}), ""),
        (
            json!({"revocation_endpoint": null}),
            " offers no revocation, so its login was only removed",
        ),
    ] {
        provider.log_in(&cli, &login_line(&cli, "")).await.expect("logged in");
        provider.change_metadata(metadata);
        let (text, _) = cli.bare("evenkeel logout", "").await.expect("logged out");
        assert!(text.contains(note) && text.lines().count() <= 2, "{text}");
        assert_eq!(text.contains("note: "), !note.is_empty(), "{text}");
        let saved = std::fs::read_to_string(&cli.contexts).expect("the contexts");
        assert!(!saved.contains("refresh-"), "{saved}");
    }
    let revoked = "/revoke client_id=cli token=refresh-1 token_type_hint=refresh_token";
    let requests = provider.requests();
    assert_eq!(requests.lines().filter(|line| *line == revoked).count(), 1, "{requests}");
}
