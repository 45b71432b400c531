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
        blob: Blob::of(b"spec: {}"),
        media_type: "application/x-yaml".to_owned(),
        title: title.map(str::to_owned),
        annotations: BTreeMap::new(),
    }
}

fn manifest(kind: Option<&str>, layers: Vec<Layer>) -> Manifest {
    Manifest {
        digest: Digest::of(b"{}"),
        bytes: Bytes::from_static(b"{}"),
        media_type: String::new(),
        artifact_type: kind.map(str::to_owned),
        config: None,
        layers,
    }
}

fn artifact(document: Option<&str>) -> Artifact {
    let digest = Digest::of(b"{}");
    Artifact {
        digest: *digest.bytes(),
        title: Some("edge.yaml".to_owned()),
        manifest: Some("{}".to_owned()),
        document: document.map(str::to_owned),
        ..revision(None).unusable(&Finding::new(FindingKind::Gone, "gone"))
    }
}

#[test]
fn a_profile_is_the_first_layer_of_an_artefact_of_its_kind() {
    for kind in [None, Some(PROFILE_TYPE), Some(UNKNOWN_TYPE)] {
        let manifest = manifest(kind, vec![layer(Some("edge.yaml")), layer(None)]);
        let (_, title) = the_layer(&manifest).expect("a profile");
        assert_eq!(title, "edge.yaml");
    }
    let long = "x".repeat(LONGEST_TITLE + 1);
    for (kind, layers, found) in [
        (
            Some("application/vnd.cncf.helm"),
            vec![layer(Some("edge.yaml"))],
            FindingKind::NotAProfile,
        ),
        (None, vec![], FindingKind::NotAProfile),
        (None, vec![layer(None)], FindingKind::NoTitle),
        (
            None,
            vec![layer(Some("edge\0.yaml"))],
            FindingKind::NotAProfile,
        ),
        (None, vec![layer(Some(&long))], FindingKind::NotAProfile),
    ] {
        let manifest = manifest(kind, layers);
        assert_eq!(the_layer(&manifest).expect_err("no profile").kind, found);
    }
}

#[test]
fn a_text_that_is_known_is_not_fetched_again() {
    let manifest = manifest(None, vec![layer(Some("edge.yaml"))]);
    let known = revision(Some(artifact(Some("spec: {}"))));
    let text = known.known_text(&manifest, "edge.yaml");
    assert_eq!(text.as_deref(), Some("spec: {}"));
    assert_eq!(known.known_text(&manifest, "other.yaml"), None);
    let moved = Manifest {
        digest: Digest::of(b"another"),
        ..manifest.clone()
    };
    assert_eq!(known.known_text(&moved, "edge.yaml"), None);
    assert_eq!(revision(None).known_text(&manifest, "edge.yaml"), None);
}

#[test]
fn a_signature_that_was_good_is_of_one_content_alone() {
    let manifest = manifest(None, vec![]);
    let signed = |trust| {
        let mut before = artifact(Some("spec: {}"));
        before.trust = trust;
        before.signature = Some(json!({ "key": "00" }));
        revision(Some(before))
    };
    assert!(signed(Trusted::Good).known_signature(&manifest).is_some());
    assert!(signed(Trusted::Bad).known_signature(&manifest).is_none());
    let moved = Manifest {
        digest: Digest::of(b"another"),
        ..manifest
    };
    assert!(signed(Trusted::Good).known_signature(&moved).is_none());
}

#[test]
fn a_tag_has_moved_if_it_led_to_something_else_that_was_read() {
    let manifest = manifest(None, vec![]);
    let moved = |digest, manifest_before: Option<&str>| {
        let before = Artifact {
            digest,
            manifest: manifest_before.map(str::to_owned),
            moved_from: Some([2; 32]),
            ..artifact(None)
        };
        revision(Some(before)).moved_from(&manifest)
    };
    assert_eq!(moved([1; 32], Some("{}")), Some([1; 32]));
    assert_eq!(moved(*manifest.digest.bytes(), Some("{}")), Some([2; 32]));
    assert_eq!(moved([0; 32], None), Some([2; 32]));
    assert_eq!(revision(None).moved_from(&manifest), None);
}

#[test]
fn what_was_known_stays_known_when_a_revision_cannot_be_used() {
    let finding = Finding::new(FindingKind::NotAProfile, "a web page");
    let never = revision(None).unusable(&finding);
    assert_eq!((never.digest, never.manifest), ([0; 32], None));

    let before = artifact(Some("spec: {}"));
    let now = revision(Some(before.clone())).unusable(&finding);
    assert_eq!(now.digest, before.digest);
    assert_eq!(now.manifest, before.manifest);
    assert_eq!(now.document, None);
    assert_eq!(now.findings, [kept(&finding)]);
}

#[test]
fn a_tag_that_is_there_again_is_not_the_same() {
    let before = artifact(None);
    let looked = revision(Some(before.clone())).looked(before.clone());
    assert_eq!(looked, Looked::Same(before.clone()));
    let gone = Artifact {
        gone_at: Some(chrono::DateTime::UNIX_EPOCH),
        ..before.clone()
    };
    let looked = revision(Some(gone)).looked(before.clone());
    assert_eq!(looked, Looked::New(before));
}

#[test]
fn a_signature_carries_the_way_to_the_profile() {
    let document = Document {
        title: "edge.yaml".to_owned(),
        text: "spec: {}".to_owned(),
    };
    let chain = chained(json!({ "key": "00" }), Some("{}"), &document);
    let expected = json!({ "key": "00", "manifest": "{}", "profile": "spec: {}" });
    assert_eq!(chain, expected);
    assert_eq!(chained(chain.clone(), Some("{}"), &document), chain);
}

#[test]
fn only_what_is_of_one_thing_becomes_its_finding() {
    for (error, kind) in [
        (RegistryError::Denied, FindingKind::Denied),
        (RegistryError::TooLarge { limit: 1 }, FindingKind::TooLarge),
    ] {
        assert_eq!(own(error).expect("of one thing").kind, kind);
    }
    assert!(own(RegistryError::Stalled).is_err());
    assert!(own(RegistryError::Busy { again: None }).is_err());
    assert!(!is_of_the_whole(&RegistryError::Stalled));
    assert!(is_of_the_whole(&RegistryError::Unreachable(String::new())));
}
