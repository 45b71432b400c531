//! Remembers which kernel ran before the running one.

use serde::{Deserialize, Serialize};

use crate::durable::{self, FileError};
use crate::os;
use crate::paths::AgentPaths;

/// The kernels of the last boots, by their releases (`uname -r`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct KernelHistory {
    /// The kernel that ran when the agent last started.
    pub running: String,
    /// The last kernel with another release that ran before it; empty if none is recorded.
    pub previous: String,
}

impl KernelHistory {
    /// Reads the history. It is empty if there is no valid file.
    pub fn read(paths: &AgentPaths) -> Self {
        let content = durable::read_file(&paths.kernels()).unwrap_or_else(|error| {
            tracing::warn!(error = %evenkeel_kit::chain(&error), "cannot read which kernels ran");
            None
        });
        let Some(content) = content else {
            return Self::default();
        };
        serde_json::from_slice(&content).unwrap_or_else(|error| {
            tracing::warn!(%error, "the record of the kernels that ran is damaged");
            Self::default()
        })
    }

    /// Records the kernel that runs now.
    fn record(paths: &AgentPaths, running: &str) -> Result<(), FileError> {
        let history = Self::read(paths);
        if history.running == running {
            return Ok(());
        }
        let next = Self { running: running.to_owned(), previous: history.running };
        // A struct of two texts can always be written as JSON.
        let text = serde_json::to_vec(&next).unwrap_or_default();
        durable::replace_file(&paths.kernels(), &text, 0o600)
    }
}

/// Records the running kernel if it belongs to the managed root. A failure is only logged.
pub fn record_running_kernel(paths: &AgentPaths) {
    if !paths.is_own_system() {
        return;
    }
    if let Err(error) = KernelHistory::record(paths, &os::kernel_release()) {
        tracing::warn!(error = %evenkeel_kit::chain(&error), "cannot record the running kernel");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_that_ran_before_is_recorded_across_repeated_starts() {
        let root = tempfile::tempdir().unwrap();
        let paths = AgentPaths::new(root.path(), Some(root.path().to_owned()));
        let record = |release: &str| {
            KernelHistory::record(&paths, release).unwrap();
            let history = KernelHistory::read(&paths);
            (history.running, history.previous)
        };
        let pair = |running: &str, previous: &str| (running.to_owned(), previous.to_owned());
        assert_eq!(record("6.1.0-1"), pair("6.1.0-1", ""));
        assert_eq!(record("6.1.0-2"), pair("6.1.0-2", "6.1.0-1"));
        assert_eq!(record("6.1.0-2"), pair("6.1.0-2", "6.1.0-1"), "the agent started again");
        assert_eq!(record("6.1.0-1"), pair("6.1.0-1", "6.1.0-2"), "the older kernel was booted");
    }

    #[test]
    fn a_damaged_record_is_replaced() {
        let root = tempfile::tempdir().unwrap();
        let paths = AgentPaths::new(root.path(), Some(root.path().to_owned()));
        std::fs::write(paths.kernels(), "{").unwrap();
        assert_eq!(KernelHistory::read(&paths), KernelHistory::default());
        KernelHistory::record(&paths, "6.1.0-1").unwrap();
        assert_eq!(KernelHistory::read(&paths).running, "6.1.0-1");
    }
}
