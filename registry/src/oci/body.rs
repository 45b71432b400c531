//! The bodies of answers, as they come piece by piece.

use std::time::Duration;

use bytes::{Buf as _, Bytes};
use futures_util::stream;
use reqwest::Response;
use tokio::time::{Instant, timeout};

use super::send::broken;
use crate::error::{Got, RegistryError};
use crate::limits::Limits;
use crate::source::Body;

/// What gives a content piece by piece.
pub(super) trait Pieces: Send + 'static {
    /// The next piece, or none at the end.
    fn next(&mut self) -> impl Future<Output = Got<Option<Bytes>>> + Send;
}

/// A content out of its pieces. It ends behind the first error.
pub(super) fn body(pieces: impl Pieces) -> Body {
    Box::pin(stream::unfold(Some(pieces), |pieces| async move {
        let mut pieces = pieces?;
        match pieces.next().await {
            Ok(Some(piece)) => Some((Ok(piece), Some(pieces))),
            Ok(None) => None,
            Err(error) => Some((Err(error), None)),
        }
    }))
}

/// The body of an answer. One that only drips is given up like one that does not come at all.
pub(super) struct Coming {
    answer: Response,
    stalled: Duration,
    slowest: u64,
    /// How much of it lies before what is wanted.
    skip: u64,
    /// How long was waited since the pace was looked at last. What the reader takes for its own work does not count.
    waited: Duration,
    /// How many bytes came in that time.
    came: u64,
}

impl Coming {
    /// What an answer brings behind its first `skip` bytes.
    pub fn new(answer: Response, limits: &Limits, skip: u64) -> Self {
        Self {
            answer,
            stalled: limits.stalled,
            slowest: limits.slowest,
            skip,
            waited: Duration::ZERO,
            came: 0,
        }
    }

    async fn piece(&mut self) -> Got<Option<Bytes>> {
        let begun = Instant::now();
        let piece = timeout(self.stalled, self.answer.chunk())
            .await
            .map_err(|_| RegistryError::Stalled)?
            .map_err(broken)?;
        let Some(piece) = piece else {
            return Ok(None);
        };
        self.waited = self.waited.saturating_add(begun.elapsed());
        self.came = self.came.saturating_add(piece.len() as u64);
        if self.waited >= self.stalled {
            let least = u128::from(self.slowest).saturating_mul(self.waited.as_millis());
            if u128::from(self.came) * 1_000 < least {
                return Err(RegistryError::Stalled);
            }
            (self.waited, self.came) = (Duration::ZERO, 0);
        }
        Ok(Some(piece))
    }
}

impl Pieces for Coming {
    async fn next(&mut self) -> Got<Option<Bytes>> {
        loop {
            let Some(mut piece) = self.piece().await? else {
                return Ok(None);
            };
            let before = self.skip.min(piece.len() as u64);
            self.skip -= before;
            piece.advance(usize::try_from(before).unwrap_or(piece.len()));
            if !piece.is_empty() {
                return Ok(Some(piece));
            }
        }
    }
}
