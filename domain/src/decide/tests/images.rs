//! Decisions about nodes that are updated by images.

use super::*;

/// An instance that is updated by images.
fn image_node(running: &str) -> NodeFacts {
    NodeFacts {
        os_kind: OsKind::Immutable,
        running: image(1, running),
        protocol: AgentProtocol::Eim,
        ..node()
    }
}

fn latest_of(images: &[Image]) -> UpdateIntent {
    UpdateIntent {
        images: images.to_vec(),
        ..intent(vec![policy(3, DesiredUpdate::Latest)], &[window(0, 2)], NOON)
    }
}

fn with_image(target_image: &Image, allow_downgrade: bool) -> UpdateIntent {
    let mut intent = intent(vec![], &[window(0, 2)], NOON);
    let mut policy = policy(
        4,
        DesiredUpdate::parse_target(Some(target_image.os), "", &[], "").expect("an image"),
    );
    policy.spec.allow_downgrade = allow_downgrade;
    intent.policies.push(AssignedPolicy { image: Some(target_image.clone()), ..assigned(policy) });
    intent
}

#[test]
fn the_latest_image_is_the_newest_and_never_an_older_one() {
    let code = |running: &str, images: &[Image]| {
        let decision = decide(&image_node(running), &latest_of(images), None, NOON);
        match decision.act {
            Act::Apply { target, .. } => target.digest(),
            _ => decision.reason.code().to_owned(),
        }
    };
    let (old, new) = (image(1, "3.0.9"), image(2, "3.0.10"));
    let both = [new.clone(), old.clone()];
    assert_eq!(code("3.0.9", &both), format!("{}/{}", PolicyId::nth(3), new.os));
    assert_eq!(code("3.0.9", std::slice::from_ref(&old)), "runs_already");
    assert_eq!(code("3.0.11", std::slice::from_ref(&new)), "not_newer");
    assert_eq!(
        code("main", std::slice::from_ref(&new)),
        "not_newer",
        "the versions cannot be compared"
    );
    assert_eq!(code("3.0.9", &[]), "no_image");
}

#[test]
fn a_named_older_image_needs_a_policy_that_allows_downgrades() {
    let older = image(2, "3.0.8");
    let code =
        |intent: UpdateIntent| decide(&image_node("3.0.9"), &intent, None, NOON).reason.code();
    assert_eq!(code(with_image(&older, false)), "not_newer");
    assert_eq!(code(with_image(&older, true)), "window_open");
    assert_eq!(code(with_image(&image(1, "3.0.9"), true)), "runs_already");
    let other_line = Image { profile_name: "core".to_owned(), ..image(2, "3.1") };
    assert_eq!(code(with_image(&other_line, true)), "policy_does_not_fit");
}

#[test]
fn a_named_image_for_another_architecture_does_not_fit() {
    let because = |image: &Image| {
        let decision = decide(&image_node("3.0.9"), &with_image(image, false), None, NOON);
        decision.reason
    };
    let made_for =
        |architecture: &str| Image { architecture: architecture.to_owned(), ..image(2, "3.0.10") };
    for same in ["x86_64", "amd64", ""] {
        assert_eq!(because(&made_for(same)).code(), "window_open", "{same:?}");
    }
    let Reason::PolicyDoesNotFit { why, .. } = because(&made_for("aarch64")) else {
        panic!("it does not fit");
    };
    assert!(why.contains("architecture"), "{why}");
}

#[test]
fn the_latest_image_is_one_for_the_nodes_architecture() {
    let arm = |n, version: &str| Image { architecture: "aarch64".to_owned(), ..image(n, version) };
    let outcome = |images: &[Image]| {
        let decision = decide(&image_node("3.0.9"), &latest_of(images), None, NOON);
        match decision.act {
            Act::Apply { target, .. } => target.digest(),
            _ => decision.reason.code().to_owned(),
        }
    };
    let policy = PolicyId::nth(3);
    let both = [arm(3, "3.0.11"), image(2, "3.0.10")];
    assert_eq!(outcome(&both), format!("{policy}/{}", OsId::nth(2)));
    assert_eq!(outcome(&both[..1]), "no_image");
}

#[test]
fn the_command_line_of_a_kernel_is_set_once_for_good() {
    let kernel = policy(5, DesiredUpdate::parse_target(None, "", &[], "quiet").expect("a kernel"));
    let intent = intent(vec![kernel.clone()], &[window(0, 2)], NOON);
    let mut facts = image_node("3.0.9");
    assert_eq!(decide(&facts, &intent, None, NOON).act.name(), "apply");
    facts.last_run = Some(LastRun {
        target: Some(kernel.id.to_string()),
        ..end(Verdict::Good, NOON - hours(48))
    });
    assert_eq!(decide(&facts, &intent, None, NOON).reason.code(), "up_to_date");
}
