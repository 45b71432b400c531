//! `regions`: the parts of the world that sites lie in.

use axum::extract::State;
use axum::response::Response;
use evenkeel_api::Empty;
use evenkeel_api::region::{RegionInput, RegionList, RegionResource};
use evenkeel_domain::filter::Resource;
use evenkeel_domain::id::RegionId;
use evenkeel_domain::place::{Region, RegionSpec};
use evenkeel_domain::text::Name;
use evenkeel_store::listing::in_order;
use evenkeel_store::related::{self, Wanted};
use evenkeel_store::{Tx, regions};
use utoipa::IntoParams;

use crate::call::{Call, id_of_path};
use crate::extract::{Change, Json, Params, Path};
use crate::listing::{self, ListParams, Listed};
use crate::places::{Places, labels, metadata};
use crate::problem::Problem;
use crate::shape::{Answer, InProject, Item, MaskParams, optional_id};
use crate::{App, Inventory};

const WHAT: &str = "region_resource";

/// What else to show of regions, for the document.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query, rename_all = "camelCase")]
#[expect(
    dead_code,
    reason = "the document is made from it; `Params` reads the value"
)]
pub struct TotalParams {
    /// Whether to count the sites in each region and below it.
    show_total_sites: Option<bool>,
}

/// List the regions.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/regions", tag = "regions", params(InProject, ListParams, TotalParams),
    responses((status = 200, description = "The regions.", body = RegionList), Problem),
)]
pub async fn list_regions(
    State(app): State<App>,
    call: Call,
    params: Params,
) -> Result<Response, Problem> {
    let with_totals = params.flag("showTotalSites")?;
    listing::answer(Regions { with_totals }, &app, &call, &params).await
}

/// The list of regions.
struct Regions {
    /// Whether their sites are counted.
    with_totals: bool,
}

impl Listed for Regions {
    const RESOURCE: Resource = Resource::Region;
    const KEY: &'static str = "regions";
    type Item = RegionResource;

    async fn load(
        &self,
        _: &Inventory,
        tx: &Tx,
        ids: &[u32],
    ) -> Result<Vec<RegionResource>, Problem> {
        let wanted: Vec<_> = ids.iter().copied().map(RegionId::from_bits).collect();
        let found = regions::find_many(tx, &wanted).await?;
        let found = in_order(ids, found, |region: &Region| region.id.bits());
        let mut answer = resources(tx, &found).await?;
        if self.with_totals {
            let totals = regions::count_sites(tx, &wanted).await?;
            for (resource, region) in answer.iter_mut().zip(&found) {
                let total = totals.get(&region.id).copied().unwrap_or_default();
                resource.total_sites = i32::try_from(total).unwrap_or(i32::MAX);
            }
        }
        Ok(answer)
    }
}

/// Make a region.
#[utoipa::path(
    post, path = "/v1/projects/{projectName}/regions", tag = "regions", params(InProject), request_body = RegionInput,
    responses((status = 200, description = "The region.", body = RegionResource), Problem),
)]
pub async fn create_region(
    State(app): State<App>,
    call: Call,
    Json(body): Json<RegionInput>,
) -> Answer<RegionResource> {
    let tx = app.write(&call).await?;
    let made = regions::create(&tx, &spec(body)?, app.clock.now()).await?;
    let answer = one(&tx, &made).await?;
    tx.commit().await?;
    Ok(answer)
}

/// Show a region.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/regions/{resourceId}", tag = "regions", params(Item),
    responses((status = 200, description = "The region.", body = RegionResource), Problem),
)]
pub async fn get_region(
    State(app): State<App>,
    call: Call,
    Path(path): Path<Item>,
) -> Answer<RegionResource> {
    let tx = app.read(&call).await?;
    let id: RegionId = id_of_path(WHAT, &path.resource_id)?;
    let region = regions::find(&tx, id).await?;
    one(&tx, &region).await
}

/// Describe a region anew. What is left out is emptied.
#[utoipa::path(
    put, path = "/v1/projects/{projectName}/regions/{resourceId}", tag = "regions", params(Item),
    request_body = RegionInput,
    responses((status = 200, description = "The region.", body = RegionResource), Problem),
)]
pub async fn put_region(
    State(app): State<App>,
    call: Call,
    Path(path): Path<Item>,
    Json(body): Json<RegionInput>,
) -> Answer<RegionResource> {
    let tx = app.write(&call).await?;
    let id: RegionId = id_of_path(WHAT, &path.resource_id)?;
    let region = regions::change(&tx, id, &spec(body)?, app.clock.now()).await?;
    let answer = one(&tx, &region).await?;
    tx.commit().await?;
    Ok(answer)
}

/// Change a region.
#[utoipa::path(
    patch, path = "/v1/projects/{projectName}/regions/{resourceId}", tag = "regions", params(Item, MaskParams),
    request_body = RegionInput,
    responses((status = 200, description = "The region.", body = RegionResource), Problem),
)]
pub async fn patch_region(
    State(app): State<App>,
    call: Call,
    Path(path): Path<Item>,
    params: Params,
    change: Change<RegionInput>,
) -> Answer<RegionResource> {
    let tx = app.write(&call).await?;
    // What is there is read under the lock, so that of two changes at once neither is lost.
    tx.write_wanted().await?;
    let id: RegionId = id_of_path(WHAT, &path.resource_id)?;
    let region = regions::find(&tx, id).await?;
    let wanted = change.over(&input(&region), params.text("fieldMask"))?;
    let region = regions::change(&tx, id, &spec(wanted)?, app.clock.now()).await?;
    let answer = one(&tx, &region).await?;
    tx.commit().await?;
    Ok(answer)
}

/// Delete a region that holds neither regions nor sites.
#[utoipa::path(
    delete, path = "/v1/projects/{projectName}/regions/{resourceId}", tag = "regions", params(Item),
    responses((status = 200, description = "It is deleted.", body = Empty), Problem),
)]
pub async fn delete_region(
    State(app): State<App>,
    call: Call,
    Path(path): Path<Item>,
) -> Answer<Empty> {
    let tx = app.write(&call).await?;
    let id: RegionId = id_of_path(WHAT, &path.resource_id)?;
    regions::delete(&tx, id).await?;
    tx.commit().await?;
    Ok(Json(Empty {}))
}

fn spec(body: RegionInput) -> Result<RegionSpec, Problem> {
    Ok(RegionSpec {
        name: Name::parse("name", &body.name)?,
        parent: optional_id("parentId", &body.parent_id)?,
        metadata: metadata(body.metadata)?,
    })
}

/// What a region is, as it would be asked for.
fn input(region: &Region) -> RegionInput {
    let spec = &region.spec;
    RegionInput {
        name: spec.name.to_string(),
        parent_id: spec.parent.map(|id| id.to_string()).unwrap_or_default(),
        metadata: labels(&spec.metadata),
    }
}

async fn one(tx: &Tx, region: &Region) -> Answer<RegionResource> {
    let mut found = resources(tx, std::slice::from_ref(region)).await?;
    found.pop().map(Json).ok_or_else(Problem::internal)
}

async fn resources(tx: &Tx, found: &[Region]) -> Result<Vec<RegionResource>, Problem> {
    let parents = found.iter().filter_map(|region| region.spec.parent);
    let wanted = Wanted {
        regions: parents.collect(),
        ..Wanted::default()
    };
    let related = related::read(tx, &wanted).await?;
    let places = Places::of(&related);
    let whole = |region| places.region_resource(region);
    Ok(found.iter().map(whole).collect())
}
