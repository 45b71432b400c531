//! Creates, registers and changes hosts.

use std::path::PathBuf;

use clap::{ArgGroup, Args};
use evenkeel_api::host::{HostInput, HostRegister, HostResource};
use evenkeel_api::site::SiteResource;
use serde_json::{Value, json};

use crate::client::Client;
use crate::labels::{LabelChanges, NewLabels};
use crate::requests::{self, DuplicateOption, PatchBody};
use crate::resource::{self, Resource};
use crate::{Failure, commands};

/// Create a host that is onboarded when it enrols, from options or from a file.
#[derive(Debug, Args)]
pub struct CreateHost {
    /// Name of the host.
    #[arg(required_unless_present = "file")]
    name: Option<String>,
    /// File with a host as `get -o yaml` or `get -o json` prints it.
    #[arg(long, short, value_name = "FILE", conflicts_with_all = ["name", "uuid", "site", "labels"])]
    file: Option<PathBuf>,
    /// UUID of the machine.
    #[arg(long)]
    uuid: Option<String>,
    /// Site of the host (ID or name).
    #[arg(long)]
    site: Option<String>,
    #[command(flatten)]
    labels: NewLabels,
    #[command(flatten)]
    duplicates: DuplicateOption,
}

/// Register a machine before it enrols.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("identity").args(["uuid", "serial"]).required(true).multiple(true))]
pub struct RegisterHost {
    /// Name of the host.
    #[arg(default_value = "", hide_default_value = true)]
    name: String,
    /// UUID of the machine.
    #[arg(long)]
    uuid: Option<String>,
    /// Serial number of the machine.
    #[arg(long)]
    serial: Option<String>,
    /// Site of the host (ID or name).
    #[arg(long)]
    site: Option<String>,
    /// Do not onboard the host before `evenkeel host onboard`.
    #[arg(long)]
    no_onboard: bool,
    /// Size of the user volume in GB, for the installer.
    #[arg(long, value_name = "GB", default_value_t = 0, hide_default_value = true)]
    user_lvm_size: u32,
    #[command(flatten)]
    duplicates: DuplicateOption,
}

/// Change a host.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("what").required(true).multiple(true)
    .args(["name", "site", "no_site"]).args(LabelChanges::OPTIONS))]
pub struct SetHost {
    /// ID or name of the host.
    host: String,
    /// New name.
    #[arg(long)]
    name: Option<String>,
    /// New site (ID or name).
    #[arg(long)]
    site: Option<String>,
    /// Remove the host from its site.
    #[arg(long, conflicts_with = "site")]
    no_site: bool,
    #[command(flatten)]
    labels: LabelChanges,
    #[command(flatten)]
    duplicates: DuplicateOption,
}

impl CreateHost {
    pub async fn run(self, client: &Client) -> Result<HostResource, Failure> {
        let body = match &self.file {
            Some(path) => commands::read_input(path, "a host")?,
            None => HostInput {
                name: self.name.unwrap_or_default(),
                uuid: self.uuid.unwrap_or_default(),
                site_id: resolve_site_id(client, self.site.as_deref()).await?.unwrap_or_default(),
                metadata: self.labels.labels,
                ..HostInput::default()
            },
        };
        self.duplicates.check::<HostResource>(client, &body.name, None).await?;
        client.post(HostResource::KIND.path, &body).await
    }
}

impl RegisterHost {
    pub async fn run(self, client: &Client) -> Result<HostResource, Failure> {
        self.duplicates.check::<HostResource>(client, &self.name, None).await?;
        let body = HostRegister {
            name: self.name,
            uuid: self.uuid.unwrap_or_default(),
            serial_number: self.serial.unwrap_or_default(),
            site_id: resolve_site_id(client, self.site.as_deref()).await?.unwrap_or_default(),
            auto_onboard: !self.no_onboard,
            user_lvm_size: self.user_lvm_size,
            ..HostRegister::default()
        };
        client.post("compute/hosts/register", &body).await
    }
}

impl SetHost {
    pub async fn run(self, client: &Client) -> Result<HostResource, Failure> {
        let id = requests::resolve_id::<HostResource>(client, &self.host).await?;
        let name = self.name.as_deref().unwrap_or_default();
        self.duplicates.check::<HostResource>(client, name, Some(&id)).await?;
        let site = resolve_site_id(client, self.site.as_deref()).await?;
        let site = site.or_else(|| self.no_site.then(String::new));
        let mut body = PatchBody::default();
        body.set("name", self.name).set("siteId", site);
        if !self.labels.is_empty() {
            let now: HostResource = requests::find(client, &id).await?;
            body.set("metadata", Some(json!(self.labels.apply_to(&now.metadata))));
        }
        requests::patch(client, &id, &self.host, &body).await
    }
}

/// Allows a host to be onboarded. Returns its ID.
pub async fn onboard(client: &Client, host: &str) -> Result<String, Failure> {
    let id = requests::resolve_id::<HostResource>(client, host).await?;
    let path = format!("{}/onboard", HostResource::address(&id));
    let done = client.patch::<Value>(&path, &json!({})).await;
    done.map_err(|error| resource::explain_not_found::<HostResource>(error, host))?;
    Ok(id)
}

/// Revokes the trust in a host. Returns its ID.
pub async fn invalidate(
    client: &Client,
    host: &str,
    note: Option<String>,
) -> Result<String, Failure> {
    let id = requests::resolve_id::<HostResource>(client, host).await?;
    let path = format!("{}/invalidate", HostResource::address(&id));
    let params: Vec<_> = note.into_iter().map(|note| ("note", note)).collect();
    let done = client.put_with_params(&path, &params).await;
    done.map_err(|error| resource::explain_not_found::<HostResource>(error, host))?;
    Ok(id)
}

async fn resolve_site_id(client: &Client, site: Option<&str>) -> Result<Option<String>, Failure> {
    requests::resolve_optional_id::<SiteResource>(client, site).await
}
