//! Runs the faults one after the other: some time without the fault, and as long with it.

use std::time::Duration;

use anyhow::Context as _;

use super::super::curve;
use super::super::driver_pool::{DriverPool, Measurement};
use super::super::driver_protocol::{DriverCommand, SecondCounts};
use super::super::storm::{self, StormSpec};
use super::super::{FleetBench, connect};
use super::Fault;
use super::figures::{FaultResult, HealthyFigures, ReturnResult};
use super::unknown_clients::{ClientBehaviour, UnknownClients};
use crate::report::{millis, print_status, round_figure};

/// How long to wait for the last effects of a fault. Requests are at most 2 seconds late.
const FAULT_SETTLE_TIME: Duration = Duration::from_secs(5);

/// Seconds before a return that its curve includes.
const SECONDS_BEFORE_RETURN: u32 = 5;

impl FleetBench<'_> {
    /// Runs all requested faults.
    pub async fn run_faults(&mut self) -> anyhow::Result<()> {
        let args = &self.args.faults;
        for fault in &args.faults {
            print_status(&format!("injecting the fault {}", fault.name()));
            let result = match fault {
                Fault::Loss | Fault::Duplication | Fault::Reorder => {
                    self.run_call_fault(*fault).await?
                }
                Fault::Skew => self.run_clock_skew().await?,
                Fault::HalfOpen => {
                    self.run_unknown_clients(*fault, ClientBehaviour::SILENT).await?
                }
                Fault::SlowReaders => {
                    self.run_unknown_clients(*fault, ClientBehaviour::SLOW).await?
                }
                Fault::Return => self.run_return().await?,
            };
            result.ensure_injected()?;
            self.report.faults.push(result);
        }
        Ok(())
    }

    /// Injects faults into calls.
    async fn run_call_fault(&mut self, fault: Fault) -> anyhow::Result<FaultResult> {
        let args = &self.args.faults;
        let before = self.measure_baseline(fault).await?;
        self.drivers.send_command(&args.call_fault_command(fault)).await?;
        let with = self.measure_slice(args.fault_duration).await?;
        self.drivers.send_command(&DriverCommand::ClearFaults).await?;
        let faults = with.counts.injected;
        let injected = match fault {
            Fault::Loss => faults.lost,
            Fault::Duplication => faults.duplicated,
            _ => faults.late,
        };
        self.finish_measured(before, injected, &with).await
    }

    /// Nodes with wrong clocks report attempts.
    async fn run_clock_skew(&mut self) -> anyhow::Result<FaultResult> {
        let args = &self.args.faults;
        let own = u32::try_from(self.node_list.own_nodes().count())?;
        let spec = StormSpec {
            count: args.affected_nodes(own),
            within: args.fault_duration,
            wrong_clocks: true,
        };
        let before = self.measure_baseline(Fault::Skew).await?;
        storm::start(&self.harness, &mut self.drivers, &self.node_list, spec).await?;
        let with = self.measure_slice(args.fault_duration).await?;
        let outcome =
            storm::finish(&self.harness, &mut self.drivers, &self.node_list, spec).await?;
        let result = self.finish_measured(before, spec.count.into(), &with).await?;
        Ok(FaultResult {
            lost: Some(outcome.records.lost),
            misdated: Some(outcome.records.misdated),
            ..result
        })
    }

    /// Unknown clients connect next to the fleet.
    async fn run_unknown_clients(
        &mut self,
        fault: Fault,
        behaviours: &'static [ClientBehaviour],
    ) -> anyhow::Result<FaultResult> {
        let args = &self.args.faults;
        let count = usize::try_from(args.unknown_client_count(fault))?;
        let mut credentials = self.node_list.spare_credentials(&self.harness)?;
        credentials.truncate(count);
        let address = self.harness.address("southbound")?.parse()?;
        let authority = self.harness.authority()?;
        let dialer = connect::Dialer::new(address, authority.certificate_pem())?;
        let before = self.measure_baseline(fault).await?;
        let first = self.args.total_connections();
        let mut clients = None;
        // Clients act mostly when they start, so they start with the measurement.
        let connect = || {
            clients =
                Some(UnknownClients::start(behaviours, dialer.tls_dialer(), first, credentials));
            Vec::new()
        };
        let with = self.drivers.measure(args.fault_duration, connect).await?;
        let mut clients = clients.context("the unknown clients did not start")?;
        let connections = clients.summarize();
        drop(clients);
        let injected = connections.iter().map(|group| group.established).sum();
        let result = self.finish_measured(before, injected, &with).await?;
        Ok(FaultResult { connections, ..result })
    }

    /// Half of the fleet disconnects, and comes back within a second.
    async fn run_return(&mut self) -> anyhow::Result<FaultResult> {
        let args = &self.args.faults;
        let before = self.measure_baseline(Fault::Return).await?;
        let from = before.end_second;
        self.drivers.send_command(&DriverCommand::Disconnect).await?;
        self.drivers.collect_for(args.away).await?;
        let zero = self.drivers.current_second() + 2;
        let at = self.drivers.second_start_millis(zero);
        self.drivers.send_command(&DriverCommand::Reconnect { at }).await?;
        let disconnected =
            move |drivers: &DriverPool| count_nodes(drivers, from, |second| second.disconnected);
        let are_all_back = |drivers: &DriverPool| {
            disconnected(drivers) <= count_nodes(drivers, zero, |second| second.reconnected)
        };
        let is_bad = |second: &SecondCounts| curve::has_failures(second) || 0 < second.reconnected;
        let interval = self.args.interval;
        let recovered =
            curve::wait_for_recovery(&mut self.drivers, zero, interval, is_bad, are_all_back)
                .await?;
        self.drivers.send_command(&DriverCommand::ClearFaults).await?;
        let end = recovered.unwrap_or_else(|| self.drivers.current_second());
        let during = self.drivers.total(zero..end);
        let seconds = f64::from(end.saturating_sub(zero));
        let mut all = during.calls.clone();
        all.merge(&during.returned);
        let range = zero.saturating_sub(SECONDS_BEFORE_RETURN)..self.drivers.current_second();
        let returned = ReturnResult {
            away_s: round_figure(args.away.as_secs_f64()),
            recovered_s: recovered.map(|second| f64::from(second - zero)),
            calls: HealthyFigures::from_calls(&during.returned, seconds),
            p99_ms: all.latencies.percentile(0.99).map(millis),
            curve: curve::build_curve(&self.drivers, range, zero),
        };
        let injected = disconnected(&self.drivers);
        let with = HealthyFigures::from_calls(&during.calls, seconds);
        let result = self.build_result(before, injected, with).await?;
        Ok(FaultResult { returned: Some(returned), ..result })
    }

    /// Measures before a fault.
    async fn measure_baseline(&mut self, fault: Fault) -> anyhow::Result<FaultBaseline> {
        let measurement = self.measure_slice(self.args.faults.fault_duration).await?;
        self.harness.reset_peak()?;
        Ok(FaultBaseline {
            fault,
            without: HealthyFigures::from_calls(
                &measurement.counts.calls,
                measurement.length_seconds(),
            ),
            end_second: measurement.seconds.end,
            rss_mib: self.harness.rss_mib(),
        })
    }

    /// Completes the result of a fault during which a slice was measured.
    async fn finish_measured(
        &mut self,
        before: FaultBaseline,
        injected: u64,
        with: &Measurement,
    ) -> anyhow::Result<FaultResult> {
        let with = HealthyFigures::from_calls(&with.counts.calls, with.length_seconds());
        self.build_result(before, injected, with).await
    }

    async fn build_result(
        &mut self,
        before: FaultBaseline,
        injected: u64,
        with: HealthyFigures,
    ) -> anyhow::Result<FaultResult> {
        let grown = self.harness.peak_mib() - before.rss_mib;
        self.drivers.collect_for(FAULT_SETTLE_TIME).await?;
        let since = before.end_second..self.drivers.current_second();
        let calls = self.drivers.total(since).calls;
        Ok(FaultResult {
            fault: before.fault,
            injected,
            without: before.without,
            with: HealthyFigures { errors: calls.failed, refused: calls.refused, ..with },
            grown_mib_server: round_figure(grown.max(0.0)),
            connections: Vec::new(),
            lost: None,
            misdated: None,
            returned: None,
        })
    }
}

/// Figures before a fault.
struct FaultBaseline {
    fault: Fault,
    without: HealthyFigures,
    /// The first second after the measurement. Later failures are attributed to the fault.
    end_second: u32,
    /// Memory of the servers, in MiB.
    rss_mib: f64,
}

/// Sums a count over all seconds from one on.
fn count_nodes(drivers: &DriverPool, from: u32, of: impl Fn(&SecondCounts) -> u64) -> u64 {
    let seconds = drivers.seconds(from..drivers.current_second().saturating_add(1));
    seconds.map(|(_, second)| of(second)).sum()
}
