//! `evenkeel site`: locations of hosts.

use std::path::PathBuf;

use clap::{ArgGroup, Args, Subcommand};
use evenkeel_api::region::RegionResource;
use evenkeel_api::site::{SiteInput, SiteResource};
use evenkeel_api::status::MetadataItem;
use evenkeel_api::timestamps::Timestamps;
use serde_json::json;

use crate::Failure;
use crate::client::Client;
use crate::degrees::Degrees;
use crate::labels::{LabelChanges, NewLabels};
use crate::listing::ListOptions;
use crate::output::Printer;
use crate::page::{Cell, DetailPage, cells};
use crate::requests::{self, DuplicateOption, PatchBody, ResourceArg};
use crate::resource::{Resource, ResourceKind};

/// Manage sites: locations of hosts.
#[derive(Debug, Subcommand)]
pub enum SiteCommand {
    /// List sites.
    List(ListOptions),
    /// Show a site.
    Get(ResourceArg<SiteResource>),
    /// Create a site from options or from a file.
    Create(CreateSite),
    /// Change a site. Options that are not given keep their values.
    Set(SetSite),
    /// Delete a site without hosts.
    Delete(ResourceArg<SiteResource>),
}

/// Coordinates of a site.
#[derive(Debug, Args)]
pub struct Coordinates {
    /// Latitude in degrees, such as `52.52`; negative values are south.
    #[arg(long, value_name = "DEGREES", value_parser = Degrees::latitude,
        allow_negative_numbers = true, requires = "longitude")]
    latitude: Option<Degrees>,
    /// Longitude in degrees, such as `13.405`; negative values are west.
    #[arg(long, value_name = "DEGREES", value_parser = Degrees::longitude,
        allow_negative_numbers = true, requires = "latitude")]
    longitude: Option<Degrees>,
}

/// Create a site from options or from a file.
#[derive(Debug, Args)]
pub struct CreateSite {
    /// Name of the site.
    #[arg(required_unless_present = "file")]
    name: Option<String>,
    /// File with a site as `get -o yaml` or `get -o json` prints it.
    #[arg(long, short, value_name = "FILE", conflicts_with_all = ["name", "region", "latitude", "longitude", "labels"])]
    file: Option<PathBuf>,
    /// Region of the site (ID or name).
    #[arg(long)]
    region: Option<String>,
    #[command(flatten)]
    coordinates: Coordinates,
    #[command(flatten)]
    labels: NewLabels,
    #[command(flatten)]
    duplicates: DuplicateOption,
}

/// Change a site.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("what").required(true).multiple(true)
    .args(["name", "region", "no_region", "latitude"]).args(LabelChanges::OPTIONS))]
pub struct SetSite {
    /// ID or name of the site.
    site: String,
    /// New name.
    #[arg(long)]
    name: Option<String>,
    /// New region (ID or name).
    #[arg(long)]
    region: Option<String>,
    /// Remove the site from its region.
    #[arg(long, conflicts_with = "region")]
    no_region: bool,
    #[command(flatten)]
    coordinates: Coordinates,
    #[command(flatten)]
    labels: LabelChanges,
    #[command(flatten)]
    duplicates: DuplicateOption,
}

impl SiteCommand {
    pub async fn run(self, client: &Client, printer: &mut Printer<'_>) -> Result<(), Failure> {
        type Site = SiteResource;
        match self {
            Self::List(options) => requests::list::<Site>(options, client, printer).await,
            Self::Get(site) => site.print(client, printer).await,
            Self::Create(create) => {
                let duplicates = create.duplicates;
                let body = create.build_input(client).await?;
                duplicates.check::<Site>(client, &body.name, None).await?;
                requests::create::<Site>(&body, client, printer).await
            }
            Self::Set(set) => printer.print_resource(&set.run(client).await?),
            Self::Delete(site) => site.delete(client, printer).await,
        }
    }
}

impl CreateSite {
    async fn build_input(self, client: &Client) -> Result<SiteInput, Failure> {
        if let Some(path) = &self.file {
            return super::read_input(path, "a site");
        }
        let region = resolve_region_id(client, self.region.as_deref()).await?;
        Ok(SiteInput {
            name: self.name.unwrap_or_default(),
            region_id: region.unwrap_or_default(),
            site_lat: self.coordinates.latitude.unwrap_or_default().to_api(),
            site_lng: self.coordinates.longitude.unwrap_or_default().to_api(),
            metadata: self.labels.labels,
        })
    }
}

impl SetSite {
    async fn run(self, client: &Client) -> Result<SiteResource, Failure> {
        type Site = SiteResource;
        let id = requests::resolve_id::<Site>(client, &self.site).await?;
        let name = self.name.as_deref().unwrap_or_default();
        self.duplicates.check::<Site>(client, name, Some(&id)).await?;
        let region = resolve_region_id(client, self.region.as_deref()).await?;
        let region = region.or_else(|| self.no_region.then(String::new));
        let mut body = PatchBody::default();
        body.set("name", self.name)
            .set("regionId", region)
            .set("siteLat", self.coordinates.latitude.map(Degrees::to_api))
            .set("siteLng", self.coordinates.longitude.map(Degrees::to_api));
        if !self.labels.is_empty() {
            let now: Site = requests::find(client, &id).await?;
            body.set("metadata", Some(json!(self.labels.apply_to(&now.metadata))));
        }
        requests::patch(client, &id, &self.site, &body).await
    }
}

async fn resolve_region_id(
    client: &Client,
    region: Option<&str>,
) -> Result<Option<String>, Failure> {
    requests::resolve_optional_id::<RegionResource>(client, region).await
}

impl Resource for SiteResource {
    const KIND: ResourceKind = ResourceKind {
        in_use_hint: Some(
            "remove its hosts first: `evenkeel host set HOST --site OTHER` or `--no-site`",
        ),
        titles: &["REGION", "LATITUDE", "LONGITUDE"],
        ..ResourceKind::new("SITE", "site", "sites")
    };

    fn key(&self) -> [&str; 2] {
        [&self.resource_id, &self.name]
    }

    fn timestamps(&self) -> Option<&Timestamps> {
        self.timestamps.as_ref()
    }

    fn columns(&self) -> Vec<Cell> {
        let (latitude, longitude) = coordinates(self);
        cells![region_name(self), latitude, longitude]
    }

    fn add_details(&self, page: &mut DetailPage) {
        self.add_columns(page);
        page.created(self.timestamps.as_ref());
        add_labels(page, &self.metadata, &self.inherited_metadata);
    }
}

/// Name of a site, else its ID.
pub fn site_name(site: &SiteResource) -> &str {
    if site.name.is_empty() { &site.resource_id } else { &site.name }
}

/// Adds labels to a page, own labels first.
pub fn add_labels(page: &mut DetailPage, own: &[MetadataItem], inherited: &[MetadataItem]) {
    let row =
        |from: &'static str| move |label: &MetadataItem| cells![&label.key, &label.value, from];
    let rows = own.iter().map(row("own")).chain(inherited.iter().map(row("inherited")));
    page.table("Labels:", &["KEY", "VALUE", "SOURCE"], rows);
}

/// Name of the region, else its ID.
fn region_name(site: &SiteResource) -> String {
    if site.region.name.is_empty() { site.region_id.clone() } else { site.region.name.clone() }
}

/// Latitude and longitude. Both are 0 if the site has no coordinates.
fn coordinates(site: &SiteResource) -> (String, String) {
    if (site.site_lat, site.site_lng) == (0, 0) {
        return (String::new(), String::new());
    }
    let format_degrees = |value| Degrees::from_api(value).to_string();
    (format_degrees(site.site_lat), format_degrees(site.site_lng))
}
