//! What is known about the node, for the server to decide upon.

mod manifest;
mod reboot;
mod stale;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

use crate::model::Failure;
use crate::modules::packages::{self, KnownPackage, Simulation, Tools, hex};
use crate::os::{self, OsRelease};
use crate::place::Place;

pub use self::stale::StaleService;

/// An audit longer than this is cut.
const MOST_AUDIT: usize = 16 << 10;
/// Any other text longer than this is cut, and so is a list.
const MOST_TEXT: usize = 1 << 10;
const MOST_PACKAGES: usize = 100_000;

/// Services that ran what was replaced are looked at again after this time: nothing tells when one is restarted.
const STALE_AGAIN: Duration = Duration::from_mins(10);

/// Files that change when packages, lists of packages or the wish for a reboot do.
const TELLTALES: [&str; 10] = [
    "/var/lib/dpkg/status",
    "/var/lib/dpkg/updates",
    "/var/lib/apt/lists",
    "/var/lib/apt/extended_states",
    "/etc/apt/preferences",
    "/etc/apt/preferences.d",
    "/etc/apt/sources.list.d",
    "/etc/os-release",
    "/run/reboot-required",
    "/run/reboot-required.pkgs",
];

/// What is known about the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// This agent's.
    pub agent_version: String,
    /// The managed root's.
    pub os_release: OsRelease,
    /// Debian's name of the architecture.
    pub architecture: String,
    /// The running kernel.
    pub kernel_release: String,
    /// The boot that the kernel is in.
    pub boot_id: String,
    /// Names of the modules, in ascending order.
    pub modules: Vec<String>,
    /// Packages for which apt knows a newer version, by name, then architecture.
    pub available: Vec<Available>,
    /// SHA-256 of the list of packages, hexadecimal.
    pub installed_digest: String,
    /// Whether the system waits for a reboot.
    pub reboot_required: bool,
    /// For which packages.
    pub reboot_required_by: Vec<String>,
    /// What is wrong with dpkg's database.
    pub audit: String,
    /// SHA-256 of the list of packages as it would be told.
    pub packages_digest: Option<[u8; 32]>,
    /// Packages that have a newer version and do not get it, by name, then architecture.
    pub withheld: Vec<Withheld>,
    /// Services that still run what was replaced on disk, by name.
    pub stale_services: Vec<StaleService>,
    /// Why the system waits for a reboot, for people.
    pub reboot_reasons: Vec<String>,
}

impl Facts {
    /// The same, with no text that the server would refuse: one file of one package must not keep the node from being
    /// heard.
    fn within_bounds(mut self) -> Self {
        let release = &mut self.os_release;
        let texts = [
            &mut release.id,
            &mut release.version_id,
            &mut release.pretty_name,
            &mut release.version_codename,
            &mut self.kernel_release,
            &mut self.boot_id,
        ];
        let services = self.stale_services.iter_mut();
        let services = services
            .flat_map(|service| std::iter::once(&mut service.name).chain(&mut service.files));
        let lists = (self.reboot_required_by.iter_mut()).chain(&mut self.reboot_reasons);
        for text in texts.into_iter().chain(lists).chain(services) {
            *text = cut(text, MOST_TEXT);
        }
        self.reboot_required_by.truncate(MOST_PACKAGES);
        self.available.truncate(MOST_PACKAGES);
        self.withheld.truncate(MOST_PACKAGES);
        self
    }
}

/// A text without the zero byte, and not longer than it may be.
fn cut(text: &str, most: usize) -> String {
    let text = text.replace('\0', "\u{fffd}");
    text[..text.floor_char_boundary(most)].to_owned()
}

/// A package for which apt knows a newer version.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Available {
    /// Debian's name.
    pub name: String,
    /// Debian's name of the architecture.
    pub architecture: String,
    /// The version that is there.
    pub installed: String,
    /// The version that could be there.
    pub available: String,
}

/// A package that has a newer version and does not get it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Withheld {
    /// Debian's name.
    pub name: String,
    /// Debian's name of the architecture.
    pub architecture: String,
    /// The version that is there.
    pub installed: String,
    /// The version that could be there.
    pub available: String,
    /// Why it is not.
    pub cause: WithheldCause,
}

/// Why a package does not get its newer version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WithheldCause {
    /// A person marked it to stay.
    Hold,
    /// Its dependencies cannot be met without more than an upgrade.
    KeptBack,
    /// Its publisher lets it out to some machines first.
    Phased,
}

/// Reads the facts; asks apt and dpkg only when something may have changed since.
#[derive(Debug)]
pub struct FactsReader {
    tools: Tools,
    place: Place,
    modules: Vec<String>,
    last: Option<Last>,
}

/// What was read last.
#[derive(Debug)]
struct Last {
    telltales: Vec<Telltale>,
    facts: Facts,
    /// When the services were looked at.
    services: Instant,
}

/// Device-independent traits of a file: inode, size, time of the last change. `None` if it is not there.
type Telltale = Option<(u64, u64, i64, i64)>;

impl FactsReader {
    /// A reader for a place.
    pub fn new(tools: Tools, place: Place, modules: Vec<String>) -> Self {
        Self {
            tools,
            place,
            modules,
            last: None,
        }
    }

    /// What is known now.
    pub async fn read(&mut self) -> Result<Facts, Failure> {
        let telltales: Vec<_> = TELLTALES.iter().map(|path| self.telltale(path)).collect();
        if let Some(last) = self
            .last
            .as_mut()
            .filter(|last| last.telltales == telltales)
        {
            let services = &mut last.facts.stale_services;
            if !services.is_empty() && last.services.elapsed() >= STALE_AGAIN {
                *services = stale_services(&self.place);
                last.services = Instant::now();
                last.facts = std::mem::take(&mut last.facts).within_bounds();
            }
            return Ok(last.facts.clone());
        }
        let facts = self.look().await?;
        self.last = Some(Last {
            telltales,
            facts: facts.clone(),
            services: Instant::now(),
        });
        Ok(facts)
    }

    /// The list of packages whose digest the facts have. `None` if it cannot be read or has become another one: then
    /// the next facts have another digest.
    pub async fn packages(&self, facts: &Facts) -> Option<String> {
        match self.tools.list().await {
            Ok(known) => {
                let text = manifest::text(&known);
                let digest = Sha256::digest(&text).into();
                (facts.packages_digest == Some(digest)).then_some(text)
            }
            Err(failure) => {
                tracing::warn!(error = %failure, "the list of packages cannot be read");
                None
            }
        }
    }

    fn telltale(&self, path: &str) -> Telltale {
        let about = fs::metadata(self.place.inside(path)).ok()?;
        Some((about.ino(), about.size(), about.mtime(), about.mtime_nsec()))
    }

    async fn look(&self) -> Result<Facts, Failure> {
        let known = self.tools.list().await?;
        let architecture = self.tools.architecture().await?;
        let kernel_release = os::kernel_release();
        let reboot = reboot::look(&self.place, &kernel_release);
        let audit = self.tools.audit().await?;
        let (available, withheld) = self.updates(&known, &architecture).await;
        let facts = Facts {
            agent_version: env!("CARGO_PKG_VERSION").to_owned(),
            os_release: OsRelease::of(&self.place),
            available,
            installed_digest: digest(&known),
            architecture,
            kernel_release,
            boot_id: os::boot_id(),
            modules: self.modules.clone(),
            reboot_required: reboot.required,
            reboot_required_by: reboot.by,
            audit: cut(&audit, MOST_AUDIT),
            packages_digest: Some(Sha256::digest(manifest::text(&known)).into()),
            withheld,
            stale_services: stale_services(&self.place),
            reboot_reasons: reboot.reasons,
        };
        Ok(facts.within_bounds())
    }

    /// What an update of everything would bring, and what it would leave. If apt cannot tell, what it could tell last.
    async fn updates(
        &self,
        known: &[KnownPackage],
        native: &str,
    ) -> (Vec<Available>, Vec<Withheld>) {
        match self.tools.simulate(&packages::latest()).await {
            Ok(simulation) => {
                let installed = known.iter().map(|known| (known.package(native), known));
                let installed = installed.collect();
                (
                    available(&simulation, &installed),
                    withheld(&simulation, &installed),
                )
            }
            Err(failure) => {
                tracing::warn!(error = %failure, "apt cannot tell which updates are available");
                let last = self.last.as_ref().map(|last| &last.facts);
                last.map_or_else(Default::default, |facts| {
                    (facts.available.clone(), facts.withheld.clone())
                })
            }
        }
    }
}

/// What is installed, by its name as apt says it.
type Installed<'a> = BTreeMap<String, &'a KnownPackage>;

fn available(simulation: &Simulation, installed: &Installed<'_>) -> Vec<Available> {
    let installs = simulation.installs.iter();
    let mut available: Vec<_> = installs
        .filter_map(|install| {
            let known = installed.get(&install.package)?;
            Some(Available {
                name: known.name.clone(),
                architecture: known.architecture.clone(),
                installed: install.before.clone()?,
                available: install.after.clone(),
            })
        })
        .collect();
    available.sort();
    available
}

fn withheld(simulation: &Simulation, installed: &Installed<'_>) -> Vec<Withheld> {
    let kept = simulation.kept.iter();
    let mut withheld: Vec<_> = kept
        .filter_map(|kept| {
            let known = installed.get(&kept.package)?;
            let cause = match (known.want.as_str(), kept.phased) {
                ("hold", _) => WithheldCause::Hold,
                (_, true) => WithheldCause::Phased,
                (_, false) => WithheldCause::KeptBack,
            };
            Some(Withheld {
                name: known.name.clone(),
                architecture: known.architecture.clone(),
                installed: known.version.clone(),
                available: kept.available.clone(),
                cause,
            })
        })
        .collect();
    withheld.sort();
    withheld.dedup();
    withheld
}

/// Nothing can be told of the processes of another system, or by one who may not look at them.
fn stale_services(place: &Place) -> Vec<StaleService> {
    if !place.is_own_system() || !rustix::process::geteuid().is_root() {
        return Vec::new();
    }
    stale::services(Path::new("/proc"))
}

/// Digest of what is installed.
fn digest(known: &[KnownPackage]) -> String {
    let mut lines: Vec<_> = known
        .iter()
        .map(|k| {
            format!(
                "{}\t{}\t{}\t{}\n",
                k.name, k.architecture, k.version, k.state
            )
        })
        .collect();
    lines.sort_unstable();
    let mut hasher = Sha256::new();
    for line in &lines {
        hasher.update(line);
    }
    hex(&hasher.finalize())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_file_of_the_node_makes_facts_that_the_server_refuses() {
        let facts = Facts {
            reboot_required_by: vec!["x\0".repeat(5_000)],
            ..Facts::default()
        };
        let facts = facts.within_bounds();
        let text = &facts.reboot_required_by[0];
        assert!(text.len() <= MOST_TEXT && !text.contains('\0'));
    }
}
