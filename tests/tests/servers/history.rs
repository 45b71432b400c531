//! Many nodes of both protocols over unreliable connections, and two servers on one Postgres that are killed every few
//! seconds: the recorded runs must match what the nodes did. Meanwhile the clock of a third server jumps, which gets a
//! share of the reports and of the requests of the operator, and the database becomes read-only; see [`faults`].
//! [`restore`] goes back to a dump, [`restore_drill`] to one that is an hour old.
//!
//! | variable | meaning |
//! | --- | --- |
//! | `EVENKEEL_HISTORY_POLLS` | number of answered polls before the nodes finish |
//! | `EVENKEEL_HISTORY_SCALE` | factor for the number of nodes |
//! | `EVENKEEL_HISTORY_SEED` | seed of all random choices; printed by each run |
//! | `EVENKEEL_TEST_SERVER` | another build of `evenkeeld` to test |
//!
//! With the same seed every node, the operator and the killer make the same random choices. Their
//! order in time still depends on the machine.

mod faults;
mod restore;
mod restore_drill;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use chrono::TimeDelta;
use evenkeel_simulator::connection::Faults;
use evenkeel_simulator::ground_truth::{DeliveredSchedule, EimSchedule, StartPermit, UpdateEnd};
use evenkeel_simulator::rng::Rng;
use evenkeel_tests::history::{
    FleetSettings, GroundTruth, MAX_CACHE_AGE, Operator, OperatorClient, OperatorLog, Replicas,
    Run, ShiftedServer, SimulatedFleet, SimulatedMember, check, machine_time, number,
    print_progress, read_runs, render_timeline,
};
use tokio_util::sync::CancellationToken;

use faults::inject_faults;

/// Timeout of a run: shorter than the default, so that some runs are abandoned.
const RUN_TIMEOUT: TimeDelta = TimeDelta::seconds(50);

/// The nodes live through many days within minutes, so they have no daily limits.
/// `min_query_interval` equals the shortest long poll of a node, so that each poll that lasts to its
/// end is counted as a long poll.
const SETTINGS: &str = "
[maintenance_manager]
run_check_interval = \"2s\"
contact_write_interval = \"2s\"
[maintenance_manager.run_timeouts]
applying = \"50s\"
rebooting = \"50s\"
verifying = \"50s\"
reverting = \"50s\"
[maintenance_manager.daily_limits]
max_bytes_per_node = 0
max_package_lists_per_node = 0
max_versions_per_node = 0
max_runs_per_node = 0
[maintenance_manager.long_poll]
min_query_interval = \"200ms\"
[maintenance_manager.answer_cache]
";

/// One server audits every cached answer, the other none: its cached answers are checked against
/// what the nodes did.
const AUDIT_SETTINGS: [&str; 2] = ["audit_every = 1\n", "audit_every = 0\n"];

/// Settings of the server with the shifted clock. It tries to clean up every second.
const SHIFTED_SETTINGS: &str = "
[maintenance_manager]
run_check_interval = \"1s\"
housekeeping_schedule = \"* * * * * *\"
[maintenance_manager.run_timeouts]
applying = \"50s\"
rebooting = \"50s\"
verifying = \"50s\"
reverting = \"50s\"
[maintenance_manager.daily_limits]
max_bytes_per_node = 0
max_package_lists_per_node = 0
max_versions_per_node = 0
max_runs_per_node = 0
";

/// Log text and metric of a server that cached a wrong answer.
const MISMATCH_LOG_TEXT: &str = "a cached answer differs from the database";
const MISMATCHES_METRIC: &str = "evenkeel_answer_cache_mismatches_total";

/// Counts polls by result.
const POLLS_METRIC: &str = "evenkeel_poll_requests_total";

const FAULTS: Faults =
    Faults { lose_request: 15, lose_answer: 20, duplicate: 20, straggle: 10, delay: 15 };

#[tokio::test(flavor = "multi_thread")]
async fn recorded_runs_match_what_the_nodes_did() {
    let (seed, polls) = read_parameters();
    let oldest = MAX_CACHE_AGE.num_seconds();
    let settings =
        AUDIT_SETTINGS.map(|audits| format!("{SETTINGS}max_staleness = \"{oldest}s\"\n{audits}"));
    let begun_at = machine_time();
    let mut replicas = Replicas::start_each(&settings.each_ref().map(String::as_str)).await;
    let shifted = ShiftedServer::start(&replicas, SHIFTED_SETTINGS).await;
    let client = OperatorClient::new(&replicas.rest_addresses(), &replicas.operator_token());
    let times = usize::try_from(number("EVENKEEL_HISTORY_SCALE", 1)).expect("a small factor");
    let options =
        FleetSettings { own: 36 * times, eim: 32 * times, sites: 9, faults: FAULTS, seed };
    let fleet = SimulatedFleet::enroll(&replicas, &client, options).await;
    let targets = (fleet.members(), fleet.catalog());
    let sessions = client.clone().with_shifted_server(shifted.operator_session());
    let operator = Operator::new(sessions, Rng::new(seed, 1), targets, RUN_TIMEOUT).await;
    fleet.network.set_report_server(shifted.report_server(&replicas));
    let tally = Arc::clone(&fleet.network.counters);

    let begun = Instant::now();
    let stop = CancellationToken::new();
    let ended = CancellationToken::new();
    let faults = inject_faults(&mut replicas, &shifted, Rng::new(seed, 2), stop.clone());
    let work = async {
        let log = operator.run(stop.clone()).await;
        ended.cancel();
        log
    };
    let pause = async {
        let answered = as_f64(tally.polls.load(Ordering::Relaxed));
        print_progress(&format!("{:.0} polls/s", answered / begun.elapsed().as_secs_f64()));
        stop.cancel();
        ended.cancelled().await;
    };
    let lived = fleet.run(polls, pause);
    let (mut faults, mut log, done) = tokio::join!(faults, work, lived);
    log.period = (begun_at, machine_time());
    log.read_only = std::mem::take(&mut faults.read_only);

    let ended = Instant::now();
    let runs = read_runs(&client).await;
    print_progress(&format!("{} runs read in {:.0?}", runs.len(), ended.elapsed()));
    let coverage = Coverage::from_history(&done, &runs);
    print_progress(&format!("{faults:?}, {}; {coverage:?}", describe_log(&log)));
    let ended = Instant::now();
    let failures: Vec<_> = done.iter().filter_map(|node| check_node(node, &runs, &log)).collect();
    print_progress(&format!("checked in {:.0?}", ended.elapsed()));
    let logs = replicas.logs() + &shifted.log();
    let counted = replicas.metric_lines(MISMATCHES_METRIC).await;
    faults.answered.add(&replicas.metric_lines(POLLS_METRIC).await);
    print_progress(&faults.answered.lines().join("\n"));
    drop(shifted);
    replicas.stop().await;
    let failures = failures.join("\n\n");
    assert!(failures.is_empty(), "{failures}\n{logs}\nEVENKEEL_HISTORY_SEED={seed}");
    assert_no_mismatches(&logs, &counted);
    faults.assert_sufficient();
    coverage.assert_sufficient(polls);
    faults.answered.assert_sufficient(polls);
}

/// Fails if a server logged or counted a wrong cached answer.
fn assert_no_mismatches(logs: &str, counted: &[String]) {
    let logged = logs.lines().filter(|line| line.contains(MISMATCH_LOG_TEXT));
    let counted = counted.iter().map(String::as_str);
    let counted = counted.filter(|line| !line.ends_with(" 0"));
    let wrong: Vec<_> = logged.chain(counted).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The seed, and the number of polls.
fn read_parameters() -> (u64, u64) {
    let otherwise = u64::from(std::process::id()) * 7_919;
    let seed = number("EVENKEEL_HISTORY_SEED", otherwise);
    let polls = number("EVENKEEL_HISTORY_POLLS", 5_000);
    print_progress(&format!("EVENKEEL_HISTORY_SEED={seed} EVENKEEL_HISTORY_POLLS={polls}"));
    (seed, polls)
}

/// Violations in the records of a node, with its timeline; `None` if there are none.
fn check_node(
    (member, actual, is_done): &NodeHistory,
    runs: &[Run],
    log: &OperatorLog,
) -> Option<String> {
    let of: Vec<_> = runs.iter().filter(|run| run.instance == member.instance).collect();
    let violations = match actual {
        GroundTruth::Own(own) => check::check_own_node(member, own, &of, log),
        GroundTruth::Eim(eim) => check::check_eim_node(member, eim, &of, log),
    };
    let mut wrong: Vec<String> = violations.iter().map(ToString::to_string).collect();
    if !is_done {
        wrong.push(format!("{} did not finish its work", member.instance));
    }
    let story = || format!("{}{}", render_timeline(member, actual, &of, log), wrong.join("\n"));
    (!wrong.is_empty()).then(story)
}

/// Summary of what the operator did.
fn describe_log(log: &OperatorLog) -> String {
    format!(
        "{} windows, {} repeated schedules, {} images, {} assignments, {} pauses",
        log.windows.len(),
        log.repeated_schedules.len(),
        log.images.len(),
        log.assignments.len(),
        log.pauses.len()
    )
}

/// A node, what it really did, and whether it finished.
type NodeHistory = (SimulatedMember, GroundTruth, bool);

/// Number of events that make a history meaningful.
#[derive(Debug, Default)]
struct Coverage {
    /// Runs by final state.
    runs: BTreeMap<String, usize>,
    /// Attempts that started with a permit from a request.
    online_starts: usize,
    /// Attempts that started with an offline grant.
    offline_starts: usize,
    /// Updates of EIM agents by their end.
    updates: BTreeMap<String, usize>,
    /// Attempts of image nodes that booted another image, and such updates of EIM agents.
    booted: (usize, usize),
    /// Attempts that started with images that had failed on the node before.
    retried_images: usize,
    /// Updates of EIM agents in windows of repeated schedules.
    repeated_windows: usize,
}

impl Coverage {
    fn from_history(done: &[NodeHistory], runs: &[Run]) -> Self {
        let mut coverage = Self::default();
        for run in runs {
            *coverage.runs.entry(run.state.clone()).or_default() += 1;
        }
        for (_, actual, _) in done {
            match actual {
                GroundTruth::Own(own) => {
                    for attempt in &own.attempts {
                        let last = attempt.events.last().map(|event| event.name);
                        let is_booted = attempt.image.is_some() && last == Some("finished");
                        coverage.booted.0 += usize::from(is_booted);
                        let is_ordered = attempt.again && attempt.began().is_some();
                        coverage.retried_images += usize::from(is_ordered);
                        match attempt.permit {
                            Some(StartPermit::Online { .. }) => coverage.online_starts += 1,
                            Some(StartPermit::Offline { .. }) => coverage.offline_starts += 1,
                            None => {}
                        }
                    }
                }
                GroundTruth::Eim(eim) => {
                    for update in &eim.updates {
                        let end = format!("{:?}", update.ended.map(|(_, end)| end));
                        *coverage.updates.entry(end).or_default() += 1;
                        let is_booted = matches!(update.ended, Some((_, UpdateEnd::Updated)));
                        coverage.booted.1 += usize::from(is_booted && update.image.is_some());
                        let is_again = |delivery: &&DeliveredSchedule| matches!((&delivery.schedule, update.window), (EimSchedule::Repeated(one), Some(at)) if one.contains_window(at));
                        coverage.repeated_windows +=
                            usize::from(eim.delivered.iter().any(|delivery| is_again(&delivery)));
                    }
                }
            }
        }
        coverage
    }

    /// Fails if too little happened to show anything.
    fn assert_sufficient(&self, polls: u64) {
        let least = usize::try_from(polls / 1_000).unwrap_or(usize::MAX).max(1);
        let updates: usize = self.updates.values().sum();
        assert!(
            self.online_starts >= least && updates >= least / 10,
            "too little happened: {self:?}"
        );
        if polls >= 50_000 {
            for state in ["succeeded", "failed", "reverted", "cancelled", "abandoned"] {
                assert!(self.runs.contains_key(state), "no run is {state}: {self:?}");
            }
            assert!(self.offline_starts > 0, "no attempt started with an offline grant: {self:?}");
            assert!(
                self.booted.0 > 0 && self.booted.1 > 0 && self.repeated_windows > 0,
                "no image was booted, or no repeated window was used: {self:?}"
            );
        }
        // This needs a failure and then an order that reaches the node: about eight in 100,000 polls.
        if polls >= 100_000 {
            assert!(self.retried_images > 0, "no failed image was ordered again: {self:?}");
        }
    }
}

/// Number of polls by result, over all server processes. The counters of a process end with it.
#[derive(Debug, Default)]
struct PollCounts(BTreeMap<String, u64>);

impl PollCounts {
    /// Adds the counters of server processes.
    fn add(&mut self, counted: &[String]) {
        for line in counted {
            let (labels, count) = line.rsplit_once(' ').expect("a counter");
            let count: u64 = count.parse().expect("a whole number");
            *self.0.entry(labels.to_owned()).or_default() += count;
        }
    }

    fn lines(&self) -> Vec<String> {
        let all = self.0.iter();
        all.map(|(labels, count)| format!("{labels} {count}")).collect()
    }

    fn count_kind(&self, kind: &str) -> u64 {
        let label = format!("kind=\"{kind}\"");
        let of_kind = self.0.iter().filter(|(labels, _)| labels.contains(&label));
        of_kind.map(|(_, count)| count).sum()
    }

    /// Fails if too few answers were cached, or too few long polls lasted to their end.
    fn assert_sufficient(&self, polls: u64) {
        let least = (polls / 1_000).max(1);
        assert!(
            self.count_kind("hit") >= least && self.count_kind("long_poll") >= least,
            "too few cached answers or long polls: {self:?}"
        );
    }
}

#[expect(clippy::cast_precision_loss, reason = "for display only")]
const fn as_f64(number: u64) -> f64 {
    number as f64
}
