//! A node: a folder, a fake system, a server without a wire. Agents come and go on it.

use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use chrono::{DateTime, TimeDelta};
use evenkeel_kit::TestClock;
use evenkeel_update_agent::agent::{Agent, AgentError, Guard, Pace, Parts};
use evenkeel_update_agent::engine::{self, Engine};
use evenkeel_update_agent::facts::FactsReader;
use evenkeel_update_agent::gate::{Gate, GateParts, GateSettings};
use evenkeel_update_agent::journal::{FileJournal, Journal};
use evenkeel_update_agent::model::{
    PackageMode, PackageRules, PackageWish, Target, WantedPackage, Wish,
};
use evenkeel_update_agent::modules::packages::{Limits, Packages, Tools};
use evenkeel_update_agent::modules::{AnyModule, Plugged};
use evenkeel_update_agent::owner::Owner;
use evenkeel_update_agent::place::Place;
use tokio_util::sync::CancellationToken;

use super::link::{FakeLink, World};
use super::machine::{self, Machine};
use super::manager::Heard;
use super::system::{self, FakeSystem};

pub struct Node {
    folder: tempfile::TempDir,
    pub system: Arc<FakeSystem>,
    machine: Machine,
    pub link: FakeLink,
    pub manager: Arc<Heard>,
    pub clock: TestClock,
    pub stop: CancellationToken,
}

/// A wish for the newest of everything.
pub fn latest() -> Target {
    latest_by(PackageRules::default())
}

/// The same, by rules.
pub fn latest_by(rules: PackageRules) -> Target {
    wish("latest", PackageMode::Latest, rules)
}

/// A wish for one package.
pub fn exactly(name: &str, version: Option<&str>) -> Target {
    let package = WantedPackage {
        name: name.into(),
        version: version.map(str::to_owned),
    };
    let mode = PackageMode::Exactly(vec![package]);
    wish(name, mode, PackageRules::default())
}

fn wish(digest: &str, mode: PackageMode, rules: PackageRules) -> Target {
    Target {
        digest: digest.into(),
        wish: Wish::Packages(PackageWish {
            rules,
            ..PackageWish::new(mode)
        }),
    }
}

impl Node {
    /// A node with `lib` (automatic) and `app` in version 1, for which 2 is offered.
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let system = Arc::new(FakeSystem::new(folder.path().to_owned()));
        {
            let mut packages = system.packages.lock().unwrap();
            for name in ["app", "lib"] {
                let old = ("1".to_owned(), "installed".to_owned());
                packages.installed.insert(name.into(), old);
                packages.offered.insert(name.into(), "2".into());
            }
            packages.automatic.insert("lib".into());
        }
        let link = FakeLink::default();
        let node = Self {
            folder,
            machine: Machine::new(&system, &link),
            system,
            link,
            manager: Arc::default(),
            clock: TestClock::new(DateTime::UNIX_EPOCH + TimeDelta::days(20_000)),
            stop: CancellationToken::new(),
        };
        node.place().prepare().unwrap();
        node
    }

    /// A node whose server wants the newest of everything, and now.
    pub fn in_window() -> Self {
        let node = Self::new();
        node.server().target = Some(latest());
        node.server().open = true;
        node
    }

    pub fn place(&self) -> Place {
        Place::new(self.folder.path(), None)
    }

    pub fn server(&self) -> MutexGuard<'_, World> {
        self.link.0.lock().unwrap()
    }

    pub fn packages(&self) -> MutexGuard<'_, system::Packages> {
        self.system.packages.lock().unwrap()
    }

    pub fn machine(&self) -> MutexGuard<'_, machine::State> {
        self.machine.state()
    }

    /// The machine boots, wanted or not: what lies in `/run` is gone, and an agent that is made from now on runs in
    /// another boot.
    pub fn boot(&self) {
        let run = self.place().inside("/run");
        std::fs::remove_dir_all(&run).ok();
        self.machine().boots += 1;
    }

    /// What the agent left in its folder.
    pub fn left_over(&self) -> Vec<String> {
        let files = std::fs::read_dir(self.place().state()).unwrap();
        let mut names: Vec<_> = files
            .map(|file| file.unwrap().file_name().into_string().unwrap())
            .filter(|name| !["history.json", "status.json"].contains(&name.as_str()))
            .collect();
        names.sort();
        names
    }

    /// An agent on this node, as after a start.
    pub fn agent(&self) -> Agent {
        self.agent_with(Box::new(FileJournal::at(self.place().journal())))
    }

    pub fn agent_with(&self, journal: Box<dyn Journal>) -> Agent {
        let tools = || {
            let limits = Limits {
                look: Duration::from_mins(1),
                refresh: Duration::from_mins(1),
                download: Duration::from_mins(1),
                apply: Duration::from_mins(1),
                lock: Duration::from_secs(1),
            };
            Tools::new(self.system.clone(), limits)
        };
        let clock = Arc::new(self.clock.clone());
        let owner = Arc::new(Owner::new(self.place(), clock.clone()));
        let modules: Vec<Box<dyn AnyModule>> = vec![Box::new(Plugged {
            module: Packages::new(tools(), self.place(), Arc::clone(&owner), false),
            wanted: Packages::wanted,
        })];
        let machine = self.machine.clone();
        let engine = Engine::new(engine::Parts {
            modules,
            journal,
            clock: clock.clone(),
            boot_id: machine.boot_id(),
            reboot: Box::new(machine.clone()),
            may_reboot: Arc::new(move || machine.may_reboot()),
        });
        let gate = Gate::new(GateParts {
            owner: Arc::clone(&owner),
            runner: self.system.clone(),
            place: self.place(),
            settings: GateSettings {
                // The machine that runs the tests may be nearly full.
                min_free: 0,
                ..GateSettings::default()
            },
        });
        Agent::new(Parts {
            facts: FactsReader::new(
                tools(),
                self.place(),
                engine.module_names(),
                Arc::clone(&owner),
            ),
            engine,
            link: self.link.clone(),
            clock,
            place: self.place(),
            pace: Pace {
                refresh_every: TimeDelta::hours(4),
                fetch_again_after: TimeDelta::hours(1),
                retry_after: TimeDelta::minutes(1),
                poll_at_least_every: Duration::from_hours(1),
            },
            stop: self.stop.clone(),
            gate,
            owner,
            guard: Arc::new(Guard::none()),
            manager: self.manager.clone(),
        })
    }

    /// Starts an agent that does everything that can be done now.
    pub async fn run_once(&self) -> Result<(), AgentError> {
        self.agent().run_once().await
    }
}
