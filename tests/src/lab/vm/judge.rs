//! Checks that a machine works after an update or a power cut, and that the server's records match it.

use std::time::Duration;

use evenkeel_registry::Digest;
use serde_json::Value;

use super::contents::DiskContents;
use super::esp::{BootCount, SlotEntry, counts};
use super::fleet::{VmFleet, text};
use super::machine::Vm;
use super::{BootedRelease, Release};

/// How long a machine may take to work and to report it: two trials on a busy machine.
const SETTLE_TIMEOUT: Duration = Duration::from_mins(15);

/// Waits until no update is in progress on a machine and the server's records match what it runs, which must be one of
/// some releases. Then cuts its power and checks that the release is completely on the disk, that the loader would
/// start it and nothing else, and that the update left nothing behind. Returns the version.
///
/// # Panics
/// The machine does not settle, or a check fails; the message says which.
#[track_caller]
pub fn judge(fleet: &VmFleet, vm: &mut Vm, may_run: &[&Release]) -> String {
    let booted = fleet.until_consistent(vm, may_run);
    vm.cut();
    let entries = vm.entries();
    assert_loads(&entries, &booted);
    let matching = may_run.iter().find(|one| one.version == booted.version);
    let release = matching.expect("one of the releases");
    let letter = booted.slot.letter();
    let contents = DiskContents::read(vm.disk());
    let in_slot = contents.slot_digest(booted.slot, release.bytes);
    assert_eq!(in_slot, release.sha256, "content of slot {letter}");
    let kernel = vm.kernel(booted.slot).map(|kernel| Digest::compute(&kernel));
    let own = Digest::compute(&release.kernel(letter));
    assert_eq!(kernel, Some(own), "the kernel of slot {letter}");
    assert_nothing_left(&contents, &booted.version);
    booted.version
}

/// Asserts that no update is in progress, nothing is left over, and the version is recorded.
#[track_caller]
pub(super) fn assert_nothing_left(contents: &DiskContents, version: &str) {
    assert_eq!(contents.state_file("journal.json"), "", "an open attempt");
    let spooled = contents.list_folder("images");
    assert!(spooled.is_empty(), "files of the download are left: {spooled:?}");
    let slots = contents.state_file("slots.json");
    assert!(slots.contains(version), "{slots}");
}

/// Asserts that the loader starts the booted release, and not on trial.
#[track_caller]
fn assert_loads(entries: &[SlotEntry], booted: &BootedRelease) {
    assert_eq!(counts(entries, booted.slot), [BootCount::Permanent], "{entries:?}");
    let is_trial = |entry: &SlotEntry| entry.count != BootCount::Permanent;
    assert!(!entries.iter().any(is_trial), "a trial is left: {entries:?}");
    // The names start with a number, and the loader takes the highest one.
    let first = entries.last().map(|entry| entry.slot);
    assert_eq!(first, Some(booted.slot), "{entries:?}");
}

impl VmFleet {
    /// Waits until no update is in progress on a machine and the records match what it runs, which must be one of some
    /// releases. Returns the booted release.
    ///
    /// # Panics
    /// This does not happen in time. The message contains the records.
    #[track_caller]
    pub fn until_consistent(&self, vm: &mut Vm, may_run: &[&Release]) -> BootedRelease {
        let mut difference = String::new();
        let instance = vm.instance().to_owned();
        let agreed = vm.until_settled(SETTLE_TIMEOUT, |booted| {
            let node = self.rest.get(&format!("compute/instances/{instance}"));
            match self.find_difference(&node, booted, may_run) {
                None => true,
                Some(what) => {
                    difference = what;
                    false
                }
            }
        });
        let Some(booted) = agreed else {
            let (node, tail) = (self.node(vm), vm.tail());
            panic!("the records do not match the machine: {difference}\n{node:#}\n{tail}");
        };
        let runs = self.runs(vm);
        for run in &runs {
            assert_booted_matches_state(run);
        }
        let last = runs.iter().rfind(|run| has_final_image(run));
        if let Some(run) = last {
            assert_eq!(run["image"]["booted"], booted.version.as_str(), "{run:#}");
        }
        booted
    }

    /// The first difference between the records and what runs.
    fn find_difference(
        &self,
        node: &Value,
        booted: &BootedRelease,
        may_run: &[&Release],
    ) -> Option<String> {
        let BootedRelease { version, slot } = booted;
        if !may_run.iter().any(|release| release.version == *version) {
            return Some(format!("{version} runs, which is not expected"));
        }
        let os = self.catalog_id(version).expect("a published release");
        if node["os"]["resourceId"] != os.as_str() {
            let recorded = &node["os"]["imageId"];
            return Some(format!("{version} runs, but {recorded} is recorded"));
        }
        let slots = node["slots"].as_array().into_iter().flatten();
        for one in slots {
            let (name, state) = (text(one, "name"), text(one, "state"));
            if name.ends_with(slot.letter()) {
                if state != "good" || one["imageId"] != version.as_str() {
                    return Some(format!("{version} runs, but its slot is recorded as {one}"));
                }
            } else if ["armed", "trial", "writing"].contains(&state) {
                return Some(format!("an update is in progress: {one}"));
            }
        }
        let instance = text(node, "resourceId");
        let filter = format!("instance.resourceId%3D%22{instance}%22");
        let list = self.rest.get(&format!("os-update-runs?pageSize=100&filter={filter}"));
        let mut runs = list["osUpdateRuns"].as_array().into_iter().flatten();
        let open = runs.find(|run| run["endTime"].as_u64() == Some(0));
        open.map(|run| format!("a run is {}", run["state"]))
    }
}

/// Whether the end of a run implies which image runs.
fn has_final_image(run: &Value) -> bool {
    matches!(run["state"].as_str(), Some("succeeded" | "reverted"))
}

/// Asserts that the booted image of a run matches its state: the new release after a success, otherwise the old one.
#[track_caller]
fn assert_booted_matches_state(run: &Value) {
    let image = &run["image"];
    let runs = &image["booted"];
    match text(run, "state") {
        "succeeded" => assert_eq!(runs, &image["desired"], "{run:#}"),
        "reverted" => assert_eq!(runs, &image["before"], "{run:#}"),
        "failed" | "cancelled" => {
            // A run that failed before it started need not record an image.
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

    fn entry(file: &str, slot: Slot) -> SlotEntry {
        SlotEntry {
            file: file.to_owned(),
            slot,
            count: BootCount::parse(file).expect("the name of an entry"),
        }
    }

    fn panics(check: impl FnOnce() + std::panic::UnwindSafe) -> bool {
        std::panic::catch_unwind(check).is_err()
    }

    #[test]
    fn the_loader_must_start_what_runs_and_no_trial_may_remain() {
        let old = entry("evenkeel-000001.conf", Slot::A);
        let new = entry("evenkeel-000002.conf", Slot::B);
        let trial = entry("evenkeel-000002+1-1.conf", Slot::B);
        let booted = |slot| BootedRelease { version: "1.0".to_owned(), slot };
        assert_loads(std::slice::from_ref(&old), &booted(Slot::A));
        assert_loads(&[old.clone(), new.clone()], &booted(Slot::B));
        for (entries, slot) in [
            (vec![old.clone(), new], Slot::A),
            (vec![old.clone(), trial.clone()], Slot::A),
            (vec![old.clone(), trial], Slot::B),
            (vec![old], Slot::B),
            (vec![], Slot::A),
        ] {
            assert!(panics(|| assert_loads(&entries, &booted(slot))));
        }
    }

    #[test]
    fn the_booted_image_must_match_the_state_of_the_run() {
        let run = |state: &str, booted: &str| {
            json!({ "state": state,
                "image": { "profileName": "edge", "before": "1.0", "desired": "1.1", "booted": booted } })
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
            assert_eq!(!panics(|| assert_booted_matches_state(&run)), is_true, "{run}");
        }
    }
}
