//! Tokens of operators: the list, and revocations.

use chrono::TimeDelta;
use evenkeel_kit::Clock;
use evenkeel_store::operator_tokens::{self, OperatorToken};
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
    let tx = server.store.fleet().await.expect("a transaction");
    let mut revoked = operator_tokens::load_revoked(&tx).await.expect("loaded");
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
    let tx = server.store.fleet().await.expect("a transaction");
    let revoked = operator_tokens::load_revoked(&tx).await.expect("loaded");
    let subjects: Vec<_> = revoked.subjects.iter().map(|one| one.subject.as_str()).collect();
    assert_eq!(subjects, ["alise"]);
    assert!(revoked.ids.is_empty(), "{:?}", revoked.ids);
}
