//! The ancestor's agents' door, told as stories.

use crate::house::{House, NOON, TestNode};
use evenkeel_domain::host::Registration;
use evenkeel_domain::instance::{InstanceKind, NewInstance};
use evenkeel_domain::os::{OsRelease, OsSpec, SecurityFeature};
use evenkeel_domain::text::Name;
use evenkeel_proto::maintmgr::update_status::StatusType as S;
use evenkeel_store::{hosts, instances, os_profiles};
use tonic::Code;

const GUID: &str = "A1B2C3D4-0000-4000-8000-0000000000FF";

/// A node that was registered and provisioned as the ancestor's are: over REST.
async fn node(house: &House) -> TestNode {
    let tx = house
        .store
        .tenant(house.tenant)
        .await
        .expect("a transaction");
    let registration = Registration::parse("edge-01", GUID, "", true).expect("a registration");
    let host = hosts::register(&tx, &registration, NOON)
        .await
        .expect("a host");
    let release = OsRelease {
        id: "ubuntu".into(),
        version_id: "24.04".into(),
        ..OsRelease::default()
    };
    let spec = OsSpec::of_release(&release, "amd64").expect("a profile");
    let os = os_profiles::ensure(&tx, &spec, NOON).await.expect("an os");
    let new = NewInstance {
        host: host.id,
        os: os.id,
        name: Name::default(),
        kind: InstanceKind::Metal,
        security_feature: SecurityFeature::None,
        policy: None,
        local_account: None,
        custom_configs: Vec::new(),
    };
    let instance = instances::create(&tx, &new, NOON)
        .await
        .expect("an instance");
    tx.commit().await.expect("committed");
    TestNode {
        host: host.id,
        instance: instance.id,
        credential: String::new(),
    }
}

#[tokio::test]
async fn an_update_as_it_is_sampled() {
    let house = House::new().await;
    let node = node(&house).await;
    let policy = house.policy(&node, "curl\njq=1.6").await;
    house.window(node.host, 10, 60).await;

    // The identifier is known in either case, and the first sample is a baseline.
    let answer = house
        .sample(&GUID.to_lowercase(), S::Updated, "")
        .await
        .expect("an answer");
    assert!(house.runs(&node).await.is_empty());
    assert_eq!(answer.installed_packages, "curl\njq");
    let window = answer
        .update_schedule
        .and_then(|s| s.single_schedule)
        .expect("a window");
    assert_eq!(window.end_seconds - window.start_seconds, 50 * 60);

    house
        .sample(GUID, S::UpToDate, "")
        .await
        .expect("an answer");
    house.pass(11);
    for kind in [S::Started, S::Started, S::Updated, S::Updated, S::UpToDate] {
        house.sample(GUID, kind, "").await.expect("an answer");
    }
    assert_eq!(
        house.told(&node).await,
        "began->applying finished->succeeded"
    );
    assert_eq!(house.runs(&node).await[0].origin.policy_id(), Some(policy));
    assert_eq!(house.shown(&node).await, "No new updates available");
}

#[tokio::test]
async fn a_fast_update_that_was_never_seen_to_start_has_its_run() {
    let house = House::new().await;
    let node = node(&house).await;
    for kind in [S::UpToDate, S::Updated, S::Updated, S::UpToDate] {
        house.sample(GUID, kind, "").await.expect("an answer");
    }
    assert_eq!(house.told(&node).await, "finished->succeeded");
}

#[tokio::test]
async fn a_repeated_failure_is_one_failure() {
    let house = House::new().await;
    let node = node(&house).await;
    let detail = r#"{"UpdateLog":[{"StatusDetail.Status":"FAIL","FailureReason":"download"}]}"#;
    house
        .sample(GUID, S::UpToDate, "")
        .await
        .expect("an answer");
    // What stood there from the beginning may belong to an earlier update: it is believed when it stays.
    for kind in [S::Started, S::Failed, S::Failed, S::Failed] {
        house.sample(GUID, kind, detail).await.expect("an answer");
        house.pass(1);
    }
    assert_eq!(house.told(&node).await, "began->applying failed->failed");
    assert_eq!(house.shown(&node).await, "Update failed");
}

#[tokio::test]
async fn everything_is_present_in_an_answer_also_without_a_policy() {
    let house = House::new().await;
    node(&house).await;
    let answer = house
        .sample(GUID, S::UpToDate, "")
        .await
        .expect("an answer");
    assert!(answer.update_source.is_some());
    assert!(answer.os_profile_update_source.is_some());
    let schedule = answer
        .update_schedule
        .expect("a schedule, so that it cancels");
    assert!(schedule.single_schedule.is_none());
}

#[tokio::test]
async fn who_is_unknown_is_told_so() {
    let house = House::new().await;
    node(&house).await;
    let code = |guid: &'static str| {
        let house = &house;
        async move {
            house
                .sample(guid, S::UpToDate, "")
                .await
                .expect_err("refused")
                .code()
        }
    };
    assert_eq!(code("").await, Code::InvalidArgument);
    assert_eq!(code("not-a-uuid").await, Code::InvalidArgument);
    assert_eq!(
        code("a1b2c3d4-0000-4000-8000-000000000000").await,
        Code::NotFound
    );
}

#[tokio::test]
async fn an_oversized_detail_is_cut_and_its_outcome_kept() {
    let house = House::new().await;
    let node = node(&house).await;
    house
        .sample(GUID, S::UpToDate, "")
        .await
        .expect("an answer");
    house.sample(GUID, S::Started, "").await.expect("an answer");
    house
        .sample(GUID, S::Failed, &"x\0".repeat(5 << 20))
        .await
        .expect("an answer");
    let run = &house.runs(&node).await[0];
    assert_eq!(run.state.name(), "failed");
    assert!(run.log.len() <= 100_000 && run.log.ends_with("[cut]"));
}

#[tokio::test]
async fn what_was_given_up_for_lack_of_news_is_not_begun_anew_and_its_end_still_counts() {
    let house = House::new().await;
    let node = node(&house).await;
    for kind in [S::UpToDate, S::Started] {
        house.sample(GUID, kind, "").await.expect("an answer");
    }
    house.pass(25 * 60);
    assert_eq!(house.track().await, 1);
    // A fault of its sampling in between changes nothing.
    for kind in [S::Started, S::Failed, S::Started] {
        house.sample(GUID, kind, "").await.expect("an answer");
        assert_eq!(house.runs(&node).await.len(), 1);
    }
    house.sample(GUID, S::Updated, "").await.expect("an answer");
    assert_eq!(
        house.told(&node).await,
        "began->applying timed_out->abandoned finished->succeeded"
    );
}

#[tokio::test]
async fn an_end_after_a_rest_is_not_that_of_a_run_that_was_given_up() {
    let house = House::new().await;
    let node = node(&house).await;
    for kind in [S::UpToDate, S::Started] {
        house.sample(GUID, kind, "").await.expect("an answer");
    }
    house.pass(25 * 60);
    assert_eq!(house.track().await, 1);
    for kind in [S::UpToDate, S::Updated] {
        house.sample(GUID, kind, "").await.expect("an answer");
    }
    let mut states: Vec<_> = house.runs(&node).await;
    states.sort_by_key(|run| run.started_at);
    let states: Vec<_> = states.iter().map(|run| run.state.name()).collect();
    assert_eq!(states, ["abandoned", "succeeded"]);
}

#[tokio::test]
async fn what_a_node_always_said_is_shown_without_a_run() {
    let house = House::new().await;
    let node = node(&house).await;
    for _ in 0..2 {
        house
            .sample(GUID, S::Failed, "old news")
            .await
            .expect("an answer");
    }
    assert!(house.runs(&node).await.is_empty());
    assert_eq!(house.shown(&node).await, "Update failed");
}

#[tokio::test]
async fn a_wish_that_was_delivered_is_the_one_that_began() {
    let house = House::new().await;
    let node = node(&house).await;
    let first = house.policy(&node, "curl").await;
    house.window(node.host, 1, 60).await;
    house
        .sample(GUID, S::UpToDate, "")
        .await
        .expect("an answer");
    house.pass(2);
    house.policy(&node, "jq").await;
    house.sample(GUID, S::Started, "").await.expect("an answer");
    assert_eq!(house.runs(&node).await[0].origin.policy_id(), Some(first));
}

#[tokio::test]
async fn an_agent_of_the_ancestor_beside_ours_moves_nothing_and_gets_no_window() {
    let house = House::new().await;
    let node = house.node().await;
    let policy = house.policy(&node, "demo-hello=1.1").await;
    house.window(node.host, 1, 60).await;
    house.pass(2);
    let begun = [(1, crate::house::downloading()), (2, crate::house::began())];
    house.report(&node, 1, policy, &begun).await;
    let guid = uuid::Uuid::from_u128(1).to_string();
    for kind in [S::UpToDate, S::Failed, S::Started] {
        let answer = house.sample(&guid, kind, "x").await.expect("an answer");
        let schedule = answer.update_schedule.expect("present");
        assert!(schedule.single_schedule.is_none());
    }
    assert_eq!(house.runs(&node).await[0].state.name(), "applying");
}
