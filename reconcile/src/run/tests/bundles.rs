use super::*;

const PRE: &str = "component: Action, name: pre, desired: {command: 'false', timing: pre}";

#[test]
fn an_action_before_the_change_that_fails_takes_its_bundle_out() {
    let mut node = SimulatedNode::new();
    let post = "component: Action, name: post, desired: {command: 'true'}";
    let document =
        bundles(&[("bad", &[PRE, &file("/etc/a", "a"), post]), ("good", &[&file("/etc/b", "b")])]);
    let report = node.run(&document);
    assert_eq!(report.outcome, RunOutcome::Failed);
    assert_eq!(node.take_calls(), ["/bin/sh -c false"]);
    assert!(!node.files.path("/etc/a").exists());
    assert_eq!(node.files.read("/etc/b"), "b");
}

#[test]
fn an_action_whose_status_is_ignored_does_not_take_its_bundle_out() {
    let mut node = SimulatedNode::new();
    let pre = PRE.replace("timing: pre", "timing: pre, status: ignore");
    node.run_well(&bundles(&[("a", &[&pre, &file("/etc/a", "a")])]));
    assert_eq!(node.files.read("/etc/a"), "a");
}

#[test]
fn actions_run_if_their_bundle_changes_or_always() {
    let mut node = SimulatedNode::new();
    let action = |name: &str, fields: &str| {
        format!("component: Action, name: {name}, desired: {{command: 'true {name}', {fields}}}")
    };
    let (both, always) = (action("both", "timing: both"), action("always", "when: always"));
    let other = action("other", "timing: both");
    let document = bundles(&[
        ("a", &[&both, &always, &file("/etc/a", "a")]),
        ("b", &[&other, "component: File, name: /etc, desired: {type: permissions, mode: '0755'}"]),
    ]);
    let calls = node.run_well(&document);
    assert_eq!(calls, ["/bin/sh -c true both", "/bin/sh -c true both", "/bin/sh -c true always"]);
    assert_eq!(node.run_well(&document), ["/bin/sh -c true always"]);
    let check = node.run(&document);
    assert!(check.remaining.is_empty());
}

#[test]
fn a_package_runs_the_actions_of_its_bundle() {
    let mut node = SimulatedNode::new();
    let post = "component: Action, name: post, desired: {command: 'true'}";
    let document = entries(&["component: Package, name: web", post]);
    assert_eq!(node.run_well(&document), ["packages +[\"web\"] -[]", "/bin/sh -c true"]);
    node.check_unchanged(&document);
}

#[test]
fn a_run_of_one_bundle_removes_nothing_of_others() {
    let mut node = SimulatedNode::new();
    let sysctl = |key: &str| format!("component: Sysctl, name: vm.{key}, desired: {{value: '1'}}");
    let document = |a: &str, key: &str| {
        bundles(&[("a", &[&file(a, "a"), &sysctl("swappiness")]), ("b", &[&sysctl(key)])])
    };
    node.run_well(&document("/etc/a", "max_map_count"));
    node.scope.only_bundle = Some("b".to_owned());
    let new = document("/etc/c", "max_map_count");
    node.run_well(&new);
    assert!(node.files.path("/etc/a").exists() && !node.files.path("/etc/c").exists());
    node.scope.only_bundle = None;
    node.run_well(&new);
    assert!(!node.files.path("/etc/a").exists() && node.files.path("/etc/c").exists());
    node.check_unchanged(&new);
}
