//! `evenkeel host`: the machines of the fleet.

use clap::Subcommand;
use evenkeel_api::host::{HostList, HostRegister, HostResource};
use evenkeel_api::instance::InstanceResource;
use evenkeel_api::site::SiteResource;
use serde::Serialize;

use super::site;
use crate::Failure;
use crate::client::Client;
use crate::resource::{self, Resource};
use crate::time::{show_option, show_seconds};
use crate::view::{Cell, Page, Printer, Tone};

/// Hosts: the machines of the fleet.
#[derive(Debug, Subcommand)]
pub enum HostCommand {
    /// List the hosts.
    List,
    /// Show a host.
    Get {
        /// Its id or name.
        host: String,
    },
    /// Announce a machine that will come.
    #[command(group = clap::ArgGroup::new("known by").args(["uuid", "serial"]).required(true).multiple(true))]
    Register {
        /// What to call it.
        #[arg(default_value = "", hide_default_value = true)]
        name: String,
        /// The machine's UUID.
        #[arg(long)]
        uuid: Option<String>,
        /// The vendor's serial number.
        #[arg(long)]
        serial: Option<String>,
        /// The site that it will stand at, by its id or name.
        #[arg(long)]
        site: Option<String>,
    },
    /// Say what a host is called and where it stands.
    #[command(group = clap::ArgGroup::new("what").args(["name", "site", "no_site"]).required(true).multiple(true))]
    Set {
        /// Its id or name.
        host: String,
        /// What to call it from now on.
        #[arg(long)]
        name: Option<String>,
        /// The site that it stands at, by its id or name.
        #[arg(long)]
        site: Option<String>,
        /// It stands at no site.
        #[arg(long, conflicts_with = "site")]
        no_site: bool,
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

impl HostCommand {
    pub async fn run(self, client: &Client, printer: &mut Printer<'_>) -> Result<(), Failure> {
        match self {
            Self::List => printer.list(&resource::all::<HostResource>(client).await?),
            Self::Get { host } => {
                printer.one(&resource::find::<HostResource>(client, &host).await?)
            }
            Self::Register {
                name,
                uuid,
                serial,
                site,
            } => {
                let body = HostRegister {
                    name,
                    uuid: uuid.unwrap_or_default(),
                    serial_number: serial.unwrap_or_default(),
                    site_id: site_id(client, site.as_deref()).await?.unwrap_or_default(),
                    auto_onboard: true,
                    ..HostRegister::default()
                };
                let made: HostResource = client.post("compute/hosts/register", &body).await?;
                printer.one(&made)
            }
            Self::Set {
                host,
                name,
                site,
                no_site,
            } => {
                let id = resource::id_of::<HostResource>(client, &host).await?;
                let site = site_id(client, site.as_deref()).await?;
                let body = HostPatch {
                    name,
                    site_id: site.or_else(|| no_site.then(String::new)),
                };
                let changed = client.patch(&HostResource::address(&id), &body).await;
                let changed: HostResource = changed.map_err(|error| {
                    if error.is_not_found() {
                        resource::nothing::<HostResource>(&host)
                    } else {
                        error
                    }
                })?;
                printer.one(&changed)
            }
            Self::Delete {
                host,
                with_instance,
            } => {
                let host: HostResource = resource::find(client, &host).await?;
                if let (true, Some(instance)) = (with_instance, &host.instance) {
                    let id = &instance.resource_id;
                    client
                        .delete(&format!("{}/{id}", InstanceResource::PATH))
                        .await?;
                    printer.done(InstanceResource::WORD, id, "deleted")?;
                }
                let id = resource::delete::<HostResource>(client, &host.resource_id).await?;
                printer.done(HostResource::WORD, &id, "deleted")
            }
        }
    }
}

/// What is to change of a host; what is not there stays as it is.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct HostPatch {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    site_id: Option<String>,
}

async fn site_id(client: &Client, site: Option<&str>) -> Result<Option<String>, Failure> {
    match site {
        None => Ok(None),
        Some(text) => resource::id_of::<SiteResource>(client, text)
            .await
            .map(Some),
    }
}

impl Resource for HostResource {
    const NOUN: &'static str = "host";
    const WORD: &'static str = "host";
    const MANY: &'static str = "hosts";
    const PREFIX: &'static str = "host";
    const PATH: &'static str = "compute/hosts";
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
    type List = HostList;

    fn items(list: HostList) -> Vec<Self> {
        list.hosts
    }

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
        let mut page = Page::default();
        page.field("id", self.resource_id.clone())
            .field("name", self.name.clone())
            .field("hostname", self.hostname.clone())
            .field("site", place(self))
            .field("state", state(self))
            .field("wanted", word(self.desired_state.as_str()))
            .field(
                "status",
                Cell::toned(self.host_status.clone(), self.host_status_indicator.into()),
            )
            .field("since", show_seconds(self.host_status_timestamp))
            .field("uuid", self.uuid.clone())
            .field("serial", self.serial_number.clone())
            .field_if("note", &self.note);
        if let Some(instance) = &self.instance {
            page.field("instance", instance.resource_id.clone())
                .field(
                    "os",
                    instance
                        .os
                        .as_ref()
                        .map(|os| os.name.clone())
                        .unwrap_or_default(),
                )
                .field(
                    "policy",
                    instance
                        .update_policy
                        .as_ref()
                        .map(|policy| policy.name.clone())
                        .unwrap_or_default(),
                )
                .field(
                    "update",
                    Cell::toned(
                        instance.update_status.clone(),
                        instance.update_status_indicator.into(),
                    ),
                )
                .field("available", available(instance));
        }
        page.field(
            "created",
            show_option(self.timestamps.as_ref().map(|times| times.created_at)),
        );
        page
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
