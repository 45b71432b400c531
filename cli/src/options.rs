//! Options of all commands.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::time::parse_duration;

/// Options of all commands.
#[derive(Clone, Debug, Args)]
pub struct GlobalOptions {
    /// Output format.
    #[arg(long, short, global = true, value_enum, default_value_t = OutputFormat::Table, help_heading = "Global options")]
    pub output: OutputFormat,
    /// Print only IDs; for a new token or secret, print only that.
    #[arg(long = "quiet", short = 'q', global = true, help_heading = "Global options")]
    pub ids_only: bool,
    /// Context to use [default: current context].
    #[arg(long, global = true, help_heading = "Global options")]
    pub context: Option<String>,
    /// Project to work in [default: project of the context, else `default`].
    #[arg(long, short, global = true, env = "EVENKEEL_PROJECT", help_heading = "Global options")]
    pub project: Option<String>,
    /// URL of the server [default: server of the context, else <http://127.0.0.1:8080>].
    #[arg(
        long,
        global = true,
        env = "EVENKEEL_SERVER",
        value_name = "URL",
        help_heading = "Global options"
    )]
    pub server: Option<String>,
    /// CA certificate (PEM file) to verify the server [default: system roots]. On the server,
    /// `evenkeeld ca` prints that of its own CA. Other identity providers are always verified with the
    /// system roots.
    #[arg(
        long,
        global = true,
        env = "EVENKEEL_CA",
        value_name = "FILE",
        help_heading = "Global options"
    )]
    pub ca: Option<PathBuf>,
    /// How long to retry read requests while the server is unavailable.
    #[arg(long, global = true, value_parser = parse_duration, default_value = "5s", value_name = "DURATION", help_heading = "Global options")]
    pub retry_for: Duration,
}

impl OutputFormat {
    /// Whether the output is for people.
    pub const fn is_table(self) -> bool {
        matches!(self, Self::Table | Self::Wide)
    }
}

/// Output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OutputFormat {
    /// Human-readable table. On a narrow terminal it lacks the least important columns.
    Table,
    /// Human-readable table with all columns.
    Wide,
    /// JSON.
    Json,
    /// YAML.
    Yaml,
}
