//! Nodes that poll and report through a proxy all the time.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use evenkeel_proto::agent::event::Kind;
use evenkeel_proto::agent::{Began, Downloaded, Downloading, Finished};
use evenkeel_simulator::connection::tls_endpoint;
use evenkeel_simulator::rng::Rng;
use evenkeel_tests::history::{
    NodeRegistrar, OperatorClient, Replicas, Run, ScriptedNode, number, print_progress, read_runs,
};
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::call_log::CallLog;

/// Each node polls five times a second.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
const POLLS_PER_NODE_SECOND: u64 = 5;

/// Interval between two reports of a node.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);

/// Delay of the only retry of a poll, and of each retry of a report: the shortest one of an agent.
const RETRY_DELAY: Duration = Duration::from_millis(500);

/// A call without an answer for this time has failed.
const CALL_TIMEOUT: Duration = Duration::from_secs(20);

/// How long nodes may take for the polls between two events, in addition to ten times the planned time.
const LOAD_TIMEOUT: Duration = Duration::from_mins(1);

/// Events of a report, as the runs name them.
const EVENT_NAMES: [&str; 4] = ["downloading", "downloaded", "began", "finished"];

fn all_kinds() -> [Kind; 4] {
    [
        Kind::Downloading(Downloading::default()),
        Kind::Downloaded(Downloaded {}),
        Kind::Began(Began {}),
        Kind::Finished(Finished::default()),
    ]
}

/// Size of the load.
#[derive(Clone, Copy, Debug)]
pub struct LoadSize {
    polls_per_second: u64,
    /// Time between two events of a test, in seconds.
    seconds: u64,
    /// Part of the planned polls that must be answered. Only a machine with nothing else to do answers
    /// a known part.
    min_percent: u64,
}

impl LoadSize {
    /// Reads the size from the environment.
    pub fn read() -> Self {
        Self {
            polls_per_second: number("EVENKEEL_ROLLING_POLLS_PER_SECOND", 200),
            seconds: number("EVENKEEL_ROLLING_SECONDS", 3),
            min_percent: number("EVENKEEL_ROLLING_MIN_PERCENT", 0),
        }
    }
}

/// Nodes that call until the load is stopped.
#[derive(Debug)]
pub struct Load {
    size: LoadSize,
    /// The address to which the nodes connect.
    address: String,
    registrar: NodeRegistrar,
    rng: Rng,
    polling: JoinSet<PollRecord>,
    reporting: JoinSet<ReportRecord>,
    answered_polls: Arc<AtomicU64>,
    stop: CancellationToken,
    begun: Instant,
}

/// The polls of a node.
#[derive(Debug)]
struct PollRecord {
    log: CallLog,
    /// Polls that were answered only when they were sent again.
    retried: usize,
    /// Begin and end of each poll that failed twice.
    failed: Vec<(Instant, Instant)>,
}

/// The reports of a node. All of them were acknowledged.
#[derive(Debug, Default)]
struct ReportRecord {
    attempts: Vec<Uuid>,
    acknowledged_at: Vec<Instant>,
}

impl Load {
    /// Enrols nodes through a proxy, and lets them call.
    pub async fn start(replicas: &Replicas, client: &OperatorClient, address: String) -> Self {
        let size = LoadSize::read();
        let policy = json!({
            "name": "policy", "updatePolicy": "UPDATE_POLICY_TARGET", "updatePackages": "demo-hello",
        });
        let policy = client.create("os-update-policies", &policy).await;
        let mut load = Self {
            size,
            address,
            registrar: NodeRegistrar::open(replicas, client).await,
            rng: Rng::new(1, 0),
            polling: JoinSet::new(),
            reporting: JoinSet::new(),
            answered_polls: Arc::default(),
            stop: CancellationToken::new(),
            begun: Instant::now(),
        };
        let mut nodes = Vec::new();
        for _ in 0..size.polls_per_second.div_ceil(POLLS_PER_NODE_SECOND) {
            nodes.push(load.enroll_node().await);
        }
        load.begun = Instant::now();
        for node in nodes {
            let (stop, answered) = (load.stop.clone(), Arc::clone(&load.answered_polls));
            let first = load.rng.duration((Duration::ZERO, POLL_INTERVAL));
            load.polling.spawn(poll_until(stop, node.clone(), first, answered));
            let (stop, rng) = (load.stop.clone(), load.rng.split());
            load.reporting.spawn(report_until(stop, node, policy.clone(), rng));
        }
        load
    }

    /// Enrols a node that does not call by itself.
    pub async fn enroll_node(&mut self) -> ScriptedNode {
        let (registrar, rng) = (&mut self.registrar, &mut self.rng);
        let mut node = ScriptedNode::enroll_at(registrar, &self.address, rng).await;
        node.retry_interval = RETRY_DELAY;
        node.send_facts().await;
        node
    }

    /// Enrols a node that connects from this address, and does not call again.
    pub async fn enroll_node_from(&mut self, client: IpAddr, ca_certificate: &str) {
        let endpoint = tls_endpoint(&self.address, ca_certificate).expect("an address");
        self.registrar.channels = vec![endpoint.local_address(Some(client)).connect_lazy()];
        let uuid = self.rng.uuid();
        self.registrar.enroll(uuid, None, &mut self.rng).await;
    }

    /// Waits until as many polls were answered as in the time between two events of a test.
    pub async fn wait_for_polls(&self) {
        let answered = || self.answered_polls.load(Ordering::Relaxed);
        let goal = answered() + self.size.polls_per_second * self.size.seconds;
        let all_answered = async {
            while answered() < goal {
                sleep(POLL_INTERVAL).await;
            }
        };
        let limit = LOAD_TIMEOUT + Duration::from_secs(self.size.seconds * 10);
        let in_time = timeout(limit, all_answered).await;
        assert!(in_time.is_ok(), "{} of {goal} polls were answered in {limit:?}", answered());
    }

    /// Stops the nodes. Each ends its last call first.
    pub async fn stop(self) -> LoadResult {
        let elapsed = self.begun.elapsed();
        self.stop.cancel();
        LoadResult {
            size: self.size,
            elapsed,
            polls: self.polling.join_all().await,
            reports: self.reporting.join_all().await,
        }
    }
}

async fn poll_until(
    stop: CancellationToken,
    node: ScriptedNode,
    first: Duration,
    answered: Arc<AtomicU64>,
) -> PollRecord {
    // Not all nodes at the same instant.
    sleep(first).await;
    let log = CallLog::begin(Instant::now());
    let mut record = PollRecord { log, retried: 0, failed: Vec::new() };
    let mut ticks = interval(POLL_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    while !stop.is_cancelled() {
        ticks.tick().await;
        let begun = Instant::now();
        let mut result = poll_once(&node).await;
        if result.is_err() {
            sleep(RETRY_DELAY).await;
            result = poll_once(&node).await;
            record.retried += usize::from(result.is_ok());
        }
        let ended = Instant::now();
        match &result {
            Ok(()) => _ = answered.fetch_add(1, Ordering::Relaxed),
            Err(_) => record.failed.push((begun, ended)),
        }
        record.log.record(ended, result);
    }
    record
}

async fn poll_once(node: &ScriptedNode) -> Result<(), String> {
    match timeout(CALL_TIMEOUT, node.poll_unchanged()).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(status)) => Err(format!("{status:?}")),
        Err(_) => Err(format!("no answer within {CALL_TIMEOUT:?}")),
    }
}

/// Reports complete attempts. Like an agent, it sends each report until it is acknowledged.
async fn report_until(
    stop: CancellationToken,
    mut node: ScriptedNode,
    policy: String,
    mut rng: Rng,
) -> ReportRecord {
    let mut record = ReportRecord::default();
    // Not all nodes at the same instant.
    let mut wait = rng.duration((Duration::ZERO, REPORT_INTERVAL));
    loop {
        tokio::select! {
            () = stop.cancelled() => return record,
            () = sleep(wait) => {}
        }
        wait = REPORT_INTERVAL;
        node.attempt = rng.uuid();
        node.report_until_acknowledged(&policy, 1, &all_kinds()).await;
        record.attempts.push(node.attempt);
        record.acknowledged_at.push(Instant::now());
    }
}

/// What the nodes of a load saw.
#[derive(Debug)]
pub struct LoadResult {
    size: LoadSize,
    elapsed: Duration,
    polls: Vec<PollRecord>,
    reports: Vec<ReportRecord>,
}

impl LoadResult {
    /// Fails if less than the demanded part of the planned polls was answered.
    pub fn assert_load(&self) {
        let least = self.planned_polls() * self.size.min_percent / 100;
        let answered = self.polls.iter().map(|record| record.log.answered).sum::<usize>() as u64;
        assert!(answered >= least, "at least {least} polls should be answered: {self}");
    }

    fn planned_polls(&self) -> u64 {
        self.size.polls_per_second * self.elapsed.as_secs()
    }

    /// Fails if a poll failed that overlaps no part of an outage. Without an outage: if any failed.
    pub fn assert_no_failed_poll(&self, outage: Option<(Instant, Instant)>, logs: &str) {
        let is_in_outage = |(begun, ended): &(Instant, Instant)| {
            outage.is_some_and(|(from, until)| *begun <= until && from <= *ended)
        };
        let failed = self.polls.iter().flat_map(|record| &record.failed);
        let count = failed.filter(|&poll| !is_in_outage(poll)).count();
        assert_eq!(count, 0, "failed polls: {self}\n{logs}");
    }

    /// Fails unless each acknowledged report is exactly one run with all its events, and there is no
    /// other run.
    pub async fn assert_no_lost_report(&self, client: &OperatorClient) {
        let runs = read_runs(client).await;
        let mut by_attempt: BTreeMap<Uuid, Vec<&Run>> = BTreeMap::new();
        for run in &runs {
            by_attempt.entry(run.attempt.unwrap_or_default()).or_default().push(run);
        }
        let attempts = self.reports.iter().flat_map(|record| &record.attempts);
        let mut count = 0;
        for attempt in attempts {
            count += 1;
            let found = by_attempt.get(attempt).map(Vec::as_slice).unwrap_or_default();
            let [run] = found else {
                panic!("the report of {attempt} was acknowledged and is {} runs", found.len());
            };
            let events: Vec<&str> = run.events.iter().map(|entry| entry.event.as_str()).collect();
            assert_eq!(events, EVENT_NAMES, "{run:?}");
            assert_eq!(run.state, "succeeded", "{run:?}");
        }
        assert!(count > 0, "there was no report: this shows nothing");
        assert_eq!(runs.len(), count, "runs that no node has reported");
        print_progress(&format!("{count} reports, and each is one run"));
    }

    /// The longest time in which no report of any node was acknowledged.
    fn longest_report_outage(&self) -> Duration {
        let times = self.reports.iter().flat_map(|record| record.acknowledged_at.iter().copied());
        let mut times: Vec<Instant> = times.collect();
        times.sort_unstable();
        times.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or_default()
    }
}

impl fmt::Display for LoadResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let answered: usize = self.polls.iter().map(|record| record.log.answered).sum();
        let retried: usize = self.polls.iter().map(|record| record.retried).sum();
        let failed: usize = self.polls.iter().map(|record| record.log.failed).sum();
        let outage = self.polls.iter().map(|record| record.log.longest_outage).max();
        let failure = self.polls.iter().map(|record| record.log.last_failure.as_str()).max();
        write!(
            f,
            "{answered} of {} planned polls of {} nodes in {:.1?}: {retried} answered at the second attempt, {failed} failed {}; \
             longest time without an answer: {:.1?} for a node, {:.1?} for all reports",
            self.planned_polls(),
            self.polls.len(),
            self.elapsed,
            failure.unwrap_or_default(),
            outage.unwrap_or_default(),
            self.longest_report_outage(),
        )
    }
}
