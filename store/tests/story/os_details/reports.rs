//! Catalogue selections of projects, and reports of their syncs.

use chrono::TimeDelta;
use evenkeel_domain::os::catalogue::{CatalogSelection, CycleOutcome};
use evenkeel_domain::tenant::TenantId;
use evenkeel_store::os_reports::{MAX_FINDINGS, SyncFinding, SyncReport};
use evenkeel_store::testing::fresh_store;
use evenkeel_store::{Conflict, Store, StoreError, os_reports, os_settings};

use super::{finding, report, selection};
use crate::fixtures::{NOON, create_project, store_with_project, store_with_two_projects};

const HOUR: TimeDelta = TimeDelta::hours(1);

async fn set_selection(store: &Store, tenant: TenantId, selection: &CatalogSelection) {
    let tx = store.tenant(tenant).await.expect("a transaction");
    os_settings::set(&tx, selection).await.expect("set");
    tx.commit().await.expect("committed");
}

/// Replaces the report and reads it back.
async fn replace_report(store: &Store, tenant: TenantId, report: &SyncReport) -> SyncReport {
    let tx = store.tenant(tenant).await.expect("a transaction");
    os_reports::replace(&tx, report).await.expect("replaced");
    tx.commit().await.expect("committed");
    let tx = store.tenant(tenant).await.expect("a transaction");
    let stored = os_reports::find(&tx).await.expect("an answer");
    stored.expect("a report")
}

#[tokio::test]
async fn the_last_selection_of_a_project_is_stored() {
    let (store, ours, theirs) = store_with_two_projects().await;
    let tx = store.tenant(ours).await.expect("a transaction");
    assert_eq!(os_settings::find(&tx).await.expect("an answer"), None);
    drop(tx);
    let empty = CatalogSelection {
        enabled: Some(Vec::new()),
        default_profile: Some(String::new()),
        ..CatalogSelection::default()
    };
    for selection in [selection("~0.3.1"), selection("main"), CatalogSelection::default(), empty] {
        set_selection(&store, ours, &selection).await;
        let tx = store.tenant(ours).await.expect("a transaction");
        let stored = os_settings::find(&tx).await.expect("an answer");
        assert_eq!(stored.as_ref(), Some(&selection));
        let tx = store.fleet().await.expect("a transaction");
        let mut all = os_settings::all(&tx).await.expect("an answer");
        all.sort_by_key(|(tenant, _)| *tenant != ours);
        assert_eq!(all, [(ours, Some(selection)), (theirs, None)]);
    }
}

#[tokio::test]
async fn projects_without_a_report_or_with_a_new_selection_are_listed() {
    let store = fresh_store().await;
    let (one, two) = (create_project(&store, "one").await, create_project(&store, "two").await);
    let missing = async |limit| {
        let tx = store.fleet().await.expect("a transaction");
        os_reports::list_missing(&tx, limit).await.expect("an answer")
    };
    assert_eq!(missing(10).await.len(), 2);
    assert_eq!(missing(1).await.len(), 1);
    assert_eq!(missing(0).await, []);
    // A project with a selection comes first, regardless of its age.
    for tenant in [one, two] {
        set_selection(&store, tenant, &selection("main")).await;
        assert_eq!(missing(1).await.len(), 1);
        replace_report(&store, tenant, &report(vec![finding("gone", NOON)])).await;
    }
    assert_eq!(missing(10).await, []);
    set_selection(&store, two, &selection("~0.3.1")).await;
    assert_eq!(missing(10).await, [two]);
    let third = create_project(&store, "three").await;
    assert_eq!(missing(1).await, [two]);
    assert_eq!(missing(10).await, [two, third]);
    let tx = store.tenant(two).await.expect("a transaction");
    assert_eq!(os_reports::find(&tx).await.expect("an answer"), None);
}

#[tokio::test]
async fn a_report_replaces_the_previous_one() {
    let (store, tenant) = store_with_project().await;
    let first = report(vec![finding("gone", NOON), finding("yaml", NOON)]);
    assert_eq!(replace_report(&store, tenant, &first).await, first);
    let second = SyncReport {
        registry: "other".into(),
        revision: "main".into(),
        outcome: CycleOutcome::Good,
        message: String::new(),
        cycle: i64::MAX,
        started_at: NOON + HOUR,
        ended_at: NOON + HOUR * 2,
        created: 0,
        updated: 0,
        unchanged: 200,
        refused: 0,
        findings: Vec::new(),
    };
    assert_eq!(replace_report(&store, tenant, &second).await, second);
}

#[tokio::test]
async fn a_finding_retains_its_first_time() {
    let (store, tenant) = store_with_project().await;
    replace_report(&store, tenant, &report(vec![finding("gone", NOON)])).await;
    let later = NOON + HOUR;
    let same = finding("gone", later);
    let mut others = vec![same.clone(); 6];
    others[0].repository = "profiles/other".into();
    others[1].tag = "0.3.2".into();
    others[2].kind = "yaml".into();
    others[3].field = None;
    others[4].message = "it is another problem".into();
    others[5].os = None;
    let mut all = others.clone();
    all.push(same);
    let findings = replace_report(&store, tenant, &report(all)).await.findings;
    let (last, rest) = findings.split_last().expect("a finding");
    assert_eq!(rest, others);
    assert_eq!(*last, finding("gone", NOON));

    // A finding that was absent in between starts a new period.
    replace_report(&store, tenant, &report(Vec::new())).await;
    let again = report(vec![finding("gone", later)]);
    assert_eq!(replace_report(&store, tenant, &again).await, again);
}

/// Unusual contents of a registry must not prevent the report.
#[tokio::test]
async fn any_finding_fits_into_a_report() {
    let (store, tenant) = store_with_project().await;
    let strange = SyncFinding {
        repository: "a\0b".into(),
        tag: "\0".into(),
        field: Some("\0\0".into()),
        message: format!("\0{}", "ä".repeat(600)),
        ..finding("yaml", NOON)
    };
    let many = SyncReport { message: "ä".repeat(501), ..report(vec![strange; MAX_FINDINGS + 1]) };
    for _ in 0..2 {
        let stored = replace_report(&store, tenant, &many).await;
        assert_eq!(stored.message, "ä".repeat(500));
        assert_eq!(stored.findings.len(), MAX_FINDINGS);
        let expected = SyncFinding {
            repository: "a␀b".into(),
            tag: "␀".into(),
            field: Some("␀␀".into()),
            message: format!("␀{}", "ä".repeat(498)),
            ..finding("yaml", NOON)
        };
        assert!(stored.findings.iter().all(|row| *row == expected));
    }
}

#[tokio::test]
async fn an_invalid_selection_is_rejected() {
    let (store, tenant) = store_with_project().await;
    for bad in [selection(""), selection(&"x".repeat(129))] {
        let tx = store.tenant(tenant).await.expect("a transaction");
        let refused = os_settings::set(&tx, &bad).await;
        assert!(matches!(refused, Err(StoreError::Conflict(Conflict::Rule { .. }))), "{refused:?}");
    }
}
