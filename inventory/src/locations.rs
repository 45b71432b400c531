//! `locations`: searches regions and sites by name.

use std::cmp::Reverse;

use evenkeel_api::location::{LocationKind, LocationList, LocationNode};
use evenkeel_domain::filter::{FieldCondition, FieldTest, Filter, OrderKey, Pattern, Resource};
use evenkeel_domain::id::{RegionId, SiteId};
use evenkeel_domain::location::{Region, Site};
use evenkeel_domain::text;
use evenkeel_store::Tx;
use evenkeel_store::listing::{self as stored, Listing};
use evenkeel_store::related::{self, RelatedIds};
use utoipa::IntoParams;

use crate::call::Call;
use crate::extract::{Json, Params};
use crate::location_tree::LocationTree;
use crate::problem::Problem;
use crate::shape::{Answer, InProject};

/// Most results of each kind.
const MAX_MATCHES_PER_KIND: u64 = 50;

/// Longest name in a search, in characters.
const MAX_NAME_CHARS: usize = 1_000;

/// Query parameters of the search.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query, rename_all = "camelCase")]
#[expect(dead_code, reason = "only the OpenAPI document uses it; `Params` reads the values")]
pub struct LocationParams {
    /// Part of the name, ignoring case. `*` matches any text.
    #[param(min_length = 1, max_length = 1_000)]
    name: String,
    /// Whether to search sites; by default false. This or `showRegions` must be true.
    show_sites: Option<bool>,
    /// Whether to search regions; by default false. This or `showSites` must be true.
    show_regions: Option<bool>,
}

/// Search regions and sites by name
///
/// Returns at most 50 regions and 50 sites whose names match, with all regions that contain them:
/// sites first, then regions, each before the region that contains it. `totalElements` counts all
/// matches.
///
/// The server refuses a request without `name`, and a request in which both `showSites` and
/// `showRegions` are false (`invalid-argument`).
#[utoipa::path(
    get, path = "/v1/projects/{projectName}/locations", tag = "regions", params(InProject, LocationParams),
    responses((status = 200, description = "The matches and the regions that contain them.", body = LocationList), Problem),
)]
pub async fn find_locations(call: Call, params: Params) -> Answer<LocationList> {
    let Some(name) = params.text("name") else {
        return Err(Problem::parameter("name", "must be given"));
    };
    text::check_printable("name", name, MAX_NAME_CHARS, "")
        .map_err(|invalid| Problem::parameter("name", invalid.why))?;
    let with_sites = params.flag("showSites")?;
    let with_regions = params.flag("showRegions")?;
    if !with_sites && !with_regions {
        let why = "this or showRegions must be true";
        return Err(Problem::parameter("showSites", why));
    }
    let tx = call.snapshot().await?;
    let mut matches = LocationMatches::default();
    if with_regions {
        matches.regions = matches.find_by_name(&tx, Resource::Region, name).await?;
    }
    if with_sites {
        matches.sites = matches.find_by_name(&tx, Resource::Site, name).await?;
    }
    let sites = matches.sites.iter().copied().map(SiteId::from_bits);
    let regions = matches.regions.iter().copied().map(RegionId::from_bits);
    let related_ids =
        RelatedIds { sites: sites.collect(), regions: regions.collect(), ..RelatedIds::default() };
    let related = related::load(&tx, &related_ids).await?;
    let output_count = matches.regions.len() + matches.sites.len();
    Ok(Json(LocationList {
        nodes: nodes(LocationTree::from_related(&related)),
        total_elements: i32::try_from(matches.total).unwrap_or(i32::MAX),
        output_elements: i32::try_from(output_count).unwrap_or(i32::MAX),
    }))
}

/// Ids of the regions and sites with a matching name.
#[derive(Debug, Default)]
struct LocationMatches {
    regions: Vec<u32>,
    sites: Vec<u32>,
    /// Number of all matches.
    total: u64,
}

impl LocationMatches {
    /// First matches of one kind, ordered by name. All of them are counted.
    async fn find_by_name(
        &mut self,
        tx: &Tx,
        resource: Resource,
        name: &str,
    ) -> Result<Vec<u32>, Problem> {
        let field = resource.field("name").ok_or_else(Problem::internal)?;
        let has = |pattern| {
            Filter::Test(FieldTest {
                path: Vec::new(),
                field,
                condition: FieldCondition::Contains(pattern),
            })
        };
        let by_name = OrderKey { field, descending: false };
        let listing = Listing {
            resource,
            // A pattern of stars only matches every name.
            filter: Pattern::parse(name).map(has),
            within: None,
            order: vec![by_name],
        };
        let chosen =
            stored::page(tx, &listing, &stored::PageStart::Offset(0), MAX_MATCHES_PER_KIND).await?;
        self.total += chosen.total;
        Ok(chosen.ids)
    }
}

/// REST form, in EIM's order: sites, then regions from the innermost outwards; each by name.
fn nodes(locations: LocationTree<'_>) -> Vec<LocationNode> {
    let mut regions: Vec<&Region> = locations.regions().collect();
    regions.sort_by_cached_key(|region| {
        let depth = locations.region_chain(region.spec.parent).count();
        (Reverse(depth), region.spec.name.to_string(), region.id)
    });
    let mut sites: Vec<&Site> = locations.sites().collect();
    sites.sort_by_cached_key(|site| (site.spec.name.to_string(), site.id));
    let regions = regions.into_iter().map(|region| LocationNode {
        resource_id: region.id.to_string(),
        parent_id: region_id_text(region.spec.parent),
        name: region.spec.name.to_string(),
        kind: LocationKind::Region,
    });
    let sites = sites.into_iter().map(|site| LocationNode {
        resource_id: site.id.to_string(),
        parent_id: region_id_text(site.spec.region),
        name: site.spec.name.to_string(),
        kind: LocationKind::Site,
    });
    sites.chain(regions).collect()
}

/// Id of the parent region; empty if there is none.
fn region_id_text(region: Option<RegionId>) -> String {
    region.map(|id| id.to_string()).unwrap_or_default()
}
