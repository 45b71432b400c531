//! Histogram of durations. A bucket is at most 1/100 of its value wide; histograms can be added.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Significant decimal digits of a duration.
const SIGNIFICANT_DIGITS: u8 = 2;

/// Maximum duration, in microseconds (12 days). Longer durations count as this one.
const MAX_MICROS: u64 = 1 << 40;

/// Counts of durations, in microseconds.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(from = "SparseHistogram", into = "SparseHistogram")]
pub struct Histogram(hdrhistogram::Histogram<u64>);

/// Durations with their counts: the form that is sent between processes.
type SparseHistogram = Vec<(u64, u64)>;

impl Default for Histogram {
    fn default() -> Self {
        let counts = hdrhistogram::Histogram::new(SIGNIFICANT_DIGITS);
        Self(counts.expect("the number of digits is valid"))
    }
}

impl Histogram {
    /// Counts a duration.
    pub fn record(&mut self, length: Duration) {
        self.add(u64::try_from(length.as_micros()).unwrap_or(MAX_MICROS), 1);
    }

    /// Adds the counts of another histogram.
    pub fn merge(&mut self, other: &Self) {
        self.0.add(&other.0).expect("a histogram grows as needed");
    }

    /// Number of counted durations.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// The duration that this share of all durations does not exceed; `None` if there are none.
    pub fn percentile(&self, share: f64) -> Option<Duration> {
        let micros = || self.0.value_at_quantile(share);
        (!self.0.is_empty()).then(|| Duration::from_micros(micros()))
    }

    fn add(&mut self, micros: u64, count: u64) {
        let micros = micros.min(MAX_MICROS);
        self.0.record_n(micros, count).expect("a histogram grows as needed");
    }
}

impl From<SparseHistogram> for Histogram {
    fn from(sparse: SparseHistogram) -> Self {
        let mut all = Self::default();
        for (micros, count) in sparse {
            all.add(micros, count);
        }
        all
    }
}

impl From<Histogram> for SparseHistogram {
    fn from(Histogram(all): Histogram) -> Self {
        let counted = all.iter_recorded();
        counted.map(|step| (step.value_iterated_to(), step.count_at_value())).collect()
    }
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
    fn a_duration_is_recorded_with_an_error_of_at_most_a_hundredth() {
        for micros in (0..200).chain([1_000, 12_345, 999_999, 60_000_000, MAX_MICROS]) {
            let recorded = histogram_of([micros]).percentile(1.0).expect("a duration").as_micros();
            let micros = u128::from(micros);
            assert!(micros <= recorded, "{micros} is recorded as {recorded}");
            assert!(recorded - micros <= micros / 100, "{micros} is recorded as {recorded}");
        }
        let mut longest = Histogram::default();
        longest.record(Duration::MAX);
        assert_eq!(longest.percentile(1.0), histogram_of([MAX_MICROS]).percentile(1.0));
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
        let together = histogram_of([1, 2, 2, 3_000, 5_000_000]);
        assert_eq!(SparseHistogram::from(all.clone()), SparseHistogram::from(together));
        assert_eq!(all.count(), 5);
    }
}
