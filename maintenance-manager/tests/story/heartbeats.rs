//! The hearts of the ancestor's nodes, which beat every ten seconds each: what that costs, and that nothing is missed for it.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_kit::{Clock, Lifecycle};
use evenkeel_maintenance_manager::{MaintenanceManager, Settings, SilenceWatch};
use evenkeel_proto::hostmgr::UpdateInstanceStateStatusByHostGuidRequest;
use evenkeel_proto::hostmgr::hostmgr_server::Hostmgr as _;
use evenkeel_proto::maintmgr::update_status::StatusType as S;
use tonic::{Code, Status};

use crate::fleet::{OldNode, sample};
use crate::house::with;
use crate::quiet::Counted;

pub async fn beat(manager: &MaintenanceManager, token: &str, old: &OldNode) -> Result<(), Status> {
    let request = UpdateInstanceStateStatusByHostGuidRequest {
        host_guid: old.guid.clone(),
        ..UpdateInstanceStateStatusByHostGuidRequest::default()
    };
    let answer = manager.update_instance_state_status_by_host_guid(with(token, request));
    answer.await.map(drop)
}

impl Counted {
    /// Lets a heart beat. Says how many transactions that took.
    async fn beat(&self, old: &OldNode) -> (Result<(), Status>, u64) {
        let token = self.house.old_token();
        let (answer, _, transactions) = self.sent(beat(&self.manager, &token, old)).await;
        (answer, transactions)
    }

    /// Lets a heart beat until nothing is looked for any more.
    async fn beats_quietly(&self, old: &OldNode) {
        self.catches_up().await;
        self.say(old, sample(S::UpToDate)).await;
        self.beat(old).await.0.expect("heard");
        self.catches_up().await;
        self.say(old, sample(S::UpToDate)).await;
        self.beat(old).await.0.expect("heard");
        for _ in 0..3 {
            let (heard, transactions) = self.beat(old).await;
            heard.expect("heard");
            assert_eq!(transactions, 0);
        }
    }
}

#[tokio::test]
async fn a_heartbeat_that_says_nothing_new_costs_the_database_nothing() {
    let counted = Counted::new().await;
    let (house, old) = (&counted.house, counted.house.old_node(1).await);
    house.say(&old, sample(S::UpToDate)).await;
    counted.beats_quietly(&old).await;
    assert_eq!(house.host_status(old.host).await, "Running");
}

#[tokio::test]
async fn a_heartbeat_is_looked_at_when_something_of_its_node_has_changed() {
    let counted = Counted::new().await;
    let (house, old) = (&counted.house, counted.house.old_node(1).await);
    house.say(&old, sample(S::UpToDate)).await;
    counted.beats_quietly(&old).await;

    assert_eq!(house.silent_for(old.instance, 10).await, 1);
    assert_eq!(house.host_status(old.host).await, "No Connection");
    counted.catches_up().await;
    counted.beat(&old).await.0.expect("heard");
    assert_eq!(house.host_status(old.host).await, "Running");
    counted.beats_quietly(&old).await;

    house.invalidate(old.instance).await;
    counted.catches_up().await;
    let refused = counted.beat(&old).await.0.expect_err("it was invalidated");
    assert_eq!(refused.code(), Code::Unauthenticated);
}

#[tokio::test]
async fn one_node_does_not_beat_for_another() {
    let counted = Counted::new().await;
    let (house, old) = (&counted.house, counted.house.old_node(9).await);
    let mine = house.node().await;
    house.say(&old, sample(S::UpToDate)).await;
    counted.beats_quietly(&old).await;
    let refused = beat(&counted.manager, &mine.credential, &old).await;
    let refused = refused.expect_err("another host");
    assert_eq!(refused.code(), Code::PermissionDenied);
    let beside = house.beside("another").await;
    let refused = beat(&counted.manager, &beside.old_token(), &old).await;
    let refused = refused.expect_err("another project");
    assert_eq!(refused.code(), Code::NotFound);
}

#[tokio::test]
async fn a_heartbeat_that_is_not_looked_at_is_a_sign_of_life() {
    let counted = Counted::new().await;
    let (house, old) = (&counted.house, counted.house.old_node(1).await);
    house.say(&old, sample(S::UpToDate)).await;
    counted.beats_quietly(&old).await;
    house.pass(8);
    let (heard, transactions) = counted.beat(&old).await;
    heard.expect("heard");
    assert_eq!(transactions, 0);
    let life = Lifecycle::new();
    counted.manager.start_contacts(&life);
    life.stop();
    life.run_until_stopped(Duration::from_secs(20)).await;

    house.pass(4);
    let clock = Arc::clone(&house.clock) as Arc<dyn Clock>;
    let watch = SilenceWatch::new(house.store.clone(), clock, &Settings::default());
    assert_eq!(watch.pass().await.expect("a pass"), 0, "it was heard");
    house.pass(4);
    assert_eq!(watch.pass().await.expect("a pass"), 1);
}
