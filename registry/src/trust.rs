//! Signatures of artefacts, in the form of cosign: simple signing with ECDSA over P-256, kept beside the artefact under
//! the tag `sha256-<digits>.sig`.
//!
//! What is signed names the digest of the artefact, its repository and its revision. So neither another content, nor
//! the artefact of another profile, nor an older one under a newer tag is taken for the one that was signed.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use evenkeel_domain::os::revision;
use p256::ecdsa::signature::{Signer as _, Verifier as _};
use p256::ecdsa::{DerSignature, VerifyingKey};
use p256::elliptic_curve::rand_core::OsRng;
use p256::pkcs8::{
    DecodePrivateKey as _, DecodePublicKey as _, EncodePrivateKey as _, EncodePublicKey as _,
    LineEnding,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::digest::Digest;
use crate::error::{Class, Got, malformed};
use crate::finding::{Finding, FindingKind};
use crate::source::{At, Blob, Layer, MANIFEST_TYPE, Manifest, Registry, Repository, Tag};

/// The form of what is signed.
const PAYLOAD_TYPE: &str = "application/vnd.dev.cosign.simplesigning.v1+json";

/// The annotation of a payload that holds its signature.
const SIGNATURE: &str = "dev.cosignproject.cosign/signature";

/// What a payload says of itself.
const PAYLOAD_KIND: &str = "cosign container image signature";

/// Where a payload names the revision. By cosign: `-a io.evenkeel.revision=0.3.1`.
const REVISION: &str = "io.evenkeel.revision";

/// How many signatures of an artefact are looked at.
const MOST_SIGNATURES: usize = 16;

/// How many keys a set may have.
const MOST_KEYS: usize = 64;

/// The largest payload.
const LARGEST_PAYLOAD: u64 = 64 * 1024;

/// What is done with an artefact without a good signature.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Trust {
    /// It is not taken.
    Require,
    /// It is taken, and said.
    #[default]
    Warn,
    /// Nobody looks.
    Off,
}

/// What the signatures of an artefact are worth.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// This one is good.
    Good(Signature),
    /// There is none.
    Unsigned,
    /// There are some and none is good; why the first one is not.
    Bad(String),
}

/// A good signature, with all that is needed to look at it again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Signature {
    /// What was signed, in Base64.
    pub payload: String,
    /// The signature in Base64.
    pub signature: String,
    /// Which key made it: the SHA-256 of its public half (SPKI), in hexadecimal.
    pub key: String,
}

/// The tag under which the signatures of an artefact lie.
pub fn signature_tag(of: &Digest) -> Got<Tag> {
    format!("sha256-{}.sig", of.hex()).parse()
}

/// The keys whose signatures count.
#[derive(Clone, Debug, Default)]
pub struct KeySet {
    keys: Vec<Key>,
}

#[derive(Clone, Debug)]
struct Key {
    public: VerifyingKey,
    id: String,
}

impl KeySet {
    /// Reads public keys, each a PEM as `cosign generate-key-pair` or [`SigningKey::public_pem`] writes it.
    ///
    /// # Errors
    /// One is no public key of the curve P-256, or there are too many.
    pub fn read(pems: &[String]) -> Result<Self, Finding> {
        if pems.len() > MOST_KEYS {
            return Err(bad_key(format!("there are more than {MOST_KEYS}")));
        }
        let read = |(number, pem): (usize, &String)| {
            let public = VerifyingKey::from_public_key_pem(pem.trim());
            let public = public.map_err(|error| {
                let number = number + 1;
                bad_key(format!(
                    "number {number} is no public key of the curve P-256 as PEM: {error}"
                ))
            })?;
            let id = id_of(&public).map_err(bad_key)?;
            Ok(Key { public, id })
        };
        let keys: Result<Vec<Key>, Finding> = pems.iter().enumerate().map(read).collect();
        Ok(Self { keys: keys? })
    }

    /// Whether there is no key at all.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Looks at the signatures of the artefact `of` that was found under a tag.
    ///
    /// # Errors
    /// The registry could not be asked. What it answers never is an error: then the verdict is bad.
    pub async fn judge(
        &self,
        registry: &dyn Registry,
        repository: &Repository,
        of: &Digest,
        tag: &str,
    ) -> Got<Verdict> {
        let signatures = match signatures_of(registry, repository, of).await {
            Ok(signatures) => signatures,
            Err(error) if error.class() == Class::Lasting => {
                return Ok(Verdict::Bad(error.to_string()));
            }
            Err(error) => return Err(error),
        };
        let claim = Claim {
            digest: of,
            repository,
            tag,
        };
        let mut first = None;
        for layer in signatures.iter().take(MOST_SIGNATURES) {
            let payload = registry.small(repository, &layer.blob, LARGEST_PAYLOAD);
            let payload = match payload.await {
                Ok(payload) => payload,
                Err(error) if error.class() == Class::Lasting => {
                    first.get_or_insert(error.to_string());
                    continue;
                }
                Err(error) => return Err(error),
            };
            match self.verify(layer, &payload, &claim) {
                Ok(signature) => return Ok(Verdict::Good(signature)),
                Err(why) => first.get_or_insert(why),
            };
        }
        Ok(first.map_or(Verdict::Unsigned, Verdict::Bad))
    }

    fn verify(&self, layer: &Layer, payload: &[u8], claim: &Claim) -> Result<Signature, String> {
        let said = layer.annotations.get(SIGNATURE);
        let said = said.ok_or("a payload has no signature")?.trim();
        let bytes = STANDARD
            .decode(said)
            .map_err(|error| format!("a signature is not Base64: {error}"))?;
        let signature = p256::ecdsa::Signature::from_der(&bytes)
            .map_err(|error| format!("a signature is not one by ECDSA: {error}"))?;
        let key = self
            .keys
            .iter()
            .find(|key| key.public.verify(payload, &signature).is_ok())
            .ok_or("it was not signed by any of the keys")?;
        claim.check(payload)?;
        Ok(Signature {
            payload: STANDARD.encode(payload),
            signature: said.to_owned(),
            key: key.id.clone(),
        })
    }
}

/// The layers of an artefact's signatures; none if it has none.
async fn signatures_of(
    registry: &dyn Registry,
    repository: &Repository,
    of: &Digest,
) -> Got<Vec<Layer>> {
    let at = At::Tag(signature_tag(of)?);
    let Some(manifest) = registry.manifest(repository, &at).await? else {
        return Ok(Vec::new());
    };
    let layers = manifest.layers.into_iter();
    Ok(layers
        .filter(|layer| layer.media_type == PAYLOAD_TYPE)
        .collect())
}

/// What a signature must be about.
#[derive(Debug)]
struct Claim<'a> {
    digest: &'a Digest,
    repository: &'a Repository,
    tag: &'a str,
}

#[derive(Debug, Serialize, Deserialize)]
struct Payload {
    critical: Critical,
    optional: Option<BTreeMap<String, Value>>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Critical {
    identity: Identity,
    image: Signed,
    #[serde(rename = "type")]
    kind: String,
}

#[derive(Debug, Serialize, Deserialize)]
struct Identity {
    #[serde(rename = "docker-reference")]
    reference: String,
}

#[derive(Debug, Serialize, Deserialize)]
struct Signed {
    #[serde(rename = "docker-manifest-digest")]
    digest: String,
}

impl Claim<'_> {
    fn payload(&self) -> Got<Bytes> {
        let revision = (REVISION.to_owned(), Value::from(self.tag));
        let payload = Payload {
            critical: Critical {
                identity: Identity {
                    reference: self.repository.to_string(),
                },
                image: Signed {
                    digest: self.digest.to_string(),
                },
                kind: PAYLOAD_KIND.to_owned(),
            },
            optional: Some(BTreeMap::from([revision])),
        };
        written("payload", &payload)
    }

    /// Whether a payload, whose signature is good, is about this.
    fn check(&self, payload: &[u8]) -> Result<(), String> {
        let payload: Payload = serde_json::from_slice(payload)
            .map_err(|error| format!("what was signed cannot be read: {error}"))?;
        let critical = payload.critical;
        if critical.kind != PAYLOAD_KIND {
            return Err(format!("what was signed is of kind {:?}", critical.kind));
        }
        if critical.image.digest != self.digest.to_string() {
            return Err(format!("{} was signed", critical.image.digest));
        }
        let reference = critical.identity.reference;
        if own_name(&reference) != own_name(self.repository.as_str()) {
            return Err(format!("it was signed as {reference}"));
        }
        // A branch goes from one revision to the next, so whoever signs cannot know where it stands.
        if revision::order(self.tag, self.tag).is_none() {
            return Ok(());
        }
        match payload.optional.unwrap_or_default().get(REVISION) {
            Some(Value::String(revision)) if revision == self.tag => Ok(()),
            Some(revision) => Err(format!("it was signed as revision {revision}")),
            None => Err(format!("what was signed does not name its {REVISION}")),
        }
    }
}

/// What stays of a reference wherever it is copied to: the name of the profile, and whether its files are meant.
fn own_name(reference: &str) -> (&str, bool) {
    let path = reference.split('@').next().unwrap_or_default();
    let (folder, last) = path.rsplit_once('/').unwrap_or(("", path));
    let last = last.split(':').next().unwrap_or_default();
    match folder.rsplit('/').next() {
        Some(name) if last == "files" && !name.is_empty() => (name, true),
        _ => (last, false),
    }
}

/// A key that signs.
#[derive(Clone, Debug)]
pub struct SigningKey {
    key: p256::ecdsa::SigningKey,
}

impl SigningKey {
    /// Makes a new one.
    pub fn make() -> Self {
        Self {
            key: p256::ecdsa::SigningKey::random(&mut OsRng),
        }
    }

    /// Reads a key as [`SigningKey::pem`] or openssl writes it.
    ///
    /// # Errors
    /// It is no private key of the curve P-256, or it has a password.
    pub fn read(pem: &str) -> Result<Self, Finding> {
        if pem.contains("ENCRYPTED") {
            return Err(bad_key("it has a password; give it without one".to_owned()));
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
            bad_key(format!(
                "it is no private key of the curve P-256 as PEM: {error}"
            ))
        })?;
        Ok(Self { key })
    }

    /// The key itself (PKCS #8), to be kept secret.
    pub fn pem(&self) -> String {
        let pem = self.key.to_pkcs8_pem(LineEnding::LF);
        pem.map(|pem| pem.to_string())
            .expect("every key of this curve has this form")
    }

    /// Its public half (SPKI), which [`KeySet::read`] takes and `cosign verify --key` as well.
    pub fn public_pem(&self) -> String {
        let pem = self.key.verifying_key().to_public_key_pem(LineEnding::LF);
        pem.expect("every key of this curve has this form")
    }

    /// Which key it is: the SHA-256 of its public half (SPKI), in hexadecimal.
    pub fn id(&self) -> String {
        id_of(self.key.verifying_key()).expect("every key of this curve has this form")
    }

    /// Signs a text. Gives the SHA-256 of the public half (SPKI) in hexadecimal, a colon, and the signature (ASN.1 DER)
    /// in Base64; the same text always gives the same.
    pub fn sign_text(&self, text: &str) -> String {
        let signature: DerSignature = self.key.sign(text.as_bytes());
        format!("{}:{}", self.id(), STANDARD.encode(signature.as_bytes()))
    }

    /// Signs the artefact `of`, which is or will be found under a tag. Other signatures of it stay.
    pub async fn sign(
        &self,
        registry: &dyn Registry,
        repository: &Repository,
        of: &Digest,
        tag: &str,
    ) -> Got<()> {
        let claim = Claim {
            digest: of,
            repository,
            tag,
        };
        let payload = claim.payload()?;
        let signature: DerSignature = self.key.sign(&payload);
        let signature = STANDARD.encode(signature.as_bytes());
        let layer = Layer {
            blob: Blob::of(&payload),
            media_type: PAYLOAD_TYPE.to_owned(),
            title: None,
            annotations: BTreeMap::from([(SIGNATURE.to_owned(), signature)]),
        };
        registry
            .push_blob(repository, &layer.blob, &payload)
            .await?;
        add(registry, repository, of, vec![layer]).await
    }
}

/// Adds signatures, whose payloads are there already, to those of an artefact. When they become too many, the oldest go.
pub(crate) async fn add(
    registry: &dyn Registry,
    repository: &Repository,
    of: &Digest,
    more: Vec<Layer>,
) -> Got<()> {
    let mut layers = match signatures_of(registry, repository, of).await {
        Ok(layers) => layers,
        // What cannot be read is no signature of anything.
        Err(error) if error.class() == Class::Lasting => Vec::new(),
        Err(error) => return Err(error),
    };
    let before = layers.len();
    for layer in more {
        if !layers.contains(&layer) {
            layers.push(layer);
        }
    }
    if layers.len() == before {
        return Ok(());
    }
    layers.drain(..layers.len().saturating_sub(MOST_SIGNATURES));
    let config = config_of(&layers)?;
    let manifest = manifest_of(&layers, &Blob::of(&config))?;
    let tag = signature_tag(of)?;
    registry
        .push_blob(repository, &Blob::of(&config), &config)
        .await?;
    registry
        .push_manifest(repository, Some(&tag), &manifest)
        .await
}

/// A configuration from which cosign can carry on.
fn config_of(layers: &[Layer]) -> Got<Bytes> {
    let digests: Vec<String> = layers.iter().map(|l| l.blob.digest.to_string()).collect();
    let history: Vec<Value> = layers
        .iter()
        .map(|_| json!({ "created": "0001-01-01T00:00:00Z" }))
        .collect();
    let config = json!({
        "architecture": "",
        "created": "0001-01-01T00:00:00Z",
        "history": history,
        "os": "",
        "rootfs": { "type": "layers", "diff_ids": digests },
        "config": {},
    });
    written("configuration", &config)
}

fn manifest_of(layers: &[Layer], config: &Blob) -> Got<Manifest> {
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
    Manifest::read(written("manifest", &manifest)?, MANIFEST_TYPE)
}

fn written(what: &'static str, value: &impl Serialize) -> Got<Bytes> {
    serde_json::to_vec(value)
        .map(Bytes::from)
        .map_err(|error| malformed(what, error.to_string()))
}

fn id_of(public: &VerifyingKey) -> Result<String, String> {
    let der = public.to_public_key_der();
    let der = der.map_err(|error| error.to_string())?;
    Ok(Digest::of(der.as_bytes()).hex())
}

fn bad_key(message: String) -> Finding {
    Finding::about(FindingKind::BadField, "key", message)
}
