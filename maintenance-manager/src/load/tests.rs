//! How much is taken on at once, and what becomes of those who are too many.

use std::pin::pin;

use futures_util::FutureExt;
use tonic::Code;

use super::pressure::{MOST_STRAIN, TOO_MUCH};
use super::*;

fn settings(calls: u32, calls_of_any_kind: u32) -> LoadSettings {
    LoadSettings {
        calls,
        calls_of_any_kind,
        ..LoadSettings::default()
    }
}

/// As many calls as are taken on.
fn fill(load: &Arc<Load>, kind: CallKind) -> Vec<Inside> {
    std::iter::from_fn(|| load.enter(kind).ok()).collect()
}

#[test]
fn what_a_call_is_for_is_in_its_path() {
    for (path, kind) in [
        ("/evenkeel.agent.v1.AgentService/Poll", CallKind::Quiet),
        ("/evenkeel.agent.v1.AgentService/Begin", CallKind::News),
        ("/evenkeel.agent.v1.AgentService/Report", CallKind::News),
        ("/evenkeel.agent.v1.AgentService/Enroll", CallKind::News),
        (
            "/maintmgr.v1.MaintmgrService/PlatformUpdateStatus",
            CallKind::Eim,
        ),
        ("/", CallKind::Eim),
        ("", CallKind::Eim),
    ] {
        assert_eq!(CallKind::of(path), kind, "{path}");
    }
}

#[test]
fn those_who_only_ask_are_refused_before_those_who_tell() {
    let load = Arc::new(Load::new(settings(8, 10)));
    let asking = fill(&load, CallKind::Quiet);
    let telling = fill(&load, CallKind::News);
    assert_eq!((asking.len(), telling.len()), (8, 2));
    drop(telling);
    assert!(load.enter(CallKind::Quiet).is_err());
    drop(asking);
    assert!(load.enter(CallKind::Quiet).is_ok());
}

#[test]
fn a_call_that_is_held_does_not_count() {
    let load = Arc::new(Load::new(settings(1, 1)));
    let held = load.enter(CallKind::Quiet).unwrap();
    let aside = load.aside();
    let other = load.enter(CallKind::Quiet).expect("the first one is held");
    drop(other);
    drop(aside);
    assert!(load.enter(CallKind::Quiet).is_err(), "it is awake again");
    drop(held);
    assert_eq!(load.inside(), 0);
}

#[test]
fn without_a_limit_everybody_is_let_in() {
    let load = Arc::new(Load::new(settings(0, 0)));
    let all: Vec<_> = (0..10_000).map(|_| load.enter(CallKind::Quiet)).collect();
    assert!(all.iter().all(Result::is_ok));
}

#[test]
fn a_process_that_was_only_late_refuses_nobody() {
    let load = Arc::new(Load::new(settings(100, 120)));
    for _ in 0..10 {
        load.look(Duration::from_secs(5), LOOK);
    }
    assert!(load.pressure() >= 1.0);
    let asking = fill(&load, CallKind::Quiet);
    assert_eq!(asking.len(), 100);
    assert_eq!(fill(&load, CallKind::News).len(), 20);
}

#[test]
fn a_process_at_rest_looks_seldom_until_there_is_something_to_see() {
    let load = Arc::new(Load::new(settings(100, 120)));
    load.interval(Duration::from_secs(20));
    assert_eq!(load.next_look(), LOOK_AT_REST);
    load.look(LOOK, LOOK_AT_REST);
    assert_eq!(load.next_look(), LOOK, "it is late");
    for _ in 0..20 {
        load.look(LOOK * 2, LOOK);
    }
    let calm = (1..1_000).find(|_| {
        load.look(Duration::ZERO, LOOK);
        load.pressure() < 0.1
    });
    assert!(calm.is_some());
    assert!(load.interval(Duration::from_secs(20)) > Duration::from_secs(20));
    assert_eq!(load.next_look(), LOOK, "nodes come less often still");
    for _ in 0..1_000 {
        load.look(Duration::ZERO, LOOK);
    }
    assert_eq!(load.next_look(), LOOK_AT_REST);
}

#[test]
fn who_is_refused_is_told_when_to_come_back() {
    let load = Arc::new(Load::new(settings(1, 1)));
    let _only = load.enter(CallKind::News).unwrap();
    let busy = load.enter(CallKind::Quiet).unwrap_err();
    assert!((SOON / 2..=SOON * 3 / 2).contains(&busy.again), "{busy:?}");
    let status = busy.status();
    assert_eq!(status.code(), Code::Unavailable);
    let hint = status.metadata().get(PUSHBACK).unwrap();
    assert_eq!(hint.to_str().unwrap(), busy.again.as_millis().to_string());
}

#[test]
fn those_who_are_refused_at_once_come_back_apart() {
    assert_eq!(draw(SOON, 0), SOON / 2);
    assert_eq!(draw(SOON, u32::MAX), SOON * 3 / 2);
    let load = Load::new(settings(1, 1));
    let drawn: std::collections::HashSet<_> =
        (0..100).map(|_| load.busy(CallKind::Quiet).again).collect();
    assert!(drawn.len() > 90, "{drawn:?}");
    let about = Duration::from_secs(10);
    for _ in 0..100 {
        let again = load.again(about).again;
        assert!((about / 2..=about * 3 / 2).contains(&again), "{again:?}");
    }
}

#[test]
fn the_more_are_refused_the_later_they_come_back() {
    let (line, now) = (Line::new(), Instant::now());
    let crowd: Vec<_> = (0..25_000).map(|_| line.join(now)).collect();
    assert!(crowd.is_sorted());
    assert_eq!((crowd[0], crowd[1_000]), (SOON, SOON));
    assert_eq!(crowd[24_999], EACH * 25_000);
    let later = now + Duration::from_secs(3);
    assert_eq!(line.join(later).as_millis(), 2_000);
    assert_eq!(line.join(later + Duration::from_secs(2)), SOON);
    for _ in 0..1_000_000 {
        line.join(later);
    }
    assert_eq!(line.join(later), LATE, "however many they are");
}

/// Those who come back are no more than can be served, and nobody waits for long because few asked before.
#[test]
fn who_is_refused_comes_back_as_fast_as_the_others_are_served() {
    let (line, now) = (Line::new(), Instant::now());
    let pace = || {
        let places: Vec<_> = (0..5_001).map(|_| line.join(now).as_millis()).collect();
        places[5_000] - places[0]
    };
    let served = |count| (0..50).for_each(|_| line.look(count, LOOK));
    let _some: Vec<_> = (0..10_000).map(|_| line.join(now)).collect();
    for (in_a_look, millis) in [(0, 5_000), (1_000, 1_250), (100_000, 1_000), (1, 5_000)] {
        served(in_a_look);
        let found = pace();
        assert!(found.abs_diff(millis) <= 5, "{in_a_look}: {found}");
    }
}

#[test]
fn who_comes_back_at_its_own_pace_keeps_no_place_in_line() {
    let load = Arc::new(Load::new(settings(1, 1)));
    let _only = load.enter(CallKind::News).unwrap();
    for _ in 0..100_000 {
        assert!(load.enter(CallKind::Eim).is_err());
    }
    let busy = load.enter(CallKind::Quiet).unwrap_err();
    assert!(busy.again <= SOON * 3 / 2, "{busy:?}");
}

#[test]
fn one_look_alone_changes_little() {
    let quarter = LOOK / 4;
    for (late, inside, calls, expected) in [
        (Duration::ZERO, 0, 100, 0.0),
        (quarter, 0, 100, 0.25),
        (quarter, 50, 100, 0.5),
        (Duration::ZERO, 125, 100, 1.25),
        (Duration::from_mins(1), 0, 100, MOST_STRAIN),
        (quarter, 50, 0, 0.25),
    ] {
        let found = strain(late, part(inside, calls));
        assert!((found - expected).abs() < 1e-9, "{found} not {expected}");
    }
    let mut pressure = smoothed(0.0, MOST_STRAIN);
    assert!(pressure <= TOO_MUCH, "{pressure}");
    for _ in 0..3 {
        pressure = smoothed(pressure, MOST_STRAIN);
    }
    assert!(pressure >= 1.0, "it lasts: {pressure}");
    for _ in 0..12 {
        pressure = smoothed(pressure, 0.0);
    }
    assert!(pressure < 0.05, "it is over: {pressure}");
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
        let found = adapted(factor, pressure, 15.0);
        assert!((found - expected).abs() < 1e-9, "{found} not {expected}");
    }
}

#[test]
fn nodes_come_less_often_while_the_pressure_lasts_and_as_often_as_before_afterwards() {
    let load = Load::new(LoadSettings::default());
    let base = Duration::from_secs(20);
    assert_eq!(load.interval(base), base);
    for _ in 0..20 {
        load.look(Duration::from_secs(1), LOOK);
    }
    assert_eq!(load.interval(base), Duration::from_mins(5));
    for _ in 0..60 {
        load.look(Duration::ZERO, LOOK);
    }
    assert_eq!(load.interval(base), base);
}

#[test]
fn an_interval_that_is_longer_than_the_longest_stays_as_it_is() {
    let load = Load::new(LoadSettings::default());
    for base in [Duration::from_mins(10), Duration::MAX, Duration::ZERO] {
        assert_eq!(load.interval(base), base);
        load.look(Duration::from_mins(1), LOOK);
        assert_eq!(load.interval(base), base);
    }
}

#[test]
fn the_more_nodes_there_are_the_longer_they_take_to_come_back() {
    let load = Arc::new(Load::new(settings(0, 0)));
    assert_eq!(load.spread(), SOON);
    for _ in 0..20_000 {
        drop(load.enter(CallKind::Quiet));
    }
    assert_eq!(load.spread(), Duration::from_secs(4));
    let held: Vec<_> = (0..5_000).map(|_| load.aside()).collect();
    assert_eq!(load.spread(), Duration::from_secs(5));
    drop(held);
    load.last_minute.store(u32::MAX, Ordering::Relaxed);
    assert_eq!(load.spread(), LATE);
}

#[test]
fn those_who_ask_the_database_leave_room_for_those_answered_from_memory() {
    let load = Arc::new(Load::new(settings(100, 120)));
    let ask = |kind| load.to_the_database(kind);
    let asking: Vec<_> = (0..50).map(|_| ask(CallKind::Quiet).unwrap()).collect();
    let busy = ask(CallKind::Quiet).unwrap_err();
    assert!(busy.again <= SOON * 3 / 2, "{busy:?}");
    let told = ask(CallKind::News).expect("reports are no questions");
    for _ in 0..20 {
        load.look(Duration::ZERO, LOOK);
    }
    assert!(load.pressure() > TOO_MUCH, "all that may be are there");
    drop((asking, told));
    assert!(ask(CallKind::Quiet).is_ok());

    let unlimited = Arc::new(Load::new(settings(0, 0)));
    let all: Vec<_> = (0..10_000)
        .map(|_| unlimited.to_the_database(CallKind::Quiet))
        .collect();
    assert!(all.iter().all(Result::is_ok));
}

#[test]
fn those_who_would_be_back_at_once_do_not_wait_behind_a_crowd_nor_before_it() {
    let load = Arc::new(Load::new(settings(100, 120)));
    let ask = |kind| load.to_the_database(kind);
    let crowd: Vec<_> = (0..50).map(|_| ask(CallKind::Quiet).unwrap()).collect();
    assert!(ask(CallKind::Quiet).is_err());
    let eim: Vec<_> = (0..25).map(|_| ask(CallKind::Eim).unwrap()).collect();
    assert!(ask(CallKind::Eim).is_err(), "they have a quarter");
    drop(crowd);
    assert!(ask(CallKind::Quiet).is_ok(), "and no more");
    for _ in 0..20 {
        load.look(Duration::ZERO, LOOK);
    }
    assert!(load.pressure() > TOO_MUCH, "all of theirs are there");
    drop(eim);
    let _told: Vec<_> = (0..200).map(|_| ask(CallKind::News).unwrap()).collect();
    assert!(ask(CallKind::Eim).is_ok(), "what is told has no part in it");
}

#[test]
fn one_of_each_kind_may_ask_the_database_however_small_the_room_is() {
    for calls in 1..=2 {
        let load = Arc::new(Load::new(settings(calls, calls)));
        for kind in [CallKind::Quiet, CallKind::Eim] {
            let _one = load.to_the_database(kind).expect("there is room for one");
            assert!(load.to_the_database(kind).is_err(), "{calls}: {kind:?}");
        }
        assert!(load.to_the_database(CallKind::Eim).is_ok());
    }
}

#[test]
fn who_tells_something_comes_back_sooner_than_a_crowd_that_asks() {
    let load = Arc::new(Load::new(settings(1, 1)));
    let _only = load.enter(CallKind::News).unwrap();
    for _ in 0..100_000 {
        assert!(load.enter(CallKind::Quiet).is_err());
    }
    for _ in 0..30 {
        load.look(Duration::from_secs(1), LOOK);
    }
    let asks = load.enter(CallKind::Quiet).unwrap_err();
    let tells = load.enter(CallKind::News).unwrap_err();
    assert!(asks.again >= Duration::from_secs(9), "{asks:?}");
    assert!(tells.again <= Duration::from_secs(15), "{tells:?}");
}

#[tokio::test]
async fn those_who_write_wait_for_each_other_but_not_too_many() {
    let load = Load::new(LoadSettings {
        writers: 1,
        writers_waiting: 1,
        ..LoadSettings::default()
    });
    let first = load.pen().await.unwrap();
    let mut second = pin!(load.pen());
    assert!(second.as_mut().now_or_never().is_none(), "it waits");
    let third = load.pen().await.unwrap_err();
    assert_eq!(third.code(), Code::Unavailable);
    drop(first);
    assert!(second.await.is_ok());
    assert_eq!(load.waiting_for_pens.load(Ordering::Relaxed), 0);
}
