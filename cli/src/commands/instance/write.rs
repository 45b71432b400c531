//! What people say of instances.

use clap::{ArgGroup, Args};
use evenkeel_api::custom_config::CustomConfigResource;
use evenkeel_api::host::HostResource;
use evenkeel_api::instance::{InstanceInput, InstanceKind, InstancePatch, InstanceResource};
use evenkeel_api::local_account::LocalAccountResource;
use evenkeel_api::os::{OperatingSystemResource, SecurityFeature};
use evenkeel_api::policy::OsUpdatePolicy;

use super::meant;
use crate::Failure;
use crate::client::Client;
use crate::resource::{self, Resource};

/// An instance that is made by hand.
#[derive(Debug, Args)]
pub struct CreateInstance {
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
    /// The local account that may log in, by its id or name.
    #[arg(long)]
    account: Option<String>,
    /// A custom configuration for its first start, by its id or name. May be given again.
    #[arg(long = "custom-config", value_name = "CONFIG")]
    custom_configs: Vec<String>,
}

/// What changes about an instance.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("what").required(true).multiple(true)
    .args(["name", "os", "policy", "no_policy"]))]
pub struct SetInstance {
    /// Its id or name, or that of its host.
    instance: String,
    /// What to call it from now on.
    #[arg(long)]
    name: Option<String>,
    /// The operating system, by its id or name; only while nothing is installed yet.
    #[arg(long)]
    os: Option<String>,
    /// The policy to assign to it, by its id or name.
    #[arg(long)]
    policy: Option<String>,
    /// Take the assignment of a policy away.
    #[arg(long, conflicts_with = "policy")]
    no_policy: bool,
}

impl CreateInstance {
    pub async fn run(self, client: &Client) -> Result<InstanceResource, Failure> {
        type Account = LocalAccountResource;
        let mut configs = Vec::new();
        for config in &self.custom_configs {
            configs.push(resource::id_of::<CustomConfigResource>(client, config).await?);
        }
        let account = self.account.as_deref();
        let body = InstanceInput {
            kind: InstanceKind::Metal,
            name: self.name,
            host_id: resource::id_of::<HostResource>(client, &self.host).await?,
            os_id: resource::id_of::<OperatingSystemResource>(client, &self.os).await?,
            local_account_id: resource::optional_id_of::<Account>(client, account).await?,
            custom_config_id: configs,
            os_update_policy_id: policy_id(client, self.policy.as_deref()).await?,
            security_feature: SecurityFeature::None,
        };
        client.post(InstanceResource::PATH, &body).await
    }
}

impl SetInstance {
    pub async fn run(self, client: &Client) -> Result<InstanceResource, Failure> {
        let id = meant(client, &self.instance).await?;
        let os = self.os.as_deref();
        let policy = policy_id(client, self.policy.as_deref()).await?;
        let body = InstancePatch {
            name: self.name,
            os_id: resource::optional_id_of::<OperatingSystemResource>(client, os).await?,
            os_update_policy_id: policy.or_else(|| self.no_policy.then(String::new)),
            ..InstancePatch::default()
        };
        resource::change(client, &id, &self.instance, &body).await
    }
}

/// A change of the policy alone.
pub fn with_policy(policy: String) -> InstancePatch {
    InstancePatch {
        os_update_policy_id: Some(policy),
        ..InstancePatch::default()
    }
}

/// The id of the policy that a person may have meant.
pub async fn policy_id(client: &Client, policy: Option<&str>) -> Result<Option<String>, Failure> {
    resource::optional_id_of::<OsUpdatePolicy>(client, policy).await
}
