//! `settings`: settings of a project that override the server's defaults.

use evenkeel_api::settings::{ProjectSettings as Wire, ProjectSettingsInput};
use evenkeel_store::settings::{self, ProjectSettings};

use crate::call::Call;
use crate::extract::{Change, Json, Params};
use crate::problem::Problem;
use crate::shape::{Answer, InProject, MaskParams};

/// Get the settings of a project
///
/// `null` means that the server's default applies.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/settings", tag = "projects", params(InProject),
    responses((status = 200, description = "The settings.", body = Wire), Problem),
)]
pub async fn get_settings(call: Call) -> Answer<Wire> {
    let tx = call.read().await?;
    let stored = settings::find(&tx).await?;
    Ok(Json(settings_resource(stored)))
}

/// Set the settings of a project
///
/// For fields that are missing the server's default applies. A repeated request has the same
/// result.
///
/// The server refuses a retention of more than 36,500 days (`invalid-argument`).
#[utoipa::path(
    put, path = "/v1/projects/{projectName}/settings", tag = "projects", params(InProject), request_body = ProjectSettingsInput,
    responses((status = 200, description = "The settings.", body = Wire), Problem),
)]
pub async fn put_settings(call: Call, Json(body): Json<ProjectSettingsInput>) -> Answer<Wire> {
    let tx = call.write().await?;
    let desired = parse_settings(&body)?;
    settings::set(&tx, &desired).await?;
    tx.commit().await?;
    Ok(Json(settings_resource(desired)))
}

/// Change the settings of a project
///
/// Fields that the body does not name stay unchanged; for `null` the server's default applies.
///
/// The server refuses the same as for PUT.
#[utoipa::path(
    patch, path = "/v1/projects/{projectName}/settings", tag = "projects", params(InProject, MaskParams),
    request_body = ProjectSettingsInput,
    responses((status = 200, description = "The settings.", body = Wire), Problem),
)]
pub async fn patch_settings(
    call: Call,
    params: Params,
    change: Change<ProjectSettingsInput>,
) -> Answer<Wire> {
    let tx = call.write().await?;
    // Read under the lock, so that concurrent changes do not overwrite each other.
    tx.lock_for_change().await?;
    let now = settings::find(&tx).await?;
    let now = ProjectSettingsInput {
        retention_days: now.retention_days,
        any_schedule_status: now.any_schedule_status,
    };
    let desired = parse_settings(&change.apply_to(&now, params.text("fieldMask"))?)?;
    settings::set(&tx, &desired).await?;
    tx.commit().await?;
    Ok(Json(settings_resource(desired)))
}

fn parse_settings(body: &ProjectSettingsInput) -> Result<ProjectSettings, Problem> {
    if body.retention_days.is_some_and(|days| days > ProjectSettings::MAX_RETENTION_DAYS) {
        let why = format!("must be from 0 to {}", ProjectSettings::MAX_RETENTION_DAYS);
        return Err(Problem::invalid("retentionDays", why));
    }
    Ok(ProjectSettings {
        retention_days: body.retention_days,
        any_schedule_status: body.any_schedule_status,
    })
}

const fn settings_resource(settings: ProjectSettings) -> Wire {
    Wire {
        retention_days: settings.retention_days,
        any_schedule_status: settings.any_schedule_status,
    }
}
