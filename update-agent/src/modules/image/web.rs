//! Downloads files over HTTP/1.1, with TLS: one request for the rest of a file at a time.
//!
//! This module sends requests. `response` classifies the responses, `pacing` limits the rate, and
//! the spool decides what is stored and when the next request follows.

mod address;
mod connection;
pub(super) mod pacing;
mod response;
mod roots;

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use chrono::{DateTime, Utc};
use evenkeel_fetch::body::format_duration;
use evenkeel_fetch::{RangeRequest, RangeResponse};
use evenkeel_kit::{Secret, chain};
use http::header::{self, HeaderValue};
use http::{Method, Request, StatusCode};
use http_body_util::Empty;
use hyper::body::Bytes;
use rustls::client::ResolvesClientCert;
use rustls::pki_types::ServerName;
use serde::{Deserialize, Serialize};
use url::{ParseError, Position, Url};

use self::address::{check_permitted, has_authority, has_host, host_and_port, redact_address};
use self::connection::HttpResponse;
use self::response::ResponseKind;
use self::roots::TlsConnectors;
use crate::link::proxy::{connect, unbracketed};
use crate::link::{Proxy, TimeFloor};
use crate::model::{Failure, FailureKind};

pub(super) use self::connection::{BodyEvent, ResponseBody};

/// Maximum number of redirects for one file.
const MAX_REDIRECTS: usize = 5;

/// `User-Agent` header of the agent.
const USER_AGENT: &str = concat!("evenkeel-agent/", env!("CARGO_PKG_VERSION"));

/// Sources of images.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WebSettings {
    /// PEM files with the only certificate authorities that are trusted for image servers. If
    /// empty: the authority that is trusted for the node's own server, or else those of the system.
    pub roots: Vec<PathBuf>,
    /// Other hosts to which a server may redirect the agent.
    pub hosts: Vec<String>,
    /// Whether images may be downloaded without TLS. The digest proves the content, but others can
    /// see or block the download.
    pub plain_http: bool,
    /// Base of relative image addresses, as `https://HOST[:PORT]/PATH`; empty for none.
    pub release_service: String,
    /// `HOST:PORT` of the node's own server. The client certificate and the bearer token are sent
    /// only to it and to a release service on the same host, and only over TLS.
    #[serde(skip)]
    pub own_server: String,
}

/// Downloads files. All clones share their state.
#[derive(Clone)]
pub struct WebClient {
    inner: Arc<WebClientInner>,
}

struct WebClientInner {
    settings: WebSettings,
    release_service: Option<Url>,
    proxy: Option<Proxy>,
    /// `None` if no authority is trusted.
    tls: Option<TlsConnectors>,
    token: RwLock<Option<HeaderValue>>,
}

impl fmt::Debug for WebClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebClient").field("settings", &self.inner.settings).finish_non_exhaustive()
    }
}

/// Why no bytes came, and whether a retry may help.
#[derive(Debug)]
pub(super) enum DownloadError {
    /// A retry may help.
    Transient {
        /// The reason.
        reason: String,
        /// Minimum delay that the server named.
        retry_after: Option<Duration>,
    },
    /// A retry would fail as well.
    Permanent(Failure),
}

impl From<Failure> for DownloadError {
    fn from(failure: Failure) -> Self {
        Self::Permanent(failure)
    }
}

fn transient(reason: impl Into<String>) -> DownloadError {
    DownloadError::Transient { reason: reason.into(), retry_after: None }
}

/// Result of a request for the rest of a file.
pub(super) enum OpenedFile {
    /// Bytes follow from offset `from`: the requested one, or 0.
    Body { body: ResponseBody, from: u64, total: Option<u64>, etag: Option<String> },
    /// The server did not send the requested rest of the file.
    WrongPart(String),
    /// The file at the server ends before the requested byte.
    RangeNotSatisfiable,
}

impl WebClient {
    /// Loads the trusted authorities. Certificates are verified at a time that is not before the
    /// floor. The node's own server gets the client certificate. Sends nothing. Fails if a file of
    /// authorities or the address of the release service is invalid.
    pub fn new(
        settings: WebSettings,
        proxy: Option<Proxy>,
        floor: Arc<TimeFloor>,
        certificate: Option<Arc<dyn ResolvesClientCert>>,
    ) -> Result<Self, Failure> {
        let release_service = match settings.release_service.trim() {
            "" => None,
            text => Some(address::parse_base_address(text, settings.plain_http)?),
        };
        let tls = roots::build_connectors(&settings.roots, floor, certificate)?;
        Ok(Self {
            inner: Arc::new(WebClientInner {
                settings,
                release_service,
                proxy,
                tls,
                token: RwLock::new(None),
            }),
        })
    }

    /// Sets the bearer token for later requests.
    pub fn set_credential(&self, credential: &Secret) {
        let token = HeaderValue::try_from(format!("Bearer {}", credential.reveal()));
        let token = if let Ok(mut token) = token {
            token.set_sensitive(true);
            Some(token)
        } else {
            tracing::warn!("the credential is not a valid token: images are downloaded without it");
            None
        };
        let current = self.inner.token.write();
        *current.unwrap_or_else(PoisonError::into_inner) = token;
    }

    /// Parses the address of a file that is no image.
    pub(super) fn parse_file_address(&self, text: &str) -> Result<Url, String> {
        let url = Url::parse(text).map_err(|error| error.to_string())?;
        check_permitted(&url, self.inner.settings.plain_http)?;
        Ok(url)
    }

    /// Resolves the address of an image.
    pub(super) fn resolve_address(&self, text: &str) -> Result<Url, Failure> {
        let bad = |why: &str| {
            download_failure(format!(
                "the image's address {:?} cannot be used: {why}; the release must name another",
                redact_address(text)
            ))
        };
        let url = match Url::parse(text) {
            Ok(url) => url,
            Err(ParseError::RelativeUrlWithoutBase) => {
                let base = self.inner.release_service.as_ref().ok_or_else(|| {
                    bad("it names no server, and image.web.release_service is not set in agent.toml")
                })?;
                let url = base.join(text).map_err(|error| bad(&error.to_string()))?;
                // `//host/path` is relative as well.
                if url.origin() != base.origin() {
                    return Err(bad("it is relative and leads to another server"));
                }
                url
            }
            Err(error) => return Err(bad(&error.to_string())),
        };
        check_permitted(&url, self.inner.settings.plain_http).map_err(|why| bad(&why))?;
        Ok(url)
    }

    /// Size of a file; `None` if the server does not announce it or cannot be reached now. Takes at
    /// most `within`.
    pub(super) async fn query_size(
        &self,
        url: &Url,
        within: Duration,
        now: DateTime<Utc>,
    ) -> Result<Option<u64>, Failure> {
        let requested = RangeRequest::default();
        let following = self.follow_redirects(url, &requested, &Method::HEAD, now);
        let (kind, reply) = match tokio::time::timeout(within, following).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(DownloadError::Permanent(failure))) => return Err(failure),
            Ok(Err(DownloadError::Transient { reason, .. })) => {
                tracing::info!(reason, "the size of the image is not known yet");
                return Ok(None);
            }
            Err(_) => return Ok(None),
        };
        match kind {
            ResponseKind::Content(RangeResponse::WholeFile { total, .. }) => Ok(total),
            // For example a server without HEAD, or an address that is signed for GET only.
            ResponseKind::Refused if !is_gone(reply.status) => Ok(None),
            ResponseKind::Refused => Err(refusal_failure(url, reply.status)),
            _ => Ok(None),
        }
    }

    /// Requests (the rest of) a file. Waits at most `within` for the head of the response.
    pub(super) async fn open(
        &self,
        url: &Url,
        requested: &RangeRequest,
        within: Duration,
        now: DateTime<Utc>,
    ) -> Result<OpenedFile, DownloadError> {
        let following = self.follow_redirects(url, requested, &Method::GET, now);
        let Ok(answer) = tokio::time::timeout(within, following).await else {
            return Err(transient(format!(
                "{} did not answer within {}",
                host_and_port(url),
                format_duration(within)
            )));
        };
        let (kind, reply) = answer?;
        match kind {
            ResponseKind::Content(content) => Ok(match content {
                RangeResponse::WholeFile { total, etag } => {
                    OpenedFile::Body { body: reply.body, from: 0, total, etag }
                }
                RangeResponse::RestOfFile { total, etag } => {
                    OpenedFile::Body { body: reply.body, from: requested.from, total, etag }
                }
                RangeResponse::WrongPart(why) => OpenedFile::WrongPart(why),
                RangeResponse::NotSatisfiable => OpenedFile::RangeNotSatisfiable,
            }),
            ResponseKind::Busy { retry_after } => Err(DownloadError::Transient {
                reason: format!("{} responds {}", host_and_port(url), reply.status),
                retry_after,
            }),
            ResponseKind::Redirect(_) | ResponseKind::Refused => {
                Err(refusal_failure(url, reply.status).into())
            }
        }
    }

    /// Sends a request and follows redirects. The result is never a redirect.
    async fn follow_redirects(
        &self,
        first: &Url,
        requested: &RangeRequest,
        method: &Method,
        now: DateTime<Utc>,
    ) -> Result<(ResponseKind, HttpResponse), DownloadError> {
        let mut url = first.clone();
        for _ in 0..=MAX_REDIRECTS {
            let reply = self.send_request(&url, requested, method).await?;
            let HttpResponse { status, headers, length, .. } = &reply;
            match response::classify_response(*status, headers, *length, requested, now) {
                ResponseKind::Redirect(to) => url = self.redirect_target(first, &url, &to)?,
                kind => return Ok((kind, reply)),
            }
        }
        Err(download_failure(format!(
            "{} redirects the agent more than {MAX_REDIRECTS} times; write the address where the \
             file is",
            host_and_port(first)
        ))
        .into())
    }

    /// Resolves a redirect. Fails if it must not be followed.
    fn redirect_target(&self, first: &Url, from: &Url, to: &str) -> Result<Url, Failure> {
        let bad = |why: &str| {
            download_failure(format!(
                "{} redirects the agent to {:?}: {why}",
                host_and_port(from),
                redact_address(to)
            ))
        };
        let url = from.join(to).map_err(|error| bad(&error.to_string()))?;
        if from.scheme() == "https" && url.scheme() != "https" {
            return Err(bad("a download that began with TLS must not continue without it"));
        }
        check_permitted(&url, self.inner.settings.plain_http).map_err(|why| bad(&why))?;
        let is_listed = self.inner.settings.hosts.iter().any(|listed| has_host(&url, listed));
        if url.origin() != first.origin() && !is_listed {
            return Err(bad(
                "that is another server, which is not listed in image.web.hosts in agent.toml",
            ));
        }
        Ok(url)
    }

    /// Sends one request on a connection of its own.
    async fn send_request(
        &self,
        url: &Url,
        requested: &RangeRequest,
        method: &Method,
    ) -> Result<HttpResponse, DownloadError> {
        let request = self.build_request(url, requested, method)?;
        let name = unbracketed(url.host_str().unwrap_or_default());
        let port = url.port_or_known_default().unwrap_or(443);
        let cannot = |error: io::Error| {
            let why = chain(&error);
            transient(format!("{} cannot be reached: {why}", host_and_port(url)))
        };
        let stream = connect(self.inner.proxy.as_ref(), name, port).await;
        let stream = stream.map_err(cannot)?;
        if url.scheme() == "http" {
            return connection::send(stream, request).await;
        }
        let tls = self.inner.tls.as_ref().ok_or_else(|| {
            download_failure(format!(
                "no certificate authority is trusted for {}: install ca-certificates, or name a \
                 file with its authority in image.web.roots in agent.toml",
                host_and_port(url)
            ))
        })?;
        let server = ServerName::try_from(name.to_owned())
            .map_err(|_| download_failure(format!("{name:?} is not a host name")))?;
        let tls = if self.is_own_server(url) { &tls.own_server } else { &tls.others };
        let stream = tls.connect(server, stream).await.map_err(cannot)?;
        connection::send(stream, request).await
    }

    fn build_request(
        &self,
        url: &Url,
        requested: &RangeRequest,
        method: &Method,
    ) -> Result<Request<Empty<Bytes>>, Failure> {
        let mut request = Request::builder()
            .method(method)
            .uri(&url[Position::BeforePath..Position::AfterQuery])
            .header(header::HOST, &url[Position::BeforeHost..Position::AfterPort])
            .header(header::USER_AGENT, USER_AGENT)
            // The digest is that of the file as it is stored at the server.
            .header(header::ACCEPT_ENCODING, "identity")
            .header(header::CONNECTION, "close");
        if let Some(headers) = request.headers_mut() {
            requested.add_headers(headers);
        }
        if let Some(token) = self.token_for(url) {
            request = request.header(header::AUTHORIZATION, token);
        }
        let request = request.body(Empty::new());
        request.map_err(|error| {
            download_failure(format!("cannot build the request to {}: {error}", host_and_port(url)))
        })
    }

    /// Whether an address is that of the node's own server or of a release service on its host, with
    /// TLS. Other ports of the host may belong to other services.
    fn is_own_server(&self, url: &Url) -> bool {
        let home = &self.inner.settings.own_server;
        let host = home.rsplit_once(':').map_or("", |(host, _)| host);
        let service = self.inner.release_service.as_ref();
        let is_service = service
            .is_some_and(|service| has_host(service, host) && service.origin() == url.origin());
        url.scheme() == "https" && (has_authority(url, home) || is_service)
    }

    /// The bearer token, only for the node's own server.
    fn token_for(&self, url: &Url) -> Option<HeaderValue> {
        if !self.is_own_server(url) {
            return None;
        }
        let token = self.inner.token.read();
        token.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Whether the status means that the file does not exist.
fn is_gone(status: StatusCode) -> bool {
    matches!(status, StatusCode::NOT_FOUND | StatusCode::GONE)
}

fn refusal_failure(url: &Url, status: StatusCode) -> Failure {
    let advice = match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            "it refuses to give this node the file; check who may read it there"
        }
        status if is_gone(status) => {
            "the file is not there; put it there, or write another address in the release or the document"
        }
        _ => "check its log",
    };
    download_failure(format!(
        "{} responds {status} to {}: {advice}",
        host_and_port(url),
        url.path()
    ))
}

fn download_failure(reason: impl Into<String>) -> Failure {
    Failure::new(FailureKind::Download, reason)
}

#[cfg(test)]
pub(super) mod testing;
#[cfg(test)]
mod tests;
