//! `schedules/single`: schedules that open once.

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

use super::{
    ScheduleTargets, TARGET_FIELDS, TargetParams, answer_schedules, parse_target, status_from,
    status_to, target_ids,
};
use crate::call::{Call, parse_resource_id};
use crate::extract::{Change, Json, Params, Path};
use crate::listing::{ListParams, Listable};
use crate::problem::Problem;
use crate::shape::{Answer, InProject, Item, MaskParams};

const RESOURCE_KIND: &str = "single_schedule_resource";

/// List single schedules
///
/// Returns each schedule with its target. The parameters `hostId`, `siteId`, `regionId` and
/// `unixEpoch` narrow the list.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/schedules/single", tag = "schedules",
    params(InProject, ListParams, TargetParams),
    responses((status = 200, description = "The schedules.", body = SingleScheduleList), Problem),
)]
pub async fn list_single_schedules(call: Call, params: Params) -> Result<Response, Problem> {
    answer_schedules(vec![Box::new(SingleSchedules)], &call, &params).await
}

pub struct SingleSchedules;

impl Listable for SingleSchedules {
    const RESOURCE: Resource = Resource::SingleSchedule;
    const KEY: &'static str = "singleSchedules";
    type Item = SingleScheduleResource;

    async fn load(&self, tx: &Tx, ids: &[u32]) -> Result<Vec<SingleScheduleResource>, Problem> {
        let schedule_ids = ids.iter().copied().map(SingleScheduleId::from_bits);
        let schedule_ids: Vec<_> = schedule_ids.collect();
        let schedules = schedules::find_many(tx, &schedule_ids).await?;
        let schedules = in_order(ids, schedules, |schedule: &SingleSchedule| schedule.id.bits());
        load_resources(tx, &schedules).await
    }
}

/// Create a single schedule
///
/// A schedule applies to one host, or to all hosts of one site or region. The server stores a
/// schedule without a target; it opens no window.
///
/// The server refuses a start that is not in the future, and an end that is not after the start
/// (`invalid-argument`). It refuses more than one target (`invalid-argument`), and a target that
/// does not exist (`failed-precondition`).
#[utoipa::path(
    post, path = "/v1/projects/{projectName}/schedules/single", tag = "schedules", params(InProject),
    request_body = SingleScheduleInput,
    responses((status = 200, description = "The schedule.", body = SingleScheduleResource), Problem),
)]
pub async fn create_single_schedule(
    call: Call,
    Json(body): Json<SingleScheduleInput>,
) -> Answer<SingleScheduleResource> {
    let tx = call.write().await?;
    let now = tx.database_time();
    let schedule = schedules::create(&tx, &parse_spec(&body, None, now)?, now).await?;
    let answer = load_schedule_resource(&tx, &schedule).await?;
    tx.commit().await?;
    Ok(answer)
}

/// Get a single schedule
///
/// Returns the schedule with its target.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/schedules/single/{resourceId}", tag = "schedules", params(Item),
    responses((status = 200, description = "The schedule.", body = SingleScheduleResource), Problem),
)]
pub async fn get_single_schedule(
    call: Call,
    Path(path): Path<Item>,
) -> Answer<SingleScheduleResource> {
    let tx = call.read().await?;
    let id: SingleScheduleId = parse_resource_id(RESOURCE_KIND, &path.resource_id)?;
    let schedule = schedules::find(&tx, id).await?;
    load_schedule_resource(&tx, &schedule).await
}

/// Replace a single schedule
///
/// Fields that are missing are cleared: without an end, the window stays open. A repeated request
/// has the same result.
///
/// The server refuses a new start that is not in the future, and an end that is not after the start
/// (`invalid-argument`). It refuses more than one target (`invalid-argument`), and a target that
/// does not exist (`failed-precondition`).
#[utoipa::path(
    put, path = "/v1/projects/{projectName}/schedules/single/{resourceId}", tag = "schedules", params(Item),
    request_body = SingleScheduleInput,
    responses((status = 200, description = "The schedule.", body = SingleScheduleResource), Problem),
)]
pub async fn put_single_schedule(
    call: Call,
    Path(path): Path<Item>,
    Json(body): Json<SingleScheduleInput>,
) -> Answer<SingleScheduleResource> {
    let tx = call.write().await?;
    // Read under the lock, so that concurrent changes do not overwrite each other.
    tx.lock_for_change().await?;
    let id: SingleScheduleId = parse_resource_id(RESOURCE_KIND, &path.resource_id)?;
    let schedule = schedules::find(&tx, id).await?;
    let now = tx.database_time();
    let spec = parse_spec(&body, Some(&schedule), now)?;
    let answer =
        load_schedule_resource(&tx, &schedules::change(&tx, id, &spec, now).await?).await?;
    tx.commit().await?;
    Ok(answer)
}

/// Change a single schedule
///
/// Fields that the body does not name stay unchanged.
///
/// The server refuses the same as for PUT.
#[utoipa::path(
    patch, path = "/v1/projects/{projectName}/schedules/single/{resourceId}", tag = "schedules",
    params(Item, MaskParams), request_body = SingleScheduleInput,
    responses((status = 200, description = "The schedule.", body = SingleScheduleResource), Problem),
)]
pub async fn patch_single_schedule(
    call: Call,
    Path(path): Path<Item>,
    params: Params,
    change: Change<SingleScheduleInput>,
) -> Answer<SingleScheduleResource> {
    let tx = call.write().await?;
    // Read under the lock, so that concurrent changes do not overwrite each other.
    tx.lock_for_change().await?;
    let id: SingleScheduleId = parse_resource_id(RESOURCE_KIND, &path.resource_id)?;
    let schedule = schedules::find(&tx, id).await?;
    let desired = change.apply_to(&to_input(&schedule), params.text("fieldMask"))?;
    let now = tx.database_time();
    let spec = parse_spec(&desired, Some(&schedule), now)?;
    let answer =
        load_schedule_resource(&tx, &schedules::change(&tx, id, &spec, now).await?).await?;
    tx.commit().await?;
    Ok(answer)
}

/// Delete a single schedule
///
/// Closes the windows of the schedule and deletes it. A run that has begun continues.
#[utoipa::path(
    delete, path = "/v1/projects/{projectName}/schedules/single/{resourceId}", tag = "schedules", params(Item),
    responses((status = 200, description = "The schedule is deleted.", body = Empty), Problem),
)]
pub async fn delete_single_schedule(call: Call, Path(path): Path<Item>) -> Answer<Empty> {
    let tx = call.write().await?;
    let id: SingleScheduleId = parse_resource_id(RESOURCE_KIND, &path.resource_id)?;
    schedules::delete(&tx, id).await?;
    tx.commit().await?;
    Ok(Json(Empty {}))
}

/// Parses the input. A start in the past is accepted only if it is unchanged.
fn parse_spec(
    body: &SingleScheduleInput,
    before: Option<&SingleSchedule>,
    now: Time,
) -> Result<SingleSpec, Problem> {
    let unchanged_start = before
        .map(|schedule| schedule.spec.start)
        .filter(|start| from_unix_seconds(body.start_seconds) == Some(*start));
    let earliest = unchanged_start.map_or(now, |start| start - chrono::TimeDelta::seconds(1));
    let (start, end) =
        SingleSpec::parse_times(body.start_seconds, body.end_seconds, now.min(earliest))?;
    Ok(SingleSpec {
        name: Name::parse("name", &body.name)?,
        status: status_from(body.schedule_status),
        start,
        end,
        target: parse_target(
            TARGET_FIELDS,
            [&body.target_host_id, &body.target_site_id, &body.target_region_id],
        )?,
    })
}

/// The input that describes a schedule.
fn to_input(schedule: &SingleSchedule) -> SingleScheduleInput {
    let spec = &schedule.spec;
    let [target_host_id, target_site_id, target_region_id] = target_ids(spec.target);
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

async fn load_schedule_resource(
    tx: &Tx,
    schedule: &SingleSchedule,
) -> Answer<SingleScheduleResource> {
    let mut resources = load_resources(tx, std::slice::from_ref(schedule)).await?;
    resources.pop().map(Json).ok_or_else(Problem::internal)
}

/// REST form of schedules with their targets.
async fn load_resources(
    tx: &Tx,
    schedules: &[SingleSchedule],
) -> Result<Vec<SingleScheduleResource>, Problem> {
    let schedule_targets: Vec<_> = schedules.iter().filter_map(|s| s.spec.target).collect();
    let targets = ScheduleTargets::load(tx, &schedule_targets).await?;
    let render = |schedule| resource(schedule, &targets);
    Ok(schedules.iter().map(render).collect())
}

fn resource(schedule: &SingleSchedule, targets: &ScheduleTargets) -> SingleScheduleResource {
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
