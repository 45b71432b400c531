//! Images that failed on a node are not retried automatically. An order allows one retry.

use evenkeel_domain::condition::ConditionKind;
use evenkeel_domain::id::OsId;
use evenkeel_domain::order::OrderKind;
use evenkeel_domain::policy::{DesiredUpdate, ImageRules, PolicySpec};
use evenkeel_domain::run::ImageChange;
use evenkeel_proto::agent::begin_response::Answer;
use evenkeel_proto::agent::decision::Act;
use evenkeel_proto::agent::{self as wire, BadImage, Facts, PollResponse};
use evenkeel_store::{os_profiles, policies};

use crate::fleet::file_digest;
use crate::image_nodes::{
    downloading_image, facts_after_boot, finished_with, offered_image, reverted_to,
    with_failed_image,
};
use crate::test_server::{TestNode, TestServer, act, began, downloaded, facts, reason};

const QUARANTINE_REASON: &str = "the image 3.0.2 failed on this node before and is not retried automatically; \
                    `evenkeel update now` orders a retry";

/// A node that runs 3.0.1 and shall run the newest image, which is 3.0.2, in a window of ten hours.
struct ImageScenario {
    server: TestServer,
    node: TestNode,
    newest: OsId,
    /// The target digest of its attempts.
    target_digest: String,
}

impl ImageScenario {
    async fn new() -> Self {
        let server = TestServer::new().await;
        server.add_image("3.0.1").await;
        let newest = server.add_image("3.0.2").await;
        let node = server.image_node(1, "3.0.1").await;
        let policy = server.create_policy_for(DesiredUpdate::Latest).await;
        server.assign_to(node.instance, policy).await;
        server.window(node.host, 0, 600).await;
        Self { server, node, newest, target_digest: format!("{policy}/{newest}") }
    }

    /// The node downloads the image and does not begin.
    async fn download(&self, attempt: u128) {
        let fetched = [(1, downloading_image("3.0.1", "3.0.2")), (2, downloaded())];
        let (server, target_digest) = (&self.server, &self.target_digest);
        server.report_for(&self.node, attempt, target_digest, &fetched).await;
    }

    async fn begin_attempt(&self, attempt: u128) -> Answer {
        let (server, target_digest) = (&self.server, &self.target_digest);
        server.begin_for(&self.node, attempt, target_digest, 2).await
    }

    /// The node tries the image, boots the old one again and reports this. Returns the answer.
    async fn fall_back(&self, attempt: u128) -> PollResponse {
        self.download(attempt).await;
        let answer = self.begin_attempt(attempt).await;
        assert!(matches!(answer, Answer::Granted(_)), "{answer:?}");
        let (server, target_digest) = (&self.server, &self.target_digest);
        let tried = [(3, began()), (4, reverted_to("3.0.1"))];
        server.report_for(&self.node, attempt, target_digest, &tried).await;
        server.report_facts(&self.node, facts_after_failure("it never got healthy")).await
    }

    async fn order_update(&self) {
        self.server.advance_minutes(1);
        self.server.order(self.node.instance, OrderKind::Now).await;
    }

    async fn poll(&self) -> PollResponse {
        self.server.poll(&self.node).await
    }

    async fn conditions(&self) -> Vec<ConditionKind> {
        self.server.conditions(self.node.instance).await
    }
}

/// The facts of the node after 3.0.2 failed on it.
fn facts_after_failure(why: &str) -> Facts {
    with_failed_image(facts_after_boot("3.0.1"), "3.0.2", why)
}

/// Whether a node is offered an image that failed on it.
fn is_retry(answer: &PollResponse) -> bool {
    offered_image(answer).is_some_and(|image| image.is_retry)
}

fn has_offline_grant(answer: &PollResponse) -> bool {
    let decision = answer.decision.as_ref();
    decision.is_some_and(|decision| decision.offline_grant.is_some())
}

#[tokio::test]
async fn a_failed_image_is_not_retried_and_the_reason_is_shown() {
    let scenario = ImageScenario::new().await;
    let first = scenario.poll().await;
    assert_eq!(act(&first), "apply");
    assert!(!is_retry(&first) && has_offline_grant(&first));
    let answer = scenario.fall_back(1).await;
    assert_eq!((act(&answer), reason(&answer)), ("idle", QUARANTINE_REASON));
    assert_eq!(scenario.conditions().await, [ConditionKind::Quarantined]);
    let run = &scenario.server.runs(&scenario.node).await[0];
    let change = ImageChange {
        profile_name: "edge".into(),
        before: "3.0.1".into(),
        desired: "3.0.2".into(),
        booted: Some("3.0.1".into()),
    };
    assert_eq!((run.state.name(), run.image.as_ref()), ("reverted", Some(&change)));

    scenario.server.window(scenario.node.host, 1_440, 1_500).await;
    for pass in [0, 1_430, 20] {
        scenario.server.advance_minutes(pass);
        let later = scenario.poll().await;
        assert_eq!((act(&later), reason(&later)), ("idle", QUARANTINE_REASON));
        assert!(!has_offline_grant(&later));
        assert_eq!(later.decision_tag, answer.decision_tag);
    }
}

#[tokio::test]
async fn a_successful_image_is_recorded_as_booted() {
    let scenario = ImageScenario::new().await;
    scenario.download(1).await;
    scenario.begin_attempt(1).await;
    let done = [(3, began()), (4, finished_with("3.0.2"))];
    let server = &scenario.server;
    server.report_for(&scenario.node, 1, &scenario.target_digest, &done).await;
    server.report_facts(&scenario.node, facts_after_boot("3.0.2")).await;
    let run = &server.runs(&scenario.node).await[0];
    let change = run.image.as_ref().expect("an image");
    assert_eq!((run.state.name(), change.booted.as_deref()), ("succeeded", Some("3.0.2")));
    assert_eq!(server.node_state(&scenario.node).await.os, scenario.newest);
}

#[tokio::test]
async fn an_order_allows_one_retry_of_a_failed_image() {
    let scenario = ImageScenario::new().await;
    scenario.fall_back(1).await;
    scenario.server.order(scenario.node.instance, OrderKind::Now).await;
    let at_once = scenario.poll().await;
    assert_eq!(reason(&at_once), QUARANTINE_REASON, "the order is not newer than the failure");

    for attempt in 2..=3 {
        scenario.order_update().await;
        let answer = scenario.poll().await;
        assert_eq!(act(&answer), "apply");
        assert!(is_retry(&answer), "{answer:?}");
        assert!(!has_offline_grant(&answer), "an order is for now");
        assert_eq!(scenario.conditions().await, [ConditionKind::Quarantined], "it stays");
        let answer = scenario.fall_back(attempt).await;
        assert_eq!(
            (act(&answer), reason(&answer)),
            ("idle", QUARANTINE_REASON),
            "the order is used up"
        );
        let runs = scenario.server.runs(&scenario.node).await;
        let by = runs[0].origin.order.as_ref().map(|order| order.by.as_str());
        assert_eq!(by, Some("alice"), "no schedule would have begun this");
    }
    assert_eq!(scenario.server.runs(&scenario.node).await.len(), 3);
}

#[tokio::test]
async fn an_order_allows_one_retry_even_if_other_images_are_tried_after_it() {
    let scenario = ImageScenario::new().await;
    scenario.fall_back(1).await;
    scenario.order_update().await;
    scenario.fall_back(2).await;
    let newer = scenario.server.add_image("3.0.3").await;
    let (policy, _) = scenario.target_digest.split_once('/').expect("a policy and an image");
    let target_digest = format!("{policy}/{newer}");
    let scenario = ImageScenario { target_digest, ..scenario };
    let answer = scenario.fall_back(3).await;
    assert_eq!(act(&answer), "idle", "it had the same order");
    let policy = scenario.server.image_policy(scenario.newest).await;
    scenario.server.assign_to(scenario.node.instance, policy).await;
    let answer = scenario.poll().await;
    assert_eq!((act(&answer), reason(&answer)), ("idle", QUARANTINE_REASON));

    scenario.order_update().await;
    assert!(is_retry(&scenario.poll().await));
}

#[tokio::test]
async fn a_download_under_an_order_is_given_up_with_the_order() {
    let scenario = ImageScenario::new().await;
    scenario.fall_back(1).await;
    scenario.order_update().await;
    scenario.download(2).await;
    let answer = scenario.server.poll_with_attempt(&scenario.node, 2).await;
    assert!(act(&answer) == "apply" && is_retry(&answer), "{answer:?}");
    scenario.server.advance_minutes(61);
    let answer = scenario.server.poll_with_attempt(&scenario.node, 2).await;
    assert_eq!(reason(&answer), QUARANTINE_REASON);
    let Some(Act::Cancel(cancel)) = answer.decision.and_then(|decision| decision.act) else {
        panic!("it is given up");
    };
    assert_eq!(cancel.cause, "withdrawn");
    let Answer::Refused(refused) = scenario.begin_attempt(2).await else {
        panic!("it must not begin");
    };
    assert_eq!(refused.reason, QUARANTINE_REASON);
}

#[tokio::test]
async fn an_image_whose_failure_the_node_forgot_is_tried_again() {
    let scenario = ImageScenario::new().await;
    scenario.fall_back(1).await;
    scenario.server.report_facts(&scenario.node, facts_after_boot("3.0.1")).await;
    assert_eq!(scenario.conditions().await, []);
    scenario.server.window(scenario.node.host, 1_440, 1_500).await;
    scenario.server.advance_minutes(1_450);
    let answer = scenario.poll().await;
    assert_eq!(act(&answer), "apply");
    assert!(!is_retry(&answer));
}

#[tokio::test]
async fn a_newer_image_is_tried_where_an_older_one_failed() {
    let scenario = ImageScenario::new().await;
    scenario.fall_back(1).await;
    scenario.server.add_image("3.0.3").await;
    let answer = scenario.poll().await;
    let image = offered_image(&answer).expect("an image");
    assert_eq!((image.image_id.as_str(), image.is_retry), ("3.0.3", false));
    assert_eq!(scenario.conditions().await, []);
}

/// Equal answers are stored once for all nodes.
#[tokio::test]
async fn nodes_get_the_same_answer_whatever_their_failure_reason() {
    let scenario = ImageScenario::new().await;
    let (server, one) = (&scenario.server, &scenario.node);
    let two = server.image_node(2, "3.0.1").await;
    let state = server.state(one.instance).await;
    assert_eq!(state.bad_images, []);
    let policy = scenario.target_digest.split('/').next().expect("a policy");
    let policy = policy.parse().expect("a policy");
    server.assign_to(two.instance, policy).await;
    server.report_facts(one, facts_after_failure("web.service never got active")).await;
    server.report_facts(&two, facts_after_failure("the kernel panicked")).await;
    let (one, two) = (server.poll(one).await, server.poll(&two).await);
    assert_eq!(reason(&one), QUARANTINE_REASON);
    assert_eq!(one.decision_tag, two.decision_tag);
}

#[tokio::test]
async fn a_newly_signed_image_is_sent_again_and_open_attempts_continue() {
    let scenario = ImageScenario::new().await;
    let server = &scenario.server;
    scenario.download(1).await;
    let before = server.poll_with_attempt(&scenario.node, 1).await;
    assert_eq!(act(&before), "apply");
    let signature = format!("{}:MEUCIQ==", "b".repeat(64));
    let tx = server.tx().await;
    let mut os = os_profiles::find(&tx, scenario.newest).await.expect("an os");
    os.spec.image_signatures = vec![signature.clone()];
    let changed = os_profiles::change(&tx, os.id, &os.spec, server.now()).await;
    changed.expect("signed");
    tx.commit().await.expect("committed");
    let after = server.poll_with_attempt(&scenario.node, 1).await;
    assert_eq!(act(&after), "apply");
    assert_ne!(before.decision_tag, after.decision_tag);
    assert_eq!(offered_image(&after).expect("an image").signatures, [signature]);
    let answer = scenario.begin_attempt(1).await;
    assert!(matches!(answer, Answer::Granted(_)), "{answer:?}");
    assert_eq!(server.runs(&scenario.node).await.len(), 1);
}

#[tokio::test]
async fn a_target_has_the_architecture_and_the_download_rules_of_its_image() {
    let scenario = ImageScenario::new().await;
    let server = &scenario.server;
    let answer = scenario.poll().await;
    let usual = offered_image(&answer).expect("an image");
    assert_eq!(usual.architecture, "x86_64");
    assert_eq!(usual.rules, Some(wire::ImageRules::default()));
    let rules = ImageRules { download_bytes_per_second: 1 << 20, max_bytes: 1 << 30, attempts: 7 };
    let spec = PolicySpec::parse("slow", "", DesiredUpdate::Latest).expect("a policy");
    let spec = spec.with_image_rules(rules).expect("rules");
    let tx = server.tx().await;
    let policy = policies::create(&tx, &spec, server.now()).await;
    let policy = policy.expect("a policy").id;
    tx.commit().await.expect("committed");
    server.assign_to(scenario.node.instance, policy).await;
    let answer = scenario.poll().await;
    let sent = offered_image(&answer).and_then(|image| image.rules);
    let sent = sent.map(|sent| (sent.download_bytes_per_second, sent.max_bytes, sent.attempts));
    assert_eq!(sent, Some((1 << 20, 1 << 30, 7)));
}

#[tokio::test]
async fn slots_and_failures_are_stored_and_invalid_entries_are_left_out() {
    let scenario = ImageScenario::new().await;
    let (server, instance) = (&scenario.server, scenario.node.instance);
    server.report_facts(&scenario.node, facts_after_failure("a\0b")).await;
    let first = server.state(instance).await.bad_images;
    let nonsense = |sha256: &str| BadImage { sha256: sha256.into(), ..BadImage::default() };
    let mut reported = facts_after_failure("it hangs");
    reported.bad_images.extend([nonsense("none"), nonsense(&"0".repeat(64))]);
    server.advance_minutes(5);
    server.report_facts(&scenario.node, reported).await;
    let state = server.state(instance).await;
    assert_eq!(state.bad_images, first, "known since the first time");
    let expected = serde_json::json!([{
        "sha256": file_digest("edge", "3.0.2"),
        "imageId": "3.0.2",
        "reason": "it hangs",
    }]);
    assert_eq!(state.facts["badImages"], expected);
    let slots = serde_json::json!([
        {"name": "a", "state": "good", "imageId": "3.0.1"},
        {"name": "b", "state": "empty", "imageId": ""},
    ]);
    assert_eq!(state.facts["slots"], slots);
    server.report_facts(&scenario.node, facts()).await;
    let state = server.state(instance).await;
    assert_eq!((state.bad_images.len(), &state.facts["slots"]), (0, &serde_json::json!([])));
}
