//! Runs on the wire.

use std::cmp::Ordering;
use std::collections::HashMap;

use evenkeel_api::Timestamps;
use evenkeel_api::timestamps::unix_seconds;
use evenkeel_api::update_run::{
    FrozenPolicy, OsUpdateRun, RunAccount, RunEvent, RunImage, RunPackage, RunPhase,
};
use evenkeel_domain::package::{PackageChange, PackageVersion};
use evenkeel_domain::policy::UpdatePolicy;
use evenkeel_domain::run::{Account, ImageChange, PhaseSpan, RecordedEvent, RunState, UpdateRun};
use serde::Serialize;
use serde_json::Value;

use crate::shape::indication;
use crate::{decisions, orders, policies};

/// How much of a run's details the ancestor's clients can take, in bytes.
const MAX_DETAILS: usize = 100_000;

/// What was to be done with packages whose versions were compared already: a fleet has the same few updates again and again.
#[derive(Debug, Default)]
pub struct Actions<'a>(HashMap<(&'a str, &'a str), &'static str>);

/// A run by itself.
pub fn run<'a>(run: &'a UpdateRun, actions: &mut Actions<'a>) -> OsUpdateRun {
    let (status, how) = run.state.status();
    let packages = run.packages.iter().map(|change| package(change, actions));
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
        end_time: unix_seconds(run.ended_at()),
        timestamps: Some(Timestamps::new(run.started_at, run.state.since())),
        state: run.state.name().to_owned(),
        reason: reason(&run.state),
        attempt: run
            .attempt
            .map(|attempt| attempt.0.to_string())
            .unwrap_or_default(),
        policy: run.origin.policy.as_ref().map(frozen),
        target: run.origin.target.as_ref().map(decisions::target),
        order: run
            .origin
            .order
            .as_ref()
            .map(|order| orders::resource(run.instance, order)),
        packages,
        image: run.image.as_ref().map(image),
        account: account(&run.account),
        log: run.log.clone(),
        ..OsUpdateRun::default()
    }
}

/// Why a run ended as it did; empty if there is nothing to say.
fn reason(state: &RunState) -> String {
    match state {
        RunState::Failed { failure, .. } | RunState::Reverted { failure, .. } => {
            format!("{}: {}", failure.kind, failure.reason)
        }
        RunState::Cancelled { cause, .. } => cause.to_string(),
        RunState::Abandoned { cause, .. } => cause.to_string(),
        RunState::Succeeded { changed: false, .. } => "nothing to do".to_owned(),
        _ => String::new(),
    }
}

fn frozen(policy: &UpdatePolicy) -> FrozenPolicy {
    let wire = policies::resource(policy, None);
    FrozenPolicy {
        resource_id: wire.resource_id,
        name: wire.name,
        description: wire.description,
        update_policy: wire.update_policy.to_string(),
        update_packages: wire.update_packages,
        update_sources: wire.update_sources,
        update_kernel_command: wire.update_kernel_command,
        target_os_id: policies::target_os(policy)
            .map(|os| os.to_string())
            .unwrap_or_default(),
        allow_downgrade: wire.allow_downgrade,
    }
}

fn account(account: &Account) -> RunAccount {
    let phase = |span: &PhaseSpan| RunPhase {
        phase: span.phase.clone(),
        millis: span.millis,
        bytes: span.bytes,
    };
    RunAccount {
        phases: account.phases.iter().map(phase).collect(),
        remarks: account.remarks.clone(),
        kept_conffiles: account.kept_conffiles.clone(),
        restarted_services: account.restarted_services.clone(),
        reboot_required: account.reboot_required,
    }
}

fn image(change: &ImageChange) -> RunImage {
    RunImage {
        profile_name: change.profile_name.clone(),
        before: change.before.clone(),
        wanted: change.wanted.clone(),
        booted: change.booted.clone().unwrap_or_default(),
    }
}

fn package<'a>(change: &'a PackageChange, actions: &mut Actions<'a>) -> RunPackage {
    let found = change.found.as_ref();
    let status = match found {
        None => "planned",
        Some(_) if change.is_done() => "done",
        Some(_) => "failed",
    };
    RunPackage {
        name: change.name.clone(),
        architecture: change.architecture.clone(),
        action: actions.of(change).to_owned(),
        version: change.wanted.clone().unwrap_or_default(),
        before: change.before.clone().unwrap_or_default(),
        after: found
            .and_then(|found| found.version.clone())
            .unwrap_or_default(),
        status: status.to_owned(),
        state: found.map(|found| found.state.clone()).unwrap_or_default(),
    }
}

impl<'a> Actions<'a> {
    fn of(&mut self, change: &'a PackageChange) -> &'static str {
        match (&change.before, &change.wanted) {
            (_, None) => "remove",
            (None, Some(_)) => "install",
            (Some(before), Some(wanted)) => {
                let known = self.0.entry((before, wanted));
                known.or_insert_with(|| between(before, wanted))
            }
        }
    }
}

/// What it means to go from one version to another.
fn between(before: &str, wanted: &str) -> &'static str {
    let read = |text: &str| PackageVersion::parse("version", text);
    let order = match (read(before), read(wanted)) {
        (Ok(before), Ok(wanted)) => wanted.cmp(&before),
        _ => Ordering::Greater,
    };
    match order {
        Ordering::Less => "downgrade",
        Ordering::Equal => "reinstall",
        Ordering::Greater => "upgrade",
    }
}

/// The details as the ancestor's clients read them: what its own agents sent if that is JSON, else made from the
/// packages. Empty while the run goes on.
fn details(run: &UpdateRun, packages: &[RunPackage]) -> String {
    if run.ended_at().is_none() {
        return String::new();
    }
    if run.attempt.is_none() && serde_json::from_str::<serde_json::Map<_, Value>>(&run.log).is_ok()
    {
        return run.log.clone();
    }
    let since = run.state.since();
    let since = since.to_rfc3339_opts(chrono::SecondsFormat::Secs, true);
    let entry = |package| Entry::of(package, &since);
    let mut details = Details {
        update_log: packages.iter().map(entry).collect(),
    };
    loop {
        // Texts alone always are JSON.
        let text = serde_json::to_string(&details).unwrap_or_default();
        if text.len() <= MAX_DETAILS {
            return text;
        }
        // Each round drops the last tenth; `packages` keeps all of them.
        let log = &mut details.update_log;
        log.truncate(log.len() * 9 / 10);
    }
}

/// The details of a run, as the ancestor's agents write them.
#[derive(Serialize)]
struct Details<'a> {
    update_log: Vec<Entry<'a>>,
}

/// What became of a package.
#[derive(Serialize)]
struct Entry<'a> {
    action: &'static str,
    package_name: &'a str,
    status: &'static str,
    update_time: &'a str,
    update_type: &'static str,
    version: &'a str,
}

impl<'a> Entry<'a> {
    fn of(package: &'a RunPackage, since: &'a str) -> Self {
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

/// An entry of a run's history.
pub fn event(event: RecordedEvent) -> RunEvent {
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
