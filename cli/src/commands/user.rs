//! `evenkeel user`: users who log in with a password.

use std::path::PathBuf;

use chrono::{DateTime, Utc};
use clap::{ArgGroup, Subcommand};
use evenkeel_api::user::{Password, UserInput, UserPasswordInput, UserResource, UserRolesInput};

use super::login::read_new_password;
use crate::client::Client;
use crate::options::GlobalOptions;
use crate::output::Printer;
use crate::page::{Cell, DetailPage, Tone, cells};
use crate::resource::{Resource, ResourceKind};
use crate::time::format_time;
use crate::{Failure, System};

/// Manage users who log in with a password. Only for administrators.
#[derive(Debug, Subcommand)]
pub enum UserCommand {
    /// Add a user. The password is read from standard input.
    #[command(after_help = "Examples:\n  \
        evenkeel user add alice --role operator@default\n  \
        evenkeel user add root --role evenkeel-admin --password-file FILE")]
    Add {
        /// Name to log in with.
        name: String,
        /// Role: `evenkeel-admin`, or viewer, operator, approver or administrator with a project, such
        /// as `operator@default`. May be repeated.
        #[arg(long = "role", required = true, value_name = "ROLE")]
        roles: Vec<String>,
        /// File with the password.
        #[arg(long, value_name = "FILE")]
        password_file: Option<PathBuf>,
    },
    /// Set the password of a user. It is read from standard input.
    Passwd {
        /// Name of the user.
        name: String,
        /// File with the password.
        #[arg(long, value_name = "FILE")]
        password_file: Option<PathBuf>,
    },
    /// Replace the roles of a user that you may give. A user who loses a role must log in again.
    #[command(group = ArgGroup::new("change").required(true).args(["roles", "none"]))]
    Roles {
        /// Name of the user.
        name: String,
        /// Role, as when the user is added. May be repeated.
        #[arg(long = "role", value_name = "ROLE")]
        roles: Vec<String>,
        /// Take all of these roles away.
        #[arg(long)]
        none: bool,
        /// Also change the last administrator of all projects.
        #[arg(long)]
        force: bool,
    },
    /// Disable a user. All servers refuse its tokens within a second.
    Disable {
        /// Name of the user.
        name: String,
        /// Also disable the last administrator of all projects.
        #[arg(long)]
        force: bool,
    },
    /// Enable a user.
    Enable {
        /// Name of the user.
        name: String,
    },
    /// List users. Users of the file of users are not listed.
    List,
    /// Delete a user. All servers refuse its tokens within a second.
    Delete {
        /// Name of the user.
        name: String,
        /// Also delete the last administrator of all projects.
        #[arg(long)]
        force: bool,
        /// Do not ask for confirmation on a terminal.
        #[arg(long, short)]
        yes: bool,
    },
}

/// Options of the fields that the server may name.
const OPTIONS: [(&str, &str); 2] = [("roles", "--role"), ("name", "NAME")];

/// Query parameters of a change that may remove the last administrator.
fn force_params(force: bool) -> &'static [(&'static str, &'static str)] {
    if force { &[("force", "true")] } else { &[] }
}

/// Names the option in place of the parameter of the API, if a change would remove the last
/// administrator.
fn name_force(mut error: Failure) -> Failure {
    if let Failure::Refused { message, .. } = &mut error {
        *message = message
            .replace("repeat the request with force=true", "repeat the command with --force");
    }
    error
}

impl UserCommand {
    pub async fn run(
        self,
        client: &Client,
        globals: &GlobalOptions,
        system: &mut System<'_>,
    ) -> Result<(), Failure> {
        let password = match &self {
            Self::Add { name, password_file, .. } | Self::Passwd { name, password_file } => {
                let password = read_new_password(name, password_file.clone(), system)?;
                Password::new(password.reveal().to_owned())
            }
            _ => Password::default(),
        };
        let printer = &mut Printer::new(system, globals.output, globals.ids_only);
        match self {
            Self::List => list(client, printer).await,
            Self::Add { name, roles, .. } => {
                let body = UserInput { name, password, roles };
                let user = client.post_global(&["v1", "users"], &body).await;
                let user: UserResource =
                    user.map_err(|error: Failure| error.with_option(&OPTIONS))?;
                printer.print_page(&user, &user.name, &details(&user))
            }
            Self::Passwd { name, .. } => {
                let path = ["v1", "users", &name, "password"];
                let body = UserPasswordInput { password };
                let _: UserResource = client.put_global(&path, &body).await?;
                printer.print_result("password of", &name, "set")
            }
            Self::Roles { name, roles, force, .. } => {
                let path = ["v1", "users", &name, "roles"];
                let (params, body) = (force_params(force), UserRolesInput { roles });
                let user = client.put_global_with_params(&path, params, &body).await;
                let user: UserResource =
                    user.map_err(|error: Failure| name_force(error).with_option(&OPTIONS))?;
                printer.print_page(&user, &user.name, &details(&user))
            }
            Self::Disable { name, force } => {
                let path = ["v1", "users", &name, "disable"];
                let (params, body) = (force_params(force), serde_json::json!({}));
                let user = client.put_global_with_params(&path, params, &body).await;
                let _: UserResource = user.map_err(name_force)?;
                printer.print_result("user", &name, "disabled")
            }
            Self::Enable { name } => {
                let path = ["v1", "users", &name, "enable"];
                let _: UserResource = client.put_global(&path, &serde_json::json!({})).await?;
                printer.print_result("user", &name, "enabled")
            }
            Self::Delete { name, force, yes } => {
                if !yes && printer.is_interactive() {
                    printer.confirm_deletion(&format!("the user {name}"))?;
                }
                let path = ["v1", "users", name.as_str()];
                let done = client.delete_global(&path, force_params(force)).await;
                done.map_err(name_force)?;
                printer.print_result("user", &name, "deleted")
            }
        }
    }
}

async fn list(client: &Client, printer: &mut Printer<'_>) -> Result<(), Failure> {
    let users: Vec<UserResource> = client.get_global(&["v1", "users"]).await?;
    printer.print_list(&users)
}

impl Resource for UserResource {
    const KIND: ResourceKind = ResourceKind {
        key_titles: &["NAME"],
        titles: &["ROLES", "STATE"],
        wide_titles: &["CREATED", "CREATED BY"],
        optional_titles: &["AGE", "ROLES", "STATE"],
        ..ResourceKind::new("NAME", "user", "users")
    };

    fn key(&self) -> [&str; 2] {
        [&self.name, &self.name]
    }

    fn columns(&self) -> Vec<Cell> {
        cells![self.roles.join(", "), state_cell(self)]
    }

    fn wide_columns(&self) -> Vec<Cell> {
        cells![format_time(self.created_at), &self.created_by]
    }

    fn created_at(&self) -> Option<DateTime<Utc>> {
        Some(self.created_at)
    }
}

fn details(user: &UserResource) -> DetailPage {
    let mut page = DetailPage::default();
    page.field("name", &user.name)
        .field("roles", user.roles.join(", "))
        .field("state", state_cell(user));
    page
}

fn state_cell(user: &UserResource) -> Cell {
    if user.disabled {
        Cell::toned("disabled", Tone::Bad)
    } else {
        Cell::toned("enabled", Tone::Good)
    }
}
