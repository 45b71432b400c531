//! `evenkeel location`: regions and sites by a part of their names.

use std::collections::HashMap;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Subcommand};
use evenkeel_api::location::{LocationKind, LocationList, LocationNode};

use super::region::tree::label;
use crate::Failure;
use crate::client::Client;
use crate::tree::Branch;
use crate::view::Printer;

/// Locations: regions and sites by a part of their names.
#[derive(Debug, Subcommand)]
pub enum LocationCommand {
    /// Find the regions and sites whose name has a text in it, and show what they lie in.
    Find(Find),
}

/// What to find.
#[derive(Debug, Args)]
pub struct Find {
    /// The text.
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    name: String,
    /// Only regions.
    #[arg(long)]
    regions: bool,
    /// Only sites.
    #[arg(long, conflicts_with = "regions")]
    sites: bool,
}

impl LocationCommand {
    pub async fn run(self, client: &Client, printer: &mut Printer<'_>) -> Result<(), Failure> {
        let Self::Find(find) = self;
        find.run(client, printer).await
    }
}

impl Find {
    async fn run(self, client: &Client, printer: &mut Printer<'_>) -> Result<(), Failure> {
        let params = [
            ("name", self.name.clone()),
            ("showRegions", (!self.sites).to_string()),
            ("showSites", (!self.regions).to_string()),
        ];
        let found: LocationList = client.get_with("locations", &params).await?;
        if found.nodes.is_empty() && printer.is_for_people() {
            return printer.line(&format!("nothing is called like `{}`", self.name));
        }
        let ids = found.nodes.iter().map(|node| node.resource_id.as_str());
        let ids: Vec<_> = ids.collect();
        printer.tree(&found, &ids, &branches(&found.nodes))?;
        if found.output_elements < found.total_elements {
            let (shown, all) = (found.output_elements, found.total_elements);
            printer.note(&format!("these are {shown} of {all}; say more of the name"))?;
        }
        Ok(())
    }
}

/// The trees of what was found. What lies in something that was not is a root.
fn branches(nodes: &[LocationNode]) -> Vec<Branch> {
    let ids = nodes.iter().map(|node| node.resource_id.as_str());
    let known: Vec<_> = ids.collect();
    let mut inside: HashMap<&str, Vec<&LocationNode>> = HashMap::new();
    for node in nodes {
        let above = node.parent_id.as_str();
        let above = if known.contains(&above) { above } else { "" };
        inside.entry(above).or_default().push(node);
    }
    below("", &mut inside)
}

/// What lies in a node. What was taken once is not there again, so there is no way round in a circle.
fn below(id: &str, inside: &mut HashMap<&str, Vec<&LocationNode>>) -> Vec<Branch> {
    let nodes = inside.remove(id).unwrap_or_default();
    let branch = |node: &LocationNode| {
        let kind = match node.kind {
            LocationKind::Unspecified => "",
            LocationKind::Region => "region",
            LocationKind::Site => "site",
        };
        Branch {
            words: vec![label(&node.name, &node.resource_id), kind.into()],
            inner: below(&node.resource_id, inside),
        }
    };
    nodes.into_iter().map(branch).collect()
}
