//! Writes manifests and blobs to a registry.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use evenkeel_fetch::Hasher;
use futures_util::{Stream, StreamExt as _, TryStreamExt as _};
use reqwest::Method;
use reqwest::header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue};

use super::body::{ChunkSource, into_stream};
use super::pull::digest_from_header;
use super::send::{HttpRequest, check_status, parse_location};
use super::{RegistryClient, push_scope};
use crate::error::{RegistryError, RegistryResult, malformed};
use crate::source::{Blob, BlobStream, Manifest, Origin, Repository, Tag};

impl RegistryClient {
    /// Pushes a blob.
    pub(super) async fn push_blob(
        &self,
        repository: &Repository,
        blob: &Blob,
        from: &dyn Origin,
    ) -> RegistryResult<()> {
        let mut tries = self.sender.retries();
        let mut has_new_token = false;
        loop {
            // Open the content before starting an upload, which would have to wait for it.
            let content = from.open(0).await?;
            match self.push_once(repository, blob, content).await {
                Ok(()) => return Ok(()),
                // The origin has its own retries; retrying here would multiply them.
                Err(PushError::Content(error)) => return Err(error),
                // The token expired during the upload.
                Err(PushError::Registry(RegistryError::Denied)) if !has_new_token => {
                    self.auth.forget_token(&push_scope(repository));
                    has_new_token = true;
                }
                Err(PushError::Registry(error)) => tries.wait_or_fail(error).await?,
            }
        }
    }

    async fn push_once(
        &self,
        repository: &Repository,
        blob: &Blob,
        content: BlobStream,
    ) -> Result<(), PushError> {
        let scope = push_scope(repository);
        let mut start =
            HttpRequest::new(Method::POST, self.url(repository, &["blobs", "uploads", ""])?);
        start.body = Some(Bytes::new());
        let (response, credentials) = self.send_returning_credentials(&start, &scope).await?;
        let mut upload_url = parse_location(&start.url, response.headers())?;
        drop(response);
        self.sender.check_url(&upload_url)?;
        let is_own = upload_url.origin() == self.base.origin();
        upload_url.query_pairs_mut().append_pair("digest", &blob.digest.to_string());

        let sent = Arc::new(AtomicU64::new(0));
        let fault = ContentError::default();
        let chunks = verified_stream(content, *blob, Arc::clone(&sent), fault.clone());
        let mut request = self
            .sender
            .client(&upload_url)
            .put(upload_url)
            .header(CONTENT_TYPE, "application/octet-stream")
            .header(CONTENT_LENGTH, blob.size)
            .body(reqwest::Body::wrap_stream(chunks));
        if let Some(credentials) = credentials.filter(|_| is_own) {
            request = request.header(AUTHORIZATION, credentials);
        }
        let answer = self.sender.await_upload(request.send(), &sent, blob.size).await;
        // An error of the content is the cause of the broken connection, so it is returned instead.
        if let Some(fault) = fault.take() {
            return Err(PushError::Content(fault));
        }
        check_status(answer?)?;
        Ok(())
    }

    /// Pushes a manifest, under a tag or by its digest only.
    pub(super) async fn push_manifest(
        &self,
        repository: &Repository,
        tag: Option<&Tag>,
        manifest: &Manifest,
    ) -> RegistryResult<()> {
        let limit = self.sender.limits.manifest_bytes;
        if manifest.bytes.len() as u64 > limit {
            return Err(RegistryError::TooLarge { limit });
        }
        let name = tag.map_or_else(|| manifest.digest.to_string(), Tag::to_string);
        let mut request =
            HttpRequest::new(Method::PUT, self.url(repository, &["manifests", &name])?);
        let media_type = HeaderValue::from_str(&manifest.media_type);
        let media_type = media_type
            .map_err(|_| malformed("manifest", "its media type is not a valid header"))?;
        request.headers.insert(CONTENT_TYPE, media_type);
        request.body = Some(manifest.bytes.clone());
        let (headers, _) = self.fetch(&request, &push_scope(repository), limit).await?;
        match digest_from_header(&headers) {
            Some(actual) if actual != manifest.digest => {
                Err(RegistryError::WrongDigest { expected: manifest.digest, actual })
            }
            _ => Ok(()),
        }
    }
}

/// Error of an upload.
enum PushError {
    /// The content could not be read from its origin.
    Content(RegistryError),
    /// The registry refused the content.
    Registry(RegistryError),
}

impl From<RegistryError> for PushError {
    fn from(error: RegistryError) -> Self {
        Self::Registry(error)
    }
}

/// Slot for an error of the content during an upload.
#[derive(Clone, Default)]
struct ContentError(Arc<Mutex<Option<RegistryError>>>);

impl ContentError {
    /// Records an error and returns one for the connection.
    fn record(&self, error: RegistryError) -> io::Error {
        let io_error = io::Error::other(error.to_string());
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        io_error
    }

    fn take(&self) -> Option<RegistryError> {
        let mut slot = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        slot.take()
    }
}

/// Content that is being uploaded.
struct BlobUpload {
    content: BlobStream,
    remaining: u64,
    hasher: Hasher,
    blob: Blob,
    sent: Arc<AtomicU64>,
}

/// Streams the content of a blob. The last chunk is sent only if the digest is right.
fn verified_stream(
    content: BlobStream,
    blob: Blob,
    sent: Arc<AtomicU64>,
    fault: ContentError,
) -> impl Stream<Item = io::Result<Bytes>> + Send {
    let sending =
        BlobUpload { content, remaining: blob.size, hasher: Hasher::default(), blob, sent };
    into_stream(sending).map_err(move |error| fault.record(error))
}

impl ChunkSource for BlobUpload {
    async fn next_chunk(&mut self) -> RegistryResult<Option<Bytes>> {
        if self.remaining == 0 {
            return Ok(None);
        }
        let Some(chunk) = self.content.next().await.transpose()? else {
            return Err(self.size_error(self.blob.size - self.remaining));
        };
        let length = chunk.len() as u64;
        if length > self.remaining {
            return Err(self.size_error(self.blob.size.saturating_add(1)));
        }
        self.hasher.update(&chunk);
        self.remaining -= length;
        if self.remaining == 0 {
            let (expected, actual) = (self.blob.digest, self.hasher.clone().finish());
            if expected != actual {
                return Err(RegistryError::WrongDigest { expected, actual });
            }
        }
        self.sent.fetch_add(length, Ordering::Relaxed);
        Ok(Some(chunk))
    }
}

impl BlobUpload {
    fn size_error(&self, actual: u64) -> RegistryError {
        let relation = if actual > self.blob.size { "at least " } else { "" };
        let why = format!("it has {relation}{actual} bytes instead of {}", self.blob.size);
        malformed("blob", why)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::stream;

    use super::*;

    async fn send_all(chunks: &[&'static [u8]], blob: Blob) -> (Vec<u8>, Option<RegistryError>) {
        let chunks: Vec<RegistryResult<Bytes>> =
            chunks.iter().map(|p| Ok(Bytes::from_static(p))).collect();
        let fault = ContentError::default();
        let content: BlobStream = Box::pin(stream::iter(chunks));
        let all = verified_stream(content, blob, Arc::default(), fault.clone());
        let all: Vec<io::Result<Bytes>> = all.collect().await;
        let sent = all.into_iter().flatten().flatten().collect();
        (sent, fault.take())
    }

    #[tokio::test]
    async fn valid_content_is_sent() {
        let (sent, fault) = send_all(&[b"one ", b"", b"two"], Blob::new(b"one two")).await;
        assert_eq!(sent, b"one two");
        assert!(fault.is_none());
    }

    #[tokio::test]
    async fn the_last_chunk_of_invalid_content_is_not_sent() {
        let (sent, fault) = send_all(&[b"one ", b"six"], Blob::new(b"one two")).await;
        assert_eq!(sent, b"one ");
        assert!(matches!(fault, Some(RegistryError::WrongDigest { .. })));
    }

    #[tokio::test]
    async fn content_of_another_size_is_not_sent() {
        let (_, fault) = send_all(&[b"one"], Blob::new(b"one two")).await;
        assert!(matches!(fault, Some(RegistryError::Malformed { .. })));
        let (sent, fault) = send_all(&[b"one two three"], Blob::new(b"one two")).await;
        assert!(sent.is_empty());
        assert!(matches!(fault, Some(RegistryError::Malformed { .. })));
    }
}
