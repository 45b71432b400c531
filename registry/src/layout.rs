//! A folder in OCI image layout as a registry.
//!
//! Blobs and manifests lie under `blobs/sha256`, for all repositories together. `index.json` says which manifest a tag
//! leads to; a tag is written there as `repository:tag`. It is replaced as a whole, and last, so whoever reads sees
//! either the old catalogue or the new one. What was begun is a `.part` beside its place until it is complete and checked.

pub(crate) mod index;
mod known;
pub(crate) mod part;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::io::AsyncReadExt as _;

use crate::copy::origin::OnDisk;
use crate::digest::Digest;
use crate::error::{Got, RegistryError, malformed};
use crate::limits::Limits;
use crate::source::{At, Blob, Body, Manifest, Origin, Registry, Repository, Tag, Tagged};
use index::{Pointer, Tags};
use known::Known;
use part::{Part, Whole, blocking};

/// A folder in OCI image layout.
#[derive(Clone, Debug)]
pub struct Layout {
    folder: PathBuf,
    limits: Limits,
    known: Arc<Known>,
}

impl Layout {
    /// Opens a folder. It need not be there: what is put in makes it.
    ///
    /// # Errors
    /// There is something else.
    pub fn open(folder: &Path, limits: &Limits) -> Got<Self> {
        if folder.exists() && !folder.is_dir() {
            let place = folder.display();
            return Err(RegistryError::Unreachable(format!("{place} is no folder")));
        }
        Ok(Self {
            folder: folder.to_owned(),
            limits: limits.clone(),
            known: Arc::default(),
        })
    }

    /// All tags of all repositories.
    ///
    /// # Errors
    /// The folder is no layout, or its index cannot be read.
    pub async fn all_tags(&self) -> Got<Vec<(Repository, Tag)>> {
        let tags = self.tags_that_are().await?;
        let mut all = Vec::new();
        for (repository, of_it) in tags.iter() {
            all.extend(of_it.keys().map(|tag| (repository.clone(), tag.clone())));
        }
        Ok(all)
    }

    async fn tags_that_are(&self) -> Got<Arc<Tags>> {
        let tags = self.known_tags().await?;
        tags.ok_or_else(|| {
            let place = self.folder.display();
            RegistryError::Unreachable(format!("there is no OCI image layout in {place}"))
        })
    }

    /// Where all tags lead; none if the folder is no layout.
    async fn known_tags(&self) -> Got<Option<Arc<Tags>>> {
        let (folder, known) = (self.folder.clone(), Arc::clone(&self.known));
        blocking(move || known.tags(&folder)).await?
    }

    fn place(&self, digest: &Digest) -> PathBuf {
        blob_path(&self.folder, digest)
    }

    async fn read(&self, digest: &Digest, limit: u64) -> Got<Option<Bytes>> {
        let file = match tokio::fs::File::open(self.place(digest)).await {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let mut content = Vec::new();
        file.take(limit.saturating_add(1))
            .read_to_end(&mut content)
            .await?;
        if content.len() as u64 > limit {
            return Err(RegistryError::TooLarge { limit });
        }
        let found = Digest::of(&content);
        if found != *digest {
            let said = *digest;
            return Err(RegistryError::WrongDigest { said, found });
        }
        Ok(Some(content.into()))
    }

    /// Whether all is there that a manifest names.
    async fn check_whole(&self, repository: &Repository, manifest: &Manifest) -> Got<()> {
        for blob in manifest.blobs() {
            if !self.has(repository, &blob.digest).await? {
                let why = format!("it names {}, which is not there", blob.digest);
                return Err(malformed("manifest", why));
            }
        }
        Ok(())
    }

    /// Where a tag is to lead, if all is there that it leads to.
    async fn pointer(&self, one: &Tagged) -> Got<Pointer> {
        let manifest = self
            .manifest(&one.repository, &At::Digest(one.digest))
            .await?;
        let manifest = manifest.ok_or(RegistryError::NotThere)?;
        self.check_whole(&one.repository, &manifest).await?;
        Ok(Pointer {
            repository: one.repository.clone(),
            tag: one.tag.clone(),
            blob: Blob::of(&manifest.bytes),
            form: manifest.media_type,
        })
    }

    /// Makes tags lead to manifests that are there: all of them, or none.
    async fn point(&self, all: Vec<Pointer>) -> Got<()> {
        let folder = self.folder.clone();
        blocking(move || index::point(&folder, &all)).await?
    }

    async fn put(&self, whole: &Whole, from: &dyn Origin) -> Got<()> {
        let place = self.place(&whole.digest);
        let folder = self.folder.clone();
        blocking(move || index::begin(&folder)).await?;
        let mut part = Part::take(place.with_extension("part")).await?;
        // Another writer may have been done while we waited.
        if tokio::fs::try_exists(&place).await? {
            return part.discard().await;
        }
        match part.fill(whole, from).await {
            Ok(_) => part.keep_as(&place).await,
            Err(error) => {
                part.leave().await;
                Err(error)
            }
        }
    }
}

/// Where a blob lies in a layout.
pub(crate) fn blob_path(folder: &Path, digest: &Digest) -> PathBuf {
    folder.join("blobs").join("sha256").join(digest.hex())
}

#[async_trait]
impl Registry for Layout {
    async fn tags(&self, repository: &Repository) -> Got<Vec<Tag>> {
        let tags = self.tags_that_are().await?;
        let of_it = tags.get(repository).into_iter();
        Ok(of_it.flat_map(BTreeMap::keys).cloned().collect())
    }

    async fn manifest(&self, repository: &Repository, at: &At) -> Got<Option<Manifest>> {
        let (digest, form) = match at {
            At::Digest(digest) => (*digest, String::new()),
            At::Tag(tag) => {
                let tags = self.known_tags().await?;
                let led = tags
                    .as_ref()
                    .and_then(|tags| tags.get(repository)?.get(tag));
                match led {
                    Some(led) => (led.digest, led.media_type.clone()),
                    None => return Ok(None),
                }
            }
        };
        let Some(bytes) = self.read(&digest, self.limits.manifest).await? else {
            return match at {
                At::Digest(_) => Ok(None),
                At::Tag(_) => Err(malformed("layout", format!("{digest} is missing"))),
            };
        };
        Manifest::read(bytes, &form).map(Some)
    }

    async fn small(&self, _: &Repository, blob: &Blob, limit: u64) -> Got<Bytes> {
        if blob.size > limit {
            return Err(RegistryError::TooLarge { limit });
        }
        let content = self.read(&blob.digest, blob.size).await?;
        let content = content.ok_or(RegistryError::NotThere)?;
        if content.len() as u64 != blob.size {
            return Err(malformed("blob", "its length is not the one that is said"));
        }
        Ok(content)
    }

    async fn open(&self, _: &Repository, blob: &Blob, from: u64) -> Got<Body> {
        OnDisk(self.place(&blob.digest)).open(from).await
    }

    async fn has(&self, _: &Repository, digest: &Digest) -> Got<bool> {
        Ok(tokio::fs::try_exists(self.place(digest)).await?)
    }

    async fn push_blob(&self, _: &Repository, blob: &Blob, from: &dyn Origin) -> Got<()> {
        let whole = Whole {
            digest: blob.digest,
            size: Some(blob.size),
            limit: self.limits.blob,
        };
        if blob.size > whole.limit {
            let limit = whole.limit;
            return Err(RegistryError::TooLarge { limit });
        }
        self.put(&whole, from).await
    }

    async fn push_manifest(
        &self,
        repository: &Repository,
        tag: Option<&Tag>,
        manifest: &Manifest,
    ) -> Got<()> {
        self.check_whole(repository, manifest).await?;
        let blob = Blob::of(&manifest.bytes);
        self.push_blob(repository, &blob, &manifest.bytes).await?;
        let Some(tag) = tag else {
            return Ok(());
        };
        let pointer = Pointer {
            repository: repository.clone(),
            tag: tag.clone(),
            blob,
            form: manifest.media_type.clone(),
        };
        self.point(vec![pointer]).await
    }

    async fn give(&self, tags: &[Tagged]) -> Result<(), (Option<usize>, RegistryError)> {
        let mut all = Vec::new();
        for (number, one) in tags.iter().enumerate() {
            let pointer = self.pointer(one).await;
            all.push(pointer.map_err(|error| (Some(number), error))?);
        }
        self.point(all).await.map_err(|error| (None, error))
    }
}
