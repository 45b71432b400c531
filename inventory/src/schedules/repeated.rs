//! `schedules/repeated`: schedules that open periodically.

use axum::response::Response;
use chrono::TimeDelta;
use evenkeel_api::schedule::{
    RepeatedScheduleInput, RepeatedScheduleList, RepeatedScheduleResource,
};
use evenkeel_api::{Empty, Timestamps};
use evenkeel_domain::Time;
use evenkeel_domain::filter::Resource;
use evenkeel_domain::id::RepeatedScheduleId;
use evenkeel_domain::schedule::{Cron, RepeatedSchedule, RepeatedSpec, Zone};
use evenkeel_domain::text::Name;
use evenkeel_store::listing::in_order;
use evenkeel_store::schedules::repeated as schedules;
use evenkeel_store::{StoreError, Tx};

use super::{
    ScheduleTargets, TARGET_FIELDS, TargetParams, answer_schedules, parse_target, status_from,
    status_to, target_ids,
};
use crate::call::{Call, parse_resource_id};
use crate::extract::{Change, Json, Params, Patch, Path};
use crate::listing::{ListParams, Listable};
use crate::problem::Problem;
use crate::shape::{Answer, InProject, Item, MaskParams};

const RESOURCE_KIND: &str = "repeated_schedule_resource";

/// List repeated schedules
///
/// Returns each schedule with its target. The parameters `hostId`, `siteId`, `regionId` and
/// `unixEpoch` narrow the list.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/schedules/repeated", tag = "schedules",
    params(InProject, ListParams, TargetParams),
    responses((status = 200, description = "The schedules.", body = RepeatedScheduleList), Problem),
)]
pub async fn list_repeated_schedules(call: Call, params: Params) -> Result<Response, Problem> {
    answer_schedules(vec![Box::new(RepeatedSchedules)], &call, &params).await
}

pub struct RepeatedSchedules;

impl Listable for RepeatedSchedules {
    const RESOURCE: Resource = Resource::RepeatedSchedule;
    const KEY: &'static str = "repeatedSchedules";
    type Item = RepeatedScheduleResource;

    async fn load(&self, tx: &Tx, ids: &[u32]) -> Result<Vec<RepeatedScheduleResource>, Problem> {
        load_resources(tx, &load_schedules(tx, ids).await?).await
    }
}

/// Loads the schedules with these ids, in the same order.
async fn load_schedules(tx: &Tx, ids: &[u32]) -> Result<Vec<RepeatedSchedule>, StoreError> {
    let schedule_ids = ids.iter().copied().map(RepeatedScheduleId::from_bits);
    let schedule_ids: Vec<_> = schedule_ids.collect();
    let schedules = schedules::find_many(tx, &schedule_ids).await?;
    Ok(in_order(ids, schedules, |schedule: &RepeatedSchedule| schedule.id.bits()))
}

/// Ids of the given schedules that are open at a time, in seconds. As in EIM, the second in which a
/// window ends counts as open, although no update starts in it.
pub(super) async fn find_open(
    tx: &Tx,
    ids: &[u32],
    at: Time,
) -> Result<Vec<RepeatedScheduleId>, StoreError> {
    let schedules = load_schedules(tx, ids).await?;
    let just_before = at - TimeDelta::seconds(1);
    let is_open =
        |spec: &RepeatedSpec| spec.open_span(at).or_else(|| spec.open_span(just_before)).is_some();
    let open = schedules.iter().filter(|schedule| is_open(&schedule.spec));
    Ok(open.map(|schedule| schedule.id).collect())
}

/// Create a repeated schedule
///
/// A schedule applies to one host, or to all hosts of one site or region. The server stores a
/// schedule without a target; it opens no window.
///
/// The server refuses an invalid cron field, an unknown time zone, and a duration of 0 or more than
/// 86,400 seconds (`invalid-argument`). It refuses more than one target (`invalid-argument`), and a
/// target that does not exist (`failed-precondition`).
#[utoipa::path(
    post, path = "/v1/projects/{projectName}/schedules/repeated", tag = "schedules", params(InProject),
    request_body = RepeatedScheduleInput,
    responses((status = 200, description = "The schedule.", body = RepeatedScheduleResource), Problem),
)]
pub async fn create_repeated_schedule(
    call: Call,
    Json(body): Json<RepeatedScheduleInput>,
) -> Answer<RepeatedScheduleResource> {
    let tx = call.write().await?;
    let now = tx.database_time();
    let schedule = schedules::create(&tx, &parse_spec(&body)?, now).await?;
    let answer = load_schedule_resource(&tx, &schedule).await?;
    tx.commit().await?;
    Ok(answer)
}

/// Get a repeated schedule
///
/// Returns the schedule with its target.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/schedules/repeated/{resourceId}", tag = "schedules", params(Item),
    responses((status = 200, description = "The schedule.", body = RepeatedScheduleResource), Problem),
)]
pub async fn get_repeated_schedule(
    call: Call,
    Path(path): Path<Item>,
) -> Answer<RepeatedScheduleResource> {
    let tx = call.read().await?;
    let id: RepeatedScheduleId = parse_resource_id(RESOURCE_KIND, &path.resource_id)?;
    let schedule = schedules::find(&tx, id).await?;
    load_schedule_resource(&tx, &schedule).await
}

/// Replace a repeated schedule
///
/// Fields that are missing are cleared, except the time zone: it stays unchanged, because EIM's
/// clients do not know the field. `null` sets it to UTC. A repeated request has the same result.
///
/// The server refuses an invalid cron field, an unknown time zone, and a duration of 0 or more than
/// 86,400 seconds (`invalid-argument`). It refuses more than one target (`invalid-argument`), and a
/// target that does not exist (`failed-precondition`).
#[utoipa::path(
    put, path = "/v1/projects/{projectName}/schedules/repeated/{resourceId}", tag = "schedules", params(Item),
    request_body = RepeatedScheduleInput,
    responses((status = 200, description = "The schedule.", body = RepeatedScheduleResource), Problem),
)]
pub async fn put_repeated_schedule(
    call: Call,
    Path(path): Path<Item>,
    Patch { mut body, fields }: Patch<RepeatedScheduleInput>,
) -> Answer<RepeatedScheduleResource> {
    let tx = call.write().await?;
    // Read under the lock, so that concurrent changes do not overwrite each other.
    tx.lock_for_change().await?;
    let id: RepeatedScheduleId = parse_resource_id(RESOURCE_KIND, &path.resource_id)?;
    if !fields.contains_key("timeZone") {
        let before = schedules::find(&tx, id).await?;
        before.spec.zone.name().clone_into(&mut body.time_zone);
    }
    let spec = parse_spec(&body)?;
    let schedule = schedules::change(&tx, id, &spec, tx.database_time()).await?;
    let answer = load_schedule_resource(&tx, &schedule).await?;
    tx.commit().await?;
    Ok(answer)
}

/// Change a repeated schedule
///
/// Fields that the body does not name stay unchanged.
///
/// The server refuses the same as for PUT.
#[utoipa::path(
    patch, path = "/v1/projects/{projectName}/schedules/repeated/{resourceId}", tag = "schedules",
    params(Item, MaskParams), request_body = RepeatedScheduleInput,
    responses((status = 200, description = "The schedule.", body = RepeatedScheduleResource), Problem),
)]
pub async fn patch_repeated_schedule(
    call: Call,
    Path(path): Path<Item>,
    params: Params,
    change: Change<RepeatedScheduleInput>,
) -> Answer<RepeatedScheduleResource> {
    let tx = call.write().await?;
    // Read under the lock, so that concurrent changes do not overwrite each other.
    tx.lock_for_change().await?;
    let id: RepeatedScheduleId = parse_resource_id(RESOURCE_KIND, &path.resource_id)?;
    let schedule = schedules::find(&tx, id).await?;
    let desired = change.apply_to(&to_input(&schedule), params.text("fieldMask"))?;
    let spec = parse_spec(&desired)?;
    let schedule = schedules::change(&tx, id, &spec, tx.database_time()).await?;
    let answer = load_schedule_resource(&tx, &schedule).await?;
    tx.commit().await?;
    Ok(answer)
}

/// Delete a repeated schedule
///
/// Closes the windows of the schedule and deletes it. A run that has begun continues.
#[utoipa::path(
    delete, path = "/v1/projects/{projectName}/schedules/repeated/{resourceId}", tag = "schedules", params(Item),
    responses((status = 200, description = "The schedule is deleted.", body = Empty), Problem),
)]
pub async fn delete_repeated_schedule(call: Call, Path(path): Path<Item>) -> Answer<Empty> {
    let tx = call.write().await?;
    let id: RepeatedScheduleId = parse_resource_id(RESOURCE_KIND, &path.resource_id)?;
    schedules::delete(&tx, id).await?;
    tx.commit().await?;
    Ok(Json(Empty {}))
}

/// Parses the input.
fn parse_spec(body: &RepeatedScheduleInput) -> Result<RepeatedSpec, Problem> {
    let cron = Cron::parse(
        &body.cron_minutes,
        &body.cron_hours,
        &body.cron_day_month,
        &body.cron_month,
        &body.cron_day_week,
    )?;
    cron.check_occurs()?;
    Ok(RepeatedSpec {
        name: Name::parse("name", &body.name)?,
        status: status_from(body.schedule_status),
        duration: RepeatedSpec::duration(body.duration_seconds)?,
        cron,
        zone: Zone::parse(&body.time_zone)?,
        target: parse_target(
            TARGET_FIELDS,
            [&body.target_host_id, &body.target_site_id, &body.target_region_id],
        )?,
    })
}

/// The input that describes a schedule.
fn to_input(schedule: &RepeatedSchedule) -> RepeatedScheduleInput {
    let spec = &schedule.spec;
    let [target_host_id, target_site_id, target_region_id] = target_ids(spec.target);
    RepeatedScheduleInput {
        name: spec.name.to_string(),
        schedule_status: status_to(spec.status),
        duration_seconds: duration_seconds(spec),
        cron_minutes: spec.cron.minutes().to_owned(),
        cron_hours: spec.cron.hours().to_owned(),
        cron_day_month: spec.cron.day_month().to_owned(),
        cron_month: spec.cron.month().to_owned(),
        cron_day_week: spec.cron.day_week().to_owned(),
        time_zone: spec.zone.name().to_owned(),
        target_host_id,
        target_site_id,
        target_region_id,
    }
}

/// Duration of a window, in seconds.
fn duration_seconds(spec: &RepeatedSpec) -> u32 {
    spec.duration.num_seconds().try_into().unwrap_or(u32::MAX)
}

async fn load_schedule_resource(
    tx: &Tx,
    schedule: &RepeatedSchedule,
) -> Answer<RepeatedScheduleResource> {
    let mut resources = load_resources(tx, std::slice::from_ref(schedule)).await?;
    resources.pop().map(Json).ok_or_else(Problem::internal)
}

/// REST form of schedules with their targets.
async fn load_resources(
    tx: &Tx,
    schedules: &[RepeatedSchedule],
) -> Result<Vec<RepeatedScheduleResource>, Problem> {
    let schedule_targets: Vec<_> = schedules.iter().filter_map(|s| s.spec.target).collect();
    let targets = ScheduleTargets::load(tx, &schedule_targets).await?;
    let render = |schedule| resource(schedule, &targets);
    Ok(schedules.iter().map(render).collect())
}

fn resource(schedule: &RepeatedSchedule, targets: &ScheduleTargets) -> RepeatedScheduleResource {
    let input = to_input(schedule);
    let target = targets.fields(schedule.spec.target);
    RepeatedScheduleResource {
        resource_id: schedule.id.to_string(),
        repeated_schedule_id: schedule.id.to_string(),
        name: input.name,
        schedule_status: input.schedule_status,
        duration_seconds: input.duration_seconds,
        cron_minutes: input.cron_minutes,
        cron_hours: input.cron_hours,
        cron_day_month: input.cron_day_month,
        cron_month: input.cron_month,
        cron_day_week: input.cron_day_week,
        time_zone: input.time_zone,
        target_host_id: target.host_id,
        target_host: target.host,
        target_site_id: target.site_id,
        target_site: target.site,
        target_region_id: target.region_id,
        target_region: target.region,
        timestamps: Some(Timestamps::new(schedule.created_at, schedule.updated_at)),
    }
}
