//! Instances that are not believed any more.

use evenkeel_domain::id::InstanceId;
use evenkeel_domain::instance::InstanceState;
use evenkeel_proto::agent::PollRequest;
use evenkeel_proto::agent::agent_service_server::AgentService as _;
use evenkeel_proto::maintmgr::update_status::StatusType as S;
use evenkeel_store::{hosts, instances, nodes};
use tonic::Code;

use crate::fleet::sample;
use crate::house::{House, begin, downloading, facts, report, with};
use crate::system_info::machine;

impl House {
    pub async fn invalidate(&self, id: InstanceId) {
        let tx = self.tx().await;
        instances::invalidate(&tx, id, self.time())
            .await
            .expect("invalidated");
        tx.commit().await.expect("committed");
        self.caught_up().await;
    }
}

#[tokio::test]
async fn a_node_whose_instance_was_invalidated_is_not_listened_to() {
    let house = House::new().await;
    let node = house.node().await;
    let policy = house.policy(&node, "demo-hello=1.1").await;
    house.window(node.host, 0, 60).await;
    house.poll(&node).await;
    house.invalidate(node.instance).await;

    let credential = node.credential.as_str();
    let quiet = PollRequest::default();
    let news = PollRequest {
        facts: Some(facts()),
        ..PollRequest::default()
    };
    for request in [quiet, news] {
        let refused = house.manager.poll(with(credential, request)).await;
        assert_eq!(refused.expect_err("a poll").code(), Code::PermissionDenied);
    }
    let events = [(1, downloading())];
    let request = with(credential, report(1, policy, &events));
    let refused = house.manager.report(request).await;
    assert_eq!(
        refused.expect_err("a report").code(),
        Code::PermissionDenied
    );
    let request = with(credential, begin(1, &policy.to_string(), 2));
    let refused = house.manager.begin(request).await;
    assert_eq!(refused.expect_err("a begin").code(), Code::PermissionDenied);
    assert!(house.runs(&node).await.is_empty());
    // It does not come back in by enrolling once more.
    let token = house.join_token(false, true).await;
    let refused = house.enroll(&token, 1, 1).await;
    assert_eq!(
        refused.expect_err("an enrolment").code(),
        Code::PermissionDenied
    );

    let tx = house.tx().await;
    let shown = instances::find(&tx, node.instance).await.expect("there");
    assert_eq!(shown.current, InstanceState::Untrusted);
    assert_eq!(shown.summary.status.text, hosts::INVALIDATED);
}

#[tokio::test]
async fn nor_is_one_of_the_ancestors_and_its_silence_is_not_told() {
    let house = House::new().await;
    let node = house.old_node(1).await;
    house.say(&node, sample(S::UpToDate)).await;
    house.invalidate(node.instance).await;
    let refused = house
        .say_at(&house.manager, &node.guid, sample(S::Started))
        .await;
    assert_eq!(refused.expect_err("a sample").code(), Code::Unauthenticated);
    let before = house.state(node.instance).await;
    assert_eq!(before.status.text, hosts::INVALIDATED);
    assert_eq!(house.silent_for(node.instance, 4).await, 0);
    assert_eq!(house.host_status(node.host).await, "Running", "not yet");
    assert_eq!(house.silent_for(node.instance, 60).await, 0);
    // The machine may be switched off: its host must not look alive for ever.
    assert_eq!(house.host_status(node.host).await, nodes::NO_CONNECTION);
    assert_eq!(house.state(node.instance).await, before);
}

#[tokio::test]
async fn nor_does_its_heart_beat_nor_its_machine_change() {
    let house = House::new().await;
    let node = house.old_node(1).await;
    house.say(&node, sample(S::UpToDate)).await;
    assert_eq!(house.silent_for(node.instance, 60).await, 1);
    house.invalidate(node.instance).await;
    let before = house.state(node.instance).await;
    let beat = house.beat(&node.guid).await;
    let described = house.describe(&node.guid, machine("10.0.0.1")).await;
    for answer in [beat, described] {
        let refused = answer.expect_err("nobody listens");
        assert_eq!(refused.code(), Code::Unauthenticated);
        assert_eq!(refused.message(), "the instance was invalidated");
    }
    assert_eq!(house.host_status(node.host).await, nodes::NO_CONNECTION);
    assert_eq!(house.made_of(node.host).await, None);
    assert_eq!(house.state(node.instance).await, before);
}
