//! Command line of `evenkeel-agent`.

mod configuration;
mod probe;

use std::path::PathBuf;

use clap::{ArgGroup, Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use uuid::Uuid;

use crate::model::Sha256;

pub use self::configuration::{
    ConfigurationApplyArgs, ConfigurationArgs, ConfigurationCheckArgs, ConfigurationCommand,
    DocumentArgs, InputFormat, RemovedExtras,
};
pub use self::probe::{ProbeArgs, ProbeCommand, ProbeRunArgs};

/// Keep this node up to date.
#[derive(Debug, Parser)]
#[command(name = "evenkeel-agent", version, max_term_width = 100)]
pub struct Cli {
    /// Command to run.
    #[command(subcommand)]
    pub command: AgentCommand,
}

/// Commands of `evenkeel-agent`.
#[derive(Debug, Subcommand)]
pub enum AgentCommand {
    /// Enrol this machine as a node of the project that the join token belongs to.
    Enroll(EnrollArgs),
    /// Run the agent: poll the server and carry out its decisions until stopped.
    Run(RunArgs),
    /// Show the identity and the current state of this node.
    Status(StatusArgs),
    /// Show what an update with the policy of this node would change now. Refreshes the package
    /// lists, but changes no package.
    Plan(PlanArgs),
    /// List the updates that ended on this node, latest last.
    History(HistoryArgs),
    /// Check everything that an update needs, and suggest fixes.
    Doctor(DoctorArgs),
    /// Check this machine against a configuration document, or change it as the document describes.
    Configuration(ConfigurationArgs),
    /// Enable the update programs again that the agent disabled. The package runs this when it is
    /// removed.
    RestoreUpdaters(RestoreUpdatersArgs),
    /// Run a script that reports facts of this machine, and the groups that it belongs to.
    Probe(ProbeArgs),
    /// Show the image slots, or allow a retry of a failed image.
    Image(ImageArgs),
    /// Supervise the trial of an image.
    #[command(hide = true)]
    Trial(TrialArgs),
    /// Print a shell completion script.
    Completion(CompletionArgs),
    /// List the points at which `--halt-after` can stop.
    #[cfg(feature = "halt-points")]
    #[command(hide = true)]
    Steps,
}

/// Paths of the agent.
#[derive(Clone, Debug, Default, Args)]
pub struct PathArgs {
    /// Root directory to manage [default: /].
    #[arg(long, value_name = "DIR")]
    pub root: Option<PathBuf>,
    /// State directory of the agent [default: var/lib/evenkeel-agent in the root].
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// Configuration file [default: /etc/evenkeel/agent.toml, which may be missing].
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

/// Arguments of `enroll`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("join_token").required(true).args(["token", "token_file"]))]
pub struct EnrollArgs {
    /// Paths of the agent.
    #[command(flatten)]
    pub paths: PathArgs,
    /// URL of the server, such as `https://HOST:PORT`.
    #[arg(long, value_name = "URL")]
    pub server: String,
    /// Join token. Other users of this machine can see it while the command runs: prefer
    /// `--token-file`.
    #[arg(long, value_name = "TOKEN")]
    pub token: Option<String>,
    /// File with the join token, or `-` for standard input.
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// CA certificate (PEM) to verify the server, instead of the one named by the token.
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// UUID of the machine, instead of the detected one. If the machine is enrolled with another UUID, for example because
    /// its disk is a copy, it gets new keys.
    #[arg(long, value_name = "UUID")]
    pub uuid: Option<Uuid>,
    /// Disable other programs that update this machine, such as unattended-upgrades, for as long as
    /// the agent is installed. Landscape and snapd stay as they are.
    #[arg(long)]
    pub take_over: bool,
}

/// Arguments of `run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Paths of the agent.
    #[command(flatten)]
    pub paths: PathArgs,
    /// Do everything that can be done now, then exit; the status is 1 if an update failed or the
    /// server cannot be reached.
    #[arg(long)]
    pub once: bool,
    /// Stop for ever after the journal was written at this point, and print it on standard output.
    #[cfg(feature = "halt-points")]
    #[arg(long, value_name = "POINT", hide = true)]
    pub halt_after: Option<String>,
    /// Arm a slot before its kernel is written: a wrong order of writes that replays of power cuts
    /// must find.
    #[cfg(feature = "halt-points")]
    #[arg(long, hide = true)]
    pub early_entry: bool,
}

/// Arguments of `status`.
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// Paths of the agent.
    #[command(flatten)]
    pub paths: PathArgs,
    /// Output format.
    #[arg(long, short, value_enum, default_value_t = OutputFormat::Text)]
    pub output: OutputFormat,
}

/// Arguments of `plan`.
#[derive(Debug, Args)]
pub struct PlanArgs {
    /// Paths of the agent.
    #[command(flatten)]
    pub paths: PathArgs,
    /// Package to install or update, optionally with its version, without the rules of the policy;
    /// can be repeated [default: the update that the server requested last].
    #[arg(long = "package", value_name = "NAME[=VERSION]")]
    pub packages: Vec<String>,
    /// Plan an update of all installed packages without the rules of the policy.
    #[arg(long, conflicts_with = "packages")]
    pub all: bool,
    /// Output format.
    #[arg(long, short, value_enum, default_value_t = OutputFormat::Text)]
    pub output: OutputFormat,
}

/// Arguments of `history`.
#[derive(Debug, Args)]
pub struct HistoryArgs {
    /// Paths of the agent.
    #[command(flatten)]
    pub paths: PathArgs,
    /// Output format.
    #[arg(long, short, value_enum, default_value_t = OutputFormat::Text)]
    pub output: OutputFormat,
}

/// Arguments of `doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Paths of the agent.
    #[command(flatten)]
    pub paths: PathArgs,
    /// Output format.
    #[arg(long, short, value_enum, default_value_t = OutputFormat::Text)]
    pub output: OutputFormat,
}

/// Arguments of `restore-updaters`.
#[derive(Debug, Args)]
pub struct RestoreUpdatersArgs {
    /// Paths of the agent.
    #[command(flatten)]
    pub paths: PathArgs,
}

/// Arguments of `image`.
#[derive(Debug, Args)]
pub struct ImageArgs {
    /// Command to run.
    #[command(subcommand)]
    pub command: ImageCommand,
}

/// Commands of `evenkeel-agent image`.
#[derive(Debug, Subcommand)]
pub enum ImageCommand {
    /// Show the slots, the booted image and the failed images.
    Show(ImageShowArgs),
    /// Forget that an image failed, so that it can be tried again. The agent must be stopped.
    Forget(ImageForgetArgs),
}

/// Arguments of `image show`.
#[derive(Debug, Args)]
pub struct ImageShowArgs {
    /// Paths of the agent.
    #[command(flatten)]
    pub paths: PathArgs,
    /// Output format.
    #[arg(long, short, value_enum, default_value_t = OutputFormat::Text)]
    pub output: OutputFormat,
}

/// Arguments of `image forget`.
#[derive(Debug, Args)]
pub struct ImageForgetArgs {
    /// Paths of the agent.
    #[command(flatten)]
    pub paths: PathArgs,
    /// SHA-256 of the image file, as shown by `image show`.
    pub digest: Sha256,
}

/// Arguments of `trial`.
#[derive(Debug, Args)]
pub struct TrialArgs {
    /// Command to run.
    #[command(subcommand)]
    pub command: TrialCommand,
}

/// Commands of `evenkeel-agent trial`.
#[derive(Debug, Subcommand)]
pub enum TrialCommand {
    /// Reset the machine if its trial has not ended by the deadline. A separate service runs this
    /// command.
    Guard(TrialGuardArgs),
}

/// Arguments of `trial guard`.
#[derive(Debug, Args)]
pub struct TrialGuardArgs {
    /// Paths of the agent.
    #[command(flatten)]
    pub paths: PathArgs,
}

/// Arguments of `completion`.
#[derive(Debug, Args)]
pub struct CompletionArgs {
    /// Shell to print the script for.
    pub shell: Shell,
}

/// Output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OutputFormat {
    /// Text for people.
    Text,
    /// JSON for programs.
    Json,
}
