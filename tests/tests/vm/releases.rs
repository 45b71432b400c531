//! Releases that fail in all other ways: each leads back to the old one, and is not tried again by itself.

use std::time::Duration;

use evenkeel_tests::lab::vm::{Kind, Vms};

use crate::NEW;
use crate::node::{Node, PART, falls_back};

/// A machine that prints nothing for so long hangs. A slower one is only reset too early, which changes no end.
const HANGS: Duration = Duration::from_secs(15);

/// How often a release on trial may start (`tests/lab/image/guest/agent.toml`).
const TRIES: u32 = 2;

fn leads_back(kind: Kind) {
    let Some(vms) = Vms::open_for_all() else {
        return;
    };
    let mut node = Node::join(vms, &format!("{kind:?}").to_lowercase());
    let release = node.vms.release(NEW, kind);
    falls_back(&mut node, &release);
    let decision = node.decision();
    assert_eq!(decision["reason"]["code"], "quarantined", "{decision:#}");
    let old = node.old.clone();
    node.judge(&[&old]);
}

#[test]
fn a_release_without_init_leads_back() {
    leads_back(Kind::NoInit);
}

#[test]
fn a_release_whose_root_is_not_there_leads_back() {
    leads_back(Kind::NoRoot);
}

#[test]
fn noise_in_place_of_a_kernel_leads_back() {
    leads_back(Kind::NoiseKernel);
}

#[test]
fn a_health_check_that_comes_to_no_end_leads_back() {
    leads_back(Kind::HungHealth);
}

#[test]
fn a_release_whose_agent_never_starts_is_reset_by_its_guard() {
    leads_back(Kind::AgentKilled);
}

#[test]
fn where_agent_and_guard_are_killed_the_watchdog_leads_back() {
    let Some(vms) = Vms::open_for_all() else {
        return;
    };
    let mut node = Node::join(vms, "forsaken");
    node.vm.cut();
    node.vm.give_watchdog();
    node.vm.start();
    node.vm.until_booted(PART);
    let release = node.vms.release(NEW, Kind::Forsaken);
    falls_back(&mut node, &release);
    let old = node.old.clone();
    node.judge(&[&old]);
}

#[test]
fn a_hang_before_user_space_leads_back_once_it_was_reset_from_outside() {
    let Some(vms) = Vms::open_for_all() else {
        return;
    };
    let mut node = Node::join(vms, "hang");
    let hangs = node.vms.release(NEW, Kind::HangEarly);
    node.order(&hangs);
    for _ in 0..TRIES {
        node.vm.until_line("the kernel waits", PART, |line| {
            line.contains(Kind::WAITS).then_some(())
        });
        node.vm.until_silent(HANGS, PART);
        node.vm.reset();
    }
    let run = node.ended(&hangs);
    assert_eq!(run["state"], "reverted", "{run:#}");
    let old = node.old.clone();
    node.until_bad(&hangs);
    node.judge(&[&old]);
}
