//! Starts of a node's agent. They show whether two machines use one identity, for example because a disk was copied.

use serde::{Deserialize, Serialize};

/// The number of starts that are stored. Among more copies of a disk, it takes longer until one of them is recognized, and
/// many more are not recognized.
const MAX_STORED_STARTS: usize = 8;

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
    fn returns_to(&self, earlier: &[Self], latest: &Self) -> bool {
        let is_other_boot = latest.boot_id != self.boot_id;
        earlier.iter().any(|one| {
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
    /// An earlier start has reported again. No machine returns to an earlier start, so a second machine has reported
    /// meanwhile.
    Returned,
}

/// The starts that a node reported last, each once, the latest one last.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RecentStarts(Vec<AgentStart>);

impl RecentStarts {
    /// Records the start that a report comes from.
    pub fn record(&mut self, start: AgentStart) -> StartChange {
        if start.is_unknown() {
            return StartChange::Unchanged;
        }
        let change = match self.0.split_last() {
            Some((latest, _)) if *latest == start => return StartChange::Unchanged,
            // A changed agent sends a session where it sent none, or the reverse.
            Some((latest, _)) if latest.is_same(&start) => StartChange::Unchanged,
            Some((latest, earlier)) if start.returns_to(earlier, latest) => StartChange::Returned,
            _ => StartChange::New,
        };
        self.0.retain(|one| *one != start);
        let removed = start.eviction_index();
        self.0.push(start);
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
    use StartChange::{New, Returned, Unchanged};

    fn start(boot_id: &str, session: &str) -> AgentStart {
        AgentStart { boot_id: boot_id.to_owned(), session: session.to_owned() }
    }

    fn changes(starts: &[(&str, &str)]) -> Vec<StartChange> {
        let mut recent = RecentStarts::default();
        starts.iter().map(|(boot_id, session)| recent.record(start(boot_id, session))).collect()
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
            let changes: Vec<_> =
                order.map(|copy| recent.record(start("host", &copy.to_string()))).collect();
            assert!(changes.contains(&Returned), "{copies} copies: {changes:?}");
        }
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
                match step {
                    0 => boot += 1,
                    1 => {}
                    _ => sends_session = !sends_session,
                }
                let session = if sends_session { number.to_string() } else { String::new() };
                for _ in 0..repeats {
                    let change = recent.record(start(&boot.to_string(), &session));
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
            for index in order {
                let copy = index.index(copies);
                let change = recent.record(start("host", &copy.to_string()));
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
