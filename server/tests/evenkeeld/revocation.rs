//! Revoked tokens are refused by every server.

use serde_json::{Value, json};

use crate::test_server::{ServerProcess, TestServer, eventually};

const TOKENS: &str = "/v1/operator-tokens";

fn put(server: &ServerProcess, path: &str, token: &str, body: &Value) -> (u16, String) {
    send(server, &format!("PUT {path}"), token, body)
}

fn send(server: &ServerProcess, what: &str, token: &str, body: &Value) -> (u16, String) {
    let body = body.to_string();
    let request = format!(
        "{what} HTTP/1.0\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    server.send("rest", &request)
}

fn status(server: &ServerProcess, token: &str) -> u16 {
    server.get("rest", "/v1/projects", Some(token)).0
}

fn wait_until_refused(servers: &[&ServerProcess], token: &str) {
    for server in servers {
        eventually("the token is refused", || status(server, token) == 401);
    }
}

fn issue(harness: &TestServer, subject: &str) -> String {
    let arguments = ["token", "operator", "--role", "admin", "--subject", subject];
    harness.start(&arguments).expect_success().trim().to_owned()
}

/// Ids of the listed tokens of a subject.
fn listed_ids(server: &ServerProcess, token: &str, subject: &str) -> Vec<String> {
    let (status, body) = server.get("rest", TOKENS, Some(token));
    assert_eq!(status, 200, "{body}");
    let tokens: Vec<Value> = serde_json::from_str(&body).unwrap();
    let of_subject = tokens.iter().filter(|token| token["subject"] == subject);
    of_subject.map(|token| token["tokenId"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn a_revoked_token_is_refused_by_all_servers() {
    let first = TestServer::new();
    let postgres = first.start_postgres().await;
    let first = first.with_env("EVENKEELD_DATABASE__URL", &postgres.url());
    let one = first.start_and_wait(&["all"]);
    let folder = |name: &str| first.data_dir().join(name).to_string_lossy().into_owned();
    let second = TestServer::new()
        .with_env("EVENKEELD_DATABASE__URL", &postgres.url())
        .with_env("EVENKEELD_AUTH__KEYS", &folder("keys"))
        .with_env("EVENKEELD_AUTH__CA", &folder("ca"));
    let other = second.start_and_wait(&["inventory"]);
    let administrator = first.operator_token();

    let leaked = issue(&first, "alice");
    for server in [&one, &other] {
        assert_eq!(status(server, &leaked), 200);
    }
    let ids = listed_ids(&other, &administrator, "alice");
    let [id] = ids.as_slice() else { panic!("{ids:?}") };
    let (answer, body) = put(&one, &format!("{TOKENS}/{id}/revoke"), &administrator, &json!({}));
    assert_eq!(answer, 200, "{body}");
    wait_until_refused(&[&one, &other], &leaked);

    let (next, bobs) = (issue(&first, "alice"), issue(&first, "bob"));
    assert_eq!(status(&other, &next), 200);
    let body = json!({"subject": "alice"});
    let (answer, body) = put(&other, &format!("{TOKENS}/revoke"), &administrator, &body);
    assert_eq!(answer, 200, "{body}");
    wait_until_refused(&[&one, &other], &next);
    assert_eq!(status(&one, &bobs), 200, "another subject");

    let create = "POST /v1/projects/default/operator-tokens";
    let body = json!({"name": "ci", "role": "viewer"});
    let (answer, body) = send(&one, create, &administrator, &body);
    assert_eq!(answer, 200, "{body}");
    let created: Value = serde_json::from_str(&body).unwrap();
    let automation = created["token"].as_str().unwrap();
    for server in [&one, &other] {
        assert_eq!(status(server, automation), 200);
    }
    let path = format!("{TOKENS}/{}/revoke", created["tokenId"].as_str().unwrap());
    let (answer, body) = put(&other, &path, &administrator, &json!({}));
    assert_eq!(answer, 200, "{body}");
    wait_until_refused(&[&one, &other], automation);

    // A server that starts knows the revoked tokens before it serves.
    other.stop();
    let other = second.start_and_wait(&["inventory"]);
    for token in [leaked.as_str(), &next, automation] {
        assert_eq!(status(&other, token), 401);
    }
    other.stop();
    one.stop();
    postgres.stop().await;
}

/// Logs in with a password. Returns the access token.
fn log_in(server: &ServerProcess, name: &str, password: &str) -> String {
    let form = format!("grant_type=password&username={name}&password={password}");
    let request = format!(
        "POST /realms/master/protocol/openid-connect/token HTTP/1.0\r\nhost: localhost\r\n\
         content-type: application/x-www-form-urlencoded\r\ncontent-length: {}\r\n\r\n{form}",
        form.len()
    );
    let (status, body) = server.send("rest", &request);
    assert_eq!(status, 200, "{body}");
    let tokens: Value = serde_json::from_str(&body).unwrap();
    tokens["access_token"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_disabled_user_is_refused_by_all_servers() {
    let first = TestServer::new();
    let postgres = first.start_postgres().await;
    let first = first
        .with_env("EVENKEELD_DATABASE__URL", &postgres.url())
        .with_env("EVENKEELD_AUTH__LOGIN__ACCESS_TOKEN_TTL", "15m");
    let one = first.start_and_wait(&["all"]);
    let folder = |name: &str| first.data_dir().join(name).to_string_lossy().into_owned();
    let second = TestServer::new()
        .with_env("EVENKEELD_DATABASE__URL", &postgres.url())
        .with_env("EVENKEELD_AUTH__KEYS", &folder("keys"))
        .with_env("EVENKEELD_AUTH__CA", &folder("ca"));
    let other = second.start_and_wait(&["inventory"]);
    let administrator = first.operator_token();
    let user = json!({
        "name": "alice", "password": "open-sesame!", "roles": ["administrator@default"],
    });
    let (answer, body) = send(&other, "POST /v1/users", &administrator, &user);
    assert_eq!(answer, 200, "{body}");

    let access = log_in(&one, "alice", "open-sesame!");
    let create = "POST /v1/projects/default/operator-tokens";
    let (answer, body) = send(&other, create, &access, &json!({"name": "ci", "role": "viewer"}));
    assert_eq!(answer, 200, "{body}");
    let created: Value = serde_json::from_str(&body).unwrap();
    let automation = created["token"].as_str().unwrap();
    for token in [access.as_str(), automation] {
        assert_eq!((status(&one, token), status(&other, token)), (200, 200));
    }
    let disable = "/v1/users/alice/disable";
    let (answer, body) = put(&other, disable, &administrator, &json!({}));
    assert_eq!(answer, 200, "{body}");
    for token in [access.as_str(), automation] {
        wait_until_refused(&[&one, &other], token);
    }

    // A login of the next second works.
    let (answer, body) = put(&other, "/v1/users/alice/enable", &administrator, &json!({}));
    assert_eq!(answer, 200, "{body}");
    let log_in_again = || log_in(&one, "alice", "open-sesame!");
    eventually("a new login works", || status(&one, &log_in_again()) == 200);
    let access = log_in_again();
    let passwords = json!({"oldPassword": "open-sesame!", "password": "another-sesame"});
    let (answer, body) = put(&one, "/v1/whoami/password", &access, &passwords);
    assert_eq!(answer, 200, "{body}");
    assert_eq!(status(&one, &access), 200, "the token of the request stays valid");
    log_in(&one, "alice", "another-sesame");
    other.stop();
    one.stop();
    postgres.stop().await;
}
