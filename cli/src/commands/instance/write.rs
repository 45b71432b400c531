//! Creates and changes instances.

use std::path::{Path, PathBuf};

use clap::{ArgGroup, Args};
use evenkeel_api::custom_config::CustomConfigResource;
use evenkeel_api::host::HostResource;
use evenkeel_api::instance::{InstanceInput, InstanceKind, InstancePatch, InstanceResource};
use evenkeel_api::local_account::LocalAccountResource;
use evenkeel_api::os::{OperatingSystemResource, SecurityFeature};
use evenkeel_api::policy::OsUpdatePolicy;
use serde_json::Value;

use super::resolve_instance_id;
use crate::client::Client;
use crate::requests::DuplicateOption;
use crate::resource::Resource;
use crate::{Failure, commands, requests};

/// Create the instance of a host from options or from a file.
#[derive(Debug, Args)]
pub struct CreateInstance {
    /// File with an instance as `get -o yaml` or `get -o json` prints it.
    #[arg(long, short, value_name = "FILE", conflicts_with_all = ["host", "os", "name", "policy", "account", "custom_configs"])]
    file: Option<PathBuf>,
    /// ID or name of the host.
    #[arg(long, required_unless_present = "file")]
    host: Option<String>,
    /// ID or name of the operating system.
    #[arg(long, required_unless_present = "file")]
    os: Option<String>,
    /// Name of the instance.
    #[arg(long, default_value = "", hide_default_value = true)]
    name: String,
    /// Policy to assign (ID or name).
    #[arg(long)]
    policy: Option<String>,
    /// Local account that may log in (ID or name).
    #[arg(long)]
    account: Option<String>,
    /// Custom configuration for the first boot (ID or name). Can be repeated.
    #[arg(long = "custom-config", value_name = "CONFIG")]
    custom_configs: Vec<String>,
    #[command(flatten)]
    duplicates: DuplicateOption,
}

/// Change an instance.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("what").required(true).multiple(true)
    .args(["name", "os", "policy", "no_policy"]))]
pub struct SetInstance {
    /// ID or name of the instance or of its host.
    instance: String,
    /// New name.
    #[arg(long)]
    name: Option<String>,
    /// New operating system (ID or name); only while nothing is installed yet.
    #[arg(long)]
    os: Option<String>,
    /// Policy to assign (ID or name).
    #[arg(long)]
    policy: Option<String>,
    /// Remove the policy assignment.
    #[arg(long, conflicts_with = "policy")]
    no_policy: bool,
    #[command(flatten)]
    duplicates: DuplicateOption,
}

impl CreateInstance {
    pub async fn run(self, client: &Client) -> Result<InstanceResource, Failure> {
        let duplicates = self.duplicates;
        let body = match &self.file {
            Some(path) => read_instance(path)?,
            None => self.build_input(client).await?,
        };
        duplicates.check::<InstanceResource>(client, &body.name, None).await?;
        client.post(InstanceResource::KIND.path, &body).await
    }

    async fn build_input(self, client: &Client) -> Result<InstanceInput, Failure> {
        type Account = LocalAccountResource;
        let (host, os) = (self.host.unwrap_or_default(), self.os.unwrap_or_default());
        let mut configs = Vec::new();
        for config in &self.custom_configs {
            configs.push(requests::resolve_id::<CustomConfigResource>(client, config).await?);
        }
        let account = self.account.as_deref();
        Ok(InstanceInput {
            kind: InstanceKind::Metal,
            name: self.name,
            host_id: requests::resolve_id::<HostResource>(client, &host).await?,
            os_id: requests::resolve_id::<OperatingSystemResource>(client, &os).await?,
            local_account_id: requests::resolve_optional_id::<Account>(client, account).await?,
            custom_config_id: configs,
            os_update_policy_id: resolve_policy_id(client, self.policy.as_deref()).await?,
            security_feature: SecurityFeature::None,
        })
    }
}

impl SetInstance {
    pub async fn run(self, client: &Client) -> Result<InstanceResource, Failure> {
        let id = resolve_instance_id(client, &self.instance).await?;
        let name = self.name.as_deref().unwrap_or_default();
        self.duplicates.check::<InstanceResource>(client, name, Some(&id)).await?;
        let os = self.os.as_deref();
        let policy = resolve_policy_id(client, self.policy.as_deref()).await?;
        let body = InstancePatch {
            name: self.name,
            os_id: requests::resolve_optional_id::<OperatingSystemResource>(client, os).await?,
            os_update_policy_id: policy.or_else(|| self.no_policy.then(String::new)),
            ..InstancePatch::default()
        };
        requests::patch(client, &id, &self.instance, &body).await
    }
}

/// Reads a new instance. A printed instance has its policy only as a whole resource.
fn read_instance(path: &Path) -> Result<InstanceInput, Failure> {
    let expected = "an instance";
    let resource: Value = commands::read_yaml(path, expected)?;
    let policy = resource["updatePolicy"]["resourceId"].as_str().map(str::to_owned);
    let input: InstanceInput = commands::parse_input(resource, path, expected)?;
    let own = input.os_update_policy_id.clone().filter(|id| !id.is_empty());
    Ok(InstanceInput { os_update_policy_id: own.or(policy), ..input })
}

/// A patch that changes only the policy.
pub fn policy_patch(policy: String) -> InstancePatch {
    InstancePatch { os_update_policy_id: Some(policy), ..InstancePatch::default() }
}

/// Resolves an optional policy to its ID.
pub async fn resolve_policy_id(
    client: &Client,
    policy: Option<&str>,
) -> Result<Option<String>, Failure> {
    requests::resolve_optional_id::<OsUpdatePolicy>(client, policy).await
}
