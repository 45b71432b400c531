//! Tokens of external issuers, as EIM nodes have them: each is bound, with its subject, to the host
//! that used it first.

use std::sync::Arc;

use chrono::TimeDelta;
use evenkeel_auth::{Authority, ExternalIssuer, Keys, NodeBinding, NodePattern, Role};
use evenkeel_maintenance_manager::{LoadSettings, MaintenanceManager, Settings};
use evenkeel_proto::hostmgr::UpdateInstanceStateStatusByHostGuidRequest;
use evenkeel_proto::hostmgr::hostmgr_server::Hostmgr;
use evenkeel_proto::maintmgr::PlatformUpdateStatusRequest;
use evenkeel_proto::maintmgr::maintmgr_service_server::MaintmgrService;
use evenkeel_proto::maintmgr::update_status::StatusType as S;
use evenkeel_store::testing::counting_store;
use evenkeel_store::{Store, hosts, instances, node_tokens};
use futures_util::future::join_all;
use sha2::{Digest, Sha256};
use tonic::{Code, Status};

use crate::fleet::{EimTestNode, sample};
use crate::messages::with_credential;
use crate::replicas::with_full_audit;
use crate::test_server::TestServer;

const HOUR: TimeDelta = TimeDelta::hours(1);

/// A server that trusts an external issuer, and that issuer.
struct TokenFixture {
    server: TestServer,
    manager: MaintenanceManager,
    login: Authority,
    folder: tempfile::TempDir,
}

impl TokenFixture {
    async fn new() -> Self {
        Self::with_binding(NodeBinding::FirstHost).await
    }

    /// A server that binds the tokens of the issuer in this way.
    async fn with_binding(binding: NodeBinding) -> Self {
        let server = TestServer::new().await;
        let folder = tempfile::tempdir().expect("a folder");
        let settings = evenkeel_auth::Settings {
            issuer: "https://login.example/realms/master".to_owned(),
            audience: "account".to_owned(),
            ..evenkeel_auth::Settings::default()
        };
        let keys = Keys::open(&folder.path().join("theirs")).expect("keys");
        let login = Authority::new(keys, settings);
        let jwks = login.jwks().to_string();
        std::fs::write(folder.path().join("jwks.json"), jwks).expect("written");
        let manager = new_manager_with(&server, &folder, server.store.clone(), |issuer| {
            issuer.with_node_binding(binding)
        });
        server.follow(&manager).await;
        Self { server, manager, login, folder }
    }

    /// Another process on the same database.
    async fn replica(&self) -> MaintenanceManager {
        let manager = new_manager(&self.server, &self.folder, self.server.store.clone());
        self.server.follow(&manager).await;
        manager
    }

    /// A token as the issuer gives one to each node.
    fn token(&self, subject: &str) -> String {
        let role = Role::Node(self.server.tenant.uuid());
        let now = self.server.now();
        let issued = self.login.issue_operator(subject, &[role], HOUR, now);
        issued.expect("a token").token.reveal().to_owned()
    }

    async fn send_status(&self, token: &str, node: &EimTestNode) -> Result<(), Status> {
        send_status(&self.manager, token, node).await
    }
}

fn new_manager(
    server: &TestServer,
    folder: &tempfile::TempDir,
    store: Store,
) -> MaintenanceManager {
    new_manager_with(server, folder, store, |issuer| issuer)
}

fn new_manager_with(
    server: &TestServer,
    folder: &tempfile::TempDir,
    store: Store,
    configure: impl FnOnce(ExternalIssuer) -> ExternalIssuer,
) -> MaintenanceManager {
    new_manager_with_settings(server, folder, store, (Settings::default(), configure))
}

fn new_manager_with_settings(
    server: &TestServer,
    folder: &tempfile::TempDir,
    store: Store,
    (settings, configure): (Settings, impl FnOnce(ExternalIssuer) -> ExternalIssuer),
) -> MaintenanceManager {
    let (issuer, path) = ("https://login.example/realms/master", folder.path().join("jwks.json"));
    let issuer = ExternalIssuer::open(issuer, None, &path).expect("an issuer");
    let ours = Keys::open(&folder.path().join("ours")).expect("keys");
    let authority =
        Authority::new(ours, evenkeel_auth::Settings::default()).accept(configure(issuer));
    let clock = server.shared_clock();
    let settings = with_full_audit(settings);
    let ca = Arc::clone(&server.ca);
    let manager = MaintenanceManager::new(store, clock, Arc::new(authority), ca, settings);
    manager.expect("valid settings")
}

async fn send_status(
    manager: &MaintenanceManager,
    token: &str,
    node: &EimTestNode,
) -> Result<(), Status> {
    let request = PlatformUpdateStatusRequest {
        host_guid: node.guid.clone(),
        update_status: Some(sample(S::UpToDate)),
    };
    manager.wait_until_caught_up().await;
    let answer = manager.platform_update_status(with_credential(token, request)).await;
    answer.map(drop)
}

async fn send_heartbeat(
    manager: &MaintenanceManager,
    token: &str,
    node: &EimTestNode,
) -> Result<(), Status> {
    let request = UpdateInstanceStateStatusByHostGuidRequest {
        host_guid: node.guid.clone(),
        ..UpdateInstanceStateStatusByHostGuidRequest::default()
    };
    manager.wait_until_caught_up().await;
    let answer = manager.update_instance_state_status_by_host_guid(with_credential(token, request));
    answer.await.map(drop)
}

fn refusal_code(answer: &Result<(), Status>) -> Code {
    answer.as_ref().expect_err("refused").code()
}

#[tokio::test]
async fn the_nodes_of_a_project_do_not_all_wait_until_their_tokens_are_bound() {
    let fixture = TokenFixture::new().await;
    let load = LoadSettings { query_call_limit: 2, ..LoadSettings::default() };
    let settings = Settings { load, ..Settings::default() };
    let store = fixture.server.store.clone();
    let configured = (settings, |issuer: ExternalIssuer| issuer);
    let manager = new_manager_with_settings(&fixture.server, &fixture.folder, store, configured);
    fixture.server.follow(&manager).await;
    let nodes = [fixture.server.eim_node(1).await, fixture.server.eim_node(2).await];
    let tokens = [fixture.token("edge-node-1"), fixture.token("edge-node-2")];
    manager.wait_until_caught_up().await;
    let send = |number: usize| {
        let request = PlatformUpdateStatusRequest {
            host_guid: nodes[number].guid.clone(),
            update_status: Some(sample(S::UpToDate)),
        };
        manager.platform_update_status(with_credential(&tokens[number], request))
    };
    let answers = join_all([send(0), send(1)]).await;
    answers[0].as_ref().expect("the project may have one call at the database");
    let refused = answers[1].as_ref().expect_err("and no second one");
    assert_eq!(refused.code(), Code::Unavailable, "{refused:?}");
    // It was refused before its token was bound: otherwise the report of another host would be refused.
    let another = fixture.server.eim_node(3).await;
    send_status(&manager, &tokens[1], &another).await.expect("an unused token");
}

#[tokio::test]
async fn an_external_token_is_bound_to_the_first_host_that_uses_it() {
    let fixture = TokenFixture::new().await;
    let (one, another) = (fixture.server.eim_node(1).await, fixture.server.eim_node(2).await);
    let token = fixture.token("edge-node-1");
    fixture.send_status(&token, &one).await.expect("answered");
    fixture.send_status(&token, &one).await.expect("answered again");
    for _ in 0..3 {
        let answer = fixture.send_status(&token, &another).await;
        assert_eq!(refusal_code(&answer), Code::PermissionDenied);
        let answer = send_heartbeat(&fixture.manager, &token, &another).await;
        assert_eq!(refusal_code(&answer), Code::PermissionDenied);
    }
    fixture.send_status(&token, &one).await.expect("it is still its own");
}

/// Nodes get new tokens all the time. A node must not act as another host with its next one.
#[tokio::test]
async fn a_new_token_of_a_node_is_refused_for_another_host() {
    let fixture = TokenFixture::new().await;
    let (one, another) = (fixture.server.eim_node(1).await, fixture.server.eim_node(2).await);
    fixture.send_status(&fixture.token("edge-node-1"), &one).await.expect("answered");
    let replica = fixture.replica().await;
    for manager in [&fixture.manager, &replica] {
        let next = fixture.token("edge-node-1");
        let answer = send_status(manager, &next, &another).await;
        assert_eq!(refusal_code(&answer), Code::PermissionDenied);
        let answer = send_heartbeat(manager, &next, &another).await;
        assert_eq!(refusal_code(&answer), Code::PermissionDenied);
        send_status(manager, &next, &one).await.expect("its own host");
    }
    fixture.send_status(&fixture.token("edge-node-2"), &another).await.expect("answered");
}

/// Another node could otherwise report runs and hardware of a host with our agent.
#[tokio::test]
async fn an_unused_token_is_refused_for_a_host_with_our_own_agent() {
    for binding in [NodeBinding::FirstHost, NodeBinding::TokenOnly] {
        let fixture = TokenFixture::with_binding(binding).await;
        let (one, another) = (fixture.server.eim_node(1).await, fixture.server.eim_node(2).await);
        let first = fixture.token("edge-node-1");
        fixture.send_status(&first, &one).await.expect("answered");
        fixture.server.take_over(&one).await;

        let unused = fixture.token("edge-node-2");
        let answer = fixture.send_status(&unused, &one).await;
        assert_eq!(refusal_code(&answer), Code::PermissionDenied);
        let answer = send_heartbeat(&fixture.manager, &unused, &one).await;
        assert_eq!(refusal_code(&answer), Code::PermissionDenied);
        fixture.send_status(&unused, &another).await.expect("a refused token is not bound");
        fixture.send_status(&first, &one).await.expect("the replaced agent");
    }
}

/// It may have begun an update before, and reports the result.
#[tokio::test]
async fn a_new_token_of_a_replaced_agent_is_accepted() {
    let fixture = TokenFixture::new().await;
    let one = fixture.server.eim_node(1).await;
    fixture.send_status(&fixture.token("edge-node-1"), &one).await.expect("answered");
    fixture.server.take_over(&one).await;
    fixture.send_status(&fixture.token("edge-node-1"), &one).await.expect("answered");
}

#[tokio::test]
async fn nodes_with_a_shared_subject_are_bound_by_their_tokens() {
    let fixture = TokenFixture::with_binding(NodeBinding::TokenOnly).await;
    let (one, another) = (fixture.server.eim_node(1).await, fixture.server.eim_node(2).await);
    let token = fixture.token("all-nodes");
    fixture.send_status(&token, &one).await.expect("answered");
    let answer = fixture.send_status(&token, &another).await;
    assert_eq!(refusal_code(&answer), Code::PermissionDenied);
    fixture.send_status(&fixture.token("all-nodes"), &another).await.expect("answered");
}

#[tokio::test]
async fn a_token_that_names_its_host_is_refused_for_every_other_host() {
    let pattern = NodePattern::new("edgenode-{uuid}").expect("a pattern");
    let fixture = TokenFixture::with_binding(NodeBinding::Pattern(pattern)).await;
    let (one, another) = (fixture.server.eim_node(1).await, fixture.server.eim_node(2).await);
    let token = fixture.token(&format!("edgenode-{}", one.guid));
    // Also before its own host has used it.
    let answer = fixture.send_status(&token, &another).await;
    assert_eq!(refusal_code(&answer), Code::PermissionDenied);
    fixture.send_status(&token, &one).await.expect("answered");
    send_heartbeat(&fixture.manager, &token, &one).await.expect("answered");
    let unnamed = fixture.token("edge-node-1");
    let answer = fixture.send_status(&unnamed, &one).await;
    assert_eq!(refusal_code(&answer), Code::Unauthenticated);
}

#[tokio::test]
async fn every_replica_knows_the_binding_of_a_token() {
    let fixture = TokenFixture::new().await;
    let (one, another) = (fixture.server.eim_node(1).await, fixture.server.eim_node(2).await);
    let token = fixture.token("edge-node-1");
    send_heartbeat(&fixture.manager, &token, &one).await.expect("answered");
    let replica = fixture.replica().await;
    let answer = send_status(&replica, &token, &another).await;
    assert_eq!(refusal_code(&answer), Code::PermissionDenied);
    send_status(&replica, &token, &one).await.expect("answered");
}

#[tokio::test]
async fn a_known_token_binding_costs_no_query() {
    let fixture = TokenFixture::new().await;
    let node = fixture.server.eim_node(1).await;
    // This manager does not follow the change log, so everything is read from the database.
    let (store, counts) = counting_store(&fixture.server.store);
    let manager = new_manager(&fixture.server, &fixture.folder, store);
    let token = fixture.token("edge-node-1");
    let statements = async || {
        let (before, _) = counts.totals();
        send_status(&manager, &token, &node).await.expect("answered");
        counts.totals().0 - before
    };
    let first = statements().await;
    let (second, third) = (statements().await, statements().await);
    assert!(first > second, "{first} {second}");
    // A token that names its host costs as many.
    let role = Role::Node(fixture.server.tenant.uuid());
    let bound_token = fixture.server.token(&node.host.to_string(), &[role]);
    let (store, counts) = counting_store(&fixture.server.store);
    let plain = fixture.server.new_manager(store, Settings::default());
    send_status(&plain, &bound_token, &node).await.expect("answered");
    assert_eq!(third, counts.totals().0);
}

#[tokio::test]
async fn an_unknown_host_binds_no_token() {
    let fixture = TokenFixture::new().await;
    let node = fixture.server.eim_node(1).await;
    let token = fixture.token("edge-node-1");
    let unknown = EimTestNode {
        guid: uuid::Uuid::from_u128(0xDEAD).to_string(),
        ..fixture.server.eim_node(2).await
    };
    let answer = fixture.send_status(&token, &unknown).await;
    assert_eq!(refusal_code(&answer), Code::NotFound);
    fixture.send_status(&token, &node).await.expect("answered");
}

#[tokio::test]
async fn a_host_that_is_registered_again_gets_its_token_back() {
    let fixture = TokenFixture::new().await;
    let node = fixture.server.eim_node(1).await;
    let token = fixture.token("edge-node-1");
    fixture.send_status(&token, &node).await.expect("answered");
    let tx = fixture.server.tx().await;
    instances::delete(&tx, node.instance).await.expect("deleted");
    hosts::delete(&tx, node.host).await.expect("deleted");
    tx.commit().await.expect("committed");
    let registered = fixture.server.eim_node(1).await;
    assert_ne!(registered.host, node.host);
    // The process still remembers the deleted host; the next call reads the binding again.
    let answer = fixture.send_status(&token, &registered).await;
    assert_eq!(refusal_code(&answer), Code::PermissionDenied);
    fixture.send_status(&token, &registered).await.expect("answered");
}

#[tokio::test]
async fn a_token_is_identified_by_its_signed_part() {
    let fixture = TokenFixture::new().await;
    let (one, another) = (fixture.server.eim_node(1).await, fixture.server.eim_node(2).await);
    let token = fixture.token("edge-node-1");
    fixture.send_status(&token, &one).await.expect("answered");
    let signed = token.rsplit_once('.').expect("three parts").0;
    let tx = fixture.server.tx().await;
    let bound = node_tokens::find(&tx, &Sha256::digest(signed).into()).await;
    assert_eq!(bound.expect("an answer"), Some(one.host));
    drop(tx);
    // Another form of the header is still the same token.
    let request = PlatformUpdateStatusRequest {
        host_guid: another.guid.clone(),
        update_status: Some(sample(S::UpToDate)),
    };
    let mut request = with_credential(&token, request);
    let header = format!("bearer   {token} ").parse().expect("a header");
    request.metadata_mut().insert("authorization", header);
    let answer = fixture.manager.platform_update_status(request).await;
    assert_eq!(refusal_code(&answer.map(drop)), Code::PermissionDenied);
}

#[tokio::test]
async fn expired_token_bindings_are_removed() {
    let fixture = TokenFixture::new().await;
    let node = fixture.server.eim_node(1).await;
    let token = fixture.token("edge-node-1");
    fixture.send_status(&token, &node).await.expect("answered");
    let removed = async || fixture.server.run_housekeeping(Settings::default()).await.tokens;
    assert_eq!(removed().await, 0);
    fixture.server.advance_minutes(3 * 60);
    assert_eq!(removed().await, 1);
    let answer = fixture.send_status(&token, &node).await;
    assert_eq!(refusal_code(&answer), Code::Unauthenticated);
}
