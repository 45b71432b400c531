//! Logins of the command line at Keycloak, with the realm in `deploy/keycloak` and the settings of
//! docs/identity-providers.md. The users fill in Keycloak's own pages.
//!
//! | variable | meaning |
//! | --- | --- |
//! | `EVENKEEL_KEYCLOAK` | must be `all`, otherwise the test is skipped |

mod server;

use std::fs;

use evenkeel_cli::Failure;
use evenkeel_tests::architecture::tree;
use evenkeel_tests::history::Replicas;
use serde_json::{Value, json};

use self::server::KeycloakServer;
use super::browser::{Answer, USER_PASSWORD};
use super::{UserCli, check_logout, check_renewal, check_user};

const PAGE: &str = "docs/identity-providers.md";

/// Issuer in the settings of the page.
const PAGE_ISSUER: &str = "https://login.example/realms/evenkeel";

const REALM_FILE: &str = "deploy/keycloak/evenkeel-realm.json";

const REALM: &str = "evenkeel";

/// Its members have the role `operator@default`.
const OPERATORS: &str = "fleet-operators";

/// Another program of the organisation that uses the same realm.
const OTHER_CLIENT: &str = "wiki";

/// The settings of the page, for this issuer.
fn page_settings(issuer: &str) -> String {
    let page = fs::read_to_string(tree::root().join(PAGE)).expect("the page");
    let blocks = page.split("```toml\n").skip(1);
    let mut blocks = blocks.filter_map(|block| Some(block.split_once("```")?.0));
    let settings = blocks.find(|settings| settings.contains(PAGE_ISSUER));
    settings.expect("an example for Keycloak").replace(PAGE_ISSUER, issuer)
}

/// The realm for other installations of Keycloak.
fn shipped_realm() -> Value {
    let text = fs::read_to_string(tree::root().join(REALM_FILE)).expect("the realm");
    serde_json::from_str(&text).expect("JSON")
}

#[test]
fn the_shipped_realm_has_the_names_of_the_page() {
    let (realm, settings) = (shipped_realm(), page_settings(PAGE_ISSUER));
    let client = &realm["clients"][0];
    let audience = &client["protocolMappers"][0]["config"]["included.custom.audience"];
    let claim = &client["protocolMappers"][1]["config"]["claim.name"];
    let groups = realm["groups"].as_array().expect("groups").iter().map(|group| &group["path"]);
    let names = [("client_id", &client["clientId"]), ("audience", audience), ("claim", claim)];
    for (key, name) in names.into_iter().chain(groups.map(|path| ("value", path))) {
        let line = format!("{key} = {name}");
        assert!(settings.lines().any(|other| other.starts_with(&line)), "{line}\n{settings}");
    }
    assert!(PAGE_ISSUER.ends_with(&format!("/realms/{REALM}")) && realm["realm"] == REALM);
}

#[tokio::test(flavor = "multi_thread")]
async fn users_of_keycloak_log_in_with_the_roles_of_their_groups() {
    let Some(keycloak) = KeycloakServer::start_if_all().await else {
        return;
    };
    keycloak.create_realm(&shipped_realm()).await;
    let alice = keycloak.create_user(REALM, "alice", &[OPERATORS]).await;
    keycloak.create_user(REALM, "guest", &[]).await;
    let replicas = Replicas::start(1, &page_settings(&keycloak.issuer(REALM))).await;
    let server = format!("http://{}", replicas.rest_addresses()[0]);
    let cli = UserCli { home: tempfile::tempdir().expect("a folder"), server };

    check_browser_login(&cli, &keycloak, &alice).await;
    check_device_login(&cli, &keycloak, &alice).await;
    check_group_change(&cli, &keycloak, &alice).await;
    check_other_audience(&cli, &keycloak).await;

    let refused = cli.log_in("--issuer staff --web", "guest", Answer::Allow).await;
    let refused = refused.expect_err("no group").to_string();
    assert!(refused.contains("belongs to no project"), "{refused}");
    replicas.stop().await;
}

/// Logs in; the login must succeed.
async fn log_in(cli: &UserCli, options: &str) {
    let output = cli.log_in(options, "alice", Answer::Allow).await;
    let output = output.unwrap_or_else(|failure| panic!("{failure}: {:?}", failure.hint()));
    assert!(output.starts_with("logged in to "), "{output}");
}

async fn check_browser_login(cli: &UserCli, keycloak: &KeycloakServer, subject: &str) {
    log_in(cli, "--issuer staff --web").await;
    check_user(cli, &keycloak.issuer(REALM), subject, &["operator@default"]).await;
    check_renewal(cli).await;
    check_logout(cli).await;
}

/// The client requires PKCE, also for device codes.
async fn check_device_login(cli: &UserCli, keycloak: &KeycloakServer, subject: &str) {
    let denied = cli.log_in("--issuer staff --device", "alice", Answer::Deny).await;
    let denied = denied.expect_err("the user denied it").to_string();
    assert!(denied.contains("access_denied"), "{denied}");

    log_in(cli, "--issuer staff --device").await;
    check_user(cli, &keycloak.issuer(REALM), subject, &["operator@default"]).await;
    check_renewal(cli).await;
    check_logout(cli).await;
}

/// A user who leaves a group loses its role with the next token, and gets it back with a later one.
async fn check_group_change(cli: &UserCli, keycloak: &KeycloakServer, user: &str) {
    let issuer = keycloak.issuer(REALM);
    log_in(cli, "--issuer staff --web").await;
    check_user(cli, &issuer, user, &["operator@default"]).await;

    keycloak.remove_from_group(REALM, user, OPERATORS).await;
    cli.replace_token("expired");
    check_user(cli, &issuer, user, &[]).await;
    let refused = cli.log_in("--issuer staff --web", "alice", Answer::Allow).await;
    let refused = refused.expect_err("no group").to_string();
    assert!(refused.contains("belongs to no project"), "{refused}");

    keycloak.add_to_group(REALM, user, OPERATORS).await;
    cli.replace_token("expired");
    check_user(cli, &issuer, user, &["operator@default"]).await;
    check_logout(cli).await;
}

/// Tokens that the realm issues for another program are refused by the command line and the server.
async fn check_other_audience(cli: &UserCli, keycloak: &KeycloakServer) {
    let mut client = shipped_realm()["clients"][0].clone();
    client["clientId"] = json!(OTHER_CLIENT);
    client["directAccessGrantsEnabled"] = json!(true);
    // Only the mapper of the groups, so that the audience is the only difference.
    client["protocolMappers"].as_array_mut().expect("mappers").remove(0);
    keycloak.create_client(REALM, &client).await;

    let options = format!("--issuer staff --client-id {OTHER_CLIENT} --web");
    let refused = cli.log_in(&options, "alice", Answer::Allow).await;
    let refused = refused.expect_err("another audience").to_string();
    assert!(refused.contains("sent no token that the server accepts"), "{refused}");

    let tokens = keycloak.request_tokens(REALM, OTHER_CLIENT, ("alice", USER_PASSWORD)).await;
    let token = tokens["access_token"].as_str().expect("a token");
    let refused = cli.run(&format!("evenkeel login --token {token}"), &mut std::io::sink()).await;
    let refused = refused.expect_err("another audience");
    assert!(matches!(refused, Failure::Refused { status: 401, .. }), "{refused:?}");
    assert!(refused.to_string().contains("for another audience"), "{refused}");
}
