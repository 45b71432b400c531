//! Definition of the command line (clap).

use clap::{Parser, Subcommand};

use crate::commands::{
    account::AccountCommand, assignment::AssignmentCommand, audit::Audit, completion::Completion,
    configuration::ConfigurationCommand, context::ContextCommand,
    custom_config::CustomConfigCommand, explain::Explain, group::GroupCommand, host::HostCommand,
    instance::InstanceCommand, join_token::JoinTokenCommand, location::LocationCommand,
    login::LoginCommand, notification::NotificationCommand,
    notification_target::NotificationTargetCommand, os::OsCommand, passwd::PasswdCommand,
    pause::Pause, pause::Resume, policy::PolicyCommand, project::ProjectCommand,
    provider::ProviderCommand, region::RegionCommand, run::RunCommand, schedule::ScheduleCommand,
    site::SiteCommand, token::TokenCommand, update::UpdateCommand, user::UserCommand,
};
use crate::options::GlobalOptions;

/// Manage operating system updates of a fleet of edge nodes.
#[derive(Debug, Parser)]
#[command(name = "evenkeel", version, propagate_version = false, max_term_width = 100)]
pub struct Cli {
    #[command(flatten)]
    pub globals: GlobalOptions,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Manage contexts: saved servers, projects and tokens.
    #[command(subcommand)]
    Context(ContextCommand),
    /// Log in to a server and save the token.
    Login(LoginCommand),
    /// Revoke the saved token at the server, and remove it from the context.
    ///
    /// Ends the login as well. The token is also removed if the server is unreachable.
    #[command(after_help = "Examples:\n  \
        evenkeel logout\n  \
        evenkeel logout --context lab")]
    Logout,
    /// Change your password.
    Passwd(PasswdCommand),
    /// Show who you are for the server: subject, issuer, roles and the end of the token.
    #[command(after_help = "Examples:\n  \
        evenkeel whoami\n  \
        evenkeel whoami -o json")]
    Whoami,
    /// Manage projects.
    #[command(subcommand)]
    Project(ProjectCommand),
    /// Manage regions: areas that contain sites and other regions.
    #[command(subcommand)]
    Region(RegionCommand),
    /// Manage sites: locations of hosts.
    #[command(subcommand)]
    Site(SiteCommand),
    /// Find regions and sites by name.
    #[command(subcommand)]
    Location(LocationCommand),
    /// Manage hosts: the machines of the fleet.
    #[command(subcommand)]
    Host(HostCommand),
    /// Manage instances: the operating systems installed on hosts.
    #[command(subcommand)]
    Instance(InstanceCommand),
    /// Manage the catalog of operating systems.
    #[command(subcommand)]
    Os(OsCommand),
    /// Manage providers of bare-metal hosts.
    #[command(subcommand)]
    Provider(ProviderCommand),
    /// Manage custom configurations for cloud-init.
    #[command(subcommand)]
    CustomConfig(CustomConfigCommand),
    /// Check, convert and compare documents that describe the configuration of a node.
    ///
    /// A document lists files, units, packages and other entries. These commands need no server and
    /// no login. Servers do not apply such documents yet; `evenkeel-agent configuration apply` applies
    /// one on one machine.
    #[command(subcommand)]
    Configuration(ConfigurationCommand),
    /// Resolve the groups of nodes of Bcfg2.
    #[command(subcommand)]
    Group(GroupCommand),
    /// Manage local accounts: SSH users of instances.
    #[command(subcommand)]
    Account(AccountCommand),
    /// Manage update policies: the desired packages or image of nodes.
    #[command(subcommand)]
    Policy(PolicyCommand),
    /// Manage assignments: which policy applies where, and its rollout limits.
    #[command(subcommand)]
    Assignment(AssignmentCommand),
    /// Manage schedules: when nodes may update.
    #[command(subcommand)]
    Schedule(ScheduleCommand),
    /// Manage join tokens, which let machines enrol.
    #[command(subcommand)]
    JoinToken(JoinTokenCommand),
    /// Create, list and revoke tokens for automation. Only for administrators.
    #[command(subcommand)]
    Token(TokenCommand),
    /// Manage users who log in with a password. Only for administrators.
    #[command(subcommand)]
    User(UserCommand),
    /// Show and watch update runs.
    #[command(subcommand)]
    Run(RunCommand),
    /// Show who changed what, the latest changes first.
    Audit(Audit),
    /// Explain what a node should do now, and why.
    Explain(Explain),
    /// Update nodes now, or skip their open windows.
    #[command(subcommand)]
    Update(UpdateCommand),
    /// Pause updates in the project, at a site or for a policy.
    ///
    /// `evenkeel resume` ends the pause. Until then no new update starts. Updates that have begun
    /// continue.
    Pause(Pause),
    /// End a pause. Pauses of other scopes remain.
    ///
    /// `evenkeel assignment resume` resumes an assignment that stopped after failures.
    Resume(Resume),
    /// Manage notification targets: webhooks and e-mail addresses that receive the notifications of the
    /// project.
    #[command(subcommand)]
    NotificationTarget(NotificationTargetCommand),
    /// Test notification targets, and list and replay deliveries.
    #[command(subcommand)]
    Notification(NotificationCommand),
    /// Print a shell completion script.
    Completion(Completion),
    /// Print the version.
    Version,
}
