//! How operating systems come from a registry into a project.

mod reports;
mod told;

use std::time::Duration;

use evenkeel_domain::Time;
use evenkeel_domain::id::OsId;
use evenkeel_domain::os::catalogue::{CycleOutcome, File, FileRole, Wish};
use evenkeel_domain::os::{OsKind, OsProfile, OsProvider, OsSpec, Sha256};
use evenkeel_domain::tenant::TenantId;
use evenkeel_store::contents::Digest;
use evenkeel_store::os_inside::{Inside, Kept, Made};
use evenkeel_store::os_reports::{Report, Row};
use evenkeel_store::testing::{fresh_store, rows_of};
use evenkeel_store::{Conflict, Store, StoreError, Tx, changes, contents, os_inside, os_profiles};
use futures_util::future::join;
use serde_json::json;

use crate::house::{NOON, bookworm, project};

/// What the holder of a key says of an image.
pub fn signature(digit: &str) -> String {
    format!("{}:MEUCIQ+/a9==", digit.repeat(64))
}

/// A version of an image that a registry has, without lists.
pub fn edge(version: &str) -> Made {
    let digest = |letter: &str| Sha256::parse("sha256", &letter.repeat(64)).expect("a digest");
    let path = format!("files/edge-{version}.raw.gz");
    let image = File {
        role: FileRole::Image,
        path: path.clone(),
        place: format!("web:https://files.example/{path}"),
        sha256: Some(digest("a")),
        size: Some(1 << 30),
    };
    Made {
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
        inside: Inside {
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

/// What is wanted of the registry.
pub fn wish(revision: &str) -> Wish {
    Wish {
        registry: Some("release".into()),
        revision: Some(revision.into()),
        enabled: Some(vec!["edge".into()]),
        default_profile: None,
    }
}

pub fn report(findings: Vec<Row>) -> Report {
    Report {
        registry: "release".into(),
        revision: "~0.3.1".into(),
        outcome: CycleOutcome::Partly,
        message: "not all was taken".into(),
        cycle: 7,
        started_at: NOON,
        ended_at: NOON + Duration::from_secs(1),
        made: 1,
        refreshed: 2,
        same: 3,
        refused: 4,
        findings,
    }
}

pub fn finding(kind: &str, since: Time) -> Row {
    Row {
        repository: "profiles/edge".into(),
        tag: "0.3.1".into(),
        kind: kind.into(),
        field: Some("spec.osImageUrl".into()),
        message: "it is not as it should be".into(),
        os: Some(OsId::nth(1)),
        since,
    }
}

/// Waits until one of the test's transactions waits for another one.
pub async fn somebody_waits(store: &Store) {
    let sql = "DO $$ BEGIN IF NOT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() \
               AND wait_event_type = 'Lock') THEN RAISE 'nobody waits'; END IF; END $$";
    let waits = async {
        while store.unprepared(sql).await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(30), waits).await;
    waited.expect("somebody waits");
}

async fn keep(store: &Store, tenant: TenantId, made: &Made) -> Kept {
    let tx = store.tenant(tenant).await.expect("a transaction");
    let kept = os_inside::keep(&tx, made, NOON).await.expect("kept");
    tx.commit().await.expect("committed");
    kept
}

/// The same, where it is new and has its own name.
async fn make(store: &Store, tenant: TenantId, made: &Made) -> OsId {
    match keep(store, tenant, made).await {
        Kept::Made { os, renamed: false } => os,
        other => panic!("{other:?}"),
    }
}

/// A list that operating systems can refer to.
async fn list(store: &Store, tenant: TenantId, letter: u8, body: &str) -> Option<Digest> {
    let tx = store.tenant(tenant).await.expect("a transaction");
    let digest = [letter; 32];
    contents::put(&tx, &digest, body, NOON).await.expect("kept");
    tx.commit().await.expect("committed");
    Some(digest)
}

async fn inside(tx: &Tx, os: OsId) -> Inside {
    let mut found = os_inside::find_many(tx, &[os]).await.expect("an answer");
    found.remove(&os).expect("it came from a registry")
}

async fn found(store: &Store, tenant: TenantId, os: OsId) -> (OsProfile, Inside) {
    let tx = store.tenant(tenant).await.expect("a transaction");
    let profile = os_profiles::find(&tx, os).await.expect("an entry");
    (profile, inside(&tx, os).await)
}

#[tokio::test]
async fn an_operating_system_is_made_once_and_then_says_what_its_profile_says() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let first = edge("3.0.1");
    let os = make(&store, tenant, &first).await;
    let (profile, inside) = found(&store, tenant, os).await;
    assert_eq!(
        (profile.spec, inside),
        (first.spec.clone(), first.inside.clone())
    );

    // The same once more, only looked at later.
    let before = rows_of(&store, tenant).await;
    let mut later = first.clone();
    later.inside.refreshed_at = NOON + Duration::from_mins(1);
    assert_eq!(keep(&store, tenant, &later).await, Kept::Same(os));
    assert!(
        rows_of(&store, tenant).await == before,
        "something was written"
    );

    // Its vulnerabilities are others: the entry itself is not touched, so no node is looked at again.
    later.inside.existing_cves = list(&store, tenant, 7, "[]").await;
    assert_eq!(keep(&store, tenant, &later).await, Kept::Refreshed(os));
    let (profile, inside) = found(&store, tenant, os).await;
    assert_eq!((profile.spec, inside), (first.spec.clone(), later.inside));
    let tx = store.tenant(tenant).await.expect("a transaction");
    let log = async |kind| changes::of(&tx, kind, os.bits()).await.expect("read").len();
    assert_eq!((log("os").await, log("os_inside").await), (1, 2));

    // Another release of the profile, with the same image.
    let mut second = first.clone();
    second.inside.revision = "0.3.2".into();
    second.inside.artifact = [2; 32];
    second.spec.name = "Edge renamed".into();
    second.spec.description = "Better.".into();
    second.spec.metadata = r#"{"release":"0.3.2"}"#.into();
    second.spec.image_signatures.push(signature("2"));
    assert_eq!(keep(&store, tenant, &second).await, Kept::Refreshed(os));
    let (profile, inside) = found(&store, tenant, os).await;
    let told = OsSpec {
        name: first.spec.name,
        ..second.spec
    };
    assert_eq!((profile.spec, inside), (told, second.inside));
}

#[tokio::test]
async fn what_a_person_changed_stays_until_the_profile_is_another_one() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let mut made = edge("3.0.1");
    let os = make(&store, tenant, &made).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let own = OsSpec {
        metadata: r#"{"ours":"yes"}"#.into(),
        image_signatures: vec![signature("2")],
        ..made.spec.clone()
    };
    os_profiles::change(&tx, os, &own, NOON)
        .await
        .expect("changed");
    tx.commit().await.expect("committed");
    let told = async || found(&store, tenant, os).await.0.spec;

    assert_eq!(keep(&store, tenant, &made).await, Kept::Same(os));
    made.inside.fixed_cves = list(&store, tenant, 7, "[]").await;
    assert_eq!(keep(&store, tenant, &made).await, Kept::Refreshed(os));
    assert_eq!(told().await, own);
    made.inside.artifact = [2; 32];
    assert_eq!(keep(&store, tenant, &made).await, Kept::Refreshed(os));
    assert_eq!(told().await, made.spec);
}

#[tokio::test]
async fn an_image_is_never_exchanged_for_another_one() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let made = edge("3.0.1");
    let os = make(&store, tenant, &made).await;
    let before = rows_of(&store, tenant).await;
    let mut others = [made.clone(), made.clone(), made];
    others[0].spec.sha256 = Sha256::parse("sha256", &"b".repeat(64)).expect("a digest");
    others[1].spec.kind = OsKind::Mutable;
    others[2].spec.image_url = "files/elsewhere.raw.gz".into();
    for mut other in others {
        other.inside.artifact = [2; 32];
        assert_eq!(keep(&store, tenant, &other).await, Kept::OtherImage(os));
    }
    assert!(
        rows_of(&store, tenant).await == before,
        "something was written"
    );
}

#[tokio::test]
async fn an_entry_that_somebody_made_by_hand_is_taken_over() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let made = edge("3.0.1");
    let by_hand = OsSpec {
        name: "ours".into(),
        description: "By hand.".into(),
        ..made.spec.clone()
    };
    let tx = store.tenant(tenant).await.expect("a transaction");
    let os = os_profiles::create(&tx, &by_hand, NOON).await;
    let os = os.expect("made").id;
    let kept = async {
        let tx = store.tenant(tenant).await.expect("a transaction");
        let kept = os_inside::keep(&tx, &made, NOON).await.expect("kept");
        tx.commit().await.expect("committed");
        kept
    };
    // It is about to be made when the registry's comes.
    let commit = async {
        somebody_waits(&store).await;
        tx.commit().await.expect("committed");
    };
    let (kept, ()) = join(kept, commit).await;
    assert_eq!(kept, Kept::Refreshed(os));
    let (profile, inside) = found(&store, tenant, os).await;
    assert_eq!(profile.spec.name, "ours");
    assert_eq!(profile.spec.description, made.spec.description);
    assert_eq!(inside, made.inside);
}

#[tokio::test]
async fn of_two_who_bring_the_same_at_once_one_makes_it() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let made = edge("3.0.1");
    let (one, other) = join(keep(&store, tenant, &made), keep(&store, tenant, &made)).await;
    let is_new = |kept: Kept| matches!(kept, Kept::Made { .. });
    let is_same = |kept: Kept| matches!(kept, Kept::Same(_));
    assert!(
        (is_new(one) && is_same(other)) || (is_same(one) && is_new(other)),
        "{one:?} {other:?}"
    );
}

#[tokio::test]
async fn a_name_that_is_taken_is_told_apart_by_line_and_version() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    make(&store, tenant, &edge("3.0.1")).await;
    let named = |version: &str, name: &str| {
        let mut made = edge(version);
        made.spec.name = name.into();
        made
    };
    let second = named("3.0.2", "Edge 3.0.1");
    let Kept::Made { os, renamed: true } = keep(&store, tenant, &second).await else {
        panic!("its name was taken");
    };
    let (profile, _) = found(&store, tenant, os).await;
    assert_eq!(profile.spec.name, "Edge 3.0.1 (edge 3.0.2)");
    assert_eq!(keep(&store, tenant, &second).await, Kept::Same(os));

    // And where that name is taken as well, nobody else is disturbed.
    make(&store, tenant, &named("3.0.3", "Edge 3.0.1 (edge 3.0.4)")).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let none = os_inside::keep(&tx, &named("3.0.4", "Edge 3.0.1"), NOON).await;
    match none {
        Err(StoreError::Conflict(Conflict::Taken { field, .. })) => assert_eq!(field, "name"),
        other => panic!("{other:?}"),
    }
    let good = os_inside::keep(&tx, &edge("3.0.5"), NOON).await;
    assert!(matches!(good, Ok(Kept::Made { renamed: false, .. })));
    tx.commit().await.expect("committed");
}

/// What the database would refuse, and what is said of it.
fn impossible() -> Vec<(Made, &'static str)> {
    let mut all = Vec::new();
    let mut bad = |why, change: &dyn Fn(&mut Made)| {
        let mut made = edge("3.0.1");
        change(&mut made);
        all.push((made, why));
    };
    let nul = "NUL";
    bad(nul, &|made| made.inside.registry.push('\0'));
    bad(nul, &|made| made.inside.repository.push('\0'));
    bad(nul, &|made| made.inside.revision.push('\0'));
    bad(nul, &|made| made.inside.platform_bundle.push('\0'));
    bad(nul, &|made| made.inside.files[0].path.push('\0'));
    bad(nul, &|made| made.inside.files[0].place.push('\0'));
    bad(nul, &|made| {
        made.inside.signature = Some(json!({ "a": [{ "b": "\0" }] }));
    });
    bad(nul, &|made| {
        made.inside.signature = Some(json!({ "\0": 1 }));
    });
    bad("name", &|made| made.spec.name.push('\0'));
    bad("profileName", &|made| made.spec.profile_name.push('\0'));
    bad("metadata", &|made| made.spec.metadata = "x".repeat(501));
    bad("platformBundle", &|made| {
        made.inside.platform_bundle = "x".repeat(10_001);
    });
    bad("imageSignatures", &|made| {
        made.spec.image_signatures = vec![signature("1"); 9];
    });
    bad("imageSignatures", &|made| {
        made.spec.image_signatures.push("\0".into());
    });
    bad("signature", &|made| made.inside.signature = Some(json!([])));
    bad("installedPackages", &|made| {
        made.inside.packages = Some([9; 32]);
    });
    bad("existingCves", &|made| {
        made.inside.existing_cves = Some([9; 32]);
    });
    bad("fixedCves", &|made| {
        made.inside.fixed_cves = Some([9; 32]);
    });
    all
}

#[tokio::test]
async fn what_the_database_would_refuse_disturbs_nothing_else() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    let keep = async |made: &Made| os_inside::keep(&tx, made, NOON).await;
    let before = keep(&edge("3.0.2")).await.expect("kept");
    for is_there in [false, true] {
        for (bad, why) in impossible() {
            match keep(&bad).await {
                Err(StoreError::Conflict(conflict)) => {
                    assert!(conflict.to_string().contains(why), "{why}: {conflict}");
                }
                other => panic!("{why}: {other:?}"),
            }
        }
        // What would have been touched is as good as ever.
        let good = keep(&edge("3.0.1")).await.expect("kept");
        assert_eq!(matches!(good, Kept::Same(_)), is_there, "{good:?}");
    }
    tx.commit().await.expect("committed");
    let Kept::Made { os, .. } = before else {
        panic!("{before:?}");
    };
    let (_, inside) = found(&store, tenant, os).await;
    assert_eq!(inside, edge("3.0.2").inside);
}

/// As much as may be of everything.
#[tokio::test]
async fn what_is_just_short_enough_is_kept() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let mut made = edge("3.0.1");
    made.inside.platform_bundle = "ä".repeat(5_000);
    made.spec.image_signatures = vec![format!("{}:{}", "1".repeat(64), "x".repeat(191)); 8];
    made.inside.signature = Some(json!({ "a": "\\u0000", "b": [1, 2.5, null, true] }));
    let os = make(&store, tenant, &made).await;
    let (profile, inside) = found(&store, tenant, os).await;
    assert_eq!((profile.spec, inside), (made.spec, made.inside));
}

#[tokio::test]
async fn an_operating_system_that_is_removed_takes_along_what_is_inside() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let mut made = edge("3.0.1");
    made.inside.packages = list(&store, tenant, 7, "{}").await;
    let os = make(&store, tenant, &made).await;
    let tx = store.tenant(tenant).await.expect("a transaction");
    os_profiles::delete(&tx, os).await.expect("removed");
    let gone = os_inside::find_many(&tx, &[os]).await.expect("an answer");
    assert!(gone.is_empty());
    tx.commit().await.expect("committed");
    // At the next sync it comes again, as another one.
    assert_ne!(make(&store, tenant, &made).await, os);
}
