//! Whether the image that runs is healthy: its units are active, programs of the machine's owner say so, the server is
//! reached.

use std::time::Duration;

use evenkeel_kit::chain;
use tokio::time::Instant;

use super::TrialParts;
use crate::facts::Facts;
use crate::hooks::{Programs, in_one_line};
use crate::journal::FileJournal;
use crate::link::{Link, LinkError, Question};
use crate::runner::Command;

/// systemd answers at once, or not at all.
const UNITS_DEADLINE: Duration = Duration::from_secs(10);

/// How long each program may take.
const CHECK_DEADLINE: Duration = Duration::from_secs(30);

/// The server is asked this often only: many nodes may be on trial at once.
const SERVER_EVERY: Duration = Duration::from_secs(10);

/// The programs, under the rules of hooks.
const CHECKS: Programs = Programs {
    folder: "/etc/evenkeel/health.d",
    kind: "health check",
};

/// Why the server is not reached.
pub(super) struct Missing {
    /// In words.
    pub why: String,
    /// Whether it cannot be, as this image is. Else it may be away for all.
    pub is_own_fault: bool,
}

/// Asks again and again.
pub(super) struct Health<'a> {
    parts: &'a TrialParts,
    /// What is told to the server: nothing is known yet of an image on trial, and nothing is to be.
    facts: Facts,
    /// When the server answered last, if it did at the last attempt.
    heard: Option<Instant>,
}

impl<'a> Health<'a> {
    pub fn new(parts: &'a TrialParts) -> Self {
        Self {
            parts,
            facts: Facts::default(),
            heard: None,
        }
    }

    /// Whether the image must reach the server.
    pub fn demands_server(&self) -> bool {
        self.parts.health.server && self.parts.server
    }

    /// What is wrong with the image itself, if anything is.
    pub async fn of_itself(&self) -> Result<(), String> {
        self.link()?;
        self.units().await?;
        let TrialParts { place, runner, .. } = self.parts;
        CHECKS.ask(place, runner.as_ref(), CHECK_DEADLINE).await
    }

    fn link(&self) -> Result<&'a dyn Link, String> {
        match &self.parts.link {
            Ok(link) => Ok(link.as_ref()),
            Err(why) => Err(format!("its agent has no way to the server: {why}")),
        }
    }

    async fn units(&self) -> Result<(), String> {
        let units = &self.parts.health.units;
        if units.is_empty() {
            return Ok(());
        }
        // One line for each, in order; the exit status is good if at least one of them is active (systemctl(1)).
        let command = Command::new("systemctl", UNITS_DEADLINE)
            .with(["is-active", "--"])
            .with(units.iter().cloned());
        let asked = self.parts.runner.run(&command).await;
        let output =
            asked.map_err(|error| format!("no unit can be asked for: {}", chain(&error)))?;
        let mut states = output.stdout.lines().map(str::trim);
        for unit in units {
            match states.next() {
                Some("active") => {}
                Some(state) => return Err(format!("the unit {unit} is {}", in_one_line(state))),
                None => {
                    let words = in_one_line(&output.words());
                    return Err(format!("systemctl does not know the unit {unit}: {words}"));
                }
            }
        }
        Ok(())
    }

    /// Why the server is not reached, if it must be. A poll whose answer is not used: what the server wants is for the
    /// agent to hear when the trial is over.
    pub async fn of_server(&mut self) -> Result<(), Missing> {
        if !self.demands_server() {
            return Ok(());
        }
        let is_fresh = |at: Instant| at.elapsed() < SERVER_EVERY;
        if self.heard.is_some_and(is_fresh) {
            return Ok(());
        }
        self.heard = None;
        // The attempt that led here is open: a poll that does not name it would look like a node that forgot it.
        let entry = FileJournal::look(&self.parts.place.journal());
        let entry = entry.unwrap_or_default();
        let question = Question {
            facts: &self.facts,
            whole: false,
            packages: None,
            attempt: entry.map(|entry| (entry.attempt, entry.last_sequence())),
            waiting: "",
            tag: 0,
            hold: Duration::ZERO,
        };
        let own_fault = |why| Missing {
            why,
            is_own_fault: true,
        };
        let answer = self.link().map_err(own_fault)?.poll(question).await;
        match answer {
            // Who has too much to do, does not want this node or is not understood has been reached. That there is a way
            // is all that an image can answer for.
            Ok(_)
            | Err(
                LinkError::Busy { .. }
                | LinkError::Denied(_)
                | LinkError::Refused(_)
                | LinkError::Nonsense(_),
            ) => {
                self.heard = Some(Instant::now());
                Ok(())
            }
            // The address, the authorities and the credential are those that the image before it had.
            Err(error @ LinkError::Setup(_)) => Err(own_fault(chain(&error).to_string())),
            Err(error @ LinkError::Unavailable(_)) => Err(Missing {
                why: chain(&error).to_string(),
                is_own_fault: false,
            }),
        }
    }
}
