//! `evenkeel instance`: the operating systems installed on hosts.

pub mod facts;
mod write;

use clap::Subcommand;
use evenkeel_api::decision::EffectivePolicy;
use evenkeel_api::host::HostResource;
use evenkeel_api::instance::{InstanceBadImage, InstanceCondition, InstanceResource, InstanceSlot};
use evenkeel_api::timestamps::Timestamps;

use self::write::{CreateInstance, SetInstance};
use crate::Failure;
use crate::client::Client;
use crate::listing::{self, Filter, ListOptions, Query, any_condition, equals_condition};
use crate::output::Printer;
use crate::page::{Cell, DetailPage, Tone, cells};
use crate::requests;
use crate::resource::{self, Resource, ResourceKind, is_id};
use crate::time::{format_time, format_unix_seconds};

/// Manage instances: the operating systems installed on hosts.
#[derive(Debug, Subcommand)]
pub enum InstanceCommand {
    /// List instances.
    List(ListOptions),
    /// Show an instance.
    Get {
        /// ID or name of the instance or of its host.
        instance: String,
    },
    /// Create the instance of a host. Enrolment does this automatically.
    Create(Box<CreateInstance>),
    /// Change an instance. Options that are not given keep their values.
    Set(SetInstance),
    /// Assign a policy to an instance, or remove the assignment.
    SetPolicy {
        /// ID or name of the instance or of its host.
        instance: String,
        /// ID or name of the policy.
        #[arg(required_unless_present = "none")]
        policy: Option<String>,
        /// Remove the assignment.
        #[arg(long, conflicts_with = "policy")]
        none: bool,
    },
    /// Revoke the trust in an instance permanently. The server refuses all its requests.
    Invalidate {
        /// ID or name of the instance or of its host.
        instance: String,
    },
    /// Delete an instance and its update history.
    Delete {
        /// ID or name of the instance or of its host.
        instance: String,
    },
}

impl InstanceCommand {
    pub async fn run(self, client: &Client, printer: &mut Printer<'_>) -> Result<(), Failure> {
        type Instance = InstanceResource;
        match self {
            Self::List(options) => {
                let query = with_policies(options.query());
                listing::fetch_and_print::<Instance>(client, &query, printer).await
            }
            Self::Get { instance } => {
                let id = resolve_instance_id(client, &instance).await?;
                printer.print_resource(&requests::find::<Instance>(client, &id).await?)
            }
            Self::Create(create) => printer.print_resource(&create.run(client).await?),
            Self::Set(set) => printer.print_resource(&set.run(client).await?),
            Self::SetPolicy { instance, policy, none: _ } => {
                let id = resolve_instance_id(client, &instance).await?;
                let policy = write::resolve_policy_id(client, policy.as_deref()).await?;
                let body = write::policy_patch(policy.unwrap_or_default());
                let changed: Instance = requests::patch(client, &id, &instance, &body).await?;
                printer.print_resource(&changed)
            }
            Self::Invalidate { instance } => {
                let id = resolve_instance_id(client, &instance).await?;
                let path = format!("{}/invalidate", Instance::address(&id));
                let done = client.put_empty(&path).await;
                done.map_err(|error| resource::explain_not_found::<Instance>(error, &instance))?;
                printer.print_result(Instance::KIND.singular, &id, "invalidated")
            }
            Self::Delete { instance } => {
                let id = resolve_instance_id(client, &instance).await?;
                let id = requests::delete::<Instance>(client, &id).await?;
                printer.print_result(Instance::KIND.singular, &id, "deleted")
            }
        }
    }
}

/// Resolves the ID or name of an instance or of its host to the ID of the instance.
pub async fn resolve_instance_id(client: &Client, text: &str) -> Result<String, Failure> {
    if is_id(InstanceResource::KIND.id_prefix, text) {
        return Ok(text.to_owned());
    }
    if is_id(HostResource::KIND.id_prefix, text) {
        return find_host_and_instance(client, text).await.map(|(_, instance)| instance);
    }
    resource::refuse_empty::<InstanceResource>(text)?;
    let conditions = ["name", "host.name"].map(|field| equals_condition(field, text));
    let query = match conditions {
        [Some(own), Some(host)] => Query::from_filter(Filter::internal(any_condition([own, host]))),
        _ => Query::default(),
    };
    let instances = listing::fetch_all::<InstanceResource>(client, &query).await?;
    let matches = |instance: &&InstanceResource| {
        let host = instance.host.as_ref().map_or("", |host| host.name.as_str());
        instance.name == text || host == text
    };
    let ids = instances.iter().filter(matches).map(|instance| instance.resource_id.clone());
    let ids: Vec<_> = ids.collect();
    if ids.is_empty() {
        let is_host = requests::resolve_id::<HostResource>(client, text).await.is_ok();
        return Err(if is_host { no_instance_error(text) } else { no_node_error(text) });
    }
    resource::single_id::<InstanceResource>(text, ids)
}

fn no_node_error(text: &str) -> Failure {
    Failure::usage_with(
        format!("there is no instance or host `{text}`"),
        "`evenkeel host list` lists all hosts, `evenkeel instance list` all instances",
    )
}

fn no_instance_error(host: &str) -> Failure {
    Failure::usage_with(
        format!("host `{host}` has no instance yet"),
        "enrol it (`evenkeel-agent enroll`), or create its instance with `evenkeel instance create`",
    )
}

/// Resolves a host and the ID of its instance.
pub async fn find_host_and_instance(
    client: &Client,
    text: &str,
) -> Result<(HostResource, String), Failure> {
    let host: HostResource = requests::find(client, text).await?;
    let instance = host.instance.as_ref().map(|instance| instance.resource_id.clone());
    let instance = instance.ok_or_else(|| no_instance_error(text))?;
    Ok((host, instance))
}

impl Resource for InstanceResource {
    const KIND: ResourceKind = ResourceKind {
        id_prefix: "inst",
        path: "compute/instances",
        titles: &["HOST", "OS", "POLICY", "POLICY FROM", "UPDATE", "AVAILABLE"],
        optional_titles: &["AGE", "OS", "AVAILABLE", "POLICY FROM", "NAME", "UPDATE", "POLICY"],
        ..ResourceKind::new("INSTANCE", "instance", "instances")
    };

    fn key(&self) -> [&str; 2] {
        [&self.resource_id, &self.name]
    }

    fn timestamps(&self) -> Option<&Timestamps> {
        self.timestamps.as_ref()
    }

    fn columns(&self) -> Vec<Cell> {
        cells![
            host_name(self),
            os_name(self),
            policy_name(self),
            policy_source(self),
            Cell::status(&self.update_status, self.update_status_indicator),
            available_updates_cell(self)
        ]
    }

    fn add_details(&self, page: &mut DetailPage) {
        page.field("host", host_name(self))
            .field("os", os_name(self))
            .field("policy", describe_policy(self))
            .field("status", Cell::status(&self.instance_status, self.instance_status_indicator))
            .field("update", Cell::status(&self.update_status, self.update_status_indicator))
            .field("since", format_unix_seconds(self.update_status_timestamp))
            .field("available", available_updates_cell(self));
        facts::add_facts(page, self);
        if let Some(account) = &self.localaccount {
            page.field("account", &account.username);
        }
        let configs = self.custom_config.iter().map(|config| config.name.as_str());
        let configs: Vec<_> = configs.collect();
        page.field_if("custom configs", &configs.join(", "))
            .created(self.timestamps.as_ref())
            .table("Conditions:", CONDITION_HEADER, self.conditions.iter().map(condition_row));
        facts::add_fact_tables(page, self);
        add_image_tables(page, self);
    }
}

/// Adds the image slots and the failed images of the node.
pub fn add_image_tables(page: &mut DetailPage, instance: &InstanceResource) {
    page.table("Slots:", &["SLOT", "STATE", "IMAGE VERSION"], instance.slots.iter().map(slot_row))
        .table(
            "Failed images:",
            &["IMAGE VERSION", "SHA256", "REASON"],
            instance.bad_images.iter().map(bad_image_row),
        );
}

fn slot_row(slot: &InstanceSlot) -> Vec<Cell> {
    let tone = match slot.state.as_str() {
        "good" => Tone::Good,
        "bad" => Tone::Bad,
        "writing" | "armed" | "trial" => Tone::Busy,
        _ => Tone::Plain,
    };
    cells![&slot.name, Cell::toned(slot.state.clone(), tone), &slot.image_id]
}

fn bad_image_row(image: &InstanceBadImage) -> Vec<Cell> {
    // 12 digits identify a file well enough.
    let digest = image.sha256.get(..12).unwrap_or(&image.sha256);
    cells![&image.image_id, digest, &image.reason]
}

/// Column titles of [`condition_row`].
pub const CONDITION_HEADER: &[&str] = &["TYPE", "SINCE", "MESSAGE"];

/// Row of a condition: a warning that is not a failure.
pub fn condition_row(condition: &InstanceCondition) -> Vec<Cell> {
    cells![
        Cell::toned(condition.kind.clone(), Tone::Busy),
        format_time(condition.since),
        &condition.message
    ]
}

/// Name of the operating system.
fn os_name(instance: &InstanceResource) -> String {
    let os = instance.os.as_ref();
    os.map(|os| os.name.clone()).unwrap_or_default()
}

/// Also queries the policies that apply, which servers omit from lists by default.
pub fn with_policies(query: Query) -> Query {
    query.with_param("showEffectivePolicy", "true")
}

/// Where the effective policy comes from.
pub fn policy_source(instance: &InstanceResource) -> String {
    instance.effective_update_policy.as_ref().map(describe_scope).unwrap_or_default()
}

/// Level of an assignment and its target: the name of a site or region, else the ID.
pub fn describe_scope(policy: &EffectivePolicy) -> String {
    let EffectivePolicy { level, assigned_to, assigned_to_name, .. } = policy;
    match (level.as_str(), assigned_to_name.as_str()) {
        ("site" | "region", "") => format!("{level} {assigned_to}"),
        ("site" | "region", name) => format!("{level} {name}"),
        _ => level.clone(),
    }
}

/// Name of the effective policy.
pub fn policy_name(instance: &InstanceResource) -> String {
    let own = instance.update_policy.as_ref().map(|policy| &policy.name);
    let applies = instance.effective_update_policy.as_ref();
    applies.map(|policy| &policy.name).or(own).cloned().unwrap_or_default()
}

/// Effective policy, and the level that it is assigned to.
pub fn describe_policy(instance: &InstanceResource) -> String {
    if let Some(policy) = &instance.effective_update_policy {
        let (name, id, target) = (&policy.name, &policy.resource_id, describe_scope(policy));
        return format!("{name} ({id}), assigned to the {target}");
    }
    let own = instance.update_policy.as_ref();
    own.map(|policy| format!("{} ({})", policy.name, policy.resource_id)).unwrap_or_default()
}

/// Name of the host, else its ID.
fn host_name(instance: &InstanceResource) -> String {
    match instance.host.as_ref().map(|host| host.name.as_str()) {
        None | Some("") => instance.host_id.clone(),
        Some(name) => name.to_owned(),
    }
}

/// Number of available package updates, or the available image. Without a report, or with package
/// lists that could not be fetched, no updates are unknown updates.
pub fn available_updates_cell(instance: &InstanceResource) -> Cell {
    let text = instance.os_update_available.as_str();
    if text.is_empty() && facts::lacks_package_lists(instance) {
        return Cell::toned("unknown", Tone::Bad);
    }
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
