//! `sites`: the places where hosts stand.

use axum::extract::State;
use axum::response::Response;
use evenkeel_api::Empty;
use evenkeel_api::site::{SiteInput, SiteList, SiteResource};
use evenkeel_domain::filter::Resource;
use evenkeel_domain::id::SiteId;
use evenkeel_domain::place::{Site, SiteSpec};
use evenkeel_domain::text::Name;
use evenkeel_store::listing::in_order;
use evenkeel_store::related::{self, Wanted};
use evenkeel_store::{Tx, sites};

use crate::call::{Call, id_of_path};
use crate::extract::{Change, Json, Params, Path};
use crate::listing::{self, ListParams, Listed};
use crate::places::{Places, labels, metadata};
use crate::problem::Problem;
use crate::shape::{Answer, InProject, Item, MaskParams, optional_id};
use crate::{App, Inventory};

const WHAT: &str = "site_resource";

/// List the sites.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/sites", tag = "sites", params(InProject, ListParams),
    responses((status = 200, description = "The sites.", body = SiteList), Problem),
)]
pub async fn list_sites(
    State(app): State<App>,
    call: Call,
    params: Params,
) -> Result<Response, Problem> {
    listing::answer(Sites, &app, &call, &params).await
}

/// The list of sites.
struct Sites;

impl Listed for Sites {
    const RESOURCE: Resource = Resource::Site;
    const KEY: &'static str = "sites";
    type Item = SiteResource;

    async fn load(
        &self,
        _: &Inventory,
        tx: &Tx,
        ids: &[u32],
    ) -> Result<Vec<SiteResource>, Problem> {
        let wanted: Vec<_> = ids.iter().copied().map(SiteId::from_bits).collect();
        let found = sites::find_many(tx, &wanted).await?;
        let found = in_order(ids, found, |site: &Site| site.id.bits());
        resources(tx, &found).await
    }
}

/// Make a site.
#[utoipa::path(
    post, path = "/v1/projects/{projectName}/sites", tag = "sites", params(InProject), request_body = SiteInput,
    responses((status = 200, description = "The site.", body = SiteResource), Problem),
)]
pub async fn create_site(
    State(app): State<App>,
    call: Call,
    Json(body): Json<SiteInput>,
) -> Answer<SiteResource> {
    let tx = app.write(&call).await?;
    let made = sites::create(&tx, &spec(body)?, app.clock.now()).await?;
    let answer = one(&tx, &made).await?;
    tx.commit().await?;
    Ok(answer)
}

/// Show a site.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/sites/{resourceId}", tag = "sites", params(Item),
    responses((status = 200, description = "The site.", body = SiteResource), Problem),
)]
pub async fn get_site(
    State(app): State<App>,
    call: Call,
    Path(path): Path<Item>,
) -> Answer<SiteResource> {
    let tx = app.read(&call).await?;
    let id: SiteId = id_of_path(WHAT, &path.resource_id)?;
    let site = sites::find(&tx, id).await?;
    one(&tx, &site).await
}

/// Describe a site anew. What is left out is emptied.
#[utoipa::path(
    put, path = "/v1/projects/{projectName}/sites/{resourceId}", tag = "sites", params(Item),
    request_body = SiteInput,
    responses((status = 200, description = "The site.", body = SiteResource), Problem),
)]
pub async fn put_site(
    State(app): State<App>,
    call: Call,
    Path(path): Path<Item>,
    Json(body): Json<SiteInput>,
) -> Answer<SiteResource> {
    let tx = app.write(&call).await?;
    let id: SiteId = id_of_path(WHAT, &path.resource_id)?;
    let site = sites::change(&tx, id, &spec(body)?, app.clock.now()).await?;
    let answer = one(&tx, &site).await?;
    tx.commit().await?;
    Ok(answer)
}

/// Change a site.
#[utoipa::path(
    patch, path = "/v1/projects/{projectName}/sites/{resourceId}", tag = "sites", params(Item, MaskParams),
    request_body = SiteInput,
    responses((status = 200, description = "The site.", body = SiteResource), Problem),
)]
pub async fn patch_site(
    State(app): State<App>,
    call: Call,
    Path(path): Path<Item>,
    params: Params,
    change: Change<SiteInput>,
) -> Answer<SiteResource> {
    let tx = app.write(&call).await?;
    // What is there is read under the lock, so that of two changes at once neither is lost.
    tx.write_wanted().await?;
    let id: SiteId = id_of_path(WHAT, &path.resource_id)?;
    let site = sites::find(&tx, id).await?;
    let wanted = change.over(&input(&site), params.text("fieldMask"))?;
    let site = sites::change(&tx, id, &spec(wanted)?, app.clock.now()).await?;
    let answer = one(&tx, &site).await?;
    tx.commit().await?;
    Ok(answer)
}

/// Delete a site at which no host stands.
#[utoipa::path(
    delete, path = "/v1/projects/{projectName}/sites/{resourceId}", tag = "sites", params(Item),
    responses((status = 200, description = "It is deleted.", body = Empty), Problem),
)]
pub async fn delete_site(
    State(app): State<App>,
    call: Call,
    Path(path): Path<Item>,
) -> Answer<Empty> {
    let tx = app.write(&call).await?;
    let id: SiteId = id_of_path(WHAT, &path.resource_id)?;
    sites::delete(&tx, id).await?;
    tx.commit().await?;
    Ok(Json(Empty {}))
}

fn spec(body: SiteInput) -> Result<SiteSpec, Problem> {
    let (latitude, longitude) = SiteSpec::position(body.site_lat, body.site_lng)?;
    Ok(SiteSpec {
        name: Name::parse("name", &body.name)?,
        region: optional_id("regionId", &body.region_id)?,
        latitude,
        longitude,
        metadata: metadata(body.metadata)?,
    })
}

/// What a site is, as it would be asked for.
fn input(site: &Site) -> SiteInput {
    let spec = &site.spec;
    SiteInput {
        name: spec.name.to_string(),
        region_id: spec.region.map(|id| id.to_string()).unwrap_or_default(),
        site_lat: spec.latitude,
        site_lng: spec.longitude,
        metadata: labels(&spec.metadata),
    }
}

async fn one(tx: &Tx, site: &Site) -> Answer<SiteResource> {
    let mut found = resources(tx, std::slice::from_ref(site)).await?;
    found.pop().map(Json).ok_or_else(Problem::internal)
}

async fn resources(tx: &Tx, found: &[Site]) -> Result<Vec<SiteResource>, Problem> {
    let wanted = Wanted {
        regions: found.iter().filter_map(|site| site.spec.region).collect(),
        ..Wanted::default()
    };
    let related = related::read(tx, &wanted).await?;
    let places = Places::of(&related);
    let whole = |site| places.site_resource(site);
    Ok(found.iter().map(whole).collect())
}
