//! `evenkeel project`: what belongs together and is seen by nobody else.

use clap::Subcommand;
use evenkeel_api::project::{ProjectInput, ProjectResource};

use super::settings::SettingsCommand;
use crate::Failure;
use crate::client::Client;
use crate::time::show_seconds;
use crate::view::{Cell, Page, Printer};

/// Projects: what belongs together and is seen by nobody else.
#[derive(Debug, Subcommand)]
pub enum ProjectCommand {
    /// List the projects that you may see.
    List,
    /// Show a project.
    Get {
        /// Its name.
        name: String,
    },
    /// Make a project.
    Create {
        /// Its name: lower-case letters, digits and dashes.
        name: String,
        /// What it is for.
        #[arg(long, default_value = "", hide_default_value = true)]
        description: String,
    },
    /// How updates are kept and planned in the project.
    #[command(subcommand)]
    Settings(SettingsCommand),
    /// Delete a project that holds no hosts any more.
    Delete {
        /// Its name.
        name: String,
        /// Delete it with all that is in it.
        #[arg(long)]
        force: bool,
    },
}

const HEADER: &[&str] = &["NAME", "ID", "STATUS", "DESCRIPTION"];

impl ProjectCommand {
    pub async fn run(self, client: &Client, printer: &mut Printer<'_>) -> Result<(), Failure> {
        match self {
            Self::List => {
                let projects: Vec<ProjectResource> = client.get_global(&["v1", "projects"]).await?;
                let names: Vec<_> = projects
                    .iter()
                    .map(|project| project.name.as_str())
                    .collect();
                printer.rows(
                    &projects,
                    &names,
                    HEADER,
                    projects.iter().map(row).collect(),
                )
            }
            Self::Get { name } => {
                let project = client.get_global(&["v1", "projects", &name]).await?;
                show(&project, printer)
            }
            Self::Create { name, description } => {
                let body = ProjectInput { description };
                let path = ["v1", "projects", name.as_str()];
                let _: serde_json::Value = client.put_global(&path, &body).await?;
                show(&client.get_global(&path).await?, printer)
            }
            Self::Settings(command) => command.run(client, printer).await,
            Self::Delete { name, force } => {
                let params: &[_] = if force { &[("force", "true")] } else { &[] };
                let path = ["v1", "projects", name.as_str()];
                let done = client.delete_global(&path, params).await;
                done.map_err(|error| in_use(error, &name))?;
                printer.done("project", &name, "deleted")
            }
        }
    }
}

/// Says how to delete a project all the same, if the server says that it is in use.
fn in_use(error: Failure, name: &str) -> Failure {
    match error {
        Failure::Refused { code, message, .. } if code == "FailedPrecondition" => {
            let hint = "deletes it with all that is in it";
            Failure::usage_with(
                message,
                format!("`evenkeel project delete {name} --force` {hint}"),
            )
        }
        error => error,
    }
}

fn row(project: &ProjectResource) -> Vec<Cell> {
    let condition = &project.status.project_status;
    vec![
        project.name.clone().into(),
        condition.uid.clone().into(),
        Cell::toned(condition.message.clone(), condition.status_indicator.into()),
        project.spec.description.clone().into(),
    ]
}

fn show(project: &ProjectResource, printer: &mut Printer<'_>) -> Result<(), Failure> {
    let condition = &project.status.project_status;
    let mut page = Page::default();
    page.field("name", project.name.clone())
        .field("id", condition.uid.clone())
        .field("description", project.spec.description.clone())
        .field(
            "status",
            Cell::toned(condition.message.clone(), condition.status_indicator.into()),
        )
        .field(
            "since",
            show_seconds(u32::try_from(condition.time_stamp).unwrap_or(u32::MAX)),
        );
    printer.page(project, &project.name, &page)
}
