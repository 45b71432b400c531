//! One request on its own connection, and the body of its response. Files are requested so rarely
//! that connections are not reused.

use evenkeel_fetch::{StallLimits, StallWatch};
use evenkeel_kit::{Lifecycle, chain};
use http::{HeaderMap, Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Empty};
use hyper::body::{Body as _, Bytes, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::{DownloadError, transient};

/// Read buffer of a connection, and the maximum size of a response head.
const READ_BUFFER_BYTES: usize = 64 << 10;

/// What happened while a body was read.
pub type BodyEvent = evenkeel_fetch::BodyEvent<String>;

/// The open body of a response. It may pause: unread bytes wait at the server.
pub struct ResponseBody {
    body: Incoming,
    watch: StallWatch,
    _sender: SendRequest<Empty<Bytes>>,
    _driver: AbortOnDropHandle<()>,
}

impl ResponseBody {
    /// Reads until `until` or until a limit is reached. Reads at least once, unless a limit was
    /// reached before.
    pub async fn next_event(&mut self, until: Instant, limits: &StallLimits) -> BodyEvent {
        let next = async {
            match self.body.frame().await {
                None => Ok(None),
                // Trailers have no meaning here.
                Some(Ok(frame)) => Ok(Some(frame.into_data().unwrap_or_default())),
                Some(Err(error)) => Err(format!("the connection broke: {}", chain(&error))),
            }
        };
        self.watch.next_event(limits, Some(until), next).await
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
        body: ResponseBody { body, watch: StallWatch::default(), _sender: sender, _driver: driver },
    })
}
