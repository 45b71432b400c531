//! `evenkeel site`: places that hold hosts.

use clap::{ArgGroup, Args, Subcommand};
use evenkeel_api::region::RegionResource;
use evenkeel_api::site::{SiteInput, SiteResource};
use evenkeel_api::status::MetadataItem;
use serde_json::{Map, Value, json};

use crate::Failure;
use crate::client::Client;
use crate::degrees::Degrees;
use crate::labels::{LabelChanges, NewLabels};
use crate::pages::{self, ListOptions};
use crate::resource::{self, Resource};
use crate::view::{Cell, Page, Printer};

/// Sites: places that hold hosts.
#[derive(Debug, Subcommand)]
pub enum SiteCommand {
    /// List the sites.
    List(ListOptions),
    /// Show a site.
    Get {
        /// Its id or name.
        site: String,
    },
    /// Make a site.
    Create {
        /// What to call it.
        name: String,
        /// The region that it lies in, by its id or name.
        #[arg(long)]
        region: Option<String>,
        /// Degrees north, such as `52.52`; negative ones are south.
        #[arg(long, value_name = "DEGREES", value_parser = Degrees::latitude,
            allow_negative_numbers = true, requires = "longitude")]
        latitude: Option<Degrees>,
        /// Degrees east, such as `13.405`; negative ones are west.
        #[arg(long, value_name = "DEGREES", value_parser = Degrees::longitude,
            allow_negative_numbers = true, requires = "latitude")]
        longitude: Option<Degrees>,
        #[command(flatten)]
        labels: NewLabels,
    },
    /// Change what is given of a site; the rest stays.
    Set(SetSite),
    /// Delete a site that holds no hosts.
    Delete {
        /// Its id or name.
        site: String,
    },
}

/// What changes about a site.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("what").required(true).multiple(true)
    .args(["name", "region", "no_region", "latitude"]).args(LabelChanges::OPTIONS))]
pub struct SetSite {
    /// Its id or name.
    site: String,
    /// What to call it from now on.
    #[arg(long)]
    name: Option<String>,
    /// The region that it lies in, by its id or name.
    #[arg(long)]
    region: Option<String>,
    /// It lies in no region.
    #[arg(long, conflicts_with = "region")]
    no_region: bool,
    /// Degrees north, such as `52.52`; negative ones are south.
    #[arg(long, value_name = "DEGREES", value_parser = Degrees::latitude,
        allow_negative_numbers = true, requires = "longitude")]
    latitude: Option<Degrees>,
    /// Degrees east, such as `13.405`; negative ones are west.
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
            Self::List(options) => pages::show::<Site>(client, &options.query(), printer).await,
            Self::Get { site } => printer.one(&resource::find::<Site>(client, &site).await?),
            Self::Create {
                name,
                region,
                latitude,
                longitude,
                labels,
            } => {
                let region = region_id(client, region.as_deref()).await?;
                let body = SiteInput {
                    name,
                    region_id: region.unwrap_or_default(),
                    site_lat: latitude.unwrap_or_default().on_the_wire(),
                    site_lng: longitude.unwrap_or_default().on_the_wire(),
                    metadata: labels.labels,
                };
                let made: Site = client.post(Site::PATH, &body).await?;
                printer.one(&made)
            }
            Self::Set(set) => printer.one(&set.run(client).await?),
            Self::Delete { site } => {
                let id = resource::delete::<Site>(client, &site).await?;
                printer.done(Site::WORD, &id, "deleted")
            }
        }
    }
}

impl SetSite {
    async fn run(self, client: &Client) -> Result<SiteResource, Failure> {
        type Site = SiteResource;
        let id = resource::id_of::<Site>(client, &self.site).await?;
        let region = region_id(client, self.region.as_deref()).await?;
        let region = region.or_else(|| self.no_region.then(String::new));
        let degrees = |value: Option<Degrees>| value.map(Degrees::on_the_wire).map(Value::from);
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
            let labels = self.labels.over(&now.metadata);
            body.insert("metadata".to_owned(), json!(labels));
        }
        resource::change(client, &id, &self.site, &body).await
    }
}

async fn region_id(client: &Client, region: Option<&str>) -> Result<Option<String>, Failure> {
    resource::optional_id_of::<RegionResource>(client, region).await
}

impl Resource for SiteResource {
    const NOUN: &'static str = "site";
    const WORD: &'static str = "site";
    const MANY: &'static str = "sites";
    const PREFIX: &'static str = "site";
    const PATH: &'static str = "sites";
    const KEYS: &'static [&'static str] = &["sites"];
    const FREE: Option<&'static str> =
        Some("take its hosts away first: `evenkeel host set HOST --site OTHER` or `--no-site`");
    const HEADER: &'static [&'static str] = &["ID", "NAME", "REGION", "LATITUDE", "LONGITUDE"];

    fn id(&self) -> &str {
        &self.resource_id
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn row(&self) -> Vec<Cell> {
        let (latitude, longitude) = position(self);
        vec![
            self.resource_id.clone().into(),
            self.name.clone().into(),
            region(self).into(),
            latitude.into(),
            longitude.into(),
        ]
    }

    fn page(&self) -> Page {
        let (latitude, longitude) = position(self);
        let mut page = Page::default();
        page.field("id", self.resource_id.clone())
            .field("name", self.name.clone())
            .field("region", region(self))
            .field("latitude", latitude)
            .field("longitude", longitude)
            .created(self.timestamps.as_ref());
        labels(&mut page, &self.metadata, &self.inherited_metadata);
        page
    }
}

/// What a site is called, else its id.
pub fn label(site: &SiteResource) -> &str {
    if site.name.is_empty() {
        &site.resource_id
    } else {
        &site.name
    }
}

/// Adds labels to a page, its own before the inherited ones.
pub fn labels(page: &mut Page, own: &[MetadataItem], inherited: &[MetadataItem]) {
    let row = |from: &'static str| {
        move |label: &MetadataItem| {
            vec![
                Cell::from(label.key.clone()),
                label.value.clone().into(),
                from.into(),
            ]
        }
    };
    let rows = own
        .iter()
        .map(row("itself"))
        .chain(inherited.iter().map(row("above")));
    page.table("Labels:", &["KEY", "VALUE", "FROM"], rows.collect());
}

/// The name of the region, else its id.
fn region(site: &SiteResource) -> String {
    if site.region.name.is_empty() {
        site.region_id.clone()
    } else {
        site.region.name.clone()
    }
}

/// Where it is; zero and zero stand for a place that nobody gave.
fn position(site: &SiteResource) -> (String, String) {
    if (site.site_lat, site.site_lng) == (0, 0) {
        return (String::new(), String::new());
    }
    let shown = |value| Degrees::from_the_wire(value).to_string();
    (shown(site.site_lat), shown(site.site_lng))
}
