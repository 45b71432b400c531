//! Warnings about the agent itself, sent with the facts for as long as they apply.

use chrono::TimeDelta;

use super::Agent;
use crate::facts::Facts;
use crate::journal::FileJournal;

/// A smaller difference of the clocks than the first is accepted. The steps keep the text of the
/// warning stable from poll to poll, unlike the exact difference.
const CLOCK_STEPS: [(TimeDelta, &str); 4] = [
    (TimeDelta::minutes(5), "more than 5 minutes"),
    (TimeDelta::hours(1), "more than an hour"),
    (TimeDelta::days(1), "more than a day"),
    (TimeDelta::days(365), "more than a year"),
];

/// Maximum length of a text that the server accepts, in bytes.
const MAX_TEXT_BYTES: usize = 1_000;

impl Agent {
    /// Adds the agent's own warnings and limits to the facts of the node.
    pub(super) fn add_agent_facts(&self, facts: &mut Facts) {
        let mut warnings = FileJournal::quarantined_files(&self.paths.journal());
        warnings.extend(self.owner.warning());
        warnings.extend(self.loop_state.clock_ahead.and_then(clock_warning));
        for warning in warnings {
            let warning = to_short_line(&warning);
            if !facts.warnings.contains(&warning) {
                facts.warnings.push(warning);
            }
        }
        if let Some(lists) = facts.package_lists.as_mut().filter(|lists| lists.error.is_empty()) {
            let status = self.status.get();
            lists.refreshed_at = status.refreshed;
            lists.error = to_short_line(&status.refresh_error);
        }
        if facts.limits.is_empty() {
            facts.limits = to_short_line(&self.owner.summary());
        }
    }
}

/// Warning about a clock that is `ahead` of the server's; `None` if the difference is small.
pub fn clock_warning(ahead: TimeDelta) -> Option<String> {
    let (_, so_far) = CLOCK_STEPS.iter().rev().find(|(least, _)| ahead.abs() >= *least)?;
    let direction = if ahead > TimeDelta::zero() { "ahead of" } else { "behind" };
    Some(format!(
        "this machine's clock is {so_far} {direction} the server's: windows may be missed and certificates refused; \
         set the clock, best with NTP"
    ))
}

/// Removes control characters from a text and limits its length to what the server accepts.
pub(super) fn to_short_line(text: &str) -> String {
    let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let end = line.floor_char_boundary(MAX_TEXT_BYTES);
    line.get(..end).unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_clock_is_a_warning_with_a_stable_text() {
        assert_eq!(clock_warning(TimeDelta::minutes(4)), None);
        assert_eq!(clock_warning(TimeDelta::minutes(-4)), None);
        let five = clock_warning(TimeDelta::minutes(5)).unwrap();
        assert!(five.contains("more than 5 minutes ahead of the server's"), "{five}");
        assert_eq!(clock_warning(TimeDelta::minutes(59)), Some(five));
        let days = clock_warning(TimeDelta::days(-400)).unwrap();
        assert!(days.contains("more than a year behind"), "{days}");
    }

    #[test]
    fn a_warning_is_one_line_of_limited_length() {
        assert_eq!(to_short_line(" a\n\0b "), "a  b");
        let long = to_short_line(&"é".repeat(MAX_TEXT_BYTES));
        assert!(long.len() <= MAX_TEXT_BYTES);
    }
}
