//! Reproducible random numbers: every part of a simulation has its own stream, derived from one
//! seed.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng as _, RngCore as _, SeedableRng as _};
use uuid::Uuid;

/// A stream of random numbers.
#[derive(Debug)]
pub struct Rng(StdRng);

impl Rng {
    /// The stream of the part with this number.
    #[must_use]
    pub fn new(seed: u64, part: u64) -> Self {
        // Multiplied by an odd number, so that neighbouring parts and seeds share nothing.
        Self(StdRng::seed_from_u64(seed ^ part.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    }

    /// Whether an event happens whose probability is this many in a thousand.
    pub fn happens(&mut self, per_mille: u16) -> bool {
        self.0.random_range(0..1_000) < per_mille
    }

    /// A number of the range, both ends included.
    pub fn between(&mut self, from: u64, to: u64) -> u64 {
        self.0.random_range(from..=to.max(from))
    }

    /// A number of the range, both ends included.
    pub fn between_signed(&mut self, from: i64, to: i64) -> i64 {
        self.0.random_range(from..=to.max(from))
    }

    /// A duration of the range, in whole milliseconds.
    pub fn duration(&mut self, range: (Duration, Duration)) -> Duration {
        let millis = |length: Duration| u64::try_from(length.as_millis()).unwrap_or(u64::MAX);
        Duration::from_millis(self.between(millis(range.0), millis(range.1)))
    }

    /// One of several values, each with the same probability.
    ///
    /// # Panics
    /// `from` is empty.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.0.random_range(0..from.len())]
    }

    /// A random UUID.
    pub fn uuid(&mut self) -> Uuid {
        let mut bytes = [0; 16];
        self.0.fill_bytes(&mut bytes);
        uuid::Builder::from_random_bytes(bytes).into_uuid()
    }

    /// A new stream, seeded from this one.
    #[must_use]
    pub fn split(&mut self) -> Self {
        Self(StdRng::seed_from_u64(self.0.next_u64()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_stream_and_each_part_its_own() {
        let draw = |seed, part| {
            let mut rng = Rng::new(seed, part);
            (rng.uuid(), rng.between(0, u64::MAX))
        };
        assert_eq!(draw(1, 2), draw(1, 2));
        assert_ne!(draw(1, 2), draw(1, 3));
        assert_ne!(draw(1, 2), draw(2, 2));
    }

    #[test]
    fn zero_never_happens_and_a_thousand_always_does() {
        let mut rng = Rng::new(7, 0);
        assert!(!(0..1_000).any(|_| rng.happens(0)));
        assert!((0..1_000).all(|_| rng.happens(1_000)));
    }
}
