//! `locations`: regions and sites by their names, with the way to each.

use axum::extract::State;
use evenkeel_api::location::{LocationKind, LocationList, LocationNode};
use evenkeel_domain::filter::{Condition, Filter, OrderKey, Pattern, Resource, Test};
use evenkeel_domain::id::{RegionId, SiteId};
use evenkeel_domain::place::{Region, Site};
use evenkeel_domain::text;
use evenkeel_store::Tx;
use evenkeel_store::listing::{self as stored, Listing};
use evenkeel_store::related::{self, Wanted};
use utoipa::IntoParams;

use crate::App;
use crate::call::Call;
use crate::extract::{Json, Params};
use crate::places::Places;
use crate::problem::Problem;
use crate::shape::{Answer, InProject};

/// How many of a kind are shown at most.
const MOST: u64 = 50;

/// The longest name that is looked for, in characters.
const LONGEST: usize = 1_000;

/// What to look for, for the document.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query, rename_all = "camelCase")]
#[expect(
    dead_code,
    reason = "the document is made from it; `Params` reads the values"
)]
pub struct LocationParams {
    /// A part of the name, whatever the case; `*` stands for any letters.
    #[param(min_length = 1, max_length = 1_000)]
    name: String,
    /// Whether to look for sites. This or `showRegions` must be true.
    show_sites: Option<bool>,
    /// Whether to look for regions. This or `showSites` must be true.
    show_regions: Option<bool>,
}

/// Find regions and sites by their names, at most 50 of either, with all regions that they lie in.
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/locations", tag = "regions", params(InProject, LocationParams),
    responses((status = 200, description = "What was found, and the way to it.", body = LocationList), Problem),
)]
pub async fn find_locations(
    State(app): State<App>,
    call: Call,
    params: Params,
) -> Answer<LocationList> {
    let Some(name) = params.text("name") else {
        return Err(Problem::parameter("name", "must be given"));
    };
    text::check_printable("name", name, LONGEST, "")
        .map_err(|invalid| Problem::parameter("name", invalid.why))?;
    let with_sites = params.flag("showSites")?;
    let with_regions = params.flag("showRegions")?;
    if !with_sites && !with_regions {
        let why = "this or showRegions must be true";
        return Err(Problem::parameter("showSites", why));
    }
    let tx = app.snapshot(&call).await?;
    let mut found = Found::default();
    if with_regions {
        found.regions = found.named(&tx, Resource::Region, name).await?;
    }
    if with_sites {
        found.sites = found.named(&tx, Resource::Site, name).await?;
    }
    let sites = found.sites.iter().copied().map(SiteId::from_bits);
    let regions = found.regions.iter().copied().map(RegionId::from_bits);
    let wanted = Wanted {
        sites: sites.collect(),
        regions: regions.collect(),
        ..Wanted::default()
    };
    let related = related::read(&tx, &wanted).await?;
    let shown = found.regions.len() + found.sites.len();
    Ok(Json(LocationList {
        nodes: nodes(Places::of(&related)),
        total_elements: i32::try_from(found.total).unwrap_or(i32::MAX),
        output_elements: i32::try_from(shown).unwrap_or(i32::MAX),
    }))
}

/// What has the name that is looked for.
#[derive(Debug, Default)]
struct Found {
    regions: Vec<u32>,
    sites: Vec<u32>,
    /// How many there are in all.
    total: u64,
}

impl Found {
    /// The first of a kind with this in their names, by name. All of them are counted.
    async fn named(
        &mut self,
        tx: &Tx,
        resource: Resource,
        name: &str,
    ) -> Result<Vec<u32>, Problem> {
        let field = resource.field("name").ok_or_else(Problem::internal)?;
        let has = |pattern| {
            Filter::Test(Test {
                path: Vec::new(),
                field,
                condition: Condition::Contains(pattern),
            })
        };
        let by_name = OrderKey {
            field,
            descending: false,
        };
        let listing = Listing {
            resource,
            // Stars alone are in every name.
            filter: Pattern::parse(name).map(has),
            within: None,
            order: vec![by_name],
        };
        let chosen = stored::page(tx, &listing, &stored::From::Offset(0), MOST).await?;
        self.total += chosen.total;
        Ok(chosen.ids)
    }
}

/// Regions from the outside in, then sites, each by name.
fn nodes(places: Places<'_>) -> Vec<LocationNode> {
    let mut regions: Vec<&Region> = places.regions().collect();
    regions.sort_by_cached_key(|region| {
        let depth = places.upwards(region.spec.parent).count();
        (depth, region.spec.name.to_string(), region.id)
    });
    let mut sites: Vec<&Site> = places.sites().collect();
    sites.sort_by_cached_key(|site| (site.spec.name.to_string(), site.id));
    let regions = regions.into_iter().map(|region| LocationNode {
        resource_id: region.id.to_string(),
        parent_id: shown(region.spec.parent),
        name: region.spec.name.to_string(),
        kind: LocationKind::Region,
    });
    let sites = sites.into_iter().map(|site| LocationNode {
        resource_id: site.id.to_string(),
        parent_id: shown(site.spec.region),
        name: site.spec.name.to_string(),
        kind: LocationKind::Site,
    });
    regions.chain(sites).collect()
}

/// The id of the region that something lies in; empty if there is none.
fn shown(region: Option<RegionId>) -> String {
    region.map(|id| id.to_string()).unwrap_or_default()
}
