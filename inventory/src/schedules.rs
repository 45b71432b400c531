//! `compute/schedules`, `schedules/single` and `schedules/repeated`: when nodes may be changed.

pub mod repeated;
pub mod single;

use std::collections::HashMap;
use std::iter;

use axum::extract::State;
use evenkeel_api as api;
use evenkeel_api::host::HostResource;
use evenkeel_api::region::RegionResource;
use evenkeel_api::schedule::ScheduleList;
use evenkeel_api::site::SiteResource;
use evenkeel_domain::id::{HostId, RegionId, SiteId};
use evenkeel_domain::schedule::{ScheduleStatus, ScheduleTarget};
use evenkeel_store::{Listed, Page, StoreError, Tx, hosts};
use utoipa::IntoParams;

use crate::App;
use crate::call::Call;
use crate::extract::{Json, Params};
use crate::listing::{ListParams, page};
use crate::places::Places;
use crate::problem::Problem;
use crate::shape::{Answer, InProject, optional_id};

/// Parameters of lists of schedules that are not supported.
const UNSUPPORTED: &[&str] = &["filter", "orderBy", "unixEpoch"];

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
    let asked = Asked::of(&params)?;
    let tx = app.read(&call).await?;
    let of = asked.upwards(&tx).await?;
    let single = single::listed(&tx, of.as_deref(), asked.page).await?;
    let repeated = repeated::listed(&tx, of.as_deref(), asked.page).await?;
    tx.commit().await?;
    Ok(Json(ScheduleList {
        single_schedules: single.single_schedules,
        repeated_schedules: repeated.repeated_schedules,
        total_elements: single
            .total_elements
            .saturating_add(repeated.total_elements),
        has_next: single.has_next || repeated.has_next,
    }))
}

/// Which schedules are asked for.
struct Asked {
    page: Page,
    of: Option<ScheduleTarget>,
}

impl Asked {
    fn of(params: &Params) -> Result<Self, Problem> {
        params.refuse(UNSUPPORTED)?;
        let text = |name| params.text(name).unwrap_or_default();
        Ok(Self {
            page: page(params)?,
            of: target(
                ["hostId", "siteId", "regionId"],
                [text("hostId"), text("siteId"), text("regionId")],
            )?,
        })
    }

    /// What is asked for and everything above it, from which it inherits schedules.
    async fn upwards(&self, tx: &Tx) -> Result<Option<Vec<ScheduleTarget>>, StoreError> {
        let Some(of) = self.of else {
            return Ok(None);
        };
        let host_site = match of {
            ScheduleTarget::Host(id) => hosts::find_many(tx, &[id])
                .await?
                .first()
                .and_then(|h| h.site),
            _ => None,
        };
        let (site, region) = match of {
            ScheduleTarget::Host(_) => (host_site, None),
            ScheduleTarget::Site(id) => (Some(id), None),
            ScheduleTarget::Region(id) => (None, Some(id)),
        };
        let places = Places::find(tx, site, region).await?;
        let within = region.or_else(|| site.and_then(|id| places.region_of(id)));
        let above = places
            .upwards(within)
            .map(|region| ScheduleTarget::Region(region.id));
        let mut targets: Vec<_> = iter::once(of)
            .chain(site.map(ScheduleTarget::Site))
            .chain(above)
            .collect();
        targets.dedup();
        Ok(Some(targets))
    }
}

/// A page of what was found for few targets, which is not much.
fn part_of<T>(found: Vec<T>, page: Page) -> Listed<T> {
    let total = found.len() as u64;
    let offset = usize::try_from(page.offset).unwrap_or(usize::MAX);
    let limit = page.limit.and_then(|limit| usize::try_from(limit).ok());
    let items = found
        .into_iter()
        .skip(offset)
        .take(limit.unwrap_or(usize::MAX));
    Listed {
        items: items.collect(),
        total,
    }
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
    hosts: HashMap<HostId, HostResource>,
    places: Places,
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
        let found = hosts::find_many(tx, &of_hosts).await?;
        let sites = found.iter().filter_map(|host| host.site).chain(of_sites);
        let places = Places::find(tx, sites, of_regions).await?;
        let hosts = found
            .iter()
            .map(|host| (host.id, crate::hosts::resource(host, &places)));
        Ok(Self {
            hosts: hosts.collect(),
            places,
        })
    }

    fn fields(&self, target: Option<ScheduleTarget>) -> TargetFields {
        match target {
            None => TargetFields::default(),
            Some(ScheduleTarget::Host(id)) => TargetFields {
                host_id: id.to_string(),
                host: self.hosts.get(&id).cloned().map(Box::new),
                ..TargetFields::default()
            },
            Some(ScheduleTarget::Site(id)) => TargetFields {
                site_id: id.to_string(),
                site: self.places.site(id),
                ..TargetFields::default()
            },
            Some(ScheduleTarget::Region(id)) => TargetFields {
                region_id: id.to_string(),
                region: self.places.region(id),
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
