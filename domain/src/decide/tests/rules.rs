//! Rules for packages on their way into a decision.

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
    let mut made = policy(1, Wish::Latest);
    made.spec = made.spec.ruled(rules).expect("rules");
    made.spec.allow_downgrade = true;
    made
}

#[test]
fn a_node_is_told_how_it_may_be_done() {
    let careful = careful();
    let wanted = wanted(vec![careful.clone()], &[window(0, 2)], NOON);
    let Act::Apply { target, .. } = decide(&node(), &wanted, None, NOON).act else {
        panic!("a window is open");
    };
    assert_eq!(target.min_age_days(), 7);
    let TargetKind::Packages {
        rules,
        allow_downgrades,
        ..
    } = target.wish
    else {
        panic!("it is updated by packages");
    };
    assert_eq!(rules, careful.spec.rules);
    assert!(allow_downgrades);
}

#[test]
fn what_an_older_release_wrote_down_is_gone_on_with() {
    let careful = careful();
    let frozen: Target = serde_json::from_value(json!({
        "policy": careful.id,
        "wish": {"packages": {"exactly": null, "sources": [], "kernel_command": ""}},
    }))
    .expect("a target as older releases wrote it");
    assert_eq!(frozen.min_age_days(), 0);
    let staged = OpenRun {
        target: Some(frozen.clone()),
        ..open(RunState::Staged { since: NOON })
    };
    let told = |policy: UpdatePolicy| {
        let wanted = wanted(vec![policy], &[window(0, 2)], NOON);
        decide(&node(), &wanted, Some(&staged), NOON).act.name()
    };
    assert_eq!(told(careful), "apply");
    assert_eq!(told(policy(2, Wish::Latest)), "cancel");
    let usual = Target::of_packages(&policy(1, Wish::Latest));
    assert_eq!(usual, frozen);
    assert_eq!(
        serde_json::to_value(&usual).expect("JSON"),
        serde_json::to_value(&frozen).expect("JSON")
    );
}
