//! A machine with two slots, a loader that counts, and power that fails wherever it is told to.

use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use chrono::TimeDelta;
use evenkeel_kit::TestClock;
use evenkeel_update_agent::boot::Reboot;
use evenkeel_update_agent::model::{Failure, FailureKind, ImageWish, Sha256};
use evenkeel_update_agent::modules::image::Files;
use evenkeel_update_agent::modules::image::boot_control::BootControl;
use evenkeel_update_agent::modules::image::slots::{Entry, Raw, Seen, Slot, What};
use evenkeel_update_agent::modules::image::spool::{Got, Spooled};
use evenkeel_update_agent::modules::image::unpack::Form;
use evenkeel_update_agent::runner::{Command, Output, RunError, Runner};
use evenkeel_update_agent::trial::Reset;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// What is on the disks, what runs, and how it misbehaves.
#[derive(Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a trait of its own, and goes with any of the others"
)]
pub struct State {
    pub running: Slot,
    pub a: Entry,
    pub b: Entry,
    /// The number of each slot's boot entry.
    pub(super) orders: [u32; 2],
    /// The version in each slot; none if it is torn.
    pub contents: [Option<String>; 2],
    pub(super) boots: u32,
    /// Whether a new image is healthy.
    pub healthy: bool,
    /// How often something was written so far, by anybody.
    pub(super) steps: usize,
    /// The power fails at this one, once.
    pub cut: Option<usize>,
    /// It stays off so long then.
    pub off: TimeDelta,
    /// Then only the agent ends, and the next one starts after that time in the same boot.
    pub dies_alone: bool,
    /// So much was in the log then.
    pub logged: Option<usize>,
    pub(super) dead: bool,
    /// It was told to reset, and does when the agent has come to rest.
    pub(super) reset: bool,
    /// How often it was told to by the engine.
    pub told: u32,
    /// It does not reset when it is told to.
    pub stays_up: bool,
    /// Why its owner does not let it reboot.
    pub owner: Option<String>,
    /// Why there is no way to reboot it.
    pub hindrance: Option<String>,
    /// A new image must reach the server.
    pub needs_server: bool,
    /// The server is away whenever an image is on trial.
    pub cut_off_on_trial: bool,
    /// Agents do not find its slots.
    pub hidden: bool,
    /// Whether nothing can be learnt of the slots, for each look at them once one was armed.
    pub blind_after_arming: Vec<bool>,
    /// The same for each look from now on.
    blind: Vec<bool>,
    /// Each of its hooks takes so long, by this clock.
    pub hooks_take: Option<(TestClock, TimeDelta)>,
    /// Each of its hooks ends with this status.
    pub hooks_end: i32,
    /// A file that the next of its hooks removes.
    pub hooks_remove: Option<PathBuf>,
    /// A download comes in so many parts beside the last one.
    pub parts: u32,
    /// Why nothing can be downloaded.
    pub later: Option<String>,
    /// Why it is given up to download.
    pub broken: Option<String>,
    /// Which file was kept, each time others were discarded.
    pub kept: Vec<Option<Sha256>>,
    /// The signatures with which a file was asked for last.
    pub asked_with: Vec<String>,
    /// How often a part was downloaded.
    pub downloads: u32,
    /// What was done to the slots.
    pub log: Vec<String>,
}

impl State {
    pub(super) fn entry(&mut self, slot: Slot) -> &mut Entry {
        match slot {
            Slot::A => &mut self.a,
            Slot::B => &mut self.b,
        }
    }

    /// Something is written, or was. Whether the power fails there.
    pub(super) fn step(&mut self) -> bool {
        self.steps += 1;
        if self.cut == Some(self.steps) {
            self.dead = true;
            self.logged = Some(self.log.len());
        }
        self.dead
    }
}

pub(super) fn index(slot: Slot) -> usize {
    match slot {
        Slot::A => 0,
        Slot::B => 1,
    }
}

#[derive(Clone, Debug)]
pub struct Machine {
    state: Arc<Mutex<State>>,
    /// Told when its power fails.
    pub(super) died: Arc<Notify>,
}

impl Machine {
    /// A machine that runs 1.0 from the first slot. The second holds nothing.
    pub fn new() -> Self {
        let state = State {
            running: Slot::A,
            a: Entry::Plain,
            b: Entry::Absent,
            orders: [0, 0],
            contents: [Some("1.0".to_owned()), None],
            boots: 1,
            healthy: true,
            steps: 0,
            cut: None,
            off: TimeDelta::zero(),
            dies_alone: false,
            logged: None,
            dead: false,
            reset: false,
            told: 0,
            stays_up: false,
            owner: None,
            hindrance: None,
            needs_server: false,
            cut_off_on_trial: false,
            hidden: false,
            blind_after_arming: Vec::new(),
            blind: Vec::new(),
            hooks_take: None,
            hooks_end: 0,
            hooks_remove: None,
            parts: 1,
            later: None,
            broken: None,
            kept: Vec::new(),
            asked_with: Vec::new(),
            downloads: 0,
            log: Vec::new(),
        };
        Self {
            state: Arc::new(Mutex::new(state)),
            died: Arc::default(),
        }
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Goes no further if the power fails here.
    async fn pass(&self) {
        if self.state().step() {
            self.died.notify_one();
            std::future::pending::<()>().await;
        }
    }

    async fn change(&self, what: &str, change: impl FnOnce(&mut State)) {
        self.pass().await;
        {
            let mut state = self.state();
            state.log.push(what.to_owned());
            change(&mut state);
        }
        self.pass().await;
    }
}

#[async_trait::async_trait]
impl BootControl for Machine {
    fn name(&self) -> &'static str {
        "a loader that counts"
    }

    async fn look(&self) -> Result<Seen, Failure> {
        let mut state = self.state();
        if !state.blind.is_empty() && state.blind.remove(0) {
            let reason = "the boot entries cannot be read";
            return Err(Failure::new(FailureKind::Apply, reason));
        }
        let image_id = state.contents[index(state.running)].clone();
        Ok(Seen {
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

    async fn room(&self, _slot: Slot) -> Result<u64, Failure> {
        Ok(1 << 20)
    }

    async fn withdraw(&self, slot: Slot) -> Result<(), Failure> {
        let change = |state: &mut State| *state.entry(slot) = Entry::Absent;
        self.change("withdraw", change).await;
        Ok(())
    }

    async fn write(
        &self,
        slot: Slot,
        from: &Spooled,
        _stop: &CancellationToken,
    ) -> Result<Raw, Failure> {
        let version = from.path.display().to_string();
        let tear = |state: &mut State| {
            assert_ne!(state.running, slot, "what runs is written");
            assert_eq!(*state.entry(slot), Entry::Absent, "something starts it");
            state.contents[index(slot)] = None;
        };
        self.change("begin to write", tear).await;
        let raw = Raw {
            sha256: Sha256::of(version.as_bytes()),
            bytes: from.bytes,
        };
        let fill = |state: &mut State| state.contents[index(slot)] = Some(version);
        self.change("write", fill).await;
        Ok(raw)
    }

    async fn reread(&self, slot: Slot, raw: &Raw) -> Result<(), Failure> {
        let content = self.state().contents[index(slot)].clone();
        let is_same = content.is_some_and(|version| Sha256::of(version.as_bytes()) == raw.sha256);
        let failure = || Failure::new(FailureKind::Verify, "something else is there");
        if is_same { Ok(()) } else { Err(failure()) }
    }

    async fn kernel(&self, slot: Slot, _what: &What) -> Result<(), Failure> {
        let check = |state: &mut State| {
            assert!(state.contents[index(slot)].is_some(), "it is torn");
        };
        self.change("kernel", check).await;
        Ok(())
    }

    async fn arm(&self, slot: Slot, _what: &What, sequence: u32) -> Result<(), Failure> {
        let arm = |state: &mut State| {
            *state.entry(slot) = Entry::Counted { left: 3, done: 0 };
            assert!(!state.orders.contains(&sequence), "a number is used twice");
            state.orders[index(slot)] = sequence;
            state.blind = std::mem::take(&mut state.blind_after_arming);
        };
        self.change("arm", arm).await;
        Ok(())
    }

    async fn bless(&self, slot: Slot) -> Result<(), Failure> {
        let bless = |state: &mut State| *state.entry(slot) = Entry::Plain;
        self.change("bless", bless).await;
        Ok(())
    }
}

#[async_trait::async_trait]
impl Files for Machine {
    async fn size(&self, _wish: &ImageWish) -> Result<Option<u64>, Failure> {
        Ok(Some(30))
    }

    async fn fetch(&self, wish: &ImageWish, _slice: Duration) -> Result<Got, Failure> {
        self.pass().await;
        let mut state = self.state();
        state.asked_with.clone_from(&wish.signatures);
        if let Some(why) = &state.later {
            return Ok(Got::Later(why.clone()));
        }
        if let Some(why) = &state.broken {
            return Err(Failure::new(FailureKind::Download, why.as_str()));
        }
        state.downloads += 1;
        if state.parts > 0 {
            state.parts -= 1;
            return Ok(Got::Part { bytes: 1 });
        }
        Ok(Got::All(Spooled {
            path: PathBuf::from(&wish.image_id),
            sha256: wish.sha256,
            bytes: 30,
            form: Form::Raw,
        }))
    }

    fn discard_but(&self, keep: Option<&Sha256>) -> Result<(), Failure> {
        self.state().kept.push(keep.copied());
        Ok(())
    }
}

#[async_trait::async_trait]
impl Runner for Machine {
    async fn run(&self, command: &Command) -> Result<Output, RunError> {
        self.pass().await;
        let mut status = 0;
        let stdout = match command.program.as_str() {
            "systemctl" if self.state().healthy => "active\n",
            "systemctl" => "failed\n",
            "journalctl" => "the last words\n",
            hook if hook.starts_with("/etc/evenkeel/hooks/") => {
                let mut state = self.state();
                if let Some((clock, time)) = &state.hooks_take {
                    clock.advance(*time);
                }
                if let Some(file) = state.hooks_remove.take() {
                    fs::remove_file(file).unwrap();
                }
                status = state.hooks_end;
                ""
            }
            other => panic!("nobody knows {other}"),
        };
        Ok(Output {
            status: Some(status),
            stdout: stdout.to_owned(),
            stderr: String::new(),
        })
    }
}

#[async_trait::async_trait]
impl Reboot for Machine {
    fn hindrance(&self) -> Option<String> {
        self.state().hindrance.clone()
    }

    async fn begin(&self) -> Result<(), Failure> {
        let mut state = self.state();
        state.told += 1;
        state.reset = !state.stays_up;
        Ok(())
    }
}

#[async_trait::async_trait]
impl Reset for Machine {
    async fn now(&self) {
        self.state().reset = true;
    }
}
