//! What was found, for people and for programs.

use std::fmt::Write as _;
use std::io::Write;

use serde::Serialize;

use super::curve::Point;
use super::drivers::Slice;
use super::faults::{self, Found};
use crate::measure::as_f64;
use crate::report::{EchoFigures, each, millis, tidy};

/// All that one run found. What was not asked for is null.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// Registered hosts.
    pub hosts: u32,
    /// Servers. What is said of the server is the sum over them.
    pub servers: u16,
    /// Nodes that call.
    pub nodes: u32,
    /// Connections.
    pub connections: u32,
    /// Those of them that a node has for itself.
    pub kept_connections: u32,
    /// Between two calls of a node, in seconds.
    pub interval_s: f64,
    /// How long was measured, in seconds.
    pub measured_s: f64,
    /// Calls answered a second.
    pub polls_per_second: f64,
    /// Half of the calls took no longer, in milliseconds. Those that might be held do not count.
    pub p50_ms: Option<f64>,
    /// 99 of 100 calls took no longer, in milliseconds.
    pub p99_ms: Option<f64>,
    /// 999 of 1,000 calls took no longer, in milliseconds.
    pub p99_9_ms: Option<f64>,
    /// Calls that failed.
    pub errors: u64,
    /// Calls that were refused with a word when to come back.
    pub refused: u64,
    /// Calls that brought news.
    pub news: u64,
    /// The share of the polls that were answered from memory, as the server counts.
    pub hits_share: Option<f64>,
    /// Processor time of the server for one poll, in microseconds.
    pub cpu_us_per_poll_server: f64,
    /// Processor time of Postgres for one poll, in microseconds.
    pub cpu_us_per_poll_postgres: f64,
    /// Processor time of the drivers for one poll, in microseconds.
    pub cpu_us_per_poll_drivers: f64,
    /// Processor time of the server and Postgres for one node and minute, in microseconds.
    pub cpu_us_per_node_minute: f64,
    /// Memory of the server that is its own share, in MiB.
    pub rss_mib_server: f64,
    /// Memory of Postgres that is its own share, in MiB.
    pub rss_mib_postgres: f64,
    /// Memory of the server that is in use, in MiB.
    pub vm_rss_mib_server: f64,
    /// The same while all nodes shared connections.
    pub vm_rss_mib_server_multiplexed: f64,
    /// By how much the server's memory grew for each connection that a node has for itself, in KiB.
    pub kib_per_kept_connection: Option<f64>,
    /// Memory of the view for each node in it, in bytes.
    pub bytes_per_node: Option<f64>,
    /// Polls that are held.
    pub held: u64,
    /// From the start of the server to the first right answer, in seconds.
    pub first_answer_s: f64,
    /// How long after an operator's change half of the nodes had it, in milliseconds.
    pub change_p50_ms: Option<f64>,
    /// How long after an operator's change 99 of 100 nodes had it, in milliseconds.
    pub change_p99_ms: Option<f64>,
    /// Nodes that never had it.
    pub change_missed: Option<u64>,
    /// 99 of 100 reports of a storm took no longer, in milliseconds.
    pub reports_p99_ms: Option<f64>,
    /// Attempts of a storm that are not in the database as finished.
    pub lost: Option<u64>,
    /// After how many seconds all polls succeeded again, once the server was restarted.
    pub recovered_s: Option<f64>,
    /// Processor time of the server for one poll without news, in microseconds.
    pub cpu_us_per_quiet_poll_server: Option<f64>,
    /// How many times what the echo takes that is.
    pub cpu_of_echo_ratio: Option<f64>,
    /// The bare echo, in the same run.
    pub echo: Option<EchoFigures>,
    /// Second by second: around the restart, else what was measured.
    pub curve: Vec<Point>,
    /// What went wrong on purpose, in the order in which it was asked for.
    pub faults: Vec<Found>,
}

impl Report {
    /// How calls went, and what they cost.
    pub fn note_calls(&mut self, slice: &Slice, nodes: u32) {
        let all = &slice.all;
        let polls = usize::try_from(all.calls.ok.max(1)).unwrap_or(usize::MAX);
        let nodes = f64::from(nodes);
        let spent = (slice.spent(0) + slice.spent(1)).as_secs_f64() * 1e6;
        let latency = |share| all.calls.latencies.percentile(share).map(millis);
        self.measured_s = slice.length();
        self.polls_per_second = tidy(as_f64(all.calls.ok) / slice.length());
        self.p50_ms = latency(0.5);
        self.p99_ms = latency(0.99);
        self.p99_9_ms = latency(0.999);
        self.errors = all.calls.failed;
        self.refused = all.calls.refused;
        self.news = all.news;
        self.cpu_us_per_poll_server = each(slice.spent(0), polls);
        self.cpu_us_per_poll_postgres = each(slice.spent(1), polls);
        self.cpu_us_per_poll_drivers = each(slice.drivers, polls);
        self.cpu_us_per_node_minute = tidy(spent / nodes / (slice.length() / 60.0));
    }

    /// Whether something failed that never may.
    pub fn is_bad(&self) -> bool {
        let nothing = |number: Option<u64>| number.unwrap_or(0) == 0;
        let echo = self.echo.as_ref().map(|echo| echo.errors);
        let is_whole = nothing(self.lost) && nothing(self.change_missed) && nothing(echo);
        let do_harm = self.faults.iter().any(Found::is_bad);
        0 < self.errors || !is_whole || do_harm
    }

    /// Prints the report.
    ///
    /// # Errors
    /// Standard output is gone.
    pub fn print(&self, json: bool, shows_curve: bool) -> anyhow::Result<()> {
        let mut out = std::io::stdout().lock();
        if json {
            serde_json::to_writer(&mut out, self)?;
            return Ok(writeln!(out)?);
        }
        write!(out, "{}", self.table()?)?;
        if !self.faults.is_empty() {
            write!(out, "\n{}", faults::table(&self.faults)?)?;
        }
        if shows_curve {
            write!(out, "\n{}", table_of(&self.curve)?)?;
        }
        Ok(())
    }

    /// A line for each figure that was asked for. `!` marks what is more than it should be.
    fn table(&self) -> Result<String, std::fmt::Error> {
        let mut text = format!(
            "{} nodes of {} hosts over {} connections, {} of them for one node each, to {} server{}\n",
            self.nodes,
            self.hosts,
            self.connections,
            self.kept_connections,
            self.servers,
            if self.servers == 1 { "" } else { "s" }
        );
        writeln!(text, "{:<52} {:>12} {:>8}", "", "found", "at most")?;
        for (what, found, most) in self.lines() {
            let Some(found) = found else { continue };
            let mark = if most.is_some_and(|most| most < found) {
                '!'
            } else {
                ' '
            };
            let most = most.map_or_else(|| "-".to_owned(), |most| most.to_string());
            writeln!(text, "{what:<52} {found:>12.2}{mark}{most:>8}")?;
        }
        Ok(text)
    }

    fn lines(&self) -> Vec<Line> {
        [self.polls(), self.stories(), self.room()].concat()
    }

    /// What was polled, and what that took.
    fn polls(&self) -> Vec<Line> {
        let count = crate::measure::as_f64;
        let (server, postgres) = (self.cpu_us_per_poll_server, self.cpu_us_per_poll_postgres);
        let quiet = self.cpu_us_per_quiet_poll_server;
        vec![
            ("polls a second", Some(self.polls_per_second), None),
            ("p50, ms", self.p50_ms, None),
            ("p99, ms", self.p99_ms, Some(50.0)),
            ("p99.9, ms", self.p99_9_ms, None),
            ("failed", Some(count(self.errors)), Some(0.0)),
            ("refused", Some(count(self.refused)), None),
            ("with news", Some(count(self.news)), None),
            ("share answered from memory", self.hits_share, None),
            ("server, µs a poll", Some(server), None),
            ("Postgres, µs a poll", Some(postgres), None),
            (
                "drivers, µs a poll",
                Some(self.cpu_us_per_poll_drivers),
                None,
            ),
            ("server, µs a poll without news", quiet, None),
            (
                "that many times a bare echo",
                self.cpu_of_echo_ratio,
                Some(1.5),
            ),
        ]
    }

    /// What happened besides.
    fn stories(&self) -> Vec<Line> {
        let count = crate::measure::as_f64;
        let soon = if self.hosts <= 100_000 { 3.0 } else { 15.0 };
        let idle = (0 < self.held).then_some(self.cpu_us_per_node_minute);
        let (missed, lost) = (self.change_missed.map(count), self.lost.map(count));
        let (half, most) = (self.change_p50_ms, self.change_p99_ms);
        let first = Some(self.first_answer_s);
        vec![
            ("held polls", Some(count(self.held)), None),
            (
                "server and Postgres, µs a held node and minute",
                idle,
                Some(20.0),
            ),
            ("a change reaches half of the nodes, ms", half, None),
            ("a change reaches 99 of 100 nodes, ms", most, Some(4_000.0)),
            ("nodes that it never reached", missed, Some(0.0)),
            (
                "reports of a storm, p99, ms",
                self.reports_p99_ms,
                Some(2_000.0),
            ),
            ("attempts of a storm that are lost", lost, Some(0.0)),
            ("from start to the first answer, s", first, Some(soon)),
            (
                "until all succeed after a restart, s",
                self.recovered_s,
                None,
            ),
        ]
    }

    /// How much memory it takes.
    fn room(&self) -> Vec<Line> {
        let shared = Some(self.vm_rss_mib_server_multiplexed);
        let kept = self.kib_per_kept_connection;
        vec![
            ("server, MiB in use", Some(self.vm_rss_mib_server), None),
            (
                "server, MiB in use while all connections were shared",
                shared,
                Some(512.0),
            ),
            ("KiB more for each kept connection", kept, Some(36.0)),
            (
                "bytes of the view for each node",
                self.bytes_per_node,
                Some(128.0),
            ),
            ("Postgres, MiB", Some(self.rss_mib_postgres), None),
        ]
    }
}

/// What a line of the table says, what was found, and the most that it should be.
type Line = (&'static str, Option<f64>, Option<f64>);

/// A line for each second.
pub fn table_of(curve: &[Point]) -> Result<String, std::fmt::Error> {
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
    fn what_is_more_than_it_should_be_is_marked_and_what_was_not_asked_for_is_left_out() {
        let report = Report {
            p99_ms: Some(80.0),
            ..Report::default()
        };
        let text = report.table().expect("a text");
        let line = |what: &str| text.lines().find(|line| line.starts_with(what));
        assert!(
            line("p99, ms").is_some_and(|line| line.contains("80.00!")),
            "{text}"
        );
        assert!(
            line("failed").is_some_and(|line| line.contains("0.00 ")),
            "{text}"
        );
        assert_eq!(line("a change reaches"), None, "{text}");
    }

    #[test]
    fn a_lost_attempt_is_as_bad_as_a_failed_call() {
        let report = |errors, lost| Report {
            errors,
            lost,
            ..Report::default()
        };
        assert!(!report(0, None).is_bad() && !report(0, Some(0)).is_bad());
        assert!(report(1, None).is_bad() && report(0, Some(1)).is_bad());
    }
}
