//! What happened second by second, and a restart of the server in the middle of it.

use std::ops::Range;
use std::time::Duration;

use serde::Serialize;

use super::drivers::Drivers;
use super::plan::Second;
use crate::measure::as_f64;
use crate::report::{millis, remark, tidy};
use crate::station::Station;

/// How many seconds before a restart belong to its curve.
pub const BEFORE: u32 = 5;

/// How long it is waited for that all polls succeed again, besides some intervals.
const PATIENCE: Duration = Duration::from_mins(3);

/// A second.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Point {
    /// Which; 0 is that in which the server was told to stop, or the first one.
    pub s: i64,
    /// Calls that were answered.
    pub ok: u64,
    /// Calls that were refused with a word when to come back.
    pub refused: u64,
    /// Calls that failed.
    pub failed: u64,
    /// 99 of 100 calls took no longer, in milliseconds.
    pub p99_ms: Option<f64>,
    /// After how many seconds nodes were told to call again, on average.
    pub interval_s: Option<f64>,
}

impl Point {
    fn of(s: i64, second: &Second) -> Self {
        let told = as_f64(second.told_millis) / 1e3 / as_f64(second.told.max(1));
        let mut calls = second.calls.clone();
        calls.merge(&second.returned);
        Self {
            s,
            ok: calls.ok,
            refused: calls.refused,
            failed: calls.failed,
            p99_ms: calls.latencies.percentile(0.99).map(millis),
            interval_s: (0 < second.told).then(|| tidy(told)),
        }
    }
}

/// The seconds of a range, counted from one of them.
pub fn curve(drivers: &Drivers, range: Range<u32>, zero: u32) -> Vec<Point> {
    let seconds = drivers.seconds(range);
    let point =
        |(number, second): (u32, &Second)| Point::of(i64::from(number) - i64::from(zero), second);
    seconds.map(point).collect()
}

/// Waits until nothing is bad any more for longer than an interval, from a second on, and there is nobody left to wait
/// for. Returns the first good second; none if that takes too long.
pub async fn recovered(
    drivers: &mut Drivers,
    zero: u32,
    interval: Duration,
    is_bad: impl Fn(&Second) -> bool,
    are_all_back: impl Fn(&Drivers) -> bool,
) -> anyhow::Result<Option<u32>> {
    let calm = u32::try_from(interval.mul_f64(1.2).as_secs())? + 2;
    let patience = u32::try_from((PATIENCE + interval * 3).as_secs())?;
    loop {
        drivers.listen(Duration::from_secs(1)).await?;
        // The present second is not told yet, and the one before it may not be by all.
        let told = drivers.present().saturating_sub(2).max(zero);
        let bad = last_bad(drivers.seconds(zero..told), &is_bad);
        let first_good = bad.map_or(zero, |bad| bad + 1);
        let is_calm = first_good + calm <= told && answers(drivers, first_good..told);
        if is_calm && are_all_back(drivers) {
            return Ok(Some(first_good));
        }
        if zero + patience < told {
            return Ok(None);
        }
    }
}

/// What came of a restart.
#[derive(Clone, Debug)]
pub struct Restarted {
    /// Second by second.
    pub curve: Vec<Point>,
    /// After how many seconds all polls succeeded again; none if they did not.
    pub recovered_s: Option<f64>,
}

/// Stops the server under its nodes, starts it again, and waits until all polls have succeeded for longer than an
/// interval.
pub async fn restart(
    station: &mut Station,
    drivers: &mut Drivers,
    interval: Duration,
) -> anyhow::Result<Restarted> {
    let zero = drivers.present();
    remark("the server is told to stop");
    station.halt().await?;
    station.resume().await?;
    remark("the server is there again");
    let recovered = recovered(drivers, zero, interval, has_failures, |_| true).await?;
    let end = drivers.present();
    Ok(Restarted {
        curve: curve(drivers, zero.saturating_sub(BEFORE)..end, zero),
        recovered_s: recovered.map(|second| f64::from(second - zero)),
    })
}

/// Whether anything was answered in these seconds.
fn answers(drivers: &Drivers, range: Range<u32>) -> bool {
    drivers
        .seconds(range)
        .any(|(_, second)| 0 < second.calls.ok + second.returned.ok)
}

/// Whether not all calls of a second succeeded.
pub const fn has_failures(second: &Second) -> bool {
    second.calls.are_bad() || second.returned.are_bad()
}

/// The last bad second.
fn last_bad<'a>(
    seconds: impl Iterator<Item = (u32, &'a Second)>,
    is_bad: impl Fn(&Second) -> bool,
) -> Option<u32> {
    let bad = seconds.filter(|(_, second)| is_bad(second));
    bad.map(|(number, _)| number).last()
}

#[cfg(test)]
mod tests {
    use super::super::plan::Calls;
    use super::*;

    fn calls(ok: u64, refused: u64, failed: u64) -> Calls {
        Calls {
            ok,
            refused,
            failed,
            ..Calls::default()
        }
    }

    fn second(ok: u64, refused: u64, failed: u64) -> Second {
        Second {
            calls: calls(ok, refused, failed),
            ..Second::default()
        }
    }

    #[test]
    fn the_fleet_is_well_again_after_the_last_second_with_a_failure_or_a_refusal() {
        let seconds = [
            (7, second(10, 0, 0)),
            (8, second(0, 0, 10)),
            (9, second(5, 2, 0)),
            (10, second(10, 0, 0)),
        ];
        let first = |n: usize| seconds.iter().take(n).map(|(at, of)| (*at, of));
        let last = |n: usize| last_bad(first(n), has_failures);
        assert_eq!((last(1), last(2), last(4)), (None, Some(8), Some(9)));
    }

    #[test]
    fn those_who_came_back_are_part_of_a_second_and_of_what_is_bad_in_it() {
        let told = Second {
            returned: calls(5, 1, 2),
            ..second(10, 0, 0)
        };
        let point = Point::of(0, &told);
        assert_eq!((point.ok, point.refused, point.failed), (15, 1, 2));
        assert!(has_failures(&told) && !has_failures(&second(10, 0, 0)));
    }

    #[test]
    fn a_second_shows_after_how_long_nodes_are_to_call_again() {
        let quiet = Point::of(-1, &second(1, 0, 0));
        assert_eq!((quiet.p99_ms, quiet.interval_s), (None, None));
        let told = Second {
            told: 4,
            told_millis: 80_000,
            ..second(4, 0, 0)
        };
        assert_eq!(Point::of(0, &told).interval_s, Some(20.0));
    }
}
