//! A storm: many nodes begin and finish an attempt at the same time, and send all of its events in
//! one report. Their clocks may be wrong.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use chrono::TimeDelta;
use evenkeel_domain::Time;
use evenkeel_domain::run::{AttemptId, RunState, UpdateRun};
use evenkeel_kit::{Clock, SystemClock};
use evenkeel_proto::agent::agent_service_client::AgentServiceClient;
use evenkeel_proto::agent::event::Kind;
use evenkeel_proto::agent::{
    Began, Downloaded, Downloading, Finished, PackageChange, PackageResult, PhaseSpan, Plan,
    ReportRequest, RunReport, VerifyBegun,
};
use evenkeel_simulator::clock::NodeClock;
use evenkeel_simulator::connection::{node_request, retry_pushback};
use evenkeel_simulator::own::JournalEntry;
use evenkeel_simulator::rng::Rng;
use evenkeel_store::{Store, StoreOptions, runs};
use serde_json::Value;
use tokio::time::Instant;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::Channel;
use uuid::Uuid;

use super::driver_pool::DriverPool;
use super::driver_protocol::DriverCommand;
use super::node_list::{ListedNode, NodeList};
use crate::bench_harness::BenchHarness;
use crate::histogram::Histogram;
use crate::report::print_status;
use crate::rest::client::{RequestSpec, RestClient};

/// Deadline of a report. After it the node tries again.
const REPORT_TIMEOUT: Duration = Duration::from_secs(20);

/// Time after which a node gives up its report.
const GIVE_UP_AFTER: Duration = Duration::from_mins(1);

/// Time from the command to the first report.
const START_DELAY: TimeDelta = TimeDelta::seconds(2);

/// Maximum difference between a recorded time and the server's time.
const MAX_TIME_ERROR: TimeDelta = TimeDelta::hours(1);

/// Errors of wrong clocks, in hours: hours, years, and the error of a machine with an empty
/// battery.
const CLOCK_ERROR_HOURS: [i64; 5] =
    [-3, 5, -7 * HOURS_PER_YEAR, 30 * HOURS_PER_YEAR, -55 * HOURS_PER_YEAR];

const HOURS_PER_YEAR: i64 = 8_766;

/// The parameters of a storm.
#[derive(Clone, Copy, Debug)]
pub struct StormSpec {
    /// Number of nodes: the first own ones.
    pub count: u32,
    /// Period over which the reports are spread.
    pub within: Duration,
    /// Whether the clocks of the nodes are wrong.
    pub wrong_clocks: bool,
}

impl StormSpec {
    fn affected_nodes(self, node_list: &NodeList) -> impl Iterator<Item = &ListedNode> {
        node_list.own_nodes().take(usize::try_from(self.count).unwrap_or(0))
    }
}

#[derive(Clone, Debug)]
pub struct StormResult {
    pub report_latencies: Histogram,
    /// The attempts in the database.
    pub records: AttemptRecords,
}

/// Check of the attempts in the database.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttemptRecords {
    /// Attempts that the database does not have as finished.
    pub lost: u64,
    /// Attempts whose recorded start or end is wrong by the server's clock.
    pub misdated: u64,
}

pub async fn start(
    harness: &BenchHarness,
    drivers: &mut DriverPool,
    node_list: &NodeList,
    spec: StormSpec,
) -> anyhow::Result<()> {
    let target = load_assigned_policy(harness).await?;
    let affected: Vec<_> = spec.affected_nodes(node_list).collect();
    print_status(&format!(
        "{} nodes begin and finish an attempt within {}",
        affected.len(),
        humantime::format_duration(spec.within)
    ));
    drivers.reset_report_latencies();
    let at = (SystemClock.now() + START_DELAY).timestamp_millis();
    for driver_number in drivers.driver_numbers() {
        let is_here = |member: &&&ListedNode| drivers.driver_of(member.number) == driver_number;
        let count = affected.iter().filter(is_here).count();
        let command = DriverCommand::Storm {
            at,
            within_millis: u64::try_from(spec.within.as_millis())?,
            wrong_clocks: spec.wrong_clocks,
            count: u32::try_from(count)?,
            target: target.clone(),
        };
        drivers.send_command_to(driver_number, &command).await?;
    }
    Ok(())
}

/// Waits for all reports, and checks the runs in the database.
pub async fn finish(
    harness: &BenchHarness,
    drivers: &mut DriverPool,
    node_list: &NodeList,
    spec: StormSpec,
) -> anyhow::Result<StormResult> {
    let affected: Vec<_> = spec.affected_nodes(node_list).collect();
    let end = Instant::now() + spec.within + GIVE_UP_AFTER + Duration::from_secs(5);
    let expected = u64::try_from(affected.len())?;
    while drivers.report_latencies().count() < expected && Instant::now() < end {
        drivers.collect_for(Duration::from_millis(500)).await?;
    }
    let records = load_records(harness, node_list, &affected, spec.wrong_clocks).await?;
    Ok(StormResult { report_latencies: drivers.report_latencies().clone(), records })
}

/// The policy that is assigned to the project, which is the target of the attempts.
async fn load_assigned_policy(harness: &BenchHarness) -> anyhow::Result<String> {
    let client = RestClient::open_session(harness)?;
    let (_, answer) = client.send(&RequestSpec::get("/assignments/project")).await?;
    let answer: Value = serde_json::from_slice(&answer)?;
    let policy = answer["osUpdatePolicyId"].as_str();
    Ok(policy.context("the project has no policy")?.to_owned())
}

/// Checks the attempts in the database. All of them happened just now.
async fn load_records(
    harness: &BenchHarness,
    node_list: &NodeList,
    affected: &[&ListedNode],
    wrong_clocks: bool,
) -> anyhow::Result<AttemptRecords> {
    let store = Store::connect(&harness.database_url(), StoreOptions::default()).await?;
    let mut records = AttemptRecords::default();
    for part in affected.chunks(100) {
        let tx = store.tenant(node_list.tenant).await?;
        for member in part {
            let attempt = AttemptId(attempt_id(member.number, wrong_clocks));
            let run = runs::find_attempt(&tx, member.instance, attempt).await?;
            records.record_run(run.as_ref(), SystemClock.now());
        }
    }
    store.close().await;
    Ok(records)
}

impl AttemptRecords {
    fn record_run(&mut self, run: Option<&UpdateRun>, now: Time) {
        let done = run.filter(|run| matches!(run.state, RunState::Succeeded { .. }));
        let Some(run) = done else {
            self.lost += 1;
            return;
        };
        let is_true = |at: Time| (now - at).abs() < MAX_TIME_ERROR;
        let is_dated = is_true(run.started_at) && run.ended_at().is_some_and(is_true);
        self.misdated += u64::from(!is_dated);
    }
}

/// The attempt id of a node. Attempts with a wrong clock have other ids.
fn attempt_id(number: u32, wrong_clock: bool) -> Uuid {
    let kind = u128::from(wrong_clock) << 96;
    Uuid::from_u128(0xf1ee_7000_0000_4000_8000_0000_0000_0000 | kind | u128::from(number))
}

/// The error of the clock of a node.
fn clock_error(number: u32) -> TimeDelta {
    let kinds = u32::try_from(CLOCK_ERROR_HOURS.len()).unwrap_or(1);
    let index = usize::try_from(number % kinds).unwrap_or(0);
    TimeDelta::hours(CLOCK_ERROR_HOURS.get(index).copied().unwrap_or(1))
}

#[derive(Clone, Debug)]
pub struct ReportingNode {
    /// Number among all nodes.
    pub number: u32,
    pub wrong_clock: bool,
    /// The value of the `authorization` header; `None` if the connection shows a client certificate.
    pub authorization: Option<MetadataValue<Ascii>>,
    /// The connection of the node.
    pub channel: Channel,
}

impl ReportingNode {
    /// Reports an attempt from `at` on, and retries until all events are acknowledged. Returns how
    /// long that took; `None` if the node gave up.
    pub async fn send_report(self, target: String, at: Instant, mut rng: Rng) -> Option<Duration> {
        let message = report_request(self.number, self.wrong_clock, &target);
        let event_count = u32::try_from(message.events.len()).ok()?;
        tokio::time::sleep_until(at).await;
        let mut backoff = Duration::from_millis(500);
        while at.elapsed() < GIVE_UP_AFTER {
            let call = node_request(message.clone(), self.authorization.as_ref());
            let mut client = AgentServiceClient::new(self.channel.clone());
            let answer = tokio::time::timeout(REPORT_TIMEOUT, client.report(call)).await;
            let least = match answer {
                Ok(Ok(answer)) if event_count <= answer.get_ref().acknowledged => {
                    return Some(at.elapsed());
                }
                Ok(Err(status)) => retry_pushback(&status).unwrap_or_default(),
                Ok(Ok(_)) | Err(_) => Duration::ZERO,
            };
            let wait = rng.duration((backoff / 2, backoff)).max(least);
            tokio::time::sleep(wait).await;
            backoff = (backoff * 2).min(Duration::from_secs(5));
        }
        None
    }
}

/// All events of an attempt, like the report of an agent that was offline during the attempt.
fn report_request(number: u32, wrong_clock: bool, target: &str) -> ReportRequest {
    let packages = ["curl", "libcurl4", "openssl", "tzdata"];
    let change = |name: &str| PackageChange {
        name: name.to_owned(),
        architecture: "amd64".to_owned(),
        before: "3.0.14-1~deb12u2".to_owned(),
        after: "3.0.15-1~deb12u1".to_owned(),
        ..PackageChange::default()
    };
    let result = |name: &str| PackageResult {
        name: name.to_owned(),
        architecture: "amd64".to_owned(),
        version: "3.0.15-1~deb12u1".to_owned(),
        state: "installed".to_owned(),
    };
    let plan =
        Plan { changes: packages.map(change).into(), download_bytes: 4_096, ..Plan::default() };
    let finished = Finished { results: packages.map(result).into(), ..Finished::default() };
    let all = [
        Kind::Downloading(Downloading { plan: Some(plan) }),
        Kind::Downloaded(Downloaded {}),
        Kind::Began(Began {}),
        Kind::VerifyBegun(VerifyBegun {}),
        Kind::Finished(finished),
    ];
    let wrong_by = if wrong_clock { clock_error(number) } else { TimeDelta::zero() };
    let now = NodeClock::new(Arc::new(SystemClock), wrong_by).now();
    let mut attempt =
        JournalEntry::new(attempt_id(number, wrong_clock), target, &format!("{number:08x}"));
    for event in all {
        attempt.push(event, now);
    }
    let mut request = attempt.build_report();
    if let Some(last) = request.events.last_mut() {
        last.report = Some(phase_report());
    }
    request
}

fn phase_report() -> RunReport {
    let phase = |phase: &str, millis| PhaseSpan { phase: phase.to_owned(), millis, bytes: 0 };
    RunReport { phases: vec![phase("download", 120), phase("apply", 640)], ..RunReport::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_has_all_events_of_its_attempt_in_order() {
        let request = report_request(77, false, "target");
        let numbers: Vec<_> = request.events.iter().map(|event| event.sequence).collect();
        assert_eq!(numbers, [1, 2, 3, 4, 5]);
        let ends: Vec<_> = request.events.iter().map(|event| event.report.is_some()).collect();
        assert_eq!(ends, [false, false, false, false, true]);
        let id: Uuid = request.attempt_id.parse().expect("a UUID");
        assert!(id == attempt_id(77, false) && id != attempt_id(78, false));
        assert_ne!(id, attempt_id(77, true), "the attempt with a wrong clock");
    }

    #[test]
    fn a_node_with_a_wrong_clock_sends_its_own_time() {
        let reported_offset = |number| {
            let request = report_request(number, true, "target");
            let time = request.events.first().and_then(|event| event.node_time);
            let ahead = time.expect("a time").seconds - SystemClock.now().timestamp();
            TimeDelta::seconds(ahead)
        };
        for number in 0..5 {
            let off = (reported_offset(number) - clock_error(number)).abs();
            assert!(off <= TimeDelta::minutes(1), "{number}: {off}");
        }
        let years = |number| clock_error(number).num_days() / 365;
        assert_eq!((years(0), years(3), years(4)), (0, 30, -55));
        assert_ne!(clock_error(0), TimeDelta::zero());
    }
}
