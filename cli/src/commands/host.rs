//! `evenkeel host`: the machines of the fleet.

mod details;
mod packages;
mod write;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Subcommand};
use evenkeel_api::host::HostResource;
use evenkeel_api::host_summary::HostSummary;
use evenkeel_api::instance::InstanceResource;
use evenkeel_api::region::RegionResource;
use evenkeel_api::site::SiteResource;
use evenkeel_api::timestamps::Timestamps;

use self::packages::{ListPackages, ListUpdates};
pub use self::packages::{count_packages, parse_packages};
use self::write::{CreateHost, RegisterHost, SetHost};
use super::instance::{self, available_updates_cell, facts};
use super::site;
use crate::Failure;
use crate::client::Client;
use crate::listing::{self, ListOptions, Query, any_condition};
use crate::output::Printer;
use crate::page::{Cell, DetailPage, Tone, cells};
use crate::requests::{self, ResourceArg};
use crate::resource::{Resource, ResourceKind};
use crate::time::format_optional_time;

/// Manage hosts: the machines of the fleet.
#[derive(Debug, Subcommand)]
pub enum HostCommand {
    /// List hosts.
    List(ListHosts),
    /// Show a host with its hardware.
    Get(ResourceArg<HostResource>),
    /// Create a host that is onboarded when it enrols. Prefer `register`.
    Create(CreateHost),
    /// Register a machine before it enrols.
    Register(RegisterHost),
    /// Change a host. Options that are not given keep their values.
    Set(SetHost),
    /// Allow a registered host to be onboarded when it enrols.
    Onboard(ResourceArg<HostResource>),
    /// Revoke the trust in a host permanently. The server refuses all its requests.
    Invalidate {
        /// ID or name of the host.
        host: String,
        /// Reason, stored with the host.
        #[arg(long, value_name = "TEXT", value_parser = NonEmptyStringValueParser::new())]
        note: Option<String>,
    },
    /// List the packages installed on a host.
    Packages(ListPackages),
    /// List the updates available for a host, and those that it holds back.
    ///
    /// Fails if the updates are unknown because the package lists of the host are not current.
    Updates(ListUpdates),
    /// Count hosts: all, running, with an error, and without a site.
    Summary {
        /// Count only hosts that match this filter, such as `site.name = "mitte"`.
        #[arg(long, value_name = "FILTER", value_parser = NonEmptyStringValueParser::new())]
        filter: Option<String>,
    },
    /// Delete a host.
    Delete {
        /// ID or name of the host.
        host: String,
        /// Also delete its instance and the update history.
        #[arg(long)]
        with_instance: bool,
    },
}

/// List hosts.
#[derive(Debug, Args)]
pub struct ListHosts {
    /// List only hosts at this site (ID or name).
    #[arg(long)]
    site: Option<String>,
    /// List only hosts in this region and its subregions (ID or name).
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
            Self::Get(host) => print_host(client, host.text(), printer).await,
            Self::Create(create) => printer.print_resource(&create.run(client).await?),
            Self::Register(register) => printer.print_resource(&register.run(client).await?),
            Self::Set(set) => printer.print_resource(&set.run(client).await?),
            Self::Onboard(host) => {
                let id = write::onboard(client, host.text()).await?;
                printer.print_result(Host::KIND.singular, &id, "approved for onboarding")
            }
            Self::Invalidate { host, note } => {
                let id = write::invalidate(client, &host, note).await?;
                printer.print_result(Host::KIND.singular, &id, "invalidated")
            }
            Self::Packages(packages) => packages.run(client, printer).await,
            Self::Updates(updates) => updates.run(client, printer).await,
            Self::Summary { filter } => {
                let summary = fetch_summary(client, filter.as_deref()).await?;
                printer.print_page(
                    &summary,
                    &summary.total.to_string(),
                    &build_summary_page(summary),
                )
            }
            Self::Delete { host, with_instance } => {
                delete_host(client, &host, with_instance, printer).await
            }
        }
    }
}

impl ListHosts {
    async fn run(self, client: &Client, printer: &mut Printer<'_>) -> Result<(), Failure> {
        let query = self.options.query();
        let query = match (self.site, self.region) {
            (Some(site), _) => {
                let id = requests::resolve_id::<SiteResource>(client, &site).await?;
                query.and_condition(&format!("site.resourceId == \"{id}\""))
            }
            (None, Some(region)) => query.and_condition(&region_condition(client, &region).await?),
            (None, None) => query,
        };
        let query = if printer.is_wide() { instance::with_policies(query) } else { query };
        listing::fetch_and_print::<HostResource>(client, &query, printer).await
    }
}

/// Maximum number of regions in one filter.
const MAX_REGIONS_PER_FILTER: usize = 60;

/// Filter condition for all resources in a region and its subregions.
async fn region_condition(client: &Client, region: &str) -> Result<String, Failure> {
    let top = requests::resolve_id::<RegionResource>(client, region).await?;
    let all = listing::fetch_all::<RegionResource>(client, &Query::default()).await?;
    let mut inside = vec![top.as_str()];
    let mut at = 0;
    while let Some(above) = inside.get(at).copied() {
        at += 1;
        let below = all.iter().filter(|region| region.parent_id == above);
        let below = below.map(|region| region.resource_id.as_str());
        let new: Vec<_> = below.filter(|id| !inside.contains(id)).collect();
        inside.extend(new);
    }
    if inside.len() > MAX_REGIONS_PER_FILTER {
        return Err(Failure::usage_with(
            format!(
                "`{region}` contains {} regions, more than one filter can hold",
                inside.len() - 1
            ),
            "query its subregions one by one, or use `--site`",
        ));
    }
    let at = |id: &str| format!("site.region.resourceId == \"{id}\"");
    Ok(any_condition(inside.into_iter().map(at)))
}

/// Counts the hosts that match a filter.
pub async fn fetch_summary(client: &Client, filter: Option<&str>) -> Result<HostSummary, Failure> {
    let path = "compute/hosts/summary";
    let params = filter.map(|filter| ("filter", filter.to_owned()));
    let params: Vec<_> = params.into_iter().collect();
    let answer = client.get_with_params(path, &params).await;
    answer.map_err(|error| listing::locate_error(filter.unwrap_or_default(), error))
}

fn build_summary_page(summary: HostSummary) -> DetailPage {
    let count = |count: u32, tone| match count {
        0 => Cell::from("0"),
        count => Cell::toned(count.to_string(), tone),
    };
    let mut page = DetailPage::default();
    page.field("hosts", summary.total.to_string())
        .field("running, no error", count(summary.running, Tone::Good))
        .field("with an error", count(summary.error, Tone::Bad))
        .field("without a site", count(summary.unallocated, Tone::Plain));
    page
}

/// Prints a host, for people with the policy that applies to it.
async fn print_host(client: &Client, text: &str, printer: &mut Printer<'_>) -> Result<(), Failure> {
    let mut host: HostResource = requests::find(client, text).await?;
    if let Some(instance) = host.instance.as_ref().filter(|_| printer.is_human_readable()) {
        // Only the response for the instance has the policy.
        match client.get(&InstanceResource::address(&instance.resource_id)).await {
            Ok(full) => host.instance = Some(full),
            Err(error) if error.is_not_found() => (),
            Err(error) => return Err(error),
        }
    }
    printer.print_resource(&host)
}

async fn delete_host(
    client: &Client,
    host: &str,
    with_instance: bool,
    printer: &mut Printer<'_>,
) -> Result<(), Failure> {
    let host: HostResource = requests::find(client, host).await?;
    if let (true, Some(instance)) = (with_instance, &host.instance) {
        let id = &instance.resource_id;
        client.delete(&InstanceResource::address(id)).await?;
        // With JSON or YAML, only the document of the host is printed.
        if printer.is_human_readable() || printer.is_ids_only() {
            printer.print_result(InstanceResource::KIND.singular, id, "deleted")?;
        }
    }
    let id = requests::delete::<HostResource>(client, &host.resource_id).await?;
    printer.print_result(HostResource::KIND.singular, &id, "deleted")
}

impl Resource for HostResource {
    const KIND: ResourceKind = ResourceKind {
        path: "compute/hosts",
        in_use_hint: Some(
            "delete its instance as well: `evenkeel host delete HOST --with-instance`",
        ),
        titles: &["SITE", "STATE", "STATUS", "OS", "UPDATE", "AVAILABLE"],
        wide_titles: &[
            "POLICY",
            "POLICY FROM",
            "LISTS",
            "SECURITY",
            "HELD BACK",
            "REBOOT",
            "KERNEL",
            "AGENT",
            "BOOTED",
            "LAST CONTACT",
            "ADDRESSES",
        ],
        optional_titles: &["AGE", "OS", "STATE", "AVAILABLE", "SITE", "UPDATE", "STATUS"],
        ..ResourceKind::new("HOST", "host", "hosts")
    };

    fn key(&self) -> [&str; 2] {
        [&self.resource_id, &self.name]
    }

    fn timestamps(&self) -> Option<&Timestamps> {
        self.timestamps.as_ref()
    }

    fn columns(&self) -> Vec<Cell> {
        let instance = self.instance.as_deref().cloned().unwrap_or_default();
        let os = instance.os.as_ref().map(|os| os.name.clone()).unwrap_or_default();
        cells![
            site_label(self),
            state_label(self),
            Cell::status(&self.host_status, self.host_status_indicator),
            os,
            Cell::status(&instance.update_status, instance.update_status_indicator),
            available_updates_cell(&instance)
        ]
    }

    fn wide_columns(&self) -> Vec<Cell> {
        let instance = self.instance.as_deref().cloned().unwrap_or_default();
        cells![
            instance::policy_name(&instance),
            instance::policy_source(&instance),
            facts::lists_cell(&instance),
            facts::security_cell(&instance),
            facts::held_back_cell(&instance),
            facts::reboot_cell(&instance),
            &instance.kernel_release,
            &self.agent_version,
            format_optional_time(self.boot_time),
            format_optional_time(self.last_contact),
            self.ip_addresses.join(", ")
        ]
    }

    fn add_details(&self, page: &mut DetailPage) {
        details::add_details(page, self);
    }
}

/// Formats an enum value such as `HOST_STATE_ONBOARDED` as `onboarded`.
fn humanize_state(text: &str) -> String {
    text.trim_start_matches("HOST_STATE_").to_lowercase().replace('_', " ")
}

fn state_label(host: &HostResource) -> String {
    humanize_state(host.current_state.as_str())
}

/// Name of the site of a host, else its ID.
fn site_label(host: &HostResource) -> String {
    host.site.as_ref().map_or(&*host.site_id, site::site_name).to_owned()
}
