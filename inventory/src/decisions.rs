//! `compute/instances/{id}/decision`: what a node should do now, and why.

use axum::extract::State;
use chrono::SecondsFormat;
use evenkeel_api::decision::{
    AvailableUpdate, Decision, DecisionWindow, EffectivePolicy, Reason as WireReason,
};
use evenkeel_api::update_run::RunTarget;
use evenkeel_domain::Time;
use evenkeel_domain::decide::{Act, Reason, Target, TargetKind};
use evenkeel_domain::id::InstanceId;
use evenkeel_domain::package::WantedPackage;
use evenkeel_domain::policy::Wish;
use evenkeel_store::decisions::{World, world};
use evenkeel_store::{hosts, instances, nodes};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::App;
use crate::call::{Call, id_of_path};
use crate::extract::{Json, Path};
use crate::problem::Problem;
use crate::shape::{Answer, Item};
use crate::{instances as instance, runs};

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
    let instance = instances::find(&tx, id).await?;
    let host = hosts::find(&tx, instance.host).await?;
    let node = nodes::find(&tx, id).await?;
    let world = world(&tx, &host, &node, &app.settings.horizon, now).await?;
    let run = match &world.run {
        None => None,
        Some(run) => runs::resources(&tx, std::slice::from_ref(run)).await?.pop(),
    };
    tx.commit().await?;
    Ok(Json(Decision {
        instance_id: id.to_string(),
        host_id: host.id.to_string(),
        run: run.map(Box::new),
        available_updates: available(&instance.summary.os_update_available),
        ..decision(&world, now)
    }))
}

fn decision(world: &World, now: Time) -> Decision {
    let decision = world.decide(now);
    let (wish, before) = match &decision.act {
        Act::Fetch(wish) => (Some(wish), None),
        Act::Apply { target, before } => (Some(target), Some(*before)),
        Act::Idle | Act::Continue(_) | Act::Cancel { .. } => (None, None),
    };
    let windows = world
        .wanted
        .windows
        .as_slice()
        .iter()
        .map(|window| DecisionWindow {
            start: window.start,
            end: window.end,
            schedule_id: window.schedule.to_string(),
            open: window.is_open(now),
        });
    Decision {
        time: now,
        act: decision.act.name().to_owned(),
        target: wish.map(target),
        before,
        reason: WireReason {
            code: decision.because.code().to_owned(),
            text: decision.because.to_string(),
            data: data(&decision.because),
        },
        next: decision.next,
        policy: effective(world),
        windows: windows.collect(),
        ..Decision::default()
    }
}

/// The nearest policy that fits.
fn effective(world: &World) -> Option<EffectivePolicy> {
    let (level, policy) = world.wanted.nearest(world.known.os_kind)?;
    Some(EffectivePolicy {
        resource_id: policy.id.to_string(),
        name: policy.spec.name.to_string(),
        level: level.name().to_owned(),
        target: wish(&policy.spec.wish),
    })
}

/// A wish as its policy has it.
fn wish(wish: &Wish) -> RunTarget {
    let Wish::Target(target) = wish else {
        return RunTarget {
            mode: "latest".to_owned(),
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
        kernel_command: target.kernel_command.clone(),
        os_id: target.os.map(|os| os.to_string()).unwrap_or_default(),
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
            kernel_command: kernel_command.clone(),
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
        Reason::Withdrawn { run } => json!({ "run": run }),
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
}

/// What a node could update. What is no list of packages names an image, which is no package.
fn available(text: &str) -> Vec<AvailableUpdate> {
    let entries: Vec<Entry> = serde_json::from_str(text).unwrap_or_default();
    let update = |entry: Entry| AvailableUpdate {
        name: entry.name,
        architecture: entry.architecture,
        installed: entry.installed_version,
        available: entry.available_version,
    };
    entries.into_iter().map(update).collect()
}
