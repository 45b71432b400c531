//! `evenkeel region`: areas that hold sites and other regions.

use clap::Subcommand;
use evenkeel_api::region::{RegionInput, RegionList, RegionResource};

use super::site;
use crate::Failure;
use crate::client::Client;
use crate::resource::{self, Resource};
use crate::time::show_option;
use crate::view::{Cell, Page, Printer};

/// Regions: areas that hold sites and other regions.
#[derive(Debug, Subcommand)]
pub enum RegionCommand {
    /// List the regions with the number of sites in and below them.
    List,
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
    },
    /// Delete a region that holds nothing.
    Delete {
        /// Its id or name.
        region: String,
    },
}

impl RegionCommand {
    pub async fn run(self, client: &Client, printer: &mut Printer<'_>) -> Result<(), Failure> {
        type Region = RegionResource;
        match self {
            Self::List => {
                let list: RegionList = client
                    .get_with(Region::PATH, "showTotalSites", "true")
                    .await?;
                printer.list(&list.regions)
            }
            Self::Get { region } => printer.one(&resource::find::<Region>(client, &region).await?),
            Self::Create { name, parent } => {
                let parent_id = match parent {
                    None => String::new(),
                    Some(parent) => resource::id_of::<Region>(client, &parent).await?,
                };
                let body = RegionInput {
                    name,
                    parent_id,
                    ..RegionInput::default()
                };
                let made: Region = client.post(Region::PATH, &body).await?;
                printer.one(&made)
            }
            Self::Delete { region } => {
                let id = resource::delete::<Region>(client, &region).await?;
                printer.done(Region::WORD, &id, "deleted")
            }
        }
    }
}

impl Resource for RegionResource {
    const NOUN: &'static str = "region";
    const WORD: &'static str = "region";
    const MANY: &'static str = "regions";
    const PREFIX: &'static str = "region";
    const PATH: &'static str = "regions";
    const FREE: Option<&'static str> = Some(
        "delete the sites and regions in it first; `evenkeel site list` and `evenkeel region list` show them",
    );
    const HEADER: &'static [&'static str] = &["ID", "NAME", "IN", "SITES"];
    type List = RegionList;

    fn items(list: RegionList) -> Vec<Self> {
        list.regions
    }

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
            .field(
                "created",
                show_option(self.timestamps.as_ref().map(|times| times.created_at)),
            );
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
