//! `schedules/single`: schedules that open once.

use axum::extract::State;
use axum::response::Response;
use evenkeel_api::schedule::{SingleScheduleInput, SingleScheduleList, SingleScheduleResource};
use evenkeel_api::timestamps::{from_unix_seconds, unix_seconds};
use evenkeel_api::{Empty, Timestamps};
use evenkeel_domain::Time;
use evenkeel_domain::filter::Resource;
use evenkeel_domain::id::SingleScheduleId;
use evenkeel_domain::schedule::{SingleSchedule, SingleSpec};
use evenkeel_domain::text::Name;
use evenkeel_store::listing::in_order;
use evenkeel_store::{Tx, schedules};

use super::{TARGET, TargetParams, Targets, answer, ids_of, status_from, status_to, target};
use crate::call::{Call, id_of_path};
use crate::extract::{Change, Json, Params, Path};
use crate::listing::{ListParams, Listed};
use crate::problem::Problem;
use crate::shape::{Answer, InProject, Item, MaskParams};
use crate::{App, Inventory};

const WHAT: &str = "single_schedule_resource";

/// List the single schedules.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/schedules/single", tag = "schedules",
    params(InProject, ListParams, TargetParams),
    responses((status = 200, description = "The schedules.", body = SingleScheduleList), Problem),
)]
pub async fn list_single_schedules(
    State(app): State<App>,
    call: Call,
    params: Params,
) -> Result<Response, Problem> {
    answer(vec![Box::new(Singles)], &app, &call, &params).await
}

/// The list of single schedules.
pub struct Singles;

impl Listed for Singles {
    const RESOURCE: Resource = Resource::SingleSchedule;
    const KEY: &'static str = "singleSchedules";
    type Item = SingleScheduleResource;

    async fn load(
        &self,
        _: &Inventory,
        tx: &Tx,
        ids: &[u32],
    ) -> Result<Vec<SingleScheduleResource>, Problem> {
        let wanted = ids.iter().copied().map(SingleScheduleId::from_bits);
        let wanted: Vec<_> = wanted.collect();
        let found = schedules::find_many(tx, &wanted).await?;
        let found = in_order(ids, found, |schedule: &SingleSchedule| schedule.id.bits());
        resources(tx, &found).await
    }
}

/// Make a single schedule.
#[utoipa::path(
    post, path = "/v1/projects/{projectName}/schedules/single", tag = "schedules", params(InProject),
    request_body = SingleScheduleInput,
    responses((status = 200, description = "The schedule.", body = SingleScheduleResource), Problem),
)]
pub async fn create_single_schedule(
    State(app): State<App>,
    call: Call,
    Json(body): Json<SingleScheduleInput>,
) -> Answer<SingleScheduleResource> {
    let tx = app.write(&call).await?;
    let now = app.clock.now();
    let made = schedules::create(&tx, &spec(&body, None, now)?, now).await?;
    let answer = one(&tx, &made).await?;
    tx.commit().await?;
    Ok(answer)
}

/// Show a single schedule.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/schedules/single/{resourceId}", tag = "schedules", params(Item),
    responses((status = 200, description = "The schedule.", body = SingleScheduleResource), Problem),
)]
pub async fn get_single_schedule(
    State(app): State<App>,
    call: Call,
    Path(path): Path<Item>,
) -> Answer<SingleScheduleResource> {
    let tx = app.read(&call).await?;
    let id: SingleScheduleId = id_of_path(WHAT, &path.resource_id)?;
    let schedule = schedules::find(&tx, id).await?;
    one(&tx, &schedule).await
}

/// Describe a single schedule anew. What is left out is emptied. A start that is changed must be in the future.
#[utoipa::path(
    put, path = "/v1/projects/{projectName}/schedules/single/{resourceId}", tag = "schedules", params(Item),
    request_body = SingleScheduleInput,
    responses((status = 200, description = "The schedule.", body = SingleScheduleResource), Problem),
)]
pub async fn put_single_schedule(
    State(app): State<App>,
    call: Call,
    Path(path): Path<Item>,
    Json(body): Json<SingleScheduleInput>,
) -> Answer<SingleScheduleResource> {
    let tx = app.write(&call).await?;
    // What is there is read under the lock, so that of two changes at once neither is lost.
    tx.write_wanted().await?;
    let id: SingleScheduleId = id_of_path(WHAT, &path.resource_id)?;
    let schedule = schedules::find(&tx, id).await?;
    let now = app.clock.now();
    let spec = spec(&body, Some(&schedule), now)?;
    let answer = one(&tx, &schedules::change(&tx, id, &spec, now).await?).await?;
    tx.commit().await?;
    Ok(answer)
}

/// Change a single schedule. A start that is changed must be in the future.
#[utoipa::path(
    patch, path = "/v1/projects/{projectName}/schedules/single/{resourceId}", tag = "schedules",
    params(Item, MaskParams), request_body = SingleScheduleInput,
    responses((status = 200, description = "The schedule.", body = SingleScheduleResource), Problem),
)]
pub async fn patch_single_schedule(
    State(app): State<App>,
    call: Call,
    Path(path): Path<Item>,
    params: Params,
    change: Change<SingleScheduleInput>,
) -> Answer<SingleScheduleResource> {
    let tx = app.write(&call).await?;
    // What is there is read under the lock, so that of two changes at once neither is lost.
    tx.write_wanted().await?;
    let id: SingleScheduleId = id_of_path(WHAT, &path.resource_id)?;
    let schedule = schedules::find(&tx, id).await?;
    let wanted = change.over(&input(&schedule), params.text("fieldMask"))?;
    let now = app.clock.now();
    let spec = spec(&wanted, Some(&schedule), now)?;
    let answer = one(&tx, &schedules::change(&tx, id, &spec, now).await?).await?;
    tx.commit().await?;
    Ok(answer)
}

/// Delete a single schedule.
#[utoipa::path(
    delete, path = "/v1/projects/{projectName}/schedules/single/{resourceId}", tag = "schedules", params(Item),
    responses((status = 200, description = "It is deleted.", body = Empty), Problem),
)]
pub async fn delete_single_schedule(
    State(app): State<App>,
    call: Call,
    Path(path): Path<Item>,
) -> Answer<Empty> {
    let tx = app.write(&call).await?;
    let id: SingleScheduleId = id_of_path(WHAT, &path.resource_id)?;
    schedules::delete(&tx, id).await?;
    tx.commit().await?;
    Ok(Json(Empty {}))
}

/// What a schedule should be. It may keep a start that is past.
fn spec(
    body: &SingleScheduleInput,
    before: Option<&SingleSchedule>,
    now: Time,
) -> Result<SingleSpec, Problem> {
    let kept = before
        .map(|schedule| schedule.spec.start)
        .filter(|start| from_unix_seconds(body.start_seconds) == Some(*start));
    let earliest = kept.map_or(now, |start| start - chrono::TimeDelta::seconds(1));
    let (start, end) = SingleSpec::times(body.start_seconds, body.end_seconds, now.min(earliest))?;
    Ok(SingleSpec {
        name: Name::parse("name", &body.name)?,
        status: status_from(body.schedule_status),
        start,
        end,
        target: target(
            TARGET,
            [
                &body.target_host_id,
                &body.target_site_id,
                &body.target_region_id,
            ],
        )?,
    })
}

/// What a schedule is, as it would be asked for.
fn input(schedule: &SingleSchedule) -> SingleScheduleInput {
    let spec = &schedule.spec;
    let [target_host_id, target_site_id, target_region_id] = ids_of(spec.target);
    SingleScheduleInput {
        name: spec.name.to_string(),
        schedule_status: status_to(spec.status),
        start_seconds: unix_seconds(Some(spec.start)),
        end_seconds: spec.end.map(|end| unix_seconds(Some(end))),
        target_host_id,
        target_site_id,
        target_region_id,
    }
}

async fn one(tx: &Tx, schedule: &SingleSchedule) -> Answer<SingleScheduleResource> {
    let mut found = resources(tx, std::slice::from_ref(schedule)).await?;
    found.pop().map(Json).ok_or_else(Problem::internal)
}

/// Schedules with what they are meant for.
async fn resources(
    tx: &Tx,
    schedules: &[SingleSchedule],
) -> Result<Vec<SingleScheduleResource>, Problem> {
    let wanted: Vec<_> = schedules.iter().filter_map(|s| s.spec.target).collect();
    let targets = Targets::find(tx, &wanted).await?;
    let whole = |schedule| resource(schedule, &targets);
    Ok(schedules.iter().map(whole).collect())
}

fn resource(schedule: &SingleSchedule, targets: &Targets) -> SingleScheduleResource {
    let spec = &schedule.spec;
    let target = targets.fields(spec.target);
    SingleScheduleResource {
        resource_id: schedule.id.to_string(),
        single_schedule_id: schedule.id.to_string(),
        name: spec.name.to_string(),
        schedule_status: status_to(spec.status),
        start_seconds: unix_seconds(Some(spec.start)),
        end_seconds: unix_seconds(spec.end),
        target_host_id: target.host_id,
        target_host: target.host,
        target_site_id: target.site_id,
        target_site: target.site,
        target_region_id: target.region_id,
        target_region: target.region,
        timestamps: Some(Timestamps::new(schedule.created_at, schedule.updated_at)),
    }
}
