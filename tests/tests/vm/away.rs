//! Machines that cannot speak to their server: it is away when they come up on trial, or their clock is years off.

use evenkeel_tests::lab::vm::{Kind, Slot, Vms};

use crate::NEW;
use crate::node::{Node, PART};

#[test]
fn a_server_that_is_away_for_the_whole_trial_leaves_the_release_undecided_and_an_order_tries_it_again()
 {
    let Some(vms) = Vms::open_for_all() else {
        return;
    };
    let mut node = Node::join(vms, "away");
    let new = node.vms.release(NEW, Kind::Hasty);
    node.order(&new);
    node.until_armed(Slot::B);
    node.fleet.line.cut();
    let old = node.old.version.clone();
    node.vm
        .until_line("the new release comes up", PART, |line| {
            line.contains("booted 1.1").then_some(())
        });
    let back = node.vm.until_booted(PART);
    assert_eq!((back.version, back.slot), (old.clone(), Slot::A));
    node.fleet.line.mend();
    let run = node.ended(&new);
    assert_eq!(run["state"], "reverted", "{run:#}");
    assert_eq!(run["image"]["booted"], old.as_str(), "{run:#}");
    let first = node.old.clone();
    node.agrees(&[&first]);
    assert!(!node.is_bad(&new));
    // Nobody knows whose fault that was: it may be tried again, and lies there already.
    let asked = node.fleet.web.asked();
    node.fleet.order(&node.vm);
    node.until_runs(2);
    let run = node.ended(&new);
    assert_eq!(run["state"], "succeeded", "{run:#}");
    assert_eq!(node.fleet.web.asked(), asked);
    node.judge(&[&new]);
}

#[test]
fn a_server_that_comes_back_during_the_trial_decides_it() {
    let Some(vms) = Vms::open_for_all() else {
        return;
    };
    let mut node = Node::join(vms, "back");
    let new = node.vms.release(NEW, Kind::Good);
    node.order(&new);
    node.until_armed(Slot::B);
    node.fleet.line.cut();
    node.vm
        .until_line("the new release comes up", PART, |line| {
            line.contains("booted 1.1").then_some(())
        });
    node.fleet.line.mend();
    let run = node.ended(&new);
    assert_eq!(run["state"], "succeeded", "{run:#}");
    node.judge(&[&new]);
}

#[test]
fn a_clock_that_stands_in_2001_is_no_hindrance() {
    let Some(vms) = Vms::open_for_all() else {
        return;
    };
    let mut node = Node::join(vms, "past");
    node.vm.cut();
    node.vm.set_clock(Some("2001-02-03T04:05:06"));
    node.vm.start();
    let new = node.vms.release(NEW, Kind::Good);
    node.update(&new, "succeeded");
    node.judge(&[&new]);
}

#[test]
fn a_machine_whose_clock_stands_in_2040_updates_once_it_is_right() {
    let Some(vms) = Vms::open_for_all() else {
        return;
    };
    let mut node = Node::join(vms, "future");
    node.vm.cut();
    let new = node.vms.release(NEW, Kind::Good);
    node.order(&new);
    node.vm.set_clock(Some("2040-02-03T04:05:06"));
    node.vm.start();
    // By that clock the server's certificate is no longer valid.
    node.vm.until_line("the agent is in trouble", PART, |line| {
        line.contains("trouble, trying again").then_some(())
    });
    assert!(node.fleet.runs(&node.vm).is_empty());
    node.vm.cut();
    node.vm.set_clock(None);
    node.vm.start();
    let run = node.ended(&new);
    assert_eq!(run["state"], "succeeded", "{run:#}");
    node.judge(&[&new]);
}
