//! A machine with two slots, a loader that counts boots, and power that can be cut.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use chrono::DateTime;
use evenkeel_kit::{Secret, TestClock};
use tokio::sync::Notify;

use super::super::*;
use crate::hooks::fake;
use crate::journal;
use crate::link::{Applicant, Enrollment, LinkError, PollAnswer, PollQuery, StartPermit};
use crate::model::{Action, Decision, Sha256};
use crate::modules::image::slots::{RawImage, SlotImage};
use crate::modules::image::spool::SpooledImage;
use crate::runner::{Command, Output, RunError};

const BOOT_COUNT_VARIABLE: &str =
    "sys/firmware/efi/efivars/LoaderBootCountPath-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f";

/// When the power fails: before or after a call of the trial to the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cut {
    Before(&'static str),
    After(&'static str),
}

/// State of the disks and of the running system.
#[derive(Debug)]
pub(super) struct MachineState {
    pub running: Slot,
    pub a: BootEntry,
    pub b: BootEntry,
    boots: u32,
    pub cut: Option<Cut>,
    /// Calls that fail.
    pub broken: Vec<&'static str>,
    /// A slow call, and its duration.
    pub slow: Option<(&'static str, Duration)>,
    /// Whether the loader counts the boots of good images.
    pub counts_good_boots: bool,
    /// The first of these calls breaks the record.
    pub breaks_record: Option<&'static str>,
    /// All calls to the machine, in order.
    pub calls: Vec<&'static str>,
    /// State of the unit as reported by systemd.
    pub unit: &'static str,
    /// The unit is not active at this check.
    pub fails_at: Option<usize>,
    /// Exit status of the owner's health check.
    pub check: i32,
    /// Error of the server; `None` if it answers normally.
    pub refusal: Option<fn() -> LinkError>,
}

impl MachineState {
    fn entry(&mut self, slot: Slot) -> &mut BootEntry {
        match slot {
            Slot::A => &mut self.a,
            Slot::B => &mut self.b,
        }
    }

    fn count(&self, what: &str) -> usize {
        self.calls.iter().filter(|call| **call == what).count()
    }
}

#[derive(Clone)]
pub(super) struct Machine {
    root: Arc<tempfile::TempDir>,
    state: Arc<Mutex<MachineState>>,
    power_cut: Arc<Notify>,
}

impl Machine {
    /// A machine with its old image in slot A and a new, just armed image in slot B.
    pub async fn armed() -> Self {
        let state = MachineState {
            running: Slot::A,
            a: BootEntry::Plain,
            b: BootEntry::Absent,
            boots: 0,
            cut: None,
            broken: Vec::new(),
            slow: None,
            counts_good_boots: false,
            breaks_record: None,
            calls: Vec::new(),
            unit: "active",
            fails_at: None,
            check: 0,
            refusal: None,
        };
        let machine = Self {
            root: Arc::new(tempfile::tempdir().expect("a folder")),
            state: Arc::new(Mutex::new(state)),
            power_cut: Arc::new(Notify::new()),
        };
        for folder in ["/proc", "/state"] {
            fake::create_folder(machine.root(), folder);
        }
        machine.boot();
        machine.reconcile().await;
        let record = machine.record();
        let seen = BootControl::observe(&machine).await.expect("a look");
        let image = SlotImage {
            file: Sha256::hash(b"compressed"),
            profile_name: "edge".to_owned(),
            image_id: "1.1".to_owned(),
            raw: None,
        };
        let raw = RawImage { sha256: Sha256::hash(b"raw"), bytes: 3 };
        let begin = SlotEvent::Begin { image, allow_retry: false };
        for event in [begin, SlotEvent::Wrote(raw), SlotEvent::Arm { allow_retry: false }] {
            record.step(Slot::B, &event, &seen).expect("a step");
        }
        machine.add_entry();
        machine
    }

    /// Arms the image in slot B again.
    pub async fn arm_again(&self) {
        let seen = BootControl::observe(self).await.expect("a look");
        let arm = SlotEvent::Arm { allow_retry: false };
        self.record().step(Slot::B, &arm, &seen).expect("a step");
        self.add_entry();
    }

    fn add_entry(&self) {
        self.with_state(|state| {
            state.b = BootEntry::Counted { left: 3, done: 0 };
            state.calls.clear();
        });
    }

    pub fn with_state<T>(&self, change: impl FnOnce(&mut MachineState) -> T) -> T {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub fn root(&self) -> &Path {
        self.root.path()
    }

    pub fn paths(&self) -> AgentPaths {
        AgentPaths::new(self.root(), Some(self.root().join("state")))
    }

    fn slots_file(&self) -> PathBuf {
        self.root().join("state/slots.json")
    }

    /// The record on the disk.
    pub fn record(&self) -> SlotFile {
        let clock = Arc::new(TestClock::new(DateTime::UNIX_EPOCH));
        SlotFile::open(&self.slots_file(), clock).expect("a record")
    }

    /// Number of calls.
    pub fn count(&self, what: &str) -> usize {
        self.with_state(|state| state.count(what))
    }

    /// Whether the guard was told that the trial has ended.
    pub fn is_trial_over(&self) -> bool {
        self.root().join("run/evenkeel/trial-over").exists()
    }

    /// Boots after a power cut or a reset: the loader boots the new image while its counter allows
    /// it.
    pub fn boot(&self) {
        let is_counted = self.with_state(|state| {
            state.boots += 1;
            let (running, is_counted) = match state.b {
                BootEntry::Counted { left, done } if left > 0 => {
                    state.b = BootEntry::Counted { left: left - 1, done: done + 1 };
                    (Slot::B, true)
                }
                BootEntry::Plain => (Slot::B, false),
                _ => (Slot::A, false),
            };
            state.running = running;
            is_counted
        });
        fs::remove_dir_all(self.root().join("run")).ok();
        self.remove_counter();
        if is_counted {
            let variable = self.root().join(BOOT_COUNT_VARIABLE);
            fs::create_dir_all(variable.parent().expect("a folder")).expect("a folder");
            fs::write(variable, "").expect("a variable");
        }
        self.set_uptime(5);
    }

    /// Removes the loader's variable.
    pub fn remove_counter(&self) {
        fs::remove_file(self.root().join(BOOT_COUNT_VARIABLE)).ok();
    }

    pub fn set_uptime(&self, seconds: u32) {
        let text = format!("{seconds}.00 1.00\n");
        fs::write(self.root().join("proc/uptime"), text).expect("an uptime");
    }

    /// Removes the record: no image was ever written.
    pub fn remove_record(&self) {
        fs::remove_file(self.slots_file()).expect("a record");
    }

    /// Blocks all writes of the record, by a folder with the name of its temporary file.
    pub fn break_record(&self) {
        fs::create_dir_all(self.root().join("state/slots.json.new/x")).expect("a folder");
    }

    pub fn repair_record(&self) {
        fs::remove_dir_all(self.root().join("state/slots.json.new")).expect("to mend");
        self.with_state(|state| state.breaks_record = None);
    }

    pub fn parts(&self) -> TrialParts {
        TrialParts {
            boot: Arc::new(self.clone()),
            slots: Arc::new(self.record()),
            link: Ok(Arc::new(self.clone())),
            runner: Arc::new(self.clone()),
            paths: self.paths(),
            reset: Arc::new(self.clone()),
            health: HealthConfig {
                units: vec!["app.service".to_owned()],
                server: true,
                deadline: Duration::from_mins(1),
                stable: Duration::from_secs(10),
            },
            requires_server: true,
            watchdog: WatchdogPolicy::Use,
        }
    }

    /// The reconciliation at the start of an agent. Returns whether a reset was requested.
    pub async fn reconcile(&self) -> bool {
        let settled = reconcile_slots(self, &self.record(), self).await;
        settled.expect("a look and a record").is_none()
    }

    /// Starts an agent and runs the trial; `None` if the power is cut.
    pub async fn run(&self) -> Option<Result<TrialOutcome, Failure>> {
        if self.reconcile().await {
            let reason = "reconciled".to_owned();
            return Some(Ok(TrialOutcome::FellBack { reason }));
        }
        let parts = self.parts();
        tokio::select! {
            outcome = run_trial(&parts) => Some(outcome),
            () = self.power_cut.notified() => None,
        }
    }

    /// Boots until no further boot is needed.
    pub async fn boot_until_settled(&self) -> TrialOutcome {
        self.with_state(|state| state.cut = None);
        for _ in 0..8 {
            self.boot();
            match self.run().await.expect("power").expect("an end") {
                TrialOutcome::FellBack { .. } => {}
                outcome => return outcome,
            }
        }
        panic!("the machine does not settle");
    }

    /// A call to the machine; the power may fail before or after it.
    async fn call(
        &self,
        what: &'static str,
        change: impl FnOnce(&mut MachineState),
    ) -> Result<(), Failure> {
        let (cut, is_broken, breaks) = self.with_state(|state| {
            state.calls.push(what);
            let breaks = state.breaks_record == Some(what);
            (state.cut, state.broken.contains(&what), breaks)
        });
        if cut == Some(Cut::Before(what)) {
            self.cut_power().await;
        }
        let slow = self.with_state(|state| state.slow.filter(|(slow, _)| *slow == what));
        if let Some((_, time)) = slow {
            sleep(time).await;
        }
        if is_broken {
            return Err(Failure::new(FailureKind::Apply, format!("no {what}")));
        }
        if breaks {
            self.break_record();
        }
        self.with_state(change);
        if cut == Some(Cut::After(what)) {
            self.cut_power().await;
        }
        Ok(())
    }

    async fn cut_power(&self) {
        self.with_state(|state| state.cut = None);
        self.power_cut.notify_one();
        std::future::pending::<()>().await;
    }
}

#[async_trait::async_trait]
impl BootControl for Machine {
    fn name(&self) -> &'static str {
        "a machine"
    }

    async fn observe(&self) -> Result<BootObservation, Failure> {
        self.call("look", |_| {}).await?;
        Ok(self.with_state(|state| BootObservation {
            booted: Some(state.running),
            boot_id: format!("boot-{}", state.boots),
            image: Some(("edge".to_owned(), "1.0".to_owned())),
            a: state.a.clone(),
            b: state.b.clone(),
            foreign: Vec::new(),
        }))
    }

    async fn withdraw(&self, slot: Slot) -> Result<(), Failure> {
        self.call("withdraw", |state| *state.entry(slot) = BootEntry::Absent).await
    }

    async fn bless(&self, slot: Slot) -> Result<(), Failure> {
        self.call("bless", |state| *state.entry(slot) = BootEntry::Plain).await
    }

    async fn confirm_boot(&self, slot: Slot) -> Result<(), Failure> {
        if !self.with_state(|state| state.counts_good_boots) {
            return Ok(());
        }
        self.call("confirm", |state| *state.entry(slot) = BootEntry::Plain).await
    }

    async fn faults(&self) -> Vec<String> {
        Vec::new()
    }

    async fn max_image_bytes(&self, _slot: Slot) -> Result<u64, Failure> {
        unreachable!("nothing is written on trial")
    }

    async fn write(
        &self,
        _slot: Slot,
        _from: &SpooledImage,
        _stop: &tokio_util::sync::CancellationToken,
    ) -> Result<RawImage, Failure> {
        unreachable!("nothing is written on trial")
    }

    async fn verify_slot(&self, _slot: Slot, _raw: &RawImage) -> Result<(), Failure> {
        unreachable!("nothing is written on trial")
    }

    async fn install_kernel(&self, _slot: Slot, _image: &SlotImage) -> Result<(), Failure> {
        unreachable!("nothing is written on trial")
    }

    async fn arm(&self, _slot: Slot, _image: &SlotImage, _sequence: u32) -> Result<(), Failure> {
        unreachable!("nothing is armed on trial")
    }
}

#[async_trait::async_trait]
impl Runner for Machine {
    async fn run(&self, command: &Command) -> Result<Output, RunError> {
        let what = match command.program.as_str() {
            "systemctl" => "units",
            "journalctl" => "words",
            _ => "check",
        };
        self.call(what, |_| {}).await.expect("a program");
        let (status, stdout) = self.with_state(|state| match what {
            "units" if state.fails_at == Some(state.count("units")) => {
                (3, "activating\n".to_owned())
            }
            "units" => (0, format!("{}\n", state.unit)),
            "words" => (0, "the last words\n".to_owned()),
            _ => (state.check, String::new()),
        });
        Ok(Output { status: Some(status), stdout, stderr: String::new() })
    }
}

#[async_trait::async_trait]
impl ServerLink for Machine {
    async fn enroll(&self, _applicant: &Applicant) -> Result<Enrollment, LinkError> {
        unreachable!("an agent on trial does not enrol")
    }

    async fn poll(&self, query: PollQuery<'_>) -> Result<PollAnswer, LinkError> {
        assert!(!query.send_facts && query.packages.is_none());
        let polled = self.call("poll", |_| {}).await;
        polled.map_err(|_| LinkError::Unavailable("the server does not answer".to_owned()))?;
        if let Some(refusal) = self.with_state(|state| state.refusal) {
            return Err(refusal());
        }
        Ok(PollAnswer {
            want_facts: true,
            want_packages: false,
            server_time: None,
            next_poll: Duration::from_secs(1),
            decision: Decision {
                action: Action::Idle,
                reason: String::new(),
                next_change: None,
                offline_grant: None,
            },
            credential: None,
            decision_tag: 1,
            max_hold: Duration::ZERO,
            reconnect_spread: Duration::ZERO,
        })
    }

    async fn request_start(
        &self,
        _entry: &journal::JournalEntry,
    ) -> Result<StartPermit, LinkError> {
        unreachable!("nothing begins on trial")
    }

    async fn report(&self, _entry: &journal::JournalEntry) -> Result<u32, LinkError> {
        unreachable!("nothing is reported on trial")
    }

    fn set_credential(&self, _credential: &Secret) -> Result<(), LinkError> {
        unreachable!("no credential is renewed on trial")
    }
}

#[async_trait::async_trait]
impl Reset for Machine {
    async fn reset_machine(&self) {
        self.with_state(|state| state.calls.push("reset"));
    }
}
