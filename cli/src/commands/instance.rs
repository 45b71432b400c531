//! `evenkeel instance`: what runs on hosts.

mod write;

use clap::Subcommand;
use evenkeel_api::host::HostResource;
use evenkeel_api::instance::{InstanceBadImage, InstanceCondition, InstanceResource, InstanceSlot};

use self::write::{CreateInstance, SetInstance};
use super::host::available;
use crate::Failure;
use crate::client::Client;
use crate::pages::{self, Filter, ListOptions, Query, any, exactly};
use crate::resource::{self, Resource, is_id};
use crate::time::{show, show_seconds};
use crate::view::{Cell, Page, Printer, Tone};

/// Instances: what runs on hosts.
#[derive(Debug, Subcommand)]
pub enum InstanceCommand {
    /// List the instances.
    List(ListOptions),
    /// Show an instance.
    Get {
        /// Its id or name, or that of its host.
        instance: String,
    },
    /// Make the instance of a host by hand. Enrolment does it by itself.
    Create(Box<CreateInstance>),
    /// Change what is given of an instance; the rest stays.
    Set(SetInstance),
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
    /// Trust an instance no more: it gets no answers from now on, and cannot be trusted again.
    Invalidate {
        /// Its id or name, or that of its host.
        instance: String,
    },
    /// Delete an instance with the history of its updates.
    Delete {
        /// Its id or name, or that of its host.
        instance: String,
    },
}

impl InstanceCommand {
    pub async fn run(self, client: &Client, printer: &mut Printer<'_>) -> Result<(), Failure> {
        type Instance = InstanceResource;
        match self {
            Self::List(options) => pages::show::<Instance>(client, &options.query(), printer).await,
            Self::Get { instance } => {
                let id = meant(client, &instance).await?;
                printer.one(&resource::find::<Instance>(client, &id).await?)
            }
            Self::Create(create) => printer.one(&create.run(client).await?),
            Self::Set(set) => printer.one(&set.run(client).await?),
            Self::SetPolicy {
                instance,
                policy,
                none: _,
            } => {
                let id = meant(client, &instance).await?;
                let policy = write::policy_id(client, policy.as_deref()).await?;
                let body = write::with_policy(policy.unwrap_or_default());
                let changed: Instance = resource::change(client, &id, &instance, &body).await?;
                printer.one(&changed)
            }
            Self::Invalidate { instance } => {
                let id = meant(client, &instance).await?;
                let path = format!("{}/invalidate", Instance::address(&id));
                let done = client.put(&path).await;
                done.map_err(|error| resource::gone::<Instance>(error, &instance))?;
                printer.done(Instance::WORD, &id, "invalidated")
            }
            Self::Delete { instance } => {
                let id = meant(client, &instance).await?;
                let id = resource::delete::<Instance>(client, &id).await?;
                printer.done(Instance::WORD, &id, "deleted")
            }
        }
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
    let called = ["name", "host.name"].map(|field| exactly(field, text));
    let query = match called {
        [Some(own), Some(host)] => Query::of(Filter::own(any([own, host]))),
        _ => Query::default(),
    };
    let instances = pages::all::<InstanceResource>(client, &query).await?;
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
    const KEYS: &'static [&'static str] = &["instances"];
    const HEADER: &'static [&'static str] =
        &["ID", "NAME", "HOST", "OS", "POLICY", "UPDATE", "AVAILABLE"];

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
            os(self).into(),
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
            .field("os", os(self))
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
            .field("available", available(self));
        if let Some(account) = &self.localaccount {
            page.field("account", account.username.clone());
        }
        let configs = self.custom_config.iter().map(|config| config.name.as_str());
        let configs: Vec<_> = configs.collect();
        page.field_if("custom configs", &configs.join(", "))
            .created(self.timestamps.as_ref())
            .table(
                "Conditions:",
                CONDITIONS,
                self.conditions.iter().map(row_of_condition).collect(),
            );
        show_images(&mut page, self);
        page
    }
}

/// Adds what its node told of its slots for images, and of those that failed.
pub fn show_images(page: &mut Page, instance: &InstanceResource) {
    page.table(
        "Slots:",
        &["SLOT", "STATE", "IMAGE VERSION"],
        instance.slots.iter().map(row_of_slot).collect(),
    )
    .table(
        "Images that failed here:",
        &["IMAGE VERSION", "SHA256", "BECAUSE"],
        instance.bad_images.iter().map(row_of_bad_image).collect(),
    );
}

fn row_of_slot(slot: &InstanceSlot) -> Vec<Cell> {
    let tone = match slot.state.as_str() {
        "good" => Tone::Good,
        "bad" => Tone::Bad,
        "writing" | "armed" | "trial" => Tone::Busy,
        _ => Tone::Plain,
    };
    vec![
        slot.name.clone().into(),
        Cell::toned(slot.state.clone(), tone),
        slot.image_id.clone().into(),
    ]
}

fn row_of_bad_image(image: &InstanceBadImage) -> Vec<Cell> {
    // So much tells one file from another.
    let digest = image.sha256.get(..12).unwrap_or(&image.sha256);
    vec![
        image.image_id.clone().into(),
        digest.into(),
        image.why.clone().into(),
    ]
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

/// The name of the operating system.
fn os(instance: &InstanceResource) -> String {
    let os = instance.os.as_ref();
    os.map(|os| os.name.clone()).unwrap_or_default()
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
