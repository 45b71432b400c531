//! Documents attached to profiles.

use chrono::TimeDelta;
use evenkeel_domain::os::catalogue::{AttachmentKind, CatalogFile, FileRole};
use evenkeel_store::os_catalogue::{self, Artifact, Attachment, AttachmentKey};
use evenkeel_store::testing::fresh_store;
use evenkeel_store::{FleetTx, StoreError};
use serde_json::json;

use super::{REGISTRY, artifact, begin_cycle, finish};
use crate::fixtures::NOON;

fn key(location: &str, filtered_by: Option<[u8; 32]>) -> AttachmentKey {
    AttachmentKey { location: location.to_owned(), kind: AttachmentKind::Cves, filtered_by }
}

pub fn attachment(location: &str) -> Attachment {
    Attachment {
        key: key(location, None),
        digest: Some([7; 32]),
        etag: Some("\"seven\"".to_owned()),
        findings: Vec::new(),
        fetched_at: NOON,
    }
}

#[tokio::test]
async fn the_last_good_body_of_a_document_stays() {
    let store = fresh_store().await;
    let mine = begin_cycle(&store).await;
    let missing = Attachment {
        findings: vec![json!({"kind": "not_there"})],
        etag: None,
        ..attachment("here")
    };
    assert!(in_transaction!(store, store_attachment(&mine, &missing, None)));
    let nothing = Attachment { digest: None, ..missing.clone() };
    assert_eq!(in_transaction!(store, list_attachments(REGISTRY)), [nothing]);
    let here = key("here", None);
    assert_eq!(in_transaction!(store, attachment_body(REGISTRY, &here)), None);

    assert!(in_transaction!(store, store_attachment(&mine, &attachment("here"), Some("[1]"))));
    assert_eq!(in_transaction!(store, list_attachments(REGISTRY)), [attachment("here")]);
    let bad =
        Attachment { digest: Some([8; 32]), fetched_at: NOON + TimeDelta::hours(1), ..missing };
    assert!(in_transaction!(store, store_attachment(&mine, &bad, None)));
    let stored = Attachment { digest: Some([7; 32]), ..bad };
    assert_eq!(in_transaction!(store, list_attachments(REGISTRY)), [stored]);
    let body = in_transaction!(store, attachment_body(REGISTRY, &here));
    assert_eq!(body.as_deref(), Some("[1]"));
    let better = Attachment { digest: Some([9; 32]), ..attachment("here") };
    assert!(in_transaction!(store, store_attachment(&mine, &better, Some("[2]"))));
    assert_eq!(in_transaction!(store, list_attachments(REGISTRY)), [better]);
    let body = in_transaction!(store, attachment_body(REGISTRY, &here));
    assert_eq!(body.as_deref(), Some("[2]"));
}

#[tokio::test]
async fn a_document_filtered_by_other_packages_is_another_document() {
    let store = fresh_store().await;
    let mine = begin_cycle(&store).await;
    for (filtered_by, body) in [(None, "all"), (Some([1; 32]), "one"), (Some([2; 32]), "two")] {
        let cut = Attachment { key: key("here", filtered_by), ..attachment("here") };
        assert!(in_transaction!(store, store_attachment(&mine, &cut, Some(body))));
    }
    let attachments = in_transaction!(store, list_attachments(REGISTRY));
    let filters: Vec<_> = attachments.iter().map(|side| side.key.filtered_by).collect();
    assert_eq!(filters, [None, Some([1; 32]), Some([2; 32])]);
    for (one, body) in attachments.iter().zip(["all", "one", "two"]) {
        let stored = in_transaction!(store, attachment_body(REGISTRY, &one.key));
        assert_eq!(stored.as_deref(), Some(body));
        assert_eq!(in_transaction!(store, attachment_body("else", &one.key)), None);
    }
    // A body needs a digest.
    let undigested = Attachment { digest: None, ..attachment("here") };
    let tx = store.fleet().await.expect("a transaction");
    let refused = os_catalogue::store_attachment(&tx, &mine, &undigested, Some("[]")).await;
    assert!(matches!(refused, Err(StoreError::Conflict(_))), "{refused:?}");
}

#[tokio::test]
async fn documents_without_a_tag_are_deleted() {
    let store = fresh_store().await;
    let mine = begin_cycle(&store).await;
    let cut = |filtered_by| Attachment { key: key("cves", filtered_by), ..attachment("cves") };
    let list = Attachment {
        key: AttachmentKey { kind: AttachmentKind::Packages, ..key("list", None) },
        digest: Some([1; 32]),
        ..attachment("list")
    };
    let old = [cut(Some([2; 32])), attachment("nowhere"), attachment("gone")];
    let referenced = [cut(None), cut(Some([1; 32])), list];
    for one in old.iter().chain(&referenced) {
        assert!(in_transaction!(store, store_attachment(&mine, one, Some("[]"))));
    }
    let file = |source: &str| CatalogFile {
        role: FileRole::FixedCves,
        path: "a".to_owned(),
        source: source.to_owned(),
        sha256: None,
        size: None,
    };
    let removed = Artifact { files: vec![file("gone")], ..artifact("edge", "0.3.0") };
    assert!(in_transaction!(store, store_artifact(&mine, &removed)));
    finish(&store, &mine).await;
    let mine = begin_cycle(&store).await;
    let there = Artifact { files: vec![file("cves"), file("list")], ..artifact("edge", "0.3.1") };
    assert!(in_transaction!(store, store_artifact(&mine, &there)));
    let listed = ["edge".to_owned()];
    assert_eq!(in_transaction!(store, mark_gone(&mine, &listed, NOON)), 1);
    for expected in [2, 1] {
        assert_eq!(in_transaction!(store, delete_unused_attachments(&mine, 2)), expected);
    }
    assert_eq!(in_transaction!(store, list_attachments(REGISTRY)), referenced);
    assert_eq!(in_transaction!(store, delete_unused_attachments(&mine, 2)), 0);
}
