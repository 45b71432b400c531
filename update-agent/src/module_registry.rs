//! Builds the parts of an agent from the configuration.

use std::fmt;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use anyhow::Context;
use evenkeel_kit::{Clock, SystemClock};
use rustix::fs::{StatVfsMountFlags, statvfs};

use crate::agent::ShutdownGuard;
use crate::config::Config;
use crate::engine::{self, Engine};
use crate::facts::{FactsReader, reboot};
use crate::gate::{Gate, GateParts};
use crate::health::HealthChecks;
use crate::journal::Journal;
use crate::link::{GrpcLink, ServerLink, TimeFloor, Trust};
use crate::model::Failure;
use crate::modules::image::ImageSystem;
use crate::modules::packages::PackageTools;
use crate::modules::{AnyModule, MODULES};
use crate::node::{self, Node, NodeCertificates, NodeError};
use crate::os;
use crate::other_updaters::OtherUpdaters;
use crate::owner::Owner;
use crate::paths::AgentPaths;
use crate::reboot::{NoReboot, RebootControl, SystemReboot};
use crate::runner::{HostRunner, Runner};

/// Builds the modules and the other parts of an agent.
pub struct ModuleRegistry<'a> {
    /// The agent's configuration.
    pub config: &'a Config,
    /// The managed root and the agent's files.
    pub paths: &'a AgentPaths,
    /// Starts programs of the managed root.
    pub runner: Arc<dyn Runner>,
    /// Source of the current time.
    pub clock: Arc<dyn Clock>,
    /// Limits of the machine's owner.
    pub owner: Arc<Owner>,
    /// Loaded at the first use.
    images: OnceLock<Result<Option<ImageSystem>, Failure>>,
    /// Loaded at the first use.
    time_floor: OnceLock<Arc<TimeFloor>>,
    /// Loaded at the first use.
    certificates: OnceLock<Arc<NodeCertificates>>,
}

impl fmt::Debug for ModuleRegistry<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModuleRegistry").field("paths", &self.paths).finish_non_exhaustive()
    }
}

impl<'a> ModuleRegistry<'a> {
    /// Uses the programs of the managed root and the clock of the machine.
    pub fn new(config: &'a Config, paths: &'a AgentPaths) -> Self {
        let runner = HostRunner::new(paths.root()).with_change_record(paths.change_record());
        let runner = Arc::new(runner);
        Self::with_runner(config, paths, runner, Arc::new(SystemClock))
    }

    /// Uses another runner and another clock.
    pub fn with_runner(
        config: &'a Config,
        paths: &'a AgentPaths,
        runner: Arc<dyn Runner>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let owner = Arc::new(Owner::new(paths.clone(), Arc::clone(&clock)));
        Self {
            config,
            paths,
            runner,
            clock,
            owner,
            images: OnceLock::new(),
            time_floor: OnceLock::new(),
            certificates: OnceLock::new(),
        }
    }

    /// The image slots; `None` if this system has no second slot. Fails with advice if the slots
    /// are not usable.
    pub fn images(&self) -> Result<Option<&ImageSystem>, Failure> {
        let images = self.images.get_or_init(|| ImageSystem::load(self));
        match images {
            Ok(images) => Ok(images.as_ref()),
            Err(failure) => Err(failure.clone()),
        }
    }

    /// The latest trusted time. There is one instance per process, so that all connections to the
    /// server share it.
    pub fn time_floor(&self) -> Arc<TimeFloor> {
        Arc::clone(self.time_floor.get_or_init(|| Arc::new(TimeFloor::load(self.paths))))
    }

    /// The node's certificates. There is one instance per process, so that all connections to the
    /// server show a renewed certificate.
    pub fn certificates(&self) -> Result<Arc<NodeCertificates>, NodeError> {
        if let Some(certificates) = self.certificates.get() {
            return Ok(Arc::clone(certificates));
        }
        let loaded = Arc::new(NodeCertificates::load(self.paths)?);
        Ok(Arc::clone(self.certificates.get_or_init(|| loaded)))
    }

    /// The package tools: apt and dpkg.
    pub fn package_tools(&self) -> PackageTools {
        PackageTools::new(Arc::clone(&self.runner), self.config.package_tool_timeouts())
            .with_max_rate(self.config.packages.max_download_rate)
            .with_hook_timeout(self.config.packages.hook_timeout)
    }

    /// Whether the managed root is the agent's own system and systemd runs it.
    pub fn has_systemd(&self) -> bool {
        self.paths.is_own_system() && os::runs_systemd(self.paths)
    }

    /// Builds all modules of this node.
    pub fn build_modules(&self) -> Vec<Box<dyn AnyModule>> {
        let modules = MODULES.iter().filter_map(|kind| {
            (kind.build)(self).unwrap_or_else(|failure| {
                tracing::error!(module = kind.name, %failure, "the module cannot be used");
                None
            })
        });
        modules.collect()
    }

    /// Creates the link to the node's server, with the node's certificate and bearer token.
    pub fn connect(&self, node: &Node) -> anyhow::Result<GrpcLink> {
        let trust = node::load_ca(self.paths)?.map_or(Trust::System, Trust::Ca);
        let proxy = self.config.proxy().context("read the configuration")?;
        let deadline = self.config.call_timeout;
        let floor = self.time_floor();
        let certificates = self.certificates()?;
        let credential = node::load_credential(self.paths)?;
        if !certificates.has_client() && credential.is_none() {
            return Err(NodeError::NoCertificate.into());
        }
        let link = GrpcLink::with_floor(floor, &node.server, &trust, proxy.as_ref(), deadline)?
            .with_certificates(certificates)?;
        if let Some(credential) = &credential {
            link.set_credential(credential)?;
        }
        Ok(link)
    }

    /// Builds the reader of the node's facts, with warnings that apply until the agent restarts.
    pub fn build_facts_reader(&self, modules: Vec<String>, warnings: Vec<String>) -> FactsReader {
        let images = self.images().ok().flatten();
        let owner = Arc::clone(&self.owner);
        FactsReader::new(self.package_tools(), self.paths.clone(), modules, owner)
            .with_images(images.map(|images| Arc::clone(&images.slots)), warnings)
            .with_boot_control(images.map(|images| Arc::clone(&images.boot)))
            .with_other_updaters(self.other_updaters())
    }

    /// The other programs that update the managed root.
    pub fn other_updaters(&self) -> OtherUpdaters {
        OtherUpdaters::new(
            Arc::clone(&self.runner),
            self.paths.clone(),
            self.config.other_updaters.mode,
            self.has_systemd(),
        )
    }

    /// Whether packages can be changed: always, except in an image that has no dpkg or is
    /// read-only.
    pub fn has_packages(&self) -> bool {
        if matches!(self.images(), Ok(None)) {
            return true;
        }
        let is_fixed = statvfs(self.paths.inside("/usr"))
            .is_ok_and(|stats| stats.f_flag.contains(StatVfsMountFlags::RDONLY));
        os::has_dpkg(self.paths) && !is_fixed
    }

    pub fn build_engine(&self, journal: Box<dyn Journal>) -> Engine {
        let parts = engine::EngineParts {
            modules: self.build_modules(),
            journal,
            clock: Arc::clone(&self.clock),
            boot_id: os::boot_id(),
            kernel_release: reboot::own_kernel_release(self.paths).unwrap_or_default(),
            reboot: self.reboot_control(),
            machine_gate: Arc::new(self.build_gate()),
            health: self.health_checks(),
        };
        Engine::new(parts)
            .with_settling_time(self.config.reboot.services_timeout)
            .with_reboot_timing(self.config.reboot_timing())
    }

    /// The health checks. Units of the system around another root are not checked.
    fn health_checks(&self) -> HealthChecks {
        let units = &self.config.image.health.units;
        let units = if self.has_systemd() { units.clone() } else { Vec::new() };
        HealthChecks::new(self.paths.clone(), Arc::clone(&self.runner), units)
    }

    /// The reboot control. The agent does not reboot the system around another root.
    fn reboot_control(&self) -> Box<dyn RebootControl> {
        if !self.paths.is_own_system() {
            return Box::new(NoReboot);
        }
        let system = Arc::new(HostRunner::new(Path::new("/")));
        let command = self.config.reboot.command.clone();
        Box::new(SystemReboot::new(system, command))
    }

    /// Builds the gate, which checks whether the node lets a change begin.
    pub fn build_gate(&self) -> Gate {
        Gate::new(GateParts {
            owner: Arc::clone(&self.owner),
            runner: Arc::clone(&self.runner),
            paths: self.paths.clone(),
            settings: self.config.gate_settings(),
        })
    }

    /// Builds the guard, which prevents a shutdown during a change.
    pub fn shutdown_guard(&self) -> ShutdownGuard {
        if self.has_systemd() {
            ShutdownGuard::new(Arc::clone(&self.runner))
        } else {
            ShutdownGuard::disabled()
        }
    }
}
