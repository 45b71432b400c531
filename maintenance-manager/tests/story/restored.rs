//! Nodes of a database that has lost its last changes.

use evenkeel_proto::agent::PollRequest;
use evenkeel_proto::agent::agent_service_server::AgentService as _;
use tonic::Code;

use crate::test_server::{TestNode, TestServer, facts, with_credential};

/// Polls with the credential of a node that the database does not know.
async fn assert_unknown(server: &TestServer, node: &TestNode) {
    let request = PollRequest { facts: Some(facts()), ..PollRequest::default() };
    let answer = server.manager.poll(with_credential(&node.credential, request)).await;
    let refused = answer.expect_err("the host does not exist");
    assert_eq!(refused.code(), Code::NotFound, "{refused}");
}

async fn delete_hosts(server: &TestServer) {
    let sql =
        "SELECT set_config('evenkeel.tenant', '*', true); DELETE FROM instances; DELETE FROM hosts";
    server.store.execute_unprepared(sql).await.expect("deleted");
}

async fn reset_numbers(server: &TestServer) {
    let sql = "SELECT setval('host_numbers', 1, false), setval('instance_numbers', 1, false)";
    server.store.execute_unprepared(sql).await.expect("reset");
}

/// A copy of the files of the database was restored, which the database itself cannot notice.
#[tokio::test]
async fn a_credential_of_a_lost_host_keeps_its_id_from_being_assigned_again() {
    let server = TestServer::new().await;
    let lost = server.nth_node(1).await;
    delete_hosts(&server).await;
    reset_numbers(&server).await;
    for _ in 0..2 {
        assert_unknown(&server, &lost).await;
    }
    let new = server.nth_node(2).await;
    assert!(new.host != lost.host && new.instance != lost.instance, "{}", new.host);
    assert_unknown(&server, &lost).await;
}

/// Otherwise every node that was removed would use up ids.
#[tokio::test]
async fn a_credential_of_a_deleted_host_changes_no_ids() {
    let server = TestServer::new().await;
    let first = server.nth_node(1).await;
    delete_hosts(&server).await;
    assert_unknown(&server, &first).await;
    let second = server.nth_node(2).await;
    assert_eq!(second.host.number(), first.host.number() + 1);
}
