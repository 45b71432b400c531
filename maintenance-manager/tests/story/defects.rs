//! The ancestor's defects M1 to M25 (southbound section 1.12), those that show only with a database and a door. The pure
//! ones are told in the domain, in `eim/tests/defects.rs`.

use std::time::Duration;

use evenkeel_domain::decide::Reason;
use evenkeel_domain::filter::Resource;
use evenkeel_domain::id::SingleScheduleId;
use evenkeel_domain::policy::Wish;
use evenkeel_domain::tenant::TenantId;
use evenkeel_kit::Lifecycle;
use evenkeel_kit::clock::Clock;
use evenkeel_maintenance_manager::Settings;
use evenkeel_proto::maintmgr::PlatformUpdateStatusRequest;
use evenkeel_proto::maintmgr::maintmgr_service_server::MaintmgrService;
use evenkeel_proto::maintmgr::update_status::StatusType as S;
use evenkeel_store::decisions::{self, Horizon, Reading};
use evenkeel_store::listing::{self, Listing};
use evenkeel_store::nodes::{self, Machine};
use evenkeel_store::{contacts, hosts, schedules};
use futures_util::future::join_all;
use tonic::Code;
use uuid::Uuid;

use crate::fleet::{OldNode, image, naming, sample, window};
use crate::house::{House, with};

/// M5: an end that did not fit the plan was answered OK and dropped: unknown image, another profile, the same image once
/// more, and every change of a kernel's command line.
#[tokio::test]
async fn m5_an_end_that_fits_no_plan_is_stored_all_the_same() {
    let house = House::new().await;
    let old = house.catalogue("3.0.1").await;
    for (n, profile, version) in [
        (1, "edge", "9.9.9"),
        (2, "other", "3.0.1"),
        (3, "edge", "3.0.1"),
        (4, "", ""),
    ] {
        let node = house.old_node_on(n, old).await;
        for kind in [S::UpToDate, S::Started] {
            house.say(&node, sample(kind)).await;
        }
        house.say(&node, naming(S::Updated, profile, version)).await;
        let told = house.told(&node.as_node()).await;
        assert_eq!(
            told, "began->applying finished->succeeded",
            "{profile} {version}"
        );
        let runs = house.state(node.instance).await.os;
        assert_eq!(runs, old, "what it runs is moved by a proof only");
    }
}

/// M6: an outcome that could not be written was answered OK, and so lost for ever.
#[tokio::test]
async fn m6_an_outcome_that_was_not_stored_is_never_answered_ok() {
    let house = House::new().await;
    let node = house.old_node(1).await;
    house.say(&node, sample(S::UpToDate)).await;
    let (away, database) = house.replica().await;
    database.close().await;
    let refused = house.say_at(&away, &node.guid, sample(S::Updated)).await;
    assert_eq!(refused.expect_err("not stored").code(), Code::Unavailable);
    assert!(house.runs(&node.as_node()).await.is_empty());
    // The agent keeps an outcome until it is answered OK.
    house.say(&node, sample(S::Updated)).await;
    assert_eq!(house.told(&node.as_node()).await, "finished->succeeded");
}

/// M7: the instance was written before the run, and what went wrong between them was never mended.
#[tokio::test]
async fn m7_the_run_and_what_the_instance_shows_are_written_together() {
    let house = House::new().await;
    let node = house.old_node(1).await;
    for kind in [S::UpToDate, S::Started] {
        house.say(&node, sample(kind)).await;
    }
    assert_eq!(house.silent_for(node.instance, 60).await, 1);
    // The host is written last, and somebody holds it: all the rest is written before and must not stay.
    let (impatient, _database) = house.impatient_replica().await;
    let blocker = house.tx().await;
    hosts::lock(&blocker, node.host).await.expect("a lock");
    let refused = house
        .say_at(&impatient, &node.guid, sample(S::Updated))
        .await;
    assert_eq!(refused.expect_err("not written").code(), Code::Unavailable);
    drop(blocker);
    assert_eq!(house.told(&node.as_node()).await, "began->applying");
    assert_eq!(house.shown(&node.as_node()).await, "Updating");

    house.say(&node, sample(S::Updated)).await;
    let told = house.told(&node.as_node()).await;
    assert_eq!(told, "began->applying finished->succeeded");
    assert_eq!(house.shown(&node.as_node()).await, "Update completed");
}

/// M8: what could be updated was erased at every change of the status, or written at every poll.
#[tokio::test]
async fn m8_what_could_be_updated_does_not_flap() {
    let house = House::new().await;
    let old = house.catalogue("3.0.1").await;
    house.catalogue("3.0.2").await;
    let node = house.old_node_on(1, old).await;
    let mut told = Vec::new();
    for kind in [
        S::UpToDate,
        S::UpToDate,
        S::Downloading,
        S::Downloaded,
        S::Started,
    ] {
        house.say(&node, sample(kind)).await;
        told.push(house.state(node.instance).await.os_update_available);
    }
    assert_eq!(told, ["edge 3.0.2"; 5]);

    let packages = house.old_node(2).await;
    let list = r#"[{"name":"curl","available_version":"8.1","architecture":"amd64"}]"#;
    for kind in [S::UpToDate, S::Started, S::Updated, S::UpToDate] {
        let status = evenkeel_proto::maintmgr::UpdateStatus {
            os_update_available: list.into(),
            ..sample(kind)
        };
        house.say(&packages, status).await;
        let kept = house.state(packages.instance).await.os_update_available;
        assert_eq!(kept, list, "{kind:?}");
    }
    house.say(&packages, sample(S::UpToDate)).await;
    let kept = house.state(packages.instance).await.os_update_available;
    assert_eq!(kept, "", "an empty list says that there is nothing");
}

/// M11: a report that was sent twice at once made two runs.
#[tokio::test]
async fn m11_the_same_end_a_hundred_times_at_once_at_two_replicas_is_one_run() {
    let house = House::new().await;
    let node = house.old_node(1).await;
    house.say(&node, sample(S::UpToDate)).await;
    let (other, _database) = house.replica().await;
    let calls = (0..100).map(|n| {
        let manager = if n % 2 == 0 { &house.manager } else { &other };
        house.say_at(manager, &node.guid, sample(S::Updated))
    });
    for answer in join_all(calls).await {
        answer.expect("stored");
    }
    assert_eq!(house.told(&node.as_node()).await, "finished->succeeded");
}

/// M16: schedules that could not be read were answered as none, and the node dropped its jobs.
#[tokio::test]
async fn m16_windows_that_cannot_be_read_are_an_error_and_not_none() {
    let house = House::new().await;
    let node = house.old_node(1).await;
    house.policy(&node.as_node(), "curl").await;
    house.window(node.host, 10, 60).await;
    assert!(window(&house.say(&node, sample(S::UpToDate)).await).is_some());
    let (away, database) = house.replica().await;
    database.close().await;
    let answer = house.say_at(&away, &node.guid, sample(S::UpToDate)).await;
    assert_eq!(answer.expect_err("no answer").code(), Code::Unavailable);
}

/// M17: a cache of schedules that was filled anew lost some, or brought back old ones.
#[tokio::test]
async fn m17_what_was_scheduled_is_in_the_next_answer_of_every_replica() {
    let house = House::new().await;
    let node = house.old_node(1).await;
    house.policy(&node.as_node(), "curl").await;
    let (other, _database) = house.replica().await;
    let asks = async |wanted: bool| {
        for manager in [&house.manager, &other] {
            let answer = house.say_at(manager, &node.guid, sample(S::UpToDate)).await;
            let found = window(&answer.expect("an answer")).is_some();
            assert_eq!(found, wanted);
        }
    };
    asks(false).await;
    house.window(node.host, 10, 60).await;
    asks(true).await;
    let tx = house.tx().await;
    let all = Listing {
        resource: Resource::SingleSchedule,
        filter: None,
        within: None,
        order: Vec::new(),
    };
    let all = listing::page(&tx, &all, &listing::From::Offset(0), 100).await;
    for bits in all.expect("a list").ids {
        let id = SingleScheduleId::from_bits(bits);
        schedules::delete(&tx, id).await.expect("removed");
    }
    tx.commit().await.expect("committed");
    asks(false).await;
}

/// M18: a wish that fitted no node made all its polls fail, after its status was written.
#[tokio::test]
async fn m18_a_wish_that_does_not_fit_is_a_condition_and_no_error() {
    let house = House::new().await;
    let old = house.catalogue("3.0.1").await;
    let foreign = house.catalogue_of("other", "3.0.2").await;
    let node = house.old_node_on(1, old).await;
    let policy = house.image_policy(foreign).await;
    house.assign_to(node.instance, policy).await;
    house.window(node.host, 0, 60).await;
    let answer = house.say(&node, sample(S::UpToDate)).await;
    assert_eq!((image(&answer), window(&answer)), ("", None));
    let known = house.state(node.instance).await.conditions;
    assert_eq!(known[0].kind.name(), "policy_does_not_fit");
    assert!(
        known[0].text.contains("another profile"),
        "{}",
        known[0].text
    );
    // It goes with its cause.
    let latest = house.make(Wish::Latest).await;
    house.assign_to(node.instance, latest).await;
    house.say(&node, sample(S::UpToDate)).await;
    assert!(house.conditions(node.instance).await.is_empty());
}

/// M19: a header outranked the token, so any node could speak for any project.
#[tokio::test]
async fn m19_no_header_says_more_than_the_token() {
    let house = House::new().await;
    let theirs = crate::house::project(&house.store, "theirs").await;
    let node = house.old_node(1).await;
    let say = async |tenant: TenantId, header: TenantId| {
        let role = [evenkeel_auth::Role::Node(tenant.uuid())];
        let hour = chrono::TimeDelta::hours(1);
        let now = house.clock.now();
        let token = house.authority.issue_operator("agent", &role, hour, now);
        let mut request = with(
            token.expect("a token").token.reveal(),
            PlatformUpdateStatusRequest {
                host_guid: node.guid.clone(),
                update_status: Some(sample(S::UpToDate)),
            },
        );
        let header = header.to_string().parse().expect("a header");
        request.metadata_mut().insert("activeprojectid", header);
        let answer = house.manager.platform_update_status(request).await;
        answer.map_or_else(|refused| refused.code(), |_| Code::Ok)
    };
    assert_eq!(
        say(house.tenant, theirs).await,
        Code::Ok,
        "the header is not heard"
    );
    assert_eq!(say(theirs, house.tenant).await, Code::NotFound);
}

/// M20: forged tokens were accepted, and a token was not bound to its host.
#[tokio::test]
async fn m20_a_token_is_signed_by_us_and_speaks_for_its_host_only() {
    let house = House::new().await;
    let (mine, other) = (house.node().await, house.old_node(1).await);
    let request = |token: &str| {
        let request = PlatformUpdateStatusRequest {
            host_guid: other.guid.clone(),
            update_status: Some(sample(S::UpToDate)),
        };
        house.manager.platform_update_status(with(token, request))
    };
    let bound = request(&mine.credential).await;
    assert_eq!(
        bound.expect_err("another host").code(),
        Code::PermissionDenied
    );
    // {"alg":"HS256"} and {"alg":"none"}, with the claims of a good token.
    let claims = mine.credential.split('.').nth(1).expect("claims");
    for header in ["eyJhbGciOiJIUzI1NiJ9", "eyJhbGciOiJub25lIn0"] {
        for signature in ["", "AAAA"] {
            let forged = request(&format!("{header}.{claims}.{signature}")).await;
            assert_eq!(forged.expect_err("forged").code(), Code::Unauthenticated);
        }
    }
}

/// M21: whether an instance was provisioned was read from two fields that people see, with the wrong "and" between them.
#[tokio::test]
async fn m21_a_node_that_has_not_spoken_is_not_provisioned_whatever_is_shown() {
    let house = House::new().await;
    let node = house.old_node(1).await;
    house.policy(&node.as_node(), "curl").await;
    house.window(node.host, 0, 60).await;
    let because = async || {
        let tx = house.tx().await;
        let (host, known) = nodes::read(&tx, Machine::Host(node.host))
            .await
            .expect("known");
        let now = house.clock.now();
        let horizon = Horizon::default();
        let world = decisions::world(&tx, &host, &known, &horizon, Reading::Look(now));
        world.await.expect("a world").decide(now).because
    };
    assert_eq!(because().await, Reason::NotProvisioned);
    // A sign of life of another agent is none of this one.
    house.beat(&node.guid).await.expect("heard");
    assert_eq!(because().await, Reason::NotProvisioned);
    house.say(&node, sample(S::UpToDate)).await;
    assert!(matches!(because().await, Reason::WindowOpen { .. }));
}

/// M22: a stop cut off what was being written.
#[tokio::test]
async fn m22_a_stop_waits_for_what_is_to_be_written() {
    let house = House::at_rest(Settings::default()).await;
    let node = house.old_node(1).await;
    let life = Lifecycle::new();
    house.manager.start_loops(&life);
    house.say(&node, sample(S::UpToDate)).await;
    life.stop();
    let exit = life.run_until_stopped(Duration::from_secs(20)).await;
    assert_eq!(
        format!("{exit:?}"),
        format!("{:?}", std::process::ExitCode::SUCCESS)
    );
    let tx = house.tx().await;
    let heard = contacts::last(&tx, node.instance).await.expect("an answer");
    assert_eq!(heard, Some(house.clock.now()));
}

/// M23: a UUID in upper case found no host, or a stale one.
#[tokio::test]
async fn m23_a_uuid_is_the_same_in_either_case() {
    let house = House::new().await;
    let node = house.old_node(1).await;
    let shout = OldNode {
        guid: node.guid.to_uppercase(),
        ..house.old_node(2).await
    };
    house.say(&node, sample(S::UpToDate)).await;
    house.say(&shout, sample(S::Started)).await;
    house.say(&node, sample(S::Updated)).await;
    assert_eq!(
        house.told(&node.as_node()).await,
        "began->applying finished->succeeded"
    );
    house.beat(&shout.guid).await.expect("heard");
    let unknown = Uuid::from_u128(7).to_string().to_uppercase();
    let refused = house
        .say_at(&house.manager, &unknown, sample(S::UpToDate))
        .await;
    assert_eq!(refused.expect_err("unknown").code(), Code::NotFound);
}

/// M25: a list or a detail that was too large made the write fail, and the outcome was lost with it.
#[tokio::test]
async fn m25_what_is_too_large_is_cut_and_the_outcome_kept() {
    let house = House::new().await;
    let node = house.old_node(1).await;
    house.say(&node, sample(S::UpToDate)).await;
    let status = evenkeel_proto::maintmgr::UpdateStatus {
        status_detail: "x\0".repeat(5 << 20),
        os_update_available: "y".repeat(600_000),
        ..sample(S::Failed)
    };
    house.say(&node, status).await;
    let run = &house.runs(&node.as_node()).await[0];
    assert_eq!(run.state.name(), "failed");
    assert!(run.log.len() <= 100_000);
    let kinds = house.conditions(node.instance).await;
    assert_eq!(
        kinds.iter().map(|kind| kind.name()).collect::<Vec<_>>(),
        ["detail_cut"]
    );
    assert_eq!(house.state(node.instance).await.os_update_available, "");
}
