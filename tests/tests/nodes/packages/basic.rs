//! Updates that succeed, and updates that are refused before anything is changed.

use evenkeel_tests::lab::{Repository, describe_output, events, package};
use serde_json::json;

use super::scenario::{Stage, assert_failure, scenarios, write_file};

scenarios![
    an_installed_package_is_upgraded_with_its_dependencies_and_nothing_else,
    a_missing_package_is_installed_in_its_newest_version,
    a_requested_version_is_installed_although_there_is_a_newer_one,
    a_node_in_the_desired_state_has_nothing_to_do,
    everything_is_upgraded_except_held_packages,
    a_held_package_is_not_upgraded_even_if_it_is_requested,
    a_package_that_cannot_be_upgraded_is_held_back_and_the_rest_is_upgraded,
    a_phased_version_that_is_not_yet_for_this_machine_is_not_installed,
    a_pinned_version_is_not_upgraded,
    an_older_version_is_refused_unless_the_policy_allows_it,
    an_older_version_replaces_a_newer_one_if_the_policy_allows_it,
    nothing_is_removed_unless_the_policy_allows_it,
    a_package_is_removed_if_the_policy_allows_it,
    a_locally_changed_configuration_file_is_preserved_and_reported,
    a_locally_changed_file_of_ucf_is_preserved_and_reported,
    a_half_installed_package_is_finished_with_the_update,
    a_plan_can_be_shown_and_changes_nothing,
    a_plan_follows_the_policy_of_the_node,
];

fn an_installed_package_is_upgraded_with_its_dependencies_and_nothing_else(stage: &Stage) {
    let member = stage.member();
    member.assign_packages("demo-app=1.1");
    let run = member.update_to("succeeded");
    member.assert_packages(&[
        ("demo-app", "1.1 installed"),
        ("demo-lib", "1.1 installed"),
        ("demo-hello", "1.0 installed"),
    ]);
    let automatic = "apt-mark showauto demo-app demo-lib";
    assert_eq!(member.node.sh(automatic), "demo-lib\n");
    for name in ["demo-app", "demo-lib"] {
        let package = package(&run, name);
        assert_eq!(package["action"], "upgrade");
        assert_eq!(package["before"], "1.0");
        assert_eq!(package["after"], "1.1");
        assert_eq!(package["status"], "done");
    }
    let all_events = ["downloading", "downloaded", "began", "verify_begun", "finished"];
    assert_eq!(events(&run), all_events);
    let phases = run["report"]["phases"].as_array().expect("phases");
    let phases: Vec<_> = phases.iter().map(|phase| &phase["phase"]).collect();
    for name in ["plan", "download", "apply", "verify"] {
        assert!(phases.iter().any(|phase| *phase == name), "{run:#}");
    }
    assert_eq!(run["report"]["rebootRequired"], false);
    assert_eq!(member.decision()["reason"]["code"], "up_to_date");
}

fn a_missing_package_is_installed_in_its_newest_version(stage: &Stage) {
    let member = stage.member();
    member.assign_packages("demo-extra");
    let run = member.update_to("succeeded");
    member.assert_packages(&[("demo-extra", "1.1 installed")]);
    assert_eq!(package(&run, "demo-extra")["action"], "install");
    let manual = "apt-mark showmanual demo-extra";
    assert_eq!(member.node.sh(manual), "demo-extra\n");
}

fn a_requested_version_is_installed_although_there_is_a_newer_one(stage: &Stage) {
    let member = stage.member();
    member.assign_packages("demo-extra=1.0");
    let run = member.update_to("succeeded");
    member.assert_packages(&[("demo-extra", "1.0 installed")]);
    assert_eq!(package(&run, "demo-extra")["version"], "1.0");
}

fn a_node_in_the_desired_state_has_nothing_to_do(stage: &Stage) {
    let member = stage.member();
    member.assign_packages("demo-hello=1.0");
    let run = member.update_to("succeeded");
    assert_eq!(run["reason"], "nothing to do");
    assert_eq!(run["packages"], json!([]));
    member.assert_packages(&[("demo-hello", "1.0 installed")]);
}

fn everything_is_upgraded_except_held_packages(stage: &Stage) {
    let member = stage.member();
    member.node.sh("apt-mark hold demo-held");
    member.assign_latest(&json!({}));
    let run = member.update_to("succeeded");
    member.assert_packages(&[
        ("demo-app", "1.1 installed"),
        ("demo-conf", "1.1 installed"),
        ("demo-hello", "1.1 installed"),
        ("demo-held", "1.0 installed"),
        ("demo-lib", "1.1 installed"),
    ]);
    assert!(!run["packages"].to_string().contains("demo-held"), "{run:#}");
    let held_back = run["report"]["heldBack"].as_array().expect("a list");
    let held = held_back.iter().find(|package| package["name"] == "demo-held");
    assert_eq!(held.expect("demo-held")["cause"], "hold", "{run:#}");
    assert_eq!(member.node.sh("apt-mark showhold"), "demo-held\n");
}

fn a_held_package_is_not_upgraded_even_if_it_is_requested(stage: &Stage) {
    let member = stage.member();
    member.node.sh("apt-mark hold demo-held");
    member.assign_packages("demo-held=1.1");
    let run = member.update_to("failed");
    assert_failure(&run, &["plan"], &["on hold", "demo-held"]);
    member.assert_packages(&[("demo-held", "1.0 installed")]);
}

fn a_package_that_cannot_be_upgraded_is_held_back_and_the_rest_is_upgraded(stage: &Stage) {
    let member = stage.member();
    member.install_files(&["demo-missing_1.0"]);
    member.assign_latest(&json!({}));
    member.update_to("succeeded");
    member.assert_packages(&[("demo-hello", "1.1 installed"), ("demo-missing", "1.0 installed")]);
}

fn a_phased_version_that_is_not_yet_for_this_machine_is_not_installed(stage: &Stage) {
    let member = stage.member();
    member.install_files(&["demo-phased_1.0"]);
    member.assign_latest(&json!({}));
    member.update_to("succeeded");
    member.assert_packages(&[("demo-hello", "1.1 installed"), ("demo-phased", "1.0 installed")]);
}

fn a_pinned_version_is_not_upgraded(stage: &Stage) {
    let member = stage.member();
    let pin = "Package: demo-hello\nPin: version 1.0\nPin-Priority: 1001\n";
    write_file(&member.node, "/etc/apt/preferences.d/person", pin);
    member.assign_latest(&json!({}));
    member.update_to("succeeded");
    member.assert_packages(&[("demo-app", "1.1 installed"), ("demo-hello", "1.0 installed")]);
}

fn an_older_version_is_refused_unless_the_policy_allows_it(stage: &Stage) {
    let member = stage.member();
    member.install_files(&["demo-hello_1.1"]);
    member.assign_packages("demo-hello=1.0");
    let run = member.update_to("failed");
    assert_failure(&run, &["plan"], &["older version", "policy"]);
    member.assert_packages(&[("demo-hello", "1.1 installed")]);
}

fn an_older_version_replaces_a_newer_one_if_the_policy_allows_it(stage: &Stage) {
    let member = stage.member();
    member.install_files(&["demo-hello_1.1"]);
    member.assign_new_policy(&json!({
        "updatePolicy": "UPDATE_POLICY_TARGET",
        "updatePackages": "demo-hello=1.0",
        "allowDowngrade": true,
    }));
    let run = member.update_to("succeeded");
    assert_eq!(package(&run, "demo-hello")["action"], "downgrade");
    member.assert_packages(&[("demo-hello", "1.0 installed")]);
}

fn nothing_is_removed_unless_the_policy_allows_it(stage: &Stage) {
    let member = stage.member();
    member.install_files(&["demo-alone_1.0", "demo-guest_1.0"]);
    member.assign_packages("demo-alone=1.1");
    let run = member.update_to("failed");
    assert_failure(&run, &["plan"], &["remove", "demo-guest"]);
    member.assert_packages(&[("demo-alone", "1.0 installed"), ("demo-guest", "1.0 installed")]);
}

fn a_package_is_removed_if_the_policy_allows_it(stage: &Stage) {
    let member = stage.member();
    member.install_files(&["demo-alone_1.0", "demo-guest_1.0"]);
    member.assign_new_policy(&json!({
        "updatePolicy": "UPDATE_POLICY_TARGET",
        "updatePackages": "demo-alone=1.1",
        "packageRules": { "allowRemovals": true },
    }));
    let run = member.update_to("succeeded");
    member.assert_packages(&[("demo-alone", "1.1 installed"), ("demo-guest", "")]);
    let guest = package(&run, "demo-guest");
    assert_eq!(guest["action"], "remove");
    assert_eq!(guest["before"], "1.0");
    assert_eq!(guest["after"], "");
    assert_eq!(guest["status"], "done");
}

fn a_locally_changed_configuration_file_is_preserved_and_reported(stage: &Stage) {
    let member = stage.member();
    write_file(&member.node, "/etc/demo/conf", "value=mine\n");
    member.assign_packages("demo-conf=1.1");
    let run = member.update_to("succeeded");
    member.assert_packages(&[("demo-conf", "1.1 installed")]);
    assert_eq!(member.node.sh("cd /etc/demo; cat conf conf.dpkg-dist"), "value=mine\nvalue=1.1\n");
    let preserved = run["report"]["preservedConffiles"].to_string();
    assert!(preserved.contains("/etc/demo/conf"), "{run:#}");
}

fn a_locally_changed_file_of_ucf_is_preserved_and_reported(stage: &Stage) {
    let member = stage.member();
    member.install_files(&["demo-ucf_1.0"]);
    write_file(&member.node, "/etc/demo/ucf", "mine\n");
    member.assign_packages("demo-ucf=1.1");
    let run = member.update_to("succeeded");
    member.assert_packages(&[("demo-ucf", "1.1 installed")]);
    assert_eq!(member.node.sh("cd /etc/demo; cat ucf ucf.ucf-dist"), "mine\n1.1\n");
    let preserved = run["report"]["preservedConffiles"].to_string();
    assert!(preserved.contains("/etc/demo/ucf\""), "{run:#}");
}

fn a_half_installed_package_is_finished_with_the_update(stage: &Stage) {
    let member = stage.member();
    let inside = Repository::INSIDE;
    member.node.sh(&format!("dpkg --unpack {inside}/pool/demo-extra_1.0_all.deb"));
    assert_eq!(member.node.dpkg_status().package("demo-extra"), "1.0 unpacked");
    member.assign_packages("demo-hello=1.1");
    member.update_to("succeeded");
    member.assert_packages(&[("demo-extra", "1.0 installed"), ("demo-hello", "1.1 installed")]);
}

fn a_plan_can_be_shown_and_changes_nothing(stage: &Stage) {
    let member = stage.member();
    let output = member.agent(&["plan", "--package", "demo-app=1.1"]);
    assert!(output.status.success(), "{}", describe_output(&output));
    let plan = describe_output(&output);
    for text in ["demo-app", "demo-lib", "1.0", "1.1"] {
        assert!(plan.contains(text), "{plan}");
    }
    assert!(!plan.contains("demo-hello"), "{plan}");
    member.assert_packages(&[("demo-app", "1.0 installed")]);
    assert!(member.runs().is_empty());
}

fn a_plan_follows_the_policy_of_the_node(stage: &Stage) {
    let member = stage.member();
    member.assign_latest(&json!({"exclude": ["demo-*"]}));
    let run = member.update_to("succeeded");
    assert_eq!(run["reason"], "newer versions are held back", "{run:#}");
    let plan = |arguments: &[&str]| {
        let output = member.agent(arguments);
        assert!(output.status.success(), "{}", describe_output(&output));
        describe_output(&output)
    };
    let with_policy = plan(&["plan"]);
    assert!(with_policy.contains("nothing to change"), "{with_policy}");
    assert!(with_policy.contains("excluded by the policy"), "{with_policy}");
    let all = plan(&["plan", "--all"]);
    assert!(all.contains("update  demo-app:"), "{all}");
}
