//! What the commands build an agent of.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use evenkeel_kit::{Clock, SystemClock};

use crate::agent::Guard;
use crate::boot::{NoReboot, Reboot, SystemReboot};
use crate::config::Config;
use crate::engine::{self, Engine};
use crate::gate::{Gate, GateParts};
use crate::journal::Journal;
use crate::modules::packages::{Packages, Tools};
use crate::modules::{AnyModule, Plugged};
use crate::os;
use crate::owner::Owner;
use crate::place::Place;
use crate::runner::{HostRunner, Runner};

/// There if systemd is the system's service manager.
const SYSTEMD: &str = "/run/systemd/system";

/// The parts that everything else is made of.
pub struct Workshop<'a> {
    /// What the agent was told.
    pub config: &'a Config,
    /// Where things are.
    pub place: &'a Place,
    /// Starts programs of the managed root.
    pub runner: Arc<dyn Runner>,
    /// Tells the time.
    pub clock: Arc<dyn Clock>,
    /// What the machine's owner allows.
    pub owner: Arc<Owner>,
}

impl fmt::Debug for Workshop<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Workshop")
            .field("place", &self.place)
            .finish_non_exhaustive()
    }
}

impl<'a> Workshop<'a> {
    /// With the programs of the place and the clock of the machine.
    pub fn new(config: &'a Config, place: &'a Place) -> Self {
        let runner = Arc::new(HostRunner::new(place.root()));
        Self::with(config, place, runner, Arc::new(SystemClock))
    }

    /// With other programs and another clock.
    pub fn with(
        config: &'a Config,
        place: &'a Place,
        runner: Arc<dyn Runner>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let owner = Arc::new(Owner::new(place.clone(), Arc::clone(&clock)));
        Self {
            config,
            place,
            runner,
            clock,
            owner,
        }
    }

    /// apt and dpkg.
    pub fn tools(&self) -> Tools {
        Tools::new(Arc::clone(&self.runner), self.config.limits())
    }

    /// Whether the managed system is the agent's own and is run by systemd.
    pub fn has_systemd(&self) -> bool {
        self.place.is_own_system() && Path::new(SYSTEMD).is_dir()
    }

    /// Every module that this agent has.
    pub fn modules(&self) -> Vec<Box<dyn AnyModule>> {
        let owner = Arc::clone(&self.owner);
        let services = self.has_systemd();
        vec![Box::new(Plugged {
            module: Packages::new(self.tools(), self.place.clone(), owner, services),
            wanted: Packages::wanted,
        })]
    }

    /// The engine, on a journal.
    pub fn engine(&self, journal: Box<dyn Journal>) -> Engine {
        let owner = Arc::clone(&self.owner);
        let parts = engine::Parts {
            modules: self.modules(),
            journal,
            clock: Arc::clone(&self.clock),
            boot_id: os::boot_id(),
            reboot: self.reboot(),
            may_reboot: Arc::new(move || owner.may_reboot()),
        };
        Engine::new(parts).with_settling(self.config.reboot.services_deadline)
    }

    /// Another root is rebooted only by a command that a person chose for it, on the system that the agent runs on.
    fn reboot(&self) -> Box<dyn Reboot> {
        if !self.place.is_own_system() {
            return Box::new(NoReboot);
        }
        let system = Arc::new(HostRunner::new(Path::new("/")));
        let command = self.config.reboot.command.clone();
        Box::new(SystemReboot::new(system, command))
    }

    /// Asks the node whether a change may begin.
    pub fn gate(&self) -> Gate {
        Gate::new(GateParts {
            owner: Arc::clone(&self.owner),
            runner: Arc::clone(&self.runner),
            place: self.place.clone(),
            settings: self.config.gate(),
        })
    }

    /// Keeps the system up while it is being changed.
    pub fn guard(&self) -> Guard {
        if self.has_systemd() {
            Guard::of_system(Arc::clone(&self.runner))
        } else {
            Guard::none()
        }
    }
}
