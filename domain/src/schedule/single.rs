//! Schedules that open once.

use chrono::{DateTime, TimeDelta};

use super::{Ahead, ScheduleStatus, ScheduleTarget};
use crate::Time;
use crate::id::SingleScheduleId;
use crate::invalid::Invalid;
use crate::text::Name;
use crate::window::{Opener, Window};

/// A schedule that opens once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SingleSchedule {
    /// Its id.
    pub id: SingleScheduleId,
    /// What it says.
    pub spec: SingleSpec,
    /// When it was made.
    pub created_at: Time,
    /// When it was last changed.
    pub updated_at: Time,
}

/// What a single schedule says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SingleSpec {
    /// May be empty.
    pub name: Name,
    /// What it is for.
    pub status: ScheduleStatus,
    /// When it opens.
    pub start: Time,
    /// When it closes; none is open-ended.
    pub end: Option<Time>,
    /// What it is meant for; a schedule without a target is kept and opens nothing.
    pub target: Option<ScheduleTarget>,
}

impl SingleSpec {
    /// Reads the times of a schedule, in Unix seconds; an `end` of 0 is not an end but a mistake.
    ///
    /// # Errors
    /// The start is not in the future, or the end is not after the start.
    pub fn times(start: u32, end: Option<u32>, now: Time) -> Result<(Time, Option<Time>), Invalid> {
        let start = instant(start);
        if start <= now {
            return Err(Invalid::new("startSeconds", "must be in the future"));
        }
        let end = end.map(instant);
        if end.is_some_and(|end| end <= start) {
            return Err(Invalid::new("endSeconds", "must be after startSeconds"));
        }
        Ok((start, end))
    }
}

fn instant(seconds: u32) -> Time {
    DateTime::UNIX_EPOCH + TimeDelta::seconds(i64::from(seconds))
}

impl SingleSchedule {
    /// The windows that are open or to come; none if it is over, has no target, or opens no window for updates.
    ///
    /// An open-ended schedule opens windows of the greatest length, one after the other without a gap.
    #[must_use]
    pub fn windows_from(&self, ahead: &Ahead) -> Vec<Window> {
        if !ahead.opens.admits(self.spec.status) || self.spec.target.is_none() {
            return Vec::new();
        }
        let window = |(start, end)| Window {
            start,
            end,
            opener: Opener::Single(self.id),
        };
        let Some(end) = self.spec.end else {
            return ahead.take(self.endless(ahead).map(window));
        };
        let only = (ahead.now < end).then_some((self.spec.start, end));
        ahead.take(only.into_iter().map(window))
    }

    /// The windows of an open-ended schedule, from the one that is open.
    fn endless(&self, ahead: &Ahead) -> impl Iterator<Item = (Time, Time)> {
        let start = self.spec.start;
        let length = ahead.max_window.num_seconds().max(1);
        let past = (ahead.now - start).num_seconds().max(0) / length;
        let edge = move |n: i64| {
            let seconds = n.checked_mul(length)?;
            start.checked_add_signed(TimeDelta::try_seconds(seconds)?)
        };
        (past..).map_while(move |n| Some((edge(n)?, edge(n + 1)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::Opens;
    use super::*;
    use crate::id::{HostId, SiteId};

    const DAY: TimeDelta = TimeDelta::hours(24);

    fn at(hours: i64) -> Time {
        DateTime::UNIX_EPOCH + TimeDelta::hours(1_000_000 + hours)
    }

    fn ahead(now: Time, days: i64) -> Ahead {
        Ahead {
            now,
            until: now + TimeDelta::days(days),
            limit: 100,
            max_window: DAY,
            opens: Opens::OsUpdate,
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
    fn a_window_opens_at_its_start_and_is_over_at_its_end() {
        let schedule = schedule(ScheduleStatus::OsUpdate, Some(at(2)));
        let windows = schedule.windows_from(&ahead(at(-50), 1));
        let [window] = windows.as_slice() else {
            panic!("the next window counts, however far it is");
        };
        assert!(!window.is_open(at(-1)));
        assert!(window.is_open(at(0)));
        assert!(!window.is_open(at(2)));
        assert_eq!(schedule.windows_from(&ahead(at(2), 1)), []);
    }

    #[test]
    fn an_open_ended_schedule_has_an_end_each_day() {
        let schedule = schedule(ScheduleStatus::OsUpdate, None);
        for hours in [0, 23, 24, 1000] {
            let windows = schedule.windows_from(&ahead(at(hours), 7));
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
            let windows = schedule.windows_from(&Ahead {
                until,
                ..ahead(now, 0)
            });
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
            let strict = ahead(at(1), 1);
            let any = Ahead {
                opens: Opens::from_setting(true),
                ..strict
            };
            let is_for_updates = *status == ScheduleStatus::OsUpdate;
            assert_eq!(!schedule.windows_from(&strict).is_empty(), is_for_updates);
            assert_eq!(schedule.windows_from(&any).len(), 1, "{status}");
        }
    }

    #[test]
    fn without_a_target_nothing_opens() {
        let mut schedule = schedule(ScheduleStatus::OsUpdate, Some(at(2)));
        schedule.spec.target = Some(ScheduleTarget::Site(SiteId::nth(1)));
        assert_eq!(schedule.windows_from(&ahead(at(1), 1)).len(), 1);
        schedule.spec.target = None;
        assert_eq!(schedule.windows_from(&ahead(at(1), 1)), []);
    }

    #[test]
    fn a_window_cannot_begin_in_the_past_or_end_before_it_begins() {
        let now = DateTime::UNIX_EPOCH + TimeDelta::seconds(1_000);
        let field = |start, end| SingleSpec::times(start, end, now).expect_err("bad").field;
        assert_eq!(field(1_000, None), "startSeconds");
        assert_eq!(field(2_000, Some(2_000)), "endSeconds");
        assert_eq!(field(2_000, Some(0)), "endSeconds");
        assert!(SingleSpec::times(1_001, Some(1_002), now).is_ok());
    }
}
