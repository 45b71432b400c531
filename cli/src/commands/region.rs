//! `evenkeel region`: areas that contain sites and other regions.

pub mod tree;

use clap::{ArgGroup, Args, Subcommand};
use evenkeel_api::region::{RegionInput, RegionResource};
use serde_json::{Map, Value, json};

use super::site;
use crate::Failure;
use crate::client::Client;
use crate::labels::{LabelChanges, NewLabels};
use crate::listing::{self, ListOptions};
use crate::output::{Cell, DetailPage, Printer};
use crate::resource::{self, Resource};

/// Manage regions: areas that contain sites and other regions.
#[derive(Debug, Subcommand)]
pub enum RegionCommand {
    /// List regions with the total number of sites in them.
    List(ListOptions),
    /// Show regions, their sites and the number of hosts as a tree.
    Tree {
        /// Show only this region (ID or name).
        region: Option<String>,
    },
    /// Show a region.
    Get {
        /// ID or name of the region.
        region: String,
    },
    /// Create a region.
    Create {
        /// Name of the region.
        name: String,
        /// Parent region (ID or name).
        #[arg(long, value_name = "REGION")]
        parent: Option<String>,
        #[command(flatten)]
        labels: NewLabels,
    },
    /// Change a region. Options that are not given keep their values.
    Set(SetRegion),
    /// Delete an empty region.
    Delete {
        /// ID or name of the region.
        region: String,
    },
}

/// Change a region.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("what").required(true).multiple(true)
    .args(["name", "parent", "no_parent"]).args(LabelChanges::OPTIONS))]
pub struct SetRegion {
    /// ID or name of the region.
    region: String,
    /// New name.
    #[arg(long)]
    name: Option<String>,
    /// New parent region (ID or name).
    #[arg(long, value_name = "REGION")]
    parent: Option<String>,
    /// Make it a top-level region.
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
                let query = options.query().with_param("showTotalSites", "true");
                listing::fetch_and_print::<Region>(client, &query, printer).await
            }
            Self::Tree { region } => tree::print_tree(client, region.as_deref(), printer).await,
            Self::Get { region } => {
                printer.print_resource(&resource::find::<Region>(client, &region).await?)
            }
            Self::Create { name, parent, labels } => {
                let parent =
                    resource::resolve_optional_id::<Region>(client, parent.as_deref()).await?;
                let body = RegionInput {
                    name,
                    parent_id: parent.unwrap_or_default(),
                    metadata: labels.labels,
                };
                let created: Region = client.post(Region::PATH, &body).await?;
                printer.print_resource(&created)
            }
            Self::Set(set) => printer.print_resource(&set.run(client).await?),
            Self::Delete { region } => {
                let id = resource::delete::<Region>(client, &region).await?;
                printer.print_result(Region::SINGULAR, &id, "deleted")
            }
        }
    }
}

impl SetRegion {
    async fn run(self, client: &Client) -> Result<RegionResource, Failure> {
        type Region = RegionResource;
        let id = resource::resolve_id::<Region>(client, &self.region).await?;
        let parent =
            resource::resolve_optional_id::<Region>(client, self.parent.as_deref()).await?;
        let parent = parent.or_else(|| self.no_parent.then(String::new));
        let mut body = Map::new();
        body.extend(self.name.map(|name| ("name".to_owned(), Value::from(name))));
        body.extend(parent.map(|parent| ("parentId".to_owned(), Value::from(parent))));
        if !self.labels.is_empty() {
            let now: Region = resource::find(client, &id).await?;
            let labels = self.labels.apply_to(&now.metadata);
            body.insert("metadata".to_owned(), json!(labels));
        }
        resource::patch(client, &id, &self.region, &body).await
    }
}

impl Resource for RegionResource {
    const COMMAND: &'static str = "region";
    const SINGULAR: &'static str = "region";
    const PLURAL: &'static str = "regions";
    const ID_PREFIX: &'static str = "region";
    const PATH: &'static str = "regions";
    const LIST_KEYS: &'static [&'static str] = &["regions"];
    const IN_USE_HINT: Option<&'static str> =
        Some("delete its sites and regions first: `evenkeel region tree REGION` lists them");
    const HEADER: &'static [&'static str] = &["ID", "NAME", "PARENT", "SITES"];

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

    fn page(&self) -> DetailPage {
        let mut page = DetailPage::default();
        page.field("id", self.resource_id.clone())
            .field("name", self.name.clone())
            .field("parent", parent(self))
            .created(self.timestamps.as_ref());
        site::add_labels(&mut page, &self.metadata, &self.inherited_metadata);
        page
    }
}

/// Name of the parent region, else its ID.
fn parent(region: &RegionResource) -> String {
    let name = region.parent_region.as_ref().map(|parent| &parent.name);
    name.filter(|name| !name.is_empty()).unwrap_or(&region.parent_id).clone()
}
