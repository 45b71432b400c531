//! Bodies of responses as streams of chunks.

use std::time::Duration;

use bytes::{Buf as _, Bytes};
use futures_util::stream;
use reqwest::Response;
use tokio::time::{Instant, timeout};

use super::send::connection_error;
use crate::error::{RegistryError, RegistryResult};
use crate::limits::Limits;
use crate::source::BlobStream;

/// A source of chunks.
pub(super) trait ChunkSource: Send + 'static {
    /// The next chunk, or `None` at the end.
    fn next_chunk(&mut self) -> impl Future<Output = RegistryResult<Option<Bytes>>> + Send;
}

/// Turns a source of chunks into a stream that ends after the first error.
pub(super) fn into_stream(chunks: impl ChunkSource) -> BlobStream {
    Box::pin(stream::unfold(Some(chunks), |chunks| async move {
        let mut chunks = chunks?;
        match chunks.next_chunk().await {
            Ok(Some(chunk)) => Some((Ok(chunk), Some(chunks))),
            Ok(None) => None,
            Err(error) => Some((Err(error), None)),
        }
    }))
}

/// Body of a response. It fails if no data or too little data arrives in time.
pub(super) struct ResponseBody {
    response: Response,
    stall_timeout: Duration,
    min_bytes_per_second: u64,
    /// Number of bytes to skip before the wanted ones.
    skip: u64,
    /// Time spent waiting since the rate was last checked. The time of the reader does not count.
    waited: Duration,
    /// Number of bytes received in that time.
    received_bytes: u64,
}

impl ResponseBody {
    /// The body of a response without its first `skip` bytes.
    pub fn new(answer: Response, limits: &Limits, skip: u64) -> Self {
        Self {
            response: answer,
            stall_timeout: limits.stall_timeout,
            min_bytes_per_second: limits.min_bytes_per_second,
            skip,
            waited: Duration::ZERO,
            received_bytes: 0,
        }
    }

    async fn receive_chunk(&mut self) -> RegistryResult<Option<Bytes>> {
        let started = Instant::now();
        let chunk = timeout(self.stall_timeout, self.response.chunk())
            .await
            .map_err(|_| RegistryError::Stalled)?
            .map_err(connection_error)?;
        let Some(chunk) = chunk else {
            return Ok(None);
        };
        self.waited = self.waited.saturating_add(started.elapsed());
        self.received_bytes = self.received_bytes.saturating_add(chunk.len() as u64);
        if self.waited >= self.stall_timeout {
            let least =
                u128::from(self.min_bytes_per_second).saturating_mul(self.waited.as_millis());
            if u128::from(self.received_bytes) * 1_000 < least {
                return Err(RegistryError::Stalled);
            }
            (self.waited, self.received_bytes) = (Duration::ZERO, 0);
        }
        Ok(Some(chunk))
    }
}

impl ChunkSource for ResponseBody {
    async fn next_chunk(&mut self) -> RegistryResult<Option<Bytes>> {
        loop {
            let Some(mut chunk) = self.receive_chunk().await? else {
                return Ok(None);
            };
            let before = self.skip.min(chunk.len() as u64);
            self.skip -= before;
            chunk.advance(usize::try_from(before).unwrap_or(chunk.len()));
            if !chunk.is_empty() {
                return Ok(Some(chunk));
            }
        }
    }
}
