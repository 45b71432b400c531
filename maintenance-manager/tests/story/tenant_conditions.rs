//! Each statement of a call of a node has a condition on the project of each table.

use evenkeel_domain::order::OrderKind;
use evenkeel_maintenance_manager::Settings;
use evenkeel_proto::agent::PollRequest;
use evenkeel_proto::maintmgr::update_status::StatusType as S;
use evenkeel_store::testing::{counting_store, tenant_tables};
use evenkeel_test_support::{StatementException, find_missing_tenant_conditions};

use crate::facts::{PACKAGE_LIST, facts_with_packages};
use crate::fleet::sample;
use crate::node_reports::{available_package, facts_with_available};
use crate::system_info::machine;
use crate::test_server::{TestServer, began, downloaded, downloading, finished};

const EXCEPTIONS: [StatementException; 2] = [
    StatementException {
        table: "join_tokens",
        part: "FROM join_tokens WHERE join_tokens.digest",
        reason: "the secret of a join token identifies the project of a machine that enrols",
    },
    StatementException {
        table: "package_versions",
        part: "DELETE FROM package_versions WHERE ctid = ANY",
        reason: "the query within it finds the places of the rows by their project",
    },
];

/// Fewest different statements that the calls send.
const MIN_STATEMENTS: usize = 30;

/// An agent enrols, reports facts, a package list and versions, and updates in its window.
async fn update_own_node(server: &TestServer) {
    let node = server.node().await;
    server.report_facts(&node, facts_with_packages(PACKAGE_LIST)).await;
    let list = PollRequest { packages: PACKAGE_LIST.into(), ..PollRequest::default() };
    server.send_poll(&node, list).await;
    server.assign_min_age_policy(&node, 1).await;
    let available = vec![available_package("curl", "8.5")];
    server.report_facts(&node, facts_with_available(available)).await;
    server.poll(&node).await;
    let policy = server.policy(&node, "demo-hello=1.1").await;
    server.order(node.instance, OrderKind::Now).await;
    server.window(node.host, 1, 60).await;
    server.report(&node, 1, policy, &[(1, downloading()), (2, downloaded())]).await;
    server.advance_minutes(2);
    server.poll_with_attempt(&node, 1).await;
    server.begin(&node, 1, policy, 2).await;
    server.report(&node, 1, policy, &[(3, began()), (4, finished())]).await;
    server.poll(&node).await;
}

/// An agent of EIM reports its hardware and its state, and updates in its window.
async fn update_eim_node(server: &TestServer) {
    let eim = server.eim_node(1).await;
    server.assign_to(eim.instance, server.create_policy("curl").await).await;
    server.window(eim.host, 1, 60).await;
    server.send_system_info(&eim.guid, machine("10.0.0.1")).await.expect("stored");
    server.send_heartbeat(&eim.guid).await.expect("heard");
    server.send_status(&eim, sample(S::UpToDate)).await;
    server.advance_minutes(2);
    for kind in [S::Started, S::Updated, S::UpToDate] {
        server.send_status(&eim, sample(kind)).await;
    }
}

#[tokio::test]
async fn each_statement_of_a_call_names_its_project() {
    let mut server = TestServer::new().await;
    let (store, counts) = counting_store(&server.store);
    server.manager = server.new_manager(store, Settings::default());
    server.follow(&server.manager).await;
    update_own_node(&server).await;
    update_eim_node(&server).await;
    let (statements, tables) = (counts.texts(), tenant_tables(&server.tx().await).await);
    assert!(statements.len() >= MIN_STATEMENTS, "only {} statements", statements.len());
    let findings = find_missing_tenant_conditions(&statements, &tables, &EXCEPTIONS);
    assert!(findings.is_empty(), "{}", findings.join("\n"));
}
