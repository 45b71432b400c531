//! Computes the pressure from samples, and the poll interval from the pressure.

use std::time::Duration;

use super::SAMPLE_INTERVAL;

/// The weight of a new sample in the moving averages.
pub(super) const SMOOTHING_FACTOR: f64 = 0.25;

/// The maximum strain of one sample; 1 is full load.
pub(super) const MAX_STRAIN: f64 = 2.0;

/// The poll interval grows above the first value and shrinks below the second.
pub(super) const HIGH_PRESSURE: f64 = 0.75;
pub(super) const LOW_PRESSURE: f64 = 0.5;

/// Below this pressure, and at the normal poll interval, samples are rarer. Calls are refused
/// without waiting for a sample, so late samples do no harm.
pub(super) const IDLE_PRESSURE: f64 = 0.1;

/// The strain of one sample: the delay of the sample, or the used part of the limits.
pub(super) fn strain(late: Duration, full: f64) -> f64 {
    let late = late.as_secs_f64() / SAMPLE_INTERVAL.as_secs_f64();
    late.max(full).min(MAX_STRAIN)
}

/// The ratio of a count to its limit; 0 without a limit.
pub(super) fn ratio(count: u64, limit: u64) -> f64 {
    if limit == 0 {
        return 0.0;
    }
    let as_f64 = |number: u64| f64::from(u32::try_from(number).unwrap_or(u32::MAX));
    as_f64(count) / as_f64(limit)
}

/// The pressure after a sample, smoothed.
pub(super) fn smooth(pressure: f64, strain: f64) -> f64 {
    (pressure + SMOOTHING_FACTOR * (strain - pressure)).clamp(0.0, 1.0)
}

/// The interval factor after a sample. It grows fast and shrinks slowly.
pub(super) fn adapt_factor(factor: f64, pressure: f64, max_factor_now: f64) -> f64 {
    let factor_now = if pressure > HIGH_PRESSURE {
        factor * 1.5
    } else if pressure < LOW_PRESSURE {
        factor * 0.9
    } else {
        factor
    };
    factor_now.clamp(1.0, max_factor_now)
}

/// Whether rare samples are enough.
pub(super) fn is_idle(pressure: f64, factor: f64) -> bool {
    pressure < IDLE_PRESSURE && factor <= 1.0
}

/// The maximum interval factor.
pub(super) fn max_factor(max_interval: Duration, base: Duration) -> f64 {
    if base.is_zero() {
        return 1.0;
    }
    (max_interval.as_secs_f64() / base.as_secs_f64()).max(1.0)
}
