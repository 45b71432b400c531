//! Which node goes first where the number of concurrent updates is limited (ADR 0006).

use chrono::TimeDelta;

use crate::Time;
use crate::decide::{NodeFacts, UpdateIntent, resolve_target};
use crate::eim::delivery::{DeliveryState, MIN_REMAINING_WINDOW, lead_time};
use crate::id::{InstanceId, scatter};
use crate::run::OpenRun;
use crate::window::{Opener, Window};

/// Minimum time in which the turns of several nodes are spread.
const MIN_SHARED_TIME: TimeDelta = TimeDelta::minutes(10);

impl DeliveryState {
    /// The delivered window that the node did not use: no update began in it, and none has begun since.
    #[must_use]
    pub fn unused_window(
        &self,
        facts: &NodeFacts,
        open: Option<&OpenRun>,
        now: Time,
    ) -> Option<(Time, Time)> {
        let expired = self.single.filter(|(_, end)| *end <= now);
        let span = expired.or(self.unused)?;
        let has_begun = open.is_some_and(|run| !run.state.is_untouched());
        let has_ended = facts.last_run.as_ref().is_some_and(|end| span.0 <= end.at);
        (!has_begun && !has_ended).then_some(span)
    }

    /// Until when a node that missed a window yields to the others in its next one. It does not yield in a window that
    /// was delivered already or that an operator ordered.
    #[must_use]
    pub fn yields_until(
        &self,
        (facts, run): (&NodeFacts, Option<&OpenRun>),
        desired: &UpdateIntent,
        instance: InstanceId,
        now: Time,
    ) -> Option<Time> {
        let windows = desired.effective_windows(now);
        let mut open = windows.as_slice().iter().filter(|one| one.is_open(now));
        let is_delivered = self.single.is_some_and(|(_, end)| now < end);
        if is_delivered || open.any(|window| window.opener == Opener::Order) {
            return None;
        }
        let window = windows.open(now).or_else(|| windows.next(now))?;
        let frozen = run.and_then(|run| run.target.clone());
        let target = frozen.or_else(|| resolve_target(facts, desired).ok())?;
        let until = turn_start(&window, lead_time(&target.kind, desired), instance)?;
        (now < until).then_some(until)
    }
}

/// A random instant between a quarter and three quarters of the useful time of a window. It differs in each window, so
/// the order among the nodes that yield changes. The useful time of an image lies ahead of the window, or the image would
/// not be fetched in time; otherwise it is the part of the window in which the agent would still begin. `None` if the
/// useful time is too short to spread the turns.
fn turn_start(window: &Window, ahead: TimeDelta, instance: InstanceId) -> Option<Time> {
    let (from, useful) = if ahead > TimeDelta::zero() {
        (window.start - ahead, ahead)
    } else {
        (window.start, window.end - window.start - MIN_REMAINING_WINDOW)
    };
    if useful < MIN_SHARED_TIME {
        return None;
    }
    let seconds = window.start.timestamp().to_le_bytes();
    let salt = seconds.iter().fold(instance.bits(), |salt, byte| scatter(salt ^ u32::from(*byte)));
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
    fn yielding_nodes_come_in_another_order_in_each_window() {
        let mut firsts = std::collections::BTreeSet::new();
        for night in 0..100 {
            let window = window(24 * night, 130);
            let of = |n| turn_start(&window, TimeDelta::zero(), InstanceId::nth(n));
            let all: Vec<_> = (1..=5).map(|n| (of(n).expect("it is long"), n)).collect();
            for (until, _) in &all {
                let minutes = (*until - window.start).num_minutes();
                assert!((29..=90).contains(&minutes), "{minutes}");
            }
            firsts.extend(all.iter().min().map(|(_, n)| *n));
        }
        assert_eq!(firsts.len(), 5, "each of them is first in some window");
    }

    #[test]
    fn no_node_yields_in_a_window_that_is_too_short() {
        let of = |minutes| turn_start(&window(0, minutes), TimeDelta::zero(), InstanceId::nth(1));
        for minutes in [1, 10, 15, 19] {
            assert_eq!(of(minutes), None, "{minutes}");
        }
        assert!(of(20).is_some());
    }

    #[test]
    fn a_node_that_fetches_ahead_has_its_turn_ahead() {
        let window = window(6, 10);
        for n in 1..100 {
            let until = turn_start(&window, TimeDelta::hours(4), InstanceId::nth(n));
            let ahead = (window.start - until.expect("it is long")).num_minutes();
            assert!((60..=180).contains(&ahead), "{ahead}");
        }
        let soon = turn_start(&window, TimeDelta::minutes(9), InstanceId::nth(1));
        assert_eq!(soon, None);
    }
}
