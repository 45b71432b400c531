//! What goes wrong when a test wants it to.

use std::convert::Infallible;
use std::io;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE, DATE, LOCATION, RETRY_AFTER};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};

/// How large a piece of an endless answer is.
const PIECE: usize = 64 * 1024;

/// How long an answer that drips waits before each byte.
const DRIP: Duration = Duration::from_millis(100);

/// Something that goes wrong.
#[derive(Clone, Debug)]
pub struct Fault {
    /// With which requests: those whose method and path contain this.
    pub on: String,
    /// With how many of them.
    pub times: u32,
    /// How.
    pub way: Way,
}

impl Fault {
    /// Goes wrong with every request whose method and path contain this.
    pub fn always(on: &str, way: Way) -> Self {
        Self::times(on, u32::MAX, way)
    }

    /// Goes wrong so many times.
    pub fn times(on: &str, times: u32, way: Way) -> Self {
        Self {
            on: on.to_owned(),
            times,
            way,
        }
    }
}

/// How something goes wrong.
#[derive(Clone, Debug)]
pub enum Way {
    /// The answer has another status.
    Status(u16),
    /// The answer asks to be left alone.
    Busy {
        /// The status: 429 or 503.
        status: u16,
        /// For how long, as it is written.
        retry_after: String,
        /// What the clock says, as it is written.
        date: Option<String>,
    },
    /// The answer leads to another address.
    Redirect(String),
    /// There is no answer.
    Silent,
    /// The answer stops in the middle, and the connection stays.
    Stall,
    /// The connection breaks in the middle of the answer.
    Cut,
    /// The answer comes byte by byte.
    Slow,
    /// The answer comes byte by byte, and after each of them nothing comes for a while.
    Drip,
    /// One byte of the answer is another.
    Corrupt,
    /// The answer is a page for people.
    Html,
    /// The answer says that it has so many bytes.
    SaysLength(u64),
    /// The answer has so many bytes, and does not say so.
    Huge(u64),
}

/// Does what goes wrong in place of the answer.
pub(super) async fn spoil(way: Way, answer: Response) -> Response {
    match way {
        Way::Status(status) => status_of(status).into_response(),
        Way::Busy {
            status,
            retry_after,
            date,
        } => {
            let mut busy = status_of(status).into_response();
            set(busy.headers_mut(), RETRY_AFTER, &retry_after);
            if let Some(date) = date {
                set(busy.headers_mut(), DATE, &date);
            }
            busy
        }
        Way::Redirect(to) => {
            let mut leading = StatusCode::TEMPORARY_REDIRECT.into_response();
            set(leading.headers_mut(), LOCATION, &to);
            leading
        }
        Way::Silent => std::future::pending().await,
        Way::Html => {
            let mut page = "<!DOCTYPE html><html><body>Sign in</body></html>".into_response();
            set(page.headers_mut(), CONTENT_TYPE, "text/html");
            page
        }
        way => spoil_body(way, answer).await,
    }
}

async fn spoil_body(way: Way, answer: Response) -> Response {
    let (mut head, body) = answer.into_parts();
    let whole = to_bytes(body, usize::MAX).await.unwrap_or_default();
    let half = whole.slice(..whole.len() / 2);
    let length = whole.len() as u64;
    let (length, body) = match way {
        Way::Stall => {
            let first = stream::iter([Ok::<_, Infallible>(half)]);
            (
                Some(length),
                Body::from_stream(first.chain(stream::pending())),
            )
        }
        Way::Cut => {
            // The first half goes out before the connection breaks.
            let broken = stream::once(async {
                tokio::task::yield_now().await;
                Err(io::Error::other("cut"))
            });
            let pieces = stream::iter([Ok(half)]).chain(broken);
            (Some(length), Body::from_stream(pieces))
        }
        Way::Slow => {
            let bytes = whole
                .into_iter()
                .map(|byte| Ok::<_, Infallible>(vec![byte]));
            (Some(length), Body::from_stream(stream::iter(bytes)))
        }
        Way::Drip => (Some(length), Body::from_stream(drops(whole))),
        Way::Corrupt => {
            let mut bytes = whole.to_vec();
            if let Some(byte) = bytes.last_mut() {
                *byte ^= 1;
            }
            (Some(length), Body::from(bytes))
        }
        Way::SaysLength(said) => {
            // The rest never comes.
            let pieces = stream::iter([Ok::<_, Infallible>(whole)]).chain(stream::pending());
            (Some(said), Body::from_stream(pieces))
        }
        Way::Huge(size) => (None, Body::from_stream(zeros(size))),
        _ => (Some(length), Body::from(whole)),
    };
    head.headers.remove(CONTENT_LENGTH);
    if let Some(length) = length {
        head.headers
            .insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
    Response::from_parts(head, body)
}

/// The bytes of a content, one after the other.
fn drops(content: Bytes) -> impl futures_util::Stream<Item = Result<Vec<u8>, Infallible>> + Send {
    stream::iter(content).then(|byte| async move {
        tokio::time::sleep(DRIP).await;
        Ok::<_, Infallible>(vec![byte])
    })
}

/// So many zeros.
fn zeros(size: u64) -> impl futures_util::Stream<Item = Result<Bytes, Infallible>> + Send {
    let piece = Bytes::from(vec![0; PIECE]);
    stream::unfold(size, move |left| {
        let piece = piece.clone();
        async move {
            if left == 0 {
                return None;
            }
            let length = usize::try_from(left).unwrap_or(PIECE).min(PIECE);
            Some((Ok(piece.slice(..length)), left - length as u64))
        }
    })
}

fn status_of(status: u16) -> StatusCode {
    StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

fn set(headers: &mut HeaderMap, name: HeaderName, value: &str) {
    headers.insert(name, HeaderValue::from_str(value).expect("a value"));
}
