//! Sources of the content of a blob.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use tokio::io::{AsyncReadExt as _, AsyncSeekExt as _};
use url::Url;

use crate::error::{RegistryError, RegistryResult};
use crate::layout::partial_file::CHUNK_BYTES;
use crate::oci::web::WebClient;
use crate::source::{Blob, BlobStream, Origin, Registry, Repository};

/// Content in a file.
#[derive(Clone, Debug)]
pub struct FileOrigin(pub PathBuf);

#[async_trait]
impl Origin for FileOrigin {
    async fn open(&self, from: u64) -> RegistryResult<BlobStream> {
        let mut file = match tokio::fs::File::open(&self.0).await {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(RegistryError::NotFound);
            }
            Err(error) => return Err(error.into()),
        };
        file.seek(io::SeekFrom::Start(from)).await?;
        Ok(Box::pin(stream::try_unfold(file, |mut file| async move {
            let mut chunk = vec![0; CHUNK_BYTES];
            let count = file.read(&mut chunk).await?;
            chunk.truncate(count);
            Ok::<_, RegistryError>((count > 0).then(|| (Bytes::from(chunk), file)))
        })))
    }
}

/// Content in a registry.
#[derive(Debug)]
pub(crate) struct RegistryOrigin<'a> {
    pub registry: &'a dyn Registry,
    pub repository: &'a Repository,
    pub blob: &'a Blob,
}

#[async_trait]
impl Origin for RegistryOrigin<'_> {
    async fn open(&self, from: u64) -> RegistryResult<BlobStream> {
        self.registry.open_blob(self.repository, self.blob, from).await
    }
}

/// Content on a web server.
#[derive(Debug)]
pub(crate) struct WebOrigin<'a> {
    web: &'a WebClient,
    url: &'a Url,
    was_refused: AtomicBool,
    broke_off: Arc<AtomicBool>,
    received_bytes: Arc<AtomicU64>,
}

impl<'a> WebOrigin<'a> {
    pub fn new(web: &'a WebClient, url: &'a Url) -> Self {
        Self {
            web,
            url,
            was_refused: AtomicBool::default(),
            broke_off: Arc::default(),
            received_bytes: Arc::default(),
        }
    }

    /// Whether the last request failed before any content arrived. Its retries are used up then.
    pub fn was_refused(&self) -> bool {
        self.was_refused.load(Ordering::Relaxed)
    }

    /// Whether the server interrupted the transfer, as opposed to an error of the reader.
    pub fn broke_off(&self) -> bool {
        self.broke_off.load(Ordering::Relaxed)
    }

    /// Number of bytes received so far.
    pub fn received_bytes(&self) -> u64 {
        self.received_bytes.load(Ordering::Relaxed)
    }
}

#[async_trait]
impl Origin for WebOrigin<'_> {
    async fn open(&self, from: u64) -> RegistryResult<BlobStream> {
        let opened = self.web.open(self.url, from).await;
        self.was_refused.store(opened.is_err(), Ordering::Relaxed);
        self.broke_off.store(false, Ordering::Relaxed);
        let (broke_off, received) = (Arc::clone(&self.broke_off), Arc::clone(&self.received_bytes));
        Ok(Box::pin(opened?.inspect(move |chunk| match chunk {
            Ok(chunk) => {
                received.fetch_add(chunk.len() as u64, Ordering::Relaxed);
            }
            Err(_) => broke_off.store(true, Ordering::Relaxed),
        })))
    }
}
