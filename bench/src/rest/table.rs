//! The report of the REST benchmark, as a table and as JSON.

use std::fmt::Write as _;
use std::io::Write;

use serde::Serialize;

use super::full_lists::FullListFigures;
use super::probes::Probe;
use crate::load::LoadOutcome;
use crate::measure::Meter;
use crate::report::{micros_each, millis};

/// Maximum number of hosts of a fleet for which the targets apply.
const MAX_HOSTS_WITH_TARGETS: usize = 100_000;

/// Figures of one kind of requests.
#[derive(Clone, Debug, Serialize)]
pub struct RequestFigures {
    /// Description of the request.
    pub what: &'static str,
    /// Target for the 99th percentile of the latency, in milliseconds; null if there is none.
    pub target_p99_ms: Option<f64>,
    /// Median of the latency, in milliseconds.
    pub p50_ms: f64,
    /// 99th percentile of the latency, in milliseconds.
    pub p99_ms: f64,
    /// Processor time of the server per request, in microseconds.
    pub cpu_us_server: f64,
    /// Processor time of Postgres per request, in microseconds.
    pub cpu_us_postgres: f64,
    /// Number of answered requests.
    pub requests: u64,
    /// Number of failed requests.
    pub errors: u64,
}

#[derive(Clone, Debug, Serialize)]
pub struct FleetRound {
    /// Number of hosts.
    pub hosts: u32,
    /// Duration of seeding, in seconds.
    pub fill_seconds: f64,
    /// Figures by kind of requests.
    pub requests: Vec<RequestFigures>,
    pub lists: Vec<FullListFigures>,
}

/// The report of the REST benchmark.
#[derive(Clone, Debug, Serialize)]
pub struct RestReport {
    /// The fleets, smallest first.
    pub rounds: Vec<FleetRound>,
}

impl RequestFigures {
    /// Calculates the figures from the outcome and the cost of the server and Postgres.
    pub fn from_outcome(
        probe: &Probe,
        hosts: usize,
        outcome: &LoadOutcome,
        (server, postgres): (&Meter, &Meter),
    ) -> Self {
        let count = outcome.latencies.count();
        Self {
            what: probe.what,
            target_p99_ms: probe.target_ms.filter(|_| hosts <= MAX_HOSTS_WITH_TARGETS),
            p50_ms: millis(outcome.percentile(0.5)),
            p99_ms: millis(outcome.percentile(0.99)),
            cpu_us_server: micros_each(server.spent(), count.max(1)),
            cpu_us_postgres: micros_each(postgres.spent(), count.max(1)),
            requests: count,
            errors: outcome.errors,
        }
    }

    fn missed_target(&self) -> Option<f64> {
        self.target_p99_ms.filter(|target| self.p99_ms > *target)
    }
}

impl RestReport {
    /// Failed requests and missed targets, one line each.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        for round in &self.rounds {
            for figures in &round.requests {
                let what = format!("{} hosts: {}", round.hosts, figures.what);
                if figures.errors > 0 || figures.requests == 0 {
                    let (errors, requests) = (figures.errors, figures.requests);
                    problems.push(format!("{what}: {errors} failed, {requests} were answered"));
                }
                if let Some(target) = figures.missed_target() {
                    let p99 = figures.p99_ms;
                    problems.push(format!("{what}: p99 is {p99:.1} ms, the target is {target} ms"));
                }
            }
        }
        problems
    }

    /// Prints the report to standard output.
    pub fn print(&self, json: bool) -> anyhow::Result<()> {
        let mut out = std::io::stdout().lock();
        if json {
            serde_json::to_writer(&mut out, self)?;
            return Ok(writeln!(out)?);
        }
        write!(out, "{}", self.render_requests()?)?;
        writeln!(out)?;
        Ok(write!(out, "{}", self.render_lists()?)?)
    }

    /// A line for each kind of requests, with the fleets side by side. `!` marks missed targets.
    fn render_requests(&self) -> Result<String, std::fmt::Error> {
        let mut text = format!("{:<33} {:>8}", "", "");
        for round in &self.rounds {
            let hosts = format!("{} hosts", round.hosts);
            write!(text, " | {hosts:<39}")?;
        }
        write!(text, "\n{:<33} {:>8}", "", "target")?;
        for _ in &self.rounds {
            let [p50, p99, server, postgres] = ["p50 ms", "p99 ms", "server µs", "postgres µs"];
            write!(text, " | {p50:>7} {p99:>8}  {server:>9} {postgres:>11}")?;
        }
        text.push('\n');
        let kinds = self.rounds.iter().map(|round| round.requests.len());
        for kind in 0..kinds.max().unwrap_or(0) {
            let of_kind = self.rounds.iter().map(|round| round.requests.get(kind));
            let of_kind: Vec<_> = of_kind.flatten().collect();
            write_line(&mut text, &of_kind)?;
        }
        Ok(text)
    }

    /// A line for each full list.
    fn render_lists(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        writeln!(
            text,
            "{:<16} {:>8} {:>8} {:>8} {:>8} {:>14} {:>16} {:>28}",
            "",
            "items",
            "MiB",
            "seconds",
            "MiB/s",
            "server µs/item",
            "postgres µs/item",
            "server MiB before/peak/after"
        )?;
        for list in self.rounds.iter().flat_map(|round| &round.lists) {
            let (before, peak) = (list.rss_mib_before, list.rss_mib_peak);
            let memory = format!("{before:.0} / {peak:.0} / {:.0}", list.rss_mib_after);
            writeln!(
                text,
                "{:<16} {:>8} {:>8.1} {:>8.2} {:>8.1} {:>14.1} {:>16.1} {memory:>28}",
                list.what,
                list.items,
                list.mib,
                list.seconds,
                list.mib_per_second,
                list.cpu_us_per_item_server,
                list.cpu_us_per_item_postgres,
            )?;
        }
        Ok(text)
    }
}

/// Writes the figures of one kind of requests for each fleet.
fn write_line(text: &mut String, fleets: &[&RequestFigures]) -> std::fmt::Result {
    let what = fleets.first().map_or("", |figures| figures.what);
    let target = fleets.iter().find_map(|figures| figures.target_p99_ms);
    let target = target.map_or_else(|| "-".to_owned(), |target| target.to_string());
    write!(text, "{what:<33} {target:>8}")?;
    for figures in fleets {
        let mark = if figures.missed_target().is_some() { '!' } else { ' ' };
        write!(
            text,
            " | {:>7.2} {:>8.2}{mark} {:>9.0} {:>11.0}",
            figures.p50_ms, figures.p99_ms, figures.cpu_us_server, figures.cpu_us_postgres
        )?;
    }
    text.push('\n');
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(hosts: u32, p99_ms: f64, errors: u64) -> FleetRound {
        let figures = RequestFigures {
            what: "get a host",
            target_p99_ms: Some(2.0),
            p50_ms: 0.5,
            p99_ms,
            cpu_us_server: 120.0,
            cpu_us_postgres: 210.0,
            requests: 1_000,
            errors,
        };
        FleetRound { hosts, fill_seconds: 1.0, requests: vec![figures], lists: Vec::new() }
    }

    #[test]
    fn fleets_are_side_by_side_and_missed_targets_are_marked() {
        let report = RestReport { rounds: vec![round(1_000, 0.9, 0), round(100_000, 2.5, 0)] };
        let text = report.render_requests().expect("a text");
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 3, "{text}");
        assert!(lines[0].contains("| 1000 hosts") && lines[0].contains("| 100000 hosts"));
        let cells: Vec<_> = lines[2].split_whitespace().collect();
        let (left, right) = (["0.50", "0.90", "120", "210"], ["0.50", "2.50!", "120", "210"]);
        assert_eq!(cells[..4], ["get", "a", "host", "2"]);
        assert_eq!((&cells[5..9], &cells[10..]), (&left[..], &right[..]));
        let length = |line: &str| line.chars().count();
        assert!(lines[1..].iter().all(|line| length(line) == length(lines[0])), "{text}");
    }

    #[test]
    fn problems_are_listed() {
        let report = RestReport { rounds: vec![round(1_000, 2.0, 0), round(100_000, 2.5, 3)] };
        assert_eq!(
            report.problems(),
            [
                "100000 hosts: get a host: 3 failed, 1000 were answered",
                "100000 hosts: get a host: p99 is 2.5 ms, the target is 2 ms",
            ]
        );
    }
}
