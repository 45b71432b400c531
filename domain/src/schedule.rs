//! Schedules: what opens windows.

use chrono::{DateTime, TimeDelta};

use crate::Time;
use crate::id::{HostId, SingleScheduleId};
use crate::invalid::Invalid;
use crate::text::Name;
use crate::window::Window;

named! {
    /// What a schedule is for. Only schedules of kind `os_update` open windows for updates (M14).
    ScheduleStatus {
        /// Nothing was said.
        Unspecified = "unspecified",
        /// People work on the node.
        Maintenance = "maintenance",
        /// The node may be updated.
        OsUpdate = "os_update",
    }
}

/// What a schedule is meant for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScheduleTarget {
    /// One host.
    Host(HostId),
}

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
    /// The window that is open or comes next; none if it is over or opens no window for updates.
    ///
    /// An open-ended schedule opens a window of length `max` again and again, without a gap.
    #[must_use]
    pub fn window(&self, now: Time, max: TimeDelta) -> Option<Window> {
        let spec = &self.spec;
        if spec.status != ScheduleStatus::OsUpdate || spec.target.is_none() {
            return None;
        }
        let (start, end) = if let Some(end) = spec.end {
            (spec.start, end)
        } else {
            let length = max.num_seconds().max(1);
            let past = (now - spec.start).num_seconds().max(0) / length;
            let start = spec.start + TimeDelta::seconds(past * length);
            (start, start + TimeDelta::seconds(length))
        };
        (now < end).then_some(Window {
            start,
            end,
            schedule: self.id,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: TimeDelta = TimeDelta::hours(24);

    fn at(hours: i64) -> Time {
        DateTime::UNIX_EPOCH + TimeDelta::hours(1_000_000 + hours)
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
        let window = schedule.window(at(-5), DAY).expect("it is to come");
        assert!(!window.is_open(at(-1)));
        assert!(window.is_open(at(0)));
        assert!(!window.is_open(at(2)));
        assert_eq!(schedule.window(at(2), DAY), None);
    }

    #[test]
    fn an_open_ended_schedule_has_an_end_each_day() {
        let schedule = schedule(ScheduleStatus::OsUpdate, None);
        for hours in [0, 23, 24, 1000] {
            let window = schedule.window(at(hours), DAY).expect("it never ends");
            assert!(window.is_open(at(hours)), "after {hours} hours");
            assert_eq!(window.end - window.start, DAY);
        }
    }

    #[test]
    fn a_maintenance_schedule_opens_no_window_for_updates() {
        assert_eq!(
            schedule(ScheduleStatus::Maintenance, None).window(at(1), DAY),
            None
        );
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
