//! The files of an operating system: image, package list and CVE documents.
//!
//! A registry holds them as a separate artifact in the repository `<profile>/files`. Each file is a
//! layer, and its title is the path of its URL in the profile.

use std::sync::Arc;

use evenkeel_domain::os::Sha256;
use evenkeel_fetch::{Digest, ExpectedContent, FillError};
use url::Url;

use crate::cves::read_cves;
use crate::error::{ErrorClass, RegistryError, RegistryResult, malformed};
use crate::finding::{Finding, FindingKind};
use crate::limits::Limits;
use crate::oci::web::{FetchResult, WebClient};
use crate::packages::read_packages;
use crate::profile::{Profile, read_profile};
use crate::source::{Blob, EMPTY_CONFIG, Layer, Manifest, ManifestRef, Repository, TagAssignment};

use super::transfer::{StagedBlob, Transfer};
use super::{CopyError, Revision, Upstream, or_finding, to_finding};

/// Artifact type of the artifact that holds files.
pub const FILES_TYPE: &str = "application/vnd.evenkeel.os.files.v1";

/// Media type of a file.
pub(crate) const FILE_TYPE: &str = "application/octet-stream";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// The image that is installed.
    Image,
    /// The package list of the image.
    Packages,
    /// A CVE document.
    Cves,
}

impl Role {
    /// Checks the content of a document. An image is identified by its digest instead.
    pub fn check_content(self, content: &[u8]) -> Result<(), Finding> {
        match self {
            Self::Image => Ok(()),
            Self::Packages => read_packages(content).map(|_| ()),
            Self::Cves => read_cves(content, None).map(|_| ()),
        }
    }

    pub const fn max_bytes(self, limits: &Limits) -> u64 {
        match self {
            Self::Image => limits.blob_bytes,
            Self::Packages => limits.packages_bytes,
            Self::Cves => limits.cves_bytes,
        }
    }
}

/// A file that a profile names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProfileFile {
    pub role: Role,
    /// URL as written in the profile.
    pub url: String,
    /// Title of the file in the artifact.
    pub title: String,
}

impl ProfileFile {
    fn matches_layer(&self, layer: &Layer) -> bool {
        layer.title.as_ref() == Some(&self.title)
    }

    /// Finding for a second file of the same title in one profile.
    pub fn ambiguous_finding(&self) -> Finding {
        let why = "another file of the profile has the same name, because their URLs differ only in host or query; \
                   change the path of one of them";
        Finding::about(FindingKind::Ambiguous, &self.title, why)
    }
}

/// Files of a profile, each once. The second list has those with the title of an earlier one.
pub(crate) fn collect_profile_files(profile: &Profile) -> (Vec<ProfileFile>, Vec<ProfileFile>) {
    let urls = [
        (Role::Image, &profile.spec.image_url),
        (Role::Packages, &profile.manifest_url),
        (Role::Cves, &profile.spec.existing_cves_url),
        (Role::Cves, &profile.spec.fixed_cves_url),
    ];
    let mut all: Vec<ProfileFile> = Vec::new();
    let mut doubles: Vec<ProfileFile> = Vec::new();
    for (role, url) in urls {
        let title = file_title(url);
        let mut existing = all.iter().chain(&doubles);
        if title.is_empty() || existing.any(|file| file.url == *url) {
            continue;
        }
        let is_double = all.iter().any(|file| file.title == title);
        let url = url.clone();
        let file = ProfileFile { role, url, title };
        if is_double {
            doubles.push(file);
        } else {
            all.push(file);
        }
    }
    (all, doubles)
}

/// Title of a file in the artifact: the path of its URL without the leading slash, or the host if
/// the URL has no path.
pub fn file_title(url: &str) -> String {
    match Url::parse(url) {
        Ok(url) => match url.path().trim_start_matches('/') {
            "" => url.host_str().unwrap_or_default().to_owned(),
            path => path.to_owned(),
        },
        Err(_) => url.trim_start_matches('/').to_owned(),
    }
}

/// Digest of the image of a profile; `None` if the profile has no digest.
pub fn image_digest(sha256: &Sha256) -> Option<Digest> {
    if *sha256 == Sha256::NONE {
        return None;
    }
    Digest::from_hex(sha256.as_str()).ok()
}

/// Repository for the files of the profile in `repository`.
///
/// # Errors
/// The name of the repository would be too long.
pub fn files_repository(repository: &Repository) -> RegistryResult<Repository> {
    format!("{repository}/files").parse()
}

/// Result of fetching a file from the web into the target.
#[derive(Debug)]
enum FetchedFile {
    Copied(Blob),
    /// The error concerns the file or its server.
    Unavailable(Arc<RegistryError>),
}

impl From<RegistryError> for FetchedFile {
    fn from(error: RegistryError) -> Self {
        Self::Unavailable(Arc::new(error))
    }
}

/// The revision whose files are copied, with its source and target.
#[derive(Clone, Copy, Debug)]
struct FilesContext<'a> {
    upstream: &'a Upstream<'a>,
    /// Repository of the files.
    repository: &'a Repository,
    revision: &'a Revision,
    with_images: bool,
}

/// Result of copying the files of a revision.
#[derive(Debug)]
pub(super) enum FilesResult {
    /// All files are in the target. Their artifact needs this tag; `None` if there are no files.
    Copied(Option<TagAssignment>),
    /// Fetching the image failed for a transient reason. The revision is not changed in the target.
    Deferred,
}

impl Transfer<'_> {
    /// Copies the files of a profile and returns the tag to set.
    pub async fn copy_files(
        &mut self,
        from: &Upstream<'_>,
        images: bool,
        rev: &Revision,
    ) -> Result<FilesResult, CopyError> {
        let about = CopyError::about(&rev.repository);
        let repository = files_repository(&rev.repository).map_err(about)?;
        let at = ManifestRef::Tag(rev.tag.clone());
        let files = match self.from.manifest(&repository, &at).await {
            // Some registries deny access to missing repositories, but this one may exist.
            Err(error @ RegistryError::Denied) => {
                let name = format!("{repository}:{}", rev.tag);
                self.report.findings.push((name, to_finding(&error)));
                None
            }
            got => or_finding(got, &repository, Some(&rev.tag), &mut self.report)?.flatten(),
        };
        let mut layers = files.as_ref().map_or_else(Vec::new, |m| m.layers.clone());
        if let Some(profile) = self.read_profile(rev).await? {
            let ctx = FilesContext {
                upstream: from,
                repository: &repository,
                revision: rev,
                with_images: images,
            };
            if !self.collect_layers(&ctx, &profile, &mut layers).await? {
                return Ok(FilesResult::Deferred);
            }
            let digest = image_digest(&profile.spec.sha256);
            let mut blobs = layers.iter().map(|layer| layer.blob);
            let image = blobs.find(|blob| Some(blob.digest) == digest);
            self.image_sizes.extend(image.map(|blob| (blob.digest, blob.size)));
        }
        let reused = files.filter(|manifest| manifest.layers == layers);
        let pushed = self.push_files(repository, rev, layers, reused).await;
        pushed.map(FilesResult::Copied)
    }

    /// Removes layers that do not belong to the profile and adds the missing ones. Returns false if
    /// the image could not be fetched for a transient reason, so the revision must not get its
    /// tags.
    async fn collect_layers(
        &mut self,
        ctx: &FilesContext<'_>,
        profile: &Profile,
        layers: &mut Vec<Layer>,
    ) -> Result<bool, CopyError> {
        let image = file_title(&profile.spec.image_url);
        let digest = image_digest(&profile.spec.sha256);
        layers.retain(|layer| {
            let is_image = layer.title.as_ref() == Some(&image);
            let is_right = digest.is_none_or(|digest| digest == layer.blob.digest);
            !is_image || (ctx.with_images && is_right)
        });
        let (all, doubles) = collect_profile_files(profile);
        let doubles =
            doubles.iter().map(|double| (ctx.revision.name(), double.ambiguous_finding()));
        self.report.findings.extend(doubles);
        let mut missing: Vec<&ProfileFile> = all.iter().collect();
        missing.retain(|file| {
            let is_needed = file.role != Role::Image || ctx.with_images;
            is_needed && !layers.iter().any(|layer| file.matches_layer(layer))
        });
        if missing.is_empty() {
            return Ok(true);
        }
        let earlier = self.previous_layers(ctx).await?;
        // A layer that is not a document of the profile is an image, maybe under an old name.
        let is_document = |layer: &Layer| {
            let mut documents = all.iter().filter(|file| file.role != Role::Image);
            documents.any(|file| file.matches_layer(layer))
        };
        let had_image = earlier.iter().any(|layer| !is_document(layer));
        for file in missing {
            let is_image = file.role == Role::Image;
            let mut previous = earlier.iter().find(|layer| file.matches_layer(layer));
            if let Some(layer) = previous
                && !self.target_has(ctx, &layer.blob.digest).await?
            {
                previous = None;
            }
            // The digest identifies an image, but a document may have changed since.
            let reusable =
                if is_image { self.find_image(ctx, previous, file, digest).await? } else { None };
            if let Some(layer) = reusable {
                layers.push(layer);
                continue;
            }
            let fetched = self.fetch_file(ctx, file, digest).await;
            match fetched.map_err(CopyError::about(&file.url))? {
                FetchedFile::Copied(blob) => {
                    layers.push(Layer::file(blob, FILE_TYPE, &file.title));
                }
                FetchedFile::Unavailable(error) => {
                    self.skip_file(ctx.revision, file, &error);
                    // Do not replace a complete revision by an incomplete one for a transient
                    // reason.
                    let passes = error.class() == ErrorClass::Transient;
                    if is_image && (passes || (had_image && error.is_retryable())) {
                        return Ok(false);
                    }
                    // An older version of a document is better than none.
                    layers.extend(previous.filter(|_| !is_image).cloned());
                }
            }
        }
        Ok(true)
    }

    /// Layers of the files artifact that the target has under the same tag.
    async fn previous_layers(&self, ctx: &FilesContext<'_>) -> Result<Vec<Layer>, CopyError> {
        let (repository, tag) = (ctx.repository, &ctx.revision.tag);
        match self.to.manifest(repository, &ManifestRef::Tag(tag.clone())).await {
            Ok(Some(manifest)) => Ok(manifest.layers),
            Ok(None) | Err(RegistryError::Denied) => Ok(Vec::new()),
            // An invalid manifest is about to be replaced.
            Err(error) if error.class() == ErrorClass::Permanent => Ok(Vec::new()),
            Err(error) => Err(CopyError::about(format!("{repository}:{tag}"))(error)),
        }
    }

    async fn target_has(&self, ctx: &FilesContext<'_>, digest: &Digest) -> Result<bool, CopyError> {
        let has = self.to.has_blob(ctx.repository, digest).await;
        has.map_err(CopyError::about(format!("{digest} of {}", ctx.repository)))
    }

    /// Layer for an image that the target already has: from the previous artifact of this tag, from
    /// another revision, or from a mirror run that was interrupted.
    async fn find_image(
        &self,
        ctx: &FilesContext<'_>,
        previous: Option<&Layer>,
        file: &ProfileFile,
        digest: Option<Digest>,
    ) -> Result<Option<Layer>, CopyError> {
        let Some(digest) = digest else {
            return Ok(None);
        };
        if let Some(layer) = previous.filter(|layer| layer.blob.digest == digest) {
            return Ok(Some(layer.clone()));
        }
        let Some(size) = self.image_size(&digest).await else {
            return Ok(None);
        };
        let layer = Layer::file(Blob { digest, size }, FILE_TYPE, &file.title);
        Ok(self.target_has(ctx, &digest).await?.then_some(layer))
    }

    async fn push_files(
        &mut self,
        repository: Repository,
        rev: &Revision,
        layers: Vec<Layer>,
        reused: Option<Manifest>,
    ) -> Result<Option<TagAssignment>, CopyError> {
        if let Some(manifest) = reused {
            let tagged = self.copy_artifact(&repository, &rev.tag, &manifest).await?;
            return Ok(Some(tagged));
        }
        if layers.is_empty() {
            return Ok(None);
        }
        let manifest = Manifest::artifact(FILES_TYPE, layers);
        let name = format!("{repository}:{}", rev.tag);
        let empty = bytes::Bytes::from_static(EMPTY_CONFIG);
        let to = self.to;
        self.push_if_missing(&repository, &Blob::new(&empty), &empty)
            .await
            .map_err(CopyError::about(&name))?;
        // Files that were fetched from the web are in the target already.
        self.copy_blobs(&repository, &manifest).await?;
        to.push_manifest(&repository, None, &manifest).await.map_err(CopyError::about(&name))?;
        self.sign(&repository, &rev.tag, &manifest).await.map(Some)
    }

    /// Reads the profile of a revision. Returns `None` and records a finding if it is invalid.
    async fn read_profile(&mut self, rev: &Revision) -> Result<Option<Profile>, CopyError> {
        let read = match rev.manifest.layers.first() {
            None => Err(Finding::new(FindingKind::NotAProfile, "it has no layer")),
            Some(layer) => {
                let limit = Limits::default().profile_bytes;
                let yaml = self.from.blob(&rev.repository, &layer.blob, limit).await;
                let report = &mut self.report;
                let Some(yaml) = or_finding(yaml, &rev.repository, Some(&rev.tag), report)? else {
                    return Ok(None);
                };
                match &layer.title {
                    None => Err(Finding::new(FindingKind::NoTitle, "its layer has no title")),
                    Some(title) => read_profile(title, &yaml),
                }
            }
        };
        match read {
            Ok(profile) => Ok(Some(profile)),
            Err(finding) => {
                self.report.findings.push((rev.name(), finding));
                Ok(None)
            }
        }
    }

    /// Fetches a file from the web into the target. An error concerns the target or the local disk.
    async fn fetch_file(
        &mut self,
        ctx: &FilesContext<'_>,
        file: &ProfileFile,
        digest: Option<Digest>,
    ) -> RegistryResult<FetchedFile> {
        let (web, url) = match resolve_url(ctx.upstream, &file.url) {
            Ok(Some(address)) => address,
            Ok(None) => return Ok(RegistryError::NotFound.into()),
            Err(error) => return Ok(error.into()),
        };
        let origin = url.origin();
        if let Some(error) = self.failed_origins.get(&origin) {
            return Ok(FetchedFile::Unavailable(Arc::clone(error)));
        }
        let fetched = match (file.role, digest) {
            (Role::Image, Some(digest)) => {
                self.fetch_image(web, &url, ctx.repository, digest).await?
            }
            // Without a digest, no later run could identify the image.
            (Role::Image, None) => malformed("profile", "it has no digest of its image").into(),
            (role, _) => self.fetch_doc(web, &url, ctx.repository, role).await?,
        };
        if let FetchedFile::Unavailable(error) = &fetched
            && matches!(
                **error,
                RegistryError::Unreachable(_) | RegistryError::Stalled | RegistryError::Busy { .. }
            )
        {
            self.failed_origins.insert(origin, Arc::clone(error));
        }
        Ok(fetched)
    }

    /// Fetches an image by way of the work folder. Resumes it as long as it makes progress.
    async fn fetch_image(
        &mut self,
        web: &WebClient,
        url: &Url,
        repository: &Repository,
        digest: Digest,
    ) -> RegistryResult<FetchedFile> {
        let expected = ExpectedContent {
            digest,
            size: None,
            limit: Role::Image.max_bytes(&Limits::default()),
        };
        let mut part = self.lock_part(&digest).await?;
        if let Err(error) = part.fill(&expected, |at| web.open(url, at, expected.size)).await {
            part.release().await;
            return match error {
                FillError::Disk(error) => Err(error.into()),
                error => Ok(RegistryError::from(error).into()),
            };
        }
        let blob = Blob { digest, size: part.length() };
        self.record_image_size(&blob).await?;
        self.push_staged(repository, StagedBlob { part, blob }).await.map(FetchedFile::Copied)
    }

    async fn fetch_doc(
        &mut self,
        web: &WebClient,
        url: &Url,
        repository: &Repository,
        role: Role,
    ) -> RegistryResult<FetchedFile> {
        let limit = role.max_bytes(&Limits::default());
        let bytes = match web.fetch(url, None, limit).await {
            Ok(FetchResult::New { bytes, .. }) => bytes,
            Ok(FetchResult::Unchanged) => {
                let why = "the server answered 304 Not Modified to an unconditional request";
                return Ok(malformed("file", why).into());
            }
            Err(error) => return Ok(error.into()),
        };
        if let Err(finding) = role.check_content(&bytes) {
            return Ok(malformed("file", finding.to_string()).into());
        }
        let blob = Blob::new(&bytes);
        self.push_if_missing(repository, &blob, &bytes).await?;
        Ok(FetchedFile::Copied(blob))
    }

    /// Records that a file is left out. It affects only its own revision.
    fn skip_file(&mut self, rev: &Revision, file: &ProfileFile, error: &RegistryError) {
        let finding = Finding { field: Some(file.title.clone()), ..to_finding(error) };
        self.report.findings.push((rev.name(), finding));
    }
}

/// URL of a file and the client for it; `None` if the file cannot be fetched.
fn resolve_url<'a>(from: &Upstream<'a>, url: &str) -> RegistryResult<Option<(&'a WebClient, Url)>> {
    let read = match (Url::parse(url), from.files_url) {
        (Ok(url), _) => Ok(url),
        (Err(_), None) => return Ok(None),
        (Err(_), Some(base)) => {
            let base = base.as_str().trim_end_matches('/');
            Url::parse(&format!("{base}/{}", url.trim_start_matches('/')))
        }
    };
    let url = read.map_err(|error| malformed("address", error.to_string()))?;
    Ok(from.web.map(|web| (web, url)))
}

#[cfg(test)]
mod tests;
