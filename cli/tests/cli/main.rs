//! One line in, one text out.

mod dayzero;
mod double;
mod errors;
mod fleet;
mod hosts;
mod images;
mod lists;
mod logins;
mod orders;
mod os_moving;
mod os_sync;
mod places;
mod schedules;
mod setup;
mod things;
mod updates;

use std::path::PathBuf;

use chrono::{DateTime, Utc};
use clap::Parser;
use evenkeel_cli::args::Cli;
use evenkeel_cli::{Ending, Environment, Failure, World};
use evenkeel_kit::{Secret, TestClock};
use tempfile::TempDir;

use double::Double;

/// A person at a terminal of their own, with a server to ask.
struct Desk {
    double: Double,
    server: String,
    home: TempDir,
    /// The file of the contexts, in the home.
    contexts: PathBuf,
    token: Option<Secret>,
    /// Whether somebody answers questions.
    interactive: bool,
}

impl Desk {
    async fn new() -> Self {
        let double = Double::default();
        let server = double.start().await;
        let home = tempfile::tempdir().expect("a folder");
        Self {
            double,
            server,
            contexts: home.path().join("contexts.yaml"),
            home,
            token: Some(Secret::new("good")),
            interactive: false,
        }
    }

    /// Runs a line without a server's address.
    async fn bare(&self, line: &str, input: &str) -> Result<(String, Ending), Failure> {
        let cli = Cli::try_parse_from(split(line)).unwrap_or_else(|error| panic!("{error}"));
        let (mut out, mut notes) = (Vec::new(), Vec::new());
        let ending = cli
            .run(&mut World {
                out: &mut out,
                notes: &mut notes,
                input: &mut input.as_bytes(),
                hide: |_| (),
                clock: &TestClock::new(noon()),
                environment: Environment {
                    contexts: self.contexts.clone(),
                    token: self.token.clone(),
                    terminal: false,
                    colour: false,
                    interactive: self.interactive,
                },
            })
            .await?;
        notes.append(&mut out);
        Ok((String::from_utf8(notes).expect("text"), ending))
    }

    /// Runs a line that must work.
    async fn run(&self, line: &str) -> String {
        let line = format!("{line} --server {} --retry-for 0s", self.server);
        match self.bare(&line, "").await {
            Ok((text, _)) => text,
            Err(failure) => panic!("{failure}"),
        }
    }

    /// Runs a line that somebody answers.
    async fn answer(&self, line: &str, input: &str) -> Result<(String, Ending), Failure> {
        let line = format!("{line} --server {} --retry-for 0s", self.server);
        self.bare(&line, input).await
    }

    /// Runs a line that must not work, and gives what a person is told.
    async fn fail(&self, line: &str) -> String {
        let line = format!("{line} --server {} --retry-for 0s", self.server);
        let failure = self.bare(&line, "").await.expect_err("it must not work");
        told(&failure)
    }
}

fn told(failure: &Failure) -> String {
    let hint = failure.hint().unwrap_or_else(|| "none".to_owned());
    format!("{failure}\nhint: {hint}")
}

/// Splits a line at spaces outside of double quotes.
fn split(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut quoted = false;
    for c in line.chars() {
        match c {
            '"' => quoted = !quoted,
            ' ' if !quoted => words.push(String::new()),
            c => words.last_mut().expect("there is one").push(c),
        }
    }
    words
}

fn noon() -> DateTime<Utc> {
    "2026-03-01T12:00:00Z".parse().expect("a time")
}
