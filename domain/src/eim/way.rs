//! Who goes first where only so many nodes are changed at once (ADR 0006).

use chrono::TimeDelta;

use crate::Time;
use crate::decide::{NodeFacts, Wanted, target};
use crate::eim::delivery::{Delivered, WORTHWHILE, ahead};
use crate::id::{InstanceId, scatter};
use crate::run::OpenRun;
use crate::window::{Opener, Window};

/// The least time that is worth being divided.
const LEAST: TimeDelta = TimeDelta::minutes(10);

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
    pub fn gives_way(
        &self,
        (known, run): (&NodeFacts, Option<&OpenRun>),
        wanted: &Wanted,
        instance: InstanceId,
        now: Time,
    ) -> Option<Time> {
        let windows = wanted.windows_now(now);
        let mut open = windows.as_slice().iter().filter(|one| one.is_open(now));
        let is_told = self.single.is_some_and(|(_, end)| now < end);
        if is_told || open.any(|window| window.opener == Opener::Order) {
            return None;
        }
        let window = windows.open(now).or_else(|| windows.next(now))?;
        let frozen = run.and_then(|run| run.target.clone());
        let wish = frozen.or_else(|| target(known, wanted).ok())?;
        let until = turn(&window, ahead(&wish.wish, wanted), instance)?;
        (now < until).then_some(until)
    }
}

/// Between a quarter and three quarters of the time in which the node can make use of its turn, by chance, and another
/// chance in each window: so no order among those that give way lasts. What is fetched ahead has its turn ahead of the
/// window, or it would not be there in time; the rest while the agent would still begin. None if there is too little time
/// to be divided.
fn turn(window: &Window, ahead: TimeDelta, instance: InstanceId) -> Option<Time> {
    let (from, useful) = if ahead > TimeDelta::zero() {
        (window.start - ahead, ahead)
    } else {
        (window.start, window.end - window.start - WORTHWHILE)
    };
    if useful < LEAST {
        return None;
    }
    let seconds = window.start.timestamp().to_le_bytes();
    let salt = seconds.iter().fold(instance.bits(), |salt, byte| {
        scatter(salt ^ u32::from(*byte))
    });
    let share = 256 + salt % 512;
    Some(from + useful / 1_024 * i32::try_from(share).unwrap_or(512))
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
            let of = |n| turn(&window, TimeDelta::zero(), InstanceId::nth(n));
            let all: Vec<_> = (1..=5).map(|n| (of(n).expect("it is long"), n)).collect();
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
        let of = |minutes| turn(&window(0, minutes), TimeDelta::zero(), InstanceId::nth(1));
        for minutes in [1, 10, 15, 19] {
            assert_eq!(of(minutes), None, "{minutes}");
        }
        assert!(of(20).is_some());
    }

    #[test]
    fn what_is_fetched_ahead_has_its_turn_ahead() {
        let window = window(6, 10);
        for n in 1..100 {
            let until = turn(&window, TimeDelta::hours(4), InstanceId::nth(n));
            let ahead = (window.start - until.expect("it is long")).num_minutes();
            assert!((60..=180).contains(&ahead), "{ahead}");
        }
        let soon = turn(&window, TimeDelta::minutes(9), InstanceId::nth(1));
        assert_eq!(soon, None);
    }
}
