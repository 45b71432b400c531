//! Health of the running image: the machine's health checks succeed, and the server can be reached.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_kit::chain;
use tokio::time::Instant;

use super::TrialParts;
use crate::facts::Facts;
use crate::health::HealthChecks;
use crate::journal::FileJournal;
use crate::link::{LinkError, PollQuery, ServerLink};

/// Minimum time between two polls of the server: many nodes may be on trial at once.
const SERVER_CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// Why the server cannot be reached.
pub(super) struct ServerUnreachable {
    /// Reason for people.
    pub reason: String,
    /// Whether the image itself is at fault; otherwise the server may be down.
    pub is_own_fault: bool,
}

/// Runs the health checks repeatedly.
pub(super) struct HealthMonitor<'a> {
    parts: &'a TrialParts,
    checks: HealthChecks,
    /// Facts for the server: empty, because an image on trial must not be reported yet.
    facts: Facts,
    /// When the server last answered; `None` if the last poll failed.
    last_answer: Option<Instant>,
}

impl<'a> HealthMonitor<'a> {
    pub fn new(parts: &'a TrialParts) -> Self {
        let TrialParts { paths, runner, health, .. } = parts;
        let checks = HealthChecks::new(paths.clone(), Arc::clone(runner), health.units.clone());
        Self { parts, checks, facts: Facts::default(), last_answer: None }
    }

    /// Whether the image must reach the server.
    pub fn requires_server(&self) -> bool {
        self.parts.health.server && self.parts.requires_server
    }

    /// Checks the image itself.
    pub async fn check_image(&self) -> Result<(), String> {
        self.server_link()?;
        self.checks.check().await
    }

    fn server_link(&self) -> Result<&'a dyn ServerLink, String> {
        match &self.parts.link {
            Ok(link) => Ok(link.as_ref()),
            Err(reason) => {
                Err(format!("the agent of the image has no link to the server: {reason}"))
            }
        }
    }

    /// Checks that the server can be reached, if it must be, with a poll whose decision is ignored.
    /// The agent polls again after the trial.
    pub async fn check_server(&mut self) -> Result<(), ServerUnreachable> {
        if !self.requires_server() {
            return Ok(());
        }
        let is_fresh = |at: Instant| at.elapsed() < SERVER_CHECK_INTERVAL;
        if self.last_answer.is_some_and(is_fresh) {
            return Ok(());
        }
        self.last_answer = None;
        // The open attempt is named: otherwise the server would assume that the node has lost it.
        let entry = FileJournal::peek(&self.parts.paths.journal());
        let entry = entry.unwrap_or_default();
        let query = PollQuery {
            facts: &self.facts,
            send_facts: false,
            packages: None,
            attempt: entry.map(|entry| (entry.attempt, entry.last_sequence())),
            waiting_reason: "",
            decision_tag: 0,
            max_hold: Duration::ZERO,
        };
        let own_fault = |reason| ServerUnreachable { reason, is_own_fault: true };
        let answer = self.server_link().map_err(own_fault)?.poll(query).await;
        match answer {
            // Any answer proves that the server can be reached: it may be overloaded, refuse the
            // node, or be incompatible. The image is responsible only for the connection.
            Ok(_)
            | Err(
                LinkError::Busy { .. }
                | LinkError::Unauthenticated(_)
                | LinkError::Denied(_)
                | LinkError::Refused(_)
                | LinkError::InvalidAnswer(_),
            ) => {
                self.last_answer = Some(Instant::now());
                Ok(())
            }
            // Address, CA and certificate worked in the previous image.
            Err(error @ LinkError::Setup(_)) => Err(own_fault(chain(&error).to_string())),
            Err(error @ LinkError::Unavailable(_)) => {
                Err(ServerUnreachable { reason: chain(&error).to_string(), is_own_fault: false })
            }
        }
    }
}
