//! Boots in `make test`: a good release, a kernel panic, a release that is never healthy, and two
//! power cuts.

use std::time::Duration;

use evenkeel_tests::lab::vm::{ReleaseKind, Slot, Vms};

use super::NEW_VERSION;
use super::node::{Node, STEP_TIMEOUT, assert_falls_back};

/// Delay between a moment and the power cut.
const CUT_DELAY: Duration = Duration::from_millis(700);

#[test]
fn a_good_release_survives_power_cuts_while_the_next_one_is_written_or_on_trial() {
    let Some(vms) = Vms::open() else { return };
    let mut node = Node::join(vms, "good");
    let second = node.vms.release(NEW_VERSION, ReleaseKind::Good);
    let run = node.update(&second, "succeeded");
    assert_eq!(run["image"]["before"], node.old.version.as_str(), "{run:#}");
    assert_eq!(run["image"]["booted"], NEW_VERSION, "{run:#}");
    assert_eq!(node.wait_for_matching_record(&[&second]).slot, Slot::B);

    // The slot that is written is the one that is not in use.
    let third = node.vms.release("1.2", ReleaseKind::Good);
    let before = node.vm.slot_head(Slot::A);
    node.order_update(&third);
    node.vm.until_head(Slot::A, STEP_TIMEOUT, |head| head != before);
    cut_and_restart(&mut node);
    node.wait_until_counted(Slot::A);
    cut_and_restart(&mut node);
    node.wait_for_run_end(&third);
    // A busy machine may use up the tries. Then the previous release stays in use.
    node.check_disk(&[&second, &third]);
}

/// Cuts the power after a short delay, and restarts the machine.
fn cut_and_restart(node: &mut Node) {
    node.vm.run_for(CUT_DELAY);
    node.vm.cut();
    node.vm.start();
}

#[test]
fn a_kernel_that_panics_and_a_release_that_is_never_healthy_lead_back_to_the_old_one() {
    let Some(vms) = Vms::open() else { return };
    let mut node = Node::join(vms, "bad");
    let panics = node.vms.release(NEW_VERSION, ReleaseKind::Panic);
    assert_falls_back(&mut node, &panics);
    let unhealthy = node.vms.release("1.2", ReleaseKind::Unhealthy);
    let run = assert_falls_back(&mut node, &unhealthy);
    let reason = run["reason"].as_str().unwrap_or_default();
    assert!(reason.contains("the lab says that it is sick"), "{run:#}");
    let old = node.old.clone();
    node.check_disk(&[&old]);
}
