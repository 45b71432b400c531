//! One transfer from a registry to another.

use std::collections::HashSet;
use std::io;
use std::path::Path;

use crate::digest::Digest;
use crate::error::{Class, Got, RegistryError};
use crate::layout::part::{Part, Whole};
use crate::limits::Limits;
use crate::source::{At, Blob, Manifest, Origin, Registry, Repository, Tag};
use crate::trust::{self, SigningKey};

use super::origin::{OnDisk, Remote};
use super::{Copied, MoveError, finding_of};

/// What is larger is kept in the work folder until it is whole, so that it is carried on after a break.
const KEPT_ASIDE: u64 = 8 * 1024 * 1024;

/// One transfer.
#[derive(Debug)]
pub(super) struct Transfer<'a> {
    pub from: &'a dyn Registry,
    pub to: &'a dyn Registry,
    pub work: Option<&'a Path>,
    pub key: Option<&'a SigningKey>,
    pub copied: Copied,
    /// What was counted already.
    pub seen: HashSet<Digest>,
}

impl Transfer<'_> {
    /// Carries over an artefact with its signatures, but not its tag.
    pub async fn artefact(
        &mut self,
        repository: &Repository,
        tag: &Tag,
        manifest: &Manifest,
    ) -> Result<(), MoveError> {
        self.contents(repository, manifest).await?;
        self.to
            .push_manifest(repository, None, manifest)
            .await
            .map_err(MoveError::about(format!("{repository}:{tag}")))?;
        self.signatures(repository, &manifest.digest).await?;
        self.sign(repository, tag, manifest).await
    }

    /// Signs what is there already, if there is a key.
    pub async fn sign(
        &self,
        repository: &Repository,
        tag: &Tag,
        manifest: &Manifest,
    ) -> Result<(), MoveError> {
        let Some(key) = self.key else {
            return Ok(());
        };
        key.sign(self.to, repository, &manifest.digest, tag.as_str())
            .await
            .map_err(MoveError::about(format!(
                "the signature of {repository}:{tag}"
            )))
    }

    /// Carries over all contents that a manifest names.
    pub async fn contents(
        &mut self,
        repository: &Repository,
        manifest: &Manifest,
    ) -> Result<(), MoveError> {
        for blob in manifest.blobs() {
            self.blob(repository, &blob)
                .await
                .map_err(MoveError::about(format!("{} of {repository}", blob.digest)))?;
        }
        Ok(())
    }

    /// Carries over the signatures of an artefact. Others that are in the new place stay.
    pub async fn signatures(
        &mut self,
        repository: &Repository,
        of: &Digest,
    ) -> Result<(), MoveError> {
        let name = format!("the signatures of {repository}@{of}");
        match self.carry_signatures(repository, of).await {
            Err(error) if error.class() == Class::Lasting => {
                self.copied.findings.push((name, finding_of(&error)));
                Ok(())
            }
            carried => carried.map_err(MoveError::about(name)),
        }
    }

    async fn carry_signatures(&mut self, repository: &Repository, of: &Digest) -> Got<()> {
        let tag = trust::signature_tag(of)?;
        let at = At::Tag(tag.clone());
        let Some(manifest) = self.from.manifest(repository, &at).await? else {
            return Ok(());
        };
        for blob in manifest.blobs() {
            self.blob(repository, &blob).await?;
        }
        match self.to.manifest(repository, &at).await? {
            Some(there) if there.digest == manifest.digest => Ok(()),
            Some(_) => trust::add(self.to, repository, of, manifest.layers).await,
            None => {
                let to = self.to;
                to.push_manifest(repository, Some(&tag), &manifest).await
            }
        }
    }

    async fn blob(&mut self, repository: &Repository, blob: &Blob) -> Got<()> {
        let limit = Limits::default().blob;
        if limit < blob.size {
            return Err(RegistryError::TooLarge { limit });
        }
        let from = Remote {
            registry: self.from,
            repository,
            blob,
        };
        match self.work {
            Some(_) if blob.size > KEPT_ASIDE => {
                let whole = Whole {
                    digest: blob.digest,
                    size: Some(blob.size),
                    limit: blob.size,
                };
                self.by_way_of_disk(repository, &whole, &from).await?;
                Ok(())
            }
            _ => self.put(repository, blob, &from).await,
        }
    }

    /// Carries over a content by way of the work folder. Answers what it is in the new place.
    pub async fn by_way_of_disk(
        &mut self,
        repository: &Repository,
        whole: &Whole,
        from: &dyn Origin,
    ) -> Got<Blob> {
        let digest = whole.digest;
        if let Some(size) = whole.size
            && self.to.has(repository, &digest).await?
        {
            self.was_there(digest);
            return Ok(Blob { digest, size });
        }
        let work = self.work.unwrap_or(Path::new("."));
        let path = work.join(format!("{}.part", digest.hex()));
        let mut part = Part::take(path.clone()).await?;
        let size = part.fill(whole, from).await?;
        let blob = Blob { digest, size };
        self.put(repository, &blob, &OnDisk(path.clone())).await?;
        match tokio::fs::remove_file(&path).await {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(blob),
        }
    }

    /// Puts a content into the new place, unless it is there.
    pub async fn put(
        &mut self,
        repository: &Repository,
        blob: &Blob,
        from: &dyn Origin,
    ) -> Got<()> {
        if self.to.has(repository, &blob.digest).await? {
            self.was_there(blob.digest);
            return Ok(());
        }
        self.to.push_blob(repository, blob, from).await?;
        self.seen.insert(blob.digest);
        self.copied.blobs += 1;
        self.copied.bytes += blob.size;
        Ok(())
    }

    fn was_there(&mut self, digest: Digest) {
        if self.seen.insert(digest) {
            self.copied.present += 1;
        }
    }
}
