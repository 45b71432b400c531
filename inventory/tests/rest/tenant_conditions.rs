//! Each statement of a request has a condition on the project of each table.

use evenkeel_store::testing::{counting_store, tenant_tables};
use evenkeel_test_support::{StatementException, find_missing_tenant_conditions};
use serde_json::json;

use crate::statements::EXTRA_REQUESTS;
use crate::statuses::{operations, request_body, request_order, required_query};
use crate::test_server::{Caller, TestServer, with_registries};

const EXCEPTIONS: [StatementException; 1] = [StatementException {
    table: "projects",
    part: "FROM projects WHERE projects.removed_at IS NULL",
    reason: "the list of projects, and the project of a name",
}];

/// Fewest requests of the document that must succeed, and different statements that they send.
const MIN_SUCCESSES: usize = 100;
const MIN_STATEMENTS: usize = 120;

#[tokio::test]
async fn each_statement_of_a_request_names_its_project() {
    let mut server = TestServer::with_settings(with_registries()).await;
    let resources = server.seed_resources().await;
    server.seed_update_controls(&resources).await;
    let (store, counts) = counting_store(&server.store);
    server.use_store(store, with_registries());
    let client = server.client_of(Caller::Administrator);
    for request in EXTRA_REQUESTS {
        let request = request.replace("{host}", &resources.host);
        let request = request.replace("{site}", &resources.site);
        client.expect_ok(&format!("GET /v1/projects/ours/{request}"), None).await;
    }
    client.expect_ok("PUT /v1/projects/new", Some(json!({"description": "new"}))).await;
    client.expect_ok("DELETE /v1/projects/new", None).await;
    let mut requests = operations();
    requests.sort_by_key(|(method, path, _)| request_order(method, path));
    let mut successes = 0;
    for (method, path, operation) in requests {
        let path = resources.fill(&path, "ours");
        let what = format!("{method} {path}{}", required_query(&operation));
        let body = request_body(&operation, &resources, &server);
        let (status, answer) = client.request(&what, body).await;
        assert!(!status.is_server_error(), "{what}: {answer}");
        successes += usize::from(status.is_success());
    }
    assert!(successes >= MIN_SUCCESSES, "only {successes} requests succeeded");
    let tx = server.store.tenant(server.ours).await.expect("a transaction");
    let (statements, tables) = (counts.texts(), tenant_tables(&tx).await);
    assert!(statements.len() >= MIN_STATEMENTS, "only {} statements", statements.len());
    let findings = find_missing_tenant_conditions(&statements, &tables, &EXCEPTIONS);
    assert!(findings.is_empty(), "{}", findings.join("\n"));
}
