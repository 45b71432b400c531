use super::*;

const PACE: PollPace = PollPace {
    interval: Duration::from_secs(20),
    changes_per_mille: 0,
    follow_server_interval: false,
    max_long_poll_millis: 300_000,
};

fn answer(reason: &str, hold_millis: u32) -> CallOutcome {
    CallOutcome::Own(Box::new(PollResponse {
        next_poll_millis: 7_000,
        decision: Some(Decision { reason: reason.to_owned(), ..Decision::default() }),
        decision_tag: 5,
        next_long_poll_millis: hold_millis,
        ..PollResponse::default()
    }))
}

fn own_node() -> (PollingNode, Rng, Instant) {
    let now = Instant::now();
    (PollingNode::new_own(1, [3; 32], now), Rng::new(1, 1), now)
}

fn ended_at(at: Instant) -> CallEnd {
    CallEnd { at, took: Duration::ZERO, long_poll_millis: 0 }
}

fn own_request(poll: PreparedPoll) -> PollRequest {
    match poll.payload {
        PollPayload::Own(request) => *request,
        PollPayload::Eim(_) => PollRequest::default(),
    }
}

#[test]
fn an_own_node_requests_the_allowed_long_poll_and_sends_its_decision_tag() {
    let (mut node, mut rng, now) = own_node();
    let first = own_request(node.prepare_poll(&PACE, &mut rng));
    assert_eq!((first.long_poll_millis, first.decision_tag), (0, 0));
    node.handle_outcome(&answer("no window", 240_000), ended_at(now), &PACE, &mut rng);
    let within = |node: &PollingNode, least: u64, maximum: u64| {
        let wait = node.planned_at - now;
        (Duration::from_secs(least)..=Duration::from_secs(maximum)).contains(&wait)
    };
    assert!(within(&node, 18, 22), "the planned interval, within a tenth");
    let second = own_request(node.prepare_poll(&PACE, &mut rng));
    assert!(second.long_poll_millis < 240_000, "the first duration is random");
    assert_eq!(second.decision_tag, 5);
    let third = own_request(node.prepare_poll(&PACE, &mut rng));
    assert_eq!((third.long_poll_millis, third.decision_tag), (240_000, 5));
}

#[test]
fn a_returning_node_requests_no_long_poll() {
    let (mut node, mut rng, now) = own_node();
    node.handle_outcome(&answer("no window", 240_000), ended_at(now), &PACE, &mut rng);
    node.prepare_poll(&PACE, &mut rng);
    node.start_at(now);
    assert_eq!(node.prepare_poll(&PACE, &mut rng).long_poll_millis, 0);
    node.handle_outcome(&answer("no window", 240_000), ended_at(now), &PACE, &mut rng);
    assert_eq!(node.prepare_poll(&PACE, &mut rng).long_poll_millis, 240_000);
}

#[test]
fn a_long_poll_is_reopened_at_once_unless_it_ended_early_without_a_change() {
    let (mut node, mut rng, now) = own_node();
    let mut handle = |reason, seconds| {
        let end = CallEnd {
            took: Duration::from_secs(seconds),
            long_poll_millis: 240_000,
            ..ended_at(now)
        };
        let changed = node.handle_outcome(&answer(reason, 240_000), end, &PACE, &mut rng);
        (changed, node.planned_at <= now + MAX_LONG_POLL_GAP)
    };
    assert_eq!(handle("no window", 240), (false, true), "the long poll expired");
    assert_eq!(handle("paused", 10), (true, true), "the decision changed");
    assert_eq!(handle("paused", 10), (false, false), "the server's interval applies");
}

#[test]
fn changed_facts_are_sent_until_they_are_accepted() {
    let (mut node, mut rng, now) = own_node();
    let always = PollPace { changes_per_mille: 1_000, ..PACE };
    let first = own_request(node.prepare_poll(&always, &mut rng));
    assert!(first.facts.is_some() && first.facts_digest != [3; 32]);
    node.handle_outcome(&CallOutcome::Failed, ended_at(now), &always, &mut rng);
    let again = own_request(node.prepare_poll(&PACE, &mut rng));
    assert_eq!(again, first);
    node.handle_outcome(&answer("no window", 0), ended_at(now), &PACE, &mut rng);
    assert_eq!(own_request(node.prepare_poll(&PACE, &mut rng)).facts, None);
}

#[test]
fn an_eim_node_tries_four_times_and_then_waits_for_its_next_tick() {
    let now = Instant::now();
    let (mut node, mut rng) = (PollingNode::new_eim("0000", now), Rng::new(1, 1));
    let mut delays = Vec::new();
    for _ in 0..4 {
        node.handle_outcome(&CallOutcome::Failed, ended_at(now), &PACE, &mut rng);
        delays.push((node.planned_at - now).as_millis());
    }
    assert_eq!(delays, [500, 750, 1_125, 20_000]);
}

#[test]
fn a_postponed_node_skips_no_tick() {
    let now = Instant::now();
    let (mut node, mut rng) = (PollingNode::new_eim("0000", now), Rng::new(1, 1));
    node.postpone(Duration::from_secs(95));
    let called = now + Duration::from_secs(95);
    assert_eq!(node.planned_at, called);
    node.handle_outcome(&CallOutcome::Eim(Box::default()), ended_at(called), &PACE, &mut rng);
    assert_eq!(node.planned_at - called, PACE.interval);
}

#[test]
fn missed_ticks_are_skipped() {
    let (planned, interval) = (Instant::now(), Duration::from_secs(20));
    let after = |seconds| {
        let now = planned + Duration::from_secs(seconds);
        (next_after(planned, interval, now) - planned).as_secs()
    };
    assert_eq!((after(1), after(25), after(41), after(95)), (20, 20, 40, 80));
}

#[test]
fn a_refusal_has_a_retry_hint() {
    let mut status = Status::unavailable("busy");
    assert!(matches!(CallOutcome::from_status(&status), CallOutcome::Failed));
    let hint = "1500".parse().expect("a value");
    status.metadata_mut().insert("grpc-retry-pushback-ms", hint);
    let outcome = CallOutcome::from_status(&status);
    assert!(
        matches!(outcome, CallOutcome::Refused(after) if after == Duration::from_millis(1_500))
    );
}
