//! A node that is updated by images: its agents come and go on a machine with two slots.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use chrono::{DateTime, TimeDelta};
use evenkeel_kit::TestClock;
use evenkeel_update_agent::agent::{Agent, AgentError, Guard, Pace, Parts};
use evenkeel_update_agent::commands::images::reconcile;
use evenkeel_update_agent::config::{HealthConfig, Watchdog};
use evenkeel_update_agent::durable::FileError;
use evenkeel_update_agent::engine::{self, Engine};
use evenkeel_update_agent::facts::FactsReader;
use evenkeel_update_agent::gate::{Gate, GateParts, GateSettings};
use evenkeel_update_agent::journal::{Entry as Attempt, FileJournal, Journal, JournalError, Point};
use evenkeel_update_agent::model::{ImageRules, ImageWish, Sha256, Target, Wish};
use evenkeel_update_agent::modules::image::slots::{Entry, Slot, SlotFile, Slots};
use evenkeel_update_agent::modules::image::{Image, ImageParts};
use evenkeel_update_agent::modules::packages::{Limits, Tools};
use evenkeel_update_agent::modules::{AnyModule, Plugged};
use evenkeel_update_agent::owner::Owner;
use evenkeel_update_agent::place::Place;
use evenkeel_update_agent::trial::{Over, TrialParts, see_through};
use tokio_util::sync::CancellationToken;

use super::link::{FakeLink, Presence, World};
use super::manager::Heard;
use super::slots::{Machine, index};

/// For the tools of packages, which an image does not need.
const NO_TIME: Limits = Limits {
    look: Duration::ZERO,
    refresh: Duration::ZERO,
    download: Duration::ZERO,
    apply: Duration::ZERO,
    lock: Duration::ZERO,
};

/// The journal of a machine whose power fails.
struct CutJournal {
    inner: FileJournal,
    machine: Machine,
}

impl CutJournal {
    fn pass(&self) -> Result<(), JournalError> {
        if !self.machine.state().step() {
            return Ok(());
        }
        Err(JournalError::File(FileError {
            doing: "write",
            path: "journal".into(),
            source: io::Error::other("the power failed"),
        }))
    }
}

impl Journal for CutJournal {
    fn read(&self) -> Result<Option<Attempt>, JournalError> {
        self.inner.read()
    }

    fn write(&self, point: &Point, entry: &Attempt) -> Result<(), JournalError> {
        self.pass()?;
        self.inner.write(point, entry)?;
        self.pass()
    }

    fn clear(&self) -> Result<(), JournalError> {
        self.pass()?;
        self.inner.clear()?;
        self.pass()
    }
}

/// What became of an agent.
#[derive(Debug)]
enum Life {
    /// It has done what could be done.
    Rests(Result<(), AgentError>),
    /// The machine resets, or its power failed.
    Boots,
}

pub struct ImageNode {
    folder: tempfile::TempDir,
    pub machine: Machine,
    pub link: FakeLink,
    pub clock: TestClock,
}

/// A wish for a version.
pub fn image(version: &str) -> Target {
    Target {
        digest: "os".into(),
        wish: Wish::Image(ImageWish {
            os_id: "os-2".into(),
            name: format!("Demo {version}"),
            profile_name: "demo".into(),
            image_id: version.into(),
            architecture: "x86_64".into(),
            url: format!("https://images.example/{version}.raw"),
            sha256: Sha256::of(version.as_bytes()),
            signatures: Vec::new(),
            rules: ImageRules::default(),
            again: false,
        }),
    }
}

impl ImageNode {
    /// A node that runs 1.0, whose server wants 1.1, and now. Its owner asks for no signatures.
    pub fn in_window() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let node = Self {
            folder,
            machine: Machine::new(),
            link: FakeLink::default(),
            clock: TestClock::new(DateTime::UNIX_EPOCH + TimeDelta::days(20_000)),
        };
        node.place().prepare().unwrap();
        let settings = node.place().inside("/etc/evenkeel");
        fs::create_dir_all(&settings).unwrap();
        fs::set_permissions(&settings, fs::Permissions::from_mode(0o755)).unwrap();
        let limits = settings.join("limits.toml");
        fs::write(&limits, "[image]\nunsigned_images = true\n").unwrap();
        fs::set_permissions(&limits, fs::Permissions::from_mode(0o644)).unwrap();
        node.label();
        node.server().target = Some(image("1.1"));
        node.server().open = true;
        node
    }

    pub fn place(&self) -> Place {
        let data = self.folder.path().join("data");
        Place::new(self.folder.path(), Some(data))
    }

    pub fn server(&self) -> MutexGuard<'_, World> {
        self.link.0.lock().unwrap()
    }

    /// Puts a hook to be asked at a moment, such as `before-reboot`.
    pub fn hook(&self, moment: &str) {
        let hooks = self.place().inside("/etc/evenkeel/hooks");
        let folder = hooks.join(format!("{moment}.d"));
        fs::create_dir_all(&folder).unwrap();
        let file = folder.join("ask");
        fs::write(&file, "").unwrap();
        for path in [&hooks, &folder, &file] {
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        }
    }

    pub fn slots(&self) -> Slots {
        let clock = Arc::new(self.clock.clone());
        SlotFile::open(&self.place().slots(), clock).unwrap().get()
    }

    /// What runs says what it is.
    fn label(&self) {
        let state = self.machine.state();
        let version = state.contents[index(state.running)].clone();
        let text = format!(
            "ID=demo\nIMAGE_ID=demo\nIMAGE_VERSION={}\n",
            version.unwrap()
        );
        fs::write(self.place().inside("/etc/os-release"), text).unwrap();
    }

    /// The machine starts by the rule of its loader: what is on trial and has boots left, else the newest of what has no
    /// counter.
    pub fn boot(&self) {
        {
            let mut state = self.machine.state();
            if state.dead {
                state.cut = None;
                self.clock.advance(state.off);
                if state.dies_alone && !state.reset {
                    state.dead = false;
                    return;
                }
            }
            (state.dead, state.reset) = (false, false);
            state.boots += 1;
            let entries = [(Slot::A, state.a.clone()), (Slot::B, state.b.clone())];
            let is_on_trial = |entry: &Entry| matches!(entry, Entry::Counted { left: 1.., .. });
            let on_trial = entries.iter().find(|(_, entry)| is_on_trial(entry));
            let plain = entries.iter().filter(|(_, entry)| *entry == Entry::Plain);
            let plain = plain.max_by_key(|(slot, _)| state.orders[index(*slot)]);
            let (slot, entry) = on_trial.or(plain).expect("something boots").clone();
            if let Entry::Counted { left, done } = entry {
                *state.entry(slot) = Entry::Counted {
                    left: left - 1,
                    done: done + 1,
                };
            }
            assert!(state.contents[index(slot)].is_some(), "{slot} is torn");
            state.running = slot;
        }
        fs::remove_dir_all(self.place().inside("/run")).ok();
        self.label();
    }

    /// Lets agents live, and the machine boot, until nothing is left to do; how the last one ended.
    pub async fn live(&self) -> Result<(), AgentError> {
        for _ in 0..12 {
            let life = tokio::select! {
                biased;
                life = self.one_life() => life,
                () = self.machine.died.notified() => Life::Boots,
            };
            match life {
                Life::Rests(end) => return end,
                Life::Boots => self.boot(),
            }
        }
        panic!("it never rests: {:?}", self.machine.state());
    }

    /// As `run` does it: what the record says is made to fit, a trial is seen through, and then the loop begins.
    async fn one_life(&self) -> Life {
        let clock = Arc::new(self.clock.clone());
        let slots = Arc::new(SlotFile::open(&self.place().slots(), clock).unwrap());
        let machine = Arc::new(self.machine.clone());
        let settled = reconcile(machine.as_ref(), &slots, machine.as_ref())
            .await
            .unwrap();
        if settled.is_none() {
            return Life::Boots;
        }
        let trial = TrialParts {
            boot: machine.clone(),
            slots: Arc::clone(&slots),
            link: Ok(Arc::new(self.link.clone())),
            runner: machine.clone(),
            place: self.place(),
            reset: machine.clone(),
            health: HealthConfig {
                units: vec!["app.service".to_owned()],
                server: true,
                deadline: Duration::from_mins(1),
                stable: Duration::from_secs(4),
            },
            server: self.machine.state().needs_server,
            watchdog: Watchdog::Ignore,
        };
        let cut_off = self.machine.state().cut_off_on_trial;
        self.server().presence = if cut_off {
            Presence::Away
        } else {
            Presence::Here
        };
        let over = see_through(&trial).await.unwrap();
        self.server().presence = Presence::Here;
        if matches!(over, Over::FellBack { .. }) {
            return Life::Boots;
        }
        let end = self.agent(slots).run_once().await;
        let state = self.machine.state();
        if state.reset || state.dead {
            return Life::Boots;
        }
        Life::Rests(end)
    }

    /// An agent on this node, as after a start.
    fn agent(&self, slots: Arc<SlotFile>) -> Agent {
        let machine = Arc::new(self.machine.clone());
        let clock = Arc::new(self.clock.clone());
        let owner = Arc::new(Owner::new(self.place(), clock.clone()));
        let module = Image::new(ImageParts {
            boot: machine.clone(),
            slots: Arc::clone(&slots),
            files: machine.clone(),
            owner: Arc::clone(&owner),
            runner: machine.clone(),
            place: self.place(),
            clock: clock.clone(),
            machine: "x86_64".to_owned(),
            hook_deadline: Duration::from_mins(1),
            reboot_patience: Duration::from_mins(30),
        });
        let (of_engine, boots) = (self.machine.clone(), self.machine.state().boots);
        let mut modules: Vec<Box<dyn AnyModule>> = Vec::new();
        if !self.machine.state().hidden {
            modules.push(Box::new(Plugged {
                module,
                wanted: Image::wanted,
            }));
        }
        let engine = Engine::new(engine::Parts {
            modules,
            journal: Box::new(CutJournal {
                inner: FileJournal::at(self.place().journal()),
                machine: self.machine.clone(),
            }),
            clock: clock.clone(),
            boot_id: format!("boot-{boots}"),
            reboot: Box::new(self.machine.clone()),
            may_reboot: Arc::new(move || of_engine.state().owner.clone().map_or(Ok(()), Err)),
        });
        let gate = Gate::new(GateParts {
            owner: Arc::clone(&owner),
            runner: machine.clone(),
            place: self.place(),
            settings: GateSettings::default(),
        });
        let facts = FactsReader::new(
            Tools::new(machine, NO_TIME),
            self.place(),
            engine.module_names(),
            Arc::clone(&owner),
        );
        Agent::new(Parts {
            engine,
            link: self.link.clone(),
            facts: facts.with_images(Some(slots), Vec::new()),
            clock,
            place: self.place(),
            pace: Pace {
                refresh_every: TimeDelta::hours(4),
                fetch_again_after: TimeDelta::hours(1),
                retry_after: TimeDelta::minutes(1),
                poll_at_least_every: Duration::from_hours(1),
            },
            stop: CancellationToken::new(),
            gate,
            owner,
            guard: Arc::new(Guard::none()),
            manager: Arc::new(Heard::default()),
        })
    }
}
