//! Facts: what the node reports about itself, for the decisions of the server.

mod enrolment;
mod foreign_changes;
mod hardware;
mod image;
mod machine;
mod manifest;
pub(crate) mod reboot;
mod stale;
mod updates;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;
use uuid::Uuid;

use crate::identity;
use crate::model::Failure;
use crate::modules::Module as _;
use crate::modules::image::boot_control::BootControl;
use crate::modules::image::slots::{BadImage, SlotFile};
use crate::modules::packages::{DpkgPackage, PackageTools, PackagesModule, hex};
use crate::os::{self, BootedImage, OsRelease};
use crate::other_updaters::{OtherUpdaters, UPDATER_FILES};
use crate::owner::Owner;
use crate::paths::AgentPaths;
use crate::trial;

use self::machine::MachineReader;

pub use self::enrolment::{detect_architecture, detect_booted_image};
pub use self::foreign_changes::{ForeignChange, read_foreign_change};
pub use self::hardware::{
    Disk, Firmware, GraphicsProcessor, Hardware, NetworkInterface, Processors,
};
pub use self::image::SlotFact;
pub use self::stale::StaleService;
pub(crate) use self::stale::{AGENT_UNIT, MANAGER_UNIT};
pub use self::updates::{AvailablePackage, HeldBackUpdate};
pub use crate::model::{HeldBackCause, HeldBackPackage};

/// Maximum length of the audit, in bytes.
const MAX_AUDIT_BYTES: usize = 16 << 10;
/// Maximum length of any other text, in bytes.
const MAX_TEXT_BYTES: usize = 1 << 10;
const MAX_PACKAGES: usize = 100_000;

/// How often stale services are determined again. No file changes when a service is restarted.
const STALE_SERVICES_INTERVAL: Duration = Duration::from_mins(10);

/// Files whose change can change the packages, their lists, the allowed versions, or the need for a
/// reboot.
const WATCHED_FILES: [&str; 12] = [
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

/// Facts of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    pub agent_version: String,
    /// os-release of the managed root.
    pub os_release: OsRelease,
    /// Debian's name of the architecture.
    pub architecture: String,
    /// Current host name.
    pub host_name: String,
    /// Serial number of the vendor; empty if there is none.
    pub serial_number: String,
    /// Release of the running kernel.
    pub kernel_release: String,
    /// ID of the current boot.
    pub boot_id: String,
    /// When the kernel started.
    pub boot_time: Option<DateTime<Utc>>,
    /// Hardware of the machine; `None` in a container and in another root.
    pub hardware: Option<Hardware>,
    /// Random ID of this process of the agent, or of all that run once in this boot; empty if it does
    /// not report to a server.
    pub agent_session: String,
    /// Names of the modules, sorted.
    pub modules: Vec<String>,
    /// Packages with a newer version, and new packages that those need; sorted by name, then
    /// architecture.
    pub available: Vec<AvailablePackage>,
    /// SHA-256 of the installed packages, hexadecimal.
    pub installed_digest: String,
    /// Whether the system needs a reboot.
    pub reboot_required: bool,
    /// Packages that need the reboot.
    pub reboot_required_by: Vec<String>,
    /// Problems in dpkg's database.
    pub audit: String,
    /// SHA-256 of the package list as it would be sent.
    pub packages_digest: Option<[u8; 32]>,
    /// Packages that are held back from a newer version; sorted by name, then architecture.
    pub held_back: Vec<HeldBackUpdate>,
    /// State of the package lists; `None` on a node that does not manage packages.
    pub package_lists: Option<PackageLists>,
    /// Services that still run code that was replaced on disk, sorted by name.
    pub stale_services: Vec<StaleService>,
    /// Why the system needs a reboot, for people.
    pub reboot_reasons: Vec<String>,
    /// Warnings for an operator. The reader adds those about the image slots, the agent adds the
    /// others.
    pub warnings: Vec<String>,
    /// Limits of the machine's owner, for people; empty if there are none. Added by the agent.
    pub limits: String,
    /// The running image, if there is one and it is not on trial.
    pub booted_image: Option<BootedImage>,
    /// Content of the image slots; empty if the node has none.
    pub slots: Vec<SlotFact>,
    /// Images that failed on this node and are not tried again automatically; latest last.
    pub bad_images: Vec<BadImage>,
    /// Other programs that update the machine, each with what it does.
    pub other_updaters: Vec<String>,
    /// The last change of packages that the agent did not make.
    pub foreign_change: Option<ForeignChange>,
}

/// State of the package lists: the available updates are as old as the lists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PackageLists {
    /// When the agent last refreshed all lists. Added by the agent.
    pub refreshed_at: Option<DateTime<Utc>>,
    /// Why the updates are not completely known; empty if they are. The reader sets it if it cannot
    /// read the lists, otherwise the agent adds the error of its last refresh.
    pub error: String,
}

impl Facts {
    /// Shortens texts and lists to what the server accepts. Otherwise a single file of a package
    /// could prevent all reports of the node.
    fn truncate_texts(mut self) -> Self {
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
        let available = self.available.iter_mut();
        let suites = available.flat_map(|one| one.suites.iter_mut().chain(&mut one.origins));
        let held_back = self.held_back.iter_mut();
        let held_back = held_back.flat_map(|one| one.suites.iter_mut().chain(&mut one.origins));
        let lists_error = self.package_lists.iter_mut().map(|lists| &mut lists.error);
        let foreign = self.foreign_change.iter_mut().flat_map(|change| &mut change.packages);
        let lists = self
            .reboot_required_by
            .iter_mut()
            .chain(&mut self.reboot_reasons)
            .chain(&mut self.warnings)
            .chain(&mut self.other_updaters)
            .chain(foreign)
            .chain(suites)
            .chain(held_back)
            .chain(lists_error);
        for text in texts.into_iter().chain(lists).chain(services) {
            *text = truncate_text(text, MAX_TEXT_BYTES);
        }
        self.reboot_required_by.truncate(MAX_PACKAGES);
        self.available.truncate(MAX_PACKAGES);
        self.held_back.truncate(MAX_PACKAGES);
        self
    }
}

/// Replaces zero bytes in a text and limits its length.
fn truncate_text(text: &str, most: usize) -> String {
    let text = text.replace('\0', "\u{fffd}");
    text[..text.floor_char_boundary(most)].to_owned()
}

/// Reads the facts. Runs apt and dpkg only if something may have changed since the last time.
#[derive(Debug)]
pub struct FactsReader {
    tools: PackageTools,
    paths: AgentPaths,
    modules: Vec<String>,
    /// Random ID of this process.
    session: String,
    owner: Arc<Owner>,
    images: Option<Arc<SlotFile>>,
    /// Why the slots cannot be used; then `images` is `None`.
    warnings: Vec<String>,
    running: image::RunningImage,
    other_updaters: Option<OtherUpdaters>,
    machine: MachineReader,
    last: Option<LastRead>,
}

#[derive(Debug)]
struct LastRead {
    file_stamps: Vec<FileStamp>,
    facts: Facts,
    /// When the stale services were determined.
    services: Instant,
}

/// Identity of a file's content: inode, size and modification time. `None` if the file does not
/// exist.
type FileStamp = Option<(u64, u64, i64, i64)>;

impl FactsReader {
    /// Creates a reader.
    pub fn new(
        tools: PackageTools,
        paths: AgentPaths,
        modules: Vec<String>,
        owner: Arc<Owner>,
    ) -> Self {
        let machine = MachineReader::new(&paths);
        Self {
            tools,
            paths,
            modules,
            session: String::new(),
            owner,
            images: None,
            warnings: Vec::new(),
            running: image::RunningImage::default(),
            other_updaters: None,
            machine,
            last: None,
        }
    }

    /// Adds a random ID of this process, or of all that run once in this boot, to the facts. By it the server recognizes two
    /// machines with one identity, also if they share a boot.
    #[must_use]
    pub fn with_session(mut self, session: Uuid) -> Self {
        self.session = session.simple().to_string();
        self
    }

    /// Adds the image slots to the facts, or the reasons why they cannot be used.
    #[must_use]
    pub fn with_images(mut self, slots: Option<Arc<SlotFile>>, warnings: Vec<String>) -> Self {
        self.images = slots;
        self.warnings = warnings;
        self
    }

    /// Uses this boot control to determine the running image and the state of the slots.
    #[must_use]
    pub fn with_boot_control(mut self, boot: Option<Arc<dyn BootControl>>) -> Self {
        self.running = image::RunningImage::from_boot_control(boot);
        self
    }

    /// Adds the other programs that update the machine.
    #[must_use]
    pub fn with_other_updaters(mut self, updaters: OtherUpdaters) -> Self {
        self.other_updaters = Some(updaters);
        self
    }

    /// Reads the hardware of the machine from the folders `proc` and `sys` below this root.
    #[must_use]
    pub fn with_hardware_root(mut self, root: PathBuf) -> Self {
        self.machine = self.machine.with_root(root);
        self
    }

    /// Stores the present packages as the result of an attempt of the agent, so that they do not
    /// count as changed by others. Must be called before the journal of the attempt is removed.
    pub async fn accept_package_changes(&self) {
        if !self.has_package_database() {
            return;
        }
        match self.tools.list_packages().await {
            Ok(packages) => {
                foreign_changes::record_packages(&self.paths, &packages, true);
            }
            Err(failure) => {
                tracing::warn!(error = %failure, "cannot read the packages after an update");
                foreign_changes::forget_packages(&self.paths);
            }
        }
    }

    /// Reads the current facts.
    pub async fn read(&mut self) -> Result<Facts, Failure> {
        self.running.refresh().await;
        self.machine.refresh();
        let mut facts = self.read_root().await?;
        self.add_machine(&mut facts);
        self.add_images(&mut facts);
        Ok(facts)
    }

    /// Adds the names and the hardware of the machine. They can change without a change of the root's
    /// files.
    fn add_machine(&self, facts: &mut Facts) {
        facts.host_name = truncate_text(&os::host_name(&self.paths), MAX_TEXT_BYTES);
        facts.serial_number = identity::serial_number(&self.paths);
        facts.hardware = self.machine.hardware().cloned();
        facts.boot_time = self.machine.boot_time();
    }

    /// Adds the facts about images. They can change without a change of the root's files, and
    /// reading them is cheap.
    fn add_images(&self, facts: &mut Facts) {
        let slots = self.images.as_ref().map(|slots| slots.get());
        let is_settled = match &slots {
            Some(slots) => self.running.is_settled(slots),
            // If the slots cannot be used, it is unknown whether the running image is on trial.
            None => self.warnings.is_empty(),
        };
        let may_be_named = is_settled && !trial::is_watched(&self.paths);
        image::add_image_facts(facts, slots.as_ref(), may_be_named);
        let now = slots.as_ref().and_then(|slots| self.running.warning(slots));
        let warnings = self.warnings.iter().cloned().chain(now);
        facts.warnings.extend(warnings.map(|text| truncate_text(&text, MAX_TEXT_BYTES)));
    }

    /// Reads the facts of the root, from the cache if nothing has changed.
    async fn read_root(&mut self) -> Result<Facts, Failure> {
        let files = WATCHED_FILES.iter().chain(&UPDATER_FILES);
        let stamps: Vec<_> = files.map(|path| self.file_stamp(path)).collect();
        if let Some(last) = self.last.as_mut().filter(|last| last.file_stamps == stamps) {
            let services = &mut last.facts.stale_services;
            if !services.is_empty() && last.services.elapsed() >= STALE_SERVICES_INTERVAL {
                *services = find_stale_services(&self.paths);
                last.services = Instant::now();
                last.facts = std::mem::take(&mut last.facts).truncate_texts();
            }
            return Ok(last.facts.clone());
        }
        let facts = self.read_uncached().await?;
        self.last =
            Some(LastRead { file_stamps: stamps, facts: facts.clone(), services: Instant::now() });
        Ok(facts)
    }

    /// The facts if reading them failed: those that need no tool, and otherwise the last ones. Even
    /// a broken node must be able to report.
    pub fn fallback_facts(&self, failure: &Failure) -> Facts {
        let last = self.last.as_ref().map(|last| last.facts.clone());
        let mut facts = Facts {
            agent_version: env!("CARGO_PKG_VERSION").to_owned(),
            os_release: OsRelease::read(&self.paths),
            kernel_release: os::kernel_release(),
            boot_id: os::boot_id(),
            agent_session: self.session.clone(),
            modules: self.modules.clone(),
            ..last.unwrap_or_default()
        };
        if self.is_managing_packages() {
            let error = format!("the installed packages cannot be read: {failure}");
            facts.package_lists = Some(PackageLists { refreshed_at: None, error });
        }
        let warning = format!("cannot read the facts of the node: {failure}");
        facts.warnings.push(warning);
        self.add_machine(&mut facts);
        self.add_images(&mut facts);
        facts.truncate_texts()
    }

    /// The package list that belongs to the digest in the facts. `None` if it cannot be read or has
    /// changed: then the next facts have another digest.
    pub async fn read_manifest(&self, facts: &Facts) -> Option<String> {
        facts.packages_digest?;
        match self.tools.list_packages().await {
            Ok(packages) => {
                let text = manifest::to_json(&packages);
                let digest = Sha256::digest(&text).into();
                (facts.packages_digest == Some(digest)).then_some(text)
            }
            Err(failure) => {
                tracing::warn!(error = %failure, "cannot read the package list");
                None
            }
        }
    }

    fn file_stamp(&self, path: &str) -> FileStamp {
        let about = fs::metadata(self.paths.inside(path)).ok()?;
        Some((about.ino(), about.size(), about.mtime(), about.mtime_nsec()))
    }

    async fn read_uncached(&self) -> Result<Facts, Failure> {
        let kernel_release = os::kernel_release();
        let reboot = reboot::read_reboot_status(&self.paths, &kernel_release);
        let updaters = match &self.other_updaters {
            Some(updaters) => updaters.find().await,
            None => Vec::new(),
        };
        let facts = Facts {
            agent_version: env!("CARGO_PKG_VERSION").to_owned(),
            os_release: OsRelease::read(&self.paths),
            kernel_release,
            boot_id: os::boot_id(),
            agent_session: self.session.clone(),
            modules: self.modules.clone(),
            reboot_required: reboot.required,
            reboot_required_by: reboot.by,
            stale_services: find_stale_services(&self.paths),
            reboot_reasons: reboot.reasons,
            other_updaters: updaters.iter().map(ToString::to_string).collect(),
            ..self.read_package_facts().await?
        };
        Ok(facts.truncate_texts())
    }

    fn is_managing_packages(&self) -> bool {
        self.modules.iter().any(|name| name == PackagesModule::NAME)
    }

    /// Reads the facts of dpkg and apt. In an image without them there are none.
    async fn read_package_facts(&self) -> Result<Facts, Failure> {
        if !self.has_package_database() {
            return Ok(Facts {
                architecture: os::debian_architecture(&os::machine()).to_owned(),
                ..Facts::default()
            });
        }
        let packages = self.tools.list_packages().await?;
        let by_agent = foreign_changes::is_agent_changing(&self.paths);
        let foreign_change = foreign_changes::record_packages(&self.paths, &packages, by_agent);
        let architecture = self.tools.architecture().await?;
        let audit = self.tools.audit().await?;
        let updates = self.available_updates(&packages, &architecture).await;
        let lists = PackageLists { refreshed_at: None, error: updates.error };
        Ok(Facts {
            available: updates.available,
            installed_digest: digest_packages(&packages),
            architecture,
            audit: truncate_text(&audit, MAX_AUDIT_BYTES),
            packages_digest: Some(Sha256::digest(manifest::to_json(&packages)).into()),
            held_back: updates.held_back,
            foreign_change,
            package_lists: self.is_managing_packages().then_some(lists),
            ..Facts::default()
        })
    }

    /// Whether the root has packages. An image may have none.
    fn has_package_database(&self) -> bool {
        self.is_managing_packages() || os::has_dpkg(&self.paths)
    }
}

/// Finds the stale services. Only root can inspect processes, and only those of its own system.
pub(crate) fn find_stale_services(paths: &AgentPaths) -> Vec<StaleService> {
    if !paths.is_own_system() || !rustix::process::geteuid().is_root() {
        return Vec::new();
    }
    stale::find_services(Path::new("/proc"), std::process::id())
}

/// Digest of the installed packages.
fn digest_packages(packages: &[DpkgPackage]) -> String {
    let mut lines: Vec<_> = packages
        .iter()
        .map(|k| format!("{}\t{}\t{}\t{}\n", k.name, k.architecture, k.version, k.state))
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
    fn facts_never_exceed_the_servers_limits() {
        let facts = Facts { reboot_required_by: vec!["x\0".repeat(5_000)], ..Facts::default() };
        let facts = facts.truncate_texts();
        let text = &facts.reboot_required_by[0];
        assert!(text.len() <= MAX_TEXT_BYTES && !text.contains('\0'));
    }
}
