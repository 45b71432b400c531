//! Report and failure log of a run.

use evenkeel_api::update_run::{
    OsUpdateRun, OsUpdateRunReport, RunHeldBackPackage, RunInterruption, RunPhase,
};

use crate::page::{Cell, DetailPage, Tone, cells};
use crate::time::format_optional_time;

/// Maximum number of log lines, and of characters in a line.
const MAX_LOG_LINES: usize = 30;
const MAX_LINE_CHARS: usize = 400;

/// Adds the report of a run.
pub fn add_report(page: &mut DetailPage, run: &OsUpdateRun) {
    let report = &run.report;
    if report.reboot_required {
        page.field("reboot", Cell::toned("still required", Tone::Busy));
    }
    page.field_if("kernel", &describe_kernel(report));
    page.field_if("held back", &describe_held_back(report));
    page.table(
        "Phases:",
        &["PHASE", "DURATION", "DOWNLOADED"],
        report.phases.iter().map(phase_row),
    );
    for (title, header, texts) in [
        ("Reasons for the reboot:", &["REASON"], &report.reboot_reasons),
        ("Remarks:", &["REMARK"], &report.remarks),
        (
            "Configuration files with local changes, not replaced:",
            &["FILE"],
            &report.preserved_conffiles,
        ),
        ("Restarted services:", &["UNIT"], &report.restarted_services),
    ] {
        let rows = texts.iter().map(|text| cells![sanitize_line(text)]);
        page.table(title, header, rows);
    }
    page.table(
        "Interruptions:",
        &["RESUMED", "PHASE", "CAUSE"],
        report.interruptions.iter().map(interruption_row),
    );
    page.table(
        "Packages that are held back:",
        &["PACKAGE", "ARCHITECTURE", "INSTALLED", "AVAILABLE", "CAUSE"],
        report.held_back.iter().map(held_back_row),
    );
}

/// Describes how many packages are held back, and why: `97 (too young 97)`. Empty if there are none.
fn describe_held_back(report: &OsUpdateRunReport) -> String {
    let counts = &report.held_back_counts;
    let total = counts.iter().fold(0_u64, |sum, count| sum + u64::from(count.packages));
    let causes =
        counts.iter().map(|count| format!("{} {}", cause_label(&count.cause), count.packages));
    match total {
        0 => String::new(),
        total => format!("{total} ({})", causes.collect::<Vec<_>>().join(", ")),
    }
}

fn interruption_row(interruption: &RunInterruption) -> Vec<Cell> {
    cells![
        format_optional_time(interruption.resumed_at),
        sanitize_line(&interruption.phase),
        cause_label(&interruption.cause)
    ]
}

fn held_back_row(package: &RunHeldBackPackage) -> Vec<Cell> {
    cells![
        sanitize_line(&package.name),
        sanitize_line(&package.architecture),
        sanitize_line(&package.version),
        sanitize_line(&package.available_version),
        cause_label(&package.cause)
    ]
}

fn cause_label(cause: &str) -> String {
    sanitize_line(cause).replace('_', " ")
}

/// Adds the end of the failure log of a failed run.
pub fn add_failure_log(page: &mut DetailPage, run: &OsUpdateRun) {
    if !matches!(run.state.as_str(), "failed" | "reverted") {
        return;
    }
    let lines: Vec<&str> = run.log.lines().filter(|line| !is_blank(line)).collect();
    let left_out = lines.len().saturating_sub(MAX_LOG_LINES);
    let rows = lines.iter().skip(left_out);
    page.table("Failure log:", &["LINE"], rows.map(|line| cells![sanitize_line(line)]));
}

/// Summary of an ended run.
pub fn summary_lines(run: &OsUpdateRun) -> Vec<String> {
    let report = &run.report;
    let mut lines = Vec::new();
    let phases: Vec<String> = report.phases.iter().map(describe_phase).collect();
    if !phases.is_empty() {
        lines.push(format!("  durations: {}", phases.join(", ")));
    }
    let conffiles = report.preserved_conffiles.iter();
    lines.extend(conffiles.map(|file| format!("  not replaced: {}", sanitize_line(file))));
    let interruptions = report.interruptions.iter();
    lines.extend(interruptions.map(|interruption| {
        let resumed = format_optional_time(interruption.resumed_at);
        let (phase, cause) = (sanitize_line(&interruption.phase), cause_label(&interruption.cause));
        format!("  interrupted: {phase} ({cause}), resumed {resumed}")
    }));
    let held_back = describe_held_back(report);
    if !held_back.is_empty() {
        lines.push(format!("  held back: {held_back}"));
    }
    let remarks = report.remarks.iter();
    lines.extend(remarks.map(|remark| format!("  remark: {}", sanitize_line(remark))));
    let reasons = report.reboot_reasons.iter();
    lines.extend(reasons.map(|reason| format!("  reboot required: {}", sanitize_line(reason))));
    if report.kernel_before != report.kernel_after {
        lines.push(format!("  kernel: {}", describe_kernel(report)));
    }
    if report.reboot_required {
        lines.push("  a reboot is still required".to_owned());
    }
    lines
}

/// The running kernel, before and after if it has changed; empty if it is unknown.
fn describe_kernel(report: &OsUpdateRunReport) -> String {
    let (before, after) =
        (sanitize_line(&report.kernel_before), sanitize_line(&report.kernel_after));
    if before == after || after.is_empty() {
        return before;
    }
    format!("{before} -> {after}")
}

fn phase_row(phase: &RunPhase) -> Vec<Cell> {
    cells![sanitize_line(&phase.phase), format_duration(phase.millis), format_bytes(phase.bytes)]
}

fn describe_phase(phase: &RunPhase) -> String {
    let (name, took) = (sanitize_line(&phase.phase), format_duration(phase.millis));
    match phase.bytes {
        0 => format!("{name} {took}"),
        bytes => format!("{name} {took} ({})", format_bytes(bytes)),
    }
}

/// Formats a duration in at most two units.
fn format_duration(millis: u64) -> String {
    let seconds = millis / 1_000;
    match (seconds / 3_600, seconds / 60 % 60, seconds % 60) {
        (0, 0, 0) => format!("{millis}ms"),
        (0, 0, seconds) => format!("{seconds}.{}s", millis % 1_000 / 100),
        (0, minutes, seconds) => format!("{minutes}m {seconds}s"),
        (hours, minutes, _) => format!("{hours}h {minutes}m"),
    }
}

/// Formats a number of bytes in the largest unit that fits; empty for 0.
fn format_bytes(bytes: u64) -> String {
    let units = [(1_000_000_000, "GB"), (1_000_000, "MB"), (1_000, "kB")];
    match units.iter().find(|(unit, _)| *unit <= bytes) {
        _ if bytes == 0 => String::new(),
        Some((unit, name)) => format!("{}.{} {name}", bytes / unit, bytes % unit * 10 / unit),
        None => format!("{bytes} B"),
    }
}

/// Removes control characters from a line of a node, so that it cannot control the terminal. Of a line
/// with carriage returns, only the last part remains.
fn sanitize_line(line: &str) -> String {
    let line = line.trim_end();
    let last = line.rsplit('\r').next().unwrap_or_default();
    let mut letters = last.chars().filter(|letter| !letter.is_control());
    let mut short: String = letters.by_ref().take(MAX_LINE_CHARS).collect();
    if letters.next().is_some() {
        short.push('…');
    }
    short
}

fn is_blank(line: &str) -> bool {
    sanitize_line(line).trim().is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_sizes_are_short() {
        assert_eq!(format_duration(850), "850ms");
        assert_eq!(format_duration(12_340), "12.3s");
        assert_eq!(format_duration(125_000), "2m 5s");
        assert_eq!(format_duration(3_720_000), "1h 2m");
        assert_eq!(format_bytes(0), "");
        assert_eq!(format_bytes(999), "999 B");
        assert_eq!(format_bytes(1_550), "1.5 kB");
        assert_eq!(format_bytes(12_000_000), "12.0 MB");
        assert_eq!(format_bytes(u64::MAX), "18446744073.7 GB");
    }

    #[test]
    fn control_characters_are_removed_from_a_line() {
        assert_eq!(sanitize_line("10%\r 50%\r100% done\r\n"), "100% done");
        assert_eq!(sanitize_line("\u{1b}[31mred"), "[31mred");
        assert_eq!(sanitize_line(&"x".repeat(1_000)).chars().count(), MAX_LINE_CHARS + 1);
        let full = "x".repeat(MAX_LINE_CHARS);
        assert_eq!(sanitize_line(&full), full);
    }
}
