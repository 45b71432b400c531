//! The power cut at every flush of a whole update, and in between where disks lose what they were not told to flush.
//!
//! An emulated machine without any network carries the update out with leave that its server gave ahead, while all that
//! its disk is told is recorded. Then the disk is made as it is after a cut, for one cut after the other, and the agent
//! is started on it as at the next boot.
//!
//! | variable | what it is |
//! | --- | --- |
//! | `EVENKEEL_CUT_FLUSHES` | at how many of the flushes the power is cut |
//! | `EVENKEEL_CUT_SAMPLES` | how many cuts lose what was not flushed |
//! | `EVENKEEL_CUT_SEED` | which ones |

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use evenkeel_simulator::chance::Chance;
use evenkeel_tests::aftermath::{Aftermath, End, Ends};
use evenkeel_tests::cut::{Cut, Recording, Replay};
use evenkeel_tests::history::{machine_time, number, say};
use evenkeel_tests::lab::{
    Binaries, Disk, Emulator, Fleet, Lab, Member, Node, events, stripped, told, until,
};
use uuid::Uuid;

/// What the update changes: 20 MB in 400 files among it.
const PACKAGES: [&str; 6] = [
    "demo-app",
    "demo-big",
    "demo-conf",
    "demo-hello",
    "demo-lib",
    "demo-unit",
];

/// The node whose disk it is.
const NODE: &str = "cut";

/// What the agent does in the machine that is recorded, and at the next boot.
const AGENT: &str = "evenkeel-agent run --once";

/// What is usually advised.
const ADVICE: &str = "dpkg --force-confdef --force-confold --configure -a";

/// At how many flushes the usual advice is tried.
const ADVISED: usize = 8;

/// Carries out a command on a disk, says how it ended, then does what the other arguments say.
const RECOVER: &str = r#"
timeout 900 sh -c "$1" > /run/said 2>&1; echo "ended $?"
tail -n 20 /run/said | sed 's/^/said /'
shift; exec "$@"
"#;

/// So many disks are looked into at once.
const WORKERS: usize = 2;

/// A node that has everything for its update and leave to begin, and whose window is open.
fn prepared<'a>(fleet: &'a Fleet, lab: &Lab, emulator: &Emulator) -> Member<'a> {
    let agent = stripped(&Binaries::get().agent, emulator.path("agent"));
    let node = fleet.equip(Node::new(lab, NODE), &agent);
    let server = fleet.server.address("southbound");
    let uuid = Uuid::new_v4().to_string();
    let member = fleet.admit(node, &server, &["--uuid", &uuid]);
    member.has(&PACKAGES);
    member.node.sh(&format!(
        "install -m 755 /srv/evenkeel-agent /usr/bin/evenkeel-agent
         echo 'exec {AGENT}' > /srv/task; echo 'value=mine' > /etc/demo/conf"
    ));
    member.want(&PACKAGES.map(|name| format!("{name}=1.1")).join("\n"));
    // To prepare takes time, on a busy machine more of it. The replay takes hours at most.
    let opens = member.window(60, 82_800);
    let output = member.agent_once();
    assert!(output.status.success(), "{}", told(&output));
    assert_eq!(member.only_run()["state"], "staged");
    assert!(member.node.has("/var/lib/evenkeel-agent/grant.json"));
    until("the window opens", Duration::from_mins(3), || {
        (machine_time().timestamp() > opens.timestamp() + 1).then_some(())
    });
    member
}

/// Runs a command on a disk as at the next boot, and looks around.
fn recover(disk: &Disk, command: &str, has_network: bool) -> (Aftermath, String) {
    let script = ["sh", "-c", RECOVER, "recover", command];
    let look_around = Aftermath::words(&PACKAGES);
    let words = [&script[..], &look_around[..]].concat();
    let output = disk.run(&words, has_network);
    let mut node = Aftermath::read(&String::from_utf8_lossy(&output.stdout));
    if !output.status.success() {
        node.faults.push("the disk cannot be used".to_owned());
    }
    (node, told(&output))
}

/// What is wrong with a disk on which an agent without a server was started; empty if nothing is.
fn judge(disk: &Disk, ends: &Ends, node: &Aftermath, said: &str) -> Vec<String> {
    let mut faults = ends.faults(node);
    let state = (ends.reached(node), node.phase(), node.last_news());
    let is_settled = matches!(
        state,
        (Some(End::New), Some("over"), Some("finished"))
            | (Some(End::Old), Some("staged"), Some("downloaded"))
    );
    if !is_settled {
        faults.push(format!("the journal does not fit: {state:?}"));
    }
    // 1: there is no server to tell it to.
    let has_ended = said.lines().any(|line| line == "ended 1");
    if !has_ended {
        faults.push("the agent did not come to its end".to_owned());
    }
    let wrong = disk.faults();
    if !wrong.is_empty() {
        faults.push(format!("the file system: {wrong}"));
    }
    faults
}

/// What came of all cuts.
#[derive(Default)]
struct Outcome {
    ends: BTreeMap<Option<End>, u32>,
    faults: Vec<String>,
    tried: usize,
}

/// What is recorded, with the disk as it was before, and the two ends.
struct Scene<'a> {
    emulator: &'a Emulator,
    recording: &'a Recording,
    before: &'a Disk,
    ends: &'a Ends,
}

impl Scene<'_> {
    fn replay(&self, name: &str) -> Replay<'_> {
        let before = self.before.copy(self.emulator.path(name));
        Replay::new(self.recording, before)
    }

    /// Makes the disk after each cut and lets the agent go on there.
    fn try_all(&self, cuts: Vec<Cut>) -> Outcome {
        let (count, begun) = (cuts.len(), Instant::now());
        let next = Mutex::new((self.replay("replay.img"), cuts.into_iter()));
        let outcome = Mutex::<Outcome>::default();
        thread::scope(|scope| {
            for worker in 0..WORKERS {
                let (next, outcome) = (&next, &outcome);
                let image = self.emulator.path(&format!("worker-{worker}.img"));
                scope.spawn(move || {
                    while let Some((cut, disk)) = {
                        let mut next = next.lock().expect("no replay failed");
                        let cut = next.1.next();
                        cut.map(|cut| {
                            let disk = next.0.disk_after(&cut, image.clone());
                            (cut, disk)
                        })
                    } {
                        let (node, said) = recover(&disk, AGENT, false);
                        let faults = judge(&disk, self.ends, &node, &said);
                        disk.discard();
                        let mut outcome = outcome.lock().expect("no replay failed");
                        outcome.take(self.ends.reached(&node), &cut, &faults, &said);
                        if outcome.tried.is_multiple_of(50) {
                            let passed = begun.elapsed();
                            say(&format!("{} of {count} cuts, {passed:?}", outcome.tried));
                        }
                    }
                });
            }
        });
        outcome.into_inner().expect("no replay failed")
    }

    /// At how many flushes the usual advice leaves a node in between, of so many that were tried.
    fn advice_fails(&self) -> (usize, usize) {
        let cuts = self.recording.cuts_at_flushes();
        let mut replay = self.replay("advised.img");
        let mut failed = 0;
        for number in 1..=ADVISED {
            let cut = &cuts[number * cuts.len() / (ADVISED + 1)];
            let disk = replay.disk_after(cut, self.emulator.path("advice.img"));
            let (node, _) = recover(&disk, ADVICE, false);
            disk.discard();
            failed += usize::from(!self.ends.faults(&node).is_empty());
        }
        (failed, ADVISED)
    }

    /// Cuts the power in the middle of the update and lets the agent reach its server at the next boot.
    fn go_on_with_server(&self, member: &Member<'_>) {
        let cuts = self.recording.cuts_at_flushes();
        let cut = &cuts[cuts.len() * 3 / 5];
        let mut replay = self.replay("told.img");
        let disk = replay.disk_after(cut, self.emulator.path("telling.img"));
        let (node, said) = recover(&disk, AGENT, true);
        disk.discard();
        assert_eq!(self.ends.faults(&node), [""; 0], "{said}");
        assert_eq!(self.ends.reached(&node), Some(End::New), "{said}");
        assert_eq!((node.journal, node.kept), (None, Vec::new()), "{said}");
        let run = member.only_run();
        assert_eq!(run["state"], "succeeded", "{run:#}\n{said}");
        assert_eq!(
            events(&run),
            [
                "downloading",
                "downloaded",
                "began",
                "verify_begun",
                "finished"
            ]
        );
    }
}

impl Outcome {
    fn take(&mut self, end: Option<End>, cut: &Cut, faults: &[String], said: &str) {
        self.tried += 1;
        *self.ends.entry(end).or_default() += 1;
        if faults.is_empty() {
            return;
        }
        let told = format!(
            "after {} flushes, with {} parts of what followed: {faults:#?}\n{said}",
            cut.flushes,
            cut.survivors.len()
        );
        say(&told);
        self.faults.push(told);
    }
}

/// So many cuts at flushes, and so many that lose something, in the order of their flushes.
fn draw(recording: &Recording, seed: u64, flushes: u64, samples: u64) -> Vec<Cut> {
    let mut chance = Chance::new(seed, 0);
    let mut left = recording.cuts_at_flushes();
    let mut cuts = Vec::new();
    for _ in 0..flushes {
        let Some(last) = left.len().checked_sub(1) else {
            break;
        };
        let last = u64::try_from(last).expect("few flushes");
        let number = usize::try_from(chance.between(0, last)).expect("few flushes");
        cuts.push(left.swap_remove(number));
    }
    // Of a stream of its own: the same whatever the number of cuts at flushes is.
    let mut chance = Chance::new(seed, 1);
    cuts.extend((0..samples).map(|_| recording.lossy_cut(&mut chance)));
    cuts.sort_by_key(|cut| cut.flushes);
    cuts
}

#[test]
fn an_update_is_finished_after_a_power_cut_at_any_flush_and_with_any_loss() {
    let Some(fleet) = Fleet::new() else { return };
    let Some(lab) = Lab::open() else { return };
    let Some(emulator) = Emulator::open() else {
        return;
    };
    let seed = number("EVENKEEL_CUT_SEED", u64::from(std::process::id()) * 7_919);
    say(&format!("EVENKEEL_CUT_SEED={seed}"));
    let member = prepared(&fleet, &lab, &emulator);
    let before = Disk::make(lab.base(), &lab.path(NODE), emulator.path("before.img"));
    let recorded = before.copy(emulator.path("recorded.img"));
    let log = emulator.path("log");
    let begun = Instant::now();
    let console = emulator.record(&recorded, &log);
    let recording = Recording::read(&log).expect("a log of writes");

    let untouched = before.copy(emulator.path("untouched.img"));
    let (old, _) = recover(&untouched, "true", false);
    untouched.discard();
    let (new, said) = recover(&recorded, "true", false);
    recorded.discard();
    assert_eq!(new.last_news(), Some("finished"), "{console}\n{said}");
    let ends = Ends::new(old, new);
    let scene = Scene {
        emulator: &emulator,
        recording: &recording,
        before: &before,
        ends: &ends,
    };
    let flushes = number("EVENKEEL_CUT_FLUSHES", 15);
    let samples = number("EVENKEEL_CUT_SAMPLES", 5);
    let cuts = draw(&recording, seed, flushes, samples);
    say(&format!(
        "an update of {} flushes and {} writes, recorded in {:?}; {} cuts, {samples} of which lose what was not flushed",
        recording.flushes(),
        recording.writes(),
        begun.elapsed(),
        cuts.len(),
    ));
    let outcome = scene.try_all(cuts);
    say(&format!(
        "{} cuts in {:?}, ends: {:?}; {} exceptions",
        outcome.tried,
        begun.elapsed(),
        outcome.ends,
        outcome.faults.len()
    ));
    assert!(outcome.faults.is_empty(), "{}", outcome.faults.join("\n\n"));
    scene.go_on_with_server(&member);
    // What finds nothing wrong with the agent must find what is wrong with less than it does.
    let (failed, tried) = scene.advice_fails();
    say(&format!(
        "{ADVICE}: not enough at {failed} of {tried} flushes"
    ));
    assert!(failed > 0, "the harness does not see a bad recovery");
}
