//! What images need of a system, and what the agent does with them before its loop begins.

use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use evenkeel_kit::Secret;
use tokio::time::{sleep, timeout};
use url::Url;

use super::workshop::Workshop;
use crate::config::ImageConfig;
use crate::journal::Entry;
use crate::link::{Answer, Applicant, Enrolled, Leave, Link, LinkError, Question};
use crate::model::{Failure, FailureKind, News};
use crate::modules::image::boot_control::{self, BootControl};
use crate::modules::image::slots::{Mend, Seen, SlotFile};
use crate::modules::image::spool::Spool;
use crate::modules::image::web::{Web, WebSettings};
use crate::modules::image::{Image, ImageParts};
use crate::node::{self, Node};
use crate::os;
use crate::place::Place;
use crate::trial::Reset;

/// A server that was reached so long before the trial is demanded of the new image as well.
const LATELY: TimeDelta = TimeDelta::hours(1);

/// So often is looked again at what reconciliation wanted done: after two rounds nothing is left.
const ROUNDS: usize = 3;

/// What cannot be learnt or mended is tried so often, with a pause in between: a boot partition may be late, and what is
/// left undone stays so until the next start.
const TRIES: usize = 3;
const PAUSE: Duration = Duration::from_secs(2);

/// So long a boot partition is waited for that is not mounted yet.
const LATE: Duration = Duration::from_secs(10);

/// The slots of a system and everything that fills them.
pub struct Images {
    /// Says what runs, and arms.
    pub boot: Arc<dyn BootControl>,
    /// What is known of the slots. There is one in a process: two would not know of each other.
    pub slots: Arc<SlotFile>,
    /// Fetches files.
    pub web: Web,
}

impl fmt::Debug for Images {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Images")
            .field("boot", &self.boot.name())
            .finish_non_exhaustive()
    }
}

impl Images {
    /// Those of the workshop's system; `None` if it has no second slot. Fails, and says what to do, if it has one that
    /// cannot be used.
    pub fn open(workshop: &Workshop<'_>) -> Result<Option<Self>, Failure> {
        let (place, config) = (workshop.place, &workshop.config.image);
        let Some(boot) = boot_control::find(place, Arc::clone(&workshop.runner), config) else {
            return Ok(None);
        };
        let unusable = |reason: String| Failure::new(FailureKind::Unsupported, reason);
        config.check().map_err(unusable)?;
        outlives_images(place)?;
        let proxy = workshop.config.proxy();
        let proxy = proxy.map_err(|error| unusable(error.to_string()))?;
        let web = Web::new(web_settings(config, place), proxy, workshop.floor())?;
        if let Ok(credential) = node::load_credential(place) {
            web.renew(&credential);
        }
        let slots = SlotFile::open(&place.slots(), Arc::clone(&workshop.clock))?;
        Ok(Some(Self {
            boot,
            slots: Arc::new(slots),
            web,
        }))
    }

    /// The module that puts images into the slots.
    pub fn module(&self, workshop: &Workshop<'_>) -> Image {
        let clock = Arc::clone(&workshop.clock);
        let spool = Spool::new(workshop.place.spool(), self.web.clone(), Arc::clone(&clock));
        Image::new(ImageParts {
            boot: Arc::clone(&self.boot),
            slots: Arc::clone(&self.slots),
            files: Arc::new(spool),
            owner: Arc::clone(&workshop.owner),
            runner: Arc::clone(&workshop.runner),
            place: workshop.place.clone(),
            clock,
            machine: os::machine(),
            hook_deadline: workshop.config.gate.hook_deadline,
            reboot_patience: workshop.config.image.reboot_patience,
        })
    }
}

/// Fails if the record of the slots lies on one of them: it would be gone with the image that it speaks of.
fn outlives_images(place: &Place) -> Result<(), Failure> {
    let device = |path| fs::metadata(path).map(|found| found.dev()).ok();
    let (root, state) = (device(place.root()), device(place.state()));
    if state.is_some() && root != state {
        return Ok(());
    }
    let reason = format!(
        "images cannot be tried while the state directory {} lies in the root file system, which they replace: give the \
         agent one on a partition of its own with `state_dir`",
        place.state().display()
    );
    Err(Failure::new(FailureKind::Storage, reason))
}

/// Where images may come from. Who alone vouches for the node's server vouches for servers of images as well, unless
/// the configuration names others.
fn web_settings(config: &ImageConfig, place: &Place) -> WebSettings {
    let mut settings = config.web.clone();
    settings.home = home(place);
    if settings.roots.is_empty() && place.ca().exists() {
        settings.roots.push(place.ca());
    }
    settings
}

/// `HOST:PORT` of the server, which is shown the node's credential; empty if the node is not enrolled.
fn home(place: &Place) -> String {
    let server = Node::load(place).ok().map(|node| node.server);
    let url = server.and_then(|server| Url::parse(&server).ok());
    let host = url.as_ref().and_then(Url::host_str);
    let port = url.as_ref().and_then(Url::port_or_known_default);
    match (host, port) {
        (Some(host), Some(port)) => format!("{host}:{port}"),
        _ => String::new(),
    }
}

/// Waits, but not for long, for a boot partition that [may be late](boot_control::may_be_late).
pub async fn await_late(place: &Place, config: &ImageConfig) {
    timeout(LATE, boot_control::has_come(place, config))
        .await
        .ok();
}

/// Makes the record of the slots fit what runs and what the loader would start, and does what that asks for. Before
/// anything else is done with the slots.
///
/// What still cannot be done after some tries is logged, and done at the next start: nothing that boots depends on it,
/// and a bad image that runs is left by [`trial::see_through`](crate::trial::see_through). The answer is what was seen
/// last; none if what runs is to be left and the reset that was asked for has not come about: then nothing more is to
/// be done. Fails if nothing can be learnt, or the record not be written.
pub async fn reconcile(
    boot: &dyn BootControl,
    slots: &SlotFile,
    reset: &dyn Reset,
) -> Result<Option<Seen>, Failure> {
    for _ in 1..TRIES {
        match mend_all(boot, slots, reset).await {
            Ok(seen) => return Ok(seen),
            Err(Unmended { failure, .. }) => {
                tracing::warn!(%failure, "the slots cannot be mended; trying again");
                sleep(PAUSE).await;
            }
        }
    }
    match mend_all(boot, slots, reset).await {
        Ok(seen) => Ok(seen),
        Err(Unmended {
            failure,
            seen: Some(seen),
        }) => {
            tracing::error!(%failure, "the slots cannot be mended now");
            Ok(Some(seen))
        }
        Err(Unmended {
            failure,
            seen: None,
        }) => Err(failure),
    }
}

/// Why the slots are not mended.
struct Unmended {
    failure: Failure,
    /// What was seen before; none if nothing can be learnt, or the record not be written.
    seen: Option<Seen>,
}

impl From<Failure> for Unmended {
    fn from(failure: Failure) -> Self {
        Self {
            failure,
            seen: None,
        }
    }
}

/// One try of [`reconcile`].
async fn mend_all(
    boot: &dyn BootControl,
    slots: &SlotFile,
    reset: &dyn Reset,
) -> Result<Option<Seen>, Unmended> {
    let mut seen = boot.look().await?;
    for _ in 0..ROUNDS {
        let mends = slots.reconcile(&seen)?;
        if mends.is_empty() {
            break;
        }
        for mend in mends {
            tracing::warn!(?mend, "the slots do not fit what is known of them");
            let done = match mend {
                Mend::Withdraw(slot) => boot.withdraw(slot).await,
                Mend::Bless(slot) => boot.bless(slot).await,
                Mend::Reset => {
                    reset.now().await;
                    // It came back. What runs is known to be bad: nothing is built on it, and nothing changed by it.
                    tracing::error!("what runs is to be left, and the machine does not reset");
                    return Ok(None);
                }
            };
            if let Err(failure) = done {
                // Nor what stands behind it: a reset could lead here again, and again.
                let seen = Some(seen);
                return Err(Unmended { failure, seen });
            }
        }
        seen = boot.look().await?;
    }
    Ok(Some(seen))
}

/// Whether a new image must reach the server: the old one did, shortly before it was left. When that was, the open
/// attempt tells; the machine may have been without power since. Only if it does not, the present counts.
pub fn demands_server(
    last_contact: Option<DateTime<Utc>>,
    attempt: Option<&Entry>,
    now: DateTime<Utc>,
) -> bool {
    let left = attempt.and_then(|attempt| {
        let is_end = |news: &News| matches!(news, News::Began | News::RebootBegun);
        let mut events = attempt.events.iter().rev();
        events.find(|event| is_end(&event.news))
    });
    let left = left.map_or(now, |event| event.at);
    // A clock that was turned back is no reason to demand less.
    last_contact.is_some_and(|last| left.signed_duration_since(last) <= LATELY)
}

/// A link whose credential those who fetch images use as well.
#[derive(Debug)]
pub struct SharedLink<L> {
    link: L,
    web: Option<Web>,
}

impl<L: Link> SharedLink<L> {
    /// A link, and who else uses its credential.
    pub fn new(link: L, web: Option<Web>) -> Self {
        Self { link, web }
    }
}

#[async_trait::async_trait]
impl<L: Link> Link for SharedLink<L> {
    async fn enroll(&self, applicant: &Applicant) -> Result<Enrolled, LinkError> {
        self.link.enroll(applicant).await
    }

    async fn poll(&self, question: Question<'_>) -> Result<Answer, LinkError> {
        self.link.poll(question).await
    }

    async fn begin(&self, entry: &Entry) -> Result<Leave, LinkError> {
        self.link.begin(entry).await
    }

    async fn report(&self, entry: &Entry) -> Result<u32, LinkError> {
        self.link.report(entry).await
    }

    fn renew(&self, credential: &Secret) -> Result<(), LinkError> {
        if let Some(web) = &self.web {
            web.renew(credential);
        }
        self.link.renew(credential)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Event, Target, Wish};

    #[test]
    fn a_server_is_demanded_that_was_reached_within_the_hour_before() {
        assert!(!demands_server(None, None, at(0)));
        assert!(demands_server(Some(at(0)), None, at(60)));
        assert!(!demands_server(Some(at(0)), None, at(61)));
        assert!(demands_server(Some(at(100)), None, at(0)));
    }

    #[test]
    fn time_without_power_on_trial_is_no_reason_to_demand_less_of_the_server() {
        let target = Target {
            digest: String::new(),
            wish: Wish::Unknown,
        };
        let mut attempt = Entry::new(uuid::Uuid::from_u128(1), target);
        let last = Some(at(0));
        let next_week = at(7 * 24 * 60);
        assert!(!demands_server(last, Some(&attempt), next_week));
        for (news, minutes, is_demanded) in [
            (News::Downloaded, 2, false),
            (News::Began, 5, true),
            (News::RebootBegun, 50, true),
            (News::RebootBegun, 70, false),
        ] {
            attempt.events.push(Event {
                sequence: attempt.last_sequence() + 1,
                at: at(minutes),
                boot_id: String::new(),
                news,
                account: None,
            });
            let demands = demands_server(last, Some(&attempt), next_week);
            assert_eq!(demands, is_demanded, "{minutes}");
        }
    }

    fn at(minutes: i64) -> DateTime<Utc> {
        DateTime::UNIX_EPOCH + TimeDelta::minutes(minutes)
    }

    #[test]
    fn a_record_on_the_root_itself_is_refused_with_what_to_do() {
        let root = tempfile::tempdir().unwrap();
        let place = Place::new(root.path(), None);
        place.prepare().unwrap();
        let failure = outlives_images(&place).unwrap_err();
        assert!(failure.reason.contains("state_dir"), "{failure}");
        let place = Place::new(root.path(), Some("/proc/self".into()));
        outlives_images(&place).unwrap();
        let place = Place::new(root.path(), Some("/no/such/folder".into()));
        outlives_images(&place).unwrap_err();
    }

    #[test]
    fn who_vouches_for_the_nodes_server_vouches_for_images_unless_others_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let place = Place::new("/", Some(folder.path().to_owned()));
        let mut config = ImageConfig::default();
        assert!(web_settings(&config, &place).roots.is_empty());
        fs::write(place.ca(), "an authority").unwrap();
        assert_eq!(web_settings(&config, &place).roots, [place.ca()]);
        config.web.roots.push("/etc/named.pem".into());
        assert_eq!(web_settings(&config, &place).roots, config.web.roots);
    }

    #[test]
    fn the_credential_goes_to_the_servers_own_port_and_to_nobody_without_one() {
        let folder = tempfile::tempdir().unwrap();
        let place = Place::new("/", Some(folder.path().to_owned()));
        assert_eq!(home(&place), "");
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
            node.save(&place).unwrap();
            assert_eq!(home(&place), authority);
        }
    }
}
