//! How long things took, in buckets that are at most a thirtieth of their value wide. Several can be added up.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// How many buckets there are for each doubling.
const EACH: u64 = 32;

/// Up to here each microsecond has a bucket of its own.
const FINE: u64 = 2 * EACH;

/// What is longer than twelve days counts as that.
const LONGEST: u64 = 1 << 40;

/// How often what length was seen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Sparse", into = "Sparse")]
pub struct Histogram {
    /// By bucket; the last one is not 0.
    counts: Vec<u64>,
}

/// The buckets that are not empty, with their places: what is told between processes.
#[derive(Serialize, Deserialize)]
struct Sparse(Vec<(u16, u64)>);

impl Histogram {
    /// Counts a length.
    pub fn record(&mut self, length: Duration) {
        self.add(bucket(length), 1);
    }

    /// Counts all that another one counted.
    pub fn merge(&mut self, other: &Self) {
        for (bucket, count) in other.counts.iter().enumerate() {
            self.add(bucket, *count);
        }
    }

    /// How many were counted.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The length that this share of them did not exceed; none if there are none.
    pub fn percentile(&self, share: f64) -> Option<Duration> {
        let all = self.count();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_precision_loss,
            clippy::cast_sign_loss,
            reason = "a number of things that were counted"
        )]
        let rank = ((all as f64 * share).ceil() as u64).clamp(1, all.max(1));
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if rank <= seen {
                return Some(Duration::from_micros(longest(bucket)));
            }
        }
        None
    }

    fn add(&mut self, bucket: usize, count: u64) {
        if count == 0 {
            return;
        }
        if self.counts.len() <= bucket {
            self.counts.resize(bucket + 1, 0);
        }
        if let Some(counted) = self.counts.get_mut(bucket) {
            *counted += count;
        }
    }
}

impl From<Sparse> for Histogram {
    fn from(sparse: Sparse) -> Self {
        let mut all = Self::default();
        for (bucket, count) in sparse.0 {
            all.add(usize::from(bucket), count);
        }
        all
    }
}

impl From<Histogram> for Sparse {
    fn from(all: Histogram) -> Self {
        let counts = (0_u16..).zip(all.counts);
        Self(counts.filter(|(_, count)| 0 < *count).collect())
    }
}

fn bucket(length: Duration) -> usize {
    let micros = u64::try_from(length.as_micros()).unwrap_or(LONGEST);
    let micros = micros.min(LONGEST);
    let bucket = if micros < FINE {
        micros
    } else {
        let doublings = u64::from(micros.ilog2() - FINE.ilog2());
        FINE + doublings * EACH + (micros >> (doublings + 1)) - EACH
    };
    usize::try_from(bucket).unwrap_or(0)
}

/// The longest time that falls into a bucket, in microseconds.
fn longest(bucket: usize) -> u64 {
    let bucket = u64::try_from(bucket).unwrap_or(0);
    if bucket < FINE {
        return bucket;
    }
    let (doublings, place) = ((bucket - FINE) / EACH, (bucket - FINE) % EACH);
    ((EACH + place + 1) << (doublings + 1)) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(micros: impl IntoIterator<Item = u64>) -> Histogram {
        let mut all = Histogram::default();
        for micros in micros {
            all.record(Duration::from_micros(micros));
        }
        all
    }

    #[test]
    fn a_length_is_known_to_a_thirtieth() {
        for micros in (0..200).chain([1_000, 12_345, 999_999, 60_000_000, LONGEST]) {
            let found = longest(bucket(Duration::from_micros(micros)));
            assert!(micros <= found, "{micros} counts as {found}");
            assert!(found - micros <= micros / 30 + 1, "{micros} is {found}");
        }
        assert_eq!(
            bucket(Duration::MAX),
            bucket(Duration::from_micros(LONGEST))
        );
    }

    #[test]
    fn neighbours_have_neighbouring_buckets() {
        let buckets: Vec<_> = (0..100_000)
            .map(|n| bucket(Duration::from_micros(n)))
            .collect();
        let is_next = |pair: &[usize]| pair[1] == pair[0] || pair[1] == pair[0] + 1;
        assert!(buckets.windows(2).all(is_next));
    }

    #[test]
    fn the_longest_few_show_in_the_last_percentiles() {
        let all = of((0..990).map(|_| 10).chain((0..10).map(|_| 50_000)));
        assert_eq!(all.percentile(0.5), Some(Duration::from_micros(10)));
        assert_eq!(all.percentile(0.99), Some(Duration::from_micros(10)));
        assert!(all.percentile(0.999) >= Some(Duration::from_millis(50)));
        assert_eq!(Histogram::default().percentile(0.5), None);
    }

    #[test]
    fn what_two_processes_counted_is_added_up() {
        let (left, right) = (of([1, 2, 3_000]), of([2, 5_000_000]));
        let told = serde_json::to_string(&right).expect("JSON");
        let mut all = left;
        all.merge(&serde_json::from_str(&told).expect("a histogram"));
        assert_eq!(all, of([1, 2, 2, 3_000, 5_000_000]));
        assert_eq!(all.count(), 5);
    }
}
