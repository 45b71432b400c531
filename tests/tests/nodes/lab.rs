//! Tests of the lab itself: a harness must show successes and catch failures.

use evenkeel_tests::lab::{Lab, Node, Repository, Suite, is_older};

#[test]
fn a_node_installs_and_upgrades_from_a_signed_repository_without_any_network() {
    let Some(lab) = Lab::open() else { return };
    let repository = Repository::new(&lab, "repo");
    let node = Node::new(&lab, "node").without_network().with_repository(&repository);
    assert_eq!(node.package("demo-app"), "");
    node.sh("apt-get -q -y install demo-app");
    assert_eq!(node.package("demo-app"), "1.0 installed");

    repository.publish("_1.1_");
    node.sh("apt-get -q update --error-on=any; apt-get -q -y install demo-app=1.1 demo-lib=1.1");
    assert_eq!(node.package("demo-app"), "1.1 installed");
    assert_eq!(node.audit(), "");
}

#[test]
fn a_repository_that_was_tampered_with_is_refused() {
    let Some(lab) = Lab::open() else { return };
    let repository = Repository::new(&lab, "repo");
    let node = Node::new(&lab, "node").with_repository(&repository);
    let release = repository.folder().join("dists/stable/InRelease");
    let text = std::fs::read_to_string(&release).expect("a signed release");
    std::fs::write(&release, text.replace("Tests", "Others")).expect("a changed release");
    let output = node.run(&["apt-get", "-q", "update", "--error-on=any"]);
    assert_eq!(output.status.code(), Some(100));
}

#[test]
fn the_audit_shows_a_package_that_was_left_half_done() {
    let Some(lab) = Lab::open() else { return };
    let repository = Repository::new(&lab, "repo");
    repository.publish("demo-bad_1.1");
    let node = Node::new(&lab, "node").with_repository(&repository);
    let output = node.run(&["apt-get", "-q", "-y", "install", "demo-bad"]);
    assert_eq!(output.status.code(), Some(100));
    assert_eq!(node.package("demo-bad"), "1.1 half-configured");
    assert!(node.audit().contains("demo-bad"));
}

#[test]
fn a_killed_boot_keeps_its_files_and_no_process() {
    let Some(lab) = Lab::open() else { return };
    let node = Node::new(&lab, "node");
    let script = "echo one > /root/file; touch /run/gone; echo begun; exec sleep 1000";
    let mut boot = node.start(&["sh", "-c", script]);
    evenkeel_tests::lab::until("the script has begun", std::time::Duration::from_secs(10), || {
        boot.log().contains("begun").then_some(())
    });
    assert_eq!(node.succeed_inside(&["sh", "-c", "echo /run/*"]), "/run/gone\n");
    assert!(!boot.kill().success());
    assert_eq!(node.sh("cat /root/file; ls /run"), "one\n");
}

#[test]
fn a_node_runs_the_release_that_was_requested() {
    for suite in Suite::ALL {
        let Some(lab) = Lab::open_in(suite) else {
            return;
        };
        let node = Node::new(&lab, "node");
        let codename = node.sh("sed -n 's/^VERSION_CODENAME=//p' /etc/os-release");
        assert_eq!(codename.trim(), suite.name());
    }
}

#[test]
fn a_node_on_the_layer_of_another_starts_with_its_changes_and_does_not_change_it() {
    let Some(lab) = Lab::open() else { return };
    let below = Node::new(&lab, "below");
    below.sh("echo one > /root/file; dpkg --remove --force-depends tzdata || true");
    let above = Node::new(&lab, "above").on_layer(&below.layer());
    assert_eq!(above.dpkg_status(), below.dpkg_status());
    assert_eq!(above.sh("cat /root/file; echo two > /root/file"), "one\n");
    assert_eq!(below.sh("cat /root/file"), "one\n");
}

#[test]
fn a_node_can_be_short_of_space_or_read_only() {
    let Some(lab) = Lab::open() else { return };
    let node = Node::new(&lab, "node")
        .with_small_filesystem("/opt/small", "1m")
        .with_readonly("/opt/fixed");
    let fill = "head -c 2M /dev/zero > /opt/small/file";
    assert!(!node.run(&["sh", "-ec", fill]).status.success());
    let touch = ["touch", "/opt/fixed/file"];
    assert!(!node.run(&touch).status.success());
    let node = node.writable();
    assert!(node.run(&touch).status.success());
}

#[test]
fn versions_are_compared_as_debian_does() {
    assert!(is_older("1.0~rc1", "1.0") && is_older("1.9", "1.10"));
    assert!(!is_older("1:1.0", "2.0"));
}
