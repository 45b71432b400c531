//! Users who change their own password. In these tests, `open sesame!` is the password of each user.

use chrono::TimeDelta;
use evenkeel_auth::Role;
use evenkeel_domain::tenant::TenantId;
use evenkeel_kit::Clock;
use evenkeel_store::testing::tenant_rows;
use evenkeel_store::users;
use evenkeel_test_support::RestClient;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::test_server::{Caller, TestServer};

const CHANGE: &str = "PUT /v1/whoami/password";
const NEW_PASSWORD: &str = "another sesame";

fn passwords(old: &str, new: &str) -> Value {
    json!({"oldPassword": old, "password": new})
}

/// A client with the token of a login.
fn client_of(server: &TestServer, name: &str) -> RestClient {
    let (now, hour) = (server.clock.now(), TimeDelta::hours(1));
    let roles = [Role::Manage(server.ours.uuid())];
    let issued = server.authority.issue_operator(name, &roles, hour, now).expect("a token");
    server.client(Some(issued.token.reveal()), None)
}

async fn add_alice(server: &TestServer) -> RestClient {
    let alice =
        json!({"name": "alice", "password": "open sesame!", "roles": ["administrator@ours"]});
    server.client_of(Caller::Administrator).expect_ok("POST /v1/users", Some(alice)).await;
    client_of(server, "alice")
}

async fn password_hash(server: &TestServer) -> String {
    let tx = server.store.fleet().await.expect("a transaction");
    let found = users::find_login(&tx, "alice").await.expect("an answer");
    found.expect("alice").password_hash.reveal().to_owned()
}

#[tokio::test]
async fn a_user_changes_the_own_password_and_the_token_of_the_request_stays() {
    let server = TestServer::new().await;
    let alice = add_alice(&server).await;
    let old = password_hash(&server).await;
    server.clock.advance(TimeDelta::seconds(1));
    let answer = alice.expect_ok(CHANGE, Some(passwords("open sesame!", NEW_PASSWORD))).await;
    assert_eq!(answer, json!({}));
    // The refresh tokens of all logins contain a digest of the old hash.
    assert_ne!(password_hash(&server).await, old);
    assert_eq!(alice.expect_ok("GET /v1/whoami", None).await["subject"], "alice");

    let rows = tenant_rows(&server.store, TenantId::new(Uuid::nil())).await;
    let rows = rows.iter().filter_map(|row| row.strip_prefix("change_log "));
    let changes = rows.map(|row| serde_json::from_str::<Value>(row).expect("JSON"));
    let of_alice: Vec<_> = changes.filter(|change| change["actor"] == "alice").collect();
    let kinds: Vec<_> = of_alice.iter().map(|change| &change["kind"]).collect();
    assert_eq!(kinds.len(), 2, "{of_alice:?}");
    assert!(kinds.contains(&&json!("user")) && kinds.contains(&&json!("password_change")));
    for change in &of_alice {
        let text = change.to_string();
        assert!(!text.contains("argon2") && !text.contains("sesame"), "{text}");
    }
}

#[tokio::test]
async fn wrong_and_weak_passwords_are_refused() {
    let server = TestServer::new().await;
    let alice = add_alice(&server).await;
    let old = password_hash(&server).await;
    for (body, field) in [
        (passwords("guess", NEW_PASSWORD), "oldPassword"),
        (passwords("open sesame!", "short"), "password"),
        (passwords("open sesame!", "i-am-alice-hello"), "password"),
        (passwords("open sesame!", "open sesame!"), "password"),
        (json!({"password": NEW_PASSWORD}), "oldPassword"),
    ] {
        alice.expect_problem(CHANGE, Some(body), 400, json!({"field": field})).await;
    }
    let body = passwords("too often", NEW_PASSWORD);
    let expected = json!({"message": "too many failed attempts; try again in 8 s"});
    alice.expect_problem(CHANGE, Some(body), 400, expected).await;
    assert_eq!(password_hash(&server).await, old);
}

/// The sentence says where the password is.
#[tokio::test]
async fn callers_without_a_password_in_the_database_are_refused() {
    let server = TestServer::new().await;
    let alice = add_alice(&server).await;
    let body = || Some(passwords("open sesame!", NEW_PASSWORD));
    for (name, expected) in [
        ("file-user", "is in the file of users of the server"),
        ("somebody", "`somebody` is no user with a password"),
    ] {
        let expected_code = json!({"code": "FailedPrecondition"});
        let client = client_of(&server, name);
        let problem = client.expect_problem(CHANGE, body(), 400, expected_code).await;
        let message = problem["message"].as_str().unwrap_or_default();
        assert!(message.contains(expected), "{message}");
    }
    let token = Some(json!({"name": "ci", "role": "administrator"}));
    let created = alice.expect_ok("POST operator-tokens", token).await;
    let automation = server.client(created["token"].as_str(), None);
    let expected = json!({"type": "urn:evenkeel:problem:missing-role"});
    automation.expect_problem(CHANGE, body(), 403, expected).await;
    server.client_of(Caller::Manager).expect_ok("PUT /v1/users/alice/disable", None).await;
    let expected = json!({"message": "the token was revoked"});
    alice.expect_problem(CHANGE, body(), 401, expected).await;
}
