//! `evenkeel custom-config`: custom configurations for cloud-init.

use std::path::{Path, PathBuf};

use clap::Subcommand;
use evenkeel_api::custom_config::{CustomConfigInput, CustomConfigResource};

use crate::Failure;
use crate::client::Client;
use crate::listing::{self, ListOptions};
use crate::output::{Cell, DetailPage, Printer};
use crate::resource::{self, Resource};

/// Manage custom configurations for cloud-init.
#[derive(Debug, Subcommand)]
pub enum CustomConfigCommand {
    /// List custom configurations.
    List(ListOptions),
    /// Show a custom configuration.
    Get {
        /// ID or name of the custom configuration.
        config: String,
    },
    /// Create a custom configuration, which cloud-init applies at the first boot of an instance.
    Create {
        /// Name: lower-case letters, digits and dashes; unique in the project.
        name: String,
        /// File with the cloud-init configuration.
        #[arg(long, short)]
        file: PathBuf,
        /// Description.
        #[arg(long, default_value = "", hide_default_value = true)]
        description: String,
    },
    /// Delete a custom configuration that no instance uses.
    Delete {
        /// ID or name of the custom configuration.
        config: String,
    },
}

impl CustomConfigCommand {
    pub async fn run(self, client: &Client, printer: &mut Printer<'_>) -> Result<(), Failure> {
        type Config = CustomConfigResource;
        match self {
            Self::List(options) => {
                listing::fetch_and_print::<Config>(client, &options.query(), printer).await
            }
            Self::Get { config } => {
                printer.print_resource(&resource::find::<Config>(client, &config).await?)
            }
            Self::Create { name, file, description } => {
                let body = CustomConfigInput { name, description, config: read_file(&file)? };
                let created: Config = client.post(Config::PATH, &body).await?;
                printer.print_resource(&created)
            }
            Self::Delete { config } => {
                let id = resource::delete::<Config>(client, &config).await?;
                printer.print_result(Config::SINGULAR, &id, "deleted")
            }
        }
    }
}

fn read_file(path: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(path).map_err(|source| Failure::File { path: path.to_owned(), source })
}

impl Resource for CustomConfigResource {
    const COMMAND: &'static str = "custom-config";
    const SINGULAR: &'static str = "custom configuration";
    const PLURAL: &'static str = "custom configurations";
    const ID_PREFIX: &'static str = "customconfig";
    const PATH: &'static str = "customConfigs";
    const LIST_KEYS: &'static [&'static str] = &["customConfigs"];
    const IN_USE_HINT: Option<&'static str> = Some(
        "delete the instances that use it first: `evenkeel instance list --filter 'customConfig.name = \"NAME\"'` lists them",
    );
    const HEADER: &'static [&'static str] = &["ID", "NAME", "DESCRIPTION"];

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
            self.description.clone().into(),
        ]
    }

    fn page(&self) -> DetailPage {
        let mut page = DetailPage::default();
        let line = |text: &str| vec![Cell::from(text)];
        page.field("id", self.resource_id.clone())
            .field("name", self.name.clone())
            .field_if("description", &self.description)
            .created(self.timestamps.as_ref())
            .table("Configuration:", &["LINE"], self.config.lines().map(line).collect());
        page
    }
}
