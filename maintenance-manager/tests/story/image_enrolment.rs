//! Enrolment of machines that run images: only with an image of the catalogue.

use evenkeel_domain::os::{OsRelease as Release, OsSpec};
use evenkeel_proto::agent::{BootedImage, EnrollRequest, OsRelease};
use evenkeel_store::testing::drop_check_constraints;
use evenkeel_store::{hosts, os_profiles};
use tonic::Code;
use uuid::Uuid;

use crate::image_nodes::{edge_image, facts_after_boot};
use crate::test_server::{TestNode, TestServer, enroll_request};

const MACHINE: u128 = 7;

/// The request of a machine that runs an image of the profile `edge`, whose release has no name.
fn enroll_request_with_image(token: &str, version: &str) -> EnrollRequest {
    EnrollRequest {
        os_release: Some(OsRelease::default()),
        booted_image: Some(edge_image(version)),
        ..enroll_request(token, MACHINE, 1)
    }
}

impl TestServer {
    /// The reason of a refusal. Nothing of the machine may be stored.
    async fn refusal(&self, request: EnrollRequest) -> String {
        let refused = self.send_enroll_request(request).await.expect_err("refused");
        assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
        let tx = self.tx().await;
        let existing = hosts::find_registered(&tx, Uuid::from_u128(MACHINE), None).await;
        assert!(existing.expect("an answer").is_none(), "nothing is stored");
        refused.message().to_owned()
    }
}

#[tokio::test]
async fn a_machine_enrols_with_an_image_of_the_catalogue() {
    let server = TestServer::new().await;
    let os = server.add_image("3.0.1").await;
    let token = server.join_token(true, true).await;
    let first = server.send_enroll_request(enroll_request_with_image(&token, "3.0.1")).await;
    let node = TestNode::from_enrolment(first.expect("enrolled"));
    assert_eq!(server.node_state(&node).await.os, os);
    let again = server.send_enroll_request(enroll_request_with_image(&token, "3.0.1")).await;
    let again = TestNode::from_enrolment(again.expect("its answer was lost"));
    assert_eq!(again.instance, node.instance);
    server.report_facts(&node, facts_after_boot("3.0.1")).await;
    assert_eq!(server.conditions(node.instance).await, []);
}

#[tokio::test]
async fn a_machine_with_an_unknown_image_waits_until_it_is_in_the_catalogue() {
    let server = TestServer::new().await;
    server.add_image("3.0.1").await;
    let token = server.join_token(true, true).await;
    assert_eq!(
        server.refusal(enroll_request_with_image(&token, "3.0.2")).await,
        "the catalogue has no image edge 3.0.2 for amd64: add it with `evenkeel os create`"
    );
    let os = server.add_image("3.0.2").await;
    let answer = server.send_enroll_request(enroll_request_with_image(&token, "3.0.2")).await;
    let node = TestNode::from_enrolment(answer.expect("the token is still valid"));
    assert_eq!(server.node_state(&node).await.os, os);
}

#[tokio::test]
async fn an_image_for_another_architecture_is_another_image() {
    let server = TestServer::new().await;
    server.add_image("3.0.1").await;
    let token = server.join_token(true, true).await;
    let arm = EnrollRequest {
        architecture: "arm64".into(),
        ..enroll_request_with_image(&token, "3.0.1")
    };
    assert_eq!(
        server.refusal(arm).await,
        "the catalogue has no image edge 3.0.1 for arm64: add it with `evenkeel os create`"
    );
}

/// The machine repeats its request until a newer server answers it.
#[tokio::test]
async fn a_machine_with_an_image_of_an_unknown_kind_tries_again() {
    let server = TestServer::new().await;
    server.add_image("3.0.1").await;
    let token = server.join_token(true, true).await;
    drop_check_constraints(&server.store).await;
    let sql =
        "BEGIN; SET LOCAL evenkeel.tenant = '*'; UPDATE os_profiles SET kind = 'atomic'; COMMIT";
    server.store.execute_unprepared(sql).await.expect("written");
    let request = enroll_request_with_image(&token, "3.0.1");
    let refused = server.send_enroll_request(request).await.expect_err("not enrolled");
    assert_eq!(refused.code(), Code::Unavailable, "{refused}");
}

#[tokio::test]
async fn a_package_profile_is_never_accepted_as_an_image() {
    let server = TestServer::new().await;
    let release = Release { id: "debian".into(), version_id: "12".into(), ..Release::default() };
    let spec = OsSpec::from_release(&release, "amd64").expect("an os");
    let tx = server.tx().await;
    let created = os_profiles::find_or_create(&tx, &spec, server.now()).await;
    created.expect("an os");
    tx.commit().await.expect("committed");
    let token = server.join_token(true, true).await;
    let image = |profile_name: &str, image_id: &str| EnrollRequest {
        booted_image: Some(BootedImage {
            profile_name: profile_name.into(),
            image_id: image_id.into(),
        }),
        ..enroll_request(&token, MACHINE, 1)
    };
    for (profile, version) in [("debian-12", "12"), ("", ""), ("a\0b", "\0")] {
        server.refusal(image(profile, version)).await;
    }
    server.refusal(image(&"x".repeat(1 << 20), "12")).await;
}

#[tokio::test]
async fn an_agent_without_an_image_enrols_with_its_release() {
    let server = TestServer::new().await;
    let image = server.add_image("3.0.1").await;
    let node = server.node().await;
    let os_id = server.node_state(&node).await.os;
    assert_ne!(os_id, image);
    let tx = server.tx().await;
    let os = os_profiles::find(&tx, os_id).await.expect("an os");
    assert_eq!(os.spec.profile_name, "debian-12");
}

/// People have set what the instance shall run. What it really runs is reported in its facts.
#[tokio::test]
async fn a_machine_that_was_registered_with_an_instance_enrols_with_any_image() {
    let server = TestServer::new().await;
    let os = server.add_image("3.0.1").await;
    let registered = server.eim_node_with_os(1, os).await;
    let token = server.join_token(true, true).await;
    let machine = Uuid::parse_str(&registered.guid).expect("a UUID");
    let request = EnrollRequest {
        booted_image: Some(edge_image("3.0.9")),
        ..enroll_request(&token, machine.as_u128(), 1)
    };
    let node =
        TestNode::from_enrolment(server.send_enroll_request(request).await.expect("enrolled"));
    assert_eq!(node.instance, registered.instance);
    server.report_facts(&node, facts_after_boot("3.0.9")).await;
    let kinds = server.conditions(node.instance).await;
    let names: Vec<_> = kinds.iter().map(|kind| kind.name()).collect();
    assert_eq!(names, ["unknown_image"]);
    assert_eq!(server.node_state(&node).await.os, os);
}
