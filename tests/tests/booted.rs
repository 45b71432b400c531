//! The agent's Debian package on a machine that boots: systemd, D-Bus and logind are real, and so are reboots.

use std::time::Duration;

use chrono::{DateTime, Utc};
use evenkeel_tests::aftermath::Aftermath;
use evenkeel_tests::history::say;
use evenkeel_tests::lab::{
    Binaries, Booted, Fleet, Lab, Member, Node, Repository, debian_package, events, stripped, until,
};
use evenkeel_tests::outside::{IDENTITY, adopt, token, url};
use serde_json::Value;

const SOON: Duration = Duration::from_mins(3);

/// Where the machine sees the agent's package.
const DEB: &str = "/srv/evenkeel-agent.deb";

/// Who holds off a shutdown, as logind lists it.
const LOCKS: &str = "systemd-inhibit --list --no-legend --no-pager";

/// A machine that has the older versions of some packages, and may start services when packages ask for it.
fn installed(lab: &Lab, fleet: &Fleet, packages: &[&str]) -> Node {
    let node = Node::new(lab, "node").with_repository(&fleet.repository);
    let exact = packages.iter().map(|name| format!("{name}=1.0"));
    let exact = exact.collect::<Vec<_>>().join(" ");
    node.sh(&format!(
        "rm -f /usr/sbin/policy-rc.d; apt-get -q -y install {exact}"
    ));
    node
}

/// Installs the agent's package on a machine that is switched on, and makes it a node.
fn enrolled<'a>(machine: &Booted, node: Node, fleet: &'a Fleet) -> Member<'a> {
    machine.sh(&format!("dpkg --install {DEB}"));
    assert_eq!(
        machine.sh("systemctl is-enabled evenkeel-agent"),
        "enabled\n"
    );
    let security = "systemd-analyze security --no-pager evenkeel-agent.service";
    say(&machine.sh(security));
    machine.sh(&format!(
        "evenkeel-agent enroll --server {} --token {}; systemctl start evenkeel-agent",
        url(fleet),
        token(fleet)
    ));
    assert_eq!(machine.sh("systemctl is-active evenkeel-agent"), "active\n");
    adopt(fleet, node, &machine.sh(&format!("cat {IDENTITY}")))
}

/// The time of an event of a run.
fn time(run: &Value, name: &str) -> DateTime<Utc> {
    let mut events = run["events"].as_array().into_iter().flatten();
    let event = events.find(|event| event["event"] == name);
    let time = event.and_then(|event| event["time"].as_str());
    time.and_then(|time| time.parse().ok())
        .unwrap_or_else(|| panic!("no time of {name} in {run:#}"))
}

#[test]
fn a_booted_node_updates_in_its_window_reboots_when_a_package_asks_for_it_and_reports_that() {
    let Some(lab) = Booted::lab() else { return };
    let Some(fleet) = Fleet::shared() else { return };
    let packages = ["demo-hello", "demo-reboot", "demo-slow", "demo-unit"];
    let agent = stripped(&Binaries::get().agent, lab.path("agent"));
    let deb = debian_package(&agent, &lab.path("package"));
    let node = installed(&lab, fleet, &packages);
    let shown = [
        (deb.as_path(), DEB),
        (fleet.repository.folder(), Repository::INSIDE),
    ];
    let machine = Booted::start(&lab, "node", &shown);
    machine.until_up();
    let member = enrolled(&machine, node, fleet);

    // The update is held up in the middle of it, so that others can look.
    machine.sh("touch /opt/demo/slow");
    member.want(&packages.map(|name| format!("{name}=1.1")).join("\n"));
    let opens = member.window(5, 3600);
    until("dpkg is in the middle of it", SOON, || {
        let look = machine.run(&["test", "-e", "/opt/demo/in-postinst"]);
        look.status.success().then_some(())
    });
    let locks = machine.sh(LOCKS);
    assert!(
        locks.contains("evenkeel-agent") && locks.contains("block"),
        "{locks}"
    );
    let other = machine.run(&["systemctl", "--check-inhibitors=yes", "reboot"]);
    assert!(!other.status.success(), "somebody else may reboot it");
    assert_eq!(machine.boots(), 1);
    machine.sh("rm /opt/demo/slow");

    machine.until_boot(2, SOON);
    let run = until("the run is over", SOON, || {
        let is_over = |run: &Value| run["endTime"].as_u64() > Some(0);
        member.runs().into_iter().find(is_over)
    });
    assert_eq!(run["state"], "succeeded", "{run:#}");
    assert_eq!(
        events(&run),
        [
            "downloading",
            "downloaded",
            "began",
            "reboot_begun",
            "verify_begun",
            "finished"
        ]
    );
    assert!(time(&run, "began") >= opens, "{run:#}");
    assert_eq!(member.only_run()["resourceId"], run["resourceId"]);

    until("the journal is closed", SOON, || {
        let told = machine.run(&Aftermath::words(&packages));
        let left = Aftermath::read(&String::from_utf8_lossy(&told.stdout));
        assert!(left.faults.is_empty(), "{left:#?}");
        let is_new = |state: &String| state == "1.1 installed";
        assert!(left.packages.values().all(is_new), "{left:#?}");
        (left.journal.is_none() && left.kept.is_empty()).then_some(())
    });
    assert_eq!(machine.sh("systemctl is-active evenkeel-agent"), "active\n");
    assert!(!machine.sh(LOCKS).contains("evenkeel-agent"));
    let asks = machine.run(&["test", "-e", "/run/reboot-required"]);
    assert!(!asks.status.success(), "a reboot is still asked for");
    assert_eq!(machine.boots(), 2);
}

#[test]
fn a_node_whose_power_goes_in_the_middle_is_finished_by_its_unit_at_the_next_boot() {
    let Some(lab) = Booted::lab() else { return };
    let Some(fleet) = Fleet::shared() else { return };
    let packages = ["demo-hello", "demo-slow"];
    let agent = stripped(&Binaries::get().agent, lab.path("agent"));
    let deb = debian_package(&agent, &lab.path("package"));
    let node = installed(&lab, fleet, &packages);
    let shown = [
        (deb.as_path(), DEB),
        (fleet.repository.folder(), Repository::INSIDE),
    ];
    let machine = Booted::start(&lab, "node", &shown);
    machine.until_up();
    let member = enrolled(&machine, node, fleet);
    machine.sh("touch /opt/demo/slow");
    member.want(&packages.map(|name| format!("{name}=1.1")).join("\n"));
    member.window(5, 3600);
    until("dpkg is in the middle of it", SOON, || {
        let look = machine.run(&["test", "-e", "/opt/demo/in-postinst"]);
        look.status.success().then_some(())
    });
    drop(machine);
    member.node.sh("rm /opt/demo/slow");

    let machine = Booted::start(&lab, "node", &shown);
    machine.until_up();
    let run = until("the run is over", SOON, || {
        let is_over = |run: &Value| run["endTime"].as_u64() > Some(0);
        member.runs().into_iter().find(is_over)
    });
    assert_eq!(run["state"], "succeeded", "{run:#}");
    assert_eq!(machine.sh("dpkg --audit"), "");
}
