//! `evenkeel notification`: deliveries to notification targets.

use chrono::{DateTime, Utc};
use clap::{ArgGroup, Args, Subcommand, ValueEnum};
use evenkeel_api::notification::{
    NotificationList, NotificationReplayInput, NotificationReplayResult, NotificationResource,
    NotificationTargetResource, NotificationTestResult,
};
use serde_json::json;

use crate::Failure;
use crate::client::Client;
use crate::listing::{self, Query};
use crate::output::Printer;
use crate::page::{Cell, Tone, cells};
use crate::requests;
use crate::resource::{Resource, ResourceKind};
use crate::time::{PastTime, format_optional_time, format_time};

/// Width of the ID and the other important columns of a list of deliveries.
const WIDTH_OF_OTHER_COLUMNS: usize = 100;

/// Length to which an error is shortened at most.
const MIN_ERROR_CHARS: usize = 40;

/// Test notification targets, and list and replay deliveries.
#[derive(Debug, Subcommand)]
pub enum NotificationCommand {
    /// Send a test to a notification target. `evenkeel notification list` shows its result.
    #[command(after_help = "Examples:\n  \
        evenkeel notification test chat")]
    Test {
        /// ID or name of the notification target.
        target: String,
    },
    /// List the newest 1,000 deliveries, the latest first.
    #[command(after_help = "Examples:\n  \
        evenkeel notification list\n  \
        evenkeel notification list --state dead -o wide")]
    List {
        /// Only deliveries in this state.
        #[arg(long, value_enum)]
        state: Option<DeliveryStateOption>,
    },
    /// Send deliveries to a target again, with the same IDs.
    Replay(Replay),
}

/// State of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DeliveryStateOption {
    Pending,
    Delivered,
    Dead,
}

impl DeliveryStateOption {
    const fn name(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Delivered => "delivered",
            Self::Dead => "dead",
        }
    }
}

/// Send deliveries to a target again, with the same IDs.
#[derive(Debug, Args)]
#[command(
    group = ArgGroup::new("deliveries").required(true).args(["id", "since"]),
    after_help = "Examples:\n  \
        evenkeel notification replay chat --since 6h\n  \
        evenkeel notification replay chat --id 3f2504e0-4f89-41d3-9a0c-0305e82c3301",
)]
pub struct Replay {
    /// ID or name of the notification target.
    target: String,
    /// ID of one delivery.
    #[arg(long, value_name = "ID")]
    id: Option<String>,
    /// All deliveries with events since this time: an age such as `2h`, or a time such as
    /// `2026-01-31T22:00:00Z`.
    #[arg(long, value_name = "TIME")]
    since: Option<PastTime>,
    /// Only deliveries with events until this time, as --since [default: now].
    #[arg(long, value_name = "TIME", requires = "since", conflicts_with = "id")]
    until: Option<PastTime>,
}

impl NotificationCommand {
    pub async fn run(self, client: &Client, printer: &mut Printer<'_>) -> Result<(), Failure> {
        match self {
            Self::Test { target } => {
                let path = action_path(client, &target, "test").await?;
                let queued: NotificationTestResult = client.replace(&path, &json!({})).await?;
                printer.print_result("test", &queued.notification_id, "queued")
            }
            Self::List { state } => {
                let params: Vec<(&'static str, String)> =
                    state.map(|state| ("state", state.name().to_owned())).into_iter().collect();
                let mut list: NotificationList =
                    client.get_with_params("notifications", &params).await?;
                if printer.is_human_readable() {
                    name_targets(&mut list.notifications, client).await?;
                }
                if let Some(width) = printer.table_width() {
                    shorten_errors(&mut list.notifications, usize::from(width));
                }
                printer.print_list(&list.notifications)
            }
            Self::Replay(replay) => replay.run(client, printer).await,
        }
    }
}

impl Replay {
    async fn run(self, client: &Client, printer: &mut Printer<'_>) -> Result<(), Failure> {
        let now = printer.now();
        let body = NotificationReplayInput {
            notification_id: self.id,
            since: self.since.map(|time| time.instant(now)),
            until: self.until.map(|time| time.instant(now)),
        };
        let path = action_path(client, &self.target, "replay").await?;
        let result: NotificationReplayResult = client.replace(&path, &body).await?;
        printer.print_result("deliveries:", &result.replayed.to_string(), "queued again")
    }
}

/// Replaces the IDs of targets by their names. A deleted target keeps its ID.
async fn name_targets(
    notifications: &mut [NotificationResource],
    client: &Client,
) -> Result<(), Failure> {
    if notifications.is_empty() {
        return Ok(());
    }
    let targets =
        listing::fetch_all::<NotificationTargetResource>(client, &Query::default()).await?;
    for notification in notifications {
        let target = targets.iter().find(|target| target.resource_id == notification.target_id);
        if let Some(target) = target {
            notification.target_id.clone_from(&target.name);
        }
    }
    Ok(())
}

/// Shortens errors, so that a long one does not take the place of all other columns. Wide tables and
/// JSON have them whole.
fn shorten_errors(notifications: &mut [NotificationResource], width: usize) {
    let longest = width.saturating_sub(WIDTH_OF_OTHER_COLUMNS).max(MIN_ERROR_CHARS);
    for notification in notifications {
        let error = &mut notification.last_error;
        if error.chars().count() > longest {
            *error = error.chars().take(longest - 1).chain(['…']).collect();
        }
    }
}

/// Path of an action of a target, by its ID or name.
async fn action_path(client: &Client, target: &str, action: &str) -> Result<String, Failure> {
    let id = requests::resolve_id::<NotificationTargetResource>(client, target).await?;
    Ok(format!("{}/{action}", NotificationTargetResource::address(&id)))
}

impl Resource for NotificationResource {
    const KIND: ResourceKind = ResourceKind {
        key_titles: &["ID"],
        titles: &["TARGET", "EVENT", "STATE", "ATTEMPTS", "NEXT", "ERROR"],
        wide_titles: &["TIME"],
        optional_titles: &["NEXT", "ATTEMPTS", "AGE", "ID", "ERROR", "TARGET"],
        ..ResourceKind::new("ID", "notification", "notifications")
    };

    fn key(&self) -> [&str; 2] {
        [&self.notification_id, ""]
    }

    fn columns(&self) -> Vec<Cell> {
        let tone = match self.state.as_str() {
            "delivered" => Tone::Good,
            "dead" => Tone::Bad,
            _ => Tone::Plain,
        };
        cells![
            self.target_id.as_str(),
            self.event.as_str(),
            Cell::toned(self.state.as_str(), tone),
            self.attempts.to_string(),
            format_optional_time(self.next_attempt_at),
            self.last_error.as_str()
        ]
    }

    fn wide_columns(&self) -> Vec<Cell> {
        cells![format_time(self.event_at)]
    }

    fn created_at(&self) -> Option<DateTime<Utc>> {
        Some(self.event_at)
    }
}
