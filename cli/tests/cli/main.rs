//! Tests of the command line: one line of input, one text of output.

mod audit;
mod configuration;
mod configuration_program;
mod dayzero;
mod errors;
mod fake_provider;
mod fake_server;
mod files;
mod fleet;
mod groups;
mod hosts;
mod images;
mod lists;
mod locations;
mod logins;
mod notifications;
mod oidc;
mod orders;
mod os_moving;
mod os_sync;
mod passwd;
mod resources;
mod schedules;
mod setup;
mod updates;
mod users;

use std::path::PathBuf;

use chrono::{DateTime, Utc};
use clap::Parser;
use evenkeel_cli::args::Cli;
use evenkeel_cli::{Ending, Environment, Failure, System};
use evenkeel_kit::{Secret, TestClock};
use tempfile::TempDir;

use fake_server::FakeServer;

/// The command line with a home directory and a fake server.
struct TestCli {
    fake_server: FakeServer,
    server: String,
    home: TempDir,
    /// File of the contexts in the home directory.
    contexts: PathBuf,
    token: Option<Secret>,
    /// Whether prompts can be answered.
    interactive: bool,
    has_display: bool,
    /// Width of the terminal; none for a pipe.
    width: Option<u16>,
    colour: bool,
}

impl TestCli {
    async fn new() -> Self {
        let fake_server = FakeServer::default();
        let server = fake_server.start().await;
        let home = tempfile::tempdir().expect("a folder");
        Self {
            fake_server,
            server,
            contexts: home.path().join("contexts.yaml"),
            home,
            token: Some(Secret::new("good")),
            interactive: false,
            has_display: false,
            width: None,
            colour: false,
        }
    }

    /// Runs a line without adding the address of the server. Returns notes and output.
    async fn bare(&self, line: &str, input: &str) -> Result<(String, Ending), Failure> {
        self.run_with_browser(line, input, &|_| false).await
    }

    /// Runs a line with a browser.
    async fn run_with_browser(
        &self,
        line: &str,
        input: &str,
        open_browser: &dyn Fn(&str) -> bool,
    ) -> Result<(String, Ending), Failure> {
        let cli = Cli::try_parse_from(split(line)).unwrap_or_else(|error| panic!("{error}"));
        let (mut out, mut notes) = (Vec::new(), Vec::new());
        let ending = cli
            .run(&mut System {
                out: &mut out,
                notes: &mut notes,
                input: &mut input.as_bytes(),
                hide_input: |_| (),
                open_browser,
                clock: &TestClock::new(noon()),
                environment: Environment {
                    contexts: self.contexts.clone(),
                    token: self.token.clone(),
                    width: self.width,
                    colour: self.colour,
                    interactive: self.interactive,
                    has_display: self.has_display,
                },
            })
            .await?;
        notes.append(&mut out);
        Ok((String::from_utf8(notes).expect("text"), ending))
    }

    /// Runs a line that must succeed.
    async fn run(&self, line: &str) -> String {
        let line = format!("{line} --server {} --retry-for 0s", self.server);
        match self.bare(&line, "").await {
            Ok((text, _)) => text,
            Err(failure) => panic!("{failure}"),
        }
    }

    /// Runs a line with an answer to its prompt.
    async fn answer(&self, line: &str, input: &str) -> Result<(String, Ending), Failure> {
        let line = format!("{line} --server {} --retry-for 0s", self.server);
        self.bare(&line, input).await
    }

    /// Runs a line that must fail. Returns the error and its hint.
    async fn fail(&self, line: &str) -> String {
        let line = format!("{line} --server {} --retry-for 0s", self.server);
        let failure = self.bare(&line, "").await.expect_err("the command must fail");
        render_failure(&failure)
    }
}

fn render_failure(failure: &Failure) -> String {
    let hint = failure.hint().unwrap_or_else(|| "none".to_owned());
    format!("{failure}\nhint: {hint}")
}

/// Splits a line at spaces outside of double quotes.
fn split(line: &str) -> Vec<String> {
    let mut args = vec![String::new()];
    let mut quoted = false;
    for c in line.chars() {
        match c {
            '"' => quoted = !quoted,
            ' ' if !quoted => args.push(String::new()),
            c => args.last_mut().expect("there is one").push(c),
        }
    }
    args
}

fn noon() -> DateTime<Utc> {
    "2026-03-01T12:00:00Z".parse().expect("a time")
}
