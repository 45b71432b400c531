//! Selection of the nodes of an order.

use clap::builder::NonEmptyStringValueParser;
use clap::{ArgGroup, Args};
use evenkeel_api::host::HostResource;
use evenkeel_api::site::SiteResource;

use crate::Failure;
use crate::client::Client;
use crate::commands::instance;
use crate::listing::{self, Filter, Query};
use crate::output::Printer;
use crate::requests;

/// Maximum number of node names in a prompt.
const MAX_NAMES_IN_PROMPT: usize = 5;

/// Selection of the nodes of an order.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("selection").required(true).multiple(true).args(["nodes", "site", "filter", "all"]))]
pub struct Selection {
    /// IDs or names of instances or their hosts.
    #[arg(value_name = "INSTANCE_OR_HOST", conflicts_with_all = ["site", "filter", "all"])]
    nodes: Vec<String>,
    /// Select all nodes at this site (ID or name).
    #[arg(long)]
    site: Option<String>,
    /// Select all nodes whose host matches this filter, as for `evenkeel host list`; with --site, only
    /// nodes at the site.
    #[arg(long, value_name = "FILTER", value_parser = NonEmptyStringValueParser::new())]
    filter: Option<String>,
    /// Select all nodes of the project.
    #[arg(long, conflicts_with_all = ["site", "filter"])]
    all: bool,
    /// Do not ask for confirmation.
    #[arg(long, short)]
    yes: bool,
}

/// A node of an order.
#[derive(Debug)]
pub struct Node {
    /// ID of its instance.
    pub instance: String,
    /// Name to display.
    pub label: String,
}

impl Selection {
    /// Resolves the nodes. Several nodes that were not named need a confirmation; `{}` in the question
    /// stands for them.
    pub async fn resolve(
        &self,
        client: &Client,
        printer: &mut Printer<'_>,
        question: &str,
    ) -> Result<Vec<Node>, Failure> {
        if !self.nodes.is_empty() {
            return resolve_named(client, &self.nodes).await;
        }
        let nodes = self.list_matching(client, printer).await?;
        if nodes.is_empty() {
            return Err(Failure::usage_with(
                "no node matches",
                "`evenkeel host list` lists the hosts with their sites",
            ));
        }
        if nodes.len() > 1 && !self.yes {
            confirm(&nodes, printer, question)?;
        }
        Ok(nodes)
    }

    async fn list_matching(
        &self,
        client: &Client,
        printer: &mut Printer<'_>,
    ) -> Result<Vec<Node>, Failure> {
        let site = self.site.as_deref();
        let site = requests::resolve_optional_id::<SiteResource>(client, site).await?;
        let typed = self.filter.clone().map(Filter::from_user);
        let mut query = typed.map_or_else(Query::default, Query::from_filter);
        if let Some(site) = &site {
            query = query.and_condition(&format!("site.resourceId == \"{site}\""));
        }
        let hosts = listing::fetch_with_progress::<HostResource>(client, &query, printer).await?;
        let fits = |host: &&HostResource| site.as_ref().is_none_or(|site| *site == host.site_id);
        Ok(hosts.iter().filter(fits).filter_map(to_node).collect())
    }
}

/// The node of a host, if the host has an instance.
fn to_node(host: &HostResource) -> Option<Node> {
    let instance = host.instance.as_ref()?.resource_id.clone();
    let label = if host.name.is_empty() { host.resource_id.clone() } else { host.name.clone() };
    Some(Node { instance, label })
}

async fn resolve_named(client: &Client, texts: &[String]) -> Result<Vec<Node>, Failure> {
    let mut nodes: Vec<Node> = Vec::new();
    for text in texts {
        let instance = instance::resolve_instance_id(client, text).await?;
        if nodes.iter().all(|node| node.instance != instance) {
            let label = text.clone();
            nodes.push(Node { instance, label });
        }
    }
    Ok(nodes)
}

fn confirm(nodes: &[Node], printer: &mut Printer<'_>, question: &str) -> Result<(), Failure> {
    let labels: Vec<_> = nodes.iter().map(|node| node.label.as_str()).collect();
    let more = match nodes.len().checked_sub(MAX_NAMES_IN_PROMPT) {
        None | Some(0) => String::new(),
        Some(more) => format!(" and {more} more"),
    };
    let labels = labels[..nodes.len().min(MAX_NAMES_IN_PROMPT)].join(", ");
    let concerned = format!("{} nodes ({labels}{more})", nodes.len());
    if !printer.is_interactive() {
        return Err(Failure::usage_with(
            format!("this affects {concerned}"),
            "add --yes to confirm",
        ));
    }
    if printer.confirm(&format!("{}?", question.replace("{}", &concerned)))? {
        return Ok(());
    }
    Err(Failure::usage("nothing was done"))
}
