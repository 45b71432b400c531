//! `compute/instances/{id}/decision`: what a node should do now, and why.

use axum::extract::State;
use chrono::SecondsFormat;
use evenkeel_api::decision::{
    AvailableUpdate, Decision, DecisionGrant, DecisionSlots, DecisionWindow, GrantWindow,
    Reason as WireReason, SkippedPolicy,
};
use evenkeel_api::update_run::RunTarget;
use evenkeel_domain::Time;
use evenkeel_domain::assignment::Assigned;
use evenkeel_domain::decide::{Act, Grant, Protocol, Reason, Target, TargetKind};
use evenkeel_domain::id::InstanceId;
use evenkeel_domain::package::WantedPackage;
use evenkeel_domain::policy::{PackageRules, PolicySpec, Wish};
use evenkeel_domain::window::{Opener, Window};
use evenkeel_store::decisions::{Reading, World, world};
use evenkeel_store::runs::WholeRun;
use evenkeel_store::{contacts, instances, nodes};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::App;
use crate::call::{Call, id_of_path};
use crate::extract::{Json, Path};
use crate::problem::Problem;
use crate::shape::{Answer, Item};
use crate::{effective, instances as instance, orders, pauses, policies, runs};

/// Tell what a node should do now, why, and until when that holds.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/compute/instances/{resourceId}/decision", tag = "instances", params(Item),
    responses((status = 200, description = "The decision of this instant.", body = Decision), Problem),
)]
pub async fn get_decision(
    State(app): State<App>,
    call: Call,
    Path(path): Path<Item>,
) -> Answer<Decision> {
    let tx = app.read(&call).await?;
    let id: InstanceId = id_of_path(instance::WHAT, &path.resource_id)?;
    let now = app.clock.now();
    let (instance, host) = instances::find_with_host(&tx, id).await?;
    let node = nodes::find(&tx, id).await?;
    let horizon = &app.settings.horizon;
    let world = world(&tx, &host, &node, horizon, Reading::Look(now)).await?;
    // The ancestor's agents know no rules, so what they could update they do.
    let knows_rules = node.protocol != Protocol::Eim;
    let applies = world.applies().filter(|_| knows_rules);
    let rules = applies.map(|applies| &applies.policy.spec.rules);
    let silent_since = if host.status.text == nodes::NO_CONNECTION {
        contacts::last(&tx, id).await?
    } else {
        None
    };
    let run = match &world.run {
        None => None,
        Some(run) => {
            let whole = WholeRun {
                run: run.clone(),
                instance: instance.clone(),
                host_name: host.name.clone(),
            };
            runs::resources(&tx, &[whole]).await?.pop()
        }
    };
    let mut decision = decision(id, &world, now);
    if let Some(waits) = waits(&node.waiting, &world, &decision.act) {
        decision.reason.text.push_str(&waits);
    }
    let limits = node.facts.get("limits").and_then(Value::as_str);
    Ok(Json(Decision {
        instance_id: id.to_string(),
        host_id: host.id.to_string(),
        run: run.map(Box::new),
        available_updates: available(&instance.summary.os_update_available, rules),
        silent_since,
        waiting: node.waiting.clone(),
        owner_limits: limits.unwrap_or_default().to_owned(),
        ..decision
    }))
}

/// What is added to the reason while the node itself holds back what it could begin.
fn waits(waiting: &str, world: &World, act: &str) -> Option<String> {
    let could = matches!(act, "apply" | "continue");
    let run = world.run.as_ref();
    let has_begun = run.is_some_and(|run| !run.state.is_untouched());
    (could && !has_begun && !waiting.is_empty()).then(|| format!("; the node waits: {waiting}"))
}

fn decision(instance: InstanceId, world: &World, now: Time) -> Decision {
    let decision = world.decide(now);
    let (goal, before) = match &decision.act {
        Act::Fetch(target) => (Some(target), None),
        Act::Apply { target, before } => (Some(target), Some(*before)),
        Act::Idle | Act::Continue(_) | Act::Cancel { .. } => (None, None),
    };
    let goal = goal.or(decision.grant.as_ref().map(|grant| &grant.target));
    let wanted = &world.wanted;
    let nearest = wanted.nearest(&world.known);
    let windows = wanted.windows_now(now);
    Decision {
        time: now,
        act: decision.act.name().to_owned(),
        may_start: matches!(decision.act, Act::Apply { .. }),
        target: goal.map(target),
        before,
        reason: WireReason {
            code: decision.because.code().to_owned(),
            text: decision.because.to_string(),
            data: data(&decision.because),
        },
        next: decision.next,
        grant: decision.grant.as_ref().map(grant),
        policy: nearest.map(effective::policy),
        skipped_policies: wanted
            .skipped(&world.known)
            .into_iter()
            .map(skipped)
            .collect(),
        slots: nearest.and_then(slots),
        pauses: wanted.pauses.iter().map(pauses::resource).collect(),
        order: wanted
            .order
            .as_ref()
            .map(|order| orders::resource(instance, order)),
        windows: windows
            .as_slice()
            .iter()
            .map(|window| window_of(window, now))
            .collect(),
        ..Decision::default()
    }
}

fn grant(grant: &Grant) -> DecisionGrant {
    let window = |(start, end): &(Time, Time)| GrantWindow {
        start: *start,
        end: *end,
    };
    DecisionGrant {
        windows: grant.windows.iter().map(window).collect(),
        expires: grant.expires,
    }
}

fn skipped((assigned, why): (&Assigned, &'static str)) -> SkippedPolicy {
    SkippedPolicy {
        resource_id: assigned.policy.id.to_string(),
        name: assigned.policy.spec.name.to_string(),
        level: assigned.scope.level().name().to_owned(),
        assigned_to: assigned.scope.to_string(),
        why: why.to_owned(),
    }
}

/// How far the limits of an assignment are used up; none if it has no limits.
fn slots(assigned: &Assigned) -> Option<DecisionSlots> {
    assigned.limits.any().then(|| DecisionSlots {
        assigned_to: assigned.scope.to_string(),
        max_concurrent: assigned.limits.max_concurrent,
        stop_after_failures: assigned.limits.stop_after_failures,
        held: assigned.brake.held,
        mine: assigned.brake.mine,
        failures: assigned.brake.failures,
    })
}

fn window_of(window: &Window, now: Time) -> DecisionWindow {
    let (opened_by, schedule_id) = match window.opener {
        Opener::Single(id) => ("single_schedule", id.to_string()),
        Opener::Repeated(id) => ("repeated_schedule", id.to_string()),
        Opener::Order => ("order", String::new()),
    };
    DecisionWindow {
        start: window.start,
        end: window.end,
        schedule_id,
        opened_by: opened_by.to_owned(),
        open: window.is_open(now),
    }
}

/// A wish as its policy has it.
pub fn wish(spec: &PolicySpec) -> RunTarget {
    let rules = policies::rules_resource(&spec.rules);
    let image_rules = policies::image_rules_resource(spec.image_rules);
    let Wish::Target(target) = &spec.wish else {
        return RunTarget {
            mode: "latest".to_owned(),
            package_rules: Some(rules),
            image_rules: Some(image_rules),
            ..RunTarget::default()
        };
    };
    let kind = if target.os.is_some() {
        "image"
    } else if target.packages.is_empty() && target.sources.is_empty() {
        "kernel"
    } else {
        "packages"
    };
    RunTarget {
        kind: kind.to_owned(),
        mode: "exactly".to_owned(),
        packages: target
            .packages
            .iter()
            .map(WantedPackage::to_string)
            .collect(),
        sources: target.sources.clone(),
        package_rules: (kind == "packages").then_some(rules),
        kernel_command: target.kernel_command.clone(),
        os_id: target.os.map(|os| os.to_string()).unwrap_or_default(),
        image_rules: target.os.is_some().then_some(image_rules),
        ..RunTarget::default()
    }
}

/// A wish as a node obeys it.
pub fn target(target: &Target) -> RunTarget {
    match &target.wish {
        TargetKind::Packages {
            exactly,
            sources,
            kernel_command,
            rules,
            allow_downgrades: _,
        } => RunTarget {
            kind: "packages".to_owned(),
            mode: if exactly.is_some() {
                "exactly"
            } else {
                "latest"
            }
            .to_owned(),
            packages: exactly
                .iter()
                .flatten()
                .map(WantedPackage::to_string)
                .collect(),
            sources: sources.clone(),
            package_rules: Some(policies::rules_resource(rules)),
            kernel_command: kernel_command.clone(),
            ..RunTarget::default()
        },
        TargetKind::Image(image) => RunTarget {
            kind: "image".to_owned(),
            os_id: image.os.to_string(),
            image_id: image.image_id.clone(),
            image_url: image.url.clone(),
            sha256: image.sha256.as_str().to_owned(),
            profile_name: image.profile_name.clone(),
            image_rules: Some(policies::image_rules_resource(target.image_rules)),
            ..RunTarget::default()
        },
        TargetKind::Kernel { command } => RunTarget {
            kind: "kernel".to_owned(),
            kernel_command: command.clone(),
            ..RunTarget::default()
        },
    }
}

/// What belongs to a reason, for programs.
fn data(reason: &Reason) -> Map<String, Value> {
    let instant = |time: &Time| time.to_rfc3339_opts(SecondsFormat::AutoSi, true);
    let data = match reason {
        Reason::NotTrusted | Reason::NotProvisioned | Reason::NoPolicy | Reason::NoWindow => {
            json!({})
        }
        Reason::PolicyDoesNotFit { policy, level, why } => {
            json!({ "policy": policy, "level": level, "why": why })
        }
        Reason::AgentLacks { module } => json!({ "module": module }),
        Reason::WindowClosed { opens } => json!({ "opens": instant(opens) }),
        Reason::WindowOpen { until } => json!({ "until": instant(until) }),
        Reason::RunOpen { run, state } => json!({ "run": run, "state": state }),
        Reason::NoImage { profile } => json!({ "profile": profile }),
        Reason::RunsAlready { image_id } | Reason::Quarantined { image_id } => {
            json!({ "imageId": image_id })
        }
        Reason::NotNewer { image_id, running } => {
            json!({ "imageId": image_id, "running": running })
        }
        Reason::Paused { scope, by, reason } => {
            json!({ "scope": scope.to_string(), "by": by, "reason": reason })
        }
        Reason::NoFreeSlot { scope, limit } => {
            json!({ "assignedTo": scope.to_string(), "limit": limit })
        }
        Reason::GivesWay { scope, until } => {
            json!({ "assignedTo": scope.to_string(), "until": instant(until) })
        }
        Reason::Stopped { scope, failures } => {
            json!({ "assignedTo": scope.to_string(), "failures": failures })
        }
        Reason::Withdrawn { run } | Reason::Requested { run } => json!({ "run": run }),
        Reason::UpToDate { run, at } | Reason::FailedInWindow { run, at } => {
            json!({ "run": run, "at": instant(at) })
        }
    };
    match data {
        Value::Object(members) => members,
        _ => Map::new(),
    }
}

/// One entry of what a node could update, as the ancestor's clients know it and with what is installed.
#[derive(Deserialize)]
#[serde(default)]
#[derive(Default)]
struct Entry {
    name: String,
    architecture: String,
    installed_version: String,
    available_version: String,
    suites: Vec<String>,
}

/// What a node could update, and what of it the rules that apply leave out. What is no list of packages names an image,
/// which is no package.
fn available(text: &str, rules: Option<&PackageRules>) -> Vec<AvailableUpdate> {
    let entries: Vec<Entry> = serde_json::from_str(text).unwrap_or_default();
    let update = |entry: Entry| AvailableUpdate {
        left_out: rules.is_some_and(|rules| !rules.concerns(&entry.name, &entry.suites)),
        name: entry.name,
        architecture: entry.architecture,
        installed: entry.installed_version,
        available: entry.available_version,
    };
    entries.into_iter().map(update).collect()
}
