//! Instances that were invalidated.

use evenkeel_domain::id::InstanceId;
use evenkeel_domain::instance::InstanceState;
use evenkeel_maintenance_manager::MaintenanceManager;
use evenkeel_proto::agent::PollRequest;
use evenkeel_proto::agent::agent_service_server::AgentService as _;
use evenkeel_proto::maintmgr::update_status::StatusType as S;
use evenkeel_store::{hosts, instances, nodes};
use tonic::Code;

use crate::fleet::sample;
use crate::system_info::machine;
use crate::test_server::{
    TestServer, begin_request, downloading, facts, report_request, with_credential,
};

impl TestServer {
    pub async fn invalidate(&self, id: InstanceId) {
        let tx = self.tx().await;
        instances::invalidate(&tx, id, self.now()).await.expect("invalidated");
        tx.commit().await.expect("committed");
        self.read_changes().await;
    }
}

#[tokio::test]
async fn an_invalidated_own_node_is_refused() {
    let (server, node, policy) = TestServer::with_policy("demo-hello=1.1").await;
    server.window(node.host, 0, 60).await;
    server.poll(&node).await;
    server.invalidate(node.instance).await;

    let credential = node.credential.as_str();
    let unchanged = PollRequest::default();
    let changed = PollRequest { facts: Some(facts()), ..PollRequest::default() };
    for request in [unchanged, changed] {
        let refused = server.manager.poll(with_credential(credential, request)).await;
        assert_eq!(refused.expect_err("a poll").code(), Code::PermissionDenied);
    }
    let events = [(1, downloading())];
    let request = with_credential(credential, report_request(1, policy, &events));
    let refused = server.manager.report(request).await;
    assert_eq!(refused.expect_err("a report").code(), Code::PermissionDenied);
    let request = with_credential(credential, begin_request(1, &policy.to_string(), 2));
    let refused = server.manager.begin(request).await;
    assert_eq!(refused.expect_err("a begin").code(), Code::PermissionDenied);
    assert!(server.runs(&node).await.is_empty());
    // Enrolling again does not help.
    let token = server.join_token(false, true).await;
    let refused = server.enroll(&token, 1, 1).await;
    let refused = refused.expect_err("an enrolment");
    assert_eq!(refused.code(), Code::PermissionDenied);
    let advice = format!("`evenkeel host delete {} --with-instance`", node.host);
    assert!(refused.message().contains(&advice), "{refused}");

    let tx = server.tx().await;
    let instance = instances::find(&tx, node.instance).await.expect("there");
    assert_eq!(instance.current, InstanceState::Untrusted);
    assert_eq!(instance.summary.status.text, hosts::INVALIDATED_STATUS);
}

/// The reader of each replica is woken when the change is committed, and nothing else has to happen.
#[tokio::test]
async fn every_replica_refuses_an_invalidated_node_once_it_has_read_the_change() {
    let (server, node, _) = TestServer::with_policy("demo-hello=1.1").await;
    let (other, _database) = server.replica().await;
    let facts_digest = server.node_state(&node).await.facts_digest;
    let poll = async |manager: &MaintenanceManager| {
        let request = PollRequest { facts_digest: facts_digest.clone(), ..PollRequest::default() };
        manager.poll(with_credential(&node.credential, request)).await
    };
    for manager in [&server.manager, &other] {
        for _ in 0..3 {
            poll(manager).await.expect("an answer, from the cache at the end");
        }
    }
    let tx = server.tx().await;
    instances::invalidate(&tx, node.instance, server.now()).await.expect("invalidated");
    tx.commit().await.expect("committed");
    for manager in [&server.manager, &other] {
        while !manager.wait_until_caught_up().await {}
        let refused = poll(manager).await.expect_err("an invalidated node");
        assert_eq!(refused.code(), Code::PermissionDenied);
    }
}

#[tokio::test]
async fn an_invalidated_eim_node_is_refused_and_its_silence_is_not_reported() {
    let server = TestServer::new().await;
    let node = server.eim_node(1).await;
    server.send_status(&node, sample(S::UpToDate)).await;
    server.invalidate(node.instance).await;
    let refused = server.send_status_to(&server.manager, &node.guid, sample(S::Started)).await;
    assert_eq!(refused.expect_err("a sample").code(), Code::Unauthenticated);
    let before = server.state(node.instance).await;
    assert_eq!(before.status.text, hosts::INVALIDATED_STATUS);
    assert_eq!(server.silent_for(node.instance, 4).await, 0);
    assert_eq!(server.host_status(node.host).await, "Running", "not yet");
    assert_eq!(server.silent_for(node.instance, 60).await, 0);
    // The machine may be switched off: its host must not look alive for ever.
    assert_eq!(server.host_status(node.host).await, nodes::NO_CONNECTION_STATUS);
    assert_eq!(server.state(node.instance).await, before);
}

#[tokio::test]
async fn heartbeats_and_system_info_of_an_invalidated_node_are_refused() {
    let server = TestServer::new().await;
    let node = server.eim_node(1).await;
    server.send_status(&node, sample(S::UpToDate)).await;
    assert_eq!(server.silent_for(node.instance, 60).await, 1);
    server.invalidate(node.instance).await;
    let before = server.state(node.instance).await;
    let heartbeat = server.send_heartbeat(&node.guid).await;
    let described = server.send_system_info(&node.guid, machine("10.0.0.1")).await;
    for answer in [heartbeat, described] {
        let refused = answer.expect_err("refused");
        assert_eq!(refused.code(), Code::Unauthenticated);
        assert_eq!(refused.message(), "the instance was invalidated");
    }
    assert_eq!(server.host_status(node.host).await, nodes::NO_CONNECTION_STATUS);
    assert_eq!(server.hardware(node.host).await, None);
    assert_eq!(server.state(node.instance).await, before);
}
