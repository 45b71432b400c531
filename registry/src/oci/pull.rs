//! Manifests and blobs, as they come out of a registry.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use reqwest::header::{ACCEPT, CONTENT_RANGE, CONTENT_TYPE, HeaderMap, HeaderValue, RANGE};
use reqwest::{Method, Response, StatusCode};
use url::Url;

use super::body::{Coming, Pieces, body};
use super::send::{Ask, Tries};
use super::{Door, pulling};
use crate::digest::{Digest, Hasher};
use crate::error::{Got, RegistryError, malformed};
use crate::source::{At, Blob, Body, Manifest, Repository};

/// The forms of manifests that are asked for. Lists are among them so that it can be said that it is one.
const ACCEPTED: &str = "application/vnd.oci.image.manifest.v1+json, \
    application/vnd.docker.distribution.manifest.v2+json, \
    application/vnd.oci.image.index.v1+json;q=0.5, \
    application/vnd.docker.distribution.manifest.list.v2+json;q=0.5";

/// Where a registry says the digest of a manifest.
pub(super) const SAID_DIGEST: &str = "docker-content-digest";

/// How much must have come before a connection that breaks counts as the first one again.
pub(crate) const PROGRESS: u64 = 1024 * 1024;

impl Door {
    /// A manifest, or none if there is no such.
    pub(super) async fn manifest(&self, repository: &Repository, at: &At) -> Got<Option<Manifest>> {
        let url = self.url(repository, &["manifests", &at.to_string()])?;
        let mut ask = Ask::new(Method::GET, url);
        ask.headers
            .insert(ACCEPT, HeaderValue::from_static(ACCEPTED));
        let limit = self.sender.limits.manifest;
        let (headers, bytes) = match self.fetch(&ask, &pulling(repository), limit).await {
            Err(RegistryError::NotThere) => return Ok(None),
            answer => answer?,
        };
        let found = Digest::of(&bytes);
        let said = match at {
            At::Digest(digest) => Some(*digest),
            At::Tag(_) => said_digest(&headers),
        };
        if let Some(said) = said.filter(|said| *said != found) {
            return Err(RegistryError::WrongDigest { said, found });
        }
        let form = headers
            .get(CONTENT_TYPE)
            .and_then(|form| form.to_str().ok());
        Manifest::read(bytes, form.unwrap_or_default()).map(Some)
    }

    /// Whether a blob is there.
    pub(super) async fn has(&self, repository: &Repository, digest: &Digest) -> Got<bool> {
        let url = self.url(repository, &["blobs", &digest.to_string()])?;
        let ask = Ask::new(Method::HEAD, url);
        match self.fetch_head(&ask, &pulling(repository)).await {
            Ok(()) => Ok(true),
            Err(RegistryError::NotThere) => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn fetch_head(&self, ask: &Ask, scope: &str) -> Got<()> {
        let mut tries = self.sender.tries();
        loop {
            match self.ask(ask, scope).await {
                Ok(_) => return Ok(()),
                Err(error) => tries.pause(error).await?,
            }
        }
    }
}

/// The digest of a manifest as the registry says it.
pub(super) fn said_digest(headers: &HeaderMap) -> Option<Digest> {
    headers.get(SAID_DIGEST)?.to_str().ok()?.parse().ok()
}

/// The whole of a small blob, checked.
pub(super) async fn small(
    door: &Arc<Door>,
    repository: &Repository,
    blob: &Blob,
    limit: u64,
) -> Got<Bytes> {
    if blob.size > limit {
        return Err(RegistryError::TooLarge { limit });
    }
    let mut pieces = open(door, repository, blob, 0).await?;
    let mut whole = Vec::new();
    let mut hasher = Hasher::default();
    while let Some(piece) = pieces.next().await {
        let piece = piece?;
        hasher.update(&piece);
        whole.extend_from_slice(&piece);
    }
    let found = hasher.finish();
    if found == blob.digest {
        Ok(Bytes::from(whole))
    } else {
        let said = blob.digest;
        Err(RegistryError::WrongDigest { said, found })
    }
}

/// A blob from a byte on. What breaks off is taken up again where it broke.
pub(super) async fn open(
    door: &Arc<Door>,
    repository: &Repository,
    blob: &Blob,
    from: u64,
) -> Got<Body> {
    if from >= blob.size {
        return Ok(Box::pin(stream::empty()));
    }
    let mut reading = Reading {
        url: door.url(repository, &["blobs", &blob.digest.to_string()])?,
        scope: pulling(repository),
        tries: door.sender.tries(),
        door: Arc::clone(door),
        at: from,
        size: blob.size,
        counted_from: from,
        coming: None,
    };
    // Whether there is such a blob is told at once.
    loop {
        match reading.begin().await {
            Ok(()) => break,
            Err(error) => reading.tries.pause(error).await?,
        }
    }
    Ok(body(reading))
}

/// A blob that is being read.
struct Reading {
    door: Arc<Door>,
    url: Url,
    scope: String,
    /// How much of the blob has been given.
    at: u64,
    size: u64,
    /// Where the tries were counted from.
    counted_from: u64,
    tries: Tries,
    /// The answer that is being read.
    coming: Option<Coming>,
}

impl Pieces for Reading {
    async fn next(&mut self) -> Got<Option<Bytes>> {
        while self.at < self.size {
            match self.piece().await {
                Ok(piece) => return Ok(Some(piece)),
                Err(error) => {
                    self.coming = None;
                    if self.at.saturating_sub(self.counted_from) >= PROGRESS {
                        self.counted_from = self.at;
                        self.tries = self.door.sender.tries();
                    }
                    self.tries.pause(error).await?;
                }
            }
        }
        Ok(None)
    }
}

impl Reading {
    async fn piece(&mut self) -> Got<Bytes> {
        if self.coming.is_none() {
            self.begin().await?;
        }
        let Some(coming) = &mut self.coming else {
            return Err(RegistryError::Stalled);
        };
        let Some(piece) = coming.next().await? else {
            let why = format!("it ended after {} of {} bytes", self.at, self.size);
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, why).into());
        };
        self.at = self.at.saturating_add(piece.len() as u64);
        if self.at > self.size {
            let limit = self.size;
            return Err(RegistryError::TooLarge { limit });
        }
        Ok(piece)
    }

    /// Asks for what is missing.
    async fn begin(&mut self) -> Got<()> {
        let mut ask = Ask::new(Method::GET, self.url.clone());
        if self.at > 0 {
            let range = HeaderValue::from_str(&format!("bytes={}-", self.at));
            let range = range.map_err(|_| malformed("range", "it cannot be written"))?;
            ask.headers.insert(RANGE, range);
        }
        let answer = self.door.ask(&ask, &self.scope).await?;
        let skip = skipped(&answer, self.at)?;
        let left = self.size - self.at;
        let said = answer.content_length();
        if let Some(said) = said.filter(|said| *said != left.saturating_add(skip)) {
            let why = format!("{said} bytes would come where {left} are missing");
            return Err(malformed("blob", why));
        }
        self.coming = Some(Coming::new(answer, &self.door.sender.limits, skip));
        Ok(())
    }
}

/// How much of an answer lies before a byte, whether the range was taken notice of or not.
pub(super) fn skipped(answer: &Response, from: u64) -> Got<u64> {
    match answer.status() {
        StatusCode::OK => Ok(from),
        StatusCode::PARTIAL_CONTENT => {
            let said = answer.headers().get(CONTENT_RANGE);
            let said = said.and_then(|said| said.to_str().ok()).unwrap_or_default();
            if said.starts_with(&format!("bytes {from}-")) {
                Ok(0)
            } else {
                Err(malformed("range", format!("{said:?} was not asked for")))
            }
        }
        status => Err(RegistryError::Status(status.as_u16())),
    }
}
