//! Command line of `evenkeel-agent configuration`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use evenkeel_configuration::document::ExtraKind;
use evenkeel_configuration::format::DocumentFormat;

use super::OutputFormat;

/// Arguments of `configuration`.
#[derive(Debug, Args)]
pub struct ConfigurationArgs {
    /// Command to run.
    #[command(subcommand)]
    pub command: ConfigurationCommand,
}

/// Commands of `evenkeel-agent configuration`.
#[derive(Debug, Subcommand)]
pub enum ConfigurationCommand {
    Check(ConfigurationCheckArgs),
    Apply(ConfigurationApplyArgs),
}

const CHECK_EXAMPLES: &str = "Examples:
  evenkeel-agent configuration check web.yaml
  evenkeel-agent configuration check web.yaml --only-bundle web -o json
  evenkeel-agent configuration check spec.xml --format bcfg2
  kubectl get osc worker -o yaml | evenkeel-agent configuration check -";

/// Compare this machine with a configuration document. Changes nothing.
///
/// Needs no server, no enrolment and no other file of the agent. As another user than root, it
/// reports entries that only root can read as bad.
///
/// Exits with status 0 if every entry is as desired, 1 if an entry is not or the check failed, 2 if
/// the document cannot be read or is invalid, and 3 if it has an entry that is not offered.
#[derive(Debug, Args)]
#[command(after_help = CHECK_EXAMPLES)]
pub struct ConfigurationCheckArgs {
    /// The document and the machine.
    #[command(flatten)]
    pub document: DocumentArgs,
}

const APPLY_EXAMPLES: &str = "Examples:
  evenkeel-agent configuration apply web.yaml
  evenkeel-agent configuration apply web.yaml --only-bundle web -o json
  evenkeel-agent configuration apply web.yaml --secrets secrets.yaml
  evenkeel-agent configuration apply web.yaml --remove-extra packages,users
  evenkeel-agent configuration apply web.yaml --image-root /mnt/image";

/// Change this machine as a configuration document describes, and print the state afterwards.
///
/// Needs root, but no server and no enrolment. While an update is in progress, it fails. If it was
/// interrupted, run it again with the same document: it continues. Actions run only if the limits
/// of the machine's owner allow them.
///
/// Exits with status 0 if every entry is as desired afterwards, 1 if an entry or an action failed, 2
/// if the document cannot be read or is invalid, and 3 if it has an entry that is not offered. With
/// 2 and 3, nothing was changed.
#[derive(Debug, Args)]
#[command(after_help = APPLY_EXAMPLES)]
pub struct ConfigurationApplyArgs {
    /// The document and the machine.
    #[command(flatten)]
    pub document: DocumentArgs,
    /// Kind of extras to remove, in addition to those that the document lists; can be a list with
    /// commas.
    #[arg(long, value_enum, value_name = "KIND", value_delimiter = ',')]
    pub remove_extra: Vec<RemovedExtras>,
    /// State directory of the agent [default: var/lib/evenkeel-agent in the image root].
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// Configuration file of the agent [default: /etc/evenkeel/agent.toml, which may be missing].
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

/// Extras to remove.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RemovedExtras {
    /// Packages that were installed by name and that no other package needs.
    Packages,
    /// Enabled units: they are disabled and stopped.
    Services,
    /// Users with a login shell.
    Users,
    /// All of them.
    All,
}

impl RemovedExtras {
    /// The kinds of extras.
    pub fn kinds(self) -> &'static [ExtraKind] {
        match self {
            Self::Packages => &[ExtraKind::Packages],
            Self::Services => &[ExtraKind::Services],
            Self::Users => &[ExtraKind::Users],
            Self::All => &[ExtraKind::Packages, ExtraKind::Services, ExtraKind::Users],
        }
    }
}

/// A document, and the machine that it describes.
#[derive(Debug, Args)]
pub struct DocumentArgs {
    /// File with the document, or `-` for standard input.
    pub file: PathBuf,
    /// Format of the document [default: by the content].
    #[arg(long, value_enum)]
    pub format: Option<InputFormat>,
    /// Bundle whose entries are meant, without all others. Then nothing is an extra.
    #[arg(long, value_name = "NAME")]
    pub only_bundle: Option<String>,
    /// YAML or JSON file with the values of the secrets that the document refers to: an object for
    /// each secret, with a text for each key.
    #[arg(long, value_name = "FILE")]
    pub secrets: Option<PathBuf>,
    /// Folder that contains the file system of the machine [default: /].
    #[arg(long, value_name = "DIR")]
    pub image_root: Option<PathBuf>,
    /// Output format.
    #[arg(long, short, value_enum, default_value_t = OutputFormat::Text)]
    pub output: OutputFormat,
}

/// Format of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum InputFormat {
    /// Format of Evenkeel, in YAML or JSON.
    Native,
    /// Literal `<Configuration>` of Bcfg2.
    Bcfg2,
    /// `OperatingSystemConfig` of Gardener, in YAML or JSON.
    Gardener,
}

impl From<InputFormat> for DocumentFormat {
    fn from(format: InputFormat) -> Self {
        match format {
            InputFormat::Native => Self::Native,
            InputFormat::Bcfg2 => Self::Bcfg2,
            InputFormat::Gardener => Self::Gardener,
        }
    }
}
