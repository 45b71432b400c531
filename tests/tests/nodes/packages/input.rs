//! Input that is rejected: names with shell syntax, endless lists, policies that contradict each
//! other.

use evenkeel_tests::lab::{describe_output, reason};
use reqwest::Method;
use serde_json::{Value, json};

use super::scenario::{Stage, assert_failure, assert_waits, scenarios, write_file};

scenarios![
    a_package_name_with_shell_or_apt_syntax_is_rejected_by_the_server,
    a_package_name_with_shell_or_apt_syntax_is_rejected_by_the_agent,
    a_rule_with_shell_or_apt_syntax_is_rejected_by_the_server,
    ten_thousand_packages_are_answered_with_one_reason,
    too_many_packages_are_rejected_by_the_agent,
    a_window_in_the_past_is_refused_and_opens_nothing,
    a_policy_that_contradicts_a_prepared_update_cancels_it,
];

/// Names with a meaning beyond a package name, in a shell or for apt.
const UNSAFE_NAMES: [&str; 14] = [
    "demo-hello;touch /root/owned",
    "$(touch /root/owned)",
    "`touch /root/owned`",
    "demo-hello&&touch",
    "demo-hello|tee",
    "-oDPkg::Pre-Invoke::=touch",
    "--allow-unauthenticated",
    "demo-hello-",
    "demo-*",
    "demo-hello/unstable",
    "../../root/owned.deb",
    "./owned.deb",
    "demo-hello=1.1;touch /root/owned",
    "demo-hello=1.1/../..",
];

/// Status and message of the server for a new policy.
fn create_policy(stage: &Stage, fields: &Value) -> (u16, String) {
    let mut policy = json!({ "name": "test", "updatePolicy": "UPDATE_POLICY_TARGET" });
    let members = policy.as_object_mut().expect("an object");
    members.extend(fields.as_object().expect("an object").clone());
    let path = "os-update-policies";
    stage.fleet.rest.send(Method::POST, path, Some(&policy))
}

fn a_package_name_with_shell_or_apt_syntax_is_rejected_by_the_server(stage: &Stage) {
    for name in UNSAFE_NAMES {
        // Debian's policy allows a hyphen at the end; apt would read it as a removal.
        if name == "demo-hello-" {
            continue;
        }
        let (status, message) = create_policy(stage, &json!({ "updatePackages": name }));
        assert_eq!(status, 400, "{name:?}: {message}");
        assert!(message.contains("updatePackages"), "{name:?}: {message}");
    }
}

fn a_package_name_with_shell_or_apt_syntax_is_rejected_by_the_agent(stage: &Stage) {
    let member = stage.member();
    for name in UNSAFE_NAMES {
        let argument = format!("--package={name}");
        let output = member.agent(&["plan", &argument]);
        let text = describe_output(&output);
        assert!(!output.status.success(), "{name:?}: {text}");
    }
    member.assign_packages("demo-hello-");
    let run = member.update_to("failed");
    assert_failure(&run, &["plan"], &["demo-hello-", "not a package name"]);
    member.assert_packages(&[("demo-hello", "1.0 installed")]);
    assert!(!member.node.has_path("/root/owned"));
}

fn a_rule_with_shell_or_apt_syntax_is_rejected_by_the_server(stage: &Stage) {
    for bad in ["$(touch /root/owned)", "-o", "a b", "a;b", "/a/", "a\nb", ""] {
        for rule in ["exclude", "suites"] {
            // A suite may be a path: `./` and `stable/updates` are in use.
            if (rule, bad) == ("suites", "/a/") {
                continue;
            }
            let rules = json!({
                "updatePackages": "demo-hello",
                "packageRules": { rule: [bad] },
            });
            let (status, message) = create_policy(stage, &rules);
            assert_eq!(status, 400, "{rule} {bad:?}: {message}");
        }
    }
}

/// Names of packages that no source has.
fn unknown_packages(count: usize) -> String {
    let names = (0..count).map(|number| format!("demo-no-{number}"));
    names.collect::<Vec<_>>().join("\n")
}

fn ten_thousand_packages_are_answered_with_one_reason(stage: &Stage) {
    let member = stage.member();
    member.assign_packages(&unknown_packages(10_000));
    let run = member.update_to("failed");
    let (kind, message) = reason(&run);
    assert_eq!(kind, "plan", "{message}");
    assert!(message.contains("demo-no-") && message.len() <= 4 << 10, "{message}");
    let log = run["log"].as_str().expect("a text");
    assert!(log.len() <= 32 << 10, "{} bytes", log.len());
    member.assert_packages(&[("demo-hello", "1.0 installed")]);
}

fn too_many_packages_are_rejected_by_the_agent(stage: &Stage) {
    let member = stage.member();
    member.assign_packages(&unknown_packages(10_001));
    let run = member.update_to("failed");
    assert_failure(&run, &["plan"], &["10001 packages are requested"]);
}

fn a_window_in_the_past_is_refused_and_opens_nothing(stage: &Stage) {
    let member = stage.member();
    member.assign_packages("demo-hello=1.1");
    let now = member.server_time().timestamp();
    let window = json!({
        "name": "past",
        "scheduleStatus": "SCHEDULE_STATUS_OS_UPDATE",
        "startSeconds": now - 3_600,
        "endSeconds": now + 3_600,
        "targetHostId": member.host,
    });
    let path = "schedules/single";
    let (status, message) = stage.fleet.rest.send(Method::POST, path, Some(&window));
    assert_eq!(status, 400, "{message}");
    assert!(message.contains("startSeconds"), "{message}");
    assert!(member.agent_once().status.success());
    assert_eq!(member.decision()["reason"]["code"], "no_window");
    assert!(member.runs().is_empty());
    member.assert_packages(&[("demo-hello", "1.0 installed")]);
}

fn a_policy_that_contradicts_a_prepared_update_cancels_it(stage: &Stage) {
    let member = stage.member();
    let inhibit = "/etc/evenkeel/inhibit";
    write_file(&member.node, inhibit, "not yet\n");
    member.order_packages("demo-hello=1.1");
    assert_waits(&member, "not yet");

    // Another policy requests the installed version, and another package.
    member.node.sh(&format!("rm {inhibit}"));
    member.assign_packages("demo-hello=1.0\ndemo-conf=1.1");
    assert!(member.agent_once().status.success());
    let runs = member.runs();
    let states: Vec<_> = runs.iter().map(|run| &run["state"]).collect();
    assert_eq!(states.len(), 2, "{runs:#?}");
    assert!(states.iter().any(|state| **state == "cancelled"), "{runs:#?}");
    assert!(states.iter().any(|state| **state == "succeeded"), "{runs:#?}");
    member.assert_packages(&[("demo-hello", "1.0 installed"), ("demo-conf", "1.1 installed")]);
}
