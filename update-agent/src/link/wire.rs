//! From the agent's own types to messages and back. No message is known beyond this folder.

mod wish;

use std::time::Duration;

use chrono::{DateTime, Utc};
use evenkeel_kit::Secret;
use evenkeel_proto::agent as pb;
use prost::Message;
use prost_types::Timestamp;
use sha2::{Digest as _, Sha256};

use super::{Answer, Applicant, Enrolled, Leave, LinkError, Question};
use crate::facts::Facts;
use crate::grants::{Grant, Window};
use crate::identity;
use crate::journal::Entry;
use crate::model::{
    Account, Act, Decision, Event, FailureKind, News, PackageResult, Plan, Target, Wish, Withheld,
    WithheldCause,
};
use crate::os::{BootedImage, OsRelease};

/// Neither a server in a hurry nor one that forgot to say gets a poll more often than this.
const SHORTEST: Duration = Duration::from_secs(1);

/// SHA-256 of the facts as they are sent.
pub fn facts_digest(facts: &Facts) -> [u8; 32] {
    Sha256::digest(facts_message(facts).encode_to_vec()).into()
}

pub(super) fn enroll_request(applicant: &Applicant) -> pb::EnrollRequest {
    pb::EnrollRequest {
        join_token: applicant.token.reveal().to_owned(),
        identity: Some(pb::Identity {
            uuid: applicant.identity.uuid.to_string(),
            serial_number: applicant.identity.serial_number.clone(),
            host_name: applicant.identity.host_name.clone(),
        }),
        os_release: Some(os_release(&applicant.os_release)),
        architecture: applicant.architecture.clone(),
        public_key: applicant.public_key.clone(),
        agent_version: env!("CARGO_PKG_VERSION").to_owned(),
        booted_image: applicant.booted_image.as_ref().map(booted_image),
    }
}

pub(super) fn enrolled(answer: pb::EnrollResponse) -> Result<Enrolled, LinkError> {
    if answer.credential.is_empty() {
        return Err(LinkError::Nonsense("it gives no credential"));
    }
    Ok(Enrolled {
        credential: Secret::new(answer.credential),
        credential_expires: answer.credential_expires.and_then(instant),
        host_id: answer.host_id,
        instance_id: answer.instance_id,
        project: answer.project,
    })
}

pub(super) fn poll_request(question: Question<'_>) -> pb::PollRequest {
    pb::PollRequest {
        facts_digest: facts_digest(question.facts).to_vec(),
        facts: question.whole.then(|| facts_message(question.facts)),
        attempt: question.attempt.map(|(id, last_sequence)| pb::Attempt {
            id: id.to_string(),
            last_sequence,
        }),
        packages: question.packages.unwrap_or_default().to_owned(),
        waiting: question.waiting.to_owned(),
        decision_tag: question.tag,
        may_hold_millis: u32::try_from(question.hold.as_millis()).unwrap_or(u32::MAX),
    }
}

pub(super) fn answer(answer: pb::PollResponse) -> Result<Answer, LinkError> {
    let millis = |millis: u32| Duration::from_millis(millis.into());
    Ok(Answer {
        want_facts: answer.want_facts,
        want_packages: answer.want_packages,
        now: answer.now.and_then(instant),
        next_poll: millis(answer.next_poll_millis).max(SHORTEST),
        decision: decision(answer.decision.unwrap_or_default())?,
        credential: Some(answer.credential)
            .filter(|text| !text.is_empty())
            .map(Secret::new),
        tag: answer.decision_tag,
        hold: millis(answer.hold_millis),
        spread: millis(answer.spread_millis),
    })
}

pub(super) fn begin_request(entry: &Entry) -> pb::BeginRequest {
    pb::BeginRequest {
        attempt_id: entry.attempt.to_string(),
        target_digest: entry.target.digest.clone(),
        last_sequence: entry.acknowledged,
    }
}

pub(super) fn leave(answer: pb::BeginResponse) -> Result<Leave, LinkError> {
    let now = answer.now.and_then(instant);
    match answer.answer {
        Some(pb::begin_response::Answer::Granted(granted)) => {
            let before = granted.before.and_then(instant);
            // By the server's own clock, which made the instant: the node's may be wrong.
            match (before, now) {
                (Some(before), Some(now)) if before <= now => Ok(Leave::Refused {
                    reason: "the leave to begin had ended when it arrived".to_owned(),
                }),
                _ => Ok(Leave::Granted { before }),
            }
        }
        Some(pb::begin_response::Answer::Refused(refused)) => Ok(Leave::Refused {
            reason: refused.reason,
        }),
        None => Err(LinkError::Nonsense("it neither grants nor refuses")),
    }
}

pub(super) fn report_request(entry: &Entry) -> pb::ReportRequest {
    pb::ReportRequest {
        attempt_id: entry.attempt.to_string(),
        target_digest: entry.target.digest.clone(),
        events: entry.unsent().iter().map(event).collect(),
    }
}

/// A report of an attempt that does not exist, with nothing in it: the server stores nothing of it and says its time.
pub(super) fn empty_report() -> pb::ReportRequest {
    pb::ReportRequest {
        attempt_id: identity::new_attempt().to_string(),
        target_digest: String::new(),
        events: Vec::new(),
    }
}

/// The server's clock as a report was answered.
pub(super) fn server_time(answer: &pb::ReportResponse) -> Option<DateTime<Utc>> {
    answer.now.and_then(instant)
}

fn facts_message(facts: &Facts) -> pb::Facts {
    let available = facts.available.iter().map(|package| pb::AvailablePackage {
        name: package.name.clone(),
        architecture: package.architecture.clone(),
        installed_version: package.installed.clone(),
        available_version: package.available.clone(),
        suites: package.suites.clone(),
    });
    let services = facts.stale_services.iter().map(|service| pb::StaleService {
        name: service.name.clone(),
        files: service.files.clone(),
    });
    let bad_images = facts.bad_images.iter().map(|bad| pb::BadImage {
        sha256: bad.file.to_string(),
        image_id: bad.image_id.clone(),
        why: bad.why.clone(),
    });
    let slots = facts.slots.iter().map(|slot| pb::ImageSlot {
        name: slot.name.clone(),
        state: slot.state.clone(),
        image_id: slot.image_id.clone(),
    });
    let digest = facts.packages_digest.as_ref();
    pb::Facts {
        agent_version: facts.agent_version.clone(),
        os_release: Some(os_release(&facts.os_release)),
        architecture: facts.architecture.clone(),
        kernel_release: facts.kernel_release.clone(),
        boot_id: facts.boot_id.clone(),
        modules: facts.modules.clone(),
        available: available.collect(),
        installed_digest: facts.installed_digest.clone(),
        reboot_required: facts.reboot_required,
        reboot_required_by: facts.reboot_required_by.clone(),
        audit: facts.audit.clone(),
        packages_digest: digest.map_or_else(Vec::new, |digest| digest.to_vec()),
        withheld: facts.withheld.iter().map(withheld).collect(),
        stale_services: services.collect(),
        reboot_reasons: facts.reboot_reasons.clone(),
        booted_image: facts.booted_image.as_ref().map(booted_image),
        troubles: facts.troubles.clone(),
        limits: facts.limits.clone(),
        bad_images: bad_images.collect(),
        slots: slots.collect(),
    }
}

fn booted_image(image: &BootedImage) -> pb::BootedImage {
    pb::BootedImage {
        profile_name: image.profile_name.clone(),
        image_id: image.image_id.clone(),
    }
}

fn withheld(package: &Withheld) -> pb::WithheldPackage {
    let cause = match package.cause {
        WithheldCause::Hold => pb::WithheldCause::Hold,
        WithheldCause::KeptBack => pb::WithheldCause::KeptBack,
        WithheldCause::Phased => pb::WithheldCause::Phased,
        WithheldCause::Pinned => pb::WithheldCause::Pinned,
        WithheldCause::Limits => pb::WithheldCause::Limits,
        WithheldCause::Policy => pb::WithheldCause::Policy,
    };
    pb::WithheldPackage {
        name: package.name.clone(),
        architecture: package.architecture.clone(),
        installed_version: package.installed.clone(),
        available_version: package.available.clone(),
        cause: cause.into(),
        detail: String::new(),
    }
}

fn os_release(release: &OsRelease) -> pb::OsRelease {
    pb::OsRelease {
        id: release.id.clone(),
        version_id: release.version_id.clone(),
        pretty_name: release.pretty_name.clone(),
        version_codename: release.version_codename.clone(),
    }
}

fn decision(decision: pb::Decision) -> Result<Decision, LinkError> {
    use pb::decision::Act as Said;
    let act = match decision.act {
        None | Some(Said::Idle(_)) => Act::Idle,
        Some(Said::Fetch(fetch)) => Act::Fetch(target(fetch.target)?),
        Some(Said::Apply(apply)) => Act::Apply {
            target: target(apply.target)?,
            before: apply.before.and_then(instant),
        },
        Some(Said::Continue(_)) => Act::Continue,
        Some(Said::Cancel(cancel)) => Act::Cancel {
            cause: cancel.cause,
        },
    };
    Ok(Decision {
        act,
        reason: decision.reason,
        next: decision.next.and_then(instant),
        grant: decision.grant.and_then(grant),
    })
}

/// Leave without an end is none, and neither is a window without one.
fn grant(grant: pb::Grant) -> Option<Grant> {
    let window = |window: pb::Window| {
        Some(Window {
            start: instant(window.start?)?,
            end: instant(window.end?)?,
        })
    };
    Some(Grant {
        target_digest: grant.target_digest,
        windows: grant.windows.into_iter().filter_map(window).collect(),
        expires: instant(grant.expires?)?,
    })
}

fn target(target: Option<pb::Target>) -> Result<Target, LinkError> {
    let target = target.ok_or(LinkError::Nonsense("it names no target"))?;
    if target.digest.is_empty() {
        return Err(LinkError::Nonsense("its target has no digest"));
    }
    let wish = match target.wish {
        Some(pb::target::Wish::Packages(packages)) => wish::packages(packages),
        Some(pb::target::Wish::Image(image)) => wish::image(image),
        // There is no module for it.
        Some(pb::target::Wish::Kernel(_)) | None => Wish::Unknown,
    };
    Ok(Target {
        digest: target.digest,
        wish,
    })
}

fn event(event: &Event) -> pb::Event {
    use pb::event::News as Said;
    let news = match &event.news {
        News::Downloading(plan) => Said::Downloading(pb::Downloading {
            plan: Some(plan_message(plan)),
        }),
        News::Downloaded => Said::Downloaded(pb::Downloaded {}),
        News::Began => Said::Began(pb::Began {}),
        News::RebootBegun => Said::RebootBegun(pb::RebootBegun {}),
        News::VerifyBegun => Said::VerifyBegun(pb::VerifyBegun {}),
        News::Finished { results, booted } => Said::Finished(pb::Finished {
            results: results_message(results),
            booted_image_id: booted.clone().unwrap_or_default(),
        }),
        News::Failed {
            failure,
            results,
            booted,
        } => Said::Failed(pb::Failed {
            kind: kind(failure.kind).into(),
            reason: failure.reason.clone(),
            log: failure.log.clone(),
            results: results_message(results),
            booted_image_id: booted.clone().unwrap_or_default(),
        }),
        News::Reverted { failure, booted } => Said::Reverted(pb::Reverted {
            kind: kind(failure.kind).into(),
            reason: failure.reason.clone(),
            log: failure.log.clone(),
            booted_image_id: booted.clone().unwrap_or_default(),
        }),
        News::NothingToDo => Said::NothingToDo(pb::NothingToDo {}),
        News::Cancelled { cause } => Said::Cancelled(pb::Cancelled {
            cause: cause.clone(),
        }),
    };
    pb::Event {
        sequence: event.sequence,
        node_time: Some(timestamp(event.at)),
        boot_id: event.boot_id.clone(),
        news: Some(news),
        account: event.account.as_ref().map(account),
    }
}

fn account(account: &Account) -> pb::Account {
    let phases = account.phases.iter().map(|span| pb::PhaseSpan {
        phase: span.phase.clone(),
        millis: span.millis,
        bytes: span.bytes,
    });
    pb::Account {
        phases: phases.collect(),
        remarks: account.remarks.clone(),
        kept_conffiles: account.kept_conffiles.clone(),
        restarted_services: account.restarted_services.clone(),
        reboot_required: account.reboot_required,
    }
}

fn plan_message(plan: &Plan) -> pb::Plan {
    let changes = plan.changes.iter().map(|change| pb::PackageChange {
        name: change.name.clone(),
        architecture: change.architecture.clone(),
        before: change.before.clone().unwrap_or_default(),
        after: change.after.clone().unwrap_or_default(),
        suite: change.suite.clone(),
        download_bytes: change.download_bytes,
    });
    pb::Plan {
        changes: changes.collect(),
        download_bytes: plan.download_bytes,
        disk_bytes: plan.disk_bytes,
        reboot_expected: plan.reboot_expected,
        withheld: plan.withheld.iter().map(withheld).collect(),
        image: plan.image.as_ref().map(|image| pb::ImageChange {
            profile_name: image.profile_name.clone(),
            before: image.before.clone(),
            wanted: image.wanted.clone(),
        }),
    }
}

fn results_message(results: &[PackageResult]) -> Vec<pb::PackageResult> {
    let results = results.iter().map(|result| pb::PackageResult {
        name: result.name.clone(),
        architecture: result.architecture.clone(),
        version: result.version.clone(),
        state: result.state.clone(),
    });
    results.collect()
}

fn kind(kind: FailureKind) -> pb::FailureKind {
    match kind {
        FailureKind::Refresh => pb::FailureKind::Refresh,
        FailureKind::Plan => pb::FailureKind::Plan,
        FailureKind::Download => pb::FailureKind::Download,
        FailureKind::Signature => pb::FailureKind::Signature,
        FailureKind::Storage => pb::FailureKind::Storage,
        FailureKind::Apply => pb::FailureKind::Apply,
        FailureKind::Verify => pb::FailureKind::Verify,
        FailureKind::Reboot => pb::FailureKind::Reboot,
        FailureKind::Interrupted => pb::FailureKind::Interrupted,
        FailureKind::Unsupported => pb::FailureKind::Unsupported,
        FailureKind::Limits => pb::FailureKind::Limits,
    }
}

fn instant(timestamp: Timestamp) -> Option<DateTime<Utc>> {
    DateTime::from_timestamp(timestamp.seconds, u32::try_from(timestamp.nanos).ok()?)
}

fn timestamp(instant: DateTime<Utc>) -> Timestamp {
    Timestamp {
        seconds: instant.timestamp(),
        // A leap second is written as more than a second of nanoseconds, which a message must not have.
        nanos: i32::try_from(instant.timestamp_subsec_nanos().min(999_999_999)).unwrap_or(0),
    }
}

#[cfg(test)]
mod tests;
