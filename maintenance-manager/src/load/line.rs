//! When those who are refused come back: one after the other, no faster than they can be let in. Were they all told the
//! same time, however many they are, a crowd that is large enough would keep the server busy with refusing it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::pressure::SHARE;

/// How long it takes one node to come back, its handshake included, where there is nothing else to do.
pub(super) const EACH: Duration = Duration::from_micros(200);

/// What it is taken for at most, however few have their turn: perhaps only for a moment, or because few ask.
pub(super) const SLOWEST: Duration = Duration::from_millis(1);

/// After what time a refused caller should try again at the earliest, and at the latest. What is drawn of that and what nodes add
/// to it must not make them silent.
pub(super) const SOON: Duration = Duration::from_secs(1);
pub(super) const LATE: Duration = Duration::from_mins(2);

/// The line of those who were refused. It goes on by itself.
#[derive(Debug)]
pub(super) struct Line {
    begun: Instant,
    /// When it is the turn of the last one, in nanoseconds since then.
    last: AtomicU64,
    /// How long it takes until the next one has its turn, in nanoseconds.
    each: AtomicU64,
}

impl Line {
    /// Nobody was refused.
    pub fn new() -> Self {
        Self {
            begun: Instant::now(),
            last: AtomicU64::new(0),
            each: AtomicU64::new(nanos(EACH)),
        }
    }

    /// After what time it is the turn of one who is refused now.
    pub fn join(&self, now: Instant) -> Duration {
        let now = nanos(now.saturating_duration_since(self.begun));
        let each = self.each.load(Ordering::Relaxed);
        let turn = |last: u64| (last.max(now) + each).min(now + nanos(LATE));
        let join = |last| Some(turn(last));
        let before = self
            .last
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, join);
        let (Ok(last) | Err(last)) = before;
        Duration::from_nanos(turn(last) - now).max(SOON)
    }

    /// Takes into account how many had their turn in some time.
    pub fn look(&self, turns: u32, within: Duration) {
        let each = self.each.load(Ordering::Relaxed);
        let before = 1.0 / Duration::from_nanos(each).as_secs_f64();
        let rate = before + SHARE * (f64::from(turns) / within.as_secs_f64() - before);
        let each = Duration::try_from_secs_f64(1.0 / rate).unwrap_or(SLOWEST);
        let each = nanos(each.clamp(EACH, SLOWEST));
        self.each.store(each, Ordering::Relaxed);
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX / 4)
}
