//! Whole lists: told from a cursor, piece by piece, as fast as the client takes them.

use std::io;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::response::Response;
use evenkeel_store::Tx;
use evenkeel_store::listing::{self as stored, Cursor};
use futures_util::{StreamExt, future, stream};
use tokio::sync::OwnedSemaphorePermit;

use super::text::{End, Text};
use super::{Part, json};
use crate::App;
use crate::call::Call;
use crate::problem::Problem;

/// Answers with everything behind an offset. What fits into one piece is told at once; longer lists are streamed, so
/// many at a time as the settings say.
pub async fn answer(
    parts: Vec<Part>,
    offset: u32,
    app: &App,
    call: &Call,
    tx: Tx,
) -> Result<Response, Problem> {
    let (mut total, mut left) = (0_u64, 0_u64);
    for part in &parts {
        let count = stored::count(&tx, &part.listing).await?;
        total += count;
        left += count.saturating_sub(offset.into());
    }
    let end = End { total, next: None };
    let pieces = parts.iter().map(|part| part.rows.piece());
    let mut telling = Telling {
        app: Arc::clone(app),
        tx,
        open: None,
        piece: pieces.min().unwrap_or_default(),
        parts: parts.into_iter(),
        offset: offset.into(),
        text: Text::default(),
    };
    let piece = telling.piece;
    // Before anything is read: whoever is sent away must not need memory for a piece. What fits into one needs no leave:
    // one more is asked for, to see that it ends there.
    let (permit, room) = if left <= piece.into() {
        (None, piece.saturating_add(1))
    } else {
        (Some(admit(app)?), piece)
    };
    // What cannot be told at all is told with a status.
    telling.begin_next().await?;
    let first = telling.next(room).await?;
    if telling.open.is_none() {
        return Ok(json([first, telling.finish(&end).await?].concat()));
    }
    // A list that is longer than its total says needs leave after all.
    let permit = match permit {
        Some(permit) => permit,
        None => admit(app)?,
    };
    let rest = Rest {
        telling,
        end,
        request_id: call.request_id().to_owned(),
        _permit: permit,
    };
    let first = stream::once(future::ready(Ok(Bytes::from(first))));
    let rest = stream::try_unfold(Some(rest), Rest::next);
    Ok(json(Body::from_stream(first.chain(rest))))
}

/// Leave to tell a long list.
fn admit(app: &App) -> Result<OwnedSemaphorePermit, Problem> {
    let permit = Arc::clone(&app.streams).try_acquire_owned();
    permit.map_err(|_| {
        Problem::crowded(
            "too many long lists are being told; try again in a moment, or give pageSize",
        )
    })
}

/// Lists that are being told one after the other, all as they were at one instant.
struct Telling {
    app: App,
    tx: Tx,
    /// The list that is being told; none behind the last.
    open: Option<(Part, Cursor)>,
    /// How many are in memory at once.
    piece: u32,
    parts: std::vec::IntoIter<Part>,
    offset: u64,
    text: Text,
}

impl Telling {
    /// Begins the next list, if there is one.
    async fn begin_next(&mut self) -> Result<(), Problem> {
        self.open = match self.parts.next() {
            None => None,
            Some(part) => {
                self.text.begin(part.rows.key());
                let cursor = stored::open(&self.tx, &part.listing, self.offset).await?;
                Some((part, cursor))
            }
        };
        Ok(())
    }

    /// The next piece of the text, of so many at most.
    async fn next(&mut self, mut room: u32) -> Result<Vec<u8>, Problem> {
        while let Some((part, cursor)) = &mut self.open
            && room > 0
        {
            let ids = cursor.next(&self.tx, room).await?;
            if !ids.is_empty() {
                part.rows
                    .tell(&self.app, &self.tx, &ids, &mut self.text)
                    .await?;
            }
            let left = room.saturating_sub(u32::try_from(ids.len()).unwrap_or(room));
            // A cursor gives less than it was asked for only at its end.
            if left > 0 {
                self.text.end();
                self.begin_next().await?;
            }
            room = left;
        }
        Ok(self.text.take())
    }

    /// The end of the text, when every list is told.
    async fn finish(self, end: &End) -> Result<Vec<u8>, Problem> {
        self.tx.commit().await?;
        Ok(self.text.finish(end))
    }
}

/// What of an answer is told after its first piece.
struct Rest {
    telling: Telling,
    end: End,
    request_id: String,
    _permit: OwnedSemaphorePermit,
}

impl Rest {
    /// The next piece; none behind the last. The head of the answer is sent, so what goes wrong now can only break the
    /// connection.
    async fn next(this: Option<Self>) -> io::Result<Option<(Bytes, Option<Self>)>> {
        let Some(mut this) = this else {
            return Ok(None);
        };
        let request_id = this.request_id.clone();
        let told = match this.telling.next(this.telling.piece).await {
            Ok(piece) if this.telling.open.is_some() => Ok((piece, Some(this))),
            Ok(piece) => {
                let last = this.telling.finish(&this.end).await;
                last.map(|last| ([piece, last].concat(), None))
            }
            Err(problem) => Err(problem),
        };
        let Ok((piece, rest)) = told else {
            tracing::error!(request_id, "a list broke off in the middle");
            return Err(io::Error::other("the list cannot be told to its end"));
        };
        Ok(Some((Bytes::from(piece), rest)))
    }
}
