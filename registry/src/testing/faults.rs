//! Faults that tests inject into a registry.

use std::convert::Infallible;
use std::io;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE, DATE, LOCATION, RETRY_AFTER};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};

/// Chunk size of an endless response.
const CHUNK_BYTES: usize = 64 * 1024;

/// Delay before each byte of a dripping response.
const DRIP_INTERVAL: Duration = Duration::from_millis(100);

/// A fault to inject.
#[derive(Clone, Debug)]
pub struct Fault {
    /// Affects requests whose method and path contain this text.
    pub request_part: String,
    /// Number of requests to affect.
    pub times: u32,
    /// Kind of the fault.
    pub kind: FaultKind,
}

impl Fault {
    /// Affects every request whose method and path contain `on`.
    pub fn always(on: &str, kind: FaultKind) -> Self {
        Self::times(on, u32::MAX, kind)
    }

    /// Affects the first `times` requests whose method and path contain `on`.
    pub fn times(on: &str, times: u32, kind: FaultKind) -> Self {
        Self { request_part: on.to_owned(), times, kind }
    }
}

/// Kind of a fault.
#[derive(Clone, Debug)]
pub enum FaultKind {
    /// The response has this status.
    Status(u16),
    /// The response asks to retry later.
    Busy {
        /// Status of the response: 429 or 503.
        status: u16,
        /// Value of the `Retry-After` header.
        retry_after: String,
        /// Value of the `Date` header.
        date: Option<String>,
    },
    /// The response redirects to this address.
    Redirect(String),
    /// There is no response.
    Silent,
    /// The response stops half way, and the connection stays open.
    Stall,
    /// The connection breaks half way through the response.
    Cut,
    /// The response does not declare its length and ends after this many bytes.
    EndAfter(usize),
    /// The response arrives byte by byte.
    Slow,
    /// The response arrives byte by byte, with a delay before each byte.
    Drip,
    /// One byte of the response is changed.
    Corrupt,
    /// The response is an HTML page.
    Html,
    /// The response declares this length and then stalls.
    WrongLength(u64),
    /// The response has this many bytes and does not declare its length.
    Huge(u64),
}

/// Applies a fault to a response.
pub(super) async fn apply_fault(kind: FaultKind, answer: Response) -> Response {
    match kind {
        FaultKind::Status(status) => status_of(status).into_response(),
        FaultKind::Busy { status, retry_after, date } => {
            let mut busy = status_of(status).into_response();
            set(busy.headers_mut(), RETRY_AFTER, &retry_after);
            if let Some(date) = date {
                set(busy.headers_mut(), DATE, &date);
            }
            busy
        }
        FaultKind::Redirect(to) => {
            let mut leading = StatusCode::TEMPORARY_REDIRECT.into_response();
            set(leading.headers_mut(), LOCATION, &to);
            leading
        }
        FaultKind::Silent => std::future::pending().await,
        FaultKind::Html => {
            let mut page = "<!DOCTYPE html><html><body>Sign in</body></html>".into_response();
            set(page.headers_mut(), CONTENT_TYPE, "text/html");
            page
        }
        kind => apply_body_fault(kind, answer).await,
    }
}

async fn apply_body_fault(kind: FaultKind, answer: Response) -> Response {
    let (mut head, body) = answer.into_parts();
    let content = to_bytes(body, usize::MAX).await.unwrap_or_default();
    let half = content.slice(..content.len() / 2);
    let length = content.len() as u64;
    let (length, body) = match kind {
        FaultKind::Stall => {
            let first = stream::iter([Ok::<_, Infallible>(half)]);
            (Some(length), Body::from_stream(first.chain(stream::pending())))
        }
        FaultKind::Cut => {
            // The first half is sent before the connection breaks.
            let broken = stream::once(async {
                tokio::task::yield_now().await;
                Err(io::Error::other("cut"))
            });
            let chunks = stream::iter([Ok(half)]).chain(broken);
            (Some(length), Body::from_stream(chunks))
        }
        FaultKind::EndAfter(bytes) => {
            let first = content.slice(..bytes.min(content.len()));
            (None, Body::from_stream(stream::iter([Ok::<_, Infallible>(first)])))
        }
        FaultKind::Slow => {
            let bytes = content.into_iter().map(|byte| Ok::<_, Infallible>(vec![byte]));
            (Some(length), Body::from_stream(stream::iter(bytes)))
        }
        FaultKind::Drip => (Some(length), Body::from_stream(drip(content))),
        FaultKind::Corrupt => {
            let mut bytes = content.to_vec();
            if let Some(byte) = bytes.last_mut() {
                *byte ^= 1;
            }
            (Some(length), Body::from(bytes))
        }
        FaultKind::WrongLength(claimed) => {
            // The rest never arrives.
            let chunks = stream::iter([Ok::<_, Infallible>(content)]).chain(stream::pending());
            (Some(claimed), Body::from_stream(chunks))
        }
        FaultKind::Huge(size) => (None, Body::from_stream(zeros(size))),
        _ => (Some(length), Body::from(content)),
    };
    head.headers.remove(CONTENT_LENGTH);
    if let Some(length) = length {
        head.headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
    Response::from_parts(head, body)
}

/// The bytes of a content one by one, with a delay before each.
fn drip(content: Bytes) -> impl futures_util::Stream<Item = Result<Vec<u8>, Infallible>> + Send {
    stream::iter(content).then(|byte| async move {
        tokio::time::sleep(DRIP_INTERVAL).await;
        Ok::<_, Infallible>(vec![byte])
    })
}

/// A stream of `size` zeros.
fn zeros(size: u64) -> impl futures_util::Stream<Item = Result<Bytes, Infallible>> + Send {
    let chunk = Bytes::from(vec![0; CHUNK_BYTES]);
    stream::unfold(size, move |left| {
        let chunk = chunk.clone();
        async move {
            if left == 0 {
                return None;
            }
            let length = usize::try_from(left).unwrap_or(CHUNK_BYTES).min(CHUNK_BYTES);
            Some((Ok(chunk.slice(..length)), left - length as u64))
        }
    })
}

fn status_of(status: u16) -> StatusCode {
    StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

fn set(headers: &mut HeaderMap, name: HeaderName, value: &str) {
    headers.insert(name, HeaderValue::from_str(value).expect("a value"));
}
