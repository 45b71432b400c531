//! `evenkeel region tree`: regions, sites and the number of hosts.

use std::collections::HashMap;

use evenkeel_api::host_summary::HostSummary;
use evenkeel_api::region::RegionResource;
use evenkeel_api::site::SiteResource;
use serde::Serialize;

use crate::Failure;
use crate::client::Client;
use crate::commands::host;
use crate::listing::{self, Query};
use crate::output::Printer;
use crate::page::{Cell, Tone, cells};
use crate::requests;
use crate::resource::{self, Resource};
use crate::tree::Branch;

/// JSON form of the tree.
#[derive(Debug, Serialize)]
struct RegionTree {
    regions: Vec<RegionNode>,
    /// Sites without a region.
    sites: Vec<SiteNode>,
    /// Counts of the hosts without a site; missing in the tree of one region.
    #[serde(rename = "hostsWithoutSite")]
    at_no_site: Option<HostSummary>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct RegionNode {
    resource_id: String,
    name: String,
    regions: Vec<RegionNode>,
    sites: Vec<SiteNode>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct SiteNode {
    resource_id: String,
    name: String,
    hosts: HostSummary,
}

/// Prints all regions, or one, with their contents.
pub async fn print_tree(
    client: &Client,
    region: Option<&str>,
    printer: &mut Printer<'_>,
) -> Result<(), Failure> {
    let top = requests::resolve_optional_id::<RegionResource>(client, region).await?;
    let by_name = Query::default().default_order("name, resourceId");
    let regions = listing::fetch_with_progress::<RegionResource>(client, &by_name, printer).await?;
    let sites = listing::fetch_with_progress::<SiteResource>(client, &by_name, printer).await?;
    let mut builder = TreeBuilder::new(regions, sites);
    let top =
        match top {
            None => None,
            Some(id) => Some(builder.take_region(&id).ok_or_else(|| {
                resource::not_found::<RegionResource>(region.unwrap_or_default())
            })?),
        };
    let tree = match top {
        Some(top) => RegionTree {
            regions: vec![builder.build_region(client, top).await?],
            sites: Vec::new(),
            at_no_site: None,
        },
        None => builder.build_tree(client).await?,
    };
    let mut ids = Vec::new();
    for region in &tree.regions {
        region.ids(&mut ids);
    }
    ids.extend(tree.sites.iter().map(|site| site.resource_id.as_str()));
    printer.print_tree(&tree, &ids, &tree.branches())
}

/// Regions and sites by their parent region.
struct TreeBuilder {
    regions: HashMap<String, Vec<RegionResource>>,
    sites: HashMap<String, Vec<SiteResource>>,
}

impl TreeBuilder {
    fn new(regions: Vec<RegionResource>, sites: Vec<SiteResource>) -> Self {
        let mut builder = Self { regions: HashMap::new(), sites: HashMap::new() };
        for region in regions {
            let above = region.parent_id.clone();
            builder.regions.entry(above).or_default().push(region);
        }
        for site in sites {
            let above = site.region_id.clone();
            builder.sites.entry(above).or_default().push(site);
        }
        builder
    }

    /// Removes the region with this ID.
    fn take_region(&mut self, id: &str) -> Option<RegionResource> {
        self.regions.values_mut().find_map(|regions| {
            let at = regions.iter().position(|region| region.resource_id == id)?;
            Some(regions.remove(at))
        })
    }

    /// Builds the whole tree, from the top-level regions.
    async fn build_tree(&mut self, client: &Client) -> Result<RegionTree, Failure> {
        let mut regions = Vec::new();
        for top in self.regions.remove("").unwrap_or_default() {
            regions.push(self.build_region(client, top).await?);
        }
        Ok(RegionTree {
            regions,
            sites: self.build_sites(client, "").await?,
            at_no_site: Some(host::fetch_summary(client, Some("NOT has(site)")).await?),
        })
    }

    /// Builds a region with its contents. Each region is removed when it is used, so cycles end.
    async fn build_region(
        &mut self,
        client: &Client,
        top: RegionResource,
    ) -> Result<RegionNode, Failure> {
        let mut regions = Vec::new();
        for inner in self.regions.remove(&top.resource_id).unwrap_or_default() {
            regions.push(Box::pin(self.build_region(client, inner)).await?);
        }
        Ok(RegionNode {
            sites: self.build_sites(client, &top.resource_id).await?,
            resource_id: top.resource_id,
            name: top.name,
            regions,
        })
    }

    /// Builds the sites of a region with the counts of their hosts.
    async fn build_sites(
        &mut self,
        client: &Client,
        region: &str,
    ) -> Result<Vec<SiteNode>, Failure> {
        let mut sites = Vec::new();
        for site in self.sites.remove(region).unwrap_or_default() {
            let at = format!("site.resourceId == \"{}\"", site.resource_id);
            sites.push(SiteNode {
                hosts: host::fetch_summary(client, Some(&at)).await?,
                resource_id: site.resource_id,
                name: site.name,
            });
        }
        Ok(sites)
    }
}

impl RegionTree {
    fn branches(&self) -> Vec<Branch> {
        let regions = self.regions.iter().map(RegionNode::branch);
        let mut branches: Vec<_> = regions.collect();
        if !self.sites.is_empty() {
            branches.push(Branch {
                cells: cells!["without a region"],
                children: self.sites.iter().map(SiteNode::branch).collect(),
            });
        }
        if let Some(hosts) = self.at_no_site.filter(|hosts| hosts.total > 0) {
            let cells = [cells!["without a site"], host_count_cells(hosts)].concat();
            let children = Vec::new();
            branches.push(Branch { cells, children });
        }
        if branches.is_empty() {
            branches.push(Branch {
                cells: cells![format!("no {}", RegionResource::KIND.plural)],
                children: Vec::new(),
            });
        }
        branches
    }
}

impl RegionNode {
    fn branch(&self) -> Branch {
        let regions = self.regions.iter().map(Self::branch);
        Branch {
            cells: vec![name_cell(&self.name, &self.resource_id)],
            children: regions.chain(self.sites.iter().map(SiteNode::branch)).collect(),
        }
    }

    fn ids<'a>(&'a self, ids: &mut Vec<&'a str>) {
        ids.push(&self.resource_id);
        for region in &self.regions {
            region.ids(ids);
        }
        ids.extend(self.sites.iter().map(|site| site.resource_id.as_str()));
    }
}

impl SiteNode {
    fn branch(&self) -> Branch {
        let label = vec![name_cell(&self.name, &self.resource_id)];
        Branch { cells: [label, host_count_cells(self.hosts)].concat(), children: Vec::new() }
    }
}

/// Name and ID, or only the ID if there is no name.
pub fn name_cell(name: &str, id: &str) -> Cell {
    if name.is_empty() { Cell::from(id) } else { Cell::from(format!("{name} ({id})")) }
}

/// Number of hosts, and how many of them have an error.
fn host_count_cells(hosts: HostSummary) -> Vec<Cell> {
    let mut cells = cells![match hosts.total {
        0 => "no hosts".to_owned(),
        1 => "1 host".to_owned(),
        total => format!("{total} hosts"),
    }];
    if hosts.error > 0 {
        let text = format!("{} with an error", hosts.error);
        cells.push(Cell::toned(text, Tone::Bad));
    }
    cells
}
