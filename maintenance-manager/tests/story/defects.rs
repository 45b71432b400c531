//! Defects of EIM that show only with a database and a server. The tests of the others are in the
//! domain, in `eim/tests/defects.rs`.

use std::time::Duration;

use evenkeel_domain::decide::Reason;
use evenkeel_domain::filter::Resource;
use evenkeel_domain::id::SingleScheduleId;
use evenkeel_domain::policy::DesiredUpdate;
use evenkeel_domain::tenant::TenantId;
use evenkeel_kit::Lifecycle;
use evenkeel_kit::chain::chain;
use evenkeel_kit::clock::Clock;
use evenkeel_maintenance_manager::Settings;
use evenkeel_proto::agent::PollRequest;
use evenkeel_proto::agent::agent_service_server::AgentService as _;
use evenkeel_proto::maintmgr::PlatformUpdateStatusRequest;
use evenkeel_proto::maintmgr::maintmgr_service_server::MaintmgrService;
use evenkeel_proto::maintmgr::update_status::StatusType as S;
use evenkeel_store::decisions::{self, PlanningLimits, ReadMode};
use evenkeel_store::listing::{self, Listing};
use evenkeel_store::nodes::{self, MachineKey};
use evenkeel_store::{Store, StoreOptions, contacts, hosts, schedules};
use futures_util::future::join_all;
use tonic::Code;
use uuid::Uuid;

use crate::fleet::{EimTestNode, image, sample, sample_with_image, window};
use crate::long_poll::{TERMINATE_CONNECTIONS_SQL, with_timeout};
use crate::test_server::{
    TestServer, begin_request, downloading, facts, report_request, with_credential,
};

/// EIM answered OK to an end that did not fit the plan, and dropped it: an unknown image, another
/// profile, the same image again, and every change of the kernel command line.
#[tokio::test]
async fn an_end_that_fits_no_plan_is_stored() {
    let server = TestServer::new().await;
    let old = server.add_image("3.0.1").await;
    for (n, profile, version) in
        [(1, "edge", "9.9.9"), (2, "other", "3.0.1"), (3, "edge", "3.0.1"), (4, "", "")]
    {
        let node = server.eim_node_with_os(n, old).await;
        for kind in [S::UpToDate, S::Started] {
            server.send_status(&node, sample(kind)).await;
        }
        server.send_status(&node, sample_with_image(S::Updated, profile, version)).await;
        let history = server.run_history(&node.as_node()).await;
        assert_eq!(history, "began->applying finished->succeeded", "{profile} {version}");
        let runs = server.state(node.instance).await.os;
        assert_eq!(runs, old, "only a proof changes the running image");
    }
}

/// EIM answered OK to an outcome that it could not write, so the outcome was lost.
#[tokio::test]
async fn an_outcome_that_was_not_stored_is_never_answered_ok() {
    let server = TestServer::new().await;
    let node = server.eim_node(1).await;
    server.send_status(&node, sample(S::UpToDate)).await;
    let (away, database) = server.replica().await;
    database.close().await;
    let refused = server.send_status_to(&away, &node.guid, sample(S::Updated)).await;
    assert_eq!(refused.expect_err("not stored").code(), Code::Unavailable);
    assert!(server.runs(&node.as_node()).await.is_empty());
    // The agent keeps an outcome until it is answered OK.
    server.send_status(&node, sample(S::Updated)).await;
    assert_eq!(server.run_history(&node.as_node()).await, "finished->succeeded");
}

/// EIM wrote the instance before the run, and never repaired a failure between the two.
#[tokio::test]
async fn the_run_and_the_instance_status_are_written_together() {
    let server = TestServer::new().await;
    let node = server.eim_node(1).await;
    for kind in [S::UpToDate, S::Started] {
        server.send_status(&node, sample(kind)).await;
    }
    assert_eq!(server.silent_for(node.instance, 60).await, 1);
    // The host is written last and is locked here: nothing of the transaction may stay.
    let (impatient, _database) = server.replica_with_short_lock_timeout().await;
    let blocker = server.tx().await;
    hosts::lock(&blocker, node.host).await.expect("a lock");
    let refused = server.send_status_to(&impatient, &node.guid, sample(S::Updated)).await;
    assert_eq!(refused.expect_err("not written").code(), Code::Unavailable);
    drop(blocker);
    assert_eq!(server.run_history(&node.as_node()).await, "began->applying");
    assert_eq!(server.update_status(&node.as_node()).await, "Updating");

    server.send_status(&node, sample(S::Updated)).await;
    let history = server.run_history(&node.as_node()).await;
    assert_eq!(history, "began->applying finished->succeeded");
    assert_eq!(server.update_status(&node.as_node()).await, "Update completed");
}

/// EIM erased the available update at every change of the status, or wrote it at every poll.
#[tokio::test]
async fn the_available_update_does_not_flap() {
    let server = TestServer::new().await;
    let old = server.add_image("3.0.1").await;
    server.add_image("3.0.2").await;
    let node = server.eim_node_with_os(1, old).await;
    let mut values = Vec::new();
    for kind in [S::UpToDate, S::UpToDate, S::Downloading, S::Downloaded, S::Started] {
        server.send_status(&node, sample(kind)).await;
        values.push(server.state(node.instance).await.os_update_available);
    }
    assert_eq!(values, ["edge 3.0.2"; 5]);

    let packages = server.eim_node(2).await;
    let list = r#"[{"name":"curl","available_version":"8.1","architecture":"amd64"}]"#;
    for kind in [S::UpToDate, S::Started, S::Updated, S::UpToDate] {
        let status = evenkeel_proto::maintmgr::UpdateStatus {
            os_update_available: list.into(),
            ..sample(kind)
        };
        server.send_status(&packages, status).await;
        let available = server.state(packages.instance).await.os_update_available;
        assert_eq!(available, list, "{kind:?}");
    }
    server.send_status(&packages, sample(S::UpToDate)).await;
    let available = server.state(packages.instance).await.os_update_available;
    assert_eq!(available, "", "an empty list means that nothing is available");
}

/// EIM created two runs from a report that was sent twice at the same time.
#[tokio::test]
async fn the_same_end_a_hundred_times_at_two_replicas_is_one_run() {
    let server = TestServer::new().await;
    let node = server.eim_node(1).await;
    server.send_status(&node, sample(S::UpToDate)).await;
    let (other, _database) = server.replica().await;
    let calls = (0..100).map(|n| {
        let manager = if n % 2 == 0 { &server.manager } else { &other };
        server.send_status_to(manager, &node.guid, sample(S::Updated))
    });
    for answer in join_all(calls).await {
        answer.expect("stored");
    }
    assert_eq!(server.run_history(&node.as_node()).await, "finished->succeeded");
}

/// EIM answered unreadable schedules as an empty list, and the node dropped its jobs.
#[tokio::test]
async fn unreadable_windows_are_an_error_and_not_an_empty_list() {
    let server = TestServer::new().await;
    let node = server.eim_node(1).await;
    server.policy(&node.as_node(), "curl").await;
    server.window(node.host, 10, 60).await;
    assert!(window(&server.send_status(&node, sample(S::UpToDate)).await).is_some());
    let (away, database) = server.replica().await;
    database.close().await;
    let answer = server.send_status_to(&away, &node.guid, sample(S::UpToDate)).await;
    assert_eq!(answer.expect_err("no answer").code(), Code::Unavailable);
}

/// As after a failover to a standby, or while a managed disk is full: nodes try again.
#[tokio::test]
async fn a_read_only_database_is_an_outage_for_nodes() {
    let (server, node, policy) = TestServer::with_policy("demo-hello=1.1").await;
    let eim = server.eim_node(2).await;
    let one = StoreOptions { max_connections: 1, ..StoreOptions::default() };
    let inside = Store::connect(&server.url, one).await.expect("the database");
    let demote = "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_read_only = on', \
                  current_database()); END $$";
    for sql in [demote, TERMINATE_CONNECTIONS_SQL] {
        inside.execute_unprepared(sql).await.expect("done");
    }
    inside.close().await;
    let is_read_only = async {
        loop {
            let error = server.store.ping().await.err();
            if error.is_some_and(|error| chain(&error).to_string().contains("read-only")) {
                return;
            }
        }
    };
    with_timeout(is_read_only).await;

    let credential = node.credential.as_str();
    let changed = PollRequest { facts: Some(facts()), ..PollRequest::default() };
    let polled = server.manager.poll(with_credential(credential, changed)).await.map(drop);
    let report = report_request(1, policy, &[(1, downloading())]);
    let reported = server.manager.report(with_credential(credential, report)).await.map(drop);
    let request = begin_request(1, &policy.to_string(), 0);
    let permitted = server.manager.begin(with_credential(credential, request)).await.map(drop);
    let status = server.send_status_to(&server.manager, &eim.guid, sample(S::Started)).await;
    for answer in [polled, reported, permitted, status.map(drop)] {
        assert_eq!(answer.expect_err("no answer").code(), Code::Unavailable);
    }
}

/// EIM's cache of schedules lost some of them when it was refilled, or brought old ones back.
#[tokio::test]
async fn a_schedule_is_in_the_next_answer_of_every_replica() {
    let server = TestServer::new().await;
    let node = server.eim_node(1).await;
    server.policy(&node.as_node(), "curl").await;
    let (other, _database) = server.replica().await;
    let check = async |expected: bool| {
        for manager in [&server.manager, &other] {
            let answer = server.send_status_to(manager, &node.guid, sample(S::UpToDate)).await;
            let actual = window(&answer.expect("an answer")).is_some();
            assert_eq!(actual, expected);
        }
    };
    check(false).await;
    server.window(node.host, 10, 60).await;
    check(true).await;
    let tx = server.tx().await;
    let all = Listing {
        resource: Resource::SingleSchedule,
        filter: None,
        within: None,
        order: Vec::new(),
    };
    let all = listing::page(&tx, &all, &listing::PageStart::Offset(0), 100).await;
    for bits in all.expect("a list").ids {
        let id = SingleScheduleId::from_bits(bits);
        schedules::delete(&tx, id).await.expect("removed");
    }
    tx.commit().await.expect("committed");
    check(false).await;
}

/// EIM failed all polls of a node with an unsuitable policy, after it had written the status.
#[tokio::test]
async fn a_policy_that_does_not_fit_is_a_condition_and_no_error() {
    let server = TestServer::new().await;
    let old = server.add_image("3.0.1").await;
    let foreign = server.add_image_of_profile("other", "3.0.2").await;
    let node = server.eim_node_with_os(1, old).await;
    let policy = server.image_policy(foreign).await;
    server.assign_to(node.instance, policy).await;
    server.window(node.host, 0, 60).await;
    let answer = server.send_status(&node, sample(S::UpToDate)).await;
    assert_eq!((image(&answer), window(&answer)), ("", None));
    let conditions = server.state(node.instance).await.conditions;
    assert_eq!(conditions[0].kind.name(), "policy_does_not_fit");
    assert!(conditions[0].text.contains("another profile"), "{}", conditions[0].text);
    // The condition is cleared with its cause.
    let latest = server.create_policy_for(DesiredUpdate::Latest).await;
    server.assign_to(node.instance, latest).await;
    server.send_status(&node, sample(S::UpToDate)).await;
    assert!(server.conditions(node.instance).await.is_empty());
}

/// In EIM a header overrode the token, so any node could act for any project.
#[tokio::test]
async fn no_header_overrides_the_token() {
    let server = TestServer::new().await;
    let theirs = server.create_project("theirs").await;
    let node = server.eim_node(1).await;
    let say = async |tenant: TenantId, header: TenantId| {
        let mut request = with_credential(
            &server.token("agent", &[evenkeel_auth::Role::Node(tenant.uuid())]),
            PlatformUpdateStatusRequest {
                host_guid: node.guid.clone(),
                update_status: Some(sample(S::UpToDate)),
            },
        );
        let header = header.to_string().parse().expect("a header");
        request.metadata_mut().insert("activeprojectid", header);
        let answer = server.manager.platform_update_status(request).await;
        answer.map_or_else(|refused| refused.code(), |_| Code::Ok)
    };
    assert_eq!(say(server.tenant, theirs).await, Code::Ok, "the header is ignored");
    assert_eq!(say(theirs, server.tenant).await, Code::NotFound);
}

/// EIM accepted forged tokens, and did not bind a token to its host.
#[tokio::test]
async fn a_token_is_signed_by_us_and_valid_for_its_host_only() {
    let server = TestServer::new().await;
    let (mine, other) = (server.node().await, server.eim_node(1).await);
    let request = |token: &str| {
        let request = PlatformUpdateStatusRequest {
            host_guid: other.guid.clone(),
            update_status: Some(sample(S::UpToDate)),
        };
        server.manager.platform_update_status(with_credential(token, request))
    };
    let bound = request(&server.host_token(mine.host)).await;
    assert_eq!(bound.expect_err("another host").code(), Code::PermissionDenied);
    // {"alg":"HS256"} and {"alg":"none"}, with the claims of a good token.
    let claims = mine.credential.split('.').nth(1).expect("claims");
    for header in ["eyJhbGciOiJIUzI1NiJ9", "eyJhbGciOiJub25lIn0"] {
        for signature in ["", "AAAA"] {
            let forged = request(&format!("{header}.{claims}.{signature}")).await;
            assert_eq!(forged.expect_err("forged").code(), Code::Unauthenticated);
        }
    }
}

/// EIM derived "provisioned" from two display fields, combined with the wrong "and".
#[tokio::test]
async fn a_node_that_has_not_reported_is_not_provisioned() {
    let server = TestServer::new().await;
    let node = server.eim_node(1).await;
    server.policy(&node.as_node(), "curl").await;
    server.window(node.host, 0, 60).await;
    let because = async || {
        let tx = server.tx().await;
        let (host, state) =
            nodes::find_with_host(&tx, MachineKey::Host(node.host)).await.expect("known");
        let now = server.clock.now();
        let limits = PlanningLimits::default();
        let input =
            decisions::load_decision_input(&tx, &host, &state, &limits, ReadMode::Preview(now));
        input.await.expect("an input").decide(now).reason
    };
    assert_eq!(because().await, Reason::NotProvisioned);
    // A heartbeat comes from another agent and is no report of the update agent.
    server.send_heartbeat(&node.guid).await.expect("heard");
    assert_eq!(because().await, Reason::NotProvisioned);
    server.send_status(&node, sample(S::UpToDate)).await;
    assert!(matches!(because().await, Reason::WindowOpen { .. }));
}

/// EIM cut off pending writes when it stopped.
#[tokio::test]
async fn a_stop_waits_for_pending_writes() {
    let server = TestServer::without_log_follower(Settings::default()).await;
    let node = server.eim_node(1).await;
    let life = Lifecycle::new();
    server.manager.start_tasks(&life);
    server.send_status(&node, sample(S::UpToDate)).await;
    life.stop();
    let exit = life.run_until_stopped(Duration::from_secs(20)).await;
    assert_eq!(format!("{exit:?}"), format!("{:?}", std::process::ExitCode::SUCCESS));
    let tx = server.tx().await;
    let heard = contacts::last_contact(&tx, node.instance).await.expect("an answer");
    assert_eq!(heard, Some(server.clock.now()));
}

/// EIM found no host, or a stale one, for a UUID in upper case.
#[tokio::test]
async fn a_uuid_is_the_same_in_either_case() {
    let server = TestServer::new().await;
    let node = server.eim_node(1).await;
    let shout = EimTestNode { guid: node.guid.to_uppercase(), ..server.eim_node(2).await };
    server.send_status(&node, sample(S::UpToDate)).await;
    server.send_status(&shout, sample(S::Started)).await;
    server.send_status(&node, sample(S::Updated)).await;
    assert_eq!(server.run_history(&node.as_node()).await, "began->applying finished->succeeded");
    server.send_heartbeat(&shout.guid).await.expect("heard");
    let unknown = Uuid::from_u128(7).to_string().to_uppercase();
    let refused = server.send_status_to(&server.manager, &unknown, sample(S::UpToDate)).await;
    assert_eq!(refused.expect_err("unknown").code(), Code::NotFound);
}

/// In EIM an oversized list or detail made the write fail, and the outcome was lost with it.
#[tokio::test]
async fn an_oversized_report_is_cut_and_its_outcome_is_stored() {
    let server = TestServer::new().await;
    let node = server.eim_node(1).await;
    server.send_status(&node, sample(S::UpToDate)).await;
    let status = evenkeel_proto::maintmgr::UpdateStatus {
        status_detail: "x\0".repeat(5 << 20),
        os_update_available: "y".repeat(600_000),
        ..sample(S::Failed)
    };
    server.send_status(&node, status).await;
    let run = &server.runs(&node.as_node()).await[0];
    assert_eq!(run.state.name(), "failed");
    assert!(run.log.len() <= 100_000);
    let kinds = server.conditions(node.instance).await;
    assert_eq!(kinds.iter().map(|kind| kind.name()).collect::<Vec<_>>(), ["detail_cut"]);
    let available = server.state(node.instance).await.os_update_available;
    assert!(available.starts_with("yyy") && available.len() <= 500_000);

    let package = |n: usize| format!(r#"{{"name":"package-{n}","available_version":"2"}}"#);
    let list = |count| format!("[{}]", (0..count).map(package).collect::<Vec<_>>().join(", "));
    let report = |count| evenkeel_proto::maintmgr::UpdateStatus {
        os_update_available: list(count),
        ..sample(S::UpToDate)
    };
    server.send_status(&node, report(20_000)).await;
    let state = server.state(node.instance).await;
    let entries: Vec<serde_json::Value> =
        serde_json::from_str(&state.os_update_available).expect("whole entries");
    assert!((5_000..20_000).contains(&entries.len()), "{}", entries.len());
    let cut =
        format!("20000 packages could be updated; the first {} of them are kept", entries.len());
    assert_eq!(state.conditions[0].text, cut);
    server.send_status(&node, report(3)).await;
    let state = server.state(node.instance).await;
    assert_eq!((state.os_update_available, state.conditions), (list(3), vec![]));
}
