//! State of a copy from one registry to another.

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use evenkeel_fetch::{Digest, Download, ExpectedContent, run_blocking, write_atomically};

use crate::error::{ErrorClass, RegistryError, RegistryResult};
use crate::limits::Limits;
use crate::source::{
    Blob, Manifest, ManifestRef, Origin, Registry, Repository, Tag, TagAssignment,
};
use crate::trust::{self, SigningKey};

use super::origin::{FileOrigin, RegistryOrigin};
use super::{CopyError, CopySummary, push_tags, to_finding};

/// Larger blobs are staged in the work folder until they are complete, so an interrupted transfer
/// can be resumed.
const STAGING_THRESHOLD_BYTES: u64 = 8 * 1024 * 1024;

/// A complete blob in the work folder. Its file is locked until the blob is in the target.
#[derive(Debug)]
pub(super) struct StagedBlob {
    pub part: Download,
    pub blob: Blob,
}

/// State of a copy from one registry to another.
#[derive(Debug)]
pub(super) struct Transfer<'a> {
    pub from: &'a dyn Registry,
    pub to: &'a dyn Registry,
    pub work_dir: Option<&'a Path>,
    pub key: Option<&'a SigningKey>,
    pub report: CopySummary,
    /// Digests that are already counted in the report.
    pub counted: HashSet<Digest>,
    /// Servers that did not respond or failed during a transfer, with their error. They are not
    /// tried again: each further file would wait for the same timeouts.
    pub failed_origins: HashMap<url::Origin, Arc<RegistryError>>,
    /// Images of the revisions copied so far, with their sizes.
    pub image_sizes: HashMap<Digest, u64>,
}

impl<'a> Transfer<'a> {
    /// A new transfer without work folder and signing key.
    pub fn new(from: &'a dyn Registry, to: &'a dyn Registry) -> Self {
        Self {
            from,
            to,
            work_dir: None,
            key: None,
            report: CopySummary::default(),
            counted: HashSet::new(),
            failed_origins: HashMap::new(),
            image_sizes: HashMap::new(),
        }
    }
}

impl Transfer<'_> {
    /// Copies an artifact with its signatures and returns the tag to set.
    pub async fn copy_artifact(
        &mut self,
        repository: &Repository,
        tag: &Tag,
        manifest: &Manifest,
    ) -> Result<TagAssignment, CopyError> {
        self.copy_blobs(repository, manifest).await?;
        self.to
            .push_manifest(repository, None, manifest)
            .await
            .map_err(CopyError::about(format!("{repository}:{tag}")))?;
        let signatures = self.copy_signatures(repository, &manifest.digest).await?;
        push_tags(self.to, signatures.as_slice()).await?;
        self.sign(repository, tag, manifest).await
    }

    /// Signs an artifact of the target if there is a key. Returns the tag to set.
    pub async fn sign(
        &self,
        repository: &Repository,
        tag: &Tag,
        manifest: &Manifest,
    ) -> Result<TagAssignment, CopyError> {
        let digest = manifest.digest;
        if let Some(key) = self.key {
            let what = format!("the signature of {repository}:{tag}");
            key.sign(self.to, repository, &digest, tag.as_str())
                .await
                .map_err(CopyError::about(what))?;
        }
        Ok(TagAssignment { repository: repository.clone(), tag: tag.clone(), digest })
    }

    /// Copies all blobs that a manifest names.
    pub async fn copy_blobs(
        &mut self,
        repository: &Repository,
        manifest: &Manifest,
    ) -> Result<(), CopyError> {
        for blob in manifest.blobs() {
            self.copy_blob(repository, &blob)
                .await
                .map_err(CopyError::about(format!("{} of {repository}", blob.digest)))?;
        }
        Ok(())
    }

    /// Copies the signatures of an artifact and adds them to those of the target. Returns the tag
    /// to set; `None` if the target already has a tag for signatures.
    pub async fn copy_signatures(
        &mut self,
        repository: &Repository,
        artifact: &Digest,
    ) -> Result<Option<TagAssignment>, CopyError> {
        let name = format!("the signatures of {repository}@{artifact}");
        match self.try_copy_signatures(repository, artifact).await {
            Err(error) if error.class() == ErrorClass::Permanent => {
                self.report.findings.push((name, to_finding(&error)));
                Ok(None)
            }
            result => result.map_err(CopyError::about(name)),
        }
    }

    async fn try_copy_signatures(
        &mut self,
        repository: &Repository,
        artifact: &Digest,
    ) -> RegistryResult<Option<TagAssignment>> {
        let tag = trust::signature_tag(artifact)?;
        let at = ManifestRef::Tag(tag.clone());
        let Some(manifest) = self.from.manifest(repository, &at).await? else {
            return Ok(None);
        };
        for blob in manifest.blobs() {
            self.copy_blob(repository, &blob).await?;
        }
        match self.to.manifest(repository, &at).await? {
            Some(existing) if existing.digest == manifest.digest => Ok(None),
            Some(_) => {
                trust::add_signatures(self.to, repository, artifact, manifest.layers).await?;
                Ok(None)
            }
            None => {
                let to = self.to;
                to.push_manifest(repository, None, &manifest).await?;
                Ok(Some(TagAssignment {
                    repository: repository.clone(),
                    tag,
                    digest: manifest.digest,
                }))
            }
        }
    }

    async fn copy_blob(&mut self, repository: &Repository, blob: &Blob) -> RegistryResult<()> {
        let limit = Limits::default().blob_bytes;
        if limit < blob.size {
            return Err(RegistryError::TooLarge { limit });
        }
        let from = RegistryOrigin { registry: self.from, repository, blob };
        match self.work_dir {
            Some(_) if blob.size > STAGING_THRESHOLD_BYTES => {
                let expected = ExpectedContent {
                    digest: blob.digest,
                    size: Some(blob.size),
                    limit: blob.size,
                };
                if self.to.has_blob(repository, &blob.digest).await? {
                    self.count_existing(blob.digest);
                    return Ok(());
                }
                let mut part = self.lock_part(&blob.digest).await?;
                // Another mirror may have pushed the blob while this one waited for the lock.
                match self.to.has_blob(repository, &blob.digest).await {
                    Ok(false) => {}
                    Ok(true) => {
                        self.count_existing(blob.digest);
                        return Ok(part.discard().await?);
                    }
                    Err(error) => {
                        part.release().await;
                        return Err(error);
                    }
                }
                if let Err(error) = part.fill(&expected, |at| from.open(at)).await {
                    part.release().await;
                    return Err(error.into());
                }
                self.push_staged(repository, StagedBlob { part, blob: *blob }).await.map(drop)
            }
            _ => self.push_if_missing(repository, blob, &from).await,
        }
    }

    /// Locks the partial file of a blob. Waits while another process holds it.
    pub async fn lock_part(&self, digest: &Digest) -> io::Result<Download> {
        let work = self.work_dir.unwrap_or(Path::new("."));
        Download::lock(work.join(format!("{}.part", digest.hex()))).await
    }

    /// Pushes a staged blob to the target, then removes it from the work folder.
    pub async fn push_staged(
        &mut self,
        repository: &Repository,
        staged: StagedBlob,
    ) -> RegistryResult<Blob> {
        let StagedBlob { part, blob } = staged;
        let from = FileOrigin(part.path().to_owned());
        self.push_if_missing(repository, &blob, &from).await?;
        part.discard().await?;
        Ok(blob)
    }

    /// Records the size of an image in the work folder. A later run needs it if this one is
    /// interrupted after the image was pushed and before its tag is set: it would know only the
    /// digest.
    pub async fn record_image_size(&self, image: &Blob) -> io::Result<()> {
        let (note, size) = (self.size_file(&image.digest), image.size.to_string());
        run_blocking(move || write_atomically(&note, size.as_bytes())).await
    }

    /// Size of an image that an earlier revision or an interrupted mirror run pushed, if known.
    pub async fn image_size(&self, image: &Digest) -> Option<u64> {
        if let Some(&size) = self.image_sizes.get(image) {
            return Some(size);
        }
        let note = tokio::fs::read_to_string(self.size_file(image)).await;
        note.ok()?.parse().ok()
    }

    /// Removes the size files of images that have tags now.
    pub async fn remove_size_files(&self) {
        for image in self.image_sizes.keys() {
            // Most images have no such file, and a stale one does no harm.
            let _ = tokio::fs::remove_file(self.size_file(image)).await;
        }
    }

    fn size_file(&self, image: &Digest) -> PathBuf {
        let work = self.work_dir.unwrap_or(Path::new("."));
        work.join(format!("{}.size", image.hex()))
    }

    /// Pushes a blob to the target unless it exists there.
    pub async fn push_if_missing(
        &mut self,
        repository: &Repository,
        blob: &Blob,
        from: &dyn Origin,
    ) -> RegistryResult<()> {
        if self.to.has_blob(repository, &blob.digest).await? {
            self.count_existing(blob.digest);
            return Ok(());
        }
        self.to.push_blob(repository, blob, from).await?;
        self.counted.insert(blob.digest);
        self.report.blobs += 1;
        self.report.bytes += blob.size;
        Ok(())
    }

    fn count_existing(&mut self, digest: Digest) {
        if self.counted.insert(digest) {
            self.report.present += 1;
        }
    }
}
