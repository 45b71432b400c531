//! Tokens of operators: the list, and revocations.

use chrono::TimeDelta;
use evenkeel_auth::Role;
use evenkeel_kit::Clock;
use evenkeel_store::operator_tokens::{self, OperatorToken};
use evenkeel_store::testing::tenant_rows;
use evenkeel_test_support::RestClient;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::test_server::{Caller, TestServer};

const TOKENS: &str = "/v1/operator-tokens";

/// Records a token of a subject that is valid for some hours from now on.
async fn record(server: &TestServer, n: u128, subject: &str, hours: i64) -> String {
    let now = server.clock.now();
    let token = OperatorToken {
        id: Uuid::from_u128(n),
        subject: subject.to_owned(),
        roles: vec!["evenkeel-admin".to_owned()],
        issued_at: now,
        expires_at: now + TimeDelta::hours(hours),
        revoked_at: None,
        revoked_by: None,
        name: None,
        project: None,
        last_used_at: None,
    };
    let tx = server.store.fleet().await.expect("a transaction");
    operator_tokens::record(&tx, &token).await.expect("recorded");
    tx.commit().await.expect("committed");
    token.id.to_string()
}

async fn list(server: &TestServer) -> Vec<Value> {
    let administrator = server.client_of(Caller::Administrator);
    let listed = administrator.expect_ok(&format!("GET {TOKENS}"), None).await;
    listed.as_array().expect("a list").clone()
}

#[tokio::test]
async fn valid_tokens_are_listed_and_revoked_by_their_ids() {
    let server = TestServer::new().await;
    let id = record(&server, 1, "alice", 1).await;
    record(&server, 2, "bob", -1).await;
    let listed = list(&server).await;
    assert_eq!(listed.len(), 1, "an expired token is not listed: {listed:?}");
    assert_eq!(listed[0]["tokenId"], id);
    assert_eq!(listed[0]["roles"], json!(["evenkeel-admin"]));
    assert_eq!(listed[0]["revokedAt"], Value::Null);

    let administrator = server.client_of(Caller::Administrator);
    let revoke = format!("PUT {TOKENS}/{id}/revoke");
    let revoked = administrator.expect_ok(&revoke, None).await;
    assert_eq!(revoked["revokedBy"], "administrator");
    assert_ne!(revoked["revokedAt"], Value::Null);
    assert_eq!(administrator.expect_ok(&revoke, None).await, revoked, "a repeated request");
    assert_eq!(list(&server).await, [revoked]);

    let unknown = format!("PUT {TOKENS}/{}/revoke", Uuid::from_u128(9));
    let expected = json!({"code": "NotFound", "message": "operator token not found"});
    administrator.expect_problem(&unknown, None, 404, expected).await;
    let expected = json!({"parameter": "tokenId"});
    administrator.expect_problem(&format!("PUT {TOKENS}/x/revoke"), None, 400, expected).await;
}

/// A newer server wrote one of them.
#[tokio::test]
async fn a_token_that_cannot_be_read_does_not_hide_the_others() {
    let server = TestServer::new().await;
    record(&server, 1, "alice", 1).await;
    let id = record(&server, 2, "bob", 1).await;
    let newer = "BEGIN; SET LOCAL evenkeel.tenant = '*'; \
                 ALTER TABLE operator_tokens ALTER roles DROP NOT NULL; \
                 UPDATE operator_tokens SET roles = NULL WHERE subject = 'alice'; COMMIT";
    server.store.execute_unprepared(newer).await.expect("written");
    let listed = list(&server).await;
    assert_eq!(listed.iter().map(|token| &token["tokenId"]).collect::<Vec<_>>(), [&json!(id)]);
}

#[tokio::test]
async fn the_tokens_of_a_subject_are_revoked() {
    let server = TestServer::new().await;
    record(&server, 1, "alice", 1).await;
    record(&server, 2, "bob", 1).await;
    let administrator = server.client_of(Caller::Administrator);
    let what = format!("PUT {TOKENS}/revoke");
    for (body, field) in [
        (json!({}), "subject"),
        (json!({"subject": ""}), "subject"),
        (json!({"subject": "x".repeat(513)}), "subject"),
        (json!({"subject": "alice", "issuer": "https://unknown.example"}), "issuer"),
    ] {
        let expected = json!({"field": field});
        administrator.expect_problem(&what, Some(body), 400, expected).await;
    }
    // Also by the name that our own tokens have.
    let own_issuer = server.authority.own_issuer();
    for body in [json!({"subject": "alice"}), json!({"subject": "bob", "issuer": own_issuer})] {
        for attempt in ["first", "repeated"] {
            let answer = administrator.expect_ok(&what, Some(body.clone())).await;
            assert_eq!(answer, json!({"unknownSubject": false}), "{attempt}: {body}");
        }
    }
    let mut revoked = operator_tokens::load_revoked(&server.store).await.expect("loaded");
    revoked.ids.sort_unstable();
    assert_eq!(revoked.ids, [Uuid::from_u128(1), Uuid::from_u128(2)]);
    assert!(revoked.subjects.iter().all(|subject| subject.issuer.is_empty()));
}

#[tokio::test]
async fn the_revocation_of_an_unknown_subject_takes_effect_and_reports_it() {
    let server = TestServer::new().await;
    record(&server, 1, "alice", 1).await;
    let administrator = server.client_of(Caller::Administrator);
    let body = json!({"subject": "alise"});
    let answer = administrator.expect_ok(&format!("PUT {TOKENS}/revoke"), Some(body)).await;
    assert_eq!(answer, json!({"unknownSubject": true}));
    let revoked = operator_tokens::load_revoked(&server.store).await.expect("loaded");
    let subjects: Vec<_> = revoked.subjects.iter().map(|one| one.subject.as_str()).collect();
    assert_eq!(subjects, ["alise"]);
    assert!(revoked.ids.is_empty(), "{:?}", revoked.ids);
}

const CREATE: &str = "POST operator-tokens";

/// A client of `ours` with a token that a response contains.
fn client_with(server: &TestServer, created: &Value) -> RestClient {
    server.client(created["token"].as_str(), None)
}

/// The last change of a token in `ours`, as the change log has it.
async fn last_change(server: &TestServer) -> Value {
    let rows = tenant_rows(&server.store, server.ours).await;
    let rows = rows.iter().filter_map(|row| row.strip_prefix("change_log "));
    let changes = rows.map(|row| serde_json::from_str::<Value>(row).expect("JSON"));
    let of_tokens = changes.filter(|change| change["kind"] == "operator_token");
    of_tokens.max_by_key(|change| change["seq"].as_u64()).expect("a change")
}

#[tokio::test]
async fn an_administrator_of_a_project_manages_its_tokens_for_automation() {
    let server = TestServer::new().await;
    record(&server, 1, "alice", 1).await;
    let manager = server.client_of(Caller::Manager);
    let body = json!({"name": "nightly report", "role": "viewer", "lifetimeSeconds": 600});
    let created = manager.expect_ok(CREATE, Some(body.clone())).await;
    assert_eq!(created["project"], "ours");
    assert_eq!(created["namedRoles"], json!(["viewer@ours"]));
    assert_eq!(created["subject"], "manager");
    assert_eq!(created["lastUsedAt"], Value::Null);
    let automation = client_with(&server, &created);
    assert_eq!(automation.get("compute/hosts").await["totalElements"], 0);
    automation.expect_problem("POST regions", Some(json!({"name": "south"})), 403, json!({})).await;

    // Only the own project's tokens, and never the token itself.
    let listed = manager.expect_ok(&format!("GET {TOKENS}"), None).await;
    let expected = Value::from_iter([without_token(&created)]);
    assert_eq!(listed, expected);
    assert_eq!(list(&server).await.len(), 2, "an administrator of all projects sees all");
    let change = last_change(&server).await;
    assert_eq!((&change["actor"], &change["operation"]), (&json!("manager"), &json!("insert")));
    assert_eq!(change["after"]["name"], "nightly report");
    let token = created["token"].as_str().expect("the token");
    assert!(!change.to_string().contains(token), "{change}");

    let id = created["tokenId"].as_str().expect("an id");
    let revoke = format!("PUT {TOKENS}/{id}/revoke");
    let roles = [Role::Manage(server.theirs.uuid())];
    let hour = TimeDelta::hours(1);
    let issued = server.authority.issue_operator("other", &roles, hour, server.clock.now());
    let issued = issued.expect("a token");
    let foreigner = server.client(Some(issued.token.reveal()), None);
    foreigner.expect_problem(&revoke, None, 404, json!({})).await;
    assert_eq!(foreigner.expect_ok(&format!("GET {TOKENS}"), None).await, json!([]));
    let foreign = format!("PUT {TOKENS}/{}/revoke", Uuid::from_u128(1));
    manager.expect_problem(&foreign, None, 404, json!({})).await;
    let revoked = manager.expect_ok(&revoke, None).await;
    assert_eq!(revoked["revokedBy"], "manager");
    let change = last_change(&server).await;
    assert_eq!((&change["actor"], &change["operation"]), (&json!("manager"), &json!("update")));
    // The name is free again.
    manager.expect_ok(CREATE, Some(body)).await;
}

#[tokio::test]
async fn a_deleted_project_revokes_its_tokens_and_no_others() {
    let server = TestServer::new().await;
    record(&server, 1, "alice", 1).await;
    let body = json!({"name": "nightly report", "role": "viewer", "lifetimeSeconds": 600});
    let created = server.client_of(Caller::Manager).expect_ok(CREATE, Some(body)).await;
    let administrator = server.client_of(Caller::Administrator);
    administrator.expect_ok("DELETE /v1/projects/ours?force=true", None).await;
    for token in list(&server).await {
        let by = if token["tokenId"] == created["tokenId"] { "administrator" } else { "" };
        assert_eq!(token["revokedBy"], by, "{token}");
        assert_eq!(token["revokedAt"].is_null(), by.is_empty(), "{token}");
    }
    assert_eq!(list(&server).await.len(), 2);
}

fn without_token(created: &Value) -> Value {
    let mut token = created.clone();
    token["token"] = Value::Null;
    token
}

#[tokio::test]
async fn a_name_belongs_to_one_valid_token_of_a_project() {
    let server = TestServer::new().await;
    let manager = server.client_of(Caller::Manager);
    let body = json!({"name": "ci", "role": "operator", "lifetimeSeconds": 60});
    manager.expect_ok(CREATE, Some(body.clone())).await;
    let expected = json!({"code": "FailedPrecondition"});
    manager.expect_problem(CREATE, Some(body.clone()), 400, expected).await;
    let elsewhere = "POST /v1/projects/theirs/operator-tokens";
    server.client_of(Caller::Administrator).expect_ok(elsewhere, Some(body.clone())).await;
    server.clock.advance(TimeDelta::seconds(61));
    server.client_of(Caller::Manager).expect_ok(CREATE, Some(body)).await;
}

#[tokio::test]
async fn a_token_for_automation_needs_a_name_a_role_and_an_end() {
    let server = TestServer::new().await;
    let manager = server.client_of(Caller::Manager);
    for (body, field) in [
        (json!({"role": "viewer"}), "name"),
        (json!({"name": "", "role": "viewer"}), "name"),
        (json!({"name": "a\u{7}b", "role": "viewer"}), "name"),
        (json!({"name": "x".repeat(51), "role": "viewer"}), "name"),
        (json!({"name": "ci"}), "role"),
        (json!({"name": "ci", "role": "owner"}), "role"),
        (json!({"name": "ci", "role": "evenkeel-admin"}), "role"),
        (json!({"name": "ci", "role": "viewer@theirs"}), "role"),
        (json!({"name": "ci", "role": "viewer", "lifetimeSeconds": 0}), "lifetimeSeconds"),
        (json!({"name": "ci", "role": "viewer", "lifetimeSeconds": 31_536_001}), "lifetimeSeconds"),
    ] {
        let (status, answer) = manager.request(CREATE, Some(body.clone())).await;
        assert_eq!(status.as_u16(), 400, "{body}: {answer}");
        let named = answer["field"].as_str().unwrap_or("-");
        assert_eq!(named, field, "{body}: {answer}");
    }
}

/// Neither more rights nor a longer life.
#[tokio::test]
async fn a_token_creates_no_token_with_more_rights_than_its_own() {
    let server = TestServer::new().await;
    let create = |name: &str, role: &str, seconds: u32| json!({"name": name, "role": role, "lifetimeSeconds": seconds});
    let manager = server.client_of(Caller::Manager);
    for role in ["viewer", "operator", "approver"] {
        let created = manager.expect_ok(CREATE, Some(create(role, role, 600))).await;
        let body = Some(create("next", "viewer", 60));
        let expected = json!({"type": "urn:evenkeel:problem:missing-role"});
        client_with(&server, &created).expect_problem(CREATE, body, 403, expected).await;
    }
    let created = manager.expect_ok(CREATE, Some(create("root", "administrator", 600))).await;
    let automation = client_with(&server, &created);
    let longer = Some(create("longer", "viewer", 601));
    automation.expect_problem(CREATE, longer, 400, json!({"field": "lifetimeSeconds"})).await;
    let elsewhere = "POST /v1/projects/theirs/operator-tokens";
    let body = Some(create("theirs", "viewer", 60));
    automation.expect_problem(elsewhere, body, 403, json!({})).await;
    let next = automation.expect_ok(CREATE, Some(create("next", "administrator", 60))).await;
    // The user is responsible for both, and loses both with one revocation.
    assert_eq!(next["subject"], "manager");
    assert_eq!(last_change(&server).await["actor"], "manager (token root)");
    // It expires with its clock.
    server.clock.advance(TimeDelta::seconds(60 + 30));
    client_with(&server, &next).expect_problem("GET compute/hosts", None, 401, json!({})).await;
}
