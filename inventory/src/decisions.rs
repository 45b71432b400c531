//! `compute/instances/{id}/decision`: what a node should do now, and why.

mod last_plan;

use std::collections::{BTreeSet, HashSet};

use chrono::{SecondsFormat, TimeDelta};
use evenkeel_api::decision::{
    AvailableUpdate, Decision, DecisionGrant, DecisionSlots, DecisionWindow, GrantWindow,
    Reason as WireReason, SkippedPolicy,
};
use evenkeel_domain::Time;
use evenkeel_domain::assignment::{AssignedPolicy, Scope};
use evenkeel_domain::decide::{Act, AgentProtocol, OfflineGrant, Reason};
use evenkeel_domain::eim;
use evenkeel_domain::id::InstanceId;
use evenkeel_domain::package::{ObservedVersion, find_security};
use evenkeel_domain::pause::PauseScope;
use evenkeel_domain::policy::PackageRules;
use evenkeel_domain::window::{Opener, Window};
use evenkeel_store::decisions::{DecisionInput, ReadMode, load_decision_input};
use evenkeel_store::nodes::NodeState;
use evenkeel_store::related::{self, Related, RelatedIds};
use evenkeel_store::{Tx, contacts, instances, nodes, package_versions, runs as stored_runs};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::call::{Call, parse_resource_id};
use crate::extract::{Json, Path};
use crate::problem::Problem;
use crate::shape::targets::run_target;
use crate::shape::{Answer, Item};
use crate::{effective, instances as instance, orders, pauses, runs};

/// Explain what a node should do now
///
/// Shows what the node gets at its next poll: the decision, its reason, how long it holds, and
/// everything that it depends on (effective policy, skipped policies, windows, slots, pauses,
/// order). Reading a decision changes nothing.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/compute/instances/{resourceId}/decision", tag = "instances", params(Item),
    responses((status = 200, description = "The current decision.", body = Decision), Problem),
)]
pub async fn get_decision(call: Call, Path(path): Path<Item>) -> Answer<Decision> {
    let tx = call.read().await?;
    let id: InstanceId = parse_resource_id(instance::RESOURCE_KIND, &path.resource_id)?;
    let now = tx.database_time();
    let (instance, host) = instances::find_with_host(&tx, id).await?;
    let node = nodes::find(&tx, id).await?;
    let planning_limits = &call.app.settings.planning_limits;
    let input =
        load_decision_input(&tx, &host, &node, planning_limits, ReadMode::Preview(now)).await?;
    // EIM's agents do not know package rules and apply all updates.
    let knows_rules = node.protocol != AgentProtocol::Eim;
    let applies = input.applicable_policy().filter(|_| knows_rules);
    let rules = applies.map(|applies| &applies.policy.spec.rules);
    let silent_since = if host.status.text == nodes::NO_CONNECTION_STATUS {
        contacts::last_contact(&tx, id).await?.map(|heard| heard.min(now))
    } else {
        None
    };
    let run = match input.run.as_ref().map(|run| run.id).or(input.unreadable_run) {
        None => None,
        Some(id) => {
            // None if not even a list can show it.
            let open = stored_runs::find_many_details(&tx, &[id]).await?;
            runs::load_resources(&tx, &open).await?.pop()
        }
    };
    let mut related_ids = RelatedIds::default();
    related_ids.add_host(&host);
    let related = related::load(&tx, &related_ids).await?;
    let mut decision = decision_resource(id, &input, &related, now);
    let notes = [
        unpolled_note(&node.protocol, &decision.act),
        waiting_note(&node.waiting, &decision.act),
        eim_note(&node, &input, now),
    ];
    decision.reason.text.extend(notes.into_iter().flatten());
    let limits = node.facts.get("limits").and_then(Value::as_str);
    let reported = parse_available_updates(&instance.summary.os_update_available, rules);
    let min_age_days = rules.map_or(0, |rules| rules.min_age_days);
    let available_updates = mark_too_young(&tx, id, reported, (min_age_days, now)).await?;
    let last_plan = last_plan::load_last_plan(&tx, &node, &input, &available_updates).await?;
    Ok(Json(Decision {
        instance_id: id.to_string(),
        host_id: host.id.to_string(),
        run: run.map(Box::new),
        available_updates,
        last_plan,
        silent_since,
        waiting: node.waiting.clone(),
        owner_limits: limits.unwrap_or_default().to_owned(),
        ..decision
    }))
}

/// Suffix of the reason, while a node that could start or prepare an update has only enrolled.
fn unpolled_note(protocol: &AgentProtocol, act: &str) -> Option<String> {
    let could = matches!(act, "apply" | "fetch");
    let has_polled = *protocol != AgentProtocol::Unknown;
    (could && !has_polled).then(|| "; the node has not polled yet".to_owned())
}

/// Suffix of the reason, while the node itself holds back an update that it could begin or finish.
fn waiting_note(waiting: &str, act: &str) -> Option<String> {
    let could = matches!(act, "apply" | "continue");
    (could && !waiting.is_empty()).then(|| format!("; the node waits: {waiting}"))
}

/// Suffix of the reason, while an agent of EIM will not begin an update that it may begin.
fn eim_note(node: &NodeState, input: &DecisionInput, now: Time) -> Option<String> {
    let is_waiting = node.protocol == AgentProtocol::Eim && input.run.is_none();
    let reason = input.decide(now).reason;
    let obstacle = eim::start_obstacle(node.last_sample.as_ref(), &reason, now);
    obstacle.filter(|_| is_waiting).map(|why| format!("; {why}"))
}

fn decision_resource(
    instance: InstanceId,
    input: &DecisionInput,
    related: &Related,
    now: Time,
) -> Decision {
    let decision = input.decide(now);
    let (goal, before) = match &decision.act {
        Act::Fetch(target) => (Some(target), None),
        Act::Apply { target, deadline: before } => (Some(target), Some(*before)),
        Act::Idle | Act::Continue(_) | Act::Cancel { .. } => (None, None),
    };
    let goal = goal.or(decision.offline_grant.as_ref().map(|grant| &grant.target));
    let desired = &input.desired;
    let nearest = desired.effective_policy(&input.facts);
    let windows = desired.effective_windows(now);
    Decision {
        time: now,
        act: decision.act.name().to_owned(),
        may_start: matches!(decision.act, Act::Apply { .. }),
        target: goal.map(run_target),
        start_deadline: before,
        reason: WireReason {
            code: decision.reason.code().to_owned(),
            text: reason_text(&decision.reason, input, related),
            data: reason_data(&decision.reason),
        },
        next_change: decision.next_change,
        grant: decision.offline_grant.as_ref().map(grant_resource),
        policy: nearest.map(|assigned| effective::effective_policy(assigned, related)),
        skipped_policies: desired
            .skipped_policies(&input.facts)
            .into_iter()
            .map(skipped_resource)
            .collect(),
        slots: nearest.and_then(slots_resource),
        pauses: desired.pauses.iter().map(pauses::resource).collect(),
        order: desired.order.as_ref().map(|order| orders::resource(instance, order)),
        windows: windows.as_slice().iter().map(|window| window_resource(window, now)).collect(),
        ..Decision::default()
    }
}

/// Text of a reason. It names what it mentions by ID: the site or region whose limit holds the
/// update back, and the paused site or policy.
fn reason_text(reason: &Reason, input: &DecisionInput, related: &Related) -> String {
    let (id, name) = match reason {
        Reason::NoFreeSlot { scope, .. }
        | Reason::YieldsSlot { scope, .. }
        | Reason::Stopped { scope, .. } => {
            (scope.to_string(), effective::scope_name(*scope, related))
        }
        Reason::Paused { scope: PauseScope::Site(site), .. } => {
            (site.to_string(), effective::scope_name(Scope::Site(*site), related))
        }
        Reason::Paused { scope: PauseScope::Policy(id), .. } => {
            let mut policies = input.desired.policies.iter();
            let policy = policies.find(|assigned| assigned.policy.id == *id);
            let name = policy.map(|assigned| assigned.policy.spec.name.to_string());
            (id.to_string(), name.unwrap_or_default())
        }
        _ => return reason.to_string(),
    };
    let text = reason.to_string();
    // Only the first ID: another one is part of a command.
    if name.is_empty() { text } else { text.replacen(&id, &format!("{name} ({id})"), 1) }
}

fn grant_resource(grant: &OfflineGrant) -> DecisionGrant {
    let window = |(start, end): &(Time, Time)| GrantWindow { start: *start, end: *end };
    DecisionGrant {
        windows: grant.windows.iter().map(window).collect(),
        expires_at: grant.expires_at,
    }
}

fn skipped_resource((assigned, why): (&AssignedPolicy, &'static str)) -> SkippedPolicy {
    SkippedPolicy {
        resource_id: assigned.policy.id.to_string(),
        name: assigned.policy.spec.name.to_string(),
        level: assigned.scope.level().name().to_owned(),
        assigned_to: assigned.scope.to_string(),
        reason: why.to_owned(),
    }
}

/// Usage of an assignment's limits. None if it has no limits.
fn slots_resource(assigned: &AssignedPolicy) -> Option<DecisionSlots> {
    assigned.limits.is_limited().then(|| DecisionSlots {
        assigned_to: assigned.scope.to_string(),
        max_concurrent: assigned.limits.max_concurrent,
        stop_after_failures: assigned.limits.stop_after_failures,
        held_by_others: assigned.usage.held_by_others,
        holds_slot: assigned.usage.holds_slot,
        failures: assigned.usage.failures,
    })
}

fn window_resource(window: &Window, now: Time) -> DecisionWindow {
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

/// Data of a reason, for programs.
fn reason_data(reason: &Reason) -> Map<String, Value> {
    let instant = |time: &Time| time.to_rfc3339_opts(SecondsFormat::AutoSi, true);
    let data = match reason {
        Reason::NotTrusted | Reason::NotProvisioned | Reason::NoPolicy | Reason::NoWindow => {
            json!({})
        }
        Reason::Unreadable { object } => json!({ "kind": object.kind, "id": object.id }),
        Reason::PolicyDoesNotFit { policy, level, why } => {
            json!({ "policy": policy, "level": level, "why": why })
        }
        Reason::AgentLacks { module } => json!({ "module": module }),
        Reason::WindowClosed { opens } => json!({ "opens": instant(opens) }),
        Reason::WindowOpen { until, is_ordered } => {
            json!({ "until": instant(until), "ordered": is_ordered })
        }
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
        Reason::YieldsSlot { scope, until } => {
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

/// An available update as EIM's clients know it, with the installed version.
#[derive(Deserialize)]
#[serde(default)]
#[derive(Default)]
struct ReportedUpdate {
    name: String,
    architecture: String,
    installed_version: String,
    available_version: String,
    suites: Vec<String>,
    origins: Vec<String>,
}

/// Available updates of a node, each marked if the effective rules exclude it. A text that is not a
/// list of packages names an image, which gives no entries.
fn parse_available_updates(text: &str, rules: Option<&PackageRules>) -> Vec<AvailableUpdate> {
    let entries: Vec<ReportedUpdate> = serde_json::from_str(text).unwrap_or_default();
    let update = |entry: ReportedUpdate| AvailableUpdate {
        excluded: rules.is_some_and(|rules| !rules.allows(&entry.name, &entry.suites)),
        security: find_security(&entry.suites, &entry.origins),
        suites: entry.suites,
        origins: entry.origins,
        name: entry.name,
        architecture: entry.architecture,
        installed: entry.installed_version,
        available: entry.available_version,
        too_young: false,
    };
    entries.into_iter().map(update).collect()
}

/// Marks the updates whose version is not known for the minimum age of the policy.
async fn mark_too_young(
    tx: &Tx,
    instance: InstanceId,
    mut updates: Vec<AvailableUpdate>,
    (min_age_days, now): (u32, Time),
) -> Result<Vec<AvailableUpdate>, Problem> {
    if min_age_days == 0 {
        return Ok(updates);
    }
    let names = updates.iter().map(|update| update.name.clone());
    let names: BTreeSet<String> = names.collect();
    let since = now - TimeDelta::days(min_age_days.into());
    let names = names.into_iter().collect();
    let known = package_versions::list_known_since(tx, instance, names, since).await?;
    let known: HashSet<_> = known.into_iter().collect();
    for update in &mut updates {
        update.too_young = !known.contains(&ObservedVersion {
            name: update.name.clone(),
            architecture: update.architecture.clone(),
            version: update.available.clone(),
        });
    }
    Ok(updates)
}
