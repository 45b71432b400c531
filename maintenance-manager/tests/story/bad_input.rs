//! Everything that a node can send: the code of the reference, and nothing lost for the others.

use std::time::Instant;

use chrono::TimeDelta;
use evenkeel_maintenance_manager::{FloodSettings, Settings};
use evenkeel_proto::agent::agent_service_server::AgentService;
use evenkeel_proto::agent::event::News;
use evenkeel_proto::agent::{
    AvailablePackage, BeginRequest, Cancelled, Event, Facts, Failed, PollRequest, RebootBegun,
    ReportRequest, VerifyBegun,
};
use evenkeel_proto::maintmgr::UpdateStatus;
use evenkeel_proto::maintmgr::maintmgr_service_server::MaintmgrService;
use evenkeel_proto::maintmgr::update_status::StatusType as S;
use futures_util::future::join_all;
use tonic::Code;
use uuid::Uuid;

use crate::fleet::sample;
use crate::house::{
    House, act, began, downloaded, downloading, facts, finished, project, report, with,
};

#[tokio::test]
async fn a_guid_that_is_none_or_nobodys_has_the_code_of_the_reference() {
    let house = House::new().await;
    let node = house.old_node(1).await;
    for (guid, code) in [
        ("", Code::InvalidArgument),
        ("not-a-uuid", Code::InvalidArgument),
        ("a1b2c3d4000040008000000000000001", Code::InvalidArgument),
        ("a1b2c3d4-0000-4000-8000-000000000077", Code::NotFound),
        ("00000000-0000-0000-0000-000000000000", Code::NotFound),
    ] {
        let refused = house
            .say_at(&house.manager, guid, sample(S::UpToDate))
            .await;
        assert_eq!(refused.expect_err(guid).code(), code, "{guid}");
    }
    let request = evenkeel_proto::maintmgr::PlatformUpdateStatusRequest {
        host_guid: node.guid.clone(),
        update_status: None,
    };
    let request = with(&house.old_token(), request);
    let refused = house.manager.platform_update_status(request).await;
    assert_eq!(
        refused.expect_err("nothing said").code(),
        Code::InvalidArgument
    );
}

#[tokio::test]
async fn a_status_that_nobody_knows_is_shown_as_unknown_and_moves_nothing() {
    let house = House::new().await;
    let node = house.old_node(1).await;
    let strange = UpdateStatus {
        status_type: 4_711,
        ..UpdateStatus::default()
    };
    house.say(&node, sample(S::UpToDate)).await;
    house.say(&node, strange.clone()).await;
    assert_eq!(house.shown(&node.as_node()).await, "Unknown");
    house.say(&node, sample(S::Started)).await;
    house.say(&node, strange).await;
    assert_eq!(house.told(&node.as_node()).await, "began->applying");
    house.say(&node, sample(S::Updated)).await;
    assert_eq!(
        house.told(&node.as_node()).await,
        "began->applying finished->succeeded"
    );
}

#[tokio::test]
async fn news_with_words_that_nobody_knows_is_taken_as_the_nearest() {
    let house = House::new().await;
    let node = house.node().await;
    let policy = house.policy(&node, "demo-hello=1.1").await;
    let failed = News::Failed(Failed {
        kind: 4_711,
        ..Failed::default()
    });
    house
        .report(&node, 1, policy, &[(1, downloading()), (2, failed)])
        .await;
    assert_eq!(house.runs(&node).await[0].state.name(), "failed");
    let cancelled = News::Cancelled(Cancelled {
        cause: "a word of tomorrow".into(),
    });
    house
        .report(&node, 2, policy, &[(1, downloading()), (2, cancelled)])
        .await;
    let states: Vec<_> = house
        .runs(&node)
        .await
        .iter()
        .map(|run| run.state.name())
        .collect();
    assert!(states.contains(&"cancelled"), "{states:?}");
}

#[tokio::test]
async fn a_hundred_thousand_packages_are_taken_and_one_more_is_refused() {
    let house = House::new().await;
    let node = house.node().await;
    let package = |n: usize| AvailablePackage {
        name: format!("package-{n}"),
        architecture: "amd64".into(),
        installed_version: "1".into(),
        available_version: "2".into(),
        ..AvailablePackage::default()
    };
    let many = |count| Facts {
        available: (0..count).map(package).collect(),
        ..facts()
    };
    house.tell(&node, many(100_000)).await;
    let known = house.known(&node).await;
    let (kinds, known) = (known.conditions, known.os_update_available);
    assert_eq!(kinds[0].kind.name(), "detail_cut");
    assert!(
        kinds[0].text.starts_with("100000 packages"),
        "{}",
        kinds[0].text
    );
    assert!((400_000..=500_000).contains(&known.len()));
    let kept: Vec<serde_json::Value> = serde_json::from_str(&known).expect("whole entries");
    assert_eq!(kept[0]["name"], "package-0");
    let request = PollRequest {
        facts: Some(many(100_001)),
        ..PollRequest::default()
    };
    let refused = house.manager.poll(with(&node.credential, request)).await;
    assert_eq!(refused.expect_err("too many").code(), Code::InvalidArgument);
    assert_eq!(house.known(&node).await.os_update_available, known);
    // With fewer of them the mark goes.
    house.tell(&node, many(3)).await;
    let known = house.known(&node).await;
    assert!(known.conditions.is_empty(), "{:?}", known.conditions);
    let kept: Vec<serde_json::Value> =
        serde_json::from_str(&known.os_update_available).expect("whole entries");
    assert_eq!(kept.len(), 3);
}

/// One that tells news for ever, and then its end.
#[tokio::test]
async fn the_history_of_a_run_is_bounded_and_its_end_is_kept() {
    let house = House::new().await;
    let node = house.node().await;
    let policy = house.policy(&node, "demo-hello=1.1").await;
    let restart = || News::RebootBegun(RebootBegun {});
    let look = || News::VerifyBegun(VerifyBegun {});
    let mut events = vec![(1, downloading()), (2, began())];
    events.extend((3..=1_000).map(|n| (n, if n % 2 == 0 { look() } else { restart() })));
    house.report(&node, 1, policy, &events).await;
    let more: Vec<_> = (1_001..=1_200).map(|n| (n, restart())).collect();
    assert_eq!(
        house.report(&node, 1, policy, &more).await.acknowledged,
        1_200
    );
    let ended = [(1_201, finished()), (1_202, began())];
    house.report(&node, 1, policy, &ended).await;
    let run = &house.runs(&node).await[0];
    assert_eq!((run.state.name(), run.sequence), ("succeeded", 1_202));
    let told = house.told(&node).await;
    let told: Vec<_> = told.split(' ').collect();
    assert_eq!(told.len(), 1_001);
    assert_eq!(told[1_000], "finished->succeeded");
}

#[tokio::test]
async fn packages_that_are_no_list_are_refused() {
    let house = House::new().await;
    let node = house.node().await;
    let text = "{\"repo\":\"everything\"}";
    let said = Facts {
        packages_digest: <sha2::Sha256 as sha2::Digest>::digest(text).to_vec(),
        ..facts()
    };
    house.tell(&node, said).await;
    let request = PollRequest {
        packages: text.into(),
        ..PollRequest::default()
    };
    let refused = house.manager.poll(with(&node.credential, request)).await;
    assert_eq!(refused.expect_err("no list").code(), Code::InvalidArgument);
    assert_eq!(house.known(&node).await.packages_digest, None);
}

/// The node's clock is kept beside ours, and decides nothing.
#[tokio::test]
async fn clocks_of_the_past_and_the_future_are_kept_and_move_nothing() {
    let house = House::new().await;
    let node = house.node().await;
    let policy = house.policy(&node, "demo-hello=1.1").await;
    let years = [-62_135_596_800, 0, 253_402_300_799, i64::MAX, i64::MIN];
    let event = |(n, seconds): (usize, i64)| Event {
        sequence: u32::try_from(n + 1).expect("small"),
        node_time: Some(prost_types::Timestamp { seconds, nanos: -5 }),
        ..report(1, policy, &[(1, downloading())]).events[0].clone()
    };
    let request = ReportRequest {
        events: years.into_iter().enumerate().map(event).collect(),
        ..report(1, policy, &[])
    };
    let answer = house.manager.report(with(&node.credential, request)).await;
    assert_eq!(answer.expect("stored").into_inner().acknowledged, 5);
    let run = &house.runs(&node).await[0];
    assert_eq!(run.started_at, crate::house::NOON);
}

#[tokio::test]
async fn replayed_and_reordered_reports_make_no_other_history() {
    let house = House::new().await;
    let node = house.node().await;
    let policy = house.policy(&node, "demo-hello=1.1").await;
    let all = [
        (1, downloading()),
        (2, downloaded()),
        (3, began()),
        (4, finished()),
    ];
    for order in [[3, 2], [1, 3], [0, 3], [2, 0], [1, 1], [2, 3], [3, 0]] {
        for n in order {
            house.report(&node, 1, policy, &all[n..=n]).await;
        }
    }
    let answer = house.report(&node, 1, policy, &all).await;
    assert_eq!(answer.acknowledged, 4);
    assert_eq!(
        house.told(&node).await,
        "downloading->downloading downloaded->staged began->applying finished->succeeded"
    );
}

#[tokio::test]
async fn a_report_for_a_closed_run_is_kept_and_moves_nothing() {
    let house = House::new().await;
    let node = house.node().await;
    let policy = house.policy(&node, "demo-hello=1.1").await;
    let all = [(1, downloading()), (2, began()), (3, finished())];
    house.report(&node, 1, policy, &all).await;
    let late = house
        .report(&node, 1, policy, &[(4, began()), (5, downloading())])
        .await;
    assert_eq!(late.acknowledged, 5);
    assert_eq!(house.runs(&node).await[0].state.name(), "succeeded");
    assert_eq!(house.shown(&node).await, "Update completed");
}

#[tokio::test]
async fn an_attempt_of_another_node_is_another_attempt() {
    let house = House::new().await;
    let (one, two) = (house.nth_node(1).await, house.nth_node(2).await);
    let policy = house.policy(&one, "demo-hello=1.1").await;
    house.report(&one, 1, policy, &[(1, downloading())]).await;
    house
        .report(&two, 1, policy, &[(1, downloading()), (2, finished())])
        .await;
    assert_eq!(house.runs(&one).await[0].state.name(), "downloading");
    let begin = BeginRequest {
        attempt_id: "x".into(),
        ..BeginRequest::default()
    };
    let refused = house.manager.begin(with(&one.credential, begin)).await;
    assert_eq!(
        refused.expect_err("no attempt").code(),
        Code::InvalidArgument
    );
}

#[tokio::test]
async fn a_node_of_another_project_is_nobody_here() {
    let house = House::new().await;
    let node = house.old_node(1).await;
    let theirs = project(&house.store, "theirs").await;
    let role = [evenkeel_auth::Role::Node(theirs.uuid())];
    let token = house
        .authority
        .issue_operator("agent", &role, TimeDelta::hours(1), crate::house::NOON)
        .expect("a token");
    for guid in [node.guid.clone(), Uuid::from_u128(7).to_string()] {
        let request = evenkeel_proto::maintmgr::PlatformUpdateStatusRequest {
            host_guid: guid,
            update_status: Some(sample(S::UpToDate)),
        };
        let request = with(token.token.reveal(), request);
        let refused = house.manager.platform_update_status(request).await;
        assert_eq!(refused.expect_err("foreign").code(), Code::NotFound);
    }
}

/// A house that answers a caller twenty times, and then once a second.
async fn house_of_few_calls() -> House {
    let settings = Settings {
        flood: FloodSettings {
            calls_per_second: 1,
            burst: 20,
        },
        ..Settings::default()
    };
    House::with(settings).await
}

/// How many calls of one caller such a house answers since an instant, however slow the machine is.
fn few_calls_since(begun: Instant) -> usize {
    20 + usize::try_from(begun.elapsed().as_secs()).expect("a short time") + 1
}

/// A caller that names somebody else with each call would have a new allowance with each.
#[tokio::test]
async fn a_refused_node_that_floods_is_limited_whatever_it_calls_itself() {
    let house = house_of_few_calls().await;
    let known = house.old_node(1).await;
    house.say(&known, sample(S::UpToDate)).await;
    let (begun, mut codes) = (Instant::now(), Vec::new());
    for n in 0..100 {
        let guid = match n % 10 {
            0 => format!("nobody {n}"),
            _ => Uuid::from_u128(n).to_string(),
        };
        let answer = house.say_at(&house.manager, &guid, sample(S::UpToDate));
        codes.push(answer.await.expect_err("nobody").code());
    }
    let heard = codes
        .iter()
        .filter(|code| **code != Code::ResourceExhausted);
    assert!(heard.count() <= few_calls_since(begun), "{codes:?}");
    assert!(codes.contains(&Code::NotFound), "{codes:?}");
    // One that there is, with the very same token, is undisturbed.
    house.say(&known, sample(S::UpToDate)).await;
}

/// Any agent's token of the project may name any of its nodes.
#[tokio::test]
async fn who_floods_in_anothers_name_does_not_shut_its_own_agent_out() {
    let house = house_of_few_calls().await;
    let victim = house.old_node(1).await;
    let role = [evenkeel_auth::Role::Node(house.tenant.uuid())];
    let say = async |agent: &str| {
        let hour = TimeDelta::hours(1);
        let issued = house
            .authority
            .issue_operator(agent, &role, hour, house.time());
        let request = evenkeel_proto::maintmgr::PlatformUpdateStatusRequest {
            host_guid: victim.guid.clone(),
            update_status: Some(sample(S::UpToDate)),
        };
        let request = with(issued.expect("a token").token.reveal(), request);
        house.manager.platform_update_status(request).await
    };
    say("its own").await.expect("an answer");
    let (begun, mut heard) = (Instant::now(), 0);
    for _ in 0..100 {
        heard += usize::from(say("another").await.is_ok());
    }
    assert!(heard <= few_calls_since(begun), "{heard}");
    for _ in 0..10 {
        say("its own").await.expect("it is undisturbed");
    }
}

#[tokio::test]
async fn who_proves_nothing_is_limited_as_well() {
    let house = house_of_few_calls().await;
    let node = house.node().await;
    let call = || house.manager.poll(with("forged", PollRequest::default()));
    let begun = Instant::now();
    let answers = join_all((0..100).map(|_| call())).await;
    let codes = answers
        .into_iter()
        .map(|answer| answer.expect_err("forged").code());
    let (flooding, heard): (Vec<_>, Vec<_>) =
        codes.partition(|code| *code == Code::ResourceExhausted);
    assert!(
        heard.iter().all(|code| *code == Code::Unauthenticated),
        "{heard:?}"
    );
    assert!(heard.len() <= few_calls_since(begun), "{flooding:?}");
    assert_eq!(act(&house.poll(&node).await), "idle");
}

/// A machine that may come in takes nothing of the allowance of its address: a roll-out goes on.
#[tokio::test]
async fn who_makes_join_tokens_up_is_limited_and_a_roll_out_is_not() {
    let house = house_of_few_calls().await;
    let token = house.join_token(false, true).await;
    let arrivals = join_all((1..=50).map(|machine| house.enroll(&token, machine, 1)));
    for arrived in arrivals.await {
        arrived.expect("it may come in");
    }
    let begun = Instant::now();
    let made_up = evenkeel_auth::JoinToken::generate(None).expect("randomness");
    let made_up = made_up.text().reveal().to_owned();
    let tries = join_all((1..=100).map(|machine| house.enroll(&made_up, machine, 1))).await;
    let refused = tries.into_iter().map(|tried| tried.expect_err("made up"));
    let (flooding, heard): (Vec<_>, Vec<_>) =
        refused.partition(|refused| refused.code() == Code::ResourceExhausted);
    let is_denied = |refused: &tonic::Status| refused.code() == Code::PermissionDenied;
    assert!(heard.iter().all(is_denied), "{heard:?}");
    // As many as are let in at once may be refused together.
    let most = few_calls_since(begun) + 4;
    assert!(heard.len() <= most, "{}", heard.len());
    let hint = |refused: &tonic::Status| refused.metadata().contains_key("grpc-retry-pushback-ms");
    assert!(flooding.iter().all(hint), "{flooding:?}");
}

#[tokio::test]
async fn a_flood_from_one_node_is_limited_and_the_rest_is_undisturbed() {
    let house = house_of_few_calls().await;
    let (loud, quiet, old) = (
        house.nth_node(1).await,
        house.nth_node(2).await,
        house.old_node(3).await,
    );
    let poll = || {
        house
            .manager
            .poll(with(&loud.credential, PollRequest::default()))
    };
    let begun = Instant::now();
    let answers = join_all((0..100).map(|_| poll())).await;
    let refused = answers.iter().filter_map(|answer| answer.as_ref().err());
    let codes: Vec<_> = refused.map(tonic::Status::code).collect();
    assert!(100 - codes.len() <= few_calls_since(begun), "{codes:?}");
    let flooding = |code: &Code| *code == Code::ResourceExhausted;
    assert!(codes.iter().all(flooding), "{codes:?}");
    assert_eq!(act(&house.poll(&quiet).await), "idle");
    house.say(&old, sample(S::UpToDate)).await;

    let begun = Instant::now();
    let says = (0..100).map(|_| house.say_at(&house.manager, &old.guid, sample(S::UpToDate)));
    let refused = join_all(says).await.into_iter().filter_map(Result::err);
    let codes: Vec<_> = refused.map(|status| status.code()).collect();
    assert!(100 - codes.len() <= few_calls_since(begun), "{codes:?}");
    assert!(codes.iter().all(flooding), "{codes:?}");
    assert_eq!(act(&house.poll(&quiet).await), "idle");
}
