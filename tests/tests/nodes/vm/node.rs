//! A machine that is a node, and the steps that most tests share.

use std::sync::Arc;
use std::time::{Duration, Instant};

use evenkeel_tests::history::print_progress;
use evenkeel_tests::lab::vm::{
    BootCount, BootedRelease, Release, ReleaseKind, Slot, Vm, VmFleet, Vms, counts, judge,
};
use serde_json::Value;

use super::OLD_VERSION;

/// Maximum duration of an update on a busy machine, including its boots.
pub const UPDATE_TIMEOUT: Duration = Duration::from_mins(15);

/// Maximum duration of a step of an update.
pub const STEP_TIMEOUT: Duration = Duration::from_mins(8);

/// A server, and a machine that runs the first release.
pub struct Node {
    /// The machine.
    pub vm: Vm,
    /// The server.
    pub fleet: VmFleet,
    /// The first release.
    pub old: Release,
    /// Builds releases and machines.
    pub vms: Arc<Vms>,
    begun: Instant,
}

impl Node {
    /// Starts a server and a machine that joins it. The machine stays on.
    #[track_caller]
    pub fn join(vms: Arc<Vms>, name: &str) -> Self {
        let old = vms.release(OLD_VERSION, ReleaseKind::Good);
        let fleet = vms.fleet();
        let vm = vms.machine(&fleet, &old, name);
        Self::join_machine(vms, fleet, old, vm)
    }

    /// Switches on a machine with a first release, and waits until it has joined the server.
    #[track_caller]
    pub fn join_machine(vms: Arc<Vms>, fleet: VmFleet, old: Release, mut vm: Vm) -> Self {
        let begun = Instant::now();
        fleet.join(&mut vm);
        print_progress(&format!("{}: joined after {:?}", vm.name(), begun.elapsed()));
        Self { vm, fleet, old, vms, begun }
    }

    #[track_caller]
    pub fn order_update(&self, release: &Release) {
        self.fleet.update(&self.vm, release);
    }

    /// Waits until the last run for a release has ended, and returns the run.
    #[track_caller]
    pub fn wait_for_run_end(&mut self, release: &Release) -> Value {
        let run = self.fleet.wait_for_run_end(&mut self.vm, &release.version, UPDATE_TIMEOUT);
        print_progress(&format!(
            "{} {:?}: {} after {:?}: {}",
            release.version,
            release.kind,
            run["state"],
            self.begun.elapsed(),
            run["reason"]
        ));
        run
    }

    /// Orders an update to a release. Returns the run, which must end in this state.
    #[track_caller]
    pub fn update(&mut self, release: &Release, state: &str) -> Value {
        self.order_update(release);
        let run = self.wait_for_run_end(release);
        assert_eq!(run["state"], state, "{run:#}");
        run
    }

    /// Waits until the server's record matches the machine, which must run one of these releases.
    /// Returns the release.
    #[track_caller]
    pub fn wait_for_matching_record(&mut self, may_run: &[&Release]) -> BootedRelease {
        self.fleet.until_consistent(&mut self.vm, may_run)
    }

    /// As `wait_for_matching_record`, and then checks the disk. The machine is off afterwards.
    #[track_caller]
    pub fn check_disk(&mut self, may_run: &[&Release]) -> String {
        let version = judge(&self.fleet, &mut self.vm, may_run);
        print_progress(&format!("{version} is confirmed after {:?}", self.begun.elapsed()));
        version
    }

    /// Waits until a slot is armed or on trial.
    #[track_caller]
    pub fn wait_until_armed(&mut self, slot: Slot) {
        self.vm.until_entries("the slot is armed", STEP_TIMEOUT, |entries| {
            matches!(counts(entries, slot)[..], [BootCount::Trial { .. }])
        });
    }

    /// Waits until the loader has counted a boot of a slot.
    #[track_caller]
    pub fn wait_until_counted(&mut self, slot: Slot) {
        self.vm.until_entries("the loader counts", STEP_TIMEOUT, |entries| {
            let counts = counts(entries, slot);
            matches!(counts[..], [BootCount::Trial { done: 1.., .. }])
        });
    }

    /// Waits until the machine has had this number of runs. The last one may just have been created.
    #[track_caller]
    pub fn wait_for_runs(&mut self, count: u64) {
        let (vm, rest) = (&mut self.vm, &self.fleet.rest);
        let instance = vm.instance();
        let path = format!("os-update-runs?filter=instance.resourceId%3D%22{instance}%22");
        vm.until("another run", STEP_TIMEOUT, || {
            let list = rest.get(&path);
            (list["totalElements"] == count).then_some(())
        });
    }

    /// Waits until the server has recorded that a release failed on the machine.
    #[track_caller]
    pub fn wait_until_bad(&mut self, release: &Release) {
        let (fleet, path) = (&self.fleet, format!("compute/instances/{}", self.vm.instance()));
        self.vm.until("the failure is recorded", STEP_TIMEOUT, || {
            has_bad_image(&fleet.rest.get(&path), release).then_some(())
        });
    }

    /// Whether the server has recorded that a release failed on the machine.
    #[track_caller]
    pub fn is_bad(&self, release: &Release) -> bool {
        has_bad_image(&self.fleet.node(&self.vm), release)
    }

    /// Decision of the server for the machine.
    #[track_caller]
    pub fn decision(&self) -> Value {
        let path = format!("compute/instances/{}/decision", self.vm.instance());
        self.fleet.rest.get(&path)
    }
}

/// Updates to a bad release. The machine must return to the old release, and the server must record the
/// failure.
#[track_caller]
pub fn assert_falls_back(node: &mut Node, release: &Release) -> Value {
    let before = node.vm.last_booted().expect("a release that came up");
    let run = node.update(release, "reverted");
    assert_eq!(run["image"]["desired"], release.version.as_str(), "{run:#}");
    assert_eq!(run["image"]["booted"], before.version.as_str(), "{run:#}");
    assert_ne!(run["reason"], "", "{run:#}");
    node.wait_until_bad(release);
    run
}

fn has_bad_image(node: &Value, release: &Release) -> bool {
    let mut bad = node["badImages"].as_array().into_iter().flatten();
    bad.any(|image| image["sha256"] == release.sha256.as_str())
}
