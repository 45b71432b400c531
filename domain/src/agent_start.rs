//! Starts of a node's agent. They show whether two machines use one identity, for example because a disk was copied.

use chrono::TimeDelta;
use serde::{Deserialize, Serialize};

use crate::Time;

/// The number of starts that are stored. Among more copies of a disk, it takes longer until one of them is recognized, and
/// many more are not recognized.
const MAX_STORED_STARTS: usize = 8;

/// After this time with one start, a new start shows that one machine is left. It is longer than any node waits between two
/// polls: copies report in turn within it.
const SOLE_START_PERIOD: TimeDelta = TimeDelta::hours(1);

/// A start of the agent on a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentStart {
    /// The boot of the machine; empty if unknown. Containers share the boot of their host.
    pub boot_id: String,
    /// Random ID of the process of the agent; empty if the agent sends none.
    #[serde(default)]
    pub session: String,
}

impl AgentStart {
    /// Which stored start this one replaces if there are too many: the oldest one, or with a session any one. Otherwise
    /// nine copies that report in turn would each be replaced before they return.
    fn eviction_index(&self) -> usize {
        self.session.bytes().map(usize::from).sum::<usize>() % MAX_STORED_STARTS
    }

    /// Whether nothing identifies the start.
    fn is_unknown(&self) -> bool {
        self.boot_id.is_empty() && self.session.is_empty()
    }

    /// Whether both can come from one machine without a start in between. The boots decide only if an agent sends no
    /// session: a container that moves to another host and back returns to a boot.
    fn is_same(&self, other: &Self) -> bool {
        if self.session.is_empty() || other.session.is_empty() {
            return !self.boot_id.is_empty() && self.boot_id == other.boot_id;
        }
        self.session == other.session
    }

    /// Whether this start is an earlier one and another start has reported since. Without sessions, only another boot is
    /// another start.
    fn returns_to(&self, earlier: &[StoredStart], latest: &Self) -> bool {
        let is_other_boot = latest.boot_id != self.boot_id;
        earlier.iter().map(|stored| &stored.start).any(|one| {
            let have_sessions = !one.session.is_empty() && !self.session.is_empty();
            one.is_same(self) && (have_sessions || is_other_boot)
        })
    }
}

/// What a report of a node shows about its machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartChange {
    /// The report comes from the same start as the one before.
    Unchanged,
    /// The agent or the machine has started again, or a copy of the machine reports for the first time.
    New,
    /// As [`Self::New`], but soon after another start: it may also be one of more copies than there are stored starts. It
    /// says nothing about whether a second machine is left.
    NewSoon,
    /// An earlier start has reported again. No machine returns to an earlier start, so a second machine has reported
    /// meanwhile.
    Returned,
}

/// A start, and since when the node reports it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct StoredStart {
    #[serde(flatten)]
    start: AgentStart,
    /// When it followed another start; `None` if a server of an older release stored it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    since: Option<Time>,
}

/// The starts that a node reported last, each once, the latest one last.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RecentStarts(Vec<StoredStart>);

impl RecentStarts {
    /// Records the start that a report comes from.
    pub fn record(&mut self, start: AgentStart, now: Time) -> StartChange {
        if start.is_unknown() {
            return StartChange::Unchanged;
        }
        let mut since = Some(now);
        let change = match self.0.split_last() {
            Some((latest, _)) if latest.start == start => return StartChange::Unchanged,
            // A changed agent sends a session where it sent none, or the reverse.
            Some((latest, _)) if latest.start.is_same(&start) => {
                since = latest.since;
                StartChange::Unchanged
            }
            Some((latest, earlier)) if start.returns_to(earlier, &latest.start) => {
                StartChange::Returned
            }
            Some((latest, _))
                if latest.since.is_some_and(|since| now < since + SOLE_START_PERIOD) =>
            {
                StartChange::NewSoon
            }
            _ => StartChange::New,
        };
        self.0.retain(|one| one.start != start);
        let removed = start.eviction_index();
        self.0.push(StoredStart { start, since });
        if self.0.len() > MAX_STORED_STARTS {
            self.0.remove(removed);
        }
        change
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use StartChange::{New, NewSoon, Returned, Unchanged};

    fn start(boot_id: &str, session: &str) -> AgentStart {
        AgentStart { boot_id: boot_id.to_owned(), session: session.to_owned() }
    }

    /// The time of a report, if there is one for each period.
    fn time(report: usize) -> Time {
        let periods = i32::try_from(report).expect("a few reports");
        Time::UNIX_EPOCH + SOLE_START_PERIOD * periods
    }

    fn changes(starts: &[(&str, &str)]) -> Vec<StartChange> {
        let mut recent = RecentStarts::default();
        let reports = starts.iter().enumerate();
        reports
            .map(|(number, (boot_id, session))| {
                recent.record(start(boot_id, session), time(number))
            })
            .collect()
    }

    #[test]
    fn a_restart_is_no_second_machine() {
        assert_eq!(changes(&[("a", "1"), ("a", "1"), ("b", "2")]), [New, Unchanged, New]);
        assert_eq!(changes(&[("a", "1"), ("a", "2"), ("a", "3")]), [New; 3], "agent restarts");
        // A snapshot that is restored starts again.
        assert_eq!(changes(&[("a", "1"), ("b", "2"), ("c", "3")]), [New; 3]);
        // A container moves to another host and back.
        assert_eq!(changes(&[("a", "1"), ("b", "2"), ("a", "3")]), [New; 3]);
        assert_eq!(changes(&[("", "")]), [Unchanged], "nothing is reported");
    }

    #[test]
    fn a_machine_that_returns_to_an_earlier_start_has_a_copy() {
        assert_eq!(changes(&[("a", "1"), ("b", "2"), ("a", "1")]), [New, New, Returned]);
        // Containers on one host have one boot.
        assert_eq!(changes(&[("a", "1"), ("a", "2"), ("a", "1")]), [New, New, Returned]);
        // Agents that send no session.
        assert_eq!(changes(&[("a", ""), ("b", ""), ("a", "")]), [New, New, Returned]);
        // One of them was updated.
        assert_eq!(changes(&[("a", "1"), ("b", ""), ("a", "1")]), [New, New, Returned]);
        let three = [("a", "1"), ("b", "2"), ("c", "3"), ("a", "1")];
        assert_eq!(changes(&three), [New, New, New, Returned]);
    }

    #[test]
    fn more_copies_than_stored_starts_that_report_in_turn_are_recognized() {
        for copies in MAX_STORED_STARTS + 1..2 * MAX_STORED_STARTS {
            let mut recent = RecentStarts::default();
            let order = (0..4 * copies).map(|number| number % copies);
            let changes: Vec<_> = order
                .enumerate()
                .map(|(number, copy)| {
                    let now =
                        Time::UNIX_EPOCH + TimeDelta::seconds(20) * i32::try_from(number).unwrap();
                    recent.record(start("host", &copy.to_string()), now)
                })
                .collect();
            assert!(changes.contains(&Returned), "{copies} copies: {changes:?}");
            let (first, others) = changes.split_first().expect("reports");
            assert_eq!(*first, New);
            assert!(!others.contains(&New), "{copies} copies never look like one: {changes:?}");
        }
    }

    #[test]
    fn a_new_start_shows_one_machine_only_after_an_hour_with_one_start() {
        let mut recent = RecentStarts::default();
        let mut record = |session: &str, minutes| {
            let now = Time::UNIX_EPOCH + TimeDelta::minutes(minutes);
            recent.record(start("host", session), now)
        };
        assert_eq!((record("1", 0), record("2", 59)), (New, NewSoon));
        assert_eq!((record("2", 118), record("3", 119)), (Unchanged, New));
        assert_eq!((record("2", 120), record("4", 121)), (Returned, NewSoon));
    }

    #[test]
    fn starts_that_an_older_server_stored_are_read() {
        let stored = r#"[{"boot_id":"a","session":"1"},{"boot_id":"b"}]"#;
        let mut recent: RecentStarts = serde_json::from_str(stored).expect("starts");
        assert_eq!(serde_json::to_value(&recent).expect("JSON")[0]["session"], "1");
        assert_eq!(recent.record(start("c", "2"), Time::UNIX_EPOCH), New);
        assert_eq!(recent.record(start("a", "1"), Time::UNIX_EPOCH), Returned);
    }

    #[test]
    fn an_agent_that_is_updated_and_replaced_by_the_older_version_is_one_machine() {
        let starts = [("a", ""), ("a", "1"), ("a", ""), ("a", "2")];
        assert_eq!(changes(&starts), [New, Unchanged, Unchanged, Unchanged]);
        let restarted = [("a", ""), ("a", "1"), ("a", "2"), ("b", "3")];
        assert_eq!(changes(&restarted), [New, Unchanged, New, New]);
    }

    proptest! {
        /// One machine: it reboots (0), its agent restarts (1), or its agent is replaced by a version that sends sessions or
        /// none (2). A disk that is reset to a snapshot boots as well.
        #[test]
        fn one_machine_never_looks_like_two(steps in prop::collection::vec(0..3_u8, 1..40), repeats in 1..4_u8) {
            let mut recent = RecentStarts::default();
            let (mut boot, mut sends_session) = (0, true);
            for (number, step) in steps.iter().enumerate() {
                let now = time(number);
                match step {
                    0 => boot += 1,
                    1 => {}
                    _ => sends_session = !sends_session,
                }
                let session = if sends_session { number.to_string() } else { String::new() };
                for _ in 0..repeats {
                    let change = recent.record(start(&boot.to_string(), &session), now);
                    prop_assert_ne!(change, Returned);
                }
            }
        }

        /// Copies that all report within the stored starts, in any order, are recognized when the first one returns.
        #[test]
        fn copies_are_recognized_when_one_returns(
            copies in 2..=MAX_STORED_STARTS,
            order in prop::collection::vec(any::<prop::sample::Index>(), 3..40),
        ) {
            let mut recent = RecentStarts::default();
            let mut latest = None;
            let mut reported = std::collections::BTreeSet::new();
            for (number, index) in order.into_iter().enumerate() {
                let copy = index.index(copies);
                let change = recent.record(start("host", &copy.to_string()), time(number));
                let expected = match (latest == Some(copy), reported.insert(copy)) {
                    (true, _) => Unchanged,
                    (false, true) => New,
                    (false, false) => Returned,
                };
                prop_assert_eq!(change, expected);
                latest = Some(copy);
            }
        }
    }
}
