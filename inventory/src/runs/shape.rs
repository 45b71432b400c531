//! REST form of runs.

use std::cmp::Ordering;
use std::collections::HashMap;

use evenkeel_api::Timestamps;
use evenkeel_api::timestamps::unix_seconds;
use evenkeel_api::update_run::{
    FrozenPolicy, OsUpdateRun, OsUpdateRunReport, RunEvent, RunHeldBackCount, RunHeldBackPackage,
    RunImage, RunInterruption, RunPackage, RunPhase,
};
use evenkeel_domain::package::{PackageChange, PackageVersion};
use evenkeel_domain::policy::UpdatePolicy;
use evenkeel_domain::run::{
    HeldBackCount, HeldBackPackage, ImageChange, Interruption, PhaseSpan, RunHistoryEntry,
    RunReport, RunState, StoredState, UpdateRun,
};
use serde::Serialize;
use serde_json::Value;

use crate::orders;
use crate::shape::{indication, policies, targets};

/// Longest details of a run that EIM's clients accept, in bytes.
const MAX_DETAILS_BYTES: usize = 100_000;

/// Cache of package actions by pair of versions, because a fleet has few distinct updates.
#[derive(Debug, Default)]
pub struct PackageActions<'a>(HashMap<(&'a str, &'a str), &'static str>);

/// REST form of a run without related resources.
pub fn run<'a>(run: &'a UpdateRun<StoredState>, actions: &mut PackageActions<'a>) -> OsUpdateRun {
    let (status, how) = run.state.status();
    let packages = run.packages.iter().map(|change| package_resource(change, actions));
    let packages: Vec<_> = packages.collect();
    OsUpdateRun {
        resource_id: run.id.to_string(),
        name: run.name.clone(),
        description: run.description.clone(),
        status: status.to_owned(),
        status_indicator: indication(how),
        status_timestamp: unix_seconds(Some(run.state.since())),
        status_details: details(run, &packages),
        start_time: unix_seconds(Some(run.started_at)),
        end_time: unix_seconds(run.state.ended_at()),
        timestamps: Some(Timestamps::new(run.started_at, run.state.since())),
        state: run.state.name().to_owned(),
        reason: reason(run),
        attempt: run.attempt.map(|attempt| attempt.0.to_string()).unwrap_or_default(),
        policy: run.origin.policy.as_ref().map(frozen_policy),
        target: run.origin.target.as_ref().map(targets::run_target),
        order: run.origin.order.as_ref().map(|order| orders::resource(run.instance, order)),
        packages,
        image: run.image.as_ref().map(image_resource),
        report: run_report(&run.report),
        log: run.log.clone(),
        ..OsUpdateRun::default()
    }
}

/// Why a run ended; empty if there is no reason to report.
fn reason(run: &UpdateRun<StoredState>) -> String {
    let state = match &run.state {
        StoredState::Known(state) => state,
        StoredState::Unknown { cause, .. } => return cause.clone(),
    };
    match state {
        RunState::Failed { failure, .. } | RunState::Reverted { failure, .. } => {
            format!("{}: {}", failure.kind, failure.reason)
        }
        RunState::Cancelled { cause, .. } => cause.to_string(),
        RunState::Abandoned { cause, .. } => cause.to_string(),
        RunState::Succeeded { changed: false, .. } if run.report.held_back_counts.is_empty() => {
            "nothing to do".to_owned()
        }
        RunState::Succeeded { changed: false, .. } => "newer versions are held back".to_owned(),
        _ => String::new(),
    }
}

fn frozen_policy(policy: &UpdatePolicy) -> FrozenPolicy {
    let wire = policies::resource(policy, None);
    FrozenPolicy {
        resource_id: wire.resource_id,
        name: wire.name,
        description: wire.description,
        update_policy: wire.update_policy.to_string(),
        update_packages: wire.update_packages,
        update_sources: wire.update_sources,
        update_kernel_command: wire.update_kernel_command,
        target_os_id: policies::target_os(policy).map(|os| os.to_string()).unwrap_or_default(),
        allow_downgrade: wire.allow_downgrade,
    }
}

fn run_report(account: &RunReport) -> OsUpdateRunReport {
    let phase = |span: &PhaseSpan| RunPhase {
        phase: span.phase.clone(),
        millis: span.millis,
        bytes: span.bytes,
    };
    let held_back = |package: &HeldBackPackage| RunHeldBackPackage {
        name: package.name.clone(),
        architecture: package.architecture.clone(),
        version: package.installed.clone(),
        available_version: package.available.clone(),
        cause: package.cause.clone(),
    };
    let count = |count: &HeldBackCount| RunHeldBackCount {
        cause: count.cause.clone(),
        packages: count.packages,
    };
    let interruption = |interruption: &Interruption| RunInterruption {
        cause: interruption.cause.clone(),
        phase: interruption.phase.clone(),
        resumed_at: interruption.resumed_at,
        boot_id: interruption.boot_id.clone(),
    };
    OsUpdateRunReport {
        phases: account.phases.iter().map(phase).collect(),
        remarks: account.remarks.clone(),
        preserved_conffiles: account.preserved_conffiles.clone(),
        restarted_services: account.restarted_services.clone(),
        reboot_required: account.reboot_required,
        reboot_reasons: account.reboot_reasons.clone(),
        kernel_before: account.kernel_before.clone(),
        kernel_after: account.kernel_after.clone(),
        held_back: account.held_back.iter().map(held_back).collect(),
        held_back_counts: account.held_back_counts.iter().map(count).collect(),
        interruptions: account.interruptions.iter().map(interruption).collect(),
    }
}

fn image_resource(change: &ImageChange) -> RunImage {
    RunImage {
        profile_name: change.profile_name.clone(),
        before: change.before.clone(),
        desired: change.desired.clone(),
        booted: change.booted.clone().unwrap_or_default(),
    }
}

/// REST form of planned packages.
pub fn plan_packages(changes: &[PackageChange]) -> Vec<RunPackage> {
    let mut actions = PackageActions::default();
    changes.iter().map(|change| package_resource(change, &mut actions)).collect()
}

fn package_resource<'a>(change: &'a PackageChange, actions: &mut PackageActions<'a>) -> RunPackage {
    let result = change.observed.as_ref();
    let status = match result {
        None => "planned",
        Some(_) if change.is_done() => "done",
        Some(_) => "failed",
    };
    RunPackage {
        name: change.name.clone(),
        architecture: change.architecture.clone(),
        action: actions.action_for(change).to_owned(),
        version: change.desired.clone().unwrap_or_default(),
        before: change.before.clone().unwrap_or_default(),
        after: result.and_then(|result| result.version.clone()).unwrap_or_default(),
        status: status.to_owned(),
        state: result.map(|result| result.state.clone()).unwrap_or_default(),
        suites: change.suites.clone(),
        origins: change.origins.clone(),
        security: change.is_security(),
    }
}

impl<'a> PackageActions<'a> {
    fn action_for(&mut self, change: &'a PackageChange) -> &'static str {
        match (&change.before, &change.desired) {
            (_, None) => "remove",
            (None, Some(_)) => "install",
            (Some(before), Some(target)) => {
                let cached = self.0.entry((before, target));
                cached.or_insert_with(|| version_action(before, target))
            }
        }
    }
}

/// Action that leads from one version to another.
fn version_action(before: &str, target: &str) -> &'static str {
    let read = |text: &str| PackageVersion::parse("version", text);
    let order = match (read(before), read(target)) {
        (Ok(before), Ok(target)) => target.cmp(&before),
        _ => Ordering::Greater,
    };
    match order {
        Ordering::Less => "downgrade",
        Ordering::Equal => "reinstall",
        Ordering::Greater => "upgrade",
    }
}

/// Details of a run in the format of EIM's clients: the JSON that EIM's agents sent, otherwise
/// built from the packages. Empty until the run ends.
fn details(run: &UpdateRun<StoredState>, packages: &[RunPackage]) -> String {
    if run.state.ended_at().is_none() {
        return String::new();
    }
    if run.attempt.is_none() && serde_json::from_str::<serde_json::Map<_, Value>>(&run.log).is_ok()
    {
        return run.log.clone();
    }
    let since = run.state.since();
    let since = since.to_rfc3339_opts(chrono::SecondsFormat::Secs, true);
    let entry = |package| UpdateLogEntry::from_package(package, &since);
    let mut details = Details { update_log: packages.iter().map(entry).collect() };
    loop {
        // Serializing strings cannot fail.
        let text = serde_json::to_string(&details).unwrap_or_default();
        if text.len() <= MAX_DETAILS_BYTES {
            return text;
        }
        // Each round drops the last tenth. `packages` still contains all of them.
        let log = &mut details.update_log;
        log.truncate(log.len() * 9 / 10);
    }
}

/// Details of a run in the format of EIM's agents.
#[derive(Serialize)]
struct Details<'a> {
    update_log: Vec<UpdateLogEntry<'a>>,
}

/// Result of one package.
#[derive(Serialize)]
struct UpdateLogEntry<'a> {
    action: &'static str,
    package_name: &'a str,
    status: &'static str,
    update_time: &'a str,
    update_type: &'static str,
    version: &'a str,
}

impl<'a> UpdateLogEntry<'a> {
    fn from_package(package: &'a RunPackage, since: &'a str) -> Self {
        let is_new = package.action == "install";
        let has_failed = package.status == "failed";
        Self {
            action: if is_new { "install" } else { "upgrade" },
            package_name: &package.name,
            status: if has_failed { "failed" } else { "installed" },
            update_time: since,
            update_type: "application",
            version: match package.after.as_str() {
                "" => &package.version,
                after => after,
            },
        }
    }
}

/// REST form of an event of a run.
pub fn event(event: RunHistoryEntry) -> RunEvent {
    RunEvent {
        event: event.event,
        state: event.state,
        time: event.at,
        node_time: event.node_time,
        sequence: event.sequence,
        boot_id: event.boot_id,
        detail: event.detail,
    }
}
