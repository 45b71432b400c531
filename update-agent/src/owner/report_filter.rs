//! What the owner lets the agent send of the output of programs.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::facts::Facts;
use crate::journal::JournalEntry;
use crate::model::{EventKind, Failure};
use crate::modules::packages::matches_pattern;

/// Replaces a line that the owner's filter matches.
const REMOVED_LINE: &str = "[removed by the filter of the machine's owner]";

/// Replaces the output of a program if the owner lets the agent send none.
const REMOVED_LOG: &str =
    "[the machine's owner does not let the agent send the output of programs]";

/// Limits of reports.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ReportLimits {
    /// Whether the output of failed programs is sent to the server.
    pub failure_logs: FailureLogRule,
    /// Lines that are not sent: patterns with `*` and `?` for whole lines. Upper and lower case are
    /// the same. They apply to failure logs, and to all other texts that can contain the output of
    /// programs.
    pub failure_log_filter: Vec<String>,
}

/// Whether the output of failed programs is sent to the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureLogRule {
    /// The last lines are sent.
    #[default]
    Full,
    /// Only the reason of a failure is sent.
    None,
}

/// Removes from reports what the owner does not let the agent send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportFilter {
    sends_logs: bool,
    /// In lower case.
    patterns: Vec<String>,
}

impl ReportFilter {
    /// The filter for these limits.
    pub fn new(limits: &ReportLimits) -> Self {
        let patterns = limits.failure_log_filter.iter();
        Self {
            sends_logs: limits.failure_logs == FailureLogRule::Full,
            patterns: patterns.map(|pattern| pattern.to_lowercase()).collect(),
        }
    }

    /// A filter that sends no output of programs, while the limits cannot be read.
    pub fn without_logs() -> Self {
        Self { sends_logs: false, patterns: Vec::new() }
    }

    /// A text that can contain the output of programs, as it may be sent.
    pub fn filter_text(&self, text: &str) -> String {
        let lines = text.split('\n');
        let lines = lines.map(|line| if self.removes(line) { REMOVED_LINE } else { line });
        lines.collect::<Vec<_>>().join("\n")
    }

    /// An attempt with its events as they may be sent.
    pub fn filter_entry<'a>(&self, entry: &'a JournalEntry) -> Cow<'a, JournalEntry> {
        if self.sends_logs && self.patterns.is_empty() {
            return Cow::Borrowed(entry);
        }
        let mut filtered = entry.clone();
        for event in &mut filtered.events {
            if let EventKind::Failed { failure } | EventKind::Reverted { failure } = &mut event.kind
            {
                self.filter_failure(failure);
            }
            if let Some(report) = &mut event.report {
                for remark in &mut report.remarks {
                    *remark = self.filter_remark(remark);
                }
            }
        }
        Cow::Owned(filtered)
    }

    /// Filters the texts of facts that can contain the output of programs.
    pub fn filter_facts(&self, facts: &mut Facts) {
        facts.audit = self.filter_text(&facts.audit);
        let reasons = facts.bad_images.iter_mut().map(|image| &mut image.reason);
        let lists = facts.package_lists.iter_mut().map(|lists| &mut lists.error);
        for text in facts.warnings.iter_mut().chain(reasons).chain(lists) {
            *text = self.filter_text(text);
        }
    }

    fn filter_failure(&self, failure: &mut Failure) {
        failure.reason = self.filter_text(&failure.reason);
        if !failure.log.is_empty() {
            failure.log = if self.sends_logs {
                self.filter_text(&failure.log)
            } else {
                REMOVED_LOG.to_owned()
            };
        }
    }

    /// The first line of a remark is the agent's own, the others are output of a program.
    fn filter_remark(&self, remark: &str) -> String {
        match remark.split_once('\n') {
            Some((first, _)) if !self.sends_logs => {
                format!("{}\n{REMOVED_LOG}", self.filter_text(first))
            }
            _ => self.filter_text(remark),
        }
    }

    fn removes(&self, line: &str) -> bool {
        let line = line.trim().to_lowercase();
        self.patterns.iter().any(|pattern| matches_pattern(pattern, &line))
    }
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;
    use uuid::Uuid;

    use super::*;
    use crate::facts::PackageLists;
    use crate::model::{AttemptEvent, FailureKind, ModuleParts, RunReport, UpdateTarget};

    fn filter(failure_logs: FailureLogRule, patterns: &[&str]) -> ReportFilter {
        let failure_log_filter = patterns.iter().map(|&pattern| pattern.to_owned()).collect();
        ReportFilter::new(&ReportLimits { failure_logs, failure_log_filter })
    }

    #[test]
    fn a_line_that_matches_a_pattern_is_replaced() {
        let filter = filter(FailureLogRule::Full, &["*password*", "token ????"]);
        let text = "start\n  db PASSWORD is hunter2\r\ntoken abcd\ntoken abcde\n";
        assert_eq!(
            filter.filter_text(text),
            format!("start\n{REMOVED_LINE}\n{REMOVED_LINE}\ntoken abcde\n")
        );
        assert_eq!(filter.filter_text(""), "");
    }

    fn failed_entry() -> JournalEntry {
        let target = UpdateTarget { digest: "d".into(), spec: ModuleParts::default() };
        let mut entry = JournalEntry::new(Uuid::from_u128(1), target);
        let log = "app: setting up\ndb password is hunter2\n";
        let reason = "apt failed: db password is hunter2";
        let report = RunReport {
            remarks: vec!["mark: no\ndb password is hunter2".into(), "a remark".into()],
            ..RunReport::default()
        };
        entry.events.push(AttemptEvent {
            sequence: 1,
            at: DateTime::UNIX_EPOCH,
            boot_id: String::new(),
            kind: EventKind::Failed { failure: Failure::with_log(FailureKind::Apply, reason, log) },
            report: Some(report),
            interruptions: Vec::new(),
        });
        entry
    }

    /// The reason, the log and the remarks of the failed attempt as they are sent.
    fn sent_texts(filter: &ReportFilter) -> Vec<String> {
        let entry = failed_entry();
        let sent = filter.filter_entry(&entry);
        let event = &sent.events[0];
        let failure = event.kind.failure().unwrap();
        let mut texts = vec![failure.reason.clone(), failure.log.clone()];
        texts.extend(event.report.as_ref().unwrap().remarks.iter().cloned());
        texts
    }

    #[test]
    fn every_text_of_an_attempt_is_filtered() {
        let all = sent_texts(&filter(FailureLogRule::Full, &[]));
        assert_eq!(all.concat().matches("hunter2").count(), 3);
        let filtered = sent_texts(&filter(FailureLogRule::Full, &["*password*"]));
        let line = REMOVED_LINE;
        let expected = format!("{line}|app: setting up\n{line}\n|mark: no\n{line}|a remark");
        assert_eq!(filtered.join("|"), expected);
    }

    #[test]
    fn without_failure_logs_only_reasons_and_remarks_of_the_agent_are_sent() {
        let (reason, log) = ("apt failed: db password is hunter2", REMOVED_LOG);
        let expected = format!("{reason}|{log}|mark: no\n{log}|a remark");
        assert_eq!(sent_texts(&filter(FailureLogRule::None, &[])).join("|"), expected);
        assert_eq!(sent_texts(&ReportFilter::without_logs()).join("|"), expected);
    }

    #[test]
    fn texts_of_facts_are_filtered() {
        let mut facts = Facts {
            audit: "fine\nsecret\n".into(),
            warnings: vec!["secret".into(), "fine".into()],
            package_lists: Some(PackageLists { refreshed_at: None, error: "secret".into() }),
            ..Facts::default()
        };
        filter(FailureLogRule::Full, &["secret"]).filter_facts(&mut facts);
        assert_eq!(facts.audit, format!("fine\n{REMOVED_LINE}\n"));
        assert_eq!(facts.warnings, [REMOVED_LINE, "fine"]);
        assert_eq!(facts.package_lists.unwrap().error, REMOVED_LINE);
    }
}
