//! `evenkeel-agent history`.

use std::io::Write;
use std::process::ExitCode;

use super::{load_config, text};
use crate::cli::{self, OutputFormat};
use crate::history::{self, AttemptRecord};

/// Prints the ended updates.
pub fn print_history(
    arguments: &cli::HistoryArgs,
    out: &mut impl Write,
) -> anyhow::Result<ExitCode> {
    let (_, paths) = load_config(&arguments.paths)?;
    let records = history::read_history(&paths.history())?;
    match arguments.output {
        OutputFormat::Json => {
            serde_json::to_writer_pretty(&mut *out, &records)?;
            writeln!(out)?;
        }
        OutputFormat::Text if records.is_empty() => writeln!(out, "no update has ended here")?,
        OutputFormat::Text => print_records(&records, out)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn print_records(records: &[AttemptRecord], out: &mut impl Write) -> std::io::Result<()> {
    for record in records {
        let changed = match &record.image {
            Some(image) => text::format_image(image),
            None => text::pluralize(record.changed, "package", "packages"),
        };
        writeln!(
            out,
            "{}  {}, {changed}  {}",
            text::format_instant(Some(record.ended)),
            record.outcome,
            record.attempt
        )?;
        for line in detail_lines(record) {
            writeln!(out, "    {line}")?;
        }
    }
    Ok(())
}

fn detail_lines(record: &AttemptRecord) -> Vec<String> {
    let account = &record.report;
    let mut lines = Vec::new();
    if !record.reason.is_empty() {
        lines.push(record.reason.clone());
    }
    if let Some(booted) = &record.booted {
        lines.push(format!("image after the update: {booted}"));
    }
    let phases = account.phases.iter().map(|span| {
        let fetched = match span.bytes {
            0 => String::new(),
            bytes => format!(" ({})", text::format_bytes(bytes)),
        };
        format!("{} {}{fetched}", span.phase, text::format_duration(span.millis))
    });
    let phases: Vec<_> = phases.collect();
    if !phases.is_empty() {
        lines.push(phases.join(", "));
    }
    let retained = account.retained_conffiles.iter();
    lines.extend(retained.map(|file| format!("locally changed file kept: {file}")));
    if !account.restarted_services.is_empty() {
        let services = account.restarted_services.join(", ");
        lines.push(format!("restarted: {services}"));
    }
    if account.reboot_required {
        lines.push("reboot still required".to_owned());
    }
    lines.extend(account.remarks.iter().cloned());
    // The output of a tool has several lines.
    let lines = lines.iter().flat_map(|line| line.lines());
    lines.map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;
    use uuid::Uuid;

    use super::*;
    use crate::cli::PathArgs;
    use crate::history::HistoryFile;
    use crate::model::{FailureKind, ImageChange, PhaseSpan, RunReport};
    use crate::paths::AgentPaths;

    fn run_history(root: &std::path::Path, output: OutputFormat) -> String {
        let paths = PathArgs { root: Some(root.to_owned()), ..PathArgs::default() };
        let mut out = Vec::new();
        print_history(&cli::HistoryArgs { paths, output }, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn ended_updates_are_printed_with_details() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(run_history(root.path(), OutputFormat::Text), "no update has ended here\n");
        assert_eq!(run_history(root.path(), OutputFormat::Json), "[]\n");
        let paths = AgentPaths::new(root.path(), None);
        paths.prepare().unwrap();
        let span = |phase: &str, millis, bytes| PhaseSpan { phase: phase.into(), millis, bytes };
        let record = AttemptRecord {
            attempt: Uuid::from_u128(7),
            target: "d".into(),
            outcome: "failed".into(),
            kind: Some(FailureKind::Apply),
            reason: "app is half-configured".into(),
            log: "words".into(),
            opened: None,
            began: None,
            ended: DateTime::UNIX_EPOCH,
            changes: Vec::new(),
            changed: 2,
            download_bytes: 1_500_000,
            report: RunReport {
                phases: vec![span("download", 61_000, 1_500_000), span("apply", 90, 0)],
                remarks: vec!["mark:\nno".into()],
                retained_conffiles: vec!["/etc/app.conf".into()],
                restarted_services: vec!["app.service".into()],
                reboot_required: true,
            },
            image: None,
            booted: None,
        };
        HistoryFile::new(paths.history()).add(record).unwrap();
        assert_eq!(
            run_history(root.path(), OutputFormat::Text),
            "1970-01-01T00:00:00Z  failed, 2 packages  00000000-0000-0000-0000-000000000007\n    \
             app is half-configured\n    \
             download 1 min 1 s (1.5 MB), apply 90 ms\n    \
             locally changed file kept: /etc/app.conf\n    \
             restarted: app.service\n    \
             reboot still required\n    \
             mark:\n    \
             no\n"
        );
        let json: serde_json::Value =
            serde_json::from_str(&run_history(root.path(), OutputFormat::Json)).unwrap();
        assert_eq!(json[0]["kind"], "apply");
        assert_eq!(json[0].get("image"), None);
    }

    #[test]
    fn an_image_update_is_printed_with_the_image_that_ran_afterwards() {
        let record = AttemptRecord {
            attempt: Uuid::from_u128(7),
            target: "d".into(),
            outcome: "reverted".into(),
            kind: Some(FailureKind::Verify),
            reason: "it hung".into(),
            log: String::new(),
            opened: None,
            began: None,
            ended: DateTime::UNIX_EPOCH,
            changes: Vec::new(),
            changed: 0,
            download_bytes: 0,
            report: RunReport::default(),
            image: Some(ImageChange {
                profile_name: "demo".into(),
                before: "1.0".into(),
                after: "1.1".into(),
            }),
            booted: Some("1.0".into()),
        };
        let mut out = Vec::new();
        print_records(&[record], &mut out).unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "1970-01-01T00:00:00Z  reverted, demo 1.0 -> 1.1  00000000-0000-0000-0000-000000000007\n    \
             it hung\n    \
             image after the update: 1.0\n"
        );
    }
}
