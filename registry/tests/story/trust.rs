//! Good and bad signatures of artifacts.

use std::collections::BTreeMap;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use evenkeel_registry::layout::Layout;
use evenkeel_registry::trust::signature_tag;
use evenkeel_registry::{
    Blob, Digest, KeySet, Layer, Limits, Manifest, ManifestRef, Registry, Repository, SigningKey,
    Tag, Verdict,
};
use p256::ecdsa::signature::Signer as _;
use p256::pkcs8::DecodePrivateKey as _;
use serde_json::{Value, json};

const ARTIFACT_TYPE: &str = "application/vnd.intel.orch.en";

const PAYLOAD_TYPE: &str = "application/vnd.dev.cosign.simplesigning.v1+json";

struct Fixture {
    _folder: tempfile::TempDir,
    layout: Layout,
    repository: Repository,
}

impl Fixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("done");
        let layout = layout(folder.path());
        Self { _folder: folder, layout, repository: "os/microvisor-nonrt".parse().expect("done") }
    }

    /// Pushes an artifact.
    async fn push_artifact(&self, content: &str, tag: &str) -> Digest {
        push_artifact(&self.layout, &self.repository, content, tag).await
    }

    async fn verify(&self, keys: &[&SigningKey], artifact: &Digest, tag: &str) -> Verdict {
        let pems: Vec<String> = keys.iter().map(|key| key.public_pem()).collect();
        let keys = KeySet::read(&pems).expect("done");
        let verdict = keys.verify(&self.layout, &self.repository, artifact, tag);
        verdict.await.expect("done")
    }

    async fn sign(&self, key: &SigningKey, artifact: &Digest, tag: &str) {
        let signed = key.sign(&self.layout, &self.repository, artifact, tag);
        signed.await.expect("done");
    }

    /// Pushes a payload signed by a key, in the form that cosign writes.
    async fn sign_like_cosign(&self, key: &SigningKey, artifact: &Digest, payload: &Value) {
        let payload = Bytes::from(serde_json::to_vec(payload).expect("done"));
        let key = p256::ecdsa::SigningKey::from_pkcs8_pem(&key.pem()).expect("done");
        let signature: p256::ecdsa::DerSignature = key.sign(&payload);
        let annotation = (
            "dev.cosignproject.cosign/signature".to_owned(),
            STANDARD.encode(signature.as_bytes()),
        );
        let layer = Layer {
            blob: Blob::new(&payload),
            media_type: PAYLOAD_TYPE.to_owned(),
            title: None,
            annotations: BTreeMap::from([annotation]),
        };
        self.push_blob(&payload).await;
        self.push_blob(&Bytes::from_static(b"{}")).await;
        let manifest = Manifest::artifact("application/vnd.oci.image.config.v1+json", vec![layer]);
        let tag = signature_tag(artifact).expect("done");
        let pushed = self.layout.push_manifest(&self.repository, Some(&tag), &manifest);
        pushed.await.expect("done");
    }

    async fn push_blob(&self, content: &Bytes) {
        let blob = Blob::new(content);
        let pushed = self.layout.push_blob(&self.repository, &blob, content);
        pushed.await.expect("done");
    }
}

fn layout(folder: &Path) -> Layout {
    Layout::open(folder, &Limits::default()).expect("done")
}

async fn push_artifact(
    layout: &Layout,
    repository: &Repository,
    content: &str,
    tag: &str,
) -> Digest {
    let content = Bytes::from(content.to_owned());
    let empty = Bytes::from_static(b"{}");
    for content in [&content, &empty] {
        let blob = Blob::new(content);
        layout.push_blob(repository, &blob, content).await.expect("done");
    }
    let layer = Layer::file(Blob::new(&content), "text/yaml", "microvisor-nonrt.yaml");
    let manifest = Manifest::artifact(ARTIFACT_TYPE, vec![layer]);
    let tag: Tag = tag.parse().expect("done");
    let pushed = layout.push_manifest(repository, Some(&tag), &manifest);
    pushed.await.expect("done");
    manifest.digest
}

fn signed_payload(artifact: &Digest, revision: &str) -> Value {
    json!({
        "critical": {
            "identity": { "docker-reference": "registry.example:5000/os/microvisor-nonrt" },
            "image": { "docker-manifest-digest": artifact.to_string() },
            "type": "cosign container image signature",
        },
        "optional": { "io.evenkeel.revision": revision, "creator": "somebody" },
    })
}

#[track_caller]
fn assert_bad(verdict: Verdict, why: &str) {
    match verdict {
        Verdict::Bad(message) => assert!(message.contains(why), "{message}"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_signature_by_one_of_the_keys_is_good() {
    let fixture = Fixture::new();
    let (ours, other) = (SigningKey::generate(), SigningKey::generate());
    let digest = fixture.push_artifact("one", "0.3.1").await;
    assert_eq!(fixture.verify(&[&ours], &digest, "0.3.1").await, Verdict::Unsigned);
    fixture.sign(&ours, &digest, "0.3.1").await;
    let Verdict::Good(signature) = fixture.verify(&[&other, &ours], &digest, "0.3.1").await else {
        panic!("the signature is not good");
    };
    let payload = STANDARD.decode(&signature.payload).unwrap();
    let payload: Value = serde_json::from_slice(&payload).unwrap();
    assert_eq!(payload["critical"]["image"]["docker-manifest-digest"], digest.to_string());
    assert_eq!(signature.key.len(), 64);
    assert_bad(fixture.verify(&[&other], &digest, "0.3.1").await, "not signed by any of the keys");
    assert_bad(fixture.verify(&[], &digest, "0.3.1").await, "any of the keys");
}

#[tokio::test]
async fn a_signature_by_cosign_is_good() {
    let fixture = Fixture::new();
    let key = SigningKey::generate();
    let digest = fixture.push_artifact("one", "0.3.1").await;
    let payload = signed_payload(&digest, "0.3.1");
    fixture.sign_like_cosign(&key, &digest, &payload).await;
    let verdict = fixture.verify(&[&key], &digest, "0.3.1").await;
    assert!(matches!(verdict, Verdict::Good(_)), "{verdict:?}");
}

#[tokio::test]
async fn a_signature_of_another_artifact_is_bad() {
    let fixture = Fixture::new();
    let key = SigningKey::generate();
    let digest = fixture.push_artifact("one", "0.3.1").await;
    let other = Digest::compute(b"another artefact");
    let cases = [
        ("image/docker-manifest-digest", json!(other.to_string()), "was signed"),
        ("identity/docker-reference", json!("r/os/microvisor-rt"), "signed as r/os"),
        ("identity/docker-reference", json!("r/os/microvisor-nonrt/files"), "signed as"),
        ("type", json!("atomic container signature"), "is of kind"),
        ("type", json!(7), "cannot be read"),
    ];
    for (field, value, why) in cases {
        let mut payload = signed_payload(&digest, "0.3.1");
        *payload.pointer_mut(&format!("/critical/{field}")).unwrap() = value;
        fixture.sign_like_cosign(&key, &digest, &payload).await;
        assert_bad(fixture.verify(&[&key], &digest, "0.3.1").await, why);
    }
}

#[tokio::test]
async fn an_old_artifact_under_a_newer_tag_has_a_bad_signature() {
    let fixture = Fixture::new();
    let key = SigningKey::generate();
    let digest = fixture.push_artifact("one", "0.3.1").await;
    fixture.sign(&key, &digest, "0.3.1").await;
    fixture.push_artifact("one", "0.3.9").await;
    assert_bad(fixture.verify(&[&key], &digest, "0.3.9").await, "signed as revision \"0.3.1\"");
    // The signature of a branch may name any revision.
    let verdict = fixture.verify(&[&key], &digest, "main").await;
    assert!(matches!(verdict, Verdict::Good(_)), "{verdict:?}");
    let mut payload = signed_payload(&digest, "0.3.9");
    payload["optional"] = Value::Null;
    fixture.sign_like_cosign(&key, &digest, &payload).await;
    assert_bad(
        fixture.verify(&[&key], &digest, "0.3.9").await,
        "does not name its io.evenkeel.revision",
    );
}

#[tokio::test]
async fn a_moved_tag_has_no_signature() {
    let fixture = Fixture::new();
    let key = SigningKey::generate();
    let first = fixture.push_artifact("one", "0.3.1").await;
    fixture.sign(&key, &first, "0.3.1").await;
    let second = fixture.push_artifact("two", "0.3.1").await;
    assert_ne!(first, second);
    assert_eq!(fixture.verify(&[&key], &second, "0.3.1").await, Verdict::Unsigned);
}

#[tokio::test]
async fn other_signatures_stay_and_a_repeated_one_is_stored_once() {
    let fixture = Fixture::new();
    let keys: Vec<SigningKey> = (0..18).map(|_| SigningKey::generate()).collect();
    let digest = fixture.push_artifact("one", "0.3.1").await;
    for key in [&keys[0], &keys[1], &keys[0]] {
        fixture.sign(key, &digest, "0.3.1").await;
    }
    let at = ManifestRef::Tag(signature_tag(&digest).unwrap());
    let signatures = || async {
        let manifest = fixture.layout.manifest(&fixture.repository, &at).await;
        manifest.unwrap().unwrap().layers.len()
    };
    assert_eq!(signatures().await, 2);
    for key in &keys {
        fixture.sign(key, &digest, "0.3.1").await;
    }
    assert_eq!(signatures().await, 16);
    for key in &keys[2..] {
        let verdict = fixture.verify(&[key], &digest, "0.3.1").await;
        assert!(matches!(verdict, Verdict::Good(_)), "{verdict:?}");
    }
}

#[tokio::test]
async fn an_invalid_signature_is_bad_and_not_an_error() {
    let fixture = Fixture::new();
    let key = SigningKey::generate();
    let digest = fixture.push_artifact("one", "0.3.1").await;
    let payload = Bytes::from_static(b"<html>");
    fixture.push_blob(&payload).await;
    let signatures = [
        (None, "has no signature"),
        (Some("?"), "not Base64"),
        (Some("AAAA"), "not an ECDSA signature"),
        (Some(""), "not an ECDSA signature"),
    ];
    for (signature, why) in signatures {
        let annotations = signature.map(|signature| {
            let name = "dev.cosignproject.cosign/signature".to_owned();
            (name, signature.to_owned())
        });
        let layer = Layer {
            blob: Blob::new(&payload),
            media_type: PAYLOAD_TYPE.to_owned(),
            title: None,
            annotations: annotations.into_iter().collect(),
        };
        let manifest = Manifest::artifact("x", vec![layer]);
        let tag = signature_tag(&digest).unwrap();
        let pushed = fixture.layout.push_manifest(&fixture.repository, Some(&tag), &manifest);
        pushed.await.unwrap();
        assert_bad(fixture.verify(&[&key], &digest, "0.3.1").await, why);
    }
}

#[test]
fn keys_are_read_as_they_are_written() {
    let key = SigningKey::generate();
    let again = SigningKey::read(&key.pem()).unwrap();
    assert_eq!(key.public_pem(), again.public_pem());
    assert!(!format!("{key:?}").contains(&key.pem()));
    assert!(KeySet::read(&[key.public_pem()]).is_ok());
    assert!(KeySet::read(&[]).unwrap().is_empty());
    for pem in ["", "key", "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n"] {
        assert!(KeySet::read(&[pem.to_owned()]).is_err(), "{pem}");
        assert!(SigningKey::read(pem).is_err(), "{pem}");
    }
    let private = KeySet::read(&[key.pem()]).unwrap_err();
    assert!(private.message.contains("no public key"), "{private}");
    let locked = "-----BEGIN ENCRYPTED SIGSTORE PRIVATE KEY-----\nAAAA\n";
    let locked = SigningKey::read(locked).unwrap_err();
    assert!(locked.message.contains("password"), "{locked}");
}
