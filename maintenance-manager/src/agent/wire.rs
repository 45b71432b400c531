//! The wire's words into ours and back. The generated types of `evenkeel.agent.v1` end here.

use chrono::{DateTime, Datelike};
use evenkeel_domain::Time;
use evenkeel_domain::decide::{Act, Decision, Grant, Target, TargetKind};
use evenkeel_domain::id::RunId;
use evenkeel_domain::invalid::Invalid;
use evenkeel_domain::os::Image;
use evenkeel_domain::package::{
    FoundPackage, FoundVersion, PackageChange, PackageResult, WantedPackage,
};
use evenkeel_domain::policy::{ImageRules, PackageRules, RebootRule, ServiceRule};
use evenkeel_domain::run::{
    CancelCause, Evidence, Failure, FailureKind, Happening, ImageChange, RunEvent,
};
use evenkeel_domain::text::{cut, storable};
use evenkeel_proto::agent as wire;
use evenkeel_proto::agent::decision::Act as WireAct;
use evenkeel_proto::agent::event::News;
use evenkeel_proto::agent::packages::Mode;
use evenkeel_proto::agent::target::Wish;
use prost_types::Timestamp;

/// The longest reason and the longest log that are kept, in bytes. What is longer is cut and marked.
const MAX_REASON: usize = 4_096;
const MAX_LOG: usize = 32_768;
/// The most packages that a plan or a result may name.
const MAX_PACKAGES: usize = 100_000;

/// An instant on the wire.
pub fn timestamp(time: Time) -> Timestamp {
    Timestamp {
        seconds: time.timestamp(),
        nanos: i32::try_from(time.timestamp_subsec_nanos()).unwrap_or(0),
    }
}

/// An instant of a node's clock; none if it is no instant at all.
fn instant(timestamp: Timestamp) -> Option<Time> {
    let nanos = u32::try_from(timestamp.nanos).ok()?;
    let time = DateTime::from_timestamp(timestamp.seconds, nanos)?;
    // What no clock shows, no database keeps.
    (0..=9_999).contains(&time.year()).then_some(time)
}

/// A decision, as our agent reads it. A wish for versions of some age is told with those that are settled.
pub fn decision(decision: Decision, settled: &[FoundVersion]) -> wire::Decision {
    let again = decision.again;
    let act = match decision.act {
        Act::Idle => WireAct::Idle(wire::Idle {}),
        Act::Fetch(wish) => WireAct::Fetch(wire::Fetch {
            target: Some(target(wish, settled, again)),
        }),
        Act::Apply {
            target: wish,
            before,
        } => WireAct::Apply(wire::Apply {
            target: Some(target(wish, settled, again)),
            before: Some(timestamp(before)),
        }),
        Act::Continue(run) => WireAct::Continue(wire::Continue {
            run_id: run.to_string(),
        }),
        Act::Cancel { run, cause } => WireAct::Cancel(wire::Cancel {
            run_id: run.to_string(),
            cause: cause.name().to_owned(),
        }),
    };
    wire::Decision {
        act: Some(act),
        reason: decision.because.to_string(),
        next: decision.next.map(timestamp),
        grant: decision.grant.map(grant),
    }
}

fn grant(grant: Grant) -> wire::Grant {
    let window = |(start, end)| wire::Window {
        start: Some(timestamp(start)),
        end: Some(timestamp(end)),
    };
    wire::Grant {
        target_digest: grant.target.digest(),
        windows: grant.windows.into_iter().map(window).collect(),
        expires: Some(timestamp(grant.expires)),
    }
}

/// Tells a node to give up an attempt that has no open run here.
pub fn forget() -> wire::Decision {
    wire::Decision {
        act: Some(WireAct::Cancel(wire::Cancel {
            run_id: String::new(),
            cause: CancelCause::Withdrawn.name().to_owned(),
        })),
        reason: "the attempt is over here, or was removed".to_owned(),
        next: None,
        grant: None,
    }
}

/// Tells a node to go on with nothing new before it has said what it is now: what it is for follows from that.
pub fn facts_first(open: Option<RunId>) -> wire::Decision {
    let act = match open {
        None => WireAct::Idle(wire::Idle {}),
        Some(run) => WireAct::Continue(wire::Continue {
            run_id: run.to_string(),
        }),
    };
    wire::Decision {
        act: Some(act),
        reason: "what the node is now is not known here yet".to_owned(),
        next: None,
        grant: None,
    }
}

/// `again` goes with an image that failed on the node before and that a person ordered all the same.
fn target(target: Target, settled: &[FoundVersion], again: bool) -> wire::Target {
    let digest = target.digest();
    let is_aged = 0 < target.min_age_days();
    let settled = settled.iter().filter(|_| is_aged).map(known);
    let wish = match target.wish {
        TargetKind::Packages {
            exactly,
            sources,
            kernel_command,
            rules: how,
            allow_downgrades,
        } => Wish::Packages(wire::Packages {
            mode: Some(mode(exactly)),
            sources,
            kernel_command,
            rules: Some(rules(how, allow_downgrades)),
            settled: settled.collect(),
        }),
        TargetKind::Image(found) => Wish::Image(image(found, target.image_rules, again)),
        TargetKind::Kernel { command } => Wish::Kernel(wire::Kernel { command }),
    };
    wire::Target {
        digest,
        wish: Some(wish),
    }
}

/// What is signed of an image is told letter by letter as the catalogue has it.
fn image(image: Image, rules: ImageRules, again: bool) -> wire::Image {
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
        again,
    }
}

fn rules(rules: PackageRules, allow_downgrades: bool) -> wire::PackageRules {
    let reboot = match rules.reboot {
        RebootRule::IfRequired => wire::RebootRule::IfRequired,
        RebootRule::Never => wire::RebootRule::Never,
    };
    let services = match rules.services {
        ServiceRule::Leave => wire::ServiceRule::Leave,
        ServiceRule::Restart => wire::ServiceRule::Restart,
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
    }
}

fn known(version: &FoundVersion) -> wire::KnownVersion {
    wire::KnownVersion {
        name: version.name.clone(),
        architecture: version.architecture.clone(),
        version: version.version.clone(),
    }
}

fn mode(exactly: Option<Vec<WantedPackage>>) -> Mode {
    match exactly {
        None => Mode::Latest(wire::Latest {}),
        Some(packages) => {
            let packages = packages.into_iter().map(|package| wire::WantedPackage {
                name: package.name.to_string(),
                version: package
                    .version
                    .map(|version| version.to_string())
                    .unwrap_or_default(),
            });
            Mode::Exactly(wire::Exactly {
                packages: packages.collect(),
            })
        }
    }
}

/// An event as the node tells it.
///
/// # Errors
/// It has no number, no news, or too much of it.
pub fn happening(event: wire::Event) -> Result<Happening, Invalid> {
    let number = i32::try_from(event.sequence)
        .ok()
        .filter(|number| *number > 0);
    if number.is_none() {
        return Err(Invalid::new("events.sequence", "begins with 1"));
    }
    let news = event
        .news
        .ok_or_else(|| Invalid::new("events.news", "must not be empty"))?;
    let (run_event, evidence) = read(news)?;
    Ok(Happening {
        event: run_event,
        sequence: Some(event.sequence),
        boot_id: cut(&storable(&event.boot_id), 64),
        node_time: event.node_time.and_then(instant),
        evidence,
    })
}

/// Total: a new kind of news does not compile until it is here.
fn read(news: News) -> Result<(RunEvent, Evidence), Invalid> {
    let nothing = Evidence::default();
    Ok(match news {
        News::Downloading(said) => {
            let evidence = said.plan.map(planned).transpose()?;
            (RunEvent::Downloading, evidence.unwrap_or_default())
        }
        News::Downloaded(_) => (RunEvent::Downloaded, nothing),
        News::Began(_) => (RunEvent::Began, nothing),
        News::RebootBegun(_) => (RunEvent::RebootBegun, nothing),
        News::VerifyBegun(_) => (RunEvent::VerifyBegun, nothing),
        News::Reverting(said) => (RunEvent::Reverting, logged(&said.why)),
        News::Finished(said) => (
            RunEvent::Finished,
            Evidence {
                results: results(said.results)?,
                booted: booted(&said.booted_image_id),
                ..nothing
            },
        ),
        News::Failed(said) => {
            let failure = failure(said.kind(), &said.reason);
            let evidence = Evidence {
                results: results(said.results)?,
                booted: booted(&said.booted_image_id),
                ..logged(&said.log)
            };
            (RunEvent::Failed(failure), evidence)
        }
        News::Reverted(said) => (
            RunEvent::Reverted(failure(said.kind(), &said.reason)),
            Evidence {
                booted: booted(&said.booted_image_id),
                ..logged(&said.log)
            },
        ),
        News::NothingToDo(_) => (RunEvent::NothingToDo, nothing),
        News::Cancelled(said) => {
            let cause = CancelCause::from_name(&said.cause).unwrap_or(CancelCause::Refused);
            (RunEvent::Cancelled(cause), nothing)
        }
    })
}

/// Last words, as many as are kept.
fn logged(text: &str) -> Evidence {
    Evidence {
        log: cut(&storable(text), MAX_LOG),
        ..Evidence::default()
    }
}

/// The version of the image that a node had booted at an end; none if it did not know.
fn booted(image_id: &str) -> Option<String> {
    Some(short(image_id)).filter(|id| !id.is_empty())
}

fn failure(kind: wire::FailureKind, reason: &str) -> Failure {
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
    Failure {
        kind,
        reason: cut(&storable(reason), MAX_REASON),
    }
}

/// What a node means to change.
fn planned(plan: wire::Plan) -> Result<Evidence, Invalid> {
    let image = plan.image.map(|image| ImageChange {
        profile_name: short(&image.profile_name),
        before: short(&image.before),
        wanted: short(&image.wanted),
        booted: None,
    });
    Ok(Evidence {
        plan: Some(changes(plan.changes)?),
        image,
        ..Evidence::default()
    })
}

fn changes(changes: Vec<wire::PackageChange>) -> Result<Vec<PackageChange>, Invalid> {
    few("events.plan", changes.len())?;
    let some = |text: String| Some(short(&text)).filter(|text| !text.is_empty());
    let change = |change: wire::PackageChange| PackageChange {
        name: short(&change.name),
        architecture: short(&change.architecture),
        before: some(change.before),
        wanted: some(change.after),
        found: None,
    };
    Ok(changes.into_iter().map(change).collect())
}

fn results(results: Vec<wire::PackageResult>) -> Result<Vec<PackageResult>, Invalid> {
    few("events.results", results.len())?;
    let result = |result: wire::PackageResult| PackageResult {
        name: short(&result.name),
        architecture: short(&result.architecture),
        found: FoundPackage {
            version: Some(short(&result.version)).filter(|text| !text.is_empty()),
            state: short(&result.state),
        },
    };
    Ok(results.into_iter().map(result).collect())
}

fn few(field: &'static str, count: usize) -> Result<(), Invalid> {
    if count > MAX_PACKAGES {
        return Err(Invalid::new(
            field,
            format!("more than {MAX_PACKAGES} packages"),
        ));
    }
    Ok(())
}

fn short(text: &str) -> String {
    cut(&storable(text), 256)
}
