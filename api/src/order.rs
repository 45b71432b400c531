//! Orders: what a person wants of one instance, outside the plan.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::Input;

/// What a person ordered for an instance. The latest order of an instance replaces the one before.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct OrderResource {
    /// The instance.
    pub instance_id: String,
    /// `now` or `cancel`.
    pub kind: String,
    /// When it was given.
    pub since: DateTime<Utc>,
    /// Until when an update may be made; without meaning for a cancellation.
    pub until: DateTime<Utc>,
    /// Why, for people.
    pub reason: String,
    /// Who said so.
    pub by: String,
}

wire_enum! {
    /// What can be ordered.
    OrderKind {
        Now = "now",
        Cancel = "cancel",
    }
}

/// What to order: `now` opens a window for this instance; `cancel` closes the windows that are open and gives up an
/// attempt that has changed nothing yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OrderInput {
    /// What.
    pub kind: OrderKind,
    /// How long the window stays open; without meaning for a cancellation.
    #[serde(default = "OrderInput::default_seconds")]
    #[schema(minimum = 1, maximum = 86_400, default = 3_600)]
    pub seconds: u32,
    /// Why, for people.
    #[serde(default)]
    #[schema(max_length = 500)]
    pub reason: String,
}

impl OrderInput {
    /// The longest window that can be ordered: a day.
    pub const MAX_SECONDS: u32 = 86_400;

    /// How long the window stays open if nothing is said.
    #[must_use]
    pub const fn default_seconds() -> u32 {
        3_600
    }
}

impl Input for OrderInput {
    const READ_ONLY: &[&str] = &["instanceId", "since", "until", "by"];
}
