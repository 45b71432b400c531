//! `evenkeel custom-config`: what cloud-init does at the first start of an instance.

use std::path::{Path, PathBuf};

use clap::Subcommand;
use evenkeel_api::custom_config::{CustomConfigInput, CustomConfigResource};

use crate::Failure;
use crate::client::Client;
use crate::pages::{self, ListOptions};
use crate::resource::{self, Resource};
use crate::view::{Cell, Page, Printer};

/// Custom configurations: what cloud-init does at the first start of an instance.
#[derive(Debug, Subcommand)]
pub enum CustomConfigCommand {
    /// List the custom configurations.
    List(ListOptions),
    /// Show a custom configuration.
    Get {
        /// Its id or name.
        config: String,
    },
    /// Add a custom configuration.
    Create {
        /// What to call it: lower-case letters, digits and dashes; unique in its project.
        name: String,
        /// The file with it, for cloud-init.
        #[arg(long, short)]
        file: PathBuf,
        /// For people.
        #[arg(long, default_value = "", hide_default_value = true)]
        description: String,
    },
    /// Delete a custom configuration that no instance has.
    Delete {
        /// Its id or name.
        config: String,
    },
}

impl CustomConfigCommand {
    pub async fn run(self, client: &Client, printer: &mut Printer<'_>) -> Result<(), Failure> {
        type Config = CustomConfigResource;
        match self {
            Self::List(options) => pages::show::<Config>(client, &options.query(), printer).await,
            Self::Get { config } => printer.one(&resource::find::<Config>(client, &config).await?),
            Self::Create {
                name,
                file,
                description,
            } => {
                let body = CustomConfigInput {
                    name,
                    description,
                    config: read(&file)?,
                };
                let made: Config = client.post(Config::PATH, &body).await?;
                printer.one(&made)
            }
            Self::Delete { config } => {
                let id = resource::delete::<Config>(client, &config).await?;
                printer.done(Config::WORD, &id, "deleted")
            }
        }
    }
}

fn read(path: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(path).map_err(|source| Failure::File {
        path: path.to_owned(),
        source,
    })
}

impl Resource for CustomConfigResource {
    const NOUN: &'static str = "custom-config";
    const WORD: &'static str = "custom configuration";
    const MANY: &'static str = "custom configurations";
    const PREFIX: &'static str = "customconfig";
    const PATH: &'static str = "customConfigs";
    const KEYS: &'static [&'static str] = &["customConfigs"];
    const FREE: Option<&'static str> = Some(
        "delete the instances that have it first: `evenkeel instance list --filter 'customConfig.name = \"NAME\"'` shows them",
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

    fn page(&self) -> Page {
        let mut page = Page::default();
        let line = |text: &str| vec![Cell::from(text)];
        page.field("id", self.resource_id.clone())
            .field("name", self.name.clone())
            .field_if("description", &self.description)
            .created(self.timestamps.as_ref())
            .table(
                "Configuration:",
                &["LINE"],
                self.config.lines().map(line).collect(),
            );
        page
    }
}
