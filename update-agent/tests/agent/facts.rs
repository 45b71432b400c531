//! Which facts the agent reports, and how often.

use std::time::Duration;

use evenkeel_kit::Clock as _;
use evenkeel_update_agent::facts::{Facts, HeldBackCause};

use crate::support::node::TestNode;

fn facts(node: &TestNode) -> Facts {
    node.server().facts.clone().unwrap()
}

#[tokio::test]
async fn a_changed_host_name_is_reported() {
    let node = TestNode::new();
    let mut agent = node.agent();
    let file = node.paths().inside("/etc/hostname");
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    for name in ["edge-1", "edge-2"] {
        std::fs::write(&file, format!("{name}\n")).unwrap();
        agent.run_once().await.unwrap();
        assert_eq!(facts(&node).host_name, name);
    }
}

#[tokio::test]
async fn the_package_list_is_sent_once_per_change() {
    let node = TestNode::new();
    let mut agent = node.agent();
    agent.run_once().await.unwrap();
    agent.run_once().await.unwrap();
    let list = node.server().packages.clone().unwrap();
    assert_eq!(
        list,
        "{\"repo\":[{\"name\":\"app\",\"version\":\"1\",\"architecture\":\"all\"},\
         {\"name\":\"lib\",\"version\":\"1\",\"architecture\":\"all\"}]}"
    );
    assert_eq!(node.server().package_lists, 1);

    let newer = ("1.5".to_owned(), "installed".to_owned());
    node.packages().installed.insert("lib".into(), newer);
    std::fs::write(node.paths().inside("/var/lib/dpkg/status"), "new").unwrap();
    agent.run_once().await.unwrap();
    assert_eq!(node.server().package_lists, 2);
    let list = node.server().packages.clone().unwrap();
    assert!(list.contains("\"1.5\""), "{list}");
}

#[tokio::test]
async fn a_package_list_that_the_server_has_is_not_sent_again() {
    let node = TestNode::new();
    node.run_once().await.unwrap();
    assert_eq!(node.server().package_lists, 1);
    node.run_once().await.unwrap();
    assert_eq!(node.server().package_lists, 1, "also after a restart");
}

#[tokio::test]
async fn facts_that_the_server_has_are_not_sent_again() {
    let node = TestNode::new();
    node.run_once().await.unwrap();
    let before = node.server().fact_messages;
    assert!(before > 0);
    node.run_once().await.unwrap();
    assert_eq!(node.server().fact_messages, before, "also after a restart");
}

#[tokio::test]
async fn a_list_that_changed_between_facts_and_request_waits_for_new_facts() {
    let node = TestNode::new();
    let mut agent = node.agent();
    agent.run_once().await.unwrap();
    let lists = node.server().package_lists;
    // The agent notices a change by dpkg's status file, which is not written yet.
    let newer = ("1.5".to_owned(), "installed".to_owned());
    node.packages().installed.insert("lib".into(), newer);
    node.server().packages = None;
    agent.run_once().await.unwrap();
    assert_eq!(node.server().package_lists, lists, "it would have another digest");
    std::fs::write(node.paths().inside("/var/lib/dpkg/status"), "new").unwrap();
    agent.run_once().await.unwrap();
    assert_eq!(node.server().package_lists, lists + 1);
}

#[tokio::test]
async fn held_back_packages_are_reported_with_their_cause() {
    let node = TestNode::new();
    node.packages().held.insert("app".into());
    node.packages().blocked.insert("lib".into());
    node.run_once().await.unwrap();
    let facts = facts(&node);
    assert!(facts.available.is_empty());
    let held_back: Vec<_> = facts
        .held_back
        .iter()
        .map(|update| {
            let package = &update.package;
            (
                package.name.as_str(),
                package.installed.as_str(),
                package.available.as_str(),
                package.cause,
            )
        })
        .collect();
    assert_eq!(
        held_back,
        [("app", "1", "2", HeldBackCause::Hold), ("lib", "1", "2", HeldBackCause::Dependencies)]
    );
    assert!(facts.held_back.iter().all(|update| update.suites == ["stable"]), "{facts:?}");
}

#[tokio::test(start_paused = true)]
async fn the_age_and_the_error_of_the_package_lists_are_reported() {
    let node = TestNode::new();
    let mut agent = node.agent();
    agent.run_once().await.unwrap();
    let fetched_at = node.clock.now();
    let lists = facts(&node).package_lists.unwrap();
    assert_eq!((lists.refreshed_at, lists.error.as_str()), (Some(fetched_at), ""));

    node.packages().refresh_error = "E: The repository does not have a Release file.".into();
    node.clock.advance(chrono::TimeDelta::hours(5));
    agent.run_once().await.unwrap();
    let lists = facts(&node).package_lists.unwrap();
    assert_eq!(lists.refreshed_at, Some(fetched_at), "the last complete refresh");
    assert!(lists.error.contains("does not have a Release file"), "{lists:?}");
}

#[tokio::test(start_paused = true)]
async fn hardware_is_sent_with_the_facts_if_it_changed_and_at_most_every_ten_minutes() {
    let node = TestNode::new();
    let folder = node.hardware_root().join("proc");
    std::fs::create_dir_all(&folder).unwrap();
    let set_memory = |kilobytes: u64| {
        let text = format!("MemTotal: {kilobytes} kB\n");
        std::fs::write(folder.join("meminfo"), text).unwrap();
    };
    set_memory(1);
    let mut agent = node.agent();
    agent.run_once().await.unwrap();
    assert_eq!(facts(&node).hardware.unwrap().memory_bytes, 1_024);
    let before = node.server().fact_messages;
    set_memory(2);
    agent.run_once().await.unwrap();
    assert_eq!(node.server().fact_messages, before, "it is not read again yet");
    tokio::time::advance(Duration::from_mins(10)).await;
    agent.run_once().await.unwrap();
    assert_eq!(facts(&node).hardware.unwrap().memory_bytes, 2_048);
}

#[tokio::test]
async fn the_reason_for_a_reboot_is_reported() {
    let node = TestNode::new();
    std::fs::create_dir_all(node.paths().inside("/run")).unwrap();
    std::fs::write(node.paths().inside("/run/reboot-required"), "").unwrap();
    std::fs::write(node.paths().inside("/run/reboot-required.pkgs"), "app\n").unwrap();
    node.run_once().await.unwrap();
    let facts = facts(&node);
    assert!(facts.reboot_required);
    assert_eq!(facts.reboot_reasons, ["app requires it"]);
    assert!(facts.stale_services.is_empty(), "this system's processes are not the node's");
}

#[tokio::test]
async fn a_node_whose_packages_cannot_be_read_still_sends_facts() {
    const DPKG_ERROR: &str = "dpkg-query: error: parsing file '/var/lib/dpkg/status' near line 0:\n end of file after field name 'garbage'";
    let node = TestNode::new();
    node.packages().list_error = DPKG_ERROR.into();
    let mut agent = node.agent();
    agent.run_once().await.unwrap();
    let reported = facts(&node);
    assert!(!reported.boot_id.is_empty());
    let lists = reported.package_lists.expect("the node manages packages");
    assert!(lists.refreshed_at.is_none() && lists.error.contains("cannot be read"), "{lists:?}");
    let [warning] = reported.warnings.as_slice() else { panic!("{:?}", reported.warnings) };
    assert!(warning.contains(&DPKG_ERROR.replace('\n', "")), "{warning}");

    node.packages().list_error.clear();
    agent.run_once().await.unwrap();
    agent.run_once().await.unwrap();
    let reported = facts(&node);
    assert_eq!(reported.warnings, [""; 0]);
    assert!(!reported.installed_digest.is_empty());
}

fn add_unattended_upgrades(node: &TestNode) {
    let paths = node.paths();
    let timer = "/usr/lib/systemd/system/apt-daily-upgrade.timer";
    let enabled = "/etc/systemd/system/timers.target.wants/apt-daily-upgrade.timer";
    for path in [timer, "/usr/bin/unattended-upgrade", enabled] {
        let file = paths.inside(path);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, "[Timer]\n").unwrap();
    }
    node.packages().apt_settings = "APT::Periodic::Unattended-Upgrade \"1\";\n".into();
}

#[tokio::test]
async fn other_update_programs_are_reported_as_soon_as_they_are_active() {
    let node = TestNode::new();
    let mut agent = node.agent();
    agent.run_once().await.unwrap();
    assert_eq!(facts(&node).other_updaters, [""; 0]);
    add_unattended_upgrades(&node);
    agent.run_once().await.unwrap();
    // The server requests changed facts after the poll that announces them.
    agent.run_once().await.unwrap();
    let expected = ["unattended-upgrades installs updates by itself"];
    assert_eq!(facts(&node).other_updaters, expected);
}

#[tokio::test]
async fn packages_that_others_change_are_reported_but_not_those_of_the_agent() {
    let node = TestNode::in_window();
    let status = node.paths().inside("/var/lib/dpkg/status");
    let mut agent = node.agent();
    agent.run_once().await.unwrap();
    assert_eq!(node.packages().installed["app"].0, "2", "the agent has updated it");
    std::fs::write(&status, "as the agent wrote it").unwrap();
    agent.run_once().await.unwrap();
    assert_eq!(facts(&node).foreign_change, None);

    node.server().target = None;
    let newer = ("3".to_owned(), "installed".to_owned());
    node.packages().installed.insert("lib".into(), newer);
    node.packages().offered.insert("lib".into(), "3".into());
    std::fs::write(&status, "as somebody else wrote it").unwrap();
    agent.run_once().await.unwrap();
    agent.run_once().await.unwrap();
    let change = facts(&node).foreign_change.unwrap();
    assert_eq!((change.count, change.packages), (1, vec!["lib:all 2 -> 3".to_owned()]));
    assert!(change.at.is_some());
    node.run_once().await.unwrap();
    assert!(facts(&node).foreign_change.is_some(), "also after a restart");
}
