//! What the commands build an agent of.

use std::fmt;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use evenkeel_kit::{Clock, SystemClock};
use rustix::fs::{StatVfsMountFlags, statvfs};

use super::images::Images;
use crate::agent::Guard;
use crate::boot::{NoReboot, Reboot, SystemReboot};
use crate::config::Config;
use crate::engine::{self, Engine};
use crate::gate::{Gate, GateParts};
use crate::journal::Journal;
use crate::link::Floor;
use crate::model::Failure;
use crate::modules::image::Image;
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
    /// Looked for when it is first asked for.
    images: OnceLock<Result<Option<Images>, Failure>>,
    /// Read when it is first asked for.
    floor: OnceLock<Arc<Floor>>,
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
            images: OnceLock::new(),
            floor: OnceLock::new(),
        }
    }

    /// What images need; `None` if this system has no second slot. Fails, and says what to do, if it has one that cannot
    /// be used.
    pub fn images(&self) -> Result<Option<&Images>, Failure> {
        let images = self.images.get_or_init(|| Images::open(self));
        match images {
            Ok(images) => Ok(images.as_ref()),
            Err(failure) => Err(failure.clone()),
        }
    }

    /// The earliest time that it can be. There is one in a process: what is heard over one way counts for the others.
    pub fn floor(&self) -> Arc<Floor> {
        Arc::clone(self.floor.get_or_init(|| Arc::new(Floor::open(self.place))))
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
        let mut modules: Vec<Box<dyn AnyModule>> = Vec::new();
        if self.has_packages() {
            let owner = Arc::clone(&self.owner);
            let services = self.has_systemd();
            modules.push(Box::new(Plugged {
                module: Packages::new(self.tools(), self.place.clone(), owner, services),
                wanted: Packages::wanted,
            }));
        }
        match self.images() {
            Ok(None) => {}
            Ok(Some(images)) => modules.push(Box::new(Plugged {
                module: images.module(self),
                wanted: Image::wanted,
            })),
            Err(failure) => {
                tracing::error!(%failure, "there are slots for images, and they cannot be used");
            }
        }
        modules
    }

    /// Whether packages can be changed here: everywhere but in an image without a database of them, or one that nothing
    /// can be written to.
    pub fn has_packages(&self) -> bool {
        if matches!(self.images(), Ok(None)) {
            return true;
        }
        let is_fixed = statvfs(self.place.inside("/usr"))
            .is_ok_and(|found| found.f_flag.contains(StatVfsMountFlags::RDONLY));
        os::has_dpkg(self.place) && !is_fixed
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
