//! `/v1/projects`: isolated tenants.

use evenkeel_api::Empty;
use evenkeel_api::project::{
    ProjectCondition, ProjectInput, ProjectResource, ProjectSpec, ProjectStatus,
};
use evenkeel_api::status::StatusIndication;
use evenkeel_domain::tenant::{Project, ProjectName};
use evenkeel_domain::text;
use evenkeel_store::{ConnectionShare, StoreError, operator_tokens, projects};
use serde::Deserialize;
use utoipa::IntoParams;

use crate::call::{Call, parse_project_name};
use crate::extract::{Json, Params, Path};
use crate::problem::Problem;
use crate::shape::Answer;

/// A project, by name.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub struct ProjectPath {
    /// Name of the project.
    #[serde(rename = "projectName")]
    name: String,
}

/// List projects
///
/// Returns the projects that the token has a role for, and all projects for `evenkeel-admin`. The
/// list has no pages.
///
/// The server refuses a token without a role for any project (`unauthenticated`).
#[utoipa::path(
    get, path = "/v1/projects", tag = "projects",
    responses((status = 200, description = "The projects.", body = Vec<ProjectResource>), Problem),
)]
pub async fn list_projects(call: Call) -> Answer<Vec<ProjectResource>> {
    let caller = call.caller()?;
    let readable = caller.readable_projects();
    if readable.is_empty() && !caller.may_administrate() {
        return Err(Problem::unauthenticated("the token belongs to no project"));
    }
    let tx = call.fleet(ConnectionShare::RestReads).await?;
    let all = projects::list(&tx).await?;
    let visible = all.into_iter().filter(|project| caller.may_read(project.id.uuid()));
    Ok(Json(visible.map(resource).collect()))
}

/// Get a project
///
/// Returns the project. Roles and the header `ActiveProjectID` name the project by
/// `status.projectStatus.uID`.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}", tag = "projects", params(ProjectPath),
    responses((status = 200, description = "The project.", body = ProjectResource), Problem),
)]
pub async fn get_project(call: Call) -> Answer<ProjectResource> {
    let tenant = call.read().await?.tenant();
    let fleet = call.fleet(ConnectionShare::RestReads).await?;
    let project = projects::find(&fleet, tenant).await?;
    Ok(Json(resource(project)))
}

/// Query parameters of the creation of a project.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "only the OpenAPI document uses it; `Params` reads the value")]
pub struct PutParams {
    /// Whether to update the description of an existing project, instead of refusing the request.
    /// By default false.
    update_if_exists: Option<bool>,
}

/// Create a project
///
/// Creates the project and gives it a UUID. The name has at most 63 lower-case letters, digits and
/// dashes, and a letter or digit at both ends. With `update_if_exists` the request replaces the
/// description of an existing project, and can be repeated.
///
/// The server refuses a project that exists, unless `update_if_exists` is true
/// (`failed-precondition`).
#[utoipa::path(
    put, path = "/v1/projects/{projectName}", tag = "projects", params(ProjectPath, PutParams),
    request_body = ProjectInput,
    responses((status = 200, description = "The project.", body = ProjectResource), Problem),
)]
pub async fn put_project(
    call: Call,
    Path(path): Path<ProjectPath>,
    params: Params,
    Json(body): Json<ProjectInput>,
) -> Answer<ProjectResource> {
    let update = params.flag("update_if_exists")?;
    let (tx, _) = call.as_administrator().await?;
    let name = ProjectName::parse("name", &path.name)?;
    text::check("description", &body.description, 200, text::TEXT_PUNCTUATION)?;
    let now = tx.database_time();
    let project = match projects::find_by_name(&tx, name.as_str()).await {
        Ok(existing) if update => {
            projects::describe(&tx, existing.id, &body.description, now).await?
        }
        Ok(_) | Err(StoreError::NotFound { .. }) => {
            projects::create(&tx, &name, &body.description, now).await?
        }
        Err(error) => return Err(error.into()),
    };
    tx.commit().await?;
    Ok(Json(resource(project)))
}

/// Query parameters of the deletion of a project.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "only the OpenAPI document uses it; `Params` reads the value")]
pub struct DeleteParams {
    /// Whether to delete a project that has hosts, together with its hosts. By default false.
    force: Option<bool>,
}

/// Delete a project with all its resources
///
/// The project is gone at once and its name is free. The server removes its rows in the background.
/// The change log of the project stays. The tokens for automation of the project are revoked.
///
/// The server refuses a project that has hosts, unless `force` is true (`failed-precondition`).
#[utoipa::path(
    delete, path = "/v1/projects/{projectName}", tag = "projects", params(ProjectPath, DeleteParams),
    responses((status = 200, description = "The project is deleted.", body = Empty), Problem),
)]
pub async fn delete_project(
    call: Call,
    Path(path): Path<ProjectPath>,
    params: Params,
) -> Answer<Empty> {
    let force = params.flag("force")?;
    let (tx, administrator) = call.as_administrator().await?;
    let name = parse_project_name(&path.name)?;
    let project = projects::find_by_name(&tx, name.as_str()).await?;
    let now = tx.database_time();
    projects::delete(&tx, project.id, force, now).await?;
    // The deletion has locked the project, so no other transaction issues a token for it meanwhile.
    operator_tokens::revoke_of_project(&tx, project.id, &administrator, now).await?;
    tx.commit().await?;
    Ok(Json(Empty {}))
}

fn resource(project: Project) -> ProjectResource {
    ProjectResource {
        name: project.name.to_string(),
        spec: ProjectSpec { description: project.description },
        status: ProjectStatus {
            project_status: ProjectCondition {
                status_indicator: StatusIndication::Idle,
                message: "ready".to_owned(),
                time_stamp: project.updated_at.timestamp().try_into().unwrap_or_default(),
                uid: project.id.to_string(),
            },
        },
    }
}
