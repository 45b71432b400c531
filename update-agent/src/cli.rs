//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use uuid::Uuid;

use crate::model::Sha256;

/// Keeps this node up to date.
#[derive(Debug, Parser)]
#[command(name = "evenkeel-agent", version, about, max_term_width = 100)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Make this machine a node of the project that the join token belongs to.
    Enroll(Enroll),
    /// Poll the server and do what it decides, until asked to stop.
    Run(Run),
    /// Show who this node is and what it is doing.
    Status(Status),
    /// Show what an update would change now. Lists of packages are made current for it; no package is changed.
    Plan(Plan),
    /// Show the updates that ended on this node, the last one last.
    History(History),
    /// Look at everything that an update needs, and say what to do about what is not right.
    Doctor(Doctor),
    /// Look at the slots of images, or forget that an image failed.
    Image(Image),
    /// See to it that the trial of an image ends.
    #[command(hide = true)]
    Trial(Trial),
    /// Print a completion script for a shell.
    Completion(Completion),
    /// Print the points at which `--halt-after` can stop.
    #[cfg(feature = "halt-points")]
    #[command(hide = true)]
    Steps,
}

/// Where things are.
#[derive(Clone, Debug, Default, Args)]
pub struct Where {
    /// The root to manage; the running system unless given.
    #[arg(long, value_name = "DIR")]
    pub root: Option<PathBuf>,
    /// Where the agent keeps its state [default: var/lib/evenkeel-agent in the root].
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// The configuration file [default: /etc/evenkeel/agent.toml, which may be missing].
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

/// Arguments of `enroll`.
#[derive(Debug, Args)]
pub struct Enroll {
    /// Where things are.
    #[command(flatten)]
    pub place: Where,
    /// Address of the server: <https://HOST:PORT>.
    #[arg(long, value_name = "URL")]
    pub server: String,
    /// The join token. Other users of this machine can see it while the command runs: prefer `--token-file`.
    #[arg(long, value_name = "TOKEN", required_unless_present = "token_file")]
    pub token: Option<String>,
    /// A file with the join token; `-` is standard input.
    #[arg(long, value_name = "FILE", conflicts_with = "token")]
    pub token_file: Option<PathBuf>,
    /// Certificate (PEM) of the authority that vouches for the server, in place of the one that the token names.
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// The machine's UUID, in place of the one that it has.
    #[arg(long, value_name = "UUID")]
    pub uuid: Option<Uuid>,
}

/// Arguments of `run`.
#[derive(Debug, Args)]
pub struct Run {
    /// Where things are.
    #[command(flatten)]
    pub place: Where,
    /// Do everything that can be done now, then end: with 0, or with 1 if an update failed or the server was not reached.
    #[arg(long)]
    pub once: bool,
    /// Stop for ever after the journal was written at this point, and say so on standard output.
    #[cfg(feature = "halt-points")]
    #[arg(long, value_name = "POINT", hide = true)]
    pub halt_after: Option<String>,
    /// Arm a slot before its kernel is there: a wrong order of writes, which replays of power cuts must find.
    #[cfg(feature = "halt-points")]
    #[arg(long, hide = true)]
    pub early_entry: bool,
}

/// Arguments of `status`.
#[derive(Debug, Args)]
pub struct Status {
    /// Where things are.
    #[command(flatten)]
    pub place: Where,
    /// The form of the answer.
    #[arg(long, value_enum, default_value_t = Output::Text)]
    pub output: Output,
}

/// Arguments of `plan`.
#[derive(Debug, Args)]
pub struct Plan {
    /// Where things are.
    #[command(flatten)]
    pub place: Where,
    /// A package to install or update, to this version or to the newest; may be repeated. Without any, everything that is
    /// installed, to the newest.
    #[arg(long = "package", value_name = "NAME[=VERSION]")]
    pub packages: Vec<String>,
    /// The form of the answer.
    #[arg(long, value_enum, default_value_t = Output::Text)]
    pub output: Output,
}

/// Arguments of `history`.
#[derive(Debug, Args)]
pub struct History {
    /// Where things are.
    #[command(flatten)]
    pub place: Where,
    /// The form of the answer.
    #[arg(long, value_enum, default_value_t = Output::Text)]
    pub output: Output,
}

/// Arguments of `doctor`.
#[derive(Debug, Args)]
pub struct Doctor {
    /// Where things are.
    #[command(flatten)]
    pub place: Where,
    /// The form of the answer.
    #[arg(long, value_enum, default_value_t = Output::Text)]
    pub output: Output,
}

/// Arguments of `image`.
#[derive(Debug, Args)]
pub struct Image {
    /// What to do.
    #[command(subcommand)]
    pub command: ImageCommand,
}

/// What to do with images.
#[derive(Debug, Subcommand)]
pub enum ImageCommand {
    /// Show what is in the slots, which one runs, and which images failed here.
    Show(ImageShow),
    /// Forget that an image failed here, so that it may be tried again. The agent must not be running.
    Forget(ImageForget),
}

/// Arguments of `image show`.
#[derive(Debug, Args)]
pub struct ImageShow {
    /// Where things are.
    #[command(flatten)]
    pub place: Where,
    /// The form of the answer.
    #[arg(long, value_enum, default_value_t = Output::Text)]
    pub output: Output,
}

/// Arguments of `image forget`.
#[derive(Debug, Args)]
pub struct ImageForget {
    /// Where things are.
    #[command(flatten)]
    pub place: Where,
    /// SHA-256 of the image's file, as `image show` shows it.
    pub digest: Sha256,
}

/// Arguments of `trial`.
#[derive(Debug, Args)]
pub struct Trial {
    /// What to do.
    #[command(subcommand)]
    pub command: TrialCommand,
}

/// What to do with a trial.
#[derive(Debug, Subcommand)]
pub enum TrialCommand {
    /// Reset the machine if it is on trial and that has not ended at its deadline. A service of its own runs this.
    Guard(TrialGuard),
}

/// Arguments of `trial guard`.
#[derive(Debug, Args)]
pub struct TrialGuard {
    /// Where things are.
    #[command(flatten)]
    pub place: Where,
}

/// Arguments of `completion`.
#[derive(Debug, Args)]
pub struct Completion {
    /// The shell.
    pub shell: Shell,
}

/// The form of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people.
    Text,
    /// For programs.
    Json,
}
