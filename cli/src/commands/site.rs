//! `evenkeel site`: locations of hosts.

use clap::{ArgGroup, Args, Subcommand};
use evenkeel_api::region::RegionResource;
use evenkeel_api::site::{SiteInput, SiteResource};
use evenkeel_api::status::MetadataItem;
use serde_json::{Map, Value, json};

use crate::Failure;
use crate::client::Client;
use crate::degrees::Degrees;
use crate::labels::{LabelChanges, NewLabels};
use crate::listing::{self, ListOptions};
use crate::output::{Cell, DetailPage, Printer};
use crate::resource::{self, Resource};

/// Manage sites: locations of hosts.
#[derive(Debug, Subcommand)]
pub enum SiteCommand {
    /// List sites.
    List(ListOptions),
    /// Show a site.
    Get {
        /// ID or name of the site.
        site: String,
    },
    /// Create a site.
    Create {
        /// Name of the site.
        name: String,
        /// Region of the site (ID or name).
        #[arg(long)]
        region: Option<String>,
        /// Latitude in degrees, such as `52.52`; negative values are south.
        #[arg(long, value_name = "DEGREES", value_parser = Degrees::latitude,
            allow_negative_numbers = true, requires = "longitude")]
        latitude: Option<Degrees>,
        /// Longitude in degrees, such as `13.405`; negative values are west.
        #[arg(long, value_name = "DEGREES", value_parser = Degrees::longitude,
            allow_negative_numbers = true, requires = "latitude")]
        longitude: Option<Degrees>,
        #[command(flatten)]
        labels: NewLabels,
    },
    /// Change a site. Options that are not given keep their values.
    Set(SetSite),
    /// Delete a site without hosts.
    Delete {
        /// ID or name of the site.
        site: String,
    },
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
    /// Latitude in degrees, such as `52.52`; negative values are south.
    #[arg(long, value_name = "DEGREES", value_parser = Degrees::latitude,
        allow_negative_numbers = true, requires = "longitude")]
    latitude: Option<Degrees>,
    /// Longitude in degrees, such as `13.405`; negative values are west.
    #[arg(long, value_name = "DEGREES", value_parser = Degrees::longitude,
        allow_negative_numbers = true, requires = "latitude")]
    longitude: Option<Degrees>,
    #[command(flatten)]
    labels: LabelChanges,
}

impl SiteCommand {
    pub async fn run(self, client: &Client, printer: &mut Printer<'_>) -> Result<(), Failure> {
        type Site = SiteResource;
        match self {
            Self::List(options) => {
                listing::fetch_and_print::<Site>(client, &options.query(), printer).await
            }
            Self::Get { site } => {
                printer.print_resource(&resource::find::<Site>(client, &site).await?)
            }
            Self::Create { name, region, latitude, longitude, labels } => {
                let region = resolve_region_id(client, region.as_deref()).await?;
                let body = SiteInput {
                    name,
                    region_id: region.unwrap_or_default(),
                    site_lat: latitude.unwrap_or_default().to_api(),
                    site_lng: longitude.unwrap_or_default().to_api(),
                    metadata: labels.labels,
                };
                let created: Site = client.post(Site::PATH, &body).await?;
                printer.print_resource(&created)
            }
            Self::Set(set) => printer.print_resource(&set.run(client).await?),
            Self::Delete { site } => {
                let id = resource::delete::<Site>(client, &site).await?;
                printer.print_result(Site::SINGULAR, &id, "deleted")
            }
        }
    }
}

impl SetSite {
    async fn run(self, client: &Client) -> Result<SiteResource, Failure> {
        type Site = SiteResource;
        let id = resource::resolve_id::<Site>(client, &self.site).await?;
        let region = resolve_region_id(client, self.region.as_deref()).await?;
        let region = region.or_else(|| self.no_region.then(String::new));
        let degrees = |value: Option<Degrees>| value.map(Degrees::to_api).map(Value::from);
        let changes = [
            ("name", self.name.map(Value::from)),
            ("regionId", region.map(Value::from)),
            ("siteLat", degrees(self.latitude)),
            ("siteLng", degrees(self.longitude)),
        ];
        let mut body = Map::new();
        for (name, value) in changes {
            body.extend(value.map(|value| (name.to_owned(), value)));
        }
        if !self.labels.is_empty() {
            let now: Site = resource::find(client, &id).await?;
            let labels = self.labels.apply_to(&now.metadata);
            body.insert("metadata".to_owned(), json!(labels));
        }
        resource::patch(client, &id, &self.site, &body).await
    }
}

async fn resolve_region_id(
    client: &Client,
    region: Option<&str>,
) -> Result<Option<String>, Failure> {
    resource::resolve_optional_id::<RegionResource>(client, region).await
}

impl Resource for SiteResource {
    const COMMAND: &'static str = "site";
    const SINGULAR: &'static str = "site";
    const PLURAL: &'static str = "sites";
    const ID_PREFIX: &'static str = "site";
    const PATH: &'static str = "sites";
    const LIST_KEYS: &'static [&'static str] = &["sites"];
    const IN_USE_HINT: Option<&'static str> =
        Some("remove its hosts first: `evenkeel host set HOST --site OTHER` or `--no-site`");
    const HEADER: &'static [&'static str] = &["ID", "NAME", "REGION", "LATITUDE", "LONGITUDE"];

    fn id(&self) -> &str {
        &self.resource_id
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn row(&self) -> Vec<Cell> {
        let (latitude, longitude) = coordinates(self);
        vec![
            self.resource_id.clone().into(),
            self.name.clone().into(),
            region_name(self).into(),
            latitude.into(),
            longitude.into(),
        ]
    }

    fn page(&self) -> DetailPage {
        let (latitude, longitude) = coordinates(self);
        let mut page = DetailPage::default();
        page.field("id", self.resource_id.clone())
            .field("name", self.name.clone())
            .field("region", region_name(self))
            .field("latitude", latitude)
            .field("longitude", longitude)
            .created(self.timestamps.as_ref());
        add_labels(&mut page, &self.metadata, &self.inherited_metadata);
        page
    }
}

/// Name of a site, else its ID.
pub fn site_name(site: &SiteResource) -> &str {
    if site.name.is_empty() { &site.resource_id } else { &site.name }
}

/// Adds labels to a page, own labels first.
pub fn add_labels(page: &mut DetailPage, own: &[MetadataItem], inherited: &[MetadataItem]) {
    let row = |from: &'static str| {
        move |label: &MetadataItem| {
            vec![Cell::from(label.key.clone()), label.value.clone().into(), from.into()]
        }
    };
    let rows = own.iter().map(row("own")).chain(inherited.iter().map(row("inherited")));
    page.table("Labels:", &["KEY", "VALUE", "SOURCE"], rows.collect());
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
