//! Disks as a power cut in the middle of an update leaves them: the release that starts must be the
//! predicted one.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use evenkeel_simulator::rng::Rng;
use evenkeel_tests::boot;
use evenkeel_tests::cut::{
    BootVerdict, Cut, DiskJudge as _, MemoryReplay, NEW_VERSION, OLD_VERSION, UpdateRecording,
};
use evenkeel_tests::history::{number, print_progress};
use evenkeel_tests::lab::vm::{ReleaseKind, Vms};

/// Number of disks that are started by default.
const DEFAULT_REPLAYS: u64 = 20;

/// Number of machines that run at the same time; each uses one processor.
const WORKER_COUNT: usize = 2;

/// Maximum time until a release is up.
const BOOT_TIMEOUT: Duration = Duration::from_mins(10);

/// Number of cuts drawn for each disk that is started. The rare ends are preferred.
const CUTS_PER_REPLAY: usize = 50;

/// Draws cuts between flushes of the boot partition, which lose about half of the unflushed data.
/// Returns them in order, with all ends represented as evenly as possible.
fn draw_cuts(recorded: &UpdateRecording, count: usize, seed: u64) -> Vec<Cut> {
    let recording = &recorded.recording;
    let partition = boot::boot_partition_range(&recorded.disk_before).expect("a boot partition");
    let stretches =
        recording.flushes_before_writes_to(&(partition.start as u64..partition.end as u64));
    let mut rng = Rng::new(seed, 0);
    let cuts = (0..count * CUTS_PER_REPLAY).filter_map(|_| {
        let flushes = *rng.pick(&stretches);
        recording.lossy_cut_after(flushes, &mut rng)
    });
    let mut cuts: Vec<_> = cuts.collect();
    cuts.sort_by_key(|cut| cut.flushes);
    let mut played = MemoryReplay::new(recording, recorded.disk_before.clone());
    let mut judge = recorded.judge();
    let mut ends = BTreeMap::<BootVerdict, Vec<Cut>>::new();
    for cut in cuts {
        let verdict = played.inspect_after(&cut, |disk| judge.judge(disk));
        ends.entry(verdict).or_default().push(cut);
    }
    assert_ends(&ends);
    let mut chosen = Vec::new();
    while chosen.len() < count {
        let before = chosen.len();
        chosen.extend(ends.values_mut().filter_map(Vec::pop));
        assert!(before < chosen.len(), "only {before} cuts");
    }
    chosen.truncate(count);
    chosen.sort_by_key(|cut| cut.flushes);
    chosen
}

/// Asserts that the ends include the old release, the new one on trial, and the blessed new one.
#[track_caller]
fn assert_ends(ends: &BTreeMap<BootVerdict, Vec<Cut>>) {
    for (version, is_on_trial) in [(OLD_VERSION, false), (NEW_VERSION, true), (NEW_VERSION, false)]
    {
        let is_it = |end: &BootVerdict| matches!(end, BootVerdict::Runs { version: runs, is_on_trial: trial, .. } if runs == version && *trial == is_on_trial);
        let descriptions: Vec<_> = ends.keys().map(ToString::to_string).collect();
        assert!(ends.keys().any(is_it), "no {version} in {descriptions:?}");
    }
}

#[test]
fn a_disk_after_a_power_cut_starts_as_predicted() {
    let Some(vms) = Vms::open_if_all() else {
        return;
    };
    let seed = number("EVENKEEL_VM_SEED", u64::from(std::process::id()) * 7_919);
    print_progress(&format!("EVENKEEL_VM_SEED={seed}"));
    let recorded = UpdateRecording::record(&vms, ReleaseKind::Good);
    let count = number("EVENKEEL_VM_REPLAYS", DEFAULT_REPLAYS);
    let cuts = draw_cuts(&recorded, usize::try_from(count).expect("a few"), seed);
    let played = MemoryReplay::new(&recorded.recording, recorded.disk_before.clone());
    let next = Mutex::new((played, recorded.judge(), cuts.into_iter()));
    let old = &recorded.releases[1];
    let work = || {
        while let Some((cut, verdict, mut machine)) = {
            let mut next = next.lock().expect("no machine failed");
            let (played, judge, cuts) = &mut *next;
            cuts.next().map(|cut| {
                let machine = vms.machine_without_server(old, "replayed");
                let verdict = played.inspect_after(&cut, |disk| {
                    fs::write(machine.disk(), disk.bytes()).expect("space for a disk");
                    judge.judge(disk)
                });
                (cut, verdict, machine)
            })
        } {
            machine.start();
            let booted = machine.until_booted(BOOT_TIMEOUT);
            let resets = machine.resets();
            machine.cut();
            let (flushes, parts) = (cut.flushes, cut.survivors.len());
            print_progress(&format!(
                "{flushes} flushes and {parts} parts: {verdict}; {booted:?}, {resets:?}"
            ));
            let BootVerdict::Runs { version, .. } = verdict else {
                panic!("{verdict}");
            };
            // A reset by the machine itself uses a try, so after one the old release is possible as
            // well.
            let may_be_old = resets.by_itself > 0 && booted.version == OLD_VERSION;
            assert!(booted.version == version || may_be_old, "{booted:?}, not {version}");
        }
    };
    thread::scope(|scope| {
        for _ in 0..WORKER_COUNT {
            scope.spawn(work);
        }
    });
    print_progress(&format!("{count} disks were started"));
}
