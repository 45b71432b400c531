//! Rules of a policy: suites, names, minimum age, and whether the node reboots.

use std::sync::{Mutex, PoisonError};

use serde_json::{Value, json};

use super::scenario::{Stage, scenarios};

scenarios![
    only_packages_from_the_named_suites_are_updated,
    an_excluded_package_is_not_updated,
    a_version_is_installed_only_when_it_is_old_enough,
    a_reboot_that_the_policy_forbids_is_reported_as_required,
    available_updates_of_a_node_are_listed_with_their_suites,
    in_minimal_steps_independent_packages_are_separate_transactions_of_apt,
];

fn only_packages_from_the_named_suites_are_updated(stage: &Stage) {
    let security = stage.repository().with_variable("DIST", "demo-security");
    security.publish("demo-hello_1.1");
    let node = stage.node("node").with_file(security.folder(), security.inside());
    let member = stage.join(node);
    member.node.sh("cp /srv/own/repo.sources /etc/apt/sources.list.d/own.sources");
    member.assign_latest(&json!({ "suites": ["demo-security"] }));
    let run = member.update_to("succeeded");
    assert_eq!(run["packages"].as_array().map(Vec::len), Some(1), "{run:#}");
    member.assert_packages(&[
        ("demo-hello", "1.1 installed"),
        ("demo-app", "1.0 installed"),
        ("demo-conf", "1.0 installed"),
        ("demo-held", "1.0 installed"),
        ("demo-lib", "1.0 installed"),
    ]);
    // Afterwards apt on the machine still uses all sources.
    let simulation = member.node.sh("apt-get -s upgrade --with-new-pkgs");
    assert!(simulation.contains("Inst demo-app [1.0] (1.1"), "{simulation}");
}

fn an_excluded_package_is_not_updated(stage: &Stage) {
    let member = stage.member();
    let preferences = "ls -A /etc/apt/preferences.d";
    let before = member.node.sh(preferences);
    member.assign_latest(&json!({ "exclude": ["demo-he*", "demo-con?"] }));
    member.update_to("succeeded");
    member.assert_packages(&[
        ("demo-hello", "1.0 installed"),
        ("demo-held", "1.0 installed"),
        ("demo-conf", "1.0 installed"),
        ("demo-app", "1.1 installed"),
        ("demo-lib", "1.1 installed"),
    ]);
    assert_eq!(member.node.sh(preferences), before);
}

/// The versions belong to the whole project and not to a node, so only one scenario may run at a time.
static VERSION_AGE_LOCK: Mutex<()> = Mutex::new(());

fn a_version_is_installed_only_when_it_is_old_enough(stage: &Stage) {
    let _alone = VERSION_AGE_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    let server = &stage.fleet.server;
    server.sql(
        "UPDATE package_versions SET first_seen = now(), last_seen = now(), confirmed_at = now() \
         WHERE name LIKE 'demo-%'",
    );
    let member = stage.member();
    member.assign_latest(&json!({ "minAgeDays": 1 }));
    member.order_now();
    assert!(member.agent_once().status.success());
    member.assert_packages(&[("demo-hello", "1.0 installed"), ("demo-app", "1.0 installed")]);

    // The server's clock cannot be advanced, so the recorded times are moved back.
    server.sql(
        "UPDATE package_versions SET first_seen = now() - interval '2 days', \
         confirmed_at = now() - interval '2 days' WHERE name = 'demo-hello'",
    );
    member.order_now();
    assert!(member.agent_once().status.success());
    member.assert_packages(&[
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

fn a_reboot_that_the_policy_forbids_is_reported_as_required(stage: &Stage) {
    let member = stage.member();
    member.install_files(&["demo-reboot_1.0"]);
    member.assign_new_policy(&json!({
        "updatePolicy": "UPDATE_POLICY_TARGET",
        "updatePackages": "demo-reboot=1.1",
        "packageRules": { "reboot": "NEVER" },
    }));
    let run = member.update_to("succeeded");
    assert_eq!(run["report"]["rebootRequired"], true, "{run:#}");
    let reasons = run["report"]["rebootReasons"].to_string();
    assert!(reasons.contains("demo-reboot"), "{reasons}");
    member.assert_packages(&[("demo-reboot", "1.1 installed")]);
}

fn available_updates_of_a_node_are_listed_with_their_suites(stage: &Stage) {
    let member = stage.member();
    assert!(member.agent_once().status.success());
    let decision = member.decision();
    let available = decision["availableUpdates"].as_array().expect("a list");
    let names = available.iter().filter_map(|one| one["name"].as_str());
    let names: Vec<_> = names.collect();
    for name in ["demo-app", "demo-conf", "demo-held", "demo-hello", "demo-lib"] {
        assert!(names.contains(&name), "{decision:#}");
    }
    let path = format!("compute/instances/{}", member.instance);
    let instance = stage.fleet.rest.get(&path);
    let updates = instance["osUpdateAvailable"].as_str().expect("a text");
    assert!(updates.contains("\"suites\":[\"stable\""), "{updates}");
    let refreshed = instance["packageListsRefreshedAt"].as_str();
    assert!(refreshed.is_some() && instance["packageListsError"] == "", "{instance:#}");
    assert_eq!(instance["securityUpdates"], 0, "its only suite is `stable`: {instance:#}");

    member.node.sh("apt-mark hold demo-hello");
    assert!(member.agent_once().status.success());
    let instance = stage.fleet.rest.get(&path);
    let held_back = instance["heldBackPackages"].as_array().expect("a list");
    let held = held_back.iter().find(|one| one["name"] == "demo-hello");
    let held = held.expect("it is held back");
    assert_eq!(held["cause"], "hold", "{held:#}");
    assert!(held["suites"].to_string().contains("stable"), "{held:#}");
    assert_eq!(held["security"], false, "{held:#}");
}

fn in_minimal_steps_independent_packages_are_separate_transactions_of_apt(stage: &Stage) {
    let member = stage.member();
    member.assign_latest(&json!({ "minimalSteps": true }));
    member.update_to("succeeded");
    member.assert_packages(&[
        ("demo-app", "1.1 installed"),
        ("demo-lib", "1.1 installed"),
        ("demo-hello", "1.1 installed"),
    ]);
    assert_eq!(member.node.sh("apt-mark showauto demo-lib"), "demo-lib\n");
    let history = member.node.sh("grep ^Upgrade: /var/log/apt/history.log");
    let transaction = |package: &str| {
        let name = format!("{package}:");
        history.lines().position(|line| line.contains(&name)).expect(package)
    };
    // demo-app needs demo-lib in at least the same version.
    assert_eq!(transaction("demo-app"), transaction("demo-lib"), "{history}");
    assert_ne!(transaction("demo-app"), transaction("demo-hello"), "{history}");
}
