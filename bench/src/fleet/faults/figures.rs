//! Results of fault injection, as a table and as JSON.

use std::fmt::Write as _;

use anyhow::ensure;
use serde::Serialize;

use super::super::curve::CurvePoint;
use super::super::driver_protocol::CallCounts;
use super::super::fleet_report::render_curve;
use super::Fault;
use super::unknown_clients::ClientConnections;
use crate::measure::as_f64;
use crate::report::{millis, round_figure};

/// Indentation of details of one fault.
const INDENT: &str = "    ";

/// Figures of calls of unaffected nodes.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct HealthyFigures {
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
}

impl HealthyFigures {
    /// The figures of some seconds.
    pub fn from_calls(calls: &CallCounts, seconds: f64) -> Self {
        let latency = |share| calls.latencies.percentile(share).map(millis);
        Self {
            polls_per_second: round_figure(as_f64(calls.ok) / seconds.max(1.0)),
            p50_ms: latency(0.5),
            p99_ms: latency(0.99),
            p99_9_ms: latency(0.999),
            errors: calls.failed,
            refused: calls.refused,
        }
    }
}

/// Result of a fault. Figures that do not apply to the fault are null or empty.
#[derive(Clone, Debug, Serialize)]
pub struct FaultResult {
    pub fault: Fault,
    /// How often the fault happened: calls, nodes, or connections.
    pub injected: u64,
    /// All nodes, before the fault.
    pub without: HealthyFigures,
    /// The unaffected nodes, during the fault. Errors and refusals include the time shortly before
    /// and after the fault.
    pub with: HealthyFigures,
    /// Growth of the memory of the servers up to its peak during the fault, in MiB.
    pub grown_mib_server: f64,
    /// The connections of unknown clients, by behaviour.
    pub connections: Vec<ClientConnections>,
    /// Attempts of nodes with wrong clocks that the database does not have as finished.
    pub lost: Option<u64>,
    /// Attempts of nodes with wrong clocks whose recorded times are wrong by the server's clock.
    pub misdated: Option<u64>,
    /// Nodes that disconnected and came back.
    pub returned: Option<ReturnResult>,
}

/// Result for nodes that disconnected and came back.
#[derive(Clone, Debug, Serialize)]
pub struct ReturnResult {
    /// Configured time of disconnection, in seconds. The nodes come back at the start of a second,
    /// up to 2 seconds later.
    pub away_s: f64,
    /// Seconds until all nodes were answered and all calls succeeded again; `None` if they did not.
    pub recovered_s: Option<f64>,
    /// Calls of the returning nodes until then.
    pub calls: HealthyFigures,
    /// 99th percentile of the latency of all nodes until then, in milliseconds.
    pub p99_ms: Option<f64>,
    /// Figures second by second; 0 is the second in which the nodes came back.
    pub curve: Vec<CurvePoint>,
}

impl FaultResult {
    /// Fails if the fault did not happen: then the figures show nothing.
    pub fn ensure_injected(&self) -> anyhow::Result<()> {
        let name = self.fault.name();
        ensure!(0 < self.injected, "{name}: the fault did not happen");
        for group in &self.connections {
            let what = group.behaviour.name();
            ensure!(0 < group.established, "{name}: no connection is \"{what}\"");
        }
        Ok(())
    }

    /// Whether unaffected nodes, attempts or returning nodes had errors.
    pub fn is_bad(&self) -> bool {
        let errors = self.without.errors + self.with.errors;
        let records = self.lost.unwrap_or(0) + self.misdated.unwrap_or(0);
        let returned = self.returned.as_ref();
        let are_gone = returned.is_some_and(|returned| returned.recovered_s.is_none());
        0 < errors + records || are_gone
    }

    fn render_details(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        for group in &self.connections {
            let (what, after) = (group.behaviour.name(), format_seconds(group.closed_p50_s));
            let (established, closed) = (group.established, group.closed);
            let last = format_seconds(group.closed_last_s);
            writeln!(
                text,
                "{INDENT}{established} {what}; the server closed {closed}, half of them within {after}, the last after {last}"
            )?;
        }
        if let Some((lost, misdated)) = self.lost.zip(self.misdated) {
            writeln!(text, "{INDENT}attempts lost: {lost}, with a wrong time: {misdated}")?;
        }
        if let Some(returned) = &self.returned {
            let (away, after) = (returned.away_s, format_seconds(returned.recovered_s));
            let (errors, refused) = (returned.calls.errors, returned.calls.refused);
            let p99 = format_figure(returned.p99_ms);
            writeln!(
                text,
                "{INDENT}disconnected for {away} s; all calls succeed after {after}; until then p99 of all nodes is \
                 {p99} ms, and {errors} calls of returning nodes failed and {refused} were refused"
            )?;
            write!(text, "{}", render_curve(&returned.curve)?)?;
        }
        Ok(text)
    }
}

/// A line for each fault, with its details. `!` marks faults with errors.
pub fn render_table(all: &[FaultResult]) -> Result<String, std::fmt::Error> {
    let mut text = format!(
        "{:<13} {:>9} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8}\n",
        "fault",
        "injected",
        "failed",
        "refused",
        "p50 ms",
        "w/ fault",
        "p99 ms",
        "w/ fault",
        "p99.9 ms",
        "w/ fault",
        "MiB more"
    );
    for result in all {
        let (without, with) = (&result.without, &result.with);
        let mark = if result.is_bad() { '!' } else { ' ' };
        writeln!(
            text,
            "{:<13} {:>9} {:>7}{mark} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8.1}",
            result.fault.name(),
            result.injected,
            without.errors + with.errors,
            without.refused + with.refused,
            format_figure(without.p50_ms),
            format_figure(with.p50_ms),
            format_figure(without.p99_ms),
            format_figure(with.p99_ms),
            format_figure(without.p99_9_ms),
            format_figure(with.p99_9_ms),
            result.grown_mib_server,
        )?;
        write!(text, "{}", result.render_details()?)?;
    }
    Ok(text)
}

fn format_figure(figure: Option<f64>) -> String {
    figure.map_or_else(|| "-".to_owned(), |figure| format!("{figure:.2}"))
}

fn format_seconds(seconds: Option<f64>) -> String {
    seconds.map_or_else(|| "-".to_owned(), |seconds| format!("{seconds:.1} s"))
}

#[cfg(test)]
mod tests {
    use super::super::unknown_clients::ClientBehaviour;
    use super::*;

    fn fault_result(fault: Fault) -> FaultResult {
        FaultResult {
            fault,
            injected: 3,
            without: HealthyFigures::default(),
            with: HealthyFigures::default(),
            grown_mib_server: 0.0,
            connections: Vec::new(),
            lost: None,
            misdated: None,
            returned: None,
        }
    }

    fn client_connections(established: u64) -> ClientConnections {
        ClientConnections {
            behaviour: ClientBehaviour::HandshakeOnly,
            established,
            failed: 0,
            closed: 1,
            closed_p50_s: Some(10.0),
            closed_last_s: Some(10.0),
        }
    }

    #[test]
    fn a_fault_that_did_not_happen_is_an_error() {
        fault_result(Fault::Loss).ensure_injected().expect("the fault happened");
        let never = FaultResult { injected: 0, ..fault_result(Fault::Loss) };
        never.ensure_injected().expect_err("the fault did not happen");
        let half = |established| FaultResult {
            connections: vec![client_connections(4), client_connections(established)],
            ..fault_result(Fault::HalfOpen)
        };
        half(1).ensure_injected().expect("all behaviours happened");
        half(0).ensure_injected().expect_err("only one behaviour happened");
    }

    #[test]
    fn a_failed_healthy_node_attempt_or_return_is_bad() {
        assert!(!fault_result(Fault::Skew).is_bad());
        let mut all = [Fault::Loss, Fault::Skew, Fault::Skew, Fault::Return].map(fault_result);
        all[0].with.errors = 1;
        all[1].lost = Some(1);
        all[2].misdated = Some(1);
        all[3].returned = Some(ReturnResult {
            away_s: 30.0,
            recovered_s: None,
            calls: HealthyFigures::default(),
            p99_ms: None,
            curve: Vec::new(),
        });
        assert!(all.iter().all(FaultResult::is_bad));
        let mut refused = fault_result(Fault::SlowReaders);
        refused.with.refused = 5;
        assert!(!refused.is_bad(), "a refusal with a retry hint is no error");
    }

    #[test]
    fn the_table_lists_each_fault_and_its_closed_connections() {
        let half = FaultResult {
            connections: vec![client_connections(4)],
            ..fault_result(Fault::HalfOpen)
        };
        let text = render_table(&[fault_result(Fault::Loss), half]).expect("a text");
        let line = |what: &str| text.lines().filter(|line| line.contains(what)).count();
        assert_eq!((line("loss"), line("half-open")), (1, 1), "{text}");
        let closed =
            "4 silent after the handshake; the server closed 1, half of them within 10.0 s";
        assert_eq!(line(closed), 1, "{text}");
    }
}
