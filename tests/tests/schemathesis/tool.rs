//! Schemathesis, in a virtual environment of its own.

use std::fs;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use evenkeel_tests::history::say;
use evenkeel_tests::house::tree;
use evenkeel_tests::lab::told;
use serde_json::Value;
use tokio::process::Command;
use tokio::time::timeout;

/// Where the tool's parts are in the repository.
const SCRIPT: &str = "tests/lab/make-schemathesis";
const CONFIGURATION: &str = "tests/lab/schemathesis/schemathesis.toml";

/// Schemathesis, ready to ask.
pub struct Tool {
    python: PathBuf,
}

/// What it found.
pub struct Verdict {
    /// Whether it found nothing.
    pub is_clean: bool,
    /// All that it said.
    pub said: String,
    /// Its report; null if it wrote none.
    pub report: Value,
}

impl Tool {
    /// Installs it, if it is not there yet. Where it cannot be, says so in one line and returns nothing, or fails if tests
    /// of this kind are required.
    #[expect(
        clippy::disallowed_methods,
        reason = "a script installs it; one switch tells whether it must be there"
    )]
    pub async fn open() -> Option<Self> {
        let made = Command::new(tree::root().join(SCRIPT))
            .arg("-")
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output()
            .await
            .expect("the script starts");
        if made.status.success() {
            let folder = String::from_utf8_lossy(&made.stdout);
            let python = PathBuf::from(folder.trim()).join("bin/python");
            return Some(Self { python });
        }
        let is_required = std::env::var_os("EVENKEEL_REQUIRE_OS_TESTS").is_some();
        assert!(!is_required, "schemathesis is required: {}", told(&made));
        let said = String::from_utf8_lossy(&made.stderr);
        let why = said.lines().last().unwrap_or("it said nothing");
        say(&format!("skipped: schemathesis cannot be installed: {why}"));
        None
    }

    /// Lets it ask for what a document says, with these options. The document is a file or an address.
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
            // The server is here, whoever is in between on the way outside.
            .env("NO_PROXY", "127.0.0.1")
            .env("no_proxy", "127.0.0.1")
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output();
        let ended = timeout(limit, ended).await;
        let ended = ended.unwrap_or_else(|_| panic!("it does not end within {limit:?}"));
        let ended = ended.expect("it starts");
        let report = fs::read_to_string(report).unwrap_or_default();
        Verdict {
            is_clean: ended.status.success(),
            said: told(&ended),
            report: serde_json::from_str(&report).unwrap_or_default(),
        }
    }
}
