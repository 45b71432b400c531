//! Histogram of durations. A bucket is at most 1/30 of its value wide; histograms can be added.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Buckets per doubling of the duration.
const BUCKETS_PER_DOUBLING: u64 = 32;

/// Durations below this number of microseconds have a bucket each.
const EXACT_MICROS: u64 = 2 * BUCKETS_PER_DOUBLING;

/// Maximum duration, in microseconds (12 days). Longer durations count as this one.
const MAX_MICROS: u64 = 1 << 40;

/// Counts of durations.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "SparseHistogram", into = "SparseHistogram")]
pub struct Histogram {
    /// Counts by bucket; the last one is not 0.
    counts: Vec<u64>,
}

/// The buckets that are not empty, by index: the form that is sent between processes.
#[derive(Serialize, Deserialize)]
struct SparseHistogram(Vec<(u16, u64)>);

impl Histogram {
    /// Counts a duration.
    pub fn record(&mut self, length: Duration) {
        self.add(bucket_index(length), 1);
    }

    /// Adds the counts of another histogram.
    pub fn merge(&mut self, other: &Self) {
        for (bucket, count) in other.counts.iter().enumerate() {
            self.add(bucket, *count);
        }
    }

    /// Number of counted durations.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The duration that this share of all durations does not exceed; `None` if there are none.
    pub fn percentile(&self, share: f64) -> Option<Duration> {
        let all = self.count();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_precision_loss,
            clippy::cast_sign_loss,
            reason = "a count of durations is far below 2^52"
        )]
        let rank = ((all as f64 * share).ceil() as u64).clamp(1, all.max(1));
        let mut cumulative = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            cumulative += count;
            if rank <= cumulative {
                return Some(Duration::from_micros(bucket_max_micros(bucket)));
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

impl From<SparseHistogram> for Histogram {
    fn from(sparse: SparseHistogram) -> Self {
        let mut all = Self::default();
        for (bucket, count) in sparse.0 {
            all.add(usize::from(bucket), count);
        }
        all
    }
}

impl From<Histogram> for SparseHistogram {
    fn from(all: Histogram) -> Self {
        let counts = (0_u16..).zip(all.counts);
        Self(counts.filter(|(_, count)| 0 < *count).collect())
    }
}

fn bucket_index(length: Duration) -> usize {
    let micros = u64::try_from(length.as_micros()).unwrap_or(MAX_MICROS);
    let micros = micros.min(MAX_MICROS);
    let bucket = if micros < EXACT_MICROS {
        micros
    } else {
        let doublings = u64::from(micros.ilog2() - EXACT_MICROS.ilog2());
        EXACT_MICROS + doublings * BUCKETS_PER_DOUBLING + (micros >> (doublings + 1))
            - BUCKETS_PER_DOUBLING
    };
    usize::try_from(bucket).unwrap_or(0)
}

/// The longest duration of a bucket, in microseconds.
fn bucket_max_micros(bucket: usize) -> u64 {
    let bucket = u64::try_from(bucket).unwrap_or(0);
    if bucket < EXACT_MICROS {
        return bucket;
    }
    let (doublings, step) = (
        (bucket - EXACT_MICROS) / BUCKETS_PER_DOUBLING,
        (bucket - EXACT_MICROS) % BUCKETS_PER_DOUBLING,
    );
    ((BUCKETS_PER_DOUBLING + step + 1) << (doublings + 1)) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn histogram_of(micros: impl IntoIterator<Item = u64>) -> Histogram {
        let mut all = Histogram::default();
        for micros in micros {
            all.record(Duration::from_micros(micros));
        }
        all
    }

    #[test]
    fn a_duration_is_recorded_with_an_error_of_at_most_a_thirtieth() {
        for micros in (0..200).chain([1_000, 12_345, 999_999, 60_000_000, MAX_MICROS]) {
            let recorded = bucket_max_micros(bucket_index(Duration::from_micros(micros)));
            assert!(micros <= recorded, "{micros} is recorded as {recorded}");
            assert!(recorded - micros <= micros / 30 + 1, "{micros} is recorded as {recorded}");
        }
        assert_eq!(bucket_index(Duration::MAX), bucket_index(Duration::from_micros(MAX_MICROS)));
    }

    #[test]
    fn neighbours_have_neighbouring_buckets() {
        let buckets: Vec<_> =
            (0..100_000).map(|n| bucket_index(Duration::from_micros(n))).collect();
        let is_next = |pair: &[usize]| pair[1] == pair[0] || pair[1] == pair[0] + 1;
        assert!(buckets.windows(2).all(is_next));
    }

    #[test]
    fn the_longest_durations_show_in_the_last_percentiles() {
        let all = histogram_of((0..990).map(|_| 10).chain((0..10).map(|_| 50_000)));
        assert_eq!(all.percentile(0.5), Some(Duration::from_micros(10)));
        assert_eq!(all.percentile(0.99), Some(Duration::from_micros(10)));
        assert!(all.percentile(0.999) >= Some(Duration::from_millis(50)));
        assert_eq!(Histogram::default().percentile(0.5), None);
    }

    #[test]
    fn histograms_of_two_processes_are_added() {
        let (left, right) = (histogram_of([1, 2, 3_000]), histogram_of([2, 5_000_000]));
        let json = serde_json::to_string(&right).expect("JSON");
        let mut all = left;
        all.merge(&serde_json::from_str(&json).expect("a histogram"));
        assert_eq!(all, histogram_of([1, 2, 2, 3_000, 5_000_000]));
        assert_eq!(all.count(), 5);
    }
}
