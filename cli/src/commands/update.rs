//! `evenkeel update`: what a node should do now, and why.

use clap::Subcommand;
use evenkeel_api::decision::{AvailableUpdate, Decision, DecisionWindow};
use evenkeel_api::host::HostResource;
use evenkeel_api::update_run::RunTarget;

use super::instance;
use crate::Failure;
use crate::client::Client;
use crate::time::{distance, show, show_option};
use crate::view::{Cell, Page, Printer, Tone};

/// What a node should do now, and why.
#[derive(Debug, Subcommand)]
pub enum UpdateCommand {
    /// Show what a node should do now, why, and what would change.
    Plan {
        /// The host's id or name.
        host: String,
    },
}

impl UpdateCommand {
    pub async fn run(self, client: &Client, printer: &mut Printer<'_>) -> Result<(), Failure> {
        let Self::Plan { host } = self;
        let (host, instance) = instance::of_host(client, &host).await?;
        let decision: Decision = client
            .get(&format!("compute/instances/{instance}/decision"))
            .await?;
        printer.page(&decision, &decision.act, &page(&host, &decision))
    }
}

fn page(host: &HostResource, decision: &Decision) -> Page {
    let mut page = Page::default();
    let name = if host.name.is_empty() {
        &host.resource_id
    } else {
        &host.name
    };
    page.field("host", format!("{name} ({})", host.resource_id))
        .field("instance", decision.instance_id.clone())
        .field("now", act(decision))
        .field("because", decision.reason.text.clone())
        .field("next change", show_option(decision.next));
    match &decision.policy {
        None => page.field("policy", "none"),
        Some(policy) => page.field(
            "policy",
            format!(
                "{} ({}), assigned to the {}",
                policy.name, policy.resource_id, policy.level
            ),
        ),
    };
    if let Some(run) = &decision.run {
        page.field("run", format!("{} {}", run.resource_id, run.state));
    }
    let windows = decision
        .windows
        .iter()
        .map(|window| row_of_window(window, decision));
    page.table(
        "Windows:",
        &["START", "END", "SCHEDULE", ""],
        windows.collect(),
    );
    let changes = changes(decision);
    if changes.is_empty() {
        page.field("would change", "nothing that the node knows of");
    }
    page.table(
        "Would change:",
        &["PACKAGE", "ARCHITECTURE", "INSTALLED", "TO"],
        changes,
    );
    page
}

fn act(decision: &Decision) -> Cell {
    match decision.act.as_str() {
        "idle" => Cell::from("do nothing"),
        "fetch" => Cell::toned("prepare, and change nothing", Tone::Busy),
        "apply" | "granted" => Cell::toned("update", Tone::Good),
        "continue" => Cell::toned("go on with the open run", Tone::Busy),
        "cancel" => Cell::toned("give up the open run", Tone::Bad),
        other => Cell::from(other),
    }
}

fn row_of_window(window: &DecisionWindow, decision: &Decision) -> Vec<Cell> {
    let when = if window.open {
        Cell::toned(
            format!("open, closes in {}", distance(decision.time, window.end)),
            Tone::Good,
        )
    } else {
        Cell::from(format!(
            "opens in {}",
            distance(decision.time, window.start)
        ))
    };
    vec![
        show(window.start).into(),
        show(window.end).into(),
        window.schedule_id.clone().into(),
        when,
    ]
}

/// What the wish would change: of what is available, what is wished for.
fn changes(decision: &Decision) -> Vec<Vec<Cell>> {
    let wish = decision
        .target
        .as_ref()
        .or(decision.policy.as_ref().map(|policy| &policy.target));
    let Some(wish) = wish else { return Vec::new() };
    let available = &decision.available_updates;
    if wish.mode != "exactly" {
        return available
            .iter()
            .map(|update| row_of_update(update, &update.available))
            .collect();
    }
    named(wish)
        .filter_map(|(name, version)| {
            let (name, architecture) = name.split_once(':').unwrap_or((name, ""));
            let fits = |update: &&AvailableUpdate| {
                update.name == name
                    && (architecture.is_empty() || update.architecture == architecture)
            };
            match (available.iter().find(fits), version) {
                (Some(update), version) => {
                    Some(row_of_update(update, version.unwrap_or(&update.available)))
                }
                // The node offers nothing newer; a version that is named may be another all the same.
                (None, Some(version)) if decision.reason.code != "up_to_date" => {
                    let unknown = AvailableUpdate {
                        name: name.to_owned(),
                        architecture: architecture.to_owned(),
                        installed: "not known".to_owned(),
                        ..AvailableUpdate::default()
                    };
                    Some(row_of_update(&unknown, version))
                }
                (None, _) => None,
            }
        })
        .collect()
}

fn named(wish: &RunTarget) -> impl Iterator<Item = (&str, Option<&str>)> {
    wish.packages.iter().map(|text| match text.split_once('=') {
        Some((name, version)) => (name, Some(version)),
        None => (text.as_str(), None),
    })
}

fn row_of_update(update: &AvailableUpdate, to: &str) -> Vec<Cell> {
    vec![
        update.name.clone().into(),
        update.architecture.clone().into(),
        update.installed.clone().into(),
        to.into(),
    ]
}
