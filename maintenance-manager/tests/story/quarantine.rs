//! Images that failed on a node: none is tried again by itself, and an order lets one be tried once.

use evenkeel_domain::condition::ConditionKind;
use evenkeel_domain::id::OsId;
use evenkeel_domain::order::OrderKind;
use evenkeel_domain::policy::{ImageRules, PolicySpec, Wish};
use evenkeel_domain::run::ImageChange;
use evenkeel_proto::agent::begin_response::Answer;
use evenkeel_proto::agent::decision::Act;
use evenkeel_proto::agent::{self as wire, BadImage, Facts, PollResponse};
use evenkeel_store::{os_profiles, policies};

use crate::fleet::file_of;
use crate::house::{House, TestNode, act, began, downloaded, facts, reason};
use crate::image_nodes::{booted, failed_on, fell_back_to, fetching, finished_with, sent_to};

const HELD: &str = "the image 3.0.2 failed on this node before and is not tried again by itself; \
                    `evenkeel update now` orders it";

/// A node that runs 3.0.1 and shall run the newest image, which is 3.0.2, within the next ten hours.
struct Story {
    house: House,
    node: TestNode,
    newest: OsId,
    /// How its attempts name what they are for.
    wish: String,
}

impl Story {
    async fn begins() -> Self {
        let house = House::new().await;
        house.catalogue("3.0.1").await;
        let newest = house.catalogue("3.0.2").await;
        let node = house.image_node(1, "3.0.1").await;
        let policy = house.make(Wish::Latest).await;
        house.assign_to(node.instance, policy).await;
        house.window(node.host, 0, 600).await;
        Self {
            house,
            node,
            newest,
            wish: format!("{policy}/{newest}"),
        }
    }

    /// The node has the image, and has not begun.
    async fn fetches(&self, attempt: u128) {
        let fetched = [(1, fetching("3.0.1", "3.0.2")), (2, downloaded())];
        let (house, wish) = (&self.house, &self.wish);
        house.report_for(&self.node, attempt, wish, &fetched).await;
    }

    async fn begins_attempt(&self, attempt: u128) -> Answer {
        let (house, wish) = (&self.house, &self.wish);
        house.begin_for(&self.node, attempt, wish, 2).await
    }

    /// The node tries the image, is back at the old one, and says so. What is it answered?
    async fn falls_back(&self, attempt: u128) -> PollResponse {
        self.fetches(attempt).await;
        let leave = self.begins_attempt(attempt).await;
        assert!(matches!(leave, Answer::Granted(_)), "{leave:?}");
        let (house, wish) = (&self.house, &self.wish);
        let tried = [(3, began()), (4, fell_back_to("3.0.1"))];
        house.report_for(&self.node, attempt, wish, &tried).await;
        house.tell(&self.node, failed("it never got healthy")).await
    }

    async fn is_ordered(&self) {
        self.house.pass(1);
        self.house.order(self.node.instance, OrderKind::Now).await;
    }

    async fn poll(&self) -> PollResponse {
        self.house.poll(&self.node).await
    }

    async fn conditions(&self) -> Vec<ConditionKind> {
        self.house.conditions(self.node.instance).await
    }
}

/// What the node says after 3.0.2 failed on it.
fn failed(why: &str) -> Facts {
    failed_on(booted("3.0.1"), "3.0.2", why)
}

/// Whether a node is sent to an image that failed there.
fn is_sent_again(answer: &PollResponse) -> bool {
    sent_to(answer).is_some_and(|image| image.again)
}

fn is_granted_ahead(answer: &PollResponse) -> bool {
    let decision = answer.decision.as_ref();
    decision.is_some_and(|decision| decision.grant.is_some())
}

#[tokio::test]
async fn an_image_that_failed_is_not_tried_again_by_itself_and_people_see_why() {
    let story = Story::begins().await;
    let first = story.poll().await;
    assert_eq!(act(&first), "apply");
    assert!(!is_sent_again(&first) && is_granted_ahead(&first));
    let answer = story.falls_back(1).await;
    assert_eq!((act(&answer), reason(&answer)), ("idle", HELD));
    assert_eq!(story.conditions().await, [ConditionKind::Quarantined]);
    let run = &story.house.runs(&story.node).await[0];
    let change = ImageChange {
        profile_name: "edge".into(),
        before: "3.0.1".into(),
        wanted: "3.0.2".into(),
        booted: Some("3.0.1".into()),
    };
    assert_eq!(
        (run.state.name(), run.image.as_ref()),
        ("reverted", Some(&change))
    );

    story.house.window(story.node.host, 1_440, 1_500).await;
    for pass in [0, 1_430, 20] {
        story.house.pass(pass);
        let later = story.poll().await;
        assert_eq!((act(&later), reason(&later)), ("idle", HELD));
        assert!(!is_granted_ahead(&later));
        assert_eq!(later.decision_tag, answer.decision_tag);
    }
}

#[tokio::test]
async fn an_image_that_works_is_what_ran_and_what_was_booted() {
    let story = Story::begins().await;
    story.fetches(1).await;
    story.begins_attempt(1).await;
    let done = [(3, began()), (4, finished_with("3.0.2"))];
    let house = &story.house;
    house.report_for(&story.node, 1, &story.wish, &done).await;
    house.tell(&story.node, booted("3.0.2")).await;
    let run = &house.runs(&story.node).await[0];
    let change = run.image.as_ref().expect("an image");
    assert_eq!(
        (run.state.name(), change.booted.as_deref()),
        ("succeeded", Some("3.0.2"))
    );
    assert_eq!(house.known(&story.node).await.os, story.newest);
}

#[tokio::test]
async fn an_order_lets_an_image_that_failed_be_tried_once() {
    let story = Story::begins().await;
    story.falls_back(1).await;
    story.house.order(story.node.instance, OrderKind::Now).await;
    let at_once = story.poll().await;
    assert_eq!(
        reason(&at_once),
        HELD,
        "nobody could know when it was ordered"
    );

    for attempt in 2..=3 {
        story.is_ordered().await;
        let answer = story.poll().await;
        assert_eq!(act(&answer), "apply");
        assert!(is_sent_again(&answer), "{answer:?}");
        assert!(!is_granted_ahead(&answer), "an order is for now");
        assert_eq!(
            story.conditions().await,
            [ConditionKind::Quarantined],
            "it stays"
        );
        let answer = story.falls_back(attempt).await;
        assert_eq!(
            (act(&answer), reason(&answer)),
            ("idle", HELD),
            "it was its try"
        );
        let runs = story.house.runs(&story.node).await;
        let by = runs[0].origin.order.as_ref().map(|order| order.by.as_str());
        assert_eq!(by, Some("alice"), "no schedule would have begun this");
    }
    assert_eq!(story.house.runs(&story.node).await.len(), 3);
}

#[tokio::test]
async fn an_order_is_one_try_of_an_image_whatever_was_tried_after_it() {
    let story = Story::begins().await;
    story.falls_back(1).await;
    story.is_ordered().await;
    story.falls_back(2).await;
    let newer = story.house.catalogue("3.0.3").await;
    let (policy, _) = story.wish.split_once('/').expect("a policy and an image");
    let wish = format!("{policy}/{newer}");
    let story = Story { wish, ..story };
    let answer = story.falls_back(3).await;
    assert_eq!(act(&answer), "idle", "it had the same order");
    let policy = story.house.image_policy(story.newest).await;
    story.house.assign_to(story.node.instance, policy).await;
    let answer = story.poll().await;
    assert_eq!((act(&answer), reason(&answer)), ("idle", HELD));

    story.is_ordered().await;
    assert!(is_sent_again(&story.poll().await));
}

#[tokio::test]
async fn what_an_order_let_a_node_fetch_is_given_up_with_the_order() {
    let story = Story::begins().await;
    story.falls_back(1).await;
    story.is_ordered().await;
    story.fetches(2).await;
    let answer = story.house.poll_with(&story.node, 2).await;
    assert!(
        act(&answer) == "apply" && is_sent_again(&answer),
        "{answer:?}"
    );
    story.house.pass(61);
    let answer = story.house.poll_with(&story.node, 2).await;
    assert_eq!(reason(&answer), HELD);
    let Some(Act::Cancel(cancel)) = answer.decision.and_then(|decision| decision.act) else {
        panic!("it is given up");
    };
    assert_eq!(cancel.cause, "withdrawn");
    let Answer::Refused(refused) = story.begins_attempt(2).await else {
        panic!("it must not begin");
    };
    assert_eq!(refused.reason, HELD);
}

#[tokio::test]
async fn what_a_node_forgot_is_an_image_like_any_other() {
    let story = Story::begins().await;
    story.falls_back(1).await;
    story.house.tell(&story.node, booted("3.0.1")).await;
    assert_eq!(story.conditions().await, []);
    story.house.window(story.node.host, 1_440, 1_500).await;
    story.house.pass(1_450);
    let answer = story.poll().await;
    assert_eq!(act(&answer), "apply");
    assert!(!is_sent_again(&answer));
}

#[tokio::test]
async fn a_newer_image_is_tried_where_an_older_one_failed() {
    let story = Story::begins().await;
    story.falls_back(1).await;
    story.house.catalogue("3.0.3").await;
    let answer = story.poll().await;
    let image = sent_to(&answer).expect("an image");
    assert_eq!((image.image_id.as_str(), image.again), ("3.0.3", false));
    assert_eq!(story.conditions().await, []);
}

/// Answers are kept once for all nodes that get the same one.
#[tokio::test]
async fn nodes_are_told_the_same_whatever_each_says_of_its_failure() {
    let story = Story::begins().await;
    let (house, one) = (&story.house, &story.node);
    let two = house.image_node(2, "3.0.1").await;
    let known = house.state(one.instance).await;
    assert_eq!(known.bad_images, []);
    let policy = story.wish.split('/').next().expect("a policy");
    let policy = policy.parse().expect("a policy");
    house.assign_to(two.instance, policy).await;
    house
        .tell(one, failed("web.service never got active"))
        .await;
    house.tell(&two, failed("the kernel panicked")).await;
    let (one, two) = (house.poll(one).await, house.poll(&two).await);
    assert_eq!(reason(&one), HELD);
    assert_eq!(one.decision_tag, two.decision_tag);
}

#[tokio::test]
async fn an_image_that_is_signed_anew_is_told_anew_and_what_was_begun_goes_on() {
    let story = Story::begins().await;
    let house = &story.house;
    story.fetches(1).await;
    let before = house.poll_with(&story.node, 1).await;
    assert_eq!(act(&before), "apply");
    let signature = format!("{}:MEUCIQ==", "b".repeat(64));
    let tx = house.tx().await;
    let mut os = os_profiles::find(&tx, story.newest).await.expect("an os");
    os.spec.image_signatures = vec![signature.clone()];
    let changed = os_profiles::change(&tx, os.id, &os.spec, house.time()).await;
    changed.expect("signed");
    tx.commit().await.expect("committed");
    let after = house.poll_with(&story.node, 1).await;
    assert_eq!(act(&after), "apply");
    assert_ne!(before.decision_tag, after.decision_tag);
    assert_eq!(sent_to(&after).expect("an image").signatures, [signature]);
    let leave = story.begins_attempt(1).await;
    assert!(matches!(leave, Answer::Granted(_)), "{leave:?}");
    assert_eq!(house.runs(&story.node).await.len(), 1);
}

#[tokio::test]
async fn a_node_is_told_what_an_image_is_made_for_and_how_it_may_be_fetched() {
    let story = Story::begins().await;
    let house = &story.house;
    let answer = story.poll().await;
    let usual = sent_to(&answer).expect("an image");
    assert_eq!(usual.architecture, "x86_64");
    assert_eq!(usual.rules, Some(wire::ImageRules::default()));
    let rules = ImageRules {
        download_bytes_per_second: 1 << 20,
        max_bytes: 1 << 30,
        attempts: 7,
    };
    let spec = PolicySpec::parse("slow", "", Wish::Latest).expect("a policy");
    let spec = spec.imaged(rules).expect("rules");
    let tx = house.tx().await;
    let policy = policies::create(&tx, &spec, house.time()).await;
    let policy = policy.expect("a policy").id;
    tx.commit().await.expect("committed");
    house.assign_to(story.node.instance, policy).await;
    let answer = story.poll().await;
    let told = sent_to(&answer).and_then(|image| image.rules);
    let told = told.map(|told| {
        (
            told.download_bytes_per_second,
            told.max_bytes,
            told.attempts,
        )
    });
    assert_eq!(told, Some((1 << 20, 1 << 30, 7)));
}

#[tokio::test]
async fn what_a_node_says_of_its_slots_and_failures_is_known_and_nonsense_is_left_out() {
    let story = Story::begins().await;
    let (house, instance) = (&story.house, story.node.instance);
    house.tell(&story.node, failed("a\0b")).await;
    let first = house.state(instance).await.bad_images;
    let nonsense = |sha256: &str| BadImage {
        sha256: sha256.into(),
        ..BadImage::default()
    };
    let mut said = failed("it hangs");
    said.bad_images
        .extend([nonsense("none"), nonsense(&"0".repeat(64))]);
    house.pass(5);
    house.tell(&story.node, said).await;
    let known = house.state(instance).await;
    assert_eq!(known.bad_images, first, "known since the first time");
    let shown = serde_json::json!([{
        "sha256": file_of("edge", "3.0.2"),
        "imageId": "3.0.2",
        "why": "it hangs",
    }]);
    assert_eq!(known.facts["badImages"], shown);
    let slots = serde_json::json!([
        {"name": "a", "state": "good", "imageId": "3.0.1"},
        {"name": "b", "state": "empty", "imageId": ""},
    ]);
    assert_eq!(known.facts["slots"], slots);
    house.tell(&story.node, facts()).await;
    let known = house.state(instance).await;
    assert_eq!(
        (known.bad_images.len(), &known.facts["slots"]),
        (0, &serde_json::json!([]))
    );
}
