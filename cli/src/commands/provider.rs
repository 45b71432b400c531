//! `evenkeel provider`: who brings machines.

use clap::{Args, Subcommand, ValueEnum};
use evenkeel_api::provider::{ProviderInput, ProviderKind, ProviderResource, ProviderVendor};

use crate::Failure;
use crate::client::Client;
use crate::pages::{self, ListOptions};
use crate::resource::{self, Resource};
use crate::view::{Cell, Page, Printer};

/// Providers: who brings machines.
#[derive(Debug, Subcommand)]
pub enum ProviderCommand {
    /// List the providers.
    List(ListOptions),
    /// Show a provider. A table counts its credentials; JSON and YAML hold them.
    Get {
        /// Its id or name.
        provider: String,
    },
    /// Add a provider.
    Create(CreateProvider),
    /// Delete a provider that brought no hosts.
    Delete {
        /// Its id or name.
        provider: String,
    },
}

/// A new provider.
#[derive(Debug, Args)]
pub struct CreateProvider {
    /// What to call it; unique in its project.
    name: String,
    /// Where its tools are asked.
    #[arg(
        long,
        value_name = "URL",
        default_value = "",
        hide_default_value = true
    )]
    endpoint: String,
    /// Whose tools it uses.
    #[arg(long, value_enum)]
    vendor: Option<Vendor>,
    /// A credential for its tools; others on this machine may see it while the command runs. May be given again.
    #[arg(long = "credential", value_name = "TEXT")]
    credentials: Vec<String>,
    /// What its tools should know, usually JSON.
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true
    )]
    config: String,
}

/// Whose tools a provider uses.
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
            Self::List(options) => pages::show::<Provider>(client, &options.query(), printer).await,
            Self::Get { provider } => {
                printer.one(&resource::find::<Provider>(client, &provider).await?)
            }
            Self::Create(create) => {
                let made: Provider = client.post(Provider::PATH, &create.input()).await?;
                printer.one(&made)
            }
            Self::Delete { provider } => {
                let id = resource::delete::<Provider>(client, &provider).await?;
                printer.done(Provider::WORD, &id, "deleted")
            }
        }
    }
}

impl CreateProvider {
    fn input(self) -> ProviderInput {
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
    const NOUN: &'static str = "provider";
    const WORD: &'static str = "provider";
    const MANY: &'static str = "providers";
    const PREFIX: &'static str = "provider";
    const PATH: &'static str = "providers";
    const KEYS: &'static [&'static str] = &["providers"];
    const FREE: Option<&'static str> = Some(
        "delete the hosts that it brought first: `evenkeel host list --filter 'provider.name = \"NAME\"'` shows them",
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
            vendor(self).into(),
            self.api_endpoint.clone().into(),
        ]
    }

    fn page(&self) -> Page {
        let mut page = Page::default();
        page.field("id", self.resource_id.clone())
            .field("name", self.name.clone())
            .field("vendor", vendor(self))
            .field("endpoint", self.api_endpoint.clone())
            .field("credentials", self.api_credentials.len().to_string())
            .field_if("config", &self.config)
            .created(self.timestamps.as_ref());
        page
    }
}

fn vendor(provider: &ProviderResource) -> &'static str {
    match provider.provider_vendor {
        ProviderVendor::Unspecified => "",
        ProviderVendor::LenovoLxca => "lenovo-lxca",
        ProviderVendor::LenovoLoca => "lenovo-loca",
    }
}
