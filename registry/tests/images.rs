//! Images are signed when they are published, for nodes that know the keys.

use std::fs;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use evenkeel_registry::layout::Layout;
use evenkeel_registry::{
    At, Digest, Finding, Limits, Profile, Registry, Release, Repository, SigningKey, Tag, profile,
};
use p256::ecdsa::VerifyingKey;
use p256::ecdsa::signature::Verifier as _;
use p256::pkcs8::{DecodePublicKey as _, EncodePublicKey as _};

const BEFORE: &str = "# Ours
metadata:
  release: 0.0.0-dev # set when it is published
spec:
  name: Edge Microvisor Toolkit 3.0.20260602
";

const IMAGE: &str = "  type: OS_TYPE_IMMUTABLE
  osImageUrl: microvisor.raw.gz
";

const BEHIND: &str = "  provider: OS_PROVIDER_KIND_INFRA
  architecture: x86_64
  profileName: microvisor-nonrt
  osImageVersion: 3.0.20260602.2200
  securityFeature: SECURITY_FEATURE_NONE
";

/// A folder with one profile, made of parts, and an image.
fn folder(parts: &[&str]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path();
    fs::write(path.join("microvisor-nonrt.yaml"), parts.concat()).expect("it is written");
    fs::write(path.join("microvisor.raw.gz"), "the image").expect("it is written");
    folder
}

fn release(parts: &[&str]) -> Release {
    Release::of_folder(folder(parts).path(), "0.3.1").expect("a release")
}

/// A release with this line of signatures, signed.
fn signed(line: &str, key: &SigningKey) -> Result<Release, Vec<Finding>> {
    release(&[BEFORE, IMAGE, BEHIND, line]).signing_images(key)
}

/// The text of the only profile of a release, by way of a registry.
async fn published(release: &Release) -> String {
    let shelf = tempfile::tempdir().expect("a folder");
    let to = Layout::open(shelf.path(), &Limits::default()).expect("a folder");
    let done = release.publish(&to, "os/", &[], None, &mut ()).await;
    done.expect("it is published");
    let repository: Repository = "os/microvisor-nonrt".parse().expect("a name");
    let tag: Tag = "0.3.1".parse().expect("a tag");
    let manifest = to.manifest(&repository, &At::Tag(tag)).await;
    let manifest = manifest.expect("it is read").expect("it is there");
    let yaml = to.small(&repository, &manifest.layers[0].blob, 10_000);
    String::from_utf8(yaml.await.expect("it is read").into()).expect("a text")
}

fn read(yaml: &str) -> Profile {
    profile("microvisor-nonrt.yaml", yaml.as_bytes()).expect("a profile")
}

/// Whether this is the signature of a text by a key, as a node sees it.
fn is_signed(written: &str, key: &SigningKey, text: &str) -> bool {
    let public = VerifyingKey::from_public_key_pem(&key.public_pem()).expect("a key");
    let spki = public.to_public_key_der().expect("a key");
    let (id, signature) = written.split_once(':').expect("a colon");
    let signature = STANDARD.decode(signature).expect("Base64");
    let signature = p256::ecdsa::Signature::from_der(&signature).expect("DER");
    id == Digest::of(spki.as_bytes()).hex() && public.verify(text.as_bytes(), &signature).is_ok()
}

/// What must have been signed.
fn statement() -> String {
    let image = Digest::of(b"the image").hex();
    format!("evenkeel-image-1\nmicrovisor-nonrt\n3.0.20260602.2200\nx86_64\n{image}\n")
}

/// A signature by a key that nobody here knows.
fn stranger(number: usize) -> String {
    format!("{number:064x}:MEUCIQ==")
}

#[tokio::test]
async fn an_image_is_signed_with_the_names_under_which_it_is_published() {
    let source = folder(&[BEFORE, IMAGE, BEHIND]);
    let (key, other) = (SigningKey::make(), SigningKey::make());
    let release = Release::of_folder(source.path(), "0.3.1").unwrap();
    let plain = published(&release).await;
    assert!(read(&plain).spec.image_signatures.is_empty());
    let signed = release.signing_images(&key).unwrap();
    let text = published(&signed).await;
    let signatures = read(&text).spec.image_signatures;
    assert_eq!(signatures.len(), 1);
    assert!(is_signed(&signatures[0], &key, &statement()));
    assert!(!is_signed(&signatures[0], &other, &statement()));
    // One line is new; the others are as they were.
    let old: Vec<&str> = text
        .lines()
        .filter(|line| !line.contains("osImageSignatures"))
        .collect();
    assert_eq!(old, plain.lines().collect::<Vec<&str>>());
    let again = signed.signing_images(&key).unwrap();
    assert_eq!(published(&again).await, text);
}

#[tokio::test]
async fn signatures_by_other_keys_stay() {
    let (key, other) = (SigningKey::make(), stranger(1));
    let line = format!("  osImageSignatures: [{other:?}] # theirs\n");
    let source = folder(&[BEFORE, IMAGE, BEHIND, &line]);
    let release = Release::of_folder(source.path(), "0.3.1").unwrap();
    let release = release.signing_images(&key).unwrap();
    let text = published(&release).await;
    assert!(text.contains("# theirs"), "{text}");
    let signatures = read(&text).spec.image_signatures;
    assert_eq!(signatures.len(), 2);
    assert_eq!(signatures[0], other);
    assert!(is_signed(&signatures[1], &key, &statement()));
    let second = SigningKey::make();
    let release = release.signing_images(&second).unwrap();
    let signatures = read(&published(&release).await).spec.image_signatures;
    assert_eq!(signatures.len(), 3);
    assert!(is_signed(&signatures[1], &key, &statement()));
    assert!(is_signed(&signatures[2], &second, &statement()));
}

#[test]
fn a_list_of_signatures_that_cannot_be_filled_is_said() {
    let key = SigningKey::make();
    let other = stranger(1);
    let full: Vec<String> = (0..8).map(stranger).collect();
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
async fn what_has_no_image_is_not_signed() {
    let parts = [BEFORE, "  type: OS_TYPE_MUTABLE\n", BEHIND];
    let source = folder(&parts);
    let release = Release::of_folder(source.path(), "0.3.1").unwrap();
    let plain = published(&release).await;
    let signed = release.signing_images(&SigningKey::make()).unwrap();
    assert_eq!(published(&signed).await, plain);
}
