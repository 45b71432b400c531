//! A machine with two slots, a boot loader that counts, and a power cut at any chosen write.

use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use chrono::TimeDelta;
use evenkeel_kit::TestClock;
use evenkeel_update_agent::gate::MachineGate;
use evenkeel_update_agent::model::{Failure, FailureKind, ImageSpec, Sha256, SpaceNeed};
use evenkeel_update_agent::modules::image::ImageFiles;
use evenkeel_update_agent::modules::image::boot_control::BootControl;
use evenkeel_update_agent::modules::image::slots::{
    BootEntry, BootObservation, RawImage, Slot, SlotImage,
};
use evenkeel_update_agent::modules::image::spool::{SpoolProgress, SpooledImage};
use evenkeel_update_agent::modules::image::unpack::ImageFormat;
use evenkeel_update_agent::reboot::{RebootControl, RebootObjection};
use evenkeel_update_agent::runner::{Command, Output, RunError, Runner};
use evenkeel_update_agent::trial::Reset;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// The content of the disks, the running slot, and the faults of the machine.
#[derive(Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is an independent property that can be combined with the others"
)]
pub struct SlotMachineState {
    pub running: Slot,
    pub a: BootEntry,
    pub b: BootEntry,
    /// The sequence number of each slot's boot entry.
    pub(super) sequences: [u32; 2],
    /// The version in each slot; `None` if the slot is empty or incomplete.
    pub contents: [Option<String>; 2],
    pub(super) boots: u32,
    /// Whether a new image is healthy.
    pub healthy: bool,
    /// Number of writes so far, by any component.
    pub(super) writes: usize,
    /// The write at which the power fails, once.
    pub power_cut_at: Option<usize>,
    /// How long the power is off.
    pub downtime: TimeDelta,
    /// At the power cut only the agent ends, and the next one starts after the downtime in the same boot.
    pub only_agent_dies: bool,
    /// Length of the log at the power cut.
    pub logged_before_cut: Option<usize>,
    pub(super) dead: bool,
    /// A reset is requested. It happens when the agent has ended.
    pub(super) reset: bool,
    /// How often the engine requested a reboot.
    pub reboot_requests: u32,
    /// The machine ignores reboot requests.
    pub ignores_reboot: bool,
    /// Why the owner forbids a reboot.
    pub owner_objection: Option<String>,
    /// Why the machine cannot reboot.
    pub reboot_obstacle: Option<String>,
    /// A new image must reach the server.
    pub requires_server: bool,
    /// The server is unreachable while an image is on trial.
    pub offline_on_trial: bool,
    /// Agents do not find the slots.
    pub hides_slots: bool,
    /// For each observation of the slots after one was armed: whether it fails.
    pub blind_after_arming: Vec<bool>,
    /// For each observation from now on: whether it fails.
    blind: Vec<bool>,
    /// The operation on the slots, or `download`, during which another program starts a command of
    /// the boot control.
    pub busy_after: Option<&'static str>,
    /// The next observation is refused because of that command, which has ended afterwards.
    is_busy: bool,
    /// Each hook takes this long, on this clock.
    pub hook_duration: Option<(TestClock, TimeDelta)>,
    /// Exit status of each hook.
    pub hook_status: i32,
    /// A file that the next hook removes.
    pub hook_removes: Option<PathBuf>,
    /// A file that the next hook creates.
    pub hook_creates: Option<PathBuf>,
    /// The messages to logged-in users.
    pub warnings: Vec<String>,
    /// Number of parts of a download before the last one.
    pub remaining_parts: u32,
    /// Why downloads are deferred.
    pub deferral: Option<String>,
    /// The permanent error of downloads.
    pub download_error: Option<String>,
    /// The file that was retained each time the others were discarded.
    pub retained: Vec<Option<Sha256>>,
    /// The signatures in the spec of the last download.
    pub requested_signatures: Vec<String>,
    /// Number of downloaded parts.
    pub downloads: u32,
    /// The operations on the slots.
    pub log: Vec<String>,
}

impl SlotMachineState {
    pub(super) fn boot_entry(&mut self, slot: Slot) -> &mut BootEntry {
        match slot {
            Slot::A => &mut self.a,
            Slot::B => &mut self.b,
        }
    }

    /// Ends an operation during which another program may have started a command.
    fn end_operation(&mut self, what: &str) {
        if self.busy_after.is_some_and(|operation| operation == what) {
            self.busy_after = None;
            self.is_busy = true;
        }
    }

    /// Counts a write. Returns whether the power fails there.
    pub(super) fn record_write(&mut self) -> bool {
        self.writes += 1;
        if self.power_cut_at == Some(self.writes) {
            self.dead = true;
            self.logged_before_cut = Some(self.log.len());
        }
        self.dead
    }
}

pub(super) fn slot_index(slot: Slot) -> usize {
    match slot {
        Slot::A => 0,
        Slot::B => 1,
    }
}

#[derive(Clone, Debug)]
pub struct SlotMachine {
    state: Arc<Mutex<SlotMachineState>>,
    /// Notified when the power fails.
    pub(super) died: Arc<Notify>,
}

impl SlotMachine {
    /// A machine that runs 1.0 from the first slot. The second slot is empty.
    pub fn new() -> Self {
        let state = SlotMachineState {
            running: Slot::A,
            a: BootEntry::Plain,
            b: BootEntry::Absent,
            sequences: [0, 0],
            contents: [Some("1.0".to_owned()), None],
            boots: 1,
            healthy: true,
            writes: 0,
            power_cut_at: None,
            downtime: TimeDelta::zero(),
            only_agent_dies: false,
            logged_before_cut: None,
            dead: false,
            reset: false,
            reboot_requests: 0,
            ignores_reboot: false,
            owner_objection: None,
            reboot_obstacle: None,
            requires_server: false,
            offline_on_trial: false,
            hides_slots: false,
            blind_after_arming: Vec::new(),
            blind: Vec::new(),
            busy_after: None,
            is_busy: false,
            hook_duration: None,
            hook_status: 0,
            hook_removes: None,
            hook_creates: None,
            warnings: Vec::new(),
            remaining_parts: 1,
            deferral: None,
            download_error: None,
            retained: Vec::new(),
            requested_signatures: Vec::new(),
            downloads: 0,
            log: Vec::new(),
        };
        Self { state: Arc::new(Mutex::new(state)), died: Arc::default() }
    }

    pub fn state(&self) -> MutexGuard<'_, SlotMachineState> {
        self.state.lock().unwrap()
    }

    /// Counts a write and never returns if the power fails there.
    async fn pass_write(&self) {
        if self.state().record_write() {
            self.died.notify_one();
            std::future::pending::<()>().await;
        }
    }

    async fn change_slot(&self, what: &str, change: impl FnOnce(&mut SlotMachineState)) {
        self.pass_write().await;
        {
            let mut state = self.state();
            state.log.push(what.to_owned());
            change(&mut state);
            state.end_operation(what);
        }
        self.pass_write().await;
    }
}

#[async_trait::async_trait]
impl BootControl for SlotMachine {
    fn name(&self) -> &'static str {
        "a counting boot loader"
    }

    async fn observe(&self) -> Result<BootObservation, Failure> {
        let mut state = self.state();
        if !state.blind.is_empty() && state.blind.remove(0) {
            let reason = "the boot entries cannot be read";
            return Err(Failure::new(FailureKind::Apply, reason));
        }
        if std::mem::take(&mut state.is_busy) {
            let reason = "the boot control runs another command";
            return Err(Failure::new(FailureKind::Apply, reason).into_temporary());
        }
        let image_id = state.contents[slot_index(state.running)].clone();
        Ok(BootObservation {
            booted: Some(state.running),
            boot_id: format!("boot-{}", state.boots),
            image: image_id.map(|image_id| ("demo".to_owned(), image_id)),
            a: state.a.clone(),
            b: state.b.clone(),
            foreign: Vec::new(),
        })
    }

    async fn faults(&self) -> Vec<String> {
        Vec::new()
    }

    async fn max_image_bytes(&self, _slot: Slot) -> Result<u64, Failure> {
        Ok(1 << 20)
    }

    async fn withdraw(&self, slot: Slot) -> Result<(), Failure> {
        let change = |state: &mut SlotMachineState| *state.boot_entry(slot) = BootEntry::Absent;
        self.change_slot("withdraw", change).await;
        Ok(())
    }

    async fn write(
        &self,
        slot: Slot,
        from: &SpooledImage,
        _stop: &CancellationToken,
    ) -> Result<RawImage, Failure> {
        let version = from.path.display().to_string();
        let tear = |state: &mut SlotMachineState| {
            assert_ne!(state.running, slot, "the running slot is overwritten");
            assert_eq!(*state.boot_entry(slot), BootEntry::Absent, "a boot entry exists");
            state.contents[slot_index(slot)] = None;
        };
        self.change_slot("begin to write", tear).await;
        let raw = RawImage { sha256: Sha256::hash(version.as_bytes()), bytes: from.bytes };
        let fill = |state: &mut SlotMachineState| state.contents[slot_index(slot)] = Some(version);
        self.change_slot("write", fill).await;
        Ok(raw)
    }

    async fn verify_slot(&self, slot: Slot, raw: &RawImage) -> Result<(), Failure> {
        let content = self.state().contents[slot_index(slot)].clone();
        let is_same = content.is_some_and(|version| Sha256::hash(version.as_bytes()) == raw.sha256);
        let failure = || Failure::new(FailureKind::Verify, "the slot has another content");
        if is_same { Ok(()) } else { Err(failure()) }
    }

    async fn install_kernel(&self, slot: Slot, _image: &SlotImage) -> Result<(), Failure> {
        let check = |state: &mut SlotMachineState| {
            assert!(state.contents[slot_index(slot)].is_some(), "the slot is incomplete");
        };
        self.change_slot("kernel", check).await;
        Ok(())
    }

    async fn arm(&self, slot: Slot, _image: &SlotImage, sequence: u32) -> Result<(), Failure> {
        let arm = |state: &mut SlotMachineState| {
            *state.boot_entry(slot) = BootEntry::Counted { left: 3, done: 0 };
            assert!(!state.sequences.contains(&sequence), "a sequence number is used twice");
            state.sequences[slot_index(slot)] = sequence;
            state.blind = std::mem::take(&mut state.blind_after_arming);
        };
        self.change_slot("arm", arm).await;
        Ok(())
    }

    async fn bless(&self, slot: Slot) -> Result<(), Failure> {
        let bless = |state: &mut SlotMachineState| *state.boot_entry(slot) = BootEntry::Plain;
        self.change_slot("bless", bless).await;
        Ok(())
    }
}

#[async_trait::async_trait]
impl ImageFiles for SlotMachine {
    async fn size(&self, _spec: &ImageSpec) -> Result<Option<u64>, Failure> {
        Ok(Some(30))
    }

    async fn fetch(&self, spec: &ImageSpec, _slice: Duration) -> Result<SpoolProgress, Failure> {
        self.pass_write().await;
        let mut state = self.state();
        state.requested_signatures.clone_from(&spec.signatures);
        if let Some(why) = &state.deferral {
            return Ok(SpoolProgress::Deferred(why.clone()));
        }
        if let Some(why) = &state.download_error {
            return Err(Failure::new(FailureKind::Download, why.as_str()));
        }
        state.downloads += 1;
        if state.remaining_parts > 0 {
            state.remaining_parts -= 1;
            return Ok(SpoolProgress::Partial { bytes: 1 });
        }
        state.end_operation("download");
        Ok(SpoolProgress::Complete(SpooledImage {
            path: PathBuf::from(&spec.image_id),
            sha256: spec.sha256,
            bytes: 30,
            format: ImageFormat::Raw,
        }))
    }

    fn discard_except(&self, keep: Option<&Sha256>) -> Result<(), Failure> {
        self.state().retained.push(keep.copied());
        Ok(())
    }
}

#[async_trait::async_trait]
impl Runner for SlotMachine {
    async fn run(&self, command: &Command) -> Result<Output, RunError> {
        self.pass_write().await;
        let mut status = 0;
        let stdout = match command.program.as_str() {
            "systemctl" if self.state().healthy => "active\n",
            "systemctl" => "failed\n",
            "journalctl" => "the last log lines\n",
            hook if hook.starts_with("/etc/evenkeel/hooks/") => {
                let mut state = self.state();
                if let Some((clock, time)) = &state.hook_duration {
                    clock.advance(*time);
                }
                if let Some(file) = state.hook_removes.take() {
                    fs::remove_file(file).unwrap();
                }
                if let Some(file) = state.hook_creates.take() {
                    fs::write(file, "a demonstration\n").unwrap();
                }
                status = state.hook_status;
                ""
            }
            "wall" => {
                self.state().warnings.extend(command.arguments.iter().cloned());
                ""
            }
            other => panic!("unknown program {other}"),
        };
        Ok(Output { status: Some(status), stdout: stdout.to_owned(), stderr: String::new() })
    }
}

#[async_trait::async_trait]
impl RebootControl for SlotMachine {
    fn obstacle(&self) -> Option<String> {
        self.state().reboot_obstacle.clone()
    }

    async fn request_reboot(&self) -> Result<(), Failure> {
        let mut state = self.state();
        state.reboot_requests += 1;
        state.reset = !state.ignores_reboot;
        Ok(())
    }
}

#[async_trait::async_trait]
impl MachineGate for SlotMachine {
    fn check_limits(&self) -> Result<(), RebootObjection> {
        let objection = self.state().owner_objection.clone();
        objection.map_or(Ok(()), |reason| Err(RebootObjection::temporary(reason)))
    }

    async fn check_machine(&self, _space: &[SpaceNeed]) -> Result<(), String> {
        panic!("nothing delays the reset into an armed slot")
    }

    fn has_logged_in_users(&self) -> bool {
        panic!("no user delays the reset into an armed slot")
    }

    async fn run_after_update_hooks(&self) -> Result<(), String> {
        Ok(())
    }
}

#[async_trait::async_trait]
impl Reset for SlotMachine {
    async fn reset_machine(&self) {
        self.state().reset = true;
    }
}
