//! Documents beside profiles.

use chrono::TimeDelta;
use evenkeel_domain::os::catalogue::{File, FileRole, SideKind};
use evenkeel_store::os_catalogue::{self, Artifact, Side, SideKey};
use evenkeel_store::testing::fresh_store;
use evenkeel_store::{FleetTx, StoreError};
use serde_json::json;

use super::{REGISTRY, artifact, cycle, finish};
use crate::house::NOON;

fn key(place: &str, filtered_by: Option<[u8; 32]>) -> SideKey {
    SideKey {
        place: place.to_owned(),
        kind: SideKind::Cves,
        filtered_by,
    }
}

pub fn side(place: &str) -> Side {
    Side {
        key: key(place, None),
        digest: Some([7; 32]),
        etag: Some("\"seven\"".to_owned()),
        findings: Vec::new(),
        fetched_at: NOON,
    }
}

#[tokio::test]
async fn the_last_good_body_of_a_document_stays() {
    let store = fresh_store().await;
    let mine = cycle(&store).await;
    let missing = Side {
        findings: vec![json!({"kind": "not_there"})],
        etag: None,
        ..side("here")
    };
    assert!(alone!(store, keep_side(&mine, &missing, None)));
    let nothing = Side {
        digest: None,
        ..missing.clone()
    };
    assert_eq!(alone!(store, sides(REGISTRY)), [nothing]);
    let here = key("here", None);
    assert_eq!(alone!(store, side_body(REGISTRY, &here)), None);

    assert!(alone!(store, keep_side(&mine, &side("here"), Some("[1]"))));
    assert_eq!(alone!(store, sides(REGISTRY)), [side("here")]);
    let bad = Side {
        digest: Some([8; 32]),
        fetched_at: NOON + TimeDelta::hours(1),
        ..missing
    };
    assert!(alone!(store, keep_side(&mine, &bad, None)));
    let shown = Side {
        digest: Some([7; 32]),
        ..bad
    };
    assert_eq!(alone!(store, sides(REGISTRY)), [shown]);
    let body = alone!(store, side_body(REGISTRY, &here));
    assert_eq!(body.as_deref(), Some("[1]"));
    let better = Side {
        digest: Some([9; 32]),
        ..side("here")
    };
    assert!(alone!(store, keep_side(&mine, &better, Some("[2]"))));
    assert_eq!(alone!(store, sides(REGISTRY)), [better]);
    let body = alone!(store, side_body(REGISTRY, &here));
    assert_eq!(body.as_deref(), Some("[2]"));
}

#[tokio::test]
async fn a_document_is_another_one_when_it_is_cut_down_to_other_packages() {
    let store = fresh_store().await;
    let mine = cycle(&store).await;
    for (filtered_by, body) in [
        (None, "all"),
        (Some([1; 32]), "one"),
        (Some([2; 32]), "two"),
    ] {
        let cut = Side {
            key: key("here", filtered_by),
            ..side("here")
        };
        assert!(alone!(store, keep_side(&mine, &cut, Some(body))));
    }
    let found = alone!(store, sides(REGISTRY));
    let filters: Vec<_> = found.iter().map(|side| side.key.filtered_by).collect();
    assert_eq!(filters, [None, Some([1; 32]), Some([2; 32])]);
    for (one, body) in found.iter().zip(["all", "one", "two"]) {
        let kept = alone!(store, side_body(REGISTRY, &one.key));
        assert_eq!(kept.as_deref(), Some(body));
        assert_eq!(alone!(store, side_body("else", &one.key)), None);
    }
    // Whoever has a body has its digest.
    let undigested = Side {
        digest: None,
        ..side("here")
    };
    let tx = store.fleet().await.expect("a transaction");
    let refused = os_catalogue::keep_side(&tx, &mine, &undigested, Some("[]")).await;
    assert!(
        matches!(refused, Err(StoreError::Conflict(_))),
        "{refused:?}"
    );
}

#[tokio::test]
async fn documents_are_forgotten_that_no_tag_leads_to() {
    let store = fresh_store().await;
    let mine = cycle(&store).await;
    let cut = |filtered_by| Side {
        key: key("cves", filtered_by),
        ..side("cves")
    };
    let list = Side {
        key: SideKey {
            kind: SideKind::Packages,
            ..key("list", None)
        },
        digest: Some([1; 32]),
        ..side("list")
    };
    let old = [cut(Some([2; 32])), side("nowhere"), side("gone")];
    let named = [cut(None), cut(Some([1; 32])), list];
    for one in old.iter().chain(&named) {
        assert!(alone!(store, keep_side(&mine, one, Some("[]"))));
    }
    let file = |place: &str| File {
        role: FileRole::FixedCves,
        path: "a".to_owned(),
        place: place.to_owned(),
        sha256: None,
        size: None,
    };
    let gone = Artifact {
        files: vec![file("gone")],
        ..artifact("edge", "0.3.0")
    };
    assert!(alone!(store, keep(&mine, &gone)));
    finish(&store, &mine).await;
    let mine = cycle(&store).await;
    let there = Artifact {
        files: vec![file("cves"), file("list")],
        ..artifact("edge", "0.3.1")
    };
    assert!(alone!(store, keep(&mine, &there)));
    let listed = ["edge".to_owned()];
    assert_eq!(alone!(store, mark_gone(&mine, &listed, NOON)), 1);
    assert_eq!(alone!(store, forget_sides(&mine)), 3);
    assert_eq!(alone!(store, sides(REGISTRY)), named);
    assert_eq!(alone!(store, forget_sides(&mine)), 0);
}
