//! Long polls: a poll waits until its answer changes.

use std::time::Duration;

use chrono::TimeDelta;
use evenkeel_domain::Time;
use tokio::time::Instant;
use tonic::{Code, Status};

use crate::admission::concurrency::Overloaded;
use crate::admission::connection::ConnectionState;
use crate::admission::semaphore::UnitPermit;
use crate::durations::{loop_interval, to_time_delta};
use crate::grpc::caller::Node;
use crate::manager::MaintenanceManager;
use crate::poll::batch::{BatchResult, PollContext, Priority};
use crate::poll::cache::{CachedAnswer, Lookup};
use crate::poll::long_poll::{LongPollHandle, WakeReason};

#[derive(Clone, Debug)]
pub struct LongPollOptions {
    /// The maximum waiting time in milliseconds.
    pub max_millis: u32,
    /// The tag of the decision that the node already has.
    pub decision_tag: u64,
    /// The connection of the poll, if the server tracks it.
    pub connection: Option<ConnectionState>,
}

/// How many results in a row may stay uncached before the poll ends. A result is not cached if
/// something changed while it was read.
const MAX_UNCACHED_RESULTS: u8 = 5;

/// Long polls end on a common tick. Polls that end one by one find nothing in the processor's
/// caches and cost about twice as much.
const END_TICK: TimeDelta = TimeDelta::seconds(2);

#[derive(Debug)]
pub enum LongPollResult {
    /// The answer to send.
    Answer(CachedAnswer),
    /// The answer to send, because the server stops.
    Draining(CachedAnswer),
    /// The poll needs a write before it can be answered.
    NeedsWrite,
}

/// A waiting poll. There may be tens of thousands, so it must stay small.
struct LongPoll<'a> {
    manager: &'a MaintenanceManager,
    context: PollContext,
    /// The answer that the node already has.
    cached: CachedAnswer,
    handle: LongPollHandle,
    started_at: Time,
    deadline: Instant,
    /// When the database was last queried for this poll.
    last_query: Option<Instant>,
    /// How many results in a row could not be cached.
    uncached_results: u8,
    /// Excludes the poll from the calls in flight.
    _parked: UnitPermit,
}

/// Holds a poll until its answer changes or its time is up. If the poll may not be held, it ends at
/// once with the given answer.
pub fn wait_for_change(
    manager: &MaintenanceManager,
    node: &Node,
    context: PollContext,
    options: LongPollOptions,
    cached: CachedAnswer,
) -> impl Future<Output = Result<LongPollResult, Status>> {
    // An async function stores its arguments twice, so the state is built outside of it.
    let mut registered = register(manager, node, context, options, cached);
    async move {
        match &mut registered {
            Ok(poll) => poll.run().await,
            Err(cached) => Ok(LongPollResult::Answer(cached.clone())),
        }
    }
}

fn register<'a>(
    manager: &'a MaintenanceManager,
    node: &Node,
    context: PollContext,
    options: LongPollOptions,
    cached: CachedAnswer,
) -> Result<LongPoll<'a>, CachedAnswer> {
    if cached.answer.tag != options.decision_tag {
        return Err(cached);
    }
    let key = ((node.tenant, node.host), context.cache_key);
    let Some(handle) = manager.long_polls.register(key, &cached, options.connection.as_ref())
    else {
        return Err(cached);
    };
    let max_duration = manager.settings.long_poll.max_duration;
    let duration = Duration::from_millis(options.max_millis.into()).min(max_duration);
    // The node may not report again before this time.
    let now = manager.now();
    let interval = manager.load.poll_interval(manager.settings.poll_interval);
    let due = now.checked_add_signed((to_time_delta(duration) + to_time_delta(interval)) * 2);
    manager.contacts.record(node.tenant, cached.instance, now, due);
    Ok(LongPoll {
        manager,
        context: PollContext { priority: Priority::LongPoll, ..context },
        cached,
        handle,
        started_at: now,
        deadline: Instant::now() + until_tick(now, duration),
        last_query: None,
        uncached_results: 0,
        _parked: manager.load.park(),
    })
}

/// The time until the last tick before the deadline. If the tick is more than 1/32 of the time
/// early, the deadline is used.
fn until_tick(now: Time, duration: Duration) -> Duration {
    let deadline = now.checked_add_signed(to_time_delta(duration));
    let past_tick = deadline.and_then(|deadline| {
        let past_tick = deadline.timestamp_millis().rem_euclid(END_TICK.num_milliseconds());
        Some(Duration::from_millis(u64::try_from(past_tick).ok()?))
    });
    let past_tick = past_tick.filter(|past_tick| *past_tick <= duration / 32);
    duration.saturating_sub(past_tick.unwrap_or_default())
}

impl LongPoll<'_> {
    async fn run(&mut self) -> Result<LongPollResult, Status> {
        loop {
            if self.is_still_valid()
                && let Some(result) = self.wait().await
            {
                return result;
            }
            if let Some(result) = self.requery().await? {
                return Ok(result);
            }
        }
    }

    /// Whether the cached answer is still the same, checked after registration for changes.
    fn is_still_valid(&mut self) -> bool {
        let Some(cached) = self.lookup() else {
            return false;
        };
        let depends =
            |cached: &CachedAnswer| (cached.instance, cached.scope, cached.answer.limit_scope);
        let is_still_valid =
            self.has_same_tag(&cached) && depends(&cached) == depends(&self.cached);
        if is_still_valid {
            self.cached = cached;
        }
        is_still_valid
    }

    /// Waits until the poll ends or the answer must be checked again: on a wake-up, when the answer
    /// expires, or at the deadline.
    async fn wait(&mut self) -> Option<Result<LongPollResult, Status>> {
        let (now, until) = (Instant::now(), self.cached.valid_until);
        let left = (until - self.manager.now()).to_std().unwrap_or_default();
        let time_left = self.deadline.saturating_duration_since(now);
        let soonest = time_left.min(left + Duration::from_millis(1));
        let reason = self.wake_before(now + soonest).await?;
        self.result_for_wake(reason).await
    }

    /// Queries the database again. Returns `None` if the poll continues: the answer is unchanged,
    /// or the database is not available.
    async fn requery(&mut self) -> Result<Option<LongPollResult>, Status> {
        if let Some(result) = self.wait_min_interval().await {
            return result.map(Some);
        }
        self.last_query = Some(Instant::now());
        let is_expired = self.deadline <= Instant::now();
        if is_expired && let Some(cached) = Box::pin(self.current_answer()).await {
            return Ok(Some(LongPollResult::Answer(cached)));
        }
        if !is_expired && self.manager.answer_cache.last_pass().is_none() {
            return Ok(None);
        }
        let mut query = Box::pin(self.manager.poll_batcher.evaluate(self.context.clone()));
        let batch_result = loop {
            let reason = tokio::select! {
                batch_result = &mut query => break batch_result,
                reason = self.handle.next_wake() => reason,
            };
            // A change in the meantime is not lost: it prevents the answer from being cached.
            if let Some(result) = self.result_for_wake(reason).await {
                return result.map(Some);
            }
        };
        self.last_query = Some(Instant::now());
        match batch_result {
            Ok(BatchResult::Unchanged(cached))
                if !is_expired && self.has_same_tag(&cached) && self.may_continue(&cached) =>
            {
                self.handle.update(&cached);
                self.cached = cached;
                Ok(None)
            }
            Ok(BatchResult::Unchanged(cached)) => Ok(Some(LongPollResult::Answer(cached))),
            Ok(BatchResult::NeedsWrite) => Ok(Some(LongPollResult::NeedsWrite)),
            Err(refused) if !is_expired && refused.code() == Code::Unavailable => Ok(None),
            Err(refused) => Err(refused),
        }
    }

    /// Whether a recent answer was cached. Otherwise the poll would query the database again and
    /// again.
    fn may_continue(&mut self, cached: &CachedAnswer) -> bool {
        self.uncached_results = if cached.is_cached { 0 } else { self.uncached_results + 1 };
        self.uncached_results < MAX_UNCACHED_RESULTS
    }

    /// The cached answer. An answer that requires the fence is returned only if it is up to date.
    async fn current_answer(&self) -> Option<CachedAnswer> {
        let cached = self.lookup()?;
        if !cached.answer.requires_fence {
            return Some(cached);
        }
        let fence = self.manager.answer_cache.fence(std::time::Instant::now());
        let is_up_to_date = Box::pin(fence).await;
        self.lookup().filter(|_| is_up_to_date)
    }

    /// Waits the minimum interval since the last query, so that a series of changes costs little.
    async fn wait_min_interval(&mut self) -> Option<Result<LongPollResult, Status>> {
        let min_interval = loop_interval(self.manager.settings.long_poll.min_query_interval);
        let next_query = self.last_query?.checked_add(min_interval);
        let until = next_query.map_or(self.deadline, |next_query| next_query.min(self.deadline));
        loop {
            let reason = self.wake_before(until).await?;
            if let Some(result) = self.result_for_wake(reason).await {
                return Some(result);
            }
        }
    }

    /// Waits for a wake-up. Returns `None` at the deadline.
    async fn wake_before(&mut self, deadline: Instant) -> Option<WakeReason> {
        tokio::select! {
            reason = self.handle.next_wake() => Some(reason),
            () = tokio::time::sleep_until(deadline) => None,
        }
    }

    /// The result if the wake-up ends the poll. An answer that requires the fence is sent only if
    /// it is up to date; otherwise the poll fails with a retry hint and the node keeps its
    /// decision.
    async fn result_for_wake(&self, reason: WakeReason) -> Option<Result<LongPollResult, Status>> {
        let is_draining = match reason {
            WakeReason::Recheck => return None,
            WakeReason::Superseded => false,
            WakeReason::Draining => true,
        };
        let cached = if self.cached.answer.requires_fence {
            let current = Box::pin(self.current_answer()).await;
            current.filter(|cached| self.has_same_tag(cached))
        } else {
            Some(self.cached.clone())
        };
        let load = &self.manager.load;
        let cached = cached.ok_or_else(|| Overloaded::retry_after(load.spread()).status());
        let to_result = if is_draining { LongPollResult::Draining } else { LongPollResult::Answer };
        Some(cached.map(to_result))
    }

    fn lookup(&self) -> Option<CachedAnswer> {
        let (context, now) = (&self.context, self.manager.now());
        match self.manager.answer_cache.lookup(&context.node, &context.cache_key, now) {
            Lookup::Hit(cached) => Some(cached),
            Lookup::OtherKey { .. } | Lookup::Miss => None,
        }
    }

    fn has_same_tag(&self, cached: &CachedAnswer) -> bool {
        cached.answer.tag == self.cached.answer.tag
    }
}

/// Sets the contact deadline of the node back to the usual one when the poll ends or its connection
/// is lost. Does nothing if a newer poll of the node has been registered.
impl Drop for LongPoll<'_> {
    fn drop(&mut self) {
        if !self.handle.is_current() {
            return;
        }
        let manager = self.manager;
        let at = self.started_at + TimeDelta::milliseconds(1);
        let now = manager.now();
        let usual = now + manager.settings.effective_silence_timeout();
        let due = manager.node_writer.next_contact_due(now);
        let due = due.map_or(usual, |due| due.max(usual));
        let tenant = self.context.node.tenant();
        let contacts = &manager.contacts;
        contacts.record(tenant, self.cached.instance, at, Some(due));
    }
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;
    use proptest::prelude::*;

    use super::*;

    /// The size of the future that a function returns.
    fn size<'a, F: Future>(
        _: impl FnOnce(
            &'a MaintenanceManager,
            &'a Node,
            PollContext,
            LongPollOptions,
            CachedAnswer,
        ) -> F,
    ) -> usize {
        size_of::<F>()
    }

    #[test]
    fn long_polls_end_together_on_a_tick_and_never_late() {
        let noon = DateTime::UNIX_EPOCH + TimeDelta::hours(12);
        let hour = Duration::from_hours(1);
        for millis in [0, 1, 700, 1_999] {
            let now = noon + TimeDelta::milliseconds(millis);
            let actual = until_tick(now, hour);
            assert_eq!(
                now + to_time_delta(actual),
                noon + to_time_delta(hour),
                "{millis} ms early"
            );
        }
        let late = noon + TimeDelta::milliseconds(2_000);
        assert_eq!(until_tick(late, hour), hour, "the next tick");
    }

    proptest! {
        #[test]
        fn no_long_poll_exceeds_its_limit_or_ends_much_early(
            at in -4_000_000_i64..4_000_000_000_000,
            millis in 0_u64..10_000_000,
        ) {
            let (now, duration) = (DateTime::UNIX_EPOCH + TimeDelta::milliseconds(at), Duration::from_millis(millis));
            let actual = until_tick(now, duration);
            prop_assert!(actual <= duration && duration <= actual + duration / 32);
            let is_on_tick = (now + to_time_delta(actual)).timestamp_millis() % END_TICK.num_milliseconds() == 0;
            prop_assert!(is_on_tick || duration < Duration::from_secs(64));
        }
    }

    #[test]
    fn a_long_poll_stays_small() {
        let size = size(wait_for_change);
        // Without optimisations of MIR, as with clippy's driver, it is a few bytes larger.
        assert!(size <= 728, "{size} bytes");
    }
}
