//! Whether a machine is well after whatever happened to it, and whether the server's record agrees with it.

use std::time::Duration;

use evenkeel_registry::Digest;
use serde_json::Value;

use super::contents::Contents;
use super::esp::{Count, Entry, counts};
use super::fleet::{VmFleet, text};
use super::machine::Vm;
use super::{Booted, Release};

/// How long a machine may take to be well, and to say so: for two trials on a busy machine.
const SETTLES: Duration = Duration::from_mins(15);

/// Waits until nothing is under way on a machine any more and the server's record agrees with what it runs, which must be
/// one of some releases. Then cuts its power, and looks whether all of that release is on the disk, whether the loader
/// would start it and nothing else, and whether nothing is left of the work. Returns the version.
///
/// # Panics
/// It does not come to rest, or something does not fit; the message says what.
#[track_caller]
pub fn judge(fleet: &VmFleet, vm: &mut Vm, may_run: &[&Release]) -> String {
    let booted = fleet.agrees(vm, may_run);
    vm.cut();
    let entries = vm.entries();
    assert_loads(&entries, &booted);
    let found = may_run.iter().find(|one| one.version == booted.version);
    let release = found.expect("one of them");
    let letter = booted.slot.letter();
    let contents = Contents::of(vm.disk());
    let in_slot = contents.slot(booted.slot, release.bytes);
    assert_eq!(in_slot, release.sha256, "what lies in slot {letter}");
    let kernel = vm.kernel(booted.slot).map(|kernel| Digest::of(&kernel));
    let own = Digest::of(&release.kernel(letter));
    assert_eq!(kernel, Some(own), "the kernel of slot {letter}");
    // Nothing is under way, and nothing is left over.
    assert_eq!(contents.state("journal.json"), "", "an open attempt");
    let spooled = contents.listed("images");
    assert!(
        spooled.is_empty(),
        "{spooled:?} are left of what was fetched"
    );
    let slots = contents.state("slots.json");
    assert!(slots.contains(&booted.version), "{slots}");
    booted.version
}

/// Holds that the loader starts the release that was booted, for good, whatever becomes of other entries.
#[track_caller]
fn assert_loads(entries: &[Entry], booted: &Booted) {
    assert_eq!(counts(entries, booted.slot), [Count::Kept], "{entries:?}");
    let is_trial = |entry: &Entry| entry.count != Count::Kept;
    assert!(
        !entries.iter().any(is_trial),
        "a trial is left: {entries:?}"
    );
    // Names have their number in front, and the highest one comes first.
    let first = entries.last().map(|entry| entry.slot);
    assert_eq!(first, Some(booted.slot), "{entries:?}");
}

impl VmFleet {
    /// Waits until nothing is under way on a machine any more and the record agrees with what it runs, which must be one of
    /// some releases. Returns which.
    ///
    /// # Panics
    /// That does not come about; the message has what is recorded.
    #[track_caller]
    pub fn agrees(&self, vm: &mut Vm, may_run: &[&Release]) -> Booted {
        let mut said = String::new();
        let instance = vm.instance().to_owned();
        let agreed = vm.settles(SETTLES, |booted| {
            let node = self.rest.get(&format!("/compute/instances/{instance}"));
            match self.differs(&node, booted, may_run) {
                None => true,
                Some(what) => {
                    said = what;
                    false
                }
            }
        });
        let Some(booted) = agreed else {
            let (node, tail) = (self.node(vm), vm.tail());
            panic!("the record does not agree with the machine: {said}\n{node:#}\n{tail}");
        };
        let runs = self.runs(vm);
        for run in &runs {
            assert_is_true(run);
        }
        let last = runs.iter().rfind(|run| is_decided(run));
        if let Some(run) = last {
            assert_eq!(run["image"]["booted"], booted.version.as_str(), "{run:#}");
        }
        booted
    }

    /// What in the record does not fit what runs; none if all does.
    fn differs(&self, node: &Value, booted: &Booted, may_run: &[&Release]) -> Option<String> {
        let Booted { version, slot } = booted;
        if !may_run.iter().any(|release| release.version == *version) {
            return Some(format!("{version} runs"));
        }
        let os = self.known(version).expect("a release that is known");
        if node["os"]["resourceId"] != os.as_str() {
            let recorded = &node["os"]["imageId"];
            return Some(format!("{version} runs, and {recorded} is recorded"));
        }
        let slots = node["slots"].as_array().into_iter().flatten();
        for one in slots {
            let (name, state) = (text(one, "name"), text(one, "state"));
            if name.ends_with(slot.letter()) {
                if state != "good" || one["imageId"] != version.as_str() {
                    return Some(format!("{version} runs, and its slot is said to be {one}"));
                }
            } else if ["armed", "trial", "writing"].contains(&state) {
                return Some(format!("something is under way: {one}"));
            }
        }
        let instance = text(node, "resourceId");
        let filter = format!("instance.resourceId%3D%22{instance}%22");
        let list = self
            .rest
            .get(&format!("/os-update-runs?pageSize=100&filter={filter}"));
        let mut runs = list["osUpdateRuns"].as_array().into_iter().flatten();
        let open = runs.find(|run| run["endTime"].as_u64() == Some(0));
        open.map(|run| format!("a run is {}", run["state"]))
    }
}

/// Whether something ran at the end of a run that it was to decide on.
fn is_decided(run: &Value) -> bool {
    matches!(run["state"].as_str(), Some("succeeded" | "reverted"))
}

/// Holds that a run that is over says what it did: the new release runs if it went well, else the old one.
#[track_caller]
fn assert_is_true(run: &Value) {
    let image = &run["image"];
    let runs = &image["booted"];
    match text(run, "state") {
        "succeeded" => assert_eq!(runs, &image["wanted"], "{run:#}"),
        "reverted" => assert_eq!(runs, &image["before"], "{run:#}"),
        "failed" | "cancelled" => {
            // One that failed before it began need not say what ran.
            let is_old = image.is_null() || *runs == "" || *runs == image["before"];
            assert!(is_old, "{run:#}");
        }
        other => panic!("{other}: {run:#}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::lab::vm::Slot;

    fn entry(file: &str, slot: Slot) -> Entry {
        Entry {
            file: file.to_owned(),
            slot,
            count: Count::of(file).expect("the name of an entry"),
        }
    }

    fn is_refused(check: impl FnOnce() + std::panic::UnwindSafe) -> bool {
        std::panic::catch_unwind(check).is_err()
    }

    #[test]
    fn what_the_loader_starts_must_be_what_runs_and_there_to_stay() {
        let old = entry("evenkeel-000001.conf", Slot::A);
        let new = entry("evenkeel-000002.conf", Slot::B);
        let trial = entry("evenkeel-000002+1-1.conf", Slot::B);
        let booted = |slot| Booted {
            version: "1.0".to_owned(),
            slot,
        };
        assert_loads(std::slice::from_ref(&old), &booted(Slot::A));
        assert_loads(&[old.clone(), new.clone()], &booted(Slot::B));
        for (entries, slot) in [
            (vec![old.clone(), new], Slot::A),
            (vec![old.clone(), trial.clone()], Slot::A),
            (vec![old.clone(), trial], Slot::B),
            (vec![old], Slot::B),
            (vec![], Slot::A),
        ] {
            assert!(is_refused(|| assert_loads(&entries, &booted(slot))));
        }
    }

    #[test]
    fn a_run_says_of_what_runs_what_its_end_says() {
        let run = |state: &str, booted: &str| {
            json!({ "state": state,
                "image": { "profileName": "edge", "before": "1.0", "wanted": "1.1", "booted": booted } })
        };
        for (state, booted, is_true) in [
            ("succeeded", "1.1", true),
            ("succeeded", "1.0", false),
            ("reverted", "1.0", true),
            ("reverted", "1.1", false),
            ("reverted", "", false),
            ("failed", "", true),
            ("failed", "1.0", true),
            ("failed", "1.1", false),
            ("applying", "1.0", false),
        ] {
            let run = run(state, booted);
            assert_eq!(!is_refused(|| assert_is_true(&run)), is_true, "{run}");
        }
    }
}
