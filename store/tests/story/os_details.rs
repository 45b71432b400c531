//! Imports of operating systems from a registry into a project.

mod queries;
mod reports;

use std::time::Duration;

use evenkeel_domain::Time;
use evenkeel_domain::id::OsId;
use evenkeel_domain::os::catalogue::{CatalogFile, CatalogSelection, CycleOutcome, FileRole};
use evenkeel_domain::os::{OsKind, OsProfile, OsProvider, OsSpec, Sha256};
use evenkeel_domain::tenant::TenantId;
use evenkeel_store::contents::ContentDigest;
use evenkeel_store::os_details::{ImportOutcome, ImportedOs, OsDetails};
use evenkeel_store::os_reports::{SyncFinding, SyncReport};
use evenkeel_store::testing::{drop_check_constraints, tenant_rows};
use evenkeel_store::{Conflict, Store, StoreError, Tx, changes, contents, os_details, os_profiles};
use futures_util::future::join;
use serde_json::json;

use crate::fixtures::{NOON, bookworm, execute_sql, store_with_project};

/// A signature of an image by one key.
pub fn signature(digit: &str) -> String {
    format!("{}:MEUCIQ+/a9==", digit.repeat(64))
}

/// A version of an image in a registry, without lists.
pub fn edge(version: &str) -> ImportedOs {
    let digest = |letter: &str| Sha256::parse("sha256", &letter.repeat(64)).expect("a digest");
    let path = format!("files/edge-{version}.raw.gz");
    let image = CatalogFile {
        role: FileRole::Image,
        path: path.clone(),
        source: format!("web:https://files.example/{path}"),
        sha256: Some(digest("a")),
        size: Some(1 << 30),
    };
    ImportedOs {
        spec: OsSpec {
            name: format!("Edge {version}"),
            kind: OsKind::Immutable,
            provider: OsProvider::Infra,
            profile_name: "edge".into(),
            image_id: version.into(),
            image_url: path,
            sha256: digest("a"),
            image_signatures: vec![signature("1")],
            ..bookworm()
        },
        details: OsDetails {
            registry: "release".into(),
            repository: "profiles/edge".into(),
            revision: "0.3.1".into(),
            artifact: [1; 32],
            platform_bundle: String::new(),
            signature: Some(json!({ "key": "a key", "payload": "a payload" })),
            files: vec![image],
            packages: None,
            existing_cves: None,
            fixed_cves: None,
            refreshed_at: NOON,
        },
    }
}

/// A catalogue selection with one profile.
pub fn selection(revision: &str) -> CatalogSelection {
    CatalogSelection {
        registry: Some("release".into()),
        revision: Some(revision.into()),
        enabled: Some(vec!["edge".into()]),
        default_profile: None,
    }
}

pub fn report(findings: Vec<SyncFinding>) -> SyncReport {
    SyncReport {
        registry: "release".into(),
        revision: "~0.3.1".into(),
        outcome: CycleOutcome::Partial,
        message: "the import is incomplete".into(),
        cycle: 7,
        started_at: NOON,
        ended_at: NOON + Duration::from_secs(1),
        created: 1,
        updated: 2,
        unchanged: 3,
        refused: 4,
        findings,
    }
}

pub fn finding(kind: &str, since: Time) -> SyncFinding {
    SyncFinding {
        repository: "profiles/edge".into(),
        tag: "0.3.1".into(),
        kind: kind.into(),
        field: Some("spec.osImageUrl".into()),
        message: "it is invalid".into(),
        os: Some(OsId::nth(1)),
        since,
    }
}

/// Waits until a transaction of the test is blocked by a lock.
pub async fn wait_for_blocked_transaction(store: &Store) {
    let sql = "DO $$ BEGIN IF NOT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() \
               AND wait_event_type = 'Lock') THEN RAISE 'no transaction is blocked'; END IF; END $$";
    let waits = async {
        while store.execute_unprepared(sql).await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(30), waits).await;
    waited.expect("a blocked transaction");
}

async fn import(store: &Store, tenant: TenantId, imported: &ImportedOs) -> ImportOutcome {
    let tx = store.tenant(tenant).await.expect("a transaction");
    let outcome = os_details::import(&tx, imported, NOON).await.expect("stored");
    tx.commit().await.expect("committed");
    outcome
}

/// Imports an operating system that is new and keeps its name.
async fn import_new(store: &Store, tenant: TenantId, imported: &ImportedOs) -> OsId {
    match import(store, tenant, imported).await {
        ImportOutcome::Created { os, renamed: false } => os,
        other => panic!("{other:?}"),
    }
}

/// Stores a list that operating systems can refer to.
async fn store_list(
    store: &Store,
    tenant: TenantId,
    letter: u8,
    body: &str,
) -> Option<ContentDigest> {
    let tx = store.tenant(tenant).await.expect("a transaction");
    let digest = [letter; 32];
    contents::insert_if_missing(&tx, &digest, body, NOON).await.expect("stored");
    tx.commit().await.expect("committed");
    Some(digest)
}

async fn load_details(tx: &Tx, os: OsId) -> OsDetails {
    let mut details = os_details::find_many(tx, &[os]).await.expect("an answer");
    details.remove(&os).expect("details")
}

async fn load_profile(store: &Store, tenant: TenantId, os: OsId) -> (OsProfile, OsDetails) {
    let tx = store.tenant(tenant).await.expect("a transaction");
    let profile = os_profiles::find(&tx, os).await.expect("an entry");
    (profile, load_details(&tx, os).await)
}

#[tokio::test]
async fn an_operating_system_is_created_once_and_then_follows_its_profile() {
    let (store, tenant) = store_with_project().await;
    let first = edge("3.0.1");
    let os = import_new(&store, tenant, &first).await;
    let (profile, details) = load_profile(&store, tenant, os).await;
    assert_eq!((profile.spec, details), (first.spec.clone(), first.details.clone()));

    // The same content at a later time.
    let before = tenant_rows(&store, tenant).await;
    let mut later = first.clone();
    later.details.refreshed_at = NOON + Duration::from_mins(1);
    assert_eq!(import(&store, tenant, &later).await, ImportOutcome::Unchanged(os));
    assert!(tenant_rows(&store, tenant).await == before, "something was written");

    // Only its vulnerabilities change. The entry itself is not written, so no decision is made
    // again.
    later.details.existing_cves = store_list(&store, tenant, 7, "[]").await;
    assert_eq!(import(&store, tenant, &later).await, ImportOutcome::Updated(os));
    let (profile, details) = load_profile(&store, tenant, os).await;
    assert_eq!((profile.spec, details), (first.spec.clone(), later.details));
    let tx = store.tenant(tenant).await.expect("a transaction");
    let log =
        async |kind| changes::list_for_resource(&tx, kind, os.bits()).await.expect("read").len();
    assert_eq!((log("os").await, log("os_details").await), (1, 2));

    // Another revision of the profile with the same image.
    let mut second = first.clone();
    second.details.revision = "0.3.2".into();
    second.details.artifact = [2; 32];
    second.spec.name = "Edge renamed".into();
    second.spec.description = "Better.".into();
    second.spec.metadata = r#"{"release":"0.3.2"}"#.into();
    second.spec.image_signatures.push(signature("2"));
    assert_eq!(import(&store, tenant, &second).await, ImportOutcome::Updated(os));
    let (profile, details) = load_profile(&store, tenant, os).await;
    let expected = OsSpec { name: first.spec.name, ..second.spec };
    assert_eq!((profile.spec, details), (expected, second.details));
}

#[tokio::test]
async fn a_manual_change_stays_until_the_profile_changes() {
    let (store, tenant) = store_with_project().await;
    let mut imported = edge("3.0.1");
    let os = import_new(&store, tenant, &imported).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let own = OsSpec {
        metadata: r#"{"ours":"yes"}"#.into(),
        image_signatures: vec![signature("2")],
        ..imported.spec.clone()
    };
    os_profiles::change(&tx, os, &own, NOON).await.expect("changed");
    tx.commit().await.expect("committed");
    let current_spec = async || load_profile(&store, tenant, os).await.0.spec;

    assert_eq!(import(&store, tenant, &imported).await, ImportOutcome::Unchanged(os));
    imported.details.fixed_cves = store_list(&store, tenant, 7, "[]").await;
    assert_eq!(import(&store, tenant, &imported).await, ImportOutcome::Updated(os));
    assert_eq!(current_spec().await, own);
    imported.details.artifact = [2; 32];
    assert_eq!(import(&store, tenant, &imported).await, ImportOutcome::Updated(os));
    assert_eq!(current_spec().await, imported.spec);
}

#[tokio::test]
async fn an_image_is_never_replaced_by_another() {
    let (store, tenant) = store_with_project().await;
    let imported = edge("3.0.1");
    let os = import_new(&store, tenant, &imported).await;
    let before = tenant_rows(&store, tenant).await;
    let mut others = [imported.clone(), imported.clone(), imported];
    others[0].spec.sha256 = Sha256::parse("sha256", &"b".repeat(64)).expect("a digest");
    others[1].spec.kind = OsKind::Mutable;
    others[2].spec.image_url = "files/elsewhere.raw.gz".into();
    for mut other in others {
        other.details.artifact = [2; 32];
        assert_eq!(import(&store, tenant, &other).await, ImportOutcome::OtherImage(os));
    }
    assert!(tenant_rows(&store, tenant).await == before, "something was written");
}

/// This release can neither compare nor describe an image of a kind that it does not know.
#[tokio::test]
async fn an_entry_of_a_newer_release_stays_unchanged() {
    let (store, tenant) = store_with_project().await;
    let mut imported = edge("3.0.1");
    let os = import_new(&store, tenant, &imported).await;
    drop_check_constraints(&store).await;
    execute_sql(&store, "UPDATE os_profiles SET kind = 'atomic'").await;
    let before = tenant_rows(&store, tenant).await;
    imported.details.artifact = [2; 32];
    assert_eq!(import(&store, tenant, &imported).await, ImportOutcome::Unchanged(os));
    assert!(tenant_rows(&store, tenant).await == before, "something was written");
}

#[tokio::test]
async fn an_entry_created_by_hand_is_adopted() {
    let (store, tenant) = store_with_project().await;
    let imported = edge("3.0.1");
    let by_hand =
        OsSpec { name: "ours".into(), description: "By hand.".into(), ..imported.spec.clone() };
    let tx = store.tenant(tenant).await.expect("a transaction");
    let os = os_profiles::create(&tx, &by_hand, NOON).await;
    let os = os.expect("created").id;
    let importing = async {
        let tx = store.tenant(tenant).await.expect("a transaction");
        let outcome = os_details::import(&tx, &imported, NOON).await.expect("stored");
        tx.commit().await.expect("committed");
        outcome
    };
    // The manual entry is not yet committed when the import starts.
    let commit = async {
        wait_for_blocked_transaction(&store).await;
        tx.commit().await.expect("committed");
    };
    let (outcome, ()) = join(importing, commit).await;
    assert_eq!(outcome, ImportOutcome::Updated(os));
    let (profile, details) = load_profile(&store, tenant, os).await;
    assert_eq!(profile.spec.name, "ours");
    assert_eq!(profile.spec.description, imported.spec.description);
    assert_eq!(details, imported.details);
}

#[tokio::test]
async fn concurrent_imports_create_one_entry() {
    let (store, tenant) = store_with_project().await;
    let imported = edge("3.0.1");
    let (one, other) =
        join(import(&store, tenant, &imported), import(&store, tenant, &imported)).await;
    let is_new = |outcome: ImportOutcome| matches!(outcome, ImportOutcome::Created { .. });
    let is_same = |outcome: ImportOutcome| matches!(outcome, ImportOutcome::Unchanged(_));
    assert!(
        (is_new(one) && is_same(other)) || (is_same(one) && is_new(other)),
        "{one:?} {other:?}"
    );
}

#[tokio::test]
async fn a_name_in_use_is_extended_by_profile_and_version() {
    let (store, tenant) = store_with_project().await;
    import_new(&store, tenant, &edge("3.0.1")).await;
    let with_name = |version: &str, name: &str| {
        let mut imported = edge(version);
        imported.spec.name = name.into();
        imported
    };
    let second = with_name("3.0.2", "Edge 3.0.1");
    let ImportOutcome::Created { os, renamed: true } = import(&store, tenant, &second).await else {
        panic!("expected another name");
    };
    let (profile, _) = load_profile(&store, tenant, os).await;
    assert_eq!(profile.spec.name, "Edge 3.0.1 (edge 3.0.2)");
    assert_eq!(import(&store, tenant, &second).await, ImportOutcome::Unchanged(os));

    // If the longer name is in use as well, the import fails without disturbing others.
    import_new(&store, tenant, &with_name("3.0.3", "Edge 3.0.1 (edge 3.0.4)")).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let none = os_details::import(&tx, &with_name("3.0.4", "Edge 3.0.1"), NOON).await;
    match none {
        Err(StoreError::Conflict(Conflict::AlreadyExists { field, .. })) => {
            assert_eq!(field, "name");
        }
        other => panic!("{other:?}"),
    }
    let good = os_details::import(&tx, &edge("3.0.5"), NOON).await;
    assert!(matches!(good, Ok(ImportOutcome::Created { renamed: false, .. })));
    tx.commit().await.expect("committed");
}

/// Imports that the database would reject, with a part of the error text.
fn invalid_imports() -> Vec<(ImportedOs, &'static str)> {
    let mut all = Vec::new();
    let mut bad = |why, change: &dyn Fn(&mut ImportedOs)| {
        let mut imported = edge("3.0.1");
        change(&mut imported);
        all.push((imported, why));
    };
    let nul = "NUL";
    bad(nul, &|imported| imported.details.registry.push('\0'));
    bad(nul, &|imported| imported.details.repository.push('\0'));
    bad(nul, &|imported| imported.details.revision.push('\0'));
    bad(nul, &|imported| imported.details.platform_bundle.push('\0'));
    bad(nul, &|imported| imported.details.files[0].path.push('\0'));
    bad(nul, &|imported| imported.details.files[0].source.push('\0'));
    bad(nul, &|imported| {
        imported.details.signature = Some(json!({ "a": [{ "b": "\0" }] }));
    });
    bad(nul, &|imported| {
        imported.details.signature = Some(json!({ "\0": 1 }));
    });
    bad("name", &|imported| imported.spec.name.push('\0'));
    bad("profileName", &|imported| {
        imported.spec.profile_name.push('\0');
    });
    bad("metadata", &|imported| {
        imported.spec.metadata = "x".repeat(501);
    });
    bad("platformBundle", &|imported| {
        imported.details.platform_bundle = "x".repeat(10_001);
    });
    bad("imageSignatures", &|imported| {
        imported.spec.image_signatures = vec![signature("1"); 9];
    });
    bad("imageSignatures", &|imported| {
        imported.spec.image_signatures.push("\0".into());
    });
    bad("signature", &|imported| {
        imported.details.signature = Some(json!([]));
    });
    bad("installedPackages", &|imported| {
        imported.details.packages = Some([9; 32]);
    });
    bad("existingCves", &|imported| {
        imported.details.existing_cves = Some([9; 32]);
    });
    bad("fixedCves", &|imported| {
        imported.details.fixed_cves = Some([9; 32]);
    });
    all
}

#[tokio::test]
async fn an_invalid_import_does_not_disturb_its_transaction() {
    let (store, tenant) = store_with_project().await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let try_import = async |imported: &ImportedOs| os_details::import(&tx, imported, NOON).await;
    let before = try_import(&edge("3.0.2")).await.expect("stored");
    for is_there in [false, true] {
        for (bad, why) in invalid_imports() {
            match try_import(&bad).await {
                Err(StoreError::Conflict(conflict)) => {
                    assert!(conflict.to_string().contains(why), "{why}: {conflict}");
                }
                other => panic!("{why}: {other:?}"),
            }
        }
        // The transaction is still usable.
        let good = try_import(&edge("3.0.1")).await.expect("stored");
        assert_eq!(matches!(good, ImportOutcome::Unchanged(_)), is_there, "{good:?}");
    }
    tx.commit().await.expect("committed");
    let ImportOutcome::Created { os, .. } = before else {
        panic!("{before:?}");
    };
    let (_, details) = load_profile(&store, tenant, os).await;
    assert_eq!(details, edge("3.0.2").details);
}

/// The longest values that are accepted.
#[tokio::test]
async fn values_at_their_limits_are_stored() {
    let (store, tenant) = store_with_project().await;
    let mut imported = edge("3.0.1");
    imported.details.platform_bundle = "ä".repeat(5_000);
    imported.spec.image_signatures = vec![format!("{}:{}", "1".repeat(64), "x".repeat(191)); 8];
    imported.details.signature = Some(json!({ "a": "\\u0000", "b": [1, 2.5, null, true] }));
    let os = import_new(&store, tenant, &imported).await;
    let (profile, details) = load_profile(&store, tenant, os).await;
    assert_eq!((profile.spec, details), (imported.spec, imported.details));
}

#[tokio::test]
async fn details_are_deleted_with_their_operating_system() {
    let (store, tenant) = store_with_project().await;
    let mut imported = edge("3.0.1");
    imported.details.packages = store_list(&store, tenant, 7, "{}").await;
    let os = import_new(&store, tenant, &imported).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    os_profiles::delete(&tx, os).await.expect("removed");
    let remaining = os_details::find_many(&tx, &[os]).await.expect("an answer");
    assert!(remaining.is_empty());
    tx.commit().await.expect("committed");
    // The next sync creates it again with another id.
    assert_ne!(import_new(&store, tenant, &imported).await, os);
}
