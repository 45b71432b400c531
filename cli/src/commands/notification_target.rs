//! `evenkeel notification-target`: webhooks and e-mail addresses that receive notifications.

use std::path::PathBuf;

use clap::{ArgGroup, Subcommand};
use evenkeel_api::notification::{NotificationTargetInput, NotificationTargetResource};
use evenkeel_api::timestamps::Timestamps;
use serde_json::json;

use crate::Failure;
use crate::client::Client;
use crate::listing::{self, LimitOptions};
use crate::output::Printer;
use crate::page::{Cell, DetailPage, Tone, cells};
use crate::requests::{self, ResourceArg};
use crate::resource::{Resource, ResourceKind};

/// Manage notification targets: webhooks and e-mail addresses that receive the notifications of the
/// project.
#[derive(Debug, Subcommand)]
pub enum NotificationTargetCommand {
    /// Create a notification target from options or from a file. The secret of a webhook is shown only
    /// once.
    #[command(
        group = ArgGroup::new("address").required(true).args(["url", "emails", "file"]),
        after_help = "Examples:\n  \
        evenkeel notification-target create chat --url https://hooks.example/evenkeel --event run-failed\n  \
        evenkeel notification-target create pager --url https://pager.example/hook \\\n    \
        --event assignment-stopped,node-silent,sync-failed\n  \
        evenkeel notification-target create ops --email ops@example.org --event run-failed",
    )]
    Create {
        /// Name of the target; unique in the project.
        #[arg(required_unless_present = "file")]
        name: Option<String>,
        /// File with a notification target as `get -o yaml` or `get -o json` prints it. The new target
        /// is enabled.
        #[arg(long, short, value_name = "FILE", conflicts_with_all = ["name", "events"])]
        file: Option<PathBuf>,
        /// URL of a webhook that receives the messages.
        #[arg(long, value_name = "URL")]
        url: Option<String>,
        /// E-mail address that receives the messages. Repeat the option or separate them by commas.
        #[arg(long = "email", value_name = "ADDRESS", value_delimiter = ',')]
        emails: Vec<String>,
        /// Events that the target receives: run-failed, assignment-stopped, node-silent, sync-failed,
        /// security-update-pending or certificate-expiry. Repeat the option or separate them by commas.
        #[arg(
            long = "event",
            value_name = "EVENT",
            value_delimiter = ',',
            required_unless_present = "file"
        )]
        events: Vec<String>,
    },
    /// List notification targets, without their secrets.
    List(LimitOptions),
    /// Show a notification target, without its secret.
    Get(ResourceArg<NotificationTargetResource>),
    /// Delete a notification target with its deliveries.
    Delete {
        #[command(flatten)]
        target: ResourceArg<NotificationTargetResource>,
        /// Do not ask for confirmation on a terminal.
        #[arg(long, short)]
        yes: bool,
    },
    /// Enable a notification target. Pending deliveries continue.
    Enable(ResourceArg<NotificationTargetResource>),
    /// Disable a notification target. New events are not queued, and pending deliveries wait.
    Disable(ResourceArg<NotificationTargetResource>),
    /// Replace the secret of a webhook. The new one is shown only once.
    RotateSecret(ResourceArg<NotificationTargetResource>),
}

impl NotificationTargetCommand {
    pub async fn run(self, client: &Client, printer: &mut Printer<'_>) -> Result<(), Failure> {
        type Target = NotificationTargetResource;
        match self {
            Self::Create { name, file, url, emails, events } => {
                let body = match file {
                    Some(file) => super::read_input(&file, "a notification target")?,
                    None => NotificationTargetInput {
                        name: name.unwrap_or_default(),
                        url: url.unwrap_or_default(),
                        email_addresses: emails,
                        events,
                    },
                };
                let created = client.post(Target::KIND.path, &body).await;
                let options = [
                    ("url", "--url"),
                    ("emailAddresses", "--email"),
                    ("events", "--event"),
                    ("name", "NAME"),
                ];
                let created: Target =
                    created.map_err(|error: Failure| error.with_option(&options))?;
                print_with_secret(&created, printer)
            }
            Self::List(limit) => {
                listing::fetch_and_print::<Target>(client, &limit.query(), printer).await
            }
            Self::Get(target) => target.print(client, printer).await,
            Self::Delete { target, yes } => {
                if !yes && printer.is_interactive() {
                    let name = target.text();
                    let concerned = format!("the notification target {name} with its deliveries");
                    printer.confirm_deletion(&concerned)?;
                }
                target.delete(client, printer).await
            }
            Self::Enable(target) => {
                let changed = call_action(client, target.text(), "enable").await?;
                printer.print_result(Target::KIND.singular, &changed.resource_id, "enabled")
            }
            Self::Disable(target) => {
                let changed = call_action(client, target.text(), "disable").await?;
                printer.print_result(Target::KIND.singular, &changed.resource_id, "disabled")
            }
            Self::RotateSecret(target) => {
                let changed = call_action(client, target.text(), "rotate-secret").await?;
                print_with_secret(&changed, printer)
            }
        }
    }
}

async fn call_action(
    client: &Client,
    target: &str,
    action: &str,
) -> Result<NotificationTargetResource, Failure> {
    let id = requests::resolve_id::<NotificationTargetResource>(client, target).await?;
    let path = format!("{}/{action}", NotificationTargetResource::address(&id));
    client.replace(&path, &json!({})).await
}

/// Prints a target with its secret. With `--quiet` only the secret, or the ID if there is none.
fn print_with_secret(
    target: &NotificationTargetResource,
    printer: &mut Printer<'_>,
) -> Result<(), Failure> {
    if printer.is_ids_only() {
        return printer.print_text(target.secret.as_deref().unwrap_or(&target.resource_id));
    }
    printer.print_resource(target)
}

impl Resource for NotificationTargetResource {
    const KIND: ResourceKind = ResourceKind {
        command: "notification-target",
        id_prefix: "notificationtarget",
        path: "notification-targets",
        list_key: "notificationTargets",
        name_field: None,
        titles: &["STATE", "EVENTS", "ADDRESS"],
        ..ResourceKind::new("TARGET", "notification target", "notification targets")
    };

    fn key(&self) -> [&str; 2] {
        [&self.resource_id, &self.name]
    }

    fn columns(&self) -> Vec<Cell> {
        let state = if self.enabled {
            Cell::toned("enabled", Tone::Good)
        } else {
            Cell::toned("disabled", Tone::Plain)
        };
        let emails = self.email_addresses.join(", ");
        let address = if emails.is_empty() { self.url.as_str() } else { emails.as_str() };
        cells![state, self.events.join(", "), address]
    }

    fn timestamps(&self) -> Option<&Timestamps> {
        self.timestamps.as_ref()
    }

    fn add_details(&self, page: &mut DetailPage) {
        self.add_columns(page);
        if let Some(secret) = &self.secret {
            page.field("secret", secret);
        }
    }
}
