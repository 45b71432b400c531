//! `evenkeel custom-config`: custom configurations for cloud-init.

use std::path::PathBuf;

use clap::Subcommand;
use evenkeel_api::custom_config::{CustomConfigInput, CustomConfigResource};
use evenkeel_api::timestamps::Timestamps;

use crate::Failure;
use crate::client::Client;
use crate::listing::ListOptions;
use crate::output::Printer;
use crate::page::{Cell, DetailPage, cells};
use crate::requests::{self, ResourceArg};
use crate::resource::{Resource, ResourceKind};

/// Manage custom configurations for cloud-init.
#[derive(Debug, Subcommand)]
pub enum CustomConfigCommand {
    /// List custom configurations.
    List(ListOptions),
    /// Show a custom configuration.
    Get(ResourceArg<CustomConfigResource>),
    /// Create a custom configuration, which cloud-init applies at the first boot of an instance.
    Create {
        /// Name: lower-case letters, digits and dashes; unique in the project.
        name: Option<String>,
        /// File with the cloud-init configuration; without NAME, file with a custom configuration as
        /// `get -o yaml` or `get -o json` prints it.
        #[arg(long, short)]
        file: PathBuf,
        /// Description.
        #[arg(long, default_value = "", hide_default_value = true, requires = "name")]
        description: String,
    },
    /// Delete a custom configuration that no instance uses.
    Delete(ResourceArg<CustomConfigResource>),
}

impl CustomConfigCommand {
    pub async fn run(self, client: &Client, printer: &mut Printer<'_>) -> Result<(), Failure> {
        type Config = CustomConfigResource;
        match self {
            Self::List(options) => requests::list::<Config>(options, client, printer).await,
            Self::Get(config) => config.print(client, printer).await,
            Self::Create { name, file, description } => {
                let body = match name {
                    Some(name) => {
                        CustomConfigInput { name, description, config: super::read_file(&file)? }
                    }
                    None => super::read_input(&file, "a custom configuration")?,
                };
                requests::create::<Config>(&body, client, printer).await
            }
            Self::Delete(config) => config.delete(client, printer).await,
        }
    }
}

impl Resource for CustomConfigResource {
    const KIND: ResourceKind = ResourceKind {
        command: "custom-config",
        id_prefix: "customconfig",
        path: "customConfigs",
        list_key: "customConfigs",
        in_use_hint: Some(
            "delete the instances that use it first: `evenkeel instance list --filter 'customConfig.name = \"NAME\"'` lists them",
        ),
        titles: &["DESCRIPTION"],
        ..ResourceKind::new("CONFIG", "custom configuration", "custom configurations")
    };

    fn key(&self) -> [&str; 2] {
        [&self.resource_id, &self.name]
    }

    fn timestamps(&self) -> Option<&Timestamps> {
        self.timestamps.as_ref()
    }

    fn columns(&self) -> Vec<Cell> {
        cells![&self.description]
    }

    fn add_details(&self, page: &mut DetailPage) {
        let line = |text: &str| cells![text];
        page.field_if("description", &self.description).created(self.timestamps.as_ref()).table(
            "Configuration:",
            &["LINE"],
            self.config.lines().map(line),
        );
    }
}
