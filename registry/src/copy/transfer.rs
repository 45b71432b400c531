//! One transfer from a registry to another.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use crate::digest::Digest;
use crate::error::{Class, Got, RegistryError};
use crate::layout::part::{Part, Whole};
use crate::limits::Limits;
use crate::source::{At, Blob, Manifest, Origin, Registry, Repository, Tag};
use crate::trust::{self, SigningKey};

use super::origin::{OnDisk, Remote};
use super::{Copied, MoveError, Tagged, finding_of};

/// What is larger is kept in the work folder until it is whole, so that it is carried on after a break.
const KEPT_ASIDE: u64 = 8 * 1024 * 1024;

/// A content that lies in the work folder. Nobody else has it until it was carried over.
#[derive(Debug)]
pub(super) struct Kept {
    part: Part,
    blob: Blob,
}

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
    /// Where files lay that could not be had because nobody answers there, or not to the end, and what was wrong. Nothing
    /// more is asked for there: each file would be waited for as long again.
    pub given_up: HashMap<url::Origin, Arc<RegistryError>>,
    /// The images of the revisions so far, and how long they are.
    pub images: HashMap<Digest, u64>,
}

impl<'a> Transfer<'a> {
    /// One that has carried nothing yet, has no folder for what was begun, and signs nothing.
    pub fn between(from: &'a dyn Registry, to: &'a dyn Registry) -> Self {
        Self {
            from,
            to,
            work: None,
            key: None,
            copied: Copied::default(),
            seen: HashSet::new(),
            given_up: HashMap::new(),
            images: HashMap::new(),
        }
    }
}

impl Transfer<'_> {
    /// Carries over an artefact with its signatures, but not its tag, which it answers.
    pub async fn artefact(
        &mut self,
        repository: &Repository,
        tag: &Tag,
        manifest: &Manifest,
    ) -> Result<Tagged, MoveError> {
        self.contents(repository, manifest).await?;
        self.to
            .push_manifest(repository, None, manifest)
            .await
            .map_err(MoveError::about(format!("{repository}:{tag}")))?;
        self.signatures(repository, &manifest.digest).await?;
        self.sign(repository, tag, manifest).await
    }

    /// Signs what is there already, if there is a key. Answers its tag.
    pub async fn sign(
        &self,
        repository: &Repository,
        tag: &Tag,
        manifest: &Manifest,
    ) -> Result<Tagged, MoveError> {
        let digest = manifest.digest;
        if let Some(key) = self.key {
            let what = format!("the signature of {repository}:{tag}");
            key.sign(self.to, repository, &digest, tag.as_str())
                .await
                .map_err(MoveError::about(what))?;
        }
        Ok(Tagged {
            repository: repository.clone(),
            tag: tag.clone(),
            digest,
        })
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
                if self.to.has(repository, &blob.digest).await? {
                    self.was_there(blob.digest);
                    return Ok(());
                }
                let part = self.part(&blob.digest).await?;
                // Whoever had the part while we waited for it may have carried it over.
                match self.to.has(repository, &blob.digest).await {
                    Ok(false) => {}
                    Ok(true) => {
                        self.was_there(blob.digest);
                        return part.discard().await;
                    }
                    Err(error) => {
                        part.leave().await;
                        return Err(error);
                    }
                }
                let kept = filled(part, &whole, &from).await?;
                self.carry(repository, kept).await.map(drop)
            }
            _ => self.put(repository, blob, &from).await,
        }
    }

    /// Brings a content into the work folder.
    pub async fn keep(&self, whole: &Whole, from: &dyn Origin) -> Got<Kept> {
        let part = self.part(&whole.digest).await?;
        filled(part, whole, from).await
    }

    /// What is in the work folder of a content. Another one who is filling it is waited for.
    async fn part(&self, digest: &Digest) -> Got<Part> {
        let work = self.work.unwrap_or(Path::new("."));
        Part::take(work.join(format!("{}.part", digest.hex()))).await
    }

    /// Carries a content over from the work folder, where it is removed then. Answers what it is in the new place.
    pub async fn carry(&mut self, repository: &Repository, kept: Kept) -> Got<Blob> {
        let Kept { part, blob } = kept;
        let from = OnDisk(part.path().to_owned());
        self.put(repository, &blob, &from).await?;
        part.discard().await?;
        Ok(blob)
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

/// Fills a part. What was brought stays if it breaks off.
async fn filled(mut part: Part, whole: &Whole, from: &dyn Origin) -> Got<Kept> {
    let digest = whole.digest;
    match part.fill(whole, from).await {
        Ok(size) => {
            let blob = Blob { digest, size };
            Ok(Kept { part, blob })
        }
        Err(error) => {
            part.leave().await;
            Err(error)
        }
    }
}
