//! Schedule of the refreshes of the package lists.
//!
//! Each node has a stable position in the interval, derived from its UUID, and refreshes at this
//! position in each interval. So the nodes of a site do not query the mirror together, also after
//! all of them were started at the same time.

use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};

use chrono::{DateTime, TimeDelta, Utc};
use uuid::Uuid;

/// Nodes that start with outdated lists, such as after a power cut of a site, refresh them within
/// this time.
const START_SPREAD: TimeDelta = TimeDelta::minutes(30);

/// Number of positions in an interval.
const POSITIONS: i64 = 1 << 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RefreshSchedule {
    /// In milliseconds; 0 if each round refreshes.
    interval: i64,
    /// In `0..POSITIONS`.
    position: i64,
}

impl RefreshSchedule {
    /// A machine without a UUID has the first position.
    pub(super) fn new(interval: TimeDelta, node: Option<Uuid>) -> Self {
        // Without random keys, so that the position is the same after each start.
        let hash = |uuid| BuildHasherDefault::<DefaultHasher>::default().hash_one(uuid);
        let position = node.map_or(0, |uuid: Uuid| (hash(uuid) >> 32).cast_signed());
        Self { interval: interval.num_milliseconds().max(0), position }
    }

    /// The first refresh after a refresh at `last`, at most an interval later. `None` if it is
    /// beyond all dates.
    pub(super) fn next_after(self, last: DateTime<Utc>) -> Option<DateTime<Utc>> {
        if self.interval == 0 {
            return Some(last);
        }
        let offset = self.scale_to(self.interval);
        let since_offset = last.timestamp_millis().checked_sub(offset)?;
        let passed = since_offset.rem_euclid(self.interval);
        DateTime::from_timestamp_millis(
            last.timestamp_millis().checked_add(self.interval - passed)?,
        )
    }

    /// How long a node that starts with outdated lists waits before it refreshes them.
    pub(super) fn start_delay(self) -> TimeDelta {
        let most = START_SPREAD.num_milliseconds().min(self.interval);
        TimeDelta::milliseconds(self.scale_to(most))
    }

    /// The position as a part of `length`, less than `length`.
    fn scale_to(self, length: i64) -> i64 {
        let scaled = i128::from(length) * i128::from(self.position) / i128::from(POSITIONS);
        i64::try_from(scaled).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HOURS: TimeDelta = TimeDelta::hours(4);

    fn at(seconds: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(seconds, 0).unwrap()
    }

    fn node(number: u128) -> RefreshSchedule {
        RefreshSchedule::new(HOURS, Some(Uuid::from_u128(number)))
    }

    #[test]
    fn a_node_without_an_identity_refreshes_at_multiples_of_the_interval() {
        let schedule = RefreshSchedule::new(HOURS, None);
        let start = at(20_000 * 86_400);
        assert_eq!(schedule.next_after(start), Some(start + HOURS));
        assert_eq!(schedule.next_after(start + TimeDelta::hours(3)), Some(start + HOURS));
        assert_eq!(schedule.start_delay(), TimeDelta::zero());
        let always = RefreshSchedule::new(TimeDelta::zero(), Some(Uuid::from_u128(7)));
        assert_eq!(always.next_after(start), Some(start));
        let never = RefreshSchedule::new(TimeDelta::MAX, Some(Uuid::from_u128(7)));
        assert_eq!(never.next_after(start), None);
    }

    #[test]
    fn nodes_that_start_together_are_spread_over_the_interval() {
        let start = at(20_000 * 86_400);
        let mut per_tenth = [0_u32; 10];
        let mut delays_per_tenth = [0_u32; 10];
        let tenth = |part: TimeDelta, whole: TimeDelta| {
            usize::try_from(part.num_milliseconds() * 10 / whole.num_milliseconds()).unwrap()
        };
        for number in 0..1_000 {
            let schedule = node(number);
            let next = schedule.next_after(start).unwrap();
            per_tenth[tenth(next - start - TimeDelta::milliseconds(1), HOURS)] += 1;
            delays_per_tenth[tenth(schedule.start_delay(), START_SPREAD)] += 1;
        }
        for counts in [per_tenth, delays_per_tenth] {
            assert!(counts.iter().all(|count| (60..=140).contains(count)), "{counts:?}");
        }
    }

    proptest! {
        #[test]
        fn a_refresh_is_at_most_an_interval_later_and_always_at_the_same_position(
            number in any::<u128>(),
            minutes in 1_i64..10_000,
            last in 0_i64..4_000_000_000,
        ) {
            let interval = TimeDelta::minutes(minutes);
            let schedule = RefreshSchedule::new(interval, Some(Uuid::from_u128(number)));
            let last = at(last);
            let next = schedule.next_after(last).unwrap();
            prop_assert!(last < next && next <= last + interval);
            prop_assert_eq!(schedule.next_after(next), Some(next + interval));
            // A refresh in between does not move the next one.
            let between = last + (next - last) / 2;
            prop_assert_eq!(schedule.next_after(between), Some(next));
            prop_assert!(schedule.start_delay() < interval.min(START_SPREAD));
        }
    }
}
