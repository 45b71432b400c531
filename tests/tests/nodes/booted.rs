//! The agent's Debian package on a machine that boots, with real systemd, D-Bus, logind and reboots.

mod rauc;

use std::path::{Path, PathBuf};
use std::time::Duration;

use chrono::{DateTime, Utc};
use evenkeel_tests::history::print_progress;
use evenkeel_tests::lab::{
    Binaries, BootedNode, Fleet, Lab, Member, Node, Repository, build_debian_package, events,
    reason, strip, until,
};
use evenkeel_tests::node_setup::{IDENTITY_PATH, join_token, member_from_identity, server_url};
use evenkeel_tests::node_state::NodeState;
use serde_json::Value;

const WAIT_TIMEOUT: Duration = Duration::from_mins(3);

/// Path of the agent's package on the machine.
const AGENT_DEB: &str = "/srv/evenkeel-agent.deb";

/// Lists the inhibitor locks of logind.
const LIST_INHIBITORS: &str = "systemd-inhibit --list --no-legend --no-pager";

/// Creates a machine with version 1.0 of the packages. Package scripts may start services there.
fn node_with_packages(lab: &Lab, fleet: &Fleet, packages: &[&str]) -> Node {
    let node = Node::new(lab, "node").with_repository(&fleet.repository);
    let exact = packages.iter().map(|name| format!("{name}=1.0"));
    let exact = exact.collect::<Vec<_>>().join(" ");
    node.sh(&format!("rm -f /usr/sbin/policy-rc.d; apt-get -q -y install {exact}"));
    node
}

fn build_agent_package(lab: &Lab) -> PathBuf {
    let agent = strip(&Binaries::get().agent, lab.path("agent"));
    build_debian_package(&agent, &lab.path("package"))
}

/// Boots the machine of [`node_with_packages`], with the agent's package and the repository.
fn boot(lab: &Lab, fleet: &Fleet, deb: &Path) -> BootedNode {
    let mounts = [(deb, AGENT_DEB), (fleet.repository.folder(), Repository::INSIDE)];
    let machine = BootedNode::start(lab, "node", &mounts);
    machine.until_up();
    machine
}

/// Starts an update to version 1.1 in a window and waits until the script of `demo-slow` blocks it, so that the test can
/// inspect and change the machine meanwhile. Returns when the window opened.
fn update_until_blocked(
    machine: &BootedNode,
    member: &Member<'_>,
    packages: &[&str],
) -> DateTime<Utc> {
    machine.sh("touch /opt/demo/slow");
    let exact = packages.iter().map(|name| format!("{name}=1.1"));
    member.assign_packages(&exact.collect::<Vec<_>>().join("\n"));
    let opens = member.create_window(5, 3600);
    until("dpkg runs the postinst script", WAIT_TIMEOUT, || {
        let look = machine.run(&["test", "-e", "/opt/demo/in-postinst"]);
        look.status.success().then_some(())
    });
    opens
}

fn wait_for_ended_run(member: &Member<'_>) -> Value {
    until("the run has ended", WAIT_TIMEOUT, || {
        let is_over = |run: &Value| run["endTime"].as_u64() > Some(0);
        member.runs().into_iter().find(is_over)
    })
}

/// Waits for the end of the run that updates this package.
fn wait_for_ended_run_of(member: &Member<'_>, package: &str) -> Value {
    until("the run of the package has ended", WAIT_TIMEOUT, || {
        let is_over = |run: &Value| {
            let mut packages = run["packages"].as_array().into_iter().flatten();
            run["endTime"].as_u64() > Some(0) && packages.any(|one| one["name"] == package)
        };
        member.runs().into_iter().find(is_over)
    })
}

/// Installs the agent's package on a running machine and enrolls the machine.
fn enroll_machine<'a>(machine: &BootedNode, node: Node, fleet: &'a Fleet) -> Member<'a> {
    machine.sh(&format!("dpkg --install {AGENT_DEB}"));
    assert_eq!(machine.sh("systemctl is-enabled evenkeel-agent"), "enabled\n");
    let security = "systemd-analyze security --no-pager evenkeel-agent.service";
    print_progress(&machine.sh(security));
    machine.sh(&format!(
        "evenkeel-agent enroll --server {} --token {}; systemctl start evenkeel-agent",
        server_url(fleet),
        join_token(fleet)
    ));
    assert_eq!(machine.sh("systemctl is-active evenkeel-agent"), "active\n");
    member_from_identity(fleet, node, &machine.sh(&format!("cat {IDENTITY_PATH}")))
}

fn event_time(run: &Value, name: &str) -> DateTime<Utc> {
    let mut events = run["events"].as_array().into_iter().flatten();
    let event = events.find(|event| event["event"] == name);
    let time = event.and_then(|event| event["time"].as_str());
    time.and_then(|time| time.parse().ok())
        .unwrap_or_else(|| panic!("no time of {name} in {run:#}"))
}

#[test]
fn a_booted_node_updates_in_its_window_reboots_when_a_package_requires_it_and_reports_that() {
    let Some(lab) = BootedNode::open_lab() else {
        return;
    };
    let Some(fleet) = Fleet::shared() else { return };
    let packages = ["demo-hello", "demo-reboot", "demo-slow", "demo-unit"];
    let deb = build_agent_package(&lab);
    let node = node_with_packages(&lab, fleet, &packages);
    let machine = boot(&lab, fleet, &deb);
    let member = enroll_machine(&machine, node, fleet);
    let opens = update_until_blocked(&machine, &member, &packages);
    let locks = machine.sh(LIST_INHIBITORS);
    assert!(locks.contains("evenkeel-agent") && locks.contains("block"), "{locks}");
    let other = machine.run(&["systemctl", "--check-inhibitors=yes", "reboot"]);
    assert!(!other.status.success(), "the reboot was not blocked");
    assert_eq!(machine.boots(), 1);
    machine.sh("rm /opt/demo/slow");

    machine.until_boot(2, WAIT_TIMEOUT);
    let run = wait_for_ended_run(&member);
    assert_eq!(run["state"], "succeeded", "{run:#}");
    assert_eq!(
        events(&run),
        ["downloading", "downloaded", "began", "reboot_begun", "verify_begun", "finished"]
    );
    assert!(event_time(&run, "began") >= opens, "{run:#}");
    assert_eq!(member.only_run()["resourceId"], run["resourceId"]);

    until("the journal is closed", WAIT_TIMEOUT, || {
        let output = machine.run(&NodeState::inspect_command(&packages));
        let left = NodeState::parse(&String::from_utf8_lossy(&output.stdout));
        assert!(left.faults.is_empty(), "{left:#?}");
        let is_new = |state: &String| state == "1.1 installed";
        assert!(left.packages.values().all(is_new), "{left:#?}");
        (left.journal.is_none() && left.cached_debs.is_empty()).then_some(())
    });
    assert_eq!(machine.sh("systemctl is-active evenkeel-agent"), "active\n");
    assert!(!machine.sh(LIST_INHIBITORS).contains("evenkeel-agent"));
    let marker = machine.run(&["test", "-e", "/run/reboot-required"]);
    assert!(!marker.status.success(), "a reboot is still required");
    assert_eq!(machine.boots(), 2);
}

#[test]
fn an_update_is_finished_by_the_agents_unit_at_the_next_boot_after_a_power_loss() {
    let Some(lab) = BootedNode::open_lab() else {
        return;
    };
    let Some(fleet) = Fleet::shared() else { return };
    let packages = ["demo-hello", "demo-slow"];
    let deb = build_agent_package(&lab);
    let node = node_with_packages(&lab, fleet, &packages);
    let machine = boot(&lab, fleet, &deb);
    let member = enroll_machine(&machine, node, fleet);
    update_until_blocked(&machine, &member, &packages);
    drop(machine);
    member.node.sh("rm /opt/demo/slow");

    let machine = boot(&lab, fleet, &deb);
    let run = wait_for_ended_run(&member);
    assert_eq!(run["state"], "succeeded", "{run:#}");
    assert_eq!(machine.sh("dpkg --audit"), "");
}

#[test]
fn a_block_lock_of_another_program_stops_the_reboot_and_users_are_warned_before_it() {
    let Some(lab) = BootedNode::open_lab() else {
        return;
    };
    let Some(fleet) = Fleet::shared() else { return };
    let packages = ["demo-reboot", "demo-slow"];
    let deb = build_agent_package(&lab);
    let node = node_with_packages(&lab, fleet, &packages);
    let machine = boot(&lab, fleet, &deb);
    let member = enroll_machine(&machine, node, fleet);
    update_until_blocked(&machine, &member, &packages);

    // The lock comes up during the change, after the agent has checked all locks.
    machine.sh("systemd-run --unit=backup --collect systemd-inhibit --what=shutdown --who=backup \
         --why=writing --mode=block sleep infinity");
    until("logind has the lock", WAIT_TIMEOUT, || {
        machine.sh(LIST_INHIBITORS).contains("backup").then_some(())
    });
    machine.sh("rm /opt/demo/slow");
    let delay = "the reboot is delayed: backup blocks a shutdown: writing";
    until("the operator sees the delay", WAIT_TIMEOUT, || {
        (member.decision()["waiting"] == delay).then_some(())
    });
    assert!(machine.sh("evenkeel-agent status").contains(delay));
    let run = member.only_run();
    assert_eq!(events(&run), ["downloading", "downloaded", "began"], "{run:#}");
    assert_eq!(machine.boots(), 1);

    // A user as logind records one. The file is gone after the reboot.
    machine.sh("printf 'STATE=active\\nCLASS=user\\n' > /run/systemd/sessions/demo");
    machine.sh("systemctl stop backup.service");
    until("the agent has warned the user", WAIT_TIMEOUT, || {
        let status = machine.sh("evenkeel-agent status");
        status.contains("logged-in users were warned").then_some(())
    });
    assert_eq!(machine.boots(), 1);
    let log = machine.sh("journalctl --unit evenkeel-agent --no-pager");
    assert!(!log.contains("cannot warn the logged-in users"), "{log}");
    machine.until_boot(2, WAIT_TIMEOUT);
    let run = wait_for_ended_run(&member);
    assert_eq!(run["state"], "succeeded", "{run:#}");
    assert_eq!(
        events(&run),
        ["downloading", "downloaded", "began", "reboot_begun", "verify_begun", "finished"]
    );
    assert_eq!(run["report"]["rebootRequired"], false, "{run:#}");
    assert_eq!(machine.boots(), 2);
}

#[test]
fn a_required_unit_that_stops_during_an_update_fails_it_and_one_that_was_stopped_before_does_not() {
    let Some(lab) = BootedNode::open_lab() else {
        return;
    };
    let Some(fleet) = Fleet::shared() else { return };
    let packages = ["demo-hello", "demo-slow", "demo-unit"];
    let deb = build_agent_package(&lab);
    let node = node_with_packages(&lab, fleet, &packages);
    let machine = boot(&lab, fleet, &deb);
    machine.sh("systemctl enable --quiet --now demo-unit");
    let member = enroll_machine(&machine, node, fleet);
    let target = "/etc/systemd/system/demo.target";
    machine.sh(&format!(
        "echo '[Unit]' > {target}; systemctl daemon-reload; systemctl start demo.target"
    ));
    let units = "units = [\"demo-unit.service\", \"demo.target\"]";
    machine.sh(&format!("sed -i 's/^#units = .*/{units}/' /etc/evenkeel/agent.toml"));
    machine.sh("systemctl restart evenkeel-agent");

    // The package restarts its unit.
    let start = "systemctl show --property=ExecMainStartTimestampMonotonic demo-unit";
    let before = machine.sh(start);
    member.order_packages("demo-unit=1.1");
    let run = wait_for_ended_run_of(&member, "demo-unit");
    assert_eq!(run["state"], "succeeded", "{run:#}");
    assert_ne!(machine.sh(start), before);

    update_until_blocked(&machine, &member, &["demo-slow"]);
    machine.sh("systemctl stop demo.target; rm /opt/demo/slow");
    let run = wait_for_ended_run_of(&member, "demo-slow");
    assert_eq!(run["state"], "failed", "{run:#}");
    let why = "healthy before the update, but not after it: the unit demo.target is inactive";
    let (kind, message) = reason(&run);
    assert!(kind == "verify" && message.contains(why), "{run:#}");
    let installed = "dpkg-query --show --showformat='${Version} ${db:Status-Status}' demo-slow";
    assert_eq!(machine.sh(installed), "1.1 installed");

    member.order_packages("demo-hello=1.1");
    let run = wait_for_ended_run_of(&member, "demo-hello");
    assert_eq!(run["state"], "succeeded", "{run:#}");
    let remarks = run["report"]["remarks"].to_string();
    let remark = "not healthy before the update either: the unit demo.target is inactive";
    assert!(remarks.contains(remark), "{run:#}");
}
