//! What people say of hosts.

use clap::{ArgGroup, Args};
use evenkeel_api::host::{HostInput, HostRegister, HostResource};
use evenkeel_api::site::SiteResource;
use serde_json::{Map, Value, json};

use crate::Failure;
use crate::client::Client;
use crate::labels::{LabelChanges, NewLabels};
use crate::resource::{self, Resource};

/// A host that is made by hand.
#[derive(Debug, Args)]
pub struct CreateHost {
    /// What to call it.
    name: String,
    /// The machine's UUID.
    #[arg(long)]
    uuid: Option<String>,
    /// The site that it stands at, by its id or name.
    #[arg(long)]
    site: Option<String>,
    #[command(flatten)]
    labels: NewLabels,
}

/// A machine that will come.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("known by").args(["uuid", "serial"]).required(true).multiple(true))]
pub struct RegisterHost {
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
    /// It is not onboarded before `evenkeel host onboard`.
    #[arg(long)]
    no_onboard: bool,
    /// The size of the users' volume in GB, for whoever installs the machine.
    #[arg(
        long,
        value_name = "GB",
        default_value_t = 0,
        hide_default_value = true
    )]
    user_lvm_size: u32,
}

/// What changes about a host.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("what").required(true).multiple(true)
    .args(["name", "site", "no_site"]).args(LabelChanges::OPTIONS))]
pub struct SetHost {
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
    #[command(flatten)]
    labels: LabelChanges,
}

impl CreateHost {
    pub async fn run(self, client: &Client) -> Result<HostResource, Failure> {
        let body = HostInput {
            name: self.name,
            uuid: self.uuid.unwrap_or_default(),
            site_id: site_id(client, self.site.as_deref())
                .await?
                .unwrap_or_default(),
            metadata: self.labels.labels,
            ..HostInput::default()
        };
        client.post(HostResource::PATH, &body).await
    }
}

impl RegisterHost {
    pub async fn run(self, client: &Client) -> Result<HostResource, Failure> {
        let body = HostRegister {
            name: self.name,
            uuid: self.uuid.unwrap_or_default(),
            serial_number: self.serial.unwrap_or_default(),
            site_id: site_id(client, self.site.as_deref())
                .await?
                .unwrap_or_default(),
            auto_onboard: !self.no_onboard,
            user_lvm_size: self.user_lvm_size,
            ..HostRegister::default()
        };
        client.post("compute/hosts/register", &body).await
    }
}

impl SetHost {
    pub async fn run(self, client: &Client) -> Result<HostResource, Failure> {
        let id = resource::id_of::<HostResource>(client, &self.host).await?;
        let site = site_id(client, self.site.as_deref()).await?;
        let site = site.or_else(|| self.no_site.then(String::new));
        let mut body = Map::new();
        body.extend(self.name.map(|name| ("name".to_owned(), Value::from(name))));
        body.extend(site.map(|site| ("siteId".to_owned(), Value::from(site))));
        if !self.labels.is_empty() {
            let now: HostResource = resource::find(client, &id).await?;
            let labels = self.labels.over(&now.metadata);
            body.insert("metadata".to_owned(), json!(labels));
        }
        resource::change(client, &id, &self.host, &body).await
    }
}

/// Lets a host be onboarded, and answers with its id.
pub async fn onboard(client: &Client, host: &str) -> Result<String, Failure> {
    let id = resource::id_of::<HostResource>(client, host).await?;
    let path = format!("{}/onboard", HostResource::address(&id));
    let done = client.patch::<Value>(&path, &json!({})).await;
    done.map_err(|error| resource::gone::<HostResource>(error, host))?;
    Ok(id)
}

/// Takes the trust in a host back, and answers with its id.
pub async fn invalidate(
    client: &Client,
    host: &str,
    note: Option<String>,
) -> Result<String, Failure> {
    let id = resource::id_of::<HostResource>(client, host).await?;
    let path = format!("{}/invalidate", HostResource::address(&id));
    let params: Vec<_> = note.into_iter().map(|note| ("note", note)).collect();
    let done = client.put_with(&path, &params).await;
    done.map_err(|error| resource::gone::<HostResource>(error, host))?;
    Ok(id)
}

async fn site_id(client: &Client, site: Option<&str>) -> Result<Option<String>, Failure> {
    resource::optional_id_of::<SiteResource>(client, site).await
}
