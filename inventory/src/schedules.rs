//! `compute/schedules`, `schedules/single` and `schedules/repeated`: when nodes may be changed.

mod asked;
pub mod repeated;
pub mod single;

use std::collections::HashMap;

use axum::extract::State;
use axum::response::Response;
use evenkeel_api as api;
use evenkeel_api::host::HostResource;
use evenkeel_api::region::RegionResource;
use evenkeel_api::schedule::ScheduleList;
use evenkeel_api::site::SiteResource;
use evenkeel_domain::host::Host;
use evenkeel_domain::id::{HostId, RegionId, SiteId};
use evenkeel_domain::schedule::{ScheduleStatus, ScheduleTarget};
use evenkeel_store::related::{self, Related, Wanted};
use evenkeel_store::{StoreError, Tx, hosts};
use utoipa::IntoParams;

use crate::App;
use crate::call::Call;
use crate::extract::Params;
use crate::listing::{ListParams, Rows};
use crate::places::Places;
use crate::problem::Problem;
use crate::shape::{InProject, optional_id};
use asked::answer;
use repeated::Repeateds;
use single::Singles;

/// Whose schedules to list, for the document.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(
    dead_code,
    reason = "the document is made from it; `Params` reads the value"
)]
pub struct TargetParams {
    /// Only those of this host: its own and those of its site and of the regions above. It excludes the other two.
    #[param(rename = "hostId")]
    host: Option<String>,
    /// Only those of this site: its own and those of the regions above.
    #[param(rename = "siteId")]
    site: Option<String>,
    /// Only those of this region: its own and those of the regions above.
    #[param(rename = "regionId")]
    region: Option<String>,
    /// Only those that are open at this instant, in Unix seconds.
    #[param(rename = "unixEpoch", minimum = 0)]
    at: Option<u32>,
}

/// List the schedules of every kind. `filter` and `orderBy` count for each kind by itself, so both must have what they name.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/compute/schedules", tag = "schedules",
    params(InProject, ListParams, TargetParams),
    responses((status = 200, description = "The schedules.", body = ScheduleList), Problem),
)]
pub async fn list_schedules(
    State(app): State<App>,
    call: Call,
    params: Params,
) -> Result<Response, Problem> {
    let lists: Vec<Box<dyn Rows>> = vec![Box::new(Singles), Box::new(Repeateds)];
    answer(lists, &app, &call, &params).await
}

/// What a schedule is meant for: a host, a site, a region, or nothing yet.
fn target(fields: [&'static str; 3], ids: [&str; 3]) -> Result<Option<ScheduleTarget>, Problem> {
    let [host, site, region] = ids;
    let host: Option<HostId> = optional_id(fields[0], host)?;
    let site: Option<SiteId> = optional_id(fields[1], site)?;
    let region: Option<RegionId> = optional_id(fields[2], region)?;
    let given = [
        host.map(ScheduleTarget::Host),
        site.map(ScheduleTarget::Site),
        region.map(ScheduleTarget::Region),
    ];
    let mut given = fields
        .iter()
        .zip(given)
        .filter_map(|(field, target)| Some((*field, target?)));
    let first = given.next();
    match given.next() {
        None => Ok(first.map(|(_, target)| target)),
        Some((field, _)) => {
            let [host, site, region] = fields;
            let why = format!("give at most one of {host}, {site} and {region}");
            Err(Problem::invalid(field, why))
        }
    }
}

/// The fields of a target in a body.
const TARGET: [&str; 3] = ["targetHostId", "targetSiteId", "targetRegionId"];

/// What schedules are meant for, as it stands in answers.
struct Targets {
    hosts: HashMap<HostId, Host>,
    related: Related,
}

/// What one schedule is meant for, as it stands in answers.
#[derive(Default)]
struct TargetFields {
    host_id: String,
    host: Option<Box<HostResource>>,
    site_id: String,
    site: Option<SiteResource>,
    region_id: String,
    region: Option<RegionResource>,
}

impl Targets {
    /// The same number of statements for any number of targets.
    async fn find(tx: &Tx, targets: &[ScheduleTarget]) -> Result<Self, StoreError> {
        let (mut of_hosts, mut of_sites, mut of_regions) = (Vec::new(), Vec::new(), Vec::new());
        for target in targets {
            match *target {
                ScheduleTarget::Host(id) => of_hosts.push(id),
                ScheduleTarget::Site(id) => of_sites.push(id),
                ScheduleTarget::Region(id) => of_regions.push(id),
            }
        }
        let found = match of_hosts.as_slice() {
            [] => Vec::new(),
            ids => hosts::find_many(tx, ids).await?,
        };
        let sites = found.iter().filter_map(|host| host.site).chain(of_sites);
        let wanted = Wanted {
            sites: sites.collect(),
            regions: of_regions.into_iter().collect(),
            ..Wanted::default()
        };
        let related = related::read(tx, &wanted).await?;
        let hosts = found.into_iter().map(|host| (host.id, host)).collect();
        Ok(Self { hosts, related })
    }

    fn fields(&self, target: Option<ScheduleTarget>) -> TargetFields {
        let places = Places::of(&self.related);
        let shown = |host| Box::new(crate::hosts::resource(host, places));
        match target {
            None => TargetFields::default(),
            Some(ScheduleTarget::Host(id)) => TargetFields {
                host_id: id.to_string(),
                host: self.hosts.get(&id).map(shown),
                ..TargetFields::default()
            },
            Some(ScheduleTarget::Site(id)) => TargetFields {
                site_id: id.to_string(),
                site: places.site(id),
                ..TargetFields::default()
            },
            Some(ScheduleTarget::Region(id)) => TargetFields {
                region_id: id.to_string(),
                region: places.region(id),
                ..TargetFields::default()
            },
        }
    }
}

/// What a schedule is for, from the wire.
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

/// What a schedule is for, for the wire.
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

/// The ids of a target as they stand in a body.
fn ids_of(target: Option<ScheduleTarget>) -> [String; 3] {
    let mut ids = [const { String::new() }; 3];
    match target {
        None => {}
        Some(ScheduleTarget::Host(id)) => ids[0] = id.to_string(),
        Some(ScheduleTarget::Site(id)) => ids[1] = id.to_string(),
        Some(ScheduleTarget::Region(id)) => ids[2] = id.to_string(),
    }
    ids
}
