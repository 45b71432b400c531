//! Fetches one tag of a registry: the artifact with the profile, its signature, and the locations of its files.
//!
//! A permanent problem of the artifact becomes a finding. Errors are returned only if they end the whole cycle, or if a
//! later attempt may succeed.

mod file_sources;

use evenkeel_domain::os::catalogue::{FileRole, SignatureStatus};
use evenkeel_registry::copy::to_finding;
use evenkeel_registry::publish::PROFILE_TYPE;
use evenkeel_registry::{
    ErrorClass, Finding, FindingKind, Layer, Limits, Manifest, ManifestRef, Profile, RegistryError,
    RegistryResult, Repository, SignaturePolicy, Tag, Verdict, read_profile,
};
use evenkeel_store::os_catalogue::Artifact;
use serde_json::{Value, json};

use crate::sources::Source;

/// Artifact type that tools set if none was given.
const UNKNOWN_ARTIFACT_TYPE: &str = "application/vnd.unknown.artifact.v1";

/// Maximum length of a stored file name, in bytes.
const MAX_TITLE_BYTES: usize = 255;

#[derive(Debug)]
pub(crate) struct Revision {
    pub repository: Repository,
    pub tag: Tag,
    /// Its stored state; `None` if it was never fetched.
    pub before: Option<Artifact>,
}

/// Result of fetching a revision.
#[derive(Debug, PartialEq)]
pub(crate) enum FetchedRevision {
    /// The same as the stored state.
    Unchanged(Artifact),
    /// Different from the stored state.
    Changed(Artifact),
    /// The tag was listed but no longer exists.
    Vanished,
}

/// Fetches revisions of one registry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fetcher<'a>(pub &'a Source);

/// Result of checking the signatures of an artifact.
#[derive(Debug)]
struct SignatureCheck {
    trust: SignatureStatus,
    signature: Option<Value>,
    finding: Option<Finding>,
}

/// The profile document of an artifact.
#[derive(Debug)]
struct ProfileDocument {
    title: String,
    text: String,
}

impl Fetcher<'_> {
    /// Fetches what a tag refers to.
    ///
    /// # Errors
    /// The registry as a whole is unavailable, or a later attempt may succeed.
    pub(crate) async fn fetch(&self, revision: &Revision) -> RegistryResult<FetchedRevision> {
        let at = ManifestRef::Tag(revision.tag.clone());
        let request = self.0.registry.manifest(&revision.repository, &at);
        let manifest = match count_outcome(request.await) {
            Ok(Some(manifest)) => manifest,
            Ok(None) => return Ok(FetchedRevision::Vanished),
            Err(error) => {
                return Ok(revision.compare(revision.unusable_artifact(&finding_or_error(error)?)));
            }
        };
        let mut findings = Vec::new();
        let document = self.fetch_document(revision, &manifest, &mut findings).await?;
        let parsed = document
            .as_ref()
            .map(|document| read_profile(&document.title, document.text.as_bytes()));
        let check = self.check_signature(revision, &manifest).await?;
        findings.extend(check.finding);
        let files = match parsed {
            Some(Ok(profile)) => {
                self.resolve_files(revision, &profile, check.trust, &mut findings).await?
            }
            Some(Err(finding)) => {
                findings.push(finding);
                Vec::new()
            }
            None => Vec::new(),
        };
        let text = std::str::from_utf8(&manifest.bytes).ok().filter(has_no_nul);
        let chain = document.as_ref().zip(check.signature);
        let signature = chain.map(|(document, signature)| with_chain(signature, text, document));
        let (title, document) = document.map(|it| (it.title, it.text)).unzip();
        Ok(revision.compare(Artifact {
            repository: revision.repository.to_string(),
            tag: revision.tag.to_string(),
            digest: *manifest.digest.bytes(),
            moved_from: revision.previous_digest(&manifest),
            title,
            manifest: text.map(str::to_owned),
            document,
            findings: findings.iter().map(finding_json).collect(),
            trust: check.trust,
            signature,
            files,
            gone_at: None,
        }))
    }

    /// The profile document; `None` and a finding if there is no usable one.
    async fn fetch_document(
        &self,
        revision: &Revision,
        manifest: &Manifest,
        findings: &mut Vec<Finding>,
    ) -> RegistryResult<Option<ProfileDocument>> {
        let (layer, title) = match profile_layer(manifest) {
            Ok(layer_and_title) => layer_and_title,
            Err(finding) => {
                findings.push(finding);
                return Ok(None);
            }
        };
        if manifest.layers.len() > 1 {
            let count = manifest.layers.len();
            let why = format!("the artefact has {count} layers; only the first one is used");
            findings.push(Finding::new(FindingKind::SeveralLayers, why));
        }
        let text = match revision.cached_text(manifest, title) {
            Some(text) => Some(text),
            None => self.fetch_text(revision, layer, findings).await?,
        };
        let Some(text) = text else {
            return Ok(None);
        };
        if let Ok(Profile { remarks, .. }) = read_profile(title, text.as_bytes()) {
            findings.extend(remarks);
        }
        Ok(Some(ProfileDocument { title: title.to_owned(), text }))
    }

    /// The text of a layer; `None` and a finding if it is not usable.
    async fn fetch_text(
        &self,
        revision: &Revision,
        layer: &Layer,
        findings: &mut Vec<Finding>,
    ) -> RegistryResult<Option<String>> {
        let limit = Limits::default().profile_bytes;
        let registry = &self.0.registry;
        let request = registry.blob(&revision.repository, &layer.blob, limit);
        let bytes = match count_outcome(request.await) {
            Ok(bytes) => bytes,
            Err(error) => {
                findings.push(finding_or_error(error)?);
                return Ok(None);
            }
        };
        let why = match String::from_utf8(bytes.into()) {
            Err(_) => "the profile is not UTF-8",
            Ok(text) if text.contains('\0') => "the profile contains a zero byte",
            Ok(text) => return Ok(Some(text)),
        };
        findings.push(Finding::new(FindingKind::Yaml, why));
        Ok(None)
    }

    /// Checks the signatures of a profile.
    async fn check_signature(
        &self,
        revision: &Revision,
        manifest: &Manifest,
    ) -> RegistryResult<SignatureCheck> {
        if self.0.trust == SignaturePolicy::Off {
            return Ok(SignatureCheck {
                trust: SignatureStatus::Unchecked,
                signature: None,
                finding: None,
            });
        }
        // Only a valid signature is reused: an unsigned artifact may be signed later, and a key may be removed.
        if let Some(signature) = revision.cached_signature(manifest)
            && self.0.has_key(signature)
        {
            return Ok(SignatureCheck {
                trust: SignatureStatus::Good,
                signature: Some(signature.clone()),
                finding: None,
            });
        }
        self.verify_signature(&revision.repository, &revision.tag, manifest).await
    }

    /// Verifies the signatures of an artifact with the current keys.
    async fn verify_signature(
        &self,
        repository: &Repository,
        tag: &Tag,
        manifest: &Manifest,
    ) -> RegistryResult<SignatureCheck> {
        let Source { registry, keys, .. } = self.0;
        let verdict = keys.verify(registry.as_ref(), repository, &manifest.digest, tag.as_str());
        let verdict = match count_outcome(verdict.await) {
            Ok(verdict) => verdict,
            // Signatures that cannot be read are treated as missing.
            Err(RegistryError::Denied) => Verdict::Unsigned,
            Err(error) => return Err(error),
        };
        let (trust, signature, finding) = match verdict {
            Verdict::Good(signature) => (SignatureStatus::Good, Some(json!(signature)), None),
            Verdict::Unsigned => {
                let finding = Finding::new(FindingKind::Unsigned, "it has no signature");
                (SignatureStatus::Unsigned, None, Some(finding))
            }
            Verdict::Bad(why) => {
                let finding = Finding::new(FindingKind::BadSignature, why);
                (SignatureStatus::Bad, None, Some(finding))
            }
        };
        Ok(SignatureCheck { trust, signature, finding })
    }
}

impl Revision {
    /// The stored text, if the artifact is still the same.
    fn cached_text(&self, manifest: &Manifest, title: &str) -> Option<String> {
        let before = self.before.as_ref()?;
        let is_same =
            before.digest == *manifest.digest.bytes() && before.title.as_deref() == Some(title);
        before.document.clone().filter(|_| is_same)
    }

    /// The digest that the tag had before it moved; `None` if it never moved, as far as is known.
    fn previous_digest(&self, manifest: &Manifest) -> Option<[u8; 32]> {
        let before = self.before.as_ref()?;
        let has_moved = before.digest != *manifest.digest.bytes() && before.manifest.is_some();
        has_moved.then_some(before.digest).or(before.moved_from)
    }

    /// The stored signature, if the artifact is still the same.
    fn cached_signature(&self, manifest: &Manifest) -> Option<&Value> {
        let before = self.before.as_ref()?;
        let is_same =
            before.digest == *manifest.digest.bytes() && before.trust == SignatureStatus::Good;
        before.signature.as_ref().filter(|_| is_same)
    }

    /// The stored state of an unusable revision: like before, but without the profile.
    pub(crate) fn unusable_artifact(&self, finding: &Finding) -> Artifact {
        let before = self.before.as_ref();
        Artifact {
            repository: self.repository.to_string(),
            tag: self.tag.to_string(),
            // Zeros stand for "no digest".
            digest: before.map_or([0; 32], |before| before.digest),
            moved_from: before.and_then(|before| before.moved_from),
            title: None,
            manifest: before.and_then(|before| before.manifest.clone()),
            document: None,
            findings: vec![finding_json(finding)],
            trust: SignatureStatus::Unchecked,
            signature: None,
            files: Vec::new(),
            gone_at: None,
        }
    }

    fn compare(&self, now: Artifact) -> FetchedRevision {
        match &self.before {
            Some(before) if is_unchanged(before, &now) => FetchedRevision::Unchanged(now),
            _ => FetchedRevision::Changed(now),
        }
    }
}

/// Whether two artifacts are equal except for the time at which they were gone.
fn is_unchanged(before: &Artifact, now: &Artifact) -> bool {
    before.gone_at.is_none() && before == now
}

/// The layer with the profile, and its file name.
fn profile_layer(manifest: &Manifest) -> Result<(&Layer, &str), Finding> {
    let bad = |why: String| Err(Finding::new(FindingKind::NotAProfile, why));
    match manifest.artifact_type.as_deref() {
        None | Some(PROFILE_TYPE | UNKNOWN_ARTIFACT_TYPE) => {}
        Some(other) => {
            let why = format!("the artefact is of the kind {other:?} and not {PROFILE_TYPE}");
            return bad(why);
        }
    }
    let Some(layer) = manifest.layers.first() else {
        return bad("the artefact has no layer".to_owned());
    };
    match layer.title.as_deref() {
        None => {
            let why = "the layer of the artefact has no title, so its file has no name";
            Err(Finding::new(FindingKind::NoTitle, why))
        }
        Some(title) if title.len() <= MAX_TITLE_BYTES && !title.contains('\0') => {
            Ok((layer, title))
        }
        Some(_) => bad("the name of the file is too long or contains a zero byte".to_owned()),
    }
}

/// Adds the manifest and the profile to a signature, so that a node can verify the profile without the registry.
fn with_chain(mut signature: Value, manifest: Option<&str>, document: &ProfileDocument) -> Value {
    if let Some(fields) = signature.as_object_mut() {
        fields.insert("manifest".to_owned(), json!(manifest));
        fields.insert("profile".to_owned(), json!(document.text));
    }
    signature
}

/// The stored form of a finding.
pub(crate) fn finding_json(finding: &Finding) -> Value {
    json!(finding)
}

fn has_no_nul(text: &&str) -> bool {
    !text.contains('\0')
}

/// The key of the profile document that names a file.
pub(crate) const fn profile_field(role: FileRole) -> &'static str {
    match role {
        FileRole::Image => "spec.osImageUrl",
        FileRole::Packages => "spec.osPackageManifestURL",
        FileRole::ExistingCves => "spec.osExistingCvesURL",
        FileRole::FixedCves => "spec.osFixedCvesURL",
    }
}

/// Turns an error of a single artifact into a finding.
///
/// # Errors
/// The error concerns the whole registry, or a later attempt may succeed.
fn finding_or_error(error: RegistryError) -> RegistryResult<Finding> {
    match error {
        // The registry gave its tags, so only this artifact is closed.
        RegistryError::Denied => Ok(to_finding(&error)),
        error if error.class() == ErrorClass::Permanent => Ok(to_finding(&error)),
        error => Err(error),
    }
}

/// Whether the error concerns the whole registry.
pub(crate) const fn is_registry_wide(error: &RegistryError) -> bool {
    matches!(error, RegistryError::Unreachable(_) | RegistryError::Busy { .. })
}

/// Counts the result of a request to a registry or a web server.
pub(crate) fn count_outcome<T>(got: RegistryResult<T>) -> RegistryResult<T> {
    let outcome = match &got {
        Ok(_) => "good",
        Err(error) => to_finding(error).kind.name(),
    };
    metrics::counter!("evenkeel_os_requests_total", "outcome" => outcome).increment(1);
    got
}

#[cfg(test)]
mod tests;
