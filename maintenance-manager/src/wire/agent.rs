//! Converts between the types of `evenkeel.agent.v1` and the domain. Other modules do not use the
//! generated types for decisions and events.

use chrono::{DateTime, Datelike};
use evenkeel_domain::Time;
use evenkeel_domain::decide::{Act, Decision, OfflineGrant, Target, TargetKind};
use evenkeel_domain::id::RunId;
use evenkeel_domain::invalid::Invalid;
use evenkeel_domain::os::Image;
use evenkeel_domain::package::{
    ObservedPackage, ObservedVersion, PackageChange, PackageRequirement, PackageResult,
};
use evenkeel_domain::policy::{
    ImageRules, PackageRules, RebootRule, ServiceRule, UnusedPackagesRule,
};
use evenkeel_domain::run::{
    CancelCause, Evidence, Failure, FailureKind, ImageChange, RunEvent, RunEventRecord,
};
use evenkeel_domain::text::{cut, storable};
use evenkeel_proto::agent as wire;
use evenkeel_proto::agent::decision::Act as WireAct;
use evenkeel_proto::agent::event::Kind;
use evenkeel_proto::agent::packages::Mode;
use evenkeel_proto::agent::target::Spec;
use prost_types::Timestamp;

/// The maximum length of a reason and of a log, in bytes. Longer texts are cut and marked as cut.
const MAX_REASON_BYTES: usize = 4_096;
const MAX_LOG_BYTES: usize = 32_768;
/// The maximum number of packages in a plan or a result.
const MAX_PACKAGES: usize = 100_000;
/// The maximum number of suites, and of labels of repositories, that are stored for a package.
pub const MAX_SUITES_PER_PACKAGE: usize = 20;

/// Encodes a time.
pub fn timestamp(time: Time) -> Timestamp {
    Timestamp {
        seconds: time.timestamp(),
        nanos: i32::try_from(time.timestamp_subsec_nanos()).unwrap_or(0),
    }
}

/// Decodes a time of a node's clock; `None` if it is invalid.
pub fn parse_instant(timestamp: Timestamp) -> Option<Time> {
    let nanos = u32::try_from(timestamp.nanos).ok()?;
    let time = DateTime::from_timestamp(timestamp.seconds, nanos)?;
    // Postgres cannot store years outside of this range.
    (0..=9_999).contains(&time.year()).then_some(time)
}

/// Encodes a decision. A target with a minimum age gets the versions that are old enough.
pub fn encode_decision(decision: Decision, settled: &[ObservedVersion]) -> wire::Decision {
    let again = decision.is_retry;
    let act = match decision.act {
        Act::Idle => WireAct::Idle(wire::Idle {}),
        Act::Fetch(desired) => {
            WireAct::Fetch(wire::Fetch { target: Some(encode_target(desired, settled, again)) })
        }
        Act::Apply { target: desired, deadline: before } => WireAct::Apply(wire::Apply {
            target: Some(encode_target(desired, settled, again)),
            start_deadline: Some(timestamp(before)),
        }),
        Act::Continue(run) => WireAct::Continue(wire::Continue { run_id: run.to_string() }),
        Act::Cancel { run, cause } => WireAct::Cancel(wire::Cancel {
            run_id: run.to_string(),
            cause: cause.name().to_owned(),
        }),
    };
    wire::Decision {
        act: Some(act),
        reason: decision.reason.to_string(),
        next_change: decision.next_change.map(timestamp),
        offline_grant: decision.offline_grant.map(encode_grant),
    }
}

fn encode_grant(grant: OfflineGrant) -> wire::OfflineGrant {
    let window =
        |(start, end)| wire::Window { start: Some(timestamp(start)), end: Some(timestamp(end)) };
    wire::OfflineGrant {
        target_digest: grant.target.digest(),
        windows: grant.windows.into_iter().map(window).collect(),
        expires_at: Some(timestamp(grant.expires_at)),
    }
}

/// A decision that cancels an attempt without an open run.
pub fn forget_decision() -> wire::Decision {
    wire::Decision {
        act: Some(WireAct::Cancel(wire::Cancel {
            run_id: String::new(),
            cause: CancelCause::Withdrawn.name().to_owned(),
        })),
        reason: "the attempt has ended or was removed on the server".to_owned(),
        next_change: None,
        offline_grant: None,
    }
}

/// A decision that starts nothing new until the node has sent its facts: the next target depends on
/// them.
pub fn facts_first_decision(open: Option<RunId>) -> wire::Decision {
    let act = match open {
        None => WireAct::Idle(wire::Idle {}),
        Some(run) => WireAct::Continue(wire::Continue { run_id: run.to_string() }),
    };
    wire::Decision {
        act: Some(act),
        reason: "the server does not know the node's current facts yet".to_owned(),
        next_change: None,
        offline_grant: None,
    }
}

/// Encodes a target. `again` is set for an image that failed on the node before and that a person
/// ordered again.
fn encode_target(target: Target, settled: &[ObservedVersion], again: bool) -> wire::Target {
    let digest = target.digest();
    let is_aged = 0 < target.min_age_days();
    let settled = settled.iter().filter(|_| is_aged).map(encode_version);
    let spec = match target.kind {
        TargetKind::Packages { exactly, sources, kernel_command, rules: how, allow_downgrades } => {
            Spec::Packages(wire::Packages {
                mode: Some(encode_mode(exactly)),
                sources,
                kernel_command,
                rules: Some(encode_rules(how, allow_downgrades)),
                aged_versions: settled.collect(),
            })
        }
        TargetKind::Image(os_image) => {
            Spec::Image(encode_image(os_image, target.image_rules, again))
        }
        TargetKind::Kernel { command } => Spec::Kernel(wire::Kernel { command }),
    };
    wire::Target { digest, spec: Some(spec) }
}

/// Encodes an image. Signed values are copied unchanged from the catalogue.
fn encode_image(image: Image, rules: ImageRules, again: bool) -> wire::Image {
    wire::Image {
        os_id: image.os.to_string(),
        name: image.name,
        image_id: image.image_id,
        url: image.url,
        sha256: image.sha256.as_str().to_owned(),
        profile_name: image.profile_name,
        architecture: image.architecture,
        signatures: image.signatures,
        rules: Some(wire::ImageRules {
            download_bytes_per_second: rules.download_bytes_per_second,
            max_bytes: rules.max_bytes,
            attempts: rules.attempts,
        }),
        is_retry: again,
    }
}

fn encode_rules(rules: PackageRules, allow_downgrades: bool) -> wire::PackageRules {
    let reboot = match rules.reboot {
        RebootRule::IfRequired => wire::RebootRule::IfRequired,
        RebootRule::Never => wire::RebootRule::Never,
    };
    let services = match rules.services {
        ServiceRule::KeepRunning => wire::ServiceRule::KeepRunning,
        ServiceRule::Restart => wire::ServiceRule::Restart,
    };
    let unused_packages = match rules.unused_packages {
        UnusedPackagesRule::RemoveKernels => wire::UnusedPackagesRule::RemoveKernels,
        UnusedPackagesRule::RemoveAll => wire::UnusedPackagesRule::RemoveAll,
        UnusedPackagesRule::Keep => wire::UnusedPackagesRule::Keep,
    };
    wire::PackageRules {
        suites: rules.suites,
        exclude: rules.exclude,
        allow_removals: rules.allow_removals,
        allow_downgrades,
        reboot: reboot.into(),
        services: services.into(),
        download_bytes_per_second: rules.download_bytes_per_second,
        min_age_days: rules.min_age_days,
        unused_packages: unused_packages.into(),
        minimal_steps: rules.minimal_steps,
    }
}

fn encode_version(version: &ObservedVersion) -> wire::PackageVersion {
    wire::PackageVersion {
        name: version.name.clone(),
        architecture: version.architecture.clone(),
        version: version.version.clone(),
    }
}

fn encode_mode(exactly: Option<Vec<PackageRequirement>>) -> Mode {
    match exactly {
        None => Mode::Latest(wire::Latest {}),
        Some(packages) => {
            let packages = packages.into_iter().map(|package| wire::PackageRequirement {
                name: package.name.to_string(),
                version: package.version.map(|version| version.to_string()).unwrap_or_default(),
            });
            Mode::Exactly(wire::Exactly { packages: packages.collect() })
        }
    }
}

/// Decodes an event. Fails if it has no sequence number, no change, or too many packages.
pub fn decode_event(event: wire::Event) -> Result<RunEventRecord, Invalid> {
    let number = i32::try_from(event.sequence).ok().filter(|number| *number > 0);
    if number.is_none() {
        return Err(Invalid::new("events.sequence", "begins with 1"));
    }
    let change = event.kind.ok_or_else(|| Invalid::new("events.kind", "must not be empty"))?;
    let (run_event, evidence) = decode_change(change)?;
    Ok(RunEventRecord {
        event: run_event,
        sequence: Some(event.sequence),
        boot_id: cut(&storable(&event.boot_id), 64),
        node_time: event.node_time.and_then(parse_instant),
        evidence,
    })
}

/// Decodes the change of an event. The match is exhaustive: a new kind does not compile until it is
/// added here.
fn decode_change(change: Kind) -> Result<(RunEvent, Evidence), Invalid> {
    let nothing = Evidence::default();
    Ok(match change {
        Kind::Downloading(details) => {
            let evidence = details.plan.map(decode_plan).transpose()?;
            (RunEvent::Downloading, evidence.unwrap_or_default())
        }
        Kind::Downloaded(_) => (RunEvent::Downloaded, nothing),
        Kind::Began(_) => (RunEvent::Began, nothing),
        Kind::RebootBegun(_) => (RunEvent::RebootBegun, nothing),
        Kind::VerifyBegun(_) => (RunEvent::VerifyBegun, nothing),
        Kind::Reverting(details) => (RunEvent::Reverting, log_evidence(&details.reason)),
        Kind::Finished(details) => (
            RunEvent::Finished,
            Evidence {
                results: decode_results(details.results)?,
                booted: booted_image(&details.booted_image_id),
                ..nothing
            },
        ),
        Kind::Failed(details) => {
            let failure = decode_failure(details.kind(), &details.reason);
            let evidence = Evidence {
                results: decode_results(details.results)?,
                booted: booted_image(&details.booted_image_id),
                ..log_evidence(&details.log)
            };
            (RunEvent::Failed(failure), evidence)
        }
        Kind::Reverted(details) => (
            RunEvent::Reverted(decode_failure(details.kind(), &details.reason)),
            Evidence {
                booted: booted_image(&details.booted_image_id),
                ..log_evidence(&details.log)
            },
        ),
        Kind::NothingToDo(_) => (RunEvent::NothingToDo, nothing),
        Kind::Cancelled(details) => {
            let cause = CancelCause::from_name(&details.cause).unwrap_or(CancelCause::Refused);
            (RunEvent::Cancelled(cause), nothing)
        }
    })
}

/// The end of a log as evidence, cut to the maximum length.
fn log_evidence(text: &str) -> Evidence {
    Evidence { log: cut(&storable(text), MAX_LOG_BYTES), ..Evidence::default() }
}

/// The version of the booted image; `None` if the node did not know it.
fn booted_image(image_id: &str) -> Option<String> {
    Some(truncate(image_id)).filter(|id| !id.is_empty())
}

fn decode_failure(kind: wire::FailureKind, reason: &str) -> Failure {
    use wire::FailureKind as K;
    let kind = match kind {
        K::Unspecified => FailureKind::Unspecified,
        K::Refresh => FailureKind::Refresh,
        K::Plan => FailureKind::Plan,
        K::Download => FailureKind::Download,
        K::Signature => FailureKind::Signature,
        K::Storage => FailureKind::Storage,
        K::Apply => FailureKind::Apply,
        K::Verify => FailureKind::Verify,
        K::Reboot => FailureKind::Reboot,
        K::Interrupted => FailureKind::Interrupted,
        K::Unsupported => FailureKind::Unsupported,
        K::Limits => FailureKind::Limits,
    };
    Failure { kind, reason: cut(&storable(reason), MAX_REASON_BYTES) }
}

/// The name of a cause, as it is stored and as the REST API shows it.
pub const fn held_back_cause(cause: wire::HeldBackCause) -> &'static str {
    use wire::HeldBackCause as C;
    match cause {
        C::Unspecified => "unspecified",
        C::Hold => "hold",
        C::Dependencies => "dependencies",
        C::Phased => "phased",
        C::Pinned => "pinned",
        C::Limits => "limits",
        C::Policy => "policy",
        C::Space => "space",
        C::Excluded => "excluded",
        C::Suite => "suite",
        C::TooYoung => "too_young",
        C::BootLoader => "boot_loader",
    }
}

/// Decodes the planned changes.
fn decode_plan(plan: wire::Plan) -> Result<Evidence, Invalid> {
    let image = plan.image.map(|image| ImageChange {
        profile_name: truncate(&image.profile_name),
        before: truncate(&image.before),
        desired: truncate(&image.desired),
        booted: None,
    });
    Ok(Evidence { plan: Some(decode_changes(plan.changes)?), image, ..Evidence::default() })
}

fn decode_changes(changes: Vec<wire::PackageChange>) -> Result<Vec<PackageChange>, Invalid> {
    check_package_count("events.plan", changes.len())?;
    let some = |text: String| Some(truncate(&text)).filter(|text| !text.is_empty());
    let first = |texts: &[String]| {
        let texts = texts.iter().take(MAX_SUITES_PER_PACKAGE);
        texts.map(|text| truncate(text)).collect::<Vec<_>>()
    };
    let change = |change: wire::PackageChange| PackageChange {
        // An agent of an older release sends only one of the suites.
        suites: match (change.suites.as_slice(), change.suite.as_str()) {
            ([], "") => Vec::new(),
            ([], suite) => vec![truncate(suite)],
            (suites, _) => first(suites),
        },
        origins: first(&change.origins),
        name: truncate(&change.name),
        architecture: truncate(&change.architecture),
        before: some(change.before),
        desired: some(change.after),
        observed: None,
    };
    Ok(changes.into_iter().map(change).collect())
}

fn decode_results(results: Vec<wire::PackageResult>) -> Result<Vec<PackageResult>, Invalid> {
    check_package_count("events.results", results.len())?;
    let result = |result: wire::PackageResult| PackageResult {
        name: truncate(&result.name),
        architecture: truncate(&result.architecture),
        observed: ObservedPackage {
            version: Some(truncate(&result.version)).filter(|text| !text.is_empty()),
            state: truncate(&result.state),
        },
    };
    Ok(results.into_iter().map(result).collect())
}

fn check_package_count(field: &'static str, count: usize) -> Result<(), Invalid> {
    if count > MAX_PACKAGES {
        return Err(Invalid::new(field, format!("more than {MAX_PACKAGES} packages")));
    }
    Ok(())
}

fn truncate(text: &str) -> String {
    cut(&storable(text), 256)
}
