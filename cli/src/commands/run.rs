//! `evenkeel run`: update runs.

mod report;
mod watch;

use clap::Subcommand;
use evenkeel_api::update_run::{OsUpdateRun, RunEvent, RunImage, RunPackage};

use self::watch::Watch;
use crate::client::Client;
use crate::commands::instance;
use crate::listing::{self, Filter, ListOptions, Query};
use crate::output::{Cell, DetailPage, Printer, Tone};
use crate::resource::{self, Resource};
use crate::time::{format_optional_time, format_time, format_unix_seconds};
use crate::{Ending, Failure};

/// Show and watch update runs.
#[derive(Debug, Subcommand)]
pub enum RunCommand {
    /// List runs.
    List {
        /// List only runs of this host (ID or name), latest first.
        #[arg(long)]
        host: Option<String>,
        #[command(flatten)]
        options: ListOptions,
    },
    /// Show a run with its events.
    Get {
        /// ID or name of the run.
        run: String,
    },
    /// Delete the record of a run.
    Delete {
        /// ID or name of the run.
        run: String,
    },
    /// Watch a run until it ends. Exits with status 0 if it succeeded, else with status 3.
    Watch(Watch),
}

impl RunCommand {
    pub async fn run(self, client: &Client, printer: &mut Printer<'_>) -> Result<Ending, Failure> {
        match self {
            Self::List { host, options } => {
                let query = match host {
                    None => options.query(),
                    Some(host) => {
                        let (_, instance) = instance::find_host_and_instance(client, &host).await?;
                        options
                            .query()
                            .and_condition(&instance_condition(&instance))
                            .default_order(LATEST_FIRST)
                    }
                };
                listing::fetch_and_print::<OsUpdateRun>(client, &query, printer).await?;
            }
            Self::Get { run } => {
                printer.print_resource(&resource::find::<OsUpdateRun>(client, &run).await?)?;
            }
            Self::Delete { run } => {
                let id = resource::delete::<OsUpdateRun>(client, &run).await?;
                printer.print_result(OsUpdateRun::SINGULAR, &id, "deleted")?;
            }
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
    const COMMAND: &'static str = "run";
    const SINGULAR: &'static str = "run";
    const PLURAL: &'static str = "runs";
    const ID_PREFIX: &'static str = "osupdaterun";
    const PATH: &'static str = "os-update-runs";
    const LIST_KEYS: &'static [&'static str] = &["osUpdateRuns"];
    const IN_USE_HINT: Option<&'static str> = Some("a run can be deleted after it has ended");
    const HEADER: &'static [&'static str] =
        &["ID", "HOST", "STATE", "POLICY", "START", "END", "PACKAGES"];

    fn id(&self) -> &str {
        &self.resource_id
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn row(&self) -> Vec<Cell> {
        vec![
            self.resource_id.clone().into(),
            host_label(self).into(),
            state_cell(self),
            policy_label(self).into(),
            format_unix_seconds(self.start_time).into(),
            format_unix_seconds(self.end_time).into(),
            self.packages.len().to_string().into(),
        ]
    }

    fn page(&self) -> DetailPage {
        let mut page = DetailPage::default();
        page.field("id", self.resource_id.clone())
            .field("name", self.name.clone())
            .field("host", host_label(self))
            .field("instance", self.instance.resource_id.clone())
            .field("policy", policy_label(self))
            .field("state", state_cell(self))
            .field("status", Cell::toned(self.status.clone(), self.status_indicator.into()))
            .field_if("reason", &self.reason)
            .field_if("image", &self.image.as_ref().map(describe_image).unwrap_or_default())
            .field("start", format_unix_seconds(self.start_time))
            .field("end", format_unix_seconds(self.end_time))
            .table(
                "Packages:",
                &["PACKAGE", "ARCHITECTURE", "ACTION", "BEFORE", "AFTER", "TARGET", "STATUS"],
                self.packages.iter().map(package_row).collect(),
            );
        report::add_report(&mut page, self);
        page.table(
            "Events:",
            &["TIME", "EVENT", "STATE", "NODE TIME", "DETAIL"],
            self.events.iter().map(event_row).collect(),
        );
        report::add_failure_log(&mut page, self);
        page
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

fn package_row(package: &RunPackage) -> Vec<Cell> {
    let tone = match package.status.as_str() {
        "done" => Tone::Good,
        "failed" => Tone::Bad,
        _ => Tone::Plain,
    };
    vec![
        package.name.clone().into(),
        package.architecture.clone().into(),
        package.action.clone().into(),
        package.before.clone().into(),
        package.after.clone().into(),
        package.version.clone().into(),
        Cell::toned(package.status.clone(), tone),
    ]
}

fn event_row(event: &RunEvent) -> Vec<Cell> {
    vec![
        format_time(event.time).into(),
        event.event.clone().into(),
        event.state.clone().into(),
        format_optional_time(event.node_time).into(),
        event.detail.trim_end().into(),
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
