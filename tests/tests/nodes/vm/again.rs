//! Updates after an update: another release directly after a failed one, the failed one again by an
//! order, and a third release after a good second one.

use evenkeel_tests::lab::vm::{ReleaseKind, Slot, Vms};

use super::NEW_VERSION;
use super::node::{Node, assert_falls_back};

#[test]
fn a_failed_release_is_tried_again_only_by_an_order_and_the_next_one_works_directly_after_it() {
    let Some(vms) = Vms::open_if_all() else {
        return;
    };
    let mut node = Node::join(vms, "again");
    let bad = node.vms.release(NEW_VERSION, ReleaseKind::NoInit);
    assert_falls_back(&mut node, &bad);
    let decision = node.decision();
    assert_eq!(decision["act"], "idle", "{decision:#}");
    assert_eq!(decision["reason"]["code"], "quarantined", "{decision:#}");
    assert_eq!(node.fleet.runs(&node.vm).len(), 1);

    // One order allows one try.
    node.fleet.order_update(&node.vm);
    node.wait_for_runs(2);
    let run = node.wait_for_run_end(&bad);
    assert_eq!(run["state"], "reverted", "{run:#}");
    let decision = node.decision();
    assert_eq!(decision["act"], "idle", "{decision:#}");

    let good = node.vms.release("1.2", ReleaseKind::Good);
    node.update(&good, "succeeded");
    assert_eq!(node.fleet.runs(&node.vm).len(), 3);
    node.check_disk(&[&good]);
}

#[test]
fn a_third_release_overwrites_the_first_and_not_the_second() {
    let Some(vms) = Vms::open_if_all() else {
        return;
    };
    let mut node = Node::join(vms, "third");
    let second = node.vms.release(NEW_VERSION, ReleaseKind::Good);
    node.update(&second, "succeeded");
    assert_eq!(node.wait_for_matching_record(&[&second]).slot, Slot::B);
    let third = node.vms.release("1.2", ReleaseKind::Good);
    node.update(&third, "succeeded");
    assert_eq!(node.wait_for_matching_record(&[&third]).slot, Slot::A);
    node.check_disk(&[&third]);
    assert!(node.vm.has_release(Slot::B, &second), "the second release was overwritten");
}
