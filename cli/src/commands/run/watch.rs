//! `evenkeel run watch`: watches a run until it ends.

use std::time::Duration;

use clap::{ArgGroup, Args};
use evenkeel_api::decision::Decision;
use evenkeel_api::update_run::{OsUpdateRun, RunEvent};
use tokio::time::{Instant, sleep};

use super::{list_runs, report};
use crate::client::Client;
use crate::commands::instance;
use crate::output::Printer;
use crate::requests;
use crate::resource::{self, Resource};
use crate::time::{format_time, parse_duration};
use crate::{Ending, Failure};

/// Watch a run until it ends.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("what").required(true).args(["run", "host"]))]
pub struct Watch {
    /// ID or name of the run.
    run: Option<String>,
    /// Watch the open run of this host (ID or name), or wait for its next run.
    #[arg(long)]
    host: Option<String>,
    /// Stop watching after this time [default: never].
    #[arg(long, value_parser = parse_duration, value_name = "DURATION")]
    timeout: Option<Duration>,
    /// Interval between status requests.
    #[arg(long, value_parser = parse_duration, default_value = "1s", value_name = "DURATION")]
    interval: Duration,
}

impl Watch {
    pub async fn run(self, client: &Client, printer: &mut Printer<'_>) -> Result<Ending, Failure> {
        let deadline = self.timeout.map(|timeout| Instant::now() + timeout);
        let poll_loop = PollLoop { interval: self.interval, deadline };
        let id = match (&self.run, &self.host) {
            (Some(run), _) => requests::resolve_id::<OsUpdateRun>(client, run).await?,
            (None, Some(host)) => poll_loop.wait_for_run(client, host, printer).await?,
            (None, None) => return Err(Failure::usage("name the run or the host to watch")),
        };
        let run = poll_loop.follow(client, &id, printer).await?;
        print_summary(&run, printer)
    }
}

/// Interval and deadline of polling.
struct PollLoop {
    interval: Duration,
    deadline: Option<Instant>,
}

impl PollLoop {
    async fn wait(&self) -> Result<(), Failure> {
        if self.deadline.is_some_and(|deadline| Instant::now() + self.interval > deadline) {
            return Err(Failure::usage_with(
                "the run has not ended within --timeout",
                "it continues; use a longer --timeout to watch its end",
            ));
        }
        sleep(self.interval).await;
        Ok(())
    }

    /// ID of the open run of a host, else of its next run, which may already have ended.
    async fn wait_for_run(
        &self,
        client: &Client,
        host: &str,
        printer: &mut Printer<'_>,
    ) -> Result<String, Failure> {
        let (_, instance) = instance::find_host_and_instance(client, host).await?;
        let before = list_runs(client, &instance).await?;
        if let Some(open) = before.iter().find(|run| !run.has_ended()) {
            return Ok(open.resource_id.clone());
        }
        let mut last_reason = String::new();
        loop {
            let runs = list_runs(client, &instance).await?;
            let is_new =
                |run: &&OsUpdateRun| before.iter().all(|old| old.resource_id != run.resource_id);
            // Runs are sorted latest first; follow the oldest new one.
            if let Some(new) = runs.iter().rfind(is_new) {
                return Ok(new.resource_id.clone());
            }
            if printer.is_human_readable() {
                let path = format!("compute/instances/{instance}/decision");
                let decision: Decision = client.get(&path).await?;
                if decision.reason.text != last_reason {
                    printer.print_line(&waiting_line(&decision))?;
                    last_reason = decision.reason.text;
                }
            }
            self.wait().await?;
        }
    }

    /// Prints the events of a run until it ends.
    async fn follow(
        &self,
        client: &Client,
        id: &str,
        printer: &mut Printer<'_>,
    ) -> Result<OsUpdateRun, Failure> {
        let path = format!("{}/{id}", OsUpdateRun::KIND.path);
        let mut shown_events = None;
        loop {
            let run: OsUpdateRun = match client.get(&path).await {
                Err(error) if error.is_not_found() => {
                    return Err(resource::not_found::<OsUpdateRun>(id));
                }
                other => other?,
            };
            if shown_events.is_none() {
                printer.print_line(&format!("run {id} on {}", super::host_label(&run)))?;
            }
            for event in run.events.iter().skip(shown_events.unwrap_or(0)) {
                printer.print_line(&event_line(event))?;
            }
            shown_events = Some(run.events.len());
            if run.has_ended() {
                return Ok(run);
            }
            self.wait().await?;
        }
    }
}

/// Why a host has no run yet. A node that may start does not wait for anything on the server.
fn waiting_line(decision: &Decision) -> String {
    let may_start = decision.may_start && decision.waiting.is_empty();
    let state = if may_start { "the node may start" } else { "waiting" };
    format!("{}  {state}: {}", format_time(decision.time), decision.reason.text)
}

fn event_line(event: &RunEvent) -> String {
    let detail = event.detail.lines().next().unwrap_or_default();
    let text =
        format!("{}  {:<16} {:<12} {detail}", format_time(event.time), event.event, event.state);
    text.trim_end().to_owned()
}

fn print_summary(run: &OsUpdateRun, printer: &mut Printer<'_>) -> Result<Ending, Failure> {
    if printer.is_human_readable() {
        for package in &run.packages {
            let or_none = |version: &str| {
                if version.is_empty() { "none".to_owned() } else { version.to_owned() }
            };
            let (before, after) = (or_none(&package.before), or_none(&package.after));
            printer.print_line(&format!(
                "  {} {before} -> {after} ({})",
                package.name, package.status
            ))?;
        }
        for line in report::summary_lines(run) {
            printer.print_line(&line)?;
        }
        let reason =
            if run.reason.is_empty() { String::new() } else { format!(": {}", run.reason) };
        printer.print_line(&format!("run {} {}{reason}", run.resource_id, run.state))?;
    } else {
        printer.print_resource(run)?;
    }
    Ok(if run.state == "succeeded" { Ending::Done } else { Ending::RunNotSucceeded })
}

#[cfg(test)]
mod tests {
    use evenkeel_api::decision::Reason;

    use super::*;

    #[test]
    fn a_node_that_may_start_is_not_shown_as_waiting() {
        let line = |may_start, waiting: &str, text: &str| {
            let reason = Reason { text: text.to_owned(), ..Reason::default() };
            let waiting = waiting.to_owned();
            let line =
                waiting_line(&Decision { may_start, waiting, reason, ..Decision::default() });
            line.split_once("  ").expect("a time").1.to_owned()
        };
        let open = "a window is open until 2026-03-01T22:00:00Z";
        assert_eq!(line(true, "", open), format!("the node may start: {open}"));
        let busy = format!("{open}; the node waits: a user is logged in");
        assert_eq!(line(true, "a user is logged in", &busy), format!("waiting: {busy}"));
        assert_eq!(line(false, "", "no policy"), "waiting: no policy");
    }
}
