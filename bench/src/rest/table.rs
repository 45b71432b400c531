//! What was found, for people and for programs.

use std::fmt::Write as _;
use std::io::Write;

use serde::Serialize;

use super::probes::Probe;
use super::whole::Whole;
use crate::load::Outcome;
use crate::measure::Meter;
use crate::report::{each, millis};

/// The targets are for fleets of up to so many hosts.
const TARGETS_UP_TO: usize = 100_000;

/// What requests of one kind take and cost.
#[derive(Clone, Debug, Serialize)]
pub struct Figures {
    /// What was asked for.
    pub what: &'static str,
    /// What 99 of 100 may take at most, in milliseconds; none if there is no target.
    pub target_p99_ms: Option<f64>,
    /// Half of the requests took no longer, in milliseconds.
    pub p50_ms: f64,
    /// 99 of 100 requests took no longer, in milliseconds.
    pub p99_ms: f64,
    /// Processor time of the server for one request, in microseconds.
    pub cpu_us_server: f64,
    /// Processor time of Postgres for one request, in microseconds.
    pub cpu_us_postgres: f64,
    /// How many requests were answered.
    pub requests: usize,
    /// How many requests failed.
    pub errors: u64,
}

/// What was found with one fleet.
#[derive(Clone, Debug, Serialize)]
pub struct Round {
    /// How many hosts it has.
    pub hosts: u32,
    /// How long it took to make it.
    pub fill_seconds: f64,
    /// One kind of requests after the other.
    pub requests: Vec<Figures>,
    /// Whole lists.
    pub lists: Vec<Whole>,
}

/// All that one run found.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The fleets, smallest first.
    pub rounds: Vec<Round>,
}

impl Figures {
    /// The figures of what came of requests, with what the server and Postgres spent on them.
    pub fn of(
        probe: &Probe,
        hosts: usize,
        outcome: &Outcome,
        (server, postgres): (&Meter, &Meter),
    ) -> Self {
        let count = outcome.latencies.len();
        Self {
            what: probe.what,
            target_p99_ms: probe.target_ms.filter(|_| hosts <= TARGETS_UP_TO),
            p50_ms: millis(outcome.percentile(0.5)),
            p99_ms: millis(outcome.percentile(0.99)),
            cpu_us_server: each(server.spent(), count.max(1)),
            cpu_us_postgres: each(postgres.spent(), count.max(1)),
            requests: count,
            errors: outcome.errors,
        }
    }

    fn missed(&self) -> Option<f64> {
        self.target_p99_ms.filter(|target| self.p99_ms > *target)
    }
}

impl Report {
    /// What is not as it should be, a line for each.
    pub fn bad(&self) -> Vec<String> {
        let mut bad = Vec::new();
        for round in &self.rounds {
            for found in &round.requests {
                let what = format!("{} hosts: {}", round.hosts, found.what);
                if found.errors > 0 || found.requests == 0 {
                    let (errors, requests) = (found.errors, found.requests);
                    bad.push(format!("{what}: {errors} failed, {requests} were answered"));
                }
                if let Some(target) = found.missed() {
                    let p99 = found.p99_ms;
                    bad.push(format!("{what}: p99 is {p99:.1} ms, more than {target}"));
                }
            }
        }
        bad
    }

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
        write!(out, "{}", self.requests()?)?;
        writeln!(out)?;
        Ok(write!(out, "{}", self.lists()?)?)
    }

    /// A line for each kind of requests, with the fleets side by side. `!` marks what misses its target.
    fn requests(&self) -> Result<String, std::fmt::Error> {
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
            line(&mut text, &of_kind)?;
        }
        Ok(text)
    }

    /// A line for each whole list.
    fn lists(&self) -> Result<String, std::fmt::Error> {
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
        for whole in self.rounds.iter().flat_map(|round| &round.lists) {
            let (before, peak) = (whole.rss_mib_before, whole.rss_mib_peak);
            let memory = format!("{before:.0} / {peak:.0} / {:.0}", whole.rss_mib_after);
            writeln!(
                text,
                "{:<16} {:>8} {:>8.1} {:>8.2} {:>8.1} {:>14.1} {:>16.1} {memory:>28}",
                whole.what,
                whole.items,
                whole.mib,
                whole.seconds,
                whole.mib_per_second,
                whole.cpu_us_per_item_server,
                whole.cpu_us_per_item_postgres,
            )?;
        }
        Ok(text)
    }
}

/// What requests of one kind take and cost with each fleet.
fn line(text: &mut String, fleets: &[&Figures]) -> std::fmt::Result {
    let what = fleets.first().map_or("", |found| found.what);
    let target = fleets.iter().find_map(|found| found.target_p99_ms);
    let target = target.map_or_else(|| "-".to_owned(), |target| target.to_string());
    write!(text, "{what:<33} {target:>8}")?;
    for found in fleets {
        let mark = if found.missed().is_some() { '!' } else { ' ' };
        write!(
            text,
            " | {:>7.2} {:>8.2}{mark} {:>9.0} {:>11.0}",
            found.p50_ms, found.p99_ms, found.cpu_us_server, found.cpu_us_postgres
        )?;
    }
    text.push('\n');
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(hosts: u32, p99_ms: f64, errors: u64) -> Round {
        let found = Figures {
            what: "get a host",
            target_p99_ms: Some(2.0),
            p50_ms: 0.5,
            p99_ms,
            cpu_us_server: 120.0,
            cpu_us_postgres: 210.0,
            requests: 1_000,
            errors,
        };
        Round {
            hosts,
            fill_seconds: 1.0,
            requests: vec![found],
            lists: Vec::new(),
        }
    }

    #[test]
    fn fleets_stand_side_by_side_and_what_misses_its_target_is_marked() {
        let report = Report {
            rounds: vec![round(1_000, 0.9, 0), round(100_000, 2.5, 0)],
        };
        let text = report.requests().expect("a text");
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 3, "{text}");
        assert!(lines[0].contains("| 1000 hosts") && lines[0].contains("| 100000 hosts"));
        let words: Vec<_> = lines[2].split_whitespace().collect();
        let (left, right) = (
            ["0.50", "0.90", "120", "210"],
            ["0.50", "2.50!", "120", "210"],
        );
        assert_eq!(words[..4], ["get", "a", "host", "2"]);
        assert_eq!((&words[5..9], &words[10..]), (&left[..], &right[..]));
        let length = |line: &str| line.chars().count();
        assert!(
            lines[1..]
                .iter()
                .all(|line| length(line) == length(lines[0])),
            "{text}"
        );
    }

    #[test]
    fn what_is_not_as_it_should_be_is_said() {
        let report = Report {
            rounds: vec![round(1_000, 2.0, 0), round(100_000, 2.5, 3)],
        };
        assert_eq!(
            report.bad(),
            [
                "100000 hosts: get a host: 3 failed, 1000 were answered",
                "100000 hosts: get a host: p99 is 2.5 ms, more than 2",
            ]
        );
    }
}
