//! Answers to a node, and the state that is stored with them.

use super::*;
use crate::decide::Verdict;
use crate::id::{RepeatedScheduleId, SiteId};
use crate::order::{Order, OrderKind};
use crate::pause::{Pause, PauseScope};
use crate::schedule::{Cron, RepeatedSchedule, RepeatedSpec, ScheduleStatus, ScheduleTarget, Zone};
use crate::text::Name;

/// A node that polls from time to time.
pub(super) struct Node {
    pub facts: NodeFacts,
    pub desired: UpdateIntent,
    pub open: Option<OpenRun>,
    pub delivered: DeliveryState,
}

impl Node {
    pub fn packages(windows: &[Window]) -> Self {
        Self {
            facts: node(OsKind::Mutable),
            desired: desired_state(policy(1, DesiredUpdate::Latest), windows),
            open: None,
            delivered: DeliveryState::default(),
        }
    }

    /// A node that runs 3.0.1, where 3.0.2 is the newest.
    pub fn image(windows: &[Window]) -> Self {
        let mut node = Self { facts: node(OsKind::Immutable), ..Self::packages(windows) };
        node.desired.images = vec![image(1, "3.0.1"), image(2, "3.0.2")];
        node
    }

    fn kernel(windows: &[Window]) -> Self {
        let kernel = DesiredUpdate::parse_target(None, "", &[], "quiet").expect("a command line");
        let mut node = Self::image(windows);
        node.desired.policies = vec![assigned(policy(1, kernel))];
        node
    }

    pub fn with_limit(mut self, max_concurrent: u32, in_use: u32, mine: bool) -> Self {
        let assigned = &mut self.desired.policies[0];
        assigned.limits.max_concurrent = Some(max_concurrent);
        assigned.usage =
            LimitUsage { held_by_others: in_use, holds_slot: mine, ..LimitUsage::default() };
        self
    }

    pub fn answer_at(&self, now: Time) -> Answer {
        self.with_input(now, |input| super::render_answer(input, now))
    }

    pub fn steady_until(&self, now: Time) -> Option<Time> {
        self.with_input(now, |input| super::steady_until(input, now))
    }

    fn with_input<T>(&self, now: Time, then: impl FnOnce(&AnswerInput<'_>) -> T) -> T {
        let mut desired = self.desired.clone();
        let unused = self.delivered.unused_window(&self.facts, self.open.as_ref(), now);
        let me = InstanceId::nth(1);
        let behind = unused.and_then(|_| {
            let node = (&self.facts, self.open.as_ref());
            self.delivered.yields_until(node, &desired, me, now)
        });
        for assigned in &mut desired.policies {
            assigned.usage.yields_until = behind;
        }
        let decision = decide(&self.facts, &desired, self.open.as_ref(), now);
        then(&AnswerInput {
            facts: &self.facts,
            desired: &desired,
            open_run: self.open.as_ref(),
            decision: &decision,
            delivered: &self.delivered,
        })
    }

    /// Polls, and stores the state of the answer as if it had arrived.
    pub fn poll(&mut self, now: Time) -> Answer {
        let answer = self.answer_at(now);
        self.delivered = answer.delivered.clone();
        if let Some(assigned) = self.desired.policies.first_mut() {
            assigned.usage.holds_slot = answer.slot.is_some();
        }
        answer
    }

    pub fn record_end(&mut self, at: Time, verdict: Verdict) {
        let target = crate::decide::resolve_target(&self.facts, &self.desired).expect("a target");
        self.facts.last_run =
            Some(LastRun { run: RunId::nth(1), target: Some(target.digest()), at, verdict });
    }
}

#[test]
fn a_replaced_window_is_delivered_after_answers_without_any() {
    let mut node = Node::packages(&[window(1, 2)]);
    assert_eq!(node.poll(NOON).single, Some(span(1, 2)));
    node.desired.windows = Windows::from_now_on([window(3, 4)], NOON);
    assert_eq!(node.poll(NOON + TICK).single, None);
    // The answer was lost, and the agent polls again at once.
    assert_eq!(node.poll(NOON + TICK + TimeDelta::seconds(1)).single, None);
    assert_eq!(node.poll(NOON + TICK * 2).single, Some(span(3, 4)));
    assert_eq!(node.poll(NOON + TICK * 3).delivered, node.delivered, "no change to store");
}

#[test]
fn an_expired_window_is_replaced_in_the_same_way() {
    let mut node = Node::packages(&[window(0, 1), window(2, 3)]);
    assert_eq!(node.poll(NOON).single, Some(span(0, 1)));
    let expired_at = NOON + hours(1);
    assert_eq!(node.poll(expired_at).single, None);
    assert_eq!(node.poll(expired_at + TICK).single, Some(span(2, 3)));
}

#[test]
fn an_open_window_is_unchanged_until_it_ends() {
    let now = NOON + TimeDelta::minutes(30);
    let mut node = Node::packages(&[window(0, 3), window(0, 1)]);
    node.delivered.single = Some(span(0, 3));
    assert_eq!(node.answer_at(now).single, Some(span(0, 3)));
    node.delivered = DeliveryState::default();
    assert_eq!(node.answer_at(now).single, Some(span(0, 1)), "the one that ends first");
    // The agent would not begin, because too little time is left.
    let late = NOON + TimeDelta::minutes(51);
    assert_eq!(node.answer_at(late).single, Some(span(0, 3)));
}

#[test]
fn without_a_policy_or_trust_an_agent_gets_nothing() {
    let mut node = Node::packages(&[window(0, 3)]);
    node.facts.trusted = false;
    assert_eq!(node.answer_at(NOON), Answer::default());
    node.facts.trusted = true;
    node.desired.policies.clear();
    assert_eq!(node.answer_at(NOON), Answer::default());
}

#[test]
fn packages_sources_and_the_command_line_are_those_of_the_policy() {
    let source = "# ours\nTypes: deb\nURIs: https://deb.example.org\nSuites: ./\nSigned-By: /k";
    let source = source.to_owned();
    let desired =
        DesiredUpdate::parse_target(None, "jq\ncurl=8.5", std::slice::from_ref(&source), "quiet");
    let mut node = Node::packages(&[window(0, 1)]);
    node.desired.policies = vec![assigned(policy(1, desired.expect("a policy")))];
    let answer = node.answer_at(NOON);
    assert_eq!(answer.installed_packages, "jq\ncurl");
    assert_eq!(answer.custom_repos, [source]);
    assert_eq!(answer.kernel_command, "quiet");
    assert_eq!(answer.image, None);
}

#[test]
fn an_image_is_delivered_with_its_window() {
    let mut node = Node::image(&[window(-1, 1)]);
    let answer = node.poll(NOON);
    assert_eq!(answer.image, Some(image(2, "3.0.2")));
    assert_eq!(answer.single, Some(span(-1, 1)));
    assert_eq!(answer.delivered.image, answer.image);
    // The node runs the image now, so there is nothing to install and no window.
    node.facts.running = image(2, "3.0.2");
    let answer = node.poll(NOON + TICK);
    assert_eq!((answer.image, answer.single), (None, None));
    assert!(answer.delivered.image.is_some(), "the delivered image may still be echoed");
    let much_later = node.poll(NOON + hours(3));
    assert_eq!(much_later.delivered, DeliveryState::default());
}

#[test]
fn an_image_node_without_anything_to_install_gets_no_window() {
    let mut node = Node::image(&[window(-1, 1)]);
    node.desired.repeated_schedules = vec![nightly(1, "0", Zone::UTC)];
    node.desired.images = vec![];
    assert_eq!(node.answer_at(NOON), Answer::default());
    // The agent would fetch an image without a URL from an empty address.
    node.desired.images = vec![Image { url: String::new(), ..image(2, "3.0.2") }];
    assert_eq!(node.answer_at(NOON), Answer::default());
}

#[test]
fn the_image_is_frozen_while_a_run_is_open() {
    let mut node = Node::image(&[window(-1, 1)]);
    let frozen = Target {
        policy: PolicyId::nth(1),
        kind: TargetKind::Image(image(2, "3.0.2")),
        image_rules: ImageRules::default(),
    };
    node.desired.images.push(image(3, "3.0.3"));
    for state in [
        RunState::Downloading { since: NOON },
        RunState::Staged { since: NOON },
        RunState::Applying { since: NOON },
    ] {
        node.open = Some(OpenRun { target: Some(frozen.clone()), ..open_run(state) });
        let answer = node.answer_at(NOON);
        assert_eq!(answer.image, Some(image(2, "3.0.2")));
        assert_eq!(answer.single, Some(span(-1, 1)));
    }
    node.open = None;
    assert_eq!(node.answer_at(NOON).image, Some(image(3, "3.0.3")));
}

#[test]
fn a_command_line_is_delivered_until_it_was_set() {
    let mut node = Node::kernel(&[window(-1, 1), window(24, 26)]);
    let answer = node.poll(NOON);
    assert_eq!(answer.kernel_command, "quiet");
    assert_eq!((answer.image, answer.single), (None, Some(span(-1, 1))));
    assert!(answer.delivered.kernel);
    node.record_end(NOON + TICK, Verdict::Bad);
    assert_eq!(node.poll(NOON + TICK).kernel_command, "quiet");
    // After a success the agent would restart the node again, in this window and in every later one.
    node.record_end(NOON + TICK, Verdict::Good);
    for now in [NOON + TICK, NOON + hours(25)] {
        let answer = node.poll(now);
        assert_eq!((answer.kernel_command.as_str(), answer.single), ("", None));
    }
}

fn nightly(n: u32, hour: &str, zone: Zone) -> RepeatedSchedule {
    RepeatedSchedule {
        id: RepeatedScheduleId::nth(n),
        spec: RepeatedSpec {
            name: Name::default(),
            status: ScheduleStatus::OsUpdate,
            duration: TimeDelta::seconds(3_600),
            cron: Cron::parse("0", hour, "*", "*", "1-5").expect("a cron"),
            zone,
            target: Some(ScheduleTarget::Site(SiteId::nth(1))),
        },
        created_at: NOON,
        updated_at: NOON,
    }
}

/// A node with a schedule in UTC, one in Berlin and a single one. Their windows open in 1, 2 and 3 hours.
pub(super) fn with_schedules(mut node: Node) -> Node {
    let berlin = Zone::parse("Europe/Berlin").expect("a zone");
    node.desired.repeated_schedules = vec![nightly(2, "3", berlin), nightly(1, "2", Zone::UTC)];
    node.desired.repeated_schedules.sort_by_key(|schedule| schedule.id);
    let of = |schedule: u32, from| Window {
        opener: Opener::Repeated(RepeatedScheduleId::nth(schedule)),
        ..window(from, from + 1)
    };
    node.desired.windows = Windows::from_now_on([of(1, 1), of(2, 2), window(3, 4)], NOON);
    node
}

#[test]
fn the_agent_repeats_utc_schedules_and_gets_other_windows_one_by_one() {
    let node = with_schedules(Node::packages(&[]));
    let answer = node.answer_at(NOON);
    let expected = WireRepeatedSchedule {
        duration_seconds: 3_600,
        cron_minutes: "0".to_owned(),
        cron_hours: "2".to_owned(),
        cron_day_month: "*".to_owned(),
        cron_month: "*".to_owned(),
        cron_day_week: "1,2,3,4,5".to_owned(),
    };
    assert_eq!(answer.repeated, [expected]);
    assert_eq!(answer.single, Some(span(2, 3)), "the window of Berlin");
    assert_eq!(answer.delivered.occurrence, Some(span(1, 2)));
}

#[test]
fn counted_or_ordered_windows_are_delivered_one_by_one() {
    let limited = with_schedules(Node::packages(&[])).with_limit(2, 1, false);
    assert_eq!(limited.answer_at(NOON).repeated, []);
    assert_eq!(limited.answer_at(NOON).single, None, "not before it may begin");
    assert_eq!(limited.answer_at(NOON + hours(1)).single, Some(span(1, 2)));

    let mut ordered = with_schedules(Node::packages(&[]));
    let mut order = Order {
        kind: OrderKind::Now,
        at: NOON,
        until: NOON + hours(1),
        reason: String::new(),
        by: "operator".to_owned(),
    };
    ordered.desired.order = Some(order.clone());
    let answer = ordered.answer_at(NOON);
    assert_eq!((answer.repeated.len(), answer.single), (0, Some(span(0, 1))));
    // When the order has ended, the repeated schedule is back.
    assert_eq!(ordered.answer_at(NOON + hours(1)).repeated.len(), 1);

    order.kind = OrderKind::Cancel;
    order.at = NOON + hours(1);
    ordered.desired.order = Some(order);
    let answer = ordered.answer_at(NOON + hours(1));
    assert_eq!((answer.repeated.len(), answer.single), (0, Some(span(2, 3))));
}

#[test]
fn an_order_does_not_wait_for_the_end_of_another_window() {
    let mut node = Node::packages(&[window(0, 5)]);
    node.poll(NOON);
    node.record_end(NOON + TICK, Verdict::Bad);
    assert_eq!(node.poll(NOON + TICK * 2).single, Some(span(0, 5)));
    node.desired.order = Some(Order {
        kind: OrderKind::Now,
        at: NOON + hours(1),
        until: NOON + hours(6),
        reason: String::new(),
        by: "operator".to_owned(),
    });
    assert_eq!(node.poll(NOON + hours(1)).single, None);
    assert_eq!(node.poll(NOON + hours(1) + TICK).single, Some(span(1, 6)));
}

#[test]
fn a_pause_takes_every_window_back_with_the_next_answer() {
    let mut node = with_schedules(Node::packages(&[]));
    node.poll(NOON);
    for scope in [
        PauseScope::Project,
        PauseScope::Site(SiteId::nth(1)),
        PauseScope::Policy(PolicyId::nth(1)),
    ] {
        node.desired.pauses =
            vec![Pause { scope, reason: String::new(), by: "operator".to_owned(), at: NOON }];
        for run in [None, Some(open_run(RunState::Staged { since: NOON }))] {
            node.open = run;
            let answer = node.answer_at(NOON + TICK);
            assert_eq!((answer.single, answer.repeated.len()), (None, 0), "{scope}");
        }
    }
    node.desired.pauses[0].scope = PauseScope::Policy(PolicyId::nth(2));
    assert_eq!(node.answer_at(NOON + TICK).repeated.len(), 1, "another policy is paused");
}

#[test]
fn an_update_done_in_its_window_does_not_begin_in_another_open_window() {
    let mut node = Node::packages(&[window(0, 4)]);
    node.poll(NOON);
    node.record_end(NOON + hours(1), Verdict::Good);
    assert_eq!(node.poll(NOON + hours(1)).single, Some(span(0, 4)));
    // An operator moves the end of the window: to the agent that is another window, in which it would begin again.
    node.desired.windows = Windows::from_now_on([window(0, 5)], NOON);
    for minutes in [70, 80, 90] {
        assert_eq!(node.poll(NOON + TimeDelta::minutes(minutes)).single, None);
    }
}

#[test]
fn a_window_is_remembered_while_late_reports_are_possible() {
    let mut node = with_schedules(Node::packages(&[]));
    let is_remembered = |node: &Node, minutes| {
        let now = NOON + TimeDelta::minutes(minutes);
        node.delivered.was_open(now)
    };
    node.poll(NOON);
    assert!(!is_remembered(&node, 0));
    assert!(is_remembered(&node, 61), "the agent opened it by itself");
    node.poll(NOON + TimeDelta::minutes(61));
    node.desired.policies.clear();
    node.poll(NOON + TimeDelta::minutes(62));
    assert!(is_remembered(&node, 63), "it was withdrawn");
    assert!(!is_remembered(&node, 123));
    assert_eq!(node.delivered.policy, Some(PolicyId::nth(1)));
}

/// The node's clock may have opened a window that the server withdraws, so an update may still be reported.
#[test]
fn a_window_taken_back_just_before_it_opens_may_have_been_used() {
    for (minutes, may_have_begun) in [(57, true), (50, false)] {
        let mut node = Node::packages(&[window(1, 2)]);
        node.poll(NOON);
        node.desired.policies.clear();
        node.poll(NOON + TimeDelta::minutes(minutes));
        let later = NOON + TimeDelta::minutes(minutes + 5);
        assert_eq!(node.delivered.may_have_begun(later), may_have_begun, "{minutes}");
        assert!(!node.delivered.was_open(later), "not by the server's clock");
    }
}

/// A window that only the node's clock can have opened must not hide one that was open.
#[test]
fn a_window_taken_back_early_does_not_hide_one_that_was_open() {
    let at = |minutes| NOON + TimeDelta::minutes(minutes);
    let mut node = Node::packages(&[window(0, 1)]);
    node.poll(at(30));
    node.desired.windows = Windows::from_now_on([window(2, 3)], at(90));
    node.poll(at(90));
    assert!(node.delivered.was_open(at(91)), "the first one");
    node.poll(at(116));
    node.desired.policies.clear();
    node.poll(at(117));
    assert!(node.delivered.was_open(at(118)), "still the first one");
    assert!(node.delivered.may_have_begun(at(118)));
}

#[test]
fn a_delivery_state_survives_serialization() {
    let mut node = with_schedules(Node::image(&[]));
    node.poll(NOON);
    node.poll(NOON + hours(2));
    let json = serde_json::to_value(&node.delivered).expect("the state is serialized");
    let back: DeliveryState = serde_json::from_value(json).expect("the state is read");
    assert_eq!(back, node.delivered);
    let nothing: DeliveryState = serde_json::from_str("{}").expect("the default state is read");
    assert_eq!(nothing, DeliveryState::default());
    let last = LastSample {
        unconfirmed_failure: Some(UnconfirmedFailure {
            since: NOON,
            times: 2,
            instead_of: Some(SampleKind::Started),
        }),
        ..last_sample(SampleKind::Failed)
    };
    let json = serde_json::to_string(&last).expect("the sample is serialized");
    assert_eq!(serde_json::from_str::<LastSample>(&json).expect("the sample is read"), last);
}
