//! Limits, hooks and files of the machine's owner, which no message of the server can override.

use chrono::{DateTime, TimeDelta, Utc};
use evenkeel_tests::lab::{Member, until};
use serde_json::json;

use super::scenario::{
    Stage, WAIT_TIMEOUT, assert_failure, assert_waits, scenarios, trust_repository, write_file,
};

scenarios![
    a_suite_that_the_owner_does_not_allow_is_not_used,
    a_name_in_a_release_file_does_not_satisfy_the_owners_suites,
    an_older_version_that_the_owner_does_not_allow_is_refused,
    a_removal_that_the_owner_does_not_allow_is_refused,
    a_package_that_the_owner_protects_is_not_removed,
    ssh_is_not_removed_by_default,
    the_agent_the_network_manager_and_the_running_kernel_are_not_removed_by_default,
    ssh_is_removed_if_the_owner_allows_it,
    an_update_of_everything_holds_back_a_package_that_would_remove_ssh,
    a_new_package_that_the_owner_does_not_allow_is_refused,
    a_source_that_the_owner_does_not_allow_is_refused,
    a_key_that_the_owner_does_not_list_is_refused,
    outside_the_owners_hours_the_node_waits,
    a_reboot_that_the_owner_does_not_allow_is_reported_as_required,
    limits_that_others_could_have_written_allow_nothing,
    a_file_that_inhibits_updates_blocks_them_until_it_is_removed,
    a_hook_can_block_an_update_and_its_output_reaches_the_operator,
    hooks_run_after_an_update_that_has_succeeded,
    a_health_check_that_fails_only_after_the_update_fails_the_run,
    output_of_a_script_that_the_owner_filters_does_not_reach_the_server,
];

/// Path of the owner's limits.
const LIMITS: &str = "/etc/evenkeel/limits.toml";

/// A node with limits of its owner.
fn member_with_limits(stage: &Stage, limits: &str) -> Member<'static> {
    let member = stage.member();
    write_file(&member.node, LIMITS, limits);
    member
}

fn a_suite_that_the_owner_does_not_allow_is_not_used(stage: &Stage) {
    let member = member_with_limits(stage, "suites = [\"elsewhere\"]\n");
    member.assign_packages("demo-hello=1.1");
    let run = member.update_to("failed");
    assert_failure(&run, &["limits"], &["the machine's owner allows: elsewhere"]);
    member.assert_packages(&[("demo-hello", "1.0 installed")]);
}

fn a_name_in_a_release_file_does_not_satisfy_the_owners_suites(stage: &Stage) {
    let repository = stage.repository();
    let repository = repository.with_variable("DIST", "thirdparty");
    let repository = repository.with_variable("CODENAME", "demo-security");
    repository.publish("demo-hello_1.1");
    let member = stage.member_with_source(&repository);
    write_file(&member.node, LIMITS, "suites = [\"demo-security\"]\n");
    member.assign_packages("demo-hello=1.1");
    let run = member.update_to("failed");
    assert_failure(&run, &["limits"], &["the machine's owner allows: demo-security"]);
    member.assert_packages(&[("demo-hello", "1.0 installed")]);
}

fn an_older_version_that_the_owner_does_not_allow_is_refused(stage: &Stage) {
    let member = member_with_limits(stage, "downgrades = false\n");
    member.install_files(&["demo-hello_1.1"]);
    member.assign_new_policy(&json!({
        "updatePolicy": "UPDATE_POLICY_TARGET",
        "updatePackages": "demo-hello=1.0",
        "allowDowngrade": true,
    }));
    let run = member.update_to("failed");
    assert_failure(&run, &["plan", "limits"], &["owner"]);
    member.assert_packages(&[("demo-hello", "1.1 installed")]);
}

fn a_removal_that_the_owner_does_not_allow_is_refused(stage: &Stage) {
    let member = member_with_limits(stage, "removals = false\n");
    member.install_files(&["demo-alone_1.0", "demo-guest_1.0"]);
    member.assign_new_policy(&json!({
        "updatePolicy": "UPDATE_POLICY_TARGET",
        "updatePackages": "demo-alone=1.1",
        "packageRules": { "allowRemovals": true },
    }));
    let run = member.update_to("failed");
    assert_failure(&run, &["plan", "limits"], &["demo-guest"]);
    member.assert_packages(&[("demo-alone", "1.0 installed"), ("demo-guest", "1.0 installed")]);
}

fn a_package_that_the_owner_protects_is_not_removed(stage: &Stage) {
    let member = member_with_limits(stage, "protected_packages = [\"demo-gu*\"]\n");
    member.install_files(&["demo-alone_1.0", "demo-guest_1.0"]);
    assign_with_removals(&member, "demo-alone=1.1");
    let run = member.update_to("failed");
    assert_failure(&run, &["limits"], &["demo-guest", "protected_packages"]);
    member.assert_packages(&[("demo-alone", "1.0 installed"), ("demo-guest", "1.0 installed")]);
}

/// Assigns a policy for these packages that allows removals.
fn assign_with_removals(member: &Member<'_>, packages: &str) {
    member.assign_new_policy(&json!({
        "updatePolicy": "UPDATE_POLICY_TARGET",
        "updatePackages": packages,
        "packageRules": { "allowRemovals": true },
    }));
}

fn ssh_is_not_removed_by_default(stage: &Stage) {
    let member = stage.member();
    member.install_files(&["demo-rival_1.0", "openssh-server_1.0"]);
    assign_with_removals(&member, "demo-rival=1.1");
    let run = member.update_to("failed");
    assert_failure(&run, &["limits"], &["openssh-server", "removable_packages"]);
    member
        .assert_packages(&[("demo-rival", "1.0 installed"), ("openssh-server", "2:1.0 installed")]);
}

fn the_agent_the_network_manager_and_the_running_kernel_are_not_removed_by_default(stage: &Stage) {
    for (package, what) in [
        ("evenkeel-agent", "this agent"),
        ("network-manager", "the network manager"),
        ("linux-image-6.0.1-demo", "the running kernel"),
    ] {
        let member = stage.join(stage.node(package).with_kernel("6.0.1-demo"));
        member.install_files(&["demo-rival_1.0"]);
        // An empty package: only its name matters.
        let control = format!(
            "Package: {package}\nVersion: 99\nArchitecture: all\n\
             Maintainer: Tests <tests@example.invalid>\nDescription: test package\n"
        );
        write_file(&member.node, "/root/deb/DEBIAN/control", &control);
        member.node.sh("dpkg-deb --build /root/deb /root/it.deb; dpkg --install /root/it.deb");
        assign_with_removals(&member, "demo-rival=1.1");
        let run = member.update_to("failed");
        assert_failure(&run, &["limits"], &[package, what, "removable_packages"]);
        member.assert_packages(&[("demo-rival", "1.0 installed"), (package, "99 installed")]);
    }
}

fn ssh_is_removed_if_the_owner_allows_it(stage: &Stage) {
    let member = member_with_limits(stage, "removable_packages = [\"openssh-server\"]\n");
    member.install_files(&["demo-rival_1.0", "openssh-server_1.0"]);
    assign_with_removals(&member, "demo-rival=1.1");
    member.update_to("succeeded");
    member.assert_packages(&[("demo-rival", "1.1 installed"), ("openssh-server", "")]);
}

fn an_update_of_everything_holds_back_a_package_that_would_remove_ssh(stage: &Stage) {
    let member = stage.member();
    member.install_files(&["demo-rival_1.0", "openssh-server_1.0"]);
    member.assign_latest(&json!({ "allowRemovals": true }));
    member.update_to("succeeded");
    member.assert_packages(&[
        ("demo-rival", "1.0 installed"),
        ("openssh-server", "2:1.0 installed"),
        ("demo-hello", "1.1 installed"),
    ]);
}

fn a_new_package_that_the_owner_does_not_allow_is_refused(stage: &Stage) {
    let member = member_with_limits(stage, "new_packages = false\n");
    member.assign_packages("demo-extra=1.1");
    let run = member.update_to("failed");
    assert_failure(&run, &["limits"], &["it would install demo-extra", "owner"]);
    member.assert_packages(&[("demo-extra", "")]);
}

fn a_source_that_the_owner_does_not_allow_is_refused(stage: &Stage) {
    let member = member_with_limits(stage, "new_sources = false\n");
    assign_with_source(stage, &member);
    let run = member.update_to("failed");
    assert_failure(&run, &["limits"], &["owner", "source"]);
    member.assert_packages(&[("demo-hello", "1.0 installed")]);
}

fn a_key_that_the_owner_does_not_list_is_refused(stage: &Stage) {
    let keys = "keys = [\"0123456789ABCDEF0123456789ABCDEF01234567\"]\n";
    let member = member_with_limits(stage, keys);
    trust_repository(&member.node, &stage.fleet.repository);
    assign_with_source(stage, &member);
    let run = member.update_to("failed");
    assert_failure(&run, &["limits"], &["owner", "is not one of the `keys`"]);
    member.assert_packages(&[("demo-hello", "1.0 installed")]);
}

/// Assigns a policy for a package with a source of its own.
fn assign_with_source(stage: &Stage, member: &Member<'_>) {
    member.assign_new_policy(&json!({
        "updatePolicy": "UPDATE_POLICY_TARGET",
        "updatePackages": "demo-hello=1.1",
        "updateSources": [stage.fleet.repository.apt_source()],
    }));
}

fn outside_the_owners_hours_the_node_waits(stage: &Stage) {
    let member = stage.member();
    // Nodes of the lab use UTC.
    let now = member.server_time();
    let at = |hours: i64| -> DateTime<Utc> { now + TimeDelta::hours(hours) };
    let hours = format!("{}-{}", at(3).format("%H:00"), at(5).format("%H:00"));
    write_file(&member.node, LIMITS, &format!("hours = [\"{hours}\"]\n"));
    member.order_packages("demo-hello=1.1");
    assert_waits(&member, "outside the owner's hours");
    member.assert_packages(&[("demo-hello", "1.0 installed")]);

    let hours = format!("{}-{}", at(-2).format("%H:00"), at(3).format("%H:00"));
    write_file(&member.node, LIMITS, &format!("hours = [\"{hours}\"]\n"));
    member.run_agent_to("succeeded");
    member.assert_packages(&[("demo-hello", "1.1 installed")]);
}

fn a_reboot_that_the_owner_does_not_allow_is_reported_as_required(stage: &Stage) {
    let member = member_with_limits(stage, "reboots = \"never\"\n");
    member.install_files(&["demo-reboot_1.0"]);
    member.assign_packages("demo-reboot=1.1");
    let run = member.update_to("succeeded");
    let report = &run["report"];
    assert_eq!(report["rebootRequired"], true, "{run:#}");
    let remarks = report["remarks"].to_string();
    assert!(remarks.contains("owner"), "{run:#}");
    member.assert_packages(&[("demo-reboot", "1.1 installed")]);
}

fn limits_that_others_could_have_written_allow_nothing(stage: &Stage) {
    let member = member_with_limits(stage, "downgrades = false\n");
    member.node.sh(&format!("chmod 666 {LIMITS}"));
    member.assign_packages("demo-hello=1.1");
    let run = member.update_to("failed");
    assert_failure(&run, &["limits"], &[LIMITS]);
    member.assert_packages(&[("demo-hello", "1.0 installed")]);
    let condition = member.condition_message("agent_error");
    assert!(condition.contains(LIMITS), "{condition:?}");

    // The condition ends when the file is fixed.
    member.node.sh(&format!("chmod 644 {LIMITS}"));
    assert!(member.agent_once().status.success());
    assert_eq!(member.condition_message("agent_error"), "");
}

fn a_file_that_inhibits_updates_blocks_them_until_it_is_removed(stage: &Stage) {
    let member = stage.member();
    let file = "/etc/evenkeel/inhibit";
    write_file(&member.node, file, "the line is producing\n");
    member.order_packages("demo-hello=1.1");
    assert_waits(&member, "the line is producing");
    member.assert_packages(&[("demo-hello", "1.0 installed")]);

    member.node.sh(&format!("rm {file}"));
    member.run_agent_to("succeeded");
    member.assert_packages(&[("demo-hello", "1.1 installed")]);
}

fn a_hook_can_block_an_update_and_its_output_reaches_the_operator(stage: &Stage) {
    let member = stage.member();
    let hook = "/etc/evenkeel/hooks/before-update.d/10-ask";
    let text = "#!/bin/sh\ntest ! -e /run/busy || { echo the oven is on; exit 75; }\n";
    write_file(&member.node, hook, text);
    member.node.sh(&format!("chmod 755 {hook}"));
    member.order_packages("demo-hello=1.1");

    let script = "touch /run/busy; exec /srv/evenkeel-agent run";
    let agent = member.node.start(&["sh", "-c", script]);
    until("the operator sees why the node waits", WAIT_TIMEOUT, || {
        let waiting = member.decision()["waiting"].to_string();
        (waiting.contains("10-ask") && waiting.contains("the oven is on")).then_some(())
    });
    let run = member.only_run();
    assert_eq!(run["state"], "staged", "{run:#}\n{}", agent.log());

    member.node.succeed_inside(&["rm", "/run/busy"]);
    until("the update is done", WAIT_TIMEOUT, || {
        (member.only_run()["state"] == "succeeded").then_some(())
    });
    assert_eq!(member.decision()["waiting"], "");
    drop(agent);
    member.assert_packages(&[("demo-hello", "1.1 installed")]);
}

/// Adds an executable program of the machine's owner.
fn write_program(member: &Member<'_>, path: &str, script: &str) {
    write_file(&member.node, path, &format!("#!/bin/sh\n{script}\n"));
    member.node.sh(&format!("chmod 755 {path}"));
}

fn hooks_run_after_an_update_that_has_succeeded(stage: &Stage) {
    let member = stage.member();
    let script = "dpkg-query -W -f '${Version}' demo-hello > /opt/after; echo no balancer; exit 1";
    write_program(&member, "/etc/evenkeel/hooks/after-update.d/10-undrain", script);
    member.assign_packages("demo-hello=1.1");
    let run = member.update_to("succeeded");
    assert_eq!(member.node.sh("cat /opt/after"), "1.1");
    let remarks = run["report"]["remarks"].to_string();
    assert!(remarks.contains("10-undrain") && remarks.contains("no balancer"), "{run:#}");
}

fn a_health_check_that_fails_only_after_the_update_fails_the_run(stage: &Stage) {
    let member = stage.member();
    let script =
        "dpkg-query -W -f '${Version}' demo-hello | grep -qx 1.0 || { echo no answer; exit 1; }";
    write_program(&member, "/etc/evenkeel/health.d/10-app", script);
    write_program(&member, "/etc/evenkeel/health.d/20-disk", "echo worn out; exit 1");
    write_program(&member, "/etc/evenkeel/hooks/after-update.d/10-undrain", "touch /opt/after");
    member.assign_packages("demo-hello=1.1");
    let run = member.update_to("failed");
    assert_failure(&run, &["verify"], &["10-app", "no answer"]);
    let remarks = run["report"]["remarks"].to_string();
    assert!(remarks.contains("20-disk") && remarks.contains("worn out"), "{run:#}");
    member.node.sh("test ! -e /opt/after");
    member.assert_packages(&[("demo-hello", "1.1 installed")]);
}

fn output_of_a_script_that_the_owner_filters_does_not_reach_the_server(stage: &Stage) {
    let limits = "[reports]\nfailure_log_filter = [\"*fails on purpose*\"]\n";
    let member = member_with_limits(stage, limits);
    member.install_files(&["demo-bad_1.0"]);
    member.assign_packages("demo-bad=1.1");
    let run = member.update_to("failed");
    assert_failure(&run, &["apply"], &["dpkg --configure demo-bad"]);
    assert!(!run.to_string().contains("on purpose"), "{run:#}");
    assert!(run["log"].as_str().expect("a text").contains("removed by the filter"), "{run:#}");
}
