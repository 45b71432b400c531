use super::*;

const PACE: Pace = Pace {
    interval: Duration::from_secs(20),
    news: 0,
    obey: false,
    hold: 300_000,
};

fn answer(reason: &str, hold_millis: u32) -> Heard {
    Heard::Own(Box::new(PollResponse {
        next_poll_millis: 7_000,
        decision: Some(Decision {
            reason: reason.to_owned(),
            ..Decision::default()
        }),
        decision_tag: 5,
        hold_millis,
        ..PollResponse::default()
    }))
}

fn own() -> (Node, Chance, Instant) {
    let now = Instant::now();
    (Node::own(1, [3; 32], now), Chance::new(1, 1), now)
}

fn at(at: Instant) -> Ended {
    Ended {
        at,
        waited: Duration::ZERO,
        hold: 0,
    }
}

fn request(ask: Ask) -> PollRequest {
    match ask.words {
        Words::Own(request) => *request,
        Words::Eim(_) => PollRequest::default(),
    }
}

#[test]
fn a_node_of_ours_asks_to_be_held_as_long_as_it_was_told_and_names_its_decision() {
    let (mut node, mut chance, now) = own();
    let first = request(node.ask(&PACE, &mut chance));
    assert_eq!((first.may_hold_millis, first.decision_tag), (0, 0));
    node.hear(&answer("no window", 240_000), at(now), &PACE, &mut chance);
    let within = |node: &Node, least: u64, most: u64| {
        let wait = node.planned - now;
        (Duration::from_secs(least)..=Duration::from_secs(most)).contains(&wait)
    };
    assert!(within(&node, 18, 22), "as planned, within a tenth");
    let second = request(node.ask(&PACE, &mut chance));
    assert!(second.may_hold_millis < 240_000, "the first time by chance");
    assert_eq!(second.decision_tag, 5);
    let third = request(node.ask(&PACE, &mut chance));
    assert_eq!((third.may_hold_millis, third.decision_tag), (240_000, 5));
}

#[test]
fn a_node_that_comes_back_does_not_ask_to_be_held() {
    let (mut node, mut chance, now) = own();
    node.hear(&answer("no window", 240_000), at(now), &PACE, &mut chance);
    node.ask(&PACE, &mut chance);
    node.begin(now);
    assert_eq!(node.ask(&PACE, &mut chance).hold, 0);
    node.hear(&answer("no window", 240_000), at(now), &PACE, &mut chance);
    assert_eq!(node.ask(&PACE, &mut chance).hold, 240_000);
}

#[test]
fn a_held_call_is_made_again_at_once_unless_it_was_answered_early_with_nothing_new() {
    let (mut node, mut chance, now) = own();
    let mut hear = |reason, seconds| {
        let ended = Ended {
            waited: Duration::from_secs(seconds),
            hold: 240_000,
            ..at(now)
        };
        let changed = node.hear(&answer(reason, 240_000), ended, &PACE, &mut chance);
        (changed, node.planned <= now + HELD_AGAIN_WITHIN)
    };
    assert_eq!(hear("no window", 240), (false, true), "its time was over");
    assert_eq!(hear("paused", 10), (true, true), "a change");
    assert_eq!(hear("paused", 10), (false, false), "as the server says");
}

#[test]
fn news_is_told_until_it_is_taken() {
    let (mut node, mut chance, now) = own();
    let always = Pace {
        news: 1_000,
        ..PACE
    };
    let first = request(node.ask(&always, &mut chance));
    assert!(first.facts.is_some() && first.facts_digest != [3; 32]);
    node.hear(&Heard::Failed, at(now), &always, &mut chance);
    let again = request(node.ask(&PACE, &mut chance));
    assert_eq!(again, first);
    node.hear(&answer("no window", 0), at(now), &PACE, &mut chance);
    assert_eq!(request(node.ask(&PACE, &mut chance)).facts, None);
}

#[test]
fn the_ancestors_agent_tries_four_times_and_then_waits_for_its_next_tick() {
    let now = Instant::now();
    let (mut node, mut chance) = (Node::eim("0000", now), Chance::new(1, 1));
    let mut waits = Vec::new();
    for _ in 0..4 {
        node.hear(&Heard::Failed, at(now), &PACE, &mut chance);
        waits.push((node.planned - now).as_millis());
    }
    assert_eq!(waits, [500, 750, 1_125, 20_000]);
}

#[test]
fn who_is_postponed_misses_no_tick() {
    let now = Instant::now();
    let (mut node, mut chance) = (Node::eim("0000", now), Chance::new(1, 1));
    node.postpone(Duration::from_secs(95));
    let called = now + Duration::from_secs(95);
    assert_eq!(node.planned, called);
    node.hear(&Heard::Eim, at(called), &PACE, &mut chance);
    assert_eq!(node.planned - called, PACE.interval);
}

#[test]
fn what_was_missed_is_left_out() {
    let (planned, interval) = (Instant::now(), Duration::from_secs(20));
    let after = |seconds| {
        let now = planned + Duration::from_secs(seconds);
        (following(planned, interval, now) - planned).as_secs()
    };
    assert_eq!(
        (after(1), after(25), after(41), after(95)),
        (20, 20, 40, 80)
    );
}

#[test]
fn a_refusal_says_when_to_come_back() {
    let mut status = Status::unavailable("busy");
    assert!(matches!(Heard::status(&status), Heard::Failed));
    let hint = "1500".parse().expect("a value");
    status.metadata_mut().insert(PUSHBACK, hint);
    let heard = Heard::status(&status);
    assert!(matches!(heard, Heard::Refused(after) if after == Duration::from_millis(1_500)));
}
