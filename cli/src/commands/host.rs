//! `evenkeel host`: the machines of the fleet.

mod packages;
mod page;
mod write;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Subcommand};
use evenkeel_api::host::HostResource;
use evenkeel_api::host_summary::HostSummary;
use evenkeel_api::instance::InstanceResource;
use evenkeel_api::region::RegionResource;
use evenkeel_api::site::SiteResource;

use self::packages::Packages;
use self::write::{CreateHost, RegisterHost, SetHost};
use super::site;
use crate::Failure;
use crate::client::Client;
use crate::pages::{self, ListOptions, Query, any};
use crate::resource::{self, Resource};
use crate::view::{Cell, Page, Printer, Tone};

/// Hosts: the machines of the fleet.
#[derive(Debug, Subcommand)]
pub enum HostCommand {
    /// List the hosts.
    List(ListHosts),
    /// Show a host with what it is made of.
    Get {
        /// Its id or name.
        host: String,
    },
    /// Make a host by hand, onboarded as soon as it comes. `register` is the usual way.
    Create(CreateHost),
    /// Announce a machine that will come.
    Register(RegisterHost),
    /// Change what is given of a host; the rest stays.
    Set(SetHost),
    /// Let a machine that was announced be onboarded as soon as it comes.
    Onboard {
        /// Its id or name.
        host: String,
    },
    /// Trust a host no more: it gets no answers from now on, and cannot be trusted again.
    Invalidate {
        /// Its id or name.
        host: String,
        /// Why, for people. It is kept and shown.
        #[arg(long, value_name = "TEXT", value_parser = NonEmptyStringValueParser::new())]
        note: Option<String>,
    },
    /// Show the packages that are installed on a host.
    Packages(Packages),
    /// Show the updates that a host could have.
    Updates {
        /// Its id or name.
        host: String,
    },
    /// Count the hosts: all, those that run, those with an error, those at no site.
    Summary {
        /// Only what fits, such as `site.name = "mitte"`.
        #[arg(long, value_name = "FILTER", value_parser = NonEmptyStringValueParser::new())]
        filter: Option<String>,
    },
    /// Delete a host.
    Delete {
        /// Its id or name.
        host: String,
        /// Delete what runs on it as well, with the history of its updates.
        #[arg(long)]
        with_instance: bool,
    },
}

/// Which hosts to list.
#[derive(Debug, Args)]
pub struct ListHosts {
    /// Only those at this site, by its id or name.
    #[arg(long)]
    site: Option<String>,
    /// Only those in this region and below it, by its id or name.
    #[arg(long, conflicts_with = "site")]
    region: Option<String>,
    #[command(flatten)]
    options: ListOptions,
}

impl HostCommand {
    pub async fn run(self, client: &Client, printer: &mut Printer<'_>) -> Result<(), Failure> {
        type Host = HostResource;
        match self {
            Self::List(list) => list.run(client, printer).await,
            Self::Get { host } => printer.one(&resource::find::<Host>(client, &host).await?),
            Self::Create(create) => printer.one(&create.run(client).await?),
            Self::Register(register) => printer.one(&register.run(client).await?),
            Self::Set(set) => printer.one(&set.run(client).await?),
            Self::Onboard { host } => {
                let id = write::onboard(client, &host).await?;
                printer.done(Host::WORD, &id, "may be onboarded")
            }
            Self::Invalidate { host, note } => {
                let id = write::invalidate(client, &host, note).await?;
                printer.done(Host::WORD, &id, "invalidated")
            }
            Self::Packages(packages) => packages.run(client, printer).await,
            Self::Updates { host } => packages::updates(client, &host, printer).await,
            Self::Summary { filter } => {
                let summary = summary(client, filter.as_deref()).await?;
                printer.page(&summary, &summary.total.to_string(), &page_of(summary))
            }
            Self::Delete {
                host,
                with_instance,
            } => delete(client, &host, with_instance, printer).await,
        }
    }
}

impl ListHosts {
    async fn run(self, client: &Client, printer: &mut Printer<'_>) -> Result<(), Failure> {
        let query = self.options.query();
        let query = match (self.site, self.region) {
            (Some(site), _) => {
                let id = resource::id_of::<SiteResource>(client, &site).await?;
                query.and(&format!("site.resourceId == \"{id}\""))
            }
            (None, Some(region)) => query.and(&in_region(client, &region).await?),
            (None, None) => query,
        };
        pages::show::<HostResource>(client, &query, printer).await
    }
}

/// How many regions fit into a filter.
const MOST_REGIONS: usize = 60;

/// The condition that something stands in a region or below it.
async fn in_region(client: &Client, region: &str) -> Result<String, Failure> {
    let top = resource::id_of::<RegionResource>(client, region).await?;
    let all = pages::all::<RegionResource>(client, &Query::default()).await?;
    let mut inside = vec![top.as_str()];
    let mut at = 0;
    while let Some(above) = inside.get(at).copied() {
        at += 1;
        let below = all.iter().filter(|region| region.parent_id == above);
        let below = below.map(|region| region.resource_id.as_str());
        let new: Vec<_> = below.filter(|id| !inside.contains(id)).collect();
        inside.extend(new);
    }
    if inside.len() > MOST_REGIONS {
        return Err(Failure::usage_with(
            format!(
                "{} regions lie in `{region}`: too many for one question",
                inside.len() - 1
            ),
            "ask for the regions in it one by one, or for sites with `--site`",
        ));
    }
    let at = |id: &str| format!("site.region.resourceId == \"{id}\"");
    Ok(any(inside.into_iter().map(at)))
}

/// How many hosts there are of those that fit a filter.
pub async fn summary(client: &Client, filter: Option<&str>) -> Result<HostSummary, Failure> {
    let path = "compute/hosts/summary";
    let params = filter.map(|filter| ("filter", filter.to_owned()));
    let params: Vec<_> = params.into_iter().collect();
    let answer = client.get_with(path, &params).await;
    answer.map_err(|error| pages::misread(filter.unwrap_or_default(), error))
}

fn page_of(summary: HostSummary) -> Page {
    let count = |count: u32, tone| match count {
        0 => Cell::from("0"),
        count => Cell::toned(count.to_string(), tone),
    };
    let mut page = Page::default();
    page.field("hosts", summary.total.to_string())
        .field("running", count(summary.running, Tone::Good))
        .field("with an error", count(summary.error, Tone::Bad))
        .field("at no site", count(summary.unallocated, Tone::Plain));
    page
}

async fn delete(
    client: &Client,
    host: &str,
    with_instance: bool,
    printer: &mut Printer<'_>,
) -> Result<(), Failure> {
    let host: HostResource = resource::find(client, host).await?;
    if let (true, Some(instance)) = (with_instance, &host.instance) {
        let id = &instance.resource_id;
        client.delete(&InstanceResource::address(id)).await?;
        // A program reads one document, which is that of the host.
        if printer.is_for_people() || printer.is_quiet() {
            printer.done(InstanceResource::WORD, id, "deleted")?;
        }
    }
    let id = resource::delete::<HostResource>(client, &host.resource_id).await?;
    printer.done(HostResource::WORD, &id, "deleted")
}

impl Resource for HostResource {
    const NOUN: &'static str = "host";
    const WORD: &'static str = "host";
    const MANY: &'static str = "hosts";
    const PREFIX: &'static str = "host";
    const PATH: &'static str = "compute/hosts";
    const KEYS: &'static [&'static str] = &["hosts"];
    const FREE: Option<&'static str> =
        Some("delete what runs on it as well: `evenkeel host delete HOST --with-instance`");
    const HEADER: &'static [&'static str] = &[
        "ID",
        "NAME",
        "SITE",
        "STATE",
        "STATUS",
        "OS",
        "UPDATE",
        "AVAILABLE",
    ];

    fn id(&self) -> &str {
        &self.resource_id
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn row(&self) -> Vec<Cell> {
        let instance = self.instance.as_deref().cloned().unwrap_or_default();
        let os = instance
            .os
            .as_ref()
            .map(|os| os.name.clone())
            .unwrap_or_default();
        vec![
            self.resource_id.clone().into(),
            self.name.clone().into(),
            place(self).into(),
            state(self).into(),
            Cell::toned(self.host_status.clone(), self.host_status_indicator.into()),
            os.into(),
            Cell::toned(
                instance.update_status.clone(),
                instance.update_status_indicator.into(),
            ),
            available(&instance),
        ]
    }

    fn page(&self) -> Page {
        page::page(self)
    }
}

/// The last word of an enumeration's text, as people say it.
fn word(text: &str) -> String {
    text.trim_start_matches("HOST_STATE_")
        .to_lowercase()
        .replace('_', " ")
}

fn state(host: &HostResource) -> String {
    word(host.current_state.as_str())
}

/// Where it stands.
fn place(host: &HostResource) -> String {
    host.site
        .as_ref()
        .map_or(&*host.site_id, site::label)
        .to_owned()
}

/// How much could be updated.
pub fn available(instance: &InstanceResource) -> Cell {
    let text = instance.os_update_available.as_str();
    if text.is_empty() {
        return Cell::from("-");
    }
    match serde_json::from_str::<Vec<serde_json::Value>>(text) {
        Ok(packages) if packages.is_empty() => Cell::from("-"),
        Ok(packages) if packages.len() == 1 => Cell::toned("1 package", Tone::Busy),
        Ok(packages) => Cell::toned(format!("{} packages", packages.len()), Tone::Busy),
        Err(_) => Cell::toned(text, Tone::Busy),
    }
}
