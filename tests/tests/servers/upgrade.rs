//! A migration of a large database while two servers answer polls and `pg_dump` reads all tables.
//!
//! | variable | meaning |
//! | --- | --- |
//! | `EVENKEEL_UPGRADE_RUNS` | number of runs in the database; each has ten events |
//! | `EVENKEEL_TEST_SERVER` | another build of `evenkeeld` to test |

use std::io;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use evenkeel_proto::agent::Facts;
use evenkeel_simulator::rng::Rng;
use evenkeel_store::testing::{Migrator, query_text, run_migrator};
use evenkeel_store::{SchemaCheck, Store, StoreOptions};
use evenkeel_tests::history::{
    NodeRegistrar, OperatorClient, Replicas, ScriptedNode, number, print_progress,
};
use evenkeel_tests::newest_postgres;
use evenkeel_tests::next_release::NEXT_RELEASE;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::call_log::CallLog;

const NODE_COUNT: usize = 10;

/// Delay between two polls of a node.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// An upgrade must not keep a node from its server for longer.
const MAX_OUTAGE: Duration = Duration::from_secs(2);

/// Minimum number of retries of the migration before the dump ends.
const MIN_ATTEMPTS: usize = 3;

/// Longer than any statement, and than the whole migration.
const LONG: Duration = Duration::from_hours(2);

#[tokio::test(flavor = "multi_thread")]
async fn polls_go_on_while_a_large_database_is_migrated_and_dumped() {
    let runs = number("EVENKEEL_UPGRADE_RUNS", 2_000);
    let mut replicas = Replicas::start(2, "").await;
    let nodes = enroll_nodes(&replicas).await;
    let options = StoreOptions { statement_timeout: LONG, ..StoreOptions::default() };
    let store = Store::connect(&replicas.database_url(), options).await.expect("a store");
    let begun = Instant::now();
    fill(&store, runs).await;
    print_progress(&format!("{runs} runs in {:.0?}", begun.elapsed()));

    let stop = CancellationToken::new();
    let mut polling = JoinSet::new();
    for node in nodes {
        polling.spawn(poll_until(node, stop.clone()));
    }
    let dump = Dump::start(&replicas.database_url());
    dump.wait_for_locks(&store).await;
    let begun = Instant::now();
    let migrator = Migrator::default().with_step(NEXT_RELEASE.step);
    let dumping = async {
        for _ in 0..MIN_ATTEMPTS {
            wait_until(&store, &is_waiting_for_lock("= 1")).await;
            wait_until(&store, &is_waiting_for_lock("= 0")).await;
        }
        let dumped = dump.finish().await;
        print_progress(&format!("dumped in {:.0?}", begun.elapsed()));
        dumped
    };
    let (migrated, dumped) = tokio::join!(run_migrator(&store, &migrator, LONG), dumping);
    print_progress(&format!("migrated in {:.0?}", begun.elapsed()));
    stop.cancel();
    let polls = polling.join_all().await;
    let logs = replicas.logs();
    migrated.unwrap_or_else(|error| panic!("{error}\n{logs}"));
    assert!(dumped.success(), "{dumped}");
    assert_no_outage(&polls, &logs);
    assert_migrated(&store, runs).await;

    // A server that does not know the step starts again.
    let server = &mut replicas.servers()[0];
    server.kill();
    server.start_and_wait().await;
    replicas.stop().await;
}

async fn enroll_nodes(replicas: &Replicas) -> Vec<ScriptedNode> {
    let client = OperatorClient::new(&replicas.rest_addresses(), &replicas.operator_token());
    let mut registrar = NodeRegistrar::open(replicas, &client).await;
    let mut rng = Rng::new(1, 0);
    let mut nodes = Vec::new();
    for _ in 0..NODE_COUNT {
        nodes.push(ScriptedNode::enroll_own(&mut registrar, replicas, &mut rng).await);
    }
    nodes
}

/// Adds ended runs with ten events each. Without the triggers and the foreign key of events, whose
/// checks would take most of the time.
async fn fill(store: &Store, runs: u64) {
    let sql = format!(
        "SELECT set_config('evenkeel.tenant', '*', true);
         ALTER TABLE update_runs DISABLE TRIGGER USER;
         ALTER TABLE run_events DROP CONSTRAINT run_events_tenant_id_run_id_fkey;
         INSERT INTO update_runs (tenant_id, id, instance_id, name, description, origin, state, state_since,
             changed, packages, log, sequence, generation, started_at, ended_at)
         SELECT i.tenant_id, n, i.ids[1 + n % cardinality(i.ids)], 'run ' || n, '', '{{}}', 'succeeded', now(),
             true, '{{}}', '', 0, 1, now(), now()
         FROM (SELECT tenant_id, array_agg(id) AS ids FROM instances GROUP BY tenant_id) i,
             generate_series(1, {runs}) n;
         INSERT INTO tallies (tenant_id, kind, n) SELECT DISTINCT tenant_id, 'run', {runs} FROM instances;
         INSERT INTO run_events (tenant_id, run_id, position, event, state, boot_id, at, detail)
         SELECT r.tenant_id, r.id, n, 'finished', 'succeeded', '', now(), repeat('x', n)
         FROM update_runs r, generate_series(1, 10) n;
         ALTER TABLE run_events ADD CONSTRAINT run_events_tenant_id_run_id_fkey
             FOREIGN KEY (tenant_id, run_id) REFERENCES update_runs ON DELETE CASCADE;
         ALTER TABLE update_runs ENABLE TRIGGER USER"
    );
    store.execute_unprepared(&sql).await.expect("filled");
    store.analyze().await.expect("analyzed");
}

/// Polls with changed facts, each time from the other server, so that each poll writes.
async fn poll_until(node: ScriptedNode, stop: CancellationToken) -> CallLog {
    let mut log = CallLog::begin(Instant::now());
    for count in 0_usize.. {
        let facts = Facts {
            agent_version: format!("0.1.{count}"),
            modules: vec!["packages".to_owned()],
            ..Facts::default()
        };
        let answer = node.poll(count, facts).await;
        let result = answer.map(drop).map_err(|status| format!("{status:?}"));
        log.record(Instant::now(), result);
        if stop.is_cancelled() {
            return log;
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    unreachable!("the loop has no end")
}

/// A `pg_dump` that is stopped by its full output until the test reads it.
struct Dump(Child);

impl Dump {
    #[expect(clippy::disallowed_methods, reason = "pg_dump is another program")]
    fn start(url: &str) -> Self {
        let child = Command::new(newest_postgres().join("bin/pg_dump"))
            .args(["--enable-row-security", "--dbname", url])
            .env("PGOPTIONS", "-c evenkeel.tenant=*")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn();
        Self(child.expect("pg_dump starts"))
    }

    /// Waits until it reads the runs and their events.
    async fn wait_for_locks(&self, store: &Store) {
        let locks = "SELECT (count(*) = 2)::text FROM pg_locks l JOIN pg_stat_activity a USING (pid) \
                     WHERE a.application_name = 'pg_dump' AND l.granted \
                     AND l.relation IN ('update_runs'::regclass, 'run_events'::regclass)";
        wait_until(store, locks).await;
    }

    /// Reads its output to the end.
    async fn finish(self) -> ExitStatus {
        let Self(mut child) = self;
        let reading = tokio::task::spawn_blocking(move || {
            let mut output = child.stdout.take().expect("its output");
            io::copy(&mut output, &mut io::sink()).expect("its output is read");
            child.wait().expect("a child of ours")
        });
        reading.await.expect("the output is read")
    }
}

/// SQL: whether the number of connections of the migration that wait for a lock is as compared.
fn is_waiting_for_lock(compared: &str) -> String {
    format!(
        "SELECT (count(*) {compared})::text FROM pg_stat_activity WHERE datname = current_database() \
         AND application_name = 'evenkeeld migrate' AND wait_event_type = 'Lock'"
    )
}

/// Waits until a query returns true.
async fn wait_until(store: &Store, sql: &str) {
    while query_text(store, sql).await != "true" {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn assert_no_outage(polls: &[CallLog], logs: &str) {
    let outages: Vec<_> = polls.iter().map(|log| log.longest_outage).collect();
    let failed: usize = polls.iter().map(|log| log.failed).sum();
    let answered: usize = polls.iter().map(|log| log.answered).sum();
    let failures = polls.iter().map(|log| log.last_failure.as_str());
    let failure = failures.max().unwrap_or_default();
    print_progress(&format!(
        "{answered} polls answered, {failed} failed {failure}; outages {outages:.1?}"
    ));
    assert!(polls.iter().all(|log| log.answered > 10), "too few polls: {polls:?}");
    let is_short = polls.iter().all(|log| log.longest_outage <= MAX_OUTAGE);
    assert!(is_short, "{polls:#?}\n{logs}");
}

/// Fails if rows were lost or not changed, or if a part of the step is missing.
async fn assert_migrated(store: &Store, runs: u64) {
    let newer = SchemaCheck::Newer { step: NEXT_RELEASE.step.name.to_owned() };
    assert_eq!(store.check().await.expect("checked"), newer);
    let events = runs * 10;
    for condition in [
        format!("(SELECT count(*) = {runs} FROM update_runs)").as_str(),
        format!(
            "(SELECT count(*) = {events} FROM run_events WHERE detail_length = length(detail))"
        )
        .as_str(),
        "(SELECT bool_and(indisvalid) FROM pg_index WHERE indrelid = 'run_events'::regclass)",
        "EXISTS (SELECT FROM pg_index WHERE indexrelid = 'run_events_by_length'::regclass)",
        "(SELECT bool_and(convalidated) FROM pg_constraint WHERE conrelid = 'run_events'::regclass)",
        "(SELECT attnotnull FROM pg_attribute WHERE attrelid = 'run_events'::regclass \
          AND attname = 'detail_length')",
    ] {
        let sql = format!(
            "SELECT set_config('evenkeel.tenant', '*', true); DO $$ BEGIN IF ({condition}) IS NOT TRUE \
             THEN RAISE 'not true'; END IF; END $$"
        );
        store.execute_unprepared(&sql).await.expect(condition);
    }
}
