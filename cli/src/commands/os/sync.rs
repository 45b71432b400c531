//! `evenkeel os sync` and `sync-report`: fills the catalog from a registry, and reports the result.

use std::time::Duration;

use clap::Args;
use evenkeel_api::os_sync::{OsSync, OsSyncFinding, OsSyncOutcome, OsSyncReport, OsSyncStep};
use tokio::time::{Instant, sleep};

use crate::client::Client;
use crate::output::Printer;
use crate::page::{Cell, DetailPage, Tone, cells};
use crate::time::{format_optional_time, format_time, parse_duration};
use crate::{Ending, Failure};

const SYNC_PATH: &str = "os-catalogue/sync";
const REPORT_PATH: &str = "os-catalogue/report";

/// Sync the catalog with the registry of the project, and show the result.
///
/// Exits with status 3 unless all selected operating systems are available without findings.
#[derive(Debug, Args)]
pub struct SyncCommand {
    /// Request the sync, and do not wait for it.
    #[arg(long)]
    no_wait: bool,
    /// Stop waiting after this time. The sync continues.
    #[arg(long, value_parser = parse_duration, default_value = "10m", value_name = "DURATION", conflicts_with = "no_wait")]
    timeout: Duration,
    /// Interval between status requests.
    #[arg(long, value_parser = parse_duration, default_value = "1s", value_name = "DURATION", conflicts_with = "no_wait")]
    interval: Duration,
}

impl SyncCommand {
    pub async fn run(self, client: &Client, printer: &mut Printer<'_>) -> Result<Ending, Failure> {
        let accepted: OsSync = client
            .post(SYNC_PATH, &serde_json::json!({}))
            .await
            .map_err(explain_empty_selection)?;
        if self.no_wait {
            let mut page = DetailPage::default();
            page.field("registry", &accepted.registry)
                .field("request", accepted.request.to_string());
            printer.print_page(&accepted, &accepted.request.to_string(), &page)?;
            return Ok(Ending::Done);
        }
        let deadline = Instant::now() + self.timeout;
        let mut has_printed_note = false;
        loop {
            let now: OsSync = client.get(SYNC_PATH).await?;
            if now.done >= accepted.request {
                let report: OsSyncReport = client.get(REPORT_PATH).await?;
                // The report is written last; ignore the report of an earlier sync.
                if report.outcome.is_some() && report.request >= accepted.request {
                    printer.show_progress("")?;
                    return finish(&report, printer);
                }
            }
            if let Some(before) = now.not_before.filter(|_| now.step == OsSyncStep::Idle)
                && !has_printed_note
            {
                has_printed_note = true;
                printer.print_note(&format!(
                    "{} is not contacted before {}",
                    now.registry,
                    format_time(before)
                ))?;
            }
            printer.show_progress(&describe_step(&now))?;
            if Instant::now() + self.interval > deadline {
                printer.show_progress("")?;
                return Err(Failure::usage_with(
                    "the sync has not ended within --timeout",
                    "it continues; `evenkeel os sync-report` shows its result, and a longer --timeout waits for it",
                ));
            }
            sleep(self.interval).await;
        }
    }
}

/// Adds a hint to the error of a project that selects nothing.
fn explain_empty_selection(failure: Failure) -> Failure {
    match failure {
        Failure::Refused { code, message, .. } if code == "FailedPrecondition" => {
            Failure::usage_with(
                message,
                "`evenkeel os settings` shows the selection and the registries; change it with \
                 --registry, --revision and --enable",
            )
        }
        failure => failure,
    }
}

/// Describes the progress of a sync.
fn describe_step(sync: &OsSync) -> String {
    let what = match sync.step {
        OsSyncStep::Idle => return "waiting for the sync to start".to_owned(),
        OsSyncStep::Listing => "listing revisions",
        OsSyncStep::Fetching => "fetching profiles",
        OsSyncStep::Attachments => "fetching package lists and vulnerabilities",
        OsSyncStep::Applying => "updating the projects",
    };
    match sync.total {
        0 => what.to_owned(),
        total => format!("{what}: {} of {total}", sync.finished),
    }
}

fn finish(report: &OsSyncReport, printer: &mut Printer<'_>) -> Result<Ending, Failure> {
    print_report(report, printer)?;
    Ok(Ending::from_checks(report.outcome == Some(OsSyncOutcome::Succeeded)))
}

/// Prints the report of the last sync of the project.
pub async fn print_last_report(client: &Client, printer: &mut Printer<'_>) -> Result<(), Failure> {
    let report: OsSyncReport = client.get(REPORT_PATH).await?;
    print_report(&report, printer)
}

fn print_report(report: &OsSyncReport, printer: &mut Printer<'_>) -> Result<(), Failure> {
    let Some(outcome) = report.outcome else {
        printer.print_line("no sync yet; `evenkeel os sync` starts one")?;
        return if printer.is_human_readable() {
            Ok(())
        } else {
            printer.print_page(report, "", &DetailPage::default())
        };
    };
    let mut page = DetailPage::default();
    page.field("registry", &report.registry)
        .field("revision", &report.revision)
        .field("outcome", outcome_cell(outcome))
        .field_if("message", &report.message)
        .field("started", format_optional_time(report.started_at))
        .field("ended", format_optional_time(report.ended_at))
        .field("new", report.created.to_string())
        .field("updated", report.refreshed.to_string())
        .field("unchanged", report.unchanged.to_string())
        .field("rejected", report.refused.to_string())
        .table(
            "Findings:",
            &["ARTEFACT", "FINDING", "MESSAGE", "OS", "SINCE"],
            report.findings.iter().map(finding_row),
        );
    printer.print_page(report, outcome.as_str(), &page)
}

fn outcome_cell(outcome: OsSyncOutcome) -> Cell {
    let tone = match outcome {
        OsSyncOutcome::Succeeded => Tone::Good,
        OsSyncOutcome::Partial => Tone::Busy,
        OsSyncOutcome::Failed => Tone::Bad,
    };
    Cell::toned(outcome.as_str(), tone)
}

fn finding_row(finding: &OsSyncFinding) -> Vec<Cell> {
    let artefact = match finding.tag.as_str() {
        "" => finding.repository.clone(),
        tag => format!("{}:{tag}", finding.repository),
    };
    let message = match finding.field.as_str() {
        "" => finding.message.clone(),
        field => format!("{field}: {}", finding.message),
    };
    cells![artefact, &finding.kind, message, &finding.os_id, format_time(finding.since)]
}
