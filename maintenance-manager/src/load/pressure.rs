//! How much there is to do, from one look to the next, and how often nodes should ask by that.

use std::time::Duration;

use super::LOOK;

/// How much of the difference one look makes up for.
pub(super) const SHARE: f64 = 0.25;

/// What one look counts for at most: 1 can just be borne.
pub(super) const MOST_STRAIN: f64 = 2.0;

/// Nodes are asked to come less often above the one, and more often below the other.
pub(super) const TOO_MUCH: f64 = 0.75;
pub(super) const BEARABLE: f64 = 0.5;

/// Below it, and if nodes come as often as they should, strain may be seen a second later: calls are refused without a look.
pub(super) const AT_REST: f64 = 0.1;

/// What one look finds: how late it is, or how much of the room is taken.
pub(super) fn strain(late: Duration, full: f64) -> f64 {
    let late = late.as_secs_f64() / LOOK.as_secs_f64();
    late.max(full).min(MOST_STRAIN)
}

/// Which part so many are of the most that may be; none of what is without limit.
pub(super) fn part(some: u32, most: u32) -> f64 {
    if most == 0 {
        return 0.0;
    }
    f64::from(some) / f64::from(most)
}

/// The pressure after a look: one look alone changes little.
pub(super) fn smoothed(pressure: f64, strain: f64) -> f64 {
    (pressure + SHARE * (strain - pressure)).clamp(0.0, 1.0)
}

/// By what the interval is multiplied after a look: it grows fast and shrinks slowly.
pub(super) fn adapted(factor: f64, pressure: f64, most: f64) -> f64 {
    let adapted = if pressure > TOO_MUCH {
        factor * 1.5
    } else if pressure < BEARABLE {
        factor * 0.9
    } else {
        factor
    };
    adapted.clamp(1.0, most)
}

/// Whether it is enough to look now and then.
pub(super) fn is_at_rest(pressure: f64, factor: f64) -> bool {
    pressure < AT_REST && factor <= 1.0
}

/// The most by which an interval is multiplied.
pub(super) fn most(longest: Duration, base: Duration) -> f64 {
    if base.is_zero() {
        return 1.0;
    }
    (longest.as_secs_f64() / base.as_secs_f64()).max(1.0)
}
