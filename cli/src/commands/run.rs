//! `evenkeel run`: update runs.

mod report;
mod watch;

use clap::Subcommand;
use evenkeel_api::timestamps::Timestamps;
use evenkeel_api::update_run::{OsUpdateRun, RunEvent, RunImage, RunPackage};

use self::watch::Watch;
use crate::client::Client;
use crate::commands::instance;
use crate::commands::instance::facts::{is_security_cell, main_suite};
use crate::listing::{self, Filter, ListOptions, Query};
use crate::output::Printer;
use crate::page::{Cell, DetailPage, Tone, cells};
use crate::requests::ResourceArg;
use crate::resource::{Resource, ResourceKind};
use crate::time::{format_optional_time, format_time, format_unix_seconds};
use crate::{Ending, Failure};

/// Show and watch update runs.
#[derive(Debug, Subcommand)]
pub enum RunCommand {
    /// List runs, the latest first.
    List {
        /// List only runs of this host (ID or name).
        #[arg(long)]
        host: Option<String>,
        #[command(flatten)]
        options: ListOptions,
    },
    /// Show a run with its events.
    Get(ResourceArg<OsUpdateRun>),
    /// Delete the record of a run.
    Delete(ResourceArg<OsUpdateRun>),
    /// Watch a run until it ends. Exits with status 0 if it succeeded, else with status 3.
    Watch(Watch),
}

impl RunCommand {
    pub async fn run(self, client: &Client, printer: &mut Printer<'_>) -> Result<Ending, Failure> {
        match self {
            Self::List { host, options } => {
                let mut query = options.query().default_order(LATEST_FIRST);
                if let Some(host) = host {
                    let (_, instance) = instance::find_host_and_instance(client, &host).await?;
                    query = query.and_condition(&instance_condition(&instance));
                }
                listing::fetch_and_print::<OsUpdateRun>(client, &query, printer).await?;
            }
            Self::Get(run) => run.print(client, printer).await?,
            Self::Delete(run) => run.delete(client, printer).await?,
            Self::Watch(watch) => return watch.run(client, printer).await,
        }
        Ok(Ending::Done)
    }
}

const LATEST_FIRST: &str = "startTime desc, resourceId desc";

/// Filter condition for the runs of an instance.
fn instance_condition(instance: &str) -> String {
    format!("instance.resourceId == \"{instance}\"")
}

/// The runs of an instance, latest first.
async fn list_runs(client: &Client, instance: &str) -> Result<Vec<OsUpdateRun>, Failure> {
    let query = Query::from_filter(Filter::internal(instance_condition(instance)))
        .default_order(LATEST_FIRST);
    listing::fetch_all(client, &query).await
}

impl Resource for OsUpdateRun {
    const KIND: ResourceKind = ResourceKind {
        id_prefix: "osupdaterun",
        path: "os-update-runs",
        list_key: "osUpdateRuns",
        in_use_hint: Some("a run can be deleted after it has ended"),
        key_titles: &["ID"],
        titles: &["HOST", "STATE", "POLICY", "START", "END", "PACKAGES"],
        optional_titles: &["END", "START", "PACKAGES", "POLICY"],
        ..ResourceKind::new("RUN", "run", "runs")
    };

    fn key(&self) -> [&str; 2] {
        [&self.resource_id, &self.name]
    }

    fn timestamps(&self) -> Option<&Timestamps> {
        self.timestamps.as_ref()
    }

    fn columns(&self) -> Vec<Cell> {
        cells![
            host_label(self),
            list_state_cell(self),
            policy_label(self),
            format_unix_seconds(self.start_time),
            format_unix_seconds(self.end_time),
            self.packages.len().to_string()
        ]
    }

    fn add_details(&self, page: &mut DetailPage) {
        page.field("name", &self.name)
            .field("host", host_label(self))
            .field("instance", &self.instance.resource_id)
            .field("policy", policy_label(self))
            .field("state", state_cell(self))
            .field("status", Cell::status(&self.status, self.status_indicator))
            .field_if("reason", &self.reason)
            .field_if("image", &self.image.as_ref().map(describe_image).unwrap_or_default())
            .field("start", format_unix_seconds(self.start_time))
            .field("end", format_unix_seconds(self.end_time))
            .table("Packages:", PACKAGE_HEADER, self.packages.iter().map(package_row));
        report::add_report(page, self);
        page.table(
            "Events:",
            &["TIME", "EVENT", "STATE", "NODE TIME", "DETAIL"],
            self.events.iter().map(event_row),
        );
        report::add_failure_log(page, self);
    }
}

/// Describes the image update, and which image runs.
fn describe_image(image: &RunImage) -> String {
    let (profile, target) = (&image.profile_name, &image.desired);
    let change = match image.before.as_str() {
        "" => format!("{profile} {target}"),
        before => format!("{profile} {before} to {target}"),
    };
    match image.booted.as_str() {
        "" => change,
        booted => format!("{change}, runs {booted}"),
    }
}

/// Column titles of [`package_row`].
const PACKAGE_HEADER: &[&str] = &[
    "PACKAGE",
    "ARCHITECTURE",
    "ACTION",
    "BEFORE",
    "AFTER",
    "TARGET",
    "SUITE",
    "SECURITY",
    "STATUS",
];

fn package_row(package: &RunPackage) -> Vec<Cell> {
    let tone = match package.status.as_str() {
        "done" => Tone::Good,
        "failed" => Tone::Bad,
        _ => Tone::Plain,
    };
    // A removal has no version that could be a security update.
    let security = if package.action == "remove" {
        Cell::from("")
    } else {
        is_security_cell(package.security)
    };
    cells![
        &package.name,
        &package.architecture,
        &package.action,
        &package.before,
        &package.after,
        &package.version,
        main_suite(&package.suites),
        security,
        Cell::toned(package.status.clone(), tone)
    ]
}

fn event_row(event: &RunEvent) -> Vec<Cell> {
    cells![
        format_time(event.time),
        &event.event,
        &event.state,
        format_optional_time(event.node_time),
        event.detail.trim_end()
    ]
}

fn state_cell(run: &OsUpdateRun) -> Cell {
    let tone = match run.state.as_str() {
        "succeeded" => Tone::Good,
        "failed" | "reverted" | "abandoned" => Tone::Bad,
        "cancelled" => Tone::Plain,
        _ => Tone::Busy,
    };
    Cell::toned(run.state.clone(), tone)
}

/// The state, and how many remarks the run has: its update may have left something out.
fn list_state_cell(run: &OsUpdateRun) -> Cell {
    let state = state_cell(run);
    match run.report.remarks.len() {
        0 => state,
        1 => Cell { text: format!("{}, 1 remark", state.text), ..state },
        count => Cell { text: format!("{}, {count} remarks", state.text), ..state },
    }
}

/// Name of the host at the time of the run, else its ID.
fn host_label(run: &OsUpdateRun) -> String {
    if run.host_name.is_empty() { run.host_id.clone() } else { run.host_name.clone() }
}

/// Name of the policy at the time of the run, else its ID.
fn policy_label(run: &OsUpdateRun) -> String {
    match &run.policy {
        None => String::new(),
        Some(policy) if policy.name.is_empty() => policy.resource_id.clone(),
        Some(policy) => policy.name.clone(),
    }
}
