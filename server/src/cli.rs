//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// Keeps a fleet of edge nodes up to date.
#[derive(Debug, Parser)]
#[command(name = "evenkeeld", version, arg_required_else_help = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
    /// The configuration file. Without it /etc/evenkeel/evenkeeld.toml is read if it is there.
    #[arg(long, global = true, value_name = "FILE", env = "EVENKEELD_CONFIG")]
    pub(crate) config: Option<PathBuf>,
    /// Where keys, certificates and the private Postgres are kept.
    #[arg(long, global = true, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
    /// Write the bound addresses to this file, as JSON, once everything is up.
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) ready_file: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run every service in this process. Without `database.url` a private Postgres is started.
    All,
    /// Run the REST API for operators.
    Inventory,
    /// Run the gRPC services for agents.
    MaintenanceManager,
    /// Keep the catalogue of operating systems as the registries have it, and serve files to nodes.
    OsResourceManager,
    /// Bring the database schema up to date.
    Migrate,
    /// Print the OpenAPI document of the REST API.
    Openapi,
    /// Make tokens.
    #[command(subcommand)]
    Token(Token),
    /// Read a password from standard input and print its hash, for the file of users.
    HashPassword,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Token {
    /// Print a token for a person or a program that uses the REST API.
    Operator(Operator),
}

#[derive(Debug, Args)]
pub(crate) struct Operator {
    /// The project, by name or UUID. Not needed for an administrator.
    #[arg(long, required_if_eq_any([("role", "read"), ("role", "write")]), value_name = "NAME|UUID")]
    pub(crate) project: Option<String>,
    /// What the bearer may do.
    #[arg(long, value_enum, default_value_t = Rights::Write)]
    pub(crate) role: Rights,
    /// How long the token counts, such as 12h or 30days.
    #[arg(long, default_value = "12h", value_parser = humantime::parse_duration)]
    pub(crate) ttl: Duration,
    /// Whose token it is; shown in the change log.
    #[arg(long, default_value = "operator")]
    pub(crate) subject: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Rights {
    /// Read what is in the project.
    Read,
    /// Read and write what is in the project.
    Write,
    /// Everything in every project, and make projects.
    Admin,
}
