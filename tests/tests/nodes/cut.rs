//! Power cuts at every flush of a whole update, and between flushes with loss of unflushed data.
//!
//! An emulated machine without a network applies an update with an offline grant, while all writes
//! to its disk are recorded. For each cut the test then rebuilds the disk as the cut leaves it, and
//! starts the agent on that disk as at the next boot.
//!
//! | variable | meaning |
//! | --- | --- |
//! | `EVENKEEL_CUT_FLUSHES` | number of flushes at which the power is cut |
//! | `EVENKEEL_CUT_SAMPLES` | number of cuts that lose unflushed data |
//! | `EVENKEEL_CUT_SEED` | seed of the cuts |

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use evenkeel_simulator::rng::Rng;
use evenkeel_tests::cut::{Cut, Recording, Replay};
use evenkeel_tests::history::{machine_time, number, print_progress};
use evenkeel_tests::lab::{
    Binaries, Disk, Emulator, Fleet, Lab, Member, Node, describe_output, events, strip, until,
};
use evenkeel_tests::node_state::{EndState, ExpectedStates, NodeState};
use uuid::Uuid;

/// Packages that the update changes; they contain 20 MB in 400 files.
const PACKAGES: [&str; 6] =
    ["demo-app", "demo-big", "demo-conf", "demo-hello", "demo-lib", "demo-unit"];

/// Name of the node whose disk is recorded.
const NODE_NAME: &str = "cut";

/// Command of the agent on the recorded machine and at the next boot.
const AGENT_COMMAND: &str = "evenkeel-agent run --once";

/// The usual advice for an interrupted dpkg.
const DPKG_RECOVERY_COMMAND: &str = "dpkg --force-confdef --force-confold --configure -a";

/// Number of flushes at which the usual advice is tried.
const DPKG_RECOVERY_CUTS: usize = 8;

/// Runs a command on a disk, prints its exit status, then runs the other arguments.
const RECOVER_SCRIPT: &str = r#"
timeout 900 sh -c "$1" > /run/output 2>&1; echo "ended $?"
tail -n 20 /run/output | sed 's/^/output /'
shift; exec "$@"
"#;

/// Number of disks that are examined at the same time.
const WORKER_COUNT: usize = 2;

/// Creates a node that has downloaded its update, has an offline grant, and whose window is open.
fn prepare_node<'a>(fleet: &'a Fleet, lab: &Lab, emulator: &Emulator) -> Member<'a> {
    let agent = strip(&Binaries::get().agent, emulator.path("agent"));
    let node = fleet.equip(Node::new(lab, NODE_NAME), &agent);
    let server = fleet.server.address("southbound");
    let uuid = Uuid::new_v4().to_string();
    let member = fleet.enroll_node(node, &server, &["--uuid", &uuid]);
    member.install(&PACKAGES);
    member.node.sh(&format!(
        "install -m 755 /srv/evenkeel-agent /usr/bin/evenkeel-agent
         echo 'exec {AGENT_COMMAND}' > /srv/task; echo 'value=mine' > /etc/demo/conf"
    ));
    member.assign_packages(&PACKAGES.map(|name| format!("{name}=1.1")).join("\n"));
    // Preparation is slow on a busy machine. The replay takes hours at most.
    let opens = member.create_window(60, 82_800);
    let output = member.agent_once();
    assert!(output.status.success(), "{}", describe_output(&output));
    assert_eq!(member.only_run()["state"], "staged");
    assert!(member.node.has_path("/var/lib/evenkeel-agent/grant.json"));
    until("the window opens", Duration::from_mins(3), || {
        (machine_time().timestamp() > opens.timestamp() + 1).then_some(())
    });
    member
}

/// Runs a command on a disk as at the next boot, then inspects the disk.
fn recover(disk: &Disk, command: &str, has_network: bool) -> (NodeState, String) {
    let script = ["sh", "-c", RECOVER_SCRIPT, "recover", command];
    let look_around = NodeState::inspect_command(&PACKAGES);
    let arguments = [&script[..], &look_around[..]].concat();
    let output = disk.run(&arguments, has_network);
    let mut node = NodeState::parse(&String::from_utf8_lossy(&output.stdout));
    if !output.status.success() {
        node.faults.push("the disk cannot be used".to_owned());
    }
    (node, describe_output(&output))
}

/// Faults of a disk on which an agent without a server was started; empty if there are none.
fn find_faults(
    disk: &Disk,
    expected: &ExpectedStates,
    node: &NodeState,
    output: &str,
) -> Vec<String> {
    let mut faults = expected.faults(node);
    let state = (expected.reached(node), node.phase(), node.last_event_kind());
    let is_settled = matches!(
        state,
        (Some(EndState::New), Some("ended"), Some("finished"))
            | (Some(EndState::Old), Some("staged"), Some("downloaded"))
    );
    if !is_settled {
        faults.push(format!("the journal does not match the disk: {state:?}"));
    }
    // Exit status 1: the agent cannot report to the server.
    let has_ended = output.lines().any(|line| line == "ended 1");
    if !has_ended {
        faults.push("the agent did not end as expected".to_owned());
    }
    let wrong = disk.faults();
    if !wrong.is_empty() {
        faults.push(format!("the file system: {wrong}"));
    }
    faults
}

/// Results of all cuts.
#[derive(Default)]
struct Outcome {
    end_counts: BTreeMap<Option<EndState>, u32>,
    faults: Vec<String>,
    tried: usize,
}

/// The recorded update, the disk before it, and the two states in which it may end.
struct CutTest<'a> {
    emulator: &'a Emulator,
    recording: &'a Recording,
    disk_before: &'a Disk,
    expected: &'a ExpectedStates,
}

impl CutTest<'_> {
    fn new_replay(&self, name: &str) -> Replay<'_> {
        let before = self.disk_before.copy(self.emulator.path(name));
        Replay::new(self.recording, before)
    }

    /// Rebuilds the disk after each cut and starts the agent on it.
    fn try_cuts(&self, cuts: Vec<Cut>) -> Outcome {
        let (count, begun) = (cuts.len(), Instant::now());
        let outcome = Mutex::<Outcome>::default();
        let expected = self.expected;
        for_each_disk(self.emulator, self.new_replay("replay.img"), cuts, |cut, disk| {
            let (node, output) = recover(&disk, AGENT_COMMAND, false);
            let faults = find_faults(&disk, expected, &node, &output);
            disk.discard();
            let mut outcome = outcome.lock().expect("no replay failed");
            outcome.record(expected.reached(&node), cut, &faults, &output);
            if outcome.tried.is_multiple_of(50) {
                let elapsed = begun.elapsed();
                print_progress(&format!("{} of {count} cuts, {elapsed:?}", outcome.tried));
            }
        });
        outcome.into_inner().expect("no replay failed")
    }

    /// Number of flushes at which the usual advice leaves a node in between, and number of tries.
    fn count_dpkg_recovery_failures(&self) -> (usize, usize) {
        let cuts = self.recording.cuts_at_flushes();
        let mut replay = self.new_replay("advised.img");
        let mut failed = 0;
        for number in 1..=DPKG_RECOVERY_CUTS {
            let cut = &cuts[number * cuts.len() / (DPKG_RECOVERY_CUTS + 1)];
            let disk = replay.disk_after(cut, self.emulator.path("advice.img"));
            let (node, _) = recover(&disk, DPKG_RECOVERY_COMMAND, false);
            disk.discard();
            failed += usize::from(!self.expected.faults(&node).is_empty());
        }
        (failed, DPKG_RECOVERY_CUTS)
    }

    /// Cuts the power in the middle of the update. At the next boot the agent reaches its server.
    fn resume_with_server(&self, member: &Member<'_>) {
        let cuts = self.recording.cuts_at_flushes();
        let cut = &cuts[cuts.len() * 3 / 5];
        let mut replay = self.new_replay("resumed.img");
        let disk = replay.disk_after(cut, self.emulator.path("resume.img"));
        let (node, output) = recover(&disk, AGENT_COMMAND, true);
        disk.discard();
        assert_eq!(self.expected.faults(&node), [""; 0], "{output}");
        assert_eq!(self.expected.reached(&node), Some(EndState::New), "{output}");
        assert_eq!((node.journal, node.cached_debs), (None, Vec::new()), "{output}");
        let run = member.only_run();
        assert_eq!(run["state"], "succeeded", "{run:#}\n{output}");
        assert_eq!(
            events(&run),
            ["downloading", "downloaded", "began", "verify_begun", "finished"]
        );
    }
}

impl Outcome {
    fn record(&mut self, end: Option<EndState>, cut: &Cut, faults: &[String], output: &str) {
        self.tried += 1;
        *self.end_counts.entry(end).or_default() += 1;
        if faults.is_empty() {
            return;
        }
        let message = format!(
            "after {} flushes, with {} parts of the later writes: {faults:#?}\n{output}",
            cut.flushes,
            cut.survivors.len()
        );
        print_progress(&message);
        self.faults.push(message);
    }
}

/// Rebuilds the disk after each cut and calls `inspect` with it, for several disks at the same
/// time.
pub fn for_each_disk(
    emulator: &Emulator,
    replay: Replay<'_>,
    cuts: Vec<Cut>,
    inspect: impl Fn(&Cut, Disk) + Sync,
) {
    let next = Mutex::new((replay, cuts.into_iter()));
    thread::scope(|scope| {
        for worker in 0..WORKER_COUNT {
            let (next, inspect) = (&next, &inspect);
            let image = emulator.path(&format!("worker-{worker}.img"));
            scope.spawn(move || {
                while let Some((cut, disk)) = {
                    let mut next = next.lock().expect("no replay failed");
                    let cut = next.1.next();
                    cut.map(|cut| {
                        let disk = next.0.disk_after(&cut, image.clone());
                        (cut, disk)
                    })
                } {
                    inspect(&cut, disk);
                }
            });
        }
    });
}

/// Draws cuts at flushes and cuts with loss, in the order of their flushes.
pub fn draw_cuts(recording: &Recording, seed: u64, flushes: u64, samples: u64) -> Vec<Cut> {
    let mut rng = Rng::new(seed, 0);
    let mut left = recording.cuts_at_flushes();
    let mut cuts = Vec::new();
    for _ in 0..flushes {
        let Some(last) = left.len().checked_sub(1) else {
            break;
        };
        let last = u64::try_from(last).expect("few flushes");
        let number = usize::try_from(rng.between(0, last)).expect("few flushes");
        cuts.push(left.swap_remove(number));
    }
    // A separate stream, so that the number of cuts at flushes does not change the cuts with loss.
    let mut rng = Rng::new(seed, 1);
    cuts.extend((0..samples).map(|_| recording.lossy_cut(&mut rng)));
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
    print_progress(&format!("EVENKEEL_CUT_SEED={seed}"));
    let member = prepare_node(&fleet, &lab, &emulator);
    let before = Disk::create(lab.base(), &lab.path(NODE_NAME), emulator.path("before.img"));
    let recorded = before.copy(emulator.path("recorded.img"));
    let log = emulator.path("log");
    let begun = Instant::now();
    let console = emulator.record(&recorded, &log);
    let recording = Recording::read(&log).expect("a log of writes");

    let untouched = before.copy(emulator.path("untouched.img"));
    let (old, _) = recover(&untouched, "true", false);
    untouched.discard();
    let (new, output) = recover(&recorded, "true", false);
    recorded.discard();
    assert_eq!(new.last_event_kind(), Some("finished"), "{console}\n{output}");
    let expected = ExpectedStates::new(old, new);
    let cut_test = CutTest {
        emulator: &emulator,
        recording: &recording,
        disk_before: &before,
        expected: &expected,
    };
    let flushes = number("EVENKEEL_CUT_FLUSHES", 15);
    let samples = number("EVENKEEL_CUT_SAMPLES", 5);
    let cuts = draw_cuts(&recording, seed, flushes, samples);
    print_progress(&format!(
        "an update of {} flushes and {} writes, recorded in {:?}; {} cuts, {samples} of which lose unflushed data",
        recording.flushes(),
        recording.writes(),
        begun.elapsed(),
        cuts.len(),
    ));
    let outcome = cut_test.try_cuts(cuts);
    print_progress(&format!(
        "{} cuts in {:?}, ends: {:?}; {} exceptions",
        outcome.tried,
        begun.elapsed(),
        outcome.end_counts,
        outcome.faults.len()
    ));
    assert!(outcome.faults.is_empty(), "{}", outcome.faults.join("\n\n"));
    cut_test.resume_with_server(&member);
    // A check that finds no fault of the agent must find the faults of a weaker recovery.
    let (failed, tried) = cut_test.count_dpkg_recovery_failures();
    print_progress(&format!(
        "{DPKG_RECOVERY_COMMAND}: insufficient at {failed} of {tried} flushes"
    ));
    assert!(failed > 0, "the harness does not see a bad recovery");
}
