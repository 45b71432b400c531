//! Where the content of a blob comes from.

use std::io;
use std::path::PathBuf;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream;
use tokio::io::{AsyncReadExt as _, AsyncSeekExt as _};
use url::Url;

use crate::error::{Got, RegistryError};
use crate::layout::part::PIECE;
use crate::oci::web::Web;
use crate::source::{Blob, Body, Origin, Registry, Repository};

/// A content that is a file.
#[derive(Clone, Debug)]
pub struct OnDisk(pub PathBuf);

#[async_trait]
impl Origin for OnDisk {
    async fn open(&self, from: u64) -> Got<Body> {
        let mut file = match tokio::fs::File::open(&self.0).await {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(RegistryError::NotThere);
            }
            Err(error) => return Err(error.into()),
        };
        file.seek(io::SeekFrom::Start(from)).await?;
        Ok(Box::pin(stream::try_unfold(file, |mut file| async move {
            let mut piece = vec![0; PIECE];
            let count = file.read(&mut piece).await?;
            piece.truncate(count);
            Ok::<_, RegistryError>((count > 0).then(|| (Bytes::from(piece), file)))
        })))
    }
}

/// A content that lies in a registry.
#[derive(Debug)]
pub(crate) struct Remote<'a> {
    pub registry: &'a dyn Registry,
    pub repository: &'a Repository,
    pub blob: &'a Blob,
}

#[async_trait]
impl Origin for Remote<'_> {
    async fn open(&self, from: u64) -> Got<Body> {
        self.registry.open(self.repository, self.blob, from).await
    }
}

/// A content that lies on a web server.
#[derive(Debug)]
pub(crate) struct OnWeb<'a> {
    pub web: &'a Web,
    pub url: &'a Url,
}

#[async_trait]
impl Origin for OnWeb<'_> {
    async fn open(&self, from: u64) -> Got<Body> {
        self.web.open(self.url, from).await
    }
}
