//! The catalogue of registries, and which server syncs it.

use chrono::{DateTime, TimeDelta};
use evenkeel_domain::os::Sha256;
use evenkeel_domain::os::catalogue::{
    CatalogFile, CycleOutcome, CycleStep, FileRole, SignatureStatus,
};
use evenkeel_store::os_catalogue::{self, Artifact, CycleClaim, CycleResult, CycleState, Progress};
use evenkeel_store::testing::fresh_store;
use evenkeel_store::{Conflict, FleetTx, Store, StoreError};
use futures_util::future::join_all;
use serde_json::json;
use uuid::Uuid;

use crate::fixtures::{NOON, store_with_project};

const REGISTRY: &str = "release";
const LEASE: TimeDelta = TimeDelta::minutes(1);
/// A lease that expires at once.
const EXPIRED_LEASE: TimeDelta = TimeDelta::zero();
const ANN: Uuid = Uuid::from_u128(1);
const BOB: Uuid = Uuid::from_u128(2);

/// Calls one function of `os_catalogue` in its own transaction.
macro_rules! in_transaction {
    ($store:expr, $what:ident ( $($argument:expr),* )) => {{
        let tx: FleetTx = $store.fleet().await.expect("a transaction");
        let done = os_catalogue::$what(&tx $(, $argument)*).await;
        tx.commit().await.expect("committed");
        done.expect("an answer")
    }};
}

// Below the macro, because macros are visible only after their definition.
mod attachments;

use attachments::attachment;

async fn claim(store: &Store, holder: Uuid, lease: TimeDelta) -> Option<CycleClaim> {
    in_transaction!(store, claim(REGISTRY, holder, lease))
}

/// Requests a cycle and begins it.
async fn begin_cycle(store: &Store) -> CycleClaim {
    in_transaction!(store, request(REGISTRY));
    claim(store, ANN, LEASE).await.expect("a cycle")
}

async fn cycle_state(store: &Store) -> CycleState {
    in_transaction!(store, state(REGISTRY)).expect("a state")
}

fn good_result() -> CycleResult {
    CycleResult { outcome: CycleOutcome::Good, message: String::new(), not_before: None }
}

async fn finish(store: &Store, claim: &CycleClaim) {
    assert!(in_transaction!(store, finish(claim, &good_result())));
}

#[tokio::test]
async fn requests_share_one_cycle_with_one_holder() {
    let store = fresh_store().await;
    assert_eq!(in_transaction!(store, state(REGISTRY)), None);
    assert_eq!(claim(&store, ANN, LEASE).await, None, "no request");
    assert_eq!(in_transaction!(store, request(REGISTRY)), 1);
    assert_eq!(in_transaction!(store, request(REGISTRY)), 1);
    let holders = (1..=6).map(|n| claim(&store, Uuid::from_u128(n), LEASE));
    let claims: Vec<_> = join_all(holders).await.into_iter().flatten().collect();
    assert_eq!(claims.len(), 1, "{claims:?}");
    let mine = &claims[0];
    assert_eq!((mine.registry.as_str(), mine.number), (REGISTRY, 1));
    let begun = cycle_state(&store).await;
    assert_eq!(
        (begun.requested, begun.done, begun.claimed),
        (1, 0, Some(1)),
        "the request is open until the cycle ends"
    );
    assert_eq!(begun.progress.step, CycleStep::Listing);
    assert!(begun.started_at.is_some());

    let progress = Progress { step: CycleStep::Fetching, finished: 3, total: 9 };
    assert!(in_transaction!(store, report_progress(mine, &progress, LEASE)));
    assert_eq!(cycle_state(&store).await.progress, progress);
    finish(&store, mine).await;
    let ended = cycle_state(&store).await;
    assert_eq!((ended.requested, ended.done, ended.claimed), (1, 1, None));
    assert_eq!(ended.outcome, Some(CycleOutcome::Good));
    assert_eq!((ended.progress.step, ended.progress.finished), (CycleStep::Idle, 0));
    assert_eq!(ended.last_success_at, ended.ended_at);
    assert_eq!(claim(&store, BOB, LEASE).await, None, "no further request");
}

#[tokio::test]
async fn a_request_during_a_cycle_gets_its_own_cycle() {
    let store = fresh_store().await;
    let first = begin_cycle(&store).await;
    assert_eq!(in_transaction!(store, request(REGISTRY)), 2);
    assert_eq!(in_transaction!(store, request(REGISTRY)), 2, "one cycle for both requests");
    assert_eq!(claim(&store, BOB, LEASE).await, None, "the lease is held");
    finish(&store, &first).await;
    assert_eq!(cycle_state(&store).await.done, 1);
    let second = claim(&store, BOB, LEASE).await.expect("another cycle");
    assert_eq!(second.number, 2);
    finish(&store, &second).await;
    assert_eq!(cycle_state(&store).await.done, 2);
}

#[tokio::test]
async fn registries_have_independent_cycles() {
    let store = fresh_store().await;
    begin_cycle(&store).await;
    assert_eq!(in_transaction!(store, request("other")), 1);
    let other = in_transaction!(store, claim("other", ANN, LEASE));
    assert_eq!(other.expect("a cycle").registry, "other");
    let tx = store.fleet().await.expect("a transaction");
    match os_catalogue::request(&tx, "").await {
        Err(StoreError::Conflict(Conflict::Rule { rule })) => {
            assert_eq!(rule, "os_cycles_registry_check");
        }
        other => panic!("{other:?}"),
    }
}

/// Fails unless every write for a cycle is rejected.
async fn assert_lost(store: &Store, claim: &CycleClaim) {
    let progress = cycle_state(store).await.progress;
    assert!(!in_transaction!(store, report_progress(claim, &progress, LEASE)));
    assert!(!in_transaction!(store, store_artifact(claim, &artifact("edge", "1"))));
    assert!(!in_transaction!(store, mark_seen(claim, "edge", &strings(&["1"]))));
    assert_eq!(in_transaction!(store, mark_gone(claim, &strings(&["edge"]), NOON)), 0);
    assert!(!in_transaction!(store, store_attachment(claim, &attachment("here"), Some("[]"))));
    assert_eq!(in_transaction!(store, delete_unused_attachments(claim, 10)), 0);
    assert!(!in_transaction!(store, finish(claim, &good_result())));
}

#[tokio::test]
async fn an_expired_lease_passes_the_cycle_to_the_next_claim() {
    let store = fresh_store().await;
    in_transaction!(store, request(REGISTRY));
    let anns = claim(&store, ANN, EXPIRED_LEASE).await.expect("a cycle");
    // No other replica has claimed the cycle, so it is still Ann's.
    assert!(in_transaction!(store, store_artifact(&anns, &artifact("edge", "1"))));
    assert!(in_transaction!(store, store_attachment(&anns, &attachment("there"), None)));
    let progress = cycle_state(&store).await.progress;
    assert!(in_transaction!(store, report_progress(&anns, &progress, EXPIRED_LEASE)));
    in_transaction!(store, request(REGISTRY));

    let bobs = claim(&store, BOB, LEASE).await.expect("an expired lease");
    assert_eq!(bobs.number, 2, "it includes the later request");
    let before = in_transaction!(store, list_artifacts(REGISTRY, &strings(&["edge"])));
    assert_lost(&store, &anns).await;
    assert_eq!(claim(&store, ANN, LEASE).await, None);
    let after = in_transaction!(store, list_artifacts(REGISTRY, &strings(&["edge"])));
    assert_eq!(after, before);
    assert_eq!(in_transaction!(store, list_attachments(REGISTRY)).len(), 1);
    finish(&store, &bobs).await;
    assert_eq!(cycle_state(&store).await.done, 2);
}

#[tokio::test]
async fn a_later_claim_writes_nothing_for_an_earlier_cycle() {
    let store = fresh_store().await;
    let first = begin_cycle(&store).await;
    finish(&store, &first).await;
    assert_lost(&store, &first).await;
    let second = begin_cycle(&store).await;
    assert_eq!((second.holder, second.number), (first.holder, 2));
    assert_lost(&store, &first).await;
    assert!(in_transaction!(store, store_artifact(&second, &artifact("edge", "1"))));
}

#[tokio::test]
async fn a_cycle_is_not_claimed_while_its_holder_writes() {
    let store = fresh_store().await;
    in_transaction!(store, request(REGISTRY));
    let anns = claim(&store, ANN, EXPIRED_LEASE).await.expect("a cycle");
    let tx = store.fleet().await.expect("a transaction");
    let marked = os_catalogue::mark_seen(&tx, &anns, "edge", &[]).await;
    assert!(marked.expect("an answer"));
    let take = "DO $$ BEGIN PERFORM set_config('evenkeel.tenant', '*', true); \
                PERFORM FROM os_cycles FOR NO KEY UPDATE NOWAIT; END $$";
    let busy = store.execute_unprepared(take).await;
    assert!(matches!(busy, Err(StoreError::Busy(_))), "{busy:?}");
    tx.commit().await.expect("committed");
    store.execute_unprepared(take).await.expect("free");
}

#[tokio::test]
async fn simultaneous_occurrences_request_one_cycle() {
    let store = fresh_store().await;
    let within = TimeDelta::hours(1);
    let occurrences =
        (0..4).map(|_| async { in_transaction!(store, request_if_due(REGISTRY, within)) });
    assert!(join_all(occurrences).await.contains(&true));
    assert_eq!(cycle_state(&store).await.requested, 1);
    let mine = claim(&store, ANN, LEASE).await.expect("a cycle");
    assert!(!in_transaction!(store, request_if_due(REGISTRY, within)), "a cycle has begun");
    finish(&store, &mine).await;
    assert!(!in_transaction!(store, request_if_due(REGISTRY, within)), "a cycle has ended");
    assert_eq!(cycle_state(&store).await.requested, 1);
    assert!(in_transaction!(store, request_if_due(REGISTRY, TimeDelta::zero())));
    assert_eq!(cycle_state(&store).await.requested, 2);
}

#[tokio::test]
async fn no_cycle_begins_before_the_time_that_the_registry_set() {
    let store = fresh_store().await;
    let mine = begin_cycle(&store).await;
    finish(&store, &mine).await;
    let last_success_at = cycle_state(&store).await.last_success_at;
    let rest = async |until| {
        let mine = begin_cycle(&store).await;
        let ended = CycleResult {
            outcome: CycleOutcome::Failed,
            message: "busy".to_owned(),
            not_before: Some(until),
        };
        assert!(in_transaction!(store, finish(&mine, &ended)));
        in_transaction!(store, request(REGISTRY));
    };
    rest(DateTime::UNIX_EPOCH).await;
    let mine = claim(&store, ANN, LEASE).await.expect("a cycle after that time");
    finish(&store, &mine).await;
    let good_since = cycle_state(&store).await.last_success_at;
    assert!(good_since > last_success_at);
    assert_eq!(cycle_state(&store).await.not_before, None);
    let until = NOON + TimeDelta::days(36_500);
    rest(until).await;
    assert_eq!(claim(&store, ANN, LEASE).await, None);
    let waiting = cycle_state(&store).await;
    assert_eq!(waiting.not_before, Some(until));
    assert_eq!(waiting.outcome, Some(CycleOutcome::Failed));
    assert_eq!(waiting.message, "busy");
    assert_eq!(waiting.last_success_at, good_since, "the last good time stays");
}

fn strings(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|&text| text.to_owned()).collect()
}

fn artifact(repository: &str, tag: &str) -> Artifact {
    Artifact {
        repository: repository.to_owned(),
        tag: tag.to_owned(),
        digest: [1; 32],
        moved_from: None,
        title: Some(format!("{repository}.yaml")),
        manifest: Some("{}".to_owned()),
        document: Some("spec:\n".to_owned()),
        findings: vec![json!({"kind": "unsigned", "message": "it is not signed"})],
        trust: SignatureStatus::Unsigned,
        signature: Some(json!({"payload": "e30="})),
        files: vec![CatalogFile {
            role: FileRole::Image,
            path: "files/edge.raw.xz".to_owned(),
            source: "web:https://files.example/files/edge.raw.xz".to_owned(),
            sha256: Some(Sha256::NONE),
            size: Some(5 << 30),
        }],
        gone_at: None,
    }
}

async fn load_artifacts(store: &Store, repository: &str) -> Vec<Artifact> {
    in_transaction!(store, list_artifacts(REGISTRY, &strings(&[repository])))
}

#[tokio::test]
async fn an_artifact_reads_as_it_was_stored() {
    let store = fresh_store().await;
    let mine = begin_cycle(&store).await;
    let complete = artifact("edge", "0.3.1");
    let bare = Artifact {
        digest: [2; 32],
        title: None,
        manifest: None,
        document: None,
        findings: Vec::new(),
        trust: SignatureStatus::Unchecked,
        signature: None,
        files: Vec::new(),
        ..artifact("edge", "0.3.2")
    };
    let elsewhere = artifact("other", "0.3.1");
    for one in [&elsewhere, &bare, &complete] {
        assert!(in_transaction!(store, store_artifact(&mine, one)));
    }
    assert_eq!(load_artifacts(&store, "edge").await, [complete, bare]);
    assert_eq!(load_artifacts(&store, "other").await, [elsewhere]);
    assert_eq!(load_artifacts(&store, "none").await, []);
    assert_eq!(in_transaction!(store, list_artifacts("else", &strings(&["edge"]))), []);
}

#[tokio::test]
async fn a_moved_tag_has_its_previous_digest() {
    let store = fresh_store().await;
    let first = begin_cycle(&store).await;
    let old = artifact("edge", "main");
    in_transaction!(store, store_artifact(&first, &old));
    finish(&store, &first).await;
    let second = begin_cycle(&store).await;
    let new = Artifact { digest: [2; 32], ..old.clone() };
    let moved = Artifact { moved_from: Some([1; 32]), ..new.clone() };
    in_transaction!(store, store_artifact(&second, &new));
    assert_eq!(load_artifacts(&store, "edge").await.first(), Some(&moved));
    // Stored again without a move, it keeps its previous digest.
    in_transaction!(store, store_artifact(&second, &new));
    assert_eq!(load_artifacts(&store, "edge").await.first(), Some(&moved));
    // Only the last move is stored.
    let again = Artifact { digest: [3; 32], ..moved };
    in_transaction!(store, store_artifact(&second, &again));
    let last = Artifact { moved_from: Some([2; 32]), ..again };
    assert_eq!(load_artifacts(&store, "edge").await, [last]);
    // An unreadable artifact is not the previous digest of a tag.
    let unread = Artifact { manifest: None, ..artifact("other", "main") };
    in_transaction!(store, store_artifact(&second, &unread));
    let read = Artifact { digest: [2; 32], ..artifact("other", "main") };
    in_transaction!(store, store_artifact(&second, &read));
    assert_eq!(load_artifacts(&store, "other").await, [read]);
}

#[tokio::test]
async fn an_unseen_tag_is_gone_until_it_is_seen_again() {
    let store = fresh_store().await;
    let first = begin_cycle(&store).await;
    for (repository, tag) in [("edge", "1"), ("edge", "2"), ("edge", "3"), ("other", "1")] {
        in_transaction!(store, store_artifact(&first, &artifact(repository, tag)));
    }
    let listed = strings(&["edge"]);
    assert_eq!(in_transaction!(store, mark_gone(&first, &listed, NOON)), 0);
    finish(&store, &first).await;

    let second = begin_cycle(&store).await;
    assert!(in_transaction!(store, mark_seen(&second, "edge", &strings(&["1", "9"]))));
    in_transaction!(store, store_artifact(&second, &artifact("edge", "2")));
    assert_eq!(in_transaction!(store, mark_gone(&second, &listed, NOON)), 1);
    let later = NOON + TimeDelta::hours(1);
    assert_eq!(in_transaction!(store, mark_gone(&second, &listed, later)), 0);
    let gone_times = async || -> Vec<_> {
        let artifacts =
            in_transaction!(store, list_artifacts(REGISTRY, &strings(&["edge", "other"])));
        artifacts.iter().map(|one| one.gone_at).collect()
    };
    assert_eq!(gone_times().await, [None, None, Some(NOON), None]);
    finish(&store, &second).await;

    let third = begin_cycle(&store).await;
    assert!(in_transaction!(store, mark_seen(&third, "edge", &strings(&["3"]))));
    assert_eq!(in_transaction!(store, mark_gone(&third, &listed, later)), 2);
    assert_eq!(gone_times().await, [Some(later), Some(later), None, None]);
    in_transaction!(store, store_artifact(&third, &artifact("edge", "2")));
    assert_eq!(gone_times().await, [Some(later), None, None, None]);
}

#[tokio::test]
async fn the_catalogue_is_visible_only_to_the_fleet() {
    let (store, tenant) = store_with_project().await;
    let mine = begin_cycle(&store).await;
    in_transaction!(store, store_artifact(&mine, &artifact("edge", "1")));
    in_transaction!(store, store_attachment(&mine, &attachment("here"), Some("[]")));
    let count_sql = |scope: String, rows: u32| {
        format!(
            "DO $$ DECLARE one text; seen bigint; BEGIN PERFORM set_config('evenkeel.tenant', '{scope}', true); \
             FOREACH one IN ARRAY ARRAY['os_cycles', 'os_artifacts', 'os_attachments'] LOOP \
             EXECUTE format('SELECT count(*) FROM %I', one) INTO seen; \
             IF seen <> {rows} THEN RAISE '% shows % rows', one, seen; END IF; END LOOP; END $$"
        )
    };
    let fleet = count_sql("*".to_owned(), 1);
    store.execute_unprepared(&fleet).await.expect("one of each");
    for scope in [tenant.to_string(), String::new()] {
        let nothing = count_sql(scope, 0);
        store.execute_unprepared(&nothing).await.expect("no rows");
    }
}
