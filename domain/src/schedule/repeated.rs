//! Schedules that open again and again.

use std::iter;

use chrono::TimeDelta;

use super::{Ahead, Cron, ScheduleStatus, ScheduleTarget, Zone};
use crate::Time;
use crate::id::RepeatedScheduleId;
use crate::invalid::Invalid;
use crate::text::Name;
use crate::window::{Opener, Window};

/// A schedule that opens again and again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepeatedSchedule {
    /// Its id.
    pub id: RepeatedScheduleId,
    /// What it says.
    pub spec: RepeatedSpec,
    /// When it was made.
    pub created_at: Time,
    /// When it was last changed.
    pub updated_at: Time,
}

/// What a repeated schedule says.
///
/// The cron names readings of the clock of a zone. When the clock is changed:
///
/// - What it skips opens at the instant of the change. Clocks in Berlin go from 2:00 to 3:00 in March, so that `30 2`
///   opens at 3:00 on that day: no night is without its window, and nothing opens twice.
/// - What it shows twice opens the first time only. Clocks in Berlin go from 3:00 back to 2:00 in October, so that
///   `30 2` opens at the first 2:30. Only a cron for every hour opens both times, or an hour would be without a window.
/// - A window is as long as its duration on any day: its end is counted in seconds, not read from the clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepeatedSpec {
    /// May be empty.
    pub name: Name,
    /// What it is for.
    pub status: ScheduleStatus,
    /// How long it stays open.
    pub duration: TimeDelta,
    /// When it opens.
    pub cron: Cron,
    /// Whose clock the cron means.
    pub zone: Zone,
    /// What it is meant for; a schedule without a target is kept and opens nothing.
    pub target: Option<ScheduleTarget>,
}

impl RepeatedSpec {
    /// The longest duration.
    pub const MAX_DURATION: TimeDelta = TimeDelta::seconds(86_400);

    /// Reads a duration in seconds.
    ///
    /// # Errors
    /// It is 0 or more than a day.
    pub fn duration(seconds: u32) -> Result<TimeDelta, Invalid> {
        let duration = TimeDelta::seconds(i64::from(seconds));
        if duration < TimeDelta::seconds(1) || Self::MAX_DURATION < duration {
            return Err(Invalid::new("durationSeconds", "must be from 1 to 86400"));
        }
        Ok(duration)
    }

    /// The cron as one of EIM's agents understands it, in the order of the fields; none if it needs another zone than
    /// UTC or the last day of the month.
    #[must_use]
    pub fn as_lists(&self) -> Option<[String; 5]> {
        self.zone.is_utc().then(|| self.cron.as_lists()).flatten()
    }

    /// The span that is open at an instant, whatever the schedule is for; of several the one that began last, which
    /// also ends last.
    #[must_use]
    pub fn open(&self, now: Time) -> Option<(Time, Time)> {
        let longest_ago = now.checked_sub_signed(self.duration)?;
        let first = self.next_start(longest_ago).filter(|start| *start <= now)?;
        self.span(self.last_start(first, now))
    }

    /// The spans that begin after an instant, earliest first, whatever the schedule is for.
    pub fn after(&self, now: Time) -> impl Iterator<Item = (Time, Time)> {
        let starts = iter::successors(self.next_start(now), |start| self.next_start(*start));
        starts.map_while(|start| self.span(start))
    }

    fn span(&self, start: Time) -> Option<(Time, Time)> {
        Some((start, start.checked_add_signed(self.duration)?))
    }

    /// The last start that is not after `now`, of which `first` is one: halves the time between them.
    fn last_start(&self, first: Time, now: Time) -> Time {
        // No start lies after `until` and not after `now`.
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
        let first = self.next_shown(after, |(first, _)| first);
        if !self.cron.every_hour() {
            return first;
        }
        let again = self.next_shown(after, |(_, last)| last);
        first.into_iter().chain(again).min()
    }

    /// The first start after an instant, if of what the clock shows twice only one is taken. Then a later reading is
    /// never shown earlier, so the first reading that is shown late enough is the one.
    fn next_shown(&self, after: Time, pick: fn((Time, Time)) -> Time) -> Option<Time> {
        let reading = self.zone.reading(after)?;
        // During what is shown twice, a lesser reading may be shown again later; no longer ago than the clock goes back.
        let (first, last) = self.zone.shown(reading)?;
        let mut from = reading.checked_sub_signed(last - first)?;
        loop {
            let reading = self.cron.next_reading(from)?;
            let start = pick(self.zone.shown(reading)?);
            if after < start {
                return Some(start);
            }
            from = reading.checked_add_signed(TimeDelta::minutes(1))?;
        }
    }
}

impl RepeatedSchedule {
    /// The windows that are open or to come, earliest first; none if it has no target, opens no window for updates, or
    /// its cron never comes, as on 30 February.
    ///
    /// Of its windows that are open at once, only the one that began last is told.
    #[must_use]
    pub fn windows_from(&self, ahead: &Ahead) -> Vec<Window> {
        let spec = &self.spec;
        if !ahead.opens.admits(spec.status) || spec.target.is_none() {
            return Vec::new();
        }
        let spans = spec
            .open(ahead.now)
            .into_iter()
            .chain(spec.after(ahead.now));
        ahead.take(spans.map(|(start, end)| Window {
            start,
            end,
            opener: Opener::Repeated(self.id),
        }))
    }
}
