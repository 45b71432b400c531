//! `sites`: the sites of hosts.

use axum::response::Response;
use evenkeel_api::Empty;
use evenkeel_api::site::{SiteInput, SiteList, SiteResource};
use evenkeel_domain::filter::Resource;
use evenkeel_domain::id::SiteId;
use evenkeel_domain::location::{Site, SiteSpec};
use evenkeel_domain::text::Name;
use evenkeel_store::listing::in_order;
use evenkeel_store::related::{self, RelatedIds};
use evenkeel_store::{Tx, sites};

use crate::call::{Call, parse_resource_id};
use crate::extract::{Change, Json, Params, Path};
use crate::listing::{self, ListParams, Listable};
use crate::location_tree::{LocationTree, labels, metadata};
use crate::problem::Problem;
use crate::shape::{Answer, InProject, Item, MaskParams, optional_id};

const RESOURCE_KIND: &str = "site_resource";

/// List sites
///
/// Returns each site with its region and its inherited labels.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/sites", tag = "sites", params(InProject, ListParams),
    responses((status = 200, description = "The sites.", body = SiteList), Problem),
)]
pub async fn list_sites(call: Call, params: Params) -> Result<Response, Problem> {
    listing::answer(Sites, &call, &params).await
}

struct Sites;

impl Listable for Sites {
    const RESOURCE: Resource = Resource::Site;
    const KEY: &'static str = "sites";
    type Item = SiteResource;

    async fn load(&self, tx: &Tx, ids: &[u32]) -> Result<Vec<SiteResource>, Problem> {
        let site_ids: Vec<_> = ids.iter().copied().map(SiteId::from_bits).collect();
        let sites = sites::find_many(tx, &site_ids).await?;
        let sites = in_order(ids, sites, |site: &Site| site.id.bits());
        load_resources(tx, &sites).await
    }
}

/// Create a site
///
/// Creates a site, in a region if the body names one. Names need not be unique, so a repeated
/// request creates another site.
///
/// The server refuses a region that does not exist (`failed-precondition`).
#[utoipa::path(
    post, path = "/v1/projects/{projectName}/sites", tag = "sites", params(InProject), request_body = SiteInput,
    responses((status = 200, description = "The site.", body = SiteResource), Problem),
)]
pub async fn create_site(call: Call, Json(body): Json<SiteInput>) -> Answer<SiteResource> {
    let tx = call.write().await?;
    let site = sites::create(&tx, &parse_spec(body)?, tx.database_time()).await?;
    let answer = load_site_resource(&tx, &site).await?;
    tx.commit().await?;
    Ok(answer)
}

/// Get a site
///
/// Returns the site with its region and its inherited labels.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/sites/{resourceId}", tag = "sites", params(Item),
    responses((status = 200, description = "The site.", body = SiteResource), Problem),
)]
pub async fn get_site(call: Call, Path(path): Path<Item>) -> Answer<SiteResource> {
    let tx = call.read().await?;
    let id: SiteId = parse_resource_id(RESOURCE_KIND, &path.resource_id)?;
    let site = sites::find(&tx, id).await?;
    load_site_resource(&tx, &site).await
}

/// Replace a site
///
/// Sets the name, the region, the position and the labels. Fields that are missing are cleared. A
/// repeated request has the same result.
///
/// The server refuses a region that does not exist (`failed-precondition`).
#[utoipa::path(
    put, path = "/v1/projects/{projectName}/sites/{resourceId}", tag = "sites", params(Item),
    request_body = SiteInput,
    responses((status = 200, description = "The site.", body = SiteResource), Problem),
)]
pub async fn put_site(
    call: Call,
    Path(path): Path<Item>,
    Json(body): Json<SiteInput>,
) -> Answer<SiteResource> {
    let tx = call.write().await?;
    let id: SiteId = parse_resource_id(RESOURCE_KIND, &path.resource_id)?;
    let site = sites::change(&tx, id, &parse_spec(body)?, tx.database_time()).await?;
    let answer = load_site_resource(&tx, &site).await?;
    tx.commit().await?;
    Ok(answer)
}

/// Change a site
///
/// Fields that the body does not name stay unchanged.
///
/// The server refuses a region that does not exist (`failed-precondition`).
#[utoipa::path(
    patch, path = "/v1/projects/{projectName}/sites/{resourceId}", tag = "sites", params(Item, MaskParams),
    request_body = SiteInput,
    responses((status = 200, description = "The site.", body = SiteResource), Problem),
)]
pub async fn patch_site(
    call: Call,
    Path(path): Path<Item>,
    params: Params,
    change: Change<SiteInput>,
) -> Answer<SiteResource> {
    let tx = call.write().await?;
    // Read under the lock, so that concurrent changes do not overwrite each other.
    tx.lock_for_change().await?;
    let id: SiteId = parse_resource_id(RESOURCE_KIND, &path.resource_id)?;
    let site = sites::find(&tx, id).await?;
    let desired = change.apply_to(&to_input(&site), params.text("fieldMask"))?;
    let site = sites::change(&tx, id, &parse_spec(desired)?, tx.database_time()).await?;
    let answer = load_site_resource(&tx, &site).await?;
    tx.commit().await?;
    Ok(answer)
}

/// Delete a site
///
/// Deletes the site with its assignment, its schedules and its pause.
///
/// The server refuses a site that has hosts (`failed-precondition`).
#[utoipa::path(
    delete, path = "/v1/projects/{projectName}/sites/{resourceId}", tag = "sites", params(Item),
    responses((status = 200, description = "The site is deleted.", body = Empty), Problem),
)]
pub async fn delete_site(call: Call, Path(path): Path<Item>) -> Answer<Empty> {
    let tx = call.write().await?;
    let id: SiteId = parse_resource_id(RESOURCE_KIND, &path.resource_id)?;
    sites::delete(&tx, id).await?;
    tx.commit().await?;
    Ok(Json(Empty {}))
}

fn parse_spec(body: SiteInput) -> Result<SiteSpec, Problem> {
    let (latitude, longitude) = SiteSpec::parse_position(body.site_lat, body.site_lng)?;
    Ok(SiteSpec {
        name: Name::parse("name", &body.name)?,
        region: optional_id("regionId", &body.region_id)?,
        latitude,
        longitude,
        metadata: metadata(body.metadata)?,
    })
}

/// The input that describes a site.
fn to_input(site: &Site) -> SiteInput {
    let spec = &site.spec;
    SiteInput {
        name: spec.name.to_string(),
        region_id: spec.region.map(|id| id.to_string()).unwrap_or_default(),
        site_lat: spec.latitude,
        site_lng: spec.longitude,
        metadata: labels(&spec.metadata),
    }
}

async fn load_site_resource(tx: &Tx, site: &Site) -> Answer<SiteResource> {
    let mut resources = load_resources(tx, std::slice::from_ref(site)).await?;
    resources.pop().map(Json).ok_or_else(Problem::internal)
}

async fn load_resources(tx: &Tx, sites: &[Site]) -> Result<Vec<SiteResource>, Problem> {
    let related_ids = RelatedIds {
        regions: sites.iter().filter_map(|site| site.spec.region).collect(),
        ..RelatedIds::default()
    };
    let related = related::load(tx, &related_ids).await?;
    let locations = LocationTree::from_related(&related);
    let render = |site| locations.site_resource(site);
    Ok(sites.iter().map(render).collect())
}
