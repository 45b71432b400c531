//! What a person should know of the agent itself, told with the facts until it has passed.

use chrono::TimeDelta;

use super::Agent;
use crate::facts::Facts;
use crate::journal::FileJournal;

/// A clock that differs by less than the first is right enough. The others only make the words fit: they do not change
/// with every poll, as the difference itself would.
const STEPS: [(TimeDelta, &str); 4] = [
    (TimeDelta::minutes(5), "more than 5 minutes"),
    (TimeDelta::hours(1), "more than an hour"),
    (TimeDelta::days(1), "more than a day"),
    (TimeDelta::days(365), "more than a year"),
];

/// No text is longer than this: a server takes no more.
const MOST_TEXT: usize = 1_000;

impl Agent {
    /// Adds what the agent knows of itself to what was read of the node.
    pub(super) fn complete(&self, facts: &mut Facts) {
        let mut troubles = FileJournal::set_asides(&self.place.journal());
        troubles.extend(self.owner.trouble());
        troubles.extend(self.memory.ahead.and_then(of_clock));
        for trouble in troubles {
            let trouble = brief(&trouble);
            if !facts.troubles.contains(&trouble) {
                facts.troubles.push(trouble);
            }
        }
        if facts.limits.is_empty() {
            facts.limits = brief(&self.owner.summary());
        }
    }
}

/// What a clock that is so far ahead of the server's means; `None` if it is right.
pub fn of_clock(ahead: TimeDelta) -> Option<String> {
    let (_, so_far) = STEPS
        .iter()
        .rev()
        .find(|(least, _)| ahead.abs() >= *least)?;
    let direction = if ahead > TimeDelta::zero() {
        "ahead of"
    } else {
        "behind"
    };
    Some(format!(
        "this machine's clock is {so_far} {direction} the server's: windows may be missed and certificates refused; \
         set the clock, best with NTP"
    ))
}

/// A text without what does not belong into a line, and not longer than the server takes.
pub(super) fn brief(text: &str) -> String {
    let line: String = text
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    let end = line.floor_char_boundary(MOST_TEXT);
    line.get(..end).unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_is_told_of_when_it_is_wrong_and_in_words_that_stay() {
        assert_eq!(of_clock(TimeDelta::minutes(4)), None);
        assert_eq!(of_clock(TimeDelta::minutes(-4)), None);
        let five = of_clock(TimeDelta::minutes(5)).unwrap();
        assert!(
            five.contains("more than 5 minutes ahead of the server's"),
            "{five}"
        );
        assert_eq!(of_clock(TimeDelta::minutes(59)), Some(five));
        let days = of_clock(TimeDelta::days(-400)).unwrap();
        assert!(days.contains("more than a year behind"), "{days}");
    }

    #[test]
    fn what_is_told_is_one_line_that_the_server_takes() {
        assert_eq!(brief(" a\n\0b "), "a  b");
        let long = brief(&"é".repeat(MOST_TEXT));
        assert!(long.len() <= MOST_TEXT);
    }
}
