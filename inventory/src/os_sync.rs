//! `os-catalogue`: which operating systems a project takes from a registry, and the state of the
//! syncs.

use evenkeel_api::number::U64;
use evenkeel_api::os_sync::{
    EffectiveOsSettings, OsSettings, OsSettingsInput, OsSync, OsSyncFinding, OsSyncOutcome,
    OsSyncReport, OsSyncStep,
};
use evenkeel_domain::os::catalogue::{CatalogSelection, CycleOutcome, CycleStep};
use evenkeel_store::os_catalogue::{self, CycleState};
use evenkeel_store::os_reports::{self, SyncFinding, SyncReport};
use evenkeel_store::{ConnectionShare, Tx, os_details, os_settings};

use crate::app::OsDefaults;
use crate::call::Call;
use crate::extract::{Change, Json, Params};
use crate::problem::Problem;
use crate::shape::{Answer, InProject, MaskParams};

/// Get the registry settings of a project
///
/// `null` means that the server's default applies; `effective` shows the resulting settings.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/os-catalogue/settings", tag = "operating systems", params(InProject),
    responses((status = 200, description = "The settings.", body = OsSettings), Problem),
)]
pub async fn get_os_settings(call: Call) -> Answer<OsSettings> {
    let tx = call.read().await?;
    let selection = os_settings::find(&tx).await?.unwrap_or_default();
    settings_resource(&tx, selection, &call.app.settings.os_defaults).await
}

/// Set the registry settings of a project
///
/// For fields that are missing the server's default applies. The request deletes the sync report;
/// the next sync, which begins within seconds, writes another one.
///
/// The server refuses a registry that its configuration does not have, an invalid revision or
/// profile name, and a default profile that is not enabled (`invalid-argument`).
#[utoipa::path(
    put, path = "/v1/projects/{projectName}/os-catalogue/settings", tag = "operating systems", params(InProject),
    request_body = OsSettingsInput,
    responses((status = 200, description = "The settings.", body = OsSettings), Problem),
)]
pub async fn put_os_settings(call: Call, Json(body): Json<OsSettingsInput>) -> Answer<OsSettings> {
    let tx = call.write().await?;
    let selection = parse_selection(body, &call.app.settings.os_defaults)?;
    os_settings::set(&tx, &selection).await?;
    let answer = settings_resource(&tx, selection, &call.app.settings.os_defaults).await?;
    tx.commit().await?;
    Ok(answer)
}

/// Change the registry settings of a project
///
/// Fields that the body does not name stay unchanged; for `null` the server's default applies.
///
/// The server refuses the same as for PUT.
#[utoipa::path(
    patch, path = "/v1/projects/{projectName}/os-catalogue/settings", tag = "operating systems",
    params(InProject, MaskParams), request_body = OsSettingsInput,
    responses((status = 200, description = "The settings.", body = OsSettings), Problem),
)]
pub async fn patch_os_settings(
    call: Call,
    params: Params,
    change: Change<OsSettingsInput>,
) -> Answer<OsSettings> {
    let tx = call.write().await?;
    // Read under the lock, so that concurrent changes do not overwrite each other.
    tx.lock_for_change().await?;
    let now = to_input(os_settings::find(&tx).await?.unwrap_or_default());
    let selection = parse_selection(
        change.apply_to(&now, params.text("fieldMask"))?,
        &call.app.settings.os_defaults,
    )?;
    os_settings::set(&tx, &selection).await?;
    let answer = settings_resource(&tx, selection, &call.app.settings.os_defaults).await?;
    tx.commit().await?;
    Ok(answer)
}

/// Get the state of the syncs with the project's registry
///
/// Shows the progress of the current sync and the times of the last one. Before the first sync, all
/// fields but `registry` are empty; without a registry, all fields are.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/os-catalogue/sync", tag = "operating systems", params(InProject),
    responses((status = 200, description = "The state of the syncs.", body = OsSync), Problem),
)]
pub async fn get_os_sync(call: Call) -> Answer<OsSync> {
    let tx = call.read().await?;
    let selection = os_settings::find(&tx).await?.unwrap_or_default();
    // Registries belong to the whole fleet. Release this connection first: a request never holds
    // two.
    tx.commit().await?;
    let Some(registry) = selection.or_defaults(&call.app.settings.os_defaults.selection).registry
    else {
        return Ok(Json(OsSync::default()));
    };
    let fleet = call.fleet(ConnectionShare::RestReads).await?;
    let state = os_catalogue::state(&fleet, &registry).await?;
    Ok(Json(sync_resource(registry, state)))
}

/// Request a sync with the project's registry
///
/// The sync begins within seconds, unless the registry must not be contacted before `notBefore`. A
/// sync that is already running does not satisfy the request. The request has no body; each request
/// gets a number.
///
/// The server refuses a project that has no registry or no revision, and a registry that its
/// configuration does not have any more (`failed-precondition`).
#[utoipa::path(
    post, path = "/v1/projects/{projectName}/os-catalogue/sync", tag = "operating systems", params(InProject),
    responses(
        (status = 200, description = "The state of the syncs; `request` is the number of this request.", body = OsSync),
        Problem,
    ),
)]
pub async fn request_os_sync(call: Call) -> Answer<OsSync> {
    let tx = call.write().await?;
    let selection = os_settings::find(&tx).await?.unwrap_or_default();
    // Registries belong to the whole fleet. Release this connection first: a request never holds
    // two.
    tx.commit().await?;
    let registry = effective_registry(&selection, &call.app.settings.os_defaults)?;
    let fleet = call.fleet(ConnectionShare::RestWrites).await?;
    os_catalogue::request(&fleet, &registry).await?;
    let state = os_catalogue::state(&fleet, &registry).await?;
    fleet.commit().await?;
    Ok(Json(sync_resource(registry, state)))
}

/// Get the report of the last sync of a project
///
/// Shows what the last sync created, refreshed, left unchanged and refused in this project, with a
/// finding for each profile that has a problem.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/os-catalogue/report", tag = "operating systems", params(InProject),
    responses((status = 200, description = "The report; empty before the first sync.", body = OsSyncReport), Problem),
)]
pub async fn get_os_sync_report(call: Call) -> Answer<OsSyncReport> {
    let tx = call.read().await?;
    let stored = os_reports::find(&tx).await?;
    Ok(Json(stored.map_or_else(OsSyncReport::default, report_resource)))
}

/// Parses and checks the selection of a project. It must be consistent together with the server's
/// defaults.
fn parse_selection(
    body: OsSettingsInput,
    defaults: &OsDefaults,
) -> Result<CatalogSelection, Problem> {
    let selection = CatalogSelection {
        registry: body.registry,
        revision: body.revision,
        enabled: body.enabled_profiles,
        default_profile: body.default_profile,
    }
    .validated()?;
    if let Some(registry) = &selection.registry {
        check_registry(registry, defaults).map_err(|why| Problem::invalid("registry", why))?;
    }
    selection.or_defaults(&defaults.selection).resolve()?;
    Ok(selection)
}

/// The registry from which a project takes operating systems.
fn effective_registry(
    selection: &CatalogSelection,
    defaults: &OsDefaults,
) -> Result<String, Problem> {
    let effective = selection.or_defaults(&defaults.selection);
    let (Some(registry), Some(_)) = (effective.registry, effective.revision) else {
        let why = "the project takes no operating systems: it has no registry, or no revision";
        return Err(Problem::precondition(why));
    };
    check_registry(&registry, defaults).map_err(Problem::precondition)?;
    Ok(registry)
}

/// Checks that the server knows a registry. The error is the reason.
fn check_registry(registry: &str, defaults: &OsDefaults) -> Result<(), String> {
    if defaults.registries.iter().any(|name| name == registry) {
        return Ok(());
    }
    Err(match defaults.registries.as_slice() {
        [] => "the server knows no registry".to_owned(),
        names => format!("the server knows only {}", names.join(", ")),
    })
}

/// REST form of a project's registry settings.
async fn settings_resource(
    tx: &Tx,
    selection: CatalogSelection,
    defaults: &OsDefaults,
) -> Answer<OsSettings> {
    let effective = selection.or_defaults(&defaults.selection);
    let default_profile = effective.default_profile.unwrap_or_default();
    let default_os = match default_profile.as_str() {
        "" => None,
        profile => os_details::find_default(tx, profile).await?,
    };
    Ok(Json(OsSettings {
        registry: selection.registry,
        revision: selection.revision,
        enabled_profiles: selection.enabled,
        default_profile: selection.default_profile,
        effective: EffectiveOsSettings {
            registry: effective.registry.unwrap_or_default(),
            revision: effective.revision.unwrap_or_default(),
            enabled_profiles: effective.enabled.unwrap_or_default(),
            default_profile,
        },
        default_os_id: default_os.map(|id| id.to_string()).unwrap_or_default(),
        registries: defaults.registries.clone(),
    }))
}

fn to_input(selection: CatalogSelection) -> OsSettingsInput {
    OsSettingsInput {
        registry: selection.registry,
        revision: selection.revision,
        enabled_profiles: selection.enabled,
        default_profile: selection.default_profile,
    }
}

/// REST form of the state of the syncs with a registry. Messages are omitted, because they may
/// concern other projects.
fn sync_resource(registry: String, state: Option<CycleState>) -> OsSync {
    let Some(state) = state else {
        return OsSync { registry, ..OsSync::default() };
    };
    OsSync {
        registry,
        request: counter(state.requested),
        done: counter(state.done),
        step: step(state.progress.step),
        finished: state.progress.finished,
        total: state.progress.total,
        outcome: state.outcome.map(outcome),
        started_at: state.started_at,
        ended_at: state.ended_at,
        last_success_at: state.last_success_at,
        not_before: state.not_before,
    }
}

fn report_resource(report: SyncReport) -> OsSyncReport {
    OsSyncReport {
        registry: report.registry,
        revision: report.revision,
        outcome: Some(outcome(report.outcome)),
        message: report.message,
        request: counter(report.cycle),
        started_at: Some(report.started_at),
        ended_at: Some(report.ended_at),
        created: report.created,
        refreshed: report.updated,
        unchanged: report.unchanged,
        refused: report.refused,
        findings: report.findings.into_iter().map(finding_resource).collect(),
    }
}

fn finding_resource(row: SyncFinding) -> OsSyncFinding {
    OsSyncFinding {
        repository: row.repository,
        tag: row.tag,
        kind: row.kind,
        field: row.field.unwrap_or_default(),
        message: row.message,
        os_id: row.os.map(|id| id.to_string()).unwrap_or_default(),
        since: row.since,
    }
}

/// A counter, which is never negative.
fn counter(counted: i64) -> U64 {
    U64(u64::try_from(counted).unwrap_or_default())
}

const fn step(step: CycleStep) -> OsSyncStep {
    match step {
        CycleStep::Idle => OsSyncStep::Idle,
        CycleStep::Listing => OsSyncStep::Listing,
        CycleStep::Fetching => OsSyncStep::Fetching,
        CycleStep::Attachments => OsSyncStep::Attachments,
        CycleStep::Applying => OsSyncStep::Applying,
    }
}

const fn outcome(outcome: CycleOutcome) -> OsSyncOutcome {
    match outcome {
        CycleOutcome::Good => OsSyncOutcome::Succeeded,
        CycleOutcome::Partial => OsSyncOutcome::Partial,
        CycleOutcome::Failed => OsSyncOutcome::Failed,
    }
}
