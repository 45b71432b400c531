//! One transfer from a registry to another.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::digest::Digest;
use crate::error::{Class, Got, RegistryError};
use crate::layout::part::{Part, Whole, blocking, replace};
use crate::limits::Limits;
use crate::source::{At, Blob, Manifest, Origin, Registry, Repository, Tag, Tagged};
use crate::trust::{self, SigningKey};

use super::origin::{OnDisk, Remote};
use super::{Copied, MoveError, finding_of, give};

/// What is larger is kept in the work folder until it is whole, so that it is carried on after a break.
const KEPT_ASIDE: u64 = 8 * 1024 * 1024;

/// A content that lies in the work folder. Nobody else has it until it was carried over.
#[derive(Debug)]
pub(super) struct Kept {
    part: Part,
    blob: Blob,
}

impl Kept {
    /// What it is.
    pub fn blob(&self) -> &Blob {
        &self.blob
    }
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
        let signatures = self.signatures(repository, &manifest.digest).await?;
        give(self.to, signatures.as_slice()).await?;
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

    /// Carries over the signatures of an artefact. Others that are in the new place stay. Answers the tag that they still
    /// want; none if they have it.
    pub async fn signatures(
        &mut self,
        repository: &Repository,
        of: &Digest,
    ) -> Result<Option<Tagged>, MoveError> {
        let name = format!("the signatures of {repository}@{of}");
        match self.carry_signatures(repository, of).await {
            Err(error) if error.class() == Class::Lasting => {
                self.copied.findings.push((name, finding_of(&error)));
                Ok(None)
            }
            carried => carried.map_err(MoveError::about(name)),
        }
    }

    async fn carry_signatures(
        &mut self,
        repository: &Repository,
        of: &Digest,
    ) -> Got<Option<Tagged>> {
        let tag = trust::signature_tag(of)?;
        let at = At::Tag(tag.clone());
        let Some(manifest) = self.from.manifest(repository, &at).await? else {
            return Ok(None);
        };
        for blob in manifest.blobs() {
            self.blob(repository, &blob).await?;
        }
        match self.to.manifest(repository, &at).await? {
            Some(there) if there.digest == manifest.digest => Ok(None),
            Some(_) => {
                trust::add(self.to, repository, of, manifest.layers).await?;
                Ok(None)
            }
            None => {
                let to = self.to;
                to.push_manifest(repository, None, &manifest).await?;
                Ok(Some(Tagged {
                    repository: repository.clone(),
                    tag,
                    digest: manifest.digest,
                }))
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

    /// Notes in the work folder how long an image is. Its part goes when it is in the new place, and no tag leads to it there
    /// until all is: whoever carries on would know its digest alone.
    pub async fn note(&self, image: &Blob) -> Got<()> {
        let (note, size) = (self.noted_at(&image.digest), image.size.to_string());
        blocking(move || replace(&note, size.as_bytes())).await
    }

    /// How long an image is of a revision so far, or one that another mirror carried over and gave no tag; none if nobody
    /// said.
    pub async fn length(&self, image: &Digest) -> Option<u64> {
        if let Some(&size) = self.images.get(image) {
            return Some(size);
        }
        let note = tokio::fs::read_to_string(self.noted_at(image)).await;
        note.ok()?.parse().ok()
    }

    /// Removes the notes of images to which tags lead.
    pub async fn forget_notes(&self) {
        for image in self.images.keys() {
            // Almost none has one, and one that stays does no harm.
            let _ = tokio::fs::remove_file(self.noted_at(image)).await;
        }
    }

    fn noted_at(&self, image: &Digest) -> PathBuf {
        let work = self.work.unwrap_or(Path::new("."));
        work.join(format!("{}.size", image.hex()))
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
