//! Messages of our own protocol.

use std::collections::VecDeque;
use std::time::Duration;

use chrono::DateTime;
use evenkeel_proto::agent::event::Kind;
use evenkeel_proto::agent::{
    AvailablePackage, BootedImage, Cancelled, Downloaded, Downloading, EnrollRequest, Event, Facts,
    Failed, FailureKind, Finished, Identity, ImageChange, NothingToDo, OsRelease, PackageChange,
    PackageResult, Plan, RebootBegun, ReportRequest, Reverted, Reverting, VerifyBegun,
};
use prost::Message as _;
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use crate::clock::Time;
use crate::own::journal::ImageTrial;
use crate::rng::Rng;

/// The name of an event, as a run records it.
pub(super) const fn event_name(event: &Kind) -> &'static str {
    match event {
        Kind::Downloading(_) => "downloading",
        Kind::Downloaded(_) => "downloaded",
        Kind::Began(_) => "began",
        Kind::RebootBegun(_) => "reboot_begun",
        Kind::VerifyBegun(_) => "verify_begun",
        Kind::Reverting(_) => "reverting",
        Kind::Finished(_) => "finished",
        Kind::Failed(_) => "failed",
        Kind::Reverted(_) => "reverted",
        Kind::NothingToDo(_) => "nothing_to_do",
        Kind::Cancelled(_) => "cancelled",
    }
}

pub(super) const fn ends_attempt(event: &Kind) -> bool {
    matches!(
        event,
        Kind::Finished(_)
            | Kind::Failed(_)
            | Kind::Reverted(_)
            | Kind::NothingToDo(_)
            | Kind::Cancelled(_)
    )
}

/// An instant on the wire.
pub(super) fn timestamp(at: Time) -> prost_types::Timestamp {
    prost_types::Timestamp {
        seconds: at.timestamp(),
        nanos: i32::try_from(at.timestamp_subsec_nanos()).unwrap_or(0),
    }
}

/// An instant from the wire; `None` if it is missing or invalid.
pub(super) fn parse_time(at: Option<prost_types::Timestamp>) -> Option<Time> {
    let at = at?;
    DateTime::from_timestamp(at.seconds, u32::try_from(at.nanos).ok()?)
}

/// The request of a new node to join. `certificate_request` (PKCS #10, DER) is for its Ed25519 key.
#[must_use]
pub fn enroll_request(
    join_token: &str,
    identity: Identity,
    certificate_request: Vec<u8>,
    image: Option<BootedImage>,
) -> EnrollRequest {
    EnrollRequest {
        join_token: join_token.to_owned(),
        identity: Some(identity),
        os_release: Some(os_release()),
        architecture: "amd64".to_owned(),
        agent_version: "0.1.0".to_owned(),
        booted_image: image,
        certificate_request,
        decryption_certificate_request: Vec::new(),
    }
}

/// A report of events, of which the first has this sequence number.
#[must_use]
pub fn report_request(attempt: Uuid, target: &str, first: u32, kinds: &[Kind]) -> ReportRequest {
    let event = |(sequence, kind): (u32, &Kind)| Event {
        sequence,
        boot_id: "boot".to_owned(),
        kind: Some(kind.clone()),
        ..Event::default()
    };
    ReportRequest {
        attempt_id: attempt.to_string(),
        target_digest: target.to_owned(),
        events: (first..).zip(kinds).map(event).collect(),
    }
}

fn os_release() -> OsRelease {
    OsRelease {
        id: "debian".to_owned(),
        version_id: "12".to_owned(),
        pretty_name: "Debian GNU/Linux 12 (bookworm)".to_owned(),
        version_codename: "bookworm".to_owned(),
    }
}

/// The digest of facts, as a node sends it.
pub(crate) fn digest(facts: &Facts) -> [u8; 32] {
    Sha256::digest(facts.encode_to_vec()).into()
}

/// The facts of a new node.
pub(super) fn facts(rng: &mut Rng) -> Facts {
    let mut facts = basic_facts(rng.uuid().to_string());
    change_facts(&mut facts, rng);
    facts
}

/// The facts of a node without available packages.
pub(crate) fn basic_facts(boot_id: String) -> Facts {
    Facts {
        agent_version: "0.1.0".to_owned(),
        os_release: Some(os_release()),
        architecture: "amd64".to_owned(),
        kernel_release: "6.1.0-41-amd64".to_owned(),
        boot_id,
        modules: vec!["packages".to_owned()],
        ..Facts::default()
    }
}

/// Changes the facts of a node.
pub(super) fn change_facts(facts: &mut Facts, rng: &mut Rng) {
    let count = rng.between(0, 3);
    let package = |n| AvailablePackage {
        name: format!("demo-{n}"),
        architecture: "all".to_owned(),
        installed_version: "1.0".to_owned(),
        available_version: "1.1".to_owned(),
        ..AvailablePackage::default()
    };
    facts.available = (0..count).map(package).collect();
    facts.packages_digest = Sha256::digest(render_packages(count)).to_vec();
    facts.installed_digest = format!("{count:064x}");
    facts.reboot_required = rng.happens(200);
}

/// The list of installed packages of a node with these facts. Many nodes have the same list.
pub(super) fn package_list(facts: &Facts) -> String {
    render_packages(facts.available.len() as u64)
}

fn render_packages(count: u64) -> String {
    let one = |n| format!("{{\"name\":\"demo-{n}\",\"version\":\"1.0\",\"architecture\":\"all\"}}");
    let all: Vec<_> = (0..10 + count).map(one).collect();
    format!("{{\"repo\":[{}]}}", all.join(","))
}

/// A download begins: of an image, or of a package.
pub(super) fn downloading(image: Option<&ImageTrial>) -> Kind {
    let package = || PackageChange {
        name: "demo-0".to_owned(),
        architecture: "all".to_owned(),
        before: "1.0".to_owned(),
        after: "1.1".to_owned(),
        ..PackageChange::default()
    };
    let image = image.map(|trial| ImageChange {
        profile_name: trial.profile.clone(),
        before: trial.change.from.clone(),
        desired: trial.change.to.clone(),
    });
    Kind::Downloading(Downloading {
        plan: Some(Plan {
            changes: image.is_none().then(package).into_iter().collect(),
            download_bytes: 1_024,
            image,
            ..Plan::default()
        }),
    })
}

/// The download is complete.
pub(super) const fn downloaded() -> Kind {
    Kind::Downloaded(Downloaded {})
}

/// The node is already up to date.
pub(super) const fn nothing_to_do() -> Kind {
    Kind::NothingToDo(NothingToDo {})
}

/// The attempt was cancelled before it changed anything.
pub(super) fn cancelled(cause: &str) -> Kind {
    Kind::Cancelled(Cancelled { cause: cause.to_owned() })
}

/// The attempt failed, and the previous image still runs.
pub(super) fn failed(kind: FailureKind, image: Option<&ImageTrial>) -> Kind {
    Kind::Failed(Failed {
        kind: kind.into(),
        reason: "as drawn by lot".to_owned(),
        booted_image_id: previous_image(image),
        ..Failed::default()
    })
}

/// The image that runs after a failed attempt; empty for packages.
fn previous_image(image: Option<&ImageTrial>) -> String {
    image.map_or_else(String::new, |trial| trial.change.from.clone())
}

/// Draws the steps of an update from its beginning to its end. An image is booted, and the node
/// falls back from an image that fails.
pub(super) fn draw_steps(
    rng: &mut Rng,
    step: (Duration, Duration),
    fail: u16,
    image: Option<&ImageTrial>,
) -> VecDeque<(Duration, Kind)> {
    let mut all = Vec::new();
    if image.is_some() || rng.happens(300) {
        all.push(Kind::RebootBegun(RebootBegun {}));
    }
    if rng.happens(800) {
        all.push(Kind::VerifyBegun(VerifyBegun {}));
    }
    if !rng.happens(fail) {
        all.push(Kind::Finished(finished(image)));
    } else if image.is_some() || rng.happens(400) {
        let why = "as drawn by lot".to_owned();
        all.push(Kind::Reverting(Reverting { reason: why }));
        all.push(Kind::Reverted(Reverted {
            kind: FailureKind::Verify.into(),
            reason: "as drawn by lot".to_owned(),
            log: String::new(),
            booted_image_id: previous_image(image),
        }));
    } else {
        all.push(failed(FailureKind::Apply, image));
    }
    all.into_iter().map(|event| (rng.duration(step), event)).collect()
}

/// The result of a successful update.
fn finished(image: Option<&ImageTrial>) -> Finished {
    if let Some(trial) = image {
        return Finished { booted_image_id: trial.change.to.clone(), ..Finished::default() };
    }
    let package = PackageResult {
        name: "demo-0".to_owned(),
        architecture: "all".to_owned(),
        version: "1.1".to_owned(),
        state: "installed".to_owned(),
    };
    Finished { results: vec![package], booted_image_id: String::new() }
}
