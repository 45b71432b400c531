//! `assignments`: policies assigned to targets, with rollout limits.

use evenkeel_api::Empty;
use evenkeel_api::assignment::{
    AssignmentInput, AssignmentList, AssignmentResource, AssignmentResumption,
    AssignmentResumptionInput,
};
use evenkeel_domain::assignment::{Scope, UpdateLimits};
use evenkeel_domain::id::{PolicyId, parse_id};
use evenkeel_domain::order::parse_reason;
use evenkeel_store::assignments::{self, Assignment, Resumption};
use evenkeel_store::{Conflict, StoreError, Tx, hosts, instances, policies, regions, sites};
use serde::Deserialize;
use utoipa::IntoParams;

use crate::call::{Call, parse_path_id};
use crate::extract::{Change, Json, Params, Path};
use crate::listing::short_list::{PageParams, PageQuery};
use crate::problem::Problem;
use crate::shape::{Answer, InProject, MaskParams};

const RESOURCE_KIND: &str = "assignment";

/// The target of an assignment.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub struct AssignmentPath {
    /// Name of the project.
    #[serde(rename = "projectName")]
    _project_name: String,
    /// ID of an instance, host, site or region, or `project`.
    target: String,
}

/// List assignments
///
/// Returns the assignments of sites first, then those of regions, the project, instances and hosts.
/// The list has no `filter` and no `orderBy`.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/assignments", tag = "assignments", params(InProject, PageParams),
    responses((status = 200, description = "The assignments, by kind of their targets.", body = AssignmentList), Problem),
)]
pub async fn list_assignments(call: Call, params: Params) -> Answer<AssignmentList> {
    let page = PageQuery::from_params(&params)?;
    let tx = call.read().await?;
    let all = assignments::all(&tx, tx.database_time()).await?;
    let part = page.paginate(all);
    Ok(Json(AssignmentList {
        assignments: part.items.iter().map(resource).collect(),
        total_elements: part.total_elements,
        has_next: part.has_next,
        next_page_token: part.next_page_token,
    }))
}

/// Get the assignment of a target
///
/// Shows only what is assigned to the target itself, not what it inherits. For a target without an
/// assignment the answer is `not-found`.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/assignments/{target}", tag = "assignments", params(AssignmentPath),
    responses((status = 200, description = "The assignment.", body = AssignmentResource), Problem),
)]
pub async fn get_assignment(
    call: Call,
    Path(path): Path<AssignmentPath>,
) -> Answer<AssignmentResource> {
    let tx = call.read().await?;
    let scope = parse_scope(&path)?;
    let assignment = assignments::find(&tx, scope, tx.database_time()).await?;
    Ok(Json(resource(&assignment)))
}

/// Assign a policy to a target
///
/// Replaces the target's previous assignment with its limits, and resets its failure count. A
/// repeated request resets the count again; use PATCH to keep it.
///
/// The server refuses a target that does not exist (`not-found`), and a policy that does not exist
/// (`failed-precondition`). It refuses a policy for a single instance that does not fit its
/// operating system, and a limit of 0 (`invalid-argument`).
#[utoipa::path(
    put, path = "/v1/projects/{projectName}/assignments/{target}", tag = "assignments", params(AssignmentPath),
    request_body = AssignmentInput,
    responses((status = 200, description = "The assignment.", body = AssignmentResource), Problem),
)]
pub async fn put_assignment(
    call: Call,
    Path(path): Path<AssignmentPath>,
    Json(body): Json<AssignmentInput>,
) -> Answer<AssignmentResource> {
    let tx = call.write().await?;
    let scope = parse_scope(&path)?;
    let (policy, limits) = parse_spec(&body)?;
    check_assignable(&tx, scope, policy).await?;
    let now = tx.database_time();
    assignments::set(&tx, scope, policy, limits, now).await?;
    let assignment = assignments::find(&tx, scope, now).await?;
    tx.commit().await?;
    Ok(Json(resource(&assignment)))
}

/// Change the assignment of a target
///
/// Fields that the body does not name stay unchanged; `null` removes a limit. If the target has no
/// assignment and the body names a policy, the policy is assigned. The failure count is reset only
/// if the policy changes, so a repeated request changes nothing.
///
/// The server refuses the same as for PUT, and a body without a policy if the target has no
/// assignment (`not-found`).
#[utoipa::path(
    patch, path = "/v1/projects/{projectName}/assignments/{target}", tag = "assignments", params(AssignmentPath, MaskParams),
    request_body = AssignmentInput,
    responses((status = 200, description = "The assignment.", body = AssignmentResource), Problem),
)]
pub async fn patch_assignment(
    call: Call,
    Path(path): Path<AssignmentPath>,
    params: Params,
    change: Change<AssignmentInput>,
) -> Answer<AssignmentResource> {
    let tx = call.write().await?;
    // Read under the lock, so that concurrent changes do not overwrite each other.
    tx.lock_for_change().await?;
    let scope = parse_scope(&path)?;
    let now = tx.database_time();
    let before = ignore_not_found(assignments::find(&tx, scope, now).await)?;
    let desired = change
        .apply_to(&before.as_ref().map(to_input).unwrap_or_default(), params.text("fieldMask"))?;
    if before.is_none() && desired.os_update_policy_id.is_empty() {
        return Err(StoreError::NotFound { what: RESOURCE_KIND }.into());
    }
    let (policy, limits) = parse_spec(&desired)?;
    if before.is_some_and(|before| before.policy == policy) {
        assignments::set_limits(&tx, scope, limits).await?;
    } else {
        check_assignable(&tx, scope, policy).await?;
        assignments::set(&tx, scope, policy, limits, now).await?;
    }
    let changed = assignments::find(&tx, scope, now).await?;
    tx.commit().await?;
    Ok(Json(resource(&changed)))
}

/// Resume an assignment that stopped after failures
///
/// Resets the failure count, so that updates start again. Has no effect on an assignment that has
/// not stopped, so the request can be repeated. Does not remove a pause.
///
/// For a target without an assignment the answer is `not-found`.
#[utoipa::path(
    put, path = "/v1/projects/{projectName}/assignments/{target}/resume", tag = "assignments", params(AssignmentPath),
    request_body = AssignmentResumptionInput,
    responses((status = 200, description = "The assignment.", body = AssignmentResource), Problem),
)]
pub async fn resume_assignment(
    call: Call,
    Path(path): Path<AssignmentPath>,
    Json(body): Json<AssignmentResumptionInput>,
) -> Answer<AssignmentResource> {
    let (tx, by) = call.write_as_caller().await?;
    let scope = parse_scope(&path)?;
    let at = tx.database_time();
    let reason = parse_reason(&body.reason)?;
    assignments::resume(&tx, scope, &Resumption { at, by, reason }).await?;
    let resumed = assignments::find(&tx, scope, at).await?;
    tx.commit().await?;
    Ok(Json(resource(&resumed)))
}

/// Delete the assignment of a target
///
/// The target then uses the policy that it inherits, if there is one. Runs that have changed
/// nothing yet are cancelled if no policy requests them any more. For a target without an
/// assignment the answer is `not-found`.
#[utoipa::path(
    delete, path = "/v1/projects/{projectName}/assignments/{target}", tag = "assignments", params(AssignmentPath),
    responses((status = 200, description = "The assignment is deleted.", body = Empty), Problem),
)]
pub async fn delete_assignment(call: Call, Path(path): Path<AssignmentPath>) -> Answer<Empty> {
    let tx = call.write().await?;
    // Read under the lock, so that concurrent changes do not overwrite each other.
    tx.lock_for_change().await?;
    let scope = parse_scope(&path)?;
    assignments::find(&tx, scope, tx.database_time()).await?;
    assignments::clear(&tx, scope).await?;
    tx.commit().await?;
    Ok(Json(Empty {}))
}

fn parse_scope(path: &AssignmentPath) -> Result<Scope, Problem> {
    parse_path_id("target", RESOURCE_KIND, &path.target)
}

/// Turns "not found" into `None`.
fn ignore_not_found(
    answer: Result<Assignment, StoreError>,
) -> Result<Option<Assignment>, StoreError> {
    match answer {
        Ok(assignment) => Ok(Some(assignment)),
        Err(StoreError::NotFound { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Policy and rollout limits of the input.
fn parse_spec(body: &AssignmentInput) -> Result<(PolicyId, UpdateLimits), Problem> {
    let policy = parse_id("osUpdatePolicyId", &body.os_update_policy_id)?;
    let limits = UpdateLimits::parse(body.max_concurrent, body.stop_after_failures)?;
    Ok((policy, limits))
}

/// The input that describes an assignment.
fn to_input(assignment: &Assignment) -> AssignmentInput {
    AssignmentInput {
        os_update_policy_id: assignment.policy.to_string(),
        max_concurrent: assignment.limits.max_concurrent,
        stop_after_failures: assignment.limits.stop_after_failures,
    }
}

/// Checks that target and policy exist. A policy for a single instance must match its operating
/// system; wider targets may contain instances of both kinds.
async fn check_assignable(tx: &Tx, scope: Scope, policy: PolicyId) -> Result<(), Problem> {
    const POLICY_FIELD: &str = "osUpdatePolicyId";
    match scope {
        Scope::Instance(id) => {
            let os = instances::find(tx, id).await?.summary.os;
            crate::instances::check_policy_matches_os(tx, POLICY_FIELD, policy, os).await?;
        }
        Scope::Host(id) => drop(hosts::find(tx, id).await?),
        Scope::Site(id) => drop(sites::find(tx, id).await?),
        Scope::Region(id) => drop(regions::find(tx, id).await?),
        Scope::Project => {}
    }
    if policies::find_many(tx, &[policy]).await?.is_empty() {
        let missing =
            Conflict::MissingReference { what: "os_update_policy_resource", field: POLICY_FIELD };
        return Err(StoreError::from(missing).into());
    }
    Ok(())
}

fn resource(assignment: &Assignment) -> AssignmentResource {
    AssignmentResource {
        target: assignment.scope.to_string(),
        target_kind: assignment.scope.level().name().to_owned(),
        os_update_policy_id: assignment.policy.to_string(),
        max_concurrent: assignment.limits.max_concurrent,
        stop_after_failures: assignment.limits.stop_after_failures,
        slots_in_use: assignment.held_slots,
        failures: assignment.failures,
        since: assignment.since,
        resumption: assignment.resumption.as_ref().map(resumption),
    }
}

fn resumption(resumption: &Resumption) -> AssignmentResumption {
    AssignmentResumption {
        at: resumption.at,
        by: resumption.by.clone(),
        reason: resumption.reason.clone(),
    }
}
