//! How a run went, for people.

use evenkeel_api::update_run::{OsUpdateRun, RunPhase};

use crate::view::{Cell, Page, Tone};

/// The most lines of a log that are shown, and the most letters of a line.
const LINES: usize = 30;
const LETTERS: usize = 400;

/// Adds how a run went, and the last words of one that failed.
pub fn show(page: &mut Page, run: &OsUpdateRun) {
    let account = &run.account;
    if account.reboot_required {
        page.field("reboot", Cell::toned("still required", Tone::Busy));
    }
    page.table(
        "Phases:",
        &["PHASE", "TOOK", "FETCHED"],
        account.phases.iter().map(row_of_phase).collect(),
    );
    for (title, header, texts) in [
        ("Remarks:", &["REMARK"], &account.remarks),
        (
            "Configuration files that were kept as a person left them:",
            &["FILE"],
            &account.kept_conffiles,
        ),
        (
            "Services that were restarted:",
            &["UNIT"],
            &account.restarted_services,
        ),
    ] {
        let rows = texts.iter().map(|text| vec![Cell::from(tidy(text))]);
        page.table(title, header, rows.collect());
    }
}

/// Adds the end of the log of a run that failed.
pub fn show_log(page: &mut Page, run: &OsUpdateRun) {
    if !matches!(run.state.as_str(), "failed" | "reverted") {
        return;
    }
    let lines: Vec<&str> = run.log.lines().filter(|line| !is_blank(line)).collect();
    let left_out = lines.len().saturating_sub(LINES);
    let rows = lines.iter().skip(left_out);
    page.table(
        "The node's last words:",
        &["LINE"],
        rows.map(|line| vec![Cell::from(tidy(line))]).collect(),
    );
}

/// What is worth a line when a run has ended.
pub fn lines(run: &OsUpdateRun) -> Vec<String> {
    let account = &run.account;
    let mut lines = Vec::new();
    let phases: Vec<String> = account.phases.iter().map(words_of_phase).collect();
    if !phases.is_empty() {
        lines.push(format!("  took: {}", phases.join(", ")));
    }
    let kept = account.kept_conffiles.iter();
    lines.extend(kept.map(|file| format!("  kept as it was: {}", tidy(file))));
    let remarks = account.remarks.iter();
    lines.extend(remarks.map(|remark| format!("  remark: {}", tidy(remark))));
    if account.reboot_required {
        lines.push("  a reboot is still required".to_owned());
    }
    lines
}

fn row_of_phase(phase: &RunPhase) -> Vec<Cell> {
    vec![
        tidy(&phase.phase).into(),
        took(phase.millis).into(),
        fetched(phase.bytes).into(),
    ]
}

fn words_of_phase(phase: &RunPhase) -> String {
    let (name, took) = (tidy(&phase.phase), took(phase.millis));
    match phase.bytes {
        0 => format!("{name} {took}"),
        bytes => format!("{name} {took} ({})", fetched(bytes)),
    }
}

/// A length of time in two units at most.
fn took(millis: u64) -> String {
    let seconds = millis / 1_000;
    match (seconds / 3_600, seconds / 60 % 60, seconds % 60) {
        (0, 0, 0) => format!("{millis}ms"),
        (0, 0, seconds) => format!("{seconds}.{}s", millis % 1_000 / 100),
        (0, minutes, seconds) => format!("{minutes}m {seconds}s"),
        (hours, minutes, _) => format!("{hours}h {minutes}m"),
    }
}

/// A number of bytes in the greatest unit that fits; empty for none.
fn fetched(bytes: u64) -> String {
    let units = [(1_000_000_000, "GB"), (1_000_000, "MB"), (1_000, "kB")];
    match units.iter().find(|(unit, _)| *unit <= bytes) {
        _ if bytes == 0 => String::new(),
        Some((unit, name)) => format!("{}.{} {name}", bytes / unit, bytes % unit * 10 / unit),
        None => format!("{bytes} B"),
    }
}

/// A line of a node's own words as a terminal can take it: what was written over in place is left out, and so is what
/// would move the cursor.
fn tidy(line: &str) -> String {
    let line = line.trim_end();
    let last = line.rsplit('\r').next().unwrap_or_default();
    let mut letters = last.chars().filter(|letter| !letter.is_control());
    let mut short: String = letters.by_ref().take(LETTERS).collect();
    if letters.next().is_some() {
        short.push('…');
    }
    short
}

fn is_blank(line: &str) -> bool {
    tidy(line).trim().is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_sizes_are_short() {
        assert_eq!(took(850), "850ms");
        assert_eq!(took(12_340), "12.3s");
        assert_eq!(took(125_000), "2m 5s");
        assert_eq!(took(3_720_000), "1h 2m");
        assert_eq!(fetched(0), "");
        assert_eq!(fetched(999), "999 B");
        assert_eq!(fetched(1_550), "1.5 kB");
        assert_eq!(fetched(12_000_000), "12.0 MB");
        assert_eq!(fetched(u64::MAX), "18446744073.7 GB");
    }

    #[test]
    fn a_line_cannot_play_with_the_terminal() {
        assert_eq!(tidy("10%\r 50%\r100% done\r\n"), "100% done");
        assert_eq!(tidy("\u{1b}[31mred"), "[31mred");
        assert_eq!(tidy(&"x".repeat(1_000)).chars().count(), LETTERS + 1);
        let whole = "x".repeat(LETTERS);
        assert_eq!(tidy(&whole), whole);
    }
}
