//! `assignments`: what gets which policy, and how fast.

use axum::extract::State;
use evenkeel_api::Empty;
use evenkeel_api::assignment::{
    AssignmentInput, AssignmentList, AssignmentResource, AssignmentResumption,
    AssignmentResumptionInput,
};
use evenkeel_domain::assignment::{Limits, Scope};
use evenkeel_domain::id::{PolicyId, parse_id};
use evenkeel_domain::order::reason;
use evenkeel_store::assignments::{self, Assignment, Resumption};
use evenkeel_store::{Conflict, StoreError, Tx, hosts, instances, policies, regions, sites};
use serde::Deserialize;
use utoipa::IntoParams;

use crate::App;
use crate::call::{Call, named_of_path};
use crate::extract::{Change, Json, Params, Path};
use crate::listing::few::{Page, PageParams};
use crate::problem::Problem;
use crate::shape::{Answer, InProject, MaskParams};

const WHAT: &str = "assignment";

/// What a policy is assigned to.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub struct Target {
    /// The name of the project.
    #[serde(rename = "projectName")]
    _project_name: String,
    /// The id of an instance, host, site or region, or `project`.
    target: String,
}

/// List the assignments.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/assignments", tag = "assignments", params(InProject, PageParams),
    responses((status = 200, description = "The assignments, nearest kind first.", body = AssignmentList), Problem),
)]
pub async fn list_assignments(
    State(app): State<App>,
    call: Call,
    params: Params,
) -> Answer<AssignmentList> {
    let page = Page::of(&params)?;
    let tx = app.read(&call).await?;
    let all = assignments::all(&tx, app.clock.now()).await?;
    let few = page.of_all(all);
    Ok(Json(AssignmentList {
        assignments: few.items.iter().map(resource).collect(),
        total_elements: few.total_elements,
        has_next: few.has_next,
        next_page_token: few.next_page_token,
    }))
}

/// Show what is assigned to something itself.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/assignments/{target}", tag = "assignments", params(Target),
    responses((status = 200, description = "The assignment.", body = AssignmentResource), Problem),
)]
pub async fn get_assignment(
    State(app): State<App>,
    call: Call,
    Path(path): Path<Target>,
) -> Answer<AssignmentResource> {
    let tx = app.read(&call).await?;
    let scope = scope(&path)?;
    let found = assignments::find(&tx, scope, app.clock.now()).await?;
    Ok(Json(resource(&found)))
}

/// Assign a policy, in place of the one that was assigned to the same. The count of failures begins anew.
#[utoipa::path(
    put, path = "/v1/projects/{projectName}/assignments/{target}", tag = "assignments", params(Target),
    request_body = AssignmentInput,
    responses((status = 200, description = "The assignment.", body = AssignmentResource), Problem),
)]
pub async fn put_assignment(
    State(app): State<App>,
    call: Call,
    Path(path): Path<Target>,
    Json(body): Json<AssignmentInput>,
) -> Answer<AssignmentResource> {
    let tx = app.write(&call).await?;
    let scope = scope(&path)?;
    let (policy, limits) = spec(&body)?;
    check(&tx, scope, policy).await?;
    let now = app.clock.now();
    assignments::set(&tx, scope, policy, limits, now).await?;
    let made = assignments::find(&tx, scope, now).await?;
    tx.commit().await?;
    Ok(Json(resource(&made)))
}

/// Change what is assigned to something itself: what is not named stays, what is null is no limit. With a policy in the body
/// it is assigned if nothing was. Failures are counted from now only if it is another policy.
#[utoipa::path(
    patch, path = "/v1/projects/{projectName}/assignments/{target}", tag = "assignments", params(Target, MaskParams),
    request_body = AssignmentInput,
    responses((status = 200, description = "The assignment.", body = AssignmentResource), Problem),
)]
pub async fn patch_assignment(
    State(app): State<App>,
    call: Call,
    Path(path): Path<Target>,
    params: Params,
    change: Change<AssignmentInput>,
) -> Answer<AssignmentResource> {
    let tx = app.write(&call).await?;
    // What is there is read under the lock, so that of two changes at once neither is lost.
    tx.write_wanted().await?;
    let scope = scope(&path)?;
    let now = app.clock.now();
    let before = found(assignments::find(&tx, scope, now).await)?;
    let wanted = change.over(
        &before.as_ref().map(input).unwrap_or_default(),
        params.text("fieldMask"),
    )?;
    if before.is_none() && wanted.os_update_policy_id.is_empty() {
        return Err(StoreError::NotFound { what: WHAT }.into());
    }
    let (policy, limits) = spec(&wanted)?;
    if before.is_some_and(|before| before.policy == policy) {
        assignments::limit(&tx, scope, limits).await?;
    } else {
        check(&tx, scope, policy).await?;
        assignments::set(&tx, scope, policy, limits, now).await?;
    }
    let changed = assignments::find(&tx, scope, now).await?;
    tx.commit().await?;
    Ok(Json(resource(&changed)))
}

/// Let an assignment go on that stopped after failures: they are counted from now. One that has not stopped stays as it is.
/// A pause is taken back by itself.
#[utoipa::path(
    put, path = "/v1/projects/{projectName}/assignments/{target}/resume", tag = "assignments", params(Target),
    request_body = AssignmentResumptionInput,
    responses((status = 200, description = "The assignment.", body = AssignmentResource), Problem),
)]
pub async fn resume_assignment(
    State(app): State<App>,
    call: Call,
    Path(path): Path<Target>,
    Json(body): Json<AssignmentResumptionInput>,
) -> Answer<AssignmentResource> {
    let (tx, by) = app.write_by_name(&call).await?;
    let scope = scope(&path)?;
    let at = app.clock.now();
    let reason = reason(&body.reason)?;
    assignments::resume(&tx, scope, &Resumption { at, by, reason }).await?;
    let resumed = assignments::find(&tx, scope, at).await?;
    tx.commit().await?;
    Ok(Json(resource(&resumed)))
}

/// Take back what is assigned to something itself.
#[utoipa::path(
    delete, path = "/v1/projects/{projectName}/assignments/{target}", tag = "assignments", params(Target),
    responses((status = 200, description = "It is taken back.", body = Empty), Problem),
)]
pub async fn delete_assignment(
    State(app): State<App>,
    call: Call,
    Path(path): Path<Target>,
) -> Answer<Empty> {
    let tx = app.write(&call).await?;
    // What is there is read under the lock, so that of two changes at once neither is lost.
    tx.write_wanted().await?;
    let scope = scope(&path)?;
    assignments::find(&tx, scope, app.clock.now()).await?;
    assignments::clear(&tx, scope).await?;
    tx.commit().await?;
    Ok(Json(Empty {}))
}

fn scope(path: &Target) -> Result<Scope, Problem> {
    named_of_path("target", WHAT, &path.target)
}

/// What was found, if anything was.
fn found(answer: Result<Assignment, StoreError>) -> Result<Option<Assignment>, StoreError> {
    match answer {
        Ok(found) => Ok(Some(found)),
        Err(StoreError::NotFound { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// What should be assigned, and how fast it may go.
fn spec(body: &AssignmentInput) -> Result<(PolicyId, Limits), Problem> {
    let policy = parse_id("osUpdatePolicyId", &body.os_update_policy_id)?;
    let limits = Limits::parse(body.max_concurrent, body.stop_after_failures)?;
    Ok((policy, limits))
}

/// What is assigned, as it would be asked for.
fn input(assignment: &Assignment) -> AssignmentInput {
    AssignmentInput {
        os_update_policy_id: assignment.policy.to_string(),
        max_concurrent: assignment.limits.max_concurrent,
        stop_after_failures: assignment.limits.stop_after_failures,
    }
}

/// Target and policy must be there, and for a single instance the policy must be one that can be meant for it. What is
/// wider may hold instances of either kind.
async fn check(tx: &Tx, scope: Scope, policy: PolicyId) -> Result<(), Problem> {
    const FIELD: &str = "osUpdatePolicyId";
    match scope {
        Scope::Instance(id) => {
            let os = instances::find(tx, id).await?.summary.os;
            crate::instances::check_fit(tx, FIELD, policy, os).await?;
        }
        Scope::Host(id) => drop(hosts::find(tx, id).await?),
        Scope::Site(id) => drop(sites::find(tx, id).await?),
        Scope::Region(id) => drop(regions::find(tx, id).await?),
        Scope::Project => {}
    }
    if policies::find_many(tx, &[policy]).await?.is_empty() {
        let missing = Conflict::Dangling {
            what: "os_update_policy_resource",
            field: FIELD,
        };
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
        slots_in_use: assignment.held,
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
