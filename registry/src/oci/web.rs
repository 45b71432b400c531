//! Files outside of a registry.

use std::sync::Arc;

use bytes::Bytes;
use evenkeel_fetch::RangeRequest;
use reqwest::header::{ETAG, HeaderMap, HeaderValue, IF_NONE_MATCH};
use reqwest::{Method, Response, StatusCode};
use url::{Origin, Url};

use super::auth;
use super::body::{RangeSource, ResumingBody};
use super::send::{HttpRequest, HttpSender, check_status, host_names};
use crate::address::{Access, Address};
use crate::error::{RegistryError, RegistryResult};
use crate::source::BlobStream;

/// Longest `ETag` that is stored, in bytes.
const MAX_ETAG_BYTES: usize = 1024;

/// Result of a conditional request for a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FetchResult {
    /// The file has not changed since the version of that `ETag`.
    Unchanged,
    /// The file is new or has changed.
    New {
        /// Content of the file.
        bytes: Bytes,
        /// `ETag` of this version, if the server sent one.
        etag: Option<String>,
    },
}

/// Client for files. It contacts only the host of the registry and the allowed hosts, also when it
/// follows redirects.
#[derive(Debug)]
pub struct WebClient {
    sender: Arc<HttpSender>,
    registry_origin: Option<Origin>,
    credentials: Option<HeaderValue>,
}

impl WebClient {
    /// Creates a client for the host of a registry and the hosts in `allow`, written with or
    /// without port.
    pub fn new(access: &Access, allow: &[String]) -> RegistryResult<Self> {
        let mut hosts = allow.to_vec();
        let own = match &access.address {
            Address::Http(url) => {
                hosts.push(host_names(url).1);
                Some(url.origin())
            }
            Address::Layout(_) => None,
        };
        Ok(Self {
            sender: Arc::new(HttpSender::new(access)?.with_allowed_hosts(hosts)),
            registry_origin: own,
            credentials: auth::preemptive_header(&access.credentials),
        })
    }

    /// Fetches a file of at most `limit` bytes, unless it still has this `ETag`.
    pub async fn fetch(
        &self,
        url: &Url,
        etag: Option<&str>,
        limit: u64,
    ) -> RegistryResult<FetchResult> {
        let mut request = HttpRequest::new(Method::GET, url.clone());
        // An ETag that is not a valid header is ignored.
        let if_none_match = etag.and_then(|etag| HeaderValue::from_str(etag).ok());
        if let Some(if_none_match) = if_none_match {
            request.headers.insert(IF_NONE_MATCH, if_none_match);
        }
        let mut tries = self.sender.retries();
        loop {
            match self.fetch_once(&request, limit).await {
                Ok(fetched) => return Ok(fetched),
                Err(error) => tries.wait_or_fail(error).await?,
            }
        }
    }

    async fn fetch_once(&self, request: &HttpRequest, limit: u64) -> RegistryResult<FetchResult> {
        let answer = self.sender.send_once(request, self.credentials_for(&request.url)).await?;
        let is_known = request.headers.contains_key(IF_NONE_MATCH);
        if answer.status() == StatusCode::NOT_MODIFIED && is_known {
            return Ok(FetchResult::Unchanged);
        }
        let answer = check_status(answer)?;
        if answer.status() != StatusCode::OK {
            return Err(RegistryError::Status(answer.status().as_u16()));
        }
        let etag = etag_from_headers(answer.headers());
        let bytes = self.sender.read_body(answer, limit).await?;
        Ok(FetchResult::New { bytes, etag })
    }

    /// Opens a file at an offset. A missing file is reported at once. Interrupted transfers are
    /// resumed if the file still has the same size and entity tag. A file of another size than
    /// `size` is refused.
    pub async fn open(
        &self,
        url: &Url,
        from: u64,
        size: Option<u64>,
    ) -> RegistryResult<BlobStream> {
        let source = WebFile {
            sender: Arc::clone(&self.sender),
            url: url.clone(),
            credentials: self.credentials_for(url).cloned(),
        };
        ResumingBody::open(source, &self.sender, from, size).await
    }

    /// Credentials, if the URL is on the host of the registry.
    fn credentials_for(&self, url: &Url) -> Option<&HeaderValue> {
        let is_own = self.registry_origin.as_ref() == Some(&url.origin());
        self.credentials.as_ref().filter(|_| is_own)
    }
}

/// A file at its server.
struct WebFile {
    sender: Arc<HttpSender>,
    url: Url,
    credentials: Option<HeaderValue>,
}

impl RangeSource for WebFile {
    async fn request(&self, range: &RangeRequest) -> RegistryResult<Option<Response>> {
        let mut request = HttpRequest::new(Method::GET, self.url.clone());
        range.add_headers(&mut request.headers);
        let answer = self.sender.send_once(&request, self.credentials.as_ref()).await?;
        if answer.status() == StatusCode::RANGE_NOT_SATISFIABLE {
            return Ok(None);
        }
        check_status(answer).map(Some)
    }
}

/// `ETag` of a response.
fn etag_from_headers(headers: &HeaderMap) -> Option<String> {
    let etag = headers.get(ETAG)?.to_str().ok()?;
    (etag.len() <= MAX_ETAG_BYTES).then(|| etag.to_owned())
}
