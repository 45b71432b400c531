//! Whole lists: streamed from a cursor, chunk by chunk, as fast as the client reads them.

use std::io;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::response::Response;
use evenkeel_store::Tx;
use evenkeel_store::listing::{self as stored, Cursor};
use futures_util::{StreamExt, future, stream};
use tokio::sync::OwnedSemaphorePermit;

use super::list_json::{ListJson, ListTail};
use super::{ListPart, json_response};
use crate::app::App;
use crate::call::Call;
use crate::problem::Problem;

/// Responds with all items after an offset. A list that fits into one chunk is sent at once. Longer
/// lists are streamed; the settings limit how many at the same time.
pub async fn answer(
    parts: Vec<ListPart>,
    offset: u32,
    call: &Call,
    tx: Tx,
) -> Result<Response, Problem> {
    let (mut total, mut left) = (0_u64, 0_u64);
    for part in &parts {
        let count = stored::count(&tx, &part.listing).await?;
        total += count;
        left += count.saturating_sub(offset.into());
    }
    let end = ListTail { total, next: None };
    let chunk_sizes = parts.iter().map(|part| part.rows.chunk_size());
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
        (Some(acquire_stream_permit(&call.app)?), chunk_size)
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
        None => acquire_stream_permit(&call.app)?,
    };
    let rest =
        RemainingList { writer, end, request_id: call.request_id().to_owned(), _permit: permit };
    let first = stream::once(future::ready(Ok(Bytes::from(first))));
    let rest = stream::try_unfold(Some(rest), RemainingList::next_chunk);
    Ok(json_response(Body::from_stream(first.chain(rest))))
}

/// Acquires the permit to stream a long list.
fn acquire_stream_permit(app: &App) -> Result<OwnedSemaphorePermit, Problem> {
    let permit = Arc::clone(&app.stream_permits).try_acquire_owned();
    permit.map_err(|_| {
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
    _permit: OwnedSemaphorePermit,
}

impl RemainingList {
    /// The next chunk. None after the last one. The status is sent already, so an error can only
    /// break the connection.
    async fn next_chunk(this: Option<Self>) -> io::Result<Option<(Bytes, Option<Self>)>> {
        let Some(mut this) = this else {
            return Ok(None);
        };
        let request_id = this.request_id.clone();
        let result = match this.writer.next_chunk(this.writer.chunk_size).await {
            Ok(chunk) if this.writer.current.is_some() => Ok((chunk, Some(this))),
            Ok(chunk) => {
                let last = this.writer.finish(&this.end).await;
                last.map(|last| ([chunk, last].concat(), None))
            }
            Err(problem) => Err(problem),
        };
        let Ok((chunk, rest)) = result else {
            tracing::error!(request_id, "streaming a list failed");
            return Err(io::Error::other("the list could not be sent completely"));
        };
        Ok(Some((Bytes::from(chunk), rest)))
    }
}
