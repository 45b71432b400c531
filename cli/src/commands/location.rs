//! `evenkeel location`: finds regions and sites by name.

use std::collections::HashMap;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Subcommand};
use evenkeel_api::location::{LocationKind, LocationList, LocationNode};

use super::region::tree::name_cell;
use crate::Failure;
use crate::client::Client;
use crate::output::Printer;
use crate::page::cells;
use crate::tree::Branch;

/// Find regions and sites by name.
#[derive(Debug, Subcommand)]
pub enum LocationCommand {
    /// Find regions and sites whose name contains a text, and show their parents.
    Find(FindLocations),
}

/// Find regions and sites whose name contains a text.
#[derive(Debug, Args)]
pub struct FindLocations {
    /// Text to search for.
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    name: String,
    /// Find only regions.
    #[arg(long)]
    regions: bool,
    /// Find only sites.
    #[arg(long, conflicts_with = "regions")]
    sites: bool,
}

impl LocationCommand {
    pub async fn run(self, client: &Client, printer: &mut Printer<'_>) -> Result<(), Failure> {
        let Self::Find(find) = self;
        find.run(client, printer).await
    }
}

impl FindLocations {
    async fn run(self, client: &Client, printer: &mut Printer<'_>) -> Result<(), Failure> {
        let params = [
            ("name", self.name.clone()),
            ("showRegions", (!self.sites).to_string()),
            ("showSites", (!self.regions).to_string()),
        ];
        let result: LocationList = client.get_with_params("locations", &params).await?;
        if result.nodes.is_empty() && printer.is_human_readable() {
            return printer.print_line(&format!("no match for `{}`", self.name));
        }
        let ids = result.nodes.iter().map(|node| node.resource_id.as_str());
        let ids: Vec<_> = ids.collect();
        printer.print_tree(&result, &ids, &build_tree(&result.nodes))?;
        if result.output_elements < result.total_elements {
            let (count, all) = (result.output_elements, result.total_elements);
            printer.print_note(&format!("showing {count} of {all}; use a longer text"))?;
        }
        Ok(())
    }
}

/// Builds the trees of the result. Nodes whose parent is not in the result are roots.
fn build_tree(nodes: &[LocationNode]) -> Vec<Branch> {
    let ids = nodes.iter().map(|node| node.resource_id.as_str());
    let ids: Vec<_> = ids.collect();
    let mut inside: HashMap<&str, Vec<&LocationNode>> = HashMap::new();
    for node in nodes {
        let above = node.parent_id.as_str();
        let above = if ids.contains(&above) { above } else { "" };
        inside.entry(above).or_default().push(node);
    }
    build_branches("", &mut inside)
}

/// Builds the children of a node. Each node is removed when it is used, so cycles end.
fn build_branches(id: &str, inside: &mut HashMap<&str, Vec<&LocationNode>>) -> Vec<Branch> {
    let nodes = inside.remove(id).unwrap_or_default();
    let branch = |node: &LocationNode| {
        let kind = match node.kind {
            LocationKind::Unspecified => "",
            LocationKind::Region => "region",
            LocationKind::Site => "site",
        };
        Branch {
            cells: cells![name_cell(&node.name, &node.resource_id), kind],
            children: build_branches(&node.resource_id, inside),
        }
    };
    nodes.into_iter().map(branch).collect()
}
