//! `evenkeel run watch`: follows a run until it has ended.

use std::time::Duration;

use clap::{ArgGroup, Args};
use evenkeel_api::decision::Decision;
use evenkeel_api::update_run::{OsUpdateRun, RunEvent};
use tokio::time::{Instant, sleep};

use super::{account, of_instance};
use crate::client::Client;
use crate::commands::instance;
use crate::resource::{self, Resource};
use crate::time::{duration, show};
use crate::view::Printer;
use crate::{Ending, Failure};

/// Follow a run until it has ended.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("what").required(true).args(["run", "host"]))]
pub struct Watch {
    /// The run's id or name.
    run: Option<String>,
    /// Follow the open run of this host, by its id or name, or wait for the next one.
    #[arg(long)]
    host: Option<String>,
    /// Give up after this long [default: never].
    #[arg(long, value_parser = duration, value_name = "SPAN")]
    timeout: Option<Duration>,
    /// How often to look.
    #[arg(long, value_parser = duration, default_value = "1s", value_name = "SPAN")]
    interval: Duration,
}

impl Watch {
    pub async fn run(self, client: &Client, printer: &mut Printer<'_>) -> Result<Ending, Failure> {
        let deadline = self.timeout.map(|timeout| Instant::now() + timeout);
        let pace = Pace {
            interval: self.interval,
            deadline,
        };
        let id = match (&self.run, &self.host) {
            (Some(run), _) => resource::id_of::<OsUpdateRun>(client, run).await?,
            (None, Some(host)) => pace.wait_for_run(client, host, printer).await?,
            (None, None) => return Err(Failure::usage("say which run or which host to watch")),
        };
        let run = pace.follow(client, &id, printer).await?;
        summarise(&run, printer)
    }
}

/// How often to look, and how long.
struct Pace {
    interval: Duration,
    deadline: Option<Instant>,
}

impl Pace {
    async fn pause(&self) -> Result<(), Failure> {
        if self
            .deadline
            .is_some_and(|deadline| Instant::now() + self.interval > deadline)
        {
            return Err(Failure::usage_with(
                "the run has not ended in the time that was given",
                "it goes on without being watched; give a longer --timeout to see its end",
            ));
        }
        sleep(self.interval).await;
        Ok(())
    }

    /// The id of the open run of a host, else of the next one, which may be short.
    async fn wait_for_run(
        &self,
        client: &Client,
        host: &str,
        printer: &mut Printer<'_>,
    ) -> Result<String, Failure> {
        let (_, instance) = instance::of_host(client, host).await?;
        let before = of_instance(client, &instance).await?;
        if let Some(open) = before.iter().find(|run| !run.has_ended()) {
            return Ok(open.resource_id.clone());
        }
        let mut said = String::new();
        loop {
            let runs = of_instance(client, &instance).await?;
            let is_new =
                |run: &&OsUpdateRun| before.iter().all(|old| old.resource_id != run.resource_id);
            // The list is latest first, and the first of several new ones is followed.
            if let Some(new) = runs.iter().rfind(is_new) {
                return Ok(new.resource_id.clone());
            }
            if printer.is_for_people() {
                let path = format!("compute/instances/{instance}/decision");
                let decision: Decision = client.get(&path).await?;
                if decision.reason.text != said {
                    said = decision.reason.text;
                    printer.line(&format!("{}  waiting: {said}", show(decision.time)))?;
                }
            }
            self.pause().await?;
        }
    }

    /// Prints what happens to a run until it has ended.
    async fn follow(
        &self,
        client: &Client,
        id: &str,
        printer: &mut Printer<'_>,
    ) -> Result<OsUpdateRun, Failure> {
        let path = format!("{}/{id}", OsUpdateRun::PATH);
        let mut shown = None;
        loop {
            let run: OsUpdateRun = match client.get(&path).await {
                Err(error) if error.is_not_found() => {
                    return Err(resource::nothing::<OsUpdateRun>(id));
                }
                other => other?,
            };
            if shown.is_none() {
                printer.line(&format!("run {id} on {}", super::host(&run)))?;
            }
            for event in run.events.iter().skip(shown.unwrap_or(0)) {
                printer.line(&line(event))?;
            }
            shown = Some(run.events.len());
            if run.has_ended() {
                return Ok(run);
            }
            self.pause().await?;
        }
    }
}

fn line(event: &RunEvent) -> String {
    let detail = event.detail.lines().next().unwrap_or_default();
    let text = format!(
        "{}  {:<16} {:<12} {detail}",
        show(event.time),
        event.event,
        event.state
    );
    text.trim_end().to_owned()
}

fn summarise(run: &OsUpdateRun, printer: &mut Printer<'_>) -> Result<Ending, Failure> {
    if printer.is_for_people() {
        for package in &run.packages {
            let shown = |version: &str| {
                if version.is_empty() {
                    "none".to_owned()
                } else {
                    version.to_owned()
                }
            };
            let (before, after) = (shown(&package.before), shown(&package.after));
            printer.line(&format!(
                "  {} {before} -> {after} ({})",
                package.name, package.status
            ))?;
        }
        for line in account::lines(run) {
            printer.line(&line)?;
        }
        let reason = if run.reason.is_empty() {
            String::new()
        } else {
            format!(": {}", run.reason)
        };
        printer.line(&format!("run {} {}{reason}", run.resource_id, run.state))?;
    } else {
        printer.one(run)?;
    }
    Ok(if run.state == "succeeded" {
        Ending::Done
    } else {
        Ending::RunNotSucceeded
    })
}
