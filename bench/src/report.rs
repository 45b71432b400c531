//! Figures, for people and for programs.

use std::io::Write;
use std::time::Duration;

use serde::Serialize;

use crate::load::Outcome;
use crate::measure::{Meter, as_f64};

/// The figures of one round.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    /// Registered hosts.
    pub hosts: usize,
    /// Connections.
    pub connections: usize,
    /// Polls answered a second.
    pub polls_per_second: f64,
    /// Half of the polls took no longer, in milliseconds.
    pub p50_ms: f64,
    /// 99 of 100 polls took no longer, in milliseconds.
    pub p99_ms: f64,
    /// Polls that failed.
    pub errors: u64,
    /// Processor time of the server for one poll, in microseconds.
    pub cpu_us_per_poll_server: f64,
    /// Processor time of Postgres for one poll, in microseconds.
    pub cpu_us_per_poll_postgres: f64,
    /// Memory of the server, in MiB.
    pub rss_mib_server: f64,
    /// Memory of Postgres, in MiB.
    pub rss_mib_postgres: f64,
}

/// The same polls, answered by a bare echo.
#[derive(Clone, Debug, Serialize)]
pub struct EchoFigures {
    /// Polls answered a second.
    pub polls_per_second: f64,
    /// Half of the polls took no longer, in milliseconds.
    pub p50_ms: f64,
    /// 99 of 100 polls took no longer, in milliseconds.
    pub p99_ms: f64,
    /// Polls that failed.
    pub errors: u64,
    /// Processor time of the echo for one poll, in microseconds.
    pub cpu_us_per_poll_server: f64,
    /// Memory of the echo, in MiB.
    pub rss_mib_server: f64,
}

/// All that one run found.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The figures of the largest fleet.
    #[serde(flatten)]
    pub last: Figures,
    /// The figures of every fleet, smallest first.
    pub rounds: Vec<Figures>,
    /// The bare echo, in the same run.
    pub echo: EchoFigures,
}

impl Figures {
    /// The figures of a round.
    pub fn of(
        hosts: usize,
        connections: usize,
        outcome: &Outcome,
        server: &Meter,
        postgres: &Meter,
    ) -> Self {
        let polls = outcome.latencies.len().max(1);
        Self {
            hosts,
            connections,
            polls_per_second: per_second(outcome),
            p50_ms: millis(outcome.percentile(0.5)),
            p99_ms: millis(outcome.percentile(0.99)),
            errors: outcome.errors,
            cpu_us_per_poll_server: each(server.spent(), polls),
            cpu_us_per_poll_postgres: each(postgres.spent(), polls),
            rss_mib_server: tidy(server.rss_mib()),
            rss_mib_postgres: tidy(postgres.rss_mib()),
        }
    }
}

impl EchoFigures {
    /// The figures of the echo.
    pub fn of(outcome: &Outcome, echo: &Meter) -> Self {
        Self {
            polls_per_second: per_second(outcome),
            p50_ms: millis(outcome.percentile(0.5)),
            p99_ms: millis(outcome.percentile(0.99)),
            errors: outcome.errors,
            cpu_us_per_poll_server: each(echo.spent(), outcome.latencies.len().max(1)),
            rss_mib_server: tidy(echo.rss_mib()),
        }
    }
}

impl Report {
    /// Prints the report.
    ///
    /// # Errors
    /// Standard output is gone.
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

fn per_second(outcome: &Outcome) -> f64 {
    tidy(as_f64(outcome.latencies.len() as u64) / outcome.elapsed.as_secs_f64().max(1e-9))
}

/// In milliseconds.
pub fn millis(length: Duration) -> f64 {
    tidy(length.as_secs_f64() * 1e3)
}

/// What each of so many cost, in microseconds.
pub fn each(spent: Duration, count: usize) -> f64 {
    tidy(spent.as_secs_f64() * 1e6 / as_f64(count as u64))
}

/// Three places are more than the machine is worth.
pub fn tidy(figure: f64) -> f64 {
    (figure * 1e3).round() / 1e3
}

/// The benchmark's own words go to standard error, so that `--json` stays alone on standard output.
pub fn remark(text: &str) {
    let mut err = std::io::stderr().lock();
    // There is nobody left to tell if this does not work.
    let _ = writeln!(err, "{text}");
}
