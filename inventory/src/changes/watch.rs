//! A stream of changes. It holds no database connection while it waits, and memory only for the events
//! that its client has not read yet.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderName, StatusCode};
use axum::response::{IntoResponse, Response};
use evenkeel_domain::tenant::TenantId;
use evenkeel_kit::Lifecycle;
use evenkeel_store::changes::{self, ChangeCursor, ChangeFilter, RecordedChange};
use futures_util::stream;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::events::{self, EventText};
use super::{ChangeScope, objects};
use crate::app::StreamPermit;
use crate::call::Call;
use crate::change_feed::{FeedView, Subscription};
use crate::problem::Problem;

/// Header by which nginx learns that it must not buffer the response.
const PROXY_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

/// Interval between bookmarks while there are no changes.
const BOOKMARK_INTERVAL: Duration = Duration::from_secs(15);

/// Interval between checks of the token.
const ACCESS_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum number of changes that are read at once.
const MAX_CHANGES_PER_CHUNK: u32 = 50;

/// No further change is added to a chunk of this size.
const MAX_CHUNK_BYTES: usize = 32 * 1024;

/// Pause after a failure of the database.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Responds with a stream of changes after a cursor; without a cursor, of those from now on.
pub async fn answer(
    call: Call,
    scope: ChangeScope,
    filter: ChangeFilter,
    cursor: Option<ChangeCursor>,
) -> Result<Response, Problem> {
    let tx = scope.snapshot(&call).await?;
    let cursor = match cursor {
        None => changes::current_cursor(&tx).await?,
        Some(cursor) => {
            if changes::has_expired(&tx, &cursor).await? {
                return Err(Problem::cursor_expired());
            }
            cursor
        }
    };
    let project = tx.tenant();
    drop(tx);
    let caller = call.caller()?.actor_name();
    let permit = call.app.watchers.try_acquire(project, &caller).ok_or_else(|| {
        Problem::overloaded(
            "too many streams of changes are open (rest.max_watchers); close one, or try again later",
        )
    })?;
    let feed = &call.app.change_feed;
    let subscription = feed.subscribe(&call.app.store, project, filter.with_server);
    let (sender, receiver) = mpsc::channel(1);
    let stream = ChangeStream {
        call,
        scope,
        project,
        filter,
        cursor,
        subscription,
        has_more: false,
        seen_openings: None,
        _permit: permit,
    };
    // A task, because a client that reads nothing must not decide how long the stream lasts.
    Lifecycle::detach(Box::pin(stream.run(sender)));
    let body = stream::unfold(receiver, |mut receiver: mpsc::Receiver<Bytes>| async move {
        let bytes = receiver.recv().await?;
        Some((Ok::<_, Infallible>(bytes), receiver))
    });
    let headers = [(CONTENT_TYPE, "text/event-stream"), (PROXY_BUFFERING, "no")];
    Ok((headers, Body::from_stream(body)).into_response())
}

/// Why a stream ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StreamEnd {
    /// The process stops.
    Stopping,
    /// The client has disconnected.
    Disconnected,
    /// The client reads too slowly.
    TooSlow,
    /// The caller may no longer read the project, or the project was deleted.
    AccessLost,
    /// Changes after the cursor may be missing.
    CursorExpired,
    /// A change cannot be sent.
    Failed,
}

impl StreamEnd {
    /// The label in metrics, and the reason in the last event.
    const fn name(self) -> &'static str {
        match self {
            Self::Stopping => "stopping",
            Self::Disconnected => "disconnected",
            Self::TooSlow => "slow",
            Self::AccessLost => "access",
            Self::CursorExpired => "cursor",
            Self::Failed => "failed",
        }
    }

    /// Whether the client can still read the reason.
    const fn is_sent(self) -> bool {
        !matches!(self, Self::Disconnected | Self::TooSlow)
    }
}

struct ChangeStream {
    call: Call,
    scope: ChangeScope,
    /// [`TenantId::NO_PROJECT`] outside of projects.
    project: TenantId,
    filter: ChangeFilter,
    /// Everything up to this position was sent.
    cursor: ChangeCursor,
    subscription: Subscription,
    /// Whether the last chunk may not have been the last one.
    has_more: bool,
    /// The opening of the log in which the changes up to its end were read last; none before the first.
    seen_openings: Option<u64>,
    _permit: StreamPermit,
}

impl ChangeStream {
    /// Sends events until the stream ends.
    async fn run(mut self, sender: mpsc::Sender<Bytes>) {
        let open = metrics::gauge!("evenkeel_change_watchers");
        open.increment(1.0);
        let (stopping, disconnected) = (self.call.stopping(), sender.clone());
        let ended = tokio::select! {
            () = stopping => StreamEnd::Stopping,
            () = disconnected.closed() => StreamEnd::Disconnected,
            ended = self.send_events(&sender) => ended,
        };
        if ended.is_sent() {
            // The stream ends as well if its client does not read this.
            let _ = timeout(ACCESS_CHECK_INTERVAL, sender.send(events::end(ended.name()))).await;
        }
        open.decrement(1.0);
        metrics::counter!("evenkeel_change_watchers_ended_total", "reason" => ended.name())
            .increment(1);
    }

    async fn send_events(&mut self, sender: &mpsc::Sender<Bytes>) -> StreamEnd {
        if let Err(ended) = self.send(sender, Bytes::from_static(events::FIRST_BYTES)).await {
            return ended;
        }
        let mut bookmark_at = Instant::now() + BOOKMARK_INTERVAL;
        loop {
            if !self.call.may_still_read(self.project) {
                return StreamEnd::AccessLost;
            }
            let view = self.subscription.view();
            let sent = if self.must_read(view) {
                self.send_changes(sender, view).await
            } else if Instant::now() >= bookmark_at {
                bookmark_at = Instant::now() + BOOKMARK_INTERVAL;
                // Nothing of the stream is between the cursor and the end of the log.
                self.cursor = self.cursor.advanced_to(view.end);
                self.send(sender, events::bookmark(&self.cursor)).await
            } else {
                let check_at = Instant::now() + ACCESS_CHECK_INTERVAL;
                tokio::select! {
                    () = self.subscription.changed() => {}
                    () = sleep_until(check_at.min(bookmark_at)) => {}
                }
                Ok(())
            };
            if let Err(ended) = sent {
                return ended;
            }
        }
    }

    /// Whether there may be changes after the cursor that can be read.
    fn must_read(&self, view: FeedView) -> bool {
        let is_behind = self.has_more
            || self.seen_openings != Some(view.openings)
            || view.mark > self.cursor.xid();
        is_behind && view.end > self.cursor.xid()
    }

    /// Sends bytes as soon as the client has read the previous ones.
    async fn send(&self, sender: &mpsc::Sender<Bytes>, bytes: Bytes) -> Result<(), StreamEnd> {
        self.reserve(sender).await?.send(bytes);
        Ok(())
    }

    async fn reserve<'a>(
        &self,
        sender: &'a mpsc::Sender<Bytes>,
    ) -> Result<mpsc::Permit<'a, Bytes>, StreamEnd> {
        match timeout(self.call.app.settings.stream_grace_period, sender.reserve()).await {
            Ok(Ok(slot)) => Ok(slot),
            Ok(Err(_)) => Err(StreamEnd::Disconnected),
            Err(_) => Err(StreamEnd::TooSlow),
        }
    }

    /// Sends the next changes below the end of the log. The client has room before they are read, so a
    /// client that does not read needs no memory for them.
    async fn send_changes(
        &mut self,
        sender: &mpsc::Sender<Bytes>,
        view: FeedView,
    ) -> Result<(), StreamEnd> {
        let slot = self.reserve(sender).await?;
        let found = match self.read_changes(view.end).await {
            Ok(Some(found)) => found,
            Ok(None) => return Err(StreamEnd::CursorExpired),
            Err(problem) => {
                return match problem.status() {
                    StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Err(StreamEnd::AccessLost),
                    StatusCode::SERVICE_UNAVAILABLE => {
                        sleep(RETRY_INTERVAL).await;
                        Ok(())
                    }
                    _ => Err(StreamEnd::Failed),
                };
            }
        };
        let (text, sent) = self.write_changes(found, view).map_err(|_| StreamEnd::Failed)?;
        if sent > 0 {
            slot.send(text.into_bytes());
            metrics::counter!("evenkeel_change_events_total").increment(sent);
        }
        Ok(())
    }

    /// Reads the next changes; none if the cursor has expired.
    async fn read_changes(&self, end: u64) -> Result<Option<Vec<RecordedChange>>, Problem> {
        let Ok(_reading) = self.call.app.watch_reads.acquire().await else {
            return Err(Problem::internal());
        };
        let tx = self.scope.snapshot(&self.call).await?;
        if changes::has_expired(&tx, &self.cursor).await? {
            return Ok(None);
        }
        let found =
            changes::read_after(&tx, &self.filter, &self.cursor, end, MAX_CHANGES_PER_CHUNK);
        Ok(Some(found.await?))
    }

    /// Writes as many of the changes as fit into a chunk, and moves the cursor. Also returns their
    /// number.
    fn write_changes(
        &mut self,
        found: Vec<RecordedChange>,
        view: FeedView,
    ) -> Result<(EventText, u64), Problem> {
        let is_last_chunk = u32::try_from(found.len()).is_ok_and(|n| n < MAX_CHANGES_PER_CHUNK);
        let (mut text, mut sent) = (EventText::default(), 0);
        let mut left = found.into_iter();
        while text.len() < MAX_CHUNK_BYTES
            && let Some(change) = left.next()
        {
            let cursor = self.cursor.after(change.id);
            text.push_change(&cursor, &objects::resource(change))?;
            self.cursor = cursor;
            sent += 1;
        }
        self.has_more = !is_last_chunk || left.next().is_some();
        if !self.has_more {
            self.cursor = self.cursor.advanced_to(view.end);
            self.seen_openings = Some(view.openings);
        }
        Ok((text, sent))
    }
}
