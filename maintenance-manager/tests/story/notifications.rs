//! Notifications: which events are queued, and how their delivery behaves with good and bad webhooks.

use std::sync::Arc;
use std::time::Duration;

use chrono::TimeDelta;
use evenkeel_domain::assignment::Scope;
use evenkeel_domain::id::NotificationTargetId;
use evenkeel_domain::notification::{
    NotificationEvent, NotificationState, NotificationTargetSpec, TargetAddress, WebhookSecret,
};
use evenkeel_domain::text::Name;
use evenkeel_kit::{Lifecycle, TestClock};
use evenkeel_maintenance_manager::{NotificationDeliveries, NotificationSettings, SmtpSettings};
use evenkeel_store::notification_targets;
use evenkeel_store::notifications::{self, Delivery, ReplaySelection};
use futures_util::future::join;
use serde_json::json;

use crate::test_server::{TestNode, TestServer, downloading};
use crate::update_limits::{failed, staged_nodes};
use crate::webhook_target::{ReceivedMessage, WebhookBehavior, WebhookTarget};

const ACCEPT: WebhookBehavior = WebhookBehavior::Status(204);
const FAIL: WebhookBehavior = WebhookBehavior::Status(500);

const SECRET: [u8; WebhookSecret::BYTES] = [7; WebhookSecret::BYTES];

/// Webhooks of tests are on this machine.
fn settings() -> NotificationSettings {
    NotificationSettings {
        allow_private_targets: true,
        allow_http: true,
        attempt_timeout: Duration::from_secs(30),
    }
}

impl TestServer {
    fn deliveries(&self, settings: &NotificationSettings) -> NotificationDeliveries {
        NotificationDeliveries::new(
            self.store.clone(),
            self.shared_clock(),
            settings,
            &SmtpSettings::default(),
        )
    }

    /// Runs a pass. Returns the number of accepted messages.
    pub async fn deliver(&self) -> usize {
        self.deliveries(&settings()).pass().await.expect("a pass")
    }

    /// Creates a target for all events.
    pub async fn notify(&self, address: &str) -> NotificationTargetId {
        let all = NotificationEvent::ALL.iter().copied();
        let spec = NotificationTargetSpec {
            name: Name::default(),
            address: TargetAddress::from_stored(address.to_owned()),
            events: all.filter(|event| *event != NotificationEvent::Test).collect(),
        };
        let tx = self.tx().await;
        let secret = WebhookSecret::from_bytes(SECRET.to_vec());
        let target = notification_targets::create(&tx, &spec, &secret, self.now()).await;
        tx.commit().await.expect("committed");
        target.expect("a target").id
    }

    /// Queues tests for a target. Returns their ids.
    pub async fn queue_tests(&self, target: NotificationTargetId, count: usize) -> Vec<String> {
        let tx = self.tx().await;
        let mut ids = Vec::new();
        for _ in 0..count {
            let id = notifications::queue_test(&tx, target, self.now()).await.expect("queued");
            ids.push(id.to_string());
        }
        tx.commit().await.expect("committed");
        ids
    }

    pub async fn notifications(&self, state: NotificationState) -> Vec<Delivery> {
        let tx = self.tx().await;
        notifications::list(&tx, Some(state)).await.expect("a list")
    }

    /// Lets a run of a node fail.
    async fn fail_run(&self, node: &TestNode) {
        let policy = self.policy(node, "demo-hello=1.1").await;
        self.report(node, 1, policy, &[(1, downloading()), (2, failed())]).await;
    }
}

#[tokio::test]
async fn a_failed_run_a_stopped_assignment_and_a_silent_node_are_reported() {
    let server = TestServer::new().await;
    let target = WebhookTarget::start(ACCEPT).await;
    let node = server.node().await;
    server.fail_run(&node).await;
    server.notify(&target.url).await;
    assert_eq!(server.deliver().await, 0, "the project had no target for the first run");
    server.advance_minutes(1);
    let policy = server.create_policy("demo-hello=1.2").await;
    server.assign(Scope::Instance(node.instance), policy, None, Some(1)).await;
    server.report(&node, 2, policy, &[(1, downloading()), (2, failed())]).await;
    assert_eq!(server.deliver().await, 2);
    assert_eq!(server.silent_for(node.instance, 60).await, 1);
    assert_eq!(server.deliver().await, 1);
    assert_eq!(server.deliver().await, 0, "nothing is delivered twice");

    let messages = target.received();
    assert!(messages.iter().all(|message| message.is_signed_with(&SECRET)));
    assert!(!messages[0].is_signed_with(&[8; 32]));
    let bodies: Vec<_> = messages.iter().map(ReceivedMessage::json).collect();
    let types: Vec<_> = bodies.iter().map(|body| body["type"].clone()).collect();
    assert_eq!(types, ["run-failed", "assignment-stopped", "node-silent"]);
    let run = server.runs(&node).await[0].id.to_string();
    let data = &bodies[0]["data"];
    assert_eq!((&data["runId"], &data["state"]), (&json!(run), &json!("failed")));
    assert_eq!(data["reason"], "apt-get ended with 100");
    assert_eq!(data["hostId"], node.host.to_string());
    assert_eq!((&data["project"], &data["failureKind"]), (&json!("default"), &json!("apply")));
    let assignment = &bodies[1]["data"]["assignment"];
    assert_eq!(*assignment, node.instance.to_string());
    assert_eq!(bodies[2]["data"]["instanceId"], node.instance.to_string());
}

#[tokio::test]
async fn a_run_that_times_out_is_reported_only_if_its_start_was_permitted() {
    let server = TestServer::new().await;
    let target = WebhookTarget::start(ACCEPT).await;
    server.notify(&target.url).await;
    let (nodes, policy) = staged_nodes(&server, 2, Some(1), None).await;
    server.begin(&nodes[0], 1, policy, 2).await;
    for minutes in [120, 25 * 60] {
        server.advance_minutes(minutes);
        server.reap_runs().await;
    }
    assert_eq!(server.runs(&nodes[0]).await[0].state.name(), "abandoned");
    server.deliver().await;
    let data: Vec<_> =
        target.received().iter().map(|message| message.json()["data"].clone()).collect();
    assert_eq!(data.len(), 1, "{data:?}");
    assert_eq!(data[0]["instanceId"], nodes[0].instance.to_string());
    assert_eq!((&data[0]["state"], &data[0]["reason"]), (&json!("abandoned"), &json!("timed_out")));
}

#[tokio::test]
async fn a_target_that_fails_for_an_hour_gets_each_message_once_and_in_order() {
    let server = TestServer::new().await;
    let target = WebhookTarget::start(FAIL).await;
    let id = server.notify(&target.url).await;
    let queued = server.queue_tests(id, 5).await;
    for _ in 0..60 {
        assert_eq!(server.deliver().await, 0);
        server.advance_minutes(1);
    }
    let attempts = target.received();
    assert!((8..=20).contains(&attempts.len()), "{} attempts", attempts.len());
    assert!(attempts.iter().all(|attempt| attempt.id == queued[0]), "the others wait");
    target.set_behavior(ACCEPT);
    server.advance_minutes(40);
    assert_eq!(server.deliver().await, 5);
    assert_eq!(target.accepted(), queued);
    server.advance_minutes(40);
    assert_eq!(server.deliver().await, 0);
}

#[tokio::test]
async fn a_redirect_to_a_metadata_service_is_not_followed() {
    let server = TestServer::new().await;
    let target = WebhookTarget::start(WebhookBehavior::Redirect).await;
    let id = server.notify(&target.url).await;
    server.queue_tests(id, 1).await;
    assert_eq!(server.deliver().await, 0);
    let pending = server.notifications(NotificationState::Pending).await;
    let error = "the target answered with 307 Temporary Redirect; redirects are not followed";
    assert_eq!((pending[0].last_error.as_str(), pending[0].attempts), (error, 1));
    let delay = pending[0].next_attempt_at.expect("a retry") - server.now();
    assert!((4..=6).contains(&delay.num_seconds()), "{delay}");
}

#[tokio::test]
async fn retry_after_of_a_target_delays_its_next_attempt_up_to_an_hour() {
    let server = TestServer::new().await;
    // Less than the usual delay, more than it, and more than the limit.
    for (seconds, expected) in [(1, 4..=6), (600, 600..=600), (u32::MAX, 3_600..=3_600)] {
        let target = WebhookTarget::start(WebhookBehavior::RetryAfter(seconds)).await;
        let id = server.notify(&target.url).await;
        let queued = server.queue_tests(id, 1).await;
        assert_eq!(server.deliver().await, 0);
        let pending = server.notifications(NotificationState::Pending).await;
        let delivery = pending.iter().find(|delivery| delivery.last_error.contains("429"));
        let delay = delivery.expect("a failure").next_attempt_at.expect("a retry") - server.now();
        assert!(expected.contains(&delay.num_seconds()), "{seconds}: {delay}");
        let tx = server.tx().await;
        let unended = ReplaySelection::One(queued[0].parse().expect("a UUID"));
        let replayed = notifications::replay(&tx, id, unended, server.now()).await;
        assert_eq!(replayed.expect("a number"), 0);
        tx.commit().await.expect("committed");
        assert_eq!((server.deliver().await, target.received().len()), (0, 1), "it still waits");
        target.set_behavior(ACCEPT);
        server.advance_minutes(61);
        assert_eq!(server.deliver().await, 1);
        assert_eq!(target.accepted(), queued);
    }
}

#[tokio::test]
async fn private_addresses_and_http_are_refused_unless_settings_allow_them() {
    let server = TestServer::new().await;
    let target = WebhookTarget::start(ACCEPT).await;
    let port = target.url.rsplit(':').next().expect("a port").to_owned();
    let id = server.notify(&format!("http://localhost:{port}")).await;
    let encrypted = NotificationSettings::default();
    let public = NotificationSettings { allow_http: true, ..NotificationSettings::default() };
    for (settings, why) in [(encrypted, "begins with http://"), (public, "has a private address")] {
        server.queue_tests(id, 1).await;
        assert_eq!(server.deliveries(&settings).pass().await.expect("a pass"), 0);
        let pending = server.notifications(NotificationState::Pending).await;
        let last = pending.last().expect("the first delivery");
        assert!(last.last_error.contains(why), "{}", last.last_error);
    }
    assert!(target.received().is_empty(), "nothing was sent");
}

#[tokio::test]
async fn a_target_that_hangs_delays_no_other() {
    let server = TestServer::new().await;
    let (dead, good) =
        (WebhookTarget::start(WebhookBehavior::Hang).await, WebhookTarget::start(ACCEPT).await);
    for url in [&dead.url, &good.url] {
        let id = server.notify(url).await;
        server.queue_tests(id, 1).await;
    }
    let life = Lifecycle::new();
    let (deliveries, stopping) = (server.deliveries(&settings()), life.stopping());
    let running = Lifecycle::detach(deliveries.run(stopping));
    let delivered = async {
        while good.accepted().is_empty() || dead.received().is_empty() {
            tokio::task::yield_now().await;
        }
    };
    // Earlier than the time-out of the attempt that hangs.
    tokio::time::timeout(Duration::from_secs(25), delivered).await.expect("delivered");
    life.stop();
    running.await.expect("stopped");
    assert_eq!(server.notifications(NotificationState::Pending).await.len(), 1);
}

#[tokio::test]
async fn an_attempt_without_an_answer_ends_at_its_time_out() {
    let server = TestServer::new().await;
    let target = WebhookTarget::start(WebhookBehavior::Hang).await;
    let id = server.notify(&target.url).await;
    server.queue_tests(id, 1).await;
    let attempt_timeout = Duration::from_millis(100);
    let short = NotificationSettings { attempt_timeout, ..settings() };
    assert_eq!(server.deliveries(&short).pass().await.expect("a pass"), 0);
    let pending = server.notifications(NotificationState::Pending).await;
    assert_eq!(pending[0].last_error, "the target did not answer in time");
}

#[tokio::test]
async fn the_oldest_of_more_than_a_thousand_pending_messages_become_dead_letters() {
    let server = TestServer::new().await;
    let target = WebhookTarget::start(FAIL).await;
    let id = server.notify(&target.url).await;
    let queued = server.queue_tests(id, 2_100).await;
    server.deliver().await;
    let dead = server.notifications(NotificationState::Dead).await;
    assert_eq!(dead[0].id.to_string(), queued[1_099], "in several batches");
    assert!(dead[0].last_error.contains("the queue of the target was full"));
    let attempts = target.received();
    let attempted: Vec<_> = attempts.iter().map(|message| &message.id).collect();
    assert_eq!(attempted, [&queued[1_100]], "the first of the newest thousand");
}

#[tokio::test]
async fn a_process_with_a_wrong_clock_removes_no_delivery() {
    let server = TestServer::new().await;
    let target = WebhookTarget::start(ACCEPT).await;
    let id = server.notify(&target.url).await;
    server.queue_tests(id, 1).await;
    assert_eq!(server.deliver().await, 1);
    server.clock.advance(TimeDelta::days(31));
    for days in [365, -365, 0] {
        let clock = Arc::new(TestClock::new(server.now() + TimeDelta::days(days)));
        let smtp = SmtpSettings::default();
        let deliveries =
            NotificationDeliveries::new(server.store.clone(), clock, &settings(), &smtp);
        deliveries.pass().await.expect("a pass");
        let left = server.notifications(NotificationState::Delivered).await;
        assert_eq!(left.len(), usize::from(days != 0), "{days}");
    }
}

#[tokio::test]
async fn a_stop_waits_for_the_result_of_an_attempt_and_begins_no_other() {
    let server = TestServer::new().await;
    let target = WebhookTarget::start(WebhookBehavior::Wait).await;
    let id = server.notify(&target.url).await;
    let queued = server.queue_tests(id, 2).await;
    let life = Lifecycle::new();
    let (deliveries, stopping) = (server.deliveries(&settings()), life.stopping());
    let running = Lifecycle::detach(deliveries.run(stopping));
    let received = async {
        while target.received().is_empty() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(25), received).await.expect("received");
    life.stop();
    target.set_behavior(ACCEPT);
    running.await.expect("stopped");
    let delivered = server.notifications(NotificationState::Delivered).await;
    let ids: Vec<_> = delivered.iter().map(|delivery| delivery.id.to_string()).collect();
    assert_eq!(ids, queued[..1]);
    assert_eq!(server.deliver().await, 1, "the lease has ended");
}

#[tokio::test]
async fn targets_after_failures_are_served_last() {
    let server = TestServer::new().await;
    let (dead, good) = (WebhookTarget::start(FAIL).await, WebhookTarget::start(ACCEPT).await);
    let mut failing = Vec::new();
    // As many as one process delivers to at once.
    for _ in 0..16 {
        failing.push(server.notify(&dead.url).await);
    }
    for failures in 1..=2 {
        for id in &failing {
            server.queue_tests(*id, 1).await;
        }
        if failures == 2 {
            let id = server.notify(&good.url).await;
            server.queue_tests(id, 1).await;
        }
        assert_eq!(server.deliver().await, usize::from(failures == 2));
    }
    assert_eq!(dead.received().len(), 16 + 15);
}

#[tokio::test]
async fn a_message_is_dead_after_three_days_and_can_be_replayed() {
    let server = TestServer::new().await;
    let target = WebhookTarget::start(FAIL).await;
    let id = server.notify(&target.url).await;
    let queued = server.queue_tests(id, 1).await;
    server.deliver().await;
    server.clock.advance(TimeDelta::hours(73));
    server.deliver().await;
    let dead = server.notifications(NotificationState::Dead).await;
    assert_eq!(dead.len(), 1);
    assert_eq!(dead[0].last_error, "the target answered with 500 Internal Server Error");
    server.advance_minutes(60);
    assert_eq!(server.deliver().await, 0, "no further attempt follows");

    target.set_behavior(ACCEPT);
    let tx = server.tx().await;
    let (none, all) = (
        ReplaySelection::EventsBetween(server.now(), server.now()),
        ReplaySelection::EventsBetween(dead[0].event_at, server.now()),
    );
    for (selection, count) in [(none, 0), (all, 1), (all, 0)] {
        let replayed = notifications::replay(&tx, id, selection, server.now()).await;
        assert_eq!(replayed.expect("a number"), count, "{selection:?}");
    }
    tx.commit().await.expect("committed");
    assert_eq!(server.deliver().await, 1);
    assert_eq!(target.accepted(), queued, "with the same id");
}

#[tokio::test]
async fn several_replicas_deliver_each_message_once() {
    let server = TestServer::new().await;
    let target = WebhookTarget::start(ACCEPT).await;
    let id = server.notify(&target.url).await;
    let queued = server.queue_tests(id, 20).await;
    let (store, clock) = (server.connect().await, server.shared_clock());
    let other = NotificationDeliveries::new(store, clock, &settings(), &SmtpSettings::default());
    let (here, there) = join(server.deliver(), other.pass()).await;
    assert_eq!(here + there.expect("a pass"), 20);
    assert_eq!(target.accepted(), queued);
}

#[tokio::test]
async fn a_disabled_target_waits_and_gets_no_new_messages() {
    let server = TestServer::new().await;
    let target = WebhookTarget::start(ACCEPT).await;
    let node = server.node().await;
    let id = server.notify(&target.url).await;
    let queued = server.queue_tests(id, 1).await;
    for enabled in [false, true] {
        let tx = server.tx().await;
        notification_targets::set_enabled(&tx, id, enabled, server.now()).await.expect("changed");
        tx.commit().await.expect("committed");
        if !enabled {
            server.fail_run(&node).await;
        }
        assert_eq!(server.deliver().await, usize::from(enabled));
    }
    assert_eq!(target.accepted(), queued);
}
