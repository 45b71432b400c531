//! Where the files of a profile lie: in the artefact beside it, in the folder beside the registry, or anywhere else.

use std::collections::HashMap;

use evenkeel_domain::os::Sha256;
use evenkeel_domain::os::catalogue::{File, FileRole, Trusted};
use evenkeel_registry::copy::{FILES_TYPE, files_of, finding_of, image_digest, title_of};
use evenkeel_registry::{
    At, Digest, Finding, FindingKind, Got, Layer, Manifest, Profile, RegistryError, Repository,
    Trust,
};
use url::Url;

use super::{Fetcher, Revision, counted, field_of, own};
use crate::sources::Place;

/// The longest place that is kept, in bytes.
const LONGEST_PLACE: usize = 1_500;

/// The artefact with the files of a revision.
#[derive(Debug, Default)]
struct Beside {
    repository: Option<Repository>,
    layers: Vec<Layer>,
    /// Whether documents in it count. An image has its digest in the profile.
    are_documents_trusted: bool,
}

/// A file that a profile names.
#[derive(Clone, Copy, Debug)]
struct Named<'a> {
    role: FileRole,
    url: &'a str,
    title: &'a str,
    /// Whether another file of the profile has this name too, so that the artefact cannot tell them apart.
    is_double: bool,
}

impl Fetcher<'_> {
    /// Where the files lie that a profile names. What is wrong with one is a finding, and the others are there.
    pub(super) async fn files(
        &self,
        revision: &Revision,
        profile: &Profile,
        trust: Trusted,
        findings: &mut Vec<Finding>,
    ) -> Got<Vec<File>> {
        let urls = [
            (FileRole::Image, &profile.spec.image_url),
            (FileRole::Packages, &profile.manifest_url),
            (FileRole::ExistingCves, &profile.spec.existing_cves_url),
            (FileRole::FixedCves, &profile.spec.fixed_cves_url),
        ];
        let titled = urls.map(|(role, url)| (role, url.as_str(), title_of(url)));
        if titled.iter().all(|(.., title)| title.is_empty()) {
            return Ok(Vec::new());
        }
        let beside = self.beside(revision, trust, findings).await?;
        let digest = image_digest(&profile.spec.sha256);
        let mut files = Vec::new();
        let mut first: HashMap<&str, &str> = HashMap::new();
        for (role, url, title) in &titled {
            if title.is_empty() {
                continue;
            }
            let named = Named {
                role: *role,
                url,
                title,
                is_double: *first.entry(title).or_insert(url) != *url,
            };
            match self.file(&named, &beside, digest) {
                Ok((file, finding)) => {
                    files.extend(file);
                    findings.extend(finding);
                }
                Err(finding) => findings.push(finding),
            }
        }
        Ok(files)
    }

    /// The artefact beside a profile, if there is one that counts.
    async fn beside(
        &self,
        revision: &Revision,
        trust: Trusted,
        findings: &mut Vec<Finding>,
    ) -> Got<Beside> {
        let Ok(repository) = files_of(&revision.repository) else {
            return Ok(Beside::default());
        };
        let at = At::Tag(revision.tag.clone());
        let asked = self.0.registry.manifest(&repository, &at).await;
        let manifest = match counted(asked) {
            Ok(Some(manifest)) => manifest,
            // Some registries let nobody look whether there is such a repository.
            Ok(None) | Err(RegistryError::Denied) => return Ok(Beside::default()),
            Err(error) => {
                let finding = own(error)?;
                findings.push(of_the_files(finding));
                return Ok(Beside::default());
            }
        };
        if manifest.artifact_type.as_deref() != Some(FILES_TYPE) {
            return Ok(Beside::default());
        }
        let are_documents_trusted = self
            .are_documents_trusted(revision, &repository, &manifest, (trust, findings))
            .await?;
        Ok(Beside {
            repository: Some(repository),
            layers: manifest.layers,
            are_documents_trusted,
        })
    }

    /// Whether the documents in an artefact of files may be taken. Where profiles must be signed, so must they.
    async fn are_documents_trusted(
        &self,
        revision: &Revision,
        repository: &Repository,
        manifest: &Manifest,
        (trust, findings): (Trusted, &mut Vec<Finding>),
    ) -> Got<bool> {
        let must = self.0.trust == Trust::Require;
        // Of a profile that nobody signed it is told already.
        if !must && trust != Trusted::Good {
            return Ok(true);
        }
        let judged = self.verdict(repository, &revision.tag, manifest).await?;
        findings.extend(judged.finding.map(of_the_files));
        Ok(!must || judged.trust == Trusted::Good)
    }

    /// Where one file lies, and what is odd about it. None if there is nothing that could be fetched.
    fn file(
        self,
        named: &Named<'_>,
        beside: &Beside,
        image: Option<Digest>,
    ) -> Result<(Option<File>, Option<Finding>), Finding> {
        let role = named.role;
        let (layer, finding) = match beside.layer(named, image) {
            Ok(layer) => (layer, None),
            Err(finding) => (None, Some(finding)),
        };
        let image = image.filter(|_| role == FileRole::Image);
        let (place, digest, size) = match layer {
            Some((repository, layer)) => {
                let digest = layer.blob.digest;
                let place = Place::Blob(repository.clone(), digest);
                (place, Some(digest), Some(layer.blob.size))
            }
            None => match self.address(named.url)? {
                Some(url) => (Place::Web(url), image, None),
                None if role == FileRole::Image => return Ok((None, finding)),
                None => {
                    let why =
                        "it lies neither in the registry nor, as files_url is not set, beside it";
                    return Err(about(role, FindingKind::NotThere, why));
                }
            },
        };
        let place = place.to_string();
        if place.len() > LONGEST_PLACE {
            let why = format!("its address is longer than {LONGEST_PLACE} bytes");
            return Err(about(role, FindingKind::TooLarge, &why));
        }
        let sha256 = digest.and_then(|digest| Sha256::parse("sha256", &digest.hex()).ok());
        let file = File {
            role,
            path: named.title.to_owned(),
            place,
            sha256,
            size,
        };
        Ok((Some(file), finding))
    }

    /// How a file is had by web; none if it lies beside the registry and nobody said where.
    fn address(self, url: &str) -> Result<Option<Url>, Finding> {
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

impl Beside {
    /// The content that a file is here; none if it is not here, or does not count.
    fn layer(
        &self,
        named: &Named<'_>,
        image: Option<Digest>,
    ) -> Result<Option<(&Repository, &Layer)>, Finding> {
        let Some(repository) = &self.repository else {
            return Ok(None);
        };
        let mut layers = self.layers.iter();
        let layer = layers.find(|layer| layer.title.as_deref() == Some(named.title));
        let Some(layer) = layer.filter(|_| !named.is_double) else {
            return Ok(None);
        };
        if named.role != FileRole::Image {
            let counts = self.are_documents_trusted;
            return Ok(counts.then_some((repository, layer)));
        }
        match image {
            // Nobody could tell whether it is the image.
            None => Ok(None),
            Some(said) if said == layer.blob.digest => Ok(Some((repository, layer))),
            Some(said) => {
                let found = layer.blob.digest;
                let error = RegistryError::WrongDigest { said, found };
                Err(Finding {
                    field: Some(field_of(named.role).to_owned()),
                    ..finding_of(&error)
                })
            }
        }
    }
}

fn about(role: FileRole, kind: FindingKind, why: &str) -> Finding {
    Finding::about(kind, field_of(role), why)
}

/// Says of a finding that it is about the artefact with the files.
fn of_the_files(finding: Finding) -> Finding {
    Finding {
        field: Some("files".to_owned()),
        ..finding
    }
}
