//! Which nodes an order is for.

use clap::builder::NonEmptyStringValueParser;
use clap::{ArgGroup, Args};
use evenkeel_api::host::HostResource;
use evenkeel_api::site::SiteResource;

use crate::Failure;
use crate::client::Client;
use crate::commands::instance;
use crate::pages::{self, Filter, Query};
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
    /// Every node whose host fits this, as for `evenkeel host list`; with --site, those of the site.
    #[arg(long, value_name = "FILTER", value_parser = NonEmptyStringValueParser::new())]
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
        let nodes = self.chosen(client, printer).await?;
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

    async fn chosen(
        &self,
        client: &Client,
        printer: &mut Printer<'_>,
    ) -> Result<Vec<Node>, Failure> {
        let site = self.site.as_deref();
        let site = resource::optional_id_of::<SiteResource>(client, site).await?;
        let typed = self.filter.clone().map(Filter::typed);
        let mut query = typed.map_or_else(Query::default, Query::of);
        if let Some(site) = &site {
            query = query.and(&format!("site.resourceId == \"{site}\""));
        }
        let hosts = pages::read::<HostResource>(client, &query, printer).await?;
        let fits = |host: &&HostResource| site.as_ref().is_none_or(|site| *site == host.site_id);
        Ok(hosts.iter().filter(fits).filter_map(node).collect())
    }
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
