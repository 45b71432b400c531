//! `compute/schedules`, `schedules/single` and `schedules/repeated`: windows in which nodes may be
//! updated.

mod query;
pub mod repeated;
pub mod single;

use std::collections::HashMap;

use axum::response::Response;
use evenkeel_api as api;
use evenkeel_api::host::HostResource;
use evenkeel_api::region::RegionResource;
use evenkeel_api::schedule::ScheduleList;
use evenkeel_api::site::SiteResource;
use evenkeel_domain::host::Host;
use evenkeel_domain::id::{HostId, RegionId, SiteId};
use evenkeel_domain::schedule::{ScheduleStatus, ScheduleTarget};
use evenkeel_store::related::{self, Related, RelatedIds};
use evenkeel_store::{StoreError, Tx, hosts};
use utoipa::IntoParams;

use crate::call::Call;
use crate::extract::Params;
use crate::listing::{ListParams, ListSource};
use crate::location_tree::LocationTree;
use crate::problem::Problem;
use crate::shape::{InProject, hosts as hosts_shape, optional_id};
use query::answer_schedules;
use repeated::RepeatedSchedules;
use single::SingleSchedules;

/// Query parameters that select schedules by their target.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "only the OpenAPI document uses it; `Params` reads the value")]
pub struct TargetParams {
    /// Only schedules that apply to this host: its own and those of its site and of the regions
    /// above. It excludes `siteId` and `regionId`.
    #[param(rename = "hostId")]
    host: Option<String>,
    /// Only schedules that apply to this site: its own and those of the regions above.
    #[param(rename = "siteId")]
    site: Option<String>,
    /// Only schedules that apply to this region: its own and those of the regions above.
    #[param(rename = "regionId")]
    region: Option<String>,
    /// Only schedules that are open at this time, in Unix seconds.
    #[param(rename = "unixEpoch", minimum = 0)]
    at: Option<u32>,
}

/// List single and repeated schedules
///
/// `filter`, `orderBy` and the page apply to each kind separately, so both kinds must have the
/// fields that they name.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/compute/schedules", tag = "schedules",
    params(InProject, ListParams, TargetParams),
    responses((status = 200, description = "The schedules.", body = ScheduleList), Problem),
)]
pub async fn list_schedules(call: Call, params: Params) -> Result<Response, Problem> {
    let lists: Vec<Box<dyn ListSource>> =
        vec![Box::new(SingleSchedules), Box::new(RepeatedSchedules)];
    answer_schedules(lists, &call, &params).await
}

/// Parses the target of a schedule: a host, a site, a region, or none.
fn parse_target(
    fields: [&'static str; 3],
    ids: [&str; 3],
) -> Result<Option<ScheduleTarget>, Problem> {
    let [host, site, region] = ids;
    let host: Option<HostId> = optional_id(fields[0], host)?;
    let site: Option<SiteId> = optional_id(fields[1], site)?;
    let region: Option<RegionId> = optional_id(fields[2], region)?;
    let candidates = [
        host.map(ScheduleTarget::Host),
        site.map(ScheduleTarget::Site),
        region.map(ScheduleTarget::Region),
    ];
    let mut present =
        fields.iter().zip(candidates).filter_map(|(field, target)| Some((*field, target?)));
    let first = present.next();
    match present.next() {
        None => Ok(first.map(|(_, target)| target)),
        Some((field, _)) => {
            let [host, site, region] = fields;
            let why = format!("give at most one of {host}, {site} and {region}");
            Err(Problem::invalid(field, why))
        }
    }
}

/// Fields of the target in a body.
const TARGET_FIELDS: [&str; 3] = ["targetHostId", "targetSiteId", "targetRegionId"];

/// Targets of schedules, loaded for their REST form.
struct ScheduleTargets {
    hosts: HashMap<HostId, Host>,
    related: Related,
}

/// Fields of one target in the REST form of a schedule.
#[derive(Default)]
struct TargetFields {
    host_id: String,
    host: Option<Box<HostResource>>,
    site_id: String,
    site: Option<SiteResource>,
    region_id: String,
    region: Option<RegionResource>,
}

impl ScheduleTargets {
    /// Loads the targets. Runs the same number of queries for any number of targets.
    async fn load(tx: &Tx, targets: &[ScheduleTarget]) -> Result<Self, StoreError> {
        let (mut of_hosts, mut of_sites, mut of_regions) = (Vec::new(), Vec::new(), Vec::new());
        for target in targets {
            match *target {
                ScheduleTarget::Host(id) => of_hosts.push(id),
                ScheduleTarget::Site(id) => of_sites.push(id),
                ScheduleTarget::Region(id) => of_regions.push(id),
            }
        }
        let loaded_hosts = match of_hosts.as_slice() {
            [] => Vec::new(),
            ids => hosts::find_many(tx, ids).await?,
        };
        let sites = loaded_hosts.iter().filter_map(|host| host.site).chain(of_sites);
        let related_ids = RelatedIds {
            sites: sites.collect(),
            regions: of_regions.into_iter().collect(),
            ..RelatedIds::default()
        };
        let related = related::load(tx, &related_ids).await?;
        let hosts = loaded_hosts.into_iter().map(|host| (host.id, host)).collect();
        Ok(Self { hosts, related })
    }

    fn fields(&self, target: Option<ScheduleTarget>) -> TargetFields {
        let locations = LocationTree::from_related(&self.related);
        let render = |host| Box::new(hosts_shape::resource(host, locations));
        match target {
            None => TargetFields::default(),
            Some(ScheduleTarget::Host(id)) => TargetFields {
                host_id: id.to_string(),
                host: self.hosts.get(&id).map(render),
                ..TargetFields::default()
            },
            Some(ScheduleTarget::Site(id)) => TargetFields {
                site_id: id.to_string(),
                site: locations.site(id),
                ..TargetFields::default()
            },
            Some(ScheduleTarget::Region(id)) => TargetFields {
                region_id: id.to_string(),
                region: locations.region(id),
                ..TargetFields::default()
            },
        }
    }
}

/// Status of a schedule, from its REST form.
const fn status_from(status: api::schedule::ScheduleStatus) -> ScheduleStatus {
    use api::schedule::ScheduleStatus as Wire;
    match status {
        Wire::Unspecified => ScheduleStatus::Unspecified,
        Wire::Maintenance => ScheduleStatus::Maintenance,
        Wire::OsUpdate => ScheduleStatus::OsUpdate,
        Wire::Shipping => ScheduleStatus::Shipping,
        Wire::FirmwareUpdate => ScheduleStatus::FirmwareUpdate,
        Wire::ClusterUpdate => ScheduleStatus::ClusterUpdate,
    }
}

/// REST form of the status of a schedule.
const fn status_to(status: ScheduleStatus) -> api::schedule::ScheduleStatus {
    use api::schedule::ScheduleStatus as Wire;
    match status {
        ScheduleStatus::Unspecified => Wire::Unspecified,
        ScheduleStatus::Maintenance => Wire::Maintenance,
        ScheduleStatus::OsUpdate => Wire::OsUpdate,
        ScheduleStatus::Shipping => Wire::Shipping,
        ScheduleStatus::FirmwareUpdate => Wire::FirmwareUpdate,
        ScheduleStatus::ClusterUpdate => Wire::ClusterUpdate,
    }
}

/// Ids of a target, in the order of [`TARGET_FIELDS`].
fn target_ids(target: Option<ScheduleTarget>) -> [String; 3] {
    let mut ids = [const { String::new() }; 3];
    match target {
        None => {}
        Some(ScheduleTarget::Host(id)) => ids[0] = id.to_string(),
        Some(ScheduleTarget::Site(id)) => ids[1] = id.to_string(),
        Some(ScheduleTarget::Region(id)) => ids[2] = id.to_string(),
    }
    ids
}
