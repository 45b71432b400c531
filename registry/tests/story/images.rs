//! Signatures of images, made when they are published and verified by nodes.

use std::fs;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use evenkeel_registry::layout::Layout;
use evenkeel_registry::{
    Digest, Finding, Limits, ManifestRef, Profile, Registry, Release, Repository, SigningKey, Tag,
    read_profile,
};
use p256::ecdsa::VerifyingKey;
use p256::ecdsa::signature::Verifier as _;
use p256::pkcs8::{DecodePublicKey as _, EncodePublicKey as _};

const PROFILE_START: &str = "# Ours
metadata:
  release: 0.0.0-dev # set when it is published
spec:
  name: Edge Microvisor Toolkit 3.0.20260602
";

const PROFILE_IMAGE: &str = "  type: OS_TYPE_IMMUTABLE
  osImageUrl: microvisor.raw.gz
";

const PROFILE_END: &str = "  provider: OS_PROVIDER_KIND_INFRA
  architecture: x86_64
  profileName: microvisor-nonrt
  osImageVersion: 3.0.20260602.2200
  securityFeature: SECURITY_FEATURE_NONE
";

/// A folder with an image and one profile, which is composed of these parts.
fn folder(parts: &[&str]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path();
    fs::write(path.join("microvisor-nonrt.yaml"), parts.concat()).expect("it is written");
    fs::write(path.join("microvisor.raw.gz"), "the image").expect("it is written");
    folder
}

fn release(parts: &[&str]) -> Release {
    Release::from_folder(folder(parts).path(), "0.3.1").expect("a release")
}

/// A signed release whose profile has this signature line.
fn signed(line: &str, key: &SigningKey) -> Result<Release, Vec<Finding>> {
    release(&[PROFILE_START, PROFILE_IMAGE, PROFILE_END, line]).sign_images(key)
}

/// Publishes a release to a registry and reads the text of its only profile.
async fn published(release: &Release) -> String {
    let shelf = tempfile::tempdir().expect("a folder");
    let to = Layout::open(shelf.path(), &Limits::default()).expect("a folder");
    let done = release.publish(&to, "os/", &[], None, &mut ()).await;
    done.expect("it is published");
    let repository: Repository = "os/microvisor-nonrt".parse().expect("a name");
    let tag: Tag = "0.3.1".parse().expect("a tag");
    let manifest = to.manifest(&repository, &ManifestRef::Tag(tag)).await;
    let manifest = manifest.expect("it is read").expect("it is there");
    let yaml = to.blob(&repository, &manifest.layers[0].blob, 10_000);
    String::from_utf8(yaml.await.expect("it is read").into()).expect("a text")
}

fn read(yaml: &str) -> Profile {
    read_profile("microvisor-nonrt.yaml", yaml.as_bytes()).expect("a profile")
}

/// Verifies the signature of a text as a node does.
fn is_signed(written: &str, key: &SigningKey, text: &str) -> bool {
    let public = VerifyingKey::from_public_key_pem(&key.public_pem()).expect("a key");
    let spki = public.to_public_key_der().expect("a key");
    let (id, signature) = written.split_once(':').expect("a colon");
    let signature = STANDARD.decode(signature).expect("Base64");
    let signature = p256::ecdsa::Signature::from_der(&signature).expect("DER");
    id == Digest::compute(spki.as_bytes()).hex()
        && public.verify(text.as_bytes(), &signature).is_ok()
}

/// The expected signed statement.
fn statement() -> String {
    let image = Digest::compute(b"the image").hex();
    format!("evenkeel-image-1\nmicrovisor-nonrt\n3.0.20260602.2200\nx86_64\n{image}\n")
}

/// A signature by an unknown key.
fn unknown_signature(number: usize) -> String {
    format!("{number:064x}:MEUCIQ==")
}

#[tokio::test]
async fn an_image_signature_covers_the_published_names() {
    let source = folder(&[PROFILE_START, PROFILE_IMAGE, PROFILE_END]);
    let (key, other) = (SigningKey::generate(), SigningKey::generate());
    let release = Release::from_folder(source.path(), "0.3.1").unwrap();
    let plain = published(&release).await;
    assert!(read(&plain).spec.image_signatures.is_empty());
    let signed = release.sign_images(&key).unwrap();
    let text = published(&signed).await;
    let signatures = read(&text).spec.image_signatures;
    assert_eq!(signatures.len(), 1);
    assert!(is_signed(&signatures[0], &key, &statement()));
    assert!(!is_signed(&signatures[0], &other, &statement()));
    // One line is new; the others are unchanged.
    let old: Vec<&str> = text.lines().filter(|line| !line.contains("osImageSignatures")).collect();
    assert_eq!(old, plain.lines().collect::<Vec<&str>>());
    let again = signed.sign_images(&key).unwrap();
    assert_eq!(published(&again).await, text);
}

#[tokio::test]
async fn signatures_by_other_keys_are_preserved() {
    let (key, other) = (SigningKey::generate(), unknown_signature(1));
    let line = format!("  osImageSignatures: [{other:?}] # theirs\n");
    let source = folder(&[PROFILE_START, PROFILE_IMAGE, PROFILE_END, &line]);
    let release = Release::from_folder(source.path(), "0.3.1").unwrap();
    let release = release.sign_images(&key).unwrap();
    let text = published(&release).await;
    assert!(text.contains("# theirs"), "{text}");
    let signatures = read(&text).spec.image_signatures;
    assert_eq!(signatures.len(), 2);
    assert_eq!(signatures[0], other);
    assert!(is_signed(&signatures[1], &key, &statement()));
    let second = SigningKey::generate();
    let release = release.sign_images(&second).unwrap();
    let signatures = read(&published(&release).await).spec.image_signatures;
    assert_eq!(signatures.len(), 3);
    assert!(is_signed(&signatures[1], &key, &statement()));
    assert!(is_signed(&signatures[2], &second, &statement()));
}

#[test]
fn a_signature_list_that_cannot_be_edited_is_reported() {
    let key = SigningKey::generate();
    let other = unknown_signature(1);
    let full: Vec<String> = (0..8).map(unknown_signature).collect();
    for line in [
        format!("  osImageSignatures:\n    - \"{other}\"\n"),
        format!("  osImageSignatures:\n  - \"{other}\"\n"),
        format!("  osImageSignatures: [\n    \"{other}\"]\n"),
        format!("  osImageSignatures: {full:?}\n"),
    ] {
        let findings = signed(&line, &key).unwrap_err();
        assert_eq!(findings.len(), 1, "{line}");
        let field = findings[0].field.as_deref();
        assert_eq!(field, Some("spec.osImageSignatures"), "{line}");
        assert!(findings[0].message.contains("microvisor-nonrt.yaml"));
    }
    for line in ["", "  osImageSignatures: []\n", "  osImageSignatures:\n"] {
        assert!(signed(line, &key).is_ok(), "{line}");
    }
}

#[tokio::test]
async fn a_profile_without_image_is_not_signed() {
    let parts = [PROFILE_START, "  type: OS_TYPE_MUTABLE\n", PROFILE_END];
    let source = folder(&parts);
    let release = Release::from_folder(source.path(), "0.3.1").unwrap();
    let plain = published(&release).await;
    let signed = release.sign_images(&SigningKey::generate()).unwrap();
    assert_eq!(published(&signed).await, plain);
}
