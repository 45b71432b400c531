//! Probes: scripts that report facts of this machine, and the groups that it belongs to.
//!
//! The rules for scripts and their output follow Bcfg2 1.4; `docs/probes.md` lists the differences.

mod answer;
mod script;
#[cfg(test)]
mod tests;

use std::time::Duration;

use crate::hooks::with_output;
use crate::runner::{RunError, Runner};

pub use self::answer::{GroupAllowList, MAX_PROBE_OUTPUT_BYTES, ProbeAnswer, parse_output};
pub use self::script::{ProbeScript, ScriptError};

/// Result of a probe that succeeded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProbeReport {
    /// What the probe reports.
    pub answer: ProbeAnswer,
    /// What was ignored or changed in its output, for people.
    pub warnings: Vec<String>,
    /// What the probe wrote to standard error.
    pub error_output: String,
}

/// A probe failed. Its output is not used: an incomplete answer could remove the node from groups.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The probe did not end in time.
    #[error("the probe {probe} {status}")]
    Timeout {
        /// Path of the script.
        probe: String,
        /// The time limit, and the end of its standard error.
        status: String,
    },
    /// The output of the probe is too long.
    #[error("the output of the probe {probe} is longer than {} KiB", MAX_PROBE_OUTPUT_BYTES >> 10)]
    OutputTooLong {
        /// Path of the script.
        probe: String,
    },
    /// The exit status is not 0.
    #[error("the probe {probe} {status}")]
    Failed {
        /// Path of the script.
        probe: String,
        /// How it ended, and the end of its standard error.
        status: String,
    },
    /// The script could not be run.
    #[error("cannot run the probe {probe}")]
    Run {
        /// Path of the script.
        probe: String,
        /// The error.
        #[source]
        source: RunError,
    },
}

impl ProbeError {
    /// Whether the text of the error contains output of the script.
    pub fn has_output(&self) -> bool {
        matches!(self, Self::Timeout { .. } | Self::Failed { .. })
    }
}

/// Runs a probe as the user of this process. At its end, the processes of its session are killed, and
/// all others if the runner has [`crate::runner::HostRunner::with_descendant_cleanup`].
///
/// The limits of the machine's owner are not checked: the caller does that before it runs a script
/// that the server has sent.
pub async fn run_probe(
    script: &ProbeScript,
    allowed: &GroupAllowList,
    timeout: Duration,
    runner: &dyn Runner,
) -> Result<ProbeReport, ProbeError> {
    let probe = script.path().to_owned();
    let output = match runner.run(&script.command(timeout)).await {
        Ok(output) if output.succeeded() => output,
        Ok(output) => {
            let status = with_output(output.describe_status(), &output.stderr);
            return Err(ProbeError::Failed { probe, status });
        }
        Err(RunError::Deadline { output, .. }) => {
            let timeout = humantime::format_duration(timeout);
            let status = format!("did not end within {timeout} and was killed");
            return Err(ProbeError::Timeout { probe, status: with_output(status, &output) });
        }
        Err(RunError::OutputTooLong { .. }) => return Err(ProbeError::OutputTooLong { probe }),
        Err(source) => return Err(ProbeError::Run { probe, source }),
    };
    let (answer, warnings) = parse_output(&output.stdout, allowed);
    Ok(ProbeReport { answer, warnings, error_output: output.stderr })
}
