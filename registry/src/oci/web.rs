//! Files outside of a registry.

use bytes::Bytes;
use futures_util::stream;
use reqwest::header::{ETAG, HeaderMap, HeaderValue, IF_NONE_MATCH, RANGE};
use reqwest::{Method, StatusCode};
use url::{Origin, Url};

use super::auth;
use super::body::{ResponseBody, into_stream};
use super::pull::bytes_to_skip;
use super::send::{HttpRequest, HttpSender, Retries, check_status, host_names};
use crate::address::{Access, Address};
use crate::error::{RegistryError, RegistryResult, malformed};
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
    sender: HttpSender,
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
            sender: HttpSender::new(access)?.with_allowed_hosts(hosts),
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

    /// Opens a file at an offset. A missing file is reported at once. The caller must resume
    /// interrupted transfers, because only the digest shows whether the file is still the same.
    pub async fn open(&self, url: &Url, from: u64) -> RegistryResult<BlobStream> {
        let mut request = HttpRequest::new(Method::GET, url.clone());
        if from > 0 {
            let range = HeaderValue::from_str(&format!("bytes={from}-"));
            let range = range.map_err(|_| malformed("range", "it cannot be written"))?;
            request.headers.insert(RANGE, range);
        }
        let mut tries = self.sender.retries();
        let answer = loop {
            let answer = self.sender.send_once(&request, self.credentials_for(url)).await;
            match answer.and_then(check_status) {
                Ok(answer) => break answer,
                // The offset is at or after the end of the file.
                Err(RegistryError::Status(416)) => return Ok(Box::pin(stream::empty())),
                Err(error) => tries.wait_or_fail(error).await?,
            }
        };
        let skip = bytes_to_skip(&answer, from)?;
        Ok(into_stream(ResponseBody::new(answer, &self.sender.limits, skip)))
    }

    /// Retries for interrupted transfers of a file.
    pub(crate) fn retries(&self) -> Retries {
        self.sender.retries()
    }

    /// Credentials, if the URL is on the host of the registry.
    fn credentials_for(&self, url: &Url) -> Option<&HeaderValue> {
        let is_own = self.registry_origin.as_ref() == Some(&url.origin());
        self.credentials.as_ref().filter(|_| is_own)
    }
}

/// `ETag` of a response.
fn etag_from_headers(headers: &HeaderMap) -> Option<String> {
    let etag = headers.get(ETAG)?.to_str().ok()?;
    (etag.len() <= MAX_ETAG_BYTES).then(|| etag.to_owned())
}
