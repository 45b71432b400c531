use std::collections::BTreeMap;

use bytes::Bytes;
use evenkeel_registry::{Blob, Digest};

use super::*;

fn revision(before: Option<Artifact>) -> Revision {
    Revision {
        repository: "os/edge".parse().expect("a repository"),
        tag: "0.8.11".parse().expect("a tag"),
        before,
    }
}

fn layer(title: Option<&str>) -> Layer {
    Layer {
        blob: Blob::new(b"spec: {}"),
        media_type: "application/x-yaml".to_owned(),
        title: title.map(str::to_owned),
        annotations: BTreeMap::new(),
    }
}

fn manifest(kind: Option<&str>, layers: Vec<Layer>) -> Manifest {
    Manifest {
        digest: Digest::compute(b"{}"),
        bytes: Bytes::from_static(b"{}"),
        media_type: String::new(),
        artifact_type: kind.map(str::to_owned),
        config: None,
        layers,
    }
}

fn artifact(document: Option<&str>) -> Artifact {
    let digest = Digest::compute(b"{}");
    Artifact {
        digest: *digest.bytes(),
        title: Some("edge.yaml".to_owned()),
        manifest: Some("{}".to_owned()),
        document: document.map(str::to_owned),
        ..revision(None).unusable_artifact(&Finding::new(FindingKind::Gone, "gone"))
    }
}

#[test]
fn a_profile_is_the_first_layer_of_an_artifact_of_its_type() {
    for kind in [None, Some(PROFILE_TYPE), Some(UNKNOWN_ARTIFACT_TYPE)] {
        let manifest = manifest(kind, vec![layer(Some("edge.yaml")), layer(None)]);
        let (_, title) = profile_layer(&manifest).expect("a profile");
        assert_eq!(title, "edge.yaml");
    }
    let long = "x".repeat(MAX_TITLE_BYTES + 1);
    for (kind, layers, expected) in [
        (
            Some("application/vnd.cncf.helm"),
            vec![layer(Some("edge.yaml"))],
            FindingKind::NotAProfile,
        ),
        (None, vec![], FindingKind::NotAProfile),
        (None, vec![layer(None)], FindingKind::NoTitle),
        (None, vec![layer(Some("edge\0.yaml"))], FindingKind::NotAProfile),
        (None, vec![layer(Some(&long))], FindingKind::NotAProfile),
    ] {
        let manifest = manifest(kind, layers);
        assert_eq!(profile_layer(&manifest).expect_err("no profile").kind, expected);
    }
}

#[test]
fn a_known_text_is_not_fetched_again() {
    let manifest = manifest(None, vec![layer(Some("edge.yaml"))]);
    let revision_before = revision(Some(artifact(Some("spec: {}"))));
    let text = revision_before.cached_text(&manifest, "edge.yaml");
    assert_eq!(text.as_deref(), Some("spec: {}"));
    assert_eq!(revision_before.cached_text(&manifest, "other.yaml"), None);
    let moved = Manifest { digest: Digest::compute(b"another"), ..manifest.clone() };
    assert_eq!(revision_before.cached_text(&moved, "edge.yaml"), None);
    assert_eq!(revision(None).cached_text(&manifest, "edge.yaml"), None);
}

#[test]
fn a_valid_signature_covers_one_content_only() {
    let manifest = manifest(None, vec![]);
    let signed = |trust| {
        let mut before = artifact(Some("spec: {}"));
        before.trust = trust;
        before.signature = Some(json!({ "key": "00" }));
        revision(Some(before))
    };
    assert!(signed(SignatureStatus::Good).cached_signature(&manifest).is_some());
    assert!(signed(SignatureStatus::Bad).cached_signature(&manifest).is_none());
    let moved = Manifest { digest: Digest::compute(b"another"), ..manifest };
    assert!(signed(SignatureStatus::Good).cached_signature(&moved).is_none());
}

#[test]
fn a_tag_has_moved_if_its_former_content_was_read() {
    let manifest = manifest(None, vec![]);
    let moved = |digest, manifest_before: Option<&str>| {
        let before = Artifact {
            digest,
            manifest: manifest_before.map(str::to_owned),
            moved_from: Some([2; 32]),
            ..artifact(None)
        };
        revision(Some(before)).previous_digest(&manifest)
    };
    assert_eq!(moved([1; 32], Some("{}")), Some([1; 32]));
    assert_eq!(moved(*manifest.digest.bytes(), Some("{}")), Some([2; 32]));
    assert_eq!(moved([0; 32], None), Some([2; 32]));
    assert_eq!(revision(None).previous_digest(&manifest), None);
}

#[test]
fn an_unusable_revision_keeps_what_was_stored() {
    let finding = Finding::new(FindingKind::NotAProfile, "a web page");
    let never = revision(None).unusable_artifact(&finding);
    assert_eq!((never.digest, never.manifest), ([0; 32], None));

    let before = artifact(Some("spec: {}"));
    let now = revision(Some(before.clone())).unusable_artifact(&finding);
    assert_eq!(now.digest, before.digest);
    assert_eq!(now.manifest, before.manifest);
    assert_eq!(now.document, None);
    assert_eq!(now.findings, [finding_json(&finding)]);
}

#[test]
fn a_tag_that_reappears_has_changed() {
    let before = artifact(None);
    let fetched = revision(Some(before.clone())).compare(before.clone());
    assert_eq!(fetched, FetchedRevision::Unchanged(before.clone()));
    let gone = Artifact { gone_at: Some(chrono::DateTime::UNIX_EPOCH), ..before.clone() };
    let fetched = revision(Some(gone)).compare(before.clone());
    assert_eq!(fetched, FetchedRevision::Changed(before));
}

#[test]
fn a_signature_carries_the_manifest_and_the_profile() {
    let document = ProfileDocument { title: "edge.yaml".to_owned(), text: "spec: {}".to_owned() };
    let chain = with_chain(json!({ "key": "00" }), Some("{}"), &document);
    let expected = json!({ "key": "00", "manifest": "{}", "profile": "spec: {}" });
    assert_eq!(chain, expected);
    assert_eq!(with_chain(chain.clone(), Some("{}"), &document), chain);
}

#[test]
fn only_errors_of_one_artifact_become_findings() {
    for (error, kind) in [
        (RegistryError::Denied, FindingKind::Denied),
        (RegistryError::TooLarge { limit: 1 }, FindingKind::TooLarge),
    ] {
        assert_eq!(finding_or_error(error).expect("of one thing").kind, kind);
    }
    assert!(finding_or_error(RegistryError::Stalled).is_err());
    assert!(finding_or_error(RegistryError::Busy { retry_after: None }).is_err());
    assert!(!is_registry_wide(&RegistryError::Stalled));
    assert!(is_registry_wide(&RegistryError::Unreachable(String::new())));
}
