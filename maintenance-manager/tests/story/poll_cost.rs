//! The database cost of unchanged polls, and that no answer is outdated.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_maintenance_manager::{AnswerCacheSettings, MaintenanceManager, Settings};
use evenkeel_proto::agent::agent_service_server::AgentService as _;
use evenkeel_proto::agent::{Attempt, PollRequest, PollResponse};
use evenkeel_proto::maintmgr::maintmgr_service_server::MaintmgrService as _;
use evenkeel_proto::maintmgr::update_status::StatusType as S;
use evenkeel_proto::maintmgr::{PlatformUpdateStatusRequest, UpdateStatus};
use evenkeel_store::nodes;
use evenkeel_store::testing::{StatementCounts, counting_store};
use futures_util::future::join_all;
use futures_util::{StreamExt as _, stream};
use tonic::{Code, Status};
use uuid::Uuid;

use crate::fleet::{EimTestNode, sample, window};
use crate::node_reports::{
    MINUTES_PER_DAY, available_package, facts_with_available, settled_versions,
};
use crate::test_server::{
    TestNode, TestServer, act, began, downloading, facts, finished, report_request, with_credential,
};

/// The maximum number of statements of a batch, however many polls it has.
const MAX_BATCH_STATEMENTS: u64 = 8;

/// A server with a second manager, whose database queries are counted and whose cache is not
/// audited.
pub struct CountingServer {
    pub server: TestServer,
    pub manager: MaintenanceManager,
    counts: Arc<StatementCounts>,
}

impl CountingServer {
    /// A server whose second manager follows the change log.
    pub async fn new() -> Self {
        let counted = Box::pin(Self::without_log_follower()).await;
        counted.server.follow(&counted.manager).await;
        counted
    }

    /// A server whose second manager does not follow the change log.
    async fn without_log_follower() -> Self {
        let server = TestServer::new().await;
        let (store, counts) = counting_store(&server.connect().await);
        let settings = Settings {
            answer_cache: AnswerCacheSettings { audit_every: 0, ..AnswerCacheSettings::default() },
            ..Settings::default()
        };
        let manager = server.new_manager(store, settings);
        Self { server, manager, counts }
    }

    /// The answer to a call, and the number of statements and transactions that it took.
    pub async fn count_queries<T>(&self, call: impl Future<Output = T>) -> (T, u64, u64) {
        let before = self.counts.totals();
        let answer = call.await;
        let after = self.counts.totals();
        (answer, after.0 - before.0, after.1 - before.1)
    }

    async fn poll(&self, node: &TestNode, request: &PollRequest) -> (PollResponse, u64, u64) {
        let request = with_credential(&node.credential, request.clone());
        let (answer, statements, transactions) =
            self.count_queries(self.manager.poll(request)).await;
        let answer = answer.expect("an answer").into_inner();
        (answer, statements, transactions)
    }

    /// The act of the current answer for a node.
    async fn act(&self, node: &TestNode, request: &PollRequest) -> &'static str {
        act(&self.poll(node, request).await.0)
    }

    /// Sends a status of an EIM agent. Returns the number of statements and transactions that it
    /// took.
    pub async fn send_status(&self, eim: &EimTestNode, status: UpdateStatus) -> (u64, u64) {
        let token = self.server.eim_token();
        let say = send_status(&self.manager, &token, eim, status);
        let (answer, statements, transactions) = self.count_queries(say).await;
        answer.expect("an answer");
        (statements, transactions)
    }

    /// Waits until the manager has read all committed changes.
    pub async fn catch_up(&self) {
        let caught_up = async { while !self.manager.wait_until_caught_up().await {} };
        tokio::time::timeout(Duration::from_mins(1), caught_up)
            .await
            .expect("all changes are read");
    }
}

async fn send_status(
    manager: &MaintenanceManager,
    token: &str,
    eim: &EimTestNode,
    status: UpdateStatus,
) -> Result<(), Status> {
    let request =
        PlatformUpdateStatusRequest { host_guid: eim.guid.clone(), update_status: Some(status) };
    let answer = manager.platform_update_status(with_credential(token, request)).await;
    answer.map(drop)
}

/// A poll of a node without changes.
pub async fn unchanged_poll(server: &TestServer, node: &TestNode) -> PollRequest {
    PollRequest {
        facts_digest: server.node_state(node).await.facts_digest,
        ..PollRequest::default()
    }
}

fn with_attempt(request: &PollRequest, attempt: u128) -> PollRequest {
    PollRequest {
        attempt: Some(Attempt { id: Uuid::from_u128(attempt).to_string(), last_sequence: 2 }),
        ..request.clone()
    }
}

#[tokio::test]
async fn a_cached_poll_costs_no_query() {
    let counted = CountingServer::new().await;
    let node = counted.server.node().await;
    let unchanged = unchanged_poll(&counted.server, &node).await;
    counted.catch_up().await;
    let (first, statements, transactions) = counted.poll(&node, &unchanged).await;
    assert_eq!(transactions, 1);
    assert!(statements <= MAX_BATCH_STATEMENTS, "{statements}");
    for _ in 0..3 {
        let (again, statements, transactions) = counted.poll(&node, &unchanged).await;
        assert_eq!((statements, transactions), (0, 0));
        assert_eq!(again.decision, first.decision);
        assert_eq!(again.decision_tag, first.decision_tag);
    }
    assert_eq!(counted.manager.cache_sizes().nodes, 1);
}

/// The reader waits for it for some seconds, and then reads past it.
#[tokio::test]
async fn polls_are_cached_while_a_transaction_of_another_program_stays_open() {
    let counted = CountingServer::new().await;
    let node = counted.server.node().await;
    counted.server.policy(&node, "demo-hello=1.1").await;
    counted.server.window(node.host, -10, 600).await;
    let unchanged = unchanged_poll(&counted.server, &node).await;
    counted.catch_up().await;
    assert_eq!(counted.act(&node, &unchanged).await, "apply");
    let elsewhere = counted.server.connect().await;
    let open = elsewhere.tenant(counted.server.tenant).await.expect("a transaction");
    open.assign_id().await.expect("an id");

    counted.server.withdraw(&node).await;
    let caught_up = async {
        while !counted.manager.wait_until_caught_up().await {
            // Postgres ends a transaction of the store that is idle for some seconds.
            open.assign_id().await.expect("it is still open");
        }
    };
    tokio::time::timeout(Duration::from_mins(1), caught_up).await.expect("it is read past");
    assert_eq!(counted.act(&node, &unchanged).await, "idle");
    for _ in 0..3 {
        let (answer, statements, transactions) = counted.poll(&node, &unchanged).await;
        assert_eq!((act(&answer), statements, transactions), ("idle", 0, 0));
    }
    open.assign_id().await.expect("it is still open");
}

/// The ages of versions are read for each node alone. The answer is cached until the next version
/// gets old enough.
#[tokio::test]
async fn a_node_with_aging_versions_costs_no_query_until_one_is_old_enough() {
    let counted = CountingServer::new().await;
    let (node, other) = (counted.server.nth_node(1).await, counted.server.nth_node(2).await);
    let third = counted.server.nth_node(3).await;
    counted.server.assign_min_age_policy(&node, 7).await;
    let (curl, jq) = (available_package("curl", "2"), available_package("jq", "2"));
    counted.server.report_facts(&node, facts_with_available(vec![curl, jq])).await;
    let unchanged = unchanged_poll(&counted.server, &node).await;
    counted.catch_up().await;
    let (first, _, transactions) = counted.poll(&node, &unchanged).await;
    assert_eq!(transactions, 2, "in a batch, and by itself");
    for _ in 0..3 {
        let (again, statements, _) = counted.poll(&node, &unchanged).await;
        assert_eq!((again.decision_tag, statements), (first.decision_tag, 0));
    }
    // Versions that other nodes report meanwhile age on their own.
    counted.server.advance_minutes(2 * MINUTES_PER_DAY);
    for reporter in [&other, &third] {
        let newer = facts_with_available(vec![available_package("curl", "3")]);
        counted.server.report_facts(reporter, newer).await;
    }
    assert_eq!(settled_versions(first), Vec::<String>::new());
    counted.catch_up().await;
    for (days, all) in [
        (4, &[][..]),
        (1, &["curl=2", "jq=2"]),
        (1, &["curl=2", "jq=2"]),
        (1, &["curl=2", "curl=3", "jq=2"]),
    ] {
        counted.server.advance_minutes(days * MINUTES_PER_DAY - 1);
        counted.poll(&node, &unchanged).await;
        // An answer from before the minute in which a version gets old enough is not used after it.
        counted.server.advance_minutes(1);
        let (answer, ..) = counted.poll(&node, &unchanged).await;
        assert_eq!(settled_versions(answer), all);
        let (_, statements, _) = counted.poll(&node, &unchanged).await;
        assert_eq!(statements, 0);
    }
}

#[tokio::test]
async fn a_cached_eim_poll_costs_no_query() {
    let counted = CountingServer::new().await;
    let node = counted.server.eim_node(1).await;
    counted.server.send_status(&node, sample(S::UpToDate)).await;
    counted.catch_up().await;
    let (statements, transactions) = counted.send_status(&node, sample(S::UpToDate)).await;
    assert_eq!(transactions, 1);
    assert!(statements <= MAX_BATCH_STATEMENTS, "{statements}");
    for _ in 0..3 {
        assert_eq!(counted.send_status(&node, sample(S::UpToDate)).await, (0, 0));
    }
}

#[tokio::test]
async fn a_changed_poll_is_one_transaction() {
    let counted = CountingServer::new().await;
    let (node, eim) = (counted.server.node().await, counted.server.eim_node(9).await);
    counted.server.send_status(&eim, sample(S::UpToDate)).await;
    let unchanged = unchanged_poll(&counted.server, &node).await;
    let changed = PollRequest { facts: Some(facts()), ..PollRequest::default() };
    let waits = PollRequest { waiting: "alice is logged in".into(), ..unchanged.clone() };
    let transactions = async |request: &PollRequest| {
        counted.catch_up().await;
        counted.poll(&node, request).await.2
    };
    assert_eq!(transactions(&changed).await, 1);
    assert_eq!(transactions(&unchanged).await, 1, "it is evaluated");
    assert_eq!(transactions(&waits).await, 1, "the waiting reason changes");

    counted.catch_up().await;
    assert_eq!(counted.send_status(&eim, sample(S::UpToDate)).await.1, 1);
    // All these samples carry a change, so each of them is processed.
    for kind in [S::Failed, S::Downloading, S::Started, S::Updated] {
        counted.catch_up().await;
        assert_eq!(counted.send_status(&eim, sample(kind)).await.1, 1, "{kind:?}");
    }
}

#[tokio::test]
async fn two_hundred_simultaneous_polls_are_one_batch() {
    let counted = CountingServer::new().await;
    let server = &counted.server;
    // Few at a time: the server refuses an enrolment that waits too long.
    let nodes = stream::iter(1..=200).map(|n| server.nth_node(n)).buffered(8);
    let nodes: Vec<_> = nodes.collect().await;
    let unchanged = unchanged_poll(server, &nodes[0]).await;
    counted.catch_up().await;
    let polls = nodes.iter().map(|node| {
        let request = with_credential(&node.credential, unchanged.clone());
        counted.manager.poll(request)
    });
    // Without the cooperative budget of tokio no poll is delayed because so many were started.
    let polls = tokio::task::unconstrained(join_all(polls));
    let (answers, statements, transactions) = counted.count_queries(polls).await;
    assert_eq!(transactions, 1);
    assert!(statements <= MAX_BATCH_STATEMENTS, "{statements}");
    for answer in answers {
        let answer = answer.expect("an answer").into_inner();
        assert!(!answer.facts_required);
        assert_eq!(act(&answer), "idle");
    }
    assert_eq!(counted.manager.cache_sizes().nodes, 200);
    let (_, statements, transactions) = counted.poll(&nodes[199], &unchanged).await;
    assert_eq!((statements, transactions), (0, 0));
}

/// The test does not wait until the change log is read.
#[tokio::test]
async fn a_node_is_never_answered_from_before_its_own_report() {
    let counted = CountingServer::new().await;
    let server = &counted.server;
    let node = server.node().await;
    let policy = server.policy(&node, "demo-hello=1.1").await;
    server.window(node.host, -1, 60).await;
    let idle = unchanged_poll(server, &node).await;
    let busy = with_attempt(&idle, 1);
    counted.catch_up().await;
    assert_eq!(counted.act(&node, &idle).await, "apply");

    let reported = async |events: &[_]| {
        let request = with_credential(&node.credential, report_request(1, policy, events));
        counted.manager.report(request).await.expect("stored");
    };
    reported(&[(1, downloading()), (2, began())]).await;
    assert_eq!(counted.act(&node, &busy).await, "continue");
    counted.catch_up().await;
    assert_eq!(counted.act(&node, &busy).await, "continue");
    let (_, statements, _) = counted.poll(&node, &busy).await;
    assert_eq!(statements, 0, "it is cached");

    reported(&[(3, finished())]).await;
    assert_eq!(counted.act(&node, &busy).await, "cancel");
    assert_eq!(counted.act(&node, &idle).await, "idle");
}

#[tokio::test]
async fn a_new_policy_applies_from_the_next_poll() {
    let counted = CountingServer::new().await;
    let server = &counted.server;
    let node = server.node().await;
    let unchanged = unchanged_poll(server, &node).await;
    counted.catch_up().await;
    for _ in 0..2 {
        assert_eq!(counted.act(&node, &unchanged).await, "idle");
    }
    server.policy(&node, "demo-hello=1.1").await;
    server.window(node.host, 10, 60).await;
    counted.catch_up().await;
    for _ in 0..2 {
        assert_eq!(counted.act(&node, &unchanged).await, "fetch");
    }
    server.advance_minutes(10);
    for _ in 0..2 {
        assert_eq!(counted.act(&node, &unchanged).await, "apply");
    }
    // An answer that lets a node begin is always current, so the test does not wait here.
    server.withdraw(&node).await;
    for _ in 0..2 {
        assert_eq!(counted.act(&node, &unchanged).await, "idle");
    }
}

#[tokio::test]
async fn a_withdrawn_window_is_not_sent_from_the_cache() {
    let counted = CountingServer::new().await;
    let server = &counted.server;
    let eim = server.eim_node(1).await;
    server.policy(&eim.as_node(), "curl").await;
    server.window(eim.host, 10, 60).await;
    let sent_window = async || {
        // The test does not wait until the change log is read.
        let token = server.eim_token();
        let request = PlatformUpdateStatusRequest {
            host_guid: eim.guid.clone(),
            update_status: Some(sample(S::UpToDate)),
        };
        let answer = counted.manager.platform_update_status(with_credential(&token, request));
        window(&answer.await.expect("an answer").into_inner())
    };
    for _ in 0..3 {
        assert!(sent_window().await.is_some());
        counted.catch_up().await;
    }
    let (statements, _) = counted.send_status(&eim, sample(S::UpToDate)).await;
    assert_eq!(statements, 0, "it is cached");
    server.withdraw(&eim.as_node()).await;
    assert_eq!(sent_window().await, None);
}

/// During a write transaction the follower cannot know whether it has read all earlier commits.
/// This matters once an EIM agent could begin before its next poll.
#[tokio::test]
async fn a_distant_window_is_sent_from_the_cache_during_writes() {
    let counted = CountingServer::new().await;
    let server = &counted.server;
    let (eim, other) = (server.eim_node(1).await, server.eim_node(2).await);
    server.policy(&eim.as_node(), "curl").await;
    server.window(eim.host, 60, 120).await;
    for (minutes, is_near) in [(0, false), (49, false), (1, true), (9, true)] {
        server.advance_minutes(minutes);
        for _ in 0..3 {
            counted.send_status(&eim, sample(S::UpToDate)).await;
            counted.catch_up().await;
        }
        let sent = counted.send_status(&eim, sample(S::UpToDate)).await;
        assert_eq!(sent, (0, 0), "it is cached");
        let writer = server.tx().await;
        nodes::lock(&writer, other.host).await.expect("a lock");
        // A later transaction has ended, so the log is known only up to the open writer.
        server.window(other.host, 1_000, 1_060).await;
        let (statements, _) = counted.send_status(&eim, sample(S::UpToDate)).await;
        assert_eq!(0 < statements, is_near, "after {minutes} more minutes");
    }
}

#[tokio::test]
async fn a_server_without_a_log_follower_caches_nothing() {
    let counted = CountingServer::without_log_follower().await;
    let node = counted.server.node().await;
    let unchanged = unchanged_poll(&counted.server, &node).await;
    for _ in 0..3 {
        let (_, _, transactions) = counted.poll(&node, &unchanged).await;
        assert_eq!(transactions, 1);
    }
    assert_eq!(counted.manager.cache_sizes().nodes, 0);
}

#[tokio::test]
async fn a_cached_answer_is_sent_to_no_other_node() {
    let counted = CountingServer::new().await;
    let (mine, eim) = (counted.server.node().await, counted.server.eim_node(9).await);
    counted.server.send_status(&eim, sample(S::UpToDate)).await;
    counted.catch_up().await;
    for _ in 0..2 {
        counted.send_status(&eim, sample(S::UpToDate)).await;
        let token = counted.server.host_token(mine.host);
        let refused = send_status(&counted.manager, &token, &eim, sample(S::UpToDate)).await;
        let refused = refused.expect_err("another host").code();
        assert_eq!(refused, Code::PermissionDenied);
    }
}
