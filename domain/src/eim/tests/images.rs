//! What a node is told about images, and what it says about its own, held against that.

use super::delivery::Node;
use super::*;
use crate::decide::KnownBad;
use SampleKind::{Downloading, Started, UpToDate, Updated};

/// A node that runs 3.0.1 and was told of 3.0.2.
fn told_of_an_image() -> Story {
    let mut story = Story::of(node(OsKind::Immutable));
    story.images = vec![image(1, "3.0.1"), image(2, "3.0.2"), image(3, "3.0.3")];
    story.delivered = Delivered {
        single: Some((NOON - hours(1), NOON + hours(1))),
        policy: Some(PolicyId::nth(1)),
        image: Some(image(2, "3.0.2")),
        ..Delivered::default()
    };
    story.hear(&sample(UpToDate));
    story
}

#[test]
fn the_image_that_an_update_was_for_is_proved_by_its_echo() {
    let mut story = told_of_an_image();
    story.hear(&sample(Started));
    let proof = story.hear(&naming(Updated, "edge", "3.0.2"));
    assert_eq!(proof.image, Some(image(2, "3.0.2")));
    assert_eq!(story.conditions(), []);
    // Also when its start was never seen, and only once.
    let mut story = told_of_an_image();
    assert!(
        story
            .hear(&naming(Updated, "edge", "3.0.2"))
            .image
            .is_some()
    );
    assert_eq!(story.hear(&naming(Updated, "edge", "3.0.2")).image, None);
}

/// The wish was taken back between the beginning and the end, so the agent had nothing left to echo. Not to believe it
/// would make an older image look newer than the one that runs.
#[test]
fn who_names_no_image_any_more_was_brought_to_the_frozen_one() {
    let mut story = told_of_an_image();
    story.hear(&sample(Started));
    let proof = story.hear(&sample(Updated));
    assert_eq!(proof.image, Some(image(2, "3.0.2")));
    assert_eq!(story.conditions(), []);
    assert_eq!(story.known.running, image(2, "3.0.2"));
}

/// It reports what it was told last, not what it booted (southbound section 3.8): what its run was for counts.
#[test]
fn another_image_than_the_frozen_one_is_not_believed() {
    let mut story = told_of_an_image();
    story.hear(&sample(Downloading));
    story.delivered.image = Some(image(3, "3.0.3"));
    let proof = story.hear(&naming(Updated, "edge", "3.0.3"));
    assert_eq!(proof.image, None);
    assert_eq!(story.conditions(), [ConditionKind::OtherImage]);
    assert_eq!(
        story.runs[0].1.name(),
        "succeeded",
        "the outcome is not lost"
    );
    assert_eq!(story.known.running, image(1, "3.0.1"));
    // An update that reports what it was for settles it.
    story.hears(&[sample(UpToDate), naming(Updated, "edge", "3.0.3")]);
    assert_eq!(story.conditions(), []);
    assert_eq!(story.known.running, image(3, "3.0.3"));
}

#[test]
fn an_image_of_nowhere_and_one_of_another_profile_are_shown() {
    let mut story = told_of_an_image();
    story.hear(&naming(Updated, "edge", "9.9"));
    assert_eq!(
        story.conditions(),
        [ConditionKind::UnknownImage, ConditionKind::OtherImage]
    );
    story.hear(&naming(UpToDate, "desktop", "3.0.2"));
    assert_eq!(
        story.conditions(),
        [ConditionKind::ProfileMismatch, ConditionKind::OtherImage]
    );
    story.hear(&naming(UpToDate, "edge", "3.0.1"));
    assert_eq!(story.conditions(), [ConditionKind::OtherImage]);
}

#[test]
fn a_node_without_images_is_not_asked_for_one() {
    let mut story = Story::at_rest(true);
    let proof = story.hear(&naming(Updated, "edge", "3.0.2"));
    assert_eq!((proof.image, proof.conditions), (None, vec![]));
}

#[test]
fn what_could_be_updated_is_known_or_stays() {
    let images = [image(1, "3.0.1"), image(2, "3.0.2")];
    let known = node(OsKind::Immutable);
    assert_eq!(
        available(&known, &images, "x").as_deref(),
        Some("Edge 3.0.2")
    );
    assert_eq!(available(&known, &images[..1], "").as_deref(), Some(""));
    assert_eq!(available(&known, &[], ""), None);
    let packages = node(OsKind::Mutable);
    assert_eq!(available(&packages, &[], "[]").as_deref(), Some("[]"));
    // What is made for other machines is no update of this one.
    let made_for = |architecture: &str, n, version: &str| Image {
        architecture: architecture.to_owned(),
        ..image(n, version)
    };
    let known = NodeFacts {
        running: made_for("x86_64", 1, "3.0.1"),
        ..known
    };
    let images = [
        made_for("amd64", 2, "3.0.2"),
        made_for("aarch64", 3, "3.0.3"),
    ];
    let shown = available(&known, &images, "");
    assert_eq!(shown.as_deref(), Some("Edge 3.0.2"));
    assert_eq!(available(&known, &images[1..], ""), None);
}

/// Such an agent checks none, and each is as long as all else that is remembered of the image.
#[test]
fn the_signatures_of_an_image_are_not_remembered() {
    let mut node = Node::image(&[window(-1, 1)]);
    let unsigned = image(2, "3.0.2");
    for signature in ["one", "another"] {
        let signed = Image {
            signatures: vec![signature.to_owned()],
            ..unsigned.clone()
        };
        node.wanted.images = vec![signed.clone()];
        let before = node.delivered.clone();
        let answer = node.poll(NOON);
        assert_eq!(answer.image, Some(signed));
        assert_eq!(answer.delivered.image.as_ref(), Some(&unsigned));
        assert!(
            signature == "one" || answer.delivered == before,
            "nothing to write"
        );
    }
    let rules = ImageRules {
        attempts: 3,
        ..ImageRules::default()
    };
    let mut policy = policy(1, Wish::Latest);
    policy.spec = policy.spec.imaged(rules).expect("rules");
    let meant = node.delivered.target(&policy).expect("a wish");
    assert_eq!(meant, Target::of_image(&policy, unsigned));
    assert_eq!(meant.image_rules, rules);
}

/// Such an agent does not say what failed, so nobody could tell it to try again.
#[test]
fn an_image_is_delivered_whatever_failed_where_another_agent_ran() {
    let mut node = Node::image(&[window(-1, 1)]);
    let file = Sha256::parse("sha256", &"a".repeat(64)).expect("a digest");
    node.wanted.images[1].sha256 = file.clone();
    node.known.bad_images = vec![KnownBad {
        sha256: file,
        since: NOON - hours(5),
    }];
    let answer = node.ask(NOON);
    assert!(answer.image.is_some() && answer.single.is_some());
}
