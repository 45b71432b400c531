//! Whole lists: streamed from a cursor, chunk by chunk, as fast as the client reads them. A client
//! that reads too slowly is disconnected.

use std::io;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::response::Response;
use evenkeel_domain::tenant::TenantId;
use evenkeel_kit::Lifecycle;
use evenkeel_store::Tx;
use evenkeel_store::listing::{self as stored, Cursor};
use futures_util::{StreamExt, future, stream};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::list_json::{ListJson, ListTail};
use super::{ListPart, ListRequest, json_response};
use crate::app::{App, ListReader, StreamPermit};
use crate::call::Call;
use crate::problem::Problem;

/// Responds with all items after an offset. A list that fits into one chunk is sent at once. Longer
/// lists are streamed; the settings limit how many at the same time.
pub async fn answer(request: ListRequest, call: &Call, tx: Tx) -> Result<Response, Problem> {
    let ListRequest { parts, range, permit: expensive } = request;
    let offset = range.first_offset()?;
    let (mut total, mut left) = (0_u64, 0_u64);
    for part in &parts {
        let count = stored::count(&tx, &part.listing).await?;
        total += count;
        left += count.saturating_sub(offset.into());
    }
    let end = ListTail { total, next: None };
    let chunk_sizes = parts.iter().map(|part| part.rows.chunk_size());
    let project = tx.tenant();
    let mut writer = ListWriter {
        tx,
        current: None,
        chunk_size: chunk_sizes.min().unwrap_or_default(),
        parts: parts.into_iter(),
        offset: offset.into(),
        text: ListJson::default(),
    };
    let chunk_size = writer.chunk_size;
    // Before anything is read: a rejected request must not need memory for a chunk. A list that
    // fits into one chunk needs no permit. One more item is requested, to see that the list ends
    // there.
    let (permit, room) = if left <= chunk_size.into() {
        (None, chunk_size.saturating_add(1))
    } else {
        (Some(acquire_stream_permit(call, project)?), chunk_size)
    };
    // Errors in the first chunk still get a status.
    writer.begin_next().await?;
    let first = writer.next_chunk(room).await?;
    if writer.current.is_none() {
        return Ok(json_response([first, writer.finish(&end).await?].concat()));
    }
    // The list is longer than its total, so it needs a permit after all.
    let permit = match permit {
        Some(permit) => permit,
        None => acquire_stream_permit(call, project)?,
    };
    // From here on, the permits to stream limit the connections.
    writer.tx.release_share();
    let (sender, receiver) = mpsc::channel(1);
    let rest = RemainingList {
        writer,
        end,
        request_id: call.request_id().to_owned(),
        min_rate: call.app.settings.min_stream_rate,
        grace_period: call.app.settings.stream_grace_period,
        last_chunk_bytes: first.len(),
        permit,
        expensive: match expensive {
            Some(_) => Some((App::clone(&call.app), call.list_reader()?)),
            None => None,
        },
    };
    drop(expensive);
    // A task, because the client must not decide how long the list keeps its connection.
    Lifecycle::detach(rest.send(sender));
    let first = stream::once(future::ready(Ok(Bytes::from(first))));
    let rest = stream::try_unfold(Some(receiver), receive_chunk);
    Ok(json_response(Body::from_stream(first.chain(rest))))
}

/// Acquires the permit to stream a long list.
fn acquire_stream_permit(call: &Call, project: TenantId) -> Result<StreamPermit, Problem> {
    let caller = call.caller()?.actor_name();
    call.app.streams.try_acquire(project, &caller).ok_or_else(|| {
        Problem::overloaded(
            "too many long lists are being streamed; try again in a moment, or set pageSize",
        )
    })
}

/// Writes lists one after the other, as of one instant.
struct ListWriter {
    tx: Tx,
    /// The list that is being written. None after the last one.
    current: Option<(ListPart, Cursor)>,
    /// Number of items in memory at once.
    chunk_size: u32,
    parts: std::vec::IntoIter<ListPart>,
    offset: u64,
    text: ListJson,
}

impl ListWriter {
    /// Begins the next list, if there is one.
    async fn begin_next(&mut self) -> Result<(), Problem> {
        self.current = match self.parts.next() {
            None => None,
            Some(part) => {
                self.text.begin(part.rows.key());
                let cursor = stored::open(&self.tx, &part.listing, self.offset).await?;
                Some((part, cursor))
            }
        };
        Ok(())
    }

    /// Writes the next items, `room` at most, and returns their JSON.
    async fn next_chunk(&mut self, mut room: u32) -> Result<Vec<u8>, Problem> {
        while let Some((part, cursor)) = &mut self.current
            && room > 0
        {
            let ids = cursor.next(&self.tx, room).await?;
            if !ids.is_empty() {
                part.rows.write_items(&self.tx, &ids, &mut self.text).await?;
            }
            let left = room.saturating_sub(u32::try_from(ids.len()).unwrap_or(room));
            // Fewer ids than requested mean that the cursor is at its end.
            if left > 0 {
                self.text.end();
                self.begin_next().await?;
            }
            room = left;
        }
        Ok(self.text.take())
    }

    /// Writes the end of the response, after the last list.
    async fn finish(self, end: &ListTail) -> Result<Vec<u8>, Problem> {
        self.tx.commit().await?;
        Ok(self.text.finish(end))
    }
}

/// The part of a response after its first chunk.
struct RemainingList {
    writer: ListWriter,
    end: ListTail,
    request_id: String,
    /// In bytes per second; 0 for no minimum.
    min_rate: u64,
    grace_period: Duration,
    last_chunk_bytes: usize,
    permit: StreamPermit,
    /// The API and the caller, if the filter is expensive: each chunk waits for other such lists, and
    /// others can be read while the client reads this one.
    expensive: Option<(App, ListReader)>,
}

/// A part of the rest of a list.
struct ListChunk {
    bytes: Vec<u8>,
    is_last: bool,
}

impl RemainingList {
    /// Sends the chunks as fast as the client reads them. Without the last chunk, the connection
    /// breaks, because the status is sent already. Ends early if the client reads too slowly or has
    /// disconnected.
    async fn send(self, sender: mpsc::Sender<ListChunk>) {
        let request_id = self.request_id.clone();
        let disconnected = sender.clone();
        tokio::select! {
            () = disconnected.closed() => {}
            sent = self.send_chunks(sender) => {
                if let Err(why) = sent {
                    tracing::warn!(request_id, why, "a list was not sent completely");
                }
            }
        }
    }

    async fn send_chunks(mut self, sender: mpsc::Sender<ListChunk>) -> Result<(), &'static str> {
        loop {
            let slot = match self.chunk_timeout() {
                None => sender.reserve().await,
                Some(within) => {
                    let reserved = timeout(within, sender.reserve()).await;
                    reserved.map_err(|_| "the client reads too slowly (rest.min_stream_rate)")?
                }
            };
            let Ok(slot) = slot else {
                return Ok(());
            };
            let expensive = match &self.expensive {
                Some((app, reader)) => Some(
                    app.expensive_lists
                        .acquire_for_next_chunk(reader)
                        .await
                        .ok_or("too many lists with expensive filters are requested")?,
                ),
                None => None,
            };
            let chunk = self.writer.next_chunk(self.writer.chunk_size).await;
            drop(expensive);
            let mut bytes = chunk.map_err(|_| "the database failed")?;
            if self.writer.current.is_some() {
                self.last_chunk_bytes = bytes.len();
                slot.send(ListChunk { bytes, is_last: false });
                continue;
            }
            let last = self.writer.finish(&self.end).await;
            bytes.extend(last.map_err(|_| "the database failed")?);
            // The client may send its next request as soon as it has the last chunk.
            drop(self.permit);
            slot.send(ListChunk { bytes, is_last: true });
            return Ok(());
        }
    }

    /// How long the client may take until it asks for the next chunk; none if for ever.
    fn chunk_timeout(&self) -> Option<Duration> {
        let bytes = u64::try_from(self.last_chunk_bytes).unwrap_or(u64::MAX);
        let transfer = bytes.checked_div(self.min_rate)?;
        Some(self.grace_period.saturating_add(Duration::from_secs(transfer)))
    }
}

/// Receives the next chunk; none after the last one.
async fn receive_chunk(
    receiver: Option<mpsc::Receiver<ListChunk>>,
) -> io::Result<Option<(Bytes, Option<mpsc::Receiver<ListChunk>>)>> {
    let Some(mut receiver) = receiver else {
        return Ok(None);
    };
    match receiver.recv().await {
        Some(ListChunk { bytes, is_last }) => {
            Ok(Some((Bytes::from(bytes), (!is_last).then_some(receiver))))
        }
        None => Err(io::Error::other("the list could not be sent completely")),
    }
}
