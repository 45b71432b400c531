//! Notifications: what a project reports to webhooks and by e-mail, and when a delivery is repeated.

mod address;

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use chrono::TimeDelta;

use crate::Time;
use crate::id::NotificationTargetId;
use crate::invalid::Invalid;
use crate::text::Name;

pub use address::{EmailAddresses, TargetAddress, WebhookUrl, is_email_address};

named! {
    /// An event that a target can receive.
    NotificationEvent {
        /// A run failed, was reverted, or ran into a time-out after its start was permitted or reported.
        RunFailed = "run-failed",
        /// An assignment stopped after too many failures.
        AssignmentStopped = "assignment-stopped",
        /// A node made no contact for longer than the silence time-out.
        NodeSilent = "node-silent",
        /// The sync of a project with its registry failed.
        SyncFailed = "sync-failed",
        /// A security update that a node can install appeared.
        SecurityUpdatePending = "security-update-pending",
        /// A certificate of the server expires soon.
        CertificateExpiry = "certificate-expiry",
        /// A user requested a test. Every target receives it.
        Test = "test",
    }
}

named! {
    /// The state of a delivery.
    NotificationState {
        /// It waits for its first or its next attempt.
        Pending = "pending",
        /// The webhook has answered with a status from 200 to 299, or the mail server has taken the e-mail.
        Delivered = "delivered",
        /// No further attempt follows, unless a user replays it.
        Dead = "dead",
    }
}

/// Maximum number of targets of a project.
pub const MAX_TARGETS_PER_PROJECT: usize = 100;

/// Maximum number of pending deliveries of a target. Beyond it, the oldest become dead.
pub const MAX_PENDING_DELIVERIES: u32 = 1_000;

/// How long after its event a delivery is attempted.
pub const RETRY_PERIOD: TimeDelta = TimeDelta::hours(72);

/// Delay after the first failed attempt.
const FIRST_RETRY_DELAY: TimeDelta = TimeDelta::seconds(5);

/// Maximum delay between two attempts, without the jitter.
const MAX_RETRY_DELAY: TimeDelta = TimeDelta::minutes(30);

impl NotificationEvent {
    /// Parses the events of a target: at least one, without repetitions.
    ///
    /// # Errors
    /// A name is unknown, or the list is empty. A test is no event that a target can select.
    pub fn parse_list(names: &[String]) -> Result<Vec<Self>, Invalid> {
        let selectable = |name: &String| {
            let event = Self::from_name(name).filter(|event| *event != Self::Test);
            event.ok_or_else(|| Invalid::new("events", format!("must be among {}", event_names())))
        };
        let mut events = names.iter().map(selectable).collect::<Result<Vec<Self>, Invalid>>()?;
        if events.is_empty() {
            let why = format!("must not be empty; choose from {}", event_names());
            return Err(Invalid::new("events", why));
        }
        events.sort_unstable();
        events.dedup();
        Ok(events)
    }
}

fn event_names() -> String {
    let selectable =
        NotificationEvent::ALL.iter().filter(|event| **event != NotificationEvent::Test);
    selectable.map(|event| format!("`{event}`")).collect::<Vec<_>>().join(", ")
}

/// What a user sets of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotificationTargetSpec {
    pub name: Name,
    pub address: TargetAddress,
    pub events: Vec<NotificationEvent>,
}

/// A target of a project, without its secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotificationTarget {
    pub id: NotificationTargetId,
    pub spec: NotificationTargetSpec,
    /// Whether events are queued and delivered.
    pub enabled: bool,
    pub created_at: Time,
    pub updated_at: Time,
}

/// The key of the signatures for a webhook. `Debug` hides it.
#[derive(Clone, PartialEq, Eq)]
pub struct WebhookSecret(Vec<u8>);

impl WebhookSecret {
    /// Length of a new secret in bytes.
    pub const BYTES: usize = 32;

    /// Marks the text of a secret.
    const PREFIX: &str = "whsec_";

    /// A secret of random bytes, or a stored one.
    #[must_use]
    pub fn from_bytes(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    /// The key. Call this only to store it or to sign.
    #[must_use]
    pub fn reveal(&self) -> &[u8] {
        &self.0
    }

    /// The text that the receiver configures, as Standard Webhooks defines it.
    #[must_use]
    pub fn reveal_text(&self) -> String {
        format!("{}{}", Self::PREFIX, STANDARD.encode(&self.0))
    }
}

impl fmt::Debug for WebhookSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[secret]")
    }
}

/// Delay before the next attempt after this number of consecutive failures of a target: 5 s, doubled
/// by each further failure, at most 30 min, and up to a fifth more or less by the jitter, a number from
/// 0 to 1.
#[must_use]
pub fn retry_delay(failures: u32, jitter: f64) -> TimeDelta {
    let doublings = failures.saturating_sub(1).min(20);
    let delay = (FIRST_RETRY_DELAY * 2_i32.pow(doublings)).min(MAX_RETRY_DELAY);
    let factor = 0.8 + 0.4 * jitter.clamp(0.0, 1.0);
    let seconds = f64::from(u32::try_from(delay.num_seconds()).unwrap_or(u32::MAX));
    #[expect(clippy::cast_possible_truncation, reason = "at most 36 minutes")]
    let milliseconds = (seconds * factor * 1_000.0) as i64;
    TimeDelta::milliseconds(milliseconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failure_doubles_the_delay_up_to_half_an_hour() {
        let seconds = |failures| retry_delay(failures, 0.5).num_seconds();
        assert_eq!([1, 2, 3, 4, 8, 9, 10].map(seconds), [5, 10, 20, 40, 640, 1_280, 1_800]);
        assert_eq!([0, 40, u32::MAX].map(seconds), [5, 1_800, 1_800]);
    }

    #[test]
    fn the_jitter_changes_a_delay_by_at_most_a_fifth() {
        let milliseconds = |jitter| retry_delay(1, jitter).num_milliseconds();
        assert_eq!([0.0, 1.0, -3.0, 7.0].map(milliseconds), [4_000, 6_000, 4_000, 6_000]);
    }

    #[test]
    fn a_target_selects_known_events() {
        let parse = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            NotificationEvent::parse_list(&names)
        };
        let both = [NotificationEvent::RunFailed, NotificationEvent::NodeSilent];
        assert_eq!(parse(&["node-silent", "run-failed", "node-silent"]).expect("events"), both);
        for bad in [&[][..], &["test"], &["run-failed", "runfailed"], &[""]] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_secret_is_shown_only_on_purpose() {
        let secret = WebhookSecret::from_bytes(vec![7; WebhookSecret::BYTES]);
        assert_eq!(format!("{secret:?}"), "[secret]");
        assert_eq!(secret.reveal_text(), "whsec_BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc=");
    }
}
