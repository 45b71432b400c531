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

/// Content that is requested again from the byte where a transfer broke off. The transfer fails if
/// the content then has another size or entity tag. Otherwise only its digest shows a change.
pub(super) struct ResumingBody<S> {
    source: S,
    limits: Limits,
    retries: Retries,
    /// Offset of the first byte.
    from: u64,
    /// Request for the missing bytes, with the size and the entity tag of the received ones.
    rest: RangeRequest,
    /// Size of the whole content, if the caller knows it.
    expected_size: Option<u64>,
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
        if size.is_some_and(|size| from >= size) {
            return Ok(Box::pin(stream::empty()));
        }
        let mut body = Self {
            source,
            limits: sender.limits.clone(),
            retries: sender.retries(),
            from,
            rest: RangeRequest { from, ..RangeRequest::default() },
            expected_size: size,
            response: None,
        };
        while let Err(error) = body.send_request().await {
            body.retries.wait_or_fail(error).await?;
        }
        Ok(if body.response.is_some() { into_stream(body) } else { Box::pin(stream::empty()) })
    }

    /// Size of the whole content, if it is known.
    fn size(&self) -> Option<u64> {
        self.expected_size.or(self.rest.total)
    }

    fn has_received(&self) -> bool {
        self.rest.from > self.from
    }

    /// Requests the rest of the content.
    async fn send_request(&mut self) -> RegistryResult<()> {
        if !self.has_received() {
            // There are no bytes yet that another version of the content would not match.
            self.rest = RangeRequest { from: self.from, ..RangeRequest::default() };
        }
        let Some(response) = self.source.request(&self.rest).await? else {
            if self.rest.total.is_some() {
                let why = "the file at the server is shorter than before";
                return Err(RegistryError::Changed(why.to_owned()));
            }
            return Ok(());
        };
        let skip = self.check_response(&response)?;
        self.response = Some(ResponseBody::new(response, &self.limits, skip));
        Ok(())
    }

    /// Checks that a response has the missing bytes. Returns the number of bytes before them: zero
    /// if the server supports ranges.
    fn check_response(&mut self, answer: &Response) -> RegistryResult<u64> {
        let length = answer.content_length();
        let (total, etag, skip) =
            match self.rest.classify(answer.status(), answer.headers(), length) {
                Some(RangeResponse::WholeFile { total, etag }) => {
                    let checked = self.rest.check_same_file(total, etag.as_deref());
                    checked.map_err(RegistryError::Changed)?;
                    (total, etag, self.rest.from)
                }
                Some(RangeResponse::RestOfFile { total, etag }) => (total, etag, 0),
                Some(RangeResponse::WrongPart(why)) if self.has_received() => {
                    return Err(RegistryError::Changed(why));
                }
                Some(RangeResponse::WrongPart(why)) => return Err(malformed("range", why)),
                Some(RangeResponse::NotSatisfiable) | None => {
                    return Err(RegistryError::Status(answer.status().as_u16()));
                }
            };
        if let (Some(expected), Some(total)) = (self.expected_size, total)
            && expected != total
        {
            let why = format!("the file has {total} bytes, expected {expected}");
            return Err(malformed("response", why));
        }
        self.rest.total = self.rest.total.or(total);
        self.rest.etag = self.rest.etag.take().or(etag);
        Ok(skip)
    }

    async fn receive_chunk(&mut self) -> RegistryResult<Option<Bytes>> {
        if self.response.is_none() {
            self.send_request().await?;
        }
        let Some(response) = &mut self.response else {
            return Ok(None);
        };
        let chunk = response.next_chunk().await?;
        let length = chunk.as_ref().map_or(0, Bytes::len) as u64;
        self.rest.from = self.rest.from.saturating_add(length);
        let position = self.rest.from;
        match self.size() {
            Some(limit) if chunk.is_some() && position > limit => {
                Err(RegistryError::TooLarge { limit })
            }
            Some(size) if chunk.is_none() && position < size => {
                let why = format!("it ended after {position} of {size} bytes");
                Err(io::Error::new(io::ErrorKind::UnexpectedEof, why).into())
            }
            _ => Ok(chunk),
        }
    }
}

impl<S: RangeSource> ChunkSource for ResumingBody<S> {
    async fn next_chunk(&mut self) -> RegistryResult<Option<Bytes>> {
        while self.size() != Some(self.rest.from) {
            match self.receive_chunk().await {
                Ok(chunk) => return Ok(chunk),
                Err(error) => {
                    self.response = None;
                    let received = self.rest.from - self.from;
                    self.retries.wait_or_fail_at(received, error).await?;
                }
            }
        }
        Ok(None)
    }
}
