//! Images that are delivered to a node, and the images that it reports.

use super::delivery::Node;
use super::*;
use crate::decide::QuarantinedImage;
use crate::run::ImageChange;
use SampleKind::{Downloading, Started, UpToDate, Updated};

/// A node that runs 3.0.1 and got 3.0.2.
fn with_delivered_image() -> Story {
    let mut story = Story::new(node(OsKind::Immutable));
    story.images = vec![image(1, "3.0.1"), image(2, "3.0.2"), image(3, "3.0.3")];
    story.delivered = DeliveryState {
        single: Some((NOON - hours(1), NOON + hours(1))),
        policy: Some(PolicyId::nth(1)),
        image: Some(image(2, "3.0.2")),
        ..DeliveryState::default()
    };
    story.receive(&sample(UpToDate));
    story
}

#[test]
fn an_echoed_image_proves_the_update() {
    let mut story = with_delivered_image();
    story.receive(&sample(Started));
    let proof = story.receive(&sample_of_image(Updated, "edge", "3.0.2"));
    assert_eq!(proof.image, Some(image(2, "3.0.2")));
    assert_eq!(story.conditions(), []);
    // The same holds if the start was missed, and only once.
    let mut story = with_delivered_image();
    assert!(story.receive(&sample_of_image(Updated, "edge", "3.0.2")).image.is_some());
    assert_eq!(story.receive(&sample_of_image(Updated, "edge", "3.0.2")).image, None);
}

#[test]
fn a_run_names_the_images_before_and_after_it() {
    let mut story = with_delivered_image();
    let mut change = ImageChange {
        profile_name: "edge".to_owned(),
        before: "3.0.1".to_owned(),
        desired: "3.0.2".to_owned(),
        booted: None,
    };
    for kind in [Downloading, Started] {
        let proof = story.receive(&sample(kind));
        assert_eq!(proof.events[0].evidence.image.as_ref(), Some(&change), "{kind}");
    }
    let proof = story.receive(&sample_of_image(Updated, "edge", "3.0.2"));
    change.booted = Some("3.0.2".to_owned());
    assert_eq!(proof.events[0].evidence.image, Some(change));
    // Which image runs after another one was reported is unknown.
    let mut story = with_delivered_image();
    let proof = story.receive(&sample_of_image(Updated, "edge", "3.0.3"));
    let image = proof.events[0].evidence.image.as_ref().expect("the target");
    assert_eq!((image.desired.as_str(), image.booted.as_deref()), ("3.0.2", None));
    // Packages and kernel command lines are no images.
    let mut story = Story::at_rest(true);
    assert_eq!(story.receive(&sample(Started)).events[0].evidence.image, None);
}

/// The target was withdrawn between the beginning and the end, so the agent had no image to echo. If the update were
/// ignored, an older image would look newer than the running one.
#[test]
fn an_end_without_an_image_proves_the_frozen_image() {
    let mut story = with_delivered_image();
    story.receive(&sample(Started));
    let proof = story.receive(&sample(Updated));
    assert_eq!(proof.image, Some(image(2, "3.0.2")));
    assert_eq!(story.conditions(), []);
    assert_eq!(story.facts.running, image(2, "3.0.2"));
}

/// The agent reports the last delivered image, not the booted one, so the target of its run decides.
#[test]
fn an_image_other_than_the_frozen_one_is_not_trusted() {
    let mut story = with_delivered_image();
    story.receive(&sample(Downloading));
    story.delivered.image = Some(image(3, "3.0.3"));
    let proof = story.receive(&sample_of_image(Updated, "edge", "3.0.3"));
    assert_eq!(proof.image, None);
    assert_eq!(story.conditions(), [ConditionKind::OtherImage]);
    assert_eq!(story.runs[0].1.name(), "succeeded", "the outcome is recorded");
    assert_eq!(story.facts.running, image(1, "3.0.1"));
    // An update that reports its target clears the condition.
    story.receive_all(&[sample(UpToDate), sample_of_image(Updated, "edge", "3.0.3")]);
    assert_eq!(story.conditions(), []);
    assert_eq!(story.facts.running, image(3, "3.0.3"));
}

#[test]
fn unknown_images_and_other_profiles_raise_conditions() {
    let mut story = with_delivered_image();
    story.receive(&sample_of_image(Updated, "edge", "9.9"));
    assert_eq!(story.conditions(), [ConditionKind::UnknownImage, ConditionKind::OtherImage]);
    story.receive(&sample_of_image(UpToDate, "desktop", "3.0.2"));
    assert_eq!(story.conditions(), [ConditionKind::ProfileMismatch, ConditionKind::OtherImage]);
    story.receive(&sample_of_image(UpToDate, "edge", "3.0.1"));
    assert_eq!(story.conditions(), [ConditionKind::OtherImage]);
}

#[test]
fn the_image_of_a_package_node_is_not_checked() {
    let mut story = Story::at_rest(true);
    let proof = story.receive(&sample_of_image(Updated, "edge", "3.0.2"));
    assert_eq!((proof.image, proof.conditions), (None, vec![]));
}

#[test]
fn the_available_update_is_known_or_unchanged() {
    let images = [image(1, "3.0.1"), image(2, "3.0.2")];
    let facts = node(OsKind::Immutable);
    assert_eq!(available_update(&facts, &images, "x").as_deref(), Some("Edge 3.0.2"));
    assert_eq!(available_update(&facts, &images[..1], "").as_deref(), Some(""));
    assert_eq!(available_update(&facts, &[], ""), None);
    let packages = node(OsKind::Mutable);
    assert_eq!(available_update(&packages, &[], "[]").as_deref(), Some("[]"));
    // An image for another architecture is no update of this node.
    let made_for = |architecture: &str, n, version: &str| Image {
        architecture: architecture.to_owned(),
        ..image(n, version)
    };
    let facts = NodeFacts { running: made_for("x86_64", 1, "3.0.1"), ..facts };
    let images = [made_for("amd64", 2, "3.0.2"), made_for("aarch64", 3, "3.0.3")];
    let newer_image = available_update(&facts, &images, "");
    assert_eq!(newer_image.as_deref(), Some("Edge 3.0.2"));
    assert_eq!(available_update(&facts, &images[1..], ""), None);
}

/// EIM agents check no signatures, and each one is as long as all other stored data of the image.
#[test]
fn the_signatures_of_an_image_are_not_remembered() {
    let mut node = Node::image(&[window(-1, 1)]);
    let unsigned = image(2, "3.0.2");
    for signature in ["one", "another"] {
        let signed = Image { signatures: vec![signature.to_owned()], ..unsigned.clone() };
        node.desired.images = vec![signed.clone()];
        let before = node.delivered.clone();
        let answer = node.poll(NOON);
        assert_eq!(answer.image, Some(signed));
        assert_eq!(answer.delivered.image.as_ref(), Some(&unsigned));
        assert!(signature == "one" || answer.delivered == before, "no change to store");
    }
    let rules = ImageRules { attempts: 3, ..ImageRules::default() };
    let mut policy = policy(1, DesiredUpdate::Latest);
    policy.spec = policy.spec.with_image_rules(rules).expect("rules");
    let meant = node.delivered.target(&policy).expect("a target");
    assert_eq!(meant, Target::for_image(&policy, unsigned));
    assert_eq!(meant.image_rules, rules);
}

/// An EIM agent does not report what failed, so an operator could not order another attempt.
#[test]
fn an_image_that_failed_under_another_agent_is_delivered() {
    let mut node = Node::image(&[window(-1, 1)]);
    let file = Sha256::parse("sha256", &"a".repeat(64)).expect("a digest");
    node.desired.images[1].sha256 = file.clone();
    node.facts.bad_images = vec![QuarantinedImage { sha256: file, since: NOON - hours(5) }];
    let answer = node.answer_at(NOON);
    assert!(answer.image.is_some() && answer.single.is_some());
}
