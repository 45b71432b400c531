//! `evenkeel run`: what happened.

mod account;
mod watch;

use clap::Subcommand;
use evenkeel_api::update_run::{OsUpdateRun, RunEvent, RunImage, RunPackage};

use self::watch::Watch;
use crate::client::Client;
use crate::commands::instance;
use crate::pages::{self, Filter, ListOptions, Query};
use crate::resource::{self, Resource};
use crate::time::{show, show_option, show_seconds};
use crate::view::{Cell, Page, Printer, Tone};
use crate::{Ending, Failure};

/// Update runs: what happened.
#[derive(Debug, Subcommand)]
pub enum RunCommand {
    /// List the runs.
    List {
        /// Only those of this host, by its id or name, latest first.
        #[arg(long)]
        host: Option<String>,
        #[command(flatten)]
        options: ListOptions,
    },
    /// Show a run with everything that happened.
    Get {
        /// Its id or name.
        run: String,
    },
    /// Delete the record of a run.
    Delete {
        /// Its id or name.
        run: String,
    },
    /// Follow a run until it has ended. Exits with 0 if it succeeded, with 3 if it ended otherwise.
    Watch(Watch),
}

impl RunCommand {
    pub async fn run(self, client: &Client, printer: &mut Printer<'_>) -> Result<Ending, Failure> {
        match self {
            Self::List { host, options } => {
                let query = match host {
                    None => options.query(),
                    Some(host) => {
                        let (_, instance) = instance::of_host(client, &host).await?;
                        options.query().and(&at(&instance)).by(LATEST_FIRST)
                    }
                };
                pages::show::<OsUpdateRun>(client, &query, printer).await?;
            }
            Self::Get { run } => {
                printer.one(&resource::find::<OsUpdateRun>(client, &run).await?)?;
            }
            Self::Delete { run } => {
                let id = resource::delete::<OsUpdateRun>(client, &run).await?;
                printer.done(OsUpdateRun::WORD, &id, "deleted")?;
            }
            Self::Watch(watch) => return watch.run(client, printer).await,
        }
        Ok(Ending::Done)
    }
}

const LATEST_FIRST: &str = "startTime desc, resourceId desc";

/// The condition that a run is of this instance.
fn at(instance: &str) -> String {
    format!("instance.resourceId == \"{instance}\"")
}

/// The runs of one instance, latest first.
async fn of_instance(client: &Client, instance: &str) -> Result<Vec<OsUpdateRun>, Failure> {
    let query = Query::of(Filter::own(at(instance))).by(LATEST_FIRST);
    pages::all(client, &query).await
}

impl Resource for OsUpdateRun {
    const NOUN: &'static str = "run";
    const WORD: &'static str = "run";
    const MANY: &'static str = "runs";
    const PREFIX: &'static str = "osupdaterun";
    const PATH: &'static str = "os-update-runs";
    const KEYS: &'static [&'static str] = &["osUpdateRuns"];
    const FREE: Option<&'static str> = Some("a run can be deleted once it is over");
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
            host(self).into(),
            state(self),
            policy(self).into(),
            show_seconds(self.start_time).into(),
            show_seconds(self.end_time).into(),
            self.packages.len().to_string().into(),
        ]
    }

    fn page(&self) -> Page {
        let mut page = Page::default();
        page.field("id", self.resource_id.clone())
            .field("name", self.name.clone())
            .field("host", host(self))
            .field("instance", self.instance.resource_id.clone())
            .field("policy", policy(self))
            .field("state", state(self))
            .field(
                "status",
                Cell::toned(self.status.clone(), self.status_indicator.into()),
            )
            .field_if("reason", &self.reason)
            .field_if("image", &self.image.as_ref().map(image).unwrap_or_default())
            .field("start", show_seconds(self.start_time))
            .field("end", show_seconds(self.end_time))
            .table(
                "Packages:",
                &[
                    "PACKAGE",
                    "ARCHITECTURE",
                    "ACTION",
                    "BEFORE",
                    "AFTER",
                    "WANTED",
                    "STATUS",
                ],
                self.packages.iter().map(package).collect(),
            );
        account::show(&mut page, self);
        page.table(
            "Events:",
            &["TIME", "EVENT", "STATE", "NODE'S TIME", "DETAIL"],
            self.events.iter().map(event).collect(),
        );
        account::show_log(&mut page, self);
        page
    }
}

/// Which image was to be replaced by which, and which one runs.
fn image(image: &RunImage) -> String {
    let (line, wanted) = (&image.profile_name, &image.wanted);
    let change = match image.before.as_str() {
        "" => format!("{line} {wanted}"),
        before => format!("{line} {before} to {wanted}"),
    };
    match image.booted.as_str() {
        "" => change,
        booted => format!("{change}, runs {booted}"),
    }
}

fn package(package: &RunPackage) -> Vec<Cell> {
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

fn event(event: &RunEvent) -> Vec<Cell> {
    vec![
        show(event.time).into(),
        event.event.clone().into(),
        event.state.clone().into(),
        show_option(event.node_time).into(),
        event.detail.trim_end().into(),
    ]
}

fn state(run: &OsUpdateRun) -> Cell {
    let tone = match run.state.as_str() {
        "succeeded" => Tone::Good,
        "failed" | "reverted" | "abandoned" => Tone::Bad,
        "cancelled" => Tone::Plain,
        _ => Tone::Busy,
    };
    Cell::toned(run.state.clone(), tone)
}

/// What the host was called, else its id.
fn host(run: &OsUpdateRun) -> String {
    if run.host_name.is_empty() {
        run.host_id.clone()
    } else {
        run.host_name.clone()
    }
}

/// What the policy was called when the run was opened.
fn policy(run: &OsUpdateRun) -> String {
    match &run.policy {
        None => String::new(),
        Some(policy) if policy.name.is_empty() => policy.resource_id.clone(),
        Some(policy) => policy.name.clone(),
    }
}
