//! Updates that go well, and wishes that are refused before anything is changed.

use evenkeel_tests::lab::{Repository, events, package, told};
use serde_json::json;

use crate::story::{Stage, because, stories, write};

stories![
    an_installed_package_is_upgraded_with_what_it_needs_and_nothing_else,
    a_package_that_is_not_there_is_installed_in_its_newest_version,
    a_version_that_is_named_is_installed_although_there_is_a_newer_one,
    a_node_that_is_as_wanted_has_nothing_to_do,
    everything_goes_to_its_newest_version_but_what_a_person_holds,
    a_held_package_stays_also_if_it_is_named,
    what_cannot_be_upgraded_is_kept_back_and_the_rest_goes,
    a_version_that_is_not_let_out_to_this_machine_yet_is_left,
    a_version_that_a_person_pinned_stays,
    an_older_version_is_refused_unless_the_policy_allows_it,
    an_older_version_replaces_a_newer_one_if_the_policy_allows_it,
    nothing_is_removed_unless_the_policy_allows_it,
    a_package_is_removed_if_the_policy_allows_it,
    a_configuration_file_that_a_person_changed_stays_and_is_reported,
    what_somebody_left_half_done_is_finished_with_the_update,
    a_plan_can_be_looked_at_and_changes_nothing,
];

fn an_installed_package_is_upgraded_with_what_it_needs_and_nothing_else(stage: &Stage) {
    let member = stage.member();
    member.want("demo-app=1.1");
    let run = member.update_to("succeeded");
    member.stands(&[
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
    let whole = [
        "downloading",
        "downloaded",
        "began",
        "verify_begun",
        "finished",
    ];
    assert_eq!(events(&run), whole);
    let phases = run["account"]["phases"].as_array().expect("phases");
    let phases: Vec<_> = phases.iter().map(|phase| &phase["phase"]).collect();
    for name in ["plan", "download", "apply", "verify"] {
        assert!(phases.iter().any(|phase| *phase == name), "{run:#}");
    }
    assert_eq!(run["account"]["rebootRequired"], false);
    assert_eq!(member.decision()["reason"]["code"], "up_to_date");
}

fn a_package_that_is_not_there_is_installed_in_its_newest_version(stage: &Stage) {
    let member = stage.member();
    member.want("demo-extra");
    let run = member.update_to("succeeded");
    member.stands(&[("demo-extra", "1.1 installed")]);
    assert_eq!(package(&run, "demo-extra")["action"], "install");
    let manual = "apt-mark showmanual demo-extra";
    assert_eq!(member.node.sh(manual), "demo-extra\n");
}

fn a_version_that_is_named_is_installed_although_there_is_a_newer_one(stage: &Stage) {
    let member = stage.member();
    member.want("demo-extra=1.0");
    let run = member.update_to("succeeded");
    member.stands(&[("demo-extra", "1.0 installed")]);
    assert_eq!(package(&run, "demo-extra")["version"], "1.0");
}

fn a_node_that_is_as_wanted_has_nothing_to_do(stage: &Stage) {
    let member = stage.member();
    member.want("demo-hello=1.0");
    let run = member.update_to("succeeded");
    assert_eq!(run["reason"], "nothing to do");
    assert_eq!(run["packages"], json!([]));
    member.stands(&[("demo-hello", "1.0 installed")]);
}

fn everything_goes_to_its_newest_version_but_what_a_person_holds(stage: &Stage) {
    let member = stage.member();
    member.node.sh("apt-mark hold demo-held");
    member.want_all(&json!({}));
    let run = member.update_to("succeeded");
    member.stands(&[
        ("demo-app", "1.1 installed"),
        ("demo-conf", "1.1 installed"),
        ("demo-hello", "1.1 installed"),
        ("demo-held", "1.0 installed"),
        ("demo-lib", "1.1 installed"),
    ]);
    assert!(
        !run["packages"].to_string().contains("demo-held"),
        "{run:#}"
    );
    assert_eq!(member.node.sh("apt-mark showhold"), "demo-held\n");
}

fn a_held_package_stays_also_if_it_is_named(stage: &Stage) {
    let member = stage.member();
    member.node.sh("apt-mark hold demo-held");
    member.want("demo-held=1.1");
    let run = member.update_to("failed");
    because(&run, &["plan"], &["on hold", "demo-held"]);
    member.stands(&[("demo-held", "1.0 installed")]);
}

fn what_cannot_be_upgraded_is_kept_back_and_the_rest_goes(stage: &Stage) {
    let member = stage.member();
    member.given(&["demo-missing_1.0"]);
    member.want_all(&json!({}));
    member.update_to("succeeded");
    member.stands(&[
        ("demo-hello", "1.1 installed"),
        ("demo-missing", "1.0 installed"),
    ]);
}

fn a_version_that_is_not_let_out_to_this_machine_yet_is_left(stage: &Stage) {
    let member = stage.member();
    member.given(&["demo-phased_1.0"]);
    member.want_all(&json!({}));
    member.update_to("succeeded");
    member.stands(&[
        ("demo-hello", "1.1 installed"),
        ("demo-phased", "1.0 installed"),
    ]);
}

fn a_version_that_a_person_pinned_stays(stage: &Stage) {
    let member = stage.member();
    let pin = "Package: demo-hello\nPin: version 1.0\nPin-Priority: 1001\n";
    write(&member.node, "/etc/apt/preferences.d/person", pin);
    member.want_all(&json!({}));
    member.update_to("succeeded");
    member.stands(&[
        ("demo-app", "1.1 installed"),
        ("demo-hello", "1.0 installed"),
    ]);
}

fn an_older_version_is_refused_unless_the_policy_allows_it(stage: &Stage) {
    let member = stage.member();
    member.given(&["demo-hello_1.1"]);
    member.want("demo-hello=1.0");
    let run = member.update_to("failed");
    because(&run, &["plan"], &["older version", "policy"]);
    member.stands(&[("demo-hello", "1.1 installed")]);
}

fn an_older_version_replaces_a_newer_one_if_the_policy_allows_it(stage: &Stage) {
    let member = stage.member();
    member.given(&["demo-hello_1.1"]);
    member.want_with(&json!({
        "updatePolicy": "UPDATE_POLICY_TARGET",
        "updatePackages": "demo-hello=1.0",
        "allowDowngrade": true,
    }));
    let run = member.update_to("succeeded");
    assert_eq!(package(&run, "demo-hello")["action"], "downgrade");
    member.stands(&[("demo-hello", "1.0 installed")]);
}

fn nothing_is_removed_unless_the_policy_allows_it(stage: &Stage) {
    let member = stage.member();
    member.given(&["demo-alone_1.0", "demo-guest_1.0"]);
    member.want("demo-alone=1.1");
    let run = member.update_to("failed");
    because(&run, &["plan"], &["remove", "demo-guest"]);
    member.stands(&[
        ("demo-alone", "1.0 installed"),
        ("demo-guest", "1.0 installed"),
    ]);
}

fn a_package_is_removed_if_the_policy_allows_it(stage: &Stage) {
    let member = stage.member();
    member.given(&["demo-alone_1.0", "demo-guest_1.0"]);
    member.want_with(&json!({
        "updatePolicy": "UPDATE_POLICY_TARGET",
        "updatePackages": "demo-alone=1.1",
        "packageRules": { "allowRemovals": true },
    }));
    let run = member.update_to("succeeded");
    member.stands(&[("demo-alone", "1.1 installed"), ("demo-guest", "")]);
    let guest = package(&run, "demo-guest");
    assert_eq!(guest["action"], "remove");
    assert_eq!(guest["before"], "1.0");
    assert_eq!(guest["after"], "");
    assert_eq!(guest["status"], "done");
}

fn a_configuration_file_that_a_person_changed_stays_and_is_reported(stage: &Stage) {
    let member = stage.member();
    write(&member.node, "/etc/demo/conf", "value=mine\n");
    member.want("demo-conf=1.1");
    let run = member.update_to("succeeded");
    member.stands(&[("demo-conf", "1.1 installed")]);
    assert_eq!(
        member.node.sh("cd /etc/demo; cat conf conf.dpkg-dist"),
        "value=mine\nvalue=1.1\n"
    );
    let kept = run["account"]["keptConffiles"].to_string();
    assert!(kept.contains("/etc/demo/conf"), "{run:#}");
}

fn what_somebody_left_half_done_is_finished_with_the_update(stage: &Stage) {
    let member = stage.member();
    let inside = Repository::INSIDE;
    member.node.sh(&format!(
        "dpkg --unpack {inside}/pool/demo-extra_1.0_all.deb"
    ));
    assert_eq!(member.node.found().package("demo-extra"), "1.0 unpacked");
    member.want("demo-hello=1.1");
    member.update_to("succeeded");
    member.stands(&[
        ("demo-extra", "1.0 installed"),
        ("demo-hello", "1.1 installed"),
    ]);
}

fn a_plan_can_be_looked_at_and_changes_nothing(stage: &Stage) {
    let member = stage.member();
    let output = member.agent(&["plan", "--package", "demo-app=1.1"]);
    assert!(output.status.success(), "{}", told(&output));
    let plan = told(&output);
    for word in ["demo-app", "demo-lib", "1.0", "1.1"] {
        assert!(plan.contains(word), "{plan}");
    }
    assert!(!plan.contains("demo-hello"), "{plan}");
    member.stands(&[("demo-app", "1.0 installed")]);
    assert!(member.runs().is_empty());
}
