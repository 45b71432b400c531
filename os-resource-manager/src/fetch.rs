//! What one tag of a registry leads to: an artefact with a profile, who signed it, and where its files lie.
//!
//! Whatever is wrong with it is a finding of it and of nothing else. Only an error that ends the whole cycle, or that
//! may be gone the next time, is answered as one.

mod beside;

use evenkeel_domain::os::catalogue::{FileRole, Trusted};
use evenkeel_registry::copy::finding_of;
use evenkeel_registry::publish::PROFILE_TYPE;
use evenkeel_registry::{
    At, Class, Finding, FindingKind, Got, Layer, Limits, Manifest, Profile, RegistryError,
    Repository, Tag, Trust, Verdict, profile,
};
use evenkeel_store::os_catalogue::Artifact;
use serde_json::{Value, json};

use crate::sources::Source;

/// The kind that tools give an artefact that was given none.
const UNKNOWN_TYPE: &str = "application/vnd.unknown.artifact.v1";

/// The longest name of a file that is kept, in bytes.
const LONGEST_TITLE: usize = 255;

/// Which revision is looked at, and what was known of it.
#[derive(Debug)]
pub(crate) struct Revision {
    pub repository: Repository,
    pub tag: Tag,
    /// What it led to the last time; none if it was never looked at.
    pub before: Option<Artifact>,
}

/// What a revision is now.
#[derive(Debug, PartialEq)]
pub(crate) enum Looked {
    /// What it was before.
    Same(Artifact),
    /// Something else.
    New(Artifact),
    /// It was listed and is not there any more.
    Vanished,
}

/// Looks at revisions of one registry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fetcher<'a>(pub &'a Source);

/// What is said of a signature.
#[derive(Debug)]
struct Judged {
    trust: Trusted,
    signature: Option<Value>,
    finding: Option<Finding>,
}

/// The text that an artefact holds.
#[derive(Debug)]
struct Document {
    title: String,
    text: String,
}

impl Fetcher<'_> {
    /// Looks where a tag leads to.
    ///
    /// # Errors
    /// The registry as a whole cannot be asked, or what went wrong may be gone the next time.
    pub(crate) async fn look(&self, revision: &Revision) -> Got<Looked> {
        let at = At::Tag(revision.tag.clone());
        let asked = self.0.registry.manifest(&revision.repository, &at);
        let manifest = match counted(asked.await) {
            Ok(Some(manifest)) => manifest,
            Ok(None) => return Ok(Looked::Vanished),
            Err(error) => return Ok(revision.looked(revision.unusable(&own(error)?))),
        };
        let mut findings = Vec::new();
        let document = self.document(revision, &manifest, &mut findings).await?;
        let said = document
            .as_ref()
            .map(|document| profile(&document.title, document.text.as_bytes()));
        let judged = self.judge(revision, &manifest).await?;
        findings.extend(judged.finding);
        let files = match said {
            Some(Ok(profile)) => {
                self.files(revision, &profile, judged.trust, &mut findings)
                    .await?
            }
            Some(Err(finding)) => {
                findings.push(finding);
                Vec::new()
            }
            None => Vec::new(),
        };
        let text = std::str::from_utf8(&manifest.bytes).ok().filter(is_kept);
        let chain = document.as_ref().zip(judged.signature);
        let signature = chain.map(|(document, signature)| chained(signature, text, document));
        let (title, document) = document.map(|it| (it.title, it.text)).unzip();
        Ok(revision.looked(Artifact {
            repository: revision.repository.to_string(),
            tag: revision.tag.to_string(),
            digest: *manifest.digest.bytes(),
            moved_from: revision.moved_from(&manifest),
            title,
            manifest: text.map(str::to_owned),
            document,
            findings: findings.iter().map(kept).collect(),
            trust: judged.trust,
            signature,
            files,
            gone_at: None,
        }))
    }

    /// The profile's text; none and a finding if there is none that can be kept.
    async fn document(
        &self,
        revision: &Revision,
        manifest: &Manifest,
        findings: &mut Vec<Finding>,
    ) -> Got<Option<Document>> {
        let (layer, title) = match the_layer(manifest) {
            Ok(found) => found,
            Err(finding) => {
                findings.push(finding);
                return Ok(None);
            }
        };
        if manifest.layers.len() > 1 {
            let count = manifest.layers.len();
            let why = format!("the artefact has {count} layers; only the first one counts");
            findings.push(Finding::new(FindingKind::SeveralLayers, why));
        }
        let text = match revision.known_text(manifest, title) {
            Some(text) => Ok(text),
            None => self.text(revision, layer).await?,
        };
        match text {
            Ok(text) => {
                if let Ok(Profile { remarks, .. }) = profile(title, text.as_bytes()) {
                    findings.extend(remarks);
                }
                let title = title.to_owned();
                Ok(Some(Document { title, text }))
            }
            Err(finding) => {
                findings.push(finding);
                Ok(None)
            }
        }
    }

    async fn text(&self, revision: &Revision, layer: &Layer) -> Got<Result<String, Finding>> {
        let limit = Limits::default().profile;
        let registry = &self.0.registry;
        let asked = registry.small(&revision.repository, &layer.blob, limit);
        let bytes = match counted(asked.await) {
            Ok(bytes) => bytes,
            Err(error) => return own(error).map(Err),
        };
        let bad = |why: &str| Ok(Err(Finding::new(FindingKind::Yaml, why)));
        match String::from_utf8(bytes.into()) {
            Err(_) => bad("the profile is not UTF-8"),
            Ok(text) if text.contains('\0') => bad("the profile has a zero byte in it"),
            Ok(text) => Ok(Ok(text)),
        }
    }

    /// What the signatures of a profile are worth.
    async fn judge(&self, revision: &Revision, manifest: &Manifest) -> Got<Judged> {
        if self.0.trust == Trust::Off {
            return Ok(Judged {
                trust: Trusted::Off,
                signature: None,
                finding: None,
            });
        }
        // Who was unsigned may have been signed meanwhile, and a key may not count any more.
        if let Some(signature) = revision.known_signature(manifest)
            && self.0.has_key(signature)
        {
            return Ok(Judged {
                trust: Trusted::Good,
                signature: Some(signature.clone()),
                finding: None,
            });
        }
        self.verdict(&revision.repository, &revision.tag, manifest)
            .await
    }

    /// What the signatures of an artefact are worth by the keys that count now.
    async fn verdict(
        &self,
        repository: &Repository,
        tag: &Tag,
        manifest: &Manifest,
    ) -> Got<Judged> {
        let Source { registry, keys, .. } = self.0;
        let verdict = keys.judge(
            registry.as_ref(),
            repository,
            &manifest.digest,
            tag.as_str(),
        );
        let verdict = match counted(verdict.await) {
            Ok(verdict) => verdict,
            // Nobody may look at them, so there might as well be none.
            Err(RegistryError::Denied) => Verdict::Unsigned,
            Err(error) => return Err(error),
        };
        let (trust, signature, finding) = match verdict {
            Verdict::Good(signature) => (Trusted::Good, Some(json!(signature)), None),
            Verdict::Unsigned => {
                let finding = Finding::new(FindingKind::Unsigned, "nobody signed it");
                (Trusted::Unsigned, None, Some(finding))
            }
            Verdict::Bad(why) => {
                let finding = Finding::new(FindingKind::BadSignature, why);
                (Trusted::Bad, None, Some(finding))
            }
        };
        Ok(Judged {
            trust,
            signature,
            finding,
        })
    }
}

impl Revision {
    /// The text that is known, if it is still the same.
    fn known_text(&self, manifest: &Manifest, title: &str) -> Option<String> {
        let before = self.before.as_ref()?;
        let is_same =
            before.digest == *manifest.digest.bytes() && before.title.as_deref() == Some(title);
        before.document.clone().filter(|_| is_same)
    }

    /// What the tag led to before it led to this; none if it always did, as far as is known.
    fn moved_from(&self, manifest: &Manifest) -> Option<[u8; 32]> {
        let before = self.before.as_ref()?;
        let has_moved = before.digest != *manifest.digest.bytes() && before.manifest.is_some();
        has_moved.then_some(before.digest).or(before.moved_from)
    }

    /// The signature that is known, if it is of the same.
    fn known_signature(&self, manifest: &Manifest) -> Option<&Value> {
        let before = self.before.as_ref()?;
        let is_same = before.digest == *manifest.digest.bytes() && before.trust == Trusted::Good;
        before.signature.as_ref().filter(|_| is_same)
    }

    /// What is kept of one that cannot be used at all. What it was before stays known, but for its profile.
    pub(crate) fn unusable(&self, finding: &Finding) -> Artifact {
        let before = self.before.as_ref();
        Artifact {
            repository: self.repository.to_string(),
            tag: self.tag.to_string(),
            // Nothing has a digest of zeros.
            digest: before.map_or([0; 32], |before| before.digest),
            moved_from: before.and_then(|before| before.moved_from),
            title: None,
            manifest: before.and_then(|before| before.manifest.clone()),
            document: None,
            findings: vec![kept(finding)],
            trust: Trusted::Off,
            signature: None,
            files: Vec::new(),
            gone_at: None,
        }
    }

    fn looked(&self, now: Artifact) -> Looked {
        match &self.before {
            Some(before) if is_same(before, &now) => Looked::Same(now),
            _ => Looked::New(now),
        }
    }
}

/// Whether two are the same but for when they were gone.
fn is_same(before: &Artifact, now: &Artifact) -> bool {
    before.gone_at.is_none() && before == now
}

/// The layer with the profile, and the name of its file.
fn the_layer(manifest: &Manifest) -> Result<(&Layer, &str), Finding> {
    let bad = |why: String| Err(Finding::new(FindingKind::NotAProfile, why));
    match manifest.artifact_type.as_deref() {
        None | Some(PROFILE_TYPE | UNKNOWN_TYPE) => {}
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
        Some(title) if title.len() <= LONGEST_TITLE && !title.contains('\0') => Ok((layer, title)),
        Some(_) => bad("the name of the file is too long, or has a zero byte in it".to_owned()),
    }
}

/// A signature with all that a node needs to walk from the key to the profile by itself.
fn chained(mut signature: Value, manifest: Option<&str>, document: &Document) -> Value {
    if let Some(fields) = signature.as_object_mut() {
        fields.insert("manifest".to_owned(), json!(manifest));
        fields.insert("profile".to_owned(), json!(document.text));
    }
    signature
}

/// A finding as it is kept.
pub(crate) fn kept(finding: &Finding) -> Value {
    json!(finding)
}

fn is_kept(text: &&str) -> bool {
    !text.contains('\0')
}

/// The key of a profile that names a file.
pub(crate) const fn field_of(role: FileRole) -> &'static str {
    match role {
        FileRole::Image => "spec.osImageUrl",
        FileRole::Packages => "spec.osPackageManifestURL",
        FileRole::ExistingCves => "spec.osExistingCvesURL",
        FileRole::FixedCves => "spec.osFixedCvesURL",
    }
}

/// An error of one thing as a finding of it.
///
/// # Errors
/// It is more than that: the registry as a whole cannot be asked, or it may be gone the next time.
fn own(error: RegistryError) -> Got<Finding> {
    match error {
        // Of a registry that gave its tags, somebody closed this one.
        RegistryError::Denied => Ok(finding_of(&error)),
        error if error.class() == Class::Lasting => Ok(finding_of(&error)),
        error => Err(error),
    }
}

/// Whether nothing else in the registry can be had either.
pub(crate) const fn is_of_the_whole(error: &RegistryError) -> bool {
    matches!(
        error,
        RegistryError::Unreachable(_) | RegistryError::Busy { .. }
    )
}

/// Counts how a question to a registry or for a file was answered.
pub(crate) fn counted<T>(got: Got<T>) -> Got<T> {
    let outcome = match &got {
        Ok(_) => "good",
        Err(error) => finding_of(error).kind.name(),
    };
    metrics::counter!("evenkeel_os_requests_total", "outcome" => outcome).increment(1);
    got
}

#[cfg(test)]
mod tests;
