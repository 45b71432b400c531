//! `evenkeel instance`: what runs on hosts.

use clap::Subcommand;
use evenkeel_api::host::HostResource;
use evenkeel_api::instance::{
    InstanceCondition, InstanceInput, InstanceKind, InstanceList, InstancePatch, InstanceResource,
};
use evenkeel_api::os::{OperatingSystemResource, SecurityFeature};
use evenkeel_api::policy::OsUpdatePolicy;

use super::host::available;
use crate::Failure;
use crate::client::Client;
use crate::resource::{self, Resource, is_id};
use crate::time::{show, show_option, show_seconds};
use crate::view::{Cell, Page, Printer, Tone};

/// Instances: what runs on hosts.
#[derive(Debug, Subcommand)]
pub enum InstanceCommand {
    /// List the instances.
    List,
    /// Show an instance.
    Get {
        /// Its id or name, or that of its host.
        instance: String,
    },
    /// Make the instance of a host by hand. Enrolment does it by itself.
    Create {
        /// The host's id or name.
        #[arg(long)]
        host: String,
        /// The operating system's id or name.
        #[arg(long)]
        os: String,
        /// What to call it.
        #[arg(long, default_value = "", hide_default_value = true)]
        name: String,
        /// The policy to assign to it, by its id or name.
        #[arg(long)]
        policy: Option<String>,
    },
    /// Assign a policy to an instance, or take the assignment away.
    SetPolicy {
        /// The instance's id or name, or that of its host.
        instance: String,
        /// The policy's id or name.
        #[arg(required_unless_present = "none")]
        policy: Option<String>,
        /// Take the assignment away.
        #[arg(long, conflicts_with = "policy")]
        none: bool,
    },
    /// Delete an instance with the history of its updates.
    Delete {
        /// Its id or name, or that of its host.
        instance: String,
    },
}

impl InstanceCommand {
    pub async fn run(self, client: &Client, printer: &mut Printer<'_>) -> Result<(), Failure> {
        match self {
            Self::List => printer.list(&resource::all::<InstanceResource>(client).await?),
            Self::Get { instance } => {
                let id = meant(client, &instance).await?;
                printer.one(&resource::find::<InstanceResource>(client, &id).await?)
            }
            Self::Create {
                host,
                os,
                name,
                policy,
            } => {
                let body = InstanceInput {
                    kind: InstanceKind::Metal,
                    name,
                    host_id: resource::id_of::<HostResource>(client, &host).await?,
                    os_id: resource::id_of::<OperatingSystemResource>(client, &os).await?,
                    os_update_policy_id: policy_id(client, policy.as_deref()).await?,
                    security_feature: SecurityFeature::None,
                };
                let made: InstanceResource = client.post(InstanceResource::PATH, &body).await?;
                printer.one(&made)
            }
            Self::SetPolicy {
                instance,
                policy,
                none: _,
            } => {
                let id = meant(client, &instance).await?;
                let policy = policy_id(client, policy.as_deref())
                    .await?
                    .unwrap_or_default();
                let body = InstancePatch {
                    name: None,
                    os_update_policy_id: Some(policy),
                };
                let path = format!("{}/{id}", InstanceResource::PATH);
                let changed: InstanceResource = client.patch(&path, &body).await?;
                printer.one(&changed)
            }
            Self::Delete { instance } => {
                let id = meant(client, &instance).await?;
                let id = resource::delete::<InstanceResource>(client, &id).await?;
                printer.done(InstanceResource::WORD, &id, "deleted")
            }
        }
    }
}

async fn policy_id(client: &Client, policy: Option<&str>) -> Result<Option<String>, Failure> {
    match policy {
        None => Ok(None),
        Some(text) => resource::id_of::<OsUpdatePolicy>(client, text)
            .await
            .map(Some),
    }
}

/// The id of the instance that a person means by its id or name, or by those of its host.
pub async fn meant(client: &Client, text: &str) -> Result<String, Failure> {
    if is_id(InstanceResource::PREFIX, text) {
        return Ok(text.to_owned());
    }
    if is_id(HostResource::PREFIX, text) {
        return of_host(client, text).await.map(|(_, instance)| instance);
    }
    resource::refuse_empty::<InstanceResource>(text)?;
    let instances = resource::all::<InstanceResource>(client).await?;
    let is_meant = |instance: &&InstanceResource| {
        let host = instance.host.as_ref().map_or("", |host| host.name.as_str());
        instance.name == text || host == text
    };
    let ids = instances
        .iter()
        .filter(is_meant)
        .map(|instance| instance.resource_id.clone());
    let ids: Vec<_> = ids.collect();
    if ids.is_empty() && resource::id_of::<HostResource>(client, text).await.is_ok() {
        return Err(nothing_runs(text));
    }
    resource::only::<InstanceResource>(text, ids)
}

fn nothing_runs(host: &str) -> Failure {
    Failure::usage_with(
        format!("nothing runs on host `{host}` yet"),
        "enrol it (`evenkeel-agent enroll`), or make its instance with `evenkeel instance create`",
    )
}

/// The host that a person means, and the id of what runs on it.
pub async fn of_host(client: &Client, text: &str) -> Result<(HostResource, String), Failure> {
    let host: HostResource = resource::find(client, text).await?;
    let instance = host
        .instance
        .as_ref()
        .map(|instance| instance.resource_id.clone());
    let instance = instance.ok_or_else(|| nothing_runs(text))?;
    Ok((host, instance))
}

impl Resource for InstanceResource {
    const NOUN: &'static str = "instance";
    const WORD: &'static str = "instance";
    const MANY: &'static str = "instances";
    const PREFIX: &'static str = "inst";
    const PATH: &'static str = "compute/instances";
    const HEADER: &'static [&'static str] =
        &["ID", "NAME", "HOST", "OS", "POLICY", "UPDATE", "AVAILABLE"];
    type List = InstanceList;

    fn items(list: InstanceList) -> Vec<Self> {
        list.instances
    }

    fn id(&self) -> &str {
        &self.resource_id
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn row(&self) -> Vec<Cell> {
        vec![
            self.resource_id.clone().into(),
            self.name.clone().into(),
            host(self).into(),
            self.os
                .as_ref()
                .map(|os| os.name.clone())
                .unwrap_or_default()
                .into(),
            policy(self).into(),
            Cell::toned(
                self.update_status.clone(),
                self.update_status_indicator.into(),
            ),
            available(self),
        ]
    }

    fn page(&self) -> Page {
        let mut page = Page::default();
        page.field("id", self.resource_id.clone())
            .field("name", self.name.clone())
            .field("host", host(self))
            .field(
                "os",
                self.os
                    .as_ref()
                    .map(|os| os.name.clone())
                    .unwrap_or_default(),
            )
            .field("policy", whole_policy(self))
            .field(
                "status",
                Cell::toned(
                    self.instance_status.clone(),
                    self.instance_status_indicator.into(),
                ),
            )
            .field(
                "update",
                Cell::toned(
                    self.update_status.clone(),
                    self.update_status_indicator.into(),
                ),
            )
            .field("since", show_seconds(self.update_status_timestamp))
            .field("available", available(self))
            .field(
                "created",
                show_option(self.timestamps.as_ref().map(|times| times.created_at)),
            )
            .table(
                "Conditions:",
                CONDITIONS,
                self.conditions.iter().map(row_of_condition).collect(),
            );
        page
    }
}

/// The titles of [`row_of_condition`].
pub const CONDITIONS: &[&str] = &["TYPE", "SINCE", "MESSAGE"];

/// What people should know about an instance although nothing failed.
pub fn row_of_condition(condition: &InstanceCondition) -> Vec<Cell> {
    vec![
        Cell::toned(condition.kind.clone(), Tone::Busy),
        show(condition.since).into(),
        condition.message.clone().into(),
    ]
}

/// The name of the policy that applies.
fn policy(instance: &InstanceResource) -> String {
    let own = instance.update_policy.as_ref().map(|policy| &policy.name);
    let applies = instance.effective_update_policy.as_ref();
    applies
        .map(|policy| &policy.name)
        .or(own)
        .cloned()
        .unwrap_or_default()
}

/// The policy that applies and where it comes from.
fn whole_policy(instance: &InstanceResource) -> String {
    if let Some(policy) = &instance.effective_update_policy {
        let (name, id, level) = (&policy.name, &policy.resource_id, &policy.level);
        return format!("{name} ({id}), assigned to the {level}");
    }
    let own = instance.update_policy.as_ref();
    own.map(|policy| format!("{} ({})", policy.name, policy.resource_id))
        .unwrap_or_default()
}

/// The name of the host and its id, as far as they are known.
fn host(instance: &InstanceResource) -> String {
    match instance.host.as_ref().map(|host| host.name.as_str()) {
        None | Some("") => instance.host_id.clone(),
        Some(name) => name.to_owned(),
    }
}
