//! `evenkeel project`: projects, which isolate their resources from each other.

use clap::Subcommand;
use evenkeel_api::host_summary::HostSummary;
use evenkeel_api::project::{ProjectInput, ProjectResource};

use super::settings::SettingsCommand;
use crate::Failure;
use crate::client::Client;
use crate::output::Printer;
use crate::page::{Cell, DetailPage, cells};
use crate::resource::{Resource, ResourceKind};
use crate::time::format_unix_seconds;

/// Manage projects.
#[derive(Debug, Subcommand)]
pub enum ProjectCommand {
    /// List the projects that you have access to.
    List,
    /// Show a project.
    Get {
        /// Name of the project.
        name: String,
    },
    /// Create a project.
    #[command(after_help = "Examples:\n  \
        evenkeel project create lab\n  \
        evenkeel project create shops --description \"Tills of all shops\"")]
    Create {
        /// Name: lower-case letters, digits and dashes.
        name: String,
        /// Description.
        #[arg(long, default_value = "", hide_default_value = true)]
        description: String,
    },
    /// Show or change the settings of the project.
    #[command(subcommand)]
    Settings(SettingsCommand),
    /// Delete a project without hosts.
    #[command(after_help = "Examples:\n  \
        evenkeel project delete lab\n  \
        evenkeel project delete lab --force --yes")]
    Delete {
        /// Name of the project.
        name: String,
        /// Delete the project with all its contents.
        #[arg(long)]
        force: bool,
        /// Do not ask for confirmation.
        #[arg(long, short)]
        yes: bool,
    },
}

impl ProjectCommand {
    pub async fn run(self, client: &Client, printer: &mut Printer<'_>) -> Result<(), Failure> {
        match self {
            Self::List => {
                let projects: Vec<ProjectResource> = client.get_global(&["v1", "projects"]).await?;
                printer.print_list(&projects)
            }
            Self::Get { name } => {
                let project = client.get_global(&["v1", "projects", &name]).await?;
                print_project(&project, printer)
            }
            Self::Create { name, description } => {
                let body = ProjectInput { description };
                let path = ["v1", "projects", name.as_str()];
                let _: serde_json::Value = client.put_global(&path, &body).await?;
                print_project(&client.get_global(&path).await?, printer)
            }
            Self::Settings(command) => command.run(client, printer).await,
            Self::Delete { name, force, yes } => {
                if !yes {
                    confirm_deletion(&name, force, client, printer).await?;
                }
                let params: &[_] = if force { &[("force", "true")] } else { &[] };
                let path = ["v1", "projects", name.as_str()];
                let done = client.delete_global(&path, params).await;
                done.map_err(|error| explain_in_use(error, &name))?;
                printer.print_result("project", &name, "deleted")
            }
        }
    }
}

/// Asks whether to delete a project, with the number of its hosts. Refuses at once what the server
/// would refuse after the answer.
async fn confirm_deletion(
    name: &str,
    force: bool,
    client: &Client,
    printer: &mut Printer<'_>,
) -> Result<(), Failure> {
    let path = ["v1", "projects", name, "compute", "hosts", "summary"];
    let summary: HostSummary = client.get_global(&path).await?;
    let hosts = match summary.total {
        1 => "1 host".to_owned(),
        count => format!("{count} hosts"),
    };
    if summary.total > 0 && !force {
        return Err(Failure::usage_with(
            format!("the project {name} has {hosts}"),
            force_hint(name),
        ));
    }
    let concerned = match summary.total {
        0 => format!("the project {name}, which has no hosts, and everything in it"),
        _ => format!("the project {name} with {hosts} and everything else in it"),
    };
    printer.confirm_deletion(&concerned)
}

fn force_hint(name: &str) -> String {
    format!("`evenkeel project delete {name} --force` deletes it with all its contents")
}

/// Adds a hint to the error of a project that is in use.
fn explain_in_use(error: Failure, name: &str) -> Failure {
    match error {
        Failure::Refused { code, message, .. } if code == "FailedPrecondition" => {
            Failure::usage_with(message, force_hint(name))
        }
        error => error,
    }
}

impl Resource for ProjectResource {
    const KIND: ResourceKind = ResourceKind {
        key_titles: &["NAME", "ID"],
        titles: &["STATUS", "DESCRIPTION"],
        // The server does not return the time of the creation.
        has_age: false,
        ..ResourceKind::new("NAME", "project", "projects")
    };

    fn key(&self) -> [&str; 2] {
        [&self.name, &self.status.project_status.uid]
    }

    fn columns(&self) -> Vec<Cell> {
        let condition = &self.status.project_status;
        let status = Cell::status(&condition.message, condition.status_indicator);
        cells![status, &self.spec.description]
    }
}

fn print_project(project: &ProjectResource, printer: &mut Printer<'_>) -> Result<(), Failure> {
    let condition = &project.status.project_status;
    let mut page = DetailPage::default();
    page.field("name", &project.name)
        .field("id", &condition.uid)
        .field("description", &project.spec.description)
        .field("status", Cell::status(&condition.message, condition.status_indicator))
        .field(
            "since",
            format_unix_seconds(u32::try_from(condition.time_stamp).unwrap_or(u32::MAX)),
        );
    printer.print_page(project, &project.name, &page)
}
