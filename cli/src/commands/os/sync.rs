//! `evenkeel os sync` and `sync-report`: what a registry has comes into the catalogue, and how that went.

use std::time::Duration;

use clap::Args;
use evenkeel_api::os_sync::{OsSync, OsSyncFinding, OsSyncOutcome, OsSyncReport, OsSyncStep};
use tokio::time::{Instant, sleep};

use crate::client::Client;
use crate::time::{duration, show, show_option};
use crate::view::{Cell, Page, Printer, Tone};
use crate::{Ending, Failure};

const SYNC: &str = "os-catalogue/sync";
const REPORT: &str = "os-catalogue/report";

/// Fetch what the registry of the project has now, and say how that went.
///
/// Exits with 3 unless all that the project wants is there and good.
#[derive(Debug, Args)]
pub struct Sync {
    /// Ask for it, and do not wait.
    #[arg(long)]
    no_wait: bool,
    /// Give up waiting after this long. What was asked for goes on.
    #[arg(long, value_parser = duration, default_value = "10m", value_name = "SPAN", conflicts_with = "no_wait")]
    timeout: Duration,
    /// How often to look.
    #[arg(long, value_parser = duration, default_value = "1s", value_name = "SPAN", conflicts_with = "no_wait")]
    interval: Duration,
}

impl Sync {
    pub async fn run(self, client: &Client, printer: &mut Printer<'_>) -> Result<Ending, Failure> {
        let asked: OsSync = client
            .post(SYNC, &serde_json::json!({}))
            .await
            .map_err(nothing_wanted)?;
        if self.no_wait {
            let mut page = Page::default();
            page.field("registry", asked.registry.clone())
                .field("request", asked.request.to_string());
            printer.page(&asked, &asked.request.to_string(), &page)?;
            return Ok(Ending::Done);
        }
        let deadline = Instant::now() + self.timeout;
        let mut is_told = false;
        loop {
            let now: OsSync = client.get(SYNC).await?;
            if now.done >= asked.request {
                let report: OsSyncReport = client.get(REPORT).await?;
                // It is written in the end. One of an earlier sync says nothing about this one.
                if report.outcome.is_some() && report.request >= asked.request {
                    printer.progress("")?;
                    return end(&report, printer);
                }
            }
            if let Some(before) = now.not_before.filter(|_| now.step == OsSyncStep::Idle)
                && !is_told
            {
                is_told = true;
                printer.note(&format!(
                    "{} is not asked again before {}",
                    now.registry,
                    show(before)
                ))?;
            }
            printer.progress(&doing(&now))?;
            if Instant::now() + self.interval > deadline {
                printer.progress("")?;
                return Err(Failure::usage_with(
                    "the sync has not ended in the time that was given",
                    "it goes on; `evenkeel os sync-report` says how the last one went, a longer --timeout waits for this one",
                ));
            }
            sleep(self.interval).await;
        }
    }
}

/// Says what to do where the project wants nothing.
fn nothing_wanted(failure: Failure) -> Failure {
    match failure {
        Failure::Refused { code, message, .. } if code == "FailedPrecondition" => {
            Failure::usage_with(
                message,
                "`evenkeel os settings` shows what is wanted and which registries there are; \
                 --registry, --revision and --enable change it",
            )
        }
        failure => failure,
    }
}

/// How far a sync is, for people.
fn doing(sync: &OsSync) -> String {
    let what = match sync.step {
        OsSyncStep::Idle => return "waiting for the sync to begin".to_owned(),
        OsSyncStep::Listing => "asking which revisions there are",
        OsSyncStep::Fetching => "fetching profiles",
        OsSyncStep::Sides => "fetching lists of packages and vulnerabilities",
        OsSyncStep::Applying => "bringing it into the projects",
    };
    match sync.total {
        0 => what.to_owned(),
        total => format!("{what}: {} of {total}", sync.finished),
    }
}

fn end(report: &OsSyncReport, printer: &mut Printer<'_>) -> Result<Ending, Failure> {
    tell(report, printer)?;
    Ok(Ending::of(report.outcome == Some(OsSyncOutcome::Good)))
}

/// Shows how the last sync of the project went.
///
/// # Errors
/// The server cannot be asked.
pub async fn last(client: &Client, printer: &mut Printer<'_>) -> Result<(), Failure> {
    let report: OsSyncReport = client.get(REPORT).await?;
    tell(&report, printer)
}

fn tell(report: &OsSyncReport, printer: &mut Printer<'_>) -> Result<(), Failure> {
    let Some(outcome) = report.outcome else {
        printer.line("there was no sync yet; `evenkeel os sync` asks for one")?;
        return if printer.is_for_people() {
            Ok(())
        } else {
            printer.page(report, "", &Page::default())
        };
    };
    let mut page = Page::default();
    page.field("registry", report.registry.clone())
        .field("revision", report.revision.clone())
        .field("outcome", said(outcome))
        .field_if("message", &report.message)
        .field("began", show_option(report.started_at))
        .field("ended", show_option(report.ended_at))
        .field("new", report.made.to_string())
        .field("brought up to date", report.refreshed.to_string())
        .field("as before", report.same.to_string())
        .field("not taken", report.refused.to_string())
        .table(
            "What was found:",
            &["ARTEFACT", "FINDING", "MESSAGE", "OS", "SINCE"],
            report.findings.iter().map(row).collect(),
        );
    printer.page(report, outcome.as_str(), &page)
}

fn said(outcome: OsSyncOutcome) -> Cell {
    let tone = match outcome {
        OsSyncOutcome::Good => Tone::Good,
        OsSyncOutcome::Partly => Tone::Busy,
        OsSyncOutcome::Failed => Tone::Bad,
    };
    Cell::toned(outcome.as_str(), tone)
}

fn row(finding: &OsSyncFinding) -> Vec<Cell> {
    let artefact = match finding.tag.as_str() {
        "" => finding.repository.clone(),
        tag => format!("{}:{tag}", finding.repository),
    };
    let message = match finding.field.as_str() {
        "" => finding.message.clone(),
        field => format!("{field}: {}", finding.message),
    };
    vec![
        artefact.into(),
        finding.kind.clone().into(),
        message.into(),
        finding.os_id.clone().into(),
        show(finding.since).into(),
    ]
}
