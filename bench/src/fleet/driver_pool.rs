//! The driver processes, as seen by the benchmark.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use anyhow::{Context, anyhow, ensure};
use chrono::{DateTime, TimeDelta, Utc};
use evenkeel_kit::{Clock, SystemClock};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{ChildStdin, ChildStdout};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::driver_protocol::{DriverCommand, DriverMessage, DriverPlan, SecondCounts};
use crate::children::MeasuredProcess;
use crate::histogram::Histogram;
use crate::measure::Meter;

/// How long after the end of a second the reports of all drivers have arrived.
const SECOND_REPORT_DELAY: Duration = Duration::from_millis(1_500);

/// What happened in some seconds, and its cost.
#[derive(Clone, Debug)]
pub struct Measurement {
    /// Sums over all seconds.
    pub counts: SecondCounts,
    /// The measured seconds.
    pub seconds: Range<u32>,
    /// Processor time by meter.
    pub spent: Vec<Duration>,
    /// Processor time of the drivers.
    pub driver_time: Duration,
}

impl Measurement {
    /// Duration in seconds.
    pub fn length_seconds(&self) -> f64 {
        f64::from(self.seconds.end - self.seconds.start)
    }

    /// Processor time of a meter.
    pub fn spent(&self, meter: usize) -> Duration {
        self.spent.get(meter).copied().unwrap_or_default()
    }
}

/// A message of a driver by its number, or the error with which it ended.
type DriverEvent = (u32, anyhow::Result<DriverMessage>);

/// All drivers, and their reports.
pub struct DriverPool {
    handles: Vec<DriverHandle>,
    events: mpsc::UnboundedReceiver<DriverEvent>,
    /// Keeps the tasks that read from the drivers.
    _listeners: JoinSet<()>,
    started_at: DateTime<Utc>,
    seconds: BTreeMap<u32, SecondCounts>,
    opened_count: usize,
    decision_latencies: Histogram,
    report_latencies: Histogram,
}

struct DriverHandle {
    process: MeasuredProcess,
    stdin: ChildStdin,
    /// Long polls in flight.
    open_long_polls: u32,
}

impl DriverPool {
    /// Starts a driver for each plan, and waits until the shared connections are open.
    pub async fn start(plans: &[DriverPlan]) -> anyhow::Result<Self> {
        let (sender, events) = mpsc::unbounded_channel();
        let mut listeners = JoinSet::new();
        let mut all = Vec::new();
        for plan in plans {
            let (process, mut stdin, stdout) = MeasuredProcess::start_with_pipes(&["drive"])?;
            write_line(&mut stdin, &serde_json::to_string(plan)?).await?;
            listeners.spawn(forward_messages(plan.driver_number, stdout, sender.clone()));
            all.push(DriverHandle { process, stdin, open_long_polls: 0 });
        }
        let mut drivers = Self {
            handles: all,
            events,
            _listeners: listeners,
            started_at: SystemClock.now(),
            seconds: BTreeMap::new(),
            opened_count: 0,
            decision_latencies: Histogram::default(),
            report_latencies: Histogram::default(),
        };
        drivers.wait_until_opened().await?;
        Ok(drivers)
    }

    /// Starts the nodes. Their first calls are spread over `within`.
    pub async fn begin(&mut self, within: Duration) -> anyhow::Result<()> {
        self.started_at = SystemClock.now() + TimeDelta::milliseconds(200);
        let at = self.started_at.timestamp_millis();
        let within = u64::try_from(within.as_millis())?;
        self.send_command(&DriverCommand::Begin { at, within }).await
    }

    /// Opens the dedicated connections, and waits until they are open.
    pub async fn open_dedicated_connections(&mut self) -> anyhow::Result<()> {
        self.send_command(&DriverCommand::OpenDedicated).await?;
        self.wait_until_opened().await
    }

    pub async fn send_command(&mut self, command: &DriverCommand) -> anyhow::Result<()> {
        for driver_number in self.driver_numbers() {
            self.send_command_to(driver_number, command).await?;
        }
        Ok(())
    }

    pub async fn send_command_to(
        &mut self,
        driver_number: u32,
        command: &DriverCommand,
    ) -> anyhow::Result<()> {
        let driver = self.handles.get_mut(usize::try_from(driver_number)?);
        let driver = driver.with_context(|| format!("there is no driver {driver_number}"))?;
        write_line(&mut driver.stdin, &serde_json::to_string(command)?).await
    }

    /// Starts to watch for nodes that receive another decision than they have now.
    pub async fn watch_decisions(&mut self) -> anyhow::Result<()> {
        self.decision_latencies = Histogram::default();
        let since = SystemClock.now().timestamp_millis();
        self.send_command(&DriverCommand::WatchDecisions { since }).await
    }

    /// Collects the reports of the drivers for some time.
    pub async fn collect_for(&mut self, length: Duration) -> anyhow::Result<()> {
        let end = Instant::now() + length;
        loop {
            let event = tokio::select! {
                event = self.events.recv() => event,
                () = tokio::time::sleep_until(end) => return Ok(()),
            };
            self.record_event(event)?;
        }
    }

    /// Collects the reports of the drivers until a second starts.
    pub async fn collect_until(&mut self, second: u32) -> anyhow::Result<()> {
        let at = self.started_at + TimeDelta::seconds(second.into());
        let length = (at - SystemClock.now()).to_std().unwrap_or_default();
        self.collect_for(length).await
    }

    /// The number of the current second since the start.
    pub fn current_second(&self) -> u32 {
        let elapsed = SystemClock.now() - self.started_at;
        u32::try_from(elapsed.num_seconds()).unwrap_or(0)
    }

    /// The start of a second, in milliseconds since 1970.
    pub fn second_start_millis(&self, second: u32) -> i64 {
        (self.started_at + TimeDelta::seconds(second.into())).timestamp_millis()
    }

    /// The reported seconds of a range.
    pub fn seconds(&self, range: Range<u32>) -> impl Iterator<Item = (u32, &SecondCounts)> {
        let range = range.start..range.end.max(range.start);
        self.seconds.range(range).map(|(number, of)| (*number, of))
    }

    /// The sums over a range of seconds.
    pub fn total(&self, range: Range<u32>) -> SecondCounts {
        let mut all = SecondCounts::default();
        for (_, second) in self.seconds(range) {
            all.merge(second);
        }
        all
    }

    /// Measures whole seconds from the next one on. `begin` starts the meters.
    pub async fn measure(
        &mut self,
        length: Duration,
        begin: impl FnOnce() -> Vec<Meter>,
    ) -> anyhow::Result<Measurement> {
        let from = self.current_second() + 1;
        let to = from + u32::try_from(length.as_secs().max(1))?;
        self.collect_until(from).await?;
        let (meters, driver_meter) = (begin(), self.start_meter());
        self.collect_until(to).await?;
        let spent = meters.iter().map(Meter::spent).collect();
        let drivers = driver_meter.spent();
        // The last second is reported with a delay.
        self.collect_for(SECOND_REPORT_DELAY).await?;
        Ok(Measurement {
            counts: self.total(from..to),
            seconds: from..to,
            spent,
            driver_time: drivers,
        })
    }

    /// Time from a change until a node had its new decision, since
    /// [`DriverPool::watch_decisions`].
    pub const fn decision_latencies(&self) -> &Histogram {
        &self.decision_latencies
    }

    /// Discards the latencies of earlier reports.
    pub fn reset_report_latencies(&mut self) {
        self.report_latencies = Histogram::default();
    }

    /// Latencies of reports, since [`DriverPool::reset_report_latencies`].
    pub const fn report_latencies(&self) -> &Histogram {
        &self.report_latencies
    }

    /// The number of long polls in flight.
    pub fn open_long_polls(&self) -> u32 {
        self.handles.iter().map(|driver| driver.open_long_polls).sum()
    }

    pub fn driver_numbers(&self) -> Range<u32> {
        0..u32::try_from(self.handles.len()).unwrap_or(0)
    }

    /// The number of the driver that simulates a node.
    pub fn driver_of(&self, number: u32) -> u32 {
        number % self.driver_numbers().end.max(1)
    }

    /// Starts to measure the processor time of the drivers.
    fn start_meter(&self) -> Meter {
        Meter::start(self.handles.iter().map(|driver| driver.process.pid()).collect())
    }

    async fn wait_until_opened(&mut self) -> anyhow::Result<()> {
        while self.opened_count < self.handles.len() {
            let event = self.events.recv().await;
            self.record_event(event)?;
        }
        self.opened_count = 0;
        Ok(())
    }

    fn record_event(&mut self, event: Option<DriverEvent>) -> anyhow::Result<()> {
        let (driver_number, message) = event.context("all drivers have ended")?;
        match message.with_context(|| format!("driver {driver_number}"))? {
            DriverMessage::Opened => self.opened_count += 1,
            DriverMessage::Second { number, open_long_polls, counts: of } => {
                let driver = self.handles.get_mut(usize::try_from(driver_number)?);
                let driver =
                    driver.with_context(|| format!("there is no driver {driver_number}"))?;
                driver.open_long_polls = open_long_polls;
                self.decision_latencies.merge(&of.decision_latencies);
                self.report_latencies.merge(&of.report_latencies);
                self.seconds.entry(number).or_default().merge(&of);
            }
        }
        Ok(())
    }
}

async fn write_line(to: &mut ChildStdin, line: &str) -> anyhow::Result<()> {
    to.write_all(line.as_bytes()).await?;
    to.write_all(b"\n").await?;
    Ok(to.flush().await?)
}

/// Forwards the messages of a driver. The end of its output is an error: drivers end only when
/// their standard input ends.
async fn forward_messages(
    driver_number: u32,
    stdout: ChildStdout,
    sender: mpsc::UnboundedSender<DriverEvent>,
) {
    let mut lines = BufReader::new(stdout).lines();
    loop {
        let message = match lines.next_line().await {
            Ok(Some(line)) => serde_json::from_str(&line).map_err(Into::into),
            Ok(None) => Err(anyhow!("the process ended")),
            Err(error) => Err(error.into()),
        };
        let is_finished = message.is_err();
        if sender.send((driver_number, message)).is_err() || is_finished {
            return;
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionShare {
    /// Connections that nodes share.
    pub multiplexed: u32,
    /// Connections that are dedicated to one node each.
    pub dedicated: u32,
    /// Connections of the drivers with lower numbers.
    pub connections_before: u32,
}

/// Distributes connections among drivers.
pub fn share_connections(
    drivers: u32,
    multiplexed: u32,
    dedicated: u32,
) -> anyhow::Result<Vec<ConnectionShare>> {
    ensure!(
        0 < drivers && drivers <= multiplexed,
        "each of {drivers} drivers needs one of the {multiplexed} shared connections"
    );
    let part = |of: u32, n: u32| of / drivers + u32::from(n < of % drivers);
    let mut before = 0;
    let share = |n| {
        let share = ConnectionShare {
            multiplexed: part(multiplexed, n),
            dedicated: part(dedicated, n),
            connections_before: before,
        };
        before += share.multiplexed + share.dedicated;
        share
    };
    Ok((0..drivers).map(share).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_shared_evenly_and_completely() {
        let all = share_connections(3, 64, 20_000).expect("shares");
        let sum = |of: fn(&ConnectionShare) -> u32| all.iter().map(of).sum::<u32>();
        assert_eq!(sum(|share| share.multiplexed), 64);
        assert_eq!(sum(|share| share.dedicated), 20_000);
        assert_eq!(all[0].connections_before, 0);
        assert_eq!(all[2].connections_before, 22 + 6_667 + 21 + 6_667);
        assert!(share_connections(3, 2, 10).is_err(), "a driver has no connection");
    }
}
