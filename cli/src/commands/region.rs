//! `evenkeel region`: areas that contain sites and other regions.

pub mod tree;

use std::path::PathBuf;

use clap::{ArgGroup, Args, Subcommand};
use evenkeel_api::region::{RegionInput, RegionResource};
use evenkeel_api::timestamps::Timestamps;
use serde_json::json;

use super::site;
use crate::Failure;
use crate::client::Client;
use crate::labels::{LabelChanges, NewLabels};
use crate::listing::{self, ListOptions};
use crate::output::Printer;
use crate::page::{Cell, DetailPage, cells};
use crate::requests::{self, DuplicateOption, PatchBody, ResourceArg};
use crate::resource::{Resource, ResourceKind};

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
    Get(ResourceArg<RegionResource>),
    /// Create a region from options or from a file.
    Create(CreateRegion),
    /// Change a region. Options that are not given keep their values.
    Set(SetRegion),
    /// Delete an empty region.
    Delete(ResourceArg<RegionResource>),
}

/// Create a region from options or from a file.
#[derive(Debug, Args)]
pub struct CreateRegion {
    /// Name of the region.
    #[arg(required_unless_present = "file")]
    name: Option<String>,
    /// File with a region as `get -o yaml` or `get -o json` prints it.
    #[arg(long, short, value_name = "FILE", conflicts_with_all = ["name", "parent", "labels"])]
    file: Option<PathBuf>,
    /// Parent region (ID or name).
    #[arg(long, value_name = "REGION")]
    parent: Option<String>,
    #[command(flatten)]
    labels: NewLabels,
    #[command(flatten)]
    duplicates: DuplicateOption,
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
    #[command(flatten)]
    duplicates: DuplicateOption,
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
            Self::Get(region) => region.print(client, printer).await,
            Self::Create(create) => {
                let duplicates = create.duplicates;
                let body = create.build_input(client).await?;
                duplicates.check::<Region>(client, &body.name, None).await?;
                requests::create::<Region>(&body, client, printer).await
            }
            Self::Set(set) => printer.print_resource(&set.run(client).await?),
            Self::Delete(region) => region.delete(client, printer).await,
        }
    }
}

impl CreateRegion {
    async fn build_input(self, client: &Client) -> Result<RegionInput, Failure> {
        if let Some(path) = &self.file {
            return super::read_input(path, "a region");
        }
        let parent = self.parent.as_deref();
        let parent = requests::resolve_optional_id::<RegionResource>(client, parent).await?;
        Ok(RegionInput {
            name: self.name.unwrap_or_default(),
            parent_id: parent.unwrap_or_default(),
            metadata: self.labels.labels,
        })
    }
}

impl SetRegion {
    async fn run(self, client: &Client) -> Result<RegionResource, Failure> {
        type Region = RegionResource;
        let id = requests::resolve_id::<Region>(client, &self.region).await?;
        let name = self.name.as_deref().unwrap_or_default();
        self.duplicates.check::<Region>(client, name, Some(&id)).await?;
        let parent =
            requests::resolve_optional_id::<Region>(client, self.parent.as_deref()).await?;
        let parent = parent.or_else(|| self.no_parent.then(String::new));
        let mut body = PatchBody::default();
        body.set("name", self.name).set("parentId", parent);
        if !self.labels.is_empty() {
            let now: Region = requests::find(client, &id).await?;
            body.set("metadata", Some(json!(self.labels.apply_to(&now.metadata))));
        }
        requests::patch(client, &id, &self.region, &body).await
    }
}

impl Resource for RegionResource {
    const KIND: ResourceKind = ResourceKind {
        in_use_hint: Some(
            "delete its sites and regions first: `evenkeel region tree REGION` lists them",
        ),
        titles: &["PARENT", "SITES"],
        ..ResourceKind::new("REGION", "region", "regions")
    };

    fn key(&self) -> [&str; 2] {
        [&self.resource_id, &self.name]
    }

    fn timestamps(&self) -> Option<&Timestamps> {
        self.timestamps.as_ref()
    }

    fn columns(&self) -> Vec<Cell> {
        cells![parent(self), self.total_sites.to_string()]
    }

    fn add_details(&self, page: &mut DetailPage) {
        page.field("parent", parent(self)).created(self.timestamps.as_ref());
        site::add_labels(page, &self.metadata, &self.inherited_metadata);
    }
}

/// Name of the parent region, else its ID.
fn parent(region: &RegionResource) -> String {
    let name = region.parent_region.as_ref().map(|parent| &parent.name);
    name.filter(|name| !name.is_empty()).unwrap_or(&region.parent_id).clone()
}
