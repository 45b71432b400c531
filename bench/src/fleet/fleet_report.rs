//! The report of the fleet benchmark, as a table and as JSON.

use std::fmt::Write as _;
use std::io::Write;

use serde::Serialize;

use super::curve::CurvePoint;
use super::driver_pool::Measurement;
use super::faults::{self, FaultResult};
use crate::measure::as_f64;
use crate::report::{EchoFigures, micros_each, millis, round_figure};

/// The report. Figures that were not requested are null.
#[derive(Clone, Debug, Default, Serialize)]
pub struct FleetReport {
    /// Registered hosts.
    pub hosts: u32,
    /// Servers. Figures of the server are sums over all of them.
    pub servers: u16,
    /// Nodes that call.
    pub nodes: u32,
    pub connections: u32,
    /// Connections that are dedicated to one node each.
    pub dedicated_connections: u32,
    /// Interval between two calls of a node, in seconds.
    pub interval_s: f64,
    /// Duration of the measurement, in seconds.
    pub measured_s: f64,
    /// Answered calls per second.
    pub polls_per_second: f64,
    /// Median of the latency, in milliseconds. Long polls do not count.
    pub p50_ms: Option<f64>,
    /// 99th percentile of the latency, in milliseconds.
    pub p99_ms: Option<f64>,
    /// 99.9th percentile of the latency, in milliseconds.
    pub p99_9_ms: Option<f64>,
    /// Failed calls.
    pub errors: u64,
    /// Calls that were refused with a retry hint.
    pub refused: u64,
    /// Answered calls with changed content.
    pub changes: u64,
    /// Share of polls that the answer cache answered, by the server's metrics.
    pub cache_hit_ratio: Option<f64>,
    /// Processor time of the server per poll, in microseconds.
    pub cpu_us_per_poll_server: f64,
    /// Processor time of Postgres per poll, in microseconds.
    pub cpu_us_per_poll_postgres: f64,
    /// Processor time of the drivers per poll, in microseconds.
    pub cpu_us_per_poll_drivers: f64,
    /// Processor time of the server and Postgres per node and minute, in microseconds.
    pub cpu_us_per_node_minute: f64,
    /// Proportional memory (PSS) of the server, in MiB.
    pub rss_mib_server: f64,
    /// Proportional memory (PSS) of Postgres, in MiB.
    pub rss_mib_postgres: f64,
    /// Resident memory of the server, in MiB.
    pub vm_rss_mib_server: f64,
    /// Resident memory of the server while all nodes shared connections, in MiB.
    pub vm_rss_mib_server_multiplexed: f64,
    /// Growth of the server's memory per dedicated connection, in KiB.
    pub kib_per_dedicated_connection: Option<f64>,
    /// Memory of the answer cache per cached node, in bytes.
    pub bytes_per_node: Option<f64>,
    /// Open long polls.
    pub long_polls: u64,
    /// Time from the start of the server to the first correct answer, in seconds.
    pub first_answer_s: f64,
    /// Time until half of the nodes had an operator's change, in milliseconds.
    pub change_p50_ms: Option<f64>,
    /// Time until 99 of 100 nodes had an operator's change, in milliseconds.
    pub change_p99_ms: Option<f64>,
    /// Nodes that a change did not reach.
    pub change_missed: Option<u64>,
    /// 99th percentile of the latency of reports in a storm, in milliseconds.
    pub reports_p99_ms: Option<f64>,
    /// Attempts of a storm that the database does not have as finished.
    pub lost: Option<u64>,
    /// Time from the restart of the servers until all polls succeeded again, in seconds.
    pub recovered_s: Option<f64>,
    /// Processor time of the server per unchanged poll, in microseconds.
    pub cpu_us_per_unchanged_poll_server: Option<f64>,
    /// Ratio of that to the processor time of the echo.
    pub cpu_of_echo_ratio: Option<f64>,
    /// Figures of the bare echo, in the same run.
    pub echo: Option<EchoFigures>,
    /// Figures second by second: around the restart, otherwise of the measurement.
    pub curve: Vec<CurvePoint>,
    /// Results of the injected faults, in the requested order.
    pub faults: Vec<FaultResult>,
}

impl FleetReport {
    /// Records the calls of the measurement, and their cost.
    pub fn record_calls(&mut self, measurement: &Measurement, nodes: u32) {
        let all = &measurement.counts;
        let polls = all.calls.ok.max(1);
        let nodes = f64::from(nodes);
        let spent = (measurement.spent(0) + measurement.spent(1)).as_secs_f64() * 1e6;
        let latency = |share| all.calls.latencies.percentile(share).map(millis);
        self.measured_s = measurement.length_seconds();
        self.polls_per_second = round_figure(as_f64(all.calls.ok) / measurement.length_seconds());
        self.p50_ms = latency(0.5);
        self.p99_ms = latency(0.99);
        self.p99_9_ms = latency(0.999);
        self.errors = all.calls.failed;
        self.refused = all.calls.refused;
        self.changes = all.changes;
        self.cpu_us_per_poll_server = micros_each(measurement.spent(0), polls);
        self.cpu_us_per_poll_postgres = micros_each(measurement.spent(1), polls);
        self.cpu_us_per_poll_drivers = micros_each(measurement.driver_time, polls);
        self.cpu_us_per_node_minute =
            round_figure(spent / nodes / (measurement.length_seconds() / 60.0));
    }

    /// Whether a call, a change, an attempt or a fault failed.
    pub fn is_bad(&self) -> bool {
        let nothing = |number: Option<u64>| number.unwrap_or(0) == 0;
        let echo = self.echo.as_ref().map(|echo| echo.errors);
        let is_whole = nothing(self.lost) && nothing(self.change_missed) && nothing(echo);
        let do_harm = self.faults.iter().any(FaultResult::is_bad);
        0 < self.errors || !is_whole || do_harm
    }

    /// Prints the report to standard output.
    pub fn print(&self, json: bool, shows_curve: bool) -> anyhow::Result<()> {
        let mut out = std::io::stdout().lock();
        if json {
            serde_json::to_writer(&mut out, self)?;
            return Ok(writeln!(out)?);
        }
        write!(out, "{}", self.render_table()?)?;
        if !self.faults.is_empty() {
            write!(out, "\n{}", faults::render_table(&self.faults)?)?;
        }
        if shows_curve {
            write!(out, "\n{}", render_curve(&self.curve)?)?;
        }
        Ok(())
    }

    /// A line for each available figure. `!` marks figures above their limit.
    fn render_table(&self) -> Result<String, std::fmt::Error> {
        let mut text = format!(
            "{} nodes of {} hosts over {} connections, {} of them dedicated to one node each, to {} server{}\n",
            self.nodes,
            self.hosts,
            self.connections,
            self.dedicated_connections,
            self.servers,
            if self.servers == 1 { "" } else { "s" }
        );
        writeln!(text, "{:<52} {:>12} {:>8}", "", "measured", "limit")?;
        for (what, figure, limit) in self.figure_lines() {
            let Some(figure) = figure else { continue };
            let mark = if limit.is_some_and(|limit| limit < figure) { '!' } else { ' ' };
            let limit = limit.map_or_else(|| "-".to_owned(), |limit| limit.to_string());
            writeln!(text, "{what:<52} {figure:>12.2}{mark}{limit:>8}")?;
        }
        Ok(text)
    }

    fn figure_lines(&self) -> Vec<FigureLine> {
        [self.poll_lines(), self.event_lines(), self.memory_lines()].concat()
    }

    /// Figures of the measured polls.
    fn poll_lines(&self) -> Vec<FigureLine> {
        let count = crate::measure::as_f64;
        let (server, postgres) = (self.cpu_us_per_poll_server, self.cpu_us_per_poll_postgres);
        let unchanged = self.cpu_us_per_unchanged_poll_server;
        vec![
            ("polls per second", Some(self.polls_per_second), None),
            ("p50, ms", self.p50_ms, None),
            ("p99, ms", self.p99_ms, Some(50.0)),
            ("p99.9, ms", self.p99_9_ms, None),
            ("failed", Some(count(self.errors)), Some(0.0)),
            ("refused", Some(count(self.refused)), None),
            ("with changes", Some(count(self.changes)), None),
            ("share answered from the cache", self.cache_hit_ratio, None),
            ("server, µs per poll", Some(server), None),
            ("Postgres, µs per poll", Some(postgres), None),
            ("drivers, µs per poll", Some(self.cpu_us_per_poll_drivers), None),
            ("server, µs per unchanged poll", unchanged, None),
            ("ratio to a bare echo", self.cpu_of_echo_ratio, Some(1.5)),
        ]
    }

    /// Figures of long polls, changes, storms and restarts.
    fn event_lines(&self) -> Vec<FigureLine> {
        let count = crate::measure::as_f64;
        let soon = if self.hosts <= 100_000 { 3.0 } else { 15.0 };
        let idle = (0 < self.long_polls).then_some(self.cpu_us_per_node_minute);
        let (missed, lost) = (self.change_missed.map(count), self.lost.map(count));
        let (half, p99) = (self.change_p50_ms, self.change_p99_ms);
        let first = Some(self.first_answer_s);
        vec![
            ("long polls", Some(count(self.long_polls)), None),
            ("server and Postgres, µs per idle node and minute", idle, Some(20.0)),
            ("time until a change reaches 50% of the nodes, ms", half, None),
            ("time until a change reaches 99% of the nodes, ms", p99, Some(4_000.0)),
            ("nodes that a change did not reach", missed, Some(0.0)),
            ("reports of a storm, p99, ms", self.reports_p99_ms, Some(2_000.0)),
            ("lost attempts of a storm", lost, Some(0.0)),
            ("from start to first answer, s", first, Some(soon)),
            ("until all calls succeed after a restart, s", self.recovered_s, None),
        ]
    }

    fn memory_lines(&self) -> Vec<FigureLine> {
        let shared = Some(self.vm_rss_mib_server_multiplexed);
        let dedicated = self.kib_per_dedicated_connection;
        vec![
            ("server, MiB resident", Some(self.vm_rss_mib_server), None),
            ("server, MiB resident with shared connections only", shared, Some(512.0)),
            ("KiB per dedicated connection", dedicated, Some(36.0)),
            ("bytes of the answer cache per node", self.bytes_per_node, Some(128.0)),
            ("Postgres, MiB", Some(self.rss_mib_postgres), None),
        ]
    }
}

/// A line of the table: label, figure, and limit.
type FigureLine = (&'static str, Option<f64>, Option<f64>);

/// A table with one line per second.
pub fn render_curve(curve: &[CurvePoint]) -> Result<String, std::fmt::Error> {
    let mut text = format!(
        "{:>6} {:>8} {:>8} {:>8} {:>10} {:>10}\n",
        "s", "ok", "refused", "failed", "p99 ms", "interval s"
    );
    let figure = |figure: Option<f64>| figure.map_or_else(|| "-".to_owned(), |f| format!("{f:.1}"));
    for point in curve {
        writeln!(
            text,
            "{:>6} {:>8} {:>8} {:>8} {:>10} {:>10}",
            point.s,
            point.ok,
            point.refused,
            point.failed,
            figure(point.p99_ms),
            figure(point.interval_s),
        )?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_above_their_limit_are_marked_and_missing_ones_are_omitted() {
        let report = FleetReport { p99_ms: Some(80.0), ..FleetReport::default() };
        let text = report.render_table().expect("a text");
        let line = |what: &str| text.lines().find(|line| line.starts_with(what));
        assert!(line("p99, ms").is_some_and(|line| line.contains("80.00!")), "{text}");
        assert!(line("failed").is_some_and(|line| line.contains("0.00 ")), "{text}");
        assert_eq!(line("time until a change"), None, "{text}");
    }

    #[test]
    fn a_lost_attempt_is_as_bad_as_a_failed_call() {
        let report = |errors, lost| FleetReport { errors, lost, ..FleetReport::default() };
        assert!(!report(0, None).is_bad() && !report(0, Some(0)).is_bad());
        assert!(report(1, None).is_bad() && report(0, Some(1)).is_bad());
    }
}
