//! Schedules that open once.

use chrono::{DateTime, TimeDelta};

use super::{ScheduleStatus, ScheduleTarget, WindowQuery};
use crate::Time;
use crate::id::SingleScheduleId;
use crate::invalid::Invalid;
use crate::text::Name;
use crate::window::{Opener, Window};

/// A schedule that opens once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SingleSchedule {
    pub id: SingleScheduleId,
    pub spec: SingleSpec,
    pub created_at: Time,
    pub updated_at: Time,
}

/// Content of a single schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SingleSpec {
    /// May be empty.
    pub name: Name,
    /// Its purpose.
    pub status: ScheduleStatus,
    pub start: Time,
    /// When it closes; `None` for an open-ended schedule.
    pub end: Option<Time>,
    /// What it applies to; a schedule without a target is stored and opens nothing.
    pub target: Option<ScheduleTarget>,
}

impl SingleSpec {
    /// Parses the times of a schedule, in Unix seconds. An `end` of 0 is rejected.
    ///
    /// # Errors
    /// The start is not in the future, or the end is not after the start.
    pub fn parse_times(
        start: u32,
        end: Option<u32>,
        now: Time,
    ) -> Result<(Time, Option<Time>), Invalid> {
        let start = from_unix_seconds(start);
        if start <= now {
            return Err(Invalid::new("startSeconds", "must be in the future"));
        }
        let end = end.map(from_unix_seconds);
        if end.is_some_and(|end| end <= start) {
            return Err(Invalid::new("endSeconds", "must be after startSeconds"));
        }
        Ok((start, end))
    }
}

fn from_unix_seconds(seconds: u32) -> Time {
    DateTime::UNIX_EPOCH + TimeDelta::seconds(i64::from(seconds))
}

impl SingleSchedule {
    /// The windows that are open or to come; none if the schedule has ended, has no target, or opens no windows for
    /// updates.
    ///
    /// An open-ended schedule opens windows of the maximum length, one after the other without a gap.
    #[must_use]
    pub fn windows_from(&self, query: &WindowQuery) -> Vec<Window> {
        if !query.filter.admits(self.spec.status) || self.spec.target.is_none() {
            return Vec::new();
        }
        let window = |(start, end)| Window { start, end, opener: Opener::Single(self.id) };
        let Some(end) = self.spec.end else {
            return query.select(self.endless_spans(query).map(window));
        };
        let only = (query.now < end).then_some((self.spec.start, end));
        query.select(only.into_iter().map(window))
    }

    /// The windows of an open-ended schedule, from the open one on.
    fn endless_spans(&self, query: &WindowQuery) -> impl Iterator<Item = (Time, Time)> {
        let start = self.spec.start;
        let length = query.max_window.num_seconds().max(1);
        let past = (query.now - start).num_seconds().max(0) / length;
        let edge = move |n: i64| {
            let seconds = n.checked_mul(length)?;
            start.checked_add_signed(TimeDelta::try_seconds(seconds)?)
        };
        (past..).map_while(move |n| Some((edge(n)?, edge(n + 1)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::ScheduleFilter;
    use super::*;
    use crate::id::{HostId, SiteId};

    const DAY: TimeDelta = TimeDelta::hours(24);

    fn at(hours: i64) -> Time {
        DateTime::UNIX_EPOCH + TimeDelta::hours(1_000_000 + hours)
    }

    fn query(now: Time, days: i64) -> WindowQuery {
        WindowQuery {
            now,
            until: now + TimeDelta::days(days),
            limit: 100,
            max_window: DAY,
            filter: ScheduleFilter::OsUpdate,
        }
    }

    fn schedule(status: ScheduleStatus, end: Option<Time>) -> SingleSchedule {
        SingleSchedule {
            id: SingleScheduleId::nth(1),
            spec: SingleSpec {
                name: Name::default(),
                status,
                start: at(0),
                end,
                target: Some(ScheduleTarget::Host(HostId::nth(1))),
            },
            created_at: at(-1),
            updated_at: at(-1),
        }
    }

    #[test]
    fn a_window_opens_at_its_start_and_closes_at_its_end() {
        let schedule = schedule(ScheduleStatus::OsUpdate, Some(at(2)));
        let windows = schedule.windows_from(&query(at(-50), 1));
        let [window] = windows.as_slice() else {
            panic!("the next window is included, however far away it is");
        };
        assert!(!window.is_open(at(-1)));
        assert!(window.is_open(at(0)));
        assert!(!window.is_open(at(2)));
        assert_eq!(schedule.windows_from(&query(at(2), 1)), []);
    }

    #[test]
    fn an_open_ended_schedule_has_an_end_each_day() {
        let schedule = schedule(ScheduleStatus::OsUpdate, None);
        for hours in [0, 23, 24, 1000] {
            let windows = schedule.windows_from(&query(at(hours), 7));
            assert!(windows[0].is_open(at(hours)), "after {hours} hours");
            assert_eq!(windows[0].end - windows[0].start, DAY);
            assert_eq!(windows[0].end, windows[1].start);
            let week = if hours % 24 == 0 { 7 } else { 8 };
            assert_eq!(windows.len(), week, "after {hours} hours");
        }
    }

    #[test]
    fn an_open_ended_schedule_shows_what_comes_next() {
        let schedule = schedule(ScheduleStatus::OsUpdate, None);
        let starts = |now, until| {
            let windows = schedule.windows_from(&WindowQuery { until, ..query(now, 0) });
            windows.iter().map(|w| w.start).collect::<Vec<_>>()
        };
        assert_eq!(starts(at(-9), at(-9)), [at(0)]);
        assert_eq!(starts(at(1), at(1)), [at(0), at(24)]);
        assert_eq!(starts(at(1), at(24)), [at(0), at(24)]);
        assert_eq!(starts(at(1), at(49)), [at(0), at(24), at(48)]);
    }

    #[test]
    fn only_a_schedule_for_updates_opens_a_window_unless_any_does() {
        for status in ScheduleStatus::ALL {
            let schedule = schedule(*status, Some(at(2)));
            let strict = query(at(1), 1);
            let any = WindowQuery { filter: ScheduleFilter::from_setting(true), ..strict };
            let is_for_updates = *status == ScheduleStatus::OsUpdate;
            assert_eq!(!schedule.windows_from(&strict).is_empty(), is_for_updates);
            assert_eq!(schedule.windows_from(&any).len(), 1, "{status}");
        }
    }

    #[test]
    fn without_a_target_nothing_opens() {
        let mut schedule = schedule(ScheduleStatus::OsUpdate, Some(at(2)));
        schedule.spec.target = Some(ScheduleTarget::Site(SiteId::nth(1)));
        assert_eq!(schedule.windows_from(&query(at(1), 1)).len(), 1);
        schedule.spec.target = None;
        assert_eq!(schedule.windows_from(&query(at(1), 1)), []);
    }

    #[test]
    fn a_window_cannot_begin_in_the_past_or_end_before_it_begins() {
        let now = DateTime::UNIX_EPOCH + TimeDelta::seconds(1_000);
        let field = |start, end| SingleSpec::parse_times(start, end, now).expect_err("bad").field;
        assert_eq!(field(1_000, None), "startSeconds");
        assert_eq!(field(2_000, Some(2_000)), "endSeconds");
        assert_eq!(field(2_000, Some(0)), "endSeconds");
        assert!(SingleSpec::parse_times(1_001, Some(1_002), now).is_ok());
    }
}
