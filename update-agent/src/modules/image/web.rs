//! Fetching files over HTTP/1.1, with TLS: one request for the rest of a file at a time.
//!
//! This is the half that speaks. What an answer means is judged in `answer`, how fast is fetched in `pace`, and what is
//! kept of it, and when it is asked for again, is for the spool to say.

mod address;
mod answer;
mod line;
pub(super) mod pace;
mod roots;

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use chrono::{DateTime, Utc};
use evenkeel_kit::{Secret, chain};
use http::header::{self, HeaderValue};
use http::{Method, Request, StatusCode};
use http_body_util::Empty;
use hyper::body::Bytes;
use rustls::pki_types::ServerName;
use serde::Deserialize;
use tokio_rustls::TlsConnector;
use url::{ParseError, Position, Url};

use self::address::{host, is_at, is_host, is_permitted, shown};
use self::answer::Told;
use self::line::{Reply, in_words};
use crate::link::proxy::{connect, unbracketed};
use crate::link::{Floor, Proxy};
use crate::model::{Failure, FailureKind};

pub(super) use self::answer::Asked;
pub(super) use self::line::{Heard, Line, Patience};

/// More redirects than this lead nowhere.
const MOST_REDIRECTS: usize = 5;

/// What the agent says of itself.
const USER_AGENT: &str = concat!("evenkeel-agent/", env!("CARGO_PKG_VERSION"));

/// Where images may come from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WebSettings {
    /// Files in PEM form with the authorities that alone may vouch for a server of images. None for the one that alone
    /// vouches for the node's own server; if there is no such one, for those that the system trusts.
    pub roots: Vec<PathBuf>,
    /// Other hosts to which a server may send the agent on.
    pub hosts: Vec<String>,
    /// Whether an image may come without TLS. Its digest proves what it is; who sees or hinders it, nobody can tell.
    pub plain_http: bool,
    /// What an address of an image that names no server is relative to, as `https://HOST[:PORT]/PATH`; empty for none.
    pub release_service: String,
    /// `HOST:PORT` of the node's own server. It is shown the node's bearer token, and beside it only a release service
    /// on the same host; both only over TLS.
    #[serde(skip)]
    pub home: String,
}

/// Fetches files. A clone is another handle to the same: what one learns, all know.
#[derive(Clone)]
pub struct Web {
    inner: Arc<Inner>,
}

struct Inner {
    settings: WebSettings,
    release_service: Option<Url>,
    proxy: Option<Proxy>,
    /// Not there if nobody is trusted.
    tls: Option<TlsConnector>,
    token: RwLock<Option<HeaderValue>>,
}

impl fmt::Debug for Web {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Web")
            .field("settings", &self.inner.settings)
            .finish_non_exhaustive()
    }
}

/// No bytes come, and what to do about it.
#[derive(Debug)]
pub(super) enum Trouble {
    /// It may help to try again.
    Later {
        /// Why nothing came.
        why: String,
        /// Not before this time has passed, if the server says so.
        after: Option<Duration>,
    },
    /// To try again would end alike.
    Final(Failure),
}

impl From<Failure> for Trouble {
    fn from(failure: Failure) -> Self {
        Self::Final(failure)
    }
}

fn later(why: impl Into<String>) -> Trouble {
    Trouble::Later {
        why: why.into(),
        after: None,
    }
}

/// What a request for the rest of a file brought.
pub(super) enum Opened {
    /// Bytes follow, from `from`: where it was asked to, or from 0.
    Line {
        line: Line,
        from: u64,
        total: Option<u64>,
        etag: Option<String>,
    },
    /// What the server has is not the rest of what is there.
    Astray(String),
    /// What the server has ends before.
    Past,
}

impl Web {
    /// Reads who is trusted, and looks at certificates no earlier than the floor. Nothing is sent yet. Fails if a file
    /// with authorities cannot be used, or the address of the release service is none.
    pub fn new(
        settings: WebSettings,
        proxy: Option<Proxy>,
        floor: Arc<Floor>,
    ) -> Result<Self, Failure> {
        let release_service = match settings.release_service.trim() {
            "" => None,
            text => Some(address::base(text, settings.plain_http)?),
        };
        let tls = roots::tls(&settings.roots, floor)?;
        Ok(Self {
            inner: Arc::new(Inner {
                settings,
                release_service,
                proxy,
                tls,
                token: RwLock::new(None),
            }),
        })
    }

    /// Shows the server another bearer token from now on.
    pub fn renew(&self, credential: &Secret) {
        let token = HeaderValue::try_from(format!("Bearer {}", credential.reveal()));
        let token = if let Ok(mut token) = token {
            token.set_sensitive(true);
            Some(token)
        } else {
            tracing::warn!("the credential is no token: images are fetched without it");
            None
        };
        let current = self.inner.token.write();
        *current.unwrap_or_else(PoisonError::into_inner) = token;
    }

    /// The whole address of an image.
    pub(super) fn address(&self, text: &str) -> Result<Url, Failure> {
        let bad = |why: &str| {
            failure(format!(
                "the image's address {:?} cannot be used: {why}; the release must name another",
                shown(text)
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
        is_permitted(&url, self.inner.settings.plain_http).map_err(|why| bad(&why))?;
        Ok(url)
    }

    /// The size of a file; `None` if the server does not say, or cannot be asked right now. Takes at most `within`.
    pub(super) async fn size(
        &self,
        url: &Url,
        within: Duration,
        now: DateTime<Utc>,
    ) -> Result<Option<u64>, Failure> {
        let asked = Asked::default();
        let following = self.follow(url, &asked, &Method::HEAD, now);
        let (told, reply) = match tokio::time::timeout(within, following).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(Trouble::Final(failure))) => return Err(failure),
            Ok(Err(Trouble::Later { why, .. })) => {
                tracing::info!(why, "the size of the image is not known yet");
                return Ok(None);
            }
            Err(_) => return Ok(None),
        };
        match told {
            Told::Whole { total, .. } => Ok(total),
            // Such as a server that knows no HEAD, or an address that was signed for GET only.
            Told::Refused if !is_gone(reply.status) => Ok(None),
            Told::Refused => Err(refused(url, reply.status)),
            _ => Ok(None),
        }
    }

    /// Asks for (the rest of) a file. Takes at most `within` until its first byte may come.
    pub(super) async fn open(
        &self,
        url: &Url,
        asked: &Asked,
        within: Duration,
        now: DateTime<Utc>,
    ) -> Result<Opened, Trouble> {
        let following = self.follow(url, asked, &Method::GET, now);
        let Ok(answer) = tokio::time::timeout(within, following).await else {
            return Err(later(format!(
                "{} did not answer within {}",
                host(url),
                in_words(within)
            )));
        };
        let (told, reply) = answer?;
        match told {
            Told::Whole { total, etag } => Ok(Opened::Line {
                line: reply.line,
                from: 0,
                total,
                etag,
            }),
            Told::Rest { total, etag } => Ok(Opened::Line {
                line: reply.line,
                from: asked.from,
                total: Some(total),
                etag,
            }),
            Told::Astray(why) => Ok(Opened::Astray(why)),
            Told::Past => Ok(Opened::Past),
            Told::Busy { after } => Err(Trouble::Later {
                why: format!("{} says {}", host(url), reply.status),
                after,
            }),
            Told::Elsewhere(_) | Told::Refused => Err(refused(url, reply.status).into()),
        }
    }

    /// Asks, and asks again where the answer says that the file is elsewhere. The meaning is never that.
    async fn follow(
        &self,
        first: &Url,
        asked: &Asked,
        method: &Method,
        now: DateTime<Utc>,
    ) -> Result<(Told, Reply), Trouble> {
        let mut url = first.clone();
        for _ in 0..=MOST_REDIRECTS {
            let reply = self.exchange(&url, asked, method).await?;
            match answer::judge(&reply.head(), asked, now) {
                Told::Elsewhere(to) => url = self.next(first, &url, &to)?,
                told => return Ok((told, reply)),
            }
        }
        Err(failure(format!(
            "{} sends the agent on more than {MOST_REDIRECTS} times; the release must name the address where the image \
             is",
            host(first)
        ))
        .into())
    }

    /// Where a redirect leads, if it may be followed.
    fn next(&self, first: &Url, from: &Url, to: &str) -> Result<Url, Failure> {
        let bad = |why: &str| {
            failure(format!(
                "{} sends the agent on to {:?}: {why}",
                host(from),
                shown(to)
            ))
        };
        let url = from.join(to).map_err(|error| bad(&error.to_string()))?;
        if from.scheme() == "https" && url.scheme() != "https" {
            return Err(bad("what began with TLS must not go on without it"));
        }
        is_permitted(&url, self.inner.settings.plain_http).map_err(|why| bad(&why))?;
        let named = self
            .inner
            .settings
            .hosts
            .iter()
            .any(|known| is_host(&url, known));
        if url.origin() != first.origin() && !named {
            return Err(bad(
                "that is another server, and not among image.web.hosts in agent.toml",
            ));
        }
        Ok(url)
    }

    /// One request, on a connection of its own.
    async fn exchange(&self, url: &Url, asked: &Asked, method: &Method) -> Result<Reply, Trouble> {
        let request = self.request(url, asked, method)?;
        let name = unbracketed(url.host_str().unwrap_or_default());
        let port = url.port_or_known_default().unwrap_or(443);
        let cannot = |error: io::Error| {
            let why = chain(&error);
            later(format!("{} cannot be reached: {why}", host(url)))
        };
        let stream = connect(self.inner.proxy.as_ref(), name, port).await;
        let stream = stream.map_err(cannot)?;
        if url.scheme() == "http" {
            return line::speak(stream, request).await;
        }
        let tls = self.inner.tls.as_ref().ok_or_else(|| {
            failure(format!(
                "nobody is trusted to vouch for {}: install ca-certificates, or name a file with its authority as \
                 image.web.roots in agent.toml",
                host(url)
            ))
        })?;
        let server = ServerName::try_from(name.to_owned())
            .map_err(|_| failure(format!("{name:?} is no name of a host")))?;
        let stream = tls.connect(server, stream).await.map_err(cannot)?;
        line::speak(stream, request).await
    }

    fn request(
        &self,
        url: &Url,
        asked: &Asked,
        method: &Method,
    ) -> Result<Request<Empty<Bytes>>, Failure> {
        let mut request = Request::builder()
            .method(method)
            .uri(&url[Position::BeforePath..Position::AfterQuery])
            .header(
                header::HOST,
                &url[Position::BeforeHost..Position::AfterPort],
            )
            .header(header::USER_AGENT, USER_AGENT)
            // The digest is that of the file as it lies at the server.
            .header(header::ACCEPT_ENCODING, "identity")
            .header(header::CONNECTION, "close");
        if asked.from > 0 {
            request = request.header(header::RANGE, format!("bytes={}-", asked.from));
            if let Some(etag) = &asked.etag {
                request = request.header(header::IF_RANGE, etag);
            }
        }
        if let Some(token) = self.token_for(url) {
            request = request.header(header::AUTHORIZATION, token);
        }
        let request = request.body(Empty::new());
        request.map_err(|error| failure(format!("{} cannot be asked: {error}", host(url))))
    }

    /// The bearer token, for the node's own server and a release service on its host. What else listens there, on other
    /// ports, may be anybody's.
    fn token_for(&self, url: &Url) -> Option<HeaderValue> {
        let home = &self.inner.settings.home;
        let host = home.rsplit_once(':').map_or("", |(host, _)| host);
        let service = self.inner.release_service.as_ref();
        let is_service = service
            .is_some_and(|service| is_host(service, host) && service.origin() == url.origin());
        if url.scheme() != "https" || !(is_at(url, home) || is_service) {
            return None;
        }
        let token = self.inner.token.read();
        token.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Whether a file is certainly not there.
fn is_gone(status: StatusCode) -> bool {
    matches!(status, StatusCode::NOT_FOUND | StatusCode::GONE)
}

fn refused(url: &Url, status: StatusCode) -> Failure {
    let advice = match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            "it does not give the image to this node; look at who may read it there"
        }
        status if is_gone(status) => {
            "the image is not there; put it there, or let the release name another address"
        }
        _ => "look at its log",
    };
    failure(format!(
        "{} says {status} to {}: {advice}",
        host(url),
        url.path()
    ))
}

fn failure(reason: impl Into<String>) -> Failure {
    Failure::new(FailureKind::Download, reason)
}

#[cfg(test)]
pub(super) mod testing;
#[cfg(test)]
mod tests;
