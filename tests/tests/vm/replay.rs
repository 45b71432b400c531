//! Disks as a power cut in the middle of an update leaves them, and what really starts from them.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use evenkeel_simulator::chance::Chance;
use evenkeel_tests::boot;
use evenkeel_tests::cut::{Cut, NEW, OLD, Played, Recorded, Verdict};
use evenkeel_tests::history::{number, say};
use evenkeel_tests::lab::vm::{Kind, Vms};

/// How many of them are started, unless the environment says otherwise.
const STARTED: u64 = 20;

/// So many machines at once: each takes a processor.
const WORKERS: usize = 2;

/// How long a machine may take until a release comes up.
const BOOTS: Duration = Duration::from_mins(10);

/// Of so many cuts for each that is started the rarer ends are picked.
const DRAWN: usize = 50;

/// Cuts between flushes of the boot partition, with about half lost of what was written since, in their order: as many of
/// each end as there are.
fn draw(recorded: &Recorded, count: usize, seed: u64) -> Vec<Cut> {
    let recording = &recorded.recording;
    let place = boot::partition(&recorded.before).expect("a boot partition");
    let stretches = recording.touching(&(place.start as u64..place.end as u64));
    let mut chance = Chance::new(seed, 0);
    let cuts = (0..count * DRAWN).filter_map(|_| {
        let flushes = *chance.pick(&stretches);
        recording.lossy_cut_after(flushes, &mut chance)
    });
    let mut cuts: Vec<_> = cuts.collect();
    cuts.sort_by_key(|cut| cut.flushes);
    let mut played = Played::new(recording, recorded.before.clone());
    let mut judge = recorded.judge();
    let mut ends = BTreeMap::<Verdict, Vec<Cut>>::new();
    for cut in cuts {
        let verdict = played.after(&cut, |disk| judge.judge(disk));
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

/// Holds that what is drawn from is the old release, the new one on trial, and the new one for good.
#[track_caller]
fn assert_ends(ends: &BTreeMap<Verdict, Vec<Cut>>) {
    for (version, is_on_trial) in [(OLD, false), (NEW, true), (NEW, false)] {
        let is_it = |end: &Verdict| matches!(end, Verdict::Runs { version: runs, is_on_trial: trial, .. } if runs == version && *trial == is_on_trial);
        let words: Vec<_> = ends.keys().map(ToString::to_string).collect();
        assert!(ends.keys().any(is_it), "no {version}: {words:?}");
    }
}

#[test]
fn what_a_power_cut_leaves_of_a_disk_starts_as_its_reading_says() {
    let Some(vms) = Vms::open_for_all() else {
        return;
    };
    let seed = number("EVENKEEL_VM_SEED", u64::from(std::process::id()) * 7_919);
    say(&format!("EVENKEEL_VM_SEED={seed}"));
    let recorded = Recorded::make(&vms, Kind::Good);
    let count = number("EVENKEEL_VM_REPLAYS", STARTED);
    let cuts = draw(&recorded, usize::try_from(count).expect("a few"), seed);
    let played = Played::new(&recorded.recording, recorded.before.clone());
    let next = Mutex::new((played, recorded.judge(), cuts.into_iter()));
    let old = &recorded.releases[1];
    let work = || {
        while let Some((cut, verdict, mut machine)) = {
            let mut next = next.lock().expect("no machine failed");
            let (played, judge, cuts) = &mut *next;
            cuts.next().map(|cut| {
                let machine = vms.lone_machine(old, "replayed");
                let verdict = played.after(&cut, |disk| {
                    fs::write(machine.disk(), disk.bytes()).expect("room for a disk");
                    judge.judge(disk)
                });
                (cut, verdict, machine)
            })
        } {
            machine.start();
            let booted = machine.until_booted(BOOTS);
            let resets = machine.resets();
            machine.cut();
            let (flushes, parts) = (cut.flushes, cut.survivors.len());
            say(&format!(
                "{flushes} flushes and {parts} parts: {verdict}; {booted:?}, {resets:?}"
            ));
            let Verdict::Runs { version, .. } = verdict else {
                panic!("{verdict}");
            };
            // A reset by itself costs a try, so behind one it may be the old release all the same.
            let may_be_old = resets.by_itself > 0 && booted.version == OLD;
            assert!(
                booted.version == version || may_be_old,
                "{booted:?}, not {version}"
            );
        }
    };
    thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(work);
        }
    });
    say(&format!("{count} disks were started"));
}
