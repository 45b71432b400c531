//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use evenkeel_store::change_seals::SealDigest;

const CHECK_EXAMPLES: &str = "Examples:
  evenkeeld check --config evenkeeld.toml
  evenkeeld check --online";

const SUPPORT_BUNDLE_EXAMPLES: &str = "Examples:
  evenkeeld support-bundle
  evenkeeld support-bundle --output /tmp/evenkeel.tar.gz --log /var/log/evenkeeld.log";

/// Evenkeel server: keeps a fleet of edge nodes up to date.
#[derive(Debug, Parser)]
#[command(name = "evenkeeld", version, arg_required_else_help = true)]
pub struct Cli {
    /// Subcommand.
    #[command(subcommand)]
    pub(crate) command: Command,
    /// Configuration file. Default: /etc/evenkeel/evenkeeld.toml, if that file exists.
    #[arg(long, global = true, value_name = "FILE", env = "EVENKEELD_CONFIG")]
    pub(crate) config: Option<PathBuf>,
    /// Data directory: keys, certificates and the private Postgres [default: /var/lib/evenkeel].
    #[arg(long, global = true, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
    /// Write the listen addresses to this file, as JSON, once all services are ready.
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) ready_file: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run all services in this process. Starts a private Postgres if `database.url` is not set.
    All,
    /// Run the REST API.
    Inventory,
    /// Run the gRPC services for agents.
    MaintenanceManager,
    /// Synchronize the catalogue of operating systems with the registries, and serve files to
    /// nodes.
    OsResourceManager,
    /// Check the configuration and the files that it names, without starting anything.
    ///
    /// Prints each fault with its setting. Exits with status 0 if there is none, else with status 1.
    #[command(after_long_help = CHECK_EXAMPLES)]
    Check(CheckArgs),
    /// Write an archive for a report of an error, without secrets.
    ///
    /// It contains the version, the settings without secrets, the result of `check --online`, the metrics and the
    /// readiness of the running process, sizes of tables, counts of the fleet, the end of the log and facts about the
    /// machine. The log may contain names of hosts and users, and the result of the check names issuers, files and users
    /// with a fault: look at both before you send the archive, or use --no-log.
    #[command(after_long_help = SUPPORT_BUNDLE_EXAMPLES)]
    SupportBundle(SupportBundleArgs),
    /// Migrate the database schema to the version of this program, while servers run.
    ///
    /// A step that waits for a lock stops after 1.5 s, so that it does not delay the servers for longer, and is
    /// retried. The log names the sessions that hold the locks. Completed parts of steps are kept, and the next call
    /// continues after them.
    Migrate(MigrateArgs),
    /// Print the OpenAPI document of the REST API.
    Openapi,
    /// Print the certificate of the server's own certificate authority, for `evenkeel --ca`.
    ///
    /// Clients need it if a listener uses a certificate of this authority. It is public. The first start of a server
    /// creates it; this command creates nothing.
    Ca,
    /// Create tokens.
    #[command(subcommand)]
    Token(TokenCommand),
    /// Verify the change log.
    #[command(subcommand)]
    Audit(AuditCommand),
    /// Make the database accept the signing keys and the certificate authority of this server.
    ///
    /// All servers on a database have the same keys, and a server with other keys does not start.
    /// Use this command only if the old keys are lost or no longer secret: tokens of the old signing
    /// keys become invalid, and nodes that trust the old certificate authority must enrol again.
    /// Missing keys are created. Stop the servers first.
    AcceptKeys,
    /// Read a password from standard input and print its hash for the file of users.
    HashPassword,
}

#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// Also connect to the database, and check its schema and its clock.
    #[arg(long)]
    pub(crate) online: bool,
}

#[derive(Debug, Args)]
pub(crate) struct SupportBundleArgs {
    /// File of the archive (tar, compressed with gzip). An existing file is not overwritten.
    #[arg(long, value_name = "FILE", default_value = "evenkeel-support.tar.gz")]
    pub(crate) output: PathBuf,
    /// Log of the server, of which the last lines are added. Default: the journal of the unit evenkeeld.
    #[arg(long, value_name = "FILE", conflicts_with = "no_log")]
    pub(crate) log: Option<PathBuf>,
    /// Leave out the log.
    #[arg(long)]
    pub(crate) no_log: bool,
    /// Address of the admin listener of the running process. Default: `admin.listen`.
    #[arg(long, value_name = "IP:PORT")]
    pub(crate) admin: Option<SocketAddr>,
}

#[derive(Debug, Args)]
pub(crate) struct MigrateArgs {
    /// Maximum total time to wait for locks, for example 10m or 2h.
    #[arg(long, default_value = "30m", value_parser = humantime::parse_duration)]
    pub(crate) timeout: Duration,
    /// Print the missing steps of the schema, and change nothing.
    #[arg(long, conflicts_with = "restored")]
    pub(crate) dry_run: bool,
    /// Let all IDs jump ahead, because the database was restored from a copy of its files or its
    /// disks.
    ///
    /// IDs that were assigned after the backup are never assigned again. Servers notice by themselves that a database
    /// was restored with `pg_restore`, recovered to a point in time, or has failed over.
    #[arg(long)]
    pub(crate) restored: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum AuditCommand {
    /// Compare the change log with its seals, directly in the database, and print the newest seal of each project.
    ///
    /// Names changes and seals that were altered, added or removed, and changes that are not sealed yet. Exits with
    /// status 0 if nothing was altered, else with status 1. Servers may run at the same time. Store the printed digests on
    /// another machine: the owner of the tables can replace all seals, and only an older digest shows this (--expect).
    Verify(VerifyArgs),
}

#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    /// Verify only this project, by name or UUID. A deleted project has only its UUID. Changes outside of projects have the
    /// UUID 00000000-0000-0000-0000-000000000000.
    #[arg(long, value_name = "NAME|UUID")]
    pub(crate) project: Option<String>,
    /// Compare only changes that were sealed within this time, for example 12h or 30days. All seals are checked.
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub(crate) since: Option<Duration>,
    /// Digest of a seal that an earlier verification printed. It is a fault if no seal has it. Can be repeated.
    #[arg(long, value_name = "DIGEST")]
    pub(crate) expect: Vec<SealDigest>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TokenCommand {
    /// Print a token for a user or a program of the REST API.
    Operator(OperatorTokenArgs),
}

#[derive(Debug, Args)]
pub(crate) struct OperatorTokenArgs {
    /// Project, by name or UUID. Not needed for the role admin.
    #[arg(
        long,
        required_if_eq_any([
            ("role", "viewer"), ("role", "operator"), ("role", "approver"), ("role", "administrator"),
        ]),
        value_name = "NAME|UUID",
    )]
    pub(crate) project: Option<String>,
    /// Role of the token. `read` and `write` are other names of `viewer` and `operator`.
    #[arg(long, value_enum, default_value_t = OperatorRole::Operator)]
    pub(crate) role: OperatorRole,
    /// Lifetime of the token, for example 12h or 30days.
    #[arg(long, default_value = "12h", value_parser = humantime::parse_duration)]
    pub(crate) ttl: Duration,
    /// Subject of the token; shown in the change log.
    #[arg(long, default_value = "operator")]
    pub(crate) subject: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OperatorRole {
    /// Read the resources of the project.
    #[value(alias = "read")]
    Viewer,
    /// Read and write the resources of the project.
    #[value(alias = "write")]
    Operator,
    /// Read the resources of the project, and approve in it.
    Approver,
    /// Full access to the project, including its users and tokens.
    Administrator,
    /// Full access to all projects; can create projects.
    Admin,
}
