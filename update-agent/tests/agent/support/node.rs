//! A node: a folder, a fake system and a fake server. Agents start and end on it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use chrono::{DateTime, TimeDelta};
use evenkeel_kit::TestClock;
use evenkeel_update_agent::agent::{Agent, AgentError, AgentParts, Intervals, ShutdownGuard};
use evenkeel_update_agent::engine::{self, Engine};
use evenkeel_update_agent::facts::FactsReader;
use evenkeel_update_agent::gate::{Gate, GateParts, GateSettings};
use evenkeel_update_agent::health::HealthChecks;
use evenkeel_update_agent::journal::{FileJournal, Journal};
use evenkeel_update_agent::model::{
    AttemptEvent, ModuleParts, PackageMode, PackageRequirement, PackageRules, PackageSpec,
    UpdateTarget,
};
use evenkeel_update_agent::modules::packages::{
    PackageReport, PackageToolTimeouts, PackageTools, PackagesModule,
};
use evenkeel_update_agent::modules::{AnyModule, Module as _};
use evenkeel_update_agent::other_updaters::OtherUpdaters;
use evenkeel_update_agent::owner::Owner;
use evenkeel_update_agent::paths::AgentPaths;
use tokio_util::sync::CancellationToken;

use super::link::{FakeLink, FakeServer};
use super::machine::{self, FakeMachine, FakeMachineGate};
use super::manager::FakeServiceManager;
use super::system::{self, FakeSystem};

pub struct TestNode {
    folder: tempfile::TempDir,
    pub system: Arc<FakeSystem>,
    machine: FakeMachine,
    pub link: FakeLink,
    pub manager: Arc<FakeServiceManager>,
    pub clock: TestClock,
    pub stop: CancellationToken,
    /// How long the agents wait for locks of other programs.
    pub lock_timeout: Duration,
}

/// A target for the newest version of everything.
pub fn latest_target() -> UpdateTarget {
    latest_target_with(PackageRules::default())
}

/// The same, with rules.
pub fn latest_target_with(rules: PackageRules) -> UpdateTarget {
    packages_target("latest", PackageMode::Latest, rules)
}

pub fn package_target(name: &str, version: Option<&str>) -> UpdateTarget {
    let package = PackageRequirement { name: name.into(), version: version.map(str::to_owned) };
    let mode = PackageMode::Exactly(vec![package]);
    packages_target(name, mode, PackageRules::default())
}

fn packages_target(digest: &str, mode: PackageMode, rules: PackageRules) -> UpdateTarget {
    UpdateTarget {
        digest: digest.into(),
        spec: packages_spec(&PackageSpec { rules, ..PackageSpec::new(mode) }),
    }
}

pub fn packages_spec(spec: &PackageSpec) -> ModuleParts {
    ModuleParts::of(PackagesModule::NAME, spec).unwrap()
}

/// What the module of packages reports with the last event of an attempt.
pub fn package_report(event: &AttemptEvent) -> PackageReport {
    event.report.as_ref().unwrap().modules.read(PackagesModule::NAME).unwrap()
}

impl TestNode {
    /// A node with `lib` (automatic) and `app` in version 1. The sources offer version 2.
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
            machine: FakeMachine::new(&system, &link),
            system,
            link,
            manager: Arc::default(),
            clock: TestClock::new(DateTime::UNIX_EPOCH + TimeDelta::days(20_000)),
            stop: CancellationToken::new(),
            lock_timeout: Duration::from_secs(1),
        };
        node.paths().prepare().unwrap();
        node
    }

    /// A node whose server offers the newest version of everything, in an open window.
    pub fn in_window() -> Self {
        let node = Self::new();
        node.server().target = Some(latest_target());
        node.server().window_open = true;
        node
    }

    pub fn paths(&self) -> AgentPaths {
        AgentPaths::new(self.folder.path(), None)
    }

    /// The root of the files about the hardware. Agents that start while it exists report the hardware.
    pub fn hardware_root(&self) -> PathBuf {
        self.folder.path().join("hardware")
    }

    pub fn server(&self) -> MutexGuard<'_, FakeServer> {
        self.link.0.lock().unwrap()
    }

    pub fn packages(&self) -> MutexGuard<'_, system::FakePackages> {
        self.system.packages.lock().unwrap()
    }

    pub fn machine(&self) -> MutexGuard<'_, machine::MachineState> {
        self.machine.state()
    }

    /// Boots the machine, requested or not: `/run` becomes empty, and agents that start from now on have another boot
    /// identifier.
    pub fn boot(&self) {
        let run = self.paths().inside("/run");
        std::fs::remove_dir_all(&run).ok();
        self.machine().boots += 1;
    }

    /// Adds a program of the machine's owner: a hook or a health check. `FakePackages::program_status` has its status.
    pub fn add_program(&self, path: &str) {
        let file = self.paths().inside(path);
        let folder = file.parent().unwrap();
        fs::create_dir_all(folder).unwrap();
        fs::write(&file, "#!/bin/sh\n").unwrap();
        let evenkeel = self.paths().inside("/etc/evenkeel");
        let folders = folder.ancestors().take_while(|folder| folder.starts_with(&evenkeel));
        for path in folders.chain([file.as_path()]) {
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        }
    }

    /// The files in the agent's state folder, without those that no attempt leaves: the history, the status, the
    /// versions of the packages and the last target.
    pub fn state_files(&self) -> Vec<String> {
        let files = std::fs::read_dir(self.paths().state()).unwrap();
        let mut names: Vec<_> = files
            .map(|file| file.unwrap().file_name().into_string().unwrap())
            .filter(|name| {
                let ignored =
                    ["history.json", "status.json", "package-versions.json", "target.json"];
                !ignored.contains(&name.as_str())
            })
            .collect();
        names.sort();
        names
    }

    /// A newly started agent on this node.
    pub fn agent(&self) -> Agent {
        self.agent_with_journal(Box::new(FileJournal::new(self.paths().journal())))
    }

    pub fn agent_with_journal(&self, journal: Box<dyn Journal>) -> Agent {
        self.agent_with_modules(journal, Vec::new())
    }

    /// An agent with further modules.
    pub fn agent_with_modules(
        &self,
        journal: Box<dyn Journal>,
        mut modules: Vec<Box<dyn AnyModule>>,
    ) -> Agent {
        let tools = || {
            let limits = PackageToolTimeouts {
                query: Duration::from_mins(1),
                refresh: Duration::from_mins(1),
                download: Duration::from_mins(1),
                apply: Duration::from_mins(1),
                lock: self.lock_timeout,
            };
            PackageTools::new(self.system.clone(), limits)
        };
        let clock = Arc::new(self.clock.clone());
        let owner = Arc::new(Owner::new(self.paths(), clock.clone()));
        let packages = PackagesModule::new(tools(), self.paths(), Arc::clone(&owner), false);
        modules.push(Box::new(packages));
        let gate = || {
            Gate::new(GateParts {
                owner: Arc::clone(&owner),
                runner: self.system.clone(),
                paths: self.paths(),
                settings: GateSettings {
                    // The machine that runs the tests may be nearly full.
                    min_free: 0,
                    ..GateSettings::default()
                },
            })
        };
        let machine = self.machine.clone();
        let kernel_release = machine.state().kernel_release.clone();
        let engine = Engine::new(engine::EngineParts {
            modules,
            journal,
            clock: clock.clone(),
            boot_id: machine.boot_id(),
            kernel_release,
            reboot: Box::new(machine.clone()),
            machine_gate: Arc::new(FakeMachineGate { machine, gate: gate() }),
            health: HealthChecks::new(self.paths(), self.system.clone(), Vec::new()),
        });
        let gate = gate();
        let updaters = OtherUpdaters::new(self.system.clone(), self.paths(), None, false);
        let facts =
            FactsReader::new(tools(), self.paths(), engine.module_names(), Arc::clone(&owner));
        let facts = facts.with_other_updaters(updaters);
        Agent::new(AgentParts {
            facts: if self.hardware_root().exists() {
                facts.with_hardware_root(self.hardware_root())
            } else {
                facts
            },
            engine,
            link: self.link.clone(),
            clock,
            paths: self.paths(),
            intervals: Intervals {
                refresh_interval: TimeDelta::hours(4),
                fetch_retry_interval: TimeDelta::hours(1),
                retry_interval: TimeDelta::minutes(1),
                max_poll_interval: Duration::from_hours(1),
            },
            stop: self.stop.clone(),
            gate,
            owner,
            guard: Arc::new(ShutdownGuard::disabled()),
            manager: self.manager.clone(),
        })
    }

    /// Starts an agent that does everything that can be done now.
    pub async fn run_once(&self) -> Result<(), AgentError> {
        self.agent().run_once().await
    }
}
