//! Schemathesis, in its own virtual environment.

use std::fs;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use evenkeel_tests::architecture::tree;
use evenkeel_tests::history::print_progress;
use evenkeel_tests::lab::describe_output;
use serde_json::Value;
use tokio::process::Command;
use tokio::time::timeout;

/// Paths in the repository.
const INSTALL_SCRIPT: &str = "tests/lab/make-python-tool";
const CONFIGURATION: &str = "tests/lab/schemathesis/schemathesis.toml";

/// An installed Schemathesis.
pub struct Tool {
    python: PathBuf,
}

/// Result of a run.
pub struct Verdict {
    /// Whether there are no failures.
    pub is_clean: bool,
    /// Complete output.
    pub output: String,
    /// Its report; null if it wrote none.
    pub report: Value,
}

impl Tool {
    /// Installs Schemathesis if it is missing. If that fails, prints one line and returns `None`, or
    /// panics if tests of this kind are required.
    #[expect(
        clippy::disallowed_methods,
        reason = "a script installs the tool; a variable makes it required"
    )]
    pub async fn open() -> Option<Self> {
        let installed = Command::new(tree::root().join(INSTALL_SCRIPT))
            .args(["schemathesis", "-"])
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output()
            .await
            .expect("the script starts");
        if installed.status.success() {
            let folder = String::from_utf8_lossy(&installed.stdout);
            let python = PathBuf::from(folder.trim()).join("bin/python");
            return Some(Self { python });
        }
        let is_required = std::env::var_os("EVENKEEL_REQUIRE_OS_TESTS").is_some();
        assert!(!is_required, "schemathesis is required: {}", describe_output(&installed));
        let error_text = String::from_utf8_lossy(&installed.stderr);
        let why = error_text.lines().last().unwrap_or("no error output");
        print_progress(&format!("skipped: schemathesis cannot be installed: {why}"));
        None
    }

    /// Tests a document, which is a file or a URL, with these options.
    #[expect(clippy::disallowed_methods, reason = "schemathesis is another program")]
    pub async fn run(
        &self,
        document: &str,
        token: &str,
        options: &[&str],
        limit: Duration,
    ) -> Verdict {
        let folder = tempfile::tempdir().expect("a folder");
        let report = folder.path().join("report.json");
        let ended = Command::new(&self.python)
            .args(["-m", "schemathesis.cli", "--no-color", "--config-file"])
            .arg(tree::root().join(CONFIGURATION))
            .args(["run", document, "--report", "json", "--report-json-path"])
            .arg(&report)
            .args(options)
            .env("EVENKEEL_TOKEN", token)
            // The server is local, so a proxy for other hosts must not be used.
            .env("NO_PROXY", "127.0.0.1")
            .env("no_proxy", "127.0.0.1")
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output();
        let ended = timeout(limit, ended).await;
        let ended = ended.unwrap_or_else(|_| panic!("schemathesis does not end within {limit:?}"));
        let ended = ended.expect("schemathesis starts");
        let report = fs::read_to_string(report).unwrap_or_default();
        Verdict {
            is_clean: ended.status.success(),
            output: describe_output(&ended),
            report: serde_json::from_str(&report).unwrap_or_default(),
        }
    }
}
