//! Users in the database: who manages whom, and what is refused.

use chrono::TimeDelta;
use evenkeel_auth::Role;
use evenkeel_domain::tenant::TenantId;
use evenkeel_kit::Clock;
use evenkeel_store::operator_tokens;
use evenkeel_store::testing::tenant_rows;
use evenkeel_store::users;
use evenkeel_test_support::RestClient;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::test_server::{Caller, TestServer};

const CREATE: &str = "POST /v1/users";
const PASSWORD: &str = "open sesame!";

fn user(name: &str, roles: &[&str]) -> Value {
    json!({"name": name, "password": PASSWORD, "roles": roles})
}

/// An administrator of `theirs`.
fn foreign_manager(server: &TestServer) -> RestClient {
    let roles = [Role::Manage(server.theirs.uuid())];
    let hour = TimeDelta::hours(1);
    let issued = server.authority.issue_operator("other", &roles, hour, server.clock.now());
    server.client(Some(issued.expect("a token").token.reveal()), None)
}

async fn names(client: &RestClient) -> Vec<String> {
    let listed = client.expect_ok("GET /v1/users", None).await;
    let users = listed.as_array().expect("a list").iter();
    users.map(|user| user["name"].as_str().expect("a name").to_owned()).collect()
}

/// The subjects whose tokens are revoked.
async fn revoked_subjects(server: &TestServer) -> Vec<String> {
    let revoked = operator_tokens::load_revoked(&server.store).await.expect("loaded");
    revoked.subjects.into_iter().map(|revoked| revoked.subject).collect()
}

#[tokio::test]
async fn an_administrator_of_a_project_manages_the_users_of_the_project_alone() {
    let server = TestServer::new().await;
    let (root, manager) =
        (server.client_of(Caller::Administrator), server.client_of(Caller::Manager));
    let created = manager.expect_ok(CREATE, Some(user("alice", &["operator@ours"]))).await;
    assert_eq!(created["roles"], json!(["operator@ours"]));
    assert_eq!((&created["disabled"], &created["createdBy"]), (&json!(false), &json!("manager")));
    root.expect_ok(CREATE, Some(user("bob", &["viewer@theirs"]))).await;
    root.expect_ok(CREATE, Some(user("carol", &["viewer@ours", "viewer@theirs"]))).await;
    assert_eq!(names(&root).await, ["alice", "bob", "carol"]);
    assert_eq!(names(&manager).await, ["alice", "carol"]);

    // Roles that the caller may not give, in a foreign or a missing project: the same answer.
    let missing = json!({"type": "urn:evenkeel:problem:missing-role"});
    for role in ["viewer@theirs", "viewer@missing", "evenkeel-admin"] {
        manager.expect_problem(CREATE, Some(user("dave", &[role])), 403, missing.clone()).await;
    }
    let unknown = json!({"code": "FailedPrecondition"});
    root.expect_problem(CREATE, Some(user("dave", &["viewer@missing"])), 400, unknown).await;

    // A user with a role elsewhere could be taken over by a new password.
    let password = || Some(json!({"password": "another sesame"}));
    manager.expect_problem("PUT /v1/users/bob/password", password(), 404, json!({})).await;
    let no_roles = Some(json!({"roles": []}));
    manager.expect_problem("PUT /v1/users/bob/roles", no_roles, 404, json!({})).await;
    for what in
        ["PUT /v1/users/carol/password", "PUT /v1/users/carol/disable", "DELETE /v1/users/carol"]
    {
        let body = what.ends_with("password").then(password).flatten();
        manager.expect_problem(what, body, 403, missing.clone()).await;
    }
    let roles = Some(json!({"roles": ["operator@ours"]}));
    let changed = manager.expect_ok("PUT /v1/users/carol/roles", roles).await;
    assert_eq!(changed["roles"], json!(["operator@ours"]), "only those that the caller may give");
    assert_eq!(names(&foreign_manager(&server)).await, ["bob", "carol"], "the other role stays");
    // The work in other projects continues.
    assert!(revoked_subjects(&server).await.is_empty());
    let roles = Some(json!({"roles": ["viewer@ours"]}));
    manager.expect_ok("PUT /v1/users/alice/roles", roles).await;
    assert_eq!(revoked_subjects(&server).await, ["alice"]);
}

/// A user would outlive the token.
#[tokio::test]
async fn a_token_for_automation_changes_no_users() {
    let server = TestServer::new().await;
    let manager = server.client_of(Caller::Manager);
    manager.expect_ok(CREATE, Some(user("alice", &["viewer@ours"]))).await;
    let body = Some(json!({"name": "ci", "role": "administrator"}));
    let created = manager.expect_ok("POST operator-tokens", body).await;
    let automation = server.client(created["token"].as_str(), None);
    assert_eq!(names(&automation).await, ["alice"]);
    let roles = || Some(json!({"roles": ["administrator@ours"]}));
    for (what, body) in [
        (CREATE, Some(user("bob", &["viewer@ours"]))),
        ("PUT /v1/users/alice/password", Some(json!({"password": "another sesame"}))),
        ("PUT /v1/users/alice/roles", roles()),
        ("PUT /v1/users/alice/disable", None),
        ("PUT /v1/users/alice/enable", None),
        ("DELETE /v1/users/alice", None),
    ] {
        let expected = json!({"type": "urn:evenkeel:problem:missing-role"});
        automation.expect_problem(what, body, 403, expected).await;
    }
}

/// An administrator of a project cannot take the name of another person.
#[tokio::test]
async fn a_name_of_another_person_is_refused() {
    let server = TestServer::new().await;
    let (root, manager) =
        (server.client_of(Caller::Administrator), server.client_of(Caller::Manager));
    let body = Some(json!({"name": "ci", "role": "viewer"}));
    root.expect_ok("POST operator-tokens", body).await;
    let refused = json!({"code": "FailedPrecondition"});
    for (client, name, expected) in [
        (&root, "file-user", "is in the file of users"),
        (&manager, "file-user", "is in the file of users"),
        (&manager, "administrator", "tokens with the subject `administrator` are valid"),
    ] {
        let body = Some(user(name, &["viewer@ours"]));
        let problem = client.expect_problem(CREATE, body, 400, refused.clone()).await;
        let message = problem["message"].as_str().unwrap_or_default();
        assert!(message.contains(expected), "{message}");
    }
    root.expect_ok(CREATE, Some(user("administrator", &["viewer@ours"]))).await;
}

#[tokio::test]
async fn a_role_that_is_removed_ends_the_tokens_for_automation_of_its_project() {
    let server = TestServer::new().await;
    let root = server.client_of(Caller::Administrator);
    let roles = ["administrator@ours", "administrator@theirs"];
    root.expect_ok(CREATE, Some(user("alice", &roles))).await;
    let (now, hour) = (server.clock.now(), TimeDelta::hours(1));
    let of_alice = [Role::Manage(server.ours.uuid()), Role::Manage(server.theirs.uuid())];
    let issued = server.authority.issue_operator("alice", &of_alice, hour, now).expect("a token");
    let alice = server.client(Some(issued.token.reveal()), None);
    let mut created = Vec::new();
    for project in ["ours", "theirs"] {
        let what = format!("POST /v1/projects/{project}/operator-tokens");
        let body = Some(json!({"name": "ci", "role": "viewer"}));
        created.push(alice.expect_ok(&what, body).await["tokenId"].clone());
    }
    let roles = Some(json!({"roles": ["viewer@ours"]}));
    server.client_of(Caller::Manager).expect_ok("PUT /v1/users/alice/roles", roles).await;
    let revoked = operator_tokens::load_revoked(&server.store).await.expect("loaded");
    let ids: Vec<_> = revoked.ids.iter().map(Uuid::to_string).collect();
    assert_eq!(json!(ids), json!([created[0]]));
}

/// The token of a login keeps its roles until it expires.
#[tokio::test]
async fn a_user_who_lost_a_role_passes_it_on_to_no_token_and_no_user() {
    let server = TestServer::new().await;
    let root = server.client_of(Caller::Administrator);
    root.expect_ok(CREATE, Some(user("alice", &["administrator@ours", "viewer@theirs"]))).await;
    let (now, hour) = (server.clock.now(), TimeDelta::hours(1));
    let of_alice = [Role::Manage(server.ours.uuid()), Role::Read(server.theirs.uuid())];
    let issued = server.authority.issue_operator("alice", &of_alice, hour, now).expect("a token");
    let alice = server.client(Some(issued.token.reveal()), None);
    let token = |name: &str| Some(json!({"name": name, "role": "administrator"}));
    alice.expect_ok("POST operator-tokens", token("first")).await;
    alice.expect_ok(CREATE, Some(user("bob", &["viewer@ours"]))).await;
    // The administrator of a project does not revoke the token, because it has a role elsewhere.
    let roles = Some(json!({"roles": ["viewer@ours"]}));
    server.client_of(Caller::Manager).expect_ok("PUT /v1/users/alice/roles", roles).await;
    for (what, body) in [
        ("POST operator-tokens", token("second")),
        (CREATE, Some(user("carol", &["administrator@ours"]))),
        ("PUT /v1/users/alice/roles", Some(json!({"roles": ["administrator@ours"]}))),
        ("PUT /v1/users/bob/disable", None),
    ] {
        alice.expect_problem(what, body, 403, json!({})).await;
    }
    assert_eq!(names(&root).await, ["alice", "bob"]);
}

/// Only an administrator of all projects may give the role of a deleted project.
#[tokio::test]
async fn a_role_in_a_deleted_project_does_not_keep_a_user_from_its_administrator() {
    let server = TestServer::new().await;
    let (root, manager) =
        (server.client_of(Caller::Administrator), server.client_of(Caller::Manager));
    root.expect_ok("PUT /v1/projects/gone", Some(json!({"description": ""}))).await;
    root.expect_ok(CREATE, Some(user("alice", &["viewer@gone", "viewer@ours"]))).await;
    let password = || Some(json!({"password": "another sesame"}));
    manager.expect_problem("PUT /v1/users/alice/password", password(), 403, json!({})).await;
    root.expect_ok("DELETE /v1/projects/gone", None).await;
    manager.expect_ok("PUT /v1/users/alice/password", password()).await;
    // A new project of the name is another one.
    root.expect_ok("PUT /v1/projects/gone", Some(json!({"description": ""}))).await;
    let listed = root.expect_ok("GET /v1/users", None).await;
    assert_eq!(listed[0]["roles"], json!(["viewer@ours"]));
}

#[tokio::test]
async fn a_disabled_or_deleted_user_loses_all_tokens() {
    let server = TestServer::new().await;
    let manager = server.client_of(Caller::Manager);
    for name in ["alice", "bob"] {
        manager.expect_ok(CREATE, Some(user(name, &["operator@ours"]))).await;
    }
    let disabled = manager.expect_ok("PUT /v1/users/alice/disable", None).await;
    assert_eq!(disabled["disabled"], true);
    assert_eq!(manager.expect_ok("PUT /v1/users/alice/disable", None).await, disabled);
    let login = async || {
        let tx = server.store.fleet().await.expect("a transaction");
        users::find_login(&tx, "alice").await.expect("an answer").is_some()
    };
    assert!(!login().await);
    assert_eq!(manager.expect_ok("PUT /v1/users/alice/enable", None).await["disabled"], false);
    assert!(login().await);
    // A token of the next second is valid: logins lock their user, so none runs meanwhile.
    let revoked = operator_tokens::load_revoked(&server.store).await.expect("loaded");
    assert_eq!(revoked.subjects[0].revoked_until, server.clock.now());
    manager.expect_ok("DELETE /v1/users/bob", None).await;
    manager.expect_problem("DELETE /v1/users/bob", None, 404, json!({})).await;
    let mut subjects = revoked_subjects(&server).await;
    subjects.sort_unstable();
    assert_eq!(subjects, ["alice", "bob"]);
}

#[tokio::test]
async fn the_last_administrator_stays_unless_forced() {
    let server = TestServer::new().await;
    let root = server.client_of(Caller::Administrator);
    root.expect_ok(CREATE, Some(user("alice", &["evenkeel-admin"]))).await;
    let roles = || Some(json!({"roles": ["viewer@ours"]}));
    for (what, body) in [
        ("PUT /v1/users/alice/disable", None),
        ("PUT /v1/users/alice/roles", roles()),
        ("DELETE /v1/users/alice", None),
    ] {
        let expected = json!({"code": "FailedPrecondition"});
        let problem = root.expect_problem(what, body, 400, expected).await;
        let message = problem["message"].as_str().unwrap_or_default();
        assert!(message.contains("is the last enabled user"), "{message}");
    }
    root.expect_ok(CREATE, Some(user("bob", &["evenkeel-admin", "viewer@ours"]))).await;
    root.expect_ok("PUT /v1/users/alice/disable", None).await;
    // A disabled administrator does not count.
    root.expect_problem("PUT /v1/users/bob/disable", None, 400, json!({})).await;
    root.expect_ok("DELETE /v1/users/alice", None).await;
    root.expect_ok("DELETE /v1/users/bob?force=true", None).await;
    assert!(names(&root).await.is_empty());
}

#[tokio::test]
async fn bad_users_are_refused() {
    let server = TestServer::new().await;
    let root = server.client_of(Caller::Administrator);
    let body = |name: &str, password: &str, roles: &[&str]| json!({"name": name, "password": password, "roles": roles});
    let viewer = ["viewer@ours"];
    for (body, field) in [
        (body("", PASSWORD, &viewer), "name"),
        (body("a b", PASSWORD, &viewer), "name"),
        (body("Alice", PASSWORD, &viewer), "name"),
        (body("a\u{7}b", PASSWORD, &viewer), "name"),
        (body(&"x".repeat(129), PASSWORD, &viewer), "name"),
        (body("alice", "", &viewer), "password"),
        (body("alice", "elevenbytes", &viewer), "password"),
        (body("alice", "aaaaaaaaaaaaaa", &viewer), "password"),
        (body("alice", "i-am-Alice-hello", &viewer), "password"),
        (body("alice", PASSWORD, &[]), "roles"),
        (body("alice", PASSWORD, &["owner@ours"]), "roles"),
        (body("alice", PASSWORD, &["viewer"]), "roles"),
        (body("alice", PASSWORD, &[&Role::Node(server.ours.uuid()).to_string()]), "roles"),
        (json!({"password": PASSWORD, "roles": viewer}), "name"),
        (json!({"name": "alice", "roles": viewer}), "password"),
    ] {
        let problem = root.expect_problem(CREATE, Some(body), 400, json!({"field": field})).await;
        assert!(!problem.to_string().contains("elevenbytes"), "{problem}");
    }
    root.expect_ok(CREATE, Some(user("alice", &viewer))).await;
    let expected =
        json!({"code": "FailedPrecondition", "message": "the user `alice` exists already"});
    root.expect_problem(CREATE, Some(user("alice", &viewer)), 400, expected).await;
    let weak = Some(json!({"password": "short"}));
    root.expect_problem("PUT /v1/users/alice/password", weak, 400, json!({"field": "password"}))
        .await;
    for name in ["nobody", "a%00b", "a%20b"] {
        let what = format!("DELETE /v1/users/{name}");
        let (status, answer) = root.request(&what, None).await;
        assert!(matches!(status.as_u16(), 400 | 404), "{what}: {answer}");
    }
}

/// Fleet-wide changes have the nil UUID in place of a project.
#[tokio::test]
async fn changes_of_users_are_in_the_change_log_without_passwords() {
    let server = TestServer::new().await;
    let root = server.client_of(Caller::Administrator);
    root.expect_ok(CREATE, Some(user("alice", &["viewer@ours"]))).await;
    let password = Some(json!({"password": "another sesame"}));
    server.clock.advance(TimeDelta::seconds(1));
    root.expect_ok("PUT /v1/users/alice/password", password).await;
    root.expect_ok("PUT /v1/users/alice/disable", None).await;
    root.expect_ok("DELETE /v1/users/alice", None).await;
    let rows = tenant_rows(&server.store, TenantId::new(Uuid::nil())).await;
    let rows = rows.iter().filter_map(|row| row.strip_prefix("change_log "));
    let changes = rows.map(|row| serde_json::from_str::<Value>(row).expect("JSON"));
    let mut changes: Vec<_> = changes.filter(|change| change["kind"] == "user").collect();
    changes.sort_by_key(|change| change["seq"].as_u64());
    let operations: Vec<_> = changes.iter().map(|change| change["operation"].clone()).collect();
    assert_eq!(operations, ["insert", "update", "update", "delete"]);
    for change in &changes {
        assert_eq!(change["actor"], "administrator");
        let text = change.to_string();
        assert!(text.contains("alice") && !text.contains("argon2"), "{text}");
    }
}

#[tokio::test]
async fn a_caller_sees_its_roles_by_the_names_of_projects() {
    let server = TestServer::new().await;
    for (caller, subject, roles) in [
        (Caller::Guest, "guest", json!([])),
        (Caller::Approver, "approver", json!(["approver@ours"])),
        (Caller::Foreigner, "foreigner", json!(["operator@theirs"])),
        (Caller::Node, "node", json!(["node@ours"])),
        (Caller::Administrator, "administrator", json!(["evenkeel-admin"])),
    ] {
        let answer = server.client_of(caller).expect_ok("GET /v1/whoami", None).await;
        assert_eq!((&answer["subject"], &answer["roles"]), (&json!(subject), &roles), "{caller:?}");
        assert_eq!(answer["issuer"], server.authority.own_issuer());
    }
}

/// In these tests no process reads the revoked tokens, as in the half second before it does.
#[tokio::test]
async fn a_token_that_was_just_revoked_issues_no_other() {
    let server = TestServer::new().await;
    let by_id = server.client_of(Caller::Manager);
    by_id.expect_ok("POST /v1/logout", None).await;
    let root = server.client_of(Caller::Administrator);
    root.expect_ok(CREATE, Some(user("other", &["administrator@ours"]))).await;
    let (now, hour) = (server.clock.now(), TimeDelta::hours(1));
    let roles = [Role::Manage(server.ours.uuid())];
    let issued = server.authority.issue_operator("other", &roles, hour, now).expect("a token");
    let by_subject = server.client(Some(issued.token.reveal()), None);
    root.expect_ok("PUT /v1/users/other/disable", None).await;
    for client in [by_id, by_subject] {
        for (what, body) in [
            ("POST operator-tokens", json!({"name": "ci", "role": "viewer"})),
            (CREATE, user("bob", &["viewer@ours"])),
        ] {
            let expected = json!({"message": "the token was revoked"});
            client.expect_problem(what, Some(body), 401, expected).await;
        }
    }
}

#[tokio::test]
async fn a_logout_revokes_the_own_token_and_no_other() {
    let server = TestServer::new().await;
    let writer = server.client_of(Caller::Writer);
    let id = writer.expect_ok("GET /v1/whoami", None).await["tokenId"].clone();
    for attempt in ["first", "repeated"] {
        let answer = writer.expect_ok("POST /v1/logout", None).await;
        assert_eq!(answer, json!({"revoked": true}), "{attempt}");
    }
    let node = server.client_of(Caller::Node).expect_ok("POST /v1/logout", None).await;
    assert_eq!(node, json!({"revoked": false}), "credentials of nodes are not revoked");
    let revoked = operator_tokens::load_revoked(&server.store).await.expect("loaded");
    let ids: Vec<_> = revoked.ids.iter().map(Uuid::to_string).collect();
    assert_eq!(json!(ids), json!([id]));
    assert!(revoked.subjects.is_empty());
}
