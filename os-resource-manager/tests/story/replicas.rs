//! Several replicas with one registry: one fetch and one set of rows, even if replicas are killed.

use chrono::TimeDelta;
use evenkeel_domain::os::catalogue::{CycleOutcome, CycleStep};
use evenkeel_registry::testing::{Fault, FaultKind};
use evenkeel_store::os_catalogue::{self, CycleClaim, Progress};
use evenkeel_store::testing::tenant_rows;
use uuid::Uuid;

use crate::test_server::{PROFILE_PREFIX, REGISTRY_NAME, TestServer, report_text, select_profiles};

const ROUNDS: usize = 20;

const PROFILES: [&str; 3] = ["edge", "edge-rt", "ubuntu"];

/// How often the manifest of a tag was requested, per profile.
fn manifest_requests(server: &TestServer, tag: &str) -> Vec<usize> {
    let count = |profile: &&str| {
        let request = format!("GET /v2/{PROFILE_PREFIX}{profile}/manifests/{tag}");
        server.registry.count_requests(&request)
    };
    PROFILES.iter().map(count).collect()
}

#[tokio::test]
async fn concurrent_replicas_fetch_once_and_create_one_set_of_rows() {
    let server = TestServer::new("~0.3", &PROFILES).await;
    let other = server.replica().await;
    let second = server.create_project("second").await;
    select_profiles(&server.store, second, "~0.3", &PROFILES).await;
    for round in 0..ROUNDS {
        let tag = format!("0.3.{round}");
        for profile in PROFILES {
            server.publish(profile, &tag, &format!("3.0.{round}"));
        }
        server.registry.forget_requests();
        let number = server.request_cycle().await;
        while server.cycle_state().await.done < number {
            let (one, two) = tokio::join!(server.manager.run_pass(), other.run_pass());
            one.expect("a pass");
            two.expect("a pass");
        }
        assert_eq!(manifest_requests(&server, &tag), [1, 1, 1], "round {round}");
        let lists = server.registry.requests().into_iter();
        let lists = lists.filter(|line| line.contains("/tags/list"));
        assert_eq!(lists.count(), PROFILES.len(), "round {round}");
        let report = server.report().await.expect("a report");
        assert_eq!(report.outcome, CycleOutcome::Good, "{}", report_text(&report));
        for tenant in [server.tenant, second] {
            let rows = tenant_rows(&server.store, tenant).await;
            let count_rows = |table: &str| {
                let front = format!("{table} ");
                rows.iter().filter(|row| row.starts_with(&front)).count()
            };
            let expected = PROFILES.len() * (round + 1);
            assert_eq!(
                (count_rows("os_profiles"), count_rows("os_details")),
                (expected, expected),
                "round {round}"
            );
            assert_eq!(count_rows("os_sync_reports"), 1, "round {round}");
        }
    }
}

/// Claims the cycle as a replica that reports progress once and is not heard of again.
async fn claim_without_renewal(server: &TestServer, lease: TimeDelta) -> CycleClaim {
    let tx = server.store.fleet().await.expect("a transaction");
    let claim = os_catalogue::claim(&tx, REGISTRY_NAME, Uuid::now_v7(), lease).await;
    let claim = claim.expect("a claim").expect("a cycle is requested");
    let progress = Progress { step: CycleStep::Fetching, finished: 1, total: 3 };
    let renewed = os_catalogue::report_progress(&tx, &claim, &progress, lease).await;
    assert!(renewed.expect("a renewal"));
    tx.commit().await.expect("committed");
    claim
}

#[tokio::test]
async fn a_cycle_of_a_killed_replica_is_continued() {
    let server = TestServer::new("~0.3", &PROFILES).await;
    for profile in PROFILES {
        server.publish(profile, "0.3.1", "3.0.1");
    }
    let number = server.request_cycle().await;
    let claim = claim_without_renewal(&server, TimeDelta::zero()).await;
    assert_eq!(server.cycle_state().await.claimed, Some(number));
    while server.cycle_state().await.done < number {
        server.manager.run_pass().await.expect("a pass");
    }
    let report = server.report().await.expect("a report");
    assert_eq!(report.outcome, CycleOutcome::Good, "{}", report_text(&report));
    assert_eq!(server.os_names().await.len(), PROFILES.len());
    // If the first replica were still running, it could store nothing more.
    let tx = server.store.fleet().await.expect("a transaction");
    let tags = ["0.3.1".to_owned()];
    let repository = format!("{PROFILE_PREFIX}edge");
    let is_seen = os_catalogue::mark_seen(&tx, &claim, &repository, &tags).await;
    assert!(!is_seen.expect("an answer"));
    let now = chrono::DateTime::UNIX_EPOCH;
    let gone_count = os_catalogue::mark_gone(&tx, &claim, &[repository], now).await;
    assert_eq!(gone_count.expect("an answer"), 0);
}

#[tokio::test]
async fn a_project_that_waits_for_the_first_cycle_requests_no_other() {
    let server = TestServer::new("~0.3", &PROFILES).await;
    let number = server.request_cycle().await;
    claim_without_renewal(&server, TimeDelta::minutes(1)).await;
    server.manager.run_pass().await.expect("a pass");
    assert_eq!(server.cycle_state().await.requested, number);
    assert!(server.report().await.is_none());
}

#[tokio::test]
async fn an_aborted_cycle_changes_nothing_and_keeps_its_claim() {
    let server = TestServer::new("~0.3", &PROFILES).await;
    for profile in PROFILES {
        server.publish(profile, "0.3.1", "3.0.1");
    }
    let blobs = format!("{PROFILE_PREFIX}ubuntu/blobs/");
    server.registry.add_fault(Fault::always(&blobs, FaultKind::Silent));
    let number = server.request_cycle().await;
    let is_requested = || server.registry.requests().iter().any(|line| line.contains(&blobs));
    let killed = async {
        while !is_requested() {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        result = server.manager.run_pass() => panic!("it went on: {result:?}"),
        () = killed => {}
    }
    assert!(server.list_systems().await.is_empty());
    assert!(server.report().await.is_none());
    let state = server.cycle_state().await;
    assert_eq!((state.claimed, state.done), (Some(number), 0));
    // While the claim is valid, no other replica contacts the registry.
    server.registry.forget_requests();
    server.replica().await.run_pass().await.expect("a pass");
    assert!(server.registry.requests().is_empty());
}
