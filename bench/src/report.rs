//! The report of the poll benchmark, and helpers for all reports.

use std::io::Write;
use std::time::Duration;

use serde::Serialize;

use crate::load::LoadOutcome;
use crate::measure::{Meter, as_f64};

/// Figures of one round.
#[derive(Clone, Debug, Serialize)]
pub struct PollFigures {
    /// Registered hosts.
    pub hosts: usize,
    pub connections: usize,
    /// Answered polls per second.
    pub polls_per_second: f64,
    /// Median of the latency, in milliseconds.
    pub p50_ms: f64,
    /// 99th percentile of the latency, in milliseconds.
    pub p99_ms: f64,
    /// Failed polls.
    pub errors: u64,
    /// Processor time of the server per poll, in microseconds.
    pub cpu_us_per_poll_server: f64,
    /// Processor time of Postgres per poll, in microseconds.
    pub cpu_us_per_poll_postgres: f64,
    /// Memory (PSS) of the server, in MiB.
    pub rss_mib_server: f64,
    /// Memory (PSS) of Postgres, in MiB.
    pub rss_mib_postgres: f64,
}

/// Figures of a bare echo with the same polls.
#[derive(Clone, Debug, Serialize)]
pub struct EchoFigures {
    /// Answered polls per second.
    pub polls_per_second: f64,
    /// Median of the latency, in milliseconds.
    pub p50_ms: f64,
    /// 99th percentile of the latency, in milliseconds.
    pub p99_ms: f64,
    /// Failed polls.
    pub errors: u64,
    /// Processor time of the echo per poll, in microseconds.
    pub cpu_us_per_poll_server: f64,
    /// Memory (PSS) of the echo, in MiB.
    pub rss_mib_server: f64,
}

/// The report of the poll benchmark.
#[derive(Clone, Debug, Serialize)]
pub struct PollReport {
    /// Figures of the last fleet.
    #[serde(flatten)]
    pub last: PollFigures,
    /// Figures of every fleet, in the given order.
    pub rounds: Vec<PollFigures>,
    /// Figures of the bare echo, in the same run.
    pub echo: EchoFigures,
}

impl PollFigures {
    /// Calculates the figures of a round.
    pub fn from_outcome(
        hosts: usize,
        connections: usize,
        outcome: &LoadOutcome,
        server: &Meter,
        postgres: &Meter,
    ) -> Self {
        let polls = outcome.latencies.count().max(1);
        Self {
            hosts,
            connections,
            polls_per_second: polls_per_second(outcome),
            p50_ms: millis(outcome.percentile(0.5)),
            p99_ms: millis(outcome.percentile(0.99)),
            errors: outcome.errors,
            cpu_us_per_poll_server: micros_each(server.spent(), polls),
            cpu_us_per_poll_postgres: micros_each(postgres.spent(), polls),
            rss_mib_server: round_figure(server.pss_mib()),
            rss_mib_postgres: round_figure(postgres.pss_mib()),
        }
    }
}

impl EchoFigures {
    /// Calculates the figures of the echo.
    pub fn from_outcome(outcome: &LoadOutcome, echo: &Meter) -> Self {
        Self {
            polls_per_second: polls_per_second(outcome),
            p50_ms: millis(outcome.percentile(0.5)),
            p99_ms: millis(outcome.percentile(0.99)),
            errors: outcome.errors,
            cpu_us_per_poll_server: micros_each(echo.spent(), outcome.latencies.count().max(1)),
            rss_mib_server: round_figure(echo.pss_mib()),
        }
    }
}

impl PollReport {
    /// Prints the report to standard output.
    pub fn print(&self, json: bool) -> anyhow::Result<()> {
        let mut out = std::io::stdout().lock();
        if json {
            serde_json::to_writer(&mut out, self)?;
            return Ok(writeln!(out)?);
        }
        writeln!(
            out,
            "{:>10} {:>9} {:>8} {:>8} {:>7} {:>11} {:>13} {:>11} {:>13}",
            "hosts",
            "polls/s",
            "p50 ms",
            "p99 ms",
            "errors",
            "server µs",
            "postgres µs",
            "server MiB",
            "postgres MiB"
        )?;
        for round in &self.rounds {
            writeln!(
                out,
                "{:>10} {:>9.0} {:>8.2} {:>8.2} {:>7} {:>11.1} {:>13.1} {:>11.1} {:>13.1}",
                round.hosts,
                round.polls_per_second,
                round.p50_ms,
                round.p99_ms,
                round.errors,
                round.cpu_us_per_poll_server,
                round.cpu_us_per_poll_postgres,
                round.rss_mib_server,
                round.rss_mib_postgres,
            )?;
        }
        let echo = &self.echo;
        writeln!(
            out,
            "{:>10} {:>9.0} {:>8.2} {:>8.2} {:>7} {:>11.1} {:>13} {:>11.1} {:>13}",
            "bare echo",
            echo.polls_per_second,
            echo.p50_ms,
            echo.p99_ms,
            echo.errors,
            echo.cpu_us_per_poll_server,
            "-",
            echo.rss_mib_server,
            "-",
        )?;
        Ok(())
    }
}

fn polls_per_second(outcome: &LoadOutcome) -> f64 {
    round_figure(as_f64(outcome.latencies.count()) / outcome.elapsed.as_secs_f64().max(1e-9))
}

/// Converts a duration to milliseconds, rounded to 3 decimal places.
pub fn millis(length: Duration) -> f64 {
    round_figure(length.as_secs_f64() * 1e3)
}

/// Processor time per item, in microseconds.
pub fn micros_each(spent: Duration, count: u64) -> f64 {
    round_figure(spent.as_secs_f64() * 1e6 / as_f64(count))
}

/// Rounds to 3 decimal places.
pub fn round_figure(figure: f64) -> f64 {
    (figure * 1e3).round() / 1e3
}

/// Prints a status message to standard error: standard output is reserved for the report.
pub fn print_status(text: &str) {
    let mut err = std::io::stderr().lock();
    // A message that cannot be printed is dropped.
    let _ = writeln!(err, "{text}");
}
