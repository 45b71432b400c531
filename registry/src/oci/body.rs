//! Bodies of responses as streams of chunks.

use std::io;

use bytes::{Buf as _, Bytes};
use evenkeel_fetch::{BodyEvent, RangeRequest, RangeResponse, StallLimits, StallWatch};
use futures_util::stream;
use reqwest::Response;

use super::send::{HttpSender, Retries, connection_error};
use crate::error::{RegistryError, RegistryResult, malformed};
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
    limits: StallLimits,
    watch: StallWatch,
    /// Number of bytes to skip before the wanted ones.
    skip: u64,
}

impl ResponseBody {
    /// The body of a response without its first `skip` bytes.
    pub fn new(response: Response, limits: &Limits, skip: u64) -> Self {
        let min_bytes =
            u128::from(limits.min_bytes_per_second) * limits.stall_timeout.as_millis() / 1_000;
        let limits = StallLimits {
            idle_timeout: limits.stall_timeout,
            rate_window: limits.stall_timeout,
            min_bytes: u64::try_from(min_bytes).unwrap_or(u64::MAX),
        };
        Self { response, limits, watch: StallWatch::default(), skip }
    }
}

impl ChunkSource for ResponseBody {
    async fn next_chunk(&mut self) -> RegistryResult<Option<Bytes>> {
        loop {
            let response = &mut self.response;
            let next = async { response.chunk().await.map_err(connection_error) };
            let mut chunk = match self.watch.next_event(&self.limits, None, next).await {
                BodyEvent::Bytes(chunk) => chunk,
                BodyEvent::End => return Ok(None),
                BodyEvent::Idle => continue,
                BodyEvent::Broken(error) => return Err(error),
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

/// Content that can be requested from an offset on.
pub(super) trait RangeSource: Send + 'static {
    /// Sends the request once; `None` if the content ends before the offset.
    fn request(
        &self,
        range: &RangeRequest,
    ) -> impl Future<Output = RegistryResult<Option<Response>>> + Send;
}

/// Content that is requested again from the byte where a transfer broke off. Only its digest shows
/// whether it stayed the same.
pub(super) struct ResumingBody<S> {
    source: S,
    limits: Limits,
    retries: Retries,
    /// Offset of the first byte.
    from: u64,
    /// Offset of the next byte.
    position: u64,
    /// Size of the whole content, if it is known.
    size: Option<u64>,
    /// The current response.
    response: Option<ResponseBody>,
}

impl<S: RangeSource> ResumingBody<S> {
    /// Sends the first request now, so missing content is reported at once.
    pub async fn open(
        source: S,
        sender: &HttpSender,
        from: u64,
        size: Option<u64>,
    ) -> RegistryResult<BlobStream> {
        let (limits, retries) = (sender.limits.clone(), sender.retries());
        let mut body = Self { source, limits, retries, from, position: from, size, response: None };
        while let Err(error) = body.send_request().await {
            body.retries.wait_or_fail(error).await?;
        }
        Ok(if body.response.is_some() { into_stream(body) } else { Box::pin(stream::empty()) })
    }

    /// Requests the rest of the content.
    async fn send_request(&mut self) -> RegistryResult<()> {
        let range = RangeRequest { from: self.position, ..RangeRequest::default() };
        let Some(response) = self.source.request(&range).await? else {
            return Ok(());
        };
        let skip = bytes_to_skip(&response, &range)?;
        let left = self.size.map(|size| size - self.position);
        if let (Some(left), Some(length)) = (left, response.content_length())
            && length != left.saturating_add(skip)
        {
            let why = format!("the response has {length} bytes, but {left} are missing");
            return Err(malformed("blob", why));
        }
        self.response = Some(ResponseBody::new(response, &self.limits, skip));
        Ok(())
    }

    async fn receive_chunk(&mut self) -> RegistryResult<Option<Bytes>> {
        if self.response.is_none() {
            self.send_request().await?;
        }
        let Some(response) = &mut self.response else {
            return Ok(None);
        };
        let chunk = response.next_chunk().await?;
        self.position = self.position.saturating_add(chunk.as_ref().map_or(0, Bytes::len) as u64);
        match self.size {
            Some(limit) if self.position > limit => Err(RegistryError::TooLarge { limit }),
            Some(size) if chunk.is_none() => {
                let why = format!("it ended after {} of {size} bytes", self.position);
                Err(io::Error::new(io::ErrorKind::UnexpectedEof, why).into())
            }
            _ => Ok(chunk),
        }
    }
}

impl<S: RangeSource> ChunkSource for ResumingBody<S> {
    async fn next_chunk(&mut self) -> RegistryResult<Option<Bytes>> {
        while self.size != Some(self.position) {
            match self.receive_chunk().await {
                Ok(chunk) => return Ok(chunk),
                Err(error) => {
                    self.response = None;
                    let received = self.position - self.from;
                    self.retries.wait_or_fail_at(received, error).await?;
                }
            }
        }
        Ok(None)
    }
}

/// Number of bytes of a response before the requested ones: zero if the server supports ranges.
fn bytes_to_skip(answer: &Response, requested: &RangeRequest) -> RegistryResult<u64> {
    match requested.classify(answer.status(), answer.headers(), answer.content_length()) {
        Some(RangeResponse::WholeFile { .. }) => Ok(requested.from),
        Some(RangeResponse::RestOfFile { .. }) => Ok(0),
        Some(RangeResponse::WrongPart(why)) => Err(malformed("range", why)),
        Some(RangeResponse::NotSatisfiable) | None => {
            Err(RegistryError::Status(answer.status().as_u16()))
        }
    }
}
