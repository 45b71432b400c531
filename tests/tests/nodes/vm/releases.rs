//! Releases that fail in other ways: each leads back to the old release and is not retried
//! automatically.

use std::time::Duration;

use evenkeel_tests::lab::vm::{ReleaseKind, Vms};

use super::NEW_VERSION;
use super::node::{Node, STEP_TIMEOUT, assert_falls_back};

/// A machine that prints nothing for this time hangs. A slow machine is only reset too early, which
/// does not change the result.
const HANG_TIMEOUT: Duration = Duration::from_secs(15);

/// Number of starts that a release on trial has (`tests/lab/image/guest/agent.toml`).
const TRY_COUNT: u32 = 2;

fn assert_leads_back(kind: ReleaseKind) {
    let Some(vms) = Vms::open_if_all() else {
        return;
    };
    let mut node = Node::join(vms, &format!("{kind:?}").to_lowercase());
    let release = node.vms.release(NEW_VERSION, kind);
    assert_falls_back(&mut node, &release);
    let decision = node.decision();
    assert_eq!(decision["reason"]["code"], "quarantined", "{decision:#}");
    let old = node.old.clone();
    node.check_disk(&[&old]);
}

#[test]
fn a_release_without_init_leads_back() {
    assert_leads_back(ReleaseKind::NoInit);
}

#[test]
fn a_release_whose_root_is_not_there_leads_back() {
    assert_leads_back(ReleaseKind::NoRoot);
}

#[test]
fn noise_instead_of_a_kernel_leads_back() {
    assert_leads_back(ReleaseKind::NoiseKernel);
}

#[test]
fn an_endless_health_check_leads_back() {
    assert_leads_back(ReleaseKind::HungHealth);
}

#[test]
fn a_release_whose_agent_never_starts_is_reset_by_its_guard() {
    assert_leads_back(ReleaseKind::AgentKilled);
}

#[test]
fn the_watchdog_leads_back_if_agent_and_guard_are_killed() {
    let Some(vms) = Vms::open_if_all() else {
        return;
    };
    let mut node = Node::join(vms, "forsaken");
    node.vm.cut();
    node.vm.give_watchdog();
    node.vm.start();
    node.vm.until_booted(STEP_TIMEOUT);
    let release = node.vms.release(NEW_VERSION, ReleaseKind::Forsaken);
    assert_falls_back(&mut node, &release);
    let old = node.old.clone();
    node.check_disk(&[&old]);
}

#[test]
fn a_hang_before_user_space_leads_back_once_it_was_reset_from_outside() {
    let Some(vms) = Vms::open_if_all() else {
        return;
    };
    let mut node = Node::join(vms, "hang");
    let hangs = node.vms.release(NEW_VERSION, ReleaseKind::HangEarly);
    node.order_update(&hangs);
    for _ in 0..TRY_COUNT {
        node.vm.until_line("the kernel waits", STEP_TIMEOUT, |line| {
            line.contains(ReleaseKind::HANG_MESSAGE).then_some(())
        });
        node.vm.until_silent(HANG_TIMEOUT, STEP_TIMEOUT);
        node.vm.reset();
    }
    let run = node.wait_for_run_end(&hangs);
    assert_eq!(run["state"], "reverted", "{run:#}");
    let old = node.old.clone();
    node.wait_until_bad(&hangs);
    node.check_disk(&[&old]);
}
