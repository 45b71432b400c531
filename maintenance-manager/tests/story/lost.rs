//! What a held poll is not woken for, and nodes that are gone while theirs is held.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_kit::{Clock, Lifecycle};
use evenkeel_maintenance_manager::{HoldSettings, MaintenanceManager, Settings, SilenceWatch};
use evenkeel_proto::agent::PollResponse;
use evenkeel_proto::agent::agent_service_server::AgentService as _;
use evenkeel_store::contacts::{self, Contact};
use futures_util::future::{Either, join, select};
use tonic::{Response, Status};

use crate::brake::{failed, ready};
use crate::held::{WITHIN, catches_up, patient, said, server, told, until_held, within};
use crate::house::{House, TestNode, act, began, reason, report, with};
use crate::news::DAY;

/// A call of a node whose poll is held from now on. Whoever drops it loses the connection.
async fn held<'a>(
    server: &'a MaintenanceManager,
    house: &House,
    node: &TestNode,
) -> impl Future<Output = Result<Response<PollResponse>, Status>> + 'a {
    let told = told(house, node).await;
    catches_up(server).await;
    let call = server.poll(patient(house, node, &told).await);
    let held = pin!(until_held(server, 1));
    let Either::Right(((), call)) = select(call, held).await else {
        panic!("it is answered");
    };
    call
}

async fn silent(house: &House) -> usize {
    let clock = Arc::clone(&house.clock) as Arc<dyn Clock>;
    let watch = SilenceWatch::new(house.store.clone(), clock, &Settings::default());
    watch.pass().await.expect("a pass")
}

/// Of those that depend on the slots of an assignment only a few are woken when these change, or each would wake all.
#[tokio::test]
async fn a_node_that_nobody_woke_hears_all_the_same_that_its_assignment_was_stopped() {
    let house = House::with(Settings {
        holds: HoldSettings {
            recheck: Duration::from_millis(200),
            ..HoldSettings::default()
        },
        ..Settings::default()
    })
    .await;
    let (nodes, policy) = ready(&house, 2, None, Some(1)).await;
    house.begin(&nodes[1], 1, policy, 2).await;
    let told = told(&house, &nodes[0]).await;
    assert_eq!(act(&told), "apply");
    let held = house.manager.poll(patient(&house, &nodes[0], &told).await);
    let fails = async {
        until_held(&house.manager, 1).await;
        let events = [(3, began()), (4, failed())];
        house.report(&nodes[1], 1, policy, &events).await;
    };
    let (answer, ()) = join(within(held), fails).await;
    let answer = said(answer);
    assert_ne!(answer.decision_tag, told.decision_tag);
    assert_eq!(act(&answer), "continue");
    let reason = reason(&answer);
    assert!(
        reason.starts_with("1 updates of project failed"),
        "{reason}"
    );
}

#[tokio::test]
async fn a_node_that_is_lost_while_it_is_held_is_silent_as_soon_as_others() {
    let house = House::new().await;
    let node = house.node().await;
    let life = Lifecycle::new();
    let server = server(&house, &life);
    drop(held(&server, &house, &node).await);
    life.stop();
    life.run_until_stopped(WITHIN).await;

    house.pass(4);
    assert_eq!(silent(&house).await, 0);
    house.pass(2);
    assert_eq!(silent(&house).await, 1);
}

#[tokio::test]
async fn a_node_that_was_held_and_got_its_answer_is_due_as_others() {
    let house = House::new().await;
    let node = house.node().await;
    let life = Lifecycle::new();
    let server = server(&house, &life);
    let told = told(&house, &node).await;
    catches_up(&server).await;
    let held = server.poll(patient(&house, &node, &told).await);
    let wish = async {
        until_held(&server, 1).await;
        house.policy(&node, "demo-hello=1.1").await;
    };
    let (answer, ()) = join(within(held), wish).await;
    assert_ne!(said(answer).decision_tag, told.decision_tag);
    life.stop();
    life.run_until_stopped(WITHIN).await;

    house.pass(4);
    assert_eq!(silent(&house).await, 0);
    house.pass(2);
    assert_eq!(silent(&house).await, 1);
}

/// As `evenkeel-agent doctor` does.
#[tokio::test]
async fn whoever_tries_the_way_beside_a_held_poll_makes_nobody_silent() {
    let house = House::new().await;
    let node = house.node().await;
    let (life, elsewhere) = (Lifecycle::new(), Lifecycle::new());
    let (one, other) = (server(&house, &life), server(&house, &elsewhere));
    let call = held(&one, &house, &node).await;
    house.pass(1);
    let nothing = report(1, evenkeel_domain::id::PolicyId::nth(1), &[]);
    let answer = other.report(with(&node.credential, nothing)).await;
    answer.expect("an answer");
    elsewhere.stop();
    elsewhere.run_until_stopped(WITHIN).await;
    house.pass(8);
    assert_eq!(silent(&house).await, 0, "its poll is held");
    drop(call);
}

#[tokio::test]
async fn a_node_that_is_lost_here_and_held_elsewhere_is_not_silent() {
    let house = House::new().await;
    let node = house.node().await;
    let (life, elsewhere) = (Lifecycle::new(), Lifecycle::new());
    let (one, other) = (server(&house, &life), server(&house, &elsewhere));
    let first = held(&one, &house, &node).await;
    house.pass(1);
    let second = held(&other, &house, &node).await;
    // That the first connection is gone is found last.
    house.pass(1);
    drop(first);
    for life in [life, elsewhere] {
        life.stop();
        life.run_until_stopped(WITHIN).await;
    }
    house.pass(8);
    assert_eq!(silent(&house).await, 0, "it is due in five minutes, twice");
    drop(second);
}

/// A server that is killed says nothing more of those whose polls it held.
#[tokio::test]
async fn a_node_that_is_lost_together_with_its_server_is_silent_after_twice_its_hold() {
    let house = House::new().await;
    let node = house.node().await;
    house.pass(1);
    let settings = Settings {
        contacts_every: Duration::from_millis(10),
        ..Settings::default()
    };
    let server = house.manager_on(house.store.clone(), settings);
    server.start_loops(&Lifecycle::new());
    let call = held(&server, &house, &node).await;
    let written = async {
        let last = async || contacts::last(&house.tx().await, node.instance).await;
        while last().await.expect("an answer") != Some(house.time()) {
            tokio::task::yield_now().await;
        }
    };
    within(written).await;

    // From here on nobody polls the call and nobody drops it, as if its server were gone.
    house.pass(10);
    assert_eq!(silent(&house).await, 0, "its poll may be held elsewhere");
    house.pass(2);
    assert_eq!(silent(&house).await, 1);
    drop(call);
}

/// It may have been given leave with the answer to a poll that was held for an hour.
#[tokio::test]
async fn leave_counts_from_when_a_held_node_may_have_been_answered() {
    let house = House::new().await;
    let (node, _) = house.node_that_waits().await;
    house.pass(30);
    let heard = Contact {
        tenant: house.tenant,
        instance: node.instance,
        at: house.time(),
        due: None,
    };
    let tx = house.store.fleet().await.expect("a transaction");
    contacts::heard(&tx, vec![heard]).await.expect("noted");
    tx.commit().await.expect("committed");
    house.pass(7 * DAY + 60 + 4);
    assert_eq!(house.track().await, 0);
    house.pass(2);
    assert_eq!(house.track().await, 1);
}
