//! Where the content of a blob comes from.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
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
    web: &'a Web,
    url: &'a Url,
    was_refused: AtomicBool,
    broke_off: Arc<AtomicBool>,
    came: Arc<AtomicU64>,
}

impl<'a> OnWeb<'a> {
    pub fn new(web: &'a Web, url: &'a Url) -> Self {
        Self {
            web,
            url,
            was_refused: AtomicBool::default(),
            broke_off: Arc::default(),
            came: Arc::default(),
        }
    }

    /// Whether the server did not even begin. It was asked as often as it is asked for anything.
    pub fn was_refused(&self) -> bool {
        self.was_refused.load(Ordering::Relaxed)
    }

    /// Whether the server failed in the middle, and not whoever read from it.
    pub fn broke_off(&self) -> bool {
        self.broke_off.load(Ordering::Relaxed)
    }

    /// How many bytes came in all.
    pub fn came(&self) -> u64 {
        self.came.load(Ordering::Relaxed)
    }
}

#[async_trait]
impl Origin for OnWeb<'_> {
    async fn open(&self, from: u64) -> Got<Body> {
        let opened = self.web.open(self.url, from).await;
        self.was_refused.store(opened.is_err(), Ordering::Relaxed);
        self.broke_off.store(false, Ordering::Relaxed);
        let (broke_off, came) = (Arc::clone(&self.broke_off), Arc::clone(&self.came));
        Ok(Box::pin(opened?.inspect(move |piece| match piece {
            Ok(piece) => {
                came.fetch_add(piece.len() as u64, Ordering::Relaxed);
            }
            Err(_) => broke_off.store(true, Ordering::Relaxed),
        })))
    }
}
