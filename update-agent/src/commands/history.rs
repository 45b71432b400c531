//! `evenkeel-agent history`.

use std::io::Write;
use std::process::ExitCode;

use super::load_config;
use crate::cli::{self, OutputFormat};
use crate::history::{self, AttemptRecord};
use crate::text;

/// Prints the ended updates.
pub fn print_history(
    arguments: &cli::HistoryArgs,
    out: &mut impl Write,
) -> anyhow::Result<ExitCode> {
    let (_, paths) = load_config(&arguments.paths)?;
    let records = history::read_history(&paths.history())?;
    match arguments.output {
        OutputFormat::Json => text::print_json(&records, out)?,
        OutputFormat::Text if records.is_empty() => writeln!(out, "no update has ended here")?,
        OutputFormat::Text => print_records(&records, out)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn print_records(records: &[AttemptRecord], out: &mut impl Write) -> std::io::Result<()> {
    for record in records {
        let change = match record.change.as_str() {
            "" => String::new(),
            change => format!(", {change}"),
        };
        writeln!(
            out,
            "{}  {}{change}  {}",
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
    let report = &record.report;
    let mut lines = Vec::new();
    if !record.reason.is_empty() {
        lines.push(record.reason.clone());
    }
    let phases = report.phases.iter().map(|span| {
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
    lines.extend(report.interruptions.iter().map(|interruption| {
        let resumed = text::format_instant(Some(interruption.resumed_at));
        let (what, phase) = (interruption.cause.label(), &interruption.phase);
        format!("{what} during the phase {phase}, resumed at {resumed}")
    }));
    lines.extend(record.results.iter().cloned());
    if report.kernel_before != report.kernel_after {
        lines.push(format!("kernel {} -> {}", report.kernel_before, report.kernel_after));
    }
    lines.extend(report.reboot_reasons.iter().map(|reason| format!("reboot required: {reason}")));
    if report.reboot_required {
        lines.push("reboot still required".to_owned());
    }
    lines.extend(report.remarks.iter().cloned());
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
    use crate::model::{FailureKind, Interruption, InterruptionCause, PhaseSpan, RunReport};
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
            change: "2 packages".into(),
            results: vec!["restarted: app.service".into()],
            download_bytes: 1_500_000,
            report: RunReport {
                phases: vec![span("download", 61_000, 1_500_000), span("apply", 90, 0)],
                remarks: vec!["mark:\nno".into()],
                reboot_required: true,
                reboot_reasons: vec!["linux-image-amd64 requires it".into()],
                kernel_before: "6.1.0-40-amd64".into(),
                kernel_after: "6.1.0-41-amd64".into(),
                interruptions: vec![Interruption {
                    cause: InterruptionCause::MachineRestarted,
                    phase: "apply".into(),
                    resumed_at: DateTime::UNIX_EPOCH,
                    boot_id: "boot-2".into(),
                }],
                ..RunReport::default()
            },
        };
        HistoryFile::new(paths.history()).add(record).unwrap();
        assert_eq!(
            run_history(root.path(), OutputFormat::Text),
            "1970-01-01T00:00:00Z  failed, 2 packages  00000000-0000-0000-0000-000000000007\n    \
             app is half-configured\n    \
             download 1 min 1 s (1.5 MB), apply 90 ms\n    \
             the machine restarted during the phase apply, resumed at 1970-01-01T00:00:00Z\n    \
             restarted: app.service\n    \
             kernel 6.1.0-40-amd64 -> 6.1.0-41-amd64\n    \
             reboot required: linux-image-amd64 requires it\n    \
             reboot still required\n    \
             mark:\n    \
             no\n"
        );
        let json: serde_json::Value =
            serde_json::from_str(&run_history(root.path(), OutputFormat::Json)).unwrap();
        assert_eq!(json[0]["kind"], "apply");
    }
}
