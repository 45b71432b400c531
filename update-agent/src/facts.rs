//! What is known about the node, for the server to decide upon.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;

use sha2::{Digest as _, Sha256};

use crate::model::Failure;
use crate::modules::packages::{self, KnownPackage, Tools, hex};
use crate::os::{self, OsRelease};
use crate::place::Place;

/// An audit longer than this is cut.
const MOST_AUDIT: usize = 16 << 10;
/// Any other text longer than this is cut, and so is a list.
const MOST_TEXT: usize = 1 << 10;
const MOST_PACKAGES: usize = 100_000;

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
        for text in texts.into_iter().chain(&mut self.reboot_required_by) {
            *text = cut(text, MOST_TEXT);
        }
        self.reboot_required_by.truncate(MOST_PACKAGES);
        self.available.truncate(MOST_PACKAGES);
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

/// Reads the facts; asks apt and dpkg only when something may have changed since.
#[derive(Debug)]
pub struct FactsReader {
    tools: Tools,
    place: Place,
    modules: Vec<String>,
    last: Option<(Vec<Telltale>, Facts)>,
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
        if let Some((seen, facts)) = &self.last
            && *seen == telltales
        {
            return Ok(facts.clone());
        }
        let facts = self.look().await?;
        self.last = Some((telltales, facts.clone()));
        Ok(facts)
    }

    fn telltale(&self, path: &str) -> Telltale {
        let about = fs::metadata(self.place.inside(path)).ok()?;
        Some((about.ino(), about.size(), about.mtime(), about.mtime_nsec()))
    }

    async fn look(&self) -> Result<Facts, Failure> {
        let known = self.tools.list().await?;
        let architecture = self.tools.architecture().await?;
        let (reboot_required, reboot_required_by) = os::reboot_required(&self.place)
            .unwrap_or_else(|error| {
                tracing::warn!(%error, "cannot tell whether a reboot is required");
                (false, Vec::new())
            });
        let audit = self.tools.audit().await?;
        let facts = Facts {
            agent_version: env!("CARGO_PKG_VERSION").to_owned(),
            os_release: OsRelease::of(&self.place),
            available: self.available(&known, &architecture).await,
            installed_digest: digest(&known),
            architecture,
            kernel_release: os::kernel_release(),
            boot_id: os::boot_id(),
            modules: self.modules.clone(),
            reboot_required,
            reboot_required_by,
            audit: cut(&audit, MOST_AUDIT),
        };
        Ok(facts.within_bounds())
    }

    /// What an update of everything would bring. If apt cannot tell, what it could tell last.
    async fn available(&self, known: &[KnownPackage], native: &str) -> Vec<Available> {
        let simulation = match self.tools.simulate(&packages::latest()).await {
            Ok(simulation) => simulation,
            Err(failure) => {
                tracing::warn!(error = %failure, "apt cannot tell which updates are available");
                let last = self.last.as_ref();
                return last.map_or_else(Vec::new, |(_, facts)| facts.available.clone());
            }
        };
        let installed: BTreeMap<_, _> = known
            .iter()
            .map(|known| (known.package(native), known))
            .collect();
        let mut available: Vec<_> = simulation
            .installs
            .iter()
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
