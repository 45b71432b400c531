//! The marks of automatically and manually installed packages, and the names that a policy may use.

use super::scenario::{Stage, scenarios};

scenarios![
    a_failed_update_leaves_automatic_packages_automatic,
    a_package_that_a_policy_names_becomes_manual,
    a_virtual_package_is_the_package_that_provides_it,
    the_qualifiers_native_and_any_mean_the_package_itself,
];

fn a_failed_update_leaves_automatic_packages_automatic(stage: &Stage) {
    let member = stage.member();
    member.install_files(&["demo-clash_1.0"]);
    let automatic = || member.node.sh("apt-mark showauto");
    let before = automatic();
    assert!(before.lines().any(|name| name == "demo-lib"), "{before}");
    member.assign_latest(&serde_json::Value::Null);
    let run = member.update_to("failed");
    let reason = run["reason"].as_str().expect("a text");
    assert!(reason.contains("demo-clash"), "{reason}");
    assert_eq!(automatic(), before);
}

fn a_package_that_a_policy_names_becomes_manual(stage: &Stage) {
    let member = stage.member();
    // The package is already there, so its mark is the only change.
    member.assign_packages("demo-lib=1.0");
    member.update_to("succeeded");
    assert_eq!(member.node.sh("apt-mark showmanual demo-lib"), "demo-lib\n");
    member.assert_packages(&[("demo-lib", "1.0 installed")]);
}

fn a_virtual_package_is_the_package_that_provides_it(stage: &Stage) {
    let member = stage.member();
    member.assign_packages("demo-virtual");
    let run = member.update_to("succeeded");
    assert_eq!(run["packages"].as_array().map(Vec::len), Some(1), "{run:#}");
    member.assert_packages(&[("demo-agent", "1.1 installed")]);
    assert_eq!(member.node.sh("apt-mark showmanual demo-agent"), "demo-agent\n");

    // It is there now, so nothing is left to do.
    member.order_packages("demo-virtual");
    assert!(member.agent_once().status.success());
    let runs = member.runs();
    assert!(runs.iter().all(|run| run["state"] != "failed"), "{runs:#?}");
}

fn the_qualifiers_native_and_any_mean_the_package_itself(stage: &Stage) {
    let member = stage.member();
    member.assign_packages("demo-hello:native\ndemo-conf:any");
    member.update_to("succeeded");
    member.assert_packages(&[
        ("demo-hello", "1.1 installed"),
        ("demo-conf", "1.1 installed"),
        ("demo-app", "1.0 installed"),
    ]);
}
