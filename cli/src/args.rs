//! The command line as a value.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::commands::{
    account::AccountCommand, assignment::AssignmentCommand, completion::Completion,
    context::ContextCommand, custom_config::CustomConfigCommand, explain::Explain,
    host::HostCommand, instance::InstanceCommand, join_token::JoinTokenCommand,
    location::LocationCommand, login::Login, os::OsCommand, pause::Pause, pause::Resume,
    policy::PolicyCommand, project::ProjectCommand, provider::ProviderCommand,
    region::RegionCommand, run::RunCommand, schedule::ScheduleCommand, site::SiteCommand,
    update::UpdateCommand,
};
use crate::time::duration;

/// Keeps a fleet of edge nodes up to date.
#[derive(Debug, Parser)]
#[command(
    name = "evenkeel",
    version,
    propagate_version = false,
    max_term_width = 100
)]
pub struct Cli {
    /// What holds for every command.
    #[command(flatten)]
    pub globals: Globals,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What holds for every command.
#[derive(Clone, Debug, Args)]
pub struct Globals {
    /// How to show the answer.
    #[arg(long, short, global = true, value_enum, default_value_t = Format::Table, help_heading = "Global options")]
    pub output: Format,
    /// Print only ids; of a new join token, only the token.
    #[arg(long, short, global = true, help_heading = "Global options")]
    pub quiet: bool,
    /// The context to use instead of the current one.
    #[arg(long, global = true, help_heading = "Global options")]
    pub context: Option<String>,
    /// The project to work in [default: that of the context, else `default`].
    #[arg(
        long,
        short,
        global = true,
        env = "EVENKEEL_PROJECT",
        help_heading = "Global options"
    )]
    pub project: Option<String>,
    /// The address of the server [default: that of the context, else port 8080 of this machine].
    #[arg(
        long,
        global = true,
        env = "EVENKEEL_SERVER",
        value_name = "URL",
        help_heading = "Global options"
    )]
    pub server: Option<String>,
    /// The only authority that may vouch for the server, as a PEM file [default: the system's]. For an identity provider
    /// elsewhere always the system's count.
    #[arg(
        long,
        global = true,
        env = "EVENKEEL_CA",
        value_name = "FILE",
        help_heading = "Global options"
    )]
    pub ca: Option<PathBuf>,
    /// How long to ask again while the server cannot be reached; only for what changes nothing.
    #[arg(long, global = true, value_parser = duration, default_value = "5s", value_name = "SPAN", help_heading = "Global options")]
    pub retry_for: Duration,
}

/// How to show an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    Table,
    /// For programs.
    Json,
    /// For programs and people.
    Yaml,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Servers and projects to work with.
    #[command(subcommand)]
    Context(ContextCommand),
    /// Keep a token for a server.
    Login(Login),
    /// Projects: what belongs together and is seen by nobody else.
    #[command(subcommand)]
    Project(ProjectCommand),
    /// Regions: areas that hold sites and other regions.
    #[command(subcommand)]
    Region(RegionCommand),
    /// Sites: places that hold hosts.
    #[command(subcommand)]
    Site(SiteCommand),
    /// Locations: regions and sites by a part of their names.
    #[command(subcommand)]
    Location(LocationCommand),
    /// Hosts: the machines of the fleet.
    #[command(subcommand)]
    Host(HostCommand),
    /// Instances: what runs on hosts.
    #[command(subcommand)]
    Instance(InstanceCommand),
    /// The catalogue of operating systems.
    #[command(subcommand)]
    Os(OsCommand),
    /// Providers: who brings machines.
    #[command(subcommand)]
    Provider(ProviderCommand),
    /// Custom configurations: what cloud-init does at the first start of an instance.
    #[command(subcommand)]
    CustomConfig(CustomConfigCommand),
    /// Local accounts: who may log in to instances, with which key.
    #[command(subcommand)]
    Account(AccountCommand),
    /// Update policies: what should run.
    #[command(subcommand)]
    Policy(PolicyCommand),
    /// Assignments: which policy applies to what, and how fast.
    #[command(subcommand)]
    Assignment(AssignmentCommand),
    /// Schedules: when nodes may be changed.
    #[command(subcommand)]
    Schedule(ScheduleCommand),
    /// Join tokens: leave for machines to join.
    #[command(subcommand)]
    JoinToken(JoinTokenCommand),
    /// Update runs: what happened.
    #[command(subcommand)]
    Run(RunCommand),
    /// Say what a node should do now, why, and until when.
    Explain(Explain),
    /// Update nodes outside of the plan.
    #[command(subcommand)]
    Update(UpdateCommand),
    /// Let nothing new start in the project, at a site or for a policy.
    ///
    /// Updates that go on are not touched. `evenkeel resume` takes the pause back.
    Pause(Pause),
    /// Take a pause back. Pauses of other scopes stay.
    ///
    /// An assignment that stopped after failures stays stopped: `evenkeel assignment resume` lets it go on.
    Resume(Resume),
    /// Print a completion script for a shell.
    Completion(Completion),
    /// Print the version.
    Version,
}
