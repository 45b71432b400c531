//! Work that cannot be undone: it goes by the time of the database, and one fault does not stop the
//! rest of it.

use std::sync::Arc;
use std::time::Duration;

use chrono::TimeDelta;
use evenkeel_domain::id::RunId;
use evenkeel_kit::{Clock, Lifecycle, TestClock};
use evenkeel_maintenance_manager::{
    Housekeeping, MaintenanceManager, RemovedRows, RunReaper, Settings, SilentNodeWatch,
};
use evenkeel_proto::agent::PollRequest;
use evenkeel_proto::agent::agent_service_server::AgentService as _;
use evenkeel_proto::maintmgr::PlatformUpdateStatusRequest;
use evenkeel_proto::maintmgr::maintmgr_service_server::MaintmgrService as _;
use evenkeel_proto::maintmgr::update_status::StatusType;
use evenkeel_store::testing::fill::{ProjectSize, seed_project};
use evenkeel_store::testing::{StatementCounts, counting_store, tenant_rows};
use evenkeel_store::{contacts, projects, runs};
use tonic::Request;

use crate::fleet::sample;
use crate::heartbeats::send_heartbeat;
use crate::node_reports::{available_package, facts_with_available};
use crate::replicas::with_credentials;
use crate::test_server::{
    TestNode, TestServer, began, downloading, enroll_request, finished, report_request,
    with_credential,
};

const YEAR: TimeDelta = TimeDelta::days(365);

/// The periodic tasks of a process with its own clock.
struct Tasks {
    housekeeping: Housekeeping,
    reaper: RunReaper,
    silent_nodes: SilentNodeWatch,
}

impl Tasks {
    fn new(server: &TestServer, clock: Arc<dyn Clock>) -> Self {
        let (store, settings) = (server.store.clone(), Settings::default());
        Self {
            housekeeping: Housekeeping::new(store.clone(), Arc::clone(&clock), &settings),
            reaper: RunReaper::new(store.clone(), Arc::clone(&clock), &settings),
            silent_nodes: SilentNodeWatch::new(store, clock, &settings),
        }
    }

    /// Runs one pass of each task. Returns what was removed, and how many runs ended and nodes
    /// became silent.
    async fn pass(&self) -> (RemovedRows, usize, usize) {
        let ended = self.reaper.pass().await.expect("a pass");
        let silent = self.silent_nodes.pass().await.expect("a pass");
        (self.housekeeping.pass().await.expect("a pass"), ended, silent)
    }
}

impl TestServer {
    /// A node with an ended run, and a node whose run is open.
    async fn nodes_with_runs(&self) -> [TestNode; 2] {
        let (done, busy) = (self.nth_node(1).await, self.nth_node(2).await);
        let begun = [(1, downloading()), (2, began())];
        for node in [&done, &busy] {
            let policy = self.policy(node, "demo-hello=1.1").await;
            self.report(node, 1, policy, &begun).await;
            if node.host == done.host {
                self.report(node, 1, policy, &[(3, finished())]).await;
            }
        }
        [done, busy]
    }

    /// A manager of a process with its own clock.
    fn manager_with_clock(&self, clock: TestClock) -> MaintenanceManager {
        let manager = MaintenanceManager::new(
            self.store.clone(),
            Arc::new(clock),
            Arc::clone(&self.authority),
            Arc::clone(&self.ca),
            with_credentials(Settings::default()),
        );
        manager.expect("valid settings")
    }

    /// A server with 1,000 nodes that have downloaded their update and wait for their window.
    async fn with_waiting_fleet() -> Self {
        let server = Self::without_log_follower(Settings::default()).await;
        let size = ProjectSize { hosts: 1_000, sites: 1 };
        seed_project(&server.store, server.tenant, size, server.now()).await.expect("seeded");
        let open = format!(
            "UPDATE update_runs SET state = 'staged', state_since = '{}', ended_at = NULL, changed = NULL, \
             cause = NULL, failure_kind = NULL, failure = NULL \
             WHERE id IN (SELECT min(id) FROM update_runs GROUP BY instance_id)",
            server.now()
        );
        server.execute_sql(&open).await;
        server
    }

    /// The runs that no agent reports, found in parts of this number of open runs.
    async fn unattended_runs(&self, part: u32) -> Vec<RunId> {
        let tx = self.store.fleet().await.expect("the database");
        let (mut all, mut last) = (Vec::new(), None);
        loop {
            let lag = TimeDelta::minutes(5);
            let found = runs::list_unattended(&tx, lag, self.now(), (last, part)).await;
            let found = found.expect("a part");
            assert!(found.due.len() <= usize::try_from(part).expect("a small number"));
            all.extend(found.due.iter().map(|due| due.run));
            last = found.last;
            if last.is_none() {
                break;
            }
        }
        all.sort_by_key(|run| run.bits());
        all
    }

    /// Adds versions of packages that no node has reported for a long time.
    async fn add_old_versions(&self, count: u32) {
        let sql = format!(
            "INSERT INTO package_versions (tenant_id, name, architecture, version, first_seen, last_seen) \
             SELECT '{}', 'old', 'amd64', n::text, '2000-01-01', '2000-01-01' FROM generate_series(1, {count}) n",
            self.tenant
        );
        self.execute_sql(&sql).await;
    }

    /// A statement that deletes more versions fails like one that takes too long.
    async fn refuse_version_batches_above(&self, max_rows: u32) {
        let sql = format!(
            "CREATE FUNCTION refuse_many() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
             IF (SELECT count(*) FROM gone) > {max_rows} THEN RAISE 'slow' USING ERRCODE = '57014'; END IF; \
             RETURN NULL; END $$; \
             CREATE TRIGGER refuse_many AFTER DELETE ON package_versions REFERENCING OLD TABLE AS gone \
             FOR EACH STATEMENT EXECUTE FUNCTION refuse_many()"
        );
        self.execute_sql(&sql).await;
    }
}

#[tokio::test]
async fn a_process_with_a_wrong_clock_deletes_nothing_and_ends_no_run() {
    let server = TestServer::new().await;
    let [done, busy] = server.nodes_with_runs().await;
    server.add_old_versions(3).await;
    let nothing = (RemovedRows::default(), 0, 0);
    for offset in [YEAR, -YEAR, TimeDelta::seconds(61), TimeDelta::seconds(-61)] {
        let wrong = TestClock::new(server.now() + offset);
        let tasks = Tasks::new(&server, Arc::new(wrong.clone()));
        assert_eq!(tasks.pass().await, nothing, "{offset}");
        assert_eq!(server.runs(&done).await.len(), 1);
        assert_eq!(server.runs(&busy).await[0].state.name(), "applying");
        // The clock is corrected while the process runs.
        if offset == -YEAR {
            wrong.set(server.now());
            assert_eq!(tasks.pass().await.0.versions, 3);
        }
    }
}

/// Between the passes as well, although these steps compare no times.
#[tokio::test]
async fn a_process_with_a_wrong_clock_removes_no_deleted_project() {
    let server = TestServer::new().await;
    let removed = server.create_project("removed").await;
    let tx = server.store.fleet().await.expect("a transaction");
    projects::delete(&tx, removed, true, server.now()).await.expect("deleted");
    tx.commit().await.expect("committed");
    for offset in [YEAR, -YEAR, TimeDelta::zero()] {
        let clock = Arc::new(TestClock::new(server.now() + offset));
        let housekeeping = Tasks::new(&server, clock).housekeeping;
        let pass = housekeeping.frequent_pass().await.expect("a pass");
        assert_eq!(pass.projects > 0, offset.is_zero(), "{offset}: {pass:?}");
    }
}

/// The times that are stored decide later what is deleted and which runs end.
#[tokio::test]
async fn a_process_with_a_wrong_clock_stores_only_times_of_the_database() {
    for offset in [TimeDelta::hours(-23), TimeDelta::days(20)] {
        let server = TestServer::new().await;
        let wrong = server.now() + offset;
        let manager = server.manager_with_clock(TestClock::new(wrong));
        let life = Lifecycle::new();
        manager.start_contacts(&life);

        let token = server.join_token(false, true).await;
        let enrolled = manager.enroll(Request::new(enroll_request(&token, 1, 1))).await;
        let node = TestNode::from_enrolment(enrolled.expect("enrolled").into_inner());
        let reported = PollRequest {
            facts: Some(facts_with_available(vec![available_package("curl", "2")])),
            packages: r#"{"repo":[{"name":"curl","version":"1"}]}"#.into(),
            ..PollRequest::default()
        };
        manager.poll(with_credential(&node.credential, reported)).await.expect("an answer");
        let policy = server.policy(&node, "demo-hello=1.1").await;
        for event in [(1, downloading()), (2, began()), (3, finished())] {
            let report = with_credential(&node.credential, report_request(1, policy, &[event]));
            manager.report(report).await.expect("an answer");
        }

        let eim = server.eim_node(2).await;
        let hour = TimeDelta::hours(1);
        let token = server.authority.issue_node(server.tenant.uuid(), "agent", hour, wrong);
        let token = token.expect("a token").token.reveal().to_owned();
        send_heartbeat(&manager, &token, &eim).await.expect("heard");
        let status = PlatformUpdateStatusRequest {
            host_guid: eim.guid.clone(),
            update_status: Some(sample(StatusType::UpToDate)),
        };
        manager.platform_update_status(with_credential(&token, status)).await.expect("an answer");
        life.stop();
        life.run_until_stopped(Duration::from_secs(20)).await;

        let run = &server.runs(&node).await[0];
        assert_eq!((run.started_at, run.ended_at()), (server.now(), Some(server.now())));
        for instance in [node.instance, eim.instance] {
            let tx = server.tx().await;
            let heard = contacts::last_contact(&tx, instance).await.expect("an answer");
            assert_eq!(heard, Some(server.now()), "{offset}");
        }
        let date = wrong.format("%Y-%m-%d").to_string();
        let rows = tenant_rows(&server.store, server.tenant).await;
        let wrong_rows: Vec<_> = rows.iter().filter(|row| row.contains(&date)).collect();
        assert!(wrong_rows.is_empty(), "{offset}: {wrong_rows:#?}");
    }
}

#[tokio::test]
async fn a_small_difference_of_the_clocks_does_not_decide() {
    let server = TestServer::new().await;
    let [_, busy] = server.nodes_with_runs().await;
    // By the clock of the process the run has timed out, by the clock of the database not yet.
    server.clock.advance(TimeDelta::hours(24) - TimeDelta::seconds(30));
    let ahead = TestClock::new(server.now() + TimeDelta::seconds(59));
    let tasks = Tasks::new(&server, Arc::new(ahead));
    assert_eq!(tasks.reaper.pass().await.expect("a pass"), 0);
    server.clock.advance(TimeDelta::seconds(31));
    assert_eq!(tasks.reaper.pass().await.expect("a pass"), 1);
    assert_eq!(server.runs(&busy).await[0].state.name(), "abandoned");
}

#[tokio::test]
async fn a_step_that_fails_does_not_stop_the_later_steps() {
    let server = TestServer::new().await;
    let [done, _] = server.nodes_with_runs().await;
    server.add_old_versions(3).await;
    assert!(server.seal_changes().await > 0);
    server.clock.advance(YEAR * 50);
    server
        .execute_sql(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'broken'; END $$; \
             CREATE TRIGGER refuse BEFORE DELETE ON update_runs FOR EACH ROW EXECUTE FUNCTION refuse()",
        )
        .await;
    let removed = server.run_housekeeping(Settings::default()).await;
    assert_eq!((removed.runs, removed.versions), (0, 3));
    assert!(removed.changes > 0, "{removed:?}");
    assert_eq!(server.runs(&done).await.len(), 1);
    server.execute_sql("DROP TRIGGER refuse ON update_runs").await;
    assert_eq!(server.run_housekeeping(Settings::default()).await.runs, 1);
}

#[tokio::test]
async fn a_batch_that_takes_too_long_is_halved_and_tried_again() {
    let server = TestServer::new().await;
    server.add_old_versions(7).await;
    server.refuse_version_batches_above(2).await;
    assert_eq!(server.run_housekeeping(Settings::default()).await.versions, 7);
}

#[tokio::test]
async fn a_pass_removes_a_bounded_number_of_rows() {
    let server = TestServer::new().await;
    server.add_old_versions(251).await;
    server.refuse_version_batches_above(1).await;
    // Nine attempts of the 250 halve the batch from 1,000 rows to one.
    let first = server.run_housekeeping(Settings::default()).await.versions;
    assert!((200..250).contains(&first), "{first}");
    assert_eq!(server.run_housekeeping(Settings::default()).await.versions, 251 - first);
}

/// A fleet that has downloaded its update waits for its window for days.
#[tokio::test]
async fn the_search_for_timed_out_runs_costs_what_is_due() {
    let server = TestServer::with_waiting_fleet().await;
    server.clock.advance(TimeDelta::days(1));
    let (counting, counts) = counting_store(&server.store);
    let reaper = RunReaper::new(counting, server.shared_clock(), &Settings::default());
    assert_eq!(reaper.pass().await.expect("a pass"), 0);
    let (statements, transactions) = counts.totals();
    // The open runs are searched in two parts for those that no agent reports.
    assert!(statements < 15 && transactions == 1, "{statements} {transactions}");

    let due = "UPDATE update_runs SET state_since = state_since - interval '30 days' \
               WHERE id IN (SELECT id FROM update_runs WHERE ended_at IS NULL ORDER BY id LIMIT 3)";
    server.execute_sql(due).await;
    assert_eq!(reaper.pass().await.expect("a pass"), 3);
    let (all_statements, all_transactions) = counts.totals();
    assert_eq!(all_transactions - transactions, 1 + 3, "the search, and one for each run");
    assert!(all_statements - statements < 65, "{all_statements} {statements}");
    assert_eq!(reaper.pass().await.expect("a pass"), 0);
}

#[tokio::test]
async fn only_one_replica_at_a_time_looks_for_timed_out_runs() {
    let server = TestServer::new().await;
    let [_, busy] = server.nodes_with_runs().await;
    server.clock.advance(TimeDelta::hours(25));
    let lease = server.store.try_lease(evenkeel_store::Lease::RunTimeouts).await;
    let lease = lease.expect("an answer").expect("the lease");
    assert_eq!(server.reap_runs().await, 0);
    drop(lease);
    let reaped = async { while server.reap_runs().await == 0 {} };
    tokio::time::timeout(Duration::from_mins(1), reaped).await.expect("the lease is free");
    assert_eq!(server.runs(&busy).await[0].state.name(), "abandoned");
}

/// This search reads all open runs, so replicas do not repeat it.
#[tokio::test]
async fn the_search_for_unattended_runs_is_made_once_for_all_replicas() {
    let server = TestServer::with_waiting_fleet().await;
    let replica = || {
        let (store, counts) = counting_store(&server.store);
        (RunReaper::new(store, server.shared_clock(), &Settings::default()), counts)
    };
    let (one, other) = (replica(), replica());
    let statements = async |(reaper, counts): &(RunReaper, Arc<StatementCounts>)| {
        let before = counts.totals().0;
        assert_eq!(reaper.pass().await.expect("a pass"), 0);
        counts.totals().0 - before
    };
    let with_search = statements(&one).await;
    let without = statements(&one).await;
    assert!(with_search >= without + 3, "two parts and the record: {with_search} {without}");
    assert_eq!(statements(&other).await, without);
    server.advance_minutes(9);
    assert_eq!(statements(&other).await, without);
    server.advance_minutes(1);
    assert_eq!(statements(&other).await, with_search);
    assert_eq!(statements(&one).await, without);
}

#[tokio::test]
async fn the_search_for_unattended_runs_in_parts_finds_each_run() {
    let server = TestServer::with_waiting_fleet().await;
    assert!(server.unattended_runs(1_000).await.is_empty(), "their nodes may begin offline");
    server.execute_sql("UPDATE update_runs SET granted_at = NULL WHERE ended_at IS NULL").await;
    server.clock.advance(YEAR);
    let all = server.unattended_runs(10_000).await;
    assert!(all.len() > 300, "{}", all.len());
    assert_eq!(server.unattended_runs(70).await, all);
    assert_eq!(server.unattended_runs(1_000).await, all);
}
