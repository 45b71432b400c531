//! A process that simulates nodes: one thread, one queue of planned calls, any number of calls in
//! flight.

use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, ensure};
use evenkeel_simulator::connection::{Fate, Faults, Network};
use evenkeel_simulator::polling::{CallEnd, CallOutcome, PollPace, PollingNode};
use evenkeel_simulator::rng::Rng;
use tokio::task::{AbortHandle, JoinError, JoinSet};
use tokio::time::Instant;

use super::call::{CallConnection, CallResult, OutgoingCall};
use super::call_queue::CallQueue;
use super::connect::Dialer;
use super::driver_connections::DriverConnections;
use super::driver_io::{instant_at, read_commands, write_message};
use super::driver_protocol::{DriverCommand, DriverMessage, DriverPlan, SecondCounts};
use super::faults::ReturningNodes;
use super::node_list::NodeEntry;
use super::storm::{ReportingNode, StormSpec};
use crate::histogram::Histogram;
use crate::report::print_status;

/// Deadline of a call, in addition to its long-poll time.
const CALL_TIMEOUT: Duration = Duration::from_secs(20);

/// Accuracy of timers. A call that is at most this late counts from the instant at which it was
/// sent, a later one from the instant for which it was planned.
const TIMER_TOLERANCE: Duration = Duration::from_millis(2);

/// Maximum number of failures that are printed.
const MAX_FAILURE_MESSAGES: u32 = 5;

/// Period over which disconnected nodes come back.
const RETURN_WITHIN: Duration = Duration::from_secs(1);

/// Simulates nodes as commanded on standard input, until standard input ends.
pub async fn run() -> anyhow::Result<ExitCode> {
    let mut commands = read_commands();
    let plan = commands.recv().await.context("there is no plan")?;
    let plan: DriverPlan = serde_json::from_str(&plan)?;
    let mut driver = NodeDriver::new(plan)?;
    loop {
        let wake = driver.wake_time();
        tokio::select! {
            command = commands.recv() => match command {
                None => return Ok(ExitCode::SUCCESS),
                Some(command) => driver.dispatch(serde_json::from_str(&command)?)?,
            },
            Some(done) = driver.calls.join_next() => driver.record_task(done)?,
            () = driver.connections.progress() => {}
            () = tokio::time::sleep_until(wake) => {}
        }
        while let Some(done) = driver.calls.try_join_next() {
            driver.record_task(done)?;
        }
        driver.send_due();
        driver.send_report()?;
    }
}

enum FinishedTask {
    Call(FinishedCall),
    /// Duration of a report; `None` if the node gave it up.
    Report(Option<Duration>),
}

struct FinishedCall {
    node: usize,
    end: CallEnd,
    /// Start of the latency.
    counted_from: Instant,
    has_change: bool,
    result: CallResult,
}

/// A call in flight.
#[derive(Debug)]
struct ActiveCall {
    task: AbortHandle,
    is_long_poll: bool,
}

/// Waits for new decisions after a change.
#[derive(Debug)]
struct DecisionWatch {
    since: Instant,
    /// Whether a node has not received a new decision yet, by index.
    is_pending: Vec<bool>,
}

struct NodeDriver {
    driver_number: u32,
    pace: PollPace,
    rng: Rng,
    entries: Vec<NodeEntry>,
    nodes: Vec<PollingNode>,
    connections: DriverConnections,
    /// Planned calls.
    queue: CallQueue,
    calls: JoinSet<FinishedTask>,
    /// The call in flight of each node, by index.
    active_calls: Vec<Option<ActiveCall>>,
    /// Long polls in flight.
    open_long_polls: u32,
    /// Injects faults into calls.
    network: Network,
    returning_nodes: ReturningNodes,
    started_at: Option<Instant>,
    second_number: u32,
    second: SecondCounts,
    watch: Option<DecisionWatch>,
    failure_messages: u32,
}

impl NodeDriver {
    /// Creates the driver, and starts to open its shared connections.
    fn new(plan: DriverPlan) -> anyhow::Result<Self> {
        let mut entries = NodeEntry::read_file(&plan.nodes_file)?;
        let certificates = entries.iter_mut().map(|entry| entry.certificate.take()).collect();
        ensure!(0 < plan.multiplexed, "the nodes need a shared connection");
        let now = Instant::now();
        let dialer = Dialer::new(plan.address, &plan.authority)?;
        Ok(Self {
            driver_number: plan.driver_number,
            pace: PollPace {
                interval: Duration::from_millis(plan.interval_millis.max(1)),
                changes_per_mille: plan.changes_per_mille,
                follow_server_interval: plan.follow_server_interval,
                max_long_poll_millis: 0,
            },
            rng: Rng::new(7, plan.driver_number.into()),
            nodes: entries.iter().map(|entry| entry.create_node(now)).collect(),
            connections: DriverConnections::new(dialer, &plan, certificates),
            active_calls: entries.iter().map(|_| None).collect(),
            entries,
            queue: CallQueue::default(),
            calls: JoinSet::new(),
            open_long_polls: 0,
            network: Network::default(),
            returning_nodes: ReturningNodes::default(),
            started_at: None,
            second_number: 0,
            second: SecondCounts::default(),
            watch: None,
            failure_messages: 0,
        })
    }

    /// The latest instant at which something has to be done.
    fn wake_time(&self) -> Instant {
        let second_end = self.started_at.map(|_| self.second_end());
        let soonest = self.queue.next_due().into_iter().chain(second_end).min();
        soonest.unwrap_or_else(|| Instant::now() + Duration::from_secs(1))
    }

    /// The end of the current second.
    fn second_end(&self) -> Instant {
        let started_at = self.started_at.unwrap_or_else(Instant::now);
        started_at + Duration::from_secs(u64::from(self.second_number) + 1)
    }

    fn dispatch(&mut self, command: DriverCommand) -> anyhow::Result<()> {
        match command {
            DriverCommand::Begin { at, within } => self.begin(instant_at(at), within),
            DriverCommand::OpenDedicated => self.connections.open_dedicated(),
            DriverCommand::AllowLongPolls { millis } => self.pace.max_long_poll_millis = millis,
            DriverCommand::StopChanges => {
                self.pace.max_long_poll_millis = 0;
                self.pace.changes_per_mille = 0;
            }
            DriverCommand::Pause => self.queue.pause(Instant::now()),
            DriverCommand::Resume => {
                let by = self.queue.resume(Instant::now());
                self.nodes.iter_mut().for_each(|node| node.postpone(by));
            }
            DriverCommand::WatchDecisions { since } => {
                let is_own = |entry: &NodeEntry| entry.uuid.is_none();
                self.second.decision_latencies = Histogram::default();
                self.watch = Some(DecisionWatch {
                    since: instant_at(since),
                    is_pending: self.entries.iter().map(is_own).collect(),
                });
            }
            DriverCommand::InjectFaults { lose, duplicate, late } => {
                self.network.faults = Faults {
                    lose_request: lose / 2,
                    lose_answer: lose - lose / 2,
                    duplicate,
                    straggle: late,
                    delay: 0,
                };
            }
            DriverCommand::Disconnect => self.disconnect_half(),
            DriverCommand::Reconnect { at } => self.reconnect(instant_at(at)),
            DriverCommand::ClearFaults => {
                self.network.faults = Faults::default();
                self.returning_nodes = ReturningNodes::default();
            }
            DriverCommand::Storm { at, within_millis, wrong_clocks, count, target } => {
                let within = Duration::from_millis(within_millis);
                let spec = StormSpec { count, within, wrong_clocks };
                return self.start_storm(instant_at(at), spec, &target);
            }
        }
        Ok(())
    }

    /// Disconnects every other node: cancels its call and closes its dedicated connection.
    fn disconnect_half(&mut self) {
        for index in self.returning_nodes.disconnect_half(self.nodes.len()) {
            self.second.disconnected += 1;
            self.connections.close_dedicated(index);
            let active_call = self.active_calls.get_mut(index).and_then(Option::take);
            let Some(active_call) =
                active_call.filter(|active_call| !active_call.task.is_finished())
            else {
                continue;
            };
            active_call.task.abort();
            self.open_long_polls -= u32::from(active_call.is_long_poll);
        }
        let returning_nodes = &self.returning_nodes;
        self.queue.retain(|index| !returning_nodes.is_away(index));
    }

    fn reconnect(&mut self, at: Instant) {
        for index in self.returning_nodes.reconnect() {
            let Some(node) = self.nodes.get_mut(index) else {
                continue;
            };
            let micros = u64::try_from(RETURN_WITHIN.as_micros()).unwrap_or(0);
            let wait = Duration::from_micros(self.rng.between(0, micros));
            node.start_at(at + wait);
            self.queue.push(node.planned_at, index);
        }
    }

    /// Plans the first call of each node at a random instant within some milliseconds.
    fn begin(&mut self, at: Instant, within: u64) {
        self.started_at = Some(at);
        for (index, node) in self.nodes.iter_mut().enumerate() {
            let micros = self.rng.between(0, within.saturating_mul(1_000));
            node.start_at(at + Duration::from_micros(micros));
            self.queue.push(node.planned_at, index);
        }
    }

    fn start_storm(&mut self, at: Instant, spec: StormSpec, target: &str) -> anyhow::Result<()> {
        let own = self.entries.iter().enumerate();
        let own = own.filter(|(_, entry)| entry.uuid.is_none());
        let gap = spec.within / spec.count.max(1);
        for (n, (index, entry)) in (0_u32..).zip(own.take(usize::try_from(spec.count)?)) {
            let reporter = ReportingNode {
                number: entry.number,
                wrong_clock: spec.wrong_clocks,
                authorization: (!self.connections.shows_certificate(index))
                    .then(|| entry.authorization.clone()),
                channel: self.connections.channel(index).context("not connected")?,
            };
            let (target, rng) = (target.to_owned(), self.rng.split());
            let report = reporter.send_report(target, at + gap * n, rng);
            self.calls.spawn(async move { FinishedTask::Report(report.await) });
        }
        Ok(())
    }

    /// Sends the calls that are due.
    fn send_due(&mut self) {
        let now = Instant::now();
        while let Some(index) = self.queue.pop_due(now) {
            self.send(index, now);
        }
    }

    fn send(&mut self, index: usize, now: Instant) {
        let connection = self.connection_for(index);
        let (Some(node), Some(entry)) = (self.nodes.get_mut(index), self.entries.get(index)) else {
            return;
        };
        let Some((connection, shows_certificate)) = connection else {
            self.queue.push(now + TIMER_TOLERANCE, index);
            return;
        };
        let poll = node.prepare_poll(&self.pace, &mut self.rng);
        self.open_long_polls += u32::from(0 < poll.long_poll_millis);
        let is_late = TIMER_TOLERANCE <= now.saturating_duration_since(node.planned_at);
        let counted_from = if is_late { node.planned_at } else { now };
        let has_faults = self.network.faults != Faults::default() && poll.long_poll_millis == 0;
        let call = OutgoingCall {
            connection,
            authorization: (!shows_certificate).then(|| entry.authorization.clone()),
            payload: poll.payload,
            timeout: CALL_TIMEOUT + Duration::from_millis(poll.long_poll_millis.into()),
            fault_injection: has_faults.then(|| (self.network.clone(), self.rng.split())),
        };
        let task = self.calls.spawn(async move {
            let result = call.run().await;
            let at = Instant::now();
            FinishedTask::Call(FinishedCall {
                node: index,
                end: CallEnd { at, took: at - now, long_poll_millis: poll.long_poll_millis },
                counted_from,
                has_change: poll.has_change,
                result,
            })
        });
        if let Some(active_call) = self.active_calls.get_mut(index) {
            let is_long_poll = 0 < poll.long_poll_millis;
            *active_call = Some(ActiveCall { task, is_long_poll });
        }
    }

    /// The connection for a call of a node, and whether it shows the client certificate of the node;
    /// `None` if none is open. A node that comes back first opens its dedicated connection again.
    fn connection_for(&self, index: usize) -> Option<(CallConnection, bool)> {
        let is_back = self.returning_nodes.is_back(index);
        let missing = is_back.then(|| self.connections.missing(index)).flatten();
        if let Some((dialer, number, shows_certificate)) = missing {
            return Some((CallConnection::Dial(Box::new(dialer), number), shows_certificate));
        }
        let channel = self.connections.channel(index)?;
        Some((CallConnection::Open(channel), self.connections.shows_certificate(index)))
    }

    /// Records a finished task. Cancelled calls of disconnected nodes are ignored.
    fn record_task(&mut self, done: Result<FinishedTask, JoinError>) -> anyhow::Result<()> {
        match done {
            Err(error) if error.is_cancelled() => {}
            done => self.record_finished(done?),
        }
        Ok(())
    }

    fn record_finished(&mut self, done: FinishedTask) {
        match done {
            FinishedTask::Report(took) => {
                if let Some(took) = took {
                    self.second.report_latencies.record(took);
                } else {
                    self.log_failure("a report failed repeatedly and was given up");
                }
            }
            FinishedTask::Call(finished) => self.record_call(finished),
        }
    }

    fn record_call(&mut self, finished: FinishedCall) {
        let FinishedCall { node, end, result, .. } = finished;
        let CallResult { answer, fate, opened_channel } = result;
        self.open_long_polls -= u32::from(0 < end.long_poll_millis);
        if let Some(active_call) = self.active_calls.get_mut(node) {
            *active_call = None;
        }
        if let Some(channel) = opened_channel {
            self.connections.set_dedicated(node, channel);
        }
        let outcome = answer.unwrap_or_else(|status| {
            let outcome = CallOutcome::from_status(&status);
            let is_meant = matches!(fate, Fate::RequestLost | Fate::AnswerLost | Fate::Late);
            if matches!(outcome, CallOutcome::Failed) && !is_meant {
                self.log_failure(&format!("a call failed: {status}"));
            }
            outcome
        });
        match fate {
            Fate::RequestLost | Fate::AnswerLost => self.second.injected.lost += 1,
            Fate::Late => self.second.injected.late += 1,
            Fate::Arrives | Fate::Slow | Fate::Twice => {
                let is_doubled = fate == Fate::Twice;
                self.second.injected.duplicated += u64::from(is_doubled);
                let has_latency = !is_doubled && end.long_poll_millis == 0;
                let took = has_latency.then(|| end.at - finished.counted_from);
                self.second.changes += u64::from(finished.has_change && outcome.is_answered());
                self.count_call(node, &outcome, took);
            }
        }
        self.plan_next(node, &outcome, end);
    }

    /// Counts a call of a node, and its latency if that is given.
    fn count_call(&mut self, index: usize, outcome: &CallOutcome, took: Option<Duration>) {
        let second = &mut self.second;
        let calls = if self.returning_nodes.is_back(index) {
            &mut second.returned
        } else {
            &mut second.calls
        };
        match outcome {
            CallOutcome::Refused(_) => calls.refused += 1,
            CallOutcome::Failed => calls.failed += 1,
            CallOutcome::Own(_) | CallOutcome::Eim(_) => {
                calls.ok += 1;
                if let Some(took) = took {
                    calls.latencies.record(took);
                }
                second.reconnected += u64::from(self.returning_nodes.record_answer(index));
            }
        }
        if let CallOutcome::Own(answer) = outcome {
            second.next_poll_millis_sum += u64::from(answer.next_poll_millis);
            second.next_poll_count += 1;
        }
    }

    fn plan_next(&mut self, index: usize, outcome: &CallOutcome, end: CallEnd) {
        let Some(node) = self.nodes.get_mut(index) else {
            return;
        };
        let changed = node.handle_outcome(outcome, end, &self.pace, &mut self.rng);
        if !self.returning_nodes.is_away(index) {
            self.queue.push(node.planned_at, index);
        }
        let Some(watch) = self.watch.as_mut().filter(|_| changed) else {
            return;
        };
        if let Some(is_pending) = watch.is_pending.get_mut(index)
            && std::mem::take(is_pending)
        {
            let length = end.at.saturating_duration_since(watch.since);
            self.second.decision_latencies.record(length);
        }
    }

    /// Reports opened connections and finished seconds to the benchmark.
    fn send_report(&mut self) -> anyhow::Result<()> {
        if self.connections.take_opened()? {
            write_message(&DriverMessage::Opened)?;
        }
        let unseen = self.network.counters.unseen_failures.swap(0, Ordering::Relaxed);
        if 0 < unseen {
            self.second.calls.failed += unseen;
            self.log_failure("a late or repeated request failed");
        }
        while self.started_at.is_some() && self.second_end() <= Instant::now() {
            let of = std::mem::take(&mut self.second);
            write_message(&DriverMessage::Second {
                number: self.second_number,
                open_long_polls: self.open_long_polls,
                counts: Box::new(of),
            })?;
            self.second_number += 1;
        }
        Ok(())
    }

    fn log_failure(&mut self, text: &str) {
        if self.failure_messages < MAX_FAILURE_MESSAGES {
            self.failure_messages += 1;
            print_status(&format!("driver {}: {text}", self.driver_number));
        }
    }
}
