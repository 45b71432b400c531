//! The files of an operating system: its image, the list of its packages, the documents about vulnerabilities.
//!
//! In a registry they are an artefact of their own in the repository `<profile>/files`, one layer a file, named as the path
//! of its address in the profile.

use evenkeel_domain::os::Sha256;
use url::Url;

use crate::cves::cves;
use crate::digest::Digest;
use crate::error::{Class, Got, RegistryError, malformed};
use crate::finding::{Finding, FindingKind};
use crate::layout::part::Whole;
use crate::limits::Limits;
use crate::oci::web::{Fetched, Web};
use crate::packages::packages;
use crate::profile::{Profile, profile};
use crate::source::{At, Blob, EMPTY_CONFIG, Layer, Manifest, Repository};

use super::origin::OnWeb;
use super::transfer::Transfer;
use super::{MoveError, Planned, Upstream, finding_of, usable};

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

/// The files that a profile names, each once.
pub(crate) fn named(profile: &Profile) -> Vec<Named> {
    let urls = [
        (Role::Image, &profile.spec.image_url),
        (Role::Packages, &profile.manifest_url),
        (Role::Cves, &profile.spec.existing_cves_url),
        (Role::Cves, &profile.spec.fixed_cves_url),
    ];
    let mut all: Vec<Named> = Vec::new();
    for (role, url) in urls {
        let title = title_of(url);
        if !title.is_empty() && all.iter().all(|named| named.title != title) {
            let url = url.clone();
            all.push(Named { role, url, title });
        }
    }
    all
}

/// The name of a file in the artefact: the path of its address, without the host and a slash before it.
pub fn title_of(url: &str) -> String {
    match Url::parse(url) {
        Ok(url) => url.path().trim_start_matches('/').to_owned(),
        Err(_) => url.trim_start_matches('/').to_owned(),
    }
}

/// The digest that a profile says of its image.
pub(crate) fn image_digest(sha256: &Sha256) -> Option<Digest> {
    if *sha256 == Sha256::NONE {
        return None;
    }
    Digest::from_hex(sha256.as_str()).ok()
}

/// The repository of a profile's files.
pub(crate) fn files_of(repository: &Repository) -> Got<Repository> {
    format!("{repository}/files").parse()
}

impl Transfer<'_> {
    /// Carries over the files of a profile, but not their tag. None if there are none.
    pub async fn files(
        &mut self,
        from: &Upstream<'_>,
        images: bool,
        one: &Planned,
    ) -> Result<Option<(Repository, Manifest)>, MoveError> {
        let about = MoveError::about(&one.repository);
        let repository = files_of(&one.repository).map_err(about)?;
        let at = At::Tag(one.tag.clone());
        let there = match self.from.manifest(&repository, &at).await {
            // Some registries do not let anybody look whether there is such a repository.
            Err(RegistryError::Denied) => None,
            got => usable(got, &repository, Some(&one.tag), &mut self.copied)?.flatten(),
        };
        let profile = self.profile(one).await?;
        let mut layers = there.as_ref().map_or_else(Vec::new, |m| m.layers.clone());
        if let Some(profile) = &profile {
            let image = title_of(&profile.spec.image_url);
            let digest = image_digest(&profile.spec.sha256);
            layers.retain(|layer| {
                let is_image = layer.title.as_ref() == Some(&image);
                let is_right = digest.is_none_or(|digest| digest == layer.blob.digest);
                !is_image || (images && is_right)
            });
            for named in named(profile) {
                let is_there = layers
                    .iter()
                    .any(|l| l.title.as_ref() == Some(&named.title));
                if is_there || (named.role == Role::Image && !images) {
                    continue;
                }
                let fetched = self.fetched(from, &repository, &named, digest).await;
                match fetched {
                    Ok(blob) => layers.push(Layer::file(blob, FILE_TYPE, &named.title)),
                    Err(error) => self.left_out(one, &named, error)?,
                }
            }
        }
        let whole = there.filter(|manifest| manifest.layers == layers);
        self.push_files(repository, one, layers, whole).await
    }

    async fn push_files(
        &mut self,
        repository: Repository,
        one: &Planned,
        layers: Vec<Layer>,
        whole: Option<Manifest>,
    ) -> Result<Option<(Repository, Manifest)>, MoveError> {
        if let Some(manifest) = whole {
            self.artefact(&repository, &one.tag, &manifest).await?;
            return Ok(Some((repository, manifest)));
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
        self.sign(&repository, &one.tag, &manifest).await?;
        Ok(Some((repository, manifest)))
    }

    /// What the profile says; none and a finding if it cannot be read.
    async fn profile(&mut self, one: &Planned) -> Result<Option<Profile>, MoveError> {
        let name = format!("{}:{}", one.repository, one.tag);
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
                self.copied.findings.push((name, finding));
                Ok(None)
            }
        }
    }

    async fn fetched(
        &mut self,
        from: &Upstream<'_>,
        repository: &Repository,
        named: &Named,
        digest: Option<Digest>,
    ) -> Got<Blob> {
        let (Some(web), Some(url)) = (from.web, address(from, &named.url)?) else {
            return Err(RegistryError::NotThere);
        };
        if named.role != Role::Image {
            return self.document(web, &url, repository, named.role).await;
        }
        // Without a digest nobody could tell later whether it is the image.
        let digest =
            digest.ok_or_else(|| malformed("profile", "it says no digest of its image"))?;
        let whole = Whole {
            digest,
            size: None,
            limit: named.role.limit(&Limits::default()),
        };
        let origin = OnWeb { web, url: &url };
        self.by_way_of_disk(repository, &whole, &origin).await
    }

    async fn document(
        &mut self,
        web: &Web,
        url: &Url,
        repository: &Repository,
        role: Role,
    ) -> Got<Blob> {
        let limit = role.limit(&Limits::default());
        let Fetched::New { bytes, .. } = web.fetch(url, None, limit).await? else {
            return Err(malformed("file", "the server says that it is as before"));
        };
        role.check(&bytes)
            .map_err(|finding| malformed("file", finding.to_string()))?;
        let blob = Blob::of(&bytes);
        self.put(repository, &blob, &bytes).await?;
        Ok(blob)
    }

    /// A file that cannot be had is left out; one that may be had in a moment is an error.
    fn left_out(
        &mut self,
        one: &Planned,
        named: &Named,
        error: RegistryError,
    ) -> Result<(), MoveError> {
        if error.class() != Class::Lasting {
            return Err(MoveError::about(&named.url)(error));
        }
        let finding = Finding {
            field: Some(named.title.clone()),
            ..finding_of(&error)
        };
        let name = format!("{}:{}", one.repository, one.tag);
        self.copied.findings.push((name, finding));
        Ok(())
    }
}

/// Where a file lies; none if that is beside the registry and nobody said where.
fn address(from: &Upstream<'_>, url: &str) -> Got<Option<Url>> {
    let read = match (Url::parse(url), from.files_url) {
        (Ok(url), _) => Ok(url),
        (Err(_), None) => return Ok(None),
        (Err(_), Some(base)) => {
            let base = base.as_str().trim_end_matches('/');
            Url::parse(&format!("{base}/{}", url.trim_start_matches('/')))
        }
    };
    let url = read.map_err(|error| malformed("address", error.to_string()))?;
    Ok(Some(url))
}
