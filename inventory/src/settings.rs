//! `settings`: what a project wants otherwise than the server does by default.

use axum::extract::State;
use evenkeel_api::settings::{ProjectSettings as Wire, ProjectSettingsInput};
use evenkeel_store::settings::{self, ProjectSettings};

use crate::App;
use crate::call::Call;
use crate::extract::{Change, Json, Params};
use crate::problem::Problem;
use crate::shape::{Answer, InProject, MaskParams};

/// Show the settings of a project.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/settings", tag = "projects", params(InProject),
    responses((status = 200, description = "The settings.", body = Wire), Problem),
)]
pub async fn get_settings(State(app): State<App>, call: Call) -> Answer<Wire> {
    let tx = app.read(&call).await?;
    let found = settings::find(&tx).await?;
    Ok(Json(wire(found)))
}

/// Set the settings of a project. What is left out is as the server does by default.
#[utoipa::path(
    put, path = "/v1/projects/{projectName}/settings", tag = "projects", params(InProject), request_body = ProjectSettingsInput,
    responses((status = 200, description = "The settings.", body = Wire), Problem),
)]
pub async fn put_settings(
    State(app): State<App>,
    call: Call,
    Json(body): Json<ProjectSettingsInput>,
) -> Answer<Wire> {
    let tx = app.write(&call).await?;
    let wanted = wanted(&body)?;
    settings::set(&tx, &wanted).await?;
    tx.commit().await?;
    Ok(Json(wire(wanted)))
}

/// Change settings of a project. What is not named stays; what is null is as the server does by default.
#[utoipa::path(
    patch, path = "/v1/projects/{projectName}/settings", tag = "projects", params(InProject, MaskParams),
    request_body = ProjectSettingsInput,
    responses((status = 200, description = "The settings.", body = Wire), Problem),
)]
pub async fn patch_settings(
    State(app): State<App>,
    call: Call,
    params: Params,
    change: Change<ProjectSettingsInput>,
) -> Answer<Wire> {
    let tx = app.write(&call).await?;
    // What is there is read under the lock, so that of two changes at once neither is lost.
    tx.write_wanted().await?;
    let now = settings::find(&tx).await?;
    let now = ProjectSettingsInput {
        retention_days: now.retention_days,
        any_schedule_status: now.any_schedule_status,
    };
    let wanted = wanted(&change.over(&now, params.text("fieldMask"))?)?;
    settings::set(&tx, &wanted).await?;
    tx.commit().await?;
    Ok(Json(wire(wanted)))
}

fn wanted(body: &ProjectSettingsInput) -> Result<ProjectSettings, Problem> {
    if body
        .retention_days
        .is_some_and(|days| days > ProjectSettings::MAX_RETENTION_DAYS)
    {
        let why = format!("must be from 0 to {}", ProjectSettings::MAX_RETENTION_DAYS);
        return Err(Problem::invalid("retentionDays", why));
    }
    Ok(ProjectSettings {
        retention_days: body.retention_days,
        any_schedule_status: body.any_schedule_status,
    })
}

const fn wire(settings: ProjectSettings) -> Wire {
    Wire {
        retention_days: settings.retention_days,
        any_schedule_status: settings.any_schedule_status,
    }
}
