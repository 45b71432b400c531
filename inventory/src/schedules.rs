//! `compute/schedules` and `schedules/single`: when nodes may be changed.

use std::collections::HashMap;

use axum::extract::State;
use evenkeel_api as api;
use evenkeel_api::schedule::{
    ScheduleList, SingleScheduleInput, SingleScheduleList, SingleScheduleResource,
};
use evenkeel_api::timestamps::unix_seconds;
use evenkeel_api::{Empty, Timestamps};
use evenkeel_domain::Time;
use evenkeel_domain::id::parse_id;
use evenkeel_domain::id::{HostId, SingleScheduleId};
use evenkeel_domain::schedule::{ScheduleStatus, ScheduleTarget, SingleSchedule, SingleSpec};
use evenkeel_domain::text::Name;
use evenkeel_store::{StoreError, Tx, hosts, schedules};
use utoipa::IntoParams;

use crate::App;
use crate::call::{Call, id_of_path};
use crate::extract::{Json, Params, Path};
use crate::listing::{ListParams, envelope, page};
use crate::problem::Problem;
use crate::shape::{Answer, InProject, Item};

const WHAT: &str = "single_schedule_resource";

/// Parameters of lists of schedules that are not supported.
const UNSUPPORTED: &[&str] = &["filter", "orderBy", "siteId", "regionId", "unixEpoch"];

/// Whose schedules to list, for the document.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query, rename_all = "camelCase")]
#[expect(
    dead_code,
    reason = "the document is made from it; `Params` reads the value"
)]
pub struct TargetParams {
    /// Only those that are meant for this host.
    host_id: Option<String>,
}

/// List the schedules of every kind.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/compute/schedules", tag = "schedules",
    params(InProject, ListParams, TargetParams),
    responses((status = 200, description = "The schedules, by id.", body = ScheduleList), Problem),
)]
pub async fn list_schedules(
    State(app): State<App>,
    call: Call,
    params: Params,
) -> Answer<ScheduleList> {
    let single = list(&app, &call, &params).await?;
    Ok(Json(ScheduleList {
        single_schedules: single.single_schedules,
        repeated_schedules: Vec::new(),
        total_elements: single.total_elements,
        has_next: single.has_next,
    }))
}

/// List the single schedules.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/schedules/single", tag = "schedules",
    params(InProject, ListParams, TargetParams),
    responses((status = 200, description = "The schedules, by id.", body = SingleScheduleList), Problem),
)]
pub async fn list_single_schedules(
    State(app): State<App>,
    call: Call,
    params: Params,
) -> Answer<SingleScheduleList> {
    list(&app, &call, &params).await.map(Json)
}

async fn list(app: &App, call: &Call, params: &Params) -> Result<SingleScheduleList, Problem> {
    params.refuse(UNSUPPORTED)?;
    let page = page(params)?;
    let host: Option<HostId> = params
        .text("hostId")
        .map(|id| parse_id("hostId", id))
        .transpose()?;
    let tx = app.read(call).await?;
    let listed = schedules::list(&tx, host, page).await?;
    let (total_elements, has_next) = envelope(&listed, page);
    let single_schedules = resources(&tx, &listed.items).await?;
    tx.commit().await?;
    Ok(SingleScheduleList {
        single_schedules,
        total_elements,
        has_next,
    })
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
    let made = schedules::create(&tx, &spec(&body, now)?, now).await?;
    let answer = one(&tx, made).await?;
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
    let answer = one(&tx, schedule).await?;
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

fn spec(body: &SingleScheduleInput, now: Time) -> Result<SingleSpec, Problem> {
    use api::schedule::ScheduleStatus as Wire;
    for (field, id) in [
        ("targetSiteId", &body.target_site_id),
        ("targetRegionId", &body.target_region_id),
    ] {
        if !id.is_empty() {
            return Err(Problem::invalid(field, "only hosts can be targets"));
        }
    }
    let (start, end) = SingleSpec::times(body.start_seconds, body.end_seconds, now)?;
    let target = match body.target_host_id.as_str() {
        "" => None,
        id => Some(ScheduleTarget::Host(parse_id("targetHostId", id)?)),
    };
    Ok(SingleSpec {
        name: Name::parse("name", &body.name)?,
        status: match body.schedule_status {
            Wire::Unspecified => ScheduleStatus::Unspecified,
            Wire::Maintenance => ScheduleStatus::Maintenance,
            Wire::OsUpdate => ScheduleStatus::OsUpdate,
        },
        start,
        end,
        target,
    })
}

async fn one(tx: &Tx, schedule: SingleSchedule) -> Answer<SingleScheduleResource> {
    let mut found = resources(tx, std::slice::from_ref(&schedule)).await?;
    found.pop().map(Json).ok_or_else(Problem::internal)
}

/// Schedules with the hosts that they are meant for.
async fn resources(
    tx: &Tx,
    schedules: &[SingleSchedule],
) -> Result<Vec<SingleScheduleResource>, StoreError> {
    let ids: Vec<_> = schedules.iter().filter_map(target_host).collect();
    let hosts = hosts::find_many(tx, &ids).await?;
    let hosts: HashMap<_, _> = hosts.iter().map(|host| (host.id, host)).collect();
    let whole = |schedule: &SingleSchedule| {
        let host = target_host(schedule).and_then(|id| hosts.get(&id));
        SingleScheduleResource {
            target_host: host.map(|host| Box::new(crate::hosts::resource(host))),
            ..resource(schedule)
        }
    };
    Ok(schedules.iter().map(whole).collect())
}

fn target_host(schedule: &SingleSchedule) -> Option<HostId> {
    schedule.spec.target.map(|ScheduleTarget::Host(host)| host)
}

fn resource(schedule: &SingleSchedule) -> SingleScheduleResource {
    use api::schedule::ScheduleStatus as Wire;
    let spec = &schedule.spec;
    SingleScheduleResource {
        resource_id: schedule.id.to_string(),
        single_schedule_id: schedule.id.to_string(),
        name: spec.name.to_string(),
        schedule_status: match spec.status {
            ScheduleStatus::Unspecified => Wire::Unspecified,
            ScheduleStatus::Maintenance => Wire::Maintenance,
            ScheduleStatus::OsUpdate => Wire::OsUpdate,
        },
        start_seconds: unix_seconds(Some(spec.start)),
        end_seconds: unix_seconds(spec.end),
        target_host_id: target_host(schedule)
            .map(|host| host.to_string())
            .unwrap_or_default(),
        timestamps: Some(Timestamps::new(schedule.created_at, schedule.updated_at)),
        ..SingleScheduleResource::default()
    }
}
