//! Tests of the load limits and the retry delays.

use std::pin::pin;

use futures_util::FutureExt;
use tonic::Code;
use uuid::Uuid;

use super::pressure::{HIGH_PRESSURE, MAX_STRAIN};
use super::*;

fn settings(query_call_limit: u32, total_call_limit: u32) -> LoadSettings {
    LoadSettings { query_call_limit, total_call_limit, ..LoadSettings::default() }
}

/// The id of a project.
fn project(number: u128) -> TenantId {
    TenantId::new(Uuid::from_u128(number))
}

/// Admits as many calls as possible.
fn fill(load: &Arc<Load>, kind: CallKind) -> Vec<InFlightGuard> {
    std::iter::from_fn(|| load.admit(kind).ok()).collect()
}

#[test]
fn the_kind_of_a_call_follows_from_its_path() {
    for (path, kind) in [
        ("/evenkeel.agent.v1.AgentService/Poll", CallKind::Query),
        ("/evenkeel.agent.v1.AgentService/Begin", CallKind::Write),
        ("/evenkeel.agent.v1.AgentService/Report", CallKind::Write),
        ("/evenkeel.agent.v1.AgentService/Enroll", CallKind::Write),
        ("/maintmgr.v1.MaintmgrService/PlatformUpdateStatus", CallKind::EimQuery),
        ("/", CallKind::EimQuery),
        ("", CallKind::EimQuery),
    ] {
        assert_eq!(CallKind::from_path(path), kind, "{path}");
    }
}

#[test]
fn queries_are_refused_before_writes() {
    let load = Arc::new(Load::new(settings(8, 10)));
    let queries = fill(&load, CallKind::Query);
    let writes = fill(&load, CallKind::Write);
    assert_eq!((queries.len(), writes.len()), (8, 2));
    drop(writes);
    assert!(load.admit(CallKind::Query).is_err());
    drop(queries);
    assert!(load.admit(CallKind::Query).is_ok());
}

#[test]
fn a_long_poll_does_not_count() {
    let load = Arc::new(Load::new(settings(1, 1)));
    let guard = load.admit(CallKind::Query).unwrap();
    let parked = load.park();
    let other = load.admit(CallKind::Query).expect("the first one is held");
    drop(other);
    drop(parked);
    assert!(load.admit(CallKind::Query).is_err(), "it is no long poll any more");
    drop(guard);
    assert_eq!(load.in_flight(), 0);
}

#[test]
fn without_a_limit_every_call_is_admitted() {
    let load = Arc::new(Load::new(settings(0, 0)));
    let all: Vec<_> = (0..10_000).map(|_| load.admit(CallKind::Query)).collect();
    assert!(all.iter().all(Result::is_ok));
}

#[test]
fn a_late_process_refuses_no_call() {
    let load = Arc::new(Load::new(settings(100, 120)));
    for _ in 0..10 {
        load.sample(Duration::from_secs(5), SAMPLE_INTERVAL);
    }
    assert!(load.pressure() >= 1.0);
    let queries = fill(&load, CallKind::Query);
    assert_eq!(queries.len(), 100);
    assert_eq!(fill(&load, CallKind::Write).len(), 20);
}

#[test]
fn an_idle_process_samples_rarely_until_it_sees_load() {
    let load = Arc::new(Load::new(settings(100, 120)));
    load.poll_interval(Duration::from_secs(20));
    assert_eq!(load.next_sample_delay(), IDLE_SAMPLE_INTERVAL);
    load.sample(SAMPLE_INTERVAL, IDLE_SAMPLE_INTERVAL);
    assert_eq!(load.next_sample_delay(), SAMPLE_INTERVAL, "the sample is late");
    for _ in 0..20 {
        load.sample(SAMPLE_INTERVAL * 2, SAMPLE_INTERVAL);
    }
    let calm = (1..1_000).find(|_| {
        load.sample(Duration::ZERO, SAMPLE_INTERVAL);
        load.pressure() < 0.1
    });
    assert!(calm.is_some());
    assert!(load.poll_interval(Duration::from_secs(20)) > Duration::from_secs(20));
    assert_eq!(load.next_sample_delay(), SAMPLE_INTERVAL, "the interval is still longer");
    for _ in 0..1_000 {
        load.sample(Duration::ZERO, SAMPLE_INTERVAL);
    }
    assert_eq!(load.next_sample_delay(), IDLE_SAMPLE_INTERVAL);
}

#[test]
fn a_refusal_carries_a_retry_delay() {
    let load = Arc::new(Load::new(settings(1, 1)));
    let _only = load.admit(CallKind::Write).unwrap();
    let busy = load.admit(CallKind::Query).unwrap_err();
    assert!(
        (MIN_RETRY_DELAY / 2..=MIN_RETRY_DELAY * 3 / 2).contains(&busy.retry_after),
        "{busy:?}"
    );
    let status = busy.status();
    assert_eq!(status.code(), Code::Unavailable);
    let hint = status.metadata().get(RETRY_PUSHBACK_HEADER).unwrap();
    assert_eq!(hint.to_str().unwrap(), busy.retry_after.as_millis().to_string());
}

#[test]
fn retry_delays_are_jittered() {
    assert_eq!(with_jitter(MIN_RETRY_DELAY, 0), MIN_RETRY_DELAY / 2);
    assert_eq!(with_jitter(MIN_RETRY_DELAY, u32::MAX), MIN_RETRY_DELAY * 3 / 2);
    let load = Load::new(settings(1, 1));
    let drawn: std::collections::HashSet<_> =
        (0..100).map(|_| load.overloaded(CallKind::Query).retry_after).collect();
    assert!(drawn.len() > 90, "{drawn:?}");
    let about = Duration::from_secs(10);
    for _ in 0..100 {
        let again = Overloaded::retry_after(about).retry_after;
        assert!((about / 2..=about * 3 / 2).contains(&again), "{again:?}");
    }
}

#[test]
fn the_retry_delay_grows_with_the_queue() {
    let (queue, now) = (RetryQueue::new(), Instant::now());
    let retry_delays: Vec<_> = (0..25_000).map(|_| queue.enqueue(now)).collect();
    assert!(retry_delays.is_sorted());
    assert_eq!((retry_delays[0], retry_delays[1_000]), (MIN_RETRY_DELAY, MIN_RETRY_DELAY));
    assert_eq!(retry_delays[24_999], MIN_SERVICE_TIME * 25_000);
    let later = now + Duration::from_secs(3);
    assert_eq!(queue.enqueue(later).as_millis(), 2_000);
    assert_eq!(queue.enqueue(later + Duration::from_secs(2)), MIN_RETRY_DELAY);
    for _ in 0..1_000_000 {
        queue.enqueue(later);
    }
    assert_eq!(queue.enqueue(later), MAX_RETRY_DELAY, "the delay is bounded");
}

/// Retries follow the service rate, and a low rate of calls does not cause long delays.
#[test]
fn the_retry_queue_follows_the_service_rate() {
    let (queue, now) = (RetryQueue::new(), Instant::now());
    let pace = || {
        let delays: Vec<_> = (0..5_001).map(|_| queue.enqueue(now).as_millis()).collect();
        delays[5_000] - delays[0]
    };
    let served = |count| (0..50).for_each(|_| queue.record_turns(count, SAMPLE_INTERVAL));
    let _some: Vec<_> = (0..10_000).map(|_| queue.enqueue(now)).collect();
    for (per_sample, millis) in [(0, 5_000), (1_000, 1_250), (100_000, 1_000), (1, 5_000)] {
        served(per_sample);
        let actual = pace();
        assert!(actual.abs_diff(millis) <= 5, "{per_sample}: {actual}");
    }
}

#[test]
fn a_refused_eim_query_takes_no_retry_slot() {
    let load = Arc::new(Load::new(settings(1, 1)));
    let _only = load.admit(CallKind::Write).unwrap();
    for _ in 0..100_000 {
        assert!(load.admit(CallKind::EimQuery).is_err());
    }
    let busy = load.admit(CallKind::Query).unwrap_err();
    assert!(busy.retry_after <= MIN_RETRY_DELAY * 3 / 2, "{busy:?}");
}

#[test]
fn one_sample_alone_changes_little() {
    let quarter = SAMPLE_INTERVAL / 4;
    for (late, in_flight, query_call_limit, expected) in [
        (Duration::ZERO, 0, 100, 0.0),
        (quarter, 0, 100, 0.25),
        (quarter, 50, 100, 0.5),
        (Duration::ZERO, 125, 100, 1.25),
        (Duration::from_mins(1), 0, 100, MAX_STRAIN),
        (quarter, 50, 0, 0.25),
    ] {
        let actual = strain(late, ratio(in_flight, query_call_limit));
        assert!((actual - expected).abs() < 1e-9, "{actual} not {expected}");
    }
    let mut pressure = smooth(0.0, MAX_STRAIN);
    assert!(pressure <= HIGH_PRESSURE, "{pressure}");
    for _ in 0..3 {
        pressure = smooth(pressure, MAX_STRAIN);
    }
    assert!(pressure >= 1.0, "it lasts: {pressure}");
    for _ in 0..12 {
        pressure = smooth(pressure, 0.0);
    }
    assert!(pressure < 0.05, "it drops: {pressure}");
}

#[test]
fn the_interval_grows_fast_and_shrinks_slowly_within_its_bounds() {
    for (factor, pressure, expected) in [
        (1.0, 0.0, 1.0),
        (1.0, 0.8, 1.5),
        (2.0, 0.6, 2.0),
        (2.0, 0.4, 1.8),
        (14.0, 1.0, 15.0),
        (1.05, 0.0, 1.0),
    ] {
        let actual = adapt_factor(factor, pressure, 15.0);
        assert!((actual - expected).abs() < 1e-9, "{actual} not {expected}");
    }
}

#[test]
fn nodes_poll_less_often_only_while_the_pressure_lasts() {
    let load = Load::new(LoadSettings::default());
    let base = Duration::from_secs(20);
    assert_eq!(load.poll_interval(base), base);
    for _ in 0..20 {
        load.sample(Duration::from_secs(1), SAMPLE_INTERVAL);
    }
    assert_eq!(load.poll_interval(base), Duration::from_mins(5));
    for _ in 0..60 {
        load.sample(Duration::ZERO, SAMPLE_INTERVAL);
    }
    assert_eq!(load.poll_interval(base), base);
}

#[test]
fn an_interval_above_the_maximum_is_unchanged() {
    let load = Load::new(LoadSettings::default());
    for base in [Duration::from_mins(10), Duration::MAX, Duration::ZERO] {
        assert_eq!(load.poll_interval(base), base);
        load.sample(Duration::from_mins(1), SAMPLE_INTERVAL);
        assert_eq!(load.poll_interval(base), base);
    }
}

#[test]
fn the_reconnect_spread_grows_with_the_number_of_nodes() {
    let load = Arc::new(Load::new(settings(0, 0)));
    assert_eq!(load.spread(), MIN_RETRY_DELAY);
    for _ in 0..20_000 {
        drop(load.admit(CallKind::Query));
    }
    assert_eq!(load.spread(), Duration::from_secs(4));
    let guard: Vec<_> = (0..5_000).map(|_| load.park()).collect();
    assert_eq!(load.spread(), Duration::from_secs(5));
    drop(guard);
    load.queries_last_minute.store(u32::MAX, Ordering::Relaxed);
    assert_eq!(load.spread(), MAX_RETRY_DELAY);
}

#[test]
fn database_queries_are_limited_to_half_of_the_calls() {
    let load = Arc::new(Load::new(settings(100, 120)));
    // Each call is of another project.
    let mut last_project = 0;
    let mut query_database = |kind| {
        last_project += 1;
        load.admit_to_database(project(last_project), kind)
    };
    let queries: Vec<_> = (0..50).map(|_| query_database(CallKind::Query).unwrap()).collect();
    let busy = query_database(CallKind::Query).unwrap_err();
    assert!(busy.retry_after <= MIN_RETRY_DELAY * 3 / 2, "{busy:?}");
    let reports = query_database(CallKind::Write).expect("writes are not limited");
    for _ in 0..20 {
        load.sample(Duration::ZERO, SAMPLE_INTERVAL);
    }
    assert!(load.pressure() > HIGH_PRESSURE, "the limit is reached");
    drop((queries, reports));
    assert!(query_database(CallKind::Query).is_ok());

    let unlimited = Arc::new(Load::new(settings(0, 0)));
    let all: Vec<_> =
        (0..10_000).map(|_| unlimited.admit_to_database(project(1), CallKind::Query)).collect();
    assert!(all.iter().all(Result::is_ok));
}

#[test]
fn eim_queries_have_their_own_database_limit() {
    let load = Arc::new(Load::new(settings(100, 120)));
    // Each call is of another project.
    let mut last_project = 0;
    let mut query_database = |kind| {
        last_project += 1;
        load.admit_to_database(project(last_project), kind)
    };
    let queries: Vec<_> = (0..50).map(|_| query_database(CallKind::Query).unwrap()).collect();
    assert!(query_database(CallKind::Query).is_err());
    let eim: Vec<_> = (0..25).map(|_| query_database(CallKind::EimQuery).unwrap()).collect();
    assert!(query_database(CallKind::EimQuery).is_err(), "a quarter");
    drop(queries);
    assert!(query_database(CallKind::Query).is_ok(), "the limits are separate");
    for _ in 0..20 {
        load.sample(Duration::ZERO, SAMPLE_INTERVAL);
    }
    assert!(load.pressure() > HIGH_PRESSURE, "their limit is reached");
    drop(eim);
    let _reports: Vec<_> = (0..200).map(|_| query_database(CallKind::Write).unwrap()).collect();
    assert!(query_database(CallKind::EimQuery).is_ok(), "writes do not use their limit");
}

#[test]
fn each_kind_gets_at_least_one_database_call() {
    for query_call_limit in 1..=2 {
        let load = Arc::new(Load::new(settings(query_call_limit, query_call_limit)));
        for kind in [CallKind::Query, CallKind::EimQuery] {
            let _one = load.admit_to_database(project(1), kind).expect("there is room for one");
            assert!(
                load.admit_to_database(project(1), kind).is_err(),
                "{query_call_limit}: {kind:?}"
            );
        }
        assert!(load.admit_to_database(project(1), CallKind::EimQuery).is_ok());
    }
}

#[test]
fn a_refused_write_retries_sooner_than_queued_queries() {
    let load = Arc::new(Load::new(settings(1, 1)));
    let _only = load.admit(CallKind::Write).unwrap();
    for _ in 0..100_000 {
        assert!(load.admit(CallKind::Query).is_err());
    }
    for _ in 0..30 {
        load.sample(Duration::from_secs(1), SAMPLE_INTERVAL);
    }
    let query = load.admit(CallKind::Query).unwrap_err();
    let write = load.admit(CallKind::Write).unwrap_err();
    assert!(query.retry_after >= Duration::from_secs(9), "{query:?}");
    assert!(write.retry_after <= Duration::from_secs(15), "{write:?}");
}

#[tokio::test]
async fn writers_wait_for_a_permit_up_to_a_limit() {
    let load = Load::new(LoadSettings {
        max_writers: 1,
        max_waiting_writers: 1,
        ..LoadSettings::default()
    });
    let first = load.acquire_write_permit(project(1)).await.unwrap();
    let mut second = pin!(load.acquire_write_permit(project(1)));
    assert!(second.as_mut().now_or_never().is_none(), "it waits");
    let third = load.acquire_write_permit(project(1)).await.unwrap_err();
    assert_eq!(third.code(), Code::Unavailable);
    drop(first);
    assert!(second.await.is_ok());
}

#[test]
fn a_project_leaves_database_calls_of_each_kind_to_others() {
    let load = Arc::new(Load::new(settings(64, 80)));
    for (kind, limit) in [(CallKind::Query, 24), (CallKind::EimQuery, 12), (CallKind::Write, 48)] {
        let admit = |number| load.admit_to_database(project(number), kind).ok();
        let calls: Vec<_> = std::iter::from_fn(|| admit(1)).collect();
        assert_eq!(calls.len(), limit, "{kind:?}");
        assert!(admit(2).is_some(), "{kind:?}");
        for _ in 0..20 {
            load.sample(Duration::ZERO, SAMPLE_INTERVAL);
        }
        // Otherwise the nodes of the only project would not be asked to poll less often.
        assert!(load.pressure() > HIGH_PRESSURE, "{kind:?}");
    }
    let writes: Vec<_> =
        std::iter::from_fn(|| load.admit_to_database(project(1), CallKind::Write).ok()).collect();
    assert!(load.admit_to_database(project(1), CallKind::Query).is_err(), "writes count");
    drop(writes);
    let unlimited = Load::new(settings(0, 0));
    let all: Vec<_> =
        (0..10_000).map(|_| unlimited.admit_to_database(project(1), CallKind::Write)).collect();
    assert!(all.iter().all(Result::is_ok));
}

#[tokio::test]
async fn a_node_of_another_project_can_write_while_one_project_uses_its_part() {
    let load = Load::new(LoadSettings::default());
    let mut permits = Vec::new();
    while let Some(permit) = load.acquire_write_permit(project(1)).now_or_never() {
        permits.push(permit.unwrap());
    }
    assert_eq!(permits.len(), 12, "of 16");
    assert!(load.acquire_write_permit(project(2)).now_or_never().is_some_and(|it| it.is_ok()));
}
