//! `schedules/repeated`: schedules that open again and again.

use axum::extract::State;
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

use super::{TARGET, TargetParams, Targets, answer, ids_of, status_from, status_to, target};
use crate::call::{Call, id_of_path};
use crate::extract::{Change, Json, Params, Patch, Path};
use crate::listing::{ListParams, Listed};
use crate::problem::Problem;
use crate::shape::{Answer, InProject, Item, MaskParams};
use crate::{App, Inventory};

const WHAT: &str = "repeated_schedule_resource";

/// List the repeated schedules.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/schedules/repeated", tag = "schedules",
    params(InProject, ListParams, TargetParams),
    responses((status = 200, description = "The schedules.", body = RepeatedScheduleList), Problem),
)]
pub async fn list_repeated_schedules(
    State(app): State<App>,
    call: Call,
    params: Params,
) -> Result<Response, Problem> {
    answer(vec![Box::new(Repeateds)], &app, &call, &params).await
}

/// The list of repeated schedules.
pub struct Repeateds;

impl Listed for Repeateds {
    const RESOURCE: Resource = Resource::RepeatedSchedule;
    const KEY: &'static str = "repeatedSchedules";
    type Item = RepeatedScheduleResource;

    async fn load(
        &self,
        _: &Inventory,
        tx: &Tx,
        ids: &[u32],
    ) -> Result<Vec<RepeatedScheduleResource>, Problem> {
        resources(tx, &found(tx, ids).await?).await
    }
}

/// The schedules with these ids, in the order of the ids.
async fn found(tx: &Tx, ids: &[u32]) -> Result<Vec<RepeatedSchedule>, StoreError> {
    let wanted = ids.iter().copied().map(RepeatedScheduleId::from_bits);
    let wanted: Vec<_> = wanted.collect();
    let found = schedules::find_many(tx, &wanted).await?;
    Ok(in_order(ids, found, |schedule: &RepeatedSchedule| {
        schedule.id.bits()
    }))
}

/// The ids of those of these schedules that are open in a second. That in which a window ends counts with it, as the
/// ancestor has it (northbound §2.4), though nothing is begun in it any more.
pub(super) async fn open_at(
    tx: &Tx,
    ids: &[u32],
    at: Time,
) -> Result<Vec<RepeatedScheduleId>, StoreError> {
    let found = found(tx, ids).await?;
    let just_before = at - TimeDelta::seconds(1);
    let is_open = |spec: &RepeatedSpec| spec.open(at).or_else(|| spec.open(just_before)).is_some();
    let open = found.iter().filter(|schedule| is_open(&schedule.spec));
    Ok(open.map(|schedule| schedule.id).collect())
}

/// Make a repeated schedule.
#[utoipa::path(
    post, path = "/v1/projects/{projectName}/schedules/repeated", tag = "schedules", params(InProject),
    request_body = RepeatedScheduleInput,
    responses((status = 200, description = "The schedule.", body = RepeatedScheduleResource), Problem),
)]
pub async fn create_repeated_schedule(
    State(app): State<App>,
    call: Call,
    Json(body): Json<RepeatedScheduleInput>,
) -> Answer<RepeatedScheduleResource> {
    let tx = app.write(&call).await?;
    let now = app.clock.now();
    let made = schedules::create(&tx, &spec(&body)?, now).await?;
    let answer = one(&tx, &made).await?;
    tx.commit().await?;
    Ok(answer)
}

/// Show a repeated schedule.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/schedules/repeated/{resourceId}", tag = "schedules", params(Item),
    responses((status = 200, description = "The schedule.", body = RepeatedScheduleResource), Problem),
)]
pub async fn get_repeated_schedule(
    State(app): State<App>,
    call: Call,
    Path(path): Path<Item>,
) -> Answer<RepeatedScheduleResource> {
    let tx = app.read(&call).await?;
    let id: RepeatedScheduleId = id_of_path(WHAT, &path.resource_id)?;
    let schedule = schedules::find(&tx, id).await?;
    one(&tx, &schedule).await
}

/// Describe a repeated schedule anew. What is left out is emptied, but for the time zone: that stays, because clients of the
/// ancestor do not know of it. Null sets it to UTC.
#[utoipa::path(
    put, path = "/v1/projects/{projectName}/schedules/repeated/{resourceId}", tag = "schedules", params(Item),
    request_body = RepeatedScheduleInput,
    responses((status = 200, description = "The schedule.", body = RepeatedScheduleResource), Problem),
)]
pub async fn put_repeated_schedule(
    State(app): State<App>,
    call: Call,
    Path(path): Path<Item>,
    Patch { mut body, given }: Patch<RepeatedScheduleInput>,
) -> Answer<RepeatedScheduleResource> {
    let tx = app.write(&call).await?;
    // What is there is read under the lock, so that of two changes at once neither is lost.
    tx.write_wanted().await?;
    let id: RepeatedScheduleId = id_of_path(WHAT, &path.resource_id)?;
    if !given.contains_key("timeZone") {
        let before = schedules::find(&tx, id).await?;
        before.spec.zone.name().clone_into(&mut body.time_zone);
    }
    let spec = spec(&body)?;
    let schedule = schedules::change(&tx, id, &spec, app.clock.now()).await?;
    let answer = one(&tx, &schedule).await?;
    tx.commit().await?;
    Ok(answer)
}

/// Change a repeated schedule.
#[utoipa::path(
    patch, path = "/v1/projects/{projectName}/schedules/repeated/{resourceId}", tag = "schedules",
    params(Item, MaskParams), request_body = RepeatedScheduleInput,
    responses((status = 200, description = "The schedule.", body = RepeatedScheduleResource), Problem),
)]
pub async fn patch_repeated_schedule(
    State(app): State<App>,
    call: Call,
    Path(path): Path<Item>,
    params: Params,
    change: Change<RepeatedScheduleInput>,
) -> Answer<RepeatedScheduleResource> {
    let tx = app.write(&call).await?;
    // What is there is read under the lock, so that of two changes at once neither is lost.
    tx.write_wanted().await?;
    let id: RepeatedScheduleId = id_of_path(WHAT, &path.resource_id)?;
    let schedule = schedules::find(&tx, id).await?;
    let wanted = change.over(&input(&schedule), params.text("fieldMask"))?;
    let spec = spec(&wanted)?;
    let schedule = schedules::change(&tx, id, &spec, app.clock.now()).await?;
    let answer = one(&tx, &schedule).await?;
    tx.commit().await?;
    Ok(answer)
}

/// Delete a repeated schedule.
#[utoipa::path(
    delete, path = "/v1/projects/{projectName}/schedules/repeated/{resourceId}", tag = "schedules", params(Item),
    responses((status = 200, description = "It is deleted.", body = Empty), Problem),
)]
pub async fn delete_repeated_schedule(
    State(app): State<App>,
    call: Call,
    Path(path): Path<Item>,
) -> Answer<Empty> {
    let tx = app.write(&call).await?;
    let id: RepeatedScheduleId = id_of_path(WHAT, &path.resource_id)?;
    schedules::delete(&tx, id).await?;
    tx.commit().await?;
    Ok(Json(Empty {}))
}

/// What a schedule should be.
fn spec(body: &RepeatedScheduleInput) -> Result<RepeatedSpec, Problem> {
    Ok(RepeatedSpec {
        name: Name::parse("name", &body.name)?,
        status: status_from(body.schedule_status),
        duration: RepeatedSpec::duration(body.duration_seconds)?,
        cron: Cron::parse(
            &body.cron_minutes,
            &body.cron_hours,
            &body.cron_day_month,
            &body.cron_month,
            &body.cron_day_week,
        )?,
        zone: Zone::parse(&body.time_zone)?,
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
fn input(schedule: &RepeatedSchedule) -> RepeatedScheduleInput {
    let spec = &schedule.spec;
    let [target_host_id, target_site_id, target_region_id] = ids_of(spec.target);
    RepeatedScheduleInput {
        name: spec.name.to_string(),
        schedule_status: status_to(spec.status),
        duration_seconds: seconds(spec),
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

/// How long it stays open.
fn seconds(spec: &RepeatedSpec) -> u32 {
    spec.duration.num_seconds().try_into().unwrap_or(u32::MAX)
}

async fn one(tx: &Tx, schedule: &RepeatedSchedule) -> Answer<RepeatedScheduleResource> {
    let mut found = resources(tx, std::slice::from_ref(schedule)).await?;
    found.pop().map(Json).ok_or_else(Problem::internal)
}

/// Schedules with what they are meant for.
async fn resources(
    tx: &Tx,
    schedules: &[RepeatedSchedule],
) -> Result<Vec<RepeatedScheduleResource>, Problem> {
    let wanted: Vec<_> = schedules.iter().filter_map(|s| s.spec.target).collect();
    let targets = Targets::find(tx, &wanted).await?;
    let whole = |schedule| resource(schedule, &targets);
    Ok(schedules.iter().map(whole).collect())
}

fn resource(schedule: &RepeatedSchedule, targets: &Targets) -> RepeatedScheduleResource {
    let asked = input(schedule);
    let target = targets.fields(schedule.spec.target);
    RepeatedScheduleResource {
        resource_id: schedule.id.to_string(),
        repeated_schedule_id: schedule.id.to_string(),
        name: asked.name,
        schedule_status: asked.schedule_status,
        duration_seconds: asked.duration_seconds,
        cron_minutes: asked.cron_minutes,
        cron_hours: asked.cron_hours,
        cron_day_month: asked.cron_day_month,
        cron_month: asked.cron_month,
        cron_day_week: asked.cron_day_week,
        time_zone: asked.time_zone,
        target_host_id: target.host_id,
        target_host: target.host,
        target_site_id: target.site_id,
        target_site: target.site,
        target_region_id: target.region_id,
        target_region: target.region,
        timestamps: Some(Timestamps::new(schedule.created_at, schedule.updated_at)),
    }
}
