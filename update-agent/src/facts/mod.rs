//! What is known about the node, for the server to decide upon.

mod image;
mod manifest;
pub(crate) mod reboot;
mod stale;
mod updates;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

use crate::model::Failure;
use crate::modules::Module as _;
use crate::modules::image::boot_control::BootControl;
use crate::modules::image::slots::{BadImage, SlotFile};
use crate::modules::packages::{KnownPackage, Packages, Tools, hex};
use crate::os::{self, BootedImage, OsRelease};
use crate::owner::Owner;
use crate::place::Place;
use crate::trial;

pub use self::image::SlotFact;
pub use self::stale::StaleService;
pub use self::updates::Available;
pub use crate::model::{Withheld, WithheldCause};

/// An audit longer than this is cut.
const MOST_AUDIT: usize = 16 << 10;
/// Any other text longer than this is cut, and so is a list.
const MOST_TEXT: usize = 1 << 10;
const MOST_PACKAGES: usize = 100_000;

/// Services that ran what was replaced are looked at again after this time: nothing tells when one is restarted.
const STALE_AGAIN: Duration = Duration::from_mins(10);

/// Files that change when packages, lists of packages, what may be taken of them, or the wish for a reboot do.
const TELLTALES: [&str; 12] = [
    "/var/lib/dpkg/status",
    "/var/lib/dpkg/updates",
    "/var/lib/apt/lists",
    "/var/lib/apt/extended_states",
    "/etc/apt/preferences",
    "/etc/apt/preferences.d",
    "/etc/apt/sources.list",
    "/etc/apt/sources.list.d",
    "/etc/evenkeel/limits.toml",
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
    /// Packages for which apt knows a newer version, and new ones that those need, by name, then architecture.
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
    /// What a person should know of the agent itself. The reader knows of the slots of images only: the agent adds the rest.
    pub troubles: Vec<String>,
    /// The limits that the machine's owner set, for people; empty if there are none. The agent adds them.
    pub limits: String,
    /// The image that runs, if it is one and is not on trial: what may be gone with the next boot is not told.
    pub booted_image: Option<BootedImage>,
    /// What lies in the slots of images; empty if the node has none.
    pub slots: Vec<SlotFact>,
    /// The images that failed here and are not tried again by themselves, the last one last.
    pub bad_images: Vec<BadImage>,
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
            &mut self.limits,
        ];
        let services = self.stale_services.iter_mut();
        let services = services
            .flat_map(|service| std::iter::once(&mut service.name).chain(&mut service.files));
        let suites = self.available.iter_mut().flat_map(|one| &mut one.suites);
        let lists = self
            .reboot_required_by
            .iter_mut()
            .chain(&mut self.reboot_reasons)
            .chain(&mut self.troubles)
            .chain(suites);
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

/// Reads the facts; asks apt and dpkg only when something may have changed since.
#[derive(Debug)]
pub struct FactsReader {
    tools: Tools,
    place: Place,
    modules: Vec<String>,
    owner: Arc<Owner>,
    images: Option<Arc<SlotFile>>,
    /// What keeps the slots from being used; there are none then.
    troubles: Vec<String>,
    running: image::Running,
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
    pub fn new(tools: Tools, place: Place, modules: Vec<String>, owner: Arc<Owner>) -> Self {
        Self {
            tools,
            place,
            modules,
            owner,
            images: None,
            troubles: Vec::new(),
            running: image::Running::default(),
            last: None,
        }
    }

    /// Tells of slots of images as well, if the node has them, or of why they cannot be used.
    #[must_use]
    pub fn with_images(mut self, slots: Option<Arc<SlotFile>>, troubles: Vec<String>) -> Self {
        self.images = slots;
        self.troubles = troubles;
        self
    }

    /// Asks this boot control what runs, and whether the slots are as they should be.
    #[must_use]
    pub fn with_boot_control(mut self, boot: Option<Arc<dyn BootControl>>) -> Self {
        self.running = image::Running::by(boot);
        self
    }

    /// What is known now.
    pub async fn read(&mut self) -> Result<Facts, Failure> {
        self.running.look().await;
        let mut facts = self.read_root().await?;
        self.add_images(&mut facts);
        Ok(facts)
    }

    /// What lies in the slots changes without a file of the root, and costs nothing to look up.
    fn add_images(&self, facts: &mut Facts) {
        let slots = self.images.as_ref().map(|slots| slots.get());
        let is_settled = match &slots {
            Some(slots) => self.running.is_settled(slots),
            // With slots that cannot be used nobody knows whether what runs is on trial.
            None => self.troubles.is_empty(),
        };
        let may_be_named = is_settled && !trial::is_watched(&self.place);
        image::add(facts, slots.as_ref(), may_be_named);
        let now = slots.as_ref().and_then(|slots| self.running.trouble(slots));
        let troubles = self.troubles.iter().cloned().chain(now);
        facts
            .troubles
            .extend(troubles.map(|text| cut(&text, MOST_TEXT)));
    }

    /// What is known of the root now.
    async fn read_root(&mut self) -> Result<Facts, Failure> {
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

    /// What is known while the node cannot be looked at: what needs no tool, and else what was read last. A node that is
    /// broken so far must be heard all the same.
    pub fn blind(&self, failure: &Failure) -> Facts {
        let last = self.last.as_ref().map(|last| last.facts.clone());
        let mut facts = Facts {
            agent_version: env!("CARGO_PKG_VERSION").to_owned(),
            os_release: OsRelease::of(&self.place),
            kernel_release: os::kernel_release(),
            boot_id: os::boot_id(),
            modules: self.modules.clone(),
            ..last.unwrap_or_default()
        };
        let trouble = format!("the node cannot be looked at: {failure}");
        facts.troubles.push(trouble);
        self.add_images(&mut facts);
        facts.within_bounds()
    }

    /// The list of packages whose digest the facts have. `None` if it cannot be read or has become another one: then
    /// the next facts have another digest.
    pub async fn packages(&self, facts: &Facts) -> Option<String> {
        facts.packages_digest?;
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
        let kernel_release = os::kernel_release();
        let reboot = reboot::look(&self.place, &kernel_release);
        let facts = Facts {
            agent_version: env!("CARGO_PKG_VERSION").to_owned(),
            os_release: OsRelease::of(&self.place),
            kernel_release,
            boot_id: os::boot_id(),
            modules: self.modules.clone(),
            reboot_required: reboot.required,
            reboot_required_by: reboot.by,
            stale_services: stale_services(&self.place),
            reboot_reasons: reboot.reasons,
            ..self.look_at_packages().await?
        };
        Ok(facts.within_bounds())
    }

    /// What dpkg and apt know. An image may come without them: then nothing is asked of packages.
    async fn look_at_packages(&self) -> Result<Facts, Failure> {
        let is_asked_for = self.modules.iter().any(|name| name == Packages::NAME);
        if !is_asked_for && !os::has_dpkg(&self.place) {
            return Ok(Facts {
                architecture: os::debian_architecture(&os::machine()).to_owned(),
                ..Facts::default()
            });
        }
        let known = self.tools.list().await?;
        let architecture = self.tools.architecture().await?;
        let audit = self.tools.audit().await?;
        let (available, withheld) = self.updates(&known, &architecture).await;
        Ok(Facts {
            available,
            installed_digest: digest(&known),
            architecture,
            audit: cut(&audit, MOST_AUDIT),
            packages_digest: Some(Sha256::digest(manifest::text(&known)).into()),
            withheld,
            ..Facts::default()
        })
    }
}

/// Nothing can be told of the processes of another system, or by one who may not look at them.
pub(crate) fn stale_services(place: &Place) -> Vec<StaleService> {
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
