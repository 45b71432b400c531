//! Follows the change log for all streams of this process. A stream reads its changes itself; the feed
//! says when there are some, and up to which transaction they can be read without missing one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use evenkeel_domain::tenant::TenantId;
use evenkeel_kit::{Lifecycle, chain};
use evenkeel_store::Store;
use evenkeel_store::log::{self, LogError, LogReader, Tail};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

/// Maximum number of changes in a pass over the log.
const BATCH_SIZE: u32 = 10_000;

/// Pause between two passes.
const PASS_INTERVAL: Duration = Duration::from_millis(200);

/// Interval between heartbeats, which show that the follower sees what this process writes.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(2);

/// Pause after the first failure. It doubles with each further one.
const MIN_RETRY_DELAY: Duration = Duration::from_millis(200);

const MAX_RETRY_DELAY: Duration = Duration::from_secs(10);

/// How long the log is followed without a stream, so that a client can connect again soon.
const LINGER_PERIOD: Duration = Duration::from_secs(30);

/// The follower of the log. It runs while streams are open. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct ChangeFeed(Arc<Mutex<FeedState>>);

#[derive(Debug, Default)]
struct FeedState {
    /// Every change below this transaction id can be read; 0 while the log is not followed.
    end: u64,
    /// How often the log was opened. After an opening, changes may have been missed.
    openings: u64,
    is_followed: bool,
    projects: HashMap<TenantId, ProjectMarks>,
}

/// What was changed in a project with streams.
#[derive(Debug, Default)]
struct ProjectMarks {
    streams: usize,
    by_users: Mark,
    by_anyone: Mark,
}

#[derive(Debug)]
struct Mark {
    /// All changes are below this transaction id; 0 before the first one.
    end: u64,
    raised: watch::Sender<()>,
}

impl Default for Mark {
    fn default() -> Self {
        Self { end: 0, raised: watch::Sender::new(()) }
    }
}

impl Mark {
    fn raise(&mut self, end: u64) {
        self.end = self.end.max(end);
        self.raised.send_replace(());
    }
}

/// The part of a stream in the feed.
#[derive(Debug)]
pub struct Subscription {
    feed: ChangeFeed,
    project: TenantId,
    with_server: bool,
    raised: watch::Receiver<()>,
}

/// The feed at one instant, for one stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeedView {
    /// Every change below this transaction id can be read; 0 while the log is not followed.
    pub end: u64,
    /// How often the log was opened.
    pub openings: u64,
    /// The changes since the last opening are below this transaction id.
    pub mark: u64,
}

impl ChangeFeed {
    /// Subscribes a stream to the changes of a project, and follows the log from now on.
    pub fn subscribe(&self, store: &Store, project: TenantId, with_server: bool) -> Subscription {
        let mut state = self.lock();
        let marks = state.projects.entry(project).or_default();
        marks.streams += 1;
        let mark = if with_server { &marks.by_anyone } else { &marks.by_users };
        let raised = mark.raised.subscribe();
        if !state.is_followed {
            state.is_followed = true;
            Lifecycle::detach(Box::pin(self.clone().follow(store.clone())));
        }
        drop(state);
        Subscription { feed: self.clone(), project, with_server, raised }
    }

    fn lock(&self) -> MutexGuard<'_, FeedState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Follows the log until no stream needs it.
    async fn follow(self, store: Store) {
        let mut retry_delay = MIN_RETRY_DELAY;
        loop {
            let lost = match LogReader::open(&store).await {
                Ok((reader, begin)) => {
                    retry_delay = MIN_RETRY_DELAY;
                    self.open_at(begin.xid);
                    match self.read_on(reader, &store).await {
                        Some(lost) => lost,
                        None => return,
                    }
                }
                Err(error) => error,
            };
            if self.close() {
                return;
            }
            tracing::warn!(error = %chain(&lost), "streams of changes wait: the change log cannot be followed");
            sleep(retry_delay).await;
            retry_delay = (retry_delay * 2).min(MAX_RETRY_DELAY);
        }
    }

    /// Runs passes until the position in the log is lost. Returns none when no stream needs it.
    async fn read_on(&self, mut reader: LogReader, store: &Store) -> Option<LogError> {
        let (mut used_at, mut heartbeat_at) = (Instant::now(), Instant::now());
        loop {
            if Instant::now() >= heartbeat_at {
                // Without a new heartbeat, only the end that can be read stays behind.
                let _ = log::send_heartbeat(store).await;
                heartbeat_at = Instant::now() + HEARTBEAT_INTERVAL;
            }
            match reader.next(BATCH_SIZE).await {
                Ok(tail) => {
                    self.apply(&tail);
                    if !tail.has_more {
                        sleep(PASS_INTERVAL).await;
                    }
                }
                Err(LogError::Store(_)) => sleep(PASS_INTERVAL).await,
                Err(lost) => return Some(lost),
            }
            if !self.lock().projects.is_empty() {
                used_at = Instant::now();
            } else if used_at.elapsed() >= LINGER_PERIOD && self.close() {
                return None;
            }
        }
    }

    /// The log is followed from this transaction id on.
    fn open_at(&self, begin: u64) {
        let mut state = self.lock();
        (state.end, state.openings) = (begin, state.openings + 1);
        for marks in state.projects.values_mut() {
            marks.by_users.raise(0);
            marks.by_anyone.raise(0);
        }
    }

    /// The log is no longer followed. Returns whether no stream needs it either, so that the follower
    /// ends.
    fn close(&self) -> bool {
        let mut state = self.lock();
        state.end = 0;
        let is_unused = state.projects.is_empty();
        if is_unused {
            state.is_followed = false;
        }
        is_unused
    }

    /// Applies a pass. A stream that sees the new end sees the new marks as well.
    fn apply(&self, tail: &Tail) {
        let mut state = self.lock();
        state.end = state.end.max(tail.durable_end);
        for change in &tail.changes {
            if let Some(marks) = state.projects.get_mut(&change.tenant) {
                let end = change.at.xid.saturating_add(1);
                marks.by_anyone.raise(end);
                if change.is_by_user {
                    marks.by_users.raise(end);
                }
            }
        }
    }
}

impl Subscription {
    pub fn view(&self) -> FeedView {
        let state = self.feed.lock();
        let marks = state.projects.get(&self.project);
        let mark = marks.map_or(0, |marks| {
            if self.with_server { marks.by_anyone.end } else { marks.by_users.end }
        });
        FeedView { end: state.end, openings: state.openings, mark }
    }

    /// Waits until the project may have changed since the last call.
    pub async fn changed(&mut self) {
        // The sender exists as long as the subscription.
        if self.raised.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut state = self.feed.lock();
        if let Some(marks) = state.projects.get_mut(&self.project) {
            marks.streams -= 1;
            if marks.streams == 0 {
                state.projects.remove(&self.project);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_store::log::{ChangeKind, LoggedChange, Operation, Position};
    use uuid::Uuid;

    use super::*;

    fn project(n: u128) -> TenantId {
        TenantId::new(Uuid::from_u128(n))
    }

    fn change(tenant: TenantId, xid: u64, is_by_user: bool) -> LoggedChange {
        LoggedChange {
            tenant,
            kind: ChangeKind::Host,
            id: 1,
            operation: Operation::Update,
            scope: None,
            is_by_user,
            at: Position { epoch: 1, xid, seq: 1 },
        }
    }

    /// A feed with a stream of project 1, without a follower.
    fn subscribed(feed: &ChangeFeed, with_server: bool) -> Subscription {
        let mut state = feed.lock();
        let marks = state.projects.entry(project(1)).or_default();
        marks.streams += 1;
        let mark = if with_server { &marks.by_anyone } else { &marks.by_users };
        let raised = mark.raised.subscribe();
        drop(state);
        Subscription { feed: feed.clone(), project: project(1), with_server, raised }
    }

    fn is_woken(subscription: &Subscription) -> bool {
        subscription.raised.has_changed().expect("the feed exists")
    }

    #[test]
    fn a_stream_is_woken_by_the_changes_that_it_shows() {
        let feed = ChangeFeed::default();
        feed.open_at(10);
        let (users, anyone) = (subscribed(&feed, false), subscribed(&feed, true));
        let changes = vec![change(project(1), 20, false), change(project(2), 21, true)];
        feed.apply(&Tail { changes, durable_end: 22, ..Tail::default() });
        assert!(!is_woken(&users) && is_woken(&anyone));
        assert_eq!(users.view(), FeedView { end: 22, openings: 1, mark: 0 });
        assert_eq!(anyone.view(), FeedView { end: 22, openings: 1, mark: 21 });
        let changes = vec![change(project(1), 30, true)];
        feed.apply(&Tail { changes, durable_end: 31, ..Tail::default() });
        assert!(is_woken(&users));
        assert_eq!(users.view(), FeedView { end: 31, openings: 1, mark: 31 });
    }

    #[test]
    fn the_end_moves_back_only_when_the_log_is_opened_again() {
        let feed = ChangeFeed::default();
        let stream = subscribed(&feed, true);
        feed.open_at(10);
        feed.apply(&Tail { durable_end: 30, ..Tail::default() });
        feed.apply(&Tail { durable_end: 20, ..Tail::default() });
        assert_eq!(stream.view().end, 30);
        assert!(!feed.close(), "a stream needs the log");
        assert_eq!(stream.view().end, 0);
        feed.open_at(15);
        assert!(is_woken(&stream));
        assert_eq!(stream.view(), FeedView { end: 15, openings: 2, mark: 0 });
        drop(stream);
        assert!(feed.close(), "no stream needs the log");
        assert!(feed.lock().projects.is_empty());
    }
}
