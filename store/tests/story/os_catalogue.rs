//! What registries have, and who looks at them when.

use chrono::{DateTime, TimeDelta};
use evenkeel_domain::os::Sha256;
use evenkeel_domain::os::catalogue::{CycleOutcome, CycleStep, File, FileRole, Trusted};
use evenkeel_store::os_catalogue::{self, Artifact, Claim, CycleState, Ended, Progress};
use evenkeel_store::testing::fresh_store;
use evenkeel_store::{Conflict, FleetTx, Store, StoreError};
use futures_util::future::join_all;
use serde_json::json;
use uuid::Uuid;

use crate::house::{NOON, project};

const REGISTRY: &str = "release";
const LEASE: TimeDelta = TimeDelta::minutes(1);
/// A lease that is over when it begins.
const OVER: TimeDelta = TimeDelta::zero();
const ANN: Uuid = Uuid::from_u128(1);
const BOB: Uuid = Uuid::from_u128(2);

/// Does one thing in a transaction of its own.
macro_rules! alone {
    ($store:expr, $what:ident ( $($argument:expr),* )) => {{
        let tx: FleetTx = $store.fleet().await.expect("a transaction");
        let done = os_catalogue::$what(&tx $(, $argument)*).await;
        tx.commit().await.expect("committed");
        done.expect("an answer")
    }};
}

// What is defined above is known in there.
mod sides;

use sides::side;

async fn claim(store: &Store, holder: Uuid, lease: TimeDelta) -> Option<Claim> {
    alone!(store, claim(REGISTRY, holder, lease))
}

/// Wishes for a cycle and begins it.
async fn cycle(store: &Store) -> Claim {
    alone!(store, request(REGISTRY));
    claim(store, ANN, LEASE).await.expect("a cycle")
}

async fn state(store: &Store) -> CycleState {
    alone!(store, state(REGISTRY)).expect("a state")
}

fn good() -> Ended {
    Ended {
        outcome: CycleOutcome::Good,
        message: String::new(),
        not_before: None,
    }
}

async fn finish(store: &Store, claim: &Claim) {
    assert!(alone!(store, finish(claim, &good())));
}

#[tokio::test]
async fn a_wish_is_met_by_one_cycle_however_many_want_it_and_would_look() {
    let store = fresh_store().await;
    assert_eq!(alone!(store, state(REGISTRY)), None);
    assert_eq!(claim(&store, ANN, LEASE).await, None, "nobody wants it");
    assert_eq!(alone!(store, request(REGISTRY)), 1);
    assert_eq!(alone!(store, request(REGISTRY)), 1);
    let holders = (1..=6).map(|n| claim(&store, Uuid::from_u128(n), LEASE));
    let claims: Vec<_> = join_all(holders).await.into_iter().flatten().collect();
    assert_eq!(claims.len(), 1, "{claims:?}");
    let mine = &claims[0];
    assert_eq!((mine.registry.as_str(), mine.number), (REGISTRY, 1));
    let begun = state(&store).await;
    assert_eq!(
        (begun.wanted, begun.done, begun.claimed),
        (1, 0, Some(1)),
        "it is not met before its end"
    );
    assert_eq!(begun.progress.step, CycleStep::Listing);
    assert!(begun.started_at.is_some());

    let progress = Progress {
        step: CycleStep::Fetching,
        finished: 3,
        total: 9,
    };
    assert!(alone!(store, beat(mine, &progress, LEASE)));
    assert_eq!(state(&store).await.progress, progress);
    finish(&store, mine).await;
    let ended = state(&store).await;
    assert_eq!((ended.wanted, ended.done, ended.claimed), (1, 1, None));
    assert_eq!(ended.outcome, Some(CycleOutcome::Good));
    assert_eq!(
        (ended.progress.step, ended.progress.finished),
        (CycleStep::Idle, 0)
    );
    assert_eq!(ended.good_at, ended.ended_at);
    assert_eq!(claim(&store, BOB, LEASE).await, None, "nobody wants more");
}

#[tokio::test]
async fn a_wish_during_a_cycle_gets_one_of_its_own() {
    let store = fresh_store().await;
    let first = cycle(&store).await;
    assert_eq!(alone!(store, request(REGISTRY)), 2);
    assert_eq!(alone!(store, request(REGISTRY)), 2, "one for both");
    assert_eq!(claim(&store, BOB, LEASE).await, None, "it is held");
    finish(&store, &first).await;
    assert_eq!(state(&store).await.done, 1);
    let second = claim(&store, BOB, LEASE).await.expect("another cycle");
    assert_eq!(second.number, 2);
    finish(&store, &second).await;
    assert_eq!(state(&store).await.done, 2);
}

#[tokio::test]
async fn registries_are_looked_at_side_by_side() {
    let store = fresh_store().await;
    cycle(&store).await;
    assert_eq!(alone!(store, request("other")), 1);
    let other = alone!(store, claim("other", ANN, LEASE));
    assert_eq!(other.expect("a cycle").registry, "other");
    let tx = store.fleet().await.expect("a transaction");
    match os_catalogue::request(&tx, "").await {
        Err(StoreError::Conflict(Conflict::Rule { rule })) => {
            assert_eq!(rule, "os_cycles_registry_check");
        }
        other => panic!("{other:?}"),
    }
}

/// Fails unless nothing can be done for a cycle.
async fn is_lost(store: &Store, claim: &Claim) {
    let progress = state(store).await.progress;
    assert!(!alone!(store, beat(claim, &progress, LEASE)));
    assert!(!alone!(store, keep(claim, &artifact("edge", "1"))));
    assert!(!alone!(store, see(claim, "edge", &texts(&["1"]))));
    assert_eq!(alone!(store, mark_gone(claim, &texts(&["edge"]), NOON)), 0);
    assert!(!alone!(store, keep_side(claim, &side("here"), Some("[]"))));
    assert_eq!(alone!(store, forget_sides(claim)), 0);
    assert!(!alone!(store, finish(claim, &good())));
}

#[tokio::test]
async fn who_lets_the_lease_run_out_loses_the_cycle_to_whoever_comes() {
    let store = fresh_store().await;
    alone!(store, request(REGISTRY));
    let anns = claim(&store, ANN, OVER).await.expect("a cycle");
    // Nobody came, so it is still hers.
    assert!(alone!(store, keep(&anns, &artifact("edge", "1"))));
    assert!(alone!(store, keep_side(&anns, &side("there"), None)));
    let progress = state(&store).await.progress;
    assert!(alone!(store, beat(&anns, &progress, OVER)));
    alone!(store, request(REGISTRY));

    let bobs = claim(&store, BOB, LEASE).await.expect("the lease is over");
    assert_eq!(bobs.number, 2, "it meets what was wished meanwhile as well");
    let before = alone!(store, artifacts(REGISTRY, &texts(&["edge"])));
    is_lost(&store, &anns).await;
    assert_eq!(claim(&store, ANN, LEASE).await, None);
    let after = alone!(store, artifacts(REGISTRY, &texts(&["edge"])));
    assert_eq!(after, before);
    assert_eq!(alone!(store, sides(REGISTRY)).len(), 1);
    finish(&store, &bobs).await;
    assert_eq!(state(&store).await.done, 2);
}

#[tokio::test]
async fn who_holds_a_later_cycle_does_nothing_for_an_earlier_one() {
    let store = fresh_store().await;
    let first = cycle(&store).await;
    finish(&store, &first).await;
    is_lost(&store, &first).await;
    let second = cycle(&store).await;
    assert_eq!((second.holder, second.number), (first.holder, 2));
    is_lost(&store, &first).await;
    assert!(alone!(store, keep(&second, &artifact("edge", "1"))));
}

#[tokio::test]
async fn nobody_takes_a_cycle_from_under_who_is_writing() {
    let store = fresh_store().await;
    alone!(store, request(REGISTRY));
    let anns = claim(&store, ANN, OVER).await.expect("a cycle");
    let tx = store.fleet().await.expect("a transaction");
    let seen = os_catalogue::see(&tx, &anns, "edge", &[]).await;
    assert!(seen.expect("an answer"));
    let take = "DO $$ BEGIN PERFORM set_config('evenkeel.tenant', '*', true); \
                PERFORM FROM os_cycles FOR NO KEY UPDATE NOWAIT; END $$";
    let busy = store.unprepared(take).await;
    assert!(matches!(busy, Err(StoreError::Busy(_))), "{busy:?}");
    tx.commit().await.expect("committed");
    store.unprepared(take).await.expect("free");
}

#[tokio::test]
async fn of_several_that_strike_at_once_one_is_enough() {
    let store = fresh_store().await;
    let within = TimeDelta::hours(1);
    let strikes = (0..4).map(|_| async { alone!(store, strike(REGISTRY, within)) });
    assert!(join_all(strikes).await.contains(&true));
    assert_eq!(state(&store).await.wanted, 1);
    let mine = claim(&store, ANN, LEASE).await.expect("a cycle");
    assert!(!alone!(store, strike(REGISTRY, within)), "one has begun");
    finish(&store, &mine).await;
    assert!(!alone!(store, strike(REGISTRY, within)), "one has ended");
    assert_eq!(state(&store).await.wanted, 1);
    assert!(alone!(store, strike(REGISTRY, TimeDelta::zero())));
    assert_eq!(state(&store).await.wanted, 2);
}

#[tokio::test]
async fn a_registry_that_asked_for_patience_is_not_asked_before() {
    let store = fresh_store().await;
    let mine = cycle(&store).await;
    finish(&store, &mine).await;
    let good_at = state(&store).await.good_at;
    let rest = async |until| {
        let mine = cycle(&store).await;
        let ended = Ended {
            outcome: CycleOutcome::Failed,
            message: "busy".to_owned(),
            not_before: Some(until),
        };
        assert!(alone!(store, finish(&mine, &ended)));
        alone!(store, request(REGISTRY));
    };
    rest(DateTime::UNIX_EPOCH).await;
    let mine = claim(&store, ANN, LEASE).await.expect("that is long over");
    finish(&store, &mine).await;
    let good_since = state(&store).await.good_at;
    assert!(good_since > good_at);
    assert_eq!(state(&store).await.not_before, None);
    let until = NOON + TimeDelta::days(36_500);
    rest(until).await;
    assert_eq!(claim(&store, ANN, LEASE).await, None);
    let waiting = state(&store).await;
    assert_eq!(waiting.not_before, Some(until));
    assert_eq!(waiting.outcome, Some(CycleOutcome::Failed));
    assert_eq!(waiting.message, "busy");
    assert_eq!(waiting.good_at, good_since, "the last good one stays");
}

fn texts(texts: &[&str]) -> Vec<String> {
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
        findings: vec![json!({"kind": "unsigned", "message": "nobody signed it"})],
        trust: Trusted::Unsigned,
        signature: Some(json!({"payload": "e30="})),
        files: vec![File {
            role: FileRole::Image,
            path: "files/edge.raw.xz".to_owned(),
            place: "web:https://files.example/files/edge.raw.xz".to_owned(),
            sha256: Some(Sha256::NONE),
            size: Some(5 << 30),
        }],
        gone_at: None,
    }
}

async fn kept(store: &Store, repository: &str) -> Vec<Artifact> {
    alone!(store, artifacts(REGISTRY, &texts(&[repository])))
}

#[tokio::test]
async fn what_a_tag_leads_to_reads_as_it_was_kept() {
    let store = fresh_store().await;
    let mine = cycle(&store).await;
    let whole = artifact("edge", "0.3.1");
    let bare = Artifact {
        digest: [2; 32],
        title: None,
        manifest: None,
        document: None,
        findings: Vec::new(),
        trust: Trusted::Off,
        signature: None,
        files: Vec::new(),
        ..artifact("edge", "0.3.2")
    };
    let elsewhere = artifact("other", "0.3.1");
    for one in [&elsewhere, &bare, &whole] {
        assert!(alone!(store, keep(&mine, one)));
    }
    assert_eq!(kept(&store, "edge").await, [whole, bare]);
    assert_eq!(kept(&store, "other").await, [elsewhere]);
    assert_eq!(kept(&store, "none").await, []);
    assert_eq!(alone!(store, artifacts("else", &texts(&["edge"]))), []);
}

#[tokio::test]
async fn of_a_tag_that_moved_it_is_known_from_where() {
    let store = fresh_store().await;
    let first = cycle(&store).await;
    let old = artifact("edge", "main");
    alone!(store, keep(&first, &old));
    finish(&store, &first).await;
    let second = cycle(&store).await;
    let new = Artifact {
        digest: [2; 32],
        ..old.clone()
    };
    let moved = Artifact {
        moved_from: Some([1; 32]),
        ..new.clone()
    };
    alone!(store, keep(&second, &new));
    assert_eq!(kept(&store, "edge").await.first(), Some(&moved));
    // Looked at once more, it has not moved again.
    alone!(store, keep(&second, &new));
    assert_eq!(kept(&store, "edge").await.first(), Some(&moved));
    // The last time counts, also for who only knows of the first.
    let again = Artifact {
        digest: [3; 32],
        ..moved
    };
    alone!(store, keep(&second, &again));
    let last = Artifact {
        moved_from: Some([2; 32]),
        ..again
    };
    assert_eq!(kept(&store, "edge").await, [last]);
    // What could not be read is nothing that a tag led to.
    let unread = Artifact {
        manifest: None,
        ..artifact("other", "main")
    };
    alone!(store, keep(&second, &unread));
    let read = Artifact {
        digest: [2; 32],
        ..artifact("other", "main")
    };
    alone!(store, keep(&second, &read));
    assert_eq!(kept(&store, "other").await, [read]);
}

#[tokio::test]
async fn a_tag_that_is_not_seen_where_tags_were_listed_is_gone_until_it_is_seen() {
    let store = fresh_store().await;
    let first = cycle(&store).await;
    for (repository, tag) in [("edge", "1"), ("edge", "2"), ("edge", "3"), ("other", "1")] {
        alone!(store, keep(&first, &artifact(repository, tag)));
    }
    let listed = texts(&["edge"]);
    assert_eq!(alone!(store, mark_gone(&first, &listed, NOON)), 0);
    finish(&store, &first).await;

    let second = cycle(&store).await;
    assert!(alone!(store, see(&second, "edge", &texts(&["1", "9"]))));
    alone!(store, keep(&second, &artifact("edge", "2")));
    assert_eq!(alone!(store, mark_gone(&second, &listed, NOON)), 1);
    let later = NOON + TimeDelta::hours(1);
    assert_eq!(alone!(store, mark_gone(&second, &listed, later)), 0);
    let gone = async || -> Vec<_> {
        let artifacts = alone!(store, artifacts(REGISTRY, &texts(&["edge", "other"])));
        artifacts.iter().map(|one| one.gone_at).collect()
    };
    assert_eq!(gone().await, [None, None, Some(NOON), None]);
    finish(&store, &second).await;

    let third = cycle(&store).await;
    assert!(alone!(store, see(&third, "edge", &texts(&["3"]))));
    assert_eq!(alone!(store, mark_gone(&third, &listed, later)), 2);
    assert_eq!(gone().await, [Some(later), Some(later), None, None]);
    alone!(store, keep(&third, &artifact("edge", "2")));
    assert_eq!(gone().await, [Some(later), None, None, None]);
}

#[tokio::test]
async fn what_registries_have_is_seen_by_the_fleet_alone() {
    let store = fresh_store().await;
    let tenant = project(&store, "ours").await;
    let mine = cycle(&store).await;
    alone!(store, keep(&mine, &artifact("edge", "1")));
    alone!(store, keep_side(&mine, &side("here"), Some("[]")));
    let seen = |scope: String, rows: u32| {
        format!(
            "DO $$ DECLARE one text; seen bigint; BEGIN PERFORM set_config('evenkeel.tenant', '{scope}', true); \
             FOREACH one IN ARRAY ARRAY['os_cycles', 'os_artifacts', 'os_sides'] LOOP \
             EXECUTE format('SELECT count(*) FROM %I', one) INTO seen; \
             IF seen <> {rows} THEN RAISE '% shows % rows', one, seen; END IF; END LOOP; END $$"
        )
    };
    let fleet = seen("*".to_owned(), 1);
    store.unprepared(&fleet).await.expect("one of each");
    for scope in [tenant.to_string(), String::new()] {
        let nothing = seen(scope, 0);
        store.unprepared(&nothing).await.expect("nothing at all");
    }
}
