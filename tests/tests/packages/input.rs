//! What no agent should have to read: names that would be commands, lists without an end, wishes that contradict each other.

use evenkeel_tests::lab::{reason, told};
use reqwest::Method;
use serde_json::{Value, json};

use crate::story::{Stage, because, stories, waits, write};

stories![
    a_name_that_a_shell_or_apt_would_take_for_more_is_refused_by_the_server,
    a_name_that_a_shell_or_apt_would_take_for_more_is_refused_by_the_agent,
    a_rule_that_a_shell_or_apt_would_take_for_more_is_refused_by_the_server,
    ten_thousand_packages_are_answered_with_one_reason,
    more_packages_than_make_sense_are_refused_by_the_agent,
    a_window_in_the_past_is_refused_and_opens_nothing,
    a_wish_that_another_one_contradicts_is_given_up,
];

/// What would be more than a package's name, in a shell or for apt.
const MORE: [&str; 14] = [
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

/// What the server says to a policy.
fn answer(stage: &Stage, fields: &Value) -> (u16, String) {
    let mut policy = json!({ "name": "wanted", "updatePolicy": "UPDATE_POLICY_TARGET" });
    let members = policy.as_object_mut().expect("an object");
    members.extend(fields.as_object().expect("an object").clone());
    let path = "/os-update-policies";
    stage.fleet.rest.ask(Method::POST, path, Some(&policy))
}

fn a_name_that_a_shell_or_apt_would_take_for_more_is_refused_by_the_server(stage: &Stage) {
    for name in MORE {
        // A hyphen at the end is a name by Debian's policy; apt would take it for a wish to remove.
        if name == "demo-hello-" {
            continue;
        }
        let (status, said) = answer(stage, &json!({ "updatePackages": name }));
        assert_eq!(status, 400, "{name:?}: {said}");
        assert!(said.contains("updatePackages"), "{name:?}: {said}");
    }
}

fn a_name_that_a_shell_or_apt_would_take_for_more_is_refused_by_the_agent(stage: &Stage) {
    let member = stage.member();
    for name in MORE {
        let given = format!("--package={name}");
        let output = member.agent(&["plan", &given]);
        let said = told(&output);
        assert!(!output.status.success(), "{name:?}: {said}");
    }
    member.want("demo-hello-");
    let run = member.update_to("failed");
    because(&run, &["plan"], &["demo-hello-", "no package's name"]);
    member.stands(&[("demo-hello", "1.0 installed")]);
    assert!(!member.node.has("/root/owned"));
}

fn a_rule_that_a_shell_or_apt_would_take_for_more_is_refused_by_the_server(stage: &Stage) {
    for bad in [
        "$(touch /root/owned)",
        "-o",
        "a b",
        "a;b",
        "/a/",
        "a\nb",
        "",
    ] {
        for rule in ["exclude", "suites"] {
            // A path is a suite: `./` and `stable/updates` are in use.
            if (rule, bad) == ("suites", "/a/") {
                continue;
            }
            let rules = json!({
                "updatePackages": "demo-hello",
                "packageRules": { rule: [bad] },
            });
            let (status, said) = answer(stage, &rules);
            assert_eq!(status, 400, "{rule} {bad:?}: {said}");
        }
    }
}

/// So many packages that no source has.
fn many(count: usize) -> String {
    let names = (0..count).map(|number| format!("demo-no-{number}"));
    names.collect::<Vec<_>>().join("\n")
}

fn ten_thousand_packages_are_answered_with_one_reason(stage: &Stage) {
    let member = stage.member();
    member.want(&many(10_000));
    let run = member.update_to("failed");
    let (kind, said) = reason(&run);
    assert_eq!(kind, "plan", "{said}");
    assert!(said.contains("demo-no-") && said.len() <= 4 << 10, "{said}");
    let log = run["log"].as_str().expect("a text");
    assert!(log.len() <= 32 << 10, "{} bytes", log.len());
    member.stands(&[("demo-hello", "1.0 installed")]);
}

fn more_packages_than_make_sense_are_refused_by_the_agent(stage: &Stage) {
    let member = stage.member();
    member.want(&many(10_001));
    let run = member.update_to("failed");
    because(&run, &["plan"], &["10001 packages are wanted"]);
}

fn a_window_in_the_past_is_refused_and_opens_nothing(stage: &Stage) {
    let member = stage.member();
    member.want("demo-hello=1.1");
    let now = member.now().timestamp();
    let window = json!({
        "name": "past",
        "scheduleStatus": "SCHEDULE_STATUS_OS_UPDATE",
        "startSeconds": now - 3_600,
        "endSeconds": now + 3_600,
        "targetHostId": member.host,
    });
    let path = "/schedules/single";
    let (status, said) = stage.fleet.rest.ask(Method::POST, path, Some(&window));
    assert_eq!(status, 400, "{said}");
    assert!(said.contains("startSeconds"), "{said}");
    assert!(member.agent_once().status.success());
    assert_eq!(member.decision()["reason"]["code"], "no_window");
    assert!(member.runs().is_empty());
    member.stands(&[("demo-hello", "1.0 installed")]);
}

fn a_wish_that_another_one_contradicts_is_given_up(stage: &Stage) {
    let member = stage.member();
    let inhibit = "/etc/evenkeel/inhibit";
    write(&member.node, inhibit, "not yet\n");
    member.want("demo-hello=1.1");
    member.order_now();
    waits(&member, "not yet");

    // Another policy wants the version that is there, and something else.
    member.node.sh(&format!("rm {inhibit}"));
    member.want("demo-hello=1.0\ndemo-conf=1.1");
    assert!(member.agent_once().status.success());
    let runs = member.runs();
    let states: Vec<_> = runs.iter().map(|run| &run["state"]).collect();
    assert_eq!(states.len(), 2, "{runs:#?}");
    assert!(
        states.iter().any(|state| **state == "cancelled"),
        "{runs:#?}"
    );
    assert!(
        states.iter().any(|state| **state == "succeeded"),
        "{runs:#?}"
    );
    member.stands(&[
        ("demo-hello", "1.0 installed"),
        ("demo-conf", "1.1 installed"),
    ]);
}
