//! Polls that say nothing new: what they cost the database, and that they are never answered from a time that is over.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_maintenance_manager::{MaintenanceManager, Settings, ViewSettings};
use evenkeel_proto::agent::agent_service_server::AgentService as _;
use evenkeel_proto::agent::{Attempt, PollRequest, PollResponse};
use evenkeel_proto::maintmgr::maintmgr_service_server::MaintmgrService as _;
use evenkeel_proto::maintmgr::update_status::StatusType as S;
use evenkeel_proto::maintmgr::{PlatformUpdateStatusRequest, UpdateStatus};
use evenkeel_store::testing::{Counts, counting};
use evenkeel_store::{Store, StoreOptions, nodes};
use futures_util::future::join_all;
use tonic::{Code, Status};
use uuid::Uuid;

use crate::fleet::{OldNode, sample, window};
use crate::house::{House, TestNode, act, began, downloading, facts, finished, report, with};
use crate::news::{DAY, offers, settled, with_offers};

/// The most statements that a batch takes, however many polls are in it.
const FEW: u64 = 8;

/// A house with another manager, all of whose words to the database are counted. It looks at nothing twice.
pub struct Counted {
    pub house: House,
    pub manager: MaintenanceManager,
    counts: Arc<Counts>,
}

impl Counted {
    /// One whose manager follows the changes.
    pub async fn new() -> Self {
        let counted = Self::at_rest().await;
        counted.house.follow(&counted.manager).await;
        counted
    }

    /// One whose manager does not.
    async fn at_rest() -> Self {
        let house = House::new().await;
        let store = Store::connect(&house.url, StoreOptions::default()).await;
        let (store, counts) = counting(&store.expect("the database"));
        let settings = Settings {
            view: ViewSettings {
                audit_every: 0,
                ..ViewSettings::default()
            },
            ..Settings::default()
        };
        let manager = house.manager_on(store, settings);
        Self {
            house,
            manager,
            counts,
        }
    }

    /// What a call is answered, and how many statements and transactions it takes.
    pub async fn sent<T>(&self, call: impl Future<Output = T>) -> (T, u64, u64) {
        let before = self.counts.both();
        let answer = call.await;
        let after = self.counts.both();
        (answer, after.0 - before.0, after.1 - before.1)
    }

    async fn poll(&self, node: &TestNode, request: &PollRequest) -> (PollResponse, u64, u64) {
        let request = with(&node.credential, request.clone());
        let (answer, statements, transactions) = self.sent(self.manager.poll(request)).await;
        let answer = answer.expect("an answer").into_inner();
        (answer, statements, transactions)
    }

    /// What a node is to do, by what is known here at this moment.
    async fn act(&self, node: &TestNode, request: &PollRequest) -> &'static str {
        act(&self.poll(node, request).await.0)
    }

    /// Lets one of the ancestor's agents say something. Says what that took.
    pub async fn say(&self, old: &OldNode, status: UpdateStatus) -> (u64, u64) {
        let token = self.house.old_token();
        let say = say(&self.manager, &token, old, status);
        let (answer, statements, transactions) = self.sent(say).await;
        answer.expect("an answer");
        (statements, transactions)
    }

    /// All that was committed before is known to the manager from now on.
    pub async fn catches_up(&self) {
        let caught_up = async { while !self.manager.caught_up().await {} };
        tokio::time::timeout(Duration::from_mins(1), caught_up)
            .await
            .expect("the changes are followed");
    }
}

async fn say(
    manager: &MaintenanceManager,
    token: &str,
    old: &OldNode,
    status: UpdateStatus,
) -> Result<(), Status> {
    let request = PlatformUpdateStatusRequest {
        host_guid: old.guid.clone(),
        update_status: Some(status),
    };
    let answer = manager.platform_update_status(with(token, request)).await;
    answer.map(drop)
}

/// A poll of a node that has nothing to say.
pub async fn nothing_new(house: &House, node: &TestNode) -> PollRequest {
    PollRequest {
        facts_digest: house.known(node).await.facts_digest,
        ..PollRequest::default()
    }
}

fn with_attempt(request: &PollRequest, attempt: u128) -> PollRequest {
    PollRequest {
        attempt: Some(Attempt {
            id: Uuid::from_u128(attempt).to_string(),
            last_sequence: 2,
        }),
        ..request.clone()
    }
}

#[tokio::test]
async fn a_poll_that_is_remembered_costs_the_database_nothing() {
    let counted = Counted::new().await;
    let node = counted.house.node().await;
    let quiet = nothing_new(&counted.house, &node).await;
    counted.catches_up().await;
    let (first, statements, transactions) = counted.poll(&node, &quiet).await;
    assert_eq!(transactions, 1);
    assert!(statements <= FEW, "{statements}");
    for _ in 0..3 {
        let (again, statements, transactions) = counted.poll(&node, &quiet).await;
        assert_eq!((statements, transactions), (0, 0));
        assert_eq!(again.decision, first.decision);
        assert_eq!(again.decision_tag, first.decision_tag);
    }
    assert_eq!(counted.manager.sizes().nodes, 1);
}

/// How old versions are is read for each node by itself, but only until the next one is old enough.
#[tokio::test]
async fn a_node_whose_versions_are_to_grow_old_costs_nothing_until_they_are() {
    let counted = Counted::new().await;
    let (node, other) = (
        counted.house.nth_node(1).await,
        counted.house.nth_node(2).await,
    );
    counted.house.careful(&node, 7).await;
    let (curl, jq) = (offers("curl", "2"), offers("jq", "2"));
    counted.house.tell(&node, with_offers(vec![curl, jq])).await;
    let quiet = nothing_new(&counted.house, &node).await;
    counted.catches_up().await;
    let (first, _, transactions) = counted.poll(&node, &quiet).await;
    assert_eq!(transactions, 2, "in a batch, and by itself");
    for _ in 0..3 {
        let (again, statements, _) = counted.poll(&node, &quiet).await;
        assert_eq!((again.decision_tag, statements), (first.decision_tag, 0));
    }
    // What others hear of meanwhile grows old by itself.
    counted.house.pass(2 * DAY);
    let newer = with_offers(vec![offers("curl", "3")]);
    counted.house.tell(&other, newer).await;
    assert_eq!(settled(first), Vec::<String>::new());
    counted.catches_up().await;
    for (days, all) in [
        (4, &[][..]),
        (1, &["curl=2", "jq=2"]),
        (1, &["curl=2", "jq=2"]),
        (1, &["curl=2", "curl=3", "jq=2"]),
    ] {
        counted.house.pass(days * DAY - 1);
        counted.poll(&node, &quiet).await;
        // From before the minute in which a version is old enough nothing is told behind it.
        counted.house.pass(1);
        let (answer, ..) = counted.poll(&node, &quiet).await;
        assert_eq!(settled(answer), all);
        let (_, statements, _) = counted.poll(&node, &quiet).await;
        assert_eq!(statements, 0);
    }
}

#[tokio::test]
async fn nor_does_one_of_the_ancestors() {
    let counted = Counted::new().await;
    let node = counted.house.old_node(1).await;
    counted.house.say(&node, sample(S::UpToDate)).await;
    counted.catches_up().await;
    let (statements, transactions) = counted.say(&node, sample(S::UpToDate)).await;
    assert_eq!(transactions, 1);
    assert!(statements <= FEW, "{statements}");
    for _ in 0..3 {
        assert_eq!(counted.say(&node, sample(S::UpToDate)).await, (0, 0));
    }
}

#[tokio::test]
async fn news_is_one_transaction() {
    let counted = Counted::new().await;
    let (node, old) = (counted.house.node().await, counted.house.old_node(9).await);
    counted.house.say(&old, sample(S::UpToDate)).await;
    let quiet = nothing_new(&counted.house, &node).await;
    let told = PollRequest {
        facts: Some(facts()),
        ..PollRequest::default()
    };
    let waits = PollRequest {
        waiting: "alice is logged in".into(),
        ..quiet.clone()
    };
    let transactions = async |request: &PollRequest| {
        counted.catches_up().await;
        counted.poll(&node, request).await.2
    };
    assert_eq!(transactions(&told).await, 1);
    assert_eq!(transactions(&quiet).await, 1, "it is looked at");
    assert_eq!(transactions(&waits).await, 1, "something else is known");

    counted.catches_up().await;
    assert_eq!(counted.say(&old, sample(S::UpToDate)).await.1, 1);
    // It is remembered that it says something else, and later nothing is; but these always say something.
    for kind in [S::Failed, S::Downloading, S::Started, S::Updated] {
        counted.catches_up().await;
        assert_eq!(counted.say(&old, sample(kind)).await.1, 1, "{kind:?}");
    }
}

#[tokio::test]
async fn two_hundred_that_come_at_once_are_looked_at_together() {
    let counted = Counted::new().await;
    let house = &counted.house;
    let mut nodes = vec![house.nth_node(1).await];
    nodes.extend(join_all((2..=200).map(|n| house.nth_node(n))).await);
    let quiet = nothing_new(house, &nodes[0]).await;
    counted.catches_up().await;
    let polls = nodes.iter().map(|node| {
        let request = with(&node.credential, quiet.clone());
        counted.manager.poll(request)
    });
    // None of them is made to wait because so many were begun.
    let polls = tokio::task::unconstrained(join_all(polls));
    let (answers, statements, transactions) = counted.sent(polls).await;
    assert_eq!(transactions, 1);
    assert!(statements <= FEW, "{statements}");
    for answer in answers {
        let answer = answer.expect("an answer").into_inner();
        assert!(!answer.want_facts);
        assert_eq!(act(&answer), "idle");
    }
    assert_eq!(counted.manager.sizes().nodes, 200);
    let (_, statements, transactions) = counted.poll(&nodes[199], &quiet).await;
    assert_eq!((statements, transactions), (0, 0));
}

/// Nobody waits here until the change log was read.
#[tokio::test]
async fn a_node_is_never_answered_from_before_its_own_report() {
    let counted = Counted::new().await;
    let house = &counted.house;
    let node = house.node().await;
    let policy = house.policy(&node, "demo-hello=1.1").await;
    house.window(node.host, -1, 60).await;
    let idle = nothing_new(house, &node).await;
    let busy = with_attempt(&idle, 1);
    counted.catches_up().await;
    assert_eq!(counted.act(&node, &idle).await, "apply");

    let reported = async |events: &[_]| {
        let said = with(&node.credential, report(1, policy, events));
        counted.manager.report(said).await.expect("stored");
    };
    reported(&[(1, downloading()), (2, began())]).await;
    assert_eq!(counted.act(&node, &busy).await, "continue");
    counted.catches_up().await;
    assert_eq!(counted.act(&node, &busy).await, "continue");
    let (_, statements, _) = counted.poll(&node, &busy).await;
    assert_eq!(statements, 0, "it is remembered");

    reported(&[(3, finished())]).await;
    assert_eq!(counted.act(&node, &busy).await, "cancel");
    assert_eq!(counted.act(&node, &idle).await, "idle");
}

#[tokio::test]
async fn what_is_wanted_is_told_from_the_next_poll_on() {
    let counted = Counted::new().await;
    let house = &counted.house;
    let node = house.node().await;
    let quiet = nothing_new(house, &node).await;
    counted.catches_up().await;
    for _ in 0..2 {
        assert_eq!(counted.act(&node, &quiet).await, "idle");
    }
    house.policy(&node, "demo-hello=1.1").await;
    house.window(node.host, 10, 60).await;
    counted.catches_up().await;
    for _ in 0..2 {
        assert_eq!(counted.act(&node, &quiet).await, "fetch");
    }
    house.pass(10);
    for _ in 0..2 {
        assert_eq!(counted.act(&node, &quiet).await, "apply");
    }
    // What lets a node begin is told as it is at this moment, so nobody waits here.
    house.withdraw(&node).await;
    for _ in 0..2 {
        assert_eq!(counted.act(&node, &quiet).await, "idle");
    }
}

#[tokio::test]
async fn a_window_that_was_taken_back_is_not_told_from_memory() {
    let counted = Counted::new().await;
    let house = &counted.house;
    let old = house.old_node(1).await;
    house.policy(&old.as_node(), "curl").await;
    house.window(old.host, 10, 60).await;
    let told = async || {
        // Nobody waits until the change log was read.
        let token = house.old_token();
        let request = PlatformUpdateStatusRequest {
            host_guid: old.guid.clone(),
            update_status: Some(sample(S::UpToDate)),
        };
        let answer = counted
            .manager
            .platform_update_status(with(&token, request));
        window(&answer.await.expect("an answer").into_inner())
    };
    for _ in 0..3 {
        assert!(told().await.is_some());
        counted.catches_up().await;
    }
    let (statements, _) = counted.say(&old, sample(S::UpToDate)).await;
    assert_eq!(statements, 0, "it is remembered");
    house.withdraw(&old.as_node()).await;
    assert_eq!(told().await, None);
}

/// While somebody writes, nobody knows whether all was read that was committed before a poll came. That matters once one of
/// the ancestor's agents could begin before it asks again.
#[tokio::test]
async fn a_window_that_is_far_away_is_told_from_memory_although_somebody_writes() {
    let counted = Counted::new().await;
    let house = &counted.house;
    let (old, other) = (house.old_node(1).await, house.old_node(2).await);
    house.policy(&old.as_node(), "curl").await;
    house.window(old.host, 60, 120).await;
    for (minutes, is_near) in [(0, false), (49, false), (1, true), (9, true)] {
        house.pass(minutes);
        for _ in 0..3 {
            counted.say(&old, sample(S::UpToDate)).await;
            counted.catches_up().await;
        }
        let sent = counted.say(&old, sample(S::UpToDate)).await;
        assert_eq!(sent, (0, 0), "it is remembered");
        let writer = house.tx().await;
        nodes::lock(&writer, other.host).await.expect("a lock");
        // Who began later has ended, so the log is known only up to the writer.
        house.window(other.host, 1_000, 1_060).await;
        let (statements, _) = counted.say(&old, sample(S::UpToDate)).await;
        assert_eq!(0 < statements, is_near, "after {minutes} more minutes");
    }
}

#[tokio::test]
async fn a_manager_that_follows_no_changes_remembers_nothing() {
    let counted = Counted::at_rest().await;
    let node = counted.house.node().await;
    let quiet = nothing_new(&counted.house, &node).await;
    for _ in 0..3 {
        let (_, _, transactions) = counted.poll(&node, &quiet).await;
        assert_eq!(transactions, 1);
    }
    assert_eq!(counted.manager.sizes().nodes, 0);
}

#[tokio::test]
async fn what_is_remembered_of_a_node_is_told_to_no_other() {
    let counted = Counted::new().await;
    let (mine, old) = (counted.house.node().await, counted.house.old_node(9).await);
    counted.house.say(&old, sample(S::UpToDate)).await;
    counted.catches_up().await;
    for _ in 0..2 {
        counted.say(&old, sample(S::UpToDate)).await;
        let refused = say(
            &counted.manager,
            &mine.credential,
            &old,
            sample(S::UpToDate),
        )
        .await;
        let refused = refused.expect_err("another host").code();
        assert_eq!(refused, Code::PermissionDenied);
    }
}
