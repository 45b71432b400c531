//! Heartbeats of EIM nodes, one every ten seconds for each: their cost, and that no change is
//! missed.

use std::time::Duration;

use evenkeel_kit::Lifecycle;
use evenkeel_maintenance_manager::{MaintenanceManager, Settings, SilentNodeWatch};
use evenkeel_proto::hostmgr::UpdateInstanceStateStatusByHostGuidRequest;
use evenkeel_proto::hostmgr::hostmgr_server::Hostmgr as _;
use evenkeel_proto::maintmgr::update_status::StatusType as S;
use tonic::{Code, Status};

use crate::fleet::{EimTestNode, sample};
use crate::poll_cost::CountingServer;
use crate::test_server::with_credential;

pub async fn send_heartbeat(
    manager: &MaintenanceManager,
    token: &str,
    eim: &EimTestNode,
) -> Result<(), Status> {
    let request = UpdateInstanceStateStatusByHostGuidRequest {
        host_guid: eim.guid.clone(),
        ..UpdateInstanceStateStatusByHostGuidRequest::default()
    };
    let answer = manager.update_instance_state_status_by_host_guid(with_credential(token, request));
    answer.await.map(drop)
}

impl CountingServer {
    /// Sends a heartbeat. Returns the number of transactions that it took.
    async fn send_heartbeat(&self, eim: &EimTestNode) -> (Result<(), Status>, u64) {
        let token = self.server.eim_token();
        let (answer, _, transactions) =
            self.count_queries(send_heartbeat(&self.manager, &token, eim)).await;
        (answer, transactions)
    }

    /// Sends heartbeats until they are answered from the cache.
    async fn assert_heartbeats_are_cached(&self, eim: &EimTestNode) {
        self.catch_up().await;
        self.send_status(eim, sample(S::UpToDate)).await;
        self.send_heartbeat(eim).await.0.expect("heard");
        self.catch_up().await;
        self.send_status(eim, sample(S::UpToDate)).await;
        self.send_heartbeat(eim).await.0.expect("heard");
        for _ in 0..3 {
            let (heard, transactions) = self.send_heartbeat(eim).await;
            heard.expect("heard");
            assert_eq!(transactions, 0);
        }
    }
}

#[tokio::test]
async fn an_unchanged_heartbeat_costs_no_query() {
    let counted = CountingServer::new().await;
    let (server, eim) = (&counted.server, counted.server.eim_node(1).await);
    server.send_status(&eim, sample(S::UpToDate)).await;
    counted.assert_heartbeats_are_cached(&eim).await;
    assert_eq!(server.host_status(eim.host).await, "Running");
}

#[tokio::test]
async fn a_heartbeat_is_processed_when_its_node_has_changed() {
    let counted = CountingServer::new().await;
    let (server, eim) = (&counted.server, counted.server.eim_node(1).await);
    server.send_status(&eim, sample(S::UpToDate)).await;
    counted.assert_heartbeats_are_cached(&eim).await;

    assert_eq!(server.silent_for(eim.instance, 10).await, 1);
    assert_eq!(server.host_status(eim.host).await, "No Connection");
    counted.catch_up().await;
    counted.send_heartbeat(&eim).await.0.expect("heard");
    assert_eq!(server.host_status(eim.host).await, "Running");
    counted.assert_heartbeats_are_cached(&eim).await;

    server.invalidate(eim.instance).await;
    counted.catch_up().await;
    let refused = counted.send_heartbeat(&eim).await.0.expect_err("it was invalidated");
    assert_eq!(refused.code(), Code::Unauthenticated);
}

#[tokio::test]
async fn a_node_cannot_send_heartbeats_for_another() {
    let counted = CountingServer::new().await;
    let (server, eim) = (&counted.server, counted.server.eim_node(9).await);
    let mine = server.node().await;
    server.send_status(&eim, sample(S::UpToDate)).await;
    counted.assert_heartbeats_are_cached(&eim).await;
    let refused = send_heartbeat(&counted.manager, &server.host_token(mine.host), &eim).await;
    let refused = refused.expect_err("another host");
    assert_eq!(refused.code(), Code::PermissionDenied);
    let other_project = server.in_new_project("another").await;
    let refused = send_heartbeat(&counted.manager, &other_project.eim_token(), &eim).await;
    let refused = refused.expect_err("another project");
    assert_eq!(refused.code(), Code::NotFound);
}

#[tokio::test]
async fn a_cached_heartbeat_is_a_sign_of_life() {
    let counted = CountingServer::new().await;
    let (server, eim) = (&counted.server, counted.server.eim_node(1).await);
    server.send_status(&eim, sample(S::UpToDate)).await;
    counted.assert_heartbeats_are_cached(&eim).await;
    server.advance_minutes(8);
    let (heard, transactions) = counted.send_heartbeat(&eim).await;
    heard.expect("heard");
    assert_eq!(transactions, 0);
    let life = Lifecycle::new();
    counted.manager.start_contacts(&life);
    life.stop();
    life.run_until_stopped(Duration::from_secs(20)).await;

    server.advance_minutes(4);
    let watch =
        SilentNodeWatch::new(server.store.clone(), server.shared_clock(), &Settings::default());
    assert_eq!(watch.pass().await.expect("a pass"), 0, "it was heard");
    server.advance_minutes(4);
    assert_eq!(watch.pass().await.expect("a pass"), 1);
}
