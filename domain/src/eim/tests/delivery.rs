//! What a node is answered, and what is kept still for it.

use super::*;
use crate::decide::Verdict;
use crate::id::{RepeatedScheduleId, SiteId};
use crate::order::{Order, OrderKind};
use crate::pause::{Pause, PauseScope};
use crate::schedule::{Cron, RepeatedSchedule, RepeatedSpec, ScheduleStatus, ScheduleTarget, Zone};
use crate::text::Name;

/// A node that asks now and then.
pub(super) struct Node {
    pub known: NodeFacts,
    pub wanted: Wanted,
    pub open: Option<OpenRun>,
    pub delivered: Delivered,
}

impl Node {
    pub fn packages(windows: &[Window]) -> Self {
        Self {
            known: node(OsKind::Mutable),
            wanted: wanted(policy(1, Wish::Latest), windows),
            open: None,
            delivered: Delivered::default(),
        }
    }

    /// A node that runs 3.0.1, where 3.0.2 is the newest.
    pub fn image(windows: &[Window]) -> Self {
        let mut node = Self {
            known: node(OsKind::Immutable),
            ..Self::packages(windows)
        };
        node.wanted.images = vec![image(1, "3.0.1"), image(2, "3.0.2")];
        node
    }

    fn kernel(windows: &[Window]) -> Self {
        let kernel = Wish::target(None, "", &[], "quiet").expect("a command line");
        let mut node = Self::image(windows);
        node.wanted.policies = vec![assigned(policy(1, kernel))];
        node
    }

    pub fn limited(mut self, max_concurrent: u32, held: u32, mine: bool) -> Self {
        let assigned = &mut self.wanted.policies[0];
        assigned.limits.max_concurrent = Some(max_concurrent);
        assigned.brake = Brake {
            held,
            mine,
            ..Brake::default()
        };
        self
    }

    pub fn ask(&self, now: Time) -> Answer {
        self.asked(now, |asked| super::answer(asked, now))
    }

    pub fn steady_until(&self, now: Time) -> Option<Time> {
        self.asked(now, |asked| super::steady_until(asked, now))
    }

    fn asked<T>(&self, now: Time, then: impl FnOnce(&Asked<'_>) -> T) -> T {
        let mut wanted = self.wanted.clone();
        let passed = self.delivered.passed(&self.known, self.open.as_ref(), now);
        let me = InstanceId::nth(1);
        let behind = passed.and_then(|_| {
            let node = (&self.known, self.open.as_ref());
            self.delivered.gives_way(node, &wanted, me, now)
        });
        for assigned in &mut wanted.policies {
            assigned.brake.behind = behind;
        }
        let decision = decide(&self.known, &wanted, self.open.as_ref(), now);
        then(&Asked {
            known: &self.known,
            wanted: &wanted,
            open: self.open.as_ref(),
            decision: &decision,
            before: &self.delivered,
        })
    }

    /// Asks, and the answer arrives.
    pub fn poll(&mut self, now: Time) -> Answer {
        let answer = self.ask(now);
        self.delivered = answer.delivered.clone();
        if let Some(assigned) = self.wanted.policies.first_mut() {
            assigned.brake.mine = answer.slot.is_some();
        }
        answer
    }

    pub fn ended(&mut self, at: Time, verdict: Verdict) {
        let target = crate::decide::target(&self.known, &self.wanted).expect("a wish");
        self.known.last_end = Some(LastEnd {
            run: RunId::nth(1),
            target: Some(target.digest()),
            at,
            verdict,
        });
    }
}

#[test]
fn a_replaced_window_is_delivered_after_answers_without_any() {
    let mut node = Node::packages(&[window(1, 2)]);
    assert_eq!(node.poll(NOON).single, Some(span(1, 2)));
    node.wanted.windows = Windows::from_now_on([window(3, 4)], NOON);
    assert_eq!(node.poll(NOON + TICK).single, None);
    // The answer was lost, and the agent asks again at once.
    assert_eq!(node.poll(NOON + TICK + TimeDelta::seconds(1)).single, None);
    assert_eq!(node.poll(NOON + TICK * 2).single, Some(span(3, 4)));
    assert_eq!(
        node.poll(NOON + TICK * 3).delivered,
        node.delivered,
        "nothing to write"
    );
}

#[test]
fn a_window_that_is_over_is_replaced_in_the_same_way() {
    let mut node = Node::packages(&[window(0, 1), window(2, 3)]);
    assert_eq!(node.poll(NOON).single, Some(span(0, 1)));
    let over = NOON + hours(1);
    assert_eq!(node.poll(over).single, None);
    assert_eq!(node.poll(over + TICK).single, Some(span(2, 3)));
}

#[test]
fn an_open_window_is_kept_still_until_it_ends() {
    let now = NOON + TimeDelta::minutes(30);
    let mut node = Node::packages(&[window(0, 3), window(0, 1)]);
    node.delivered.single = Some(span(0, 3));
    assert_eq!(node.ask(now).single, Some(span(0, 3)));
    node.delivered = Delivered::default();
    assert_eq!(
        node.ask(now).single,
        Some(span(0, 1)),
        "the one that ends first"
    );
    // So little of it is left that the agent would not begin.
    let late = NOON + TimeDelta::minutes(51);
    assert_eq!(node.ask(late).single, Some(span(0, 3)));
}

#[test]
fn without_a_policy_or_trust_an_agent_gets_nothing() {
    let mut node = Node::packages(&[window(0, 3)]);
    node.known.trusted = false;
    assert_eq!(node.ask(NOON), Answer::default());
    node.known.trusted = true;
    node.wanted.policies.clear();
    assert_eq!(node.ask(NOON), Answer::default());
}

#[test]
fn packages_sources_and_the_command_line_are_those_of_the_policy() {
    let source = "Types: deb\nURIs: https://deb.example.org".to_owned();
    let wish = Wish::target(None, "jq\ncurl=8.5", std::slice::from_ref(&source), "quiet");
    let mut node = Node::packages(&[window(0, 1)]);
    node.wanted.policies = vec![assigned(policy(1, wish.expect("a wish")))];
    let answer = node.ask(NOON);
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
    // It runs now, so there is nothing to install and no window.
    node.known.running = image(2, "3.0.2");
    let answer = node.poll(NOON + TICK);
    assert_eq!((answer.image, answer.single), (None, None));
    assert!(
        answer.delivered.image.is_some(),
        "what was told may still echo"
    );
    let much_later = node.poll(NOON + hours(3));
    assert_eq!(much_later.delivered, Delivered::default());
}

#[test]
fn an_image_node_without_anything_to_install_gets_no_window() {
    let mut node = Node::image(&[window(-1, 1)]);
    node.wanted.repeated = vec![nightly(1, "0", Zone::UTC)];
    node.wanted.images = vec![];
    assert_eq!(node.ask(NOON), Answer::default());
    // Nor one whose image lies nowhere: the agent would fetch an empty address.
    node.wanted.images = vec![Image {
        url: String::new(),
        ..image(2, "3.0.2")
    }];
    assert_eq!(node.ask(NOON), Answer::default());
}

#[test]
fn the_image_is_frozen_while_a_run_is_open() {
    let mut node = Node::image(&[window(-1, 1)]);
    let frozen = Target {
        policy: PolicyId::nth(1),
        wish: TargetKind::Image(image(2, "3.0.2")),
        image_rules: ImageRules::default(),
    };
    node.wanted.images.push(image(3, "3.0.3"));
    for state in [
        RunState::Downloading { since: NOON },
        RunState::Staged { since: NOON },
        RunState::Applying { since: NOON },
    ] {
        node.open = Some(OpenRun {
            target: Some(frozen.clone()),
            ..open(state)
        });
        let answer = node.ask(NOON);
        assert_eq!(answer.image, Some(image(2, "3.0.2")));
        assert_eq!(answer.single, Some(span(-1, 1)));
    }
    node.open = None;
    assert_eq!(node.ask(NOON).image, Some(image(3, "3.0.3")));
}

#[test]
fn a_command_line_is_delivered_until_it_was_set() {
    let mut node = Node::kernel(&[window(-1, 1), window(24, 26)]);
    let answer = node.poll(NOON);
    assert_eq!(answer.kernel_command, "quiet");
    assert_eq!((answer.image, answer.single), (None, Some(span(-1, 1))));
    assert!(answer.delivered.kernel);
    node.ended(NOON + TICK, Verdict::Bad);
    assert_eq!(node.poll(NOON + TICK).kernel_command, "quiet");
    // The agent would restart the node again, in this window and in every later one.
    node.ended(NOON + TICK, Verdict::Good);
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

/// A node with a schedule of the agent's own kind, one in Berlin and a single one. Their windows open in 1, 2 and 3
/// hours.
pub(super) fn with_schedules(mut node: Node) -> Node {
    let berlin = Zone::parse("Europe/Berlin").expect("a zone");
    node.wanted.repeated = vec![nightly(2, "3", berlin), nightly(1, "2", Zone::UTC)];
    node.wanted.repeated.sort_by_key(|schedule| schedule.id);
    let of = |schedule: u32, from| Window {
        opener: Opener::Repeated(RepeatedScheduleId::nth(schedule)),
        ..window(from, from + 1)
    };
    node.wanted.windows = Windows::from_now_on([of(1, 1), of(2, 2), window(3, 4)], NOON);
    node
}

#[test]
fn the_agent_repeats_itself_what_it_can_and_is_told_the_rest_one_by_one() {
    let node = with_schedules(Node::packages(&[]));
    let answer = node.ask(NOON);
    let told = RepeatedOnWire {
        duration_seconds: 3_600,
        cron_minutes: "0".to_owned(),
        cron_hours: "2".to_owned(),
        cron_day_month: "*".to_owned(),
        cron_month: "*".to_owned(),
        cron_day_week: "1,2,3,4,5".to_owned(),
    };
    assert_eq!(answer.repeated, [told]);
    assert_eq!(answer.single, Some(span(2, 3)), "that of Berlin");
    assert_eq!(answer.delivered.occurrence, Some(span(1, 2)));
}

#[test]
fn what_is_counted_or_ordered_is_told_window_by_window() {
    let limited = with_schedules(Node::packages(&[])).limited(2, 1, false);
    assert_eq!(limited.ask(NOON).repeated, []);
    assert_eq!(limited.ask(NOON).single, None, "not before it may begin");
    assert_eq!(limited.ask(NOON + hours(1)).single, Some(span(1, 2)));

    let mut ordered = with_schedules(Node::packages(&[]));
    let mut order = Order {
        kind: OrderKind::Now,
        at: NOON,
        until: NOON + hours(1),
        reason: String::new(),
        by: "somebody".to_owned(),
    };
    ordered.wanted.order = Some(order.clone());
    let answer = ordered.ask(NOON);
    assert_eq!(
        (answer.repeated.len(), answer.single),
        (0, Some(span(0, 1)))
    );
    // When it is over all is as before.
    assert_eq!(ordered.ask(NOON + hours(1)).repeated.len(), 1);

    order.kind = OrderKind::Cancel;
    order.at = NOON + hours(1);
    ordered.wanted.order = Some(order);
    let answer = ordered.ask(NOON + hours(1));
    assert_eq!(
        (answer.repeated.len(), answer.single),
        (0, Some(span(2, 3)))
    );
}

#[test]
fn an_order_does_not_wait_for_the_end_of_another_window() {
    let mut node = Node::packages(&[window(0, 5)]);
    node.poll(NOON);
    node.ended(NOON + TICK, Verdict::Bad);
    assert_eq!(node.poll(NOON + TICK * 2).single, Some(span(0, 5)));
    node.wanted.order = Some(Order {
        kind: OrderKind::Now,
        at: NOON + hours(1),
        until: NOON + hours(6),
        reason: String::new(),
        by: "somebody".to_owned(),
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
        node.wanted.pauses = vec![Pause {
            scope,
            reason: String::new(),
            by: "somebody".to_owned(),
            at: NOON,
        }];
        for run in [None, Some(open(RunState::Staged { since: NOON }))] {
            node.open = run;
            let answer = node.ask(NOON + TICK);
            assert_eq!((answer.single, answer.repeated.len()), (None, 0), "{scope}");
        }
    }
    node.wanted.pauses[0].scope = PauseScope::Policy(PolicyId::nth(2));
    assert_eq!(node.ask(NOON + TICK).repeated.len(), 1, "of another policy");
}

#[test]
fn what_was_seen_through_is_not_begun_by_another_open_window() {
    let mut node = Node::packages(&[window(0, 4)]);
    node.poll(NOON);
    node.ended(NOON + hours(1), Verdict::Good);
    assert_eq!(node.poll(NOON + hours(1)).single, Some(span(0, 4)));
    // Somebody moves the end of the window: to the agent that is another one, in which it would begin again.
    node.wanted.windows = Windows::from_now_on([window(0, 5)], NOON);
    for minutes in [70, 80, 90] {
        assert_eq!(node.poll(NOON + TimeDelta::minutes(minutes)).single, None);
    }
}

#[test]
fn a_window_is_remembered_for_what_may_still_be_heard_of_it() {
    let mut node = with_schedules(Node::packages(&[]));
    let is_remembered = |node: &Node, minutes| {
        let now = NOON + TimeDelta::minutes(minutes);
        node.delivered.was_open(now)
    };
    node.poll(NOON);
    assert!(!is_remembered(&node, 0));
    assert!(is_remembered(&node, 61), "the agent opened it by itself");
    node.poll(NOON + TimeDelta::minutes(61));
    node.wanted.policies.clear();
    node.poll(NOON + TimeDelta::minutes(62));
    assert!(is_remembered(&node, 63), "it was taken back");
    assert!(!is_remembered(&node, 123));
    assert_eq!(node.delivered.policy, Some(PolicyId::nth(1)));
}

/// Its clock may have opened the window that ours takes back, and then what it began in it is heard of.
#[test]
fn a_window_taken_back_just_before_it_opens_may_have_been_used() {
    for (minutes, may_have_begun) in [(57, true), (50, false)] {
        let mut node = Node::packages(&[window(1, 2)]);
        node.poll(NOON);
        node.wanted.policies.clear();
        node.poll(NOON + TimeDelta::minutes(minutes));
        let later = NOON + TimeDelta::minutes(minutes + 5);
        assert_eq!(
            node.delivered.may_have_begun(later),
            may_have_begun,
            "{minutes}"
        );
        assert!(!node.delivered.was_open(later), "not by our clock");
    }
}

/// The one that the node's clock alone may have opened must not hide the one that was really open.
#[test]
fn a_window_taken_back_early_does_not_hide_one_that_was_open() {
    let at = |minutes| NOON + TimeDelta::minutes(minutes);
    let mut node = Node::packages(&[window(0, 1)]);
    node.poll(at(30));
    node.wanted.windows = Windows::from_now_on([window(2, 3)], at(90));
    node.poll(at(90));
    assert!(node.delivered.was_open(at(91)), "the first one");
    node.poll(at(116));
    node.wanted.policies.clear();
    node.poll(at(117));
    assert!(node.delivered.was_open(at(118)), "still the first one");
    assert!(node.delivered.may_have_begun(at(118)));
}

#[test]
fn what_was_delivered_survives_the_database() {
    let mut node = with_schedules(Node::image(&[]));
    node.poll(NOON);
    node.poll(NOON + hours(2));
    let json = serde_json::to_value(&node.delivered).expect("it can be kept");
    let back: Delivered = serde_json::from_value(json).expect("it can be read");
    assert_eq!(back, node.delivered);
    let nothing: Delivered = serde_json::from_str("{}").expect("nothing was delivered");
    assert_eq!(nothing, Delivered::default());
    let seen = Seen {
        doubt: Some(Doubt {
            since: NOON,
            times: 2,
            instead_of: Some(SampleKind::Started),
        }),
        ..seen(SampleKind::Failed)
    };
    let json = serde_json::to_string(&seen).expect("it can be kept");
    assert_eq!(
        serde_json::from_str::<Seen>(&json).expect("it can be read"),
        seen
    );
}
