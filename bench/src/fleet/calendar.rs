//! When which node calls next.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use tokio::time::Instant;

/// The nodes that wait for their next call, by their places. Those that are calling are not in it.
#[derive(Debug, Default)]
pub struct Calendar {
    due: BinaryHeap<Reverse<(Instant, usize)>>,
    /// Since when nobody calls.
    paused: Option<Instant>,
}

impl Calendar {
    /// Lets a node call at an instant.
    pub fn push(&mut self, at: Instant, place: usize) {
        self.due.push(Reverse((at, place)));
    }

    /// When the next one calls; none while nobody does.
    pub fn next(&self) -> Option<Instant> {
        let Reverse((at, _)) = self.due.peek()?;
        self.paused.is_none().then_some(*at)
    }

    /// Takes the next one whose time has come.
    pub fn pop(&mut self, now: Instant) -> Option<usize> {
        self.next().filter(|at| *at <= now)?;
        let Reverse((_, place)) = self.due.pop()?;
        Some(place)
    }

    /// Takes out those that call no more.
    pub fn retain(&mut self, calls: impl Fn(usize) -> bool) {
        self.due.retain(|Reverse((_, place))| calls(*place));
    }

    /// From an instant on nobody calls.
    pub fn pause(&mut self, now: Instant) {
        self.paused.get_or_insert(now);
    }

    /// From an instant on all go on as if no time had passed. Returns how much did.
    pub fn resume(&mut self, now: Instant) -> Duration {
        let paused = self.paused.take().unwrap_or(now);
        let by = now.saturating_duration_since(paused);
        let due = std::mem::take(&mut self.due).into_iter();
        let later = |Reverse((at, place)): Reverse<(Instant, usize)>| Reverse((at + by, place));
        self.due = due.map(later).collect();
        by
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_paused_calls_by_so_much_later() {
        let now = Instant::now();
        let after = |millis| now + Duration::from_millis(millis);
        let mut calendar = Calendar::default();
        calendar.push(after(20), 2);
        calendar.push(after(10), 1);
        assert_eq!(
            (calendar.next(), calendar.pop(after(9))),
            (Some(after(10)), None)
        );
        calendar.pause(after(9));
        calendar.pause(after(500));
        assert_eq!((calendar.next(), calendar.pop(after(900))), (None, None));
        // What was under way is over, and planned its next call meanwhile.
        calendar.push(after(30), 3);
        assert_eq!(calendar.resume(after(1_009)), Duration::from_secs(1));
        assert_eq!(calendar.pop(after(1_009)), None);
        assert_eq!(calendar.pop(after(1_010)), Some(1));
        calendar.retain(|place| place != 2);
        assert_eq!(calendar.next(), Some(after(1_030)));
        assert_eq!(
            calendar.resume(after(2_000)),
            Duration::ZERO,
            "nothing was paused"
        );
        assert_eq!(calendar.pop(after(1_030)), Some(3));
    }
}
