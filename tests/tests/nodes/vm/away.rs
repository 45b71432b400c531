//! Machines that cannot reach their server: it is unreachable during the trial, or their clock is
//! wrong.

use evenkeel_tests::lab::vm::{ReleaseKind, Slot, Vms};

use super::NEW_VERSION;
use super::node::{Node, STEP_TIMEOUT};

#[test]
fn a_server_that_is_unreachable_for_the_whole_trial_makes_no_release_bad_and_an_order_retries_it() {
    let Some(vms) = Vms::open_if_all() else {
        return;
    };
    let mut node = Node::join(vms, "away");
    let new = node.vms.release(NEW_VERSION, ReleaseKind::Hasty);
    node.order_update(&new);
    node.wait_until_armed(Slot::B);
    node.fleet.connection.cut();
    let old = node.old.version.clone();
    node.vm.until_line("the new release comes up", STEP_TIMEOUT, |line| {
        line.contains("booted 1.1").then_some(())
    });
    let back = node.vm.until_booted(STEP_TIMEOUT);
    assert_eq!((back.version, back.slot), (old.clone(), Slot::A));
    node.fleet.connection.repair();
    let run = node.wait_for_run_end(&new);
    assert_eq!(run["state"], "reverted", "{run:#}");
    assert_eq!(run["image"]["booted"], old.as_str(), "{run:#}");
    let first = node.old.clone();
    node.wait_for_matching_record(&[&first]);
    assert!(!node.is_bad(&new));
    // The cause is unknown, so the release may be tried again, and it is still on the disk.
    let requests = node.fleet.web.requests();
    node.fleet.order_update(&node.vm);
    node.wait_for_runs(2);
    let run = node.wait_for_run_end(&new);
    assert_eq!(run["state"], "succeeded", "{run:#}");
    assert_eq!(node.fleet.web.requests(), requests);
    node.check_disk(&[&new]);
}

#[test]
fn a_server_that_comes_back_during_the_trial_decides_it() {
    let Some(vms) = Vms::open_if_all() else {
        return;
    };
    let mut node = Node::join(vms, "back");
    let new = node.vms.release(NEW_VERSION, ReleaseKind::Good);
    node.order_update(&new);
    node.wait_until_armed(Slot::B);
    node.fleet.connection.cut();
    node.vm.until_line("the new release comes up", STEP_TIMEOUT, |line| {
        line.contains("booted 1.1").then_some(())
    });
    node.fleet.connection.repair();
    let run = node.wait_for_run_end(&new);
    assert_eq!(run["state"], "succeeded", "{run:#}");
    node.check_disk(&[&new]);
}

#[test]
fn a_clock_in_2001_does_not_block_an_update() {
    let Some(vms) = Vms::open_if_all() else {
        return;
    };
    let mut node = Node::join(vms, "past");
    node.vm.cut();
    node.vm.set_clock(Some("2001-02-03T04:05:06"));
    node.vm.start();
    let new = node.vms.release(NEW_VERSION, ReleaseKind::Good);
    node.update(&new, "succeeded");
    node.check_disk(&[&new]);
}

#[test]
fn a_machine_with_a_clock_in_2040_updates_after_the_clock_is_corrected() {
    let Some(vms) = Vms::open_if_all() else {
        return;
    };
    let mut node = Node::join(vms, "future");
    node.vm.cut();
    let new = node.vms.release(NEW_VERSION, ReleaseKind::Good);
    node.order_update(&new);
    node.vm.set_clock(Some("2040-02-03T04:05:06"));
    node.vm.start();
    // According to that clock, the server's certificate has expired.
    node.vm.until_line("the agent cannot reach the server", STEP_TIMEOUT, |line| {
        line.contains("the round failed, trying again").then_some(())
    });
    assert!(node.fleet.runs(&node.vm).is_empty());
    node.vm.cut();
    node.vm.set_clock(None);
    node.vm.start();
    let run = node.wait_for_run_end(&new);
    assert_eq!(run["state"], "succeeded", "{run:#}");
    node.check_disk(&[&new]);
}
