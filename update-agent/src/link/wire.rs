//! Converts the agent's own types to protocol messages and back. Modules convert their specs and reports.

mod hardware;

use std::time::Duration;

use chrono::{DateTime, Utc};
use evenkeel_kit::Secret;
use evenkeel_proto::agent as pb;
use prost::Message;
use prost_types::Timestamp;
use sha2::{Digest as _, Sha256};

use super::{Applicant, Enrollment, LinkError, PollAnswer, PollQuery, StartPermit};
use crate::facts::{Facts, ForeignChange, PackageLists};
use crate::grants::{GrantWindow, OfflineGrant};
use crate::identity;
use crate::journal::JournalEntry;
use crate::model::{
    Action, AttemptEvent, Decision, EventKind, FailureKind, InterruptionCause, ModuleParts,
    RunReport, UpdateTarget,
};
use crate::modules::ModuleKind;
use crate::modules::packages::held_back_message;
use crate::node::{CertificateRequests, IssuedCertificates};
use crate::os::{BootedImage, OsRelease};

/// Shortest poll interval, whatever the server asks for.
const MIN_POLL_INTERVAL: Duration = Duration::from_secs(1);

const SECONDS_PER_DAY: i64 = 86_400;
const SECONDS_PER_HOUR: i64 = 3_600;

/// SHA-256 of the facts as they are sent, but with the day of the last refresh of the package lists instead of its time:
/// a refresh that changes nothing else is reported once a day. Otherwise each refresh of each node would send all facts
/// and add a row to the change log of the server. The boot time counts by its hour, because each process of the agent
/// may compute another second from the clock.
pub fn facts_digest(facts: &Facts) -> [u8; 32] {
    let mut message = facts_message(facts);
    let lists = message.package_lists.as_mut();
    if let Some(refreshed_at) = lists.and_then(|lists| lists.refreshed_at.as_mut()) {
        let day = refreshed_at.seconds.div_euclid(SECONDS_PER_DAY);
        *refreshed_at = Timestamp { seconds: day, nanos: 0 };
    }
    if let Some(boot_time) = message.boot_time.as_mut() {
        let hour = boot_time.seconds.div_euclid(SECONDS_PER_HOUR);
        *boot_time = Timestamp { seconds: hour, nanos: 0 };
    }
    Sha256::digest(message.encode_to_vec()).into()
}

pub(super) fn enroll_request(applicant: &Applicant) -> pb::EnrollRequest {
    pb::EnrollRequest {
        join_token: applicant.token.reveal().to_owned(),
        identity: Some(pb::Identity {
            uuid: applicant.identity.uuid.to_string(),
            serial_number: applicant.identity.serial_number.clone(),
            host_name: applicant.identity.host_name.clone(),
        }),
        os_release: Some(os_release_message(&applicant.os_release)),
        architecture: applicant.architecture.clone(),
        agent_version: env!("CARGO_PKG_VERSION").to_owned(),
        booted_image: applicant.booted_image.as_ref().map(booted_image_message),
        certificate_request: applicant.requests.client.clone(),
        decryption_certificate_request: applicant.requests.decryption.clone(),
    }
}

pub(super) fn parse_enrollment(answer: pb::EnrollResponse) -> Result<Enrollment, LinkError> {
    if answer.certificate.is_empty() && answer.credential.is_empty() {
        return Err(LinkError::InvalidAnswer("it contains no certificate"));
    }
    Ok(Enrollment {
        certificates: IssuedCertificates {
            client: answer.certificate,
            decryption: answer.decryption_certificate,
        },
        credential: Some(answer.credential).filter(|text| !text.is_empty()).map(Secret::new),
        credential_expires: answer.credential_expires.and_then(parse_timestamp),
        host_id: answer.host_id,
        instance_id: answer.instance_id,
        project: answer.project,
        server_time: answer.now.and_then(parse_timestamp),
    })
}

pub(super) fn renew_request(requests: CertificateRequests) -> pb::RenewRequest {
    pb::RenewRequest {
        certificate_request: requests.client,
        decryption_certificate_request: requests.decryption,
    }
}

/// The certificates in the answer to a renewal, and the bearer token if there is one.
pub(super) fn parse_renewal(
    answer: pb::RenewResponse,
) -> Result<(IssuedCertificates, Option<Secret>), LinkError> {
    if answer.certificate.is_empty() {
        return Err(LinkError::InvalidAnswer("it contains no certificate"));
    }
    let certificates = IssuedCertificates {
        client: answer.certificate,
        decryption: answer.decryption_certificate,
    };
    let credential = Some(answer.credential).filter(|text| !text.is_empty()).map(Secret::new);
    Ok((certificates, credential))
}

pub(super) fn poll_request(query: PollQuery<'_>) -> pb::PollRequest {
    pb::PollRequest {
        facts_digest: facts_digest(query.facts).to_vec(),
        facts: query.send_facts.then(|| facts_message(query.facts)),
        attempt: query
            .attempt
            .map(|(id, last_sequence)| pb::Attempt { id: id.to_string(), last_sequence }),
        packages: query.packages.unwrap_or_default().to_owned(),
        waiting: query.waiting_reason.to_owned(),
        decision_tag: query.decision_tag,
        long_poll_millis: u32::try_from(query.max_hold.as_millis()).unwrap_or(u32::MAX),
    }
}

pub(super) fn parse_poll_answer(
    answer: pb::PollResponse,
    kinds: &[ModuleKind],
) -> Result<PollAnswer, LinkError> {
    let millis = |millis: u32| Duration::from_millis(millis.into());
    Ok(PollAnswer {
        want_facts: answer.facts_required,
        want_packages: answer.packages_required,
        server_time: answer.now.and_then(parse_timestamp),
        next_poll: millis(answer.next_poll_millis).max(MIN_POLL_INTERVAL),
        decision: parse_decision(answer.decision.unwrap_or_default(), kinds)?,
        credential: Some(answer.credential).filter(|text| !text.is_empty()).map(Secret::new),
        decision_tag: answer.decision_tag,
        max_hold: millis(answer.next_long_poll_millis),
        reconnect_spread: millis(answer.reconnect_spread_millis),
    })
}

pub(super) fn begin_request(entry: &JournalEntry) -> pb::BeginRequest {
    pb::BeginRequest {
        attempt_id: entry.attempt.to_string(),
        target_digest: entry.target.digest.clone(),
        last_sequence: entry.acknowledged,
    }
}

pub(super) fn parse_start_permit(answer: pb::BeginResponse) -> Result<StartPermit, LinkError> {
    let now = answer.now.and_then(parse_timestamp);
    match answer.answer {
        Some(pb::begin_response::Answer::Granted(granted)) => {
            let before = granted.start_deadline.and_then(parse_timestamp);
            // Compare with the server's own clock, which made both times: the node's clock may be wrong.
            match (before, now) {
                (Some(before), Some(now)) if before <= now => Ok(StartPermit::Refused {
                    reason: "the permit to start had expired when it arrived".to_owned(),
                }),
                _ => Ok(StartPermit::Granted { start_deadline: before }),
            }
        }
        Some(pb::begin_response::Answer::Refused(refused)) => {
            Ok(StartPermit::Refused { reason: refused.reason })
        }
        None => Err(LinkError::InvalidAnswer("it neither grants nor refuses the start")),
    }
}

pub(super) fn report_request(entry: &JournalEntry, kinds: &[ModuleKind]) -> pb::ReportRequest {
    pb::ReportRequest {
        attempt_id: entry.attempt.to_string(),
        target_digest: entry.target.digest.clone(),
        events: entry.unsent().iter().map(|event| event_message(event, entry, kinds)).collect(),
    }
}

/// An empty report of an attempt that does not exist: the server stores nothing and returns its time.
pub(super) fn empty_report() -> pb::ReportRequest {
    pb::ReportRequest {
        attempt_id: identity::new_attempt_id().to_string(),
        target_digest: String::new(),
        events: Vec::new(),
    }
}

/// The server's time in the answer to a report.
pub(super) fn server_time(answer: &pb::ReportResponse) -> Option<DateTime<Utc>> {
    answer.now.and_then(parse_timestamp)
}

fn facts_message(facts: &Facts) -> pb::Facts {
    let available = facts.available.iter().map(|package| pb::AvailablePackage {
        name: package.name.clone(),
        architecture: package.architecture.clone(),
        installed_version: package.installed.clone(),
        available_version: package.available.clone(),
        suites: package.suites.clone(),
        origins: package.origins.clone(),
    });
    let held_back = facts.held_back.iter().map(|update| pb::HeldBackPackage {
        suites: update.suites.clone(),
        origins: update.origins.clone(),
        ..held_back_message(&update.package)
    });
    let services = facts.stale_services.iter().map(|service| pb::StaleService {
        name: service.name.clone(),
        files: service.files.clone(),
    });
    let bad_images = facts.bad_images.iter().map(|bad| pb::BadImage {
        sha256: bad.file.to_string(),
        image_id: bad.image_id.clone(),
        reason: bad.reason.clone(),
    });
    let slots = facts.slots.iter().map(|slot| pb::ImageSlot {
        name: slot.name.clone(),
        state: slot.state.clone(),
        image_id: slot.image_id.clone(),
    });
    let digest = facts.packages_digest.as_ref();
    pb::Facts {
        agent_version: facts.agent_version.clone(),
        os_release: Some(os_release_message(&facts.os_release)),
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
        held_back: held_back.collect(),
        stale_services: services.collect(),
        reboot_reasons: facts.reboot_reasons.clone(),
        booted_image: facts.booted_image.as_ref().map(booted_image_message),
        agent_errors: facts.warnings.clone(),
        limits: facts.limits.clone(),
        bad_images: bad_images.collect(),
        slots: slots.collect(),
        package_lists: facts.package_lists.as_ref().map(package_lists_message),
        other_updaters: facts.other_updaters.clone(),
        foreign_change: facts.foreign_change.as_ref().map(foreign_change_message),
        agent_session: facts.agent_session.clone(),
        host_name: facts.host_name.clone(),
        serial_number: facts.serial_number.clone(),
        hardware: facts.hardware.as_ref().map(hardware::hardware_message),
        boot_time: facts.boot_time.map(timestamp_message),
    }
}

fn package_lists_message(lists: &PackageLists) -> pb::PackageLists {
    pb::PackageLists {
        refreshed_at: lists.refreshed_at.map(timestamp_message),
        error: lists.error.clone(),
    }
}

fn foreign_change_message(change: &ForeignChange) -> pb::ForeignChange {
    pb::ForeignChange {
        changed_at: change.at.map(timestamp_message),
        count: change.count,
        packages: change.packages.clone(),
    }
}

fn booted_image_message(image: &BootedImage) -> pb::BootedImage {
    pb::BootedImage { profile_name: image.profile_name.clone(), image_id: image.image_id.clone() }
}

fn os_release_message(release: &OsRelease) -> pb::OsRelease {
    pb::OsRelease {
        id: release.id.clone(),
        version_id: release.version_id.clone(),
        pretty_name: release.pretty_name.clone(),
        version_codename: release.version_codename.clone(),
    }
}

fn parse_decision(decision: pb::Decision, kinds: &[ModuleKind]) -> Result<Decision, LinkError> {
    use pb::decision::Act as PbAct;
    let act = match decision.act {
        None | Some(PbAct::Idle(_)) => Action::Idle,
        Some(PbAct::Fetch(fetch)) => Action::Fetch(parse_target(fetch.target, kinds)?),
        Some(PbAct::Apply(apply)) => Action::Apply {
            target: parse_target(apply.target, kinds)?,
            start_deadline: apply.start_deadline.and_then(parse_timestamp),
        },
        Some(PbAct::Continue(_)) => Action::Continue,
        Some(PbAct::Cancel(cancel)) => Action::Cancel { cause: cancel.cause },
    };
    Ok(Decision {
        action: act,
        reason: decision.reason,
        next_change: decision.next_change.and_then(parse_timestamp),
        offline_grant: decision.offline_grant.and_then(parse_grant),
    })
}

/// A grant without an end is ignored, and so is a window without one.
fn parse_grant(grant: pb::OfflineGrant) -> Option<OfflineGrant> {
    let window = |window: pb::Window| {
        Some(GrantWindow {
            start: parse_timestamp(window.start?)?,
            end: parse_timestamp(window.end?)?,
        })
    };
    Some(OfflineGrant {
        target_digest: grant.target_digest,
        windows: grant.windows.into_iter().filter_map(window).collect(),
        expires: parse_timestamp(grant.expires_at?)?,
    })
}

/// A target that no module understands has an empty spec.
fn parse_target(
    target: Option<pb::Target>,
    kinds: &[ModuleKind],
) -> Result<UpdateTarget, LinkError> {
    let target = target.ok_or(LinkError::InvalidAnswer("it contains no target"))?;
    if target.digest.is_empty() {
        return Err(LinkError::InvalidAnswer("its target has no digest"));
    }
    let mut spec = ModuleParts::default();
    for kind in kinds {
        if let Some(part) = target.spec.as_ref().and_then(kind.parse_spec) {
            spec.insert(kind.name, part);
        }
    }
    Ok(UpdateTarget { digest: target.digest, spec })
}

/// The message of an event. The modules add their reports.
fn event_message(event: &AttemptEvent, entry: &JournalEntry, kinds: &[ModuleKind]) -> pb::Event {
    use pb::event::Kind as PbKind;
    let message = match &event.kind {
        EventKind::Downloading => PbKind::Downloading(pb::Downloading {
            plan: Some(pb::Plan {
                download_bytes: entry.plan.download_bytes,
                disk_bytes: entry.plan.disk_bytes,
                reboot_expected: entry.plan.reboot_expected,
                ..pb::Plan::default()
            }),
        }),
        EventKind::Downloaded => PbKind::Downloaded(pb::Downloaded {}),
        EventKind::Began => PbKind::Began(pb::Began {}),
        EventKind::RebootBegun => PbKind::RebootBegun(pb::RebootBegun {}),
        EventKind::VerifyBegun => PbKind::VerifyBegun(pb::VerifyBegun {}),
        EventKind::Finished => PbKind::Finished(pb::Finished::default()),
        EventKind::Failed { failure } => PbKind::Failed(pb::Failed {
            kind: failure_kind_message(failure.kind).into(),
            reason: failure.reason.clone(),
            log: failure.log.clone(),
            ..pb::Failed::default()
        }),
        EventKind::Reverted { failure } => PbKind::Reverted(pb::Reverted {
            kind: failure_kind_message(failure.kind).into(),
            reason: failure.reason.clone(),
            log: failure.log.clone(),
            ..pb::Reverted::default()
        }),
        EventKind::NothingToDo => PbKind::NothingToDo(pb::NothingToDo {}),
        EventKind::Cancelled { cause } => PbKind::Cancelled(pb::Cancelled { cause: cause.clone() }),
    };
    let mut message = pb::Event {
        sequence: event.sequence,
        node_time: Some(timestamp_message(event.at)),
        boot_id: event.boot_id.clone(),
        kind: Some(message),
        report: event.report.as_ref().map(run_report_message),
    };
    let reports = event.report.as_ref().map_or(&entry.reports, |report| &report.modules);
    for kind in kinds {
        if let Some(report) = reports.get(kind.name) {
            (kind.write_event)(report, &mut message);
        }
    }
    message
}

fn run_report_message(report: &RunReport) -> pb::RunReport {
    let phases = report.phases.iter().map(|span| pb::PhaseSpan {
        phase: span.phase.clone(),
        millis: span.millis,
        bytes: span.bytes,
    });
    let interruptions = report.interruptions.iter().map(|interruption| pb::Interruption {
        cause: interruption_cause_message(interruption.cause).into(),
        phase: interruption.phase.clone(),
        resumed_at: Some(timestamp_message(interruption.resumed_at)),
        boot_id: interruption.boot_id.clone(),
    });
    pb::RunReport {
        interruptions: interruptions.collect(),
        phases: phases.collect(),
        remarks: report.remarks.clone(),
        reboot_required: report.reboot_required,
        reboot_reasons: report.reboot_reasons.clone(),
        kernel_before: report.kernel_before.clone(),
        kernel_after: report.kernel_after.clone(),
        ..pb::RunReport::default()
    }
}

fn interruption_cause_message(cause: InterruptionCause) -> pb::InterruptionCause {
    match cause {
        InterruptionCause::AgentStopped => pb::InterruptionCause::AgentStopped,
        InterruptionCause::MachineRestarted => pb::InterruptionCause::MachineRestarted,
    }
}

fn failure_kind_message(kind: FailureKind) -> pb::FailureKind {
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

fn parse_timestamp(timestamp: Timestamp) -> Option<DateTime<Utc>> {
    DateTime::from_timestamp(timestamp.seconds, u32::try_from(timestamp.nanos).ok()?)
}

fn timestamp_message(instant: DateTime<Utc>) -> Timestamp {
    Timestamp {
        seconds: instant.timestamp(),
        // chrono stores a leap second as more than a second of nanoseconds, which a message must not contain.
        nanos: i32::try_from(instant.timestamp_subsec_nanos().min(999_999_999)).unwrap_or(0),
    }
}

#[cfg(test)]
mod tests;
