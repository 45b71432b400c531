//! Our own agent's door, told as stories.

use crate::house::{House, act, began, downloaded, downloading, facts, finished, reason, with};
use evenkeel_proto::agent::agent_service_server::AgentService;
use evenkeel_proto::agent::begin_response::Answer;
use evenkeel_proto::agent::event::News;
use evenkeel_proto::agent::{Cancelled, Failed, FailureKind, NothingToDo, PollRequest};
use futures_util::future::join_all;
use tonic::Code;

#[tokio::test]
async fn a_node_that_has_only_enrolled_has_a_decision() {
    let house = House::new().await;
    let node = house.node().await;
    let answer = house.poll(&node).await;
    assert_eq!(act(&answer), "idle");
    assert_eq!(
        reason(&answer),
        "no update policy is assigned to the instance"
    );
}

#[tokio::test]
async fn an_update_from_the_window_to_the_end() {
    let house = House::new().await;
    let node = house.node().await;
    let policy = house.policy(&node, "demo-hello=1.1").await;
    house.window(node.host, 600, 660).await;

    assert_eq!(act(&house.poll(&node).await), "idle");
    house.pass(300);
    assert_eq!(act(&house.poll(&node).await), "fetch");
    house
        .report(&node, 1, policy, &[(1, downloading()), (2, downloaded())])
        .await;
    assert_eq!(act(&house.poll(&node).await), "continue");
    assert!(matches!(
        house.begin(&node, 1, policy, 2).await,
        Answer::Refused(_)
    ));

    house.pass(300);
    assert_eq!(act(&house.poll(&node).await), "apply");
    assert!(matches!(
        house.begin(&node, 1, policy, 2).await,
        Answer::Granted(_)
    ));
    house.report(&node, 1, policy, &[(3, began())]).await;
    assert_eq!(house.shown(&node).await, "Updating");
    house.report(&node, 1, policy, &[(4, finished())]).await;

    assert_eq!(act(&house.poll(&node).await), "idle");
    assert_eq!(house.shown(&node).await, "Update completed");
    let run = &house.runs(&node).await[0];
    assert!(run.packages[0].is_done(), "{:?}", run.packages);
    assert_eq!(run.origin.policy_id(), Some(policy));
    assert_eq!(
        house.told(&node).await,
        "downloading->downloading downloaded->staged began->applying finished->succeeded"
    );
}

#[tokio::test]
async fn a_repeated_report_changes_nothing() {
    let house = House::new().await;
    let node = house.node().await;
    let policy = house.policy(&node, "demo-hello=1.1").await;
    house.window(node.host, 1, 60).await;
    house.pass(2);
    let all = [
        (1, downloading()),
        (2, downloaded()),
        (3, began()),
        (4, finished()),
    ];
    for _ in 0..3 {
        let answer = house.report(&node, 1, policy, &all).await;
        assert_eq!(answer.acknowledged, 4);
    }
    let answers = join_all((0..20).map(|_| house.report(&node, 1, policy, &all))).await;
    assert!(answers.iter().all(|answer| answer.acknowledged == 4));
    assert_eq!(
        house.told(&node).await,
        "downloading->downloading downloaded->staged began->applying finished->succeeded"
    );
}

#[tokio::test]
async fn a_gap_is_asked_for_again() {
    let house = House::new().await;
    let node = house.node().await;
    let policy = house.policy(&node, "demo-hello=1.1").await;
    assert_eq!(
        house
            .report(&node, 1, policy, &[(2, downloaded())])
            .await
            .acknowledged,
        0
    );
    assert!(house.runs(&node).await.is_empty());
    assert_eq!(
        house
            .report(&node, 1, policy, &[(1, downloading())])
            .await
            .acknowledged,
        1
    );
    let answer = house
        .report(&node, 1, policy, &[(2, downloaded()), (4, finished())])
        .await;
    assert_eq!(answer.acknowledged, 2);
    assert_eq!(house.runs(&node).await[0].state.name(), "staged");
}

#[tokio::test]
async fn a_schedule_that_ends_before_anything_began_leaves_no_run() {
    let house = House::new().await;
    let node = house.node().await;
    house.policy(&node, "demo-hello=1.1").await;
    house.window(node.host, 10, 20).await;
    house.pass(30);
    let answer = house.poll(&node).await;
    assert_eq!(act(&answer), "idle");
    assert_eq!(reason(&answer), "no schedule opens a window for updates");
    assert!(house.runs(&node).await.is_empty());
}

#[tokio::test]
async fn what_was_downloaded_for_a_window_that_passed_ends_as_one_cancelled_run() {
    let house = House::new().await;
    let (node, policy) = house.node_that_waits().await;
    house.pass(30);
    assert_eq!(act(&house.poll(&node).await), "cancel");
    let cancelled = News::Cancelled(Cancelled {
        cause: "window_missed".into(),
    });
    assert_eq!(house.track().await, 0, "the node says so itself");
    assert_eq!(
        house
            .report(&node, 1, policy, &[(3, cancelled)])
            .await
            .acknowledged,
        3
    );
    let all = house.runs(&node).await;
    assert_eq!(all.len(), 1);
    assert_eq!(all[0].state.name(), "cancelled");
    assert_eq!(house.shown(&node).await, "Update cancelled");
}

/// The server called it off while the node was away: the node must not hold on to it for ever.
#[tokio::test]
async fn an_attempt_that_was_called_off_meanwhile_is_given_up_and_the_next_one_begins() {
    let house = House::new().await;
    let (node, policy) = house.node_that_waits().await;
    house.pass(8 * 24 * 60);
    assert_eq!(house.track().await, 1);
    house.window(node.host, 1, 60).await;
    house.pass(2);
    for attempt in [1, 77] {
        let answer = house.poll_with(&node, attempt).await;
        assert_eq!(act(&answer), "cancel", "attempt {attempt} has no open run");
    }
    assert_eq!(act(&house.poll(&node).await), "apply");
    house.report(&node, 2, policy, &[(1, downloading())]).await;
    assert_eq!(act(&house.poll_with(&node, 2).await), "apply");
    assert!(matches!(
        house.begin(&node, 2, policy, 1).await,
        Answer::Granted(_)
    ));
}

/// The server must not call off what may have begun: the news of it may still be under way.
#[tokio::test]
async fn what_was_given_leave_is_not_called_off() {
    let house = House::new().await;
    let node = house.node().await;
    let policy = house.policy(&node, "demo-hello=1.1").await;
    house.window(node.host, 1, 20).await;
    house.pass(2);
    house
        .report(&node, 1, policy, &[(1, downloading()), (2, downloaded())])
        .await;
    assert!(matches!(
        house.begin(&node, 1, policy, 2).await,
        Answer::Granted(_)
    ));
    house.pass(60);
    assert_eq!(house.track().await, 0);
    house
        .report(&node, 1, policy, &[(3, began()), (4, finished())])
        .await;
    assert_eq!(house.runs(&node).await[0].state.name(), "succeeded");
}

#[tokio::test]
async fn a_withdrawn_wish_never_begins() {
    let house = House::new().await;
    let node = house.node().await;
    let policy = house.policy(&node, "demo-hello=1.1").await;
    house.window(node.host, 1, 60).await;
    house.pass(2);
    house
        .report(&node, 1, policy, &[(1, downloading()), (2, downloaded())])
        .await;
    house.withdraw(&node).await;
    let Answer::Refused(refused) = house.begin(&node, 1, policy, 2).await else {
        panic!("it was withdrawn");
    };
    assert!(
        refused.reason.ends_with("is not wanted any more"),
        "{}",
        refused.reason
    );
}

#[tokio::test]
async fn nobody_begins_before_telling_what_happened_so_far() {
    let house = House::new().await;
    let node = house.node().await;
    let policy = house.policy(&node, "demo-hello=1.1").await;
    house.window(node.host, 1, 60).await;
    house.pass(2);
    for told in [0, 1] {
        assert!(
            matches!(house.begin(&node, 1, policy, 2).await, Answer::Refused(_)),
            "{told}"
        );
        house.report(&node, 1, policy, &[(1, downloading())]).await;
    }
}

#[tokio::test]
async fn a_failed_update_is_not_tried_again_in_its_window() {
    let house = House::new().await;
    let node = house.node().await;
    let policy = house.policy(&node, "demo-bad=1.1").await;
    house.window(node.host, 1, 60).await;
    house.pass(2);
    let failed = News::Failed(Failed {
        kind: FailureKind::Apply.into(),
        reason: "apt-get ended with 100".into(),
        log: "demo-bad: postinst fails on purpose\0".into(),
        ..Failed::default()
    });
    house
        .report(&node, 1, policy, &[(1, downloading()), (2, downloaded())])
        .await;
    house.begin(&node, 1, policy, 2).await;
    house
        .report(&node, 1, policy, &[(3, began()), (4, failed)])
        .await;
    let answer = house.poll(&node).await;
    assert_eq!(act(&answer), "idle");
    assert!(reason(&answer).contains("the next attempt is made in the next window"));
    assert!(
        house.runs(&node).await[0]
            .log
            .starts_with("demo-bad: postinst fails")
    );
    house.window(node.host, 120, 180).await;
    house.pass(121);
    assert_eq!(act(&house.poll(&node).await), "apply");
}

#[tokio::test]
async fn an_update_that_changes_nothing_has_its_run() {
    let house = House::new().await;
    let node = house.node().await;
    let policy = house.policy(&node, "").await;
    house.window(node.host, 1, 60).await;
    house.pass(2);
    house
        .report(&node, 1, policy, &[(1, News::NothingToDo(NothingToDo {}))])
        .await;
    assert_eq!(house.told(&node).await, "nothing_to_do->succeeded");
    assert_eq!(act(&house.poll(&node).await), "idle");
}

#[tokio::test]
async fn a_new_attempt_ends_the_one_before_it() {
    let house = House::new().await;
    let node = house.node().await;
    let policy = house.policy(&node, "demo-hello=1.1").await;
    house.window(node.host, 1, 60).await;
    house.report(&node, 1, policy, &[(1, downloading())]).await;
    house.report(&node, 2, policy, &[(1, downloading())]).await;
    // Late news of the first attempt is kept and moves nothing.
    assert_eq!(
        house
            .report(&node, 1, policy, &[(2, downloaded())])
            .await
            .acknowledged,
        2
    );
    let mut states: Vec<_> = house
        .runs(&node)
        .await
        .iter()
        .map(|run| run.state.name())
        .collect();
    states.sort_unstable();
    assert_eq!(states, ["abandoned", "downloading"]);
    assert_eq!(house.shown(&node).await, "Downloading artifacts");
}

#[tokio::test]
async fn a_run_that_fell_silent_is_given_up_and_its_end_still_counts() {
    let house = House::new().await;
    let node = house.node().await;
    let policy = house.policy(&node, "demo-hello=1.1").await;
    house.window(node.host, 1, 60).await;
    house.pass(2);
    house
        .report(&node, 1, policy, &[(1, downloading()), (2, downloaded())])
        .await;
    house.begin(&node, 1, policy, 2).await;
    house.report(&node, 1, policy, &[(3, began())]).await;
    house.pass(23 * 60);
    assert_eq!(house.track().await, 0);
    house.pass(2 * 60);
    assert_eq!(house.track().await, 1);
    assert_eq!(house.shown(&node).await, "Update failed");
    house.report(&node, 1, policy, &[(4, finished())]).await;
    assert_eq!(house.shown(&node).await, "Update completed");
}

#[tokio::test]
async fn facts_are_asked_for_until_they_are_known() {
    let house = House::new().await;
    let token = house.join_token(true, true).await;
    let answer = house.enroll(&token, 1, 1).await.expect("enrolled");
    let node = crate::house::TestNode {
        host: answer.host_id.parse().expect("a host"),
        instance: answer.instance_id.parse().expect("an instance"),
        credential: answer.credential,
    };
    assert!(house.poll(&node).await.want_facts);
    let digest = <sha2::Sha256 as sha2::Digest>::digest(prost::Message::encode_to_vec(&facts()));
    house.tell(&node, facts()).await;
    let request = PollRequest {
        facts_digest: digest.to_vec(),
        ..PollRequest::default()
    };
    let answer = house
        .manager
        .poll(with(&node.credential, request))
        .await
        .expect("an answer");
    assert!(!answer.into_inner().want_facts);
}

#[tokio::test]
async fn a_join_token_for_one_machine_is_used_by_one() {
    let house = House::new().await;
    let token = house.join_token(true, true).await;
    let first = house.enroll(&token, 1, 1).await.expect("the machine");
    let again = house
        .enroll(&token, 1, 1)
        .await
        .expect("its answer was lost");
    assert_eq!(first.host_id, again.host_id);
    let other = house
        .enroll(&token, 2, 2)
        .await
        .expect_err("another machine");
    assert_eq!(other.code(), Code::PermissionDenied);
}

#[tokio::test]
async fn a_machine_is_not_taken_over_by_another_with_its_uuid() {
    let house = House::new().await;
    let token = house.join_token(false, true).await;
    house.enroll(&token, 1, 1).await.expect("the machine");
    let clone = house.enroll(&token, 1, 2).await.expect_err("its clone");
    assert_eq!(clone.code(), Code::FailedPrecondition);
    assert!(
        clone.message().contains("evenkeel host delete host-"),
        "{}",
        clone.message()
    );
}

#[tokio::test]
async fn a_machine_that_nobody_registered_needs_a_token_that_allows_it() {
    let house = House::new().await;
    let token = house.join_token(false, false).await;
    let refused = house
        .enroll(&token, 1, 1)
        .await
        .expect_err("not registered");
    assert_eq!(refused.code(), Code::PermissionDenied);
    house.pass(120);
    let late = house.enroll(&token, 1, 1).await.expect_err("expired");
    assert_eq!(late.message(), "the join token has expired");
    for bad in [
        "",
        "ekj1..x",
        "nonsense",
        "ekj1..AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
    ] {
        let refused = house.enroll(bad, 1, 1).await.expect_err(bad);
        assert!(matches!(
            refused.code(),
            Code::InvalidArgument | Code::PermissionDenied
        ));
    }
}

#[tokio::test]
async fn only_a_node_is_answered() {
    let house = House::new().await;
    let node = house.node().await;
    let role = evenkeel_auth::Role::Write(house.tenant.uuid());
    let (now, hour) = (crate::house::NOON, chrono::TimeDelta::hours(1));
    let operator = house
        .authority
        .issue_operator("alice", &[role], hour, now)
        .expect("a token");
    let poll = |token: String| house.manager.poll(with(&token, PollRequest::default()));
    let refused = poll(operator.token.reveal().to_owned())
        .await
        .expect_err("an operator");
    assert_eq!(refused.code(), Code::PermissionDenied);
    assert_eq!(
        poll("x".repeat(10_000)).await.expect_err("noise").code(),
        Code::Unauthenticated
    );
    house.pass(91 * 24 * 60);
    let late = poll(node.credential.clone()).await.expect_err("expired");
    assert_eq!(late.code(), Code::Unauthenticated);
}

#[tokio::test]
async fn a_credential_is_replaced_before_it_expires() {
    let house = House::new().await;
    let node = house.node().await;
    assert!(house.poll(&node).await.credential.is_empty());
    house.pass(61 * 24 * 60);
    assert!(!house.poll(&node).await.credential.is_empty());
}

#[tokio::test]
async fn a_node_of_another_project_is_not_known() {
    let house = House::new().await;
    let node = house.node().await;
    let theirs = crate::house::project(&house.store, "theirs").await;
    let now = crate::house::NOON;
    let hour = chrono::TimeDelta::hours(1);
    let host = node.host.to_string();
    let foreign = house
        .authority
        .issue_node(theirs.uuid(), &host, hour, now)
        .expect("a token");
    let request = with(foreign.token.reveal(), PollRequest::default());
    assert_eq!(
        house
            .manager
            .poll(request)
            .await
            .expect_err("foreign")
            .code(),
        Code::NotFound
    );
}
