//! The machine's owner has the last word: limits, hooks and files that no message of the server can widen.

use chrono::{DateTime, TimeDelta, Utc};
use evenkeel_tests::lab::{Member, until};
use serde_json::json;

use crate::story::{SOON, Stage, because, stories, waits, write};

stories![
    a_suite_that_the_owner_does_not_allow_brings_nothing,
    an_older_version_that_the_owner_does_not_allow_is_refused,
    a_removal_that_the_owner_does_not_allow_is_refused,
    a_source_that_the_owner_does_not_allow_is_refused,
    a_key_that_the_owner_does_not_know_is_refused,
    outside_the_owners_hours_the_node_waits,
    a_reboot_that_the_owner_does_not_allow_is_told_as_missing,
    limits_that_others_could_have_written_allow_nothing,
    a_file_that_inhibits_updates_is_heeded_until_it_is_gone,
    a_hook_that_says_no_is_heeded_and_its_words_reach_the_operator,
];

/// Where the owner's limits are.
const LIMITS: &str = "/etc/evenkeel/limits.toml";

/// A node with the limits of its owner.
fn limited(stage: &Stage, limits: &str) -> Member<'static> {
    let member = stage.member();
    write(&member.node, LIMITS, limits);
    member
}

fn a_suite_that_the_owner_does_not_allow_brings_nothing(stage: &Stage) {
    let member = limited(stage, "suites = [\"elsewhere\"]\n");
    member.want("demo-hello=1.1");
    let run = member.update_to("failed");
    because(
        &run,
        &["limits"],
        &["the machine's owner allows: elsewhere"],
    );
    member.stands(&[("demo-hello", "1.0 installed")]);
}

fn an_older_version_that_the_owner_does_not_allow_is_refused(stage: &Stage) {
    let member = limited(stage, "downgrades = false\n");
    member.given(&["demo-hello_1.1"]);
    member.want_with(&json!({
        "updatePolicy": "UPDATE_POLICY_TARGET",
        "updatePackages": "demo-hello=1.0",
        "allowDowngrade": true,
    }));
    let run = member.update_to("failed");
    because(&run, &["plan", "limits"], &["owner"]);
    member.stands(&[("demo-hello", "1.1 installed")]);
}

fn a_removal_that_the_owner_does_not_allow_is_refused(stage: &Stage) {
    let member = limited(stage, "removals = false\n");
    member.given(&["demo-alone_1.0", "demo-guest_1.0"]);
    member.want_with(&json!({
        "updatePolicy": "UPDATE_POLICY_TARGET",
        "updatePackages": "demo-alone=1.1",
        "packageRules": { "allowRemovals": true },
    }));
    let run = member.update_to("failed");
    because(&run, &["plan", "limits"], &["demo-guest"]);
    member.stands(&[
        ("demo-alone", "1.0 installed"),
        ("demo-guest", "1.0 installed"),
    ]);
}

fn a_source_that_the_owner_does_not_allow_is_refused(stage: &Stage) {
    let member = limited(stage, "new_sources = false\n");
    wants_with_a_source(stage, &member);
    let run = member.update_to("failed");
    because(&run, &["limits"], &["owner", "source"]);
    member.stands(&[("demo-hello", "1.0 installed")]);
}

fn a_key_that_the_owner_does_not_know_is_refused(stage: &Stage) {
    let keys = "keys = [\"0123456789ABCDEF0123456789ABCDEF01234567\"]\n";
    let member = limited(stage, keys);
    wants_with_a_source(stage, &member);
    let run = member.update_to("failed");
    because(&run, &["limits"], &["owner"]);
    member.stands(&[("demo-hello", "1.0 installed")]);
}

/// Wishes for a package together with a source of the wish's own.
fn wants_with_a_source(stage: &Stage, member: &Member<'_>) {
    member.want_with(&json!({
        "updatePolicy": "UPDATE_POLICY_TARGET",
        "updatePackages": "demo-hello=1.1",
        "updateSources": [stage.fleet.repository.sources()],
    }));
}

fn outside_the_owners_hours_the_node_waits(stage: &Stage) {
    let member = stage.member();
    // Nodes of the lab live in UTC.
    let now = member.now();
    let at = |hours: i64| -> DateTime<Utc> { now + TimeDelta::hours(hours) };
    let hours = format!("{}-{}", at(3).format("%H:00"), at(5).format("%H:00"));
    write(&member.node, LIMITS, &format!("hours = [\"{hours}\"]\n"));
    member.want("demo-hello=1.1");
    member.order_now();
    waits(&member, "outside the owner's hours");
    member.stands(&[("demo-hello", "1.0 installed")]);

    let hours = format!("{}-{}", at(-2).format("%H:00"), at(3).format("%H:00"));
    write(&member.node, LIMITS, &format!("hours = [\"{hours}\"]\n"));
    member.go_on_to("succeeded");
    member.stands(&[("demo-hello", "1.1 installed")]);
}

fn a_reboot_that_the_owner_does_not_allow_is_told_as_missing(stage: &Stage) {
    let member = limited(stage, "reboots = \"never\"\n");
    member.given(&["demo-reboot_1.0"]);
    member.want("demo-reboot=1.1");
    let run = member.update_to("succeeded");
    let account = &run["account"];
    assert_eq!(account["rebootRequired"], true, "{run:#}");
    let remarks = account["remarks"].to_string();
    assert!(remarks.contains("owner"), "{run:#}");
    member.stands(&[("demo-reboot", "1.1 installed")]);
}

fn limits_that_others_could_have_written_allow_nothing(stage: &Stage) {
    let member = limited(stage, "downgrades = false\n");
    member.node.sh(&format!("chmod 666 {LIMITS}"));
    member.want("demo-hello=1.1");
    let run = member.update_to("failed");
    because(&run, &["limits"], &[LIMITS]);
    member.stands(&[("demo-hello", "1.0 installed")]);
    let trouble = member.condition("agent_trouble");
    assert!(trouble.contains(LIMITS), "{trouble:?}");

    // Mended, it is forgotten.
    member.node.sh(&format!("chmod 644 {LIMITS}"));
    assert!(member.agent_once().status.success());
    assert_eq!(member.condition("agent_trouble"), "");
}

fn a_file_that_inhibits_updates_is_heeded_until_it_is_gone(stage: &Stage) {
    let member = stage.member();
    let file = "/etc/evenkeel/inhibit";
    write(&member.node, file, "the line is producing\n");
    member.want("demo-hello=1.1");
    member.order_now();
    waits(&member, "the line is producing");
    member.stands(&[("demo-hello", "1.0 installed")]);

    member.node.sh(&format!("rm {file}"));
    member.go_on_to("succeeded");
    member.stands(&[("demo-hello", "1.1 installed")]);
}

fn a_hook_that_says_no_is_heeded_and_its_words_reach_the_operator(stage: &Stage) {
    let member = stage.member();
    let hook = "/etc/evenkeel/hooks/before-update.d/10-ask";
    let text = "#!/bin/sh\ntest ! -e /run/busy || { echo the oven is on; exit 75; }\n";
    write(&member.node, hook, text);
    member.node.sh(&format!("chmod 755 {hook}"));
    member.want("demo-hello=1.1");
    member.order_now();

    let script = "touch /run/busy; exec /srv/evenkeel-agent run";
    let agent = member.node.start(&["sh", "-c", script]);
    until("the operator is told why the node waits", SOON, || {
        let waiting = member.decision()["waiting"].to_string();
        (waiting.contains("10-ask") && waiting.contains("the oven is on")).then_some(())
    });
    let run = member.only_run();
    assert_eq!(run["state"], "staged", "{run:#}\n{}", agent.log());

    member.node.inside(&["rm", "/run/busy"]);
    until("the update is done", SOON, || {
        (member.only_run()["state"] == "succeeded").then_some(())
    });
    assert_eq!(member.decision()["waiting"], "");
    drop(agent);
    member.stands(&[("demo-hello", "1.1 installed")]);
}
