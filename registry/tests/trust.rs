//! Which signatures of an artefact are good.

use std::collections::BTreeMap;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use evenkeel_registry::layout::Layout;
use evenkeel_registry::trust::signature_tag;
use evenkeel_registry::{
    At, Blob, Digest, KeySet, Layer, Limits, Manifest, Registry, Repository, SigningKey, Tag,
    Verdict,
};
use p256::ecdsa::signature::Signer as _;
use p256::pkcs8::DecodePrivateKey as _;
use serde_json::{Value, json};

const KIND: &str = "application/vnd.intel.orch.en";

const PAYLOAD_TYPE: &str = "application/vnd.dev.cosign.simplesigning.v1+json";

struct Shelf {
    _folder: tempfile::TempDir,
    layout: Layout,
    repository: Repository,
}

impl Shelf {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("done");
        let layout = layout(folder.path());
        Self {
            _folder: folder,
            layout,
            repository: "os/microvisor-nonrt".parse().expect("done"),
        }
    }

    /// Puts an artefact in.
    async fn artefact(&self, content: &str, tag: &str) -> Digest {
        put(&self.layout, &self.repository, content, tag).await
    }

    async fn judge(&self, keys: &[&SigningKey], of: &Digest, tag: &str) -> Verdict {
        let pems: Vec<String> = keys.iter().map(|key| key.public_pem()).collect();
        let keys = KeySet::read(&pems).expect("done");
        let judged = keys.judge(&self.layout, &self.repository, of, tag);
        judged.await.expect("done")
    }

    async fn sign(&self, key: &SigningKey, of: &Digest, tag: &str) {
        let signed = key.sign(&self.layout, &self.repository, of, tag);
        signed.await.expect("done");
    }

    /// Puts a payload in as cosign does, signed by a key.
    async fn signed_elsewhere(&self, key: &SigningKey, of: &Digest, payload: &Value) {
        let payload = Bytes::from(serde_json::to_vec(payload).expect("done"));
        let key = p256::ecdsa::SigningKey::from_pkcs8_pem(&key.pem()).expect("done");
        let signature: p256::ecdsa::DerSignature = key.sign(&payload);
        let annotation = (
            "dev.cosignproject.cosign/signature".to_owned(),
            STANDARD.encode(signature.as_bytes()),
        );
        let layer = Layer {
            blob: Blob::of(&payload),
            media_type: PAYLOAD_TYPE.to_owned(),
            title: None,
            annotations: BTreeMap::from([annotation]),
        };
        self.push(&payload).await;
        self.push(&Bytes::from_static(b"{}")).await;
        let manifest = Manifest::artifact("application/vnd.oci.image.config.v1+json", vec![layer]);
        let tag = signature_tag(of).expect("done");
        let pushed = self
            .layout
            .push_manifest(&self.repository, Some(&tag), &manifest);
        pushed.await.expect("done");
    }

    async fn push(&self, content: &Bytes) {
        let blob = Blob::of(content);
        let pushed = self.layout.push_blob(&self.repository, &blob, content);
        pushed.await.expect("done");
    }
}

fn layout(folder: &Path) -> Layout {
    Layout::open(folder, &Limits::default()).expect("done")
}

async fn put(layout: &Layout, repository: &Repository, content: &str, tag: &str) -> Digest {
    let content = Bytes::from(content.to_owned());
    let empty = Bytes::from_static(b"{}");
    for content in [&content, &empty] {
        let blob = Blob::of(content);
        layout
            .push_blob(repository, &blob, content)
            .await
            .expect("done");
    }
    let layer = Layer::file(Blob::of(&content), "text/yaml", "microvisor-nonrt.yaml");
    let manifest = Manifest::artifact(KIND, vec![layer]);
    let tag: Tag = tag.parse().expect("done");
    let pushed = layout.push_manifest(repository, Some(&tag), &manifest);
    pushed.await.expect("done");
    manifest.digest
}

fn payload(of: &Digest, revision: &str) -> Value {
    json!({
        "critical": {
            "identity": { "docker-reference": "registry.example:5000/os/microvisor-nonrt" },
            "image": { "docker-manifest-digest": of.to_string() },
            "type": "cosign container image signature",
        },
        "optional": { "io.evenkeel.revision": revision, "creator": "somebody" },
    })
}

#[track_caller]
fn is_bad(verdict: Verdict, why: &str) {
    match verdict {
        Verdict::Bad(said) => assert!(said.contains(why), "{said}"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn what_is_signed_by_one_of_the_keys_is_good() {
    let shelf = Shelf::new();
    let (ours, other) = (SigningKey::make(), SigningKey::make());
    let digest = shelf.artefact("one", "0.3.1").await;
    assert_eq!(
        shelf.judge(&[&ours], &digest, "0.3.1").await,
        Verdict::Unsigned
    );
    shelf.sign(&ours, &digest, "0.3.1").await;
    let Verdict::Good(signature) = shelf.judge(&[&other, &ours], &digest, "0.3.1").await else {
        panic!("not good");
    };
    let payload = STANDARD.decode(&signature.payload).unwrap();
    let payload: Value = serde_json::from_slice(&payload).unwrap();
    assert_eq!(
        payload["critical"]["image"]["docker-manifest-digest"],
        digest.to_string()
    );
    assert_eq!(signature.key.len(), 64);
    is_bad(
        shelf.judge(&[&other], &digest, "0.3.1").await,
        "not signed by any of the keys",
    );
    is_bad(shelf.judge(&[], &digest, "0.3.1").await, "any of the keys");
}

#[tokio::test]
async fn a_signature_in_the_form_of_cosign_is_good() {
    let shelf = Shelf::new();
    let key = SigningKey::make();
    let digest = shelf.artefact("one", "0.3.1").await;
    let said = payload(&digest, "0.3.1");
    shelf.signed_elsewhere(&key, &digest, &said).await;
    let verdict = shelf.judge(&[&key], &digest, "0.3.1").await;
    assert!(matches!(verdict, Verdict::Good(_)), "{verdict:?}");
}

#[tokio::test]
async fn the_signature_of_something_else_is_bad() {
    let shelf = Shelf::new();
    let key = SigningKey::make();
    let digest = shelf.artefact("one", "0.3.1").await;
    let other = Digest::of(b"another artefact");
    let cases = [
        (
            "image/docker-manifest-digest",
            json!(other.to_string()),
            "was signed",
        ),
        (
            "identity/docker-reference",
            json!("r/os/microvisor-rt"),
            "signed as r/os",
        ),
        (
            "identity/docker-reference",
            json!("r/os/microvisor-nonrt/files"),
            "signed as",
        ),
        ("type", json!("atomic container signature"), "is of kind"),
        ("type", json!(7), "cannot be read"),
    ];
    for (field, value, why) in cases {
        let mut said = payload(&digest, "0.3.1");
        *said.pointer_mut(&format!("/critical/{field}")).unwrap() = value;
        shelf.signed_elsewhere(&key, &digest, &said).await;
        is_bad(shelf.judge(&[&key], &digest, "0.3.1").await, why);
    }
}

#[tokio::test]
async fn an_old_artefact_under_a_newer_tag_is_not_the_one_that_was_signed() {
    let shelf = Shelf::new();
    let key = SigningKey::make();
    let digest = shelf.artefact("one", "0.3.1").await;
    shelf.sign(&key, &digest, "0.3.1").await;
    shelf.artefact("one", "0.3.9").await;
    is_bad(
        shelf.judge(&[&key], &digest, "0.3.9").await,
        "signed as revision \"0.3.1\"",
    );
    // A branch may stand anywhere.
    let verdict = shelf.judge(&[&key], &digest, "main").await;
    assert!(matches!(verdict, Verdict::Good(_)), "{verdict:?}");
    let mut said = payload(&digest, "0.3.9");
    said["optional"] = Value::Null;
    shelf.signed_elsewhere(&key, &digest, &said).await;
    is_bad(
        shelf.judge(&[&key], &digest, "0.3.9").await,
        "does not name its io.evenkeel.revision",
    );
}

#[tokio::test]
async fn a_tag_that_moved_takes_no_signature_along() {
    let shelf = Shelf::new();
    let key = SigningKey::make();
    let first = shelf.artefact("one", "0.3.1").await;
    shelf.sign(&key, &first, "0.3.1").await;
    let second = shelf.artefact("two", "0.3.1").await;
    assert_ne!(first, second);
    assert_eq!(
        shelf.judge(&[&key], &second, "0.3.1").await,
        Verdict::Unsigned
    );
}

#[tokio::test]
async fn signatures_of_others_stay_and_the_same_one_is_there_once() {
    let shelf = Shelf::new();
    let keys: Vec<SigningKey> = (0..18).map(|_| SigningKey::make()).collect();
    let digest = shelf.artefact("one", "0.3.1").await;
    for key in [&keys[0], &keys[1], &keys[0]] {
        shelf.sign(key, &digest, "0.3.1").await;
    }
    let at = At::Tag(signature_tag(&digest).unwrap());
    let signatures = || async {
        let manifest = shelf.layout.manifest(&shelf.repository, &at).await;
        manifest.unwrap().unwrap().layers.len()
    };
    assert_eq!(signatures().await, 2);
    for key in &keys {
        shelf.sign(key, &digest, "0.3.1").await;
    }
    assert_eq!(signatures().await, 16);
    for key in &keys[2..] {
        let verdict = shelf.judge(&[key], &digest, "0.3.1").await;
        assert!(matches!(verdict, Verdict::Good(_)), "{verdict:?}");
    }
}

#[tokio::test]
async fn what_is_no_signature_is_bad_and_no_error() {
    let shelf = Shelf::new();
    let key = SigningKey::make();
    let digest = shelf.artefact("one", "0.3.1").await;
    let payload = Bytes::from_static(b"<html>");
    shelf.push(&payload).await;
    let signatures = [
        (None, "has no signature"),
        (Some("?"), "not Base64"),
        (Some("AAAA"), "not one by ECDSA"),
        (Some(""), "not one by ECDSA"),
    ];
    for (signature, why) in signatures {
        let annotations = signature.map(|signature| {
            let name = "dev.cosignproject.cosign/signature".to_owned();
            (name, signature.to_owned())
        });
        let layer = Layer {
            blob: Blob::of(&payload),
            media_type: PAYLOAD_TYPE.to_owned(),
            title: None,
            annotations: annotations.into_iter().collect(),
        };
        let manifest = Manifest::artifact("x", vec![layer]);
        let tag = signature_tag(&digest).unwrap();
        let pushed = shelf
            .layout
            .push_manifest(&shelf.repository, Some(&tag), &manifest);
        pushed.await.unwrap();
        is_bad(shelf.judge(&[&key], &digest, "0.3.1").await, why);
    }
}

#[test]
fn keys_are_read_as_they_are_written() {
    let key = SigningKey::make();
    let again = SigningKey::read(&key.pem()).unwrap();
    assert_eq!(key.public_pem(), again.public_pem());
    assert!(!format!("{key:?}").contains(&key.pem()));
    assert!(KeySet::read(&[key.public_pem()]).is_ok());
    assert!(KeySet::read(&[]).unwrap().is_empty());
    for pem in [
        "",
        "key",
        "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n",
    ] {
        assert!(KeySet::read(&[pem.to_owned()]).is_err(), "{pem}");
        assert!(SigningKey::read(pem).is_err(), "{pem}");
    }
    let private = KeySet::read(&[key.pem()]).unwrap_err();
    assert!(private.message.contains("no public key"), "{private}");
    let locked = "-----BEGIN ENCRYPTED SIGSTORE PRIVATE KEY-----\nAAAA\n";
    let locked = SigningKey::read(locked).unwrap_err();
    assert!(locked.message.contains("password"), "{locked}");
}
