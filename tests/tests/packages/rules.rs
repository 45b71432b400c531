//! The rules of a policy: which suites, which names, how old, and whether the node reboots.

use std::sync::{Mutex, PoisonError};

use serde_json::{Value, json};

use crate::story::{Stage, stories};

stories![
    only_what_comes_from_the_named_suites_is_updated,
    what_a_policy_leaves_out_by_name_stays,
    a_version_is_installed_only_when_it_is_old_enough,
    a_reboot_that_the_policy_forbids_is_told_as_missing,
    what_a_node_could_update_is_known_with_its_suites,
];

fn only_what_comes_from_the_named_suites_is_updated(stage: &Stage) {
    let security = stage.repository().made_with("DIST", "demo-security");
    security.publish("demo-hello_1.1");
    let node = stage
        .node("node")
        .with(security.folder(), security.inside());
    let member = stage.join(node);
    member
        .node
        .sh("cp /srv/own/repo.sources /etc/apt/sources.list.d/own.sources");
    member.want_all(&json!({ "suites": ["demo-security"] }));
    let run = member.update_to("succeeded");
    assert_eq!(run["packages"].as_array().map(Vec::len), Some(1), "{run:#}");
    member.stands(&[
        ("demo-hello", "1.1 installed"),
        ("demo-app", "1.0 installed"),
        ("demo-conf", "1.0 installed"),
        ("demo-held", "1.0 installed"),
        ("demo-lib", "1.0 installed"),
    ]);
    // Afterwards apt of the machine itself still knows all sources.
    let known = member.node.sh("apt-get -s upgrade --with-new-pkgs");
    assert!(known.contains("Inst demo-app [1.0] (1.1"), "{known}");
}

fn what_a_policy_leaves_out_by_name_stays(stage: &Stage) {
    let member = stage.member();
    let preferences = "ls -A /etc/apt/preferences.d";
    let before = member.node.sh(preferences);
    member.want_all(&json!({ "exclude": ["demo-he*", "demo-con?"] }));
    member.update_to("succeeded");
    member.stands(&[
        ("demo-hello", "1.0 installed"),
        ("demo-held", "1.0 installed"),
        ("demo-conf", "1.0 installed"),
        ("demo-app", "1.1 installed"),
        ("demo-lib", "1.1 installed"),
    ]);
    assert_eq!(member.node.sh(preferences), before);
}

/// The project knows versions, not which node told of them: one story at a time.
static AGES: Mutex<()> = Mutex::new(());

fn a_version_is_installed_only_when_it_is_old_enough(stage: &Stage) {
    let _alone = AGES.lock().unwrap_or_else(PoisonError::into_inner);
    let server = &stage.fleet.server;
    server.sql(
        "UPDATE package_versions SET first_seen = now(), last_seen = now() WHERE name LIKE 'demo-%'",
    );
    let member = stage.member();
    member.want_all(&json!({ "minAgeDays": 1 }));
    member.order_now();
    assert!(member.agent_once().status.success());
    member.stands(&[
        ("demo-hello", "1.0 installed"),
        ("demo-app", "1.0 installed"),
    ]);

    // The server's clock cannot be put forward, so what it noted is put back.
    server.sql(
        "UPDATE package_versions SET first_seen = now() - interval '2 days' WHERE name = 'demo-hello'",
    );
    member.order_now();
    assert!(member.agent_once().status.success());
    member.stands(&[
        ("demo-hello", "1.1 installed"),
        ("demo-app", "1.0 installed"),
        ("demo-conf", "1.0 installed"),
    ]);
    let changed = |run: &&Value| run["packages"] != json!([]);
    let runs = member.runs();
    let changed: Vec<_> = runs.iter().filter(changed).collect();
    assert_eq!(changed.len(), 1, "{runs:#?}");
    assert_eq!(changed[0]["state"], "succeeded", "{runs:#?}");
    assert_eq!(changed[0]["packages"].as_array().map(Vec::len), Some(1));
}

fn a_reboot_that_the_policy_forbids_is_told_as_missing(stage: &Stage) {
    let member = stage.member();
    member.given(&["demo-reboot_1.0"]);
    member.want_with(&json!({
        "updatePolicy": "UPDATE_POLICY_TARGET",
        "updatePackages": "demo-reboot=1.1",
        "packageRules": { "reboot": "NEVER" },
    }));
    let run = member.update_to("succeeded");
    assert_eq!(run["account"]["rebootRequired"], true, "{run:#}");
    member.stands(&[("demo-reboot", "1.1 installed")]);
}

fn what_a_node_could_update_is_known_with_its_suites(stage: &Stage) {
    let member = stage.member();
    assert!(member.agent_once().status.success());
    let decision = member.decision();
    let available = decision["availableUpdates"].as_array().expect("a list");
    let names = available.iter().filter_map(|one| one["name"].as_str());
    let names: Vec<_> = names.collect();
    for name in [
        "demo-app",
        "demo-conf",
        "demo-held",
        "demo-hello",
        "demo-lib",
    ] {
        assert!(names.contains(&name), "{decision:#}");
    }
    let path = format!("/compute/instances/{}", member.instance);
    let instance = stage.fleet.rest.get(&path);
    let told = instance["osUpdateAvailable"].as_str().expect("a text");
    assert!(told.contains("\"suites\":[\"stable\""), "{told}");
}
