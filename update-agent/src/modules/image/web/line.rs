//! One request on a connection of its own, and the body of its answer. A whole file is asked for so rarely that no
//! connection is worth keeping.

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

use super::answer::Head;
use super::{Trouble, later};

/// What is read from a connection at once, and the longest head of an answer.
const BUFFER: usize = 64 << 10;

/// What was heard on a line.
pub enum Heard {
    /// These come next.
    Bytes(Bytes),
    /// No more will come.
    End,
    /// Nothing for now.
    Nothing,
    /// No more will come, though more should.
    Broken(String),
}

/// How little may come on a line before it is given up. Only the time counts in which it is listened to.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// So long nothing at all may come.
    pub idle: Duration,
    /// In so much time
    pub span: Duration,
    /// at least so many bytes must come.
    pub least: u64,
}

/// What came on a line while it was listened to.
#[derive(Debug, Default)]
struct Tally {
    /// For how long nothing came.
    silent: Duration,
    /// In so much time
    listened: Duration,
    /// so much came.
    bytes: u64,
}

impl Tally {
    /// Takes note of what came in some time of listening.
    fn note(&mut self, time: Duration, bytes: usize) {
        if bytes == 0 {
            self.silent += time;
        } else {
            self.silent = Duration::ZERO;
        }
        self.listened += time;
        self.bytes = self.bytes.saturating_add(bytes as u64);
    }

    /// Why it is too little; `None` if it is enough, or it is too early to tell.
    fn too_little(&mut self, patience: &Patience) -> Option<String> {
        if self.silent >= patience.idle {
            return Some(format!("nothing came for {}", in_words(patience.idle)));
        }
        if self.listened < patience.span {
            return None;
        }
        if self.bytes < patience.least {
            let (bytes, span) = (self.bytes, in_words(patience.span));
            return Some(format!("only {bytes} bytes came in {span}"));
        }
        self.listened = Duration::ZERO;
        self.bytes = 0;
        None
    }
}

/// The open body of an answer. It may be left alone for a while: what is not read waits at the server.
pub struct Line {
    body: Incoming,
    tally: Tally,
    _sender: SendRequest<Empty<Bytes>>,
    _driver: AbortOnDropHandle<()>,
}

impl Line {
    /// Listens until `until`, or until the patience ends. Listens at least once, unless that has ended before.
    pub async fn more(&mut self, until: Instant, patience: &Patience) -> Heard {
        // Before it is listened to, so that bytes which came too late are not lost.
        if let Some(why) = self.tally.too_little(patience) {
            return Heard::Broken(why);
        }
        let begun = Instant::now();
        let left = until
            .saturating_duration_since(begun)
            .min(patience.idle.saturating_sub(self.tally.silent))
            .min(patience.span.saturating_sub(self.tally.listened));
        let heard = match tokio::time::timeout(left, self.body.frame()).await {
            Err(_) => Heard::Nothing,
            Ok(None) => Heard::End,
            Ok(Some(Err(error))) => {
                Heard::Broken(format!("the connection broke: {}", chain(&error)))
            }
            Ok(Some(Ok(frame))) => match frame.into_data() {
                Ok(bytes) if !bytes.is_empty() => Heard::Bytes(bytes),
                // Trailers, which mean nothing here.
                _ => Heard::Nothing,
            },
        };
        let bytes = match &heard {
            Heard::Bytes(bytes) => bytes.len(),
            _ => 0,
        };
        self.tally.note(begun.elapsed(), bytes);
        heard
    }
}

/// The head of an answer, with its body.
pub struct Reply {
    pub status: StatusCode,
    pub headers: HeaderMap,
    /// How many bytes follow, or would; `None` if that is not said.
    pub length: Option<u64>,
    pub line: Line,
}

impl Reply {
    pub fn head(&self) -> Head<'_> {
        Head {
            status: self.status,
            headers: &self.headers,
            length: self.length,
        }
    }
}

/// Sends a request and waits for the head of its answer.
pub async fn speak<T>(stream: T, request: Request<Empty<Bytes>>) -> Result<Reply, Trouble>
where
    T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let broken = |error: hyper::Error| later(format!("the connection broke: {}", chain(&error)));
    let is_head = request.method() == Method::HEAD;
    let mut builder = http1::Builder::new();
    builder.max_buf_size(BUFFER);
    let shaken = builder.handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = shaken.map_err(broken)?;
    // It ends with the body, or when the line is let go.
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
    Ok(Reply {
        status: parts.status,
        headers: parts.headers,
        length,
        line: Line {
            body,
            tally: Tally::default(),
            _sender: sender,
            _driver: driver,
        },
    })
}

/// A time for a person.
pub fn in_words(time: Duration) -> String {
    if time.subsec_millis() == 0 {
        format!("{} s", time.as_secs())
    } else {
        format!("{} ms", time.as_millis())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Patience = Patience {
        idle: Duration::from_mins(1),
        span: Duration::from_mins(10),
        least: 64 << 10,
    };

    /// Why a line is given up on which so many bytes come at the end of each minute, and after how many minutes.
    fn given_up(bytes: usize) -> Option<(u32, String)> {
        let mut tally = Tally::default();
        (0..100).find_map(|minutes| {
            if let Some(why) = tally.too_little(&PATIENCE) {
                return Some((minutes, why));
            }
            tally.note(Duration::from_secs(59), 0);
            tally.note(Duration::from_secs(1), bytes);
            None
        })
    }

    #[test]
    fn a_line_on_which_a_byte_comes_now_and_then_is_given_up() {
        let why = "only 10 bytes came in 600 s".to_owned();
        assert_eq!(given_up(1), Some((10, why)));
        assert!(given_up(6_553).is_some(), "below the average");
        assert_eq!(given_up(6_554), None);
    }

    #[test]
    fn bytes_that_came_long_ago_do_not_make_a_slow_line_a_good_one() {
        let mut tally = Tally::default();
        tally.note(PATIENCE.span, 1 << 30);
        assert_eq!(tally.too_little(&PATIENCE), None);
        tally.note(PATIENCE.span, 1);
        assert!(tally.too_little(&PATIENCE).is_some());
    }

    #[test]
    fn a_silent_line_is_given_up_sooner() {
        let mut tally = Tally::default();
        tally.note(Duration::from_secs(59), 0);
        assert_eq!(tally.too_little(&PATIENCE), None);
        tally.note(Duration::from_secs(1), 0);
        let why = tally.too_little(&PATIENCE).unwrap();
        assert_eq!(why, "nothing came for 60 s");
    }
}
