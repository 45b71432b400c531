//! `evenkeel region`: areas that hold sites and other regions.

pub mod tree;

use clap::{ArgGroup, Args, Subcommand};
use evenkeel_api::region::{RegionInput, RegionResource};
use serde_json::{Map, Value, json};

use super::site;
use crate::Failure;
use crate::client::Client;
use crate::labels::{LabelChanges, NewLabels};
use crate::pages::{self, ListOptions};
use crate::resource::{self, Resource};
use crate::view::{Cell, Page, Printer};

/// Regions: areas that hold sites and other regions.
#[derive(Debug, Subcommand)]
pub enum RegionCommand {
    /// List the regions with the number of sites in and below them.
    List(ListOptions),
    /// Show what lies in what: regions, their sites, and how many hosts these have.
    Tree {
        /// Only this region with what lies in it, by its id or name.
        region: Option<String>,
    },
    /// Show a region.
    Get {
        /// Its id or name.
        region: String,
    },
    /// Make a region.
    Create {
        /// What to call it.
        name: String,
        /// The region that it lies in, by its id or name.
        #[arg(long, value_name = "REGION")]
        parent: Option<String>,
        #[command(flatten)]
        labels: NewLabels,
    },
    /// Change what is given of a region; the rest stays.
    Set(SetRegion),
    /// Delete a region that holds nothing.
    Delete {
        /// Its id or name.
        region: String,
    },
}

/// What changes about a region.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("what").required(true).multiple(true)
    .args(["name", "parent", "no_parent"]).args(LabelChanges::OPTIONS))]
pub struct SetRegion {
    /// Its id or name.
    region: String,
    /// What to call it from now on.
    #[arg(long)]
    name: Option<String>,
    /// The region that it lies in, by its id or name.
    #[arg(long, value_name = "REGION")]
    parent: Option<String>,
    /// It lies in no other region.
    #[arg(long, conflicts_with = "parent")]
    no_parent: bool,
    #[command(flatten)]
    labels: LabelChanges,
}

impl RegionCommand {
    pub async fn run(self, client: &Client, printer: &mut Printer<'_>) -> Result<(), Failure> {
        type Region = RegionResource;
        match self {
            Self::List(options) => {
                let query = options.query().with("showTotalSites", "true");
                pages::show::<Region>(client, &query, printer).await
            }
            Self::Tree { region } => tree::show(client, region.as_deref(), printer).await,
            Self::Get { region } => printer.one(&resource::find::<Region>(client, &region).await?),
            Self::Create {
                name,
                parent,
                labels,
            } => {
                let parent = resource::optional_id_of::<Region>(client, parent.as_deref()).await?;
                let body = RegionInput {
                    name,
                    parent_id: parent.unwrap_or_default(),
                    metadata: labels.labels,
                };
                let made: Region = client.post(Region::PATH, &body).await?;
                printer.one(&made)
            }
            Self::Set(set) => printer.one(&set.run(client).await?),
            Self::Delete { region } => {
                let id = resource::delete::<Region>(client, &region).await?;
                printer.done(Region::WORD, &id, "deleted")
            }
        }
    }
}

impl SetRegion {
    async fn run(self, client: &Client) -> Result<RegionResource, Failure> {
        type Region = RegionResource;
        let id = resource::id_of::<Region>(client, &self.region).await?;
        let parent = resource::optional_id_of::<Region>(client, self.parent.as_deref()).await?;
        let parent = parent.or_else(|| self.no_parent.then(String::new));
        let mut body = Map::new();
        body.extend(self.name.map(|name| ("name".to_owned(), Value::from(name))));
        body.extend(parent.map(|parent| ("parentId".to_owned(), Value::from(parent))));
        if !self.labels.is_empty() {
            let now: Region = resource::find(client, &id).await?;
            let labels = self.labels.over(&now.metadata);
            body.insert("metadata".to_owned(), json!(labels));
        }
        resource::change(client, &id, &self.region, &body).await
    }
}

impl Resource for RegionResource {
    const NOUN: &'static str = "region";
    const WORD: &'static str = "region";
    const MANY: &'static str = "regions";
    const PREFIX: &'static str = "region";
    const PATH: &'static str = "regions";
    const KEYS: &'static [&'static str] = &["regions"];
    const FREE: Option<&'static str> =
        Some("delete the sites and regions in it first; `evenkeel region tree REGION` shows them");
    const HEADER: &'static [&'static str] = &["ID", "NAME", "IN", "SITES"];

    fn id(&self) -> &str {
        &self.resource_id
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn row(&self) -> Vec<Cell> {
        vec![
            self.resource_id.clone().into(),
            self.name.clone().into(),
            parent(self).into(),
            self.total_sites.to_string().into(),
        ]
    }

    fn page(&self) -> Page {
        let mut page = Page::default();
        page.field("id", self.resource_id.clone())
            .field("name", self.name.clone())
            .field("in", parent(self))
            .created(self.timestamps.as_ref());
        site::labels(&mut page, &self.metadata, &self.inherited_metadata);
        page
    }
}

/// The name of the region above, else its id.
fn parent(region: &RegionResource) -> String {
    let name = region.parent_region.as_ref().map(|parent| &parent.name);
    name.filter(|name| !name.is_empty())
        .unwrap_or(&region.parent_id)
        .clone()
}
