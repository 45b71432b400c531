//! Debian with GRUB and RAUC: bundles of the format verity are tried and then kept or reverted, also
//! after power cuts.

use std::sync::Arc;

use evenkeel_tests::history::machine_time;
use evenkeel_tests::lab::vm::{RaucVms, Release, ReleaseKind, Slot};
use serde_json::json;

use super::node::{Node, STEP_TIMEOUT, assert_falls_back};
use super::{NEW_VERSION, OLD_VERSION};

/// Delay of a window in seconds that does not open during a test. Images are fetched six hours ahead.
const WINDOW_DELAY_SECONDS: i64 = 7_200;

/// Starts a server and a machine that joins it. The machine stays on.
#[track_caller]
fn join(rauc: &RaucVms, name: &str) -> Node {
    let old = rauc.release(OLD_VERSION, ReleaseKind::Good);
    let fleet = rauc.vms().fleet();
    let vm = rauc.machine(&fleet, &old, name);
    Node::join_machine(Arc::clone(rauc.vms()), fleet, old, vm)
}

/// Updates to a bad release. The machine must return to the release before, and the server must not
/// offer the bad one again. Returns the reason of the run.
#[track_caller]
fn assert_quarantined(node: &mut Node, bad: &Release) -> String {
    let run = assert_falls_back(node, bad);
    let decision = node.decision();
    assert_eq!(decision["reason"]["code"], "quarantined", "{decision:#}");
    run["reason"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn a_good_bundle_is_kept_and_one_that_panics_or_is_never_healthy_leads_back() {
    let Some(rauc) = RaucVms::open_if_all() else {
        return;
    };
    let mut node = join(&rauc, "rauc");
    let good = rauc.release(NEW_VERSION, ReleaseKind::Good);
    let run = node.update(&good, "succeeded");
    assert_eq!(run["image"]["before"], OLD_VERSION, "{run:#}");
    assert_eq!(run["image"]["booted"], NEW_VERSION, "{run:#}");
    assert_eq!(node.wait_for_matching_record(&[&good]).slot, Slot::B);

    let panics = rauc.release("1.2", ReleaseKind::Panic);
    assert_quarantined(&mut node, &panics);
    let unhealthy = rauc.release("1.3", ReleaseKind::Unhealthy);
    let reason = assert_quarantined(&mut node, &unhealthy);
    assert!(reason.contains("the lab says that it is sick"), "{reason}");
    assert_eq!(rauc.judge(&node.fleet, &mut node.vm, &[&good]), NEW_VERSION);
}

#[test]
fn noise_for_a_kernel_and_an_endless_health_check_lead_back_and_only_an_order_retries_the_bundle() {
    let Some(rauc) = RaucVms::open_if_all() else {
        return;
    };
    let mut node = join(&rauc, "again");
    let noise = rauc.release(NEW_VERSION, ReleaseKind::NoiseKernel);
    assert_quarantined(&mut node, &noise);
    assert_eq!(node.fleet.runs(&node.vm).len(), 1);

    // One order allows one try.
    node.fleet.order_update(&node.vm);
    node.wait_for_runs(2);
    let run = node.wait_for_run_end(&noise);
    assert_eq!(run["state"], "reverted", "{run:#}");

    let hung = rauc.release("1.2", ReleaseKind::HungHealth);
    assert_quarantined(&mut node, &hung);
    let good = rauc.release("1.3", ReleaseKind::Good);
    node.update(&good, "succeeded");
    assert_eq!(rauc.judge(&node.fleet, &mut node.vm, &[&good]), "1.3");
}

/// Cuts the power and restarts the machine. It must boot this release from this slot.
#[track_caller]
fn cut_and_restart(node: &mut Node, release: &Release, slot: Slot) {
    node.vm.cut();
    node.vm.start();
    let booted = node.vm.until_booted(STEP_TIMEOUT);
    assert_eq!((booted.version.as_str(), booted.slot), (release.version.as_str(), slot));
}

/// Assigns a release to the machine, with a window that does not open during a test. Waits until its
/// bundle is installed.
#[track_caller]
fn install_ahead(node: &mut Node, release: &Release) {
    let (fleet, path) = (&node.fleet, format!("compute/instances/{}", node.vm.instance()));
    let start = machine_time().timestamp() + WINDOW_DELAY_SECONDS;
    fleet.rest.post(
        "schedules/single",
        &json!({
            "name": "later",
            "scheduleStatus": "SCHEDULE_STATUS_OS_UPDATE",
            "startSeconds": start,
            "endSeconds": start + 7_200,
            "targetHostId": fleet.node(&node.vm)["host"]["resourceId"],
        }),
    );
    let os = fleet.publish(release);
    fleet.assign_os(&node.vm, Some(&os));
    node.vm.until("the bundle is installed", STEP_TIMEOUT, || {
        let instance = fleet.rest.get(&path);
        let mut slots = instance["slots"].as_array().into_iter().flatten();
        let is_installed = slots
            .any(|slot| slot["state"] == "written" && slot["imageId"] == release.version.as_str());
        is_installed.then_some(())
    });
}

#[test]
fn after_a_power_cut_after_or_during_an_installation_the_old_release_runs_and_the_update_completes()
{
    let Some(rauc) = RaucVms::open_if_all() else {
        return;
    };
    let mut node = join(&rauc, "cuts");
    let old = node.old.clone();
    let second = rauc.release(NEW_VERSION, ReleaseKind::Good);
    // Before any order, because the window of an order would start this update as well.
    install_ahead(&mut node, &second);
    cut_and_restart(&mut node, &old, Slot::A);
    let requests = node.fleet.web.requests();
    node.fleet.order_update(&node.vm);
    let run = node.wait_for_run_end(&second);
    assert_eq!(run["state"], "succeeded", "{run:#}");
    // The slot still holds the image of the bundle.
    assert_eq!(node.fleet.web.requests(), requests);
    assert_eq!(node.wait_for_matching_record(&[&second]).slot, Slot::B);

    let third = rauc.release("1.2", ReleaseKind::Good);
    let before = node.vm.slot_head(Slot::A);
    node.order_update(&third);
    node.vm.until_head(Slot::A, STEP_TIMEOUT, |head| head != before);
    cut_and_restart(&mut node, &second, Slot::B);
    let run = node.wait_for_run_end(&third);
    assert_eq!(run["state"], "succeeded", "{run:#}");
    assert_eq!(rauc.judge(&node.fleet, &mut node.vm, &[&third]), "1.2");
}
