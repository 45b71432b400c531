//! `evenkeel-agent status`.

use std::io::{self, Write};
use std::process::ExitCode;

use chrono::{DateTime, Utc};
use serde::Serialize;
use uuid::Uuid;

use super::settle;
use super::text::{self, instant};
use crate::cli::{self, Output};
use crate::grants::{Grant, GrantFile};
use crate::journal::{Entry, FileJournal};
use crate::model::{Change, ImageChange};
use crate::node::{Node, NodeError};
use crate::place::Place;
use crate::status::{self, Status};

/// What `status` says.
#[derive(Debug, Serialize)]
struct Report {
    agent_version: &'static str,
    root: String,
    state_dir: String,
    /// Absent if the node is not enrolled.
    node: Option<Node>,
    /// The open attempt.
    attempt: Option<OpenAttempt>,
    /// Leave for the time when the server cannot be reached.
    grant: Option<Grant>,
    #[serde(flatten)]
    last: Status,
}

#[derive(Debug, Serialize)]
struct OpenAttempt {
    id: Uuid,
    target: String,
    phase: &'static str,
    changes: Vec<Change>,
    /// The image before and after, if one is to be booted.
    #[serde(skip_serializing_if = "Option::is_none")]
    image: Option<ImageChange>,
    steps_done: usize,
    steps: usize,
    last_sequence: u32,
    acknowledged: u32,
    before: Option<DateTime<Utc>>,
    download_bytes: u64,
    disk_bytes: i64,
    reboot_expected: bool,
    /// How many packages have a newer version and do not get it.
    withheld: usize,
    /// How often the node was told to reboot.
    reboots: u32,
    remarks: Vec<String>,
}

/// Shows who this node is and what it is doing. Changes nothing and needs no lock.
pub fn status(arguments: &cli::Status, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    let (_, place) = settle(&arguments.place)?;
    let report = look(&place)?;
    match arguments.output {
        Output::Json => {
            serde_json::to_writer_pretty(&mut *out, &report)?;
            writeln!(out)?;
        }
        Output::Text => print(&report, out)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn look(place: &Place) -> anyhow::Result<Report> {
    let node = match Node::load(place) {
        Ok(node) => Some(node),
        Err(NodeError::NotEnrolled) => None,
        Err(error) => return Err(error.into()),
    };
    Ok(Report {
        agent_version: env!("CARGO_PKG_VERSION"),
        root: place.root().display().to_string(),
        state_dir: place.state().display().to_string(),
        node,
        attempt: FileJournal::look(&place.journal())?.map(open_attempt),
        grant: GrantFile::open(&place.grant()).get().cloned(),
        last: status::read(&place.status()).unwrap_or_default(),
    })
}

fn open_attempt(entry: Entry) -> OpenAttempt {
    OpenAttempt {
        id: entry.attempt,
        phase: entry.phase.name(),
        steps_done: entry.steps.iter().filter(|step| step.done).count(),
        steps: entry.steps.len(),
        last_sequence: entry.last_sequence(),
        acknowledged: entry.acknowledged,
        before: entry.before,
        download_bytes: entry.plan.download_bytes,
        disk_bytes: entry.plan.disk_bytes,
        reboot_expected: entry.plan.reboot_expected,
        withheld: entry.plan.withheld.len(),
        reboots: entry.reboots,
        remarks: entry.remarks,
        target: entry.target.digest,
        changes: entry.plan.changes,
        image: entry.plan.image,
    }
}

fn print(report: &Report, out: &mut impl Write) -> io::Result<()> {
    let mut line = |name: &str, value: &str| writeln!(out, "{name:<14}{value}");
    line("agent", report.agent_version)?;
    line("root", &report.root)?;
    match &report.node {
        None => line("node", "not enrolled")?,
        Some(node) => {
            line("server", &node.server)?;
            line("host", &format!("{} ({})", node.host_id, node.uuid))?;
            line("instance", &node.instance_id)?;
            line("project", &node.project)?;
        }
    }
    told(report, &mut line)?;
    attempt(report.attempt.as_ref(), &mut line)?;
    if let Some(end) = &report.last.last_end {
        let at = instant(Some(end.at));
        line("last attempt", &format!("{} at {at}", end.outcome))?;
        if !end.reason.is_empty() {
            line("", &end.reason)?;
        }
        for remark in &end.remarks {
            line("", remark)?;
        }
    }
    Ok(())
}

/// Prints a name and a value.
type Line<'a> = &'a mut dyn FnMut(&str, &str) -> io::Result<()>;

/// What the server and the machine itself said last.
fn told(report: &Report, line: Line<'_>) -> io::Result<()> {
    let last = &report.last;
    line("last contact", &instant(last.last_contact))?;
    let troubles = std::iter::once(&last.trouble).chain(&last.troubles);
    let others = [
        ("decision", &last.reason),
        ("waits", &last.waiting),
        ("limits", &last.limits),
    ];
    for (name, words) in troubles.map(|words| ("trouble", words)).chain(others) {
        if !words.is_empty() {
            line(name, words)?;
        }
    }
    if last.next.is_some() {
        line("may change", &instant(last.next))?;
    }
    line("lists as of", &instant(last.refreshed))?;
    if !last.refresh_trouble.is_empty() {
        line("", &last.refresh_trouble)?;
    }
    for window in report.grant.iter().flat_map(|grant| &grant.windows) {
        let (start, end) = (instant(Some(window.start)), instant(Some(window.end)));
        line("may go alone", &format!("from {start} to {end}"))?;
    }
    Ok(())
}

fn attempt(attempt: Option<&OpenAttempt>, line: Line<'_>) -> io::Result<()> {
    let Some(attempt) = attempt else {
        return line("attempt", "none");
    };
    let told = format!(
        "{}, {}, step {} of {}, {} of {} events told",
        attempt.id,
        attempt.phase,
        attempt.steps_done,
        attempt.steps,
        attempt.acknowledged,
        attempt.last_sequence
    );
    line("attempt", &told)?;
    let fetched = text::bytes(attempt.download_bytes);
    let withheld = text::count(attempt.withheld, "package", "packages");
    let reboot = if attempt.reboot_expected {
        ", probably a reboot"
    } else {
        ""
    };
    line(
        "",
        &format!("{fetched} to fetch, {withheld} withheld{reboot}"),
    )?;
    if let Some(image) = &attempt.image {
        line("", &text::image(image))?;
    }
    for change in &attempt.changes {
        let before = change.before.as_deref().unwrap_or("-");
        let after = change.after.as_deref().unwrap_or("-");
        line("", &format!("{} {before} -> {after}", change.name))?;
    }
    for remark in &attempt.remarks {
        line("", remark)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Where;

    #[test]
    fn a_machine_that_never_enrolled_says_so() {
        let root = tempfile::tempdir().unwrap();
        let place = Where {
            root: Some(root.path().to_owned()),
            ..Where::default()
        };
        let arguments = |output| cli::Status {
            place: place.clone(),
            output,
        };
        let mut text = Vec::new();
        status(&arguments(Output::Text), &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains("node          not enrolled\n"), "{text}");
        let mut json = Vec::new();
        status(&arguments(Output::Json), &mut json).unwrap();
        let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
        assert_eq!(json["node"], serde_json::Value::Null);
        assert_eq!(json["attempt"], serde_json::Value::Null);
        assert_eq!(json["last_contact"], serde_json::Value::Null);
    }
}
