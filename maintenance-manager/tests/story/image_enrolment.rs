//! How machines arrive that run images: with one that the catalogue has, or not at all.

use evenkeel_domain::os::{OsRelease as Release, OsSpec};
use evenkeel_proto::agent::{BootedImage, EnrollRequest, OsRelease};
use evenkeel_store::{hosts, os_profiles};
use tonic::Code;
use uuid::Uuid;

use crate::house::{House, TestNode, arrival};
use crate::image_nodes::{booted, edge};

const MACHINE: u128 = 7;

/// A machine that runs an image of the profile `edge`, whose release has no name.
fn with_image(token: &str, version: &str) -> EnrollRequest {
    EnrollRequest {
        os_release: Some(OsRelease::default()),
        booted_image: Some(edge(version)),
        ..arrival(token, MACHINE, 1)
    }
}

impl House {
    /// Why a machine is not let in. Nothing of it stays.
    async fn refusal(&self, request: EnrollRequest) -> String {
        let refused = self.arrives(request).await.expect_err("not let in");
        assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
        let tx = self.tx().await;
        let known = hosts::find_known(&tx, Uuid::from_u128(MACHINE), None).await;
        assert!(known.expect("an answer").is_none(), "nothing of it stays");
        refused.message().to_owned()
    }
}

#[tokio::test]
async fn a_machine_with_an_image_of_the_catalogue_runs_that_from_the_start() {
    let house = House::new().await;
    let os = house.catalogue("3.0.1").await;
    let token = house.join_token(true, true).await;
    let first = house.arrives(with_image(&token, "3.0.1")).await;
    let node = TestNode::of(first.expect("let in"));
    assert_eq!(house.known(&node).await.os, os);
    let again = house.arrives(with_image(&token, "3.0.1")).await;
    let again = TestNode::of(again.expect("its answer was lost"));
    assert_eq!(again.instance, node.instance);
    house.tell(&node, booted("3.0.1")).await;
    assert_eq!(house.conditions(node.instance).await, []);
}

#[tokio::test]
async fn a_machine_with_an_image_that_nobody_knows_waits_until_it_is_in_the_catalogue() {
    let house = House::new().await;
    house.catalogue("3.0.1").await;
    let token = house.join_token(true, true).await;
    assert_eq!(
        house.refusal(with_image(&token, "3.0.2")).await,
        "the catalogue has no image edge 3.0.2 for amd64: add it with `evenkeel os create`"
    );
    let os = house.catalogue("3.0.2").await;
    let answer = house.arrives(with_image(&token, "3.0.2")).await;
    let node = TestNode::of(answer.expect("the token is as good as before"));
    assert_eq!(house.known(&node).await.os, os);
}

#[tokio::test]
async fn an_image_for_another_architecture_is_another_image() {
    let house = House::new().await;
    house.catalogue("3.0.1").await;
    let token = house.join_token(true, true).await;
    let arm = EnrollRequest {
        architecture: "arm64".into(),
        ..with_image(&token, "3.0.1")
    };
    assert_eq!(
        house.refusal(arm).await,
        "the catalogue has no image edge 3.0.1 for arm64: add it with `evenkeel os create`"
    );
}

#[tokio::test]
async fn what_is_updated_by_packages_is_no_image_whatever_a_machine_calls_it() {
    let house = House::new().await;
    let release = Release {
        id: "debian".into(),
        version_id: "12".into(),
        ..Release::default()
    };
    let spec = OsSpec::of_release(&release, "amd64").expect("an os");
    let tx = house.tx().await;
    let made = os_profiles::ensure(&tx, &spec, house.time()).await;
    made.expect("an os");
    tx.commit().await.expect("committed");
    let token = house.join_token(true, true).await;
    let image = |profile_name: &str, image_id: &str| EnrollRequest {
        booted_image: Some(BootedImage {
            profile_name: profile_name.into(),
            image_id: image_id.into(),
        }),
        ..arrival(&token, MACHINE, 1)
    };
    for (profile, version) in [("debian-12", "12"), ("", ""), ("a\0b", "\0")] {
        house.refusal(image(profile, version)).await;
    }
    house.refusal(image(&"x".repeat(1 << 20), "12")).await;
}

#[tokio::test]
async fn an_agent_of_before_comes_in_as_before() {
    let house = House::new().await;
    let image = house.catalogue("3.0.1").await;
    let node = house.node().await;
    let known = house.known(&node).await.os;
    assert_ne!(known, image);
    let tx = house.tx().await;
    let os = os_profiles::find(&tx, known).await.expect("an os");
    assert_eq!(os.spec.profile_name, "debian-12");
}

/// What its instance shall run, people have said already; what it runs, its facts will tell.
#[tokio::test]
async fn a_machine_that_was_registered_with_an_instance_is_let_in_with_any_image() {
    let house = House::new().await;
    let os = house.catalogue("3.0.1").await;
    let registered = house.old_node_on(1, os).await;
    let token = house.join_token(true, true).await;
    let machine = Uuid::parse_str(&registered.guid).expect("a UUID");
    let request = EnrollRequest {
        booted_image: Some(edge("3.0.9")),
        ..arrival(&token, machine.as_u128(), 1)
    };
    let node = TestNode::of(house.arrives(request).await.expect("let in"));
    assert_eq!(node.instance, registered.instance);
    house.tell(&node, booted("3.0.9")).await;
    let kinds = house.conditions(node.instance).await;
    let names: Vec<_> = kinds.iter().map(|kind| kind.name()).collect();
    assert_eq!(names, ["unknown_image"]);
    assert_eq!(house.known(&node).await.os, os);
}
