//! Sources of the content of a blob.

use std::io;
use std::path::PathBuf;

use async_trait::async_trait;
use bytes::Bytes;
use evenkeel_fetch::CHUNK_BYTES;
use futures_util::stream;
use tokio::io::{AsyncReadExt as _, AsyncSeekExt as _};

use crate::error::{RegistryError, RegistryResult};
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
