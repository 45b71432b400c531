//! `os-catalogue`: what a project takes of a registry of operating systems, and how that went.

use axum::extract::State;
use evenkeel_api::number::U64;
use evenkeel_api::os_sync::{
    EffectiveOsSettings, OsSettings, OsSettingsInput, OsSync, OsSyncFinding, OsSyncOutcome,
    OsSyncReport, OsSyncStep,
};
use evenkeel_domain::os::catalogue::{CycleOutcome, CycleStep, Wish};
use evenkeel_store::os_catalogue::{self, CycleState};
use evenkeel_store::os_reports::{self, Report, Row};
use evenkeel_store::{Tx, os_inside, os_settings};

use crate::App;
use crate::call::Call;
use crate::extract::{Change, Json, Params};
use crate::problem::Problem;
use crate::shape::{Answer, InProject, MaskParams};

/// What projects take of registries if they do not say otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OsDefaults {
    /// The names of the registries that the server knows.
    pub registries: Vec<String>,
    /// What the server has.
    pub wish: Wish,
}

/// Show what a project takes of a registry of operating systems.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/os-catalogue/settings", tag = "operating systems", params(InProject),
    responses((status = 200, description = "The settings.", body = OsSettings), Problem),
)]
pub async fn get_os_settings(State(app): State<App>, call: Call) -> Answer<OsSettings> {
    let tx = app.read(&call).await?;
    let wish = os_settings::find(&tx).await?.unwrap_or_default();
    settings(&tx, wish, &app.settings.os).await
}

/// Set what a project takes of a registry of operating systems. What is left out is as the server has it.
#[utoipa::path(
    put, path = "/v1/projects/{projectName}/os-catalogue/settings", tag = "operating systems", params(InProject),
    request_body = OsSettingsInput,
    responses((status = 200, description = "The settings.", body = OsSettings), Problem),
)]
pub async fn put_os_settings(
    State(app): State<App>,
    call: Call,
    Json(body): Json<OsSettingsInput>,
) -> Answer<OsSettings> {
    let tx = app.write(&call).await?;
    let wish = wanted(body, &app.settings.os)?;
    os_settings::set(&tx, &wish).await?;
    let answer = settings(&tx, wish, &app.settings.os).await?;
    tx.commit().await?;
    Ok(answer)
}

/// Change what a project takes of a registry of operating systems. What is not named stays; what is null is as the
/// server has it.
#[utoipa::path(
    patch, path = "/v1/projects/{projectName}/os-catalogue/settings", tag = "operating systems",
    params(InProject, MaskParams), request_body = OsSettingsInput,
    responses((status = 200, description = "The settings.", body = OsSettings), Problem),
)]
pub async fn patch_os_settings(
    State(app): State<App>,
    call: Call,
    params: Params,
    change: Change<OsSettingsInput>,
) -> Answer<OsSettings> {
    let tx = app.write(&call).await?;
    // What is there is read under the lock, so that of two changes at once neither is lost.
    tx.write_wanted().await?;
    let now = input(os_settings::find(&tx).await?.unwrap_or_default());
    let wish = wanted(
        change.over(&now, params.text("fieldMask"))?,
        &app.settings.os,
    )?;
    os_settings::set(&tx, &wish).await?;
    let answer = settings(&tx, wish, &app.settings.os).await?;
    tx.commit().await?;
    Ok(answer)
}

/// Show where the syncs with the registry of a project stand.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/os-catalogue/sync", tag = "operating systems", params(InProject),
    responses((status = 200, description = "Where they stand.", body = OsSync), Problem),
)]
pub async fn get_os_sync(State(app): State<App>, call: Call) -> Answer<OsSync> {
    let tx = app.read(&call).await?;
    let wish = os_settings::find(&tx).await?.unwrap_or_default();
    // A registry is the fleet's, and nobody holds two connections.
    tx.commit().await?;
    let Some(registry) = wish.or(&app.settings.os.wish).registry else {
        return Ok(Json(OsSync::default()));
    };
    let fleet = app.store.fleet().await?;
    let state = os_catalogue::state(&fleet, &registry).await?;
    Ok(Json(sync(registry, state)))
}

/// Ask for a sync with the registry of a project. It begins within seconds, unless the registry is not to be asked yet;
/// one that runs already does not count.
#[utoipa::path(
    post, path = "/v1/projects/{projectName}/os-catalogue/sync", tag = "operating systems", params(InProject),
    responses(
        (status = 200, description = "Where the syncs stand; `request` is the number of this request.", body = OsSync),
        Problem,
    ),
)]
pub async fn request_os_sync(State(app): State<App>, call: Call) -> Answer<OsSync> {
    let tx = app.write(&call).await?;
    let wish = os_settings::find(&tx).await?.unwrap_or_default();
    // A registry is the fleet's, and nobody holds two connections.
    tx.commit().await?;
    let registry = registry_of(&wish, &app.settings.os)?;
    let fleet = app.store.fleet().await?;
    os_catalogue::request(&fleet, &registry).await?;
    let state = os_catalogue::state(&fleet, &registry).await?;
    fleet.commit().await?;
    Ok(Json(sync(registry, state)))
}

/// Show how the last sync went for a project.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/os-catalogue/report", tag = "operating systems", params(InProject),
    responses((status = 200, description = "How it went; nothing if there was none yet.", body = OsSyncReport), Problem),
)]
pub async fn get_os_sync_report(State(app): State<App>, call: Call) -> Answer<OsSyncReport> {
    let tx = app.read(&call).await?;
    let found = os_reports::find(&tx).await?;
    Ok(Json(found.map_or_else(OsSyncReport::default, report)))
}

/// What a project should take, if it can be had. What the server has besides counts as well.
fn wanted(body: OsSettingsInput, defaults: &OsDefaults) -> Result<Wish, Problem> {
    let wish = Wish {
        registry: body.registry,
        revision: body.revision,
        enabled: body.enabled_profiles,
        default_profile: body.default_profile,
    }
    .checked()?;
    if let Some(registry) = &wish.registry {
        check_known(registry, defaults).map_err(|why| Problem::invalid("registry", why))?;
    }
    wish.or(&defaults.wish).whole()?;
    Ok(wish)
}

/// The registry that is asked for a project.
fn registry_of(wish: &Wish, defaults: &OsDefaults) -> Result<String, Problem> {
    let effective = wish.or(&defaults.wish);
    let (Some(registry), Some(_)) = (effective.registry, effective.revision) else {
        let why = "the project takes no operating systems: it has no registry, or no revision";
        return Err(Problem::precondition(why));
    };
    check_known(&registry, defaults).map_err(Problem::precondition)?;
    Ok(registry)
}

/// Whether the server knows a registry; if not, why that cannot be.
fn check_known(registry: &str, defaults: &OsDefaults) -> Result<(), String> {
    if defaults.registries.iter().any(|known| known == registry) {
        return Ok(());
    }
    Err(match defaults.registries.as_slice() {
        [] => "the server knows no registry".to_owned(),
        known => format!("the server knows only {}", known.join(", ")),
    })
}

/// What a project takes of a registry, on the wire.
async fn settings(tx: &Tx, wish: Wish, defaults: &OsDefaults) -> Answer<OsSettings> {
    let effective = wish.or(&defaults.wish);
    let default_profile = effective.default_profile.unwrap_or_default();
    let default_os = match default_profile.as_str() {
        "" => None,
        profile => os_inside::default_of(tx, profile).await?,
    };
    Ok(Json(OsSettings {
        registry: wish.registry,
        revision: wish.revision,
        enabled_profiles: wish.enabled,
        default_profile: wish.default_profile,
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

fn input(wish: Wish) -> OsSettingsInput {
    OsSettingsInput {
        registry: wish.registry,
        revision: wish.revision,
        enabled_profiles: wish.enabled,
        default_profile: wish.default_profile,
    }
}

/// Where the syncs with a registry stand. What is said of them may be about what other projects take, so it is not
/// shown.
fn sync(registry: String, state: Option<CycleState>) -> OsSync {
    let Some(state) = state else {
        return OsSync {
            registry,
            ..OsSync::default()
        };
    };
    OsSync {
        registry,
        request: number(state.wanted),
        done: number(state.done),
        step: step(state.progress.step),
        finished: state.progress.finished,
        total: state.progress.total,
        outcome: state.outcome.map(outcome),
        started_at: state.started_at,
        ended_at: state.ended_at,
        good_at: state.good_at,
        not_before: state.not_before,
    }
}

fn report(report: Report) -> OsSyncReport {
    OsSyncReport {
        registry: report.registry,
        revision: report.revision,
        outcome: Some(outcome(report.outcome)),
        message: report.message,
        request: number(report.cycle),
        started_at: Some(report.started_at),
        ended_at: Some(report.ended_at),
        made: report.made,
        refreshed: report.refreshed,
        same: report.same,
        refused: report.refused,
        findings: report.findings.into_iter().map(finding).collect(),
    }
}

fn finding(row: Row) -> OsSyncFinding {
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

/// What is counted up from nothing.
fn number(counted: i64) -> U64 {
    U64(u64::try_from(counted).unwrap_or_default())
}

const fn step(step: CycleStep) -> OsSyncStep {
    match step {
        CycleStep::Idle => OsSyncStep::Idle,
        CycleStep::Listing => OsSyncStep::Listing,
        CycleStep::Fetching => OsSyncStep::Fetching,
        CycleStep::Sides => OsSyncStep::Sides,
        CycleStep::Applying => OsSyncStep::Applying,
    }
}

const fn outcome(outcome: CycleOutcome) -> OsSyncOutcome {
    match outcome {
        CycleOutcome::Good => OsSyncOutcome::Good,
        CycleOutcome::Partly => OsSyncOutcome::Partly,
        CycleOutcome::Failed => OsSyncOutcome::Failed,
    }
}
