//! Follows the log of the database, so that what is remembered is forgotten when it is changed.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use evenkeel_kit::beat;
use evenkeel_kit::chain::chain;
use evenkeel_store::Store;
use evenkeel_store::log::{self, Break, Hints, LogError, Reader, Tail};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::{Touched, View};
use crate::holds::Holds;
use crate::outage::Outage;

/// How many changes a pass reads.
const BATCH: u32 = 10_000;

/// How far apart passes are, however many hints there are.
const APART: Duration = Duration::from_millis(20);

/// How often the log is read without a hint, and how often it is said how much is remembered.
const EVERY: Duration = Duration::from_secs(1);

/// How long to wait after a failure, twice as long after each further one.
const SHORTEST: Duration = Duration::from_millis(100);

/// How long at most.
const LONGEST: Duration = Duration::from_secs(2);

/// How long to wait where somebody has to change the database first.
const MISFIT: Duration = Duration::from_secs(30);

/// So long the log is still followed at a stop: those who are let go then are told what is so by now, and whether it is,
/// the log says.
const GOES_ON: Duration = Duration::from_millis(250);

/// Its name where outages are told of.
const PASS: &str = "change log";

/// Keeps the view up with the database, and wakes those whose calls are held when something concerns them, until it is
/// asked to stop.
pub(crate) async fn follow(
    view: View,
    store: Store,
    holds: Holds,
    outage: Arc<Outage>,
    stopping: CancellationToken,
) {
    let follower = Follower {
        view,
        store,
        holds,
        outage,
    };
    follower.view.0.reached.set_followed(true);
    tokio::select! {
        () = after(&stopping) => {}
        never = follower.run() => match never {},
        never = follower.tell_on() => match never {},
    }
    follower.view.0.reached.set_followed(false);
}

struct Follower {
    view: View,
    store: Store,
    holds: Holds,
    outage: Arc<Outage>,
}

impl Follower {
    async fn run(&self) -> Infallible {
        let (mut wait, mut is_misfit) = (SHORTEST, false);
        loop {
            let ended = match self.open().await {
                Ok((reader, hints)) => {
                    (wait, is_misfit) = (SHORTEST, false);
                    self.wake(&self.view.rebuild("opened"));
                    self.read_on(reader, hints).await
                }
                Err(error) => error,
            };
            let pause = match ended {
                LogError::Broken(why) => {
                    tracing::warn!(error = %why, "the change log is followed anew");
                    // Those whose calls are held are woken when it can be noticed again what concerns them.
                    self.view.rebuild(name(why));
                    SHORTEST
                }
                LogError::Store(error) => {
                    self.outage.note_pass(PASS, &Err::<(), _>(error));
                    let pause = wait;
                    wait = (wait * 2).min(LONGEST);
                    pause
                }
                LogError::Misfit(misfit) => {
                    if !is_misfit {
                        is_misfit = true;
                        tracing::error!(
                            error = %chain(&misfit),
                            "the change log cannot be followed: every poll is looked up in the database"
                        );
                        self.wake(&self.view.rebuild("misfit"));
                    }
                    MISFIT
                }
            };
            tokio::time::sleep(pause).await;
        }
    }

    async fn open(&self) -> Result<(Reader, Hints), LogError> {
        let hints = log::hints(&self.store).await?;
        let (reader, _) = Reader::open(&self.store).await?;
        Ok((reader, hints))
    }

    /// Reads until the place in the log is lost.
    async fn read_on(&self, mut reader: Reader, hints: Hints) -> LogError {
        let hinted = Notify::new();
        tokio::select! {
            lost = self.passes(&mut reader, &hinted) => lost,
            never = hear(hints, &hinted) => match never {},
        }
    }

    async fn passes(&self, reader: &mut Reader, hinted: &Notify) -> LogError {
        let mut wait = SHORTEST;
        loop {
            let (began, next) = (Instant::now(), tokio::time::Instant::now() + APART);
            match reader.next(BATCH).await {
                Ok(tail) => {
                    wait = SHORTEST;
                    self.outage.note_pass(PASS, &Ok(()));
                    self.take(began, &tail);
                    if !tail.more {
                        self.rest(next, hinted).await;
                    }
                }
                Err(LogError::Store(error)) => {
                    self.outage.note_pass(PASS, &Err::<(), _>(error));
                    tokio::time::sleep(wait).await;
                    wait = (wait * 2).min(LONGEST);
                }
                Err(lost) => return lost,
            }
        }
    }

    fn take(&self, began: Instant, tail: &Tail) {
        let touched = self.view.apply(&tail.changes);
        self.view.0.reached.passed(began, tail);
        if touched != Touched::default() {
            self.wake(&touched);
        }
        let rows = u64::try_from(tail.changes.len()).unwrap_or(u64::MAX);
        metrics::counter!("evenkeel_log_rows_total").increment(rows);
        metrics::histogram!("evenkeel_log_pass_seconds").record(began.elapsed().as_secs_f64());
    }

    fn wake(&self, touched: &Touched) {
        self.holds.wake(touched);
        if touched.all || !touched.tenants.is_empty() {
            self.view.0.projects.notify_one();
        }
    }

    /// Waits for a reason to read again, and until the last pass is long enough ago.
    async fn rest(&self, next: tokio::time::Instant, hinted: &Notify) {
        let reached = &self.view.0.reached;
        if !reached.is_waited_for() {
            tokio::select! {
                () = reached.asked() => {}
                () = hinted.notified() => {}
                () = tokio::time::sleep_until(beat::next(EVERY)) => {}
            }
        }
        tokio::time::sleep_until(next).await;
    }

    /// Says that from time to time, also while the database says nothing.
    async fn tell_on(&self) -> Infallible {
        loop {
            self.tell();
            tokio::time::sleep_until(beat::next(EVERY)).await;
        }
    }

    /// Says how much is remembered and how old it is; without end if nobody knows.
    fn tell(&self) {
        let or_for_ever =
            |time: Option<Duration>| time.map_or(f64::INFINITY, |time| time.as_secs_f64());
        metrics::gauge!("evenkeel_view_age_seconds").set(or_for_ever(self.view.age()));
        let lag = self.view.0.reached.lag();
        metrics::gauge!("evenkeel_log_lag_seconds").set(or_for_ever(lag));
        let sizes = self.view.sizes();
        let counts = [
            ("evenkeel_view_nodes", sizes.nodes),
            ("evenkeel_view_answers", sizes.answers),
            ("evenkeel_view_bytes", sizes.bytes),
        ];
        for (name, count) in counts {
            #[expect(clippy::cast_precision_loss, reason = "nobody counts so far")]
            let count = count as f64;
            metrics::gauge!(name).set(count);
        }
    }
}

/// Waits until the process has begun to stop, and those who were held are told.
async fn after(stopping: &CancellationToken) {
    stopping.cancelled().await;
    tokio::time::sleep(GOES_ON).await;
}

/// Passes hints on.
async fn hear(mut hints: Hints, hinted: &Notify) -> Infallible {
    loop {
        hints.next().await;
        hinted.notify_one();
    }
}

/// What a break is called where they are counted.
const fn name(why: Break) -> &'static str {
    match why {
        Break::Truncated => "truncated",
        Break::Pruned => "pruned",
        Break::OtherEpoch => "removed",
        Break::OtherServer => "server",
        Break::Backwards => "backwards",
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

    use super::*;
    use crate::holds::HoldSettings;
    use crate::memory::Memory;
    use crate::view::ViewSettings;

    const NOON: Time = DateTime::from_timestamp_nanos(1_800_000_000_000_000_000);

    #[tokio::test]
    async fn what_concerns_a_project_as_a_whole_is_told() {
        let (store, life) = (fresh_store().await, Lifecycle::new());
        let view = View::new(ViewSettings::default());
        let told = async || {
            let projects = view.projects();
            let told = tokio::time::timeout(Duration::from_mins(1), projects.notified()).await;
            told.expect("it is told");
        };
        let holds = Holds::new(HoldSettings::default(), Memory::default());
        let follows = follow(
            view.clone(),
            store.clone(),
            holds,
            Arc::default(),
            life.stopping(),
        );
        life.spawn("change log", async move {
            follows.await;
            Ok(())
        });
        // Something may have changed before.
        told().await;
        let tx = store.fleet().await.expect("a transaction");
        let name = ProjectName::parse("name", "shop").expect("a name");
        let made = projects::create(&tx, &name, "", NOON).await;
        made.expect("a project");
        tx.commit().await.expect("committed");
        told().await;
        life.stop();
    }
}
