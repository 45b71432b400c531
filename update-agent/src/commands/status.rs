//! `evenkeel-agent status`.

use std::io::{self, Write};
use std::process::ExitCode;

use chrono::{DateTime, Utc};
use evenkeel_kit::{Clock as _, SystemClock};
use serde::Serialize;
use uuid::Uuid;

use super::load_config;
use crate::cli::{self, OutputFormat};
use crate::facts::reboot;
use crate::grants::{GrantFile, OfflineGrant};
use crate::journal::{FileJournal, JournalEntry};
use crate::model::{ModuleParts, UpdatePlan};
use crate::modules::{self, MODULES};
use crate::node::{Node, NodeCertificates, NodeError};
use crate::os;
use crate::paths::AgentPaths;
use crate::status::{self, AgentStatus};
use crate::text::{self, format_instant};

/// Output of `status`.
#[derive(Debug, Serialize)]
struct StatusReport {
    agent_version: &'static str,
    root: String,
    state_dir: String,
    /// `None` if the node is not enrolled.
    node: Option<Node>,
    /// When the client certificate expires; `None` if there is none.
    certificate_expires: Option<DateTime<Utc>>,
    /// Why the client certificate cannot be used; empty if it can, or if there is none.
    certificate_error: String,
    attempt: Option<OpenAttempt>,
    /// The grant for the time when the server cannot be reached.
    grant: Option<OfflineGrant>,
    /// Age of the package lists in seconds; `None` if the agent has not refreshed them.
    lists_age_seconds: Option<u64>,
    reboot_required: bool,
    /// Why a reboot is required, for people.
    reboot_reasons: Vec<String>,
    #[serde(flatten)]
    last: AgentStatus,
}

#[derive(Debug, Serialize)]
struct OpenAttempt {
    id: Uuid,
    target: String,
    phase: &'static str,
    steps_done: usize,
    steps: usize,
    last_sequence: u32,
    acknowledged: u32,
    start_deadline: Option<DateTime<Utc>>,
    #[serde(flatten)]
    plan: UpdatePlan,
    /// What each module reports about the change.
    modules: ModuleParts,
    /// How often the agent requested a reboot.
    reboot_requests: u32,
    remarks: Vec<String>,
}

/// Prints the identity and the state of the node. Changes nothing and takes no lock.
pub fn print_status(arguments: &cli::StatusArgs, out: &mut impl Write) -> anyhow::Result<ExitCode> {
    let (_, paths) = load_config(&arguments.paths)?;
    let report = build_report(&paths, SystemClock.now())?;
    match arguments.output {
        OutputFormat::Json => text::print_json(&report, out)?,
        OutputFormat::Text => print_report(&report, out)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn build_report(paths: &AgentPaths, now: DateTime<Utc>) -> anyhow::Result<StatusReport> {
    let node = match Node::load(paths) {
        Ok(node) => Some(node),
        Err(NodeError::NotEnrolled) => None,
        Err(error) => return Err(error.into()),
    };
    let (certificate_expires, certificate_error) = match NodeCertificates::load(paths) {
        Ok(certificates) => (certificates.client_expires(), String::new()),
        Err(error) => (None, evenkeel_kit::chain(&error).to_string()),
    };
    let last = status::read_status(&paths.status()).unwrap_or_default();
    let lists_age = last.refreshed.and_then(|refreshed| (now - refreshed).to_std().ok());
    let reboot = reboot::read_reboot_status(paths, &os::kernel_release());
    Ok(StatusReport {
        agent_version: env!("CARGO_PKG_VERSION"),
        root: paths.root().display().to_string(),
        state_dir: paths.state().display().to_string(),
        node,
        certificate_expires,
        certificate_error,
        attempt: FileJournal::peek(&paths.journal())?.map(describe_attempt),
        grant: GrantFile::load(&paths.grant()).get().cloned(),
        lists_age_seconds: lists_age.map(|age| age.as_secs()),
        reboot_required: reboot.required,
        reboot_reasons: reboot.reasons,
        last,
    })
}

fn describe_attempt(entry: JournalEntry) -> OpenAttempt {
    OpenAttempt {
        id: entry.attempt,
        phase: entry.phase.name(),
        steps_done: entry.steps.iter().filter(|step| step.done).count(),
        steps: entry.steps.len(),
        last_sequence: entry.last_sequence(),
        acknowledged: entry.acknowledged,
        start_deadline: entry.start_deadline,
        plan: entry.plan,
        modules: entry.reports,
        reboot_requests: entry.reboot_requests,
        remarks: entry.remarks,
        target: entry.target.digest,
    }
}

fn print_report(report: &StatusReport, out: &mut impl Write) -> io::Result<()> {
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
    // The agent renews it at any contact, so an expired one is no fault of the node.
    if report.certificate_expires.is_some() {
        line("certificate", &format!("expires {}", format_instant(report.certificate_expires)))?;
    } else if !report.certificate_error.is_empty() {
        line("certificate", &report.certificate_error)?;
    }
    print_last_status(report, &mut line)?;
    print_attempt(report.attempt.as_ref(), &mut line)?;
    if let Some(end) = &report.last.last_end {
        let at = format_instant(Some(end.at));
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

/// Writes a line with a name and a value.
type LineWriter<'a> = &'a mut dyn FnMut(&str, &str) -> io::Result<()>;

/// Prints what the server and the machine reported last.
fn print_last_status(report: &StatusReport, line: LineWriter<'_>) -> io::Result<()> {
    let last = &report.last;
    line("last contact", &format_instant(last.last_contact))?;
    let problems = std::iter::once(&last.error).chain(&last.warnings);
    let others =
        [("decision", &last.reason), ("delayed by", &last.waiting), ("limits", &last.limits)];
    for (name, value) in problems.map(|value| ("problem", value)).chain(others) {
        if !value.is_empty() {
            line(name, value)?;
        }
    }
    if last.next.is_some() {
        line("may change", &format_instant(last.next))?;
    }
    let age = report.lists_age_seconds.map(|seconds| {
        let age = text::format_duration(seconds.saturating_mul(1_000));
        format!(" ({age} ago)")
    });
    let lists = format_instant(last.refreshed) + &age.unwrap_or_default();
    line("lists as of", &lists)?;
    if !last.refresh_error.is_empty() {
        line("", &format!("the last refresh failed: {}", last.refresh_error))?;
    }
    line("reboot", if report.reboot_required { "required" } else { "not required" })?;
    for reason in &report.reboot_reasons {
        line("", reason)?;
    }
    for window in report.grant.iter().flat_map(|grant| &grant.windows) {
        let (start, end) = (format_instant(Some(window.start)), format_instant(Some(window.end)));
        line("offline grant", &format!("from {start} to {end}"))?;
    }
    Ok(())
}

fn print_attempt(attempt: Option<&OpenAttempt>, line: LineWriter<'_>) -> io::Result<()> {
    let Some(attempt) = attempt else {
        return line("attempt", "none");
    };
    let summary = format!(
        "{}, {}, step {} of {}, {} of {} events reported",
        attempt.id,
        attempt.phase,
        attempt.steps_done,
        attempt.steps,
        attempt.acknowledged,
        attempt.last_sequence
    );
    line("attempt", &summary)?;
    let fetched = text::format_bytes(attempt.plan.download_bytes);
    let reboot = if attempt.plan.reboot_expected { ", reboot likely" } else { "" };
    line("", &format!("{fetched} to download{reboot}"))?;
    let planned = modules::describe(MODULES.iter().copied(), &attempt.modules).planned;
    planned.iter().chain(&attempt.remarks).try_for_each(|text| line("", text))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rcgen::{CertificateParams, KeyPair, PKCS_ED25519, date_time_ymd};

    use super::*;
    use crate::cli::PathArgs;
    use crate::status::StatusFile;

    #[test]
    fn the_end_of_the_client_certificate_is_shown() {
        let root = tempfile::tempdir().unwrap();
        let paths = AgentPaths::new(root.path(), None);
        fs::create_dir_all(paths.state()).unwrap();
        let key = KeyPair::generate_for(&PKCS_ED25519).unwrap();
        let mut params = CertificateParams::default();
        params.not_after = date_time_ymd(2027, 1, 31);
        fs::write(paths.key(), key.serialize_pem()).unwrap();
        fs::write(paths.certificate(), params.self_signed(&key).unwrap().pem()).unwrap();
        let print = |output| {
            let paths = PathArgs { root: Some(root.path().to_owned()), ..PathArgs::default() };
            let mut out = Vec::new();
            print_status(&cli::StatusArgs { paths, output }, &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        let text = print(OutputFormat::Text);
        assert!(text.contains("\ncertificate   expires 2027-01-31T00:00:00Z\n"), "{text}");
        let json: serde_json::Value = serde_json::from_str(&print(OutputFormat::Json)).unwrap();
        assert_eq!(json["certificate_expires"], "2027-01-31T00:00:00Z");

        fs::write(paths.certificate(), "half of it").unwrap();
        let text = print(OutputFormat::Text);
        assert!(text.contains("\ncertificate   certificate.pem is invalid"), "{text}");
    }

    #[test]
    fn a_machine_that_never_enrolled_is_shown_as_not_enrolled() {
        let root = tempfile::tempdir().unwrap();
        let paths = PathArgs { root: Some(root.path().to_owned()), ..PathArgs::default() };
        let arguments = |output| cli::StatusArgs { paths: paths.clone(), output };
        let mut text = Vec::new();
        print_status(&arguments(OutputFormat::Text), &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains("node          not enrolled\n"), "{text}");
        let mut json = Vec::new();
        print_status(&arguments(OutputFormat::Json), &mut json).unwrap();
        let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
        assert_eq!(json["node"], serde_json::Value::Null);
        assert_eq!(json["certificate_expires"], serde_json::Value::Null);
        assert_eq!(json["certificate_error"], "");
        assert!(!text.contains("certificate"), "{text}");
        assert_eq!(json["attempt"], serde_json::Value::Null);
        assert_eq!(json["last_contact"], serde_json::Value::Null);
    }

    #[test]
    fn the_age_of_the_lists_and_the_reasons_for_a_reboot_are_shown() {
        let root = tempfile::tempdir().unwrap();
        let paths = AgentPaths::new(root.path(), None);
        std::fs::create_dir_all(paths.status().parent().unwrap()).unwrap();
        let refreshed = DateTime::UNIX_EPOCH;
        StatusFile::load(&paths.status()).update(|status| {
            status.refreshed = Some(refreshed);
            status.refresh_error = "no route to host".into();
        });
        std::fs::create_dir(root.path().join("run")).unwrap();
        std::fs::write(root.path().join("run/reboot-required"), "").unwrap();
        std::fs::write(root.path().join("run/reboot-required.pkgs"), "libc6\n").unwrap();

        let report = build_report(&paths, refreshed + chrono::TimeDelta::hours(50)).unwrap();
        let mut text = Vec::new();
        print_report(&report, &mut text).unwrap();

        let text = String::from_utf8(text).unwrap();
        for line in [
            "lists as of   1970-01-01T00:00:00Z (50 h 0 min ago)\n",
            "the last refresh failed: no route to host\n",
            "reboot        required\n              libc6 requires it\n",
        ] {
            assert!(text.contains(line), "{text}");
        }
    }
}
