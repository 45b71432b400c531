//! Logins of the command line at real identity providers: oidc-provider, a program for Node.js, and
//! Keycloak. A real server accepts their tokens. The pages of the providers are filled in by plain
//! requests.
//!
//! Without the npm registry the test with oidc-provider is skipped, unless
//! `EVENKEEL_REQUIRE_OS_TESTS=1` is set.

mod browser;
mod identity_provider;
mod keycloak;

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser as _;
use evenkeel_cli::args::Cli;
use evenkeel_cli::contexts::Contexts;
use evenkeel_cli::{Environment, Failure, System};
use evenkeel_kit::{Secret, SystemClock};
use evenkeel_tests::history::Replicas;
use serde_json::Value;
use tempfile::TempDir;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::time::timeout;

use self::browser::{Answer, finish_login};
use self::identity_provider::{AccessTokens, IdentityProvider, ProviderProgram};

/// How long a login may take on a busy machine.
const LOGIN_TIMEOUT: Duration = Duration::from_mins(2);

/// Registration of the command line at the provider.
const CLIENT_ID: &str = "evenkeel-cli";

/// The command line of a user.
struct UserCli {
    home: TempDir,
    server: String,
}

impl UserCli {
    fn contexts(&self) -> PathBuf {
        self.home.path().join("contexts.yaml")
    }

    /// Runs a line; returns its output without notes.
    async fn run(&self, line: &str, notes: &mut dyn Write) -> Result<String, Failure> {
        let line = format!("{line} --server {} --retry-for 0s", self.server);
        let cli = Cli::try_parse_from(line.split(' '));
        let cli = cli.unwrap_or_else(|error| panic!("{line}: {error}"));
        let mut output = Vec::new();
        cli.run(&mut System {
            out: &mut output,
            notes,
            input: &mut io::empty(),
            hide_input: |_| (),
            open_browser: &|_| false,
            clock: &SystemClock,
            environment: Environment {
                contexts: self.contexts(),
                token: None,
                width: None,
                colour: false,
                interactive: false,
                has_display: false,
            },
        })
        .await?;
        Ok(String::from_utf8(output).expect("text"))
    }

    /// Logs in; the user opens the address that the command prints.
    async fn log_in(&self, options: &str, user: &str, answer: Answer) -> Result<String, Failure> {
        let (sender, mut parts) = unbounded_channel();
        let mut notes = NoteSender(sender);
        let line = format!("evenkeel login {options}");
        let browser = async {
            let mut text = String::new();
            let address = loop {
                text.push_str(&parts.recv().await.expect("the command holds the sender"));
                if let Some(address) = find_address(&text) {
                    break address;
                }
            };
            finish_login(&address, user, answer).await;
            // The command ends by itself.
            std::future::pending::<()>().await;
        };
        let login = async {
            tokio::select! {
                result = self.run(&line, &mut notes) => result,
                () = browser => unreachable!("the browser never ends"),
            }
        };
        timeout(LOGIN_TIMEOUT, login).await.unwrap_or_else(|_| panic!("{line} does not end"))
    }

    async fn whoami(&self) -> Value {
        let output = self.run("evenkeel whoami -o json", &mut io::sink()).await;
        serde_json::from_str(&output.expect("a valid token")).expect("JSON")
    }

    fn saved_token(&self) -> Secret {
        let contexts = Contexts::load(&self.contexts()).expect("contexts");
        contexts.contexts[0].token.clone().expect("a token")
    }

    fn replace_token(&self, token: &str) {
        let mut contexts = Contexts::load(&self.contexts()).expect("contexts");
        contexts.contexts[0].token = Some(Secret::new(token));
        contexts.save(&self.contexts()).expect("saved");
    }
}

/// Sends the notes of a command while it runs.
struct NoteSender(UnboundedSender<String>);

impl Write for NoteSender {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(bytes).into_owned();
        self.0.send(text).map_err(io::Error::other)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The address in the notes of a login; it is indented on a line of its own.
fn find_address(notes: &str) -> Option<String> {
    let lines = notes.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    let mut addresses = lines.filter_map(|line| line.strip_prefix("  http"));
    addresses.next().map(|rest| format!("http{}", rest.trim_end()))
}

/// Settings of a server that accepts the tokens of both providers.
fn settings(with_access_tokens: &IdentityProvider, with_id_tokens: &IdentityProvider) -> String {
    let section = |name: &str, provider: &IdentityProvider, audience: &str| {
        let issuer = &provider.issuer;
        format!(
            "[[auth.issuers]]\nname = \"{name}\"\nissuer = \"{issuer}\"\naudience = \"{audience}\"\n\
             discovery = true\nclient_id = \"{CLIENT_ID}\"\nscopes = [\"groups\"]\n\
             [[auth.issuers.role_mapping]]\nclaim = \"groups\"\nvalue = \"it\"\nrole = \"operator@default\"\n"
        )
    };
    let first = section("staff", with_access_tokens, "urn:evenkeel");
    // Without a token for the server, the audience is the client that the ID token was issued to.
    first + &section("partners", with_id_tokens, CLIENT_ID)
}

#[tokio::test(flavor = "multi_thread")]
async fn users_of_an_identity_provider_log_in_with_a_browser_and_on_another_device() {
    let Some(program) = ProviderProgram::open().await else {
        return;
    };
    let staff = program.start(AccessTokens::Jwt).await;
    let partners = program.start(AccessTokens::Opaque).await;
    let replicas = Replicas::start(1, &settings(&staff, &partners)).await;
    let server = format!("http://{}", replicas.rest_addresses()[0]);
    let cli = UserCli { home: tempfile::tempdir().expect("a folder"), server };

    let denied = cli.log_in("--issuer staff --web", "it-alice", Answer::Deny).await;
    let denied = denied.expect_err("the user denied it").to_string();
    assert!(denied.contains("access_denied"), "{denied}");

    let output = cli.log_in("--issuer staff --web", "it-alice", Answer::Allow).await;
    let output = output.unwrap_or_else(|failure| panic!("{failure}: {:?}", failure.hint()));
    assert!(output.starts_with("logged in to "), "{output}");
    check_user(&cli, &staff.issuer, "it-alice", &["operator@default"]).await;
    check_renewal(&cli).await;
    check_logout(&cli).await;

    let output = cli.log_in("--issuer partners --device", "it-bob", Answer::Allow).await;
    output.unwrap_or_else(|failure| panic!("{failure}: {:?}", failure.hint()));
    check_user(&cli, &partners.issuer, "it-bob", &["operator@default"]).await;
    check_renewal(&cli).await;
    check_logout(&cli).await;

    // A guest is in no group, so the server gives no role, and the token is not saved.
    let refused = cli.log_in("--issuer partners --web", "guest", Answer::Allow).await;
    let refused = refused.expect_err("no role").to_string();
    assert!(refused.contains("belongs to no project"), "{refused}");
    replicas.stop().await;
}

/// The server knows the user and the roles that the groups of the provider give.
async fn check_user(cli: &UserCli, issuer: &str, subject: &str, roles: &[&str]) {
    let caller = cli.whoami().await;
    assert_eq!(caller["subject"], subject, "{caller}");
    assert_eq!(caller["issuer"], issuer, "{caller}");
    assert_eq!(caller["roles"], Value::from(roles), "{caller}");
}

/// A refused token is replaced by the refresh token, more than once.
async fn check_renewal(cli: &UserCli) {
    for token in ["first", "second"] {
        cli.replace_token(token);
        cli.whoami().await;
        assert_ne!(cli.saved_token().reveal(), token);
    }
}

/// After a logout, the provider refuses the refresh token.
async fn check_logout(cli: &UserCli) {
    let old = fs::read_to_string(cli.contexts()).expect("contexts");
    let mut notes = Vec::new();
    cli.run("evenkeel logout", &mut notes).await.expect("logged out");
    assert_eq!(String::from_utf8_lossy(&notes), "");
    fs::write(cli.contexts(), old).expect("written");
    cli.replace_token("refused");
    let failure = cli.run("evenkeel whoami", &mut io::sink()).await.expect_err("logged out");
    assert!(matches!(failure, Failure::Refused { status: 401, .. }), "{failure:?}");
}
