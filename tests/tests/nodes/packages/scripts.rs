//! Failing scripts of packages and hooks of apt. The agent finishes what it can, and reports the
//! command that repairs the rest.

use evenkeel_tests::lab::{Member, describe_output, until};
use serde_json::{Value, json};

use super::scenario::{
    AGENT_PATH, Stage, WAIT_TIMEOUT, assert_failure, list_sources_twice, scenarios,
    wait_until_dpkg_is_blocked, write_file,
};

scenarios![
    a_package_whose_preinst_fails_is_unchanged,
    a_package_whose_old_and_new_prerm_fail_is_unchanged,
    a_package_whose_old_prerm_fails_is_upgraded_by_the_new_one,
    a_failing_postinst_is_reported_with_the_command_that_repairs_it,
    a_failure_is_reported_with_its_own_log_and_no_earlier_one,
    a_missing_dependency_is_refused_before_anything_is_changed,
    a_script_that_reads_an_answer_gets_none_and_does_not_wait,
    a_script_that_never_ends_is_killed_at_its_deadline_and_the_run_ends,
    a_script_that_never_ends_is_killed_at_its_deadline_by_a_restarted_agent,
    a_script_that_never_ends_is_killed_at_its_deadline_if_the_journal_is_lost,
    hooks_of_apt_for_people_do_not_fail_an_update,
    a_hook_of_a_refresh_that_never_ends_does_not_fail_an_update,
    a_failing_hook_before_a_refresh_does_not_fail_an_update,
    hooks_before_dpkg_get_the_packages_as_from_apt,
    a_hook_before_dpkg_that_never_ends_is_killed_and_prevents_the_change,
    a_hook_after_dpkg_that_never_ends_is_killed_and_leaves_no_lock,
    a_failing_hook_before_dpkg_prevents_the_change_as_with_apt,
];

/// A file with settings of apt.
const HOOKS_FILE: &str = "/etc/apt/apt.conf.d/90hooks";

#[track_caller]
fn assert_log_contains(run: &Value, text: &str) {
    let log = run["log"].as_str().expect("a text");
    assert!(log.contains(text), "{text:?} is missing in {log}");
}

fn a_package_whose_preinst_fails_is_unchanged(stage: &Stage) {
    let member = stage.member();
    member.install_files(&["demo-preinst_1.0"]);
    member.assign_packages("demo-preinst=1.1");
    let run = member.update_to("reverted");
    assert_failure(&run, &["apply"], &["apt-get install"]);
    assert_log_contains(&run, "demo-preinst: preinst fails on purpose");
    member.assert_packages(&[("demo-preinst", "1.0 installed")]);
}

fn a_package_whose_old_and_new_prerm_fail_is_unchanged(stage: &Stage) {
    let member = stage.member();
    member.install_files(&["demo-stuck_1.0"]);
    member.assign_packages("demo-stuck=1.1");
    let run = member.update_to("reverted");
    assert_failure(&run, &["apply"], &["apt-get install"]);
    assert_log_contains(&run, "demo-stuck: prerm fails on purpose");
    member.assert_packages(&[("demo-stuck", "1.0 installed")]);
}

fn a_package_whose_old_prerm_fails_is_upgraded_by_the_new_one(stage: &Stage) {
    let member = stage.member();
    member.install_files(&["demo-prerm_1.0"]);
    member.assign_packages("demo-prerm=1.1");
    member.update_to("succeeded");
    member.assert_packages(&[("demo-prerm", "1.1 installed")]);
}

fn a_failing_postinst_is_reported_with_the_command_that_repairs_it(stage: &Stage) {
    let member = stage.member();
    member.install_files(&["demo-bad_1.0"]);
    member.assign_packages("demo-bad=1.1\ndemo-hello=1.1");
    let run = member.update_to("failed");
    assert_failure(&run, &["apply"], &["dpkg --configure demo-bad"]);
    assert_log_contains(&run, "demo-bad: postinst fails on purpose");

    // The other packages are not affected.
    let status = member.node.dpkg_status();
    assert_eq!(status.package("demo-bad"), "1.1 half-configured");
    assert_eq!(status.package("demo-hello"), "1.1 installed");
    assert!(status.audit.contains("demo-bad"), "{status:#?}");
    assert!(!status.audit.contains("demo-hello"), "{status:#?}");
    let packages = run["packages"].as_array().expect("packages");
    let package_states = packages.iter().map(|one| json!([one["name"], one["state"]]));
    let package_states: Vec<_> = package_states.collect();
    assert!(package_states.contains(&json!(["demo-bad", "half-configured"])), "{run:#}");
    assert!(package_states.contains(&json!(["demo-hello", "installed"])), "{run:#}");

    // The update is not retried automatically, and the reported command works.
    assert!(member.agent_once().status.success());
    assert_eq!(member.only_run()["resourceId"], run["resourceId"]);
    member.node.sh("touch /opt/demo/repaired; dpkg --configure demo-bad");
    member.assert_packages(&[("demo-bad", "1.1 installed")]);
}

fn a_failure_is_reported_with_its_own_log_and_no_earlier_one(stage: &Stage) {
    let member = stage.member();
    // Earlier output in the logs of apt belongs to other changes.
    member.install_files(&["demo-bad_1.0", "demo-preinst_1.0"]);
    member
        .node
        .sh("apt-get -q -y install demo-preinst=1.1 || true; grep -q demo-preinst /var/log/apt/term.log");
    member.assign_packages("demo-bad=1.1");
    let run = member.update_to("failed");
    assert_log_contains(&run, "demo-bad: postinst fails on purpose");
    let log = run["log"].as_str().expect("a text");
    assert!(!log.contains("demo-preinst"), "{log}");
}

fn a_missing_dependency_is_refused_before_anything_is_changed(stage: &Stage) {
    let member = stage.member();
    member.install_files(&["demo-missing_1.0"]);
    member.assign_packages("demo-missing=1.1\ndemo-hello=1.1");
    let run = member.update_to("failed");
    assert_failure(&run, &["plan"], &["apt-get"]);
    assert_log_contains(&run, "demo-nowhere");
    member.assert_packages(&[("demo-missing", "1.0 installed"), ("demo-hello", "1.0 installed")]);
}

fn a_script_that_reads_an_answer_gets_none_and_does_not_wait(stage: &Stage) {
    let member = stage.member();
    member.install_files(&["demo-reads_1.0"]);
    member.assign_packages("demo-reads=1.1");
    member.update_to("succeeded");
    member.assert_packages(&[("demo-reads", "1.1 installed")]);
    let log = member.node.sh("cat /var/log/apt/term.log");
    assert!(log.contains("no answer"), "{log}");
}

fn a_script_that_never_ends_is_killed_at_its_deadline_and_the_run_ends(stage: &Stage) {
    let node = stage.node("node").with_variable("EVENKEEL_AGENT_PACKAGES__APPLY_TIMEOUT", "10s");
    let member = stage.join(node);
    member.install_files(&["demo-slow_1.0"]);
    // The postinst script waits until this file is deleted.
    member.node.sh("touch /opt/demo/slow");
    member.assign_packages("demo-slow=1.1");
    let run = member.update_to("failed");
    assert_failure(
        &run,
        &["apply"],
        &["did not end within 10 s and was killed", "dpkg --configure demo-slow"],
    );
    assert_eq!(member.node.dpkg_status().package("demo-slow"), "1.1 half-configured");

    // No lock is left, and the reported command works.
    member.node.sh("rm /opt/demo/slow; dpkg --configure demo-slow; apt-get -q -y check");
    member.assert_packages(&[("demo-slow", "1.1 installed")]);
}

fn a_script_that_never_ends_is_killed_at_its_deadline_by_a_restarted_agent(stage: &Stage) {
    let member = stage.member();
    member.install_files(&["demo-slow_1.0"]);
    member.order_packages("demo-slow=1.1");
    let limit = "EVENKEEL_AGENT_PACKAGES__APPLY_TIMEOUT=10s";
    let script = format!(
        "touch /opt/demo/slow; env {limit} {AGENT_PATH} run & echo $! > /run/agent; wait; exec sleep 1000"
    );
    let boot = member.node.start(&["sh", "-c", &script]);
    wait_until_dpkg_is_blocked(&member.node);
    member.node.succeed_inside(&["sh", "-c", "kill -KILL $(cat /run/agent)"]);

    let output = member.node.run_inside(&["env", limit, AGENT_PATH, "run", "--once"]);
    let text = describe_output(&output);
    assert!(!output.status.success(), "{text}");
    let run = member.only_run();
    assert_eq!(run["state"], "failed", "{run:#}\n{text}");
    assert_failure(
        &run,
        &["apply"],
        &["did not end within 10 s and was killed", "dpkg --configure demo-slow"],
    );

    // No lock is left, and the reported command works.
    let repair = "rm /opt/demo/slow; dpkg --configure demo-slow; apt-get -q -y check";
    member.node.succeed_inside(&["sh", "-ec", repair]);
    drop(boot);
    member.assert_packages(&[("demo-slow", "1.1 installed")]);
}

fn a_script_that_never_ends_is_killed_at_its_deadline_if_the_journal_is_lost(stage: &Stage) {
    let member = stage.member();
    member.install_files(&["demo-slow_1.0"]);
    member.order_packages("demo-slow=1.1");
    let agent = format!("env EVENKEEL_AGENT_PACKAGES__APPLY_TIMEOUT=10s {AGENT_PATH} run");
    let data_dir = "/var/lib/evenkeel-agent";
    let script = format!(
        "touch /opt/demo/slow; {agent} & echo $! > /run/agent; wait; \
         echo noise > {data_dir}/journal.json; {agent} & wait; exec sleep 1000"
    );
    let boot = member.node.start(&["sh", "-c", &script]);
    wait_until_dpkg_is_blocked(&member.node);
    let find_process = format!("sed 's/.*\"process\":\\([0-9]*\\),.*/\\1/' {data_dir}/change.json");
    let process = member.node.succeed_inside(&["sh", "-c", &find_process]);
    member.node.succeed_inside(&["sh", "-c", "kill -KILL $(cat /run/agent)"]);

    let look = format!("! grep -q '^State:.[^Z]' /proc/{}/status", process.trim());
    until("the change has ended", WAIT_TIMEOUT, || {
        let output = member.node.run_inside(&["sh", "-c", &look]);
        output.status.success().then_some(())
    });
    drop(boot);
    let version = member.node.sh("dpkg-query --show --showformat='${Version}' demo-slow");
    assert_eq!(version, "1.1");
}

fn hooks_of_apt_for_people_do_not_fail_an_update(stage: &Stage) {
    let member = stage.member();
    // As apt-listbugs and apt-listchanges do, two hooks fail unless they are disabled.
    let hooks = "APT::Update::Post-Invoke-Success {\"exit 3\";};\n\
                 DPkg::Pre-Install-Pkgs {\"test $APT_LISTBUGS_FRONTEND = none\";};\n\
                 DPkg::Pre-Install-Pkgs {\"test $APT_LISTCHANGES_FRONTEND = none\";};\n\
                 DPkg::Post-Invoke {\"exit 3\";};\n";
    write_file(&member.node, HOOKS_FILE, hooks);
    list_sources_twice(&member.node);
    member.assign_packages("demo-hello=1.1");
    member.update_to("succeeded");
    member.assert_packages(&[("demo-hello", "1.1 installed")]);
}

fn a_hook_of_a_refresh_that_never_ends_does_not_fail_an_update(stage: &Stage) {
    let node = stage.node("node").with_variable("EVENKEEL_AGENT_PACKAGES__REFRESH_TIMEOUT", "10s");
    let member = stage.join(node);
    let hooks = "APT::Update::Pre-Invoke {\"echo begins\";};\n\
                 APT::Update::Post-Invoke-Success {\"echo waiting; sleep 1000\";};\n";
    write_file(&member.node, HOOKS_FILE, hooks);
    member.assign_packages("demo-hello=1.1");
    let run = member.update_to("succeeded");
    assert!(!run.to_string().contains("some package sources could not be used"), "{run:#}");
    member.assert_packages(&[("demo-hello", "1.1 installed")]);
}

fn a_failing_hook_before_a_refresh_does_not_fail_an_update(stage: &Stage) {
    let member = stage.member();
    write_file(&member.node, HOOKS_FILE, "APT::Update::Pre-Invoke {\"exit 3\";};\n");
    let refused = member.node.sh("apt-get -q update 2>&1 || echo refused");
    assert!(refused.ends_with("refused\n"), "{refused}");
    member.assign_packages("demo-hello=1.1");
    let run = member.update_to("succeeded");
    assert!(!run.to_string().contains("some package sources could not be used"), "{run:#}");
    member.assert_packages(&[("demo-hello", "1.1 installed")]);
}

/// A node on which each hook of apt around dpkg may take two seconds.
fn member_with_hooks(stage: &Stage, hooks: &str) -> Member<'static> {
    let node = stage.node("node").with_variable("EVENKEEL_AGENT_PACKAGES__HOOK_TIMEOUT", "2s");
    let member = stage.join(node);
    write_file(&member.node, HOOKS_FILE, hooks);
    member
}

fn hooks_before_dpkg_get_the_packages_as_from_apt(stage: &Stage) {
    let hooks = "Binary::apt-get::DPkg::Pre-Invoke {\"touch /opt/demo/first\";};\n\
                 DPkg::Pre-Install-Pkgs {\"test -e /opt/demo/first && cat > /opt/demo/plain\";};\n\
                 DPkg::Pre-Install-Pkgs {\"/opt/demo/hook --apt\";};\n\
                 DPkg::Tools::Options::/opt/demo/hook::Version \"2\";\n\
                 DPkg::Tools::Options::/opt/demo/hook::InfoFD \"20\";\n";
    let member = member_with_hooks(stage, hooks);
    let hook = "#!/bin/sh\ncat /proc/self/fd/20 > /opt/demo/detailed\n";
    write_file(&member.node, "/opt/demo/hook", hook);
    member.node.sh("chmod 755 /opt/demo/hook");
    member.assign_packages("demo-hello=1.1");

    member.update_to("succeeded");

    member.assert_packages(&[("demo-hello", "1.1 installed")]);
    let plain = member.node.sh("cat /opt/demo/plain");
    assert!(plain.trim_end().ends_with("/demo-hello_1.1_all.deb"), "{plain}");
    let detailed = member.node.sh("cat /opt/demo/detailed");
    assert!(detailed.starts_with("VERSION 2\n"), "{detailed}");
    assert!(detailed.contains("demo-hello 1.0 < 1.1 **CONFIGURE**"), "{detailed}");
}

fn a_hook_before_dpkg_that_never_ends_is_killed_and_prevents_the_change(stage: &Stage) {
    let member = member_with_hooks(stage, "DPkg::Pre-Invoke {\"echo begins; sleep 1000\";};\n");
    member.assign_packages("demo-hello=1.1");
    let run = member.update_to("reverted");
    let killed = "did not end within 2 s and was killed: echo begins; sleep 1000";
    assert_failure(&run, &["apply"], &[killed]);
    member.assert_packages(&[("demo-hello", "1.0 installed")]);
    member.node.sh("apt-get -q -y check");
}

fn a_hook_after_dpkg_that_never_ends_is_killed_and_leaves_no_lock(stage: &Stage) {
    let hooks = "DPkg::Post-Invoke {\"echo ends; sleep 1000\"; \"touch /opt/demo/next\";};\n";
    let member = member_with_hooks(stage, hooks);
    member.assign_packages("demo-hello=1.1");
    let run = member.update_to("succeeded");
    member.assert_packages(&[("demo-hello", "1.1 installed")]);
    let remarks = run["report"]["remarks"].to_string();
    let killed = "did not end within 2 s and was killed: echo ends; sleep 1000";
    assert!(remarks.contains(killed), "{run:#}");
    member.node.sh("test -e /opt/demo/next; apt-get -q -y check");
}

fn a_failing_hook_before_dpkg_prevents_the_change_as_with_apt(stage: &Stage) {
    let member = member_with_hooks(stage, "DPkg::Pre-Invoke {\"test -e /opt/demo/ready\";};\n");
    member.assign_packages("demo-hello=1.1");
    let run = member.update_to("reverted");
    assert_failure(&run, &["apply"], &["DPkg::Pre-Invoke 'test -e /opt/demo/ready'"]);
    member.assert_packages(&[("demo-hello", "1.0 installed")]);
}
