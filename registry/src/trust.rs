//! Signatures of artifacts in the format of cosign: simple signing with ECDSA over P-256. They are
//! stored next to the artifact under the tag `sha256-<digits>.sig`.
//!
//! A payload names the digest, the repository and the revision of the artifact. So other content,
//! the artifact of another profile, and an older one under a newer tag have no good signature.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use evenkeel_domain::os::revision;
use evenkeel_fetch::Digest;
use p256::ecdsa::signature::{Signer as _, Verifier as _};
use p256::ecdsa::{DerSignature, VerifyingKey};
use p256::elliptic_curve::rand_core::OsRng;
use p256::pkcs8::{
    DecodePrivateKey as _, DecodePublicKey as _, EncodePrivateKey as _, EncodePublicKey as _,
    LineEnding,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::error::{ErrorClass, RegistryResult, malformed};
use crate::finding::{Finding, FindingKind};
use crate::source::{Blob, Layer, MANIFEST_TYPE, Manifest, ManifestRef, Registry, Repository, Tag};

/// Media type of a signed payload.
const PAYLOAD_TYPE: &str = "application/vnd.dev.cosign.simplesigning.v1+json";

/// Annotation of a payload that holds its signature.
const SIGNATURE_ANNOTATION: &str = "dev.cosignproject.cosign/signature";

/// The type that a payload declares.
const PAYLOAD_KIND: &str = "cosign container image signature";

/// Key of the revision in a payload. With cosign it is set by `-a io.evenkeel.revision=0.3.1`.
const REVISION_ANNOTATION: &str = "io.evenkeel.revision";

/// Maximum number of signatures of an artifact that are checked.
const MAX_SIGNATURES: usize = 16;

/// Maximum number of keys in a set.
const MAX_KEYS: usize = 64;

/// Largest payload, in bytes.
const MAX_PAYLOAD_BYTES: u64 = 64 * 1024;

/// What to do with an artifact without a good signature.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SignaturePolicy {
    /// Refuse the artifact.
    Require,
    /// Accept the artifact and record a finding.
    #[default]
    Warn,
    /// Do not check signatures.
    Off,
}

/// Result of checking the signatures of an artifact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// A signature is good.
    Good(Signature),
    /// The artifact has no signature.
    Unsigned,
    /// No signature is good; the reason for the first one.
    Bad(String),
}

/// A good signature, with everything that is needed to check it again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Signature {
    /// The signed payload in Base64.
    pub payload: String,
    /// The signature in Base64.
    pub signature: String,
    /// ID of the key: the SHA-256 of its public half (SPKI), in hexadecimal.
    pub key: String,
}

/// Tag of the signatures of an artifact.
pub fn signature_tag(artifact: &Digest) -> RegistryResult<Tag> {
    format!("sha256-{}.sig", artifact.hex()).parse()
}

/// The trusted keys.
#[derive(Clone, Debug, Default)]
pub struct KeySet {
    keys: Vec<PublicKey>,
}

#[derive(Clone, Debug)]
struct PublicKey {
    public: VerifyingKey,
    id: String,
}

impl KeySet {
    /// Reads public keys in PEM format, as `cosign generate-key-pair` or [`SigningKey::public_pem`]
    /// writes them.
    ///
    /// # Errors
    /// A key is not a public key of the curve P-256, or there are too many.
    pub fn read(pems: &[String]) -> Result<Self, Finding> {
        if pems.len() > MAX_KEYS {
            return Err(invalid_key(format!("there are more than {MAX_KEYS} keys")));
        }
        let read = |(number, pem): (usize, &String)| {
            let public = VerifyingKey::from_public_key_pem(pem.trim());
            let public = public.map_err(|error| {
                let number = number + 1;
                invalid_key(format!(
                    "number {number} is no public key of the curve P-256 in PEM format: {error}"
                ))
            })?;
            let id = key_id(&public).map_err(invalid_key)?;
            Ok(PublicKey { public, id })
        };
        let keys: Result<Vec<PublicKey>, Finding> = pems.iter().enumerate().map(read).collect();
        Ok(Self { keys: keys? })
    }

    /// Whether the set has no keys.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Checks the signatures of an artifact that has this tag.
    ///
    /// # Errors
    /// The registry cannot be reached. Invalid content is not an error: then the verdict is bad.
    pub async fn verify(
        &self,
        registry: &dyn Registry,
        repository: &Repository,
        artifact: &Digest,
        tag: &str,
    ) -> RegistryResult<Verdict> {
        let signatures = match signature_layers(registry, repository, artifact).await {
            Ok(signatures) => signatures,
            Err(error) if error.class() == ErrorClass::Permanent => {
                return Ok(Verdict::Bad(error.to_string()));
            }
            Err(error) => return Err(error),
        };
        let claim = SignatureClaim { digest: artifact, repository, tag };
        let mut first = None;
        for layer in signatures.iter().take(MAX_SIGNATURES) {
            let payload = registry.blob(repository, &layer.blob, MAX_PAYLOAD_BYTES);
            let payload = match payload.await {
                Ok(payload) => payload,
                Err(error) if error.class() == ErrorClass::Permanent => {
                    first.get_or_insert(error.to_string());
                    continue;
                }
                Err(error) => return Err(error),
            };
            match self.verify_layer(layer, &payload, &claim) {
                Ok(signature) => return Ok(Verdict::Good(signature)),
                Err(why) => first.get_or_insert(why),
            };
        }
        Ok(first.map_or(Verdict::Unsigned, Verdict::Bad))
    }

    fn verify_layer(
        &self,
        layer: &Layer,
        payload: &[u8],
        claim: &SignatureClaim,
    ) -> Result<Signature, String> {
        let encoded = layer.annotations.get(SIGNATURE_ANNOTATION);
        let encoded = encoded.ok_or("a payload has no signature")?.trim();
        let bytes = STANDARD
            .decode(encoded)
            .map_err(|error| format!("a signature is not Base64: {error}"))?;
        let signature = p256::ecdsa::Signature::from_der(&bytes)
            .map_err(|error| format!("a signature is not an ECDSA signature: {error}"))?;
        let key = self
            .keys
            .iter()
            .find(|key| key.public.verify(payload, &signature).is_ok())
            .ok_or("it was not signed by any of the keys")?;
        claim.check(payload)?;
        Ok(Signature {
            payload: STANDARD.encode(payload),
            signature: encoded.to_owned(),
            key: key.id.clone(),
        })
    }
}

/// Layers with the signatures of an artifact; empty if it has none.
async fn signature_layers(
    registry: &dyn Registry,
    repository: &Repository,
    artifact: &Digest,
) -> RegistryResult<Vec<Layer>> {
    let at = ManifestRef::Tag(signature_tag(artifact)?);
    let Some(manifest) = registry.manifest(repository, &at).await? else {
        return Ok(Vec::new());
    };
    let layers = manifest.layers.into_iter();
    Ok(layers.filter(|layer| layer.media_type == PAYLOAD_TYPE).collect())
}

/// The artifact that a signature must name.
#[derive(Debug)]
struct SignatureClaim<'a> {
    digest: &'a Digest,
    repository: &'a Repository,
    tag: &'a str,
}

#[derive(Debug, Serialize, Deserialize)]
struct SignaturePayload {
    critical: PayloadCritical,
    optional: Option<BTreeMap<String, Value>>,
}

#[derive(Debug, Serialize, Deserialize)]
struct PayloadCritical {
    identity: PayloadIdentity,
    image: PayloadImage,
    #[serde(rename = "type")]
    kind: String,
}

#[derive(Debug, Serialize, Deserialize)]
struct PayloadIdentity {
    #[serde(rename = "docker-reference")]
    reference: String,
}

#[derive(Debug, Serialize, Deserialize)]
struct PayloadImage {
    #[serde(rename = "docker-manifest-digest")]
    digest: String,
}

impl SignatureClaim<'_> {
    fn payload(&self) -> RegistryResult<Bytes> {
        let revision = (REVISION_ANNOTATION.to_owned(), Value::from(self.tag));
        let payload = SignaturePayload {
            critical: PayloadCritical {
                identity: PayloadIdentity { reference: self.repository.to_string() },
                image: PayloadImage { digest: self.digest.to_string() },
                kind: PAYLOAD_KIND.to_owned(),
            },
            optional: Some(BTreeMap::from([revision])),
        };
        to_json("payload", &payload)
    }

    /// Checks that a payload with a good signature names this artifact.
    fn check(&self, payload: &[u8]) -> Result<(), String> {
        let payload: SignaturePayload = serde_json::from_slice(payload)
            .map_err(|error| format!("the signed payload cannot be read: {error}"))?;
        let critical = payload.critical;
        if critical.kind != PAYLOAD_KIND {
            return Err(format!("the signed payload is of kind {:?}", critical.kind));
        }
        if critical.image.digest != self.digest.to_string() {
            return Err(format!("{} was signed", critical.image.digest));
        }
        let reference = critical.identity.reference;
        if portable_name(&reference) != portable_name(self.repository.as_str()) {
            return Err(format!("it was signed as {reference}"));
        }
        // The revision of a branch changes, so its signatures cannot name it.
        if revision::compare_revisions(self.tag, self.tag).is_none() {
            return Ok(());
        }
        match payload.optional.unwrap_or_default().get(REVISION_ANNOTATION) {
            Some(Value::String(revision)) if revision == self.tag => Ok(()),
            Some(revision) => Err(format!("it was signed as revision {revision}")),
            None => Err(format!("the signed payload does not name its {REVISION_ANNOTATION}")),
        }
    }
}

/// The part of a reference that copies preserve: the profile, and whether it means its files.
fn portable_name(reference: &str) -> (&str, bool) {
    let path = reference.split('@').next().unwrap_or_default();
    let (folder, last) = path.rsplit_once('/').unwrap_or(("", path));
    let last = last.split(':').next().unwrap_or_default();
    match folder.rsplit('/').next() {
        Some(name) if last == "files" && !name.is_empty() => (name, true),
        _ => (last, false),
    }
}

/// A private key for signing.
#[derive(Clone, Debug)]
pub struct SigningKey {
    key: p256::ecdsa::SigningKey,
}

impl SigningKey {
    /// Generates a new key.
    pub fn generate() -> Self {
        Self { key: p256::ecdsa::SigningKey::random(&mut OsRng) }
    }

    /// Reads a key in PEM format, as [`SigningKey::pem`] or openssl writes it.
    ///
    /// # Errors
    /// The text is not a private key of the curve P-256, or it is protected by a password.
    pub fn read(pem: &str) -> Result<Self, Finding> {
        if pem.contains("ENCRYPTED") {
            return Err(invalid_key(
                "it is protected by a password; remove the password".to_owned(),
            ));
        }
        let old_form = pem.find("-----BEGIN EC PRIVATE KEY-----");
        let read = match old_form.and_then(|at| pem.get(at..)) {
            Some(pem) => p256::SecretKey::from_sec1_pem(pem.trim())
                .map(p256::ecdsa::SigningKey::from)
                .map_err(|error| error.to_string()),
            None => p256::ecdsa::SigningKey::from_pkcs8_pem(pem.trim())
                .map_err(|error| error.to_string()),
        };
        let key = read.map_err(|error| {
            invalid_key(format!(
                "it is not a private key of the curve P-256 in PEM format: {error}"
            ))
        })?;
        Ok(Self { key })
    }

    /// The private key in PEM format (PKCS #8). Keep it secret.
    pub fn pem(&self) -> String {
        let pem = self.key.to_pkcs8_pem(LineEnding::LF);
        pem.map(|pem| pem.to_string()).expect("every key of this curve has this form")
    }

    /// The public key in PEM format (SPKI), for [`KeySet::read`] and `cosign verify --key`.
    pub fn public_pem(&self) -> String {
        let pem = self.key.verifying_key().to_public_key_pem(LineEnding::LF);
        pem.expect("every key of this curve has this form")
    }

    /// ID of the key: the SHA-256 of its public half (SPKI), in hexadecimal.
    pub fn id(&self) -> String {
        key_id(self.key.verifying_key()).expect("every key of this curve has this form")
    }

    /// Signs a text. Returns the ID of the key, a colon, and the signature (ASN.1 DER) in Base64.
    /// The same text always gives the same signature.
    pub fn sign_text(&self, text: &str) -> String {
        let signature: DerSignature = self.key.sign(text.as_bytes());
        format!("{}:{}", self.id(), STANDARD.encode(signature.as_bytes()))
    }

    /// Signs an artifact for a tag, which may be set later. Other signatures of it stay.
    pub async fn sign(
        &self,
        registry: &dyn Registry,
        repository: &Repository,
        artifact: &Digest,
        tag: &str,
    ) -> RegistryResult<()> {
        let claim = SignatureClaim { digest: artifact, repository, tag };
        let payload = claim.payload()?;
        let signature: DerSignature = self.key.sign(&payload);
        let signature = STANDARD.encode(signature.as_bytes());
        let layer = Layer {
            blob: Blob::new(&payload),
            media_type: PAYLOAD_TYPE.to_owned(),
            title: None,
            annotations: BTreeMap::from([(SIGNATURE_ANNOTATION.to_owned(), signature)]),
        };
        registry.push_blob(repository, &layer.blob, &payload).await?;
        add_signatures(registry, repository, artifact, vec![layer]).await
    }
}

/// Adds the signatures that a list does not have, and removes the oldest ones if there are too many.
/// Returns whether the list has changed.
fn append_signatures<T: PartialEq>(list: &mut Vec<T>, more: Vec<T>) -> bool {
    let before = list.len();
    // Of more signatures only the last ones would stay. Both lists are as long as their registries want.
    let skipped = more.len().saturating_sub(MAX_SIGNATURES);
    for signature in more.into_iter().skip(skipped) {
        if !list.contains(&signature) {
            list.push(signature);
        }
    }
    let has_changed = list.len() > before;
    if has_changed {
        list.drain(..list.len().saturating_sub(MAX_SIGNATURES));
    }
    has_changed
}

/// Adds signatures to an artifact. Their payloads must exist already. If there are too many, the
/// oldest ones are removed.
pub(crate) async fn add_signatures(
    registry: &dyn Registry,
    repository: &Repository,
    artifact: &Digest,
    more: Vec<Layer>,
) -> RegistryResult<()> {
    let mut layers = match signature_layers(registry, repository, artifact).await {
        Ok(layers) => layers,
        // A signature manifest that cannot be read has no valid signatures.
        Err(error) if error.class() == ErrorClass::Permanent => Vec::new(),
        Err(error) => return Err(error),
    };
    if !append_signatures(&mut layers, more) {
        return Ok(());
    }
    let config = signature_config(&layers)?;
    let manifest = signature_manifest(&layers, &Blob::new(&config))?;
    let tag = signature_tag(artifact)?;
    registry.push_blob(repository, &Blob::new(&config), &config).await?;
    registry.push_manifest(repository, Some(&tag), &manifest).await
}

/// Configuration of the signature manifest, in the form that cosign can extend.
fn signature_config(layers: &[Layer]) -> RegistryResult<Bytes> {
    let digests: Vec<String> = layers.iter().map(|l| l.blob.digest.to_string()).collect();
    let history: Vec<Value> =
        layers.iter().map(|_| json!({ "created": "0001-01-01T00:00:00Z" })).collect();
    let config = json!({
        "architecture": "",
        "created": "0001-01-01T00:00:00Z",
        "history": history,
        "os": "",
        "rootfs": { "type": "layers", "diff_ids": digests },
        "config": {},
    });
    to_json("configuration", &config)
}

fn signature_manifest(layers: &[Layer], config: &Blob) -> RegistryResult<Manifest> {
    let layer = |layer: &Layer| {
        json!({
            "mediaType": layer.media_type,
            "digest": layer.blob.digest.to_string(),
            "size": layer.blob.size,
            "annotations": layer.annotations,
        })
    };
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "config": {
            "mediaType": "application/vnd.oci.image.config.v1+json",
            "digest": config.digest.to_string(),
            "size": config.size,
        },
        "layers": layers.iter().map(layer).collect::<Vec<Value>>(),
    });
    Manifest::read(to_json("manifest", &manifest)?, MANIFEST_TYPE)
}

fn to_json(what: &'static str, value: &impl Serialize) -> RegistryResult<Bytes> {
    serde_json::to_vec(value).map(Bytes::from).map_err(|error| malformed(what, error.to_string()))
}

fn key_id(public: &VerifyingKey) -> Result<String, String> {
    let der = public.to_public_key_der();
    let der = der.map_err(|error| error.to_string())?;
    Ok(Digest::compute(der.as_bytes()).hex())
}

fn invalid_key(message: String) -> Finding {
    Finding::about(FindingKind::BadField, "key", message)
}

#[cfg(test)]
mod tests;
