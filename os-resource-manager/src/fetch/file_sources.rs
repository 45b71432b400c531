//! Resolves where the files of a profile are: in the files artifact, at `files_url`, or at any other URL.

use std::collections::HashMap;

use evenkeel_domain::os::Sha256;
use evenkeel_domain::os::catalogue::{CatalogFile, FileRole, SignatureStatus};
use evenkeel_registry::copy::{FILES_TYPE, file_title, files_repository, image_digest, to_finding};
use evenkeel_registry::{
    Digest, Finding, FindingKind, Layer, Manifest, ManifestRef, Profile, RegistryError,
    RegistryResult, Repository, SignaturePolicy,
};
use url::Url;

use super::{Fetcher, Revision, count_outcome, finding_or_error, profile_field};
use crate::sources::FileLocation;

/// Maximum length of a stored file source, in bytes.
const MAX_SOURCE_BYTES: usize = 1_500;

/// The artifact with the files of a revision.
#[derive(Debug, Default)]
struct FilesArtifact {
    repository: Option<Repository>,
    layers: Vec<Layer>,
    /// Whether its documents may be used. The image needs no signature here: the profile has its digest.
    are_documents_trusted: bool,
}

/// A file that a profile names.
#[derive(Clone, Copy, Debug)]
struct NamedFile<'a> {
    role: FileRole,
    url: &'a str,
    title: &'a str,
    /// Whether another file of the profile has the same name, so that the artifact cannot distinguish them.
    is_ambiguous: bool,
}

impl Fetcher<'_> {
    /// Resolves the files of a profile. A problem of one file is a finding and does not affect the others.
    pub(super) async fn resolve_files(
        &self,
        revision: &Revision,
        profile: &Profile,
        trust: SignatureStatus,
        findings: &mut Vec<Finding>,
    ) -> RegistryResult<Vec<CatalogFile>> {
        let urls = [
            (FileRole::Image, &profile.spec.image_url),
            (FileRole::Packages, &profile.manifest_url),
            (FileRole::ExistingCves, &profile.spec.existing_cves_url),
            (FileRole::FixedCves, &profile.spec.fixed_cves_url),
        ];
        let titled = urls.map(|(role, url)| (role, url.as_str(), file_title(url)));
        if titled.iter().all(|(.., title)| title.is_empty()) {
            return Ok(Vec::new());
        }
        let artifact = self.fetch_files_artifact(revision, trust, findings).await?;
        let digest = image_digest(&profile.spec.sha256);
        let mut files = Vec::new();
        let mut first: HashMap<&str, &str> = HashMap::new();
        for (role, url, title) in &titled {
            if title.is_empty() {
                continue;
            }
            let named_file = NamedFile {
                role: *role,
                url,
                title,
                is_ambiguous: *first.entry(title).or_insert(url) != *url,
            };
            match self.resolve_file(&named_file, &artifact, digest) {
                Ok((file, finding)) => {
                    files.extend(file);
                    findings.extend(finding);
                }
                Err(finding) => findings.push(finding),
            }
        }
        Ok(files)
    }

    /// The files artifact of a profile, if there is a usable one.
    async fn fetch_files_artifact(
        &self,
        revision: &Revision,
        trust: SignatureStatus,
        findings: &mut Vec<Finding>,
    ) -> RegistryResult<FilesArtifact> {
        let Ok(repository) = files_repository(&revision.repository) else {
            return Ok(FilesArtifact::default());
        };
        let at = ManifestRef::Tag(revision.tag.clone());
        let response = self.0.registry.manifest(&repository, &at).await;
        let manifest = match count_outcome(response) {
            Ok(Some(manifest)) => manifest,
            // Some registries deny access to repositories that do not exist.
            Ok(None) | Err(RegistryError::Denied) => return Ok(FilesArtifact::default()),
            Err(error) => {
                let finding = finding_or_error(error)?;
                findings.push(about_files_artifact(finding));
                return Ok(FilesArtifact::default());
            }
        };
        if manifest.artifact_type.as_deref() != Some(FILES_TYPE) {
            return Ok(FilesArtifact::default());
        }
        let are_documents_trusted = self
            .check_documents_trusted(revision, &repository, &manifest, (trust, findings))
            .await?;
        Ok(FilesArtifact {
            repository: Some(repository),
            layers: manifest.layers,
            are_documents_trusted,
        })
    }

    /// Whether the documents of a files artifact may be used. If profiles must be signed, so must they.
    async fn check_documents_trusted(
        &self,
        revision: &Revision,
        repository: &Repository,
        manifest: &Manifest,
        (trust, findings): (SignatureStatus, &mut Vec<Finding>),
    ) -> RegistryResult<bool> {
        let must = self.0.trust == SignaturePolicy::Require;
        // A missing signature of the profile is already reported.
        if !must && trust != SignatureStatus::Good {
            return Ok(true);
        }
        let check = self.verify_signature(repository, &revision.tag, manifest).await?;
        findings.extend(check.finding.map(about_files_artifact));
        Ok(!must || check.trust == SignatureStatus::Good)
    }

    /// Source of one file, and a finding about it. `None` if there is nothing to fetch.
    fn resolve_file(
        self,
        named_file: &NamedFile<'_>,
        artifact: &FilesArtifact,
        image: Option<Digest>,
    ) -> Result<(Option<CatalogFile>, Option<Finding>), Finding> {
        let role = named_file.role;
        let (layer, finding) = match artifact.find_layer(named_file, image) {
            Ok(layer) => (layer, None),
            Err(finding) => (None, Some(finding)),
        };
        let image = image.filter(|_| role == FileRole::Image);
        let (source, digest, size) = match layer {
            Some((repository, layer)) => {
                let digest = layer.blob.digest;
                let source = FileLocation::Blob(repository.clone(), digest);
                (source, Some(digest), Some(layer.blob.size))
            }
            None => match self.web_url(named_file.url)? {
                Some(url) => (FileLocation::Web(url), image, None),
                None if role == FileRole::Image => return Ok((None, finding)),
                None => {
                    let why = "it is not in the registry, and files_url is not set";
                    return Err(field_finding(role, FindingKind::NotThere, why));
                }
            },
        };
        let source = source.to_string();
        if source.len() > MAX_SOURCE_BYTES {
            let why = format!("its address is longer than {MAX_SOURCE_BYTES} bytes");
            return Err(field_finding(role, FindingKind::TooLarge, &why));
        }
        let sha256 = digest.and_then(|digest| Sha256::parse("sha256", &digest.hex()).ok());
        let file = CatalogFile { role, path: named_file.title.to_owned(), source, sha256, size };
        Ok((Some(file), finding))
    }

    /// The web address of a file; `None` if the address is relative and `files_url` is not set.
    fn web_url(self, url: &str) -> Result<Option<Url>, Finding> {
        let read = match (Url::parse(url), &self.0.files_url) {
            (Ok(url), _) => Ok(url),
            (Err(_), None) => return Ok(None),
            (Err(_), Some(base)) => {
                let base = base.as_str().trim_end_matches('/');
                Url::parse(&format!("{base}/{}", url.trim_start_matches('/')))
            }
        };
        let bad = |error: url::ParseError| {
            Finding::new(FindingKind::AddressNotAllowed, format!("{url:?}: {error}"))
        };
        read.map(Some).map_err(bad)
    }
}

impl FilesArtifact {
    /// The layer of a file; `None` if the artifact does not have it, or if it may not be used.
    fn find_layer(
        &self,
        named_file: &NamedFile<'_>,
        image: Option<Digest>,
    ) -> Result<Option<(&Repository, &Layer)>, Finding> {
        let Some(repository) = &self.repository else {
            return Ok(None);
        };
        let mut layers = self.layers.iter();
        let layer = layers.find(|layer| layer.title.as_deref() == Some(named_file.title));
        let Some(layer) = layer.filter(|_| !named_file.is_ambiguous) else {
            return Ok(None);
        };
        if named_file.role != FileRole::Image {
            let counts = self.are_documents_trusted;
            return Ok(counts.then_some((repository, layer)));
        }
        match image {
            // Without a digest in the profile the image cannot be verified.
            None => Ok(None),
            Some(expected) if expected == layer.blob.digest => Ok(Some((repository, layer))),
            Some(expected) => {
                let actual = layer.blob.digest;
                let error = RegistryError::WrongDigest { expected, actual };
                Err(Finding {
                    field: Some(profile_field(named_file.role).to_owned()),
                    ..to_finding(&error)
                })
            }
        }
    }
}

fn field_finding(role: FileRole, kind: FindingKind, why: &str) -> Finding {
    Finding::about(kind, profile_field(role), why)
}

/// Marks a finding as one about the files artifact.
fn about_files_artifact(finding: Finding) -> Finding {
    Finding { field: Some("files".to_owned()), ..finding }
}
