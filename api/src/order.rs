//! Orders: requests of a person for one instance, outside of its schedules.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::Input;

/// Order for an instance. A new order of an instance replaces the previous one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct OrderResource {
    /// ID of the instance.
    pub instance_id: String,
    /// Kind of the order: `now` or `cancel`.
    pub kind: String,
    /// Time of the order.
    pub since: DateTime<Utc>,
    /// End of the window that the order opens; has no meaning for `cancel`.
    pub until: DateTime<Utc>,
    /// Reason, as free text; may be empty.
    pub reason: String,
    /// Subject of the caller who gave the order.
    pub by: String,
}

wire_enum! {
    /// Kind of an order.
    OrderKind {
        Now = "now",
        Cancel = "cancel",
    }
}

/// Order to give. `now` opens a maintenance window for the instance. `cancel` closes its open
/// windows and cancels an attempt that has not changed anything yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OrderInput {
    /// Kind of the order.
    pub kind: OrderKind,
    /// Length of the window in seconds; has no meaning for `cancel`.
    #[serde(default = "OrderInput::default_seconds")]
    #[schema(minimum = 1, maximum = 86_400, default = 3_600)]
    pub seconds: u32,
    /// Reason, for people: one line of at most 500 bytes; may be empty.
    #[serde(default)]
    #[schema(max_length = 500)]
    pub reason: String,
}

impl OrderInput {
    /// Maximum length of the window in seconds: one day.
    pub const MAX_SECONDS: u32 = 86_400;

    /// Default length of the window in seconds.
    #[must_use]
    pub const fn default_seconds() -> u32 {
        3_600
    }
}

impl Input for OrderInput {
    const READ_ONLY: &[&str] = &["instanceId", "since", "until", "by"];
}
