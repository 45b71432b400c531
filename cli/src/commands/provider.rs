//! `evenkeel provider`: providers of bare-metal hosts.

use clap::{Args, Subcommand, ValueEnum};
use evenkeel_api::provider::{ProviderInput, ProviderKind, ProviderResource, ProviderVendor};

use crate::Failure;
use crate::client::Client;
use crate::listing::{self, ListOptions};
use crate::output::{Cell, DetailPage, Printer};
use crate::resource::{self, Resource};

/// Manage providers of bare-metal hosts.
#[derive(Debug, Subcommand)]
pub enum ProviderCommand {
    /// List providers.
    List(ListOptions),
    /// Show a provider. Tables show only the number of credentials; JSON and YAML contain them.
    Get {
        /// ID or name of the provider.
        provider: String,
    },
    /// Create a provider.
    Create(CreateProvider),
    /// Delete a provider without hosts.
    Delete {
        /// ID or name of the provider.
        provider: String,
    },
}

/// Create a provider.
#[derive(Debug, Args)]
pub struct CreateProvider {
    /// Name, unique in the project.
    name: String,
    /// URL of the provider's API.
    #[arg(long, value_name = "URL", default_value = "", hide_default_value = true)]
    endpoint: String,
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
            Self::List(options) => {
                listing::fetch_and_print::<Provider>(client, &options.query(), printer).await
            }
            Self::Get { provider } => {
                printer.print_resource(&resource::find::<Provider>(client, &provider).await?)
            }
            Self::Create(create) => {
                let created: Provider = client.post(Provider::PATH, &create.build_input()).await?;
                printer.print_resource(&created)
            }
            Self::Delete { provider } => {
                let id = resource::delete::<Provider>(client, &provider).await?;
                printer.print_result(Provider::SINGULAR, &id, "deleted")
            }
        }
    }
}

impl CreateProvider {
    fn build_input(self) -> ProviderInput {
        ProviderInput {
            provider_kind: ProviderKind::Baremetal,
            provider_vendor: match self.vendor {
                None => ProviderVendor::Unspecified,
                Some(Vendor::LenovoLxca) => ProviderVendor::LenovoLxca,
                Some(Vendor::LenovoLoca) => ProviderVendor::LenovoLoca,
            },
            name: self.name,
            api_endpoint: self.endpoint,
            api_credentials: self.credentials,
            config: self.config,
        }
    }
}

impl Resource for ProviderResource {
    const COMMAND: &'static str = "provider";
    const SINGULAR: &'static str = "provider";
    const PLURAL: &'static str = "providers";
    const ID_PREFIX: &'static str = "provider";
    const PATH: &'static str = "providers";
    const LIST_KEYS: &'static [&'static str] = &["providers"];
    const IN_USE_HINT: Option<&'static str> = Some(
        "delete its hosts first: `evenkeel host list --filter 'provider.name = \"NAME\"'` lists them",
    );
    const HEADER: &'static [&'static str] = &["ID", "NAME", "VENDOR", "ENDPOINT"];

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
            vendor_label(self).into(),
            self.api_endpoint.clone().into(),
        ]
    }

    fn page(&self) -> DetailPage {
        let mut page = DetailPage::default();
        page.field("id", self.resource_id.clone())
            .field("name", self.name.clone())
            .field("vendor", vendor_label(self))
            .field("endpoint", self.api_endpoint.clone())
            .field("credentials", self.api_credentials.len().to_string())
            .field_if("config", &self.config)
            .created(self.timestamps.as_ref());
        page
    }
}

fn vendor_label(provider: &ProviderResource) -> &'static str {
    match provider.provider_vendor {
        ProviderVendor::Unspecified => "",
        ProviderVendor::LenovoLxca => "lenovo-lxca",
        ProviderVendor::LenovoLoca => "lenovo-loca",
    }
}
