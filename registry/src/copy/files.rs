//! The files of an operating system: its image, the list of its packages, the documents about vulnerabilities.
//!
//! In a registry they are an artefact of their own in the repository `<profile>/files`, one layer a file, named as the path
//! of its address in the profile.

use std::sync::Arc;

use evenkeel_domain::os::Sha256;
use url::Url;

use crate::cves::cves;
use crate::digest::Digest;
use crate::error::{Class, Got, RegistryError, malformed};
use crate::finding::{Finding, FindingKind};
use crate::layout::part::Whole;
use crate::limits::Limits;
use crate::oci::PROGRESS;
use crate::oci::web::{Fetched, Web};
use crate::packages::packages;
use crate::profile::{Profile, profile};
use crate::source::{At, Blob, EMPTY_CONFIG, Layer, Manifest, Repository, Tagged};

use super::origin::OnWeb;
use super::transfer::Transfer;
use super::{MoveError, Revision, Upstream, finding_of, usable};

/// The kind of the artefact that holds files.
pub const FILES_TYPE: &str = "application/vnd.evenkeel.os.files.v1";

/// The form of a file.
pub(crate) const FILE_TYPE: &str = "application/octet-stream";

/// What a file is to an operating system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// What is installed.
    Image,
    /// The list of its packages.
    Packages,
    /// A document about vulnerabilities.
    Cves,
}

impl Role {
    /// Whether a document is what it should be. An image is known by its digest.
    pub fn check(self, content: &[u8]) -> Result<(), Finding> {
        match self {
            Self::Image => Ok(()),
            Self::Packages => packages(content).map(|_| ()),
            Self::Cves => cves(content, None).map(|_| ()),
        }
    }

    /// The largest file.
    pub const fn limit(self, limits: &Limits) -> u64 {
        match self {
            Self::Image => limits.blob,
            Self::Packages => limits.packages,
            Self::Cves => limits.cves,
        }
    }
}

/// A file that a profile names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Named {
    pub role: Role,
    /// As the profile writes it.
    pub url: String,
    /// Its name in the artefact.
    pub title: String,
}

impl Named {
    /// Whether a layer is called as it is.
    fn is(&self, layer: &Layer) -> bool {
        layer.title.as_ref() == Some(&self.title)
    }

    /// Says that another file of its profile has its name.
    pub fn ambiguous(&self) -> Finding {
        let why = "another file of the profile has this name too, for their addresses differ only by host or query; \
                   give one of them another path";
        Finding::about(FindingKind::Ambiguous, &self.title, why)
    }
}

/// The files that a profile names, each once; and those of them apart whose names others have before them.
pub(crate) fn named(profile: &Profile) -> (Vec<Named>, Vec<Named>) {
    let urls = [
        (Role::Image, &profile.spec.image_url),
        (Role::Packages, &profile.manifest_url),
        (Role::Cves, &profile.spec.existing_cves_url),
        (Role::Cves, &profile.spec.fixed_cves_url),
    ];
    let mut all: Vec<Named> = Vec::new();
    let mut doubles: Vec<Named> = Vec::new();
    for (role, url) in urls {
        let title = title_of(url);
        let mut known = all.iter().chain(&doubles);
        if title.is_empty() || known.any(|named| named.url == *url) {
            continue;
        }
        let is_double = all.iter().any(|named| named.title == title);
        let url = url.clone();
        let named = Named { role, url, title };
        if is_double {
            doubles.push(named);
        } else {
            all.push(named);
        }
    }
    (all, doubles)
}

/// The name of a file in the artefact: the path of its address, without the host and a slash before it. Of an address
/// that has no path it is the host.
pub fn title_of(url: &str) -> String {
    match Url::parse(url) {
        Ok(url) => match url.path().trim_start_matches('/') {
            "" => url.host_str().unwrap_or_default().to_owned(),
            path => path.to_owned(),
        },
        Err(_) => url.trim_start_matches('/').to_owned(),
    }
}

/// The digest that a profile says of its image; none if it says none.
pub fn image_digest(sha256: &Sha256) -> Option<Digest> {
    if *sha256 == Sha256::NONE {
        return None;
    }
    Digest::from_hex(sha256.as_str()).ok()
}

/// The repository of the files of a profile, whose repository is given.
///
/// # Errors
/// Its name would be too long.
pub fn files_of(repository: &Repository) -> Got<Repository> {
    format!("{repository}/files").parse()
}

/// Whose files are gathered, and where.
#[derive(Clone, Copy, Debug)]
struct Gathered<'a> {
    from: &'a Upstream<'a>,
    /// The repository of the files.
    repository: &'a Repository,
    one: &'a Revision,
    images: bool,
}

/// What became of the files of a revision.
#[derive(Debug)]
pub(super) enum Files {
    /// They are in the new place and want their tag; none if there are none.
    There(Option<Tagged>),
    /// The image may be had another time. Until then the revision is left as it is in the new place.
    Later,
}

impl Transfer<'_> {
    /// Carries over the files of a profile, but not their tag, which it answers.
    pub async fn files(
        &mut self,
        from: &Upstream<'_>,
        images: bool,
        one: &Revision,
    ) -> Result<Files, MoveError> {
        let about = MoveError::about(&one.repository);
        let repository = files_of(&one.repository).map_err(about)?;
        let at = At::Tag(one.tag.clone());
        let there = match self.from.manifest(&repository, &at).await {
            // Some registries do not let anybody look whether there is such a repository. It is told all the same, for
            // there may be one.
            Err(error @ RegistryError::Denied) => {
                let name = format!("{repository}:{}", one.tag);
                self.copied.findings.push((name, finding_of(&error)));
                None
            }
            got => usable(got, &repository, Some(&one.tag), &mut self.copied)?.flatten(),
        };
        let mut layers = there.as_ref().map_or_else(Vec::new, |m| m.layers.clone());
        if let Some(profile) = self.profile(one).await? {
            let of = Gathered {
                from,
                repository: &repository,
                one,
                images,
            };
            if !self.gather(&of, &profile, &mut layers).await? {
                return Ok(Files::Later);
            }
            let digest = image_digest(&profile.spec.sha256);
            let mut blobs = layers.iter().map(|layer| layer.blob);
            let image = blobs.find(|blob| Some(blob.digest) == digest);
            self.images
                .extend(image.map(|blob| (blob.digest, blob.size)));
        }
        let whole = there.filter(|manifest| manifest.layers == layers);
        let pushed = self.push_files(repository, one, layers, whole).await;
        pushed.map(Files::There)
    }

    /// Leaves out what does not belong to a profile, and adds what is missing. Answers whether the revision can have its
    /// tags: not if its image may be had another time.
    async fn gather(
        &mut self,
        of: &Gathered<'_>,
        profile: &Profile,
        layers: &mut Vec<Layer>,
    ) -> Result<bool, MoveError> {
        let image = title_of(&profile.spec.image_url);
        let digest = image_digest(&profile.spec.sha256);
        layers.retain(|layer| {
            let is_image = layer.title.as_ref() == Some(&image);
            let is_right = digest.is_none_or(|digest| digest == layer.blob.digest);
            !is_image || (of.images && is_right)
        });
        let (all, doubles) = named(profile);
        let doubles = doubles
            .iter()
            .map(|double| (of.one.name(), double.ambiguous()));
        self.copied.findings.extend(doubles);
        let mut missing: Vec<&Named> = all.iter().collect();
        missing.retain(|named| {
            let is_wanted = named.role != Role::Image || of.images;
            is_wanted && !layers.iter().any(|layer| named.is(layer))
        });
        if missing.is_empty() {
            return Ok(true);
        }
        let brought = self.brought_before(of).await?;
        // What is there and no document of the profile can only be an image, if under another name.
        let is_document = |layer: &Layer| {
            let mut documents = all.iter().filter(|named| named.role != Role::Image);
            documents.any(|named| named.is(layer))
        };
        let had_image = brought.iter().any(|layer| !is_document(layer));
        for named in missing {
            let is_image = named.role == Role::Image;
            let mut before = brought.iter().find(|layer| named.is(layer));
            if let Some(layer) = before
                && !self.is_there(of, &layer.blob.digest).await?
            {
                before = None;
            }
            // An image is what its digest says; a document may have become another one meanwhile.
            let known = if is_image {
                self.known_image(of, before, named, digest).await?
            } else {
                None
            };
            if let Some(layer) = known {
                layers.push(layer);
                continue;
            }
            let fetched = self.fetched(of, named, digest).await;
            match fetched.map_err(MoveError::about(&named.url))? {
                Ok(blob) => layers.push(Layer::file(blob, FILE_TYPE, &named.title)),
                Err(error) => {
                    self.left_out(of.one, named, &error);
                    // What is complete in the new place is not replaced by less because of what may pass.
                    let passes = error.class() == Class::Passing;
                    if is_image && (passes || (had_image && error.may_pass())) {
                        return Ok(false);
                    }
                    // What came another time is better than nothing.
                    layers.extend(before.filter(|_| !is_image).cloned());
                }
            }
        }
        Ok(true)
    }

    /// What was brought to the new place another time under the same tag, be it still there or not.
    async fn brought_before(&self, of: &Gathered<'_>) -> Result<Vec<Layer>, MoveError> {
        let (repository, tag) = (of.repository, &of.one.tag);
        match self.to.manifest(repository, &At::Tag(tag.clone())).await {
            Ok(Some(there)) => Ok(there.layers),
            Ok(None) | Err(RegistryError::Denied) => Ok(Vec::new()),
            // It is about to be replaced.
            Err(error) if error.class() == Class::Lasting => Ok(Vec::new()),
            Err(error) => Err(MoveError::about(format!("{repository}:{tag}"))(error)),
        }
    }

    /// Whether the new place has a content.
    async fn is_there(&self, of: &Gathered<'_>, digest: &Digest) -> Result<bool, MoveError> {
        let has = self.to.has(of.repository, digest).await;
        has.map_err(MoveError::about(format!("{digest} of {}", of.repository)))
    }

    /// The image, if it came `before`, or is known from another revision or a mirror that was killed, and lies in the new
    /// place.
    async fn known_image(
        &self,
        of: &Gathered<'_>,
        before: Option<&Layer>,
        named: &Named,
        digest: Option<Digest>,
    ) -> Result<Option<Layer>, MoveError> {
        let Some(digest) = digest else {
            return Ok(None);
        };
        if let Some(layer) = before.filter(|layer| layer.blob.digest == digest) {
            return Ok(Some(layer.clone()));
        }
        let Some(size) = self.length(&digest).await else {
            return Ok(None);
        };
        let layer = Layer::file(Blob { digest, size }, FILE_TYPE, &named.title);
        Ok(self.is_there(of, &digest).await?.then_some(layer))
    }

    async fn push_files(
        &mut self,
        repository: Repository,
        one: &Revision,
        layers: Vec<Layer>,
        whole: Option<Manifest>,
    ) -> Result<Option<Tagged>, MoveError> {
        if let Some(manifest) = whole {
            let tagged = self.artefact(&repository, &one.tag, &manifest).await?;
            return Ok(Some(tagged));
        }
        if layers.is_empty() {
            return Ok(None);
        }
        let manifest = Manifest::artifact(FILES_TYPE, layers);
        let name = format!("{repository}:{}", one.tag);
        let empty = bytes::Bytes::from_static(EMPTY_CONFIG);
        let to = self.to;
        self.put(&repository, &Blob::of(&empty), &empty)
            .await
            .map_err(MoveError::about(&name))?;
        // What came by web is there already.
        self.contents(&repository, &manifest).await?;
        to.push_manifest(&repository, None, &manifest)
            .await
            .map_err(MoveError::about(&name))?;
        self.sign(&repository, &one.tag, &manifest).await.map(Some)
    }

    /// What the profile says; none and a finding if it cannot be read.
    async fn profile(&mut self, one: &Revision) -> Result<Option<Profile>, MoveError> {
        let read = match one.manifest.layers.first() {
            None => Err(Finding::new(FindingKind::NotAProfile, "it has no layer")),
            Some(layer) => {
                let limit = Limits::default().profile;
                let yaml = self.from.small(&one.repository, &layer.blob, limit).await;
                let found = &mut self.copied;
                let Some(yaml) = usable(yaml, &one.repository, Some(&one.tag), found)? else {
                    return Ok(None);
                };
                match &layer.title {
                    None => Err(Finding::new(FindingKind::NoTitle, "its layer has no title")),
                    Some(title) => profile(title, &yaml),
                }
            }
        };
        match read {
            Ok(profile) => Ok(Some(profile)),
            Err(finding) => {
                self.copied.findings.push((one.name(), finding));
                Ok(None)
            }
        }
    }

    /// Fetches a file by web. The inner error is the file's own, or that of where it lies: nobody gives it, or it is not
    /// what it should be. The outer one is of the new place or of this machine's disk.
    async fn fetched(
        &mut self,
        of: &Gathered<'_>,
        named: &Named,
        digest: Option<Digest>,
    ) -> Got<Result<Blob, Arc<RegistryError>>> {
        let (web, url) = match address(of.from, &named.url) {
            Ok(Some(address)) => address,
            Ok(None) => return Ok(Err(Arc::new(RegistryError::NotThere))),
            Err(error) => return Ok(Err(Arc::new(error))),
        };
        let origin = url.origin();
        if let Some(error) = self.given_up.get(&origin) {
            return Ok(Err(Arc::clone(error)));
        }
        let fetched = match (named.role, digest) {
            (Role::Image, Some(digest)) => self.image(web, &url, of.repository, digest).await?,
            // Nobody could tell later whether it is the image.
            (Role::Image, None) => Err(malformed("profile", "it says no digest of its image")),
            (role, _) => self.document(web, &url, of.repository, role).await?,
        };
        let error = match fetched {
            Ok(blob) => return Ok(Ok(blob)),
            Err(error) => Arc::new(error),
        };
        if matches!(
            *error,
            RegistryError::Unreachable(_) | RegistryError::Stalled | RegistryError::Busy { .. }
        ) {
            self.given_up.insert(origin, Arc::clone(&error));
        }
        Ok(Err(error))
    }

    /// Fetches an image by way of the work folder. What breaks off is taken up again as long as enough comes in between.
    async fn image(
        &mut self,
        web: &Web,
        url: &Url,
        repository: &Repository,
        digest: Digest,
    ) -> Got<Got<Blob>> {
        let whole = Whole {
            digest,
            size: None,
            limit: Role::Image.limit(&Limits::default()),
        };
        let (mut tries, mut came) = (web.tries(), 0);
        let kept = loop {
            let origin = OnWeb::new(web, url);
            let error = match self.keep(&whole, &origin).await {
                Ok(kept) => break kept,
                Err(error) => error,
            };
            if !origin.broke_off() {
                let is_its_own = origin.was_refused() || error.class() == Class::Lasting;
                return if is_its_own {
                    Ok(Err(error))
                } else {
                    Err(error)
                };
            }
            came += origin.came();
            if came >= PROGRESS {
                (tries, came) = (web.tries(), 0);
            }
            if let Err(error) = tries.pause(error).await {
                return Ok(Err(error));
            }
        };
        self.note(kept.blob()).await?;
        self.carry(repository, kept).await.map(Ok)
    }

    async fn document(
        &mut self,
        web: &Web,
        url: &Url,
        repository: &Repository,
        role: Role,
    ) -> Got<Got<Blob>> {
        let limit = role.limit(&Limits::default());
        let bytes = match web.fetch(url, None, limit).await {
            Ok(Fetched::New { bytes, .. }) => bytes,
            Ok(Fetched::Same) => {
                let why = "the server says that it is as before";
                return Ok(Err(malformed("file", why)));
            }
            Err(error) => return Ok(Err(error)),
        };
        if let Err(finding) = role.check(&bytes) {
            return Ok(Err(malformed("file", finding.to_string())));
        }
        let blob = Blob::of(&bytes);
        self.put(repository, &blob, &bytes).await?;
        Ok(Ok(blob))
    }

    /// Says that a file is left out. It is one of many, so whatever is wrong with it ends no more than its revision.
    fn left_out(&mut self, one: &Revision, named: &Named, error: &RegistryError) {
        let finding = Finding {
            field: Some(named.title.clone()),
            ..finding_of(error)
        };
        self.copied.findings.push((one.name(), finding));
    }
}

/// How a file is had; none if it lies beside the registry and nobody said where, or nothing is fetched by web.
fn address<'a>(from: &Upstream<'a>, url: &str) -> Got<Option<(&'a Web, Url)>> {
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
