//! `evenkeel provider`: providers of bare-metal hosts.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use evenkeel_api::provider::{ProviderInput, ProviderKind, ProviderResource, ProviderVendor};
use evenkeel_api::timestamps::Timestamps;

use crate::Failure;
use crate::client::Client;
use crate::listing::ListOptions;
use crate::output::Printer;
use crate::page::{Cell, DetailPage, cells};
use crate::requests::{self, ResourceArg};
use crate::resource::{Resource, ResourceKind};

/// Manage providers of bare-metal hosts.
#[derive(Debug, Subcommand)]
pub enum ProviderCommand {
    /// List providers.
    List(ListOptions),
    /// Show a provider. Tables show only the number of credentials; JSON and YAML contain them.
    Get(ResourceArg<ProviderResource>),
    /// Create a provider from options or from a file.
    Create(CreateProvider),
    /// Delete a provider without hosts.
    Delete(ResourceArg<ProviderResource>),
}

/// Create a provider from options or from a file.
#[derive(Debug, Args)]
pub struct CreateProvider {
    /// Name, unique in the project.
    #[arg(required_unless_present = "file")]
    name: Option<String>,
    /// File with a provider as `get -o yaml` or `get -o json` prints it.
    #[arg(long, short, value_name = "FILE", conflicts_with_all = ["name", "endpoint", "vendor", "credentials", "config"])]
    file: Option<PathBuf>,
    /// URL of the provider's API.
    #[arg(long, value_name = "URL", required_unless_present = "file")]
    endpoint: Option<String>,
    /// Vendor of the provider.
    #[arg(long, value_enum)]
    vendor: Option<Vendor>,
    /// Credential for the provider's API. Other users of this machine can see it while the command runs. Can
    /// be repeated.
    #[arg(long = "credential", value_name = "TEXT")]
    credentials: Vec<String>,
    /// Configuration of the provider, usually JSON.
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    config: String,
}

/// Vendor of a provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Vendor {
    /// Lenovo `XClarity`.
    LenovoLxca,
    /// Lenovo Open Cloud Automation.
    LenovoLoca,
}

impl ProviderCommand {
    pub async fn run(self, client: &Client, printer: &mut Printer<'_>) -> Result<(), Failure> {
        type Provider = ProviderResource;
        match self {
            Self::List(options) => requests::list::<Provider>(options, client, printer).await,
            Self::Get(provider) => provider.print(client, printer).await,
            Self::Create(create) => {
                requests::create::<Provider>(&create.build_input()?, client, printer).await
            }
            Self::Delete(provider) => provider.delete(client, printer).await,
        }
    }
}

impl CreateProvider {
    fn build_input(self) -> Result<ProviderInput, Failure> {
        if let Some(path) = &self.file {
            return super::read_input(path, "a provider");
        }
        Ok(ProviderInput {
            provider_kind: ProviderKind::Baremetal,
            provider_vendor: match self.vendor {
                None => ProviderVendor::Unspecified,
                Some(Vendor::LenovoLxca) => ProviderVendor::LenovoLxca,
                Some(Vendor::LenovoLoca) => ProviderVendor::LenovoLoca,
            },
            name: self.name.unwrap_or_default(),
            api_endpoint: self.endpoint.unwrap_or_default(),
            api_credentials: self.credentials,
            config: self.config,
        })
    }
}

impl Resource for ProviderResource {
    const KIND: ResourceKind = ResourceKind {
        in_use_hint: Some(
            "delete its hosts first: `evenkeel host list --filter 'provider.name = \"NAME\"'` lists them",
        ),
        titles: &["VENDOR", "ENDPOINT"],
        ..ResourceKind::new("PROVIDER", "provider", "providers")
    };

    fn key(&self) -> [&str; 2] {
        [&self.resource_id, &self.name]
    }

    fn timestamps(&self) -> Option<&Timestamps> {
        self.timestamps.as_ref()
    }

    fn columns(&self) -> Vec<Cell> {
        cells![vendor_label(self), &self.api_endpoint]
    }

    fn add_details(&self, page: &mut DetailPage) {
        self.add_columns(page);
        page.field("credentials", self.api_credentials.len().to_string())
            .field_if("config", &self.config)
            .created(self.timestamps.as_ref());
    }
}

fn vendor_label(provider: &ProviderResource) -> &'static str {
    match provider.provider_vendor {
        ProviderVendor::Unspecified => "",
        ProviderVendor::LenovoLxca => "lenovo-lxca",
        ProviderVendor::LenovoLoca => "lenovo-loca",
    }
}
