//! Package rules of a policy in a decision, and the texts of reasons.

use serde_json::json;

use super::*;
use crate::policy::{PackageRules, RebootRule};

fn careful() -> UpdatePolicy {
    let rules = PackageRules {
        suites: vec!["bookworm-security".to_owned()],
        reboot: RebootRule::Never,
        min_age_days: 7,
        ..PackageRules::default()
    };
    let mut policy = policy(1, DesiredUpdate::Latest);
    policy.spec = policy.spec.with_package_rules(rules).expect("rules");
    policy.spec.allow_downgrade = true;
    policy
}

#[test]
fn a_target_carries_the_package_rules_of_its_policy() {
    let careful = careful();
    let intent = intent(vec![careful.clone()], &[window(0, 2)], NOON);
    let Act::Apply { target, .. } = decide(&node(), &intent, None, NOON).act else {
        panic!("a window is open");
    };
    assert_eq!(target.min_age_days(), 7);
    let TargetKind::Packages { rules, allow_downgrades, .. } = target.kind else {
        panic!("the node is updated by packages");
    };
    assert_eq!(rules, careful.spec.rules);
    assert!(allow_downgrades);
}

#[test]
fn a_target_stored_by_an_older_release_is_continued() {
    let careful = careful();
    let frozen: Target = serde_json::from_value(json!({
        "policy": careful.id,
        "kind": {"packages": {"exactly": null, "sources": [], "kernel_command": ""}},
    }))
    .expect("a target as older releases stored it");
    assert_eq!(frozen.min_age_days(), 0);
    let staged = OpenRun { target: Some(frozen.clone()), ..open(RunState::Staged { since: NOON }) };
    let action = |policy: UpdatePolicy| {
        let intent = intent(vec![policy], &[window(0, 2)], NOON);
        decide(&node(), &intent, Some(&staged), NOON).act.name()
    };
    assert_eq!(action(careful), "apply");
    assert_eq!(action(policy(2, DesiredUpdate::Latest)), "cancel");
    let usual = Target::for_packages(&policy(1, DesiredUpdate::Latest));
    assert_eq!(usual, frozen);
    assert_eq!(
        serde_json::to_value(&usual).expect("JSON"),
        serde_json::to_value(&frozen).expect("JSON")
    );
}

#[test]
fn a_reason_counts_in_the_singular_and_in_the_plural() {
    let scope = Scope::Project;
    for (reason, text) in [
        (
            Reason::NoFreeSlot { scope, limit: 1 },
            "1 node is being updated, as many as project allows at once",
        ),
        (
            Reason::NoFreeSlot { scope, limit: 2 },
            "2 nodes are being updated, as many as project allows at once",
        ),
        (
            Reason::Stopped { scope, failures: 1 },
            "1 update of project failed; no more start until `evenkeel assignment resume project`",
        ),
        (
            Reason::Stopped { scope, failures: 3 },
            "3 updates of project failed; no more start until `evenkeel assignment resume project`",
        ),
    ] {
        assert_eq!(reason.to_string(), text);
    }
}
