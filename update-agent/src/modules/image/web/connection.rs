//! One request on its own connection, and the body of its response. Files are requested so rarely
//! that connections are not reused.

use std::time::Duration;

use evenkeel_kit::{Lifecycle, chain};
use http::{HeaderMap, Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Empty};
use hyper::body::{Body as _, Bytes, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::response::ResponseHead;
use super::{DownloadError, transient};

/// Read buffer of a connection, and the maximum size of a response head.
const READ_BUFFER_BYTES: usize = 64 << 10;

/// What happened while a body was read.
pub enum BodyEvent {
    /// The next bytes.
    Bytes(Bytes),
    /// The body is complete.
    End,
    /// No bytes for now.
    Idle,
    /// The body ended early.
    Broken(String),
}

/// Minimum transfer of a body before it is aborted. Only the time spent reading counts.
#[derive(Clone, Copy, Debug)]
pub struct StallLimits {
    /// Time without any bytes after which the body is aborted.
    pub idle_timeout: Duration,
    /// Interval in which
    pub rate_window: Duration,
    /// at least this many bytes must come.
    pub min_bytes: u64,
}

/// Bytes and time while a body was read.
#[derive(Debug, Default)]
struct TransferTally {
    /// Time since the last bytes.
    silence: Duration,
    /// In this time
    elapsed: Duration,
    /// this many bytes came.
    bytes: u64,
}

impl TransferTally {
    /// Adds bytes that came during some time of reading.
    fn add(&mut self, time: Duration, bytes: usize) {
        if bytes == 0 {
            self.silence += time;
        } else {
            self.silence = Duration::ZERO;
        }
        self.elapsed += time;
        self.bytes = self.bytes.saturating_add(bytes as u64);
    }

    /// Why the transfer is too slow; `None` if it is fast enough or it is too early to decide.
    fn stall_reason(&mut self, limits: &StallLimits) -> Option<String> {
        if self.silence >= limits.idle_timeout {
            return Some(format!("no data arrived for {}", format_duration(limits.idle_timeout)));
        }
        if self.elapsed < limits.rate_window {
            return None;
        }
        if self.bytes < limits.min_bytes {
            let (bytes, span) = (self.bytes, format_duration(limits.rate_window));
            return Some(format!("only {bytes} bytes arrived in {span}"));
        }
        self.elapsed = Duration::ZERO;
        self.bytes = 0;
        None
    }
}

/// The open body of a response. It may pause: unread bytes wait at the server.
pub struct ResponseBody {
    body: Incoming,
    tally: TransferTally,
    _sender: SendRequest<Empty<Bytes>>,
    _driver: AbortOnDropHandle<()>,
}

impl ResponseBody {
    /// Reads until `until` or until a limit is reached. Reads at least once, unless a limit was
    /// reached before.
    pub async fn next_event(&mut self, until: Instant, limits: &StallLimits) -> BodyEvent {
        // Check the limits before reading, so that late bytes are not lost.
        if let Some(why) = self.tally.stall_reason(limits) {
            return BodyEvent::Broken(why);
        }
        let started = Instant::now();
        let left = until
            .saturating_duration_since(started)
            .min(limits.idle_timeout.saturating_sub(self.tally.silence))
            .min(limits.rate_window.saturating_sub(self.tally.elapsed));
        let event = match tokio::time::timeout(left, self.body.frame()).await {
            Err(_) => BodyEvent::Idle,
            Ok(None) => BodyEvent::End,
            Ok(Some(Err(error))) => {
                BodyEvent::Broken(format!("the connection broke: {}", chain(&error)))
            }
            Ok(Some(Ok(frame))) => match frame.into_data() {
                Ok(bytes) if !bytes.is_empty() => BodyEvent::Bytes(bytes),
                // Trailers have no meaning here.
                _ => BodyEvent::Idle,
            },
        };
        let bytes = match &event {
            BodyEvent::Bytes(bytes) => bytes.len(),
            _ => 0,
        };
        self.tally.add(started.elapsed(), bytes);
        event
    }
}

/// The head of a response with its body.
pub struct HttpResponse {
    pub status: StatusCode,
    pub headers: HeaderMap,
    /// Length of the body, also for HEAD; `None` if it is not announced.
    pub length: Option<u64>,
    pub body: ResponseBody,
}

impl HttpResponse {
    pub fn head(&self) -> ResponseHead<'_> {
        ResponseHead { status: self.status, headers: &self.headers, length: self.length }
    }
}

/// Sends a request and waits for the head of the response.
pub async fn send<T>(
    stream: T,
    request: Request<Empty<Bytes>>,
) -> Result<HttpResponse, DownloadError>
where
    T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let broken =
        |error: hyper::Error| transient(format!("the connection broke: {}", chain(&error)));
    let is_head = request.method() == Method::HEAD;
    let mut builder = http1::Builder::new();
    builder.max_buf_size(READ_BUFFER_BYTES);
    let handshake = builder.handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.map_err(broken)?;
    // It ends with the body, or when the body is dropped.
    let driver = AbortOnDropHandle::new(Lifecycle::detach(async move {
        if let Err(error) = connection.await {
            tracing::debug!(error = %chain(&error), "a connection ended");
        }
    }));
    let response = sender.send_request(request).await.map_err(broken)?;
    let (parts, body) = response.into_parts();
    let length = if is_head {
        let value = parts.headers.get(header::CONTENT_LENGTH);
        value.and_then(|value| value.to_str().ok()?.parse().ok())
    } else {
        body.size_hint().exact()
    };
    Ok(HttpResponse {
        status: parts.status,
        headers: parts.headers,
        length,
        body: ResponseBody {
            body,
            tally: TransferTally::default(),
            _sender: sender,
            _driver: driver,
        },
    })
}

/// Formats a duration for people.
pub fn format_duration(time: Duration) -> String {
    if time.subsec_millis() == 0 {
        format!("{} s", time.as_secs())
    } else {
        format!("{} ms", time.as_millis())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: StallLimits = StallLimits {
        idle_timeout: Duration::from_mins(1),
        rate_window: Duration::from_mins(10),
        min_bytes: 64 << 10,
    };

    /// Why and after how many minutes a body is aborted if this many bytes come at the end of each
    /// minute.
    fn stalled_after(bytes: usize) -> Option<(u32, String)> {
        let mut tally = TransferTally::default();
        (0..100).find_map(|minutes| {
            if let Some(why) = tally.stall_reason(&LIMITS) {
                return Some((minutes, why));
            }
            tally.add(Duration::from_secs(59), 0);
            tally.add(Duration::from_secs(1), bytes);
            None
        })
    }

    #[test]
    fn a_slow_response_is_aborted() {
        let why = "only 10 bytes arrived in 600 s".to_owned();
        assert_eq!(stalled_after(1), Some((10, why)));
        assert!(stalled_after(6_553).is_some(), "below the average");
        assert_eq!(stalled_after(6_554), None);
    }

    #[test]
    fn an_early_burst_does_not_excuse_a_later_stall() {
        let mut tally = TransferTally::default();
        tally.add(LIMITS.rate_window, 1 << 30);
        assert_eq!(tally.stall_reason(&LIMITS), None);
        tally.add(LIMITS.rate_window, 1);
        assert!(tally.stall_reason(&LIMITS).is_some());
    }

    #[test]
    fn a_silent_response_is_aborted_sooner() {
        let mut tally = TransferTally::default();
        tally.add(Duration::from_secs(59), 0);
        assert_eq!(tally.stall_reason(&LIMITS), None);
        tally.add(Duration::from_secs(1), 0);
        let why = tally.stall_reason(&LIMITS).unwrap();
        assert_eq!(why, "no data arrived for 60 s");
    }
}
