//! Which targets describe the same update.

use proptest::prelude::*;
use serde_json::json;

use super::properties::image_target;
use super::*;
use crate::policy::ImageRules;

/// The target of [`image_target`] with a change.
fn other(change: impl FnOnce(&mut Target, &mut Image)) -> Target {
    let mut target = image_target().1;
    let mut image = image(2, "3.0.10");
    change(&mut target, &mut image);
    Target { kind: TargetKind::Image(image), ..target }
}

#[test]
fn an_image_target_is_the_same_while_its_file_is() {
    let base = image_target().1;
    for (what, same) in [
        ("name", other(|_, image| image.name = "Other".to_owned())),
        ("signatures", other(|_, image| image.signatures = vec!["a signature".to_owned()])),
        ("architecture", other(|_, image| image.architecture.clear())),
        ("image_rules", other(|target, _| target.image_rules.attempts = 3)),
    ] {
        assert_ne!(same, base, "{what}");
        assert!(same.is_same(&base) && base.is_same(&same), "{what}");
    }
    let kernel = DesiredUpdate::parse_target(None, "", &[], "quiet").expect("a command line");
    let of_its_policy = policy(2, kernel);
    for (what, another) in [
        ("policy", other(|target, _| target.policy = PolicyId::nth(9))),
        ("os", other(|_, image| image.os = OsId::nth(9))),
        ("sha256", other(|_, image| image.sha256 = digest(9))),
        ("url", other(|_, image| image.url.push('x'))),
        ("packages", Target::for_packages(&image_target().0)),
        ("kernel", Target::for_kernel(&of_its_policy).expect("a kernel")),
    ] {
        assert!(!another.is_same(&base) && !base.is_same(&another), "{what}");
    }
}

/// Upgrading only the server cancels no open run.
#[test]
fn an_image_target_stored_by_an_older_release_is_continued() {
    let (policy, base) = image_target();
    let frozen: Target = serde_json::from_value(json!({
        "policy": policy.id,
        "kind": {"image": {
            "os": OsId::nth(2), "name": "Edge 3.0.10", "profile_name": "edge", "image_id": "3.0.10",
            "url": "edge/3.0.10.raw.gz", "sha256": digest(2),
        }},
    }))
    .expect("a target as older releases stored it");
    let facts = NodeFacts {
        os_kind: OsKind::Immutable,
        running: image(1, "3.0.9"),
        protocol: AgentProtocol::Own { modules: vec!["image".to_owned()] },
        ..node()
    };
    let staged = |target: &Target| OpenRun {
        target: Some(target.clone()),
        ..open(RunState::Staged { since: NOON })
    };
    let action = |target: &Target, images: Vec<Image>| {
        let policies = vec![policy.clone()];
        let intent = UpdateIntent { images, ..intent(policies, &[window(0, 2)], NOON) };
        decide(&facts, &intent, Some(&staged(target)), NOON).act
    };
    let signed = Image { signatures: vec!["a signature".to_owned()], ..image(2, "3.0.10") };
    let Act::Apply { target, .. } = action(&frozen, vec![signed.clone()]) else {
        panic!("a window is open");
    };
    let present = Target::for_image(&policy, signed);
    assert_eq!(target, present, "the node gets the present form");
    let replaced = Image { sha256: digest(9), ..image(2, "3.0.10") };
    assert_eq!(action(&base, vec![replaced]).name(), "cancel");
}

#[test]
fn an_image_target_carries_the_rules_of_its_policy() {
    let rules = ImageRules { max_bytes: 1 << 30, ..ImageRules::default() };
    let (policy, usual) = image_target();
    let spec = policy.spec.clone().with_image_rules(rules).expect("rules");
    let policy = UpdatePolicy { spec, ..policy };
    let target = Target::for_image(&policy, image(2, "3.0.10"));
    assert_eq!(target.image_rules, rules);
    let stored = serde_json::to_value(&target).expect("JSON");
    assert_eq!(stored["image_rules"]["max_bytes"], 1 << 30);
    let read: Target = serde_json::from_value(stored).expect("a target");
    assert_eq!(read, target);
    let stored = serde_json::to_value(&usual).expect("JSON");
    assert_eq!(stored.get("image_rules"), None);
    let of_packages = Target::for_packages(&policy);
    assert!(of_packages.image_rules.is_default(), "packages have no image rules");
}

prop_compose! {
    fn any_target()(
        policy in 1u32..3,
        kind in 0u8..5,
        image in (1u32..3, 0u32..2, any::<bool>(), any::<bool>(), any::<bool>()),
        attempts in 0u32..2,
    ) -> Target {
        let policy = self::policy(policy, DesiredUpdate::Latest);
        let (os, digest, has_url, has_name, is_signed) = image;
        let image = Image {
            sha256: self::digest(digest),
            url: if has_url { "edge.raw".to_owned() } else { String::new() },
            name: if has_name { "Edge".to_owned() } else { String::new() },
            signatures: if is_signed { vec!["a signature".to_owned()] } else { Vec::new() },
            ..self::image(os, "1")
        };
        let mut target = match kind {
            0 => Target::for_packages(&policy),
            1 => {
                let kernel = DesiredUpdate::parse_target(None, "", &[], "quiet").expect("a command line");
                let policy = UpdatePolicy { id: policy.id, ..self::policy(1, kernel) };
                Target::for_kernel(&policy).expect("a kernel")
            }
            _ => Target::for_image(&policy, image),
        };
        target.image_rules.attempts = attempts;
        target
    }
}

proptest! {
    /// Reflexive, symmetric and transitive; equal targets have the same digest and module.
    #[test]
    fn is_same_is_an_equivalence_relation(
        one in any_target(), other in any_target(), third in any_target(),
    ) {
        prop_assert!(one.is_same(&one.clone()));
        prop_assert_eq!(one.is_same(&other), other.is_same(&one));
        if one.is_same(&other) {
            prop_assert_eq!(one.is_same(&third), other.is_same(&third));
            prop_assert_eq!(one.digest(), other.digest());
            prop_assert_eq!(one.module(), other.module());
        }
    }
}
