//! Notifications: webhooks and e-mail addresses of a project, and the deliveries to them.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Input, Timestamps};

/// Webhook, or e-mail addresses, that receive the notifications of a project.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NotificationTargetResource {
    /// Resource ID.
    pub resource_id: String,
    /// Name; unique in the project.
    pub name: String,
    /// URL of the webhook; empty for e-mail.
    pub url: String,
    /// Addresses that receive e-mails; empty for a webhook.
    pub email_addresses: Vec<String>,
    /// Events that the target receives: `run-failed`, `assignment-stopped`, `node-silent`,
    /// `sync-failed`, `security-update-pending` and `certificate-expiry`.
    pub events: Vec<String>,
    /// Whether events are queued and delivered.
    pub enabled: bool,
    /// Key of the signatures: `whsec_` and base64. Returned only when a webhook is created and when
    /// its secret is rotated.
    pub secret: Option<String>,
    /// Times of creation and last change.
    pub timestamps: Option<Timestamps>,
}

/// A page of notification targets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct NotificationTargetList {
    /// Targets on this page.
    pub notification_targets: Vec<NotificationTargetResource>,
    /// Total number of matching resources on all pages.
    pub total_elements: i32,
    /// Whether another page follows.
    pub has_next: bool,
    /// Value of `pageToken` for the next page; empty on the last page.
    pub next_page_token: String,
}

/// Notification target to create.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NotificationTargetInput {
    /// Name: at most 50 letters, digits, spaces and `-_./:`; unique in the project.
    #[schema(min_length = 1, max_length = 50, pattern = "^[a-zA-Z-_0-9./: ]+$")]
    pub name: String,
    /// URL of a webhook: `https://`, a host and a path, without credentials. `http://` only if a
    /// setting of the server allows it. Excludes `emailAddresses`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schema(max_length = 2000)]
    pub url: String,
    /// At most 20 addresses that receive e-mails, such as `ops@example.org`. Only if the server has a
    /// mail server. Excludes `url`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 20)]
    pub email_addresses: Vec<String>,
    /// Events that the target receives: at least one of `run-failed`, `assignment-stopped`,
    /// `node-silent`, `sync-failed`, `security-update-pending` and `certificate-expiry`.
    #[schema(min_items = 1)]
    pub events: Vec<String>,
}

impl Input for NotificationTargetInput {
    const READ_ONLY: &[&str] = &["resourceId", "enabled", "secret", "timestamps"];
}

/// Delivery of one event to one target.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NotificationResource {
    /// ID of the delivery: in all its attempts the header `webhook-id`, or the first part of the header
    /// `Message-ID`.
    pub notification_id: String,
    /// ID of the target.
    pub target_id: String,
    /// Event, such as `run-failed`; `test` for a test.
    pub event: String,
    /// Time of the event.
    pub event_at: DateTime<Utc>,
    /// State: `pending`, `delivered` or `dead`. A dead delivery is attempted again only if it is
    /// replayed.
    pub state: String,
    /// Number of attempts since the event or the last replay.
    pub attempts: u32,
    /// Time of the last attempt; null if there was none.
    pub attempted_at: Option<DateTime<Utc>>,
    /// Earliest time of the next attempt; null if it is due now, and if none follows.
    pub next_attempt_at: Option<DateTime<Utc>>,
    /// Why the last attempt failed, or why the delivery is dead; else empty.
    pub last_error: String,
}

/// A page of deliveries.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct NotificationList {
    /// Deliveries on this page.
    pub notifications: Vec<NotificationResource>,
    /// Total number of matching resources on all pages.
    pub total_elements: i32,
    /// Whether another page follows.
    pub has_next: bool,
    /// Value of `pageToken` for the next page; empty on the last page.
    pub next_page_token: String,
}

/// Deliveries to send again: one of them, or all with events in a range of time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct NotificationReplayInput {
    /// ID of one delivery; excludes `since` and `until`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub notification_id: Option<String>,
    /// First time of the events.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<DateTime<Utc>>,
    /// Last time of the events; by default now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<DateTime<Utc>>,
}

impl Input for NotificationReplayInput {
    const READ_ONLY: &[&str] = &["replayed"];
}

/// Result of a replay.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NotificationReplayResult {
    /// Number of deliveries that are pending again. Pending ones do not count.
    pub replayed: u64,
}

/// Result of a request for a test.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NotificationTestResult {
    /// ID of the delivery, by which the list of notifications shows its result.
    pub notification_id: String,
}
