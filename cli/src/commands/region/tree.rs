//! `evenkeel region tree`: what lies in what.

use std::collections::HashMap;

use evenkeel_api::host_summary::HostSummary;
use evenkeel_api::region::RegionResource;
use evenkeel_api::site::SiteResource;
use serde::Serialize;

use crate::Failure;
use crate::client::Client;
use crate::commands::host;
use crate::pages::{self, Query};
use crate::resource::{self, Resource};
use crate::tree::Branch;
use crate::view::{Cell, Printer, Tone};

/// What lies in what.
#[derive(Debug, Serialize)]
struct Tree {
    regions: Vec<Region>,
    /// What lies in no region.
    sites: Vec<Site>,
    /// The hosts that stand at no site; none if only one region is looked at.
    #[serde(rename = "hostsAtNoSite")]
    at_no_site: Option<HostSummary>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Region {
    resource_id: String,
    name: String,
    regions: Vec<Region>,
    sites: Vec<Site>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Site {
    resource_id: String,
    name: String,
    hosts: HostSummary,
}

/// Shows all regions, or one, with what lies in them.
pub async fn show(
    client: &Client,
    region: Option<&str>,
    printer: &mut Printer<'_>,
) -> Result<(), Failure> {
    let top = resource::optional_id_of::<RegionResource>(client, region).await?;
    let by_name = Query::default().by("name, resourceId");
    let regions = pages::read::<RegionResource>(client, &by_name, printer).await?;
    let sites = pages::read::<SiteResource>(client, &by_name, printer).await?;
    let mut plan = Plan::of(regions, sites);
    let top = match top {
        None => None,
        Some(id) => Some(
            plan.take(&id)
                .ok_or_else(|| resource::nothing::<RegionResource>(region.unwrap_or_default()))?,
        ),
    };
    let tree = match top {
        Some(top) => Tree {
            regions: vec![plan.region(client, top).await?],
            sites: Vec::new(),
            at_no_site: None,
        },
        None => plan.whole(client).await?,
    };
    let mut ids = Vec::new();
    for region in &tree.regions {
        region.ids(&mut ids);
    }
    ids.extend(tree.sites.iter().map(|site| site.resource_id.as_str()));
    printer.tree(&tree, &ids, &tree.branches())
}

/// Regions and sites by the region that they lie in.
struct Plan {
    regions: HashMap<String, Vec<RegionResource>>,
    sites: HashMap<String, Vec<SiteResource>>,
}

impl Plan {
    fn of(regions: Vec<RegionResource>, sites: Vec<SiteResource>) -> Self {
        let mut plan = Self {
            regions: HashMap::new(),
            sites: HashMap::new(),
        };
        for region in regions {
            let above = region.parent_id.clone();
            plan.regions.entry(above).or_default().push(region);
        }
        for site in sites {
            let above = site.region_id.clone();
            plan.sites.entry(above).or_default().push(site);
        }
        plan
    }

    /// Takes the region with this id out.
    fn take(&mut self, id: &str) -> Option<RegionResource> {
        self.regions.values_mut().find_map(|regions| {
            let at = regions.iter().position(|region| region.resource_id == id)?;
            Some(regions.remove(at))
        })
    }

    /// Everything, from the regions that lie in no other one.
    async fn whole(&mut self, client: &Client) -> Result<Tree, Failure> {
        let mut regions = Vec::new();
        for top in self.regions.remove("").unwrap_or_default() {
            regions.push(self.region(client, top).await?);
        }
        Ok(Tree {
            regions,
            sites: self.sites(client, "").await?,
            at_no_site: Some(host::summary(client, Some("NOT has(site)")).await?),
        })
    }

    /// A region with what lies in it. What was taken once is not there again, so there is no way round in a circle.
    async fn region(&mut self, client: &Client, top: RegionResource) -> Result<Region, Failure> {
        let mut regions = Vec::new();
        for inner in self.regions.remove(&top.resource_id).unwrap_or_default() {
            regions.push(Box::pin(self.region(client, inner)).await?);
        }
        Ok(Region {
            sites: self.sites(client, &top.resource_id).await?,
            resource_id: top.resource_id,
            name: top.name,
            regions,
        })
    }

    /// The sites in a region with the number of their hosts.
    async fn sites(&mut self, client: &Client, region: &str) -> Result<Vec<Site>, Failure> {
        let mut sites = Vec::new();
        for site in self.sites.remove(region).unwrap_or_default() {
            let at = format!("site.resourceId == \"{}\"", site.resource_id);
            sites.push(Site {
                hosts: host::summary(client, Some(&at)).await?,
                resource_id: site.resource_id,
                name: site.name,
            });
        }
        Ok(sites)
    }
}

impl Tree {
    fn branches(&self) -> Vec<Branch> {
        let regions = self.regions.iter().map(Region::branch);
        let mut branches: Vec<_> = regions.collect();
        if !self.sites.is_empty() {
            branches.push(Branch {
                words: vec!["in no region".into()],
                inner: self.sites.iter().map(Site::branch).collect(),
            });
        }
        if let Some(hosts) = self.at_no_site.filter(|hosts| hosts.total > 0) {
            let words = [vec![Cell::from("at no site")], words_of(hosts)].concat();
            let inner = Vec::new();
            branches.push(Branch { words, inner });
        }
        if branches.is_empty() {
            branches.push(Branch {
                words: vec![format!("no {}", RegionResource::MANY).into()],
                inner: Vec::new(),
            });
        }
        branches
    }
}

impl Region {
    fn branch(&self) -> Branch {
        let regions = self.regions.iter().map(Self::branch);
        Branch {
            words: vec![label(&self.name, &self.resource_id)],
            inner: regions.chain(self.sites.iter().map(Site::branch)).collect(),
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

impl Site {
    fn branch(&self) -> Branch {
        let label = vec![label(&self.name, &self.resource_id)];
        Branch {
            words: [label, words_of(self.hosts)].concat(),
            inner: Vec::new(),
        }
    }
}

/// The name and the id, as far as there is a name.
pub fn label(name: &str, id: &str) -> Cell {
    if name.is_empty() {
        Cell::from(id)
    } else {
        Cell::from(format!("{name} ({id})"))
    }
}

/// How many hosts there are, and with how many something is wrong.
fn words_of(hosts: HostSummary) -> Vec<Cell> {
    let mut words = vec![Cell::from(match hosts.total {
        0 => "no hosts".to_owned(),
        1 => "1 host".to_owned(),
        total => format!("{total} hosts"),
    })];
    if hosts.error > 0 {
        let text = format!("{} with an error", hosts.error);
        words.push(Cell::toned(text, Tone::Bad));
    }
    words
}
