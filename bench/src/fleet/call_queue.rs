//! The queue of planned calls.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use tokio::time::Instant;

/// The nodes that wait for their next call, by index. Nodes with a call in flight are not queued.
#[derive(Debug, Default)]
pub struct CallQueue {
    due: BinaryHeap<Reverse<(Instant, usize)>>,
    /// The instant since which no node may call.
    paused_since: Option<Instant>,
}

impl CallQueue {
    /// Plans the next call of a node.
    pub fn push(&mut self, at: Instant, index: usize) {
        self.due.push(Reverse((at, index)));
    }

    /// The instant of the next call; `None` if the queue is empty or paused.
    pub fn next_due(&self) -> Option<Instant> {
        let Reverse((at, _)) = self.due.peek()?;
        self.paused_since.is_none().then_some(*at)
    }

    /// Removes and returns the next node that is due.
    pub fn pop_due(&mut self, now: Instant) -> Option<usize> {
        self.next_due().filter(|at| *at <= now)?;
        let Reverse((_, index)) = self.due.pop()?;
        Some(index)
    }

    /// Removes the nodes for which `calls` is false.
    pub fn retain(&mut self, calls: impl Fn(usize) -> bool) {
        self.due.retain(|Reverse((_, index))| calls(*index));
    }

    /// Stops all calls.
    pub fn pause(&mut self, now: Instant) {
        self.paused_since.get_or_insert(now);
    }

    /// Continues after a pause. All planned calls are delayed by the length of the pause, which is
    /// returned.
    pub fn resume(&mut self, now: Instant) -> Duration {
        let paused = self.paused_since.take().unwrap_or(now);
        let by = now.saturating_duration_since(paused);
        let due = std::mem::take(&mut self.due).into_iter();
        let later = |Reverse((at, index)): Reverse<(Instant, usize)>| Reverse((at + by, index));
        self.due = due.map(later).collect();
        by
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_delays_all_calls_by_its_length() {
        let now = Instant::now();
        let after = |millis| now + Duration::from_millis(millis);
        let mut queue = CallQueue::default();
        queue.push(after(20), 2);
        queue.push(after(10), 1);
        assert_eq!((queue.next_due(), queue.pop_due(after(9))), (Some(after(10)), None));
        queue.pause(after(9));
        queue.pause(after(500));
        assert_eq!((queue.next_due(), queue.pop_due(after(900))), (None, None));
        // A call that was in flight ends during the pause and plans the next one.
        queue.push(after(30), 3);
        assert_eq!(queue.resume(after(1_009)), Duration::from_secs(1));
        assert_eq!(queue.pop_due(after(1_009)), None);
        assert_eq!(queue.pop_due(after(1_010)), Some(1));
        queue.retain(|index| index != 2);
        assert_eq!(queue.next_due(), Some(after(1_030)));
        assert_eq!(queue.resume(after(2_000)), Duration::ZERO, "there was no pause");
        assert_eq!(queue.pop_due(after(1_030)), Some(3));
    }
}
