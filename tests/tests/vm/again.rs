//! What comes after an update: another one straight after a release failed, the failed one by an order, and a third over a
//! good second.

use evenkeel_tests::lab::vm::{Kind, Slot, Vms};

use crate::NEW;
use crate::node::{Node, falls_back};

#[test]
fn a_release_that_failed_is_tried_again_only_by_an_order_and_the_next_one_comes_straight_after_it()
{
    let Some(vms) = Vms::open_for_all() else {
        return;
    };
    let mut node = Node::join(vms, "again");
    let bad = node.vms.release(NEW, Kind::NoInit);
    falls_back(&mut node, &bad);
    let held = node.decision();
    assert_eq!(held["act"], "idle", "{held:#}");
    assert_eq!(held["reason"]["code"], "quarantined", "{held:#}");
    assert_eq!(node.fleet.runs(&node.vm).len(), 1);

    // One order, one try.
    node.fleet.order(&node.vm);
    node.until_runs(2);
    let run = node.ended(&bad);
    assert_eq!(run["state"], "reverted", "{run:#}");
    let held = node.decision();
    assert_eq!(held["act"], "idle", "{held:#}");

    let good = node.vms.release("1.2", Kind::Good);
    node.update(&good, "succeeded");
    assert_eq!(node.fleet.runs(&node.vm).len(), 3);
    node.judge(&[&good]);
}

#[test]
fn a_third_release_goes_over_the_first_and_not_over_the_second() {
    let Some(vms) = Vms::open_for_all() else {
        return;
    };
    let mut node = Node::join(vms, "third");
    let second = node.vms.release(NEW, Kind::Good);
    node.update(&second, "succeeded");
    assert_eq!(node.agrees(&[&second]).slot, Slot::B);
    let third = node.vms.release("1.2", Kind::Good);
    node.update(&third, "succeeded");
    assert_eq!(node.agrees(&[&third]).slot, Slot::A);
    node.judge(&[&third]);
    assert!(
        node.vm.holds(Slot::B, &second),
        "the second was written over"
    );
}
