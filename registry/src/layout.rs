//! A folder in OCI image layout as a registry.
//!
//! Blobs and manifests of all repositories are under `blobs/sha256`. `index.json` maps tags,
//! written as `repository:tag`, to manifests. It is replaced atomically and last, so a reader sees
//! either the old catalogue or the new one. Incomplete content is in a `.part` file next to its
//! target until it is complete and checked.

pub(crate) mod index;
mod index_cache;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use evenkeel_fetch::{Digest, Download, ExpectedContent, run_blocking};
use tokio::io::AsyncReadExt as _;

use crate::copy::origin::FileOrigin;
use crate::error::{RegistryError, RegistryResult, malformed};
use crate::limits::Limits;
use crate::source::{
    Blob, BlobStream, Manifest, ManifestRef, Origin, Registry, Repository, Tag, TagAssignment,
};
use index::{TagMap, TagUpdate};
use index_cache::IndexCache;

/// A registry in a folder in OCI image layout.
#[derive(Clone, Debug)]
pub struct Layout {
    folder: PathBuf,
    limits: Limits,
    index_cache: Arc<IndexCache>,
}

impl Layout {
    /// Opens a folder. It need not exist: the first write creates it.
    ///
    /// # Errors
    /// The path exists and is not a folder.
    pub fn open(folder: &Path, limits: &Limits) -> RegistryResult<Self> {
        if folder.exists() && !folder.is_dir() {
            let path = folder.display();
            return Err(RegistryError::Unreachable(format!("{path} is not a folder")));
        }
        Ok(Self { folder: folder.to_owned(), limits: limits.clone(), index_cache: Arc::default() })
    }

    /// Lists all tags of all repositories.
    ///
    /// # Errors
    /// The folder is not a layout, or its index cannot be read.
    pub async fn all_tags(&self) -> RegistryResult<Vec<(Repository, Tag)>> {
        let tags = self.require_tags().await?;
        let mut all = Vec::new();
        for (repository, of_it) in tags.iter() {
            all.extend(of_it.keys().map(|tag| (repository.clone(), tag.clone())));
        }
        Ok(all)
    }

    async fn require_tags(&self) -> RegistryResult<Arc<TagMap>> {
        let tags = self.read_tags().await?;
        tags.ok_or_else(|| {
            let path = self.folder.display();
            RegistryError::Unreachable(format!("there is no OCI image layout in {path}"))
        })
    }

    /// Reads the targets of all tags; `None` if the folder is not a layout.
    async fn read_tags(&self) -> RegistryResult<Option<Arc<TagMap>>> {
        let (folder, cache) = (self.folder.clone(), Arc::clone(&self.index_cache));
        run_blocking(move || cache.tags(&folder)).await?
    }

    fn path_of_blob(&self, digest: &Digest) -> PathBuf {
        blob_path(&self.folder, digest)
    }

    async fn read_content(&self, digest: &Digest, limit: u64) -> RegistryResult<Option<Bytes>> {
        let file = match tokio::fs::File::open(self.path_of_blob(digest)).await {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let mut content = Vec::new();
        file.take(limit.saturating_add(1)).read_to_end(&mut content).await?;
        if content.len() as u64 > limit {
            return Err(RegistryError::TooLarge { limit });
        }
        let actual = Digest::compute(&content);
        if actual != *digest {
            let expected = *digest;
            return Err(RegistryError::WrongDigest { expected, actual });
        }
        Ok(Some(content.into()))
    }

    /// Checks that all blobs of a manifest exist.
    async fn check_blobs_exist(
        &self,
        repository: &Repository,
        manifest: &Manifest,
    ) -> RegistryResult<()> {
        for blob in manifest.blobs() {
            if !self.has_blob(repository, &blob.digest).await? {
                let why = format!("it names {}, which does not exist", blob.digest);
                return Err(malformed("manifest", why));
            }
        }
        Ok(())
    }

    /// Prepares setting a tag, after checking that the manifest and its blobs exist.
    async fn tag_update(&self, assignment: &TagAssignment) -> RegistryResult<TagUpdate> {
        let manifest =
            self.manifest(&assignment.repository, &ManifestRef::Digest(assignment.digest)).await?;
        let manifest = manifest.ok_or(RegistryError::NotFound)?;
        self.check_blobs_exist(&assignment.repository, &manifest).await?;
        Ok(TagUpdate {
            repository: assignment.repository.clone(),
            tag: assignment.tag.clone(),
            blob: Blob::new(&manifest.bytes),
            media_type: manifest.media_type,
        })
    }

    /// Sets all tags or none.
    async fn write_tags(&self, all: Vec<TagUpdate>) -> RegistryResult<()> {
        let folder = self.folder.clone();
        run_blocking(move || index::write_tags(&folder, &all)).await?
    }

    async fn write_blob(
        &self,
        expected: &ExpectedContent,
        from: &dyn Origin,
    ) -> RegistryResult<()> {
        let target = self.path_of_blob(&expected.digest);
        let folder = self.folder.clone();
        run_blocking(move || index::create_layout(&folder)).await?;
        let mut part = Download::lock(target.with_extension("part")).await?;
        // Another writer may have finished while this one waited for the lock.
        if tokio::fs::try_exists(&target).await? {
            return Ok(part.discard().await?);
        }
        match part.fill(expected, |at| from.open(at)).await {
            Ok(()) => Ok(part.persist_as(&target).await?),
            Err(error) => {
                part.release().await;
                Err(error.into())
            }
        }
    }
}

/// Path of a blob in a layout.
pub(crate) fn blob_path(folder: &Path, digest: &Digest) -> PathBuf {
    folder.join("blobs").join("sha256").join(digest.hex())
}

#[async_trait]
impl Registry for Layout {
    async fn tags(&self, repository: &Repository) -> RegistryResult<Vec<Tag>> {
        let tags = self.require_tags().await?;
        let of_it = tags.get(repository).into_iter();
        Ok(of_it.flat_map(BTreeMap::keys).cloned().collect())
    }

    async fn manifest(
        &self,
        repository: &Repository,
        at: &ManifestRef,
    ) -> RegistryResult<Option<Manifest>> {
        let (digest, media_type) = match at {
            ManifestRef::Digest(digest) => (*digest, String::new()),
            ManifestRef::Tag(tag) => {
                let tags = self.read_tags().await?;
                let target = tags.as_ref().and_then(|tags| tags.get(repository)?.get(tag));
                match target {
                    Some(target) => (target.digest, target.media_type.clone()),
                    None => return Ok(None),
                }
            }
        };
        let Some(bytes) = self.read_content(&digest, self.limits.manifest_bytes).await? else {
            return match at {
                ManifestRef::Digest(_) => Ok(None),
                ManifestRef::Tag(_) => Err(malformed("layout", format!("{digest} is missing"))),
            };
        };
        Manifest::read(bytes, &media_type).map(Some)
    }

    async fn blob(&self, _: &Repository, blob: &Blob, limit: u64) -> RegistryResult<Bytes> {
        if blob.size > limit {
            return Err(RegistryError::TooLarge { limit });
        }
        let content = self.read_content(&blob.digest, blob.size).await?;
        let content = content.ok_or(RegistryError::NotFound)?;
        if content.len() as u64 != blob.size {
            return Err(malformed("blob", "its size differs from the declared one"));
        }
        Ok(content)
    }

    async fn open_blob(
        &self,
        _: &Repository,
        blob: &Blob,
        from: u64,
    ) -> RegistryResult<BlobStream> {
        FileOrigin(self.path_of_blob(&blob.digest)).open(from).await
    }

    async fn has_blob(&self, _: &Repository, digest: &Digest) -> RegistryResult<bool> {
        Ok(tokio::fs::try_exists(self.path_of_blob(digest)).await?)
    }

    async fn push_blob(
        &self,
        _: &Repository,
        blob: &Blob,
        from: &dyn Origin,
    ) -> RegistryResult<()> {
        let expected = ExpectedContent {
            digest: blob.digest,
            size: Some(blob.size),
            limit: self.limits.blob_bytes,
        };
        if blob.size > expected.limit {
            let limit = expected.limit;
            return Err(RegistryError::TooLarge { limit });
        }
        self.write_blob(&expected, from).await
    }

    async fn push_manifest(
        &self,
        repository: &Repository,
        tag: Option<&Tag>,
        manifest: &Manifest,
    ) -> RegistryResult<()> {
        self.check_blobs_exist(repository, manifest).await?;
        let blob = Blob::new(&manifest.bytes);
        self.push_blob(repository, &blob, &manifest.bytes).await?;
        let Some(tag) = tag else {
            return Ok(());
        };
        let update = TagUpdate {
            repository: repository.clone(),
            tag: tag.clone(),
            blob,
            media_type: manifest.media_type.clone(),
        };
        self.write_tags(vec![update]).await
    }

    async fn push_tags(
        &self,
        tags: &[TagAssignment],
    ) -> Result<(), (Option<usize>, RegistryError)> {
        let mut all = Vec::new();
        for (number, assignment) in tags.iter().enumerate() {
            let update = self.tag_update(assignment).await;
            all.push(update.map_err(|error| (Some(number), error))?);
        }
        self.write_tags(all).await.map_err(|error| (None, error))
    }
}
