//! What came of faults, for people and for programs.

use std::fmt::Write as _;

use anyhow::ensure;
use serde::Serialize;

use super::super::curve::Point;
use super::super::plan::Calls;
use super::super::report::table_of;
use super::Fault;
use super::strangers::Strays;
use crate::measure::as_f64;
use crate::report::{millis, tidy};

/// What stands before what belongs to one fault alone.
const INDENT: &str = "    ";

/// Calls of nodes with which nothing is wrong, during some time.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Healthy {
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
}

impl Healthy {
    /// The figures of so many seconds.
    pub fn of(calls: &Calls, seconds: f64) -> Self {
        let latency = |share| calls.latencies.percentile(share).map(millis);
        Self {
            polls_per_second: tidy(as_f64(calls.ok) / seconds.max(1.0)),
            p50_ms: latency(0.5),
            p99_ms: latency(0.99),
            p99_9_ms: latency(0.999),
            errors: calls.failed,
            refused: calls.refused,
        }
    }
}

/// What came of a fault. What does not belong to it is null or empty.
#[derive(Clone, Debug, Serialize)]
pub struct Found {
    /// Which.
    pub fault: Fault,
    /// How often it happened: calls, nodes, or connections.
    pub injected: u64,
    /// Nodes with which nothing is wrong, before it happened.
    pub without: Healthy,
    /// Those of them that it does not happen to, while it did. Errors and refusals from just before until soon after
    /// are among them.
    pub with: Healthy,
    /// By how much the memory of the server grew at most while it happened, in MiB.
    pub grown_mib_server: f64,
    /// The connections that did harm, by manner.
    pub connections: Vec<Strays>,
    /// Attempts of nodes with wrong clocks that are not in the database as finished.
    pub lost: Option<u64>,
    /// Those of them that did not begin and end when they did, by the clock of the server.
    pub misdated: Option<u64>,
    /// Nodes that were away.
    pub returned: Option<Returned>,
}

/// What came of nodes that were away and came back.
#[derive(Clone, Debug, Serialize)]
pub struct Returned {
    /// How long they were to be away, in seconds. It is up to two more until the second begins in which they come back.
    pub away_s: f64,
    /// After how many seconds all of them were answered and all calls succeeded again; none if they did not.
    pub recovered_s: Option<f64>,
    /// Their own calls until then.
    pub calls: Healthy,
    /// 99 of 100 calls of all nodes took no longer until then, in milliseconds.
    pub p99_ms: Option<f64>,
    /// Second by second; 0 is that in which they came back.
    pub curve: Vec<Point>,
}

impl Found {
    /// Fails if it did not happen: then nothing is shown.
    pub fn check(&self) -> anyhow::Result<()> {
        let name = self.fault.name();
        ensure!(0 < self.injected, "{name}: it did not happen at all");
        for strays in &self.connections {
            let what = strays.manner.name();
            ensure!(0 < strays.stood, "{name}: no connection was \"{what}\"");
        }
        Ok(())
    }

    /// Whether somebody suffered who must not.
    pub fn is_bad(&self) -> bool {
        let errors = self.without.errors + self.with.errors;
        let records = self.lost.unwrap_or(0) + self.misdated.unwrap_or(0);
        let returned = self.returned.as_ref();
        let are_gone = returned.is_some_and(|returned| returned.recovered_s.is_none());
        0 < errors + records || are_gone
    }

    /// What belongs to this fault alone.
    fn besides(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        for strays in &self.connections {
            let (what, after) = (strays.manner.name(), seconds(strays.closed_p50_s));
            let (stood, closed) = (strays.stood, strays.closed);
            let last = seconds(strays.closed_last_s);
            writeln!(
                text,
                "{INDENT}{stood} {what}; the server closed {closed}, half of them within {after}, the last after {last}"
            )?;
        }
        if let Some((lost, misdated)) = self.lost.zip(self.misdated) {
            writeln!(
                text,
                "{INDENT}attempts lost: {lost}, with a wrong time: {misdated}"
            )?;
        }
        if let Some(returned) = &self.returned {
            let (away, after) = (returned.away_s, seconds(returned.recovered_s));
            let (errors, refused) = (returned.calls.errors, returned.calls.refused);
            let most = figure(returned.p99_ms);
            writeln!(
                text,
                "{INDENT}away for {away} s; all calls succeed after {after}; until then p99 of all is {most} ms, \
                 and of those who came back {errors} calls failed and {refused} were refused"
            )?;
            write!(text, "{}", table_of(&returned.curve)?)?;
        }
        Ok(text)
    }
}

/// A line for each fault, and what else there is to say of it. `!` marks what must not be.
pub fn table(all: &[Found]) -> Result<String, std::fmt::Error> {
    let mut text = format!(
        "{:<13} {:>9} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8}\n",
        "fault",
        "injected",
        "failed",
        "refused",
        "p50 ms",
        "with it",
        "p99 ms",
        "with it",
        "p99.9 ms",
        "with it",
        "MiB more"
    );
    for found in all {
        let (without, with) = (&found.without, &found.with);
        let mark = if found.is_bad() { '!' } else { ' ' };
        writeln!(
            text,
            "{:<13} {:>9} {:>7}{mark} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8.1}",
            found.fault.name(),
            found.injected,
            without.errors + with.errors,
            without.refused + with.refused,
            figure(without.p50_ms),
            figure(with.p50_ms),
            figure(without.p99_ms),
            figure(with.p99_ms),
            figure(without.p99_9_ms),
            figure(with.p99_9_ms),
            found.grown_mib_server,
        )?;
        write!(text, "{}", found.besides()?)?;
    }
    Ok(text)
}

fn figure(figure: Option<f64>) -> String {
    figure.map_or_else(|| "-".to_owned(), |figure| format!("{figure:.2}"))
}

fn seconds(seconds: Option<f64>) -> String {
    seconds.map_or_else(|| "-".to_owned(), |seconds| format!("{seconds:.1} s"))
}

#[cfg(test)]
mod tests {
    use super::super::strangers::Manner;
    use super::*;

    fn found(fault: Fault) -> Found {
        Found {
            fault,
            injected: 3,
            without: Healthy::default(),
            with: Healthy::default(),
            grown_mib_server: 0.0,
            connections: Vec::new(),
            lost: None,
            misdated: None,
            returned: None,
        }
    }

    fn strays(stood: u64) -> Strays {
        Strays {
            manner: Manner::ShakesHands,
            stood,
            failed: 0,
            closed: 1,
            closed_p50_s: Some(10.0),
            closed_last_s: Some(10.0),
        }
    }

    #[test]
    fn a_fault_that_did_not_happen_shows_nothing() {
        found(Fault::Loss).check().expect("it happened");
        let never = Found {
            injected: 0,
            ..found(Fault::Loss)
        };
        never.check().expect_err("it did not happen");
        let half = |stood| Found {
            connections: vec![strays(4), strays(stood)],
            ..found(Fault::HalfOpen)
        };
        half(1).check().expect("it happened in all manners");
        half(0).check().expect_err("only one manner happened");
    }

    #[test]
    fn it_is_bad_if_a_healthy_node_an_attempt_or_a_return_fails() {
        assert!(!found(Fault::Skew).is_bad());
        let mut all = [Fault::Loss, Fault::Skew, Fault::Skew, Fault::Return].map(found);
        all[0].with.errors = 1;
        all[1].lost = Some(1);
        all[2].misdated = Some(1);
        all[3].returned = Some(Returned {
            away_s: 30.0,
            recovered_s: None,
            calls: Healthy::default(),
            p99_ms: None,
            curve: Vec::new(),
        });
        assert!(all.iter().all(Found::is_bad));
        let mut refused = found(Fault::SlowReaders);
        refused.with.refused = 5;
        assert!(!refused.is_bad(), "a refusal with a hint is none");
    }

    #[test]
    fn the_table_tells_of_each_fault_and_of_the_connections_that_were_closed() {
        let half = Found {
            connections: vec![strays(4)],
            ..found(Fault::HalfOpen)
        };
        let text = table(&[found(Fault::Loss), half]).expect("a text");
        let line = |what: &str| text.lines().filter(|line| line.contains(what)).count();
        assert_eq!((line("loss"), line("half-open")), (1, 1), "{text}");
        let closed = "4 shook hands, then silent; the server closed 1, half of them within 10.0 s";
        assert_eq!(line(closed), 1, "{text}");
    }
}
