//! What projects want of registries, and how their syncs went.

use chrono::TimeDelta;
use evenkeel_domain::os::catalogue::{CycleOutcome, Wish};
use evenkeel_domain::tenant::TenantId;
use evenkeel_store::os_reports::{MAX_FINDINGS, Report, Row};
use evenkeel_store::testing::fresh_store;
use evenkeel_store::{Conflict, Store, StoreError, os_reports, os_settings};

use super::{finding, report, wish};
use crate::house::{NOON, project};

const HOUR: TimeDelta = TimeDelta::hours(1);

async fn want(store: &Store, tenant: TenantId, wish: &Wish) {
    let tx = store.tenant(tenant).await.expect("a transaction");
    os_settings::set(&tx, wish).await.expect("set");
    tx.commit().await.expect("committed");
}

/// Writes a report, and gives what is kept of it.
async fn replace(store: &Store, tenant: TenantId, report: &Report) -> Report {
    let tx = store.tenant(tenant).await.expect("a transaction");
    os_reports::replace(&tx, report).await.expect("replaced");
    tx.commit().await.expect("committed");
    let tx = store.tenant(tenant).await.expect("a transaction");
    let found = os_reports::find(&tx).await.expect("an answer");
    found.expect("a report")
}

#[tokio::test]
async fn a_project_wants_what_it_said_last() {
    let store = fresh_store().await;
    let (ours, theirs) = (
        project(&store, "ours").await,
        project(&store, "theirs").await,
    );
    let tx = store.tenant(ours).await.expect("a transaction");
    assert_eq!(os_settings::find(&tx).await.expect("an answer"), None);
    drop(tx);
    let empty = Wish {
        enabled: Some(Vec::new()),
        default_profile: Some(String::new()),
        ..Wish::default()
    };
    for wish in [wish("~0.3.1"), wish("main"), Wish::default(), empty] {
        want(&store, ours, &wish).await;
        let tx = store.tenant(ours).await.expect("a transaction");
        let found = os_settings::find(&tx).await.expect("an answer");
        assert_eq!(found.as_ref(), Some(&wish));
        let tx = store.fleet().await.expect("a transaction");
        let mut all = os_settings::all(&tx).await.expect("an answer");
        all.sort_by_key(|(tenant, _)| *tenant != ours);
        assert_eq!(all, [(ours, Some(wish)), (theirs, None)]);
    }
}

#[tokio::test]
async fn a_project_is_looked_at_that_has_no_report_or_wants_something_else() {
    let store = fresh_store().await;
    let (one, two) = (project(&store, "one").await, project(&store, "two").await);
    let missing = async |limit| {
        let tx = store.fleet().await.expect("a transaction");
        os_reports::missing(&tx, limit).await.expect("an answer")
    };
    assert_eq!(missing(10).await.len(), 2);
    assert_eq!(missing(1).await.len(), 1);
    assert_eq!(missing(0).await, []);
    // Who says what it wants comes first, whichever is older.
    for tenant in [one, two] {
        want(&store, tenant, &wish("main")).await;
        assert_eq!(missing(1).await.len(), 1);
        replace(&store, tenant, &report(vec![finding("gone", NOON)])).await;
    }
    assert_eq!(missing(10).await, []);
    want(&store, two, &wish("~0.3.1")).await;
    assert_eq!(missing(10).await, [two]);
    let third = project(&store, "three").await;
    assert_eq!(missing(1).await, [two]);
    assert_eq!(missing(10).await, [two, third]);
    let tx = store.tenant(two).await.expect("a transaction");
    assert_eq!(os_reports::find(&tx).await.expect("an answer"), None);
}

#[tokio::test]
async fn a_report_takes_the_place_of_the_one_before() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let first = report(vec![finding("gone", NOON), finding("yaml", NOON)]);
    assert_eq!(replace(&store, tenant, &first).await, first);
    let second = Report {
        registry: "other".into(),
        revision: "main".into(),
        outcome: CycleOutcome::Good,
        message: String::new(),
        cycle: i64::MAX,
        started_at: NOON + HOUR,
        ended_at: NOON + HOUR * 2,
        made: 0,
        refreshed: 0,
        same: 200,
        refused: 0,
        findings: Vec::new(),
    };
    assert_eq!(replace(&store, tenant, &second).await, second);
}

#[tokio::test]
async fn it_stays_known_since_when_something_is_found() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    replace(&store, tenant, &report(vec![finding("gone", NOON)])).await;
    let later = NOON + HOUR;
    let same = finding("gone", later);
    let mut others = vec![same.clone(); 6];
    others[0].repository = "profiles/other".into();
    others[1].tag = "0.3.2".into();
    others[2].kind = "yaml".into();
    others[3].field = None;
    others[4].message = "it is something else".into();
    others[5].os = None;
    let mut all = others.clone();
    all.push(same);
    let kept = replace(&store, tenant, &report(all)).await.findings;
    let (last, rest) = kept.split_last().expect("as many as before");
    assert_eq!(rest, others);
    assert_eq!(*last, finding("gone", NOON));

    // What was not found in between is found anew.
    replace(&store, tenant, &report(Vec::new())).await;
    let again = report(vec![finding("gone", later)]);
    assert_eq!(replace(&store, tenant, &again).await, again);
}

/// What a registry has is no reason for having no report.
#[tokio::test]
async fn what_was_found_may_be_in_its_report() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let strange = Row {
        repository: "a\0b".into(),
        tag: "\0".into(),
        field: Some("\0\0".into()),
        message: format!("\0{}", "ä".repeat(600)),
        ..finding("yaml", NOON)
    };
    let many = Report {
        message: "ä".repeat(501),
        ..report(vec![strange; MAX_FINDINGS + 1])
    };
    for _ in 0..2 {
        let kept = replace(&store, tenant, &many).await;
        assert_eq!(kept.message, "ä".repeat(500));
        assert_eq!(kept.findings.len(), MAX_FINDINGS);
        let expected = Row {
            repository: "a␀b".into(),
            tag: "␀".into(),
            field: Some("␀␀".into()),
            message: format!("␀{}", "ä".repeat(498)),
            ..finding("yaml", NOON)
        };
        assert!(kept.findings.iter().all(|row| *row == expected));
    }
}

#[tokio::test]
async fn what_cannot_be_wanted_is_refused() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    for bad in [wish(""), wish(&"x".repeat(129))] {
        let tx = store.tenant(tenant).await.expect("a transaction");
        let refused = os_settings::set(&tx, &bad).await;
        assert!(
            matches!(refused, Err(StoreError::Conflict(Conflict::Rule { .. }))),
            "{refused:?}"
        );
    }
}
