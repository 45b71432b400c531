//! The report of a check as a table.

use std::io::{self, Write};

use evenkeel_reconcile::report::{ComplianceState, EntryReport, Report, Verdict};

use crate::text::{pluralize, print_table, replace_controls};

/// Prints the entries that are bad, extra or changed, and the totals.
pub(super) fn print_report_table(report: &Report, out: &mut impl Write) -> io::Result<()> {
    let is_listed = |entry: &&EntryReport| entry.verdict != Verdict::Good || entry.modified;
    let mut rows: Vec<_> = report.entries.iter().filter(is_listed).map(table_row).collect();
    if !rows.is_empty() {
        rows.insert(0, ["verdict", "component", "name", "reason"].map(str::to_owned).to_vec());
        print_table(&rows, out)?;
        writeln!(out)?;
    }
    writeln!(out, "{}", summarize(report))
}

fn table_row(entry: &EntryReport) -> Vec<String> {
    let verdict = match entry.verdict {
        Verdict::Good => "good",
        Verdict::Bad => "bad",
        Verdict::Extra => "extra",
    };
    let reason = match (entry.modified, entry.reason.as_str()) {
        (true, "") => "changed".to_owned(),
        (true, reason) => format!("changed; {reason}"),
        (false, reason) => reason.to_owned(),
    };
    [verdict, entry.component.name(), &entry.name, &reason].map(replace_controls).to_vec()
}

fn summarize(report: &Report) -> String {
    let count = |verdict| report.entries.iter().filter(|entry| entry.verdict == verdict).count();
    let (good, bad, extra) = (count(Verdict::Good), count(Verdict::Bad), count(Verdict::Extra));
    let state = match report.state {
        ComplianceState::Clean => "clean",
        ComplianceState::Dirty => "dirty",
    };
    let entries = pluralize(good + bad, "entry", "entries");
    let modified = report.entries.iter().filter(|entry| entry.modified).count();
    let changed = if modified > 0 { format!(", {modified} changed") } else { String::new() };
    format!("{state}: {entries}, {good} good, {bad} bad{changed}; {extra} extra")
}

#[cfg(test)]
mod tests {
    use evenkeel_configuration::Component;

    use super::*;

    fn entry(component: Component, name: &str, verdict: Verdict, reason: &str) -> EntryReport {
        EntryReport {
            component,
            name: name.to_owned(),
            verdict,
            modified: false,
            reason: reason.to_owned(),
            current: serde_json::Map::new(),
        }
    }

    fn print(report: &Report) -> String {
        let mut out = Vec::new();
        print_report_table(report, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn the_table_has_what_differs_and_what_has_changed() {
        let file =
            |name: &str, verdict, reason: &str| entry(Component::File, name, verdict, reason);
        let changed = EntryReport { modified: true, ..file("/etc/issue", Verdict::Good, "") };
        let entries = vec![
            file("/etc/motd", Verdict::Bad, "the content differs"),
            file("/etc/hosts", Verdict::Good, ""),
            changed,
            entry(Component::Package, "zsh\u{1b}[2J", Verdict::Extra, "it is installed"),
        ];
        let report = Report { state: ComplianceState::Dirty, entries };
        assert_eq!(
            print(&report),
            "verdict  component  name        reason\n\
             bad      File       /etc/motd   the content differs\n\
             good     File       /etc/issue  changed\n\
             extra    Package    zsh\u{fffd}[2J     it is installed\n\
             \n\
             dirty: 3 entries, 2 good, 1 bad, 1 changed; 1 extra\n"
        );
    }

    #[test]
    fn a_clean_machine_has_one_line() {
        let entries = vec![entry(Component::File, "/etc/motd", Verdict::Good, "")];
        let report = Report { state: ComplianceState::Clean, entries };
        assert_eq!(print(&report), "clean: 1 entry, 1 good, 0 bad; 0 extra\n");
    }
}
