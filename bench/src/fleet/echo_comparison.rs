//! Compares the cost of unchanged polls with the cost of a bare echo. The speed of a shared machine
//! varies within seconds, so server and echo take turns of some seconds each. Periodic work of the
//! servers, such as writing the times of last contact, counts only if it falls into a turn.

use std::time::Duration;

use evenkeel_auth::CertificateAuthority;

use super::driver_pool::{DriverPool, Measurement};
use super::driver_protocol::{CallCounts, DriverCommand, DriverPlan};
use crate::bench_harness::BenchHarness;
use crate::children::MeasuredProcess;
use crate::echo::{self, EchoAnswers};
use crate::measure::{Meter, as_f64};
use crate::report::{EchoFigures, micros_each, millis, round_figure};

const TURN_DURATION: Duration = Duration::from_secs(5);

/// Minimum and maximum number of turns.
const TURN_COUNT_LIMITS: (u32, u32) = (1, 6);

/// Number of turns for a measurement of this duration.
pub fn turn_count(length: Duration) -> u32 {
    let turns = length.as_secs() / TURN_DURATION.as_secs();
    u32::try_from(turns)
        .map_or(TURN_COUNT_LIMITS.1, |turns| turns.clamp(TURN_COUNT_LIMITS.0, TURN_COUNT_LIMITS.1))
}

/// One echo for each server, and drivers of the same nodes over as many connections.
pub struct EchoFleet {
    processes: Vec<MeasuredProcess>,
    drivers: DriverPool,
}

/// Totals over some turns.
#[derive(Debug, Default)]
struct TurnTotals {
    calls: CallCounts,
    spent: Duration,
    seconds: f64,
}

impl TurnTotals {
    fn add(&mut self, measurement: &Measurement) {
        self.calls.merge(&measurement.counts.calls);
        self.spent += measurement.spent(0);
        self.seconds += measurement.length_seconds();
    }

    /// Processor time per answered call, in microseconds.
    fn micros_per_call(&self) -> f64 {
        micros_each(self.spent, self.calls.ok.max(1))
    }
}

/// Result of the comparison.
pub struct EchoComparison {
    /// Processor time of the servers per unchanged poll, in microseconds.
    pub micros_per_unchanged_poll: f64,
    pub echo: EchoFigures,
}

impl EchoFleet {
    /// Starts an echo for each server. `plans` creates the driver plans from the echo addresses.
    pub async fn start(
        harness: &BenchHarness,
        (ca, answers): (&CertificateAuthority, &EchoAnswers),
        servers: u16,
        plans: impl FnOnce(&[&str]) -> anyhow::Result<Vec<DriverPlan>>,
    ) -> anyhow::Result<Self> {
        let (mut processes, mut addresses) = (Vec::new(), Vec::new());
        for number in 0..servers {
            let (echo, address) = echo::start(harness.folder(), number, ca, answers).await?;
            processes.push(echo);
            addresses.push(address);
        }
        let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
        let mut drivers = DriverPool::start(&plans(&addresses)?).await?;
        drivers.open_dedicated_connections().await?;
        Ok(Self { processes, drivers })
    }

    /// Lets every node call the echo once, then pauses the nodes.
    pub async fn warm_up(&mut self, interval: Duration, round: Duration) -> anyhow::Result<()> {
        self.drivers.begin(interval).await?;
        self.drivers.collect_for(round).await?;
        self.drivers.send_command(&DriverCommand::Pause).await
    }

    /// Measures the servers and the echo by turns. All nodes are paused before and after.
    pub async fn compare(
        mut self,
        harness: &BenchHarness,
        drivers: &mut DriverPool,
        turns: u32,
    ) -> anyhow::Result<EchoComparison> {
        let (mut ours, mut bare) = (TurnTotals::default(), TurnTotals::default());
        let pids: Vec<_> = self.processes.iter().map(MeasuredProcess::pid).collect();
        for _ in 0..turns {
            ours.add(&run_turn(drivers, || vec![harness.meters().0]).await?);
            let meter = || vec![Meter::start(pids.clone())];
            bare.add(&run_turn(&mut self.drivers, meter).await?);
        }
        let latency = |share| bare.calls.latencies.percentile(share).map_or(0.0, millis);
        let echo = EchoFigures {
            polls_per_second: round_figure(as_f64(bare.calls.ok) / bare.seconds),
            p50_ms: latency(0.5),
            p99_ms: latency(0.99),
            errors: bare.calls.failed + bare.calls.refused,
            cpu_us_per_poll_server: bare.micros_per_call(),
            rss_mib_server: round_figure(Meter::start(pids).pss_mib()),
        };
        Ok(EchoComparison { micros_per_unchanged_poll: ours.micros_per_call(), echo })
    }
}

/// Resumes paused nodes for one turn.
async fn run_turn(
    drivers: &mut DriverPool,
    begin: impl FnOnce() -> Vec<Meter>,
) -> anyhow::Result<Measurement> {
    drivers.send_command(&DriverCommand::Resume).await?;
    let measurement = drivers.measure(TURN_DURATION, begin).await?;
    drivers.send_command(&DriverCommand::Pause).await?;
    Ok(measurement)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_longer_measurement_has_more_turns_up_to_a_limit() {
        let of = |seconds| turn_count(Duration::from_secs(seconds));
        assert_eq!([of(1), of(12), of(30), of(3_600)], [1, 2, 6, 6]);
    }
}
