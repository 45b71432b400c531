//! A machine with two slots, a loader that counts, and power that can be cut.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use chrono::DateTime;
use evenkeel_kit::{Secret, TestClock};
use tokio::sync::Notify;

use super::super::*;
use crate::commands::images::reconcile;
use crate::hooks::fake;
use crate::journal;
use crate::link::{Answer, Applicant, Enrolled, Leave, LinkError, Question};
use crate::model::{Act, Decision, Sha256};
use crate::modules::image::slots::{Raw, What};
use crate::modules::image::spool::Spooled;
use crate::runner::{Command, Output, RunError};

const COUNTED: &str =
    "sys/firmware/efi/efivars/LoaderBootCountPath-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f";

/// Where the power fails: around what the trial asks of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cut {
    Before(&'static str),
    After(&'static str),
}

/// What is on the disks and what runs.
#[derive(Debug)]
pub(super) struct World {
    pub running: Slot,
    pub a: Entry,
    pub b: Entry,
    boots: u32,
    pub cut: Option<Cut>,
    /// What fails.
    pub broken: Vec<&'static str>,
    /// What takes its time, and how much.
    pub slow: Option<(&'static str, Duration)>,
    /// With the first of these the record stops taking anything.
    pub breaks_record: Option<&'static str>,
    /// Everything that was asked of the machine, in order.
    pub asked: Vec<&'static str>,
    /// What systemd says of the unit.
    pub unit: &'static str,
    /// The unit is not active when it is asked for so often.
    pub falters_at: Option<usize>,
    /// How the owner's program ends.
    pub check: i32,
    /// How the server answers, if not well.
    pub refuses: Option<fn() -> LinkError>,
}

impl World {
    fn entry(&mut self, slot: Slot) -> &mut Entry {
        match slot {
            Slot::A => &mut self.a,
            Slot::B => &mut self.b,
        }
    }

    fn count(&self, what: &str) -> usize {
        self.asked.iter().filter(|asked| **asked == what).count()
    }
}

#[derive(Clone)]
pub(super) struct Machine {
    root: Arc<tempfile::TempDir>,
    world: Arc<Mutex<World>>,
    dead: Arc<Notify>,
}

impl Machine {
    /// A machine on its old image, in slot A, with a new one in slot B that was just armed.
    pub async fn armed() -> Self {
        let world = World {
            running: Slot::A,
            a: Entry::Plain,
            b: Entry::Absent,
            boots: 0,
            cut: None,
            broken: Vec::new(),
            slow: None,
            breaks_record: None,
            asked: Vec::new(),
            unit: "active",
            falters_at: None,
            check: 0,
            refuses: None,
        };
        let machine = Self {
            root: Arc::new(tempfile::tempdir().expect("a folder")),
            world: Arc::new(Mutex::new(world)),
            dead: Arc::new(Notify::new()),
        };
        for folder in ["/proc", "/state"] {
            fake::folder(machine.root(), folder);
        }
        machine.boot();
        machine.settle().await;
        let record = machine.record();
        let seen = BootControl::look(&machine).await.expect("a look");
        let what = What {
            file: Sha256::of(b"compressed"),
            profile_name: "edge".to_owned(),
            image_id: "1.1".to_owned(),
            raw: None,
        };
        let raw = Raw {
            sha256: Sha256::of(b"raw"),
            bytes: 3,
        };
        let begin = Event::Begin { what, again: false };
        for event in [begin, Event::Wrote(raw), Event::Arm { again: false }] {
            record.step(Slot::B, &event, &seen).expect("a step");
        }
        machine.give_entry();
        machine
    }

    /// What lies in slot B is tried once more.
    pub async fn arm_again(&self) {
        let seen = BootControl::look(self).await.expect("a look");
        let arm = Event::Arm { again: false };
        self.record().step(Slot::B, &arm, &seen).expect("a step");
        self.give_entry();
    }

    fn give_entry(&self) {
        self.with(|world| {
            world.b = Entry::Counted { left: 3, done: 0 };
            world.asked.clear();
        });
    }

    pub fn with<T>(&self, change: impl FnOnce(&mut World) -> T) -> T {
        change(&mut self.world.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub fn root(&self) -> &Path {
        self.root.path()
    }

    pub fn place(&self) -> Place {
        Place::new(self.root(), Some(self.root().join("state")))
    }

    fn slots_file(&self) -> PathBuf {
        self.root().join("state/slots.json")
    }

    /// The record as it is on the disk.
    pub fn record(&self) -> SlotFile {
        let clock = Arc::new(TestClock::new(DateTime::UNIX_EPOCH));
        SlotFile::open(&self.slots_file(), clock).expect("a record")
    }

    /// How often something was asked of the machine.
    pub fn count(&self, what: &str) -> usize {
        self.with(|world| world.count(what))
    }

    /// Whether the guard was told that the trial is over.
    pub fn is_over(&self) -> bool {
        self.root().join("run/evenkeel/trial-over").exists()
    }

    /// Power comes back, or the machine was reset: the loader takes the new image while its counter allows it.
    pub fn boot(&self) {
        let is_counted = self.with(|world| {
            world.boots += 1;
            let (running, is_counted) = match world.b {
                Entry::Counted { left, done } if left > 0 => {
                    world.b = Entry::Counted {
                        left: left - 1,
                        done: done + 1,
                    };
                    (Slot::B, true)
                }
                Entry::Plain => (Slot::B, false),
                _ => (Slot::A, false),
            };
            world.running = running;
            is_counted
        });
        fs::remove_dir_all(self.root().join("run")).ok();
        self.without_counter();
        if is_counted {
            let variable = self.root().join(COUNTED);
            fs::create_dir_all(variable.parent().expect("a folder")).expect("a folder");
            fs::write(variable, "").expect("a variable");
        }
        self.up_for(5);
    }

    /// The loader set no variable.
    pub fn without_counter(&self) {
        fs::remove_file(self.root().join(COUNTED)).ok();
    }

    /// The machine has been up for so many seconds.
    pub fn up_for(&self, seconds: u32) {
        let text = format!("{seconds}.00 1.00\n");
        fs::write(self.root().join("proc/uptime"), text).expect("an uptime");
    }

    /// From now on the record takes nothing: what it is written beside is in the way.
    pub fn break_record(&self) {
        fs::create_dir_all(self.root().join("state/slots.json.new/x")).expect("a folder");
    }

    pub fn mend_record(&self) {
        fs::remove_dir_all(self.root().join("state/slots.json.new")).expect("to mend");
        self.with(|world| world.breaks_record = None);
    }

    pub fn parts(&self) -> TrialParts {
        TrialParts {
            boot: Arc::new(self.clone()),
            slots: Arc::new(self.record()),
            link: Ok(Arc::new(self.clone())),
            runner: Arc::new(self.clone()),
            place: self.place(),
            reset: Arc::new(self.clone()),
            health: HealthConfig {
                units: vec!["app.service".to_owned()],
                server: true,
                deadline: Duration::from_mins(1),
                stable: Duration::from_secs(10),
            },
            server: true,
            watchdog: Watchdog::Use,
        }
    }

    /// What an agent does at its start before the trial. Whether a reset was wanted.
    pub async fn settle(&self) -> bool {
        let settled = reconcile(self, &self.record(), self).await;
        settled.expect("a look and a record").is_none()
    }

    /// An agent starts and sees the trial through; `None` if the power is cut before that.
    pub async fn run(&self) -> Option<Result<Over, Failure>> {
        if self.settle().await {
            let why = "reconciled".to_owned();
            return Some(Ok(Over::FellBack { why }));
        }
        let parts = self.parts();
        tokio::select! {
            over = see_through(&parts) => Some(over),
            () = self.dead.notified() => None,
        }
    }

    /// Boots until nothing wants another boot.
    pub async fn rest(&self) -> Over {
        self.with(|world| world.cut = None);
        for _ in 0..8 {
            self.boot();
            match self.run().await.expect("power").expect("an end") {
                Over::FellBack { .. } => {}
                over => return over,
            }
        }
        panic!("the machine does not come to rest");
    }

    /// Something is asked of the machine, and the power may fail around it.
    async fn act(
        &self,
        what: &'static str,
        change: impl FnOnce(&mut World),
    ) -> Result<(), Failure> {
        let (cut, is_broken, breaks) = self.with(|world| {
            world.asked.push(what);
            let breaks = world.breaks_record == Some(what);
            (world.cut, world.broken.contains(&what), breaks)
        });
        if cut == Some(Cut::Before(what)) {
            self.die().await;
        }
        let slow = self.with(|world| world.slow.filter(|(slow, _)| *slow == what));
        if let Some((_, time)) = slow {
            sleep(time).await;
        }
        if is_broken {
            return Err(Failure::new(FailureKind::Apply, format!("no {what}")));
        }
        if breaks {
            self.break_record();
        }
        self.with(change);
        if cut == Some(Cut::After(what)) {
            self.die().await;
        }
        Ok(())
    }

    async fn die(&self) {
        self.with(|world| world.cut = None);
        self.dead.notify_one();
        std::future::pending::<()>().await;
    }
}

#[async_trait::async_trait]
impl BootControl for Machine {
    fn name(&self) -> &'static str {
        "a machine"
    }

    async fn look(&self) -> Result<Seen, Failure> {
        self.act("look", |_| {}).await?;
        Ok(self.with(|world| Seen {
            booted: Some(world.running),
            boot_id: format!("boot-{}", world.boots),
            image: Some(("edge".to_owned(), "1.0".to_owned())),
            a: world.a.clone(),
            b: world.b.clone(),
            foreign: Vec::new(),
        }))
    }

    async fn withdraw(&self, slot: Slot) -> Result<(), Failure> {
        self.act("withdraw", |world| *world.entry(slot) = Entry::Absent)
            .await
    }

    async fn bless(&self, slot: Slot) -> Result<(), Failure> {
        self.act("bless", |world| *world.entry(slot) = Entry::Plain)
            .await
    }

    async fn faults(&self) -> Vec<String> {
        Vec::new()
    }

    async fn room(&self, _slot: Slot) -> Result<u64, Failure> {
        unreachable!("nothing is written on trial")
    }

    async fn write(
        &self,
        _slot: Slot,
        _from: &Spooled,
        _stop: &tokio_util::sync::CancellationToken,
    ) -> Result<Raw, Failure> {
        unreachable!("nothing is written on trial")
    }

    async fn reread(&self, _slot: Slot, _raw: &Raw) -> Result<(), Failure> {
        unreachable!("nothing is written on trial")
    }

    async fn kernel(&self, _slot: Slot, _what: &What) -> Result<(), Failure> {
        unreachable!("nothing is written on trial")
    }

    async fn arm(&self, _slot: Slot, _what: &What, _sequence: u32) -> Result<(), Failure> {
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
        self.act(what, |_| {}).await.expect("a program");
        let (status, stdout) = self.with(|world| match what {
            "units" if world.falters_at == Some(world.count("units")) => {
                (3, "activating\n".to_owned())
            }
            "units" => (0, format!("{}\n", world.unit)),
            "words" => (0, "the last words\n".to_owned()),
            _ => (world.check, String::new()),
        });
        Ok(Output {
            status: Some(status),
            stdout,
            stderr: String::new(),
        })
    }
}

#[async_trait::async_trait]
impl Link for Machine {
    async fn enroll(&self, _applicant: &Applicant) -> Result<Enrolled, LinkError> {
        unreachable!("nobody enrols on trial")
    }

    async fn poll(&self, question: Question<'_>) -> Result<Answer, LinkError> {
        assert!(!question.whole && question.packages.is_none());
        let polled = self.act("poll", |_| {}).await;
        polled.map_err(|_| LinkError::Unavailable("nobody is there".to_owned()))?;
        if let Some(refuses) = self.with(|world| world.refuses) {
            return Err(refuses());
        }
        Ok(Answer {
            want_facts: true,
            want_packages: false,
            now: None,
            next_poll: Duration::from_secs(1),
            decision: Decision {
                act: Act::Idle,
                reason: String::new(),
                next: None,
                grant: None,
            },
            credential: None,
            tag: 1,
            hold: Duration::ZERO,
            spread: Duration::ZERO,
        })
    }

    async fn begin(&self, _entry: &journal::Entry) -> Result<Leave, LinkError> {
        unreachable!("nothing begins on trial")
    }

    async fn report(&self, _entry: &journal::Entry) -> Result<u32, LinkError> {
        unreachable!("nothing is reported on trial")
    }

    fn renew(&self, _credential: &Secret) -> Result<(), LinkError> {
        unreachable!("no credential is renewed on trial")
    }
}

#[async_trait::async_trait]
impl Reset for Machine {
    async fn now(&self) {
        self.with(|world| world.asked.push("reset"));
    }
}
