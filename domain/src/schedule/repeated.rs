//! Schedules that open repeatedly.

use std::iter;

use chrono::TimeDelta;

use super::{Cron, ScheduleStatus, ScheduleTarget, WindowQuery, Zone};
use crate::Time;
use crate::id::RepeatedScheduleId;
use crate::invalid::Invalid;
use crate::text::Name;
use crate::window::{Opener, Window};

/// A schedule that opens repeatedly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepeatedSchedule {
    pub id: RepeatedScheduleId,
    pub spec: RepeatedSpec,
    pub created_at: Time,
    pub updated_at: Time,
}

/// Content of a repeated schedule.
///
/// The cron expression matches local times of the zone. When the local clock changes:
///
/// - A skipped local time opens at the instant of the change. Clocks in Berlin go from 2:00 to 3:00 in March, so `30 2`
///   opens at 3:00 on that day: every night has its window, and nothing opens twice.
/// - A repeated local time opens the first time only. Clocks in Berlin go from 3:00 back to 2:00 in October, so `30 2`
///   opens at the first 2:30. Only an expression for every hour opens both times; otherwise an hour would have no window.
/// - A window has the same length on any day: its end is counted in seconds, not in local time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepeatedSpec {
    /// May be empty.
    pub name: Name,
    /// Its purpose.
    pub status: ScheduleStatus,
    /// How long a window stays open.
    pub duration: TimeDelta,
    pub cron: Cron,
    /// Time zone of the cron expression.
    pub zone: Zone,
    /// What it applies to; a schedule without a target is stored and opens nothing.
    pub target: Option<ScheduleTarget>,
}

impl RepeatedSpec {
    /// Maximum duration.
    pub const MAX_DURATION: TimeDelta = TimeDelta::seconds(86_400);

    /// Parses a duration in seconds.
    ///
    /// # Errors
    /// The duration is 0 or more than a day.
    pub fn duration(seconds: u32) -> Result<TimeDelta, Invalid> {
        let duration = TimeDelta::seconds(i64::from(seconds));
        if duration < TimeDelta::seconds(1) || Self::MAX_DURATION < duration {
            return Err(Invalid::new("durationSeconds", "must be from 1 to 86400"));
        }
        Ok(duration)
    }

    /// The cron expression as EIM agents understand it, in the order of the fields; `None` if it needs another zone than
    /// UTC or the last day of the month.
    #[must_use]
    pub fn as_lists(&self) -> Option<[String; 5]> {
        self.zone.is_utc().then(|| self.cron.as_lists()).flatten()
    }

    /// The span that is open at an instant, whatever the purpose of the schedule. Of several spans it returns the one that
    /// began last, which also ends last.
    #[must_use]
    pub fn open_span(&self, now: Time) -> Option<(Time, Time)> {
        let longest_ago = now.checked_sub_signed(self.duration)?;
        let first = self.next_start(longest_ago).filter(|start| *start <= now)?;
        self.span(self.last_start(first, now))
    }

    /// The spans that begin after an instant, earliest first, whatever the purpose of the schedule.
    pub fn spans_after(&self, now: Time) -> impl Iterator<Item = (Time, Time)> {
        let starts = iter::successors(self.next_start(now), |start| self.next_start(*start));
        starts.map_while(|start| self.span(start))
    }

    fn span(&self, start: Time) -> Option<(Time, Time)> {
        Some((start, start.checked_add_signed(self.duration)?))
    }

    /// The last start that is not after `now`, by bisection. `first` is a start that is not after `now`.
    fn last_start(&self, first: Time, now: Time) -> Time {
        // No start lies after `until` and at or before `now`.
        let (mut last, mut until) = (first, now);
        let within = |after: Time, until: Time| self.next_start(after).filter(|s| *s <= until);
        while let Some(next) = within(last, until) {
            last = next;
            let middle = last + (until - last) / 2;
            match within(middle, until) {
                Some(later) => last = later,
                None => until = middle,
            }
        }
        last
    }

    /// The first start after an instant.
    fn next_start(&self, after: Time) -> Option<Time> {
        let first = self.next_start_by(after, |(first, _)| first);
        if !self.cron.opens_every_hour() {
            return first;
        }
        let again = self.next_start_by(after, |(_, last)| last);
        first.into_iter().chain(again).min()
    }

    /// The first start after an instant, if `pick` chooses one of the two instants of a repeated local time. Then a later
    /// local time never comes earlier, so the first local time that comes late enough is the one.
    fn next_start_by(&self, after: Time, pick: fn((Time, Time)) -> Time) -> Option<Time> {
        let local_time = self.zone.local_time(after)?;
        // In a repeated span an earlier local time may come again; at most as far back as the clock goes.
        let (first, last) = self.zone.instants_of(local_time)?;
        let mut from = local_time.checked_sub_signed(last - first)?;
        loop {
            let local_time = self.cron.next_local_time(from)?;
            let start = pick(self.zone.instants_of(local_time)?);
            if after < start {
                return Some(start);
            }
            from = local_time.checked_add_signed(TimeDelta::minutes(1))?;
        }
    }
}

impl RepeatedSchedule {
    /// The windows that are open or to come, earliest first; none if the schedule has no target, opens no windows for
    /// updates, or its cron expression never matches, as for 30 February.
    ///
    /// Of its windows that are open at the same time, only the one that began last is included.
    #[must_use]
    pub fn windows_from(&self, query: &WindowQuery) -> Vec<Window> {
        let spec = &self.spec;
        if !query.filter.admits(spec.status) || spec.target.is_none() {
            return Vec::new();
        }
        let spans = spec.open_span(query.now).into_iter().chain(spec.spans_after(query.now));
        query.select(spans.map(|(start, end)| Window {
            start,
            end,
            opener: Opener::Repeated(self.id),
        }))
    }
}
