//! Who goes first where only so many nodes are changed at once (ADR 0006).

use chrono::TimeDelta;

use crate::Time;
use crate::decide::{NodeFacts, Wanted};
use crate::eim::delivery::{Delivered, WORTHWHILE};
use crate::id::{InstanceId, scatter};
use crate::run::OpenRun;
use crate::window::{Opener, Window};

impl Delivered {
    /// The window that the node was told and let pass: nothing began in it, and nothing has begun since.
    #[must_use]
    pub fn passed(
        &self,
        known: &NodeFacts,
        open: Option<&OpenRun>,
        now: Time,
    ) -> Option<(Time, Time)> {
        let over = self.single.filter(|(_, end)| *end <= now);
        let span = over.or(self.unused)?;
        let has_begun = open.is_some_and(|run| !run.state.is_untouched());
        let has_ended = known.last_end.as_ref().is_some_and(|end| span.0 <= end.at);
        (!has_begun && !has_ended).then_some(span)
    }

    /// Until when a node that let a window pass lets the others go first in the one that it would get. Not in one that it
    /// was told already, and not in one that a person ordered.
    #[must_use]
    pub fn gives_way(&self, wanted: &Wanted, instance: InstanceId, now: Time) -> Option<Time> {
        let windows = wanted.windows_now(now);
        let mut open = windows.as_slice().iter().filter(|one| one.is_open(now));
        let is_told = self.single.is_some_and(|(_, end)| now < end);
        if is_told || open.any(|window| window.opener == Opener::Order) {
            return None;
        }
        let window = windows.open(now).or_else(|| windows.next(now))?;
        let until = turn(&window, instance);
        (now < until).then_some(until)
    }
}

/// Between a quarter and three quarters of the time in which the agent would still begin, by chance, and another chance in
/// each window: so no order among those that give way lasts.
fn turn(window: &Window, instance: InstanceId) -> Time {
    let useful = (window.end - window.start - WORTHWHILE).max(TimeDelta::zero());
    let seconds = window.start.timestamp().to_le_bytes();
    let salt = seconds.iter().fold(instance.bits(), |salt, byte| {
        scatter(salt ^ u32::from(*byte))
    });
    let share = 256 + salt % 512;
    window.start + useful / 1_024 * i32::try_from(share).unwrap_or(512)
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;

    use super::*;
    use crate::id::SingleScheduleId;

    fn window(hour: i64, minutes: i64) -> Window {
        let start = DateTime::UNIX_EPOCH + TimeDelta::hours(hour);
        Window {
            start,
            end: start + TimeDelta::minutes(minutes),
            opener: Opener::Single(SingleScheduleId::nth(1)),
        }
    }

    #[test]
    fn those_that_give_way_come_in_another_order_in_each_window() {
        let mut firsts = std::collections::BTreeSet::new();
        for night in 0..100 {
            let window = window(24 * night, 130);
            let all = (1..=5).map(|n| (turn(&window, InstanceId::nth(n)), n));
            let all: Vec<_> = all.collect();
            for (until, _) in &all {
                let minutes = (*until - window.start).num_minutes();
                assert!((29..=90).contains(&minutes), "{minutes}");
            }
            firsts.extend(all.iter().min().map(|(_, n)| *n));
        }
        assert_eq!(firsts.len(), 5, "each of them is the first now and then");
    }

    #[test]
    fn nobody_gives_way_in_a_window_that_is_too_short_for_it() {
        let short = window(0, 10);
        assert_eq!(turn(&short, InstanceId::nth(1)), short.start);
    }
}
