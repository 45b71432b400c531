//! Reads manifests and blobs from a registry.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use reqwest::header::{ACCEPT, CONTENT_RANGE, CONTENT_TYPE, HeaderMap, HeaderValue, RANGE};
use reqwest::{Method, Response, StatusCode};
use url::Url;

use super::body::{ChunkSource, ResponseBody, into_stream};
use super::send::{HttpRequest, Retries};
use super::{RegistryClient, pull_scope};
use crate::digest::{Digest, Hasher};
use crate::error::{RegistryError, RegistryResult, malformed};
use crate::source::{Blob, BlobStream, Manifest, ManifestRef, Repository};

/// Accepted media types of manifests. Manifest lists are included so the error can name them.
const ACCEPTED_MEDIA_TYPES: &str = "application/vnd.oci.image.manifest.v1+json, \
    application/vnd.docker.distribution.manifest.v2+json, \
    application/vnd.oci.image.index.v1+json;q=0.5, \
    application/vnd.docker.distribution.manifest.list.v2+json;q=0.5";

/// Header with the digest of a manifest.
pub(super) const DIGEST_HEADER: &str = "docker-content-digest";

/// Number of bytes to receive before the retries of an interrupted transfer are reset.
pub(crate) const RETRY_RESET_BYTES: u64 = 1024 * 1024;

impl RegistryClient {
    /// Reads a manifest; `None` if it does not exist.
    pub(super) async fn manifest(
        &self,
        repository: &Repository,
        at: &ManifestRef,
    ) -> RegistryResult<Option<Manifest>> {
        let url = self.url(repository, &["manifests", &at.to_string()])?;
        let mut request = HttpRequest::new(Method::GET, url);
        request.headers.insert(ACCEPT, HeaderValue::from_static(ACCEPTED_MEDIA_TYPES));
        let limit = self.sender.limits.manifest_bytes;
        let (headers, bytes) = match self.fetch(&request, &pull_scope(repository), limit).await {
            Err(RegistryError::NotFound) => return Ok(None),
            answer => answer?,
        };
        let actual = Digest::compute(&bytes);
        let expected = match at {
            ManifestRef::Digest(digest) => Some(*digest),
            ManifestRef::Tag(_) => digest_from_header(&headers),
        };
        if let Some(expected) = expected.filter(|expected| *expected != actual) {
            return Err(RegistryError::WrongDigest { expected, actual });
        }
        let media_type = headers.get(CONTENT_TYPE).and_then(|media_type| media_type.to_str().ok());
        Manifest::read(bytes, media_type.unwrap_or_default()).map(Some)
    }

    /// Whether a blob exists.
    pub(super) async fn has_blob(
        &self,
        repository: &Repository,
        digest: &Digest,
    ) -> RegistryResult<bool> {
        let url = self.url(repository, &["blobs", &digest.to_string()])?;
        let request = HttpRequest::new(Method::HEAD, url);
        match self.fetch_head(&request, &pull_scope(repository)).await {
            Ok(()) => Ok(true),
            Err(RegistryError::NotFound) => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn fetch_head(&self, request: &HttpRequest, scope: &str) -> RegistryResult<()> {
        let mut tries = self.sender.retries();
        loop {
            match self.send(request, scope).await {
                Ok(_) => return Ok(()),
                Err(error) => tries.wait_or_fail(error).await?,
            }
        }
    }
}

/// Digest of a manifest as declared by the registry.
pub(super) fn digest_from_header(headers: &HeaderMap) -> Option<Digest> {
    headers.get(DIGEST_HEADER)?.to_str().ok()?.parse().ok()
}

/// Reads a small blob and checks its digest.
pub(super) async fn read_blob(
    client: &Arc<RegistryClient>,
    repository: &Repository,
    blob: &Blob,
    limit: u64,
) -> RegistryResult<Bytes> {
    if blob.size > limit {
        return Err(RegistryError::TooLarge { limit });
    }
    let mut chunks = open_blob(client, repository, blob, 0).await?;
    let mut content = Vec::new();
    let mut hasher = Hasher::default();
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk?;
        hasher.update(&chunk);
        content.extend_from_slice(&chunk);
    }
    let actual = hasher.finish();
    if actual == blob.digest {
        Ok(Bytes::from(content))
    } else {
        let expected = blob.digest;
        Err(RegistryError::WrongDigest { expected, actual })
    }
}

/// Reads a blob from an offset on. Interrupted transfers are resumed.
pub(super) async fn open_blob(
    client: &Arc<RegistryClient>,
    repository: &Repository,
    blob: &Blob,
    from: u64,
) -> RegistryResult<BlobStream> {
    if from >= blob.size {
        return Ok(Box::pin(stream::empty()));
    }
    let mut reading = BlobReader {
        url: client.url(repository, &["blobs", &blob.digest.to_string()])?,
        scope: pull_scope(repository),
        retries: client.sender.retries(),
        client: Arc::clone(client),
        position: from,
        size: blob.size,
        retries_counted_from: from,
        response: None,
    };
    // Send the first request now, so a missing blob is reported at once.
    loop {
        match reading.send_request().await {
            Ok(()) => break,
            Err(error) => reading.retries.wait_or_fail(error).await?,
        }
    }
    Ok(into_stream(reading))
}

/// Reads a blob with retries.
struct BlobReader {
    client: Arc<RegistryClient>,
    url: Url,
    scope: String,
    /// Offset of the next byte.
    position: u64,
    size: u64,
    /// Offset at which the retries were last reset.
    retries_counted_from: u64,
    retries: Retries,
    /// The current response.
    response: Option<ResponseBody>,
}

impl ChunkSource for BlobReader {
    async fn next_chunk(&mut self) -> RegistryResult<Option<Bytes>> {
        while self.position < self.size {
            match self.receive_chunk().await {
                Ok(chunk) => return Ok(Some(chunk)),
                Err(error) => {
                    self.response = None;
                    if self.position.saturating_sub(self.retries_counted_from) >= RETRY_RESET_BYTES
                    {
                        self.retries_counted_from = self.position;
                        self.retries = self.client.sender.retries();
                    }
                    self.retries.wait_or_fail(error).await?;
                }
            }
        }
        Ok(None)
    }
}

impl BlobReader {
    async fn receive_chunk(&mut self) -> RegistryResult<Bytes> {
        if self.response.is_none() {
            self.send_request().await?;
        }
        let Some(coming) = &mut self.response else {
            return Err(RegistryError::Stalled);
        };
        let Some(chunk) = coming.next_chunk().await? else {
            let why = format!("it ended after {} of {} bytes", self.position, self.size);
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, why).into());
        };
        self.position = self.position.saturating_add(chunk.len() as u64);
        if self.position > self.size {
            let limit = self.size;
            return Err(RegistryError::TooLarge { limit });
        }
        Ok(chunk)
    }

    /// Requests the rest of the blob.
    async fn send_request(&mut self) -> RegistryResult<()> {
        let mut request = HttpRequest::new(Method::GET, self.url.clone());
        if self.position > 0 {
            let range = HeaderValue::from_str(&format!("bytes={}-", self.position));
            let range = range.map_err(|_| malformed("range", "it cannot be written"))?;
            request.headers.insert(RANGE, range);
        }
        let answer = self.client.send(&request, &self.scope).await?;
        let skip = bytes_to_skip(&answer, self.position)?;
        let left = self.size - self.position;
        let content_length = answer.content_length();
        if let Some(content_length) =
            content_length.filter(|content_length| *content_length != left.saturating_add(skip))
        {
            let why = format!("the response has {content_length} bytes, but {left} are missing");
            return Err(malformed("blob", why));
        }
        self.response = Some(ResponseBody::new(answer, &self.client.sender.limits, skip));
        Ok(())
    }
}

/// Number of bytes of a response before `from`: zero if the server supports ranges.
pub(super) fn bytes_to_skip(answer: &Response, from: u64) -> RegistryResult<u64> {
    match answer.status() {
        StatusCode::OK => Ok(from),
        StatusCode::PARTIAL_CONTENT => {
            let content_range = answer.headers().get(CONTENT_RANGE);
            let content_range = content_range
                .and_then(|content_range| content_range.to_str().ok())
                .unwrap_or_default();
            if content_range.starts_with(&format!("bytes {from}-")) {
                Ok(0)
            } else {
                Err(malformed("range", format!("{content_range:?} was not requested")))
            }
        }
        status => Err(RegistryError::Status(status.as_u16())),
    }
}
