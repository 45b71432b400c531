//! Follows the change log of the database and invalidates cached answers.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use evenkeel_kit::chain::chain;
use evenkeel_kit::tick;
use evenkeel_store::Store;
use evenkeel_store::log::{
    self, HintListener, LogBreak, LogError, LogReader, LongTransaction, Tail,
};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::log_progress::LogProgress;
use super::{AnswerCache, Invalidation};
use crate::outage::Outage;

/// The maximum number of changes in a pass.
const BATCH_SIZE: u32 = 10_000;

/// The minimum interval between passes, however many hints arrive.
const MIN_PASS_INTERVAL: Duration = Duration::from_millis(20);

/// The interval between passes without a hint, and between updates of the metrics.
const IDLE_PASS_INTERVAL: Duration = Duration::from_secs(1);

/// The interval between heartbeats. A few of them may be lost before the cache counts as old.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(2);

/// The delay after the first failure. It doubles with each further failure.
const MIN_RETRY_DELAY: Duration = Duration::from_millis(100);

/// The maximum delay after a failure.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(2);

/// The delay while the change log does not fit this server, which needs an administrator.
const MISMATCH_RETRY_DELAY: Duration = Duration::from_secs(30);

/// How long the change log is still followed at a stop, so that long polls end with an answer that
/// is up to date.
const DRAIN_FOLLOW_PERIOD: Duration = Duration::from_millis(250);

/// The names of these tasks in outage messages.
const OUTAGE_SOURCE: &str = "change log";
const HEARTBEAT_OUTAGE_SOURCE: &str = "heartbeat of the change log";

/// Keeps the cache up to date with the database until it is stopped. Calls `on_invalidation` after
/// cached answers were invalidated.
pub(crate) async fn follow_log(
    cache: AnswerCache,
    store: Store,
    outage: Arc<Outage>,
    stopping: CancellationToken,
    on_invalidation: impl Fn(&Invalidation) + Send + Sync,
) {
    let follower = LogFollower { cache, store, outage, on_invalidation };
    follower.cache.0.log_progress.set_followed(true);
    tokio::select! {
        () = wait_for_drain(&stopping) => {}
        never = follower.run() => match never {},
        never = follower.send_heartbeats() => match never {},
        never = follower.report_metrics_loop() => match never {},
    }
    follower.cache.0.log_progress.set_followed(false);
}

struct LogFollower<F> {
    cache: AnswerCache,
    store: Store,
    outage: Arc<Outage>,
    on_invalidation: F,
}

impl<F: Fn(&Invalidation) + Send + Sync> LogFollower<F> {
    async fn run(&self) -> Infallible {
        let (mut retry_delay, mut is_mismatched) = (MIN_RETRY_DELAY, false);
        loop {
            let ended = match self.open_log().await {
                Ok((reader, hints)) => {
                    (retry_delay, is_mismatched) = (MIN_RETRY_DELAY, false);
                    self.announce(&self.cache.invalidate_all("opened"));
                    self.read_until_lost(reader, hints).await
                }
                Err(error) => error,
            };
            let pause = match ended {
                LogError::Broken(why) => {
                    tracing::warn!(error = %why, "lost the position in the change log; following it again from its end");
                    // This is announced after the log was opened again, when new changes are
                    // noticed.
                    self.cache.invalidate_all(break_reason(why));
                    MIN_RETRY_DELAY
                }
                LogError::Store(error) => {
                    self.outage.note_pass(OUTAGE_SOURCE, &Err::<(), _>(error));
                    let pause = retry_delay;
                    retry_delay = (retry_delay * 2).min(MAX_RETRY_DELAY);
                    pause
                }
                LogError::Incompatible(mismatch) => {
                    if !is_mismatched {
                        is_mismatched = true;
                        tracing::error!(
                            error = %chain(&mismatch),
                            "cannot follow the change log: every poll is evaluated in the database"
                        );
                        self.announce(&self.cache.invalidate_all("mismatch"));
                    }
                    MISMATCH_RETRY_DELAY
                }
            };
            tokio::time::sleep(pause).await;
        }
    }

    async fn open_log(&self) -> Result<(LogReader, HintListener), LogError> {
        let hints = log::listen_for_hints(&self.store).await?;
        let (reader, _) = LogReader::open(&self.store).await?;
        Ok((reader, hints))
    }

    /// Runs passes until the position in the log is lost.
    async fn read_until_lost(&self, mut reader: LogReader, hints: HintListener) -> LogError {
        let hinted = Notify::new();
        tokio::select! {
            lost = self.run_passes(&mut reader, &hinted) => lost,
            never = forward_hints(hints, &hinted) => match never {},
        }
    }

    async fn run_passes(&self, reader: &mut LogReader, hinted: &Notify) -> LogError {
        let mut retry_delay = MIN_RETRY_DELAY;
        loop {
            let (began, next) = (Instant::now(), tokio::time::Instant::now() + MIN_PASS_INTERVAL);
            match reader.next(BATCH_SIZE).await {
                Ok(tail) => {
                    retry_delay = MIN_RETRY_DELAY;
                    self.outage.note_pass(OUTAGE_SOURCE, &Ok(()));
                    self.apply_tail(began, &tail);
                    if !tail.has_more {
                        wait_for_next_pass(&self.cache.0.log_progress, next, hinted).await;
                    }
                }
                Err(LogError::Store(error)) => {
                    self.outage.note_pass(OUTAGE_SOURCE, &Err::<(), _>(error));
                    tokio::time::sleep(retry_delay).await;
                    retry_delay = (retry_delay * 2).min(MAX_RETRY_DELAY);
                }
                Err(lost) => return lost,
            }
        }
    }

    fn apply_tail(&self, began: Instant, tail: &Tail) {
        let invalidation = self.cache.apply_changes(&tail.changes);
        self.cache.0.log_progress.record_pass(began, tail);
        if invalidation != Invalidation::default() {
            self.announce(&invalidation);
        }
        let rows = u64::try_from(tail.changes.len()).unwrap_or(u64::MAX);
        metrics::counter!("evenkeel_log_rows_total").increment(rows);
        metrics::gauge!("evenkeel_log_oldest_transaction_seconds")
            .set(tail.oldest_age.as_secs_f64());
        tail.long_transactions.iter().for_each(report_long_transaction);
        metrics::histogram!("evenkeel_log_pass_seconds").record(began.elapsed().as_secs_f64());
    }

    fn announce(&self, invalidation: &Invalidation) {
        (self.on_invalidation)(invalidation);
        if invalidation.all || !invalidation.tenants.is_empty() {
            self.cache.0.project_changes.notify_one();
        }
    }

    /// Sends heartbeats through the pool. The reader must see them on its own connection.
    async fn send_heartbeats(&self) -> Infallible {
        loop {
            let sent = log::send_heartbeat(&self.store).await;
            self.outage.note_pass(HEARTBEAT_OUTAGE_SOURCE, &sent);
            tokio::time::sleep(HEARTBEAT_INTERVAL).await;
        }
    }

    /// Updates the metrics at an interval, also while the database does not answer.
    async fn report_metrics_loop(&self) -> Infallible {
        loop {
            self.report_metrics();
            tokio::time::sleep_until(tick::next_tick(IDLE_PASS_INTERVAL)).await;
        }
    }

    /// Updates the metrics of size and age. An unknown age is infinite.
    fn report_metrics(&self) {
        let seconds_or_infinity =
            |time: Option<Duration>| time.map_or(f64::INFINITY, |time| time.as_secs_f64());
        metrics::gauge!("evenkeel_answer_cache_age_seconds")
            .set(seconds_or_infinity(self.cache.age()));
        let lag = self.cache.0.log_progress.lag();
        metrics::gauge!("evenkeel_log_lag_seconds").set(seconds_or_infinity(lag));
        let sizes = self.cache.sizes();
        let counts = [
            ("evenkeel_answer_cache_nodes", sizes.nodes),
            ("evenkeel_answer_cache_answers", sizes.answers),
            ("evenkeel_answer_cache_bytes", sizes.bytes),
        ];
        for (name, count) in counts {
            #[expect(clippy::cast_precision_loss, reason = "sizes are far below 2^52")]
            let count = count as f64;
            metrics::gauge!(name).set(count);
        }
    }
}

fn report_long_transaction(transaction: &LongTransaction) {
    let LongTransaction { pid, gid, role, age, is_log_writer } = transaction;
    let consequence = if *is_log_writer {
        "later changes are neither read nor sealed until it ends"
    } else {
        "the change log is read on, and the transaction can no longer change what it records"
    };
    tracing::warn!(
        pid,
        gid,
        role,
        age = age.map(tracing::field::debug),
        consequence,
        "a transaction stays open in the database"
    );
}

/// Waits until the process stops and the long polls had time to end.
async fn wait_for_drain(stopping: &CancellationToken) {
    stopping.cancelled().await;
    tokio::time::sleep(DRAIN_FOLLOW_PERIOD).await;
}

/// Waits for a fence, a hint or the idle interval, and for the minimum interval since the last pass.
async fn wait_for_next_pass(progress: &LogProgress, next: tokio::time::Instant, hinted: &Notify) {
    if !progress.has_open_fence() {
        tokio::select! {
            () = progress.fence_requested() => {}
            () = hinted.notified() => {}
            () = tokio::time::sleep_until(tick::next_tick(IDLE_PASS_INTERVAL)) => {}
        }
    }
    tokio::time::sleep_until(next).await;
}

/// Forwards hints of the database.
async fn forward_hints(mut hints: HintListener, hinted: &Notify) -> Infallible {
    loop {
        hints.next().await;
        hinted.notify_one();
    }
}

/// The metrics label of a break.
const fn break_reason(why: LogBreak) -> &'static str {
    match why {
        LogBreak::Truncated => "truncated",
        LogBreak::Pruned => "pruned",
        LogBreak::OtherEpoch => "removed",
        LogBreak::OtherServer => "server",
        LogBreak::Backwards => "backwards",
    }
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;
    use evenkeel_domain::Time;
    use evenkeel_domain::tenant::ProjectName;
    use evenkeel_kit::Lifecycle;
    use evenkeel_store::projects;
    use evenkeel_store::testing::fresh_store;
    use tokio::sync::mpsc;

    use super::*;
    use crate::poll::cache::AnswerCacheSettings;

    const NOON: Time = DateTime::from_timestamp_nanos(1_800_000_000_000_000_000);

    /// Otherwise an invalidated node would be answered for longer than the documentation states.
    #[tokio::test(start_paused = true)]
    async fn a_change_is_read_within_a_second_also_without_a_hint() {
        let (progress, hinted) = (LogProgress::default(), Notify::new());
        // A timer ends at a whole millisecond.
        for (has_hint, max_wait) in [(false, 1_001), (true, 501)] {
            for pass in 0..10 {
                if has_hint {
                    hinted.notify_one();
                }
                let began = tokio::time::Instant::now();
                let next = began + MIN_PASS_INTERVAL;
                wait_for_next_pass(&progress, next, &hinted).await;
                let wait = began.elapsed();
                assert!(wait <= Duration::from_millis(max_wait), "{pass}, {has_hint}: {wait:?}");
            }
        }
    }

    #[tokio::test]
    async fn a_change_of_a_whole_project_is_announced() {
        let (store, life) = (fresh_store().await, Lifecycle::new());
        let cache = AnswerCache::new(AnswerCacheSettings::default());
        let await_change = async || {
            let projects = cache.project_changes();
            let notified = tokio::time::timeout(Duration::from_mins(1), projects.notified()).await;
            notified.expect("a notification");
        };
        let (announced, mut invalidations) = mpsc::unbounded_channel();
        let on_invalidation = move |invalidation: &Invalidation| {
            announced.send(invalidation.clone()).expect("a receiver");
        };
        let stopping = life.stopping();
        let following =
            follow_log(cache.clone(), store.clone(), Arc::default(), stopping, on_invalidation);
        life.spawn("change log", async move {
            Box::pin(following).await;
            Ok(())
        });
        // The first notification comes at the start, because something may have changed before.
        await_change().await;
        let tx = store.fleet().await.expect("a transaction");
        let name = ProjectName::parse("name", "shop").expect("a name");
        let created = projects::create(&tx, &name, "", NOON).await;
        created.expect("a project");
        tx.commit().await.expect("committed");
        await_change().await;
        let invalidation = invalidations.try_recv().expect("the log was opened");
        assert!(invalidation.all);
        let invalidation = invalidations.try_recv().expect("a project was created");
        assert_eq!(invalidation.tenants.len(), 1);
        life.stop();
    }
}
