//! Figures second by second, and a restart of the servers.

use std::ops::Range;
use std::time::Duration;

use serde::Serialize;

use super::driver_pool::DriverPool;
use super::driver_protocol::SecondCounts;
use crate::bench_harness::BenchHarness;
use crate::measure::as_f64;
use crate::report::{millis, print_status, round_figure};

/// Seconds before a restart that its curve includes.
pub const SECONDS_BEFORE_RESTART: u32 = 5;

/// How long recovery may take, in addition to three poll intervals.
const RECOVERY_TIMEOUT: Duration = Duration::from_mins(3);

/// Figures of one second.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CurvePoint {
    /// Offset of the second; 0 is the second of the restart, or the first one.
    pub s: i64,
    /// Answered calls.
    pub ok: u64,
    /// Calls that were refused with a retry hint.
    pub refused: u64,
    /// Failed calls.
    pub failed: u64,
    /// 99th percentile of the latency, in milliseconds.
    pub p99_ms: Option<f64>,
    /// Average interval until the next poll that the server requested, in seconds.
    pub interval_s: Option<f64>,
}

impl CurvePoint {
    fn from_second(s: i64, second: &SecondCounts) -> Self {
        let average_seconds =
            as_f64(second.next_poll_millis_sum) / 1e3 / as_f64(second.next_poll_count.max(1));
        let mut calls = second.calls.clone();
        calls.merge(&second.returned);
        Self {
            s,
            ok: calls.ok,
            refused: calls.refused,
            failed: calls.failed,
            p99_ms: calls.latencies.percentile(0.99).map(millis),
            interval_s: (0 < second.next_poll_count).then(|| round_figure(average_seconds)),
        }
    }
}

/// The points of a range of seconds, relative to second `zero`.
pub fn build_curve(drivers: &DriverPool, range: Range<u32>, zero: u32) -> Vec<CurvePoint> {
    let seconds = drivers.seconds(range);
    let point = |(number, second): (u32, &SecondCounts)| {
        CurvePoint::from_second(i64::from(number) - i64::from(zero), second)
    };
    seconds.map(point).collect()
}

/// Waits until, from second `zero` on, no second was bad for longer than an interval, and all nodes
/// are back. Returns the first good second; `None` after a timeout.
pub async fn wait_for_recovery(
    drivers: &mut DriverPool,
    zero: u32,
    interval: Duration,
    is_bad: impl Fn(&SecondCounts) -> bool,
    are_all_back: impl Fn(&DriverPool) -> bool,
) -> anyhow::Result<Option<u32>> {
    let calm_seconds = u32::try_from(interval.mul_f64(1.2).as_secs())? + 2;
    let timeout_seconds = u32::try_from((RECOVERY_TIMEOUT + interval * 3).as_secs())?;
    loop {
        drivers.collect_for(Duration::from_secs(1)).await?;
        // The current second is not reported yet, and the previous one may be incomplete.
        let reported_until = drivers.current_second().saturating_sub(2).max(zero);
        let bad = last_bad_second(drivers.seconds(zero..reported_until), &is_bad);
        let first_good = bad.map_or(zero, |bad| bad + 1);
        let is_calm = first_good + calm_seconds <= reported_until
            && has_answers(drivers, first_good..reported_until);
        if is_calm && are_all_back(drivers) {
            return Ok(Some(first_good));
        }
        if zero + timeout_seconds < reported_until {
            return Ok(None);
        }
    }
}

#[derive(Clone, Debug)]
pub struct RestartResult {
    /// Figures second by second.
    pub curve: Vec<CurvePoint>,
    /// Seconds until all polls succeeded again; `None` if they did not.
    pub recovered_s: Option<f64>,
}

/// Restarts the servers, and waits until all polls have succeeded for longer than an interval.
pub async fn restart(
    harness: &mut BenchHarness,
    drivers: &mut DriverPool,
    interval: Duration,
) -> anyhow::Result<RestartResult> {
    let zero = drivers.current_second();
    print_status("stopping the servers");
    harness.stop_servers().await?;
    harness.restart_servers().await?;
    print_status("the servers are ready again");
    let recovered = wait_for_recovery(drivers, zero, interval, has_failures, |_| true).await?;
    let end = drivers.current_second();
    Ok(RestartResult {
        curve: build_curve(drivers, zero.saturating_sub(SECONDS_BEFORE_RESTART)..end, zero),
        recovered_s: recovered.map(|second| f64::from(second - zero)),
    })
}

/// Whether any call was answered in this range of seconds.
fn has_answers(drivers: &DriverPool, range: Range<u32>) -> bool {
    drivers.seconds(range).any(|(_, second)| 0 < second.calls.ok + second.returned.ok)
}

/// Whether a call of this second failed or was refused.
pub const fn has_failures(second: &SecondCounts) -> bool {
    second.calls.has_failures() || second.returned.has_failures()
}

fn last_bad_second<'a>(
    seconds: impl Iterator<Item = (u32, &'a SecondCounts)>,
    is_bad: impl Fn(&SecondCounts) -> bool,
) -> Option<u32> {
    let bad = seconds.filter(|(_, second)| is_bad(second));
    bad.map(|(number, _)| number).last()
}

#[cfg(test)]
mod tests {
    use super::super::driver_protocol::CallCounts;
    use super::*;

    fn calls(ok: u64, refused: u64, failed: u64) -> CallCounts {
        CallCounts { ok, refused, failed, ..CallCounts::default() }
    }

    fn second(ok: u64, refused: u64, failed: u64) -> SecondCounts {
        SecondCounts { calls: calls(ok, refused, failed), ..SecondCounts::default() }
    }

    #[test]
    fn the_fleet_has_recovered_after_the_last_second_with_a_failure_or_a_refusal() {
        let seconds = [
            (7, second(10, 0, 0)),
            (8, second(0, 0, 10)),
            (9, second(5, 2, 0)),
            (10, second(10, 0, 0)),
        ];
        let first = |n: usize| seconds.iter().take(n).map(|(at, of)| (*at, of));
        let last = |n: usize| last_bad_second(first(n), has_failures);
        assert_eq!((last(1), last(2), last(4)), (None, Some(8), Some(9)));
    }

    #[test]
    fn calls_of_returned_nodes_count_for_a_second_and_its_failures() {
        let mixed = SecondCounts { returned: calls(5, 1, 2), ..second(10, 0, 0) };
        let point = CurvePoint::from_second(0, &mixed);
        assert_eq!((point.ok, point.refused, point.failed), (15, 1, 2));
        assert!(has_failures(&mixed) && !has_failures(&second(10, 0, 0)));
    }

    #[test]
    fn a_point_has_the_average_interval_until_the_next_poll() {
        let without_interval = CurvePoint::from_second(-1, &second(1, 0, 0));
        assert_eq!((without_interval.p99_ms, without_interval.interval_s), (None, None));
        let with_interval =
            SecondCounts { next_poll_count: 4, next_poll_millis_sum: 80_000, ..second(4, 0, 0) };
        assert_eq!(CurvePoint::from_second(0, &with_interval).interval_s, Some(20.0));
    }
}
