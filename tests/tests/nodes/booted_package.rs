//! Installation and removal of the agent's package, and other update programs, on a machine that
//! boots.

use std::time::Duration;

use evenkeel_tests::lab::{
    Binaries, BootedNode, Fleet, Lab, Member, Node, build_debian_package, strip, until,
};
use evenkeel_tests::node_setup::{IDENTITY_PATH, join_token, member_from_identity, server_url};

const WAIT_TIMEOUT: Duration = Duration::from_mins(2);

/// Path of the agent's package on the machine.
const AGENT_DEB: &str = "/srv/evenkeel-agent.deb";

/// Prints the state of apt's timers.
const SHOW_TIMERS: &str = "systemctl show --property=Id,LoadState,UnitFileState,ActiveState \
    apt-daily.timer apt-daily-upgrade.timer";

/// Starts a machine that has the agent's package in a file, and no policy that forbids services.
fn start_machine(lab: &Lab) -> (BootedNode, Node) {
    let agent = strip(&Binaries::get().agent, lab.path("agent"));
    let deb = build_debian_package(&agent, &lab.path("package"));
    let node = Node::new(lab, "node");
    node.sh("rm -f /usr/sbin/policy-rc.d");
    let machine = BootedNode::start(lab, "node", &[(deb.as_path(), AGENT_DEB)]);
    machine.until_up();
    (machine, node)
}

fn install(machine: &BootedNode) {
    machine.sh(&format!("dpkg --install {AGENT_DEB}"));
}

fn enroll<'a>(
    machine: &BootedNode,
    node: Node,
    fleet: &'a Fleet,
    options: &str,
) -> (Member<'a>, String) {
    let output = machine.sh(&format!(
        "evenkeel-agent enroll --server {} --token {} {options}; systemctl start evenkeel-agent",
        server_url(fleet),
        join_token(fleet)
    ));
    let identity = machine.sh(&format!("cat {IDENTITY_PATH}"));
    (member_from_identity(fleet, node, &identity), output)
}

/// Waits until systemd has finished the jobs of package scripts, and returns whether the unit is
/// enabled, and whether it runs.
fn unit_state(machine: &BootedNode) -> String {
    until("no job of systemd is left", WAIT_TIMEOUT, || {
        machine.sh("systemctl list-jobs --no-legend").trim().is_empty().then_some(())
    });
    machine.sh("systemctl is-enabled evenkeel-agent.service || true; \
         systemctl is-active evenkeel-agent.service || true")
}

/// The files of the package's unit that its scripts create.
fn unit_links(machine: &BootedNode) -> String {
    machine.sh(
        "find /etc/systemd/system /var/lib/systemd -name '*evenkeel*' -printf '%p %l\\n' | sort",
    )
}

#[test]
fn a_package_that_is_removed_and_installed_again_is_as_after_the_first_installation() {
    let Some(lab) = BootedNode::open_lab() else {
        return;
    };
    let Some(fleet) = Fleet::shared() else { return };
    let (machine, node) = start_machine(&lab);
    install(&machine);
    assert_eq!(unit_state(&machine), "enabled\ninactive\n", "it is not enrolled");
    let links = unit_links(&machine);
    let (_member, _output) = enroll(&machine, node, fleet, "");
    assert_eq!(unit_state(&machine), "enabled\nactive\n");

    machine.sh("dpkg --remove evenkeel-agent");
    assert!(unit_state(&machine).ends_with("inactive\n"), "the removal stops the agent");
    install(&machine);
    assert_eq!(unit_state(&machine), "enabled\nactive\n", "it still has its identity");
    assert_eq!(unit_links(&machine), links);

    machine.sh("systemctl disable --quiet --now evenkeel-agent.service");
    install(&machine);
    assert_eq!(unit_state(&machine), "disabled\ninactive\n", "an upgrade leaves it disabled");

    machine.sh("dpkg --purge evenkeel-agent");
    assert_eq!(unit_links(&machine), "");
    let left = "for path in /var/lib/evenkeel-agent /etc/evenkeel; do test ! -e $path; done";
    machine.sh(left);
    install(&machine);
    assert_eq!(unit_state(&machine), "enabled\ninactive\n", "as the first installation");
    assert_eq!(unit_links(&machine), links);
}

#[test]
fn a_policy_that_forbids_services_keeps_the_agent_from_starting_with_its_package() {
    let Some(lab) = BootedNode::open_lab() else {
        return;
    };
    let Some(fleet) = Fleet::shared() else { return };
    let (machine, node) = start_machine(&lab);
    install(&machine);
    let (_member, _output) = enroll(&machine, node, fleet, "");
    machine.sh("dpkg --remove evenkeel-agent");
    machine.sh(
        "printf '#!/bin/sh\\necho \"$@\" >> /run/policy-calls\\nexit 101\\n' > /usr/sbin/policy-rc.d; \
         chmod 755 /usr/sbin/policy-rc.d",
    );
    install(&machine);
    assert_eq!(unit_state(&machine), "enabled\ninactive\n");
    let calls = machine.sh("cat /run/policy-calls");
    assert_eq!(calls, "evenkeel-agent.service restart\n");
}

#[test]
fn a_take_over_disables_apts_timers_until_the_package_is_removed() {
    let Some(lab) = BootedNode::open_lab() else {
        return;
    };
    let Some(fleet) = Fleet::shared() else { return };
    let (machine, node) = start_machine(&lab);
    // The files of unattended-upgrades that decide whether it runs.
    machine.sh(
        "printf '#!/bin/sh\\n' > /usr/bin/unattended-upgrade; chmod 755 /usr/bin/unattended-upgrade; \
         printf 'APT::Periodic::Update-Package-Lists \"1\";\\nAPT::Periodic::Unattended-Upgrade \"1\";\\n' \
         > /etc/apt/apt.conf.d/20auto-upgrades",
    );
    let timers = machine.sh(SHOW_TIMERS);
    assert_eq!(timers.matches("ActiveState=active").count(), 2, "{timers}");
    install(&machine);
    let (member, output) = enroll(&machine, node, fleet, "");
    assert!(output.contains("note: unattended-upgrades installs updates by itself"), "{output}");
    let condition = until("the condition is shown", WAIT_TIMEOUT, || {
        Some(member.condition_message("other_updaters")).filter(|text| !text.is_empty())
    });
    assert!(condition.contains("apt-daily refreshes the package lists"), "{condition}");
    assert_eq!(machine.sh(SHOW_TIMERS), timers, "by default nothing is changed");

    machine.sh("sed -i 's/^#mode = .*/mode = \"take_over\"/' /etc/evenkeel/agent.toml");
    machine.sh("systemctl restart evenkeel-agent");
    until("the condition ends", WAIT_TIMEOUT, || {
        member.condition_message("other_updaters").is_empty().then_some(())
    });
    let disabled = machine.sh(SHOW_TIMERS);
    assert_eq!(disabled.matches("LoadState=masked").count(), 2, "{disabled}");
    assert_eq!(disabled.matches("ActiveState=inactive").count(), 2, "{disabled}");

    machine.sh("dpkg --remove evenkeel-agent");
    assert_eq!(machine.sh(SHOW_TIMERS), timers, "everything is as before");
    machine.sh("test ! -e /var/lib/evenkeel-agent/other-updaters.json");
}
