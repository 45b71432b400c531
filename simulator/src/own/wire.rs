//! The words of our own protocol.

use std::collections::VecDeque;
use std::time::Duration;

use chrono::DateTime;
use evenkeel_proto::agent::event::News;
use evenkeel_proto::agent::{
    AvailablePackage, Cancelled, Downloaded, Downloading, Facts, Failed, FailureKind, Finished,
    ImageChange, NothingToDo, OsRelease, PackageChange, PackageResult, Plan, RebootBegun, Reverted,
    Reverting, VerifyBegun,
};
use prost::Message as _;
use sha2::{Digest as _, Sha256};

use crate::chance::Chance;
use crate::clock::Time;
use crate::own::journal::Trial;

/// The name of an event, as the record of a run has it.
pub(super) const fn name(news: &News) -> &'static str {
    match news {
        News::Downloading(_) => "downloading",
        News::Downloaded(_) => "downloaded",
        News::Began(_) => "began",
        News::RebootBegun(_) => "reboot_begun",
        News::VerifyBegun(_) => "verify_begun",
        News::Reverting(_) => "reverting",
        News::Finished(_) => "finished",
        News::Failed(_) => "failed",
        News::Reverted(_) => "reverted",
        News::NothingToDo(_) => "nothing_to_do",
        News::Cancelled(_) => "cancelled",
    }
}

/// Whether an attempt is over after it.
pub(super) const fn ends(news: &News) -> bool {
    matches!(
        news,
        News::Finished(_)
            | News::Failed(_)
            | News::Reverted(_)
            | News::NothingToDo(_)
            | News::Cancelled(_)
    )
}

/// An instant on the wire.
pub(super) fn timestamp(at: Time) -> prost_types::Timestamp {
    prost_types::Timestamp {
        seconds: at.timestamp(),
        nanos: i32::try_from(at.timestamp_subsec_nanos()).unwrap_or(0),
    }
}

/// An instant from the wire; none if it is none.
pub(super) fn time(at: Option<prost_types::Timestamp>) -> Option<Time> {
    let at = at?;
    DateTime::from_timestamp(at.seconds, u32::try_from(at.nanos).ok()?)
}

/// The digest of facts.
pub(super) fn digest(facts: &Facts) -> Vec<u8> {
    Sha256::digest(facts.encode_to_vec()).to_vec()
}

/// What is known about a new node.
pub(super) fn facts(chance: &mut Chance) -> Facts {
    let mut facts = Facts {
        agent_version: "0.1.0".to_owned(),
        os_release: Some(OsRelease {
            id: "debian".to_owned(),
            version_id: "12".to_owned(),
            pretty_name: "Debian GNU/Linux 12 (bookworm)".to_owned(),
            version_codename: "bookworm".to_owned(),
        }),
        architecture: "amd64".to_owned(),
        kernel_release: "6.1.0-41-amd64".to_owned(),
        boot_id: chance.uuid().to_string(),
        modules: vec!["packages".to_owned()],
        ..Facts::default()
    };
    turn_over(&mut facts, chance);
    facts
}

/// Changes what is known about a node.
pub(super) fn turn_over(facts: &mut Facts, chance: &mut Chance) {
    let count = chance.between(0, 3);
    let package = |n| AvailablePackage {
        name: format!("demo-{n}"),
        architecture: "all".to_owned(),
        installed_version: "1.0".to_owned(),
        available_version: "1.1".to_owned(),
        ..AvailablePackage::default()
    };
    facts.available = (0..count).map(package).collect();
    facts.packages_digest = Sha256::digest(packages(count)).to_vec();
    facts.installed_digest = format!("{count:064x}");
    facts.reboot_required = chance.hits(200);
}

/// The list of installed packages of a node with these facts. Many nodes have the same.
pub(super) fn packages_of(facts: &Facts) -> String {
    packages(facts.available.len() as u64)
}

fn packages(count: u64) -> String {
    let one = |n| format!("{{\"name\":\"demo-{n}\",\"version\":\"1.0\",\"architecture\":\"all\"}}");
    let all: Vec<_> = (0..10 + count).map(one).collect();
    format!("{{\"repo\":[{}]}}", all.join(","))
}

/// Fetching begins: of an image, or of a package.
pub(super) fn downloading(image: Option<&Trial>) -> News {
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
        wanted: trial.change.to.clone(),
    });
    News::Downloading(Downloading {
        plan: Some(Plan {
            changes: image.is_none().then(package).into_iter().collect(),
            download_bytes: 1_024,
            image,
            ..Plan::default()
        }),
    })
}

/// Fetching is done.
pub(super) const fn downloaded() -> News {
    News::Downloaded(Downloaded {})
}

/// The node is as wanted already.
pub(super) const fn nothing_to_do() -> News {
    News::NothingToDo(NothingToDo {})
}

/// Given up before anything was changed.
pub(super) fn cancelled(cause: &str) -> News {
    News::Cancelled(Cancelled {
        cause: cause.to_owned(),
    })
}

/// It ended badly, and what ran before runs on.
pub(super) fn failed(kind: FailureKind, image: Option<&Trial>) -> News {
    News::Failed(Failed {
        kind: kind.into(),
        reason: "as drawn by lot".to_owned(),
        booted_image_id: before(image),
        ..Failed::default()
    })
}

/// The image that runs if nothing comes of another one; empty of packages.
fn before(image: Option<&Trial>) -> String {
    image.map_or_else(String::new, |trial| trial.change.from.clone())
}

/// What will happen between the beginning and the end of a change. An image is booted, and the node falls back from one
/// that fails.
pub(super) fn steps(
    chance: &mut Chance,
    step: (Duration, Duration),
    fail: u16,
    image: Option<&Trial>,
) -> VecDeque<(Duration, News)> {
    let mut all = Vec::new();
    if image.is_some() || chance.hits(300) {
        all.push(News::RebootBegun(RebootBegun {}));
    }
    if chance.hits(800) {
        all.push(News::VerifyBegun(VerifyBegun {}));
    }
    if !chance.hits(fail) {
        all.push(News::Finished(finished(image)));
    } else if image.is_some() || chance.hits(400) {
        let why = "as drawn by lot".to_owned();
        all.push(News::Reverting(Reverting { why }));
        all.push(News::Reverted(Reverted {
            kind: FailureKind::Verify.into(),
            reason: "as drawn by lot".to_owned(),
            log: String::new(),
            booted_image_id: before(image),
        }));
    } else {
        all.push(failed(FailureKind::Apply, image));
    }
    all.into_iter()
        .map(|news| (chance.length(step), news))
        .collect()
}

/// What runs is what was wanted.
fn finished(image: Option<&Trial>) -> Finished {
    if let Some(trial) = image {
        return Finished {
            booted_image_id: trial.change.to.clone(),
            ..Finished::default()
        };
    }
    let package = PackageResult {
        name: "demo-0".to_owned(),
        architecture: "all".to_owned(),
        version: "1.1".to_owned(),
        state: "installed".to_owned(),
    };
    Finished {
        results: vec![package],
        booted_image_id: String::new(),
    }
}
