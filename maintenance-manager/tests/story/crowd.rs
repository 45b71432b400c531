//! There is too much to do: who is refused, and who is answered all the same.

use std::collections::HashSet;
use std::time::Duration;

use evenkeel_maintenance_manager::{DeskSettings, FloodSettings, LoadSettings, Settings};
use evenkeel_proto::agent::PollRequest;
use evenkeel_proto::agent::agent_service_server::AgentService as _;
use evenkeel_proto::maintmgr::PlatformUpdateStatusRequest;
use evenkeel_proto::maintmgr::maintmgr_service_server::MaintmgrService as _;
use evenkeel_proto::maintmgr::update_status::StatusType as S;
use futures_util::future::{FutureExt as _, join_all};
use tonic::{Code, Status};

use crate::fleet::{OldNode, sample};
use crate::heartbeats::beat;
use crate::held::catches_up;
use crate::house::{House, with};
use crate::news::{offers, with_offers};
use crate::quiet::nothing_new;

/// A house whose server takes on so many calls at once.
async fn house_of(calls: u32) -> House {
    let load = LoadSettings {
        calls,
        ..LoadSettings::default()
    };
    House::with(Settings {
        load,
        ..Settings::default()
    })
    .await
}

/// After how many milliseconds to come back, as a refusal says.
fn hint(refused: &Status) -> u64 {
    assert_eq!(refused.code(), Code::Unavailable, "{refused:?}");
    let hint = refused.metadata().get("grpc-retry-pushback-ms");
    let hint = hint.and_then(|hint| hint.to_str().ok()?.parse().ok());
    hint.expect("a hint")
}

/// To refuse it would cost as much, and it would come back.
#[tokio::test]
async fn a_poll_that_is_remembered_is_answered_while_others_are_too_many() {
    let house = house_of(2).await;
    let mut words = Vec::new();
    for n in 1..=3 {
        let node = house.nth_node(n).await;
        words.push((nothing_new(&house, &node).await, node.credential));
    }
    let poll = |n: usize| {
        let (quiet, credential): &(PollRequest, String) = &words[n];
        house.manager.poll(with(credential, quiet.clone()))
    };
    catches_up(&house.manager).await;
    poll(0).await.expect("an answer");
    let answers = join_all([poll(1), poll(2), poll(0)]).await;
    let [first, second, known] = &answers[..] else {
        panic!("three answers");
    };
    assert!(first.is_ok() && known.is_ok());
    let refused = second.as_ref().expect_err("one is enough");
    assert!(hint(refused) > 0);
}

#[tokio::test]
async fn polls_that_are_too_many_come_back_at_different_times() {
    let house = house_of(2).await;
    let node = house.node().await;
    let quiet = nothing_new(&house, &node).await;
    let poll = |_| {
        let words = with(&node.credential, quiet.clone());
        house.manager.poll(words)
    };
    catches_up(&house.manager).await;
    let answers = join_all((0..21).map(poll)).await;
    let refused = answers.iter().filter_map(|answer| answer.as_ref().err());
    let hints: Vec<_> = refused.map(hint).collect();
    assert_eq!(hints.len(), 20, "all but the first");
    let different: HashSet<_> = hints.iter().collect();
    assert!(different.len() > 10, "they come back together: {hints:?}");
}

#[tokio::test]
async fn polls_that_wait_too_long_to_be_looked_at_are_sent_away() {
    let desk = DeskSettings {
        desks: 1,
        batch: 1,
        patience: Duration::from_millis(1),
    };
    let house = House::at_rest(Settings {
        desk,
        ..Settings::default()
    })
    .await;
    let node = house.node().await;
    let quiet = nothing_new(&house, &node).await;
    let poll = |_| {
        let words = with(&node.credential, quiet.clone());
        house.manager.poll(words)
    };
    let answers = tokio::task::unconstrained(join_all((0..40).map(poll))).await;
    assert!(answers[0].is_ok(), "a desk is free: {:?}", answers[0]);
    let refused = answers.iter().filter_map(|answer| answer.as_ref().err());
    let hints: Vec<_> = refused.map(hint).collect();
    assert!(
        !hints.is_empty(),
        "one after the other within a millisecond"
    );
}

/// What takes longer than a batch keeps the connections from nobody.
#[tokio::test]
async fn of_polls_that_are_looked_at_one_by_one_few_may_wait() {
    let desk = DeskSettings {
        patience: Duration::from_mins(1),
        ..DeskSettings::default()
    };
    let flood = FloodSettings {
        calls_per_second: 0,
        ..FloodSettings::default()
    };
    let house = House::with(Settings {
        desk,
        flood,
        ..Settings::default()
    })
    .await;
    let node = house.node().await;
    house.careful(&node, 7).await;
    house
        .tell(&node, with_offers(vec![offers("curl", "2")]))
        .await;
    let quiet = nothing_new(&house, &node).await;
    let poll = |_| {
        let words = with(&node.credential, quiet.clone());
        house.manager.poll(words)
    };
    catches_up(&house.manager).await;
    let answers = tokio::task::unconstrained(join_all((0..200).map(poll))).await;
    let refused = answers.iter().filter_map(|answer| answer.as_ref().err());
    let refused = refused.map(hint).count();
    assert!(
        (1..=70).contains(&refused),
        "{refused}: 2 are looked at, 128 wait"
    );
}

/// Each of their calls that is refused comes three more times within seconds.
#[tokio::test]
async fn the_ancestors_agents_ask_beside_a_crowd_of_ours() {
    let house = house_of(4).await;
    let node = house.node().await;
    let quiet = nothing_new(&house, &node).await;
    let old = house.old_node(7).await;
    let ours = (0..3).map(|_| {
        let poll = house.manager.poll(with(&node.credential, quiet.clone()));
        poll.map(|answer| answer.map(drop)).boxed()
    });
    catches_up(&house.manager).await;
    let theirs = says(&house, &old, S::UpToDate).boxed();
    let answers = join_all(ours.chain([theirs])).await;
    let [_, _, third, theirs] = &answers[..] else {
        panic!("four answers");
    };
    assert!(hint(third.as_ref().expect_err("two of ours are half")) > 0);
    assert!(theirs.is_ok(), "{theirs:?}");
}

#[tokio::test]
async fn of_a_crowd_of_the_ancestors_agents_those_who_tell_that_an_update_failed_are_heard() {
    let house = house_of(4).await;
    let mut olds = Vec::new();
    for n in 1..=4 {
        olds.push(house.old_node(n).await);
    }
    for kind in [S::UpToDate, S::Started] {
        house.say(&olds[3], sample(kind)).await;
    }
    catches_up(&house.manager).await;
    let token = house.old_token();
    let answers = join_all([
        says(&house, &olds[0], S::UpToDate).boxed(),
        says(&house, &olds[1], S::UpToDate).boxed(),
        beat(&house.manager, &token, &olds[2]).boxed(),
        says(&house, &olds[3], S::Failed).boxed(),
    ])
    .await;
    let [first, second, beat, failed] = &answers[..] else {
        panic!("four answers");
    };
    assert!(first.is_ok(), "{first:?}");
    for refused in [second, beat] {
        let refused = refused.as_ref().expect_err("one of theirs is a quarter");
        assert!(hint(refused) > 0);
    }
    assert!(failed.is_ok(), "{failed:?}");
    // It is believed when it stays.
    house.pass(1);
    house.say(&olds[3], sample(S::Failed)).await;
    let told = house.told(&olds[3].as_node()).await;
    assert_eq!(told, "began->applying failed->failed");
    for old in &olds[1..3] {
        house.say(old, sample(S::UpToDate)).await;
    }
}

async fn says(house: &House, old: &OldNode, kind: S) -> Result<(), Status> {
    let request = PlatformUpdateStatusRequest {
        host_guid: old.guid.clone(),
        update_status: Some(sample(kind)),
    };
    let request = with(&house.old_token(), request);
    let answer = house.manager.platform_update_status(request).await;
    answer.map(drop)
}
