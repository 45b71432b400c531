//! Tokens of issuers outside, as the ancestor's nodes have them: each belongs to the host that used it first.

use std::sync::Arc;

use chrono::TimeDelta;
use evenkeel_auth::{Authority, Keys, OutsideIssuer, Role};
use evenkeel_kit::clock::Clock;
use evenkeel_maintenance_manager::{MaintenanceManager, Settings};
use evenkeel_proto::hostmgr::UpdateInstanceStateStatusByHostGuidRequest;
use evenkeel_proto::hostmgr::hostmgr_server::Hostmgr;
use evenkeel_proto::maintmgr::PlatformUpdateStatusRequest;
use evenkeel_proto::maintmgr::maintmgr_service_server::MaintmgrService;
use evenkeel_proto::maintmgr::update_status::StatusType as S;
use evenkeel_store::testing::counting;
use evenkeel_store::{Store, hosts, instances, node_tokens};
use sha2::{Digest, Sha256};
use tonic::{Code, Status};

use crate::fleet::{OldNode, sample};
use crate::house::House;
use crate::replicas::audited;
use crate::words::with;

const HOUR: TimeDelta = TimeDelta::hours(1);

/// A house that trusts an issuer outside, and that issuer.
struct Estate {
    house: House,
    manager: MaintenanceManager,
    login: Authority,
    folder: tempfile::TempDir,
}

impl Estate {
    async fn new() -> Self {
        let house = House::new().await;
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
        let manager = manager(&house, &folder, house.store.clone());
        house.follow(&manager).await;
        Self {
            house,
            manager,
            login,
            folder,
        }
    }

    /// Another process on the same database.
    async fn replica(&self) -> MaintenanceManager {
        let manager = manager(&self.house, &self.folder, self.house.store.clone());
        self.house.follow(&manager).await;
        manager
    }

    /// A token as the issuer gives one to each node.
    fn token(&self, subject: &str) -> String {
        let role = Role::Node(self.house.tenant.uuid());
        let now = self.house.time();
        let issued = self.login.issue_operator(subject, &[role], HOUR, now);
        issued.expect("a token").token.reveal().to_owned()
    }

    async fn say(&self, token: &str, node: &OldNode) -> Result<(), Status> {
        say(&self.manager, token, node).await
    }
}

fn manager(house: &House, folder: &tempfile::TempDir, store: Store) -> MaintenanceManager {
    let (issuer, path) = (
        "https://login.example/realms/master",
        folder.path().join("jwks.json"),
    );
    let issuer = OutsideIssuer::open(issuer, None, &path).expect("an issuer");
    let ours = Keys::open(&folder.path().join("ours")).expect("keys");
    let authority = Authority::new(ours, evenkeel_auth::Settings::default()).accept(issuer);
    let clock = Arc::clone(&house.clock) as Arc<dyn Clock>;
    let settings = audited(Settings::default());
    MaintenanceManager::new(store, clock, Arc::new(authority), settings)
}

async fn say(manager: &MaintenanceManager, token: &str, node: &OldNode) -> Result<(), Status> {
    let request = PlatformUpdateStatusRequest {
        host_guid: node.guid.clone(),
        update_status: Some(sample(S::UpToDate)),
    };
    manager.caught_up().await;
    let answer = manager.platform_update_status(with(token, request)).await;
    answer.map(drop)
}

async fn beat(manager: &MaintenanceManager, token: &str, node: &OldNode) -> Result<(), Status> {
    let request = UpdateInstanceStateStatusByHostGuidRequest {
        host_guid: node.guid.clone(),
        ..UpdateInstanceStateStatusByHostGuidRequest::default()
    };
    manager.caught_up().await;
    let answer = manager.update_instance_state_status_by_host_guid(with(token, request));
    answer.await.map(drop)
}

fn refused(answer: &Result<(), Status>) -> Code {
    answer.as_ref().expect_err("refused").code()
}

#[tokio::test]
async fn a_token_from_outside_speaks_for_the_host_that_used_it_first_and_no_other() {
    let estate = Estate::new().await;
    let (one, another) = (
        estate.house.old_node(1).await,
        estate.house.old_node(2).await,
    );
    let token = estate.token("edge-node-1");
    estate.say(&token, &one).await.expect("answered");
    estate.say(&token, &one).await.expect("answered again");
    for _ in 0..3 {
        let answer = estate.say(&token, &another).await;
        assert_eq!(refused(&answer), Code::PermissionDenied);
        let answer = beat(&estate.manager, &token, &another).await;
        assert_eq!(refused(&answer), Code::PermissionDenied);
    }
    estate.say(&token, &one).await.expect("it is still its own");
    // The nodes get new tokens all the time, and may have the same subject.
    let fresh = estate.token("edge-node-1");
    estate.say(&fresh, &another).await.expect("answered");
}

#[tokio::test]
async fn every_replica_knows_whose_a_token_is() {
    let estate = Estate::new().await;
    let (one, another) = (
        estate.house.old_node(1).await,
        estate.house.old_node(2).await,
    );
    let token = estate.token("edge-node-1");
    beat(&estate.manager, &token, &one).await.expect("answered");
    let replica = estate.replica().await;
    let answer = say(&replica, &token, &another).await;
    assert_eq!(refused(&answer), Code::PermissionDenied);
    say(&replica, &token, &one).await.expect("answered");
}

#[tokio::test]
async fn whose_a_token_is_costs_nothing_once_it_is_known() {
    let estate = Estate::new().await;
    let node = estate.house.old_node(1).await;
    // It follows no changes, so all is looked at in the database.
    let (store, counts) = counting(&estate.house.store);
    let manager = manager(&estate.house, &estate.folder, store);
    let token = estate.token("edge-node-1");
    let statements = async || {
        let (before, _) = counts.both();
        say(&manager, &token, &node).await.expect("answered");
        counts.both().0 - before
    };
    let first = statements().await;
    let (second, third) = (statements().await, statements().await);
    assert!(first > second, "{first} {second}");
    // As many as with a token that names its host.
    let named = estate.house.authority.issue_node(
        estate.house.tenant.uuid(),
        &node.host.to_string(),
        HOUR,
        estate.house.time(),
    );
    let named = named.expect("a token").token.reveal().to_owned();
    let (store, counts) = counting(&estate.house.store);
    let plain = MaintenanceManager::new(
        store,
        Arc::clone(&estate.house.clock) as Arc<dyn Clock>,
        Arc::clone(&estate.house.authority),
        Settings::default(),
    );
    say(&plain, &named, &node).await.expect("answered");
    assert_eq!(third, counts.both().0);
}

#[tokio::test]
async fn what_is_not_there_or_not_trusted_takes_no_token() {
    let estate = Estate::new().await;
    let node = estate.house.old_node(1).await;
    let token = estate.token("edge-node-1");
    let nobody = OldNode {
        guid: uuid::Uuid::from_u128(0xDEAD).to_string(),
        ..estate.house.old_node(2).await
    };
    let answer = estate.say(&token, &nobody).await;
    assert_eq!(refused(&answer), Code::NotFound);
    estate.say(&token, &node).await.expect("answered");
}

#[tokio::test]
async fn a_machine_that_is_registered_anew_has_its_token_back() {
    let estate = Estate::new().await;
    let node = estate.house.old_node(1).await;
    let token = estate.token("edge-node-1");
    estate.say(&token, &node).await.expect("answered");
    let tx = estate.house.tx().await;
    instances::delete(&tx, node.instance)
        .await
        .expect("deleted");
    hosts::delete(&tx, node.host).await.expect("deleted");
    tx.commit().await.expect("committed");
    let anew = estate.house.old_node(1).await;
    assert_ne!(anew.host, node.host);
    // What this process remembers is that of the host that is gone; it looks again at the next call.
    let answer = estate.say(&token, &anew).await;
    assert_eq!(refused(&answer), Code::PermissionDenied);
    estate.say(&token, &anew).await.expect("answered");
}

#[tokio::test]
async fn a_token_is_known_by_what_is_signed_in_it() {
    let estate = Estate::new().await;
    let (one, another) = (
        estate.house.old_node(1).await,
        estate.house.old_node(2).await,
    );
    let token = estate.token("edge-node-1");
    estate.say(&token, &one).await.expect("answered");
    let signed = token.rsplit_once('.').expect("three parts").0;
    let tx = estate.house.tx().await;
    let bound = node_tokens::find(&tx, &Sha256::digest(signed).into()).await;
    assert_eq!(bound.expect("an answer"), Some(one.host));
    drop(tx);
    // The form of the header makes no other token of it.
    let request = PlatformUpdateStatusRequest {
        host_guid: another.guid.clone(),
        update_status: Some(sample(S::UpToDate)),
    };
    let mut request = with(&token, request);
    let header = format!("bearer   {token} ").parse().expect("a header");
    request.metadata_mut().insert("authorization", header);
    let answer = estate.manager.platform_update_status(request).await;
    assert_eq!(refused(&answer.map(drop)), Code::PermissionDenied);
}

#[tokio::test]
async fn tokens_that_have_expired_are_thrown_away() {
    let estate = Estate::new().await;
    let node = estate.house.old_node(1).await;
    let token = estate.token("edge-node-1");
    estate.say(&token, &node).await.expect("answered");
    let swept = async || estate.house.sweep(Settings::default()).await.tokens;
    assert_eq!(swept().await, 0);
    estate.house.pass(3 * 60);
    assert_eq!(swept().await, 1);
    let answer = estate.say(&token, &node).await;
    assert_eq!(refused(&answer), Code::Unauthenticated);
}
