//! oidc-provider as a process.

use std::path::PathBuf;
use std::process::Stdio;

use evenkeel_tests::architecture::tree;
use evenkeel_tests::history::print_progress;
use evenkeel_tests::lab::describe_output;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

/// Path in the repository.
const INSTALL_SCRIPT: &str = "tests/lab/make-oidc-provider";

/// The installed program.
pub struct ProviderProgram {
    folder: PathBuf,
}

/// Form of the access tokens of a provider.
#[derive(Clone, Copy, Debug)]
pub enum AccessTokens {
    /// JSON Web Tokens for the server.
    Jwt,
    /// Texts that only the provider understands.
    Opaque,
}

/// A running provider. It is killed when this value is dropped.
pub struct IdentityProvider {
    pub issuer: String,
    _process: Child,
}

impl ProviderProgram {
    /// Installs the program if it is missing. If that fails, prints one line and returns `None`, or
    /// panics if tests of this kind are required.
    #[expect(
        clippy::disallowed_methods,
        reason = "a script installs the program; a variable makes it required"
    )]
    pub async fn open() -> Option<Self> {
        let installed = Command::new(tree::root().join(INSTALL_SCRIPT))
            .arg("-")
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output()
            .await
            .expect("the script starts");
        if installed.status.success() {
            let folder = String::from_utf8_lossy(&installed.stdout);
            return Some(Self { folder: PathBuf::from(folder.trim()) });
        }
        let is_required = std::env::var_os("EVENKEEL_REQUIRE_OS_TESTS").is_some();
        assert!(!is_required, "oidc-provider is required: {}", describe_output(&installed));
        let error_text = String::from_utf8_lossy(&installed.stderr);
        let why = error_text.lines().last().unwrap_or("no error output");
        print_progress(&format!("skipped: oidc-provider cannot be installed: {why}"));
        None
    }

    /// Starts a provider on a free port.
    #[expect(clippy::disallowed_methods, reason = "the provider is another program")]
    pub async fn start(&self, access_tokens: AccessTokens) -> IdentityProvider {
        let kind = match access_tokens {
            AccessTokens::Jwt => "jwt",
            AccessTokens::Opaque => "opaque",
        };
        let process = Command::new(self.folder.join("node"))
            .arg("provider.mjs")
            .arg(kind)
            .current_dir(&self.folder)
            // It ends with its standard input, also if this process is killed.
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .kill_on_drop(true)
            .spawn();
        let mut process = process.expect("the provider starts");
        let mut lines = BufReader::new(process.stdout.take().expect("a pipe")).lines();
        let issuer = lines.next_line().await.expect("text");
        let issuer = issuer.expect("the provider prints its address");
        IdentityProvider { issuer, _process: process }
    }
}
