//! Reads manifests and blobs from a registry.

use std::sync::Arc;

use bytes::Bytes;
use evenkeel_fetch::{Digest, Hasher, RangeRequest};
use futures_util::StreamExt as _;
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderValue};
use reqwest::{Method, Response};
use url::Url;

use super::body::{RangeSource, ResumingBody};
use super::send::HttpRequest;
use super::{RegistryClient, pull_scope};
use crate::error::{RegistryError, RegistryResult};
use crate::source::{Blob, BlobStream, Manifest, ManifestRef, Repository};

/// Accepted media types of manifests. Manifest lists are included so the error can name them.
const ACCEPTED_MEDIA_TYPES: &str = "application/vnd.oci.image.manifest.v1+json, \
    application/vnd.docker.distribution.manifest.v2+json, \
    application/vnd.oci.image.index.v1+json;q=0.5, \
    application/vnd.docker.distribution.manifest.list.v2+json;q=0.5";

/// Header with the digest of a manifest.
pub(super) const DIGEST_HEADER: &str = "docker-content-digest";

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
    let source = BlobSource {
        url: client.url(repository, &["blobs", &blob.digest.to_string()])?,
        scope: pull_scope(repository),
        client: Arc::clone(client),
    };
    ResumingBody::open(source, &client.sender, from, Some(blob.size)).await
}

/// A blob at its registry.
struct BlobSource {
    client: Arc<RegistryClient>,
    url: Url,
    scope: String,
}

impl RangeSource for BlobSource {
    async fn request(&self, range: &RangeRequest) -> RegistryResult<Option<Response>> {
        let mut request = HttpRequest::new(Method::GET, self.url.clone());
        range.add_headers(&mut request.headers);
        self.client.send(&request, &self.scope).await.map(Some)
    }
}
