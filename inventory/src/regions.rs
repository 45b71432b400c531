//! `regions`: they contain sites and other regions.

use axum::response::Response;
use evenkeel_api::Empty;
use evenkeel_api::region::{RegionInput, RegionList, RegionResource};
use evenkeel_domain::filter::Resource;
use evenkeel_domain::id::RegionId;
use evenkeel_domain::location::{Region, RegionSpec};
use evenkeel_domain::text::Name;
use evenkeel_store::listing::in_order;
use evenkeel_store::related::{self, RelatedIds};
use evenkeel_store::{Tx, regions};
use utoipa::IntoParams;

use crate::call::{Call, parse_resource_id};
use crate::extract::{Change, Json, Params, Path};
use crate::listing::{self, ListParams, Listable};
use crate::location_tree::{LocationTree, labels, metadata};
use crate::problem::Problem;
use crate::shape::{Answer, InProject, Item, MaskParams, optional_id};

const RESOURCE_KIND: &str = "region_resource";

/// Additional query parameters of the list of regions.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query, rename_all = "camelCase")]
#[expect(dead_code, reason = "only the OpenAPI document uses it; `Params` reads the value")]
pub struct TotalParams {
    /// Whether to count the sites in each region, including those in the regions below it. By
    /// default false.
    show_total_sites: Option<bool>,
}

/// List regions
///
/// Returns each region with its parent region and its inherited labels. `showTotalSites` also
/// counts the sites.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/regions", tag = "regions", params(InProject, ListParams, TotalParams),
    responses((status = 200, description = "The regions.", body = RegionList), Problem),
)]
pub async fn list_regions(call: Call, params: Params) -> Result<Response, Problem> {
    let with_totals = params.flag("showTotalSites")?;
    listing::answer(Regions { with_totals }, &call, &params).await
}

struct Regions {
    /// Whether to count their sites.
    with_totals: bool,
}

impl Listable for Regions {
    const RESOURCE: Resource = Resource::Region;
    const KEY: &'static str = "regions";
    type Item = RegionResource;

    async fn load(&self, tx: &Tx, ids: &[u32]) -> Result<Vec<RegionResource>, Problem> {
        let region_ids: Vec<_> = ids.iter().copied().map(RegionId::from_bits).collect();
        let regions = regions::find_many(tx, &region_ids).await?;
        let regions = in_order(ids, regions, |region: &Region| region.id.bits());
        let mut answer = load_resources(tx, &regions).await?;
        if self.with_totals {
            let totals = regions::count_sites(tx, &region_ids).await?;
            for (resource, region) in answer.iter_mut().zip(&regions) {
                let total = totals.get(&region.id).copied().unwrap_or_default();
                resource.total_sites = i32::try_from(total).unwrap_or(i32::MAX);
            }
        }
        Ok(answer)
    }
}

/// Create a region
///
/// Creates a region, inside a parent region if the body names one. Names need not be unique, so a
/// repeated request creates another region.
///
/// The server refuses a parent region that does not exist, a region that would contain itself, and
/// more than 5 levels of regions (`failed-precondition`).
#[utoipa::path(
    post, path = "/v1/projects/{projectName}/regions", tag = "regions", params(InProject), request_body = RegionInput,
    responses((status = 200, description = "The region.", body = RegionResource), Problem),
)]
pub async fn create_region(call: Call, Json(body): Json<RegionInput>) -> Answer<RegionResource> {
    let tx = call.write().await?;
    let region = regions::create(&tx, &parse_spec(body)?, tx.database_time()).await?;
    let answer = load_region_resource(&tx, &region).await?;
    tx.commit().await?;
    Ok(answer)
}

/// Get a region
///
/// Returns the region with its parent region and its inherited labels.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/regions/{resourceId}", tag = "regions", params(Item),
    responses((status = 200, description = "The region.", body = RegionResource), Problem),
)]
pub async fn get_region(call: Call, Path(path): Path<Item>) -> Answer<RegionResource> {
    let tx = call.read().await?;
    let id: RegionId = parse_resource_id(RESOURCE_KIND, &path.resource_id)?;
    let region = regions::find(&tx, id).await?;
    load_region_resource(&tx, &region).await
}

/// Replace a region
///
/// Sets the name, the parent region and the labels. Fields that are missing are cleared. A repeated
/// request has the same result.
///
/// The server refuses a parent region that does not exist, a region that would contain itself, and
/// more than 5 levels of regions (`failed-precondition`).
#[utoipa::path(
    put, path = "/v1/projects/{projectName}/regions/{resourceId}", tag = "regions", params(Item),
    request_body = RegionInput,
    responses((status = 200, description = "The region.", body = RegionResource), Problem),
)]
pub async fn put_region(
    call: Call,
    Path(path): Path<Item>,
    Json(body): Json<RegionInput>,
) -> Answer<RegionResource> {
    let tx = call.write().await?;
    let id: RegionId = parse_resource_id(RESOURCE_KIND, &path.resource_id)?;
    let region = regions::change(&tx, id, &parse_spec(body)?, tx.database_time()).await?;
    let answer = load_region_resource(&tx, &region).await?;
    tx.commit().await?;
    Ok(answer)
}

/// Change a region
///
/// Fields that the body does not name stay unchanged.
///
/// The server refuses the same as for PUT.
#[utoipa::path(
    patch, path = "/v1/projects/{projectName}/regions/{resourceId}", tag = "regions", params(Item, MaskParams),
    request_body = RegionInput,
    responses((status = 200, description = "The region.", body = RegionResource), Problem),
)]
pub async fn patch_region(
    call: Call,
    Path(path): Path<Item>,
    params: Params,
    change: Change<RegionInput>,
) -> Answer<RegionResource> {
    let tx = call.write().await?;
    // Read under the lock, so that concurrent changes do not overwrite each other.
    tx.lock_for_change().await?;
    let id: RegionId = parse_resource_id(RESOURCE_KIND, &path.resource_id)?;
    let region = regions::find(&tx, id).await?;
    let desired = change.apply_to(&to_input(&region), params.text("fieldMask"))?;
    let region = regions::change(&tx, id, &parse_spec(desired)?, tx.database_time()).await?;
    let answer = load_region_resource(&tx, &region).await?;
    tx.commit().await?;
    Ok(answer)
}

/// Delete a region
///
/// Deletes the region with its assignment and its schedules.
///
/// The server refuses a region that contains regions or sites (`failed-precondition`).
#[utoipa::path(
    delete, path = "/v1/projects/{projectName}/regions/{resourceId}", tag = "regions", params(Item),
    responses((status = 200, description = "The region is deleted.", body = Empty), Problem),
)]
pub async fn delete_region(call: Call, Path(path): Path<Item>) -> Answer<Empty> {
    let tx = call.write().await?;
    let id: RegionId = parse_resource_id(RESOURCE_KIND, &path.resource_id)?;
    regions::delete(&tx, id).await?;
    tx.commit().await?;
    Ok(Json(Empty {}))
}

fn parse_spec(body: RegionInput) -> Result<RegionSpec, Problem> {
    Ok(RegionSpec {
        name: Name::parse("name", &body.name)?,
        parent: optional_id("parentId", &body.parent_id)?,
        metadata: metadata(body.metadata)?,
    })
}

/// The input that describes a region.
fn to_input(region: &Region) -> RegionInput {
    let spec = &region.spec;
    RegionInput {
        name: spec.name.to_string(),
        parent_id: spec.parent.map(|id| id.to_string()).unwrap_or_default(),
        metadata: labels(&spec.metadata),
    }
}

async fn load_region_resource(tx: &Tx, region: &Region) -> Answer<RegionResource> {
    let mut resources = load_resources(tx, std::slice::from_ref(region)).await?;
    resources.pop().map(Json).ok_or_else(Problem::internal)
}

async fn load_resources(tx: &Tx, regions: &[Region]) -> Result<Vec<RegionResource>, Problem> {
    let parents = regions.iter().filter_map(|region| region.spec.parent);
    let related_ids = RelatedIds { regions: parents.collect(), ..RelatedIds::default() };
    let related = related::load(tx, &related_ids).await?;
    let locations = LocationTree::from_related(&related);
    let render = |region| locations.region_resource(region);
    Ok(regions.iter().map(render).collect())
}
