//! Power cuts at every flush of an image update with RAUC, and between flushes with loss of
//! unflushed data.
//!
//! The slots are files of a Debian root, and a script is the boot loader, which RAUC reaches with
//! its custom backend. An emulated machine without a network installs a bundle, tries its image and
//! keeps it, with an offline grant, while all writes to its disk are recorded. For each cut the
//! test then rebuilds the disk as the cut leaves it, and boots it until no other boot is requested.
//!
//! The variables are those of `cut`.

use std::collections::BTreeMap;
use std::process::Output;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use evenkeel_tests::cut::{Cut, Recording, Replay};
use evenkeel_tests::history::{machine_time, number, print_progress};
use evenkeel_tests::lab::{
    Binaries, Disk, Emulator, Fleet, Lab, Member, Node, describe_output, events, strip, until,
};
use evenkeel_tests::node_state::{EndState, NodeState};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::cut::{draw_cuts, for_each_disk};
use crate::rauc_bundles::{
    BUNDLES, Bundles, LAST_IMAGE, RAUC_PACKAGES, SYSTEM_CONF, make_bundle, make_key, write_file,
};

/// Name of the node whose disk is recorded.
const NODE_NAME: &str = "rauc-cut";

const PROFILE: &str = "rauc-cut";

/// Version that is completely in slot B before the update, and must never start.
const STALE_VERSION: &str = "0.9";

/// Version that runs before the update, in slot A.
const OLD_VERSION: &str = "1.0";

/// Version that runs after the update, in slot B.
const NEW_VERSION: &str = "1.1";

/// Size of each image in MiB.
const IMAGE_MIB: u32 = 3;

/// Maximum number of boots until a machine rests.
const MAX_BOOTS: usize = 8;

/// The boot loader, which is RAUC's backend as well.
const BACKEND: &str = include_str!("../../lab/rauc/root/backend");

/// One boot.
const START_SCRIPT: &str = include_str!("../../lab/rauc/root/start");

/// The task of the recorded machine.
const TASK: &str = include_str!("../../lab/rauc/root/task");

/// RAUC as the agent finds it while the update is prepared.
const COPYING_RAUC: &str = include_str!("../../lab/rauc/root/rauc-with-copy");

const AGENT_CONFIG: &str = "[gate]
min_free = \"1MiB\"
[reboot]
command = [\"touch\", \"/run/reboot-requested\"]
max_delay = \"20s\"
warning_time = \"0s\"
[image]
boot_control = \"rauc\"
watchdog = \"ignore\"
[image.web]
plain_http = true
[image.health]
server = false
deadline = \"2m\"
stable = \"1s\"
";

/// Makes the scripts executable and fills the slots. The node enrols with the old image. D-Bus must
/// not start RAUC's service by itself, because only the boot knows which slot runs.
const SET_UP_SCRIPT: &str = r#"
chmod 755 /srv/lab/start /usr/lib/test-backend /usr/local/bin/rauc
chmod 644 /etc/evenkeel/limits.toml
install -m 755 /srv/evenkeel-agent /usr/bin/evenkeel-agent
rm -f /usr/share/dbus-1/system-services/de.pengutronix.rauc.service
rm -rf /srv/build
mkdir -p /srv/slots /srv/loader
head -c 8M /dev/zero | tee /srv/slots/rootfs.0 > /srv/slots/rootfs.1
dd if=/srv/images/1.0.img of=/srv/slots/rootfs.0 conv=notrunc status=none
echo 'order="A B" left_A=3 left_B=0' > /srv/loader/state
unsquashfs -cat /srv/slots/rootfs.0 etc/os-release > /run/os-release
cat /run/os-release > /usr/lib/os-release
"#;

/// Goes back to the moment before the bundle was installed, but keeps the agent's journal and
/// offline grant: without a server, the agent continues only an update that was prepared. It finds
/// that the slot is not written and writes it again from the downloaded file.
const ROLL_BACK_SCRIPT: &str = "
cd /var/lib/evenkeel-agent
rm -rf images
cp -a /srv/copy/images /srv/copy/slots.json .
rm -rf images/image.raucb /srv/copy /srv/rauc.status /usr/local/bin/rauc
head -c 8M /dev/zero > /srv/slots/rootfs.1
dd if=/srv/images/0.9.img of=/srv/slots/rootfs.1 conv=notrunc status=none
";

/// Leaves the slot B as RAUC does when the power fails while it writes, and starts it nevertheless.
const TEAR_SCRIPT: &str = r#"
dd if=/srv/images/1.1.img of=/srv/slots/rootfs.1 bs=64K count=16 conv=notrunc status=none
echo 'order="B A" left_A=3 left_B=3' > /srv/loader/state
"#;

/// Boots a disk, then runs the other arguments.
const BOOT_SCRIPT: &str = r#"
status=0; timeout 600 /srv/lab/start 2>&1 || status=$?
echo "ended $status"; exec "$@"
"#;

/// Creates a node with both slots and a bundle for each version, which joins with the old version.
/// Returns also the ID of the new version in the catalogue.
fn create_node<'a>(fleet: &'a Fleet, lab: &Lab, emulator: &Emulator) -> (Member<'a>, String) {
    let agent = strip(&Binaries::get().agent, emulator.path("agent"));
    let node = fleet.equip(Node::new(lab, NODE_NAME), &agent);
    for (path, content) in [
        ("/srv/lab/start", START_SCRIPT),
        ("/srv/task", TASK),
        ("/usr/lib/test-backend", BACKEND),
        ("/usr/local/bin/rauc", COPYING_RAUC),
        ("/etc/rauc/system.conf", SYSTEM_CONF),
        ("/etc/evenkeel/agent.toml", AGENT_CONFIG),
        ("/etc/evenkeel/limits.toml", "[image]\nunsigned_images = true\n"),
    ] {
        write_file(&node, path, content);
    }
    make_key(&node, "good");
    for version in [STALE_VERSION, OLD_VERSION, NEW_VERSION] {
        make_bundle(&node, PROFILE, version, "good", IMAGE_MIB);
        node.sh(&format!("mkdir -p /srv/images; cp {LAST_IMAGE} /srv/images/{version}.img"));
    }
    node.sh(SET_UP_SCRIPT);
    let bundles = Bundles::serve(fleet, PROFILE, &node.layer().join(BUNDLES));
    bundles.publish(&node, OLD_VERSION);
    let os = bundles.publish(&node, NEW_VERSION);
    let server = fleet.server.address("southbound");
    let uuid = Uuid::new_v4().to_string();
    (fleet.enroll_node(node, &server, &["--uuid", &uuid]), os)
}

/// Creates the disk of a node that has downloaded the bundle of this version and has an offline
/// grant. Waits until its window is open.
fn prepare_disk(member: &Member<'_>, os: &str, lab: &Lab, emulator: &Emulator) -> Disk {
    let disk = Disk::create(lab.base(), &lab.path(NODE_NAME), emulator.path("before.img"));
    member.assign_new_policy(&json!({
        "updatePolicy": "UPDATE_POLICY_TARGET",
        "targetOsId": os,
    }));
    // Preparation is slow on a busy machine. The replay takes hours at most.
    let opens = member.create_window(90, 82_800);
    let node = boot_until_rest(&disk, true);
    assert_eq!(node.faults(), [""; 0], "{}", node.output);
    assert_eq!(member.only_run()["state"], "staged", "{}", node.output);
    let grant = "test -e /var/lib/evenkeel-agent/grant.json";
    for script in [grant, ROLL_BACK_SCRIPT] {
        run_script(&disk, script);
    }
    until("the window opens", Duration::from_mins(3), || {
        (machine_time().timestamp() > opens.timestamp() + 1).then_some(())
    });
    disk
}

/// Runs a shell script on a disk, which must succeed.
#[track_caller]
fn run_script(disk: &Disk, script: &str) {
    let output = disk.run(&["sh", "-ec", script], false);
    assert!(output.status.success(), "{}", describe_output(&output));
}

/// A node for which no other boot is requested.
#[derive(Debug, Default)]
struct RestingNode {
    /// Version and slot of each boot, such as `1.0 A`.
    booted: Vec<String>,
    /// Why a boot started nothing complete, for each such boot.
    dead: Vec<String>,
    /// Exit status of the last agent.
    agent_status: String,
    /// The slot that would start next.
    next: String,
    /// The slots in the record of the agent.
    record: Value,
    /// Journal and stale files.
    state: NodeState,
    /// Output of all boots.
    output: String,
}

/// Boots a disk until no other boot is requested, with the network of this machine or without any.
fn boot_until_rest(disk: &Disk, has_network: bool) -> RestingNode {
    let script = ["sh", "-c", BOOT_SCRIPT, "boot"];
    let arguments = [&script[..], &NodeState::inspect_command(&[])[..]].concat();
    let mut node = RestingNode::default();
    for _ in 0..MAX_BOOTS {
        if node.add_boot(&disk.run(&arguments, has_network)) {
            return node;
        }
    }
    node.dead.push(format!("{MAX_BOOTS} boots were not enough"));
    node
}

impl RestingNode {
    /// Adds the output of a boot. Returns whether it is the last one.
    fn add_boot(&mut self, boot: &Output) -> bool {
        let text = String::from_utf8_lossy(&boot.stdout);
        let mut has_ended = false;
        let mut requests_boot = false;
        for line in text.lines() {
            let (kind, rest) = line.split_once(' ').unwrap_or((line, ""));
            match kind {
                "booted" => self.booted.push(rest.to_owned()),
                "dead" => self.dead.push(rest.to_owned()),
                "agent" => rest.clone_into(&mut self.agent_status),
                "again" => requests_boot = true,
                "next" => rest.clone_into(&mut self.next),
                "record" => self.record = serde_json::from_str(rest).unwrap_or_default(),
                "ended" => has_ended = true,
                _ => {}
            }
        }
        self.state = NodeState::parse(&text);
        self.output.push_str(&describe_output(boot));
        // A reset ends all processes at once.
        has_ended && !requests_boot
    }

    /// The state of the image that runs, or `None` if it is in between.
    fn reached(&self) -> Option<EndState> {
        end_state(self.booted.last()?)
    }

    /// Everything that is wrong with the node; empty if nothing is.
    fn faults(&self) -> Vec<String> {
        let mut faults = self.state.faults.clone();
        faults.extend(self.dead.clone());
        let wrong = self.booted.iter().filter(|booted| end_state(booted).is_none());
        faults.extend(wrong.map(|booted| format!("it booted {booted}")));
        let (slot, number) = match self.reached() {
            Some(EndState::Old) => ("A", 0_usize),
            Some(EndState::New) => ("B", 1_usize),
            None => return faults,
        };
        if self.next != slot {
            faults.push(format!("{slot} runs, but the next boot starts {:?}", self.next));
        }
        let recorded = &self.record["slots"][number];
        if self.record["booted"] != recorded["slot"] || recorded["state"] != "good" {
            faults.push(format!("{slot} runs, but the record is {:#}", self.record));
        }
        faults
    }

    /// As [`RestingNode::faults`], for a node without a server: its journal must be what the
    /// server will record.
    fn offline_faults(&self) -> Vec<String> {
        let mut faults = self.faults();
        let journal = (self.reached(), self.state.phase(), self.state.last_event_kind());
        let is_settled = matches!(
            journal,
            (Some(EndState::New), Some("ended"), Some("finished"))
                | (Some(EndState::Old), Some("staged"), Some("downloaded"))
                | (Some(EndState::Old), Some("ended"), Some("reverted"))
        );
        if !is_settled {
            faults.push(format!("the journal does not match the image: {journal:?}"));
        }
        // The agent cannot report to the server.
        if self.agent_status != "1" {
            faults.push(format!("the agent ended with {:?}", self.agent_status));
        }
        faults
    }
}

/// The state that an image shows, by its version and slot.
fn end_state(booted: &str) -> Option<EndState> {
    match booted.split_once(' ')? {
        (OLD_VERSION, "A") => Some(EndState::Old),
        (NEW_VERSION, "B") => Some(EndState::New),
        _ => None,
    }
}

/// Number of cuts for each end of the update, and everything that was wrong.
#[derive(Default)]
struct ImageCutResults {
    /// By the image and the last event of the journal.
    ends: BTreeMap<(Option<EndState>, String), u32>,
    faults: Vec<String>,
    tried: usize,
}

impl ImageCutResults {
    fn record(&mut self, cut: &Cut, node: &RestingNode, faults: &[String]) {
        self.tried += 1;
        let event = node.state.last_event_kind().unwrap_or_default().to_owned();
        *self.ends.entry((node.reached(), event)).or_default() += 1;
        if faults.is_empty() {
            return;
        }
        let (flushes, parts) = (cut.flushes, cut.survivors.len());
        let message = format!(
            "after {flushes} flushes, with {parts} parts of the later writes: {faults:#?}\n{}",
            node.output
        );
        print_progress(&message);
        self.faults.push(message);
    }
}

/// Rebuilds the disk after each cut and boots it.
fn try_cuts(emulator: &Emulator, replay: Replay<'_>, cuts: Vec<Cut>) -> ImageCutResults {
    let (count, begun) = (cuts.len(), Instant::now());
    let results = Mutex::<ImageCutResults>::default();
    for_each_disk(emulator, replay, cuts, |cut, disk| {
        let node = boot_until_rest(&disk, false);
        let mut faults = node.offline_faults();
        let file_system = disk.faults();
        if !file_system.is_empty() {
            faults.push(format!("the file system: {file_system}"));
        }
        disk.discard();
        let mut results = results.lock().expect("no replay failed");
        results.record(cut, &node, &faults);
        if results.tried.is_multiple_of(50) {
            let elapsed = begun.elapsed();
            print_progress(&format!("{} of {count} cuts, {elapsed:?}", results.tried));
        }
    });
    results.into_inner().expect("no replay failed")
}

/// Boots a disk after a power cut with a server. Its record must be that of the image that runs.
fn resume_with_server(member: &Member<'_>, disk: Disk) {
    let node = boot_until_rest(&disk, true);
    disk.discard();
    let output = &node.output;
    assert_eq!(node.faults(), [""; 0], "{output}");
    assert_eq!(node.state.journal, None, "{output}");
    let (state, booted) = match node.reached() {
        Some(EndState::New) => ("succeeded", NEW_VERSION),
        _ => ("reverted", OLD_VERSION),
    };
    let run = member.only_run();
    assert_eq!(run["state"], state, "{run:#}\n{output}");
    assert_eq!(run["image"]["booted"], booted, "{run:#}\n{output}");
    let began = events(&run).into_iter().filter(|event| *event == "began").count();
    assert_eq!(began, 1, "{run:#}\n{output}");
    print_progress(&format!("with a server: {state}, {booted} runs"));
}

#[test]
fn with_rauc_the_old_or_the_new_image_runs_after_a_power_cut_at_any_flush_and_with_any_loss() {
    let Some(fleet) = Fleet::new() else { return };
    let Some(lab) = Lab::open_with(None, RAUC_PACKAGES) else {
        return;
    };
    let Some(emulator) = Emulator::open() else {
        return;
    };
    let seed = number("EVENKEEL_CUT_SEED", u64::from(std::process::id()) * 7_919);
    print_progress(&format!("EVENKEEL_CUT_SEED={seed}"));
    let (member, os) = create_node(&fleet, &lab, &emulator);
    let before = prepare_disk(&member, &os, &lab, &emulator);
    let recorded = before.copy(emulator.path("recorded.img"));
    let log = emulator.path("log");
    let begun = Instant::now();
    let console = emulator.record(&recorded, &log);
    let recording = Recording::read(&log).expect("a log of writes");
    let updated = boot_until_rest(&recorded, false);
    recorded.discard();
    // Otherwise the recording is not an update.
    for line in ["booted 1.0 A", "booted 1.1 B", "next B"] {
        assert!(console.contains(line), "no {line:?}: {console}");
    }
    assert_eq!(updated.offline_faults(), [""; 0], "{console}\n{}", updated.output);
    assert_eq!(updated.reached(), Some(EndState::New), "{console}\n{}", updated.output);

    let flushes = number("EVENKEEL_CUT_FLUSHES", 6);
    let samples = number("EVENKEEL_CUT_SAMPLES", 4);
    let cuts = draw_cuts(&recording, seed, flushes, samples);
    print_progress(&format!(
        "an update of {} flushes and {} writes, recorded in {:?}; {} cuts, {samples} with loss",
        recording.flushes(),
        recording.writes(),
        begun.elapsed(),
        cuts.len(),
    ));
    let new_replay =
        |name: &str| Replay::new(&recording, before.copy(emulator.path(&format!("{name}.img"))));
    let results = try_cuts(&emulator, new_replay("replay"), cuts);
    print_progress(&format!(
        "{} cuts in {:?}, ends: {:?}; {} exceptions",
        results.tried,
        begun.elapsed(),
        results.ends,
        results.faults.len()
    ));
    assert!(results.faults.is_empty(), "{}", results.faults.join("\n\n"));

    let cuts = recording.cuts_at_flushes();
    let disk = new_replay("resumed").disk_after(&cuts[cuts.len() / 2], emulator.path("resume.img"));
    resume_with_server(&member, disk);

    // A check that finds no fault after these cuts must find an image that is in between.
    let torn = before.copy(emulator.path("torn.img"));
    run_script(&torn, TEAR_SCRIPT);
    let node = boot_until_rest(&torn, false);
    torn.discard();
    assert!(!node.dead.is_empty(), "the harness does not see a torn slot: {}", node.output);
}
