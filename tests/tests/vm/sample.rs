//! What `make test` boots: a good release, one whose kernel panics, one that is never healthy, and two power cuts.

use std::time::Duration;

use evenkeel_tests::lab::vm::{Kind, Slot, Vms};

use crate::NEW;
use crate::node::{Node, PART, falls_back};

/// So long a machine keeps its power after what was waited for.
const LATER: Duration = Duration::from_millis(700);

#[test]
fn a_good_release_is_kept_also_if_the_power_goes_while_one_is_written_or_on_trial() {
    let Some(vms) = Vms::open() else { return };
    let mut node = Node::join(vms, "good");
    let second = node.vms.release(NEW, Kind::Good);
    let run = node.update(&second, "succeeded");
    assert_eq!(run["image"]["before"], node.old.version.as_str(), "{run:#}");
    assert_eq!(run["image"]["booted"], NEW, "{run:#}");
    assert_eq!(node.agrees(&[&second]).slot, Slot::B);

    // The slot that is written is the one that runs no more.
    let third = node.vms.release("1.2", Kind::Good);
    let before = node.vm.head(Slot::A);
    node.order(&third);
    node.vm.until_head(Slot::A, PART, |head| head != before);
    cut(&mut node);
    node.until_counted(Slot::A);
    cut(&mut node);
    node.ended(&third);
    // A busy machine may use up its tries. Then the release before it stands.
    node.judge(&[&second, &third]);
}

/// Cuts the power a moment from now, and switches the machine on again.
fn cut(node: &mut Node) {
    node.vm.wait(LATER);
    node.vm.cut();
    node.vm.start();
}

#[test]
fn a_kernel_that_panics_and_a_release_that_is_never_healthy_lead_back_to_the_old_one() {
    let Some(vms) = Vms::open() else { return };
    let mut node = Node::join(vms, "bad");
    let panics = node.vms.release(NEW, Kind::Panic);
    falls_back(&mut node, &panics);
    let unhealthy = node.vms.release("1.2", Kind::Unhealthy);
    let run = falls_back(&mut node, &unhealthy);
    let reason = run["reason"].as_str().unwrap_or_default();
    assert!(reason.contains("the lab says that it is sick"), "{run:#}");
    let old = node.old.clone();
    node.judge(&[&old]);
}
