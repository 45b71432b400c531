//! A node that is updated by images, on a machine with two slots. Agents start and end on it.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use chrono::{DateTime, TimeDelta};
use evenkeel_kit::TestClock;
use evenkeel_update_agent::agent::{Agent, AgentError, AgentParts, Intervals, ShutdownGuard};
use evenkeel_update_agent::config::{HealthConfig, WatchdogPolicy};
use evenkeel_update_agent::durable::FileError;
use evenkeel_update_agent::engine::{self, Engine};
use evenkeel_update_agent::facts::FactsReader;
use evenkeel_update_agent::gate::{Gate, GateParts, GateSettings};
use evenkeel_update_agent::health::HealthChecks;
use evenkeel_update_agent::journal::{
    FileJournal, Journal, JournalEntry as Attempt, JournalError, JournalPoint,
};
use evenkeel_update_agent::model::{
    AttemptEvent, ImageRules, ImageSpec, ModuleParts, Sha256, UpdateTarget,
};
use evenkeel_update_agent::modules::image::slots::{BootEntry, Slot, SlotFile, Slots};
use evenkeel_update_agent::modules::image::{ImageModule, ImageParts, ImageReport};
use evenkeel_update_agent::modules::packages::{PackageToolTimeouts, PackageTools};
use evenkeel_update_agent::modules::{AnyModule, Module as _};
use evenkeel_update_agent::owner::Owner;
use evenkeel_update_agent::paths::AgentPaths;
use evenkeel_update_agent::reboot::RebootTiming;
use evenkeel_update_agent::trial::{TrialOutcome, TrialParts, reconcile_slots, run_trial};
use tokio_util::sync::CancellationToken;

use super::link::{FakeLink, FakeServer, Presence};
use super::manager::FakeServiceManager;
use super::slots::{SlotMachine, slot_index};

/// For the package tools, which an image update does not use.
const ZERO_TIMEOUTS: PackageToolTimeouts = PackageToolTimeouts {
    query: Duration::ZERO,
    refresh: Duration::ZERO,
    download: Duration::ZERO,
    apply: Duration::ZERO,
    lock: Duration::ZERO,
};

/// logind's folder of sessions.
const SESSIONS_FOLDER: &str = "/run/systemd/sessions";

/// The journal of a machine whose power can fail.
struct PowerCutJournal {
    inner: FileJournal,
    machine: SlotMachine,
}

impl PowerCutJournal {
    fn check_power(&self) -> Result<(), JournalError> {
        if !self.machine.state().record_write() {
            return Ok(());
        }
        Err(JournalError::File(FileError {
            action: "write",
            path: "journal".into(),
            source: io::Error::other("the power failed"),
        }))
    }
}

impl Journal for PowerCutJournal {
    fn read(&self) -> Result<Option<Attempt>, JournalError> {
        self.inner.read()
    }

    fn write(&self, point: &JournalPoint, entry: &Attempt) -> Result<(), JournalError> {
        self.check_power()?;
        self.inner.write(point, entry)?;
        self.check_power()
    }

    fn clear(&self) -> Result<(), JournalError> {
        self.check_power()?;
        self.inner.clear()?;
        self.check_power()
    }
}

/// How an agent ended.
#[derive(Debug)]
enum AgentEnd {
    /// The agent has done everything that can be done now.
    Finished(Result<(), AgentError>),
    /// The machine was reset, or its power failed.
    Reset,
}

pub struct ImageNode {
    folder: tempfile::TempDir,
    pub machine: SlotMachine,
    pub link: FakeLink,
    pub clock: TestClock,
}

pub fn image_target(version: &str) -> UpdateTarget {
    UpdateTarget {
        digest: "os".into(),
        spec: image_spec(&ImageSpec {
            os_id: "os-2".into(),
            name: format!("Demo {version}"),
            profile_name: "demo".into(),
            image_id: version.into(),
            architecture: "x86_64".into(),
            url: format!("https://images.example/{version}.raw"),
            sha256: Sha256::hash(version.as_bytes()),
            signatures: Vec::new(),
            rules: ImageRules::default(),
            allow_retry: false,
        }),
    }
}

pub fn image_spec(spec: &ImageSpec) -> ModuleParts {
    ModuleParts::of(ImageModule::NAME, spec).unwrap()
}

pub fn change_spec(target: &mut UpdateTarget, change: impl FnOnce(&mut ImageSpec)) {
    let mut spec = target.spec.read(ImageModule::NAME).expect("an image");
    change(&mut spec);
    target.spec = image_spec(&spec);
}

/// What the module of images reports with the last event of an attempt.
pub fn image_report(event: &AttemptEvent) -> ImageReport {
    event.report.as_ref().unwrap().modules.read(ImageModule::NAME).unwrap()
}

impl ImageNode {
    /// A node that runs 1.0, with an open window for 1.1. Its owner accepts unsigned images.
    pub fn in_window() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let node = Self {
            folder,
            machine: SlotMachine::new(),
            link: FakeLink::default(),
            clock: TestClock::new(DateTime::UNIX_EPOCH + TimeDelta::days(20_000)),
        };
        node.paths().prepare().unwrap();
        let settings = node.paths().inside("/etc/evenkeel");
        fs::create_dir_all(&settings).unwrap();
        fs::set_permissions(&settings, fs::Permissions::from_mode(0o755)).unwrap();
        let limits = settings.join("limits.toml");
        fs::write(&limits, "[image]\nunsigned_images = true\n").unwrap();
        fs::set_permissions(&limits, fs::Permissions::from_mode(0o644)).unwrap();
        node.write_os_release();
        node.server().target = Some(image_target("1.1"));
        node.server().window_open = true;
        node
    }

    pub fn paths(&self) -> AgentPaths {
        let data = self.folder.path().join("data");
        AgentPaths::new(self.folder.path(), Some(data))
    }

    pub fn server(&self) -> MutexGuard<'_, FakeServer> {
        self.link.0.lock().unwrap()
    }

    /// Adds a hook for a moment such as `before-reboot`.
    pub fn add_hook(&self, moment: &str) {
        let hooks = self.paths().inside("/etc/evenkeel/hooks");
        let folder = hooks.join(format!("{moment}.d"));
        fs::create_dir_all(&folder).unwrap();
        let file = folder.join("ask");
        fs::write(&file, "").unwrap();
        for path in [&hooks, &folder, &file] {
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        }
    }

    /// Logs a user in.
    pub fn log_in(&self) {
        let folder = self.paths().inside(SESSIONS_FOLDER);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("1"), "STATE=active\nCLASS=user\n").unwrap();
    }

    pub fn slots(&self) -> Slots {
        let clock = Arc::new(self.clock.clone());
        SlotFile::open(&self.paths().slots(), clock).unwrap().get()
    }

    /// Writes the `os-release` of the running slot.
    fn write_os_release(&self) {
        let state = self.machine.state();
        let version = state.contents[slot_index(state.running)].clone();
        let text = format!("ID=demo\nIMAGE_ID=demo\nIMAGE_VERSION={}\n", version.unwrap());
        fs::write(self.paths().inside("/etc/os-release"), text).unwrap();
    }

    /// Boots by the rule of the boot loader: an entry on trial with boots left, else the newest entry without a counter.
    pub fn boot(&self) {
        {
            let mut state = self.machine.state();
            if state.dead {
                state.power_cut_at = None;
                self.clock.advance(state.downtime);
                if state.only_agent_dies && !state.reset {
                    state.dead = false;
                    return;
                }
            }
            (state.dead, state.reset) = (false, false);
            state.boots += 1;
            let entries = [(Slot::A, state.a.clone()), (Slot::B, state.b.clone())];
            let is_on_trial =
                |entry: &BootEntry| matches!(entry, BootEntry::Counted { left: 1.., .. });
            let on_trial = entries.iter().find(|(_, entry)| is_on_trial(entry));
            let plain = entries.iter().filter(|(_, entry)| *entry == BootEntry::Plain);
            let plain = plain.max_by_key(|(slot, _)| state.sequences[slot_index(*slot)]);
            let (slot, entry) = on_trial.or(plain).expect("something boots").clone();
            if let BootEntry::Counted { left, done } = entry {
                *state.boot_entry(slot) = BootEntry::Counted { left: left - 1, done: done + 1 };
            }
            assert!(state.contents[slot_index(slot)].is_some(), "{slot} is torn");
            state.running = slot;
        }
        fs::remove_dir_all(self.paths().inside("/run")).ok();
        self.write_os_release();
    }

    /// Runs agents and boots the machine until there is nothing left to do; returns how the last agent ended.
    pub async fn run_until_idle(&self) -> Result<(), AgentError> {
        for _ in 0..12 {
            let end_of_agent = tokio::select! {
                biased;
                end_of_agent = self.run_agent() => end_of_agent,
                () = self.machine.died.notified() => AgentEnd::Reset,
            };
            match end_of_agent {
                AgentEnd::Finished(end) => return end,
                AgentEnd::Reset => self.boot(),
            }
        }
        panic!("the node never becomes idle: {:?}", self.machine.state());
    }

    /// As the command `run` does: reconciles the slots with the record, completes a trial, then runs the agent.
    async fn run_agent(&self) -> AgentEnd {
        let clock = Arc::new(self.clock.clone());
        let slots = Arc::new(SlotFile::open(&self.paths().slots(), clock).unwrap());
        let machine = Arc::new(self.machine.clone());
        let observation =
            reconcile_slots(machine.as_ref(), &slots, machine.as_ref()).await.unwrap();
        if observation.is_none() {
            return AgentEnd::Reset;
        }
        let trial = TrialParts {
            boot: machine.clone(),
            slots: Arc::clone(&slots),
            link: Ok(Arc::new(self.link.clone())),
            runner: machine.clone(),
            paths: self.paths(),
            reset: machine.clone(),
            health: HealthConfig {
                units: vec!["app.service".to_owned()],
                server: true,
                deadline: Duration::from_mins(1),
                stable: Duration::from_secs(4),
            },
            requires_server: self.machine.state().requires_server,
            watchdog: WatchdogPolicy::Ignore,
        };
        let cut_off = self.machine.state().offline_on_trial;
        self.server().presence = if cut_off { Presence::Unreachable } else { Presence::Reachable };
        let outcome = run_trial(&trial).await.unwrap();
        self.server().presence = Presence::Reachable;
        if matches!(outcome, TrialOutcome::FellBack { .. }) {
            return AgentEnd::Reset;
        }
        let end = self.agent(slots).run_once().await;
        let state = self.machine.state();
        if state.reset || state.dead {
            return AgentEnd::Reset;
        }
        AgentEnd::Finished(end)
    }

    /// A newly started agent on this node.
    fn agent(&self, slots: Arc<SlotFile>) -> Agent {
        let machine = Arc::new(self.machine.clone());
        let clock = Arc::new(self.clock.clone());
        let owner = Owner::new(self.paths(), clock.clone());
        let owner = Arc::new(owner.with_sessions(self.paths().inside(SESSIONS_FOLDER)));
        let module = ImageModule::new(ImageParts {
            boot: machine.clone(),
            slots: Arc::clone(&slots),
            files: machine.clone(),
            owner: Arc::clone(&owner),
            runner: machine.clone(),
            paths: self.paths(),
            clock: clock.clone(),
            architecture: "x86_64".to_owned(),
            gate: GateSettings { hook_timeout: Duration::from_mins(1), ..GateSettings::default() },
            reboot_timing: RebootTiming::default(),
            web: None,
        });
        let boots = self.machine.state().boots;
        let mut modules: Vec<Box<dyn AnyModule>> = Vec::new();
        if !self.machine.state().hides_slots {
            modules.push(Box::new(module));
        }
        let engine = Engine::new(engine::EngineParts {
            modules,
            journal: Box::new(PowerCutJournal {
                inner: FileJournal::new(self.paths().journal()),
                machine: self.machine.clone(),
            }),
            clock: clock.clone(),
            boot_id: format!("boot-{boots}"),
            kernel_release: String::new(),
            reboot: Box::new(self.machine.clone()),
            machine_gate: machine.clone(),
            health: HealthChecks::new(self.paths(), machine.clone(), Vec::new()),
        });
        let gate = Gate::new(GateParts {
            owner: Arc::clone(&owner),
            runner: machine.clone(),
            paths: self.paths(),
            settings: GateSettings::default(),
        });
        let facts = FactsReader::new(
            PackageTools::new(machine, ZERO_TIMEOUTS),
            self.paths(),
            engine.module_names(),
            Arc::clone(&owner),
        );
        Agent::new(AgentParts {
            engine,
            link: self.link.clone(),
            facts: facts.with_images(Some(slots), Vec::new()),
            clock,
            paths: self.paths(),
            intervals: Intervals {
                refresh_interval: TimeDelta::hours(4),
                fetch_retry_interval: TimeDelta::hours(1),
                retry_interval: TimeDelta::minutes(1),
                max_poll_interval: Duration::from_hours(1),
            },
            stop: CancellationToken::new(),
            gate,
            owner,
            guard: Arc::new(ShutdownGuard::disabled()),
            manager: Arc::new(FakeServiceManager::default()),
        })
    }
}
