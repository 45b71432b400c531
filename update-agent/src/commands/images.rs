//! The parts that image updates need, and the reconciliation of the slots before the agent's loop.

use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use evenkeel_kit::Secret;
use tokio::time::{sleep, timeout};
use url::Url;

use super::module_registry::ModuleRegistry;
use crate::config::ImageConfig;
use crate::journal::JournalEntry;
use crate::link::{
    Applicant, Enrollment, LinkError, PollAnswer, PollQuery, ServerLink, StartPermit,
};
use crate::model::{EventKind, Failure, FailureKind};
use crate::modules::image::boot_control::{self, BootControl};
use crate::modules::image::slots::{BootObservation, BootRepair, SlotFile};
use crate::modules::image::spool::Spool;
use crate::modules::image::web::{WebClient, WebSettings};
use crate::modules::image::{ImageModule, ImageParts};
use crate::node::{self, Node};
use crate::os;
use crate::paths::AgentPaths;
use crate::trial::Reset;

/// If the server was reached within this time before the trial, the new image must reach it as
/// well.
const MAX_CONTACT_AGE: TimeDelta = TimeDelta::hours(1);

/// Number of rounds for the repairs that reconciliation requests. Two rounds are enough.
const RECONCILE_ROUNDS: usize = 3;

/// Number of tries to read the boot state and to repair the slots, with a pause in between. The
/// boot partition may be mounted late, and a repair that fails waits until the next start.
const RECONCILE_ATTEMPTS: usize = 3;
const RECONCILE_RETRY_DELAY: Duration = Duration::from_secs(2);

/// How long to wait for a boot partition that is not mounted yet.
const BOOT_PARTITION_TIMEOUT: Duration = Duration::from_secs(10);

/// The image slots of a system and everything that fills them.
pub struct ImageSystem {
    /// Reads the boot state and arms slots.
    pub boot: Arc<dyn BootControl>,
    /// Record of the slots. There is one instance per process, because it caches the file.
    pub slots: Arc<SlotFile>,
    /// Downloads files.
    pub web: WebClient,
}

impl fmt::Debug for ImageSystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Images").field("boot", &self.boot.name()).finish_non_exhaustive()
    }
}

impl ImageSystem {
    /// Loads the image slots of the system; `None` if it has no second slot. Fails with advice if
    /// the slots are not usable.
    pub fn load(registry: &ModuleRegistry<'_>) -> Result<Option<Self>, Failure> {
        let (paths, config) = (registry.paths, &registry.config.image);
        let Some(boot) = boot_control::find(paths, Arc::clone(&registry.runner), config) else {
            return Ok(None);
        };
        let unusable = |reason: String| Failure::new(FailureKind::Unsupported, reason);
        config.check().map_err(unusable)?;
        check_state_partition(paths)?;
        let proxy = registry.config.proxy();
        let proxy = proxy.map_err(|error| unusable(error.to_string()))?;
        let web = WebClient::new(web_settings(config, paths), proxy, registry.time_floor())?;
        if let Ok(credential) = node::load_credential(paths) {
            web.set_credential(&credential);
        }
        let slots = SlotFile::open(&paths.slots(), Arc::clone(&registry.clock))?;
        Ok(Some(Self { boot, slots: Arc::new(slots), web }))
    }

    /// The module that writes images into the slots.
    pub fn image_module(&self, registry: &ModuleRegistry<'_>) -> ImageModule {
        let clock = Arc::clone(&registry.clock);
        let spool = Spool::new(registry.paths.spool(), self.web.clone(), Arc::clone(&clock));
        ImageModule::new(ImageParts {
            boot: Arc::clone(&self.boot),
            slots: Arc::clone(&self.slots),
            files: Arc::new(spool),
            owner: Arc::clone(&registry.owner),
            runner: Arc::clone(&registry.runner),
            paths: registry.paths.clone(),
            clock,
            architecture: os::machine(),
            hook_timeout: registry.config.gate.hook_timeout,
            max_reboot_delay: registry.config.image.max_reboot_delay,
        })
    }
}

/// Fails if the record of the slots is on one of them: a new image would replace it.
fn check_state_partition(paths: &AgentPaths) -> Result<(), Failure> {
    let device = |path| fs::metadata(path).map(|metadata| metadata.dev()).ok();
    let (root, state) = (device(paths.root()), device(paths.state()));
    if state.is_some() && root != state {
        return Ok(());
    }
    let reason = format!(
        "images cannot be tried while the state directory {} is in the root file system, which they replace: set \
         `state_dir` to a folder on a partition of its own",
        paths.state().display()
    );
    Err(Failure::new(FailureKind::Storage, reason))
}

/// Settings for image servers. By default they are verified with the CA of the node's server, if it
/// has one.
fn web_settings(config: &ImageConfig, paths: &AgentPaths) -> WebSettings {
    let mut settings = config.web.clone();
    settings.own_server = server_authority(paths);
    if settings.roots.is_empty() && paths.ca().exists() {
        settings.roots.push(paths.ca());
    }
    settings
}

/// `HOST:PORT` of the server that gets the node's credential; empty if the node is not enrolled.
fn server_authority(paths: &AgentPaths) -> String {
    let server = Node::load(paths).ok().map(|node| node.server);
    let url = server.and_then(|server| Url::parse(&server).ok());
    let host = url.as_ref().and_then(Url::host_str);
    let port = url.as_ref().and_then(Url::port_or_known_default);
    match (host, port) {
        (Some(host), Some(port)) => format!("{host}:{port}"),
        _ => String::new(),
    }
}

/// Waits a short time for a boot partition that [may be late](boot_control::esp_may_be_late).
pub async fn wait_for_boot_partition(paths: &AgentPaths, config: &ImageConfig) {
    timeout(BOOT_PARTITION_TIMEOUT, boot_control::wait_for_esp(paths, config)).await.ok();
}

/// Brings the record of the slots in line with the boot state, and repairs the slots if necessary.
/// Must run before anything else uses the slots.
///
/// A repair that still fails after some tries is logged and repeated at the next start: no boot
/// depends on it, and a bad image that runs is rolled back by
/// [`trial::run_trial`](crate::trial::run_trial). Returns the last boot state; `None` if the
/// running image is bad and the requested reset did not happen: then the caller must change
/// nothing. Fails if the boot state cannot be read or the record cannot be written.
pub async fn reconcile_slots(
    boot: &dyn BootControl,
    slots: &SlotFile,
    reset: &dyn Reset,
) -> Result<Option<BootObservation>, Failure> {
    for _ in 1..RECONCILE_ATTEMPTS {
        match reconcile_once(boot, slots, reset).await {
            Ok(seen) => return Ok(seen),
            Err(ReconcileError { failure, .. }) => {
                tracing::warn!(%failure, "cannot repair the slots, trying again");
                sleep(RECONCILE_RETRY_DELAY).await;
            }
        }
    }
    match reconcile_once(boot, slots, reset).await {
        Ok(seen) => Ok(seen),
        Err(ReconcileError { failure, seen: Some(seen) }) => {
            tracing::error!(%failure, "cannot repair the slots now");
            Ok(Some(seen))
        }
        Err(ReconcileError { failure, seen: None }) => Err(failure),
    }
}

/// Why the slots could not be reconciled.
struct ReconcileError {
    failure: Failure,
    /// The boot state before the failure; `None` if it could not be read or the record not be
    /// written.
    seen: Option<BootObservation>,
}

impl From<Failure> for ReconcileError {
    fn from(failure: Failure) -> Self {
        Self { failure, seen: None }
    }
}

/// One try of [`reconcile_slots`].
async fn reconcile_once(
    boot: &dyn BootControl,
    slots: &SlotFile,
    reset: &dyn Reset,
) -> Result<Option<BootObservation>, ReconcileError> {
    let mut seen = boot.observe().await?;
    for _ in 0..RECONCILE_ROUNDS {
        let repairs = slots.reconcile(&seen)?;
        if repairs.is_empty() {
            break;
        }
        for repair in repairs {
            tracing::warn!(?repair, "the slots do not match their record");
            let done = match repair {
                BootRepair::Withdraw(slot) => boot.withdraw(slot).await,
                BootRepair::Bless(slot) => boot.bless(slot).await,
                BootRepair::Reset => {
                    reset.reset_machine().await;
                    // The reset did not happen. The running image is bad: nothing may be based on
                    // it.
                    tracing::error!("the running image is bad, and the machine does not reset");
                    return Ok(None);
                }
            };
            if let Err(failure) = done {
                // The remaining repairs are skipped as well: a reset among them could lead here
                // again and again.
                let seen = Some(seen);
                return Err(ReconcileError { failure, seen });
            }
        }
        seen = boot.observe().await?;
    }
    Ok(Some(seen))
}

/// Whether a new image must reach the server: the old image did, shortly before its reboot. The
/// open attempt has the time of that reboot, because the machine may have been off since then.
/// Without an attempt, the current time is used.
pub fn requires_server(
    last_contact: Option<DateTime<Utc>>,
    attempt: Option<&JournalEntry>,
    now: DateTime<Utc>,
) -> bool {
    let left = attempt.and_then(|attempt| {
        let is_end = |kind: &EventKind| matches!(kind, EventKind::Began | EventKind::RebootBegun);
        let mut events = attempt.events.iter().rev();
        events.find(|event| is_end(&event.kind))
    });
    let left = left.map_or(now, |event| event.at);
    // A clock that was turned back does not relax the rule.
    last_contact.is_some_and(|last| left.signed_duration_since(last) <= MAX_CONTACT_AGE)
}

/// A server link that shares its credential with the image downloads.
#[derive(Debug)]
pub struct SharedLink<L> {
    link: L,
    web: Option<WebClient>,
}

impl<L: ServerLink> SharedLink<L> {
    /// Creates a link that passes a new credential on to `web`.
    pub fn new(link: L, web: Option<WebClient>) -> Self {
        Self { link, web }
    }
}

#[async_trait::async_trait]
impl<L: ServerLink> ServerLink for SharedLink<L> {
    async fn enroll(&self, applicant: &Applicant) -> Result<Enrollment, LinkError> {
        self.link.enroll(applicant).await
    }

    async fn poll(&self, question: PollQuery<'_>) -> Result<PollAnswer, LinkError> {
        self.link.poll(question).await
    }

    async fn request_start(&self, entry: &JournalEntry) -> Result<StartPermit, LinkError> {
        self.link.request_start(entry).await
    }

    async fn report(&self, entry: &JournalEntry) -> Result<u32, LinkError> {
        self.link.report(entry).await
    }

    fn set_credential(&self, credential: &Secret) -> Result<(), LinkError> {
        if let Some(web) = &self.web {
            web.set_credential(credential);
        }
        self.link.set_credential(credential)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{AttemptEvent, UpdateSpec, UpdateTarget};

    #[test]
    fn a_server_reached_within_the_last_hour_is_required() {
        assert!(!requires_server(None, None, at(0)));
        assert!(requires_server(Some(at(0)), None, at(60)));
        assert!(!requires_server(Some(at(0)), None, at(61)));
        assert!(requires_server(Some(at(100)), None, at(0)));
    }

    #[test]
    fn time_without_power_does_not_relax_the_server_check() {
        let target = UpdateTarget { digest: String::new(), spec: UpdateSpec::Unknown };
        let mut attempt = JournalEntry::new(uuid::Uuid::from_u128(1), target);
        let last = Some(at(0));
        let next_week = at(7 * 24 * 60);
        assert!(!requires_server(last, Some(&attempt), next_week));
        for (kind, minutes, is_demanded) in [
            (EventKind::Downloaded, 2, false),
            (EventKind::Began, 5, true),
            (EventKind::RebootBegun, 50, true),
            (EventKind::RebootBegun, 70, false),
        ] {
            attempt.events.push(AttemptEvent {
                sequence: attempt.last_sequence() + 1,
                at: at(minutes),
                boot_id: String::new(),
                kind,
                report: None,
            });
            let demands = requires_server(last, Some(&attempt), next_week);
            assert_eq!(demands, is_demanded, "{minutes}");
        }
    }

    fn at(minutes: i64) -> DateTime<Utc> {
        DateTime::UNIX_EPOCH + TimeDelta::minutes(minutes)
    }

    #[test]
    fn a_state_directory_on_the_root_is_refused_with_advice() {
        let root = tempfile::tempdir().unwrap();
        let paths = AgentPaths::new(root.path(), None);
        paths.prepare().unwrap();
        let failure = check_state_partition(&paths).unwrap_err();
        assert!(failure.reason.contains("state_dir"), "{failure}");
        let paths = AgentPaths::new(root.path(), Some("/proc/self".into()));
        check_state_partition(&paths).unwrap();
        let paths = AgentPaths::new(root.path(), Some("/no/such/folder".into()));
        check_state_partition(&paths).unwrap_err();
    }

    #[test]
    fn the_servers_ca_is_the_default_for_image_servers() {
        let folder = tempfile::tempdir().unwrap();
        let paths = AgentPaths::new("/", Some(folder.path().to_owned()));
        let mut config = ImageConfig::default();
        assert!(web_settings(&config, &paths).roots.is_empty());
        fs::write(paths.ca(), "an authority").unwrap();
        assert_eq!(web_settings(&config, &paths).roots, [paths.ca()]);
        config.web.roots.push("/etc/named.pem".into());
        assert_eq!(web_settings(&config, &paths).roots, config.web.roots);
    }

    #[test]
    fn the_credential_goes_to_the_servers_own_port_only() {
        let folder = tempfile::tempdir().unwrap();
        let paths = AgentPaths::new("/", Some(folder.path().to_owned()));
        assert_eq!(server_authority(&paths), "");
        let mut node = Node {
            server: "https://keel.example:50002".into(),
            uuid: uuid::Uuid::from_u128(1),
            host_id: "host-0a1b2c3d".into(),
            instance_id: "inst-0a1b2c3d".into(),
            project: "default".into(),
            credential_expires: None,
            machine: None,
        };
        for (server, authority) in [
            ("https://keel.example:50002", "keel.example:50002"),
            ("https://keel.example", "keel.example:443"),
            ("https://[fd00::1]:50002/", "[fd00::1]:50002"),
        ] {
            node.server = server.into();
            node.save(&paths).unwrap();
            assert_eq!(server_authority(&paths), authority);
        }
    }
}
