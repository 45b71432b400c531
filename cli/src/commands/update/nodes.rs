//! Which nodes an order is for.

use clap::{ArgGroup, Args};
use evenkeel_api::host::HostResource;
use evenkeel_api::site::SiteResource;

use crate::Failure;
use crate::client::Client;
use crate::commands::instance;
use crate::resource;
use crate::view::Printer;

/// How many names are said in a question.
const SAID: usize = 5;

/// Which nodes an order is for.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("concerned").required(true).multiple(true).args(["nodes", "site", "filter", "all"]))]
pub struct Selection {
    /// The nodes, by the ids or names of their instances or hosts.
    #[arg(value_name = "INSTANCE_OR_HOST", conflicts_with_all = ["site", "filter", "all"])]
    nodes: Vec<String>,
    /// Every node at this site, by its id or name.
    #[arg(long)]
    site: Option<String>,
    /// Every node whose name or whose host's name has this text in it; with --site, those of the site.
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// Every node of the project.
    #[arg(long, conflicts_with_all = ["site", "filter"])]
    all: bool,
    /// Do not ask before an order for several nodes that were not named.
    #[arg(long, short)]
    yes: bool,
}

/// A node that an order is for.
#[derive(Debug)]
pub struct Node {
    /// The id of its instance.
    pub instance: String,
    /// What a person calls it.
    pub label: String,
}

impl Selection {
    /// The nodes. Several that were not named are asked about with this question, in which `{}` stands for them.
    pub async fn concerned(
        &self,
        client: &Client,
        printer: &mut Printer<'_>,
        question: &str,
    ) -> Result<Vec<Node>, Failure> {
        if !self.nodes.is_empty() {
            return named(client, &self.nodes).await;
        }
        let nodes = self.chosen(client).await?;
        if nodes.is_empty() {
            return Err(Failure::usage_with(
                "no node fits",
                "`evenkeel host list` shows the nodes with their sites",
            ));
        }
        if nodes.len() > 1 && !self.yes {
            confirm(&nodes, printer, question)?;
        }
        Ok(nodes)
    }

    async fn chosen(&self, client: &Client) -> Result<Vec<Node>, Failure> {
        let site = match &self.site {
            None => None,
            Some(site) => Some(resource::id_of::<SiteResource>(client, site).await?),
        };
        let text = self.filter.as_ref().map(|text| text.to_lowercase());
        if text.as_ref().is_some_and(|text| text.trim().is_empty()) {
            return Err(Failure::usage_with(
                "an empty text is in every name",
                "`--all` means every node of the project",
            ));
        }
        let hosts = resource::all::<HostResource>(client).await?;
        let fits = |host: &&HostResource| {
            let at_site = site.as_ref().is_none_or(|site| *site == host.site_id);
            at_site && text.as_ref().is_none_or(|text| has(host, text))
        };
        Ok(hosts.iter().filter(fits).filter_map(node).collect())
    }
}

/// Whether a name of a host or of what runs on it has a text in it.
fn has(host: &HostResource, text: &str) -> bool {
    let instance = host.instance.as_ref().map_or("", |i| i.name.as_str());
    [host.name.as_str(), &host.hostname, instance]
        .iter()
        .any(|name| name.to_lowercase().contains(text))
}

/// The node of a host, if something runs on it.
fn node(host: &HostResource) -> Option<Node> {
    let instance = host.instance.as_ref()?.resource_id.clone();
    let label = if host.name.is_empty() {
        host.resource_id.clone()
    } else {
        host.name.clone()
    };
    Some(Node { instance, label })
}

async fn named(client: &Client, texts: &[String]) -> Result<Vec<Node>, Failure> {
    let mut nodes: Vec<Node> = Vec::new();
    for text in texts {
        let instance = instance::meant(client, text).await?;
        if nodes.iter().all(|node| node.instance != instance) {
            let label = text.clone();
            nodes.push(Node { instance, label });
        }
    }
    Ok(nodes)
}

fn confirm(nodes: &[Node], printer: &mut Printer<'_>, question: &str) -> Result<(), Failure> {
    let said: Vec<_> = nodes.iter().map(|node| node.label.as_str()).collect();
    let more = match nodes.len().checked_sub(SAID) {
        None | Some(0) => String::new(),
        Some(more) => format!(" and {more} more"),
    };
    let said = said[..nodes.len().min(SAID)].join(", ");
    let concerned = format!("{} nodes ({said}{more})", nodes.len());
    if !printer.may_ask() {
        return Err(Failure::usage_with(
            format!("this is for {concerned}"),
            "add --yes if that is what you want",
        ));
    }
    if printer.ask(&format!("{}?", question.replace("{}", &concerned)))? {
        return Ok(());
    }
    Err(Failure::usage("nothing was done"))
}
