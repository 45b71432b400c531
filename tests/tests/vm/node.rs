//! One machine that is a node, and what is done with it in most stories.

use std::sync::Arc;
use std::time::{Duration, Instant};

use evenkeel_tests::history::say;
use evenkeel_tests::lab::vm::{
    Booted, Count, Kind, Release, Slot, Vm, VmFleet, Vms, counts, judge,
};
use serde_json::Value;

use crate::OLD;

/// How long an update may take on a busy machine, with all boots that there are in it.
pub const UPDATE: Duration = Duration::from_mins(15);

/// How long a part of it may take.
pub const PART: Duration = Duration::from_mins(8);

/// A server, and a machine that runs the first release.
pub struct Node {
    /// The machine.
    pub vm: Vm,
    /// The server.
    pub fleet: VmFleet,
    /// The first release.
    pub old: Release,
    /// Where releases are made.
    pub vms: Arc<Vms>,
    begun: Instant,
}

impl Node {
    /// Lets a machine join a server of its own. It is on.
    #[track_caller]
    pub fn join(vms: Arc<Vms>, name: &str) -> Self {
        let begun = Instant::now();
        let old = vms.release(OLD, Kind::Good);
        let fleet = vms.fleet();
        let mut vm = vms.machine(&fleet, &old, name);
        fleet.join(&mut vm);
        say(&format!("{name}: joined after {:?}", begun.elapsed()));
        Self {
            vm,
            fleet,
            old,
            vms,
            begun,
        }
    }

    /// Orders that the machine runs a release.
    #[track_caller]
    pub fn order(&self, release: &Release) {
        self.fleet.update(&self.vm, release);
    }

    /// Waits until the last run for a release is over, and returns it.
    #[track_caller]
    pub fn ended(&mut self, release: &Release) -> Value {
        let run = self.fleet.ended(&mut self.vm, &release.version, UPDATE);
        say(&format!(
            "{} {:?}: {} after {:?}: {}",
            release.version,
            release.kind,
            run["state"],
            self.begun.elapsed(),
            run["reason"]
        ));
        run
    }

    /// Updates the machine to a release, by an order. Returns the run, which must then be in this state.
    #[track_caller]
    pub fn update(&mut self, release: &Release, state: &str) -> Value {
        self.order(release);
        let run = self.ended(release);
        assert_eq!(run["state"], state, "{run:#}");
        run
    }

    /// Waits until the record agrees with the machine, which must run one of some releases. Returns what it runs.
    #[track_caller]
    pub fn agrees(&mut self, may_run: &[&Release]) -> Booted {
        self.fleet.agrees(&mut self.vm, may_run)
    }

    /// The same, and then looks at the disk. The machine is off afterwards.
    #[track_caller]
    pub fn judge(&mut self, may_run: &[&Release]) -> String {
        let version = judge(&self.fleet, &mut self.vm, may_run);
        say(&format!(
            "{version} is found after {:?}",
            self.begun.elapsed()
        ));
        version
    }

    /// Waits until a slot is armed, or on trial.
    #[track_caller]
    pub fn until_armed(&mut self, slot: Slot) {
        self.vm.until_entries("the slot is armed", PART, |entries| {
            matches!(counts(entries, slot)[..], [Count::Trial { .. }])
        });
    }

    /// Waits until the loader has counted a boot of a slot.
    #[track_caller]
    pub fn until_counted(&mut self, slot: Slot) {
        self.vm.until_entries("the loader counts", PART, |entries| {
            let counts = counts(entries, slot);
            matches!(counts[..], [Count::Trial { done: 1.., .. }])
        });
    }

    /// Waits until the machine has had so many runs, with the last one of which nothing need have happened yet.
    #[track_caller]
    pub fn until_runs(&mut self, count: u64) {
        let (vm, rest) = (&mut self.vm, &self.fleet.rest);
        let instance = vm.instance();
        let path = format!("/os-update-runs?filter=instance.resourceId%3D%22{instance}%22");
        vm.until("another run", PART, || {
            let list = rest.get(&path);
            (list["totalElements"] == count).then_some(())
        });
    }

    /// Waits until the server knows that a release failed here.
    #[track_caller]
    pub fn until_bad(&mut self, release: &Release) {
        let (fleet, path) = (
            &self.fleet,
            format!("/compute/instances/{}", self.vm.instance()),
        );
        self.vm.until("the server knows what failed", PART, || {
            is_bad(&fleet.rest.get(&path), release).then_some(())
        });
    }

    /// Whether the server knows that a release failed here.
    #[track_caller]
    pub fn is_bad(&self, release: &Release) -> bool {
        is_bad(&self.fleet.node(&self.vm), release)
    }

    /// What the machine should do now, and why.
    #[track_caller]
    pub fn decision(&self) -> Value {
        let path = format!("/compute/instances/{}/decision", self.vm.instance());
        self.fleet.rest.get(&path)
    }
}

/// Tells of a release that fails: the machine comes back to the old one, says so, and remembers it.
#[track_caller]
pub fn falls_back(node: &mut Node, release: &Release) -> Value {
    let before = node.vm.last_booted().expect("a release that came up");
    let run = node.update(release, "reverted");
    assert_eq!(run["image"]["wanted"], release.version.as_str(), "{run:#}");
    assert_eq!(run["image"]["booted"], before.version.as_str(), "{run:#}");
    assert_ne!(run["reason"], "", "{run:#}");
    node.until_bad(release);
    run
}

fn is_bad(node: &Value, release: &Release) -> bool {
    let mut bad = node["badImages"].as_array().into_iter().flatten();
    bad.any(|image| image["sha256"] == release.sha256.as_str())
}
