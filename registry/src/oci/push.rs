//! Manifests and blobs, as they go into a registry.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _, TryStreamExt as _};
use reqwest::Method;
use reqwest::header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, HeaderValue};

use super::body::{Pieces, body};
use super::pull::said_digest;
use super::send::{Ask, checked, location};
use super::{Door, pushing};
use crate::digest::Hasher;
use crate::error::{Got, RegistryError, malformed};
use crate::source::{Blob, Body, Manifest, Origin, Repository, Tag};

impl Door {
    /// Puts a blob in.
    pub(super) async fn push_blob(
        &self,
        repository: &Repository,
        blob: &Blob,
        from: &dyn Origin,
    ) -> Got<()> {
        let mut tries = self.sender.tries();
        let mut has_new_token = false;
        loop {
            // Before an upload is begun, which would wait for it.
            let content = from.open(0).await?;
            match self.push_once(repository, blob, content).await {
                Ok(()) => return Ok(()),
                // Where it comes from has tries of its own; ours would multiply them.
                Err(Failed::Content(error)) => return Err(error),
                // The token was over before all had gone out.
                Err(Failed::Registry(RegistryError::Denied)) if !has_new_token => {
                    self.auth.forget(&pushing(repository));
                    has_new_token = true;
                }
                Err(Failed::Registry(error)) => tries.pause(error).await?,
            }
        }
    }

    async fn push_once(
        &self,
        repository: &Repository,
        blob: &Blob,
        content: Body,
    ) -> Result<(), Failed> {
        let scope = pushing(repository);
        let mut ask = Ask::new(
            Method::POST,
            self.url(repository, &["blobs", "uploads", ""])?,
        );
        ask.body = Some(Bytes::new());
        let (begun, credentials) = self.ask_openly(&ask, &scope).await?;
        let mut place = location(&ask.url, begun.headers())?;
        drop(begun);
        self.sender.check(&place)?;
        let is_own = place.origin() == self.base.origin();
        place
            .query_pairs_mut()
            .append_pair("digest", &blob.digest.to_string());

        let sent = Arc::new(AtomicU64::new(0));
        let fault = Fault::default();
        let pieces = exactly(content, *blob, Arc::clone(&sent), fault.clone());
        let mut request = self
            .sender
            .client(&place)
            .put(place)
            .header(CONTENT_TYPE, "application/octet-stream")
            .header(CONTENT_LENGTH, blob.size)
            .body(reqwest::Body::wrap_stream(pieces));
        if let Some(credentials) = credentials.filter(|_| is_own) {
            request = request.header(AUTHORIZATION, credentials);
        }
        let answer = self.sender.watched(request.send(), &sent, blob.size).await;
        // What went wrong on our side says more than that the connection broke.
        if let Some(fault) = fault.take() {
            return Err(Failed::Content(fault));
        }
        checked(answer?)?;
        Ok(())
    }

    /// Puts a manifest in, under a tag or by its digest alone.
    pub(super) async fn push_manifest(
        &self,
        repository: &Repository,
        tag: Option<&Tag>,
        manifest: &Manifest,
    ) -> Got<()> {
        let limit = self.sender.limits.manifest;
        if manifest.bytes.len() as u64 > limit {
            return Err(RegistryError::TooLarge { limit });
        }
        let name = tag.map_or_else(|| manifest.digest.to_string(), Tag::to_string);
        let mut ask = Ask::new(Method::PUT, self.url(repository, &["manifests", &name])?);
        let form = HeaderValue::from_str(&manifest.media_type);
        let form = form.map_err(|_| malformed("manifest", "its form cannot be sent"))?;
        ask.headers.insert(CONTENT_TYPE, form);
        ask.body = Some(manifest.bytes.clone());
        let (headers, _) = self.fetch(&ask, &pushing(repository), limit).await?;
        match said_digest(&headers) {
            Some(found) if found != manifest.digest => Err(RegistryError::WrongDigest {
                said: manifest.digest,
                found,
            }),
            _ => Ok(()),
        }
    }
}

/// Why something did not go in.
enum Failed {
    /// It did not come from where it is.
    Content(RegistryError),
    /// The registry did not take it.
    Registry(RegistryError),
}

impl From<RegistryError> for Failed {
    fn from(error: RegistryError) -> Self {
        Self::Registry(error)
    }
}

/// What went wrong with what was to be sent.
#[derive(Clone, Default)]
struct Fault(Arc<Mutex<Option<RegistryError>>>);

impl Fault {
    /// Notes an error, and gives one for the connection.
    fn note(&self, error: RegistryError) -> io::Error {
        let said = io::Error::other(error.to_string());
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        said
    }

    fn take(&self) -> Option<RegistryError> {
        let mut noted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        noted.take()
    }
}

/// What is on its way into a registry.
struct Sending {
    content: Body,
    left: u64,
    hasher: Hasher,
    blob: Blob,
    sent: Arc<AtomicU64>,
}

/// Sends exactly the blob: the last piece goes out only when the digest of all is right.
fn exactly(
    content: Body,
    blob: Blob,
    sent: Arc<AtomicU64>,
    fault: Fault,
) -> impl Stream<Item = io::Result<Bytes>> + Send {
    let sending = Sending {
        content,
        left: blob.size,
        hasher: Hasher::default(),
        blob,
        sent,
    };
    body(sending).map_err(move |error| fault.note(error))
}

impl Pieces for Sending {
    async fn next(&mut self) -> Got<Option<Bytes>> {
        if self.left == 0 {
            return Ok(None);
        }
        let Some(piece) = self.content.next().await.transpose()? else {
            return Err(self.other_size(self.blob.size - self.left));
        };
        let length = piece.len() as u64;
        if length > self.left {
            return Err(self.other_size(self.blob.size.saturating_add(1)));
        }
        self.hasher.update(&piece);
        self.left -= length;
        if self.left == 0 {
            let (said, found) = (self.blob.digest, self.hasher.clone().finish());
            if said != found {
                return Err(RegistryError::WrongDigest { said, found });
            }
        }
        self.sent.fetch_add(length, Ordering::Relaxed);
        Ok(Some(piece))
    }
}

impl Sending {
    fn other_size(&self, found: u64) -> RegistryError {
        let relation = if found > self.blob.size {
            "at least "
        } else {
            ""
        };
        let why = format!(
            "it has {relation}{found} bytes instead of {}",
            self.blob.size
        );
        malformed("blob", why)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::stream;

    use super::*;

    async fn sent(pieces: &[&'static [u8]], blob: Blob) -> (Vec<u8>, Option<RegistryError>) {
        let pieces: Vec<Got<Bytes>> = pieces.iter().map(|p| Ok(Bytes::from_static(p))).collect();
        let fault = Fault::default();
        let content: Body = Box::pin(stream::iter(pieces));
        let all = exactly(content, blob, Arc::default(), fault.clone());
        let all: Vec<io::Result<Bytes>> = all.collect().await;
        let whole = all.into_iter().flatten().flatten().collect();
        (whole, fault.take())
    }

    #[tokio::test]
    async fn what_is_right_goes_out() {
        let (whole, fault) = sent(&[b"one ", b"", b"two"], Blob::of(b"one two")).await;
        assert_eq!(whole, b"one two");
        assert!(fault.is_none());
    }

    #[tokio::test]
    async fn the_last_piece_of_what_is_wrong_stays_here() {
        let (whole, fault) = sent(&[b"one ", b"six"], Blob::of(b"one two")).await;
        assert_eq!(whole, b"one ");
        assert!(matches!(fault, Some(RegistryError::WrongDigest { .. })));
    }

    #[tokio::test]
    async fn what_has_another_size_is_not_sent() {
        let (_, fault) = sent(&[b"one"], Blob::of(b"one two")).await;
        assert!(matches!(fault, Some(RegistryError::Malformed { .. })));
        let (whole, fault) = sent(&[b"one two three"], Blob::of(b"one two")).await;
        assert!(whole.is_empty());
        assert!(matches!(fault, Some(RegistryError::Malformed { .. })));
    }
}
